#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times epigrad beside PyTorch and oneDNN on layers drawn with a seed, forward and backward, on the CPU.

    sweep.py LIBEPIGRAD [--seed 1] [--layers 200] [--threads 1,2] [--dtypes f32,bf16,f16,f64] [--gflop 8]
             [--shapes MxKxN,...] [--only SUBSTRING,...] [--kernel ROW] [--seconds S] [--plan]
             [--output build/sweep.jsonl] [--onednn build/bench/libsweep_onednn.so]

The layers are those of GPT-2, Llama, BERT, ViT, recommenders, small control networks, and odd sizes; M from 1 to
4096; weights mostly [N, K], as PyTorch stores them. Each is timed in five calls, with operands that go round past
the caches:

    forward          y                               forward+pre     y and pre, which differ
    forward packed   y, B packed beforehand          backward pre    d_a, d_b, d_bias from a saved pre
    backward         the same, pre recomputed

    torch    PyTorch's operators one after the other, each into memory that is there before (out=)
    onednn   forward: a linear primitive with the activation as its epilogue, through PyTorch. Backward: PyTorch's
             element-wise operators, and the products by matmul primitives, with operands brought into the layout
             that oneDNN likes best where that is faster (f32 and bf16; sweep_onednn.c, where oneDNN 2 is there)

All take turns in one process; the ratio of epigrad's time to the fastest peer's is taken within a turn, and the
median of the turns counts. One thread is timed by its own processor time, several by the clock on the wall: give
them processors of their own (taskset), which the output names. A turn begins when the threads of the one before have
stopped spinning; OMP_WAIT_POLICY=active is refused, as then they never do. Where an instruction set is capped
(EPIGRAD_CPU_ISA), cap the peers too: ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA, MKL_ENABLE_INSTRUCTIONS.

Beside the output, a line a layer and call, it writes OUTPUT-records.jsonl for tools/performance.py, and a plot."""

import argparse
import ctypes
import json
import math
import os
import random
import statistics
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cuda"))
import epigrad_c as eg  # noqa: E402
import machine  # noqa: E402
from operators import DTYPES, act_grad, activate  # noqa: E402
from turns import check_cores, keep_memory, rest, seconds  # noqa: E402

SIZES = {  # K, N of a layer, or N, K
    "gpt2": [(768, 2304), (768, 768), (768, 3072), (1024, 4096), (1280, 5120), (768, 50257)],
    "llama": [(2048, 5632), (2048, 2048), (4096, 4096), (4096, 14336), (896, 4864)],
    "bert": [(768, 768), (768, 3072), (1024, 4096), (312, 1200)],
    "vit": [(384, 1536), (192, 768), (768, 1000), (320, 1280), (1152, 4304)],
    "recommender": [(13, 512), (512, 256), (256, 64), (479, 1024), (1024, 1024), (512, 1)],
    "control": [(4, 64), (17, 256), (64, 64), (256, 256), (256, 6), (30, 50), (128, 256)],
    "odd": [(513, 1025), (1000, 10), (100, 100), (257, 129), (33, 4095), (1023, 1023)],
}
ROWS = [1, 1, 2, 3, 4, 7, 8, 12, 16, 24, 32, 50, 64, 100, 128, 197, 256, 384, 512, 777, 1024, 2048, 4096]
ACTIVATIONS = ["gelu", "gelu", "relu", "silu", "tanh", "none"]
MODES = ["forward", "forward+pre", "forward packed", "backward pre", "backward"]
ROTATED_BYTES, MOST_SETS, TURNS, TURN_SECONDS = 96 << 20, 16, 5, 0.012


def draw(options):
    """Layers of the seed, or those of --shapes with GELU: (family, M, K, N, dtype, activation, weight)."""
    if options.shapes:
        shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes.split(",")]
        return [("given", *shape, dtype, "gelu", "nk") for dtype in options.dtypes for shape in shapes]
    chance, layers = random.Random(options.seed), []
    while len(layers) < options.layers:
        family = chance.choice(list(SIZES))
        k, n = chance.choice(SIZES[family])
        if chance.random() < 0.4:
            k, n = n, k
        m, dtype = chance.choice(ROWS), chance.choice(["f32", "f32", "f32", "bf16", "bf16", "f16", "f64"])
        layer = family, m, k, n, dtype, chance.choice(ACTIVATIONS), "nk" if chance.random() < 0.8 else "kn"
        if 2e-9 * m * k * n <= options.gflop and dtype in options.dtypes:
            layers.append(layer)
    return layers


class Set:
    """The operands of one call, and what PyTorch needs besides."""

    def __init__(self, m, k, n, dtype, weight):
        def some(*shape):
            return (torch.rand(*shape) * 2 - 1).to(dtype)

        self.a, self.grad, self.bias = some(m, k), some(m, n), some(n)
        scale = 3 * k ** -0.5  # pre of unit size
        self.b = some(k, n) * scale if weight == "kn" else (some(n, k) * scale).mT
        self.pre = torch.addmm(self.bias, self.a, self.b)
        self.y, self.pre_out = torch.empty_like(self.pre), torch.empty_like(self.pre)
        self.g = torch.empty_like(self.pre)
        self.d_a, self.d_bias = torch.empty_like(self.a), torch.empty_like(self.bias)
        self.d_b = some(k, n) if weight == "kn" else some(n, k).mT

    def bytes(self):
        return sum(x.numel() * x.element_size() for x in vars(self).values())


def torch_forward(activation, x, pre):
    torch.addmm(x.bias, x.a, x.b, out=pre)
    if activation != "none":
        activate(activation, pre, x.y)


def torch_act_grad(activation, x, recompute, pre_of=None):
    """grad_pre; `pre_of` computes pre where it is recomputed."""
    if activation == "none":
        return x.grad
    pre = x.pre
    if recompute:
        pre = pre_of(x) if pre_of else torch.addmm(x.bias, x.a, x.b, out=x.pre_out)
    act_grad(activation, x.grad, pre, x.g)
    return x.g


def torch_backward(activation, weight, x, recompute):
    g = torch_act_grad(activation, x, recompute)
    torch.mm(g, x.b.mT, out=x.d_a)
    if weight == "kn":
        torch.mm(x.a.mT, g, out=x.d_b)
    else:
        torch.mm(g.mT, x.a, out=x.d_b.mT)
    torch.sum(g, 0, out=x.d_bias)


class OneDnn:
    """The products of backward calls by oneDNN's matmul."""

    def __init__(self, path, threads):
        self.lib = None
        if path and os.path.exists(path):
            self.lib = ctypes.CDLL(path)
            self.lib.omp_set_num_threads(threads)
            self.lib.sweep_onednn_make.restype = ctypes.c_void_p
            self.lib.sweep_onednn_make.argtypes = [ctypes.c_int64] * 3 + [ctypes.c_bool] * 2
            for function in (self.lib.sweep_onednn_d_a, self.lib.sweep_onednn_d_b):
                function.argtypes, function.restype = [ctypes.c_void_p] * 4, None
            self.lib.sweep_onednn_free.argtypes = [ctypes.c_void_p]
        self.made = None

    def prepare(self, layer):
        """Whether it has the products of this layer."""
        _, m, k, n, dtype, _, weight = layer
        self.release()
        if self.lib and dtype in ("f32", "bf16"):
            self.made = self.lib.sweep_onednn_make(m, k, n, dtype == "bf16", weight == "nk")
        return bool(self.made)

    def release(self):
        if self.made:
            self.lib.sweep_onednn_free(self.made)
        self.made = None

    def backward(self, activation, weight, x, recompute):
        g = torch_act_grad(activation, x, recompute, lambda x: onednn_forward("none", x))
        left, right = (g, x.a) if weight == "nk" else (x.a, g)
        self.lib.sweep_onednn_d_a(self.made, g.data_ptr(), x.b.data_ptr(), x.d_a.data_ptr())
        self.lib.sweep_onednn_d_b(self.made, left.data_ptr(), right.data_ptr(), x.d_b.data_ptr())
        torch.sum(g, 0, out=x.d_bias)


def onednn_forward(activation, x):
    algorithm = ("gelu", [], "tanh") if activation == "gelu" else \
        ("swish" if activation == "silu" else activation, [], "")
    return torch.ops.mkldnn._linear_pointwise(x.a, x.b.mT, x.bias, *algorithm)


def weight_like(x, weight):
    """An operand of b's shape in the layer's layout; strides say nothing where a side is 1."""
    k, n = x.shape
    return eg.Matrix(data=x.data_ptr(), ld=k if weight == "nk" else n, layout=eg.COL_MAJOR if weight == "nk" else 0)


def rows(x):
    return eg.Matrix(data=x.data_ptr())


class Epigrad:
    def __init__(self, library, layer, sets, mode):
        _, m, k, n, dtype, activation, self.weight = layer
        self.library, c = library, eg.c
        self.layer = eg.Layer(size=c.sizeof(eg.Layer), m=m, k=k, n=n, batch=1, dtype=DTYPES[dtype][1],
                              activation=eg.ACTIVATIONS.index(activation))
        make = self.forward if mode.startswith("forward") else self.backward
        self.calls = [make(x, mode) for x in sets]
        self.packs = []
        if mode == "forward packed":
            for call in self.calls:
                pack = c.c_void_p()
                library.check(library.lib.eg_pack_b(library.context, c.byref(self.layer), c.byref(call.b),
                                                    c.byref(pack)))
                call.packed_b = pack
                self.packs.append(pack)
        name = "eg_forward" if mode.startswith("forward") else "eg_backward"
        self.function = getattr(library.lib, name)
        self.function.argtypes = [c.c_void_p] * 3
        self.pointers = [c.addressof(call) for call in self.calls]
        self.at = c.addressof(self.layer)

    def forward(self, x, mode):
        call = eg.ForwardArgs(size=eg.c.sizeof(eg.ForwardArgs), a=rows(x.a), b=weight_like(x.b, self.weight),
                              bias=eg.vector(x.bias), y=rows(x.y))
        if mode == "forward+pre":
            call.pre = rows(x.pre_out)
        return call

    def backward(self, x, mode):
        call = eg.BackwardArgs(size=eg.c.sizeof(eg.BackwardArgs), a=rows(x.a), b=weight_like(x.b, self.weight),
                               bias=eg.vector(x.bias), grad=rows(x.grad), d_a=rows(x.d_a),
                               d_b=weight_like(x.d_b, self.weight), d_bias=eg.vector(x.d_bias))
        if mode == "backward pre":
            call.source, call.pre = eg.PRE, rows(x.pre)
        return call

    def run(self, i):
        if self.function(self.library.context, self.at, self.pointers[i]) != 0:
            raise RuntimeError(self.library.lib.eg_last_error().decode())

    def plan(self):
        text = eg.c.create_string_buffer(4096)
        self.library.call("_plan", self.layer, self.calls[0], text, 4096)
        return text.value.decode()

    def close(self):
        for pack in self.packs:
            self.library.lib.eg_packed_free(self.library.context, pack)


def variants_of(ours, onednn, layer, sets, mode):
    activation = layer[5]
    if mode.startswith("forward"):
        runs = {"torch": lambda i: torch_forward(activation, sets[i],
                                                 sets[i].pre_out if activation != "none" else sets[i].y)}
        if layer[4] != "f64" and layer[6] == "nk" and mode != "forward+pre":
            runs["onednn"] = lambda i: onednn_forward(activation, sets[i])
    else:
        runs = {"torch": lambda i: torch_backward(activation, layer[6], sets[i], mode == "backward")}
        if onednn.prepare(layer):
            runs["onednn"] = lambda i: onednn.backward(activation, layer[6], sets[i], mode == "backward")
    return {"epigrad": ours.run, **runs}


def results_of(x, mode):
    return [x.y] if mode.startswith("forward") else [x.d_a, x.d_b, x.d_bias]


def exact(activation, x, mode):
    """The results in f64, of the operands as they are."""
    pre = x.pre.double() if mode == "backward pre" else torch.addmm(x.bias.double(), x.a.double(), x.b.double())
    grad, made = x.grad.double(), torch.empty_like(pre)
    if mode.startswith("forward"):
        activate(activation, pre, made)
        return [pre if activation == "none" else made]
    act_grad(activation, grad, pre, made)
    grad_pre = grad if activation == "none" else made
    return [grad_pre @ x.b.double().mT, x.a.double().mT @ grad_pre, grad_pre.sum(0)]


def rounded(run_torch, x, mode):
    """PyTorch's own results. Of 16 bits they may be far from exact: grad_pre is rounded before it is added up."""
    run_torch(0)
    return [r.double().clone() for r in results_of(x, mode)]


def check(name, run, layer, x, mode, run_torch):
    """A wrong figure must not be a fast one. What oneDNN computes goes on from PyTorch's act'."""
    want = rounded(run_torch, x, mode) if name == "onednn" else exact(layer[5], x, mode)
    for r in results_of(x, mode):
        r.fill_(float("nan"))
    run(0)
    limit = {"f32": 1e-3, "f64": 1e-10, "bf16": 4e-2, "f16": 1e-2}[layer[4]]
    if layer[5] == "relu" and mode == "backward":
        limit = max(limit, 3e-2)  # relu' jumps: a pre that rounds to the other side of 0 counts as a whole number
    for got, expected in zip(results_of(x, mode), want):
        error = (got.double() - expected).norm() / (expected.norm() + 1e-30)
        if not error <= limit:
            raise SystemExit(f"wrong: {name} {layer} {mode}: relative error {error:.1e}")


def seconds_of_many(run, count):
    """Of a call among others: the first ones after a rest wake threads, and take several times as long."""
    repeats = 2
    while True:
        a_call = seconds(run, count, repeats, 0)
        if a_call * repeats > TURN_SECONDS / 4:
            return a_call
        repeats *= 2


def measure(library, onednn, layer, sets, mode, threads, options):
    ours = Epigrad(library, layer, sets, mode)
    runs = variants_of(ours, onednn, layer, sets, mode)
    for name in runs if mode.startswith("backward") else ("epigrad",):  # oneDNN's forward has results of its own
        if name != "torch":
            check(name, runs[name], layer, sets[0], mode, runs["torch"])
    if options.plan:
        print(ours.plan(), end="")
    guess, repeats = {}, {}
    for name in list(runs):
        try:
            runs[name](1 % len(sets))
            guess[name] = seconds_of_many(runs[name], len(sets))
        except RuntimeError:  # a primitive that there is not
            del runs[name]
            continue
        repeats[name] = min(2000, max(1, round(TURN_SECONDS / guess[name])))
        rest(threads)
    times = {name: [] for name in runs}
    for turn in range(TURNS):
        for name in random.sample(list(runs), len(runs)):
            times[name].append(seconds(runs[name], len(sets), repeats[name], turn * repeats[name]))
            rest(threads)
    ours.close()
    peers = [name for name in runs if name != "epigrad"]
    best = min(peers, key=lambda name: statistics.median(times[name]))
    ratios = sorted(ours / peer for ours, peer in zip(times["epigrad"], times[best]))
    return {"mode": mode, "ratio": round(statistics.median(ratios), 4), "peer": best,
            "low": round(ratios[0], 4), "high": round(ratios[-1], 4),
            "us": {name: round(statistics.median(t) * 1e6, 2) for name, t in times.items()}}


def sweep(options, threads, write):
    cores = check_cores(threads)
    torch.set_num_threads(threads)
    library, measured = eg.Library(options.library, backend=eg.CPU, threads=threads, kernel=options.kernel), []
    onednn = OneDnn(options.onednn, threads)
    end = time.monotonic() + options.seconds
    for layer in draw(options):
        if time.monotonic() > end:
            break
        family, m, k, n, dtype, activation, weight = layer
        name = f"{dtype} {m}x{k}x{n} {activation} [{weight}]"
        if not any(part in name for part in options.only.split(",")):
            continue
        first = Set(m, k, n, DTYPES[dtype][0], weight)
        count = max(2, min(MOST_SETS, ROTATED_BYTES // first.bytes()))
        sets = [first] + [Set(m, k, n, DTYPES[dtype][0], weight) for _ in range(count - 1)]
        for mode in options.modes:
            if mode == "forward+pre" and activation == "none":  # pre is y: nobody else writes it twice
                continue
            row = {"threads": threads, "cores": cores, "family": family, "layer": name,
                   **measure(library, onednn, layer, sets, mode, threads, options)}
            measured.append(row)
            write(row)
    onednn.release()
    library.close()
    return measured


def summary(rows):
    """A line a mode, and the worst first."""
    lines = ["| threads | call | layers | geometric mean | at most 1.03 | above 1.15 | worst |",
             "|---|---|---|---|---|---|---|"]
    for threads in sorted({row["threads"] for row in rows}):
        for mode in MODES:
            some = sorted((r for r in rows if r["mode"] == mode and r["threads"] == threads),
                          key=lambda r: -r["ratio"])
            if not some:
                continue
            mean = math.exp(statistics.fmean(math.log(r["ratio"]) for r in some))
            level = sum(r["ratio"] <= 1.03 for r in some) / len(some)
            behind = sum(r["ratio"] > 1.15 for r in some)
            worst = ", ".join(f"{r['layer']} {r['ratio']:.2f} ({r['peer']})" for r in some[:8])
            lines.append(f"| {threads} | {mode} | {len(some)} | {mean:.3f} | {level:.0%} | {behind} | {worst} |")
    return "\n".join(lines) + "\n"


def records(rows):
    """The same for tools/performance.py."""
    layers_are = ("K and N of GPT-2, Llama, BERT, ViT, recommenders, control networks and odd ones; M from 1 to "
                  "4096; f32, bf16, f16, f64; five activations; drawn with a seed by bench/cpu/sweep.py")
    for threads in sorted({row["threads"] for row in rows}):
        for mode in MODES:
            some = sorted((r for r in rows if r["mode"] == mode and r["threads"] == threads),
                          key=lambda r: -r["ratio"])
            torch_version = torch.__version__.split("+", maxsplit=1)[0]
            peer = f"the faster of PyTorch {torch_version} and its oneDNN"
            if mode.startswith("backward") and any("onednn" in r["us"] for r in some):
                peer = f"of PyTorch {torch_version}, and the same with its products by oneDNN 2, the faster"
            if some:
                yield {"kind": "sweep", "backend": "cpu", "machine": machine.processor_name(), "what": mode,
                       "threads": threads, "peer": peer,
                       "how": "In turn in one process over operands from beyond L2, medians of ratios",
                       "layers_are": layers_are, "layers": len(some), "slower": sum(r["ratio"] > 1 for r in some),
                       "geomean": round(math.exp(statistics.fmean(math.log(r["ratio"]) for r in some)), 3),
                       "worst": [[r["layer"], round(r["ratio"], 2)] for r in some[:6]]}


def plot(rows, path):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(9, 4.5))
    for threads in sorted({row["threads"] for row in rows}):
        for mode in MODES:
            ratios = sorted(r["ratio"] for r in rows if r["mode"] == mode and r["threads"] == threads)
            if ratios:
                axes.plot([100 * i / len(ratios) for i in range(len(ratios))], ratios,
                          label=f"{mode}, {threads} thread{'s' * (threads > 1)}")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(yscale="log", xlabel="per cent of layers, best first", ylabel="time, as a multiple of the fastest peer's",
             yticks=[0.125, 0.25, 0.5, 1, 2, 4], yticklabels=["1/8", "1/4", "1/2", "1", "2", "4"])
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(path, bbox_inches="tight")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--threads", default="1")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--gflop", type=float, default=8, help="of one product: larger layers are left out")
    parser.add_argument("--shapes", default="", help="MxKxN,...: these layers, rather than drawn ones")
    parser.add_argument("--only", default="", help="layers whose name has one of these")
    parser.add_argument("--kernel", help="only this row of epigrad's kernels, rather than its choice")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no further layer of so many threads after it")
    parser.add_argument("--output", default="build/sweep.jsonl")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--onednn", default="build/bench/libsweep_onednn.so", help="oneDNN's products, backward")
    options = parser.parse_args()
    options.dtypes, options.modes = options.dtypes.split(","), options.modes.split(",")
    return options


def main():
    options = parse()
    torch.set_grad_enabled(False)
    keep_memory()
    rows = []
    with open(options.output, "w", encoding="utf-8") as file:
        def write(row):
            file.write(json.dumps(row) + "\n")
            file.flush()
        for threads in map(int, options.threads.split(",")):
            rows += sweep(options, threads, write)
    print(summary(rows), end="")
    with open(os.path.splitext(options.output)[0] + "-records.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records(rows))
    try:
        plot(rows, os.path.splitext(options.output)[0] + ".svg")
    except ImportError:
        print("sweep: no plot, as there is no matplotlib", file=sys.stderr)


if __name__ == "__main__":
    main()
