# SPDX-License-Identifier: Apache-2.0
"""Loads the shared library and the shim beside this file, or in the folder EPIGRAD_LIBRARY_DIR of a build."""
import ctypes
import os

_HERE = os.environ.get("EPIGRAD_LIBRARY_DIR") or os.path.dirname(os.path.abspath(__file__))


class Error(Exception):
    """A call that the library refused or that failed. Its text names the argument, its value and what was expected."""


class ArgumentError(Error, ValueError):
    """An argument is wrong: its shape, strides, device or value."""


class UnsupportedError(Error, NotImplementedError):
    """Well-formed, but this device cannot do it."""


class UnavailableError(Error, RuntimeError):
    """The build lacks the backend, or the machine its driver or device."""


class OutOfMemoryError(Error, MemoryError):
    """Memory of the host or of the device ran out. Nothing was written."""


class DeviceError(Error, RuntimeError):
    """The device failed while it ran, or another process of a Comm failed or disagreed. Outputs are undefined."""


# PyDLL: the shim is called with the interpreter's lock, and gives it up by itself while the library computes.
_loaded = ctypes.PyDLL(os.path.join(_HERE, "_shim.so"))
_loaded.eg_py_functions.restype = ctypes.py_object
_functions = _loaded.eg_py_functions()

_functions["set_errors"]((Error, ArgumentError, UnsupportedError, UnavailableError, OutOfMemoryError, DeviceError))

forward = _functions["forward"]
backward = _functions["backward"]
set_threads = _functions["set_threads"]
use_openmp = _functions["use_openmp"]
device_info = _functions["device_info"]
comm_size = _functions["comm_size"]
comm_nccl = _functions["comm_nccl"]
comm_nccl_free = _functions["comm_nccl_free"]
torch_operators = _functions["torch_operators"]
torch_direct = _functions["torch_direct"]
torch_linear = _functions["torch_linear"]
torch_forward = _functions["torch_forward"]
torch_backward = _functions["torch_backward"]
torch_call_linear = _functions["torch_call_linear"]
torch_call_backward = _functions["torch_call_backward"]
version = _functions["version"]()
activations = _functions["activations"]()
