# SPDX-License-Identifier: Apache-2.0
"""epigrad: the linear layer with its epilogue, ``y = act(x @ w.T + bias)``, forward and backward.

    y, saved = epigrad.linear(x, w, bias, activation="gelu", save="pre")
    d_x, d_w, d_bias = epigrad.linear_backward(grad, x, w, bias, activation="gelu", saved=saved)

Arrays of NumPy, PyTorch, CuPy and JAX go in and out without a copy. `epigrad.torch` and `epigrad.jax` add gradients,
modules and compilation. Functions may be called from any number of threads; Python's lock is given up while the library
computes."""
from __future__ import annotations

from ._library import (ArgumentError, DeviceError, Error, OutOfMemoryError, UnavailableError, UnsupportedError)
from ._library import version as __version__
from ._library import device_info as _device_info, set_threads as _set_threads
from ._comm import Comm
from ._linear import linear, linear_backward
from ._options import ACTIVATION as _ACTIVATION, FROM_Y as from_y

__all__ = ["linear", "linear_backward", "Comm", "activations", "from_y", "set_num_threads", "device_info", "Error",
           "ArgumentError", "UnsupportedError", "UnavailableError", "OutOfMemoryError", "DeviceError", "__version__"]

activations = tuple(_ACTIVATION)
"""Names of activations."""


def set_num_threads(threads: int) -> None:
    """Sets how many threads a call on the CPU may use. 0: the library's choice (OMP_NUM_THREADS, or the cores there
    are); once ``epigrad.torch`` is imported, torch's (torch.set_num_threads). Results are the same bits for every
    number."""
    _set_threads(threads)


def device_info(backend: str = "cpu", device: int = 0) -> tuple[str, str, int]:
    """(name, features, threads) of a device: "cpu", whose only device is 0, or "cuda" with the device's ordinal.

    Raises UnavailableError where the build or the machine lacks it."""
    backends = {"cpu": 0, "cuda": 1}
    if backend not in backends:
        raise ArgumentError(f"backend is {backend!r}; expected 'cpu' or 'cuda'")
    return _device_info(backends[backend], device)
