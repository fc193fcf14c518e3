#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Judges CUDA's choice of kernels by whole calls that were timed, without a device.

    judge_choice.py BUILD SWEEP.jsonl... [--worst 20] [--unknown 1.06]

A sweep (bench/cuda/sweep.py) has the times of two plans of each call: that of the estimates, and that of trials. Each
call is planned again by the library of BUILD, over the tests' driver that runs nothing. A plan that is neither of the
two has no time: it counts as UNKNOWN times the better one. So a change of the estimates shows what it wins and loses
before it runs on a device. Prints the geometric mean of the times over the better plan's, its parts, and the calls that
lose most. It is for sweeps of an H200, whose multiprocessors that driver has."""

import argparse
import json
import math
import os
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
sys.path.insert(0, os.path.join(ROOT, "bench", "cuda"))

SEEN = "EPIGRAD_JUDGE"  # the dynamic linker reads its variables when a process begins


def begin_again(build):
    """With the tests' driver and library of products in place of the device's."""
    driver = os.path.join(os.path.abspath(build), "tests", "cuda")
    environment = {**os.environ, SEEN: "1", "LD_LIBRARY_PATH": os.path.join(driver, "fake"),
                   "EPIGRAD_CUBLASLT": os.path.join(driver, "libfake_lt.so")}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def timed_calls(paths):
    """(operation, layer's name, {steps: microseconds}) of each call with both plans."""
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                if "estimated" not in row or "measured" not in row:
                    continue
                times = {}
                for plan, name in (("estimated", "epigrad"), ("measured", "epigrad, measured")):
                    steps, us = tuple(row[plan]["steps"]), row["us"][name]
                    times[steps] = min(us, times.get(steps, us))
                yield row["operation"], row["layer"], times


def layer_of(name):
    import layers
    dtype, shape, activation, weight = name.split()
    m, k, n = map(int, shape.split("x"))
    return layers.Layer(dtype=dtype, m=m, k=k, n=n, activation=activation, weight=weight)


def plans_of(build, calls):
    """The steps of each call as they are planned now."""
    import epigrad_c as eg
    import sweep
    library = eg.Library(os.path.join(build, "src", "libepigrad.so"), 0, tuning=eg.ESTIMATED)
    for operation, name, _ in calls:
        layer = layer_of(name)
        ours = sweep.Epigrad(library, layer, operation, [sweep.Operands(layer, fill=False)])
        yield tuple(library.steps(ours.struct, ours.calls[0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("sweeps", nargs="+")
    parser.add_argument("--worst", type=int, default=20)
    parser.add_argument("--unknown", type=float, default=1.06)
    options = parser.parse_args()
    if SEEN not in os.environ:
        begin_again(options.build)
    calls = list(timed_calls(options.sweeps))
    unknown, losses = 0, []
    for (operation, name, times), steps in zip(calls, plans_of(options.build, calls)):
        best = min(times.values())
        unknown += steps not in times
        losses.append((times[steps] / best if steps in times else options.unknown, operation, name, steps,
                       min(times, key=times.get)))
    mean = math.exp(sum(math.log(loss[0]) for loss in losses) / len(losses))
    shares = ", ".join(f"above {at - 1:.0%} {sum(loss[0] > at for loss in losses) / len(losses):.1%}"
                       for at in (1.03, 1.1, 1.15))
    print(f"{len(losses)} calls: {mean - 1:.2%} over the better plan; {shares}; {unknown} by plans that were not timed")
    for loss, operation, name, steps, better in sorted(losses, key=lambda x: -x[0])[:options.worst]:
        print(f"{loss:5.2f}  {operation} {name}\n       {'; '.join(steps)}\n       {'; '.join(better)}")


if __name__ == "__main__":
    main()
