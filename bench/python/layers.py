#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the Python face of epigrad beside what a user has: layers drawn with a seed, the host's time included.

    layers.py [--device cpu|cuda] [--seed 1] [--layers 200] [--calls eager,compiled,jax,numpy] [--threads 1]
              [--seconds 0] [--gflop 4] [--shapes MxKxN,...] [--output build/python-layers.jsonl]

Each layer of bench/cpu/sweep.py, with the weight [N, K], is called as a program of that library would call it, results
in new memory:

    eager      epigrad.torch.linear beside act(F.linear(x, w, b)), without grad; and both with their backward passes
    compiled   the same two, under torch.compile
    jax        epigrad.jax.linear beside act(x @ w.T + b), both under jit; and their gradients
    numpy      epigrad.linear beside NumPy's operations (CPU; float32 and float64)

Calls follow one another as in a loop over layers, over operands from beyond the caches; on CUDA the device is waited
for once a turn, so that a figure is the larger of the host's time and the device's. Ours and theirs take turns; the
ratio of their times is taken within a turn, and the median of the turns counts. Below 1 epigrad is faster."""

import argparse
import json
import math
import os
import random
import statistics
import sys
import time

# NumPy's threads, before it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", dict(zip(sys.argv, sys.argv[1:])).get("--threads", "1"))

import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import epigrad  # noqa: E402
import epigrad.torch  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cpu"))
import sweep  # noqa: E402

TURNS, TURN_SECONDS, ROTATED_BYTES, MOST_SETS = 5, 0.012, 96 << 20, 16
TOLERANCE = {"f32": 1e-3, "f64": 1e-10, "bf16": 4e-2, "f16": 1e-2}
ACT = {"none": lambda v: v, "relu": F.relu, "gelu": lambda v: F.gelu(v, approximate="tanh"), "silu": F.silu,
       "tanh": torch.tanh}


class Layer:
    """Operands of a layer, several times over, with x and the parameters ready for gradients."""

    def __init__(self, drawn, device):
        _, self.m, self.k, self.n, self.dtype, self.activation, _ = drawn
        dtype = sweep.DTYPES[self.dtype][0]
        some = lambda *shape: (torch.rand(*shape, device=device) * 2 - 1).to(dtype)
        each = (self.m + self.n) * (self.k + self.n) * dtype.itemsize
        count = max(2, min(MOST_SETS, ROTATED_BYTES // each))
        self.device = device
        self.sets = [(some(self.m, self.k).requires_grad_(),
                      (some(self.n, self.k) * 3 * self.k ** -0.5).requires_grad_(),  # pre of unit size
                      some(self.n).requires_grad_(), some(self.m, self.n)) for _ in range(count)]

    def __str__(self):
        return f"{self.dtype} {self.m}x{self.k}x{self.n} {self.activation}"


# ---- Calls: each yields (name, ours, theirs, wait), where ours(i) computes with the i-th set of operands ---------

def torch_pairs(layer, compiled):
    act, name = ACT[layer.activation], layer.activation
    mine = lambda x, w, bias: epigrad.torch.linear(x, w, bias, name)
    theirs = lambda x, w, bias: act(F.linear(x, w, bias))
    if compiled:
        torch._dynamo.reset()
        mine, theirs = (torch.compile(call, fullgraph=True, dynamic=False) for call in (mine, theirs))
    wait = torch.cuda.synchronize if layer.device == "cuda" else lambda: None

    def forward(call):
        def run(i):
            with torch.no_grad():
                return call(*layer.sets[i][:3])
        return run

    def train(call):
        def run(i):
            inputs = layer.sets[i][:3]
            return torch.autograd.grad(call(*inputs), inputs, layer.sets[i][3])
        return run

    kind = "compiled" if compiled else "eager"
    yield f"{kind} forward", forward(mine), forward(theirs), wait
    yield f"{kind} forward and backward", train(mine), train(theirs), wait


def jax_pairs(layer):
    if layer.dtype == "f64":
        return
    import jax
    import jax.numpy as jnp
    import epigrad.jax
    act = {"none": lambda v: v, "relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu,
           "tanh": jnp.tanh}[layer.activation]
    sets = [tuple(jnp.from_dlpack(t.detach()) for t in each) for each in layer.sets]
    mine = lambda x, w, bias: epigrad.jax.linear(x, w, bias, layer.activation)
    theirs = lambda x, w, bias: act(x @ w.T + bias)
    last = []

    def forward(call):
        jitted = jax.jit(call)

        def run(i):
            last[:] = [jitted(*sets[i][:3])]
            return last[0]
        return run

    def train(call):
        jitted = jax.jit(lambda x, w, bias, grad: jax.vjp(call, x, w, bias)[1](grad))

        def run(i):
            last[:] = [jitted(*sets[i])]
            return last[0]
        return run

    wait = lambda: jax.block_until_ready(last)
    yield "jax forward", forward(mine), forward(theirs), wait
    yield "jax gradients", train(mine), train(theirs), wait


def numpy_pairs(layer):
    if layer.device != "cpu" or layer.dtype not in ("f32", "f64"):
        return
    import numpy as np
    act = {"none": lambda v: v, "relu": lambda v: np.maximum(v, 0), "tanh": np.tanh,
           "gelu": lambda v: 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v * v * v))),
           "silu": lambda v: v / (1 + np.exp(-v))}[layer.activation]
    sets = [tuple(t.detach().numpy() for t in each) for each in layer.sets]
    yield ("numpy forward", lambda i: epigrad.linear(*sets[i][:3], activation=layer.activation),
           lambda i: act(sets[i][0] @ sets[i][1].T + sets[i][2]), lambda: None)


def pairs_of(layer, kind):
    return {"eager": lambda: torch_pairs(layer, False), "compiled": lambda: torch_pairs(layer, True),
            "jax": lambda: jax_pairs(layer), "numpy": lambda: numpy_pairs(layer)}[kind]()


# ---- Measuring ------------------------------------------------------------------------------------------------------

def as_tensors(results):
    results = results if isinstance(results, (tuple, list)) else (results,)
    return [torch.from_dlpack(r).detach().double() for r in results]


def check(layer, name, ours, theirs):
    """A wrong figure must not be a fast one."""
    limit = TOLERANCE[layer.dtype]
    if layer.activation == "relu" and "forward" != name.split()[-1]:
        limit = max(limit, 3e-2)  # relu' jumps: a pre that rounds to the other side of 0 counts as a whole number
    if layer.device == "cuda" and layer.dtype == "f32":
        limit = max(limit, 3e-3)  # JAX's products are of TF32
    got, wanted = as_tensors(ours(0)), as_tensors(theirs(0))
    scales = [each.norm() + 1e-30 for each in wanted]
    if len(wanted) == 3:  # a d_bias of few columns may cancel: it is judged by what it sums
        scales[2] = max(scales[2], layer.sets[0][3].double().norm())
    for each, other, scale in zip(got, wanted, scales):
        error = ((each - other).norm() / scale).item()
        if not error <= limit:
            raise SystemExit(f"wrong: {layer}, {name}: relative error {error:.1e}")


def clock_of(options, kind):
    """One thread that waits for nobody is timed by its own processor time, which leaves out what others take."""
    return time.thread_time if options.device == "cpu" and options.threads == 1 and kind != "jax" else time.perf_counter


def seconds(run, wait, clock, count, repeats, at):
    begin = clock()
    for i in range(at, at + repeats):
        run(i % count)
    wait()
    return (clock() - begin) / repeats


def measure(layer, clock, name, ours, theirs, wait):
    check(layer, name, ours, theirs)
    runs, count = {"epigrad": ours, "theirs": theirs}, len(layer.sets)
    repeats = {}
    for who, run in runs.items():
        seconds(run, wait, clock, count, 2, 0)
        repeats[who] = min(2000, max(1, round(TURN_SECONDS / seconds(run, wait, clock, count, 3, 2))))
    times = {who: [] for who in runs}
    for turn in range(TURNS):
        for who in random.sample(list(runs), len(runs)):
            times[who].append(seconds(runs[who], wait, clock, count, repeats[who], turn * repeats[who]))
    ratios = sorted(a / b for a, b in zip(times["epigrad"], times["theirs"]))
    return {"call": name, "layer": str(layer), "ratio": round(statistics.median(ratios), 4),
            "low": round(ratios[0], 4), "high": round(ratios[-1], 4),
            "us": {who: round(statistics.median(t) * 1e6, 2) for who, t in times.items()}}


def summary(rows):
    """A line a call, and the worst first; tools/performance.py has the same from the output."""
    lines = ["| call | layers | geometric mean | at most 1.03 | above 1.15 | worst: time over theirs (us of both) |",
             "|---|---|---|---|---|---|"]
    for call in dict.fromkeys(row["call"] for row in rows):
        some = sorted((row for row in rows if row["call"] == call), key=lambda row: -row["ratio"])
        mean = math.exp(statistics.fmean(math.log(row["ratio"]) for row in some))
        level = sum(row["ratio"] <= 1.03 for row in some) / len(some)
        worst = ", ".join(f"{row['layer']} {row['ratio']:.2f} ({row['us']['epigrad']:g}, {row['us']['theirs']:g})"
                          for row in some[:8])
        lines.append(f"| {call} | {len(some)} | {mean:.3f} | {level:.0%} | {sum(r['ratio'] > 1.15 for r in some)} | "
                     f"{worst} |")
    return "\n".join(lines) + "\n"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--calls", default="eager,compiled,jax,numpy")
    parser.add_argument("--dtypes", default=",".join(sweep.DTYPES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--gflop", type=float, default=4, help="of one product: larger layers are left out")
    parser.add_argument("--seconds", type=float, default=0, help="of each kind of call, after which no layer is begun")
    parser.add_argument("--shapes", default="", help="MxKxN,...: these layers, rather than drawn ones")
    parser.add_argument("--only", default="", help="layers whose name has this")
    parser.add_argument("--output", default="build/python-layers.jsonl")
    options = parser.parse_args()
    options.dtypes = options.dtypes.split(",")
    return options


def device_name(options):
    if options.device == "cuda":
        return torch.cuda.get_device_name()
    return f"{epigrad.device_info()[0]}, {options.threads} thread{'s' * (options.threads > 1)}"


def main():
    options, rows = parse(), []
    random.seed(options.seed)
    torch.set_num_threads(options.threads)
    epigrad.set_num_threads(options.threads)
    head = {"command": "python3 bench/python/layers.py " + " ".join(sys.argv[1:]), "device": device_name(options),
            "torch": torch.__version__.split("+")[0]}
    print(", ".join(f"{key}: {value}" for key, value in head.items()))
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(json.dumps(head) + "\n")
        for kind in options.calls.split(","):
            end = time.monotonic() + (options.seconds or math.inf)
            for drawn in sweep.draw(options):
                if time.monotonic() > end:
                    break
                layer = Layer(drawn, options.device)
                if options.only not in str(layer):
                    continue
                for pair in pairs_of(layer, kind):
                    rows.append(measure(layer, clock_of(options, kind), *pair))
                    file.write(json.dumps(rows[-1]) + "\n")
                    file.flush()
    print(summary(rows), end="")


if __name__ == "__main__":
    main()
