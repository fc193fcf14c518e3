# SPDX-License-Identifier: Apache-2.0
"""The operators epigrad::linear and epigrad::linear_backward: kernels, shapes, gradients, vmap."""
from __future__ import annotations

import torch

from .. import _library
from .._options import ACTIVATION, MATH, number

_SOURCE = {"recompute": 0, "pre": 1, "y": 2}
# From some version on the shim reads a tensor through a table in C, which knows the stream too. Before, it goes through
# `__dlpack__`, which takes no tensor that requires grad.
_IN_C = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")

_operators = torch.library.Library("epigrad", "DEF")
_operators.define("linear(Tensor x, Tensor w, Tensor? bias, str activation, bool save, str math) -> (Tensor, Tensor)")
_operators.define("linear_backward(Tensor grad, Tensor x, Tensor w, Tensor? bias, Tensor? saved, str activation, "
                  "str source, bool[3] need, str math) -> (Tensor, Tensor, Tensor)")


def _plain(tensor):
    return tensor if tensor is None or _IN_C else tensor.detach()


def call(function, tensors, options):
    """The call; where an input's strides are no layout of the library, once more on contiguous copies."""
    tensors = [_plain(tensor) for tensor in tensors]
    x = tensors[0]
    stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda and not _IN_C else None
    try:
        function(*tensors, *options, stream)
    except _library.ArgumentError as error:
        if " has strides " not in str(error):
            raise
        inputs = 4 if function is _library.forward else 5  # what follows is written, and dense
        tensors[:inputs] = [tensor if tensor is None else tensor.contiguous() for tensor in tensors[:inputs]]
        function(*tensors, *options, stream)


def _linear(x, w, bias, activation, save, math):
    y = x.new_empty((*x.shape[:-1], w.shape[-2]))
    pre = torch.empty_like(y) if save else x.new_empty((0,))
    call(_library.forward, [x, w, bias, None, y, pre if save else None],
         (ACTIVATION[activation], MATH[math], 0, 0))
    return y, pre


def _linear_backward(grad, x, w, bias, saved, activation, source, need, math):
    results = [torch.empty_like(like) if wanted else like.new_empty((0,))
               for like, wanted in ((x, need[0]), (w, need[1]))]
    results[0] = x.new_empty(x.shape) if need[0] else results[0]  # x may be expanded
    results.append(x.new_empty((w.shape[-2] if need[2] else 0,)))
    call(_library.backward,
         [x, w, bias, grad, saved] + [result if wanted else None for result, wanted in zip(results, need)],
         (_SOURCE[source], False, ACTIVATION[activation], MATH[math], 0, 0))
    return tuple(results)


for _device in ("CPU", "CUDA"):
    _operators.impl("linear", _linear, _device)
    _operators.impl("linear_backward", _linear_backward, _device)


# ---- Shapes, for torch.compile ---------------------------------------------------------------------

@torch.library.register_fake("epigrad::linear", lib=_operators)
def _(x, w, bias, activation, save, math):
    torch._check(x.dim() >= 1 and w.dim() in (2, 3), lambda: f"w has {w.dim()} dimensions; expected 2 or 3")
    y = x.new_empty((*x.shape[:-1], w.shape[-2]))
    return y, torch.empty_like(y) if save else x.new_empty((0,))


@torch.library.register_fake("epigrad::linear_backward", lib=_operators)
def _(grad, x, w, bias, saved, activation, source, need, math):
    return (x.new_empty(x.shape) if need[0] else x.new_empty((0,)),
            torch.empty_like(w) if need[1] else w.new_empty((0,)),
            x.new_empty((w.shape[-2] if need[2] else 0,)))


# ---- Gradients -------------------------------------------------------------------------------------

def _setup(ctx, inputs, output):
    x, w, bias, activation, save, math = inputs
    y, pre = output
    ctx.mark_non_differentiable(pre)
    ctx.set_materialize_grads(False)
    ctx.activation, ctx.math, ctx.has_bias = activation, math, bias is not None
    # `save` is False for what is a function of y, for what needs nothing, and for what is to be computed again.
    ctx.source = "pre" if save else "y" if activation in ("relu", "sigmoid", "tanh") else "recompute"
    ctx.save_for_backward(x, w, bias if ctx.source == "recompute" else None,
                          pre if save else y if ctx.source == "y" else None)


def _backward(ctx, grad, _):
    if grad is None:
        return (None,) * 6
    x, w, bias, saved = ctx.saved_tensors
    need = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.has_bias and ctx.needs_input_grad[2]]
    d_x, d_w, d_bias = torch.ops.epigrad.linear_backward(grad, x, w, bias, saved, ctx.activation, ctx.source, need,
                                                        ctx.math)
    return (d_x if need[0] else None, d_w if need[1] else None, d_bias if need[2] else None, None, None, None)


torch.library.register_autograd("epigrad::linear", _backward, setup_context=_setup, lib=_operators)


# ---- vmap ------------------------------------------------------------------------------------------

def _each(function, size, in_dims, args):
    """One call for each item."""
    items = [function(*(arg if dim is None else arg.select(dim, i) for arg, dim in zip(args, in_dims)))
             for i in range(size)]
    return tuple(torch.stack(parts) for parts in zip(*items)), (0,) * len(items[0])


def _linear_vmap(info, in_dims, x, w, bias, activation, save, math):
    if in_dims[1] is None and in_dims[2] is None:  # more rows
        y, pre = torch.ops.epigrad.linear(x.movedim(in_dims[0], 0), w, bias, activation, save, math)
        return (y, pre), (0, 0 if save else None)
    return _each(lambda *tensors: torch.ops.epigrad.linear(*tensors, activation, save, math), info.batch_size,
                 in_dims[:3], (x, w, bias))


def _backward_vmap(info, in_dims, grad, x, w, bias, saved, activation, source, need, math):
    return _each(lambda *tensors: torch.ops.epigrad.linear_backward(*tensors, activation, source, need, math),
                 info.batch_size, in_dims[:5], (grad, x, w, bias, saved))


if hasattr(torch.library, "register_vmap"):  # 2.5
    torch.library.register_vmap("epigrad::linear", _linear_vmap, lib=_operators)
    torch.library.register_vmap("epigrad::linear_backward", _backward_vmap, lib=_operators)


# ---- Accumulation into main_grad -------------------------------------------------------------------

class MainGrad(torch.autograd.Function):
    """Weights with a `main_grad` get their gradient added to it, in its own type, by the call itself."""

    @staticmethod
    def forward(ctx, x, w, bias, activation, save, math):
        y, pre = torch.ops.epigrad.linear(x.detach(), w.detach(), None if bias is None else bias.detach(), activation,
                                          save, math)
        _setup(ctx, (x, w, bias, activation, save, math), (y, pre))
        ctx.weight, ctx.bias = w, bias
        return y, pre

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad, _):
        if grad is None:
            return (None,) * 6
        x, w, bias, saved = ctx.saved_tensors
        sums = [getattr(parameter, "main_grad", None) for parameter in (ctx.weight, ctx.bias)]
        need = ctx.needs_input_grad
        options = ACTIVATION[ctx.activation], MATH[ctx.math], 0, 0
        source = _SOURCE[ctx.source]
        d_x = x.new_empty(x.shape) if need[0] else None
        d_w = torch.empty_like(w) if need[1] and sums[0] is None else None
        d_bias = x.new_empty((w.shape[-2],)) if need[2] and sums[1] is None else None
        added = [total if wanted else None for total, wanted in zip(sums, need[1:3])]
        if d_x is not None or d_w is not None or d_bias is not None:
            call(_library.backward, [x, w, bias, grad, saved, d_x, d_w, d_bias], (source, False, *options))
        if added[0] is not None or added[1] is not None:
            call(_library.backward, [x, w, bias, grad, saved, None, *added], (source, True, *options))
        for parameter, total in zip((ctx.weight, ctx.bias), added):
            if total is not None:
                parameter.grad_added_to_main_grad = True  # as Megatron's optimisers ask
        return d_x, d_w, d_bias, None, None, None


def check_options(activation, save, math):
    number(ACTIVATION, "activation", activation)
    number(MATH, "math", math)
    number({"auto": 0, "recompute": 1}, "save", save)
