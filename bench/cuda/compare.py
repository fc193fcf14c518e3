#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a backward call of epigrad against what else could do it, in one process, in turn.

    compare.py LIBEPIGRAD [--dtype bf16] [--source pre] [--shapes 2048x768x3072,...] [--activation gelu]
               [--kernel ROW] [--weight kn|nk] [--batch COUNT [--shared]] [--frameworks] [--json FILE]
               [--plot FILE.svg] [--plan]

    bare      the products alone (d_a, d_b; with recompute also a.b) by cublasLt, the best of 16 algorithms
    pass      the same, and element-wise kernels around them: what the library's epilogues cannot fuse
    epigrad   the whole backward: d_a, d_b, d_bias
    torch     PyTorch's own kernels, and torch.compile; jax: jit of the vjp          (with --frameworks)

A batch has a weight for each item, and `bare` strided-batched products; or, with --shared, one weight, whose
gradient is summed over the batch: `bare` is then the products of one tall layer.

Inputs are rotated over sets that exceed the L2 cache; each variant is one CUDA graph over all sets (jax
cannot be captured and is timed as it runs); variants take turns, and the median of the turns counts."""

import argparse
import json
import random
import statistics
import sys

import torch

import cublaslt
import epigrad_c as eg

DTYPES = {"bf16": (torch.bfloat16, eg.BF16), "f16": (torch.float16, eg.F16), "f32": (torch.float32, eg.F32),
          "f64": (torch.float64, eg.F64)}
SHAPES = "2048x768x3072,8192x768x3072,2048x2048x2048,4096x4096x4096,8192x8192x8192,8192x4096x14336"
ROTATED_BYTES, MOST_SETS, TURNS, TURN_MS = 240 << 20, 16, 9, 60


class Set:
    """The operands of one call; `items`: the batch as a first dimension, () or (batch,)."""

    def __init__(self, m, k, n, dtype, weight, items=()):
        def draw(*shape):
            return (torch.rand(*shape, device="cuda", dtype=torch.float32) * 2 - 1).to(dtype)

        self.a, self.grad = draw(*items, m, k), draw(*items, m, n)
        scale = 3 * k ** -0.5  # pre of unit size
        self.b = draw(*items, k, n) * scale if weight == "kn" else (draw(*items, n, k) * scale).mT
        self.bias = draw(n)
        self.pre = self.a @ self.b + self.bias
        self.d_a, self.d_b = torch.empty_like(self.a), torch.empty_like(self.b)
        self.d_bias = torch.empty_like(self.bias)
        self.grad_pre = torch.empty_like(self.grad)  # what the bare products multiply


class Epigrad:
    def __init__(self, options, sets, shape):
        m, k, n = shape
        self.stream = torch.cuda.current_stream().cuda_stream
        self.library = eg.Library(options.library, self.stream, options.kernel)
        self.layer = eg.Layer(size=eg.c.sizeof(eg.Layer), m=m, k=k, n=n, batch=options.batch,
                              dtype=DTYPES[options.dtype][1], activation=eg.ACTIVATIONS.index(options.activation))
        self.calls = [self.arguments(options, s) for s in sets]
        size = self.library.workspace(self.layer, self.calls[0])
        self.scratch = torch.empty(size + 256, dtype=torch.uint8, device="cuda")
        for call in self.calls:
            call.workspace = eg.Workspace(data=(self.scratch.data_ptr() + 255) // 256 * 256, bytes=size)
        self.workspace = size

    @staticmethod
    def arguments(options, s):
        def rows(x):  # of the batch, which is one tall matrix where the weight is shared
            return eg.matrix(x.view(options.batch, -1, x.shape[1]) if options.shared else x)

        call = eg.BackwardArgs(size=eg.c.sizeof(eg.BackwardArgs), a=rows(s.a), b=eg.matrix(s.b),
                               bias=eg.vector(s.bias), grad=rows(s.grad), d_a=rows(s.d_a),
                               d_b=eg.matrix(s.d_b), d_bias=eg.vector(s.d_bias))
        if options.source == "pre":
            call.source, call.pre = eg.PRE, rows(s.pre)
        return call

    def run(self, i):
        self.library.backward(self.layer, self.calls[i])


def act_grad(grad, pre, activation):
    aten = torch.ops.aten
    if activation == "gelu":
        return aten.gelu_backward(grad, pre, approximate="tanh")
    if activation == "relu":
        return aten.threshold_backward(grad, pre, 0)
    if activation == "silu":
        return aten.silu_backward(grad, pre)
    if activation == "gelu_erf":
        return aten.gelu_backward(grad, pre)
    raise SystemExit(f"no PyTorch derivative for {activation}")


def torch_backward(a, b, bias, grad, pre, recompute, activation):
    if recompute:
        pre = a @ b + bias if a.dim() == 3 else torch.addmm(bias, a, b)
    g = act_grad(grad, pre, activation)
    return g @ b.mT, a.mT @ g, g.flatten(0, -2).sum(0)


def relative_error(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def check(options, s, call):
    """Against PyTorch in f64 on the same inputs, a few rows and columns."""
    s.d_a.fill_(float("nan")), s.d_b.fill_(float("nan")), s.d_bias.fill_(float("nan"))
    call()
    torch.cuda.synchronize()
    a, b, grad, pre = s.a.double(), s.b.double(), s.grad.double(), s.pre.double()
    want = torch_backward(a, b, s.bias.double(), grad, pre, options.source == "recompute", options.activation)
    return [relative_error(got, w) for got, w in zip((s.d_a, s.d_b, s.d_bias), want)]


def jax_variant(options, s):
    import jax
    jax.config.update("jax_enable_x64", options.dtype == "f64")
    act = {"gelu": lambda x: jax.nn.gelu(x, approximate=True), "relu": jax.nn.relu, "silu": jax.nn.silu,
           "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False)}[options.activation]
    a, b, bias, grad = (jax.dlpack.from_dlpack(t.contiguous()) for t in (s.a, s.b, s.bias, s.grad))

    @jax.jit
    def backward(a, b, bias, grad):
        return jax.vjp(lambda a, b, bias: act(a @ b + bias), a, b, bias)[1](grad)

    jax.block_until_ready(backward(a, b, bias, grad))
    import time

    def milliseconds(repeats):
        begin = time.perf_counter()
        for _ in range(repeats):
            out = backward(a, b, bias, grad)
        jax.block_until_ready(out)
        return (time.perf_counter() - begin) / repeats * 1e3
    return milliseconds


def capture(run, count):
    for i in range(count):
        run(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for i in range(count):
            run(i)
    return graph


def replay_time(graph, count, repeats):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats / count


def host_time(call):
    """Microseconds of the host for a call that is enqueued, its plan seen before."""
    import time
    torch.cuda.synchronize()
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        call(0)
        times.append((time.perf_counter() - begin) * 1e6)
        torch.cuda.synchronize()
    return statistics.median(times)


def measure(options, shape, lt):
    m, k, n = shape
    dtype = DTYPES[options.dtype][0]
    recompute = options.source == "recompute"
    each = options.batch * (2 * m * k + 2 * k * n + 4 * m * n) * torch.finfo(dtype).bits // 8
    count = max(2, min(MOST_SETS, -(-ROTATED_BYTES // each)))
    items = (options.batch,) if options.batch > 1 and not options.shared else ()
    tall = m * options.batch if options.shared else m
    sets = [Set(tall, k, n, dtype, options.weight, items) for _ in range(count)]
    s = sets[0]
    ours = Epigrad(options, sets, shape)
    if options.plan:
        print(ours.library.plan(ours.layer, ours.calls[0]), end="")
    errors = check(options, s, lambda: ours.run(0))
    for each in sets:
        each.grad_pre.copy_(act_grad(each.grad, each.pre, options.activation))
    forward = cublaslt.Product(lt, s.a, s.b, s.pre) if recompute else None
    d_a, d_b = cublaslt.Product(lt, s.grad_pre, s.b.mT, s.d_a), cublaslt.Product(lt, s.a.mT, s.grad_pre, s.d_b)

    def bare(i):
        s = sets[i]
        if recompute:
            forward.run(s.a, s.b, s.pre)
        d_a.run(s.grad_pre, s.b.mT, s.d_a)
        d_b.run(s.a.mT, s.grad_pre, s.d_b)

    def separate(i):
        s = sets[i]
        if recompute:
            forward.run(s.a, s.b, s.pre)
            s.pre.add_(s.bias)
        g = act_grad(s.grad, s.pre, options.activation)
        d_a.run(g, s.b.mT, s.d_a)
        d_b.run(s.a.mT, g, s.d_b)
        torch.sum(g.flatten(0, -2), 0, out=s.d_bias)

    def first(i):
        s = sets[i]
        d_a.run(s.grad_pre, s.b.mT, s.d_a, d_a.choices[0])
        d_b.run(s.a.mT, s.grad_pre, s.d_b, d_b.choices[0])

    variants = {"bare": bare, "epigrad": ours.run}
    if options.first:
        variants["first"] = first
    if not options.quick:
        variants["pass"] = separate
    if options.frameworks:
        def eager(i):
            s = sets[i]
            torch_backward(s.a, s.b, s.bias, s.grad, s.pre, recompute, options.activation)
        compiled = torch.compile(torch_backward, dynamic=False)

        def compiled_run(i):
            s = sets[i]
            compiled(s.a, s.b, s.bias, s.grad, s.pre, recompute, options.activation)
        variants["torch"] = eager
        variants["compile"] = compiled_run
    graphs = {name: capture(run, count) for name, run in variants.items()}
    repeats = {name: max(1, int(TURN_MS / max(1e-3, count * replay_time(graph, count, 1))))
               for name, graph in graphs.items()}
    jax_time = jax_variant(options, s) if options.frameworks else None
    times = {name: [] for name in graphs}
    if jax_time:
        times["jax"] = []
    for _ in range(TURNS):
        # A turn gains by what the one before it left of the power limit: the order is drawn anew each time.
        for name in random.sample(list(graphs), len(graphs)):
            times[name].append(replay_time(graphs[name], count, repeats[name]))
        if jax_time:
            torch.cuda.synchronize()
            times["jax"].append(jax_time(repeats["epigrad"] * count))
    row = {"shape": "x".join(map(str, shape)), "dtype": options.dtype, "source": options.source,
           "activation": options.activation, "weight": options.weight, "batch": options.batch,
           "shared": options.shared, "sets": count,
           "workspace": ours.workspace, "errors": errors, "host_us": host_time(ours.run),
           "ms": {name: statistics.median(t) for name, t in times.items()}}
    ours.library.close()
    return row


def report(row):
    bare = row["ms"]["bare"]
    cells = "  ".join(f"{name} {ms:.4f} ({ms / bare:.3f})" for name, ms in row["ms"].items())
    errors = " ".join(f"{e:.1e}" for e in row["errors"])
    batch = "" if row["batch"] == 1 else f"{row['batch']} x " if not row["shared"] else f"{row['batch']} x (b shared) "
    print(f"{row['dtype']:4} {row['source']:9} {row['activation']:5} {row['weight']} {batch}{row['shape']:16} {cells}"
          f"  errors {errors}  host {row['host_us']:.1f} us  workspace {row['workspace'] >> 20} MiB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--source", default="pre", choices=["pre", "recompute"])
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--activation", default="gelu")
    parser.add_argument("--kernel")
    parser.add_argument("--weight", default="kn", choices=["kn", "nk"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--shared", action="store_true", help="one weight for the whole batch")
    parser.add_argument("--frameworks", action="store_true")
    parser.add_argument("--quick", action="store_true", help="without the variant `pass`")
    parser.add_argument("--first", action="store_true", help="also bare with the heuristics' first choice")
    parser.add_argument("--json", help="a file that the rows are appended to, for plot.py")
    parser.add_argument("--plot", help="a plot (SVG, PNG) to write, with the table in Markdown; needs matplotlib")
    parser.add_argument("--plan", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device")
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = []
    with torch.cuda.stream(torch.cuda.Stream()):
        lt = cublaslt.CublasLt()
        for shape in options.shapes.split(","):
            row = measure(options, [int(x) for x in shape.split("x")], lt)
            rows.append(row)
            report(row)
            torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "a", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
    if options.plot:
        import plot
        plot.table(rows)
        plot.plot(rows, options.plot)


if __name__ == "__main__":
    main()
