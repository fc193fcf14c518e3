#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a part of a backward call with several builds of epigrad and with cublasLt, in one process, in turn.

    builds.py PART SHAPES LIBEPIGRAD[@ROW]...      SHAPES: 4096x4096x4096[:DTYPE][:ACTIVATION][:kn|:nk],...

    pre, recompute   the whole backward, act' from a saved pre or from a.b
    fused            grad_pre and d_bias with a.b recomputed: the fused product alone
    pass             grad_pre and d_bias from a saved pre: the element-wise pass; `bare` is a copy of grad
    pass_da          the same, and d_a; `bare` is d_a
    da, db           one product of a layer without activation

`bare` is the part's products by cublasLt, as in compare.py, whose inputs, graphs and turns these are. A build
may be forced to a row of the kernel table."""

import argparse
import random
import statistics
import sys
import types

import torch

import compare
import cublaslt
import epigrad_c as eg

SAVED = ("pre", "pass", "pass_da")
PLAIN = ("da", "db")


class Build(compare.Epigrad):
    """compare.Epigrad with the operands of a part only."""

    def __init__(self, part, path, sets, shape, options):
        m, k, n = shape
        name, _, row = path.partition("@")
        self.library = eg.Library(name, torch.cuda.current_stream().cuda_stream, row or None)
        self.layer = eg.Layer(size=eg.c.sizeof(eg.Layer), m=m, k=k, n=n, batch=1,
                              dtype=compare.DTYPES[options.dtype][1],
                              activation=eg.ACTIVATIONS.index(options.activation))
        self.calls = [self.of_part(part, self.arguments(options, s), s) for s in sets]
        size = self.library.workspace(self.layer, self.calls[0])
        self.scratch = torch.empty(size + 256, dtype=torch.uint8, device="cuda")
        for call in self.calls:
            call.workspace = eg.Workspace(data=(self.scratch.data_ptr() + 255) // 256 * 256, bytes=size)

    @staticmethod
    def of_part(part, call, s):
        if part in ("fused", "pass"):
            call.d_a, call.d_b, call.grad_pre = eg.Matrix(), eg.Matrix(), eg.matrix(s.out)
        if part in PLAIN:
            call.d_bias, call.grad = eg.Vector(), eg.matrix(s.grad_pre)
        if part in ("da", "pass_da"):
            call.d_b = eg.Matrix()
        if part == "db":
            call.d_a = eg.Matrix()
        return call


def bare_of(part, lt, sets):
    """What `bare` runs: products, tuned on the first set."""
    s = sets[0]
    operands = []
    if part in ("fused", "recompute"):
        operands.append(lambda s: (s.a, s.b, s.out))
    if part in ("recompute", "pre", "da", "pass_da"):
        operands.append(lambda s: (s.grad_pre, s.b.t(), s.d_a))
    if part in ("recompute", "pre", "db"):
        operands.append(lambda s: (s.a.t(), s.grad_pre, s.d_b))
    products = [(cublaslt.Product(lt, *of(s)), of) for of in operands]

    def bare(i):
        if part == "pass":
            sets[i].out.copy_(sets[i].grad)
        for product, of in products:
            product.run(*of(sets[i]))
    return bare


def check(part, build, s, options):
    """Against PyTorch in f64: no figure of a wrong result."""
    for out in (s.out, s.d_a, s.d_b, s.d_bias):
        out.fill_(float("nan"))
    build.run(0)
    torch.cuda.synchronize()
    if part in PLAIN:
        wanted = [s.grad_pre.double() @ s.b.t().double() if part == "da" else s.a.t().double() @ s.grad_pre.double()]
        got = [s.d_a if part == "da" else s.d_b]
    else:
        pre = s.pre.double() if part in SAVED else s.a.double() @ s.b.double() + s.bias.double()
        g = compare.act_grad(s.grad.double(), pre, options.activation)
        whole = part in ("pre", "recompute")
        wanted = [g @ s.b.t().double(), s.a.t().double() @ g, g.sum(0)] if whole else [g, g.sum(0)]
        got = [s.d_a, s.d_b, s.d_bias] if whole else [s.out, s.d_bias]
        if part == "pass_da":
            wanted, got = [g @ s.b.t().double(), g.sum(0)], [s.d_a, s.d_bias]
    errors = [compare.relative_error(x, want) for x, want in zip(got, wanted)]
    if not all(error < 1e-2 for error in errors):
        sys.exit(f"wrong results: {errors}")


def measure(part, shape, paths):
    size, *words = shape.split(":")
    options = types.SimpleNamespace(dtype="bf16", weight="kn", batch=1, shared=False,
                                    activation="none" if part in PLAIN else "gelu",
                                    source="pre" if part in SAVED else "recompute")
    for word in words:
        kind = "dtype" if word in compare.DTYPES else "weight" if word in ("kn", "nk") else "activation"
        setattr(options, kind, word)
    m, k, n = (int(x) for x in size.split("x"))
    dtype = compare.DTYPES[options.dtype][0]
    each = (2 * m * k + 2 * k * n + 4 * m * n) * torch.finfo(dtype).bits // 8
    count = max(2, min(compare.MOST_SETS, -(-compare.ROTATED_BYTES // each)))
    sets = [compare.Set(m, k, n, dtype, options.weight) for _ in range(count)]
    for s in sets:
        s.out = torch.empty_like(s.grad)
        s.grad_pre.copy_(compare.act_grad(s.grad, s.pre, "gelu" if part in PLAIN else options.activation))
    runs, builds = {"bare": bare_of(part, cublaslt.CublasLt(), sets)}, []
    for path in paths:
        build = Build(part, path, sets, (m, k, n), options)
        check(part, build, sets[0], options)
        builds.append(build)
        runs[path] = build.run
    graphs = {name: compare.capture(run, count) for name, run in runs.items()}
    repeats = {name: max(1, int(compare.TURN_MS / max(1e-3, count * compare.replay_time(graph, count, 1))))
               for name, graph in graphs.items()}
    times = {name: [] for name in graphs}
    for _ in range(compare.TURNS):
        for name in random.sample(list(graphs), len(graphs)):
            times[name].append(compare.replay_time(graphs[name], count, repeats[name]))
    us = {name: statistics.median(t) * 1e3 for name, t in times.items()}
    print(part, shape, "  ".join(f"{name} {t:.1f} us ({t / us['bare']:.3f})" for name, t in us.items()), flush=True)
    for build in builds:
        build.library.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["pre", "recompute", "fused", "pass", "pass_da", "da", "db"])
    parser.add_argument("shapes")
    parser.add_argument("libraries", nargs="+")
    options = parser.parse_args()
    with torch.cuda.stream(torch.cuda.Stream()):
        for shape in options.shapes.split(","):
            measure(options.part, shape, options.libraries)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
