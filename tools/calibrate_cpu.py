#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the constants of the CPU's estimated times (src/cpu/estimate.h) to a recording of bench/cpu/record.c.

    calibrate_cpu.py CPU_COUNTS RECORDING [--device NAME] [--unseen] [--write]

CPU_COUNTS is the program that says what the estimate counts for each recorded time: the formulas are written once.
An estimate is a sum of counts times constants, none of them below 0. They are chosen so that

    the expected regret of a choice between the candidates of an operation       (what the constants are for)
  + ERROR_WEIGHT times the squared error of the logarithm of each time           (so that they stay times)

is least. The regret is how much longer the chosen one takes than the best. It jumps where two estimates are equal, so
one that is estimated d longer (as a logarithm) is taken to be chosen exp(-d / SPREAD) times as often. A time that is
far off, which a neighbour on the machine may have spoilt, counts as if its error were linear.

Prints the regret at each level of instruction sets before and after: its mean, and the part of operations above 5%
and above 25%, in percent. --unseen fits to four fifths of the layers and judges by the others. --write puts the table
in the place of the device's in src/cpu/calibration.def."""

import argparse
import dataclasses
import pathlib
import re
import subprocess

import numpy
import scipy.optimize

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "src/cpu/calibration.def"
SPREADS = (0.16, 0.08, 0.04)  # one after the other: the first finds the way to the last
ERROR_WEIGHT, SPOILT = 0.3, 0.3
PRIOR = 1e-5  # weight of the present table, where a recording says little
MOST_REGRET = 2.0  # of one choice: the rest is a spoilt time
LEAST = 1e-4  # nanoseconds of an estimate, and of a constant that is 0 in every table
OPERATIONS = 8  # recorded of each layer
# What a processor may choose from at each level. A choice is judged where the last of them is possible.
LEVELS = {"portable": ("portable",), "avx2": ("avx2",), "avx512": ("avx512",),
          "avx512_bf16": ("avx512", "avx512_bf16"), "amx": ("avx512", "avx512_bf16", "amx")}
# Rows of processors that were not measured cost what these do, and `k` so many times as much.
UNMEASURED = {"neon_f32_4x16": ("avx2_f32_4x24", 1.33), "neon_f64_4x8": ("avx2_f64_4x12", 1.33)}


def unit_of(row):
    return "avx512_bf16" if row.startswith("avx512_bf16") else row.split("_")[0]


def read_counts(program, recording):
    """The names of the constants, and a list of (row, nanoseconds, counts) for each operation."""
    output = subprocess.run([program, recording], capture_output=True, text=True, check=True).stdout
    first, *lines = output.splitlines()
    names, operations = first.lstrip("#").split(), [[]]
    for line in lines:
        row, *numbers = line.split() or [None]
        if row is None:
            operations.append([])
        elif len(numbers) == len(names) + 1:
            time, *counts = map(float, numbers)
            operations[-1].append((row, 1e3 * time, counts))
    return names, [x for x in operations if x]


def read_table():
    """(header arguments, {row: constants}) of each calibration in the file."""
    tables = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"CALIBRATION\((.*)\)", line):
            tables.append((match[1], {}))
        elif match := re.match(r"COSTS\((\w+), (.*)\)", line):
            tables[-1][1][match[1]] = [float(x) for x in match[2].split(",")]
    return tables


@dataclasses.dataclass
class Choices:
    """One choice follows the other: `sample` says of which times, `choice` which one a time belongs to."""
    level: numpy.ndarray
    layer: numpy.ndarray
    sample: numpy.ndarray
    choice: numpy.ndarray
    start: numpy.ndarray
    regret: numpy.ndarray  # of each time of each choice


class Recording:
    def __init__(self, operations, rows):
        times = [x for operation in operations for x in operation]
        self.row = numpy.array([rows.index(row) for row, _, _ in times])
        self.time = numpy.array([time for _, time, _ in times])
        self.counts = numpy.array([counts for _, _, counts in times])
        self.operation = numpy.repeat(numpy.arange(len(operations)), [len(x) for x in operations])
        best = numpy.minimum.reduceat(self.time, numpy.flatnonzero(numpy.diff(self.operation, prepend=-1)))
        self.weight = best[self.operation] / self.time  # rows far from the best count less
        self.choices = self.find_choices(operations)

    def find_choices(self, operations):
        levels, layers, members, at = [], [], [], 0
        for number, operation in enumerate(operations):
            units = [unit_of(row) for row, _, _ in operation]
            for level, allowed in LEVELS.items():
                if allowed[-1] in units:
                    levels.append(level)
                    layers.append(number // OPERATIONS)
                    members.append([at + i for i, unit in enumerate(units) if unit in allowed])
            at += len(operation)
        sizes = [len(x) for x in members]
        choice, start = numpy.repeat(numpy.arange(len(sizes)), sizes), numpy.cumsum([0, *sizes[:-1]])
        time = self.time[numpy.concatenate(members)]
        regret = numpy.minimum(time / numpy.minimum.reduceat(time, start)[choice] - 1, MOST_REGRET)
        return Choices(numpy.array(levels), numpy.array(layers), numpy.concatenate(members), choice, start, regret)

    def estimates(self, constants):
        return numpy.maximum(numpy.einsum("ij,ij->i", self.counts, constants[self.row]), LEAST)

    def judge(self, constants, some):
        """{level: mean regret, part above 5%, part above 25%} of the choices that are in `some`."""
        of = self.choices
        estimate = self.estimates(constants)[of.sample]
        by_choice = numpy.lexsort((estimate, of.choice))[of.start]  # the least of each
        chosen = of.regret[by_choice]
        kept = {level: chosen[some & (of.level == level)] for level in LEVELS}
        return {level: (x.mean(), (x > 0.05).mean(), (x > 0.25).mean()) for level, x in kept.items() if x.size}

    def loss(self, constants, spread, some):
        """And its gradient by each constant."""
        of, gradient = self.choices, numpy.zeros(len(self.time))
        estimate = self.estimates(constants)
        log = numpy.log(estimate)
        likely = -log[of.sample] / spread
        likely = numpy.exp(likely - numpy.maximum.reduceat(likely, of.start)[of.choice])
        likely /= numpy.add.reduceat(likely, of.start)[of.choice]
        expected = numpy.add.reduceat(likely * of.regret, of.start)
        by_log = -likely * (of.regret - expected[of.choice]) * some[of.choice] / (spread * some.sum())
        numpy.add.at(gradient, of.sample, by_log)
        weight = self.weight * numpy.isin(self.operation // OPERATIONS, of.layer[some])
        weight *= ERROR_WEIGHT / weight.sum()
        error = log - numpy.log(self.time)
        within = numpy.clip(error, -SPOILT, SPOILT)
        gradient += 2 * weight * within
        by_constant = numpy.zeros_like(constants)
        numpy.add.at(by_constant, self.row, (gradient / estimate)[:, None] * self.counts)
        return (expected * some).sum() / some.sum() + (weight * within * (2 * error - within)).sum(), by_constant

    def fit(self, start, usual, some):
        """`usual`: of each constant, so that one that begins at 0 may grow."""
        unit = numpy.maximum(start, usual)
        begin = (start / unit).ravel()

        def loss(x):
            value, gradient = self.loss((x * unit.ravel()).reshape(unit.shape), spread, some)
            return value + PRIOR * ((x - begin) ** 2).sum(), gradient.ravel() * unit.ravel() + 2 * PRIOR * (x - begin)

        x = begin
        for spread in SPREADS:
            x = scipy.optimize.minimize(loss, x, jac=True, method="L-BFGS-B", bounds=[(0, None)] * x.size,
                                        options={"maxiter": 400, "maxfun": 500}).x
        return (x * unit.ravel()).reshape(unit.shape)


def print_regret(what, of):
    for level, (mean, above_5, above_25) in of.items():
        print(f"{what:8} {level:12} {100 * mean:5.2f} {100 * above_5:6.1f} {100 * above_25:6.1f}", flush=True)


def text_of(constants):
    return ", ".join(f"{value:.4g}" for value in constants)


def text_of_tables(names, tables):
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
    text.append(" * estimated that three bf16 terms take where all cores are at work, and bytes a thread from which on")
    text.append(" * vectors of half a line take non-temporal stores (1e18: never), and rows of a layer of f32 below")
    text.append(" * which d_b takes none, whatever its vectors. Of several that fit a name the last one counts; a")
    text.append(" * number at the end of its part is whole. The Xeon's constants of f32 as three bf16 terms lie")
    text.append(" * between two fits, of idle cores and of busy ones, and of six terms a k takes what it does on idle")
    text.append(" * ones (docs/lab/cpu.md): keep them when its table is fitted anew. */")
    for header, rows in tables:
        text.append(f"CALIBRATION({header})")
        text.extend(f"COSTS({row}, {text_of(values)})" for row, values in rows.items())
        text.append("END_CALIBRATION")
    return "\n".join(text) + "\n"


def table_of(tables, device):
    """The rows of the device's calibration. A new one begins with those of the first."""
    for header, rows in tables:
        if device in header:
            return rows
    tables.append((re.sub('"[^"]*"', f'"{device}"', tables[0][0], count=1), dict(tables[0][1])))
    return tables[-1][1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts")
    parser.add_argument("recording")
    parser.add_argument("--device", default="", help="a part of its name; of the first table if left out")
    parser.add_argument("--unseen", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    names, operations = read_counts(options.counts, options.recording)
    tables = read_table()
    constants = table_of(tables, options.device)
    rows = sorted({row for operation in operations for row, _, _ in operation})
    recording = Recording(operations, rows)
    start = numpy.array([constants.get(row, tables[0][1][row]) for row in rows])
    everything = numpy.ones(len(recording.choices.layer), bool)
    held = recording.choices.layer % 5 == 0 if options.unseen else everything
    usual = numpy.maximum(numpy.mean([x for _, table in tables for x in table.values()], axis=0), LEAST)
    print(f"{'regret':8} {'level':12}  mean   > 5%  > 25%")
    print_regret("before", recording.judge(start, held))
    fitted = recording.fit(start, usual, ~held if options.unseen else everything)
    print_regret("after", recording.judge(fitted, held))
    constants.update({row: list(values) for row, values in zip(rows, fitted)})
    for row, (like, slower) in UNMEASURED.items():
        if row not in rows and like in rows and row in constants:
            given = zip(names, constants[like])
            constants[row] = [value * (slower if name == "k" else 1) for name, value in given]
    if options.write:
        TABLE.write_text(text_of_tables(names, tables), encoding="utf-8")


if __name__ == "__main__":
    main()
