#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records how long every usable kernel row takes for every operation of a seeded list of layers.

    record.py LIBEPIGRAD [--out FILE] [--layers 250] [--seed 1] [--seconds 370]
    record.py LIBEPIGRAD --add RECORDING [--out FILE] [--again cublaslt_f32] [--operations y,y+pre] [--seconds 370]

Each operation is one call (bias: y without an activation; accumulate: d_b added
to one of the compute type), and each row is named to eg_open. Inputs are rotated over sets that exceed the L2
cache; each row is one CUDA graph over all sets; rows take turns, and the median of the turns counts:

    # rows: NAME NAME ...                          numbered from 0
    DTYPE MxKxN WEIGHT ACTIVATION OPERATION ROW:MICROSECONDS ...

--add times what a recording lacks, rows that are newer than it or take more than they did, and writes it with
both; --again names a row that has changed, --operations what is timed of it. Rows that are no more are left out.
Lines are taken in a random order: those that there is no time for stay as they were.

WEIGHT is kn (row-major b) or nk (column-major). tests/cuda/test_regret.c judges the choice of rows by the
recording, and tools/calibrate.py fits the constants of the estimate to it."""

import argparse
import ctypes as c
import datetime
import random
import subprocess
import sys
import time

import torch

import epigrad_c as eg
from graphs import Graph
from layers import draw_layers
from operators import DTYPES

ACTIVATIONS = ["gelu", "gelu", "gelu", "relu", "silu"]
OPERATIONS = ["y", "y+pre", "bias", "d_a", "chain", "d_b", "accumulate", "map", "map+d_bias", "recompute", "map+d_a",
              "backward"]
ROTATED_BYTES, MOST_SETS, POOL_BYTES = 160 << 20, 16, 8 << 30
TURNS, TURN_MS, MOST_MS = 5, 0.8, 12


class Pool:
    """Random numbers, and room for results: operands are parts of it, one after the other."""

    def __init__(self):
        self.inputs = {dtype: torch.empty(POOL_BYTES // 4, dtype=torch.uint8, device="cuda").view(dtype)
                       for dtype, _ in DTYPES.values()}
        for numbers in self.inputs.values():
            for part in numbers.split(1 << 27):
                part.copy_(torch.rand(part.numel(), device="cuda") * 2 - 1)
        self.results = torch.empty(POOL_BYTES // 2, dtype=torch.uint8, device="cuda")
        self.at = {"inputs": 0, "results": 0}

    def take(self, where, dtype, elements):
        size = (elements * dtype.itemsize + 255) // 256 * 256
        memory = self.inputs[dtype] if where == "inputs" else self.results
        room = memory.numel() * memory.element_size()
        assert size <= room
        if self.at[where] + size > room:
            self.at[where] = 0
        at = self.at[where]
        self.at[where] += size
        return memory.data_ptr() + at


def arguments(pool, layer, operation):
    """One set: the arguments of the call, and how many bytes they span."""
    dtype_name, m, k, n, weight, activation = layer
    dtype = DTYPES[dtype_name][0]
    sizes = []

    def matrix(rows, cols, result=False, nk=False):
        sizes.append(rows * cols * dtype.itemsize)
        data = pool.take("results" if result else "inputs", dtype, rows * cols)
        return eg.Matrix(data=data, ld=rows if nk else cols, layout=eg.COL_MAJOR if nk else 0)

    def vector(length, result=False):
        return eg.Vector(data=pool.take("results" if result else "inputs", dtype, length))

    nk = weight == "nk"
    if operation in ("y", "y+pre", "bias"):
        args = eg.ForwardArgs(size=c.sizeof(eg.ForwardArgs), a=matrix(m, k), b=matrix(k, n, nk=nk),
                              bias=vector(n), y=matrix(m, n, True))
        if operation == "y+pre":
            args.pre = matrix(m, n, True)
        return args, sum(sizes)
    args = eg.BackwardArgs(size=c.sizeof(eg.BackwardArgs), grad=matrix(m, n))
    if operation in ("d_a", "chain", "map+d_a", "backward"):
        args.b, args.d_a = matrix(k, n, nk=nk), matrix(m, k, True)
    if operation == "chain":
        args.chain = eg.Chain(saved=matrix(m, k), source=eg.PRE, activation=eg.ACTIVATIONS.index(activation))
    if operation in ("d_b", "accumulate", "backward"):
        args.a, args.d_b = matrix(m, k), matrix(k, n, True, nk)
    if operation == "accumulate":
        wide, number = (torch.float64, eg.F64) if dtype_name == "f64" else (torch.float32, eg.F32)
        args.accumulate, args.d_b.dtype = 1, number
        args.d_b.data = pool.take("results", wide, k * n)
    if operation in ("map", "map+d_bias", "map+d_a", "backward"):
        args.source, args.pre = eg.PRE, matrix(m, n)
    if operation in ("map+d_bias", "map+d_a", "backward"):
        args.d_bias = vector(n, True)
    if operation in ("map", "map+d_bias", "recompute"):
        args.grad_pre = matrix(m, n, True)
    if operation == "recompute":
        args.a, args.b, args.bias = matrix(m, k), matrix(k, n, nk=nk), vector(n)
    return args, sum(sizes)


def is_for(name, operation, layer):
    """Rows that could make the operation, without those that would take far too long."""
    dtype, m, k, n = layer[:4]
    if "act_grad" in name:
        return operation in ("map", "map+d_bias")
    if name.startswith("map_"):
        return operation in ("map", "map+d_bias")  # what finishes a product has no time of its own
    if name.startswith(("column_sum", "copy", "pad")):
        return False
    if operation in ("map", "map+d_bias"):
        return False
    if operation == "map+d_a":
        return dtype in ("bf16", "f16") and ("x256" in name or "cublaslt" in name)
    if operation == "backward":
        return dtype in ("bf16", "f16") and "cublaslt" in name
    if "_cluster_" in name and m <= 16 and operation not in ("d_b", "accumulate"):
        return False  # by name alone: choose.c
    if "_turned_" in name and (m <= 64 or operation not in ("y", "y+pre", "bias", "chain")):
        return False  # likewise
    slow = 2.0 * m * k * n / (3e12 if dtype != "f64" else 2e12)
    return not name.startswith("ref_") or slow < 4e-3


def graph_of(library, layer, sets):
    """All sets of a call, by the row of a context."""
    return Graph(lambda i: library.check(library.call("", layer, sets[i])), len(sets), TURN_MS)


def measure(libraries, pool, scratch, layer, operation):
    dtype, m, k, n, _, activation = layer
    sets, spanned = [], 0
    while len(sets) < 2 or (len(sets) < MOST_SETS and spanned < ROTATED_BYTES):
        args, size = arguments(pool, layer, operation)
        spanned += size
        args.workspace = eg.Workspace(data=scratch.data_ptr(), bytes=scratch.numel())
        sets.append(args)
    plain = operation in ("bias", "d_a", "chain", "d_b", "accumulate")
    struct = eg.Layer(size=c.sizeof(eg.Layer), m=m, k=k, n=n, batch=1, dtype=DTYPES[dtype][1],
                      activation=0 if plain else eg.ACTIVATIONS.index(activation))
    graphs, size = {}, c.c_size_t()
    for name, library in libraries.items():
        if is_for(name, operation, layer) and library.call("_workspace", struct, sets[0], c.byref(size)) == 0:
            if size.value > scratch.numel():
                continue
            text = c.create_string_buffer(4096)
            planned = library.call("_plan", struct, sets[0], text, 4096) == 0
            if not planned or name not in text.value.decode():
                continue
            try:
                graphs[name] = graph_of(library, struct, sets)
            except RuntimeError as error:
                print(layer, operation, name, error, file=sys.stderr)
    if not graphs:
        return {}
    order = list(graphs.values())
    for turn in range(TURNS):
        random.shuffle(order)
        for graph in order:
            if turn < 2 or graph.median() * graph.count < MOST_MS:
                graph.turn()
    return {name: graph.median() * 1e3 for name, graph in graphs.items()}


class Recording:
    """Times in microseconds by row, of each layer and operation."""

    def __init__(self, names):
        self.names, self.lines = list(names), {}

    @classmethod
    def read(cls, path, names):
        """Without rows that are no more."""
        recording, old = cls(names), []
        for line in open(path):
            if line.startswith("# rows:"):
                old = line.split()[2:]
            elif not line.startswith("#"):
                dtype, shape, weight, activation, operation, *times = line.split()
                layer = (dtype, *(int(x) for x in shape.split("x")), weight, activation)
                by_row = {old[int(number)]: float(us) for number, us in (time.split(":") for time in times)}
                recording.lines[layer, operation] = {name: us for name, us in by_row.items() if name in names}
        return recording

    def write(self, path, title):
        with open(path, "w") as out:
            print(title, file=out)
            print("# rows:", *self.names, file=out)
            for ((dtype, m, k, n, weight, activation), operation), times in self.lines.items():
                by_number = sorted((self.names.index(name), us) for name, us in times.items())
                print(dtype, f"{m}x{k}x{n}", weight, activation, operation,
                      *(f"{number}:{us:.4g}" for number, us in by_number), file=out)


def fill(recording, libraries, again, operations, seconds):
    """Times what is lacking; returns how many lines it came to."""
    begin, done = time.monotonic(), 0
    pool, scratch = Pool(), torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
    for (layer, operation), times in sorted(recording.lines.items(), key=lambda _: random.random()):
        if time.monotonic() - begin > seconds:
            break
        if operation not in operations:
            continue
        wanted = {name: library for name, library in libraries.items() if name not in times or name in again}
        times.update(measure(wanted, pool, scratch, layer, operation))
        done += 1
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--out", default="cuda.txt")
    parser.add_argument("--layers", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=370)
    parser.add_argument("--add")
    parser.add_argument("--again", default="")
    parser.add_argument("--operations", default=",".join(OPERATIONS))
    options = parser.parse_args()
    stream = torch.cuda.Stream()
    random.seed(options.seed)
    with torch.cuda.stream(stream):
        names = eg.Library(options.library, stream.cuda_stream).kernels()
        libraries = {name: eg.Library(options.library, stream.cuda_stream, name) for name in names}
        if options.add:
            recording = Recording.read(options.add, names)
            for layer in dict.fromkeys(layer for layer, _ in recording.lines):
                for operation in OPERATIONS:
                    recording.lines.setdefault((layer, operation), {})
        else:
            recording = Recording(names)
            for layer in draw_layers(options.seed, options.layers, ACTIVATIONS):
                recording.lines.update({(tuple(layer), operation): {} for operation in OPERATIONS})
        done = fill(recording, libraries, options.again.split(","), options.operations.split(","),
                    options.seconds)
        recording.lines = {line: times for line, times in recording.lines.items() if times}
        driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                                capture_output=True, text=True, check=False).stdout.strip()
        recording.write(options.out, f"# {torch.cuda.get_device_name()}, driver {driver}, {datetime.date.today()}, "
                                     f"seed {options.seed}: microseconds by row")
        print(f"{done} of {len(recording.lines)} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
