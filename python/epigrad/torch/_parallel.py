# SPDX-License-Identifier: Apache-2.0
"""Layers that are divided over processes: tensor parallel, their rows divided too (sequence parallel)."""
from __future__ import annotations

import torch

from .. import Comm, linear, linear_backward
from .._comm import check_comm
from .._library import ArgumentError
from .._options import ACTIVATION, FROM_Y, number
from ._ops import apply_eagerly


class _Divided(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, bias, activation, parts):
        ctx.activation, ctx.parts = activation, parts
        ctx.save = None if activation == "none" else "y" if activation in FROM_Y else "pre"
        result = linear(x, w, bias, activation=activation, save=ctx.save, **parts)
        y, saved = result if ctx.save else (result, None)
        ctx.save_for_backward(x, w, saved)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, w, saved = ctx.saved_tensors
        made = linear_backward(grad.contiguous(), x, w, activation=ctx.activation, saved=saved, save=ctx.save or "pre",
                               need=ctx.needs_input_grad[:3], **ctx.parts)
        return (*made, None, None)


class _ParallelLinear(torch.nn.Module):
    def __init__(self, whole: torch.nn.Linear, comm: Comm, activation: str = "none"):
        super().__init__()
        number(ACTIVATION, "activation", activation)
        if not isinstance(whole, torch.nn.Linear):
            raise ArgumentError(f"whole is a {type(whole).__name__}; expected a torch.nn.Linear")
        check_comm(comm)
        self.activation, self.comm = activation, comm
        self.weight = torch.nn.Parameter(self._part(whole.weight, self._axis).clone())
        bias = whole.bias if whole.bias is None or self._axis == 1 else self._part(whole.bias, 0)
        self.register_parameter("bias", None if bias is None else torch.nn.Parameter(bias.detach().clone()))

    def _part(self, parameter, axis):
        return torch.tensor_split(parameter.detach(), self.comm.ranks, axis)[self.comm.rank]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = {"comm": self.comm, "split": self._split}
        return apply_eagerly(_Divided, x.contiguous(), self.weight, self.bias, self.activation, parts)

    def extra_repr(self):
        return (f"weight={tuple(self.weight.shape)}, activation={self.activation}, "
                f"rank {self.comm.rank} of {self.comm.ranks}")


class ColumnParallelLinear(_ParallelLinear):
    """A torch.nn.Linear and the activation behind it, whose output features are divided over P processes.

    Args:
        whole: the layer, the same on every process; this process copies its part of it.
        comm: an `epigrad.Comm`, which outlives the module.
        activation: one of ``epigrad.activations``.

    x is ``(M / P, ..., in_features)``, this process's part of the first size; the result is
    ``(M, ..., out_features / P)``. The call gathers x, and sums its gradient. Every process makes the same calls,
    forward and backward, and wants gradients of the same tensors. It runs eagerly, without autocast; torch.compile
    breaks the graph there.
    """

    _split, _axis = "columns", 0


class RowParallelLinear(_ParallelLinear):
    """A torch.nn.Linear and the activation behind it, whose input features are divided over P processes.

    Args:
        whole, comm, activation: as of `ColumnParallelLinear`.

    x is ``(M, ..., in_features / P)``, as a ColumnParallelLinear returns it; the result is
    ``(M / P, ..., out_features)``, this process's part of the first size. The call sums it over the processes, and
    gathers its gradient. bias is whole, and its gradient the same on every process.
    """

    _split, _axis = "rows", 1
