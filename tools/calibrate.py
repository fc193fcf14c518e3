#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of CUDA's estimated times (src/cuda/estimate.h) to a recording of bench/cuda/record.py.

    calibrate.py ESTIMATE_LIBRARY [--recording FILE] [--write]

ESTIMATE_LIBRARY is the estimate itself, built as a shared library (the target cuda_estimate): the formulas are
written once. Each kind of kernel is fitted alone: least squares of log(estimate / time), by steps along one
constant at a time, rows that are far from the best of their operation counting less. Prints the table, with the
error left; --write puts it into src/cuda/calibration.def."""

import argparse
import ctypes as c
import math
import pathlib
import statistics

ROOT = pathlib.Path(__file__).resolve().parent.parent
DTYPES = {"f32": (1, 4), "f64": (2, 8), "f16": (3, 2), "bf16": (4, 2)}
KINDS = ("LIBRARY_16 LIBRARY_F32 LIBRARY_F64 TMA_256 TMA_192 TMA_128 STREAM_K STAGED FUSED_MAP BACKWARD TMA_F32 "
         "TMA_F64 MMA_16 FMA_F32 MMA_F64 ANY_F32 ANY_F64 MAP MAP_ANY SUMS").split()
STORE, FORWARD, ACT_GRAD, CHAIN = range(4)
MULTIPROCESSORS = 132
ROUNDS = 60
LEAST, MOST_BANDWIDTH = 0.01, 6.0  # of any constant; of reading and writing


class Matrix(c.Structure):
    _fields_ = [("data", c.c_uint64), ("row_stride", c.c_int64), ("col_stride", c.c_int64),
                ("item_stride", c.c_int64), ("dtype", c.c_int32), ("unused", c.c_int32)]


class Gemm(c.Structure):
    _fields_ = [(name, Matrix) for name in ("left", "right", "out", "second", "in_", "bias")] + \
        [(name, c.c_int64) for name in ("sums", "rows", "cols", "depth", "items", "summed", "chunks", "tiles")] + \
        [(name, c.c_int32) for name in ("epilogue", "activation", "source", "propagate", "accumulate",
                                        "multiprocessors")]


class Costs(c.Structure):
    _fields_ = [(name, c.c_double) for name in ("launch", "k_block", "odd", "latency", "resident", "tile", "forward",
                                                "second", "grad", "chain", "tail", "reading", "writing")]


class Calibration(c.Structure):
    _fields_ = [("device", c.c_char_p), ("multiprocessors", c.c_int), ("clear", c.c_double),
                ("costs", Costs * len(KINDS))]


class Machine(c.Structure):
    _fields_ = [("calibration", c.POINTER(Calibration)), ("multiprocessors", c.c_int)]


class Kernel(c.Structure):
    _fields_ = [("name", c.c_char_p)]  # its first field


class Tail(c.Structure):
    _fields_ = [(name, c.c_int32) for name in ("tiles", "helpers", "kept", "counter")]


def load(path):
    lib = c.CDLL(path)
    for name in ("eg_cuda_estimate", "eg_cuda_estimate_sums", "eg_cuda_estimate_backward"):
        getattr(lib, name).restype = c.c_double
    lib.eg_cuda_estimate.argtypes = [c.c_void_p, c.c_void_p, c.c_void_p, c.c_double]
    lib.eg_cuda_kernel_row.restype = c.POINTER(Kernel)
    lib.eg_cuda_calibration_of.restype = c.POINTER(Calibration)
    lib.eg_cuda_tail_of.restype = Tail
    return lib


def read(path):
    """(dtype, (m, k, n), operation, {row name: microseconds}) of each line."""
    rows, lines = [], []
    for line in open(path, encoding="utf-8"):
        fields = line.split()
        if line.startswith("# rows:"):
            rows = fields[2:]
        elif not line.startswith("#"):
            times = {rows[int(number)]: float(us) for number, us in (x.split(":") for x in fields[5:])}
            lines.append((fields[0], tuple(map(int, fields[1].split("x"))), fields[4], times))
    return lines


def product(dtype, shape, operation):
    """The kernel parameters of an operation, with addresses that only say what is there."""
    m, k, n = shape
    number, size = DTYPES[dtype]
    there = Matrix(data=256, row_stride=1 << 20, col_stride=1, dtype=number)
    x = Gemm(items=1, summed=1, left=there, right=there, out=there)
    if operation in ("y", "y+pre", "recompute"):
        x.rows, x.cols, x.depth, x.epilogue = m, n, k, FORWARD
        if operation == "y+pre":
            x.second = there
        if operation == "recompute":
            x.epilogue, x.in_ = ACT_GRAD, there
    elif operation in ("d_a", "chain", "map+d_a", "backward"):
        x.rows, x.cols, x.depth, x.epilogue = m, k, n, STORE
        if operation == "chain":
            x.epilogue, x.in_ = CHAIN, there
    elif operation == "d_b":
        x.left = Matrix(data=256, row_stride=1, col_stride=k, dtype=number)
        x.rows, x.cols, x.depth, x.epilogue = k, n, m, STORE
    else:
        x.rows, x.cols, x.right, x.in_, x.epilogue = m, n, Matrix(), there, ACT_GRAD
    return x


class Model:
    def __init__(self, lib):
        self.lib = lib
        self.calibration = Calibration.from_buffer_copy(lib.eg_cuda_calibration_of(b"").contents)
        self.machine = Machine(c.pointer(self.calibration), MULTIPROCESSORS)
        self.address = c.addressof(self.machine)
        self.rows = {}
        index = 0
        while row := lib.eg_cuda_kernel_row(index):
            self.rows[row.contents.name.decode()] = (c.addressof(row.contents), lib.eg_cuda_kind_of(row))
            index += 1

    def function(self, dtype, shape, operation, name):
        """What estimates a recorded time, and of what kind it is; None: nothing does."""
        row, kind = self.rows[name]
        first = product(dtype, shape, operation)
        if operation == "backward":
            if KINDS[kind] != "BACKWARD":
                return None
            second = product(dtype, shape, "d_b")
            return kind, lambda: self.lib.eg_cuda_estimate_backward(
                c.c_void_p(self.address), c.c_void_p(row), c.byref(first), c.byref(second))
        if operation == "map+d_a" and KINDS[kind] != "FUSED_MAP" or operation == "map+d_bias":
            return None
        tiles = -(-first.rows // 256) * -(-first.cols // 256)
        if KINDS[kind] == "FUSED_MAP" and (tiles < 3 * MULTIPROCESSORS // 2 or first.cols < 2048):
            return None  # of no use there: choose.c
        saved, clear = c.c_double(-1), 0.0
        if KINDS[kind] in ("STREAM_K", "FUSED_MAP"):
            tail = self.lib.eg_cuda_tail_of(MULTIPROCESSORS, c.c_void_p(row), c.byref(first), c.c_bool(True),
                                            c.byref(saved))
            if tail.tiles == 0:
                saved = c.c_double(-1)
            elif operation != "map+d_a":
                clear = self.calibration.clear
        address, saved = c.addressof(first), saved.value
        return kind, lambda keep=first: self.lib.eg_cuda_estimate(self.address, row, address, saved) + clear


def bounded(name, value):
    return max(min(value, MOST_BANDWIDTH) if name in ("reading", "writing") else value, LEAST)


def fit(costs, samples):
    """Steps along one constant at a time from the present table, shorter when none helps; returns the error left.
    Constants that are 0 are no part of the kind's time."""
    for name, _ in Costs._fields_:
        if getattr(costs, name) != 0:
            setattr(costs, name, bounded(name, getattr(costs, name)))

    def loss():
        total = 0.0
        for estimate, time, weight in samples:
            error = math.log(max(estimate(), 1e-3) / time)
            total += weight * min(error * error, 0.25 * abs(error))
        return total

    names = [[name] for name, _ in Costs._fields_ if getattr(costs, name) != 0 and name != "resident"]
    if costs.k_block and costs.latency:
        names.append(["k_block", "latency"])  # of which the greater counts
    least, step = loss(), 0.5
    for _ in range(ROUNDS):
        before = least
        for together in names:
            for factor in (1 + step, 1 / (1 + step)):
                was = [getattr(costs, name) for name in together]
                for name, value in zip(together, was):
                    setattr(costs, name, bounded(name, value * factor))
                now = loss()
                if now < least:
                    least = now
                    break
                for name, value in zip(together, was):
                    setattr(costs, name, value)
        if least > before * 0.999:
            step /= 2
        if step < 0.004:
            break
    return math.sqrt(least / sum(weight for *_, weight in samples))


def clear_time(lines):
    """Counters are cleared by the map's kernel, or else before the product: by how much that is longer."""
    alone = {(dtype, shape): times for dtype, shape, operation, times in lines if operation == "d_a"}
    longer = []
    for dtype, shape, operation, times in lines:
        if operation != "map+d_a" or (dtype, shape) not in alone:
            continue
        one, two = ({("cut" if "_stream_k_" in name else "whole"): us for name, us in t.items()
                     if "_stream_k_" in name or ("128x256" in name and "_map_" not in name)}
                    for t in (alone[dtype, shape], times))
        if len(one) == len(two) == 2:
            longer.append((one["cut"] - one["whole"]) - (two["cut"] - two["whole"]))
    return max(statistics.median(longer), 0.5) if longer else 2.0


def text_of(costs):
    return ", ".join(f"{getattr(costs, name):.4g}" for name, _ in Costs._fields_)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--recording", default=ROOT / "bench/recorded/cuda-h200.txt")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    model, lines = Model(load(options.library)), read(options.recording)
    model.calibration.clear = clear_time(lines)
    samples = {kind: [] for kind in range(len(KINDS))}
    for dtype, shape, operation, times in lines:
        best = min(times.values())
        for name, time in times.items():
            found = model.function(dtype, shape, operation, name)
            if found:
                samples[found[0]].append((found[1], time, (best / time) ** 2))
    name = model.calibration.device.decode()
    table = ["/* Fitted by tools/calibrate.py to a recording. A row of each kind (estimate.h): launch, k_block, odd,",
             " * latency, resident, tile, forward, second, grad, chain, tail, reading, writing. */",
             f'CALIBRATION("{name}", {model.calibration.multiprocessors}, {model.calibration.clear:.3g})']
    for kind, kind_name in enumerate(KINDS):
        costs = model.calibration.costs[kind]
        error = fit(costs, samples[kind]) if samples[kind] else math.nan  # column sums have no call alone
        print(f"{kind_name:12} {len(samples[kind]):5} times, error {100 * error:5.1f}%  {text_of(costs)}", flush=True)
        table.append(f"COSTS({kind_name}, {text_of(costs)})")
    table.append("END_CALIBRATION")
    if options.write:
        (ROOT / "src/cuda/calibration.def").write_text("\n".join(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
