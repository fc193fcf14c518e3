#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times grouped layers, a mixture of experts, on CUDA: forward with pre, and backward from it with d_a and d_b.

    grouped.py LIBEPIGRAD [--sizes GROUPSxROWSxKxN,...] [--seed 1] [--dtype bf16] [--seconds N]
               [--out build/cuda-grouped]

    epigrad         a call, the ends of the groups in device memory; ROWS is their mean
    dense           the plain layer of all rows by epigrad, one weight for all: the unit
    grouped_mm      PyTorch's grouped products with its element-wise kernels
    loop            a product for each group by PyTorch, whose host knows the ends, with the same kernels

Groups are equal, or their sizes fall by Zipf's law, in a drawn order. Weights are [N, K], as PyTorch stores them. Each
variant is one CUDA graph over sets of operands that exceed the L2 cache; variants take turns, and the median counts.
Results are compared with products in f64 first. Writes OUT.jsonl and a table, OUT.md. The exit status is 1 where a
result of epigrad is wrong."""

import sys

import runs
import summary
from graphs import Graph, take_turns
from grouped_layer import Epigrad, Operands, errors_of, peers_of, rows_of_groups
from operators import DTYPES

SIZES = ("8x2048x4096x14336,128x512x2048x768,64x512x7168x2048,8x512x2048x768,128x128x2048x768,64x16x2048x768,"
         "8x512x4096x14336,64x512x2048x768,128x1x2048x768")
LIMITS = {"bf16": 2e-2, "f16": 4e-3}
ROTATED_BYTES, MOST_SETS, TURNS, TURN_MS = 240 << 20, 16, 7, 20


def measure(options, library, shape, routing):
    groups, mean, k, n = shape
    rows = rows_of_groups(groups, mean, routing, options.seed)
    dtype = DTYPES[options.dtype][0]
    each = (3 * sum(rows) * (k + n) + 2 * groups * k * n) * dtype.itemsize
    sets = [Operands(shape, rows, dtype) for _ in range(max(1, min(MOST_SETS, -(-ROTATED_BYTES // each))))]
    ours, dense = (Epigrad(library, sets, options.dtype, grouped) for grouped in (True, False))
    row = {"shape": "x".join(map(str, shape)), "dtype": options.dtype, "routing": routing, "sets": len(sets),
           "largest": max(rows), "steps": ours.steps()}
    errors = errors_of(ours, sets[0], rows)
    if not all(error <= LIMITS[options.dtype] for error in errors):
        return {**row, "wrong": "relative errors " + " ".join(f"{error:.1e}" for error in errors)}
    for i in range(len(sets)):
        ours.run("forward", i)  # every pre is that of its inputs
    graphs = {}
    for way, index in (("forward", 0), ("backward", 1)):
        calls = {"epigrad": lambda i, way=way: ours.run(way, i), "dense": lambda i, way=way: dense.run(way, i)}
        for name, peer in peers_of(rows).items():
            calls[name] = lambda i, run=peer[index]: run(sets[i])
        for name, run in calls.items():
            try:
                graphs[way, name] = Graph(run, len(sets), TURN_MS)
            except RuntimeError as error:
                if name in ("epigrad", "dense"):
                    raise
                print(f"grouped: no {name} for {row['shape']}: {error!r:.300}", file=sys.stderr)
    take_turns(list(graphs.values()), TURNS)
    return {**row, "ms": {way: {name: round(graph.median(), 5) for (w, name), graph in graphs.items() if w == way}
                          for way in ("forward", "backward")}}


def main():
    options = runs.parser_of(__doc__, SIZES, LIMITS, "build/cuda-grouped").parse_args()
    runs.begin_on_device(options.seed)
    cases = [(shape, routing) for shape in runs.parse_sizes(options.sizes) for routing in ("even", "zipf")]
    return runs.run(options, "grouped.py build/src/libepigrad.so", cases,
                    lambda library, case: measure(options, library, *case), summary.grouped_markdown)


if __name__ == "__main__":
    sys.exit(main())
