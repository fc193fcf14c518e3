#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a whole training step of an MLP block D -> H -> D on CUDA: forward and backward, with every gradient.

    step.py LIBEPIGRAD [--sizes MxDxH,...] [--seed 1] [--drawn 4] [--dtype bf16] [--frameworks] [--seconds N]
            [--out build/cuda-step]

    bare            the six products alone by cublasLt, the best of 16 algorithms: the unit
    epigrad         four calls of the C interface: two forward, of which the first saves pre, and two backward, chained:
                    d_a of the upper layer is times gelu' of the lower one's pre, and sums its d_bias
    cublasLt fused  six products by cublasLt with its epilogues (bias, GELU and its pre, GELU' and d_bias)
    torch           PyTorch's operators; with --frameworks: compile (torch.compile) and jax (jit of the vjp)

Weights are [N, K], as PyTorch stores them. Inputs are rotated over sets that exceed the L2 cache; each variant is one
CUDA graph over all sets (jax cannot be captured and is timed as it runs); variants take turns, and the median of the
turns counts. Results are compared with PyTorch's in f64 first. --drawn adds so many sizes, drawn with the seed.
Writes OUT.jsonl and a table, OUT.md. The exit status is 1 where a result of epigrad is wrong."""

import os
import random
import statistics
import sys
import time

import torch
import torch.nn.functional as F

import cublaslt
import epigrad_c as eg
import runs
import summary
from calls import Calls, layer_of
from graphs import Graph, take_turns
from operators import DTYPES, relative_error

SIZES = "2048x768x3072,8192x1024x4096,4096x4096x4096,8192x4096x14336"
BLOCKS = [(384, 1536), (768, 3072), (1024, 4096), (1280, 5120), (1600, 6400), (2048, 8192), (4096, 14336), (896, 4864),
          (3584, 18944), (2304, 9216), (2048, 5632), (768, 2048), (1000, 4000)]
ROWS = [64, 197, 512, 1024, 1576, 2048, 3000, 4096, 8192, 16384]
MOST_FLOPS = 8e12
LIMITS = {"bf16": 2e-2, "f16": 4e-3, "f32": 1e-4, "f64": 1e-12}
ROTATED_BYTES, MOST_SETS, TURNS, TURN_MS = 240 << 20, 16, 9, 40
RESULTS = ["out", "d_x", "d_w1", "d_b1", "d_w2", "d_b2"]


def sizes_of(options):
    sizes = runs.parse_sizes(options.sizes)
    draw, wanted = random.Random(options.seed), len(sizes) + options.drawn
    while len(sizes) < wanted:
        size = (draw.choice(ROWS), *draw.choice(BLOCKS))
        if 12 * size[0] * size[1] * size[2] <= MOST_FLOPS and size not in sizes:
            sizes.append(size)
    return sizes


class Operands:
    def __init__(self, m, d, h, dtype):
        def draw(*shape, scale=1):
            return torch.empty(*shape, dtype=dtype).uniform_(-scale, scale)

        self.x, self.grad = draw(m, d), draw(m, d)
        self.w1, self.b1 = draw(h, d, scale=3 * d ** -0.5), draw(h)
        self.w2, self.b2 = draw(d, h, scale=3 * h ** -0.5), draw(d)
        self.pre, self.y, self.g = (torch.empty(m, h, dtype=dtype) for _ in range(3))
        self.out, self.d_x, self.d_w1, self.d_b1, self.d_w2, self.d_b2 = map(
            torch.empty_like, (self.grad, self.x, self.w1, self.b1, self.w2, self.b2))

    def inputs(self):
        return self.x, self.w1, self.b1, self.w2, self.b2, self.grad


def torch_step(x, w1, b1, w2, b2, grad):
    """What autograd runs, without its graph."""
    pre = F.linear(x, w1, b1)
    y = F.gelu(pre, approximate="tanh")
    out = F.linear(y, w2, b2)
    g = torch.ops.aten.gelu_backward(grad @ w2, pre, approximate="tanh")
    return out, g @ w1, g.mT @ x, g.sum(0), grad.mT @ y, grad.sum(0)


class Epigrad(Calls):
    def __init__(self, library, shape, dtype, sets):
        m, d, h = shape
        # gelu' is the chain's, so that the lower layer's backward call has no activation.
        layers = [layer_of(m, k, n, DTYPES[dtype][1], activation) for k, n, activation in (
            (d, h, "gelu"), (h, d, "none"), (h, d, "none"), (d, h, "none"))]
        super().__init__(library, layers, [self.step(s) for s in sets])

    @staticmethod
    def step(s):
        """The four calls. A weight [N, K] is the transpose of b."""
        def forward(a, w, bias, y, pre=None):
            return eg.ForwardArgs(size=eg.c.sizeof(eg.ForwardArgs), a=eg.matrix(a), b=eg.matrix(w.mT), y=eg.matrix(y),
                                  bias=eg.vector(bias), pre=eg.Matrix() if pre is None else eg.matrix(pre))

        def backward(a, w, grad, d_a, d_w):
            return eg.BackwardArgs(size=eg.c.sizeof(eg.BackwardArgs), a=eg.matrix(a), b=eg.matrix(w.mT),
                                   grad=eg.matrix(grad), d_a=eg.matrix(d_a), d_b=eg.matrix(d_w.mT))

        upper, lower = backward(s.y, s.w2, s.grad, s.g, s.d_w2), backward(s.x, s.w1, s.g, s.d_x, s.d_w1)
        upper.d_bias = eg.vector(s.d_b2)
        upper.chain = eg.Chain(saved=eg.matrix(s.pre), source=eg.PRE, activation=eg.ACTIVATIONS.index("gelu"),
                               d_bias=eg.vector(s.d_b1))
        return [forward(s.x, s.w1, s.b1, s.y, s.pre), forward(s.y, s.w2, s.b2, s.out), upper, lower]


class Products:
    """The six products, tuned on the first set; with `fused`, cublasLt's epilogues do the rest but for d_b2."""

    def __init__(self, lt, s, fused):
        self.fused = fused
        self.made = [cublaslt.Product(lt, *operands, epilogue=epilogue, vector=vector, aux=aux)
                     for operands, epilogue, vector, aux in self.of(s)]

    def of(self, s):
        return [((left, right, out), epilogue, vector, aux) if self.fused else ((left, right, out), None, None, None)
                for left, right, out, epilogue, vector, aux in (
                    (s.x, s.w1.mT, s.y, "gelu_aux_bias", s.b1, s.pre), (s.y, s.w2.mT, s.out, "bias", s.b2, None),
                    (s.grad, s.w2, s.g, "dgelu_bgrad", s.d_b1, s.pre), (s.grad.mT, s.y, s.d_w2, None, None, None),
                    (s.g, s.w1, s.d_x, None, None, None), (s.g.mT, s.x, s.d_w1, None, None, None))]

    def run(self, s):
        for product, (operands, _, vector, aux) in zip(self.made, self.of(s)):
            product.run(*operands, None, vector, aux)
        if self.fused:
            torch.sum(s.grad, 0, out=s.d_b2)


class Jax:
    """Takes turns like a Graph, by the host's clock."""

    def __init__(self, s, turn_ms):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax
        jax.config.update("jax_enable_x64", s.x.dtype == torch.float64)
        jax.config.update("jax_default_matmul_precision", "highest")  # no TF32
        self.block = jax.block_until_ready

        @jax.jit
        def step(x, w1, b1, w2, b2, grad):
            def block(x, w1, b1, w2, b2):
                return jax.nn.gelu(x @ w1.T + b1, approximate=True) @ w2.T + b2
            out, back = jax.vjp(block, x, w1, b1, w2, b2)
            return out, *back(grad)

        inputs = [jax.dlpack.from_dlpack(x) for x in s.inputs()]
        self.run, self.times, self.repeats = lambda: step(*inputs), [], 1
        self.block(self.run())
        self.repeats = max(1, int(turn_ms / self.replay()))

    def replay(self):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(self.repeats):
            out = self.run()
        self.block(out)
        return (time.perf_counter() - begin) / self.repeats * 1e3

    def turn(self):
        self.times.append(self.replay())

    def median(self):
        return statistics.median(self.times)


def errors_of(run, s, want):
    for name in RESULTS:
        getattr(s, name).fill_(float("nan"))
    run()
    torch.cuda.synchronize()
    return [relative_error(getattr(s, name), expected) for name, expected in zip(RESULTS, want)]


def variants_of(lt, sets, frameworks):
    """All but epigrad and jax."""
    bare = Products(lt, sets[0], fused=False)
    calls = {"bare": lambda i: bare.run(sets[i]), "torch": lambda i: torch_step(*sets[i].inputs())}
    if frameworks:
        torch.compiler.reset()  # it goes on without compiling after some sizes
        compiled = torch.compile(torch_step, dynamic=False)
        calls["compile"] = lambda i: compiled(*sets[i].inputs())
    return calls


def fused_variant(lt, sets, want, limit):
    try:
        products = Products(lt, sets[0], fused=True)
    except RuntimeError:  # no algorithm for these types or sizes
        return {}
    errors = errors_of(lambda: products.run(sets[0]), sets[0], want)
    if not all(error <= limit for error in errors):
        print(f"step: cublasLt fused is wrong: {errors}", file=sys.stderr)
        return {}
    return {"cublasLt fused": lambda i: products.run(sets[i])}


def graphs_of(calls, sets, frameworks):
    graphs = {}
    for name, run in calls.items():
        try:
            graphs[name] = Graph(run, len(sets), TURN_MS)
        except Exception as error:  # a compiler's, of any kind
            if name == "epigrad":
                raise
            print(f"step: no {name}: {error!r:.300}", file=sys.stderr)
    if frameworks:
        try:
            graphs["jax"] = Jax(sets[0], TURN_MS)
        except Exception as error:
            print(f"step: no jax: {error!r:.300}", file=sys.stderr)
    return graphs


def measure(options, library, lt, shape):
    m, d, h = shape
    dtype = DTYPES[options.dtype][0]
    each = 4 * (m * d + d * h + m * h) * dtype.itemsize
    sets = [Operands(m, d, h, dtype) for _ in range(max(2, min(MOST_SETS, -(-ROTATED_BYTES // each))))]
    ours, limit = Epigrad(library, shape, options.dtype, sets), LIMITS[options.dtype]
    row = {"shape": f"{m}x{d}x{h}", "dtype": options.dtype, "sets": len(sets), "steps": ours.steps()}
    want = torch_step(*(x.double() for x in sets[0].inputs()))
    errors = errors_of(lambda: ours.run(0), sets[0], want)
    if not all(error <= limit for error in errors):
        return {**row, "wrong": "relative errors " + " ".join(f"{error:.1e}" for error in errors)}
    calls = {"epigrad": ours.run, **variants_of(lt, sets, options.frameworks), **fused_variant(lt, sets, want, limit)}
    del want
    graphs = graphs_of(calls, sets, options.frameworks)
    take_turns(list(graphs.values()), TURNS)
    bare = graphs["bare"].times
    return {**row, "ms": {name: round(graph.median(), 5) for name, graph in graphs.items()},
            "ratio": {name: round(statistics.median(t / b for t, b in zip(graph.times, bare)), 4)
                      for name, graph in graphs.items()}}


def main():
    parser = runs.parser_of(__doc__, SIZES, DTYPES, "build/cuda-step")
    parser.add_argument("--drawn", type=int, default=4)
    parser.add_argument("--frameworks", action="store_true")
    options = parser.parse_args()
    runs.begin_on_device(options.seed)
    lt = cublaslt.CublasLt()
    return runs.run(options, f"step.py build/src/libepigrad.so{' --frameworks' * options.frameworks}",
                    sizes_of(options), lambda library, shape: measure(options, library, lt, shape),
                    summary.steps_markdown)


if __name__ == "__main__":
    sys.exit(main())
