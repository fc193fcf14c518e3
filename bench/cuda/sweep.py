#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times epigrad on CUDA beside PyTorch and cublasLt on layers drawn with a seed: six calls of each layer.

    sweep.py LIBEPIGRAD [--layers 300] [--seed 1] [--seconds N] [--only SUBSTRING] [--operations forward,chain,...]
             [--out build/cuda-sweep] [--plans]

    forward        y                                backward recompute   the same, act' from a.b + bias
    forward+pre    y and pre                        chain                d_a times act' of the layer below, its d_bias
    backward pre   d_a, d_b, d_bias, saved pre      accumulate           d_b added to one in f32 (f64 for f64)

The layers are those of layers.py, mostly bf16, M from 1 to 32768. epigrad is timed twice: with the kernels that its
estimates choose, and with those that it measured to be the fastest (EG_TUNING_MEASURED), as cublasLt's are below. The
peers, of which the faster counts:

    torch             PyTorch's operators one after the other, each into memory that is there before
    cublasLt          products by the best of its algorithms, with PyTorch's element-wise kernels
    cublasLt fused    the same with cublasLt's own epilogues, where it has one for the call

Each is one CUDA graph over sets of operands that together exceed the L2 cache; all take turns in one process, and the
median of the turns' ratios counts. Small layers would need hundreds of sets: theirs stay in the cache for all alike.
Before that the results of all, on fresh random operands and into poisoned memory, are compared with PyTorch's in f32
(16-bit layers) or f64. A wrong result of epigrad is not timed, and the exit status is 1.

Writes OUT.jsonl, OUT.md and OUT.svg (with matplotlib). --seconds ends the sweep early: what was measured is the
beginning of the longer one. --plans prints how epigrad would do each call, and times nothing."""

import argparse
import json
import os
import statistics
import sys
import time

import torch

import cublaslt
import epigrad_c as eg
import summary
from graphs import Graph, header, take_turns
from layers import draw_layers
from operators import DTYPES, act_grad, activate, relative_error

OPERATIONS = ["forward", "forward+pre", "backward pre", "backward recompute", "chain", "accumulate"]
ACTIVATIONS = ["gelu", "gelu", "gelu", "none", "none", "relu", "silu", "gelu_erf"]
LIMITS = {"bf16": 1e-2, "f16": 2e-3, "f32": 1e-4, "f64": 1e-12}  # relative errors; TF32 would be 3e-4
ROTATED_BYTES, MOST_SETS = 160 << 20, 24
TURNS, FEWEST_TURNS, TURN_MS, MOST_MS = 7, 3, 1, 60


class Operands:
    """One set, for every call of a layer."""

    def __init__(self, layer, fill=True):
        dtype, (m, k, n) = DTYPES[layer.dtype][0], layer[1:4]

        def draw(*shape, scale=1):
            x = torch.empty(*shape, dtype=dtype)
            return x.uniform_(-scale, scale) if fill else x

        def weight(dtype=dtype):
            return torch.empty(k, n, dtype=dtype) if layer.weight == "kn" else torch.empty(n, k, dtype=dtype).mT

        self.a, self.grad, self.bias = draw(m, k), draw(m, n), draw(n)
        self.b = weight()
        if fill:
            self.b.uniform_(-3 * k ** -0.5, 3 * k ** -0.5)  # pre of unit size
        self.pre, self.below = draw(m, n, scale=2), draw(m, k, scale=2)  # as saved: of this layer, of the one below
        self.y, self.pre_out, self.d_a, self.d_b = map(torch.empty_like, (self.pre, self.pre, self.a, self.b))
        self.d_bias, self.d_bias_below = torch.empty_like(self.bias), torch.empty(k, dtype=dtype)
        self.sum = weight(torch.float64 if layer.dtype == "f64" else torch.float32)  # what is accumulated
        if fill:
            self.sum.uniform_(-1, 1)


class Epigrad:
    """A call of the library for each set."""

    def __init__(self, library, layer, operation, sets):
        activation = "none" if operation in ("chain", "accumulate") else layer.activation
        self.library, self.layer = library, layer
        self.struct = eg.Layer(size=eg.c.sizeof(eg.Layer), m=layer.m, k=layer.k, n=layer.n, batch=1,
                               dtype=DTYPES[layer.dtype][1], activation=eg.ACTIVATIONS.index(activation))
        make = self.forward if operation.startswith("forward") else self.backward
        self.calls = [make(x, operation) for x in sets]
        size = eg.c.c_size_t()
        library.check(library.call("_workspace", self.struct, self.calls[0], eg.c.byref(size)))
        self.scratch = torch.empty(size.value + 256, dtype=torch.uint8)
        place = (self.scratch.data_ptr() + 255) // 256 * 256
        for call in self.calls:
            call.workspace = eg.Workspace(data=place, bytes=size.value)

    @staticmethod
    def forward(x, operation):
        call = eg.ForwardArgs(size=eg.c.sizeof(eg.ForwardArgs), a=eg.matrix(x.a), b=eg.matrix(x.b),
                              bias=eg.vector(x.bias), y=eg.matrix(x.y))
        if operation == "forward+pre":
            call.pre = eg.matrix(x.pre_out)
        return call

    def backward(self, x, operation):
        call = eg.BackwardArgs(size=eg.c.sizeof(eg.BackwardArgs), grad=eg.matrix(x.grad))
        if operation == "accumulate":
            call.a, call.d_b, call.accumulate = eg.matrix(x.a), eg.matrix(x.sum), 1
            call.d_b.dtype = eg.F64 if self.layer.dtype == "f64" else eg.F32
            return call
        call.b, call.d_a = eg.matrix(x.b), eg.matrix(x.d_a)
        if operation == "chain":
            call.chain = eg.Chain(saved=eg.matrix(x.below), source=eg.PRE, d_bias=eg.vector(x.d_bias_below),
                                  activation=eg.ACTIVATIONS.index(activation_below(self.layer)))
            return call
        call.a, call.bias = eg.matrix(x.a), eg.vector(x.bias)
        call.d_b, call.d_bias = eg.matrix(x.d_b), eg.vector(x.d_bias)
        if operation == "backward pre":
            call.source, call.pre = eg.PRE, eg.matrix(x.pre)
        return call

    def run(self, i):
        self.library.check(self.library.call("", self.struct, self.calls[i]))

    def plan(self):
        text = eg.c.create_string_buffer(8192)
        self.library.check(self.library.call("_plan", self.struct, self.calls[0], text, len(text)))
        return text.value.decode()


def is_ours(name):
    return name.startswith("epigrad")


def activation_below(layer):
    return "gelu" if layer.activation == "none" else layer.activation


class TorchProducts:
    """What a peer multiplies with."""

    def __init__(self, layer, sets):
        self.nk, self.narrow = layer.weight == "nk", layer.dtype in ("bf16", "f16")
        self.product = torch.empty_like(sets[0].b)  # before it is added to a sum of another type

    def pre(self, x, out):
        torch.addmm(x.bias, x.a, x.b, out=out)

    def d_a(self, x, g, out):
        torch.mm(g, x.b.mT, out=out)

    def d_b(self, x, g, out):
        if self.nk:
            torch.mm(g.mT, x.a, out=out.mT)
        else:
            torch.mm(x.a.mT, g, out=out)

    def accumulate(self, x):
        if self.narrow:
            self.d_b(x, x.grad, self.product)
            x.sum.add_(self.product)
        elif self.nk:
            x.sum.mT.addmm_(x.grad.mT, x.a)
        else:
            x.sum.addmm_(x.a.mT, x.grad)


class LtProducts:
    """Each is tuned when it is first run. RuntimeError: cublasLt has none for these types or sizes."""

    def __init__(self, lt, layer):
        self.lt, self.dtype, self.made = lt, layer.dtype, {}

    def run(self, name, left, right, out, vector=None, aux=None, **options):
        if name not in self.made:
            try:
                self.made[name] = cublaslt.Product(self.lt, left, right, out, vector=vector, aux=aux, **options)
            except RuntimeError as error:
                self.made[name] = error
        if isinstance(self.made[name], RuntimeError):
            raise self.made[name]
        self.made[name].run(left, right, out, None, vector, aux)

    def pre(self, x, out):
        if self.dtype == "f64":  # it has no epilogues
            self.run("a.b", x.a, x.b, out)
            out.add_(x.bias)
        else:
            self.run("bias", x.a, x.b, out, x.bias, epilogue="bias")

    def d_a(self, x, g, out):
        self.run("d_a", g, x.b.mT, out)

    def d_b(self, x, g, out):
        self.run("d_b", x.a.mT, g, out)

    def accumulate(self, x):
        self.run("accumulate", x.a.mT, x.grad, x.sum, accumulate=True)


class Scratch:
    """One for all sets, as epigrad's workspace is."""

    def __init__(self, x):
        self.pre, self.g, self.d_a = torch.empty_like(x.pre), torch.empty_like(x.pre), torch.empty_like(x.a)


def separate(operation, layer, products, x, scratch):
    """Products and element-wise kernels, one after the other."""
    act = layer.activation
    if operation.startswith("forward"):
        pre = x.pre_out if operation == "forward+pre" else x.y if act == "none" else scratch.pre
        products.pre(x, pre)
        activate(act, pre, x.y)
    elif operation == "chain":
        products.d_a(x, x.grad, scratch.d_a)
        act_grad(activation_below(layer), scratch.d_a, x.below, x.d_a)
        torch.sum(x.d_a, 0, out=x.d_bias_below)
    elif operation == "accumulate":
        products.accumulate(x)
    else:
        pre, g = x.pre, x.grad
        if operation == "backward recompute":
            pre = scratch.pre
            products.pre(x, pre)
        if act != "none":
            g = scratch.g
            act_grad(act, x.grad, pre, g)
        products.d_a(x, g, x.d_a)
        products.d_b(x, g, x.d_b)
        torch.sum(g, 0, out=x.d_bias)


def fused(operation, layer, products):
    """The call as one product with an epilogue of cublasLt, or None."""
    act = layer.activation
    if operation == "forward" and act in ("relu", "gelu"):
        return lambda x: products.run(act, x.a, x.b, x.y, x.bias, epilogue=f"{act}_bias")
    if operation == "forward+pre" and act == "gelu":
        return lambda x: products.run("aux", x.a, x.b, x.y, x.bias, x.pre_out, epilogue="gelu_aux_bias")
    if operation == "chain" and activation_below(layer) == "gelu":
        return lambda x: products.run("dgelu", x.grad, x.b.mT, x.d_a, x.d_bias_below, x.below, epilogue="dgelu_bgrad")
    return None


class Peers:
    """Of a layer: what epigrad is timed against."""

    def __init__(self, lt, layer, sets):
        self.layer, self.sets, self.scratch = layer, sets, Scratch(sets[0])
        self.torch, self.lt = TorchProducts(layer, sets), LtProducts(lt, layer)

    def of(self, operation):
        """{name: function of a set's number}"""
        def by(products):
            return lambda i: separate(operation, self.layer, products, self.sets[i], self.scratch)
        runs = {"torch": by(self.torch), "cublasLt": by(self.lt)}
        one = fused(operation, self.layer, self.lt)
        if one:
            runs["cublasLt fused"] = lambda i: one(self.sets[i])
        return runs


def results(operation, x):
    return {"forward": [x.y], "forward+pre": [x.y, x.pre_out], "chain": [x.d_a, x.d_bias_below],
            "accumulate": [x.sum]}.get(operation, [x.d_a, x.d_b, x.d_bias])


def reference(operation, layer, x):
    """The results, by PyTorch in f32 or f64."""
    wide = torch.float32 if layer.dtype in ("bf16", "f16") else torch.float64
    if operation == "accumulate":
        return [x.sum.to(wide) + x.a.mT.to(wide) @ x.grad.to(wide)]
    if operation == "chain":
        d_a = x.grad.to(wide) @ x.b.mT.to(wide)
        act_grad(activation_below(layer), d_a, x.below.to(wide), out := torch.empty_like(d_a))
        return [out, out.sum(0)]
    a, b, bias, act = x.a.to(wide), x.b.to(wide), x.bias.to(wide), layer.activation
    if operation.startswith("forward"):
        pre = torch.addmm(bias, a, b)
        activate(act, pre, y := torch.empty_like(pre))
        return [pre if act == "none" else y, pre]
    g = x.grad.to(wide)
    if act != "none":
        pre = x.pre.to(wide) if operation == "backward pre" else torch.addmm(bias, a, b)
        if act == "relu":  # relu' jumps at 0: no gradient where rounding decides
            x.grad.masked_fill_(pre.abs() < 1e-3, 0)
            g = x.grad.to(wide)
        act_grad(act, g, pre, out := torch.empty_like(g))
        g = out
    return [g @ b.mT, a.mT @ g, g.sum(0)]


def errors_of(run, operation, x, want):
    """Of the results of a run into poisoned memory; not of the first run, which may tune products."""
    before = x.sum.clone()
    run(0)
    x.sum.copy_(before)
    for result in results(operation, x):
        if operation != "accumulate":
            result.fill_(float("nan"))
    run(0)
    torch.cuda.synchronize()
    errors = [relative_error(got, expected) for got, expected in zip(results(operation, x), want)]
    x.sum.copy_(before)
    return errors


def checked(operation, layer, ours, peers):
    """What is left of the peers, and what is wrong with epigrad's results, if anything."""
    x, limit = peers.sets[0], LIMITS[layer.dtype]
    want, good, wrong = reference(operation, layer, x), {}, None
    for name, run in {**{name: call.run for name, call in ours.items()}, **peers.of(operation)}.items():
        try:
            errors = errors_of(run, operation, x, want)
        except RuntimeError as error:
            if is_ours(name):
                wrong = f"{name}: {error}"
            else:
                print(f"sweep: no {name}: {label(layer)} {operation}: {error}", file=sys.stderr)
            continue
        if all(error <= limit for error in errors):
            good[name] = run
        elif is_ours(name):
            wrong = f"{name}: relative errors " + " ".join(f"{error:.1e}" for error in errors)
        else:
            print(f"sweep: {name} is wrong: {label(layer)} {operation} {errors}", file=sys.stderr)
    return good, wrong


def label(layer):
    return f"{layer.dtype} {layer.m}x{layer.k}x{layer.n} {layer.activation} {layer.weight}"


def operations_of(layer, wanted):
    """Without those that an absent activation makes the same as others."""
    return [o for o in wanted if layer.activation != "none" or o not in ("forward+pre", "backward recompute")]


def flops(layer, operation):
    products = {"backward pre": 2, "backward recompute": 3 if layer.activation != "none" else 2}.get(operation, 1)
    return 2 * products * layer.m * layer.k * layer.n


def measure(libraries, layer, operation, sets, peers):
    """None where every peer is wrong."""
    row = {"operation": operation, "layer": label(layer), "flops": flops(layer, operation), "sets": len(sets)}
    try:
        ours = {name: Epigrad(library, layer, operation, sets) for name, library in libraries.items()}
    except RuntimeError as error:
        return {**row, "wrong": str(error)}
    runs, wrong = checked(operation, layer, ours, peers)
    if wrong:
        return {**row, "wrong": wrong}
    if all(map(is_ours, runs)):
        return None
    graphs = {name: Graph(run, len(sets), TURN_MS) for name, run in runs.items()}
    turn_ms = sum(graph.replay(1) * graph.count * graph.repeats for graph in graphs.values())
    take_turns(list(graphs.values()), max(FEWEST_TURNS, min(TURNS, int(MOST_MS / turn_ms))))
    peer = min((name for name in graphs if not is_ours(name)), key=lambda name: graphs[name].median())
    for name, call in ours.items():
        ratios = sorted(ours / other for ours, other in zip(graphs[name].times, graphs[peer].times))
        row["measured" if name == summary.MEASURED else "estimated"] = {
            "ratio": round(statistics.median(ratios), 4), "low": round(ratios[0], 4), "high": round(ratios[-1], 4),
            "steps": call.library.steps(call.struct, call.calls[0])}
    return {**row, "peer": peer, "us": {name: round(graph.median() * 1e3, 3) for name, graph in graphs.items()}}


def sets_of(layer):
    """So many that a forward call, which reads and writes least, goes round past the L2 cache."""
    m, k, n = layer[1:4]
    each = (m * k + k * n + m * n) * DTYPES[layer.dtype][0].itemsize
    return [Operands(layer) for _ in range(max(2, min(MOST_SETS, -(-ROTATED_BYTES // each))))]


def sweep(options, libraries, lt):
    """Rows, one by one."""
    begin = time.monotonic()
    for layer in draw_layers(options.seed, options.layers, ACTIVATIONS):
        if options.only not in label(layer):
            continue
        if time.monotonic() - begin > options.seconds:
            return
        sets = sets_of(layer)
        peers = Peers(lt, layer, sets)
        for operation in operations_of(layer, options.operations):
            try:
                row = measure(libraries, layer, operation, sets, peers)
                if row:
                    yield row
            except RuntimeError as error:
                yield {"operation": operation, "layer": label(layer), "wrong": f"not measured: {error}"}


def plans(options, library):
    for layer in draw_layers(options.seed, options.layers, ACTIVATIONS):
        if options.only in label(layer):
            for operation in operations_of(layer, options.operations):
                ours = Epigrad(library, layer, operation, [Operands(layer, fill=False)])
                print(f"== {operation} {label(layer)}\n{ours.plan()}", end="")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--layers", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--only", default="", help="layers whose name has this, such as 'f32 1x' or nk")
    parser.add_argument("--operations", type=lambda text: text.split(","), default=OPERATIONS)
    parser.add_argument("--out", default="build/cuda-sweep")
    parser.add_argument("--plans", action="store_true")
    return parser.parse_args()


def main():
    options = parse()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device")
    torch.set_grad_enabled(False)
    torch.set_default_device("cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        libraries = {name: eg.Library(options.library, stream.cuda_stream, tuning=tuning)
                     for name, tuning in (("epigrad", eg.ESTIMATED), (summary.MEASURED, eg.MEASURED))}
        if options.plans:
            return plans(options, libraries["epigrad"])
        rows = []
        os.makedirs(os.path.dirname(options.out) or ".", exist_ok=True)
        with open(options.out + ".jsonl", "w", encoding="utf-8") as file:
            file.write(json.dumps(header("sweep.py build/src/libepigrad.so", options.seed)) + "\n")
            for row in sweep(options, libraries, cublaslt.CublasLt()):
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
    print(summary.write(options.out + ".jsonl"), end="")
    return int(any("wrong" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
