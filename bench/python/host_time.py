#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one call costs the host, in microseconds: a layer of 4 x 16 x 8 in f32, whose arithmetic is next to nothing.

    host_time.py [cpu|cuda]

Each figure is the least of many rounds, which a busy machine does not disturb; the rounds of the calls take turns."""
import sys
import time

import torch
from torch.nn import functional as F

import epigrad
import epigrad.torch
from epigrad import _library

ROUNDS, CALLS = 300, 50


def main():
    torch.set_num_threads(1)
    epigrad.set_num_threads(1)
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    x, w, bias, grad = (torch.randn(*shape, device=device) for shape in ((4, 16), (8, 16), (8,), (4, 8)))
    y, d_x, d_w, d_bias = (torch.empty_like(array) for array in (grad, x, w, bias))
    arrays = (x, w, bias) if device == "cuda" else (x.numpy(), w.numpy(), bias.numpy())
    weights = w.clone().requires_grad_(), bias.clone().requires_grad_()
    theirs = lambda w, bias: F.gelu(F.linear(x, w, bias), approximate="tanh")
    mine = lambda w, bias: epigrad.torch.linear(x, w, bias, "gelu")
    operator = torch.ops.epigrad.linear.default
    options = 2, 0, 0, 1, 0  # activation, math, nonfinite, scale, limit
    calls = {
        "the shim alone, memory given": lambda: _library.forward(x, w, bias, *[None] * 3, y, *[None] * 3, *options,
                                                                 None, None),
        "the same, backward pass": lambda: _library.backward(x, w, bias, None, None, grad, *[None] * 3, d_x, d_w,
                                                             d_bias, *[None] * 3, 0, 0, *options, None,
                                                             x.new_empty if device == "cuda" else None),
        "epigrad.linear, plain arrays": lambda: epigrad.linear(*arrays, activation="gelu"),
        "epigrad.torch.linear": lambda: mine(w, bias),
        "epigrad.torch.linear, its operator": lambda: operator(x, w, bias, "gelu", False, "default"),
        "epigrad.torch.linear, with grad": lambda: mine(*weights),
        "epigrad.torch.linear, and backward": lambda: mine(*weights).backward(grad),
        "torch: linear, its operator": lambda: torch.ops.aten.linear.default(x, w, bias),
        "torch: linear": lambda: F.linear(x, w, bias),
        "torch: linear, gelu": lambda: theirs(w, bias),
        "torch: linear, gelu, with grad": lambda: theirs(*weights),
        "torch: linear, gelu, and backward": lambda: theirs(*weights).backward(grad),
    }
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            least[name] = min(least[name], (time.perf_counter() - start) / CALLS)
            if device == "cuda":
                torch.cuda.synchronize()
    for name, seconds in least.items():
        print(f"{name:38s} {seconds * 1e6:6.2f} us")


if __name__ == "__main__":
    main()
