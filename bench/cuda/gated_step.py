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

import argparse
import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F

import cublaslt
import epigrad_c as eg
import summary
from graphs import Graph, header, take_turns
from operators import DTYPES, relative_error

SIZES = "2048x768x3072,8192x1024x4096,4096x4096x4096,8192x4096x14336"
LIMITS = {"bf16": 2e-2, "f16": 4e-3}
ROTATED_BYTES, MOST_SETS, TURNS, TURN_MS = 240 << 20, 16, 9, 40
RESULTS = ["out", "d_x", "d_gate_w", "d_gate_b", "d_up_w", "d_up_b", "d_down_w", "d_down_b"]


class Operands:
    def __init__(self, m, d, h, dtype):
        def draw(*shape, scale=1):
            return torch.empty(*shape, dtype=dtype).uniform_(-scale, scale)

        self.x, self.grad = draw(m, d), draw(m, d)
        self.gate_w, self.up_w = (draw(h, d, scale=3 * d ** -0.5) for _ in range(2))
        self.gate_b, self.up_b, self.down_b = draw(h), draw(h), draw(d)
        self.down_w = draw(d, h, scale=3 * h ** -0.5)
        self.gate, self.up, self.y, self.g_gate, self.g_up = (torch.empty(m, h, dtype=dtype) for _ in range(5))
        for name, like in (("out", "grad"), ("d_x", "x"), ("d_gate_w", "gate_w"), ("d_gate_b", "gate_b"),
                           ("d_up_w", "up_w"), ("d_up_b", "up_b"), ("d_down_w", "down_w"), ("d_down_b", "down_b")):
            setattr(self, name, torch.empty_like(getattr(self, like)))

    def inputs(self):
        return self.x, self.gate_w, self.gate_b, self.up_w, self.up_b, self.down_w, self.down_b, self.grad


def torch_step(x, gate_w, gate_b, up_w, up_b, down_w, down_b, grad):
    """What autograd runs, without its graph; in the order of RESULTS."""
    gate, up = F.linear(x, gate_w, gate_b), F.linear(x, up_w, up_b)
    activated = F.silu(gate)
    y = activated * up
    out = F.linear(y, down_w, down_b)
    g = grad @ down_w
    g_up, g_gate = g * activated, torch.ops.aten.silu_backward(g * up, gate)
    d_x = torch.addmm(g_gate @ gate_w, g_up, up_w)
    return (out, d_x, g_gate.mT @ x, g_gate.sum(0), g_up.mT @ x, g_up.sum(0), grad.mT @ y, grad.sum(0))


class Epigrad:
    def __init__(self, library, shape, dtype, sets):
        m, d, h = shape
        self.library = library
        self.layers = [eg.Layer(size=eg.c.sizeof(eg.Layer), m=m, k=k, n=n, batch=1, dtype=DTYPES[dtype][1],
                                activation=eg.ACTIVATIONS.index(activation))
                       for k, n, activation in ((d, h, "silu"), (h, d, "none"), (h, d, "none"), (d, h, "none"))]
        self.calls = [self.step(s) for s in sets]
        size, most = eg.c.c_size_t(), 0
        for layer, call in zip(self.layers, self.calls[0]):
            library.check(library.call("_workspace", layer, call, eg.c.byref(size)))
            most = max(most, size.value)
        self.scratch = torch.empty(most + 256, dtype=torch.uint8)
        for call in sum(self.calls, []):
            call.workspace = eg.Workspace(data=(self.scratch.data_ptr() + 255) // 256 * 256, bytes=most)

    @staticmethod
    def step(s):
        """The four calls. A weight [N, K] is the transpose of b."""
        def forward(a, w, bias, y):
            return eg.ForwardArgs(size=eg.c.sizeof(eg.ForwardArgs), a=eg.matrix(a), b=eg.matrix(w.mT), y=eg.matrix(y),
                                  bias=eg.vector(bias))

        def backward(a, w, grad, d_a, d_w):
            return eg.BackwardArgs(size=eg.c.sizeof(eg.BackwardArgs), a=eg.matrix(a), b=eg.matrix(w.mT),
                                   grad=eg.matrix(grad), d_a=eg.matrix(d_a), d_b=eg.matrix(d_w.mT))

        unit, down = forward(s.x, s.gate_w, s.gate_b, s.y), forward(s.y, s.down_w, s.down_b, s.out)
        unit.pre, unit.b_up, unit.bias_up = eg.matrix(s.gate), eg.matrix(s.up_w.mT), eg.vector(s.up_b)
        unit.pre_up = eg.matrix(s.up)
        upper = backward(s.y, s.down_w, s.grad, s.g_gate, s.d_down_w)
        upper.d_bias = eg.vector(s.d_down_b)
        upper.chain = eg.Chain(saved=eg.matrix(s.gate), source=eg.PRE, activation=eg.ACTIVATIONS.index("silu"),
                               d_bias=eg.vector(s.d_gate_b))
        upper.chain_up = eg.ChainUp(saved=eg.matrix(s.up), d_up=eg.matrix(s.g_up), d_bias=eg.vector(s.d_up_b))
        lower = backward(s.x, s.gate_w, s.g_gate, s.d_x, s.d_gate_w)
        lower.b_up, lower.grad_up = eg.matrix(s.up_w.mT), eg.matrix(s.g_up)
        lower.d_b_up = eg.matrix(s.d_up_w.mT)
        return [unit, down, upper, lower]

    def run(self, i):
        for layer, call in zip(self.layers, self.calls[i]):
            self.library.check(self.library.call("", layer, call))

    def steps(self):
        return sum((self.library.steps(layer, call) for layer, call in zip(self.layers, self.calls[0])), [])


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


def errors_of(run, s, want):
    for name in RESULTS:
        getattr(s, name).fill_(float("nan"))
    run()
    torch.cuda.synchronize()
    return [relative_error(getattr(s, name), expected) for name, expected in zip(RESULTS, want)]


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
    runs = {"epigrad": ours.run, "bare": lambda i: bare.run(sets[i]),
            "torch": lambda i: torch_step(*sets[i].inputs())}
    if options.frameworks:
        torch.compiler.reset()  # it goes on without compiling after some sizes
        compiled = torch.compile(torch_step, dynamic=False)
        runs["compile"] = lambda i: compiled(*sets[i].inputs())
    graphs = {}
    for name, run in runs.items():
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


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", default="bf16", choices=LIMITS)
    parser.add_argument("--frameworks", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no further size is begun")
    parser.add_argument("--out", default="build/cuda-gated-step")
    return parser.parse_args()


def main():
    options = parse()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device")
    torch.set_grad_enabled(False)
    torch.set_default_device("cuda")
    torch.manual_seed(options.seed)
    stream, begin, rows = torch.cuda.Stream(), time.monotonic(), []
    head = header(f"gated_step.py build/src/libepigrad.so{' --frameworks' * options.frameworks}", options.seed)
    os.makedirs(os.path.dirname(options.out) or ".", exist_ok=True)
    with torch.cuda.stream(stream), open(options.out + ".jsonl", "w", encoding="utf-8") as file:
        library, lt = eg.Library(options.library, stream.cuda_stream), cublaslt.CublasLt()
        file.write(json.dumps(head) + "\n")
        for size in options.sizes.split(","):
            if time.monotonic() - begin > options.seconds:
                break
            rows.append(measure(options, library, lt, tuple(map(int, size.split("x")))))
            file.write(json.dumps(rows[-1]) + "\n")
            file.flush()
    text = summary.gated_markdown(head, rows)
    with open(options.out + ".md", "w", encoding="utf-8") as file:
        file.write(text)
    print(text, end="")
    return int(any("wrong" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
