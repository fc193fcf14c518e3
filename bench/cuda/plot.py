#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns the rows that compare.py wrote into a table (Markdown, to stdout) and a plot of ratios to `bare`.

    plot.py RESULTS.jsonl PLOT.svg"""

import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

plt.rcParams["svg.fonttype"] = "none"  # text stays text: small, and the same bytes from run to run
plt.rcParams["svg.hashsalt"] = "epigrad"

ORDER = ["epigrad", "first", "pass", "torch", "compile", "jax"]
LABELS = {"epigrad": "epigrad", "first": "cublasLt, its first choice", "pass": "cublasLt + element-wise kernels",
          "torch": "PyTorch", "compile": "torch.compile", "jax": "JAX"}


def table(rows):
    names = [name for name in ORDER if any(name in row["ms"] for row in rows)]
    print("| dtype | act' from | B | M x K x N | bare, ms | " + " | ".join(LABELS[n] for n in names)
          + " | host, us | workspace, MiB |")
    print("|---" * (len(names) + 7) + "|")
    for row in rows:
        bare = row["ms"]["bare"]
        cells = [f"{row['ms'][n]:.4f} ({row['ms'][n] / bare:.2f})" if n in row["ms"] else "" for n in names]
        print(f"| {row['dtype']} {row['activation']} | {row['source']} | {row['weight']} | {size(row)} | {bare:.4f} | "
              + " | ".join(cells) + f" | {row['host_us']:.0f} | {row['workspace'] >> 20} |")


def size(row):
    """With the batch, where there is one: "shared" by one weight."""
    batch, shared = row.get("batch", 1), row.get("shared", False)
    return row["shape"] if batch == 1 else f"{batch} x {row['shape']}{' shared' if shared else ''}"


def label(row):
    """What is not as usual is named: a weight [N, K], an activation other than GELU."""
    weight = " b[n, k]" if row["weight"] == "nk" else ""
    activation = "" if row["activation"] == "gelu" else " " + row["activation"]
    return f"{row['dtype']}{activation} {row['source']}{weight} {size(row)}"


def plot(rows, path):
    names = [name for name in ORDER if any(name in row["ms"] for row in rows)]
    figure, axes = plt.subplots(figsize=(10, 0.9 + 0.62 * len(rows)))
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        places = [r - i * height for r, row in enumerate(reversed(rows)) if name in row["ms"]]
        ratios = [row["ms"][name] / row["ms"]["bare"] for row in reversed(rows) if name in row["ms"]]
        axes.barh(places, ratios, height, label=LABELS[name])
    axes.set_yticks([r - 0.4 + height / 2 for r in range(len(rows))],
                    [label(row) for row in reversed(rows)])
    axes.set_ylim(-1, len(rows))
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("time as a ratio to the products alone by cublasLt (best of 16 algorithms)")
    axes.legend(loc="lower right", fontsize="small")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    table(rows)
    plot(rows, sys.argv[2])


if __name__ == "__main__":
    main()
