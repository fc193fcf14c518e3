#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of the CPU's estimated times (src/cpu/estimate.h) to a recording of bench/cpu/record.c.

    calibrate_cpu.py CPU_COUNTS RECORDING [--device NAME] [--write]

CPU_COUNTS is the program that says what the estimate counts for each recorded time: the formulas are written once.
An estimate is a sum of counts times constants, so each kernel row is fitted alone, by least squares of
estimate / time - 1 with no constant below 0. Rows far from the best of their operation count less, and so do times
far from the estimate, which a neighbour on the machine may have spoilt. Prints the table, with the error left;
--write puts it in the place of the device's in src/cpu/calibration.def."""

import argparse
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "src/cpu/calibration.def"
ROUNDS, SWEEPS = 6, 400
SPOILT = 0.3  # of a time: errors beyond count as if they were linear
PRIOR = 1e-4  # weight of the present table, where a recording says little
# Rows of processors that were not measured cost what these do, and `k` so many times as much.
UNMEASURED = {"neon_f32_4x16": ("avx2_f32_4x24", 1.33), "neon_f64_4x8": ("avx2_f64_4x12", 1.33)}


def read_counts(program, recording):
    """The names of the constants, and of each row its samples: counts, time, best time of the line."""
    names, samples = [], {}
    output = subprocess.run([program, recording], capture_output=True, text=True, check=True).stdout
    for line in output.splitlines():
        fields = line.lstrip("#").split()
        if not names:
            names = fields
        else:
            numbers = [float(x) for x in fields[1:]]
            if len(numbers) == len(names) + 2:
                samples.setdefault(fields[0], []).append((numbers[2:], 1e3 * numbers[0], 1e3 * numbers[1]))
    return names, samples


def read_table():
    """(header arguments, {row: constants}) of each calibration in the file."""
    tables = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"CALIBRATION\((.*)\)", line):
            tables.append((match[1], {}))
        elif match := re.match(r"COSTS\((\w+), (.*)\)", line):
            tables[-1][1][match[1]] = [float(x) for x in match[2].split(",")]
    return tables


def solve(gram, right, start):
    """Least squares without negative constants, one constant at a time."""
    x = list(start)
    for _ in range(SWEEPS):
        moved = 0.0
        for j, row in enumerate(gram):
            if row[j] <= 0:
                continue
            value = max(0.0, x[j] + (right[j] - sum(g * v for g, v in zip(row, x))) / row[j])
            moved = max(moved, abs(value - x[j]) / (abs(x[j]) + 1e-9))
            x[j] = value
        if moved < 1e-6:
            break
    return x


def fit(samples, start):
    """The constants, and the mean relative error left."""
    count = len(start)
    x = list(start)
    scaled = [([c / time for c in counts], best / time) for counts, time, best in samples]
    for _ in range(ROUNDS):
        gram, right, error, total = [[0.0] * count for _ in range(count)], [0.0] * count, 0.0, 0.0
        for counts, weight in scaled:
            off = abs(sum(c * v for c, v in zip(counts, x)) - 1)
            error, total = error + weight * off, total + weight
            weight *= min(1.0, SPOILT / off) if off > 0 else 1.0
            used = [(j, c) for j, c in enumerate(counts) if c]
            for j, c in used:
                right[j] += weight * c
                for i, d in used:
                    gram[j][i] += weight * c * d
        for j in range(count):
            keep = PRIOR * gram[j][j]
            gram[j][j] += keep
            right[j] += keep * start[j]
        x = solve(gram, right, x)
    return x, error / total


def text_of(constants):
    return ", ".join(f"{value:.4g}" for value in constants)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts")
    parser.add_argument("recording")
    parser.add_argument("--device", default="", help="a part of its name; of the first table if left out")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    names, samples = read_counts(options.counts, options.recording)
    tables = read_table()
    found = [table for table in tables if options.device in table[0]]
    if not found:
        found = [(re.sub('"[^"]*"', f'"{options.device}"', tables[0][0], count=1), dict(tables[0][1]))]
        tables.append(found[0])
    constants = found[0][1]
    for row, start in constants.items():
        if row in samples:
            constants[row], error = fit(samples[row], start)
            print(f"{row:20} {len(samples[row]):5} times, error {100 * error:5.1f}%  {text_of(constants[row])}",
                  flush=True)
    for row, (like, slower) in UNMEASURED.items():
        if row not in samples and like in constants and row in constants:
            given = zip(names, constants[like])
            constants[row] = [value * (slower if name == "k" else 1) for name, value in given]
    text = ["/* SPDX-License-Identifier: Apache-2.0 */",
            "/* Fitted by tools/calibrate_cpu.py to a recording. A line of each row, in nanoseconds (estimate.h):"]
    line = " *"
    for number, name in enumerate(names):
        word = f" {name}{'.' if number == len(names) - 1 else ','}"
        if len(line + word) > 108:
            text.append(line)
            line = " *"
        line += word
    text.append(line)
    text.append(" * A device's: a part of its name, bytes of L2, microseconds of a fork, and of each thread's join,")
    text.append(" * nanoseconds of a byte that is packed for each further thread that reads it, and times as long as")
    text.append(" * estimated that three bf16 terms take where all cores are at work. */")
    for header, rows in tables:
        text.append(f"CALIBRATION({header})")
        text.extend(f"COSTS({row}, {text_of(values)})" for row, values in rows.items())
        text.append("END_CALIBRATION")
    if options.write:
        TABLE.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
