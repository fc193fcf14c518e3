#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times grouped layers, a mixture of experts, on the CPU: forward with pre, and backward from it with d_a and d_b.

    grouped.py LIBEPIGRAD [--sizes GROUPSxROWSxKxN,...] [--dtypes f32,bf16] [--threads 1] [--seed 1]
               [--output build/grouped-cpu.jsonl]

    epigrad         a call; ROWS is the mean of the groups
    dense           the plain layer of all rows by epigrad, one weight for all: the unit
    grouped_mm      PyTorch's grouped products with its element-wise kernels
    loop            a product for each group by PyTorch, with the same kernels

Groups are equal, or their sizes fall by Zipf's law, in a drawn order. Weights are [N, K], as PyTorch stores them. There
are more sets of operands than the caches hold. All take turns in one process, and the median of the turns counts.
Results are compared with products in f64 first. Writes the output and a table beside it (.md). The exit status is 1
where a result of epigrad is wrong."""

import argparse
import json
import os
import statistics
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cuda"))
import epigrad_c as eg  # noqa: E402
import grouped_layer  # noqa: E402
import summary  # noqa: E402
from operators import DTYPES  # noqa: E402
from turns import begin_on_cpu, check_cores, in_turn  # noqa: E402

SIZES = "8x64x512x1024,8x16x512x1024,8x1x512x1024,64x16x256x512,4x256x768x768"
LIMITS = {"f32": 1e-4, "bf16": 3e-2}
ROTATED_BYTES, MOST_SETS = 96 << 20, 8


def measure(options, library, shape, routing, dtype, threads):
    groups, mean, k, n = shape
    rows = grouped_layer.rows_of_groups(groups, mean, routing, options.seed)
    kind = DTYPES[dtype][0]
    each = (3 * sum(rows) * (k + n) + 2 * groups * k * n) * kind.itemsize
    sets = [grouped_layer.Operands(shape, rows, kind) for _ in range(max(2, min(MOST_SETS, ROTATED_BYTES // each)))]
    ours, dense = (grouped_layer.Epigrad(library, sets, dtype, grouped) for grouped in (True, False))
    row = {"shape": "x".join(map(str, shape)), "dtype": dtype, "routing": routing, "threads": threads,
           "largest": max(rows), "steps": ours.steps()}
    errors = grouped_layer.errors_of(ours, sets[0], rows)
    if not all(error <= LIMITS[dtype] for error in errors):
        return {**row, "wrong": "relative errors " + " ".join(f"{error:.1e}" for error in errors)}
    for i in range(len(sets)):
        ours.run("forward", i)  # every pre is that of its inputs
    row["ms"] = {}
    for index, way in enumerate(("forward", "backward")):
        calls = {"epigrad": lambda i, way=way: ours.run(way, i), "dense": lambda i, way=way: dense.run(way, i)}
        for name, peer in grouped_layer.peers_of(rows).items():
            calls[name] = lambda i, run=peer[index]: run(sets[i])
        times = in_turn(calls, len(sets), threads)
        row["ms"][way] = {name: round(statistics.median(t) * 1e3, 4) for name, t in times.items()}
    return row


def markdown(head, rows):
    lines = ["# Grouped layers on the CPU", "",
             f"{head['date']}, {head['cpu']}{head['isa'] and ' capped to ' + head['isa']}, PyTorch {head['torch']}; "
             "GELU, [N, K] weights; forward with pre, backward from it with d_a and d_b. The rate is a share of that "
             "of the plain layer of as many rows; the others are multiples of epigrad's time.", "",
             f"    {head['command']}", ""]
    lines += [f"**Wrong**: {row['dtype']} {row['shape']}: {row['wrong']}" for row in rows if "wrong" in row]
    return "\n".join(lines + summary.table(*summary.grouped_cpu_table(rows)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="build/grouped-cpu.jsonl")
    options = parser.parse_args()
    head = begin_on_cpu(options.seed,
                        f"python3 bench/cpu/grouped.py build/src/libepigrad.so --threads {options.threads}")
    check_cores(options.threads)
    torch.set_num_threads(options.threads)
    library = eg.Library(options.library, backend=eg.CPU, threads=options.threads)
    rows = []
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(json.dumps(head) + "\n")
        for dtype in options.dtypes.split(","):
            for size in options.sizes.split(","):
                for routing in ("even", "zipf"):
                    rows.append(measure(options, library, tuple(map(int, size.split("x"))), routing, dtype,
                                        options.threads))
                    file.write(json.dumps(rows[-1]) + "\n")
                    file.flush()
    library.close()
    text = markdown(head, rows)
    with open(os.path.splitext(options.output)[0] + ".md", "w", encoding="utf-8") as file:
        file.write(text)
    print(text, end="")
    return int(any("wrong" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
