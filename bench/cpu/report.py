#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns what compare.py wrote into a table, RESULTS.md, and with matplotlib a plot, RESULTS.svg and RESULTS.png.

    report.py RESULTS.jsonl"""

import json
import os
import sys

COLOURS = {"epigrad": "#c1272d", "epigrad-strict": "#e98a8d", "openblas": "#9ecae1", "openblas-avx512": "#3182bd",
           "blis": "#c7e9c0", "blis-avx512": "#31a354", "mkl": "#756bb1", "onednn": "#fd8d3c", "torch": "#d9d9d9",
           "torch-avx512": "#969696", "torch-compile": "#525252"}


def read(path):
    with open(path, encoding="utf-8") as file:
        header, *rows = [json.loads(line) for line in file]
    return header, rows


# ---- Table ---------------------------------------------------------------------------------------

def cell(peer):
    low, middle, high = peer["gflops"]
    digits = 0 if middle >= 100 else 1
    text = f"**{middle:.{digits}f}** ({low:.{digits}f}-{high:.{digits}f})"
    if "of_peak" in peer:
        text += f" {100 * peer['of_peak']:.0f}%"
    if "ratio" in peer and peer["name"] != "epigrad":
        text += f" **{peer['ratio'][1]:.2f}x**"
    if peer["kept"] == 0:
        return text.replace("**", "*") + f" none/{peer['taken']}"
    return text + f" {peer['kept']}/{peer['taken']}"


def names_in(rows):
    names = {}
    for row in rows:
        for peer in row["peers"]:
            names.setdefault(peer["name"], peer)
    return names


def group_table(rows):
    """Rows of one type and number of threads."""
    lines = ["| | " + " | ".join(row["shape"].replace("x", " x ") for row in rows) + " | worst error |",
             "|---" * (len(rows) + 2) + "|"]
    for name, first in names_in(rows).items():
        found = [next((peer for peer in row["peers"] if peer["name"] == name), None) for row in rows]
        cells = [cell(peer) if peer else "" for peer in found]
        worst = max(peer["error"] for peer in found if peer)
        lines.append(f"| {first['label']} | " + " | ".join(cells) + f" | {worst:.1e} |")
    notes = {}
    for row in rows:
        notes.update(row["refused"])
        notes.update({peer["name"]: peer["details"] for peer in row["peers"] if "epigrad" in peer["name"]})
    return lines + [""] + [f"- {name}: {text}" for name, text in notes.items()]


def groups(rows):
    found = {}
    for row in rows:
        found.setdefault((row["dtype"], row["threads"]), []).append(row)
    return found


def table(header, rows):
    lines = [f"# {header['cpu']}, {header['cores']} cores, {header['date']}", "",
             f"    {header['command']}", "",
             "Backward with recompute and GELU, GFLOP/s by 6 M K N: **median** (quartiles), % of the peak that",
             "epigrad measured for its kernel in this run, **epigrad's speed as a multiple of this one's** (median of",
             "the ratios within a round), samples kept of those taken."]
    if header["gated"]:
        lines += [f"Kept are samples with {header['share'] * 100:.0f}% of the gate's best ratio, {header['best']:.2f} "
                  "here, on every core before and after.", "Where there was none the cell is of all samples, in "
                  "italics: that says little."]
    else:
        lines += ["The quiet-machine gate was off."]
    if header["missing"]:
        lines += ["", "Not found: " + ", ".join(header["missing"]) + "."]
    abouts = {peer["name"]: peer["about"] for row in rows for peer in row["peers"]}
    lines += [""] + [f"- {name}: {about}" for name, about in abouts.items()]
    for (dtype, threads), group in groups(rows).items():
        lines += ["", f"## {dtype}, {threads} thread{'s' if threads > 1 else ''}", ""]
        if group[0]["shared"]:
            lines += ["Some of these cores never reach the gate's best beside the others: their own best counts.", ""]
        peak = group[-1]["peak"]
        lines += [f"Peak {peak:.0f} GFLOP/s." if peak else "The peak is not known.", ""] + group_table(group)
    return "\n".join(lines) + "\n"


# ---- Plot ----------------------------------------------------------------------------------------

def panel(axes, rows, title):
    names = list(names_in(rows))
    width = 0.85 / max(len(names), 4)
    for i, name in enumerate(names):
        for place, row in enumerate(rows):
            peer = next((p for p in row["peers"] if p["name"] == name), None)
            if peer:
                low, middle, high = peer["gflops"]
                axes.bar(place + (i - len(names) / 2 + 0.5) * width, middle, width, color=COLOURS.get(name, "black"),
                         alpha=1 if peer["kept"] else 0.35,
                         yerr=[[middle - low], [high - middle]], error_kw={"linewidth": 0.6})
    if rows[-1]["peak"]:
        axes.axhline(rows[-1]["peak"], color="black", linewidth=0.7, linestyle=":")
    axes.set_xticks(range(len(rows)), [row["shape"].replace("x", "\nx ") for row in rows], fontsize=7)
    axes.set_title(title, fontsize=9)
    axes.tick_params(axis="y", labelsize=7)


def plot(header, rows, stem):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    found = groups(rows)
    dtypes, threads = list(dict.fromkeys(d for d, _ in found)), list(dict.fromkeys(t for _, t in found))
    figure, grid = plt.subplots(len(dtypes), len(threads), squeeze=False,
                                figsize=(1.5 + 4.6 * len(threads), 1.2 + 2.6 * len(dtypes)))
    for r, dtype in enumerate(dtypes):
        for c, count in enumerate(threads):
            if (dtype, count) in found:
                panel(grid[r][c], found[dtype, count], f"{dtype}, {count} thread{'s' if count > 1 else ''}")
        grid[r][0].set_ylabel("GFLOP/s", fontsize=8)
    labels = {name: peer["label"] for name, peer in names_in(rows).items()}
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS.get(name, "black")) for name in labels]
    figure.legend(handles, list(labels.values()), loc="lower center", ncols=4, fontsize=8)
    figure.suptitle(f"Backward pass, {header['cpu']}, {header['date']}\n"
                    "lines: quartiles; dotted: the peak measured; pale: no quiet sample", fontsize=9)
    figure.tight_layout(rect=(0, 0.09 if len(dtypes) < 3 else 0.05, 1, 1))
    figure.savefig(stem + ".svg")
    figure.savefig(stem + ".png", dpi=110)


def write(path):
    header, rows = read(path)
    stem = os.path.splitext(path)[0]
    text = table(header, rows)
    with open(stem + ".md", "w", encoding="utf-8") as file:
        file.write(text)
    print(text)
    try:
        plot(header, rows, stem)
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(sys.argv[1])
