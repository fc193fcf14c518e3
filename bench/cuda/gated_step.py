#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a whole training step of a gated block (SwiGLU) D -> 2 H -> D on CUDA: forward and backward, every gradient.

    gated_step.py LIBEPIGRAD [--sizes MxDxH,...] [--seed 1] [--dtype bf16] [--frameworks] [--seconds N]
                  [--out build/cuda-gated-step]

    bare            the nine products alone by cublasLt, the best of 16 algorithms: the unit
    epigrad         four calls of the C interface: two forward, the first of which saves the pair before the gate, and
                    two backward, chained: the upper layer's makes the gradients of that pair, and sums their d_bias
    torch           PyTorch's operators; with --frameworks: torch.compile

Weights are [N, K], as PyTorch stores them, and apart. Inputs are rotated over sets that exceed the L2 cache; each
variant is one CUDA graph over all sets; variants take turns, and the median of the turns counts. Results are compared
with PyTorch's in f64 first. Writes OUT.jsonl and a table, OUT.md. The exit status is 1 where a result of epigrad is
wrong."""

import statistics
import sys

import torch

import cublaslt
import runs
import summary
from gated_block import Epigrad, Operands, errors_of, torch_step
from graphs import Graph, take_turns
from operators import DTYPES

SIZES = "2048x768x3072,8192x1024x4096,4096x4096x4096,8192x4096x14336"
LIMITS = {"bf16": 2e-2, "f16": 4e-3}
ROTATED_BYTES, MOST_SETS, TURNS, TURN_MS = 240 << 20, 16, 9, 40


class Products:
    """The nine, tuned on the first set."""

    def __init__(self, lt, s):
        self.made = [cublaslt.Product(lt, *operands) for operands in self.of(s)]

    @staticmethod
    def of(s):
        return [(s.x, s.gate_w.mT, s.gate), (s.x, s.up_w.mT, s.up), (s.y, s.down_w.mT, s.out),
                (s.grad, s.down_w, s.g_gate), (s.grad.mT, s.y, s.d_down_w), (s.g_gate, s.gate_w, s.d_x),
                (s.g_up, s.up_w, s.d_x), (s.g_gate.mT, s.x, s.d_gate_w), (s.g_up.mT, s.x, s.d_up_w)]

    def run(self, s):
        for product, operands in zip(self.made, self.of(s)):
            product.run(*operands)


def measure(options, library, lt, shape):
    m, d, h = shape
    dtype = DTYPES[options.dtype][0]
    each = (4 * m * d + 6 * d * h + 5 * m * h) * dtype.itemsize
    sets = [Operands(m, d, h, dtype) for _ in range(max(2, min(MOST_SETS, -(-ROTATED_BYTES // each))))]
    ours = Epigrad(library, shape, options.dtype, sets)
    row = {"shape": f"{m}x{d}x{h}", "dtype": options.dtype, "sets": len(sets), "steps": ours.steps()}
    errors = errors_of(lambda: ours.run(0), sets[0], torch_step(*(x.double() for x in sets[0].inputs())))
    if not all(error <= LIMITS[options.dtype] for error in errors):
        return {**row, "wrong": "relative errors " + " ".join(f"{error:.1e}" for error in errors)}
    bare = Products(lt, sets[0])
    calls = {"epigrad": ours.run, "bare": lambda i: bare.run(sets[i]),
             "torch": lambda i: torch_step(*sets[i].inputs())}
    if options.frameworks:
        torch.compiler.reset()  # it goes on without compiling after some sizes
        compiled = torch.compile(torch_step, dynamic=False)
        calls["compile"] = lambda i: compiled(*sets[i].inputs())
    graphs = {}
    for name, run in calls.items():
        try:
            graphs[name] = Graph(run, len(sets), TURN_MS)
        except Exception as error:  # a compiler's, of any kind
            if name in ("epigrad", "bare"):
                raise
            print(f"gated_step: no {name}: {error!r:.300}", file=sys.stderr)
    take_turns(list(graphs.values()), TURNS)
    times = graphs["bare"].times
    return {**row, "ms": {name: round(graph.median(), 5) for name, graph in graphs.items()},
            "ratio": {name: round(statistics.median(t / b for t, b in zip(graph.times, times)), 4)
                      for name, graph in graphs.items()}}


def main():
    parser = runs.parser_of(__doc__, SIZES, LIMITS, "build/cuda-gated-step")
    parser.add_argument("--frameworks", action="store_true")
    options = parser.parse_args()
    runs.begin_on_device(options.seed)
    lt = cublaslt.CublasLt()
    return runs.run(options, f"gated_step.py build/src/libepigrad.so{' --frameworks' * options.frameworks}",
                    runs.parse_sizes(options.sizes), lambda library, shape: measure(options, library, lt, shape),
                    summary.gated_markdown)


if __name__ == "__main__":
    sys.exit(main())
