# SPDX-License-Identifier: Apache-2.0
"""Calls captured as a CUDA graph and timed by its replays, in turns with others; and what a run says of itself."""

import datetime
import os
import random
import statistics
import subprocess

import torch


class Graph:
    """run(0) to run(count - 1). A turn replays them for about `turn_ms` milliseconds."""

    def __init__(self, run, count, turn_ms):
        for i in range(count):
            run(i)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.capture_begin()
        try:
            for i in range(count):
                run(i)
        finally:
            self.graph.capture_end()
        self.count, self.repeats, self.times = count, 1, []
        if turn_ms:
            self.replay(1)
            self.repeats = max(1, int(turn_ms / max(1e-3, self.replay(1) * count)))

    def replay(self, repeats):
        """Milliseconds of one run."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(repeats):
            self.graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / repeats / self.count

    def turn(self):
        self.times.append(self.replay(self.repeats))

    def median(self):
        return statistics.median(self.times)


def take_turns(graphs, turns):
    """A turn gains by what the one before it left of the power limit: the order is drawn anew each time."""
    for _ in range(turns):
        for graph in random.sample(graphs, len(graphs)):
            graph.turn()


def header(command, seed):
    """The first line of a run's file."""
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                            capture_output=True, text=True, check=False).stdout.partition("\n")[0].strip()
    tuning = os.environ.get("EPIGRAD_TUNING")  # it decides which kernels a context takes
    return {"device": torch.cuda.get_device_name(), "driver": driver, "date": str(datetime.date.today()),
            "torch": torch.__version__.split("+")[0], "seed": seed,
            "command": f"EPIGRAD_TUNING={tuning} " * bool(tuning) + f"python3 bench/cuda/{command} --seed {seed}"}
