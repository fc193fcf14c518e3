#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one call costs the host, in microseconds: a layer of 4 x 16 x 8 in f32, whose arithmetic is next to nothing.

Each figure is the least of many rounds, which a busy machine does not disturb; the rounds of the calls take turns."""
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
    x, w, bias, grad = torch.randn(4, 16), torch.randn(8, 16), torch.randn(8), torch.randn(4, 8)
    y = torch.empty(4, 8)
    arrays = x.numpy(), w.numpy(), bias.numpy()
    weights = w.clone().requires_grad_(), bias.clone().requires_grad_()
    theirs = lambda w, bias: F.gelu(F.linear(x, w, bias), approximate="tanh")
    mine = lambda w, bias: epigrad.torch.linear(x, w, bias, "gelu")
    operator = torch.ops.epigrad.linear.default
    calls = {
        "the shim alone, memory given": lambda: _library.forward(x, w, bias, None, y, None, 2, 0, 0, 0, None, None),
        "epigrad.linear, NumPy": lambda: epigrad.linear(*arrays, activation="gelu"),
        "epigrad.torch.linear": lambda: mine(w, bias),
        "epigrad.torch.linear, its operator": lambda: operator(x, w, bias, "gelu", False, "default"),
        "epigrad.torch.linear, with grad": lambda: mine(*weights),
        "epigrad.torch.linear, and backward": lambda: mine(*weights).backward(grad),
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
    for name, seconds in least.items():
        print(f"{name:38s} {seconds * 1e6:6.2f} us")


if __name__ == "__main__":
    main()
