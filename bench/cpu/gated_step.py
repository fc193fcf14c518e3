#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a whole training step of a gated block (SwiGLU) D -> 2 H -> D on the CPU: forward and backward, every gradient.

    gated_step.py LIBEPIGRAD [--sizes MxDxH,...] [--dtypes f32,bf16] [--threads 1,2] [--seed 1]
                  [--output build/gated-step-cpu.jsonl]

    epigrad  four calls of the C interface, chained, as in bench/cuda/gated_step.py
    torch    PyTorch's operators one after the other, each into memory that is there before (out=)
    onednn   the same, its products by oneDNN's matmul whatever PyTorch would have taken

Weights are [N, K]. There are more sets of operands than the caches hold, so they come from memory. All take turns in
one process, and the median of the turns' ratios counts. Results are compared with PyTorch's in f64 first. Where an
instruction set is capped (EPIGRAD_CPU_ISA), cap the peers too: ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA,
MKL_ENABLE_INSTRUCTIONS. Writes the output and a table beside it (.md). The exit status is 1 where a result of epigrad
is wrong."""

import argparse
import json
import os
import statistics
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cuda"))
import epigrad_c as eg  # noqa: E402
import gated_block  # noqa: E402
import summary  # noqa: E402
from operators import DTYPES  # noqa: E402
from turns import begin_on_cpu, check_cores, in_turn  # noqa: E402

SIZES = "512x512x512,1024x1024x1024,256x768x2048"
LIMITS = {"f32": 1e-4, "bf16": 3e-2, "f16": 8e-3, "f64": 1e-12}
ROTATED_BYTES, MOST_SETS = 96 << 20, 8


class Operands(gated_block.Operands):
    """And what PyTorch's operators need besides."""

    def __init__(self, m, d, h, dtype):
        super().__init__(m, d, h, dtype)
        self.activated, self.g = torch.empty_like(self.gate), torch.empty_like(self.gate)
        self.d_x_up = torch.empty_like(self.x)


class Torch:
    @staticmethod
    def linear(a, w, bias, out):
        return torch.addmm(bias, a, w.mT, out=out)

    @staticmethod
    def product(a, b, out):
        return torch.mm(a, b, out=out)


class OneDnn:
    """Its results are in memory of their own: there is no out=, and a copy would count against it."""

    @staticmethod
    def linear(a, w, bias, out):
        return torch.ops.mkldnn._linear_pointwise(a, w, bias, "none", [], "")

    @staticmethod
    def product(a, b, out):
        return torch.ops.mkldnn._linear_pointwise(a, b.mT, None, "none", [], "")


def step(s, by):
    """The results in the order of gated_block.RESULTS."""
    aten = torch.ops.aten
    gate, up = by.linear(s.x, s.gate_w, s.gate_b, s.gate), by.linear(s.x, s.up_w, s.up_b, s.up)
    aten.silu.out(gate, out=s.activated)
    torch.mul(s.activated, up, out=s.y)
    out = by.linear(s.y, s.down_w, s.down_b, s.out)
    g = by.product(s.grad, s.down_w, s.g)
    torch.mul(g, s.activated, out=s.g_up)
    aten.silu_backward.grad_input(g.mul_(up), gate, grad_input=s.g_gate)
    d_x = by.product(s.g_gate, s.gate_w, s.d_x)
    d_x += by.product(s.g_up, s.up_w, s.d_x_up)
    weights = [by.product(g.mT, left, d_w) for g, left, d_w in (
        (s.g_gate, s.x, s.d_gate_w), (s.g_up, s.x, s.d_up_w), (s.grad, s.y, s.d_down_w))]
    for g, d_b in ((s.g_gate, s.d_gate_b), (s.g_up, s.d_up_b), (s.grad, s.d_down_b)):
        torch.sum(g, 0, out=d_b)
    return out, d_x, weights[0], s.d_gate_b, weights[1], s.d_up_b, weights[2], s.d_down_b


def measure(library, shape, dtype, threads):
    m, d, h = shape
    kind = DTYPES[dtype][0]
    each = (5 * m * d + 6 * d * h + 7 * m * h) * kind.itemsize
    sets = [Operands(m, d, h, kind) for _ in range(max(2, min(MOST_SETS, ROTATED_BYTES // each)))]
    ours = gated_block.Epigrad(library, shape, dtype, sets)
    row = {"shape": f"{m}x{d}x{h}", "dtype": dtype, "threads": threads, "steps": ours.steps()}
    want = gated_block.torch_step(*(x.double() for x in sets[0].inputs()))
    errors = gated_block.errors_of(lambda: ours.run(0), sets[0], want)
    if not all(error <= LIMITS[dtype] for error in errors):
        return {**row, "wrong": "relative errors " + " ".join(f"{error:.1e}" for error in errors)}
    times = in_turn({"epigrad": ours.run, "torch": lambda i: step(sets[i], Torch),
                     "onednn": lambda i: step(sets[i], OneDnn)}, len(sets), threads)
    speeds = {peer: sorted(theirs / mine for theirs, mine in zip(times[peer], times["epigrad"]))
              for peer in times if peer != "epigrad"}
    return {**row, "ms": {name: round(statistics.median(t) * 1e3, 3) for name, t in times.items()},
            "speed": {peer: [round(x, 3) for x in (ratios[len(ratios) // 4], statistics.median(ratios),
                                                   ratios[-1 - len(ratios) // 4])] for peer, ratios in speeds.items()}}


def markdown(head, rows):
    lines = ["# A training step of a gated block (SwiGLU) D to 2 H to D on the CPU", "",
             f"{head['date']}, {head['cpu']}{head['isa'] and ' capped to ' + head['isa']}, PyTorch {head['torch']} "
             "with its oneDNN; biases, [N, K] weights; medians of turns, and their quartiles.", "",
             f"    {head['command']}", ""]
    lines += [f"**Wrong**: {row['dtype']} {row['shape']}: {row['wrong']}" for row in rows if "wrong" in row]
    return "\n".join(lines + summary.table(*summary.gated_cpu_table(rows)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="build/gated-step-cpu.jsonl")
    options = parser.parse_args()
    head = begin_on_cpu(options.seed,
                        f"python3 bench/cpu/gated_step.py build/src/libepigrad.so --threads {options.threads}")
    rows = []
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(json.dumps(head) + "\n")
        for threads in map(int, options.threads.split(",")):
            check_cores(threads)
            torch.set_num_threads(threads)
            library = eg.Library(options.library, backend=eg.CPU, threads=threads)
            for dtype in options.dtypes.split(","):
                for size in options.sizes.split(","):
                    rows.append(measure(library, tuple(map(int, size.split("x"))), dtype, threads))
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
