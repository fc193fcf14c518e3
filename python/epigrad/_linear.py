# SPDX-License-Identifier: Apache-2.0
"""The two functions of the package, over any array library."""
from __future__ import annotations

from typing import Any, Literal, Optional, Sequence, overload

from . import _library
from ._arrays import Torch, kind_of, refuse_grad, shape_of
from ._library import ArgumentError
from ._options import ACTIVATION, FROM_Y, MATH, NONFINITE, number

_SAVE = {"pre": 1, "y": 2}


def _sizes(x, w):
    """Leading shape of x, and N. What is wrong in them is said by the shim, with all arrays at hand."""
    x_shape, w_shape = shape_of(x), shape_of(w)
    return x_shape[:-1], w_shape[-2] if len(w_shape) > 1 else 0


Array = Any  # whatever speaks DLPack or the buffer protocol
Math = Literal["default", "strict", "fast"]
Nonfinite = Literal["zero", "propagate"]


@overload
def linear(x: Array, w: Array, bias: Optional[Array] = None, *, activation: str = "none", save: None = None,
           residual: Optional[Array] = None, out: Optional[Array] = None, math: Math = "default",
           nonfinite: Nonfinite = "zero", workspace_limit: int = 0, stream: Optional[int] = None) -> Array: ...


@overload
def linear(x: Array, w: Array, bias: Optional[Array] = None, *, activation: str = "none", save: Literal["pre", "y"],
           residual: Optional[Array] = None, out: Any = None, math: Math = "default", nonfinite: Nonfinite = "zero",
           workspace_limit: int = 0, stream: Optional[int] = None) -> tuple[Array, Array]: ...


def linear(x, w, bias=None, *, activation="none", save=None, residual=None, out=None, math="default",
           nonfinite="zero", workspace_limit=0, stream=None):
    """``y = act(x @ w.T + bias)``, in one call of the library.

    Arrays are anything that speaks DLPack or the buffer protocol: NumPy, PyTorch, CuPy, JAX, memoryview; float64,
    float32, float16, or bfloat16 (PyTorch's, JAX's, ml_dtypes'). None is copied. All have one dtype and are on one
    device, the CPU or CUDA. On CUDA the call is enqueued on the current stream of x's library, and returns.

    Args:
        x: ``(..., K)``.
        w: ``(N, K)``, as torch.nn.Linear has it; an array ``(K, N)`` goes in as its transpose. Or ``(batch, N, K)``,
            with an x of ``(batch, ..., K)``.
        bias: ``(N,)``, or None.
        activation: one of ``epigrad.activations``. "gelu" is the form with tanh, "gelu_erf" that with erf.
        save: "pre" to get ``x @ w.T + bias`` as well, for the backward pass; "y" to get y once more, for activations in
            ``epigrad.from_y``. None: nothing; the backward pass computes pre again.
        residual: ``(..., N)``, added; with activation "none" only.
        out: ``(..., N)``, where y is written; with save="pre" a pair (y, pre). None: a new array like x.
        math: "default", "strict" or "fast": see docs/reference/numerics.md.
        nonfinite: "zero" or "propagate": what act' is where pre is NaN; of no effect here.
        workspace_limit: bytes of scratch memory a call may use; 0: no limit.
        stream: CUDA: the stream's handle as an integer, in place of the current one.

    Returns:
        y ``(..., N)``; with save the pair (y, saved).

    Raises:
        TypeError: something is no array, or has a dtype that the library does not compute with, or that differs.
        ArgumentError: (a ValueError) shapes, strides, devices, options, memory that overlaps or is read-only.
        UnavailableError, UnsupportedError, OutOfMemoryError, DeviceError: what the machine lacks.

    An array's rows, or its columns, have to be contiguous, at one distance from each other, and its leading dimensions
    have to be walked by two strides at most. Other arrays are refused, and not copied.
    """
    kind = kind_of(x, "x")
    value = number(ACTIVATION, "activation", activation)
    if save is not None and save not in _SAVE:
        raise ArgumentError(f"save is {save!r}; expected None, 'pre' or 'y'")
    if save == "y" and activation not in FROM_Y:
        raise ArgumentError(f"save is 'y' with activation {activation!r}; expected 'pre', or one of "
                            f"{', '.join(sorted(FROM_Y))}")
    y, pre = out if save == "pre" and out is not None else (out, None)
    refuse_grad(x=x, w=w, bias=bias, residual=residual, out=y, pre=pre)
    made = y is None
    if made or (pre is None and save == "pre"):
        lead, n = _sizes(x, w)
        y = kind.empty(x, (*lead, n), "x") if made else y
        pre = kind.empty(x, (*lead, n), "x") if pre is None and save == "pre" else pre
    scratch = None  # of another stream than the current one: the library's own
    if stream is None:
        stream, scratch = kind.stream(x), kind.scratch(x)
    arrays = (x, w, bias, residual, y, pre)
    _library.forward(*(Torch.plain(arrays) if kind is Torch else arrays), value, number(MATH, "math", math),
                     number(NONFINITE, "nonfinite", nonfinite), workspace_limit, stream, scratch)
    if made:
        y = kind.finish(y)
    if save is None:
        return y
    return y, (y if save == "y" else kind.finish(pre) if made else pre)


def linear_backward(grad: Array, x: Array, w: Array, bias: Optional[Array] = None, *, activation: str = "none",
                    saved: Optional[Array] = None, save: Literal["pre", "y"] = "pre",
                    need: Optional[Sequence[bool]] = None, out: Optional[Sequence[Optional[Array]]] = None,
                    accumulate: bool = False, math: Math = "default", nonfinite: Nonfinite = "zero",
                    workspace_limit: int = 0, stream: Optional[int] = None
                    ) -> tuple[Optional[Array], Optional[Array], Optional[Array]]:
    """Gradients of `linear` for ``grad = dLoss/dy``.

    ::

        grad_pre = grad * act'(pre)
        d_x      = grad_pre @ w
        d_w      = grad_pre.T @ x        summed over all rows; of a (batch, N, K) w, item by item
        d_bias   = grad_pre summed over all rows

    Args:
        grad: ``(..., N)``.
        x, w, bias: as in the forward pass. bias is read only where pre is computed again (saved is None).
        activation: as in the forward pass.
        saved: what `linear` returned with save=; None: pre is computed again.
        save: what `saved` is, "pre" or "y".
        need: three truths, for d_x, d_w and d_bias: what is not needed is not computed. None: d_x and d_w, and d_bias
            where there is a bias.
        out: (d_x, d_w, d_bias), arrays to be written, or None for each that is to be made. d_w and d_bias may be
            float32 where x is float16 or bfloat16.
        accumulate: d_w and d_bias are added to what `out` holds. d_x is always overwritten.
        math, workspace_limit, stream: as in `linear`.
        nonfinite: act' where pre is NaN: "zero", or "propagate" for NaN.

    Returns:
        (d_x, d_w, d_bias), each None where it was not needed. Their shapes are those of x, w and bias.

    Raises what `linear` raises.
    """
    kind = kind_of(x, "x")
    value = number(ACTIVATION, "activation", activation)
    if saved is not None and save not in _SAVE:
        raise ArgumentError(f"save is {save!r}; expected 'pre' or 'y'")
    if saved is not None and save == "y" and activation not in FROM_Y:
        raise ArgumentError(f"save is 'y' with activation {activation!r}; expected 'pre', or one of "
                            f"{', '.join(sorted(FROM_Y))}")
    given = (None, None, None) if out is None else tuple(out)
    if len(given) != 3:
        raise ArgumentError(f"out has {len(given)} members; expected three, for d_x, d_w and d_bias")
    need = (True, True, bias is not None or given[2] is not None) if need is None else tuple(need)
    if len(need) != 3:
        raise ArgumentError(f"need has {len(need)} members; expected three, for d_x, d_w and d_bias")
    if accumulate and any(wanted and array is None for wanted, array in zip(need[1:], given[1:])):
        raise ArgumentError("accumulate is True, and out lacks d_w or d_bias; expected arrays to add to")
    refuse_grad(grad=grad, x=x, w=w, bias=bias, saved=saved,
                **{"out[0]": given[0], "out[1]": given[1], "out[2]": given[2]})
    results = [None, None, None]
    for i in range(3):
        if need[i]:
            shape = shape_of(x) if i == 0 else shape_of(w) if i == 1 else (_sizes(x, w)[1],)
            results[i] = kind.empty(x, shape, "x") if given[i] is None else given[i]
    scratch = None  # of another stream than the current one: the library's own
    if stream is None:
        stream, scratch = kind.stream(x), kind.scratch(x)
    arrays = (x, w, bias if saved is None else None, grad, saved, *results)
    _library.backward(*(Torch.plain(arrays) if kind is Torch else arrays), 0 if saved is None else _SAVE[save],
                      bool(accumulate), value, number(MATH, "math", math),
                      number(NONFINITE, "nonfinite", nonfinite), workspace_limit, stream, scratch)
    return tuple(kind.finish(result) if result is not None and array is None else result
                 for result, array in zip(results, given))
