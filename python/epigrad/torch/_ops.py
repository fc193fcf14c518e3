# SPDX-License-Identifier: Apache-2.0
"""The operators epigrad::linear and epigrad::linear_backward: kernels, shapes, gradients, vmap."""
from __future__ import annotations

import os
import sys

import torch
from torch.autograd import forward_ad

from .. import _library
from .._options import ACTIVATION, FROM_Y, INTO, MATH, number

_SAVED_Y = FROM_Y - {"none"}  # of "none" nothing need be saved
_SOURCE = {"recompute": 0, "pre": 1, "y": 2}
# From some version on the shim reads a tensor through a table in C, which knows the stream too. Before, it goes through
# `__dlpack__`, which takes no tensor that requires grad.
_IN_C = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
_HAS_VMAP = hasattr(torch.library, "register_vmap")  # 2.5
# torch.compile of 2.4 refuses to ask a tensor for an attribute.
COMPILES_WITHOUT_ATTRIBUTES = not _HAS_VMAP

_operators = torch.library.Library("epigrad", "DEF")
_operators.define("linear(Tensor x, Tensor w, Tensor? bias, str activation, bool save, str math) -> (Tensor, Tensor)")
_operators.define("linear_backward(Tensor grad, Tensor x, Tensor w, Tensor? bias, Tensor? saved, str activation, "
                  "str source, bool[3] need, str math) -> (Tensor, Tensor, Tensor)")


def _again(error, function, tensors, options):
    """After a call that was refused: where an input's strides are no layout of the library, or its elements are to be
    negated, on contiguous copies."""
    if " has strides " not in str(error) and " is a negated view" not in str(error):
        raise error
    inputs = 6 if function is _library.forward else 8  # what follows is written, and dense
    function(*(t if t is None else t.resolve_neg().contiguous() for t in tensors[:inputs]), *tensors[inputs:], *options)


def call(function, tensors, options):
    stream = scratch = None
    if tensors[0].is_cuda:
        scratch = tensors[0].new_empty
        stream = None if _IN_C else torch.cuda.current_stream(tensors[0].device).cuda_stream
    if not _IN_C:
        tensors = [tensor if tensor is None else tensor.detach() for tensor in tensors]
    try:
        function(*tensors, *options, stream, scratch)
    except _library.ArgumentError as error:
        _again(error, function, tensors, (*options, stream, scratch))


def forward(x, w, bias, activation, save, math):
    """y, and pre or None."""
    # torch.Size costs more than the rest
    y = x.new_empty((len(x), len(w)) if x.dim() == w.dim() == 2 else (*x.shape[:-1], w.shape[-2]))
    pre = torch.empty_like(y) if save else None
    call(_library.forward, (x, w, bias, None, None, None, y, pre, None, None),
         (ACTIVATION[activation], MATH[math], 0, 1, 0))
    return y, pre


def gradient_of(w):
    """Memory for d_w: transposed where w is, else contiguous, so that the operators in C and torch.compile agree."""
    if w.stride(-2) != 1 or w.stride(-1) == 1:
        return w.new_empty(w.shape)
    return w.new_empty((*w.shape[:-2], w.shape[-1], w.shape[-2])).transpose(-1, -2)


def backward(grad, x, w, bias, saved, activation, source, need, math):
    """d_x, d_w, d_bias, or None for what is not needed."""
    d_x = x.new_empty(x.shape) if need[0] else None  # not empty_like: x may be expanded
    d_w = gradient_of(w) if need[1] else None
    d_bias = x.new_empty((w.shape[-2],)) if need[2] else None
    call(_library.backward, (x, w, bias, None, None, grad, saved, None, None, d_x, d_w, d_bias, None, None, None),
         (_SOURCE[source], 0, ACTIVATION[activation], MATH[math], 0, 1, 0))
    return d_x, d_w, d_bias


def _linear(x, w, bias, activation, save, math):
    y, pre = forward(x, w, bias, activation, save, math)
    return y, x.new_empty((0,)) if pre is None else pre


def _linear_backward(grad, x, w, *rest):
    return tuple(x.new_empty((0,)) if result is None else result for result in backward(grad, x, w, *rest))


def _register():
    """In C, through torch's stable C interface, from 2.10 on; before, in Python."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    if _library.torch_operators(*(os.path.join(folder, f"libtorch_{name}.so") for name in ("cpu", "cuda"))):
        return
    for device in ("CPU", "CUDA"):
        _operators.impl("linear", _linear, device)
        _operators.impl("linear_backward", _linear_backward, device)


_register()


# ---- Shapes, for torch.compile ---------------------------------------------------------------------

@torch.library.register_fake("epigrad::linear", lib=_operators)
def _(x, w, bias, activation, save, math):
    _compiled_calls()
    check_options(activation, "auto", math)
    torch._check(x.dim() >= 1 and w.dim() in (2, 3), lambda: f"w has {w.dim()} dimensions; expected 2 or 3")
    y = x.new_empty((*x.shape[:-1], w.shape[-2]))
    return y, torch.empty_like(y) if save else x.new_empty((0,))


@torch.library.register_fake("epigrad::linear_backward", lib=_operators)
def _(grad, x, w, bias, saved, activation, source, need, math):
    return (x.new_empty(x.shape) if need[0] else x.new_empty((0,)),
            gradient_of(w) if need[1] else x.new_empty((0,)),
            x.new_empty((w.shape[-2] if need[2] else 0,)))


# ---- Gradients -------------------------------------------------------------------------------------

def _keep(ctx, x, w, bias, activation, save, math, y, pre):
    ctx.set_materialize_grads(False)
    ctx.activation, ctx.math, ctx.has_bias = activation, math, bias is not None
    # `save` is False for what is a function of y, for what needs nothing, and for what is to be computed again.
    ctx.source = "pre" if save else "y" if activation in _SAVED_Y else "recompute"
    ctx.save_for_backward(x, w, bias if ctx.source == "recompute" else None,
                          pre if save else y if ctx.source == "y" else None)


def _setup(ctx, inputs, output):
    ctx.mark_non_differentiable(output[1])
    _keep(ctx, *inputs, *output)


def _backward(ctx, grad, _):
    if grad is None:
        return (None,) * 6
    x, w, bias, saved = ctx.saved_tensors
    need = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.has_bias and ctx.needs_input_grad[2]]
    d_x, d_w, d_bias = torch.ops.epigrad.linear_backward(grad, x, w, bias, saved, ctx.activation, ctx.source, need,
                                                        ctx.math)
    return (d_x if need[0] else None, d_w if need[1] else None, d_bias if need[2] else None, None, None, None)


torch.library.register_autograd("epigrad::linear", _backward, setup_context=_setup, lib=_operators)


# ---- Without the dispatcher -------------------------------------------------------------------------
#
# An operator written in Python costs some 8 us a call, and its gradient formula 10 more. Where nobody listens between
# autograd and the kernel (no torch.compile, torch.func, tracing, profiler or dispatch mode, no subclass), they are left
# out.

_PLAIN = (torch.Tensor, torch.nn.Parameter)
# Whether any device has autocast on; asking for one costs four times as much.
any_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def refuse_tangents(*tensors):
    """The operators would lose them without a word."""
    if forward_ad._current_level < 0:
        return
    for tensor in tensors:
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError("epigrad.torch has no forward-mode differentiation; expected torch's own "
                                      "operators for tensors with tangents")


try:
    from torch._C import _get_tracing_state, _len_torch_dispatch_stack
    from torch._C._autograd import _profiler_enabled
    from torch._C._functorch import peek_interpreter_stack
except ImportError:  # names that may go with a version; operators do without
    _LISTENERS = None

    def nobody_listens(x, w):
        return False
else:
    _LISTENERS = (peek_interpreter_stack, _len_torch_dispatch_stack, _get_tracing_state, _profiler_enabled,
                  any_autocast)

    def nobody_listens(x, w):
        return (type(x) in _PLAIN and type(w) in _PLAIN and peek_interpreter_stack() is None
                and not _len_torch_dispatch_stack() and _get_tracing_state() is None and not _profiler_enabled()
                and forward_ad._current_level < 0
                and not x.is_neg() and not w.is_neg())


def once_differentiable(backward):
    """torch's, without the microseconds it takes where no gradient of the gradient is asked for."""
    checked = torch.autograd.function.once_differentiable(backward)

    def run(ctx, grad):
        return checked(ctx, grad) if torch.is_grad_enabled() else backward(ctx, grad)
    return run


class Direct(torch.autograd.Function):
    """The same as the operators, with fewer layers between. Weights with a `main_grad` get their gradient added to it,
    in its own type, by the call itself."""

    @staticmethod
    def forward(ctx, x, w, bias, activation, save, math):
        y, pre = forward(x, w, bias, activation, save, math)
        _keep(ctx, x, w, bias, activation, save, math, y, pre)
        ctx.parameters = (w, bias) if hasattr(w, "main_grad") else None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        if grad is None:
            return (None,) * 6
        x, w, bias, saved = ctx.saved_tensors
        if ctx.parameters is not None:
            return *_add_to_main_grad(ctx, grad, x, w, bias, saved), None, None, None
        need = ctx.needs_input_grad
        if nobody_listens(grad, w):
            return *backward(grad, x, w, bias, saved, ctx.activation, ctx.source, need, ctx.math), None, None, None
        return *_backward(ctx, grad, None)[:3], None, None, None


def apply_eagerly(function, *args):
    """The apply of an autograd.Function that is not for a graph: it writes what is no gradient, or waits for others."""
    if not torch.compiler.is_dynamo_compiling():
        return function.apply(*args)
    return sys.modules[__name__].apply_uncompiled(function, *args)


def __getattr__(name):
    """apply_uncompiled, when a trace first asks for it: torch.compiler.disable loads the compiler, for seconds."""
    if name != "apply_uncompiled":
        raise AttributeError(name)
    globals()[name] = torch.compiler.disable(lambda function, *args: function.apply(*args))
    return globals()[name]


def _add_to_main_grad(ctx, grad, x, w, bias, saved):
    sums = [getattr(parameter, "main_grad", None) for parameter in ctx.parameters]
    need = ctx.needs_input_grad
    made = backward(grad, x, w, bias, saved, ctx.activation, ctx.source,
                    (need[0], need[1] and sums[0] is None, need[2] and sums[1] is None), ctx.math)
    added = [total if wanted else None for total, wanted in zip(sums, need[1:3])]
    if added[0] is not None or added[1] is not None:
        call(_library.backward, (x, w, bias, None, None, grad, saved, None, None, None, *added, None, None, None),
             (_SOURCE[ctx.source], INTO["d_w"] | INTO["d_bias"], ACTIVATION[ctx.activation], MATH[ctx.math], 0, 1, 0))
    for parameter, total in zip(ctx.parameters, added):
        if total is not None:
            parameter.grad_added_to_main_grad = True  # as Megatron's optimisers ask
    return made


# ---- The same in C -----------------------------------------------------------------------------------
#
# From PyTorch 2.14 on the shim takes a tensor's object and makes one, so that a call is one function in C, with grad or
# without. It returns None for a call that somebody might notice, and for one that is wrong: that is done as above.

class InC(torch.autograd.Function):
    """Direct, for tensors without a `main_grad`; its arguments are x, w, bias and the other three as one number."""

    forward = staticmethod(_library.torch_forward)
    backward = staticmethod(_library.torch_backward)


@once_differentiable
def _other_backward(ctx, grad):
    """What torch_backward does not take."""
    if grad is None:
        return (None,) * 4
    x, w, bias, saved = ctx.saved_tensors
    need = list(ctx.needs_input_grad[:3])
    names = _NAMES["activation"][ctx.number & 255], _NAMES["source"][ctx.number >> 12]
    made = torch.ops.epigrad.linear_backward(grad, x, w, bias, saved, *names, need,
                                             _NAMES["math"][ctx.number >> 8 & 15])
    return *(value if given else None for value, given in zip(made, need)), None


_NAMES = {"activation": {value: name for name, value in ACTIVATION.items()},
          "math": {value: name for name, value in MATH.items()},
          "source": {value: name for name, value in _SOURCE.items()}}


def _register_direct():
    base = torch._C._FunctionBase
    if not isinstance(torch.autograd.Function, type):  # the site's imitation of torch
        return None
    if _LISTENERS is None or not all(hasattr(base, name) for name in ("to_save", "materialize_grads")):
        return None
    # Function.apply itself asks for transforms first; a listener has answered for them.
    apply = super(torch.autograd.Function, InC).apply
    operators = torch.ops.epigrad.linear.default, torch.ops.epigrad.linear_backward.default
    ready = _library.torch_direct(*_PLAIN, apply, _other_backward, *operators, forward_ad, _LISTENERS)
    return _library.torch_linear if ready else None


direct = _register_direct()


def _compiled_calls():
    """Lets inductor's graphs call the same functions: an operator that is called from Python costs 4 us more, most of
    it for its arguments. Where this version of inductor has a registry for that, and once it is loaded: tracing for it
    comes by here, and graphs from its cache need no more than the functions."""
    codegen = sys.modules.get("torch._inductor.codegen.custom_extern_kernel_codegen")
    if codegen is None or direct is None:
        return
    for name in _COMPILED:
        def write(node, writeline, name=name):
            args = ", ".join([*node.codegen_args(), *node.codegen_kwargs()])
            writeline(f"{node.get_name()} = torch.ops.epigrad.call_{name}({args})")
            for result in sys.modules["torch._inductor.virtualized"].V.graph.operations:
                if any(given is node for given in getattr(result, "inputs", ())):
                    result.skip_size_stride_alignment_checks = True  # 0.5 us each; opcheck tests the fake kernels

        codegen.CUSTOM_EXTERN_KERNEL_CODEGEN.setdefault(f"torch.ops.epigrad.{name}.default",
                                                        codegen.CustomCodegen(python=write))


_COMPILED = {"linear": _library.torch_call_linear, "linear_backward": _library.torch_call_backward}
if direct is not None:
    for _name, _function in _COMPILED.items():
        setattr(torch.ops.epigrad, f"call_{_name}", _function)


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


if _HAS_VMAP:
    torch.library.register_vmap("epigrad::linear", _linear_vmap, lib=_operators)
    torch.library.register_vmap("epigrad::linear_backward", _backward_vmap, lib=_operators)


def check_options(activation, save, math):
    number(ACTIVATION, "activation", activation)
    number(MATH, "math", math)
    number({"auto": 0, "recompute": 1}, "save", save)
