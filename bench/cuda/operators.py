# SPDX-License-Identifier: Apache-2.0
"""PyTorch's element-wise kernels, each into memory that is there before, and the dtypes: what the sweeps share."""

import torch

import epigrad_c as eg

DTYPES = {"bf16": (torch.bfloat16, eg.BF16), "f16": (torch.float16, eg.F16), "f32": (torch.float32, eg.F32),
          "f64": (torch.float64, eg.F64)}


def activate(activation, pre, out):
    aten = torch.ops.aten
    if activation == "gelu":
        aten.gelu.out(pre, approximate="tanh", out=out)
    elif activation == "gelu_erf":
        aten.gelu.out(pre, out=out)
    elif activation == "relu":
        torch.clamp_min(pre, 0, out=out)
    elif activation == "silu":
        aten.silu.out(pre, out=out)
    elif activation == "tanh":
        torch.tanh(pre, out=out)


def act_grad(activation, grad, pre, out):
    aten = torch.ops.aten
    if activation == "gelu":
        aten.gelu_backward.grad_input(grad, pre, approximate="tanh", grad_input=out)
    elif activation == "gelu_erf":
        aten.gelu_backward.grad_input(grad, pre, grad_input=out)
    elif activation == "relu":
        aten.threshold_backward.grad_input(grad, pre, 0, grad_input=out)
    elif activation == "silu":
        aten.silu_backward.grad_input(grad, pre, grad_input=out)
    elif activation == "tanh":
        aten.tanh_backward.grad_input(grad, torch.tanh(pre, out=out), grad_input=out)


def relative_error(got, want):
    return ((got.to(want.dtype) - want).norm() / (want.norm() + 1e-30)).item()
