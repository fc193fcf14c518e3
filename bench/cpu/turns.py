# SPDX-License-Identifier: Apache-2.0
"""How what takes turns in one process is timed."""

import ctypes
import sys
import time

import torch

REST = 0.004  # seconds until the threads of the turn before have come to rest


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
