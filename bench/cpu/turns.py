# SPDX-License-Identifier: Apache-2.0
"""How what takes turns in one process is timed."""

import time

import torch

REST = 0.004  # seconds until the threads of the turn before have come to rest


def seconds(run, count, repeats, at):
    """Of one thread its own processor time: others may be at work on the machine."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    for i in range(at, at + repeats):
        run(i % count)
    return (clock() - begin) / repeats
