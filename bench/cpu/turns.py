# SPDX-License-Identifier: Apache-2.0
"""How what takes turns in one process is timed."""

import ctypes
import datetime
import glob
import os
import random
import sys
import threading
import time

import torch

import machine

SLICE, QUIET, MOST_SLICES = 0.002, 0.1, 250  # seconds; of a slice, what the process may compute while it rests
TURNS, TURN_SECONDS = 11, 0.05


def others_run():
    """Whether any thread of the process but this one runs or would. None: this system does not say."""
    threads = set(glob.glob("/proc/self/task/*/stat"))
    threads.discard(f"/proc/self/task/{threading.get_native_id()}/stat")
    states = []
    for name in threads:
        try:
            with open(name, encoding="ascii") as stat:
                states.append(stat.read().rpartition(")")[2].split()[0])
        except OSError:  # it has ended
            continue
    return "R" in states if threads else None


def is_quiet():
    """The time that the system counts for a process tells less than its threads' states: what runs on another
    processor is counted at the next tick of its clock, up to 10 ms late."""
    begin = time.process_time()
    time.sleep(SLICE)
    runs = others_run()
    return time.process_time() - begin < QUIET * SLICE if runs is None else not runs


def rest(threads):
    """Returns when the threads of the turn before have stopped spinning: OpenMP's go on for some 10 ms after their
    work, and would take the processors of the next turn. Waiting for half a second means that they never stop."""
    if threads == 1:
        return
    for _ in range(MOST_SLICES):
        if is_quiet():
            return
    raise SystemExit("the threads of a library do not come to rest: is OMP_WAIT_POLICY or GOMP_SPINCOUNT set?")


def check_cores(threads):
    """Several threads are timed by the clock on the wall, so each needs a processor that nothing else has."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count())
    if threads > len(cores):
        raise SystemExit(f"{threads} threads on {len(cores)} processors: say which by taskset")
    if threads > 1 and os.environ.get("OMP_WAIT_POLICY", "").lower() == "active":
        raise SystemExit("with OMP_WAIT_POLICY=active the peers' threads spin while epigrad's compute")
    return list(cores)


def keep_memory():
    """What is freed stays with the process. A primitive of PyTorch's returns memory of its own, and where that is
    large it would be new pages with each call, which the kernel has to clear first."""
    of_mmap, trim = -4, -1  # M_MMAP_MAX and M_TRIM_THRESHOLD of glibc
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(of_mmap, 0)
            libc.mallopt(trim, (1 << 31) - 1)


def seconds(run, count, repeats, at):
    """Of one thread its own processor time: others may be at work on the machine."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    for i in range(at, at + repeats):
        run(i % count)
    return (clock() - begin) / repeats


def in_turn(calls, count, threads):
    """Seconds of each call's turns; calls whose primitive PyTorch lacks are left out of `calls`."""
    times = {name: [] for name in calls}
    repeats = {}
    for name, call in list(calls.items()):
        try:
            call(0)
        except RuntimeError:
            del calls[name], times[name]
            continue
        repeats[name] = max(1, round(TURN_SECONDS / seconds(call, count, 2, 0)))
    for turn in range(TURNS):
        for name in random.sample(list(calls), len(calls)):
            rest(threads)
            times[name].append(seconds(calls[name], count, repeats[name], turn * repeats[name]))
    return times


def begin_on_cpu(seed, command):
    """What a run says of itself. From here on memory stays with the process."""
    torch.set_grad_enabled(False)
    keep_memory()
    torch.manual_seed(seed)
    return {"cpu": machine.processor_name(), "date": str(datetime.date.today()),
            "torch": torch.__version__.split("+")[0], "isa": os.environ.get("EPIGRAD_CPU_ISA", ""), "command": command}
