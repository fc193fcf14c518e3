# SPDX-License-Identifier: Apache-2.0
"""epigrad in JAX: a function with its gradient, under jit and vmap, through XLA's foreign function interface.

The compiled program calls the library without Python between."""
from __future__ import annotations

import functools
import os
import re
from typing import Optional

import jax
import jax.numpy as jnp
import numpy as np

from ._library import _loaded
from ._library import ArgumentError
from ._options import ACTIVATION, FROM_Y, MATH, number

__all__ = ["linear"]

_DTYPES = ("float64", "float32", "float16", "bfloat16")


def _register():
    """XLA asks a handler for its version, and takes its own only. Its header, which jaxlib has, says which that is."""
    with open(os.path.join(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h"), encoding="utf-8") as header:
        text = header.read()
    _loaded.eg_xla_set_version(*(int(re.search(rf"#define XLA_FFI_API_{part}\s+(\d+)", text).group(1))
                                 for part in ("MAJOR", "MINOR")))
    for platform, name in (("cpu", "cpu"), ("CUDA", "cuda")):
        for function in ("forward", "backward"):
            handler = getattr(_loaded, f"eg_xla_{function}_{name}")
            jax.ffi.register_ffi_target(f"epigrad_{function}", jax.ffi.pycapsule(handler), platform=platform)


_register()


def linear(x: jax.Array, w: jax.Array, bias: Optional[jax.Array] = None, activation: str = "none", *,
           save: str = "auto", math: str = "default") -> jax.Array:
    """``act(x @ w.T + bias)``, with one call forward and one backward.

    Args:
        x: ``(..., K)``; float64, float32, float16 or bfloat16.
        w: ``(N, K)``; under vmap one for each item too. A weight (K, N) is to be transposed, which may be a copy.
        bias: ``(N,)``, or None.
        activation: one of ``epigrad.activations``. jax.nn.gelu is "gelu", with approximate=False "gelu_erf".
        save: "auto" keeps what the backward pass reads: nothing for "none", y where the derivative is a function of y,
            else ``x @ w.T + bias``. "recompute" computes it again.
        math: "default", "strict" or "fast".

    Returns:
        ``(..., N)``.

    Raises:
        TypeError, epigrad.ArgumentError (a ValueError): when traced, of dtypes, shapes and options, by name.
    """
    number(ACTIVATION, "activation", activation)
    number(MATH, "math", math)
    number({"auto": 0, "recompute": 1}, "save", save)
    _check(x, w, bias)
    bias = jnp.zeros((0,), x.dtype) if bias is None else bias
    return _linear(x, w, bias, activation, save, math)


def _check(x, w, bias):
    for name, array in (("x", x), ("w", w), ("bias", bias)):
        if array is None and name == "bias":
            continue
        if not hasattr(array, "dtype") or str(array.dtype) not in _DTYPES:
            raise TypeError(f"{name} is {getattr(array, 'dtype', type(array).__name__)}; expected an array of one of "
                            f"{', '.join(_DTYPES)}")
        if array.dtype != x.dtype:
            raise TypeError(f"{name} has elements of {array.dtype}; expected {x.dtype}, as x has")
    if x.ndim < 1:
        raise ArgumentError("x.shape is (); expected (..., K)")
    if w.ndim != 2 or w.shape[1] != x.shape[-1]:
        raise ArgumentError(f"w.shape is {w.shape}; expected (N, {x.shape[-1]}), since x.shape is {x.shape}")
    if bias is not None and bias.shape != w.shape[:1]:
        raise ArgumentError(f"bias.shape is {bias.shape}; expected ({w.shape[0]},)")


def _call(name, results, *arrays, **options):
    # Under vmap an array that is one for all gets a leading dimension of 1, and is not copied.
    call = jax.ffi.ffi_call(name, results, vmap_method="expand_dims")
    return call(*arrays, **{key: np.int64(value) for key, value in options.items()})


def _forward(x, w, bias, activation, save, math):
    shape = (*x.shape[:-1], w.shape[0])
    results = jax.ShapeDtypeStruct(shape, x.dtype), jax.ShapeDtypeStruct(shape if save else (0,), x.dtype)
    return _call("epigrad_forward", results, x, w, bias, activation=ACTIVATION[activation], math=MATH[math])


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _linear(x, w, bias, activation, save, math):
    return _forward(x, w, bias, activation, False, math)[0]


def _linear_forward(x, w, bias, activation, save, math):
    keep = save == "auto" and activation not in FROM_Y
    y, pre = _forward(x, w, bias, activation, keep, math)
    saved = pre if keep else y if activation in FROM_Y and activation != "none" else jnp.zeros((0,), x.dtype)
    return y, (x, w, bias, saved)


def _linear_backward(activation, save, math, kept, grad):
    x, w, bias, saved = kept
    source = 0 if saved.shape == (0,) else 2 if activation in FROM_Y else 1
    results = tuple(jax.ShapeDtypeStruct(like.shape, like.dtype) for like in (x, w, bias))
    return _call("epigrad_backward", results, x, w, bias, grad, saved, activation=ACTIVATION[activation],
                 math=MATH[math], source=source)


_linear.defvjp(_linear_forward, _linear_backward)
