#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layers over several GPUs and NCCL: are they right, and how much of the communication goes under the products.

    distributed.py LIBRARY [--ranks N] [--out OUT]

One process a GPU. Every part has a time limit: one that hangs is ended with its processes, is a row that says so, and
the next part begins in new ones. Writes OUT.jsonl line by line and OUT.md; the exit status is 1 where a row is wrong.
    check data, check tensor   against products in f64 of the data of all ranks, exact where numbers are small integers
    data, tensor               times: all ranks begin together, the slowest counts, medians, in turns
    mismatch, absent           ranks that disagree about a shape, or do not come: a status in bounded time"""

import argparse
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time

import summary

# With the seconds that each may take; the first of a group of processes has 30 more for their start.
PARTS = {"check data": 20, "check tensor": 20, "data": 25, "tensor": 25, "mismatch": 15, "absent": 15}


class Group:
    """The processes of all ranks; what they say comes line by line."""

    def __init__(self, options, parts):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {**os.environ, "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
                       "NVSHMEM_DISABLE_NVLS": "1"}
        worker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "distributed_rank.py")
        self.lines, self.processes = queue.Queue(), []
        for rank in range(options.ranks):
            command = [sys.executable, worker, options.library, str(rank), str(options.ranks), str(port),
                       str(options.seed), options.shapes, ",".join(parts)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
            self.processes.append(process)
            threading.Thread(target=self.read, args=(rank, process), daemon=True).start()

    def read(self, rank, process):
        for line in process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                print(f"rank {rank}: {line}", end="", file=sys.stderr)
                continue
            self.lines.put((rank, said))
        self.lines.put((rank, {"left": process.wait()}))

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


def follow(group, parts, ranks, deadline, write):
    """What is left of `parts`: all after the one at which the group failed, if it did."""
    begun, limit, left = None, time.monotonic() + 30 + PARTS[parts[0]], {rank: None for rank in range(ranks)}
    ended = {part: 0 for part in parts}
    while None in left.values():
        try:
            rank, said = group.lines.get(timeout=max(0.01, min(limit, deadline) - time.monotonic()))
        except queue.Empty:
            missing = [r for r in range(ranks) if left[r] is None]
            write({"part": begun or parts[0], "wrong": f"no end in time; ranks {missing} had not left"})
            return parts[parts.index(begun) + 1:] if begun else parts[1:]
        if "left" in said:
            left[rank] = said["left"]
            if said["left"] != 0:
                write({"part": begun or parts[0], "wrong": f"rank {rank} ended with {said['left']}"})
                return parts[parts.index(begun) + 1:] if begun else parts[1:]
        elif "begin" in said:
            if said["begin"] != begun and (begun is None or parts.index(said["begin"]) > parts.index(begun)):
                begun = said["begin"]
                limit = time.monotonic() + PARTS[begun] + 5
        elif "end" in said:
            ended[said["end"]] += 1
        else:
            write(said)
    for part in parts:
        if ended[part] != ranks:
            write({"part": part, "wrong": f"{ended[part]} of {ranks} ranks came to its end"})
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--ranks", type=int, default=0, help="0: as many as there are GPUs")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--shapes", default="2048x2048x2048,4096x4096x4096,8192x4096x14336/"
                                            "2048x2048x8192,8192x4096x14336,4096x8192x28672",
                        help="M x K x N of data parallel, of a rank's layer, / of tensor parallel, of the whole")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300, help="after which all is ended")
    parser.add_argument("--out", default="distributed")
    options = parser.parse_args()
    if options.ranks == 0:
        import torch
        options.ranks = torch.cuda.device_count()
    if options.ranks < 2:
        sys.exit("fewer than two GPUs")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.makedirs(os.path.dirname(options.out) or ".", exist_ok=True)
    deadline, parts, head, rows = time.monotonic() + options.seconds, options.parts.split(","), {}, []

    def write(row):
        if "head" in row:
            head.update(row["head"])
        else:
            rows.append(row)
        print(json.dumps(row), flush=True)
        with open(options.out + ".jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in [head, *rows])

    try:
        while parts and time.monotonic() < deadline:
            group = Group(options, parts)
            try:
                parts = follow(group, parts, options.ranks, deadline, write)
            finally:
                group.end()
    finally:
        for part in parts:
            write({"part": part, "wrong": "not run: no time was left"})
        if head:
            with open(options.out + ".md", "w", encoding="utf-8") as page:
                page.write(summary.distributed_markdown(head, rows))
    return int(any("wrong" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
