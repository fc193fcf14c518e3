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

import random
import sys

import torch
import torch.nn.functional as F

import epigrad_c as eg
import runs
import summary
from graphs import Graph, take_turns
from operators import DTYPES, relative_error

SIZES = ("8x2048x4096x14336,128x512x2048x768,64x512x7168x2048,8x512x2048x768,128x128x2048x768,64x16x2048x768,"
         "8x512x4096x14336,64x512x2048x768,128x1x2048x768")
LIMITS = {"bf16": 2e-2, "f16": 4e-3}
ROTATED_BYTES, MOST_SETS, TURNS, TURN_MS = 240 << 20, 16, 7, 20


def rows_of_groups(groups, mean, routing, seed):
    """The sizes of the groups; they add up to groups * mean."""
    total = groups * mean
    if routing == "even":
        return [mean] * groups
    shares = [1 / (i + 1) for i in range(groups)]
    rows = [int(total * share / sum(shares)) for share in shares]
    rows[0] += total - sum(rows)
    random.Random(seed).shuffle(rows)
    return rows


class Operands:
    def __init__(self, shape, rows, dtype):
        groups, _, k, n = shape
        m = sum(rows)

        def draw(*size, scale=1):
            return torch.empty(*size, dtype=dtype).uniform_(-scale, scale)

        self.x, self.grad = draw(m, k), draw(m, n)
        self.w = draw(groups, n, k, scale=3 * k ** -0.5)
        self.y, self.pre, self.g = (torch.empty(m, n, dtype=dtype) for _ in range(3))
        self.d_x, self.d_w = torch.empty_like(self.x), torch.empty_like(self.w)
        self.ends = torch.tensor(rows, dtype=torch.int32).cumsum(0, dtype=torch.int32)


class Epigrad:
    """Grouped, or with the first weight for all rows."""

    def __init__(self, library, sets, dtype, grouped):
        s, self.library = sets[0], library
        groups, n, k = s.w.shape
        self.layer = eg.Layer(size=eg.c.sizeof(eg.Layer), m=len(s.x), k=k, n=n, dtype=DTYPES[dtype][1],
                              activation=eg.ACTIVATIONS.index("gelu"), groups=groups if grouped else 0)
        self.forward = [self.forward_call(s, grouped) for s in sets]
        self.backward = [self.backward_call(s, grouped) for s in sets]
        size, most = eg.c.c_size_t(), 0
        for call in (self.forward[0], self.backward[0]):
            library.check(library.call("_workspace", self.layer, call, eg.c.byref(size)))
            most = max(most, size.value)
        self.scratch = torch.empty(most + 256, dtype=torch.uint8)
        for call in self.forward + self.backward:
            call.workspace = eg.Workspace(data=(self.scratch.data_ptr() + 255) // 256 * 256, bytes=most)

    @staticmethod
    def weight(w, grouped):
        return eg.matrix(w.mT if grouped else w[0].mT)

    def forward_call(self, s, grouped):
        call = eg.ForwardArgs(size=eg.c.sizeof(eg.ForwardArgs), a=eg.matrix(s.x), b=self.weight(s.w, grouped),
                              y=eg.matrix(s.y), pre=eg.matrix(s.pre))
        call.offsets.data = s.ends.data_ptr() if grouped else None
        return call

    def backward_call(self, s, grouped):
        call = eg.BackwardArgs(size=eg.c.sizeof(eg.BackwardArgs), a=eg.matrix(s.x), b=self.weight(s.w, grouped),
                               grad=eg.matrix(s.grad), source=eg.PRE, pre=eg.matrix(s.pre), d_a=eg.matrix(s.d_x),
                               d_b=self.weight(s.d_w, grouped))
        call.offsets.data = s.ends.data_ptr() if grouped else None
        return call

    def run(self, way, i):
        self.library.check(self.library.call("", self.layer, getattr(self, way)[i]))

    def steps(self):
        return [step for way in ("forward", "backward") for step in
                self.library.steps(self.layer, getattr(self, way)[0])]


def peers_of(rows):
    """(forward, backward) of each peer, by products over rows and over the depth."""
    def grouped(left, right, out, s):
        return F.grouped_mm(left, right, offs=s.ends)  # in memory of its own

    def grouped_depth(left, right, out, s):
        return F.grouped_mm(left.mT, right, offs=s.ends)

    parts = [slice(sum(rows[:i]), sum(rows[:i + 1])) for i in range(len(rows))]

    def by_rows(left, right, out, s):
        for group, part in enumerate(parts):
            if rows[group] > 0:
                torch.mm(left[part], right[group], out=out[part])
        return out

    def by_depth(left, right, out, s):
        for group, part in enumerate(parts):
            torch.mm(left[part].mT, right[part], out=out[group])
        return out

    def calls(product, depth_product):
        def forward(s):
            pre = product(s.x, s.w.mT, s.pre, s)
            torch.ops.aten.gelu.out(pre, approximate="tanh", out=s.y)

        def backward(s):
            torch.ops.aten.gelu_backward.grad_input(s.grad, s.pre, approximate="tanh", grad_input=s.g)
            product(s.g, s.w, s.d_x, s)
            depth_product(s.g, s.x, s.d_w, s)
        return forward, backward

    return {"grouped_mm": calls(grouped, grouped_depth), "loop": calls(by_rows, by_depth)}


def errors_of(ours, s, rows):
    """Of y, pre, d_x and d_w, group by group in f64: the largest."""
    for result in (s.y, s.pre, s.d_x, s.d_w):
        result.fill_(float("nan"))
    ours.run("forward", 0)
    ours.run("backward", 0)
    torch.cuda.synchronize()
    worst, begin = [0.0] * 4, 0
    for group, count in enumerate(rows):
        part = slice(begin, begin + count)
        begin += count
        x, w, grad = s.x[part].double(), s.w[group].double(), s.grad[part].double()
        pre = x @ w.mT
        g = torch.ops.aten.gelu_backward(grad, pre, approximate="tanh").to(s.x.dtype).double()
        want = [F.gelu(pre, approximate="tanh"), pre, g @ w, g.mT @ x]
        for i, (got, expected) in enumerate(zip((s.y[part], s.pre[part], s.d_x[part], s.d_w[group]), want)):
            if count > 0:
                error = relative_error(got, expected)
                worst[i] = max(worst[i], error) if error == error else float("nan")
            elif i == 3 and got.abs().max().item() != 0:
                worst[3] = float("nan")
    return worst


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
