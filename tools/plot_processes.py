# SPDX-License-Identifier: Apache-2.0
"""The latency-bandwidth model of docs/explanation/several-processes.md: its plot and its table.

    python3 tools/plot_processes.py docs/images/processes.svg

A collective of P processes takes latency * steps + bytes / rate; an all-reduce sends everything twice, an
all-gather or a reduce-scatter once. The steps are those of recursive halving and doubling: log2(P) for each
time that everything is sent. Needs matplotlib.
"""
import math
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "epigrad"  # the same figures give the same file
import matplotlib.pyplot as plt  # noqa: E402

LATENCY = 2e-6  # seconds a message
LINK = 50e9  # bytes a second: 400 Gb/s, each way
SPEED = 2e12  # products and sums a second of a process, f32
SUM = 4  # bytes of a number that is sent
GROUPS = 4


def collective(processes, numbers, times):
    """Seconds; `times`: 2 for an all-reduce, 1 for an all-gather or a reduce-scatter."""
    share = (processes - 1) / processes
    return times * (LATENCY * math.log2(processes) + share * numbers * SUM / LINK)


def pipeline(first, later, groups):
    """A group of the first under one of the later: what is left is the longer of both, and one of the other."""
    return first + (groups - 1) * max(first, later) + later


def data_parallel(processes, m, k, n):
    """(products, plain, overlapped): d_b in groups, each summed under what follows; d_a comes last."""
    half, total = 2 * m * k * n / SPEED, collective(processes, k * n, 2)
    begun = half / GROUPS + total
    return 2 * half, 2 * half + total, max(2 * half, begun)


def columns_forward(processes, m, k, n):
    """(products, plain, overlapped) of a layer [k, n] that is divided by columns."""
    products = 2 * m * k * n / processes / SPEED
    gather, group = collective(processes, m * k, 1), collective(processes, m * k / GROUPS, 1)
    return products, products + gather, min(products + gather, pipeline(group, products / GROUPS, GROUPS))


PANELS = (
    ("data parallel: backward, d_b [4096, 4096]", "rows of each process", (4, 64, 1024),
     [2**i for i in range(5, 15)], lambda p, m: data_parallel(p, m, 4096, 4096)),
    ("tensor parallel: forward, B [8192, 8192] by columns", "rows", (4, 16, 64),
     [2**i for i in range(8, 18)], lambda p, m: columns_forward(p, m, 8192, 8192)),
)


def table():
    print("| | processes | rows | plain | overlapped |\n|---|---|---|---|---|")
    for title, _, processes, rows, model in PANELS:
        for count in processes:
            for m in rows[len(rows) // 2 - 1 :: 3]:
                alone, plain, overlapped = model(count, m)
                print(f"| {title.split(':')[0]} | {count} | {m} | {alone / plain:.0%} | {alone / overlapped:.0%} |")


def plot(path):
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    for axis, (title, label, processes, rows, model) in zip(axes, PANELS):
        for count, colour in zip(processes, ("#1f6feb", "#2e8b57", "#d9622b")):
            times = [model(count, m) for m in rows]
            axis.plot(rows, [t[0] / t[2] for t in times], color=colour, label=f"{count} processes, overlapped")
            axis.plot(rows, [t[0] / t[1] for t in times], color=colour, ls=":", label="one after the other")
        axis.set_xscale("log", base=2)
        axis.set_ylim(0, 1.02)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(label, fontsize=8)
        axis.tick_params(labelsize=7)
        axis.legend(fontsize=7, loc="lower right")
    axes[0].set_ylabel("products alone / call", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    table()
    plot(sys.argv[1])
