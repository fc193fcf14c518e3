# SPDX-License-Identifier: Apache-2.0
"""The two functions of the package, over any array library."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Optional, Sequence, Union, overload

from . import _library
from ._arrays import Torch, kind_of, refuse_grad, shape_of
from ._comm import Comm, check_comm
from ._library import ArgumentError
from ._options import ACTIVATION, FROM_Y, INTO, MATH, NONFINITE, SPLIT, number

_SAVE = {"pre": 1, "y": 2}


def _sizes(x, w):
    """Leading shape of x, and N. What is wrong in them is said by the shim, with all arrays at hand."""
    x_shape, w_shape = shape_of(x), shape_of(w)
    return x_shape[:-1], w_shape[-2] if len(w_shape) > 1 else 0


def _rows_of_y(lead, comm, split):
    """Leading shape of y, from that of x."""
    if split is None or not lead:
        return lead
    return (lead[0] * comm.ranks if split == "columns" else lead[0] // comm.ranks, *lead[1:])


Array = Any  # whatever speaks DLPack or the buffer protocol
Math = Literal["default", "strict", "fast"]
Nonfinite = Literal["zero", "propagate"]
Split = Literal["columns", "rows"]


def _is_gated(w_up, bias_up):
    if w_up is None and bias_up is not None:
        raise ArgumentError("bias_up is given without w_up; expected both, of a gated unit, or neither")
    return w_up is not None


def _check_save(save, activation, gated):
    if save not in _SAVE:
        raise ArgumentError(f"save is {save!r}; expected None, 'pre' or 'y'")
    if save == "y" and gated:
        raise ArgumentError("save is 'y' with w_up; expected 'pre' for a gated unit")
    if save == "y" and activation not in FROM_Y:
        raise ArgumentError(f"save is 'y' with activation {activation!r}; expected 'pre', or one of "
                            f"{', '.join(sorted(FROM_Y))}")


def _pair(name, value):
    """pre and pre_up of a gated unit."""
    if value is None:
        return None, None
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ArgumentError(f"{name} is a {type(value).__name__}; expected the pair (pre, pre_up) of a gated unit")
    return value


def _check_split(split, comm):
    """The library's number of a split, None where there is none."""
    check_comm(comm)
    if split is None:
        return None
    if comm is None:
        raise ArgumentError(f"split is {split!r} without comm; expected both, or neither")
    return number(SPLIT, "split", split)


def _check_scale(scale):
    if scale == 0:  # which is no scale to the library
        raise ArgumentError("scale is 0; expected a number other than 0")
    return scale


@overload
def linear(x: Array, w: Array, bias: Optional[Array] = None, *, activation: str = "none", save: None = None,
           w_up: Optional[Array] = None, bias_up: Optional[Array] = None, residual: Optional[Array] = None,
           out: Optional[Array] = None, math: Math = "default", nonfinite: Nonfinite = "zero",
           scale: float = 1, workspace_limit: int = 0, stream: Optional[int] = None,
           offsets: Optional[Array] = None, comm: Optional[Comm] = None, split: Optional[Split] = None) -> Array: ...


@overload
def linear(x: Array, w: Array, bias: Optional[Array] = None, *, activation: str = "none", save: Literal["pre", "y"],
           w_up: Optional[Array] = None, bias_up: Optional[Array] = None, residual: Optional[Array] = None,
           out: Any = None, math: Math = "default", nonfinite: Nonfinite = "zero", scale: float = 1,
           workspace_limit: int = 0, stream: Optional[int] = None, offsets: Optional[Array] = None,
           comm: Optional[Comm] = None, split: Optional[Split] = None) -> tuple[Array, Any]: ...


def linear(x, w, bias=None, *, activation="none", save=None, w_up=None, bias_up=None, residual=None, out=None,
           math="default", nonfinite="zero", scale=1, workspace_limit=0, stream=None, offsets=None, comm=None,
           split=None):
    """``y = act(x @ w.T + bias)``, in one call of the library; with w_up a gated unit, such as SwiGLU:
    ``y = act(x @ w.T + bias) * (x @ w_up.T + bias_up)``.

    Arrays are anything that speaks DLPack or the buffer protocol: NumPy, PyTorch, CuPy, JAX, memoryview; float64,
    float32, float16, or bfloat16 (PyTorch's, JAX's, ml_dtypes'). None is copied. All have one dtype and are on one
    device, the CPU or CUDA. On CUDA the call is enqueued on the current stream of x's library, and returns.

    Args:
        x: ``(..., K)``.
        w: ``(N, K)``, as torch.nn.Linear has it; an array ``(K, N)`` goes in as its transpose. Or ``(batch, N, K)``,
            with an x of ``(batch, ..., K)``.
        bias: ``(N,)``, or None.
        activation: one of ``epigrad.activations``. "gelu" is the form with tanh, "gelu_erf" that with erf.
        save: what to return for the backward pass. "pre": ``x @ w.T + bias``; for a gated unit the pair of that and
            ``x @ w_up.T + bias_up``. "y": y once more, for activations in ``epigrad.from_y``, and not for a gated
            unit. None: nothing; the backward pass computes pre again.
        w_up: shaped as w. Makes a gated unit, whose gate is w. Both may be views of one array.
        bias_up: ``(N,)``, or None; with w_up only.
        residual: ``(..., N)``, added; with activation "none" only, and not to a gated unit.
        out: ``(..., N)``, where y is written; with save="pre" a pair (y, pre), of a gated unit (y, (pre, pre_up)).
            None: a new array like x.
        math: "default", "strict" or "fast": see docs/reference/numerics.md.
        nonfinite: "zero" or "propagate": what act' is where pre is NaN. No effect in the forward pass.
        scale: a factor of the products, such as the 1/√d of attention: ``y = act(scale * (x @ w.T) + bias)``.
        workspace_limit: bytes of scratch memory a call may use; 0: no limit.
        stream: CUDA: the stream's handle as an integer, in place of the current one.
        offsets: ``(groups,)`` int32: makes a grouped layer, such as a mixture of experts. The rows of an x
            ``(rows, K)`` are sorted by group, and these are where the groups end. w is then ``(groups, N, K)``, bias
            ``(groups, N)``. Rows behind the last end belong to no group, and are not written. Not with
            workspace_limit. With CUDA arrays the offsets are in device memory, too, and the host does not wait for
            them.
        comm: an `epigrad.Comm`, with split: the layer is divided over its P processes.
        split: how w is divided; N and K are those of this process. Arrays whose rows are divided have this process's
            part of them, one P-th of the first size, in the order of the ranks:

            - "columns": x is ``(M / P, ..., K)``, and gathered; y and the rest are ``(M, ..., N)``.
            - "rows": x is ``(M, ..., K)``; y, pre and residual are ``(M / P, ..., N)``, and summed over the processes.
              bias, the same on all, is added once. Not for gated units.

            Not with a batch, offsets or workspace_limit.

    Returns:
        y ``(..., N)``; with save the pair (y, saved), where saved is ``(..., N)``, of a gated unit two of those.

    Raises:
        TypeError: something is no array, or has a dtype that the library does not compute with, or that differs.
        ArgumentError: (a ValueError) shapes, strides, devices, options, memory that overlaps or is read-only.
        UnavailableError, UnsupportedError, OutOfMemoryError, DeviceError: what the machine lacks.

    An array's rows, or its columns, have to be contiguous, at one distance from each other, and its leading dimensions
    have to be walked by two strides at most. Other arrays are refused, and not copied.
    """
    kind = kind_of(x, "x")
    value = number(ACTIVATION, "activation", activation)
    gated = _is_gated(w_up, bias_up)
    parts = _check_split(split, comm)
    if comm is not None and split is None:
        raise ArgumentError("comm is given without split; expected both, or neither")
    if save is not None:
        _check_save(save, activation, gated)
    y, saved = out if save == "pre" and out is not None else (out, None)
    pre, pre_up = _pair("out[1]", saved) if gated else (saved, None)
    refuse_grad(x=x, w=w, bias=bias, w_up=w_up, bias_up=bias_up, residual=residual, out=y, pre=pre, pre_up=pre_up)
    made = y is None
    if made or save == "pre":
        lead, n = _sizes(x, w)
        lead = _rows_of_y(lead, comm, split)
        y = kind.empty(x, (*lead, n), "x") if made else y
        pre = kind.empty(x, (*lead, n), "x") if pre is None and save == "pre" else pre
        pre_up = kind.empty(x, (*lead, n), "x") if pre_up is None and save == "pre" and gated else pre_up
    scratch = None  # of another stream than the current one: the library's own
    if stream is None:
        stream, scratch = kind.stream(x), kind.scratch(x)
    arrays = (x, w, bias, w_up, bias_up, residual, y, pre, pre_up, offsets)
    _library.forward(*(Torch.plain(arrays) if kind is Torch else arrays), value, number(MATH, "math", math),
                     number(NONFINITE, "nonfinite", nonfinite), _check_scale(scale), workspace_limit, stream, scratch,
                     *(() if comm is None else (comm.address, parts)))
    if made:
        y = kind.finish(y)
    if save is None:
        return y
    if save == "y":
        return y, y
    if made:
        pre, pre_up = kind.finish(pre), kind.finish(pre_up) if gated else None
    return y, ((pre, pre_up) if gated else pre)


_RESULTS = tuple(INTO)
_OUT = tuple(f"out[{i}]" for i in range(len(_RESULTS)))


def _take_members(name, value, count, default):
    """`value` as a tuple, one member for each result."""
    members = default if value is None else tuple(value)
    if len(members) != count:
        raise ArgumentError(f"{name} has {len(members)} members; expected {count}, for {', '.join(_RESULTS[:count])}")
    return members


def _take_into(accumulate, need, given):
    """The library's bits of the results that are added to."""
    names = _RESULTS[:len(given)]
    if isinstance(accumulate, str) or not (isinstance(accumulate, Iterable) or accumulate in (True, False)):
        raise ArgumentError(f"accumulate is {accumulate!r}; expected a truth, or names of {', '.join(names)}")
    chosen = list(accumulate) if isinstance(accumulate, Iterable) else list(names[1:]) if accumulate else []
    for name in chosen:
        if name not in names:
            raise ArgumentError(f"accumulate has {name!r}; expected names of {', '.join(names)}")
    lacking = [name for name, wanted, array in zip(names, need, given) if name in chosen and wanted and array is None]
    if lacking:
        raise ArgumentError(f"accumulate is {accumulate!r}, and out lacks {' and '.join(lacking)}; "
                            "expected arrays to add to")
    return sum(INTO[name] for name in set(chosen))


@overload
def linear_backward(grad: Array, x: Array, w: Array, bias: Optional[Array] = None, *, activation: str = "none",
                    saved: Optional[Array] = None, save: Literal["pre", "y"] = "pre",
                    need: Optional[Sequence[bool]] = None, out: Optional[Sequence[Optional[Array]]] = None,
                    w_up: None = None, bias_up: None = None, residual: Optional[Array] = None,
                    accumulate: Union[bool, Sequence[str]] = False,
                    math: Math = "default", nonfinite: Nonfinite = "zero", scale: float = 1,
                    workspace_limit: int = 0, stream: Optional[int] = None,
                    comm: Optional[Comm] = None, mean: bool = False, offsets: Optional[Array] = None,
                    split: Optional[Split] = None
                    ) -> tuple[Optional[Array], Optional[Array], Optional[Array]]: ...


@overload
def linear_backward(grad: Array, x: Array, w: Array, bias: Optional[Array] = None, *, activation: str = "none",
                    saved: Optional[Sequence[Array]] = None, save: Literal["pre", "y"] = "pre",
                    need: Optional[Sequence[bool]] = None, out: Optional[Sequence[Optional[Array]]] = None,
                    w_up: Array, bias_up: Optional[Array] = None, residual: Optional[Array] = None,
                    accumulate: Union[bool, Sequence[str]] = False,
                    math: Math = "default", nonfinite: Nonfinite = "zero", scale: float = 1,
                    workspace_limit: int = 0, stream: Optional[int] = None,
                    comm: Optional[Comm] = None, mean: bool = False, offsets: Optional[Array] = None,
                    split: Optional[Split] = None
                    ) -> tuple[Optional[Array], Optional[Array], Optional[Array],
                               Optional[Array], Optional[Array]]: ...


def linear_backward(grad, x, w, bias=None, *, activation="none", saved=None, save="pre", need=None, out=None,
                    w_up=None, bias_up=None, residual=None, accumulate=False, math="default", nonfinite="zero",
                    scale=1, workspace_limit=0, stream=None, comm=None, mean=False, offsets=None, split=None):
    """Gradients of `linear` for ``grad = dLoss/dy``.

    ::

        grad_pre = grad * act'(pre)
        d_x      = grad_pre @ w (+ residual)
        d_w      = grad_pre.T @ x        summed over all rows; of a (batch, N, K) w, item by item
        d_bias   = grad_pre summed over all rows

    and of a gated unit, where w_up is given::

        grad_pre = grad * pre_up * act'(pre)        grad_up   = grad * act(pre)
        d_x      = grad_pre @ w + grad_up @ w_up (+ residual)
        d_w      = grad_pre.T @ x                   d_w_up    = grad_up.T @ x
        d_bias   = grad_pre summed over all rows    d_bias_up = grad_up summed likewise

    Args:
        grad: ``(..., N)``.
        x, w, bias: as in the forward pass. bias is read only where pre is computed again (saved is None).
        activation: as in the forward pass.
        saved: what `linear` returned with save=, of a gated unit the pair (pre, pre_up); None: they are computed again.
        save: what `saved` is, "pre" or "y".
        need: a bool for each result: what is not needed is not computed. None: all but the gradients of a bias that
            is absent.
        out: for each result the array to write to, or None to make one. All but d_x may be float32 where x is float16
            or bfloat16.
        w_up, bias_up: as in the forward pass.
        residual: ``(..., K)``, added to d_x, such as the gradient of x from another branch; may be the array that `out`
            has for d_x.
        accumulate: the names of the results that are added to what `out` holds, such as ("d_x", "d_w"). True: all but
            d_x.
        math, workspace_limit, stream: as in `linear`.
        nonfinite: act' where pre is NaN: "zero", or "propagate" for NaN.
        scale: as in the forward pass; it is a factor of d_x and d_w too, but not of the gradients of biases.
        comm: an `epigrad.Comm`. Without split each of its processes has its own rows, and d_w and d_bias are summed
            over the processes.
        mean: with comm, the mean over the processes and not the sum; not with split.
        offsets: as in the forward pass; each group then has its own d_w and d_bias, which are 0 for one without rows.
        split: as in the forward pass:

            - "columns": x, d_x and residual have this process's rows. x is gathered, d_x is summed over the processes.
            - "rows": grad and saved have this process's rows. The gradient of pre is gathered; d_bias is the same on
              all. Without saved for activation "none" only.

    Returns:
        (d_x, d_w, d_bias), with w_up (d_x, d_w, d_bias, d_w_up, d_bias_up), each None where it was not needed. Their
        shapes are those of x, w and bias.

    Raises what `linear` raises.
    """
    kind = kind_of(x, "x")
    value = number(ACTIVATION, "activation", activation)
    gated = _is_gated(w_up, bias_up)
    parts = _check_split(split, comm)
    if split is not None and mean:
        raise ArgumentError("mean is given with split; expected one of them")
    if comm is None and mean:
        raise ArgumentError(f"mean is {mean!r} without comm; expected both, or no mean")
    count = 5 if gated else 3
    if saved is not None:
        _check_save(save, activation, gated)
    pre, pre_up = _pair("saved", saved) if gated else (saved, None)
    given = _take_members("out", out, count, (None,) * count)
    there = (True, True, bias is not None or given[2] is not None)
    if gated:
        there += True, bias_up is not None or given[4] is not None
    need = _take_members("need", need, count, there)
    into = _take_into(accumulate, need, given)
    refuse_grad(grad=grad, x=x, w=w, bias=bias, w_up=w_up, bias_up=bias_up, saved=pre, saved_up=pre_up,
                residual=residual, **dict(zip(_OUT, given)))
    results = [None] * len(_RESULTS)
    bias_shape = (_sizes(x, w)[1],) if offsets is None else shape_of(w)[:-1]
    for i in range(count):
        if need[i] and given[i] is None:
            like = (x, w, None, w_up, None)[i]
            results[i] = kind.empty(x, bias_shape if like is None else shape_of(like), "x")
        elif need[i]:
            results[i] = given[i]
    scratch = None  # of another stream than the current one: the library's own
    if stream is None:
        stream, scratch = kind.stream(x), kind.scratch(x)
    again = saved is None
    arrays = (x, w, bias if again else None, w_up, bias_up if again else None, grad, pre, pre_up,
              residual, *results, offsets)
    _library.backward(*(Torch.plain(arrays) if kind is Torch else arrays), 0 if again else _SAVE[save],
                      into, value, number(MATH, "math", math),
                      number(NONFINITE, "nonfinite", nonfinite), _check_scale(scale), workspace_limit, stream, scratch,
                      *(() if comm is None else (comm.address, int(mean), parts)))
    return tuple(kind.finish(result) if result is not None and array is None else result
                 for result, array in zip(results, given))
