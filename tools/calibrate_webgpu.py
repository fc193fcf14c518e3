#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of WebGPU's estimated times (src/webgpu/estimate.c) to a recording of bench/webgpu/record.c.

    calibrate_webgpu.py WEBGPU_COUNTS RECORDING [--write]

WEBGPU_COUNTS is the program that says what the estimate counts for each recorded time. A product of so many
workgroups takes rounds, of as many as there is room for, and each of its terms and its beginning take time in a round:

    dispatches * launch + products * rounds * (begin + terms * term)

Each kernel row is fitted alone, by least squares of estimate / time - 1: the two times are linear, and of how many
workgroups there is room for, and how much of a round's time a round of few takes, every pair of a grid is tried. Times
of rows far from the best count less, large ones more, by the root of the time. What is wrong with a row matters where
two rows are near each other: last, both times are changed by some percent where the choice then gets better. On a
processor a round is one workgroup, and what is recorded as the first call is shared by SHARED calls. Prints the
constants, with the error left; --write puts them in the place of the adapter's in src/webgpu/calibration.def."""

import argparse
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "src/webgpu/calibration.def"
SHARED = 1000  # calls that a pipeline is made for
ROOM = sorted({round(4 * 1.06**i) for i in range(112)})
ALONE = [x / 20 for x in range(1, 21)]
TERM, BEGIN = 0, 2  # places in a row's constants
CHANGE = 12  # percent that constants are changed by for the choice's sake, at a time
CPU = "WGPUAdapterType_CPU"
SPOILT = 0.3  # errors beyond count as if they were linear


def read_counts(program, recording):
    """(microseconds of each row's first call, operations: (row, sample) of each row)."""
    first, operations = {}, []
    output = subprocess.run([program, recording], capture_output=True, text=True, check=True).stdout
    for line in output.splitlines():
        fields = line.split()
        if fields[0] == "#":
            first[fields[1]] = float(fields[2])
        elif fields[0] == "operation":
            operations.append([])
        else:
            operations[-1].append((fields[0], [float(x) for x in fields[1:]]))
    return first, operations


def rounds_of(groups, room, alone):
    rounds = groups / room
    part = rounds - int(rounds)
    return rounds + max(0.0, alone - part) if part > 0 else rounds


def solve(samples, launch, room, alone):
    """(term, begin), and the mean weighted error left."""
    term = begin = error = 0.0
    for again in range(3):
        s = [0.0] * 5
        total = error = 0.0
        for time, best, dispatches, products, groups, terms, beside in samples:
            weight, work = best**1.5 / time, products * rounds_of(groups, room, alone) / time
            left = 1 - (dispatches * launch + beside) / time
            off = abs(work * (begin + terms * term) - left)
            error, total = error + weight * off, total + weight
            if again and off > SPOILT:
                weight *= SPOILT / off
            x, y = work, work * terms
            for i, value in enumerate((x * x, x * y, y * y, x * left, y * left)):
                s[i] += weight * value
        xx, xy, yy, xl, yl = s
        determinant = xx * yy - xy * xy
        begin = (xl * yy - yl * xy) / determinant if determinant > 0 else 0.0
        if begin <= 0:
            begin, term = 0.0, yl / yy
        else:
            term = (yl - xy * begin) / yy
    return term, begin, error / total


def launch_of(operations):
    """What no call of a single dispatch is faster than."""
    return min(s[0] for operation in operations for _, s in operation if s[2] == 1)


def fit(samples, launch, processor):
    """(term, room, begin, alone, once), and the error left."""
    best = None
    for room in [1] if processor else ROOM:
        for alone in [1.0] if processor else ALONE:
            term, begin, error = solve(samples, launch, room, alone)
            if term > 0 and (best is None or error < best[-1]):
                best = (term, room, begin, alone, error)
    return best


def regret_of(operations, constants, launch):
    """The mean of how much longer the row takes that is estimated to be the fastest."""
    total = count = 0
    for operation in operations:
        chosen, real = [], []
        for row, (time, best, dispatches, products, groups, terms, beside) in operation:
            term, room, begin, alone, once = constants[row]
            rounds = products * rounds_of(groups, room, alone)
            chosen.append(dispatches * launch + beside + once + rounds * (begin + terms * term))
            real.append(time + once)
        weight = best**0.5
        total, count = total + weight * (real[chosen.index(min(chosen))] / min(real) - 1), count + weight
    return total / count


def refine(operations, constants, launch):
    """Changes term and begin; of changes that are as good the smallest is taken."""
    least = regret_of(operations, constants, launch)
    for _ in range(3):
        for row in constants:
            for index in (TERM, BEGIN):
                kept = constants[row][index]
                for percent in [p * sign for p in range(1, CHANGE + 1) for sign in (1, -1)]:
                    tried = constants[row][:]
                    tried[index] = kept * (1 + percent / 100)
                    regret = regret_of(operations, {**constants, row: tried}, launch)
                    if regret < least - 1e-6:
                        least, constants[row] = regret, tried
    return least


def tables():
    """(device, type, launch, bytes, {row: constants}) of each adapter, and what stands before the first."""
    text = TABLE.read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r'ADAPTER\("(.*)", (\w+), ([^,]+), ([^,]+),((?:\s+RATE\(.*\),?)+)\)', text):
        rates = re.findall(r"RATE\((\w+), ([^)]*)\)", match[5])
        rows = {row: [float(value) for value in values.split(",")] for row, values in rates}
        found.append([match[1], match[2], float(match[3]), float(match[4]), rows])
    return found, text[:text.index("ADAPTER(")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts")
    parser.add_argument("recording")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with open(options.recording, encoding="utf-8") as file:
        kind, name = re.match(r"# adapter: (\d+) (.*)", file.readline()).groups()
    processor = kind == "3"
    adapters, comment = tables()
    adapter = next(a for a in adapters if a[0] in name and (a[1] == "0" or (a[1] == CPU) == processor))
    first, operations = read_counts(options.counts, options.recording)
    adapter[2] = launch = launch_of(operations)
    print(f"{name}: {launch:.3g} us a dispatch")
    for row, once in first.items():
        list_of = [s for operation in operations for name_, s in operation if name_ == row]
        if not list_of:
            continue
        *constants, error = fit(list_of, launch, processor)
        adapter[4][row] = [*constants, once / SHARED if processor else 0]
        print(f"{row:16} {len(list_of):4} times, error {100 * error:5.1f}%  {text_of(adapter[4][row])}", flush=True)
    print(f"mean regret {100 * refine(operations, adapter[4], launch):.2f}%")
    if options.write:
        lines = [comment.rstrip("\n")]
        for device, type_, launch, moved, rows in adapters:
            rates = ",\n".join(f"        RATE({row}, {text_of(values)})" for row, values in rows.items())
            lines.append(f'ADAPTER("{device}", {type_}, {launch:.4g}, {moved:.4g},\n{rates})')
        TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def text_of(constants):
    return ", ".join(f"{value:.4g}" for value in constants)


if __name__ == "__main__":
    main()
