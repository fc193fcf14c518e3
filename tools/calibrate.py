#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of CUDA's estimated times (src/cuda/estimate.h) to a recording of bench/cuda/record.py.

    calibrate.py ESTIMATE_LIBRARY [--recording FILE] [--write | --unseen]
    calibrate.py --rows [--without NAME]

ESTIMATE_LIBRARY is the estimate itself, built as a shared library (the target cuda_estimate): the formulas are
written once. Each kind of kernel is fitted alone: least squares of log(estimate / time), by steps along one
constant at a time, rows that are far from the best of their operation counting less. Prints the table, with the
error left; --write puts it into src/cuda/calibration.def. --unseen fits to a half of the layers and judges the
choice by the other half. --rows says of each kernel on how many calls it was the best, and by how much; --without
leaves out rows with this part of a name, such as cublaslt, which does not take every call."""

import argparse
import collections
import ctypes as c
import math
import pathlib
import re
import statistics

ROOT = pathlib.Path(__file__).resolve().parent.parent
DTYPES = {"f32": (1, 4), "f64": (2, 8), "f16": (3, 2), "bf16": (4, 2)}
KINDS = ("LIBRARY_16 LIBRARY_F32 LIBRARY_F64 TMA_256 TMA_128 STREAM_K PINGPONG PINGPONG_192 PINGPONG_D_B GROUPED "
         "GROUPED_WIDE GATED GATED_CHAIN TMA_SPLIT_16 TMA_SPLIT_64 TMA_SPLIT_128 CLUSTER_64_64 CLUSTER_64_128 "
         "CLUSTER_64_256 CLUSTER_128_64 CLUSTER_128_128 CLUSTER_128_192 CLUSTER_128_256 CLUSTER_192_128 "
         "CLUSTER_1X4_128_64 CLUSTER_2X2_128_128 CLUSTER_2X1_128_192 TURNED_200_64 TURNED_200_128 TURNED_152_128 "
         "TMA_F32 TMA_F64 STREAMED_8 STREAMED_16 STREAMED_NN STREAMED_F32_1 STREAMED_F32_4 STREAMED_F32_8 "
         "STREAMED_F32_16 STREAMED_F64_1 STREAMED_F64_8 ODD_8 ODD_16 TALL TALL_F32 OUTER OUTER_ADD OUTER_ADD_F64 "
         "FEW_16 FEW_F32 FEW_F64 SMALL_16 SMALL_F32 MMA_16 FMA_F32 MMA_F64 ANY_F32 ANY_F64 MAP MAP_PRODUCT "
         "WHOLE_SUMS WHOLE_SUMS_ODD MAP_ROWS MAP_Y MAP_Y_GAPS MAP_ODD ACT_GRAD_ODD PAD MAP_ANY SUMS").split()
STORE, FORWARD, ACT_GRAD, CHAIN = range(4)
GELU = 4  # any activation
WITH_TERMS = ("y", "y+pre", "recompute", "chain")  # products with an epilogue
TO_A = ("d_a", "chain", "map+d_a", "backward")  # products whose result is as large as A
MULTIPROCESSORS = 132
MOST_SPLITS = 8  # EG_MOST_SPLITS
ROUNDS = 60
LOOP_OF = {"STREAM_K": "TMA_256"}  # the same tile and mainloop: the same k-block
NEAR = 1e-5  # of the loss: leaving the table by a factor of e
LEAST, MOST_BANDWIDTH = 0.01, 6.0  # of any constant; of reading and writing


class Matrix(c.Structure):
    _fields_ = [("data", c.c_uint64), ("row_stride", c.c_int64), ("col_stride", c.c_int64),
                ("item_stride", c.c_int64), ("dtype", c.c_int32), ("unused", c.c_int32)]


class Gemm(c.Structure):
    _fields_ = [(name, Matrix) for name in ("left", "right", "out", "second", "in_", "bias", "total")] + \
        [(name, c.c_int64) for name in ("sums", "ends", "wrong", "rows", "cols", "depth", "items", "summed",
                                        "chunks", "tiles")] + \
        [(name, c.c_int32) for name in ("epilogue", "activation", "source", "propagate", "accumulate",
                                        "multiprocessors", "splits", "add_to_total", "ragged", "unused")] + \
        [("scale", c.c_double)]


class Costs(c.Structure):
    _fields_ = [(name, c.c_double) for name in ("launch", "k_block", "odd", "latency", "resident", "tile", "bias",
                                                "add", "forward", "second", "grad", "chain", "tail", "reading",
                                                "writing")]


class Calibration(c.Structure):
    _fields_ = [("device", c.c_char_p), ("multiprocessors", c.c_int), ("clear", c.c_double), ("add_up", c.c_double),
                ("costs", Costs * len(KINDS))]


class Machine(c.Structure):
    _fields_ = [("calibration", c.POINTER(Calibration)), ("multiprocessors", c.c_int), ("most_splits", c.c_int)]


class Kernel(c.Structure):
    _fields_ = [("name", c.c_char_p)]  # its first field


class Tail(c.Structure):
    _fields_ = [(name, c.c_int32) for name in ("tiles", "helpers", "kept", "counter")]


def load(path):
    lib = c.CDLL(path)
    for name in ("eg_cuda_estimate", "eg_cuda_estimate_sums"):
        getattr(lib, name).restype = c.c_double
    lib.eg_cuda_estimate.argtypes = [c.c_void_p, c.c_void_p, c.c_void_p, c.c_double]
    lib.eg_cuda_kernel_row.restype = c.POINTER(Kernel)
    lib.eg_cuda_calibration_of.restype = c.POINTER(Calibration)
    lib.eg_cuda_tail_of.restype = Tail
    return lib


def read(path):
    """(dtype, (m, k, n), weight, operation, {row name: microseconds}) of each line."""
    rows, lines = [], []
    for line in open(path, encoding="utf-8"):
        fields = line.split()
        if line.startswith("# rows:"):
            rows = fields[2:]
        elif not line.startswith("#"):
            times = {rows[int(number)]: float(us) for number, us in (x.split(":") for x in fields[5:])}
            lines.append((fields[0], tuple(map(int, fields[1].split("x"))), fields[2], fields[4], times))
    return lines


def matrix(dtype, rows, cols, transposed=False):
    """What lies there, not where; `transposed`: in columns."""
    number, _ = DTYPES[dtype]
    row_stride, col_stride = (1, rows) if transposed else (cols, 1)
    return Matrix(data=256, row_stride=row_stride, col_stride=col_stride, dtype=number)


def product(dtype, shape, weight, operation):
    """The kernel parameters of an operation, with addresses that only say what is there."""
    m, k, n = shape
    x = Gemm(items=1, summed=1, rows=m, cols=k if operation in TO_A else n, epilogue=STORE)
    if operation in ("y", "y+pre", "bias", "recompute"):
        x.depth, x.epilogue = k, FORWARD
        x.bias = matrix(dtype, 1, n)
        x.activation = 0 if operation == "bias" else GELU
        x.left, x.right = matrix(dtype, m, k), matrix(dtype, k, n, weight == "nk")
        if operation == "y+pre":
            x.second = matrix(dtype, m, n)
        if operation == "recompute":
            x.epilogue, x.in_ = ACT_GRAD, matrix(dtype, m, n)
    elif operation in TO_A:
        x.depth = n
        x.left, x.right = matrix(dtype, m, n), matrix(dtype, n, k, weight == "kn")
        if operation == "chain":
            x.epilogue, x.in_ = CHAIN, matrix(dtype, m, k)
    elif operation in ("d_b", "accumulate"):
        x.rows, x.depth, x.accumulate = k, m, operation == "accumulate"
        x.left, x.right = matrix(dtype, k, m, True), matrix(dtype, m, n)
    else:
        x.left, x.in_, x.epilogue = matrix(dtype, m, n), matrix(dtype, m, n), ACT_GRAD
    wide = operation == "accumulate" and dtype != "f64"
    x.out = matrix("f32" if wide else dtype, x.rows, x.cols)
    return x


def in_vectors(dtype, x):
    """Whether lines begin on 16 bytes."""
    return (x.row_stride if x.col_stride == 1 else x.col_stride) * DTYPES[dtype][1] % 16 == 0


def parts(dtype, shape, weight, operation):
    """A product alone, and the map that finishes it."""
    whole = product(dtype, shape, weight, operation)
    wide = dtype if dtype == "f64" else "f32"
    alone, finish = Gemm.from_buffer_copy(whole), Gemm.from_buffer_copy(whole)
    alone.out, alone.epilogue = matrix(wide, whole.rows, whole.cols), STORE
    alone.second = alone.in_ = alone.bias = Matrix()
    finish.left, finish.right, finish.depth = alone.out, Matrix(), 0
    if dtype == "f32" and operation == "y+pre":  # the product is stored as pre
        alone.bias, alone.epilogue, alone.activation = whole.bias, FORWARD, 0
        finish.bias = finish.second = Matrix()
    return alone, finish


class Model:
    def __init__(self, lib):
        self.lib = lib
        self.calibration = Calibration.from_buffer_copy(lib.eg_cuda_calibration_of(b"").contents)
        self.machine = Machine(c.pointer(self.calibration), MULTIPROCESSORS, MOST_SPLITS)
        self.address = c.addressof(self.machine)
        self.rows = {}
        index = 0
        while row := lib.eg_cuda_kernel_row(index):
            self.rows[row.contents.name.decode()] = (c.addressof(row.contents), lib.eg_cuda_kind_of(row))
            index += 1

    def tail_of(self, first, name, always):
        """Waves that a stream-K tail saves; below 0: there is none."""
        saved = c.c_double(-1)
        tail = self.lib.eg_cuda_tail_of(MULTIPROCESSORS, c.c_void_p(self.rows[name][0]), c.byref(first),
                                        c.c_bool(always), c.byref(saved))
        return saved.value if tail.tiles else -1.0

    def function(self, dtype, shape, weight, operation, name):
        """What estimates a recorded time, and of what kind it is; None: nothing does."""
        if name not in self.rows:
            return None  # a row that is no more
        row, kind = self.rows[name]
        if operation in WITH_TERMS and name.startswith("cublaslt"):
            return self.two_parts(dtype, shape, weight, operation, name)
        first = product(dtype, shape, weight, operation)
        if operation in ("map+d_a", "map+d_bias", "backward"):
            return None  # several kernels
        if name.startswith("hopper") and not all(in_vectors(dtype, x) for x in (first.left, first.right, first.out)):
            return None  # its time has that of padded copies
        saved, clear = -1.0, 0.0
        if KINDS[kind] == "STREAM_K":
            saved, clear = self.tail_of(first, name, False), self.calibration.clear
            if saved < 0:
                return None  # only by name: choose.c
        address = c.addressof(first)
        return kind, lambda keep=first: self.lib.eg_cuda_estimate(self.address, row, address, saved) + clear


    def two_parts(self, dtype, shape, weight, operation, name):
        """The library has no epilogues: what it makes a map finishes, whose cost is what is asked."""
        alone, finish = parts(dtype, shape, weight, operation)
        odd = finish.cols * DTYPES[dtype][1] % 16 != 0
        of_rows = "act_grad_product_" if finish.epilogue == CHAIN and dtype != "f64" else "map_"
        by = "map_any_" + ("f64" if dtype == "f64" else "f32") if odd else of_rows + dtype
        of_y = ("map_y_gaps_" if odd else "map_y_") + dtype
        map_row, kind = self.rows[of_y if finish.epilogue == FORWARD else by]
        address, row = c.addressof(self.machine), self.rows[name][0]
        return kind, lambda keep=(alone, finish): (
            self.lib.eg_cuda_estimate(address, row, c.addressof(keep[0]), -1.0) +
            self.lib.eg_cuda_estimate(address, map_row, c.addressof(keep[1]), -1.0))


def bounded(name, value):
    return max(min(value, MOST_BANDWIDTH) if name in ("reading", "writing") else value, LEAST)


def descend(costs, samples, table, names):
    """Steps along one constant at a time, shorter when none helps; returns the loss left. What the recording says
    nothing of stays near the table."""
    near = NEAR * sum(weight for *_, weight in samples)

    def loss():
        total = sum(near * math.log(getattr(costs, name) / max(getattr(table, name), LEAST)) ** 2 for name in names)
        for estimate, time, weight in samples:
            error = math.log(max(estimate(), 1e-3) / time)
            total += weight * min(error * error, 0.25 * abs(error))
        return total

    steps = [[name] for name in names]
    if "k_block" in names and "latency" in names:
        steps.append(["k_block", "latency"])  # of which the greater counts
    least, step = loss(), 0.5
    for _ in range(ROUNDS):
        before = least
        for together in steps:
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
    return least


def fit(costs, samples, held=()):
    """The better of two descents: from the table, and from it with a microsecond where it has next to none, which
    steps by a factor hardly leave, and with a latency that counts. Constants that are 0 are no part of the kind's
    time. Returns the error left."""
    table, found = Costs.from_buffer_copy(costs), []
    names = [name for name, _ in Costs._fields_ if getattr(table, name) != 0 and name not in ("resident", *held)]
    for least in (LEAST, 1.0):
        for name in names:
            setattr(costs, name, bounded(name, max(getattr(table, name), 4 * least if name == "latency" else least)))
        found.append((descend(costs, samples, table, names), bytes(costs)))
    loss, best = min(found)
    c.memmove(c.byref(costs), best, len(best))
    return math.sqrt(loss / sum(weight for *_, weight in samples))


def clear_time(lines):
    """Counters are cleared by the map's kernel, or else before the product: by how much that is longer."""
    alone = {(dtype, shape): times for dtype, shape, weight, operation, times in lines if operation == "d_a"}
    longer = []
    for dtype, shape, weight, operation, times in lines:
        if operation != "map+d_a" or (dtype, shape) not in alone:
            continue
        one, two = ({("stream_k" if "_stream_k_" in name else "whole"): us for name, us in t.items()
                     if "_stream_k_" in name or "128x256" in name}
                    for t in (alone[dtype, shape], times))
        if len(one) == len(two) == 2:
            longer.append((one["stream_k"] - one["whole"]) - (two["stream_k"] - two["whole"]))
    return max(statistics.median(longer), 0.5) if longer else 2.0


def text_of(costs):
    return ", ".join(f"{getattr(costs, name):.4g}" for name, _ in Costs._fields_)


def samples_of(model, lines):
    """For each kind: (estimate, microseconds, weight) of what was recorded."""
    samples = {kind: [] for kind in range(len(KINDS))}
    for dtype, shape, weight, operation, times in lines:
        best = min(times.values())
        for name, time in times.items():
            found = model.function(dtype, shape, weight, operation, name)
            if found:
                samples[found[0]].append((found[1], time, (best / time) ** 2))
    return samples


def fit_all(model, lines, say=lambda *_: None):
    for kind, samples in samples_of(model, lines).items():
        costs, held = model.calibration.costs[kind], ()
        if KINDS[kind] in LOOP_OF:
            costs.k_block, held = model.calibration.costs[KINDS.index(LOOP_OF[KINDS[kind]])].k_block, ("k_block",)
        error = fit(costs, samples, held) if samples else math.nan  # column sums have no call alone
        say(f"{KINDS[kind]:12} {len(samples):5} times, error {100 * error:5.1f}%  {text_of(costs)}")


def regrets(model, lines):
    """Of each operation that is one kernel, how much longer the row of the least estimate took than the best."""
    found = []
    for dtype, shape, weight, operation, times in lines:
        call = (dtype, shape, weight, operation)
        functions = {} if operation in ("map+d_a", "backward") else \
            {name: model.function(*call, name) for name in times}
        estimates = {name: function[1]() for name, function in functions.items() if function}
        if estimates:
            found.append(times[min(estimates, key=estimates.get)] / min(times.values()) - 1)
    return found


def judge_unseen(model, lines):
    """Fits to every other layer, and judges the choice on those between, both ways. The fit begins where it knows
    nothing of either: at a microsecond, and 3 TB/s."""
    layers = list(dict.fromkeys(line[:3] for line in lines))
    parts = [[line for line in lines if layers.index(line[:3]) % 2 == half] for half in (0, 1)]
    for seen, unseen in (parts, parts[::-1]):
        for costs in model.calibration.costs:
            for name, _ in Costs._fields_:
                if getattr(costs, name) != 0 and name != "resident":
                    setattr(costs, name, 3.0 if name in ("reading", "writing") else 1.0)
        fit_all(model, seen)
        for name, part in (("seen", seen), ("unseen", unseen)):
            found = regrets(model, part)
            above = [sum(x > bound for x in found) for bound in (0.02, 0.05, 0.15)]
            print(f"{name:6} {len(found)} operations: mean regret {100 * statistics.mean(found):.2f}%; "
                  f"above 2%: {above[0]}, 5%: {above[1]}, 15%: {above[2]}", flush=True)


def kernel_of(row):
    """The kernel of which rows are the types and layouts."""
    return re.sub("_(bf16|f16)", "_16", re.sub("_(nn|nt|tn)_", "_", row))


def list_rows(lines, without):
    """On how many of its calls each kernel is the best, and how much longer they would take without it. One that is
    best on less than a tenth, by less than 2% at the median, does not deserve its place (docs/howto)."""
    calls, wins = collections.Counter(), collections.defaultdict(list)
    for *_, times in lines:
        best = {}
        for row, time in times.items():
            if not any(part in row for part in without):
                kernel = kernel_of(row)
                best[kernel] = min(time, best.get(kernel, time))
        calls.update(best.keys())
        order = sorted(best, key=best.get)
        if order:
            wins[order[0]].append(best[order[1]] / best[order[0]] - 1 if len(order) > 1 else math.inf)
    for kernel, count in sorted(calls.items(), key=lambda x: len(wins[x[0]]) / x[1]):
        won = wins[kernel]
        text = f"{kernel:30} best on {len(won):4} of {count:4} calls"
        if won:
            text += (f"; without it median {100 * statistics.median(won):.1f}% longer, at most {100 * max(won):.1f}%, "
                     f"above 2%: {sum(x > 0.02 for x in won)}")
        print(text + ("  <- goes" if 10 * len(won) < count and (not won or statistics.median(won) < 0.02) else ""))


def write(model):
    table = ["/* SPDX-License-Identifier: Apache-2.0 */",
             "/* Fitted by tools/calibrate.py to a recording. A row of each kind (estimate.h): launch, k_block, odd,",
             " * latency, resident, tile, bias, add, forward, second, grad, chain, tail, reading, writing. */",
             f'CALIBRATION("{model.calibration.device.decode()}", {model.calibration.multiprocessors}, '
             f"{model.calibration.clear:.3g}, {model.calibration.add_up:.3g})"]
    table += [f"COSTS({name}, {text_of(model.calibration.costs[kind])})" for kind, name in enumerate(KINDS)]
    (ROOT / "src/cuda/calibration.def").write_text("\n".join([*table, "END_CALIBRATION"]) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?")
    parser.add_argument("--recording", default=ROOT / "bench/recorded/cuda-h200.txt")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--unseen", action="store_true")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--without", action="append", default=[])
    options = parser.parse_args()
    lines = read(options.recording)
    if options.rows:
        return list_rows(lines, options.without)
    model = Model(load(options.library))
    model.calibration.clear = clear_time(lines)
    if options.unseen:
        return judge_unseen(model, lines)
    fit_all(model, lines, lambda text: print(text, flush=True))
    if options.write:
        write(model)


if __name__ == "__main__":
    main()
