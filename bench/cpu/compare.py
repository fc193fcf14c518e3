#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The backward pass on the CPU, epigrad beside the libraries found here: see README.md in this folder.

    compare.py PROGRAMS [--full] [--seconds 180] [--shapes MxKxN,...] [--dtypes f32,...] [--threads 1,2,all]
               [--peers NAME,...] [--output RESULTS.jsonl]

PROGRAMS is the folder that bench/cpu/CMakeLists.txt was built in. Writes a JSON line for each shape, and beside
it a table (.md) and, with matplotlib, a plot (.svg and .png)."""

import argparse
import datetime
import json
import math
import os
import random
import shlex
import statistics
import sys
import tempfile
import time

import data
import machine
import peers as found_peers
import report

LARGE, HUGE, SMALL = "512x512x512,1024x1024x1024,256x768x3072", "2048x2048x2048", "64x64x64,128x128x128,32x256x256"
TURN = 0.06           # seconds of a sample; longer calls are a sample each
MOST_ROUNDS = 15
SLOW = 4              # times the fastest
ROTATED = 128 << 20   # at most this much data goes round: past the cache of one tenant of a server


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs")
    parser.add_argument("--full", action="store_true", help="all shapes, types and threads, in 8 minutes")
    parser.add_argument("--seconds", type=float, help="for everything; at least one round is made of each shape")
    parser.add_argument("--shapes", help="the small ones run on one thread only, unless named here")
    parser.add_argument("--dtypes")
    parser.add_argument("--threads")
    parser.add_argument("--peers", help="some of them only; epigrad is always there")
    parser.add_argument("--libraries", action="append", default=[], help="a folder to look for libraries in first")
    parser.add_argument("--torch-python", help="the Python that has PyTorch")
    parser.add_argument("--compile", action="store_true", help="torch.compile too: seconds for each shape")
    parser.add_argument("--output", default="compare-cpu.jsonl")
    parser.add_argument("--no-gate", action="store_true", help="keep every sample, for trying things out")
    options = parser.parse_args()
    options.seconds = options.seconds or (470 if options.full else 180)
    options.dtypes = (options.dtypes or ("f32,bf16,f64,f16" if options.full else "f32,bf16")).split(",")
    options.threads = (options.threads or ("1,2,all" if options.full else "1,all")).split(",")
    return options


def shapes_for(options, threads):
    if options.shapes:
        names = options.shapes
    else:
        names = LARGE + ("," + HUGE if options.full else "") + ("," + SMALL if threads == 1 else "")
    return [tuple(int(x) for x in name.split("x")) for name in names.split(",")]


def configurations(options, cores):
    counts = sorted({cores if word == "all" else int(word) for word in options.threads})
    for threads in [count for count in counts if count <= cores]:
        for dtype in options.dtypes:
            for shape in shapes_for(options, threads):
                if max(shape) > 256 or dtype in ("f32", "bf16"):
                    yield threads, dtype, shape


class Team:
    """A worker for each peer on the same cores, only one of which works at a time."""

    def __init__(self, peers, cores, folder):
        environment = {"OMP_NUM_THREADS": str(len(cores)), "OMP_PROC_BIND": "close",
                       "OMP_PLACES": ",".join(f"{{{core}}}" for core in cores)}
        self.peers, self.workers, self.about = {}, {}, {}
        for peer in peers:
            command = [part.format(threads=len(cores)) for part in peer.command]
            self.peers[peer.name] = peer
            self.workers[peer.name] = machine.Worker(command, cores, {**environment, **peer.environment},
                                                     os.path.join(folder, peer.name))
        for name, worker in self.workers.items():
            done, text = worker.ask("about")
            self.about[name] = text if done else f"does not run: {text}"

    def stop(self):
        for worker in self.workers.values():
            worker.stop()


class Entry:
    """One peer and one problem."""

    def __init__(self, name, worker, details, error, seconds):
        self.name, self.worker, self.details, self.error = name, worker, details, error
        self.guess = seconds
        self.samples = {}  # by round: (seconds, quiet)

    def sample(self, gate, number):
        count = min(2000, max(1, round(TURN / self.guess)))
        warm = 0 if self.guess > 0.1 else max(1, round(0.1 * count))
        seconds, quiet = machine.sample(gate, self.worker, warm, count)
        self.samples[number] = seconds, quiet
        self.guess = min(self.guess, seconds)

    def usable(self):
        """The quiet samples, by round; where there is none, all."""
        kept = {number: seconds for number, (seconds, quiet) in self.samples.items() if quiet}
        return kept, kept or {number: seconds for number, (seconds, _) in self.samples.items()}

    def row(self, team, problem, peak, ours):
        kept, used = self.usable()
        low, middle, high = quartiles(used.values())
        row = {"name": self.name, "label": team.peers[self.name].label, "about": team.about[self.name],
               "details": self.details, "error": self.error, "taken": len(self.samples), "kept": len(kept),
               "ms": [round(x * 1e3, 6) for x in (low, middle, high)],
               "gflops": [round(problem.flops() / x * 1e-9, 2) for x in (high, middle, low)]}
        if peak:
            row["of_peak"] = round(row["gflops"][1] / peak, 4)
        ratios = [used[number] / ours[number] for number in used if number in ours]
        if ratios:
            row["ratio"] = [round(x, 4) for x in quartiles(ratios)]
        return row


def quartiles(values):
    values = list(values)
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def enter(peer, worker, problem, results, sets):
    """(an entry, None), or (None, why this peer has no place in the table)."""
    shape = " ".join(map(str, problem.shape))
    done, details = worker.ask(f"load {problem.path} {shape} {problem.dtype} {sets}")
    if done:
        done, text = worker.ask(f"check {results}")
    if not done:
        return None, text if details == "" else details
    error = problem.error(results)
    if error > data.LIMIT[problem.dtype]:
        return None, f"wrong: relative error {error:.1e}"
    return Entry(peer.name, worker, details, error, float(text)), None


def enter_all(team, problem, results):
    sets = max(2, min(64, math.ceil(min(ROTATED, 2 * machine.cache_bytes()) / problem.bytes())))
    entries, refused, seen = {}, {}, {}
    for name, peer in team.peers.items():
        if problem.dtype not in peer.dtypes:
            continue
        entry, reason = enter(peer, team.workers[name], problem, results, sets)
        if entry is None:
            refused[name] = reason
            continue
        seen[name] = (team.about[name], entry.details)
        if peer.base and seen.get(peer.base) == seen[name]:
            refused[name] = f"the same as {peer.base} here"
        else:
            entries[name] = entry
    return entries, refused, sets


def round_of(gate, entries, number):
    """A sample of each in an order drawn anew; of those much slower than the fastest, in every third round."""
    limit = SLOW * min(entry.guess for entry in entries.values())
    for entry in random.sample(list(entries.values()), len(entries)):
        if number % 3 == 0 or entry.guess < limit or entry.name == "epigrad":
            entry.sample(gate, number)


def measure_peak(worker):
    """epigrad's own measure of what its kernel could do at most: a busy machine can only make it less."""
    best = 0.0
    for _ in range(3):
        done, text = worker.ask("peak")
        best = max(best, float(text) if done else 0)
    worker.settle()
    return best


def measure(gate, team, problem, results, deadline, peaks):
    entries, refused, sets = enter_all(team, problem, results)
    if "epigrad" not in entries:
        sys.exit(f"epigrad, {problem.dtype} {problem.shape}: {refused['epigrad']}")
    key = len(gate.used), problem.dtype
    peaks[key] = max(peaks.get(key, 0), measure_peak(team.workers["epigrad"]))
    rounds = 0
    while rounds < MOST_ROUNDS and (rounds == 0 or time.monotonic() < deadline):
        round_of(gate, entries, rounds)
        rounds += 1
    ours = entries["epigrad"].usable()[1]
    return {"threads": key[0], "dtype": problem.dtype, "shape": "x".join(map(str, problem.shape)), "sets": sets,
            "rounds": rounds, "peak": peaks[key], "cores": gate.used, "shared": gate.shared,
            "peers": [entry.row(team, problem, peaks[key], ours) for entry in entries.values()],
            "refused": refused}


def note(row):
    cells = [f"{peer['name']} {peer['gflops'][1]:.0f}" + (f" ({peer['ratio'][1]:.2f})" if "ratio" in peer else "")
             + f" {peer['kept']}/{peer['taken']}" for peer in row["peers"]]
    print(f"{time.strftime('%H:%M:%S')}  {row['threads']} x {row['dtype']:4} {row['shape']:15}"
          f" peak {row['peak']:.0f}  " + "  ".join(cells), file=sys.stderr, flush=True)


def run(options, gate, peers, write):
    end, peaks = time.monotonic() + options.seconds, {}
    left, team = list(configurations(options, len(gate.cores))), None
    with tempfile.TemporaryDirectory() as folder:
        while left:
            threads, dtype, shape = left[0]
            if team is None or threads != len(gate.used):
                if team:
                    team.stop()
                team = Team(peers, gate.choose(threads), folder)
            deadline = time.monotonic() + (end - time.monotonic()) / len(left)
            problem = data.Problem(shape, dtype, os.path.join(folder, "operands"))
            row = measure(gate, team, problem, os.path.join(folder, "results"), deadline, peaks)
            note(row)
            write(row)
            left.pop(0)
        if team:
            team.stop()


def main():
    options = parse()
    peers, missing = found_peers.find(options.programs, options.libraries, options.torch_python,
                                      options.compile)
    if options.peers:
        peers = [peer for peer in peers if peer.name in ["epigrad", *options.peers.split(",")]]
    gate = machine.Gate(os.path.join(options.programs, "gate"), not options.no_gate)
    if len(gate.cores) > 2:
        os.sched_setaffinity(0, gate.cores[:1])  # this program; gate and workers choose for themselves
    header = {"date": datetime.date.today().isoformat(), "cpu": machine.processor_name(), "cores": len(gate.cores),
              "command": shlex.join(["compare.py", *map(os.path.basename, sys.argv[1:])]), "missing": missing,
              "gated": gate.enabled, "best": gate.best, "share": machine.SHARE_OF_BEST}
    with open(options.output, "w", encoding="utf-8") as file:
        def write(row):
            file.write(json.dumps(row) + "\n")
            file.flush()
        write(header)
        run(options, gate, peers, write)
    report.write(options.output)


if __name__ == "__main__":
    main()
