#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of the inner loops of the NEON kernels in a library, beside the least there could be.

    inner_loops.py build-neon/src/libepigrad.a [--objdump aarch64-linux-gnu-objdump] [--check]

An inner loop is one that holds no other and has multiply-adds (FMLA). What it accumulates to says what it is: a tile of
4 x 16 has 16 registers of sums. The least is its multiply-adds and the vectors that they read: of a tile MR x NR, for
each k, MR * NR / lanes multiply-adds, and (MR + NR) / lanes loads.

--check fails where a loop of those below has a vector on the stack, or more instructions for a multiply-add than
its limit."""

import argparse
import collections
import re
import subprocess
import sys

LABEL = re.compile(r"^[0-9a-f]+ <(.+)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\t(\S+)\s*(.*)$")
KERNEL = re.compile(r"(multiply|few_by_rows|few_rows|few_by_columns|outer)(_all|_turned|_half|_narrow|_alone|_pre)?_"
                    r"(neon_(f32|f64)_\w+?)(\.\w+)*")
TARGET = re.compile(r"\b([0-9a-f]+) <")
BRANCHES = re.compile(r"b|b\..*|t?cbn?z|tbn?z|cbn?z")
MR, FULL, COPIES = 4, 16, 2  # rows of a tile, its registers of sums, and how many may change their names
Loop = collections.namedtuple("Loop", "function sums fmla loads narrow converts prefetches stack total")


def functions(library, objdump):
    """The instructions of each function: name -> [(address, mnemonic, operands)]."""
    text = subprocess.run([objdump, "-d", "--no-show-raw-insn", library], check=True, capture_output=True, text=True)
    found, now = {}, None
    for line in text.stdout.splitlines():
        if match := LABEL.match(line):
            now = found.setdefault(match[1], [])
        elif (match := INSTRUCTION.match(line)) and now is not None:
            now.append((int(match[1], 16), match[2], match[3]))
    return found


def inner_loops(code):
    """From each target of a branch back to that branch, where no other such loop is inside."""
    at = {address: index for index, (address, _, _) in enumerate(code)}
    loops = set()
    for index, (address, name, operands) in enumerate(code):
        target = TARGET.search(operands)
        if BRANCHES.fullmatch(name) and target and int(target[1], 16) <= address and int(target[1], 16) in at:
            loops.add((at[int(target[1], 16)], index))
    return [code[first:last + 1] for first, last in sorted(loops)
            if not any(first <= a and b <= last and (a, b) != (first, last) for a, b in loops)]


def count(function, code):
    of = collections.Counter()
    sums = set()
    for _, name, operands in code:
        registers = re.split(r"[\s,{}\[\]]+", operands.strip("{} "))
        if name == "fmla":
            of["fmla"] += 1
            sums.add(registers[0])
        elif name in ("ldr", "ldur", "ldp", "ld1", "ld1r"):
            kind = "loads" if registers[0][0] == "q" else "narrow" if registers[0][0] in "vdshb" else "rest"
            of[kind] += 2 if name == "ldp" else 1
        elif name in ("fcvtl", "fcvtl2", "shll", "ushll", "shll2", "ushll2"):
            of["converts"] += 1
        elif name == "prfm":
            of["prefetches"] += 1
        of["stack"] += "sp" in registers and registers[0][0] in "qvd"
    return Loop(function, len(sums), of["fmla"], of["loads"], of["narrow"], of["converts"], of["prefetches"],
                of["stack"], len(code))


def describe(loop):
    """What the loop is: (kernel, words, k or vectors in a turn, least instructions in a turn); None for another."""
    match = KERNEL.fullmatch(loop.function)
    if not match or loop.fmla == 0:
        return None
    what, part, kernel, lanes = match[1], match[2], match[3], 4 if match[4] == "f32" else 2
    if what == "multiply" and FULL <= loop.sums <= FULL + COPIES and loop.fmla % FULL == 0:
        words = "tile, left operand transposed" if loop.prefetches else "tile, left operand by rows"
        turns = loop.fmla // FULL
        return kernel, words, f"{turns} k", loop.fmla + turns * (FULL // MR) + turns * MR // lanes
    if part == "_half" and loop.sums >= FULL // 2 and loop.fmla % (FULL // 2) == 0:
        turns = loop.fmla // (FULL // 2)
        return kernel, "half a tile", f"{turns} k", loop.fmla + turns * (FULL // MR) + turns * (MR // 2) // lanes
    if what == "outer" and loop.sums == FULL:
        turns = loop.fmla // FULL
        return kernel, "outer products", f"{turns} k", loop.fmla + turns * (FULL // MR) + turns * MR // lanes
    if what in ("few_by_rows", "few_rows") and loop.sums == 1 and loop.fmla == 8:
        if loop.loads == 1 + 8 // lanes and not loop.prefetches:  # of a row's sums and its numbers
            return kernel, "few rows, a row", "8 k", 8 + 8 // lanes + 2
    if what == "few_by_columns" and loop.fmla in (16, 32):  # its prefetches, of some turns, may be out of line
        dtype = "16-bit" if loop.converts else match[4]
        rows = loop.fmla // 16
        return (kernel, f"dots of {rows} row{'s' * (rows > 1)}, {dtype}", "4 vectors",
                loop.fmla + 16 + 4 * rows + loop.converts)
    return None


# Instructions for a multiply-add that each may have.
LIMITS = {"tile, left operand by rows": 1.65, "tile, left operand transposed": 1.65, "half a tile": 1.75,
          "outer products": 1.65, "few rows, a row": 2.8, "dots of 1 row, f32": 3.6, "dots of 2 rows, f32": 2.4,
          "dots of 1 row, f64": 3.6, "dots of 2 rows, f64": 2.6, "dots of 1 row, 16-bit": 4.8,
          "dots of 2 rows, 16-bit": 3.0}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--objdump", default="aarch64-linux-gnu-objdump")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    worst = {}  # one line for each kind
    for function, code in functions(options.library, options.objdump).items():
        if "_neon_" not in function:
            continue
        for body in inner_loops(code):
            loop = count(function, body)
            of = describe(loop)
            if of and (of[:2] not in worst or loop.total / loop.fmla > worst[of[:2]][0].total / worst[of[:2]][0].fmla):
                worst[of[:2]] = loop, of
    print("| kernel | loop | a turn | FMLA | loads | narrower loads | conversions | prefetches | on the stack | "
          "all | least | for a FMLA |\n|" + "---|" * 12)
    failed = False
    for loop, (kernel, words, turn, least) in sorted(worst.values(), key=lambda x: x[1][:2]):
        each = loop.total / loop.fmla
        is_over = loop.stack > 0 or each > LIMITS[words]
        failed |= is_over
        print(f"| `{kernel}` | {words} | {turn} | {loop.fmla} | {loop.loads} | {loop.narrow} | {loop.converts} | "
              f"{loop.prefetches} | {loop.stack} | {loop.total} | {least} | {each:.2f}{' OVER' * is_over} |")
    missing = set(LIMITS) - {of[1] for _, of in worst.values()}
    if options.check and (failed or missing):
        sys.exit(f"FAILED: over the limit, or not found: {', '.join(sorted(missing)) or 'see above'}")


if __name__ == "__main__":
    main()
