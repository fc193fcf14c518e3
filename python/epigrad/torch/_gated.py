# SPDX-License-Identifier: Apache-2.0
"""Gated units: the operators epigrad::gated_linear and epigrad::gated_linear_backward, in Python."""
from __future__ import annotations

import torch

from .. import _library
from .._options import ACTIVATION, MATH
from ._ops import _HAS_VMAP, _each, _operators, call, gradient_of, nobody_listens, once_differentiable

_operators.define("gated_linear(Tensor x, Tensor w, Tensor? bias, Tensor w_up, Tensor? bias_up, str activation, "
                  "bool save, str math) -> (Tensor, Tensor, Tensor)")
_operators.define("gated_linear_backward(Tensor grad, Tensor x, Tensor w, Tensor? bias, Tensor w_up, Tensor? bias_up, "
                  "Tensor? pre, Tensor? pre_up, str activation, bool[5] need, str math) "
                  "-> (Tensor, Tensor, Tensor, Tensor, Tensor)")


def forward(x, w, bias, w_up, bias_up, activation, save, math):
    """y, and pre and pre_up or None."""
    y = x.new_empty((*x.shape[:-1], w.shape[-2]))
    pre, pre_up = (torch.empty_like(y), torch.empty_like(y)) if save else (None, None)
    call(_library.forward, (x, w, bias, w_up, bias_up, None, y, pre, pre_up, None),
         (ACTIVATION[activation], MATH[math], 0, 1, 0))
    return y, pre, pre_up


def _make_gradients(x, w, w_up, need):
    n = w.shape[-2]
    return (x.new_empty(x.shape) if need[0] else None,  # not empty_like: x may be expanded
            gradient_of(w) if need[1] else None, x.new_empty((n,)) if need[2] else None,
            gradient_of(w_up) if need[3] else None, x.new_empty((n,)) if need[4] else None)


def backward(grad, x, w, bias, w_up, bias_up, pre, pre_up, activation, need, math):
    """d_x, d_w, d_bias, d_w_up, d_bias_up, or None for what is not needed."""
    made = _make_gradients(x, w, w_up, need)
    source = 0 if pre is None else 1
    call(_library.backward, (x, w, bias, w_up, bias_up, grad, pre, pre_up, None, *made, None),
         (source, 0, ACTIVATION[activation], MATH[math], 0, 1, 0))
    return made


def _dense(x, results):
    """A result that is not there is an empty tensor: an operator's results have a fixed number."""
    return tuple(x.new_empty((0,)) if result is None else result for result in results)


def _gated_linear(x, *rest):
    return _dense(x, forward(x, *rest))


def _gated_linear_backward(grad, x, *rest):
    return _dense(x, backward(grad, x, *rest))


for _device in ("CPU", "CUDA"):
    _operators.impl("gated_linear", _gated_linear, _device)
    _operators.impl("gated_linear_backward", _gated_linear_backward, _device)


# ---- Shapes, for torch.compile ---------------------------------------------------------------------

@torch.library.register_fake("epigrad::gated_linear", lib=_operators)
def _(x, w, bias, w_up, bias_up, activation, save, math):
    torch._check(x.dim() >= 1 and w.dim() in (2, 3), lambda: f"w has {w.dim()} dimensions; expected 2 or 3")
    y = x.new_empty((*x.shape[:-1], w.shape[-2]))
    return _dense(x, (y, *((torch.empty_like(y), torch.empty_like(y)) if save else (None, None))))


@torch.library.register_fake("epigrad::gated_linear_backward", lib=_operators)
def _(grad, x, w, bias, w_up, bias_up, pre, pre_up, activation, need, math):
    return _dense(x, _make_gradients(x, w, w_up, need))


# ---- Gradients -------------------------------------------------------------------------------------

def _keep(ctx, x, w, bias, w_up, bias_up, activation, save, math, pre, pre_up):
    ctx.set_materialize_grads(False)
    ctx.activation, ctx.math, ctx.has_bias = activation, math, (bias is not None, bias_up is not None)
    # Without pre and pre_up both are computed again, and the biases are read.
    kept = (None, None, pre, pre_up) if save else (bias, bias_up, None, None)
    ctx.save_for_backward(x, w, w_up, *kept)


def _run_backward(ctx, grad, function=None):
    """The gradients of all arguments, by the function; by `backward` without one, where nobody listens."""
    if grad is None:
        return (None,) * 8
    x, w, w_up, bias, bias_up, pre, pre_up = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    need = [wanted[0], wanted[1], ctx.has_bias[0] and wanted[2], wanted[3], ctx.has_bias[1] and wanted[4]]
    if function is None:
        alone = nobody_listens(grad, w) and nobody_listens(grad, w_up)
        function = backward if alone else torch.ops.epigrad.gated_linear_backward
    made = function(grad, x, w, bias, w_up, bias_up, pre, pre_up, ctx.activation, need, ctx.math)
    return *(value if given else None for value, given in zip(made, need)), None, None, None


def _setup(ctx, inputs, output):
    ctx.mark_non_differentiable(*output[1:])
    _keep(ctx, *inputs, *output[1:])


def _backward(ctx, grad, *_):
    return _run_backward(ctx, grad, torch.ops.epigrad.gated_linear_backward)


torch.library.register_autograd("epigrad::gated_linear", _backward, setup_context=_setup, lib=_operators)


class Direct(torch.autograd.Function):
    """The same as the operators, past the dispatcher: where nobody listens, see _ops.py."""

    @staticmethod
    def forward(ctx, x, w, bias, w_up, bias_up, activation, save, math):
        y, pre, pre_up = forward(x, w, bias, w_up, bias_up, activation, save, math)
        _keep(ctx, x, w, bias, w_up, bias_up, activation, save, math, pre, pre_up)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return _run_backward(ctx, grad)


# ---- vmap ------------------------------------------------------------------------------------------

def _vmap(info, in_dims, x, w, bias, w_up, bias_up, activation, save, math):
    operator = torch.ops.epigrad.gated_linear
    if in_dims[1:5] == (None,) * 4:  # more rows
        results = operator(x.movedim(in_dims[0], 0), w, bias, w_up, bias_up, activation, save, math)
        return results, (0, *((0, 0) if save else (None, None)))
    return _each(lambda *tensors: operator(*tensors, activation, save, math), info.batch_size, in_dims[:5],
                 (x, w, bias, w_up, bias_up))


def _backward_vmap(info, in_dims, *args):
    tensors, options = args[:8], args[8:]
    return _each(lambda *items: torch.ops.epigrad.gated_linear_backward(*items, *options), info.batch_size, in_dims[:8],
                 tensors)


if _HAS_VMAP:
    torch.library.register_vmap("epigrad::gated_linear", _vmap, lib=_operators)
    torch.library.register_vmap("epigrad::gated_linear_backward", _backward_vmap, lib=_operators)
