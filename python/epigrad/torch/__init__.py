# SPDX-License-Identifier: Apache-2.0
"""epigrad in PyTorch, 2.4 and newer: a function, modules with torch.nn's parameters, `patch` for a model that exists.

Gradients, torch.compile(fullgraph=True), autocast, checkpointing, DistributedDataParallel and torch.func.vmap work as
with torch's own operators."""
from __future__ import annotations

from typing import Optional

import torch

from .._options import ACTIVATION as _ACTIVATION, FROM_Y as _FROM_Y
from . import _gated, _ops, _threads
from ._modules import GatedMLP, Linear, MLP
from ._parallel import ColumnParallelLinear, RowParallelLinear
from ._patch import Replaced, patch

__all__ = ["linear", "gated_linear", "Linear", "MLP", "GatedMLP", "ColumnParallelLinear", "RowParallelLinear", "patch",
           "Replaced"]


_threads.share()
_direct = _ops.direct
_is_tracing = torch.compiler.is_dynamo_compiling  # constantly true for torch.compile
# Every name that a traced call looks up is a guard of its graph, and every dot one more.
_is_grad_enabled, _is_autocast_enabled, _operator = (torch.is_grad_enabled, torch.is_autocast_enabled,
                                                     torch.ops.epigrad.linear)
_COMPILES_WITHOUT_ATTRIBUTES = _ops.COMPILES_WITHOUT_ATTRIBUTES
_SAVES_PRE = {name: name not in _FROM_Y for name in _ACTIVATION}


def linear(x: torch.Tensor, w: torch.Tensor, bias: Optional[torch.Tensor] = None, activation: str = "none", *,
           save: str = "auto", math: str = "default") -> torch.Tensor:
    """``act(torch.nn.functional.linear(x, w, bias))``, with one call forward and one backward.

    Args:
        x: ``(..., K)``; float64, float32, float16 or bfloat16, on the CPU or CUDA.
        w: ``(N, K)``, or ``(batch, N, K)`` with an x of ``(batch, ..., K)``.
        bias: ``(N,)``, or None.
        activation: one of ``epigrad.activations``. torch's own gelu is "gelu_erf"; "gelu" is its approximate="tanh".
        save: "auto" keeps what the backward pass reads: nothing for "none", y where the derivative is a function of y,
            else ``x @ w.T + bias``. "recompute" keeps y likewise, but computes ``x @ w.T + bias`` again.
        math: "default", "strict" or "fast".

    Returns:
        ``(..., N)``. Under autocast the operands are cast as torch.nn.functional.linear's are.

    Raises:
        TypeError, epigrad.ArgumentError (a ValueError): dtypes, shapes, devices and options, by the argument's name.

    If w has an attribute `main_grad`, as Megatron's parameters have, its gradient is added to that tensor, in that
    tensor's own type, and w gets no `.grad`; so it is with a bias. torch.compile breaks the graph there; PyTorch 2.4's
    does not see the attribute.
    """
    compiling = _is_tracing()
    if not compiling:
        if _direct is not None:
            y = _direct(x, w, bias, activation, save, math)
            if y is not None:
                return y
        _ops.refuse_tangents(x, w, bias)
        compiling = torch.compiler.is_compiling()
        if activation not in _ACTIVATION or save != "auto" or math != "default":
            _ops.check_options(activation, save, math)
    elif save != "auto" and save != "recompute":  # the others are the operator's
        _ops.check_options(activation, save, math)
    if compiling or _ops.any_autocast():
        device = x.device.type
        if _is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            x, w, bias = x.to(dtype), w.to(dtype), None if bias is None else bias.to(dtype)
    grad = _is_grad_enabled() and (x.requires_grad or w.requires_grad or
                                   (bias is not None and bias.requires_grad))
    keep = grad and save == "auto" and _SAVES_PRE.get(activation, False)
    if grad and not (compiling and _COMPILES_WITHOUT_ATTRIBUTES) and hasattr(w, "main_grad"):
        return _ops.apply_eagerly(_ops.Direct, x, w, bias, activation, keep, math)
    if not compiling and _ops.nobody_listens(x, w):
        if grad:
            return _ops.Direct.apply(x, w, bias, activation, keep, math)
        return _ops.forward(x, w, bias, activation, False, math)[0]
    return _operator(x, w, bias, activation, keep, math)[0]


def gated_linear(x: torch.Tensor, w: torch.Tensor, w_up: torch.Tensor, bias: Optional[torch.Tensor] = None,
                 bias_up: Optional[torch.Tensor] = None, activation: str = "silu", *, save: str = "auto",
                 math: str = "default") -> torch.Tensor:
    """``act(F.linear(x, w, bias)) * F.linear(x, w_up, bias_up)``, with one call forward and one backward: SwiGLU, with
    "gelu" GEGLU, with "relu" ReGLU, with "sigmoid" GLU, with "none" a bilinear unit.

    Args:
        x: ``(..., K)``; float64, float32, float16 or bfloat16, on the CPU or CUDA.
        w, w_up: ``(N, K)``, or ``(batch, N, K)`` with an x of ``(batch, ..., K)``; they may be views of one tensor.
        bias, bias_up: ``(N,)``, or None.
        activation: one of ``epigrad.activations``, of the gate.
        save: "auto" keeps ``x @ w.T + bias`` and ``x @ w_up.T + bias_up`` for the backward pass. "recompute" keeps
            nothing beyond x and the parameters, and computes both again.
        math: "default", "strict" or "fast".

    Returns:
        ``(..., N)``. Under autocast the operands are cast as torch.nn.functional.linear's are.

    Raises:
        TypeError, epigrad.ArgumentError (a ValueError): dtypes, shapes, devices and options, by the argument's name.

    Gradients go to `.grad`; an attribute `main_grad` is ignored.
    """
    _ops.check_options(activation, save, math)
    tensors = x, w, bias, w_up, bias_up
    compiling = torch.compiler.is_compiling()
    if not _is_tracing():
        _ops.refuse_tangents(*tensors)
    device = x.device.type
    if (compiling or _ops.any_autocast()) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        tensors = tuple(None if tensor is None else tensor.to(dtype) for tensor in tensors)
    grad = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    options = activation, grad and save == "auto", math
    if compiling or not _ops.nobody_listens(tensors[0], tensors[1]) or not _ops.nobody_listens(tensors[0], tensors[3]):
        return torch.ops.epigrad.gated_linear(*tensors, *options)[0]
    return _gated.Direct.apply(*tensors, *options) if grad else _gated.forward(*tensors, *options)[0]
