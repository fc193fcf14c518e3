#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times each call of a layer on CUDA as a multiple of its bare products: what its epilogue costs.

    multiples.py LIBEPIGRAD [--sizes MxKxN,...] [--dtypes bf16,f16,f32,f64] [--weights nk,kn]
                 [--calls forward,chain,...] [--activation gelu] [--seed 1] [--seconds N] [--out build/cuda-multiples]

    forward        y                                backward recompute   the same, act' from a.b + bias
    forward+pre    y and pre                        chain                d_a times act' of the layer below, its d_bias
    backward pre   d_a, d_b, d_bias, saved pre

The products alone are cublasLt's, the best of 16 algorithms each: one for a forward call and a chain, two for a
backward call, three with recompute. epigrad is timed twice, with the kernels that its estimates choose and with those
that it measured to be the fastest; torch is PyTorch's operators one after the other. Each is one CUDA graph over sets
of operands that exceed the L2 cache; all take turns in one process, and the median of the turns counts. Results are
compared with PyTorch's in f32 or f64 first. Without --sizes 16 bits have seven, f32 and f64 three. Writes OUT.jsonl and
tables, OUT.md; the exit status is 1 where a result is wrong."""

import argparse
import json
import os
import sys
import time

import torch

import cublaslt
import epigrad_c as eg
import runs
import summary
import sweep
from graphs import Graph, header, take_turns
from layers import Layer

OF_16_BITS = "2048x768x3072,8192x1024x4096,4096x4096x4096,8192x4096x14336,512x768x3072,1024x768x3072,1024x1024x1024"
SIZES = {"bf16": OF_16_BITS, "f16": OF_16_BITS, "f32": "2048x768x3072,2048x2048x2048,4096x4096x4096",
         "f64": "2048x768x3072,2048x2048x2048,4096x4096x4096"}
CALLS = [operation for operation in sweep.OPERATIONS if operation != "accumulate"]
TURNS, TURN_MS = 7, 12


class Torch(sweep.Peers):
    """Of the sweep's peers the one that is no product alone."""

    def of(self, operation):
        return {"torch": super().of(operation)["torch"]}


def bare(call, products, x, scratch):
    """The products of a call, and nothing else."""
    if call in ("forward", "forward+pre", "backward recompute"):
        products.run("a.b", x.a, x.b, scratch.pre)
    if call not in ("forward", "forward+pre"):
        products.d_a(x, x.grad, x.d_a)
    if call.startswith("backward"):
        products.d_b(x, x.grad, x.d_b)


def measure(libraries, lt, layer, call, sets):
    scratch, products = sweep.Scratch(sets[0]), sweep.LtProducts(lt, layer)
    peers = Torch(lt, layer, sets)
    ours = {name: sweep.Epigrad(library, layer, call, sets) for name, library in libraries.items()}
    row = {"call": call, "dtype": layer.dtype, "weight": layer.weight, "size": list(layer[1:4])}
    good, wrong = sweep.checked(call, layer, ours, peers)
    if wrong:
        return {**row, "wrong": wrong}
    good["bare"] = lambda i: bare(call, products, sets[i], scratch)
    graphs = {name: Graph(run, len(sets), TURN_MS) for name, run in good.items()}
    take_turns(list(graphs.values()), TURNS)
    steps = {name: x.library.steps(x.struct, x.calls[0]) for name, x in ours.items()}
    return {**row, "us": {name: round(graph.median() * 1e3, 3) for name, graph in graphs.items()}, "steps": steps}


def cases(options):
    """Call by call within a size, so that operands are made once."""
    for dtype in options.dtypes:
        for size in runs.parse_sizes(options.sizes or SIZES[dtype]):
            for weight in options.weights:
                yield Layer(dtype, *size, weight, options.activation)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--sizes")
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=list(SIZES))
    parser.add_argument("--weights", type=lambda text: text.split(","), default=["nk", "kn"])
    parser.add_argument("--calls", type=lambda text: text.split(","), default=CALLS)
    parser.add_argument("--activation", default="gelu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no further layer is begun")
    parser.add_argument("--out", default="build/cuda-multiples")
    return parser.parse_args()


def main():
    options = parse()
    runs.begin_on_device(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = False
    stream, begin, rows = torch.cuda.Stream(), time.monotonic(), []
    os.makedirs(os.path.dirname(options.out) or ".", exist_ok=True)
    with torch.cuda.stream(stream), open(options.out + ".jsonl", "w", encoding="utf-8") as file:
        libraries = {name: eg.Library(options.library, stream.cuda_stream, tuning=tuning)
                     for name, tuning in (("epigrad", eg.ESTIMATED), (summary.MEASURED, eg.MEASURED))}
        lt = cublaslt.CublasLt()
        file.write(json.dumps(header("multiples.py build/src/libepigrad.so", options.seed)) + "\n")
        for layer in cases(options):
            if time.monotonic() - begin > options.seconds:
                break
            sets = sweep.sets_of(layer)
            for call in options.calls:
                rows.append(measure(libraries, lt, layer, call, sets))
                file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
    text = "\n".join(summary.multiples_tables(rows)) + "\n"
    with open(options.out + ".md", "w", encoding="utf-8") as file:
        file.write(text)
    print(text, end="")
    return int(any("wrong" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
