# SPDX-License-Identifier: Apache-2.0
"""Turns the output of activation_error into the table and the plot of docs/reference/numerics.md.

    build/tests/activation_error f32 >  build/activation_error.csv
    build/tests/activation_error f64 >> build/activation_error.csv
    python3 tools/plot_activation_error.py build/activation_error.csv docs/images/activation_error.svg

Prints the table in Markdown. Needs matplotlib.
"""
import csv
import sys
from collections import defaultdict

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "epigrad"  # the same figures give the same file
import matplotlib.pyplot as plt  # noqa: E402

BOUND = {"f32": 4e-7, "f64": 1e-15}


def read(path):
    curves, worst = defaultdict(list), {}
    with open(path, newline="") as file:
        for kind, dtype, activation, what, x, error in csv.reader(file):
            if kind == "curve":
                curves[dtype, activation, what].append((float(x), float(error)))
            elif kind == "worst":
                worst[dtype, activation, what] = float(error)
    return curves, worst


def table(worst):
    names = list(dict.fromkeys(activation for _, activation, _ in worst))
    print("| activation | act f32 | act' f32 | act f64 | act' f64 |\n|---|---|---|---|---|")
    for name in names:
        cells = [f"{worst[dtype, name, what]:.1e}" for dtype in BOUND for what in ("act", "act_grad")]
        print(f"| {name} | " + " | ".join(cells) + " |")


def plot(curves, path):
    names = [n for n in dict.fromkeys(a for _, a, _ in curves) if n not in ("none", "relu", "relu2")]
    figure, axes = plt.subplots(len(names), 2, figsize=(10, 1.5 * len(names)), sharex=True)
    for row, name in zip(axes, names):
        for axis, (dtype, bound) in zip(row, BOUND.items()):
            for what, label, colour in (("act", "act", "#1f6feb"), ("act_grad", "act'", "#d9622b")):
                xs, ys = zip(*curves[dtype, name, what])
                axis.plot(xs, [y / bound for y in ys], lw=0.8, color=colour, label=label)
            axis.set_ylim(0, 1)
            axis.set_xlim(-12, 12)
            axis.text(-11.6, 0.78, f"{name}  {dtype}", fontsize=9)
            axis.tick_params(labelsize=7)
    axes[0][0].legend(fontsize=7, loc="upper right", ncols=2)
    for axis, (dtype, bound) in zip(axes[0], BOUND.items()):
        axis.set_title(f"error / max(1, |value|), as a fraction of the bound {bound:.0e}", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("x", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    curves, worst = read(sys.argv[1])
    table(worst)
    plot(curves, sys.argv[2])


main()
