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

__all__ = ["linear", "gated_linear"]

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
           save: str = "auto", math: str = "default", offsets: Optional[jax.Array] = None) -> jax.Array:
    """``act(x @ w.T + bias)``, with one call forward and one backward.

    Args:
        x: ``(..., K)``; float64, float32, float16 or bfloat16.
        w: ``(N, K)``; under vmap also one for each item. Transpose a weight (K, N), which may be a copy.
        bias: ``(N,)``, or None.
        activation: one of ``epigrad.activations``. jax.nn.gelu is "gelu", with approximate=False "gelu_erf".
        save: "auto" keeps what the backward pass reads: nothing for "none", y where the derivative is a function of y,
            else ``x @ w.T + bias``, which "recompute" computes again.
        math: "default", "strict" or "fast".
        offsets: ``(groups,)`` int32: makes a grouped layer, such as a mixture of experts. The rows of an x
            ``(rows, K)`` are sorted by group, and these are where the groups end. w is then ``(groups, N, K)``, bias
            ``(groups, N)``. Rows behind the last end belong to no group: y and the gradient of x are 0 there.

    Returns:
        ``(..., N)``.

    Raises:
        TypeError, epigrad.ArgumentError (a ValueError): when traced, for dtypes, shapes and options, by name.
        jax.errors.JaxRuntimeError: when run on the CPU, for an end that is less than the one before, or more than the
            rows.
    """
    _check_options(activation, save, math)
    _check(x, w, bias, None, None, offsets, optional=("bias", "w_up", "bias_up"))
    return _linear(x, w, bias, None, None, offsets, activation, save, math)


def gated_linear(x: jax.Array, w: jax.Array, w_up: jax.Array, bias: Optional[jax.Array] = None,
                 bias_up: Optional[jax.Array] = None, activation: str = "silu", *, save: str = "auto",
                 math: str = "default", offsets: Optional[jax.Array] = None) -> jax.Array:
    """``act(x @ w.T + bias) * (x @ w_up.T + bias_up)``, with one call forward and one backward: SwiGLU, with "gelu"
    GEGLU, with "relu" ReGLU, with "sigmoid" GLU, with "none" a bilinear unit.

    Args:
        x: ``(..., K)``; float64, float32, float16 or bfloat16.
        w, w_up: ``(N, K)``; under vmap also one for each item.
        bias, bias_up: ``(N,)``, or None.
        activation: one of ``epigrad.activations``, of the gate.
        save: "auto" keeps ``x @ w.T + bias`` and ``x @ w_up.T + bias_up`` for the backward pass. "recompute" computes
            both again.
        math, offsets: as in `linear`.

    Returns:
        ``(..., N)``.

    Raises what `linear` raises.
    """
    _check_options(activation, save, math)
    _check(x, w, bias, w_up, bias_up, offsets, optional=("bias", "bias_up"))
    return _linear(x, w, bias, w_up, bias_up, offsets, activation, save, math)


def _check_options(activation, save, math):
    number(ACTIVATION, "activation", activation)
    number(MATH, "math", math)
    number({"auto": 0, "recompute": 1}, "save", save)


def _check(x, w, bias, w_up, bias_up, offsets, optional):
    for name, array in (("x", x), ("w", w), ("bias", bias), ("w_up", w_up), ("bias_up", bias_up)):
        if array is None and name in optional:
            continue
        if not hasattr(array, "dtype") or str(array.dtype) not in _DTYPES:
            raise TypeError(f"{name} is {getattr(array, 'dtype', type(array).__name__)}; expected an array of one of "
                            f"{', '.join(_DTYPES)}")
        if array.dtype != x.dtype:
            raise TypeError(f"{name} has elements of {array.dtype}; expected {x.dtype}, as x has")
    if offsets is None:
        if x.ndim < 1:
            raise ArgumentError("x.shape is (); expected (..., K)")
        if w.ndim != 2 or w.shape[1] != x.shape[-1]:
            raise ArgumentError(f"w.shape is {w.shape}; expected (N, {x.shape[-1]}), since x.shape is {x.shape}")
    else:
        _check_groups(x, w, offsets)
    n = w.shape[:-1]
    for name, array, shape in (("bias", bias, n), ("w_up", w_up, w.shape), ("bias_up", bias_up, n)):
        if array is not None and array.shape != shape:
            raise ArgumentError(f"{name}.shape is {array.shape}; expected {shape}")


def _check_groups(x, w, offsets):
    if str(getattr(offsets, "dtype", "")) != "int32":
        raise TypeError(f"offsets is {getattr(offsets, 'dtype', type(offsets).__name__)}; expected an array of int32")
    if w.ndim != 3 or w.shape[0] < 1:
        raise ArgumentError(f"w.shape is {w.shape}; expected (groups, N, K) with offsets")
    if x.ndim != 2 or x.shape[1] != w.shape[2]:
        raise ArgumentError(f"x.shape is {x.shape}; expected (rows, {w.shape[2]}) with offsets")
    if offsets.shape != w.shape[:1]:
        raise ArgumentError(f"offsets.shape is {offsets.shape}; expected {w.shape[:1]}")


def _call(name, results, arrays, activation, math, **options):
    """A call of the handler, where what is None is an empty array."""
    x, _, _, w_up, _, offsets = arrays[:6]
    arrays = [jnp.zeros((0,), x.dtype) if array is None else array for array in arrays]
    results = [jax.ShapeDtypeStruct((0,) if like is None else like.shape, x.dtype) for like in results]
    options.update(activation=ACTIVATION[activation], math=MATH[math], gated=w_up is not None,
                   grouped=offsets is not None)
    # Under vmap an array that is one for all gets a leading dimension of 1, and is not copied.
    call = jax.ffi.ffi_call(name, results, vmap_method="expand_dims")
    return call(*arrays, **{key: np.int64(value) for key, value in options.items()})


def _clear_rest(rows, offsets):
    """Rows of no group are 0, not what memory held. On the CPU the handler has seen to it."""
    if offsets is None:
        return rows
    def clear(rows, offsets):
        return jnp.where(jnp.arange(rows.shape[0])[:, None] < offsets[-1], rows, 0)
    return jax.lax.platform_dependent(rows, offsets, cpu=lambda rows, _: rows, default=clear)


def _source(activation, save, gated):
    """Where the backward pass takes act' from: 0 nothing that was saved, 1 pre, 2 y."""
    if not gated and activation in FROM_Y:
        return 0 if activation == "none" else 2
    return 1 if save == "auto" else 0


def _forward(x, w, bias, w_up, bias_up, offsets, activation, save, math):
    """y, pre and pre_up."""
    y = jax.ShapeDtypeStruct((*x.shape[:-1], w.shape[-2]), x.dtype)
    results = y, y if save else None, y if save and w_up is not None else None
    y, pre, pre_up = _call("epigrad_forward", results, (x, w, bias, w_up, bias_up, offsets), activation, math)
    return _clear_rest(y, offsets), pre, pre_up


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8))
def _linear(x, w, bias, w_up, bias_up, offsets, activation, save, math):
    return _forward(x, w, bias, w_up, bias_up, offsets, activation, False, math)[0]


def _linear_forward(x, w, bias, w_up, bias_up, offsets, activation, save, math):
    source = _source(activation, save, w_up is not None)
    y, pre, pre_up = _forward(x, w, bias, w_up, bias_up, offsets, activation, source == 1, math)
    saved = (None, pre, y)[source], pre_up if source == 1 and w_up is not None else None
    return y, (x, w, bias, w_up, bias_up, offsets, *saved)


def _linear_backward(activation, save, math, kept, grad):
    *inputs, pre, pre_up = kept
    gradients = _call("epigrad_backward", inputs[:5], (*inputs, grad, pre, pre_up), activation, math,
                      source=_source(activation, save, inputs[3] is not None))
    gradients = [None if like is None else gradient for like, gradient in zip(inputs, gradients)]
    gradients[0] = _clear_rest(gradients[0], inputs[5])
    return *gradients, None


_linear.defvjp(_linear_forward, _linear_backward)
