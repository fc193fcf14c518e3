# SPDX-License-Identifier: Apache-2.0
"""Draws what bench/cuda/timeline.c prints: one multiprocessor, its producer and its two consumers, kernel below kernel.

    python3 tools/plot_timeline.py RUN... [--plot docs/images/timeline.svg] [--until MICROSECONDS]

Prints how long a tile's products and its epilogue take in each run (medians), and the part of the time from the first
product to the last in which at least one consumer multiplies. The plot needs matplotlib.
"""
import argparse
import json
import statistics

from plot_trace import length, union

LANES = ("producer", "consumer 0", "consumer 1")
COLOURS = {"loads": "#c8d1da", "products": "#1f6feb", "epilogue": "#d9622b"}


def read(path):
    """(what was run, its spans)."""
    with open(path, encoding="utf-8") as file:
        head, *spans = map(json.loads, file)
    return head, spans


def of(spans, kind):
    return [(s["begin"], s["end"]) for s in spans if s["span"] == kind]


def multiplying(spans):
    products = union(of(spans, "products"))
    return length(products) / (products[-1][1] - products[0][0])


def print_table(runs):
    print("| kernel | layer | products of a tile, us | epilogue, us | multiplying |\n" + "|---" * 5 + "|")
    for head, spans in runs:
        products, epilogue = (statistics.median(end - begin for begin, end in of(spans, kind))
                              for kind in ("products", "epilogue"))
        print(f"| `{head['row']}` | {head['shape']} | {products:.2f} | {epilogue:.2f} | {multiplying(spans):.0%} |")


def draw(axis, head, spans, until):
    for lane, name in enumerate(LANES):
        for s in spans:
            if s["lane"] == name:
                axis.broken_barh([(s["begin"], s["end"] - s["begin"])], (-lane - 0.8, 0.8),
                                 facecolor=COLOURS[s["span"]], edgecolor="white", linewidth=0.6)
        axis.text(-0.01, -lane - 0.4, name, transform=axis.get_yaxis_transform(), ha="right", va="center", fontsize=7)
    axis.set_xlim(0, until)
    axis.set_ylim(-len(LANES), 0.2)
    axis.set_yticks([])
    axis.set_title(head["row"], fontsize=9, loc="left")
    axis.set_xlabel("µs", fontsize=7)
    axis.tick_params(labelsize=7)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def plot(runs, path, until):
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "epigrad"  # the same runs give the same file
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(len(runs), 1, figsize=(9, 0.4 + 1.5 * len(runs)), squeeze=False)
    for axis, (head, spans) in zip(axes[:, 0], runs):
        draw(axis, head, spans, until or max(s["end"] for _, all_spans in runs for s in all_spans))
    axes[0, 0].legend([plt.Rectangle((0, 0), 1, 1, facecolor=colour) for colour in COLOURS.values()], COLOURS,
                      fontsize=7, ncol=len(COLOURS), loc="lower right", bbox_to_anchor=(1, 1.05), frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description="a table and a plot of time lines")
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--plot", metavar="SVG")
    parser.add_argument("--until", type=float, metavar="MICROSECONDS")
    options = parser.parse_args()
    runs = [read(path) for path in options.runs]
    print_table(runs)
    if options.plot:
        plot(runs, options.plot, options.until)


if __name__ == "__main__":
    main()
