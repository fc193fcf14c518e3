# SPDX-License-Identifier: Apache-2.0
"""Modules with the parameters, names and initialisation of torch.nn's."""
from __future__ import annotations

import torch


class Linear(torch.nn.Linear):
    """torch.nn.Linear and the activation behind it. The state_dict is that of torch.nn.Linear.

    Args:
        in_features, out_features, bias, device, dtype: as of torch.nn.Linear.
        activation, save, math: as of `epigrad.torch.linear`.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, activation: str = "none", *,
                 save: str = "auto", math: str = "default", device=None, dtype=None):
        from ._ops import check_options
        check_options(activation, save, math)
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.activation, self.save, self.math = activation, save, math

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from . import linear
        return linear(x, self.weight, self.bias, self.activation, save=self.save, math=self.math)

    def extra_repr(self):
        return f"{super().extra_repr()}, activation={self.activation}"


class MLP(torch.nn.Sequential):
    """Layers of the given widths, with an activation behind each but the last.

    ``MLP(64, 256, 10)`` has the state_dict of ``Sequential(Linear(64, 256), GELU("tanh"), Linear(256, 10))``: layers
    are number 0, 2, 4, and so on.
    """

    def __init__(self, *widths: int, activation: str = "gelu", bias: bool = True, save: str = "auto",
                 math: str = "default", device=None, dtype=None):
        if len(widths) < 2:
            raise ValueError(f"widths are {widths}; expected two or more")
        super().__init__()
        for i in range(len(widths) - 1):
            last = i == len(widths) - 2
            self.add_module(str(2 * i), Linear(widths[i], widths[i + 1], bias, "none" if last else activation,
                                               save=save, math=math, device=device, dtype=dtype))


class GatedMLP(torch.nn.Module):
    """``down_proj(act(gate_proj(x)) * up_proj(x))``, the feed-forward block of Llama and its kin, whose state_dict it
    has.

    Args:
        features, hidden: widths; x is ``(..., features)``, as is the result.
        activation, save, math: as of `epigrad.torch.gated_linear`.
        bias: of all three layers.
        device, dtype: as of torch.nn.Linear.
    """

    def __init__(self, features: int, hidden: int, activation: str = "silu", bias: bool = False, *, save: str = "auto",
                 math: str = "default", device=None, dtype=None):
        from ._ops import check_options
        check_options(activation, save, math)
        super().__init__()
        self.gate_proj = torch.nn.Linear(features, hidden, bias=bias, device=device, dtype=dtype)
        self.up_proj = torch.nn.Linear(features, hidden, bias=bias, device=device, dtype=dtype)
        self.down_proj = Linear(hidden, features, bias, math=math, device=device, dtype=dtype)
        self.activation, self.save, self.math = activation, save, math

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from . import gated_linear
        gate, up = self.gate_proj, self.up_proj
        return self.down_proj(gated_linear(x, gate.weight, up.weight, gate.bias, up.bias, self.activation,
                                           save=self.save, math=self.math))

    def extra_repr(self):
        return f"activation={self.activation}"
