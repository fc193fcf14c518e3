#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The summary of a sweep: tables in Markdown, and a plot. Also for tools/performance.py, so without PyTorch.

    summary.py SWEEP.jsonl          writes SWEEP.md and SWEEP.svg (with matplotlib) beside it"""

import json
import math
import statistics
import sys

MEASURED = "epigrad, measured"  # EG_TUNING_MEASURED
OVERVIEW = ["call", "measured", "geometric mean", "at most 1.03", "above 1.10", "worst",
            "without fused peers: mean", "at most 1.03", "above 1.10", "worst"]
WORST = ["times as long", "call", "layer", "epigrad, µs", "fastest peer, µs", "epigrad's plan"]


def by_tuning(rows):
    """{tuning: rows as of it alone}, of timed rows. Runs before there was one are of estimates."""
    kinds = {}
    for row in rows:
        if "ratio" in row:
            kinds.setdefault("estimated", []).append(row)
        peers = {name: us for name, us in row.get("us", {}).items() if not name.startswith("epigrad")}
        for tuning, name in (("measured", MEASURED), ("estimated", "epigrad")):
            if tuning in row:
                kinds.setdefault(tuning, []).append({**row, **row[tuning], "us": {"epigrad": row["us"][name], **peers}})
    return kinds


def geometric_mean(ratios):
    return math.exp(statistics.fmean(map(math.log, ratios)))


def share(ratios, is_counted):
    return f"{sum(map(is_counted, ratios)) / len(ratios):.0%}"


def ratio_to_separate(row):
    """Against the faster peer whose activation is a kernel of its own. cublasLt's own epilogues are held to no bound
    of error, and its GELU is NaN at -infinity."""
    us = row["us"]
    return us["epigrad"] / min(time for peer, time in us.items() if peer not in ("epigrad", "cublasLt fused"))


def overview(rows):
    """A line an operation, in the order in which they were measured, and one for all."""
    timed, lines = [row for row in rows if "ratio" in row], []
    for operation in [*dict.fromkeys(row["operation"] for row in timed), "all"]:
        some = [row for row in timed if operation in (row["operation"], "all")]
        if some:
            lines.append([operation, len(some)] + [text for ratios in ([row["ratio"] for row in some],
                                                                      [ratio_to_separate(row) for row in some])
                                                   for text in (f"{geometric_mean(ratios):.3f}",
                                                                share(ratios, lambda r: r <= 1.03),
                                                                share(ratios, lambda r: r > 1.10),
                                                                f"{max(ratios):.2f}")])
    return lines


def by_dtype(rows):
    """Geometric means."""
    timed = [row for row in rows if "ratio" in row]
    dtypes = sorted({row["layer"].split()[0] for row in timed})
    lines = []
    for operation in dict.fromkeys(row["operation"] for row in timed):
        cells = []
        for dtype in dtypes:
            ratios = [r["ratio"] for r in timed if r["operation"] == operation and r["layer"].startswith(dtype + " ")]
            cells.append(f"{geometric_mean(ratios):.3f} ({len(ratios)})" if ratios else "")
        lines.append([operation, *cells])
    return ["call", *dtypes], lines


def worst(rows, count):
    timed = sorted((row for row in rows if "ratio" in row), key=lambda row: -row["ratio"])
    return [[f"**{row['ratio']:.2f}**", row["operation"], row["layer"], f"{row['us']['epigrad']:.1f}",
             f"{row['us'][row['peer']]:.1f} ({row['peer']})", "; ".join(f"`{step}`" for step in row["steps"])]
            for row in timed[:count]]


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows] + [""]


TUNINGS = {"measured": "Kernels by measurement (EG_TUNING_MEASURED)",
           "estimated": "Kernels by estimated time (the default)"}


def markdown(head, rows, count=60):
    layers = len({row["layer"] for row in rows})
    wrong = [row for row in rows if "wrong" in row]
    lines = [f"# {layers} layers drawn with seed {head['seed']} on CUDA", "",
             f"{head['date']}, {head['device']}, driver {head['driver']}; time over that of the faster of PyTorch "
             f"{head['torch']} and cublasLt.", "", f"    {head['command']}", ""]
    if wrong:
        lines += ["## Wrong", "", *table(["call", "layer", "what"], [[r["operation"], r["layer"], r["wrong"]]
                                                                     for r in wrong])]
    for tuning, timed in by_tuning(rows).items():
        columns, means = by_dtype(timed)
        lines += [f"## {TUNINGS[tuning]}", "", *table(OVERVIEW, overview(timed)),
                  "Geometric means by dtype (and of how many):", "", *table(columns, means),
                  "The worst:", "", *table(WORST, worst(timed, count))]
    return "\n".join(lines)


STEP_LABELS = {"epigrad": "epigrad, chained", "torch": "PyTorch", "compile": "torch.compile", "jax": "JAX",
               "cublasLt fused": "cublasLt with its epilogues"}


def multiples_table(rows):
    """A line a call, type and layout: multiples by measurement, by estimates, and PyTorch's."""
    sizes, lines = list(dict.fromkeys(tuple(row["size"]) for row in rows)), {}
    for row in rows:
        us = row.get("us")
        cell = "wrong"
        if us:
            measured, estimated, torch = (us[name] / us["bare"] for name in (MEASURED, "epigrad", "torch"))
            cell = f"**{measured:.2f}**, {estimated:.2f}; {torch:.2f}"
        lines.setdefault((row["call"], row["dtype"], row["weight"]), {})[tuple(row["size"])] = cell
    columns = ["call", "type", "b", *(" x ".join(map(str, size)) for size in sizes)]
    layout = {"nk": "[N, K]", "kn": "[K, N]"}
    return columns, [[call, dtype, layout[weight], *(cells.get(size, "") for size in sizes)]
                     for (call, dtype, weight), cells in lines.items()]


def multiples_tables(rows):
    """Of 16 bits, and of the others, which have sizes of their own."""
    narrow = [row for row in rows if row["dtype"] in ("bf16", "f16")]
    wide = [row for row in rows if row["dtype"] not in ("bf16", "f16")]
    return [line for some in (narrow, wide) if some for line in table(*multiples_table(some))]


def steps_table(rows, products="six"):
    """Of step.py's or gated_step.py's rows: epigrad's worst first."""
    timed = sorted((row for row in rows if "ratio" in row), key=lambda row: -row["ratio"]["epigrad"])
    names = [name for name in STEP_LABELS if any(name in row["ratio"] for row in timed)]
    lines = []
    for row in timed:
        ratios = [f"{row['ratio'][name]:.3f}" if name in row["ratio"] else "" for name in names]
        ratios[0] = f"**{ratios[0]}**"
        lines.append([row["dtype"], row["shape"].replace("x", " x "), f"{row['ms']['bare']:.4f}", *ratios])
    return ["dtype", "M x D x H", f"{products} products, ms", *(STEP_LABELS[name] for name in names)], lines


def steps_markdown(head, rows):
    lines = ["# A training step of an MLP block D to H to D on CUDA", "",
             f"{head['date']}, {head['device']}, driver {head['driver']}, PyTorch {head['torch']}; GELU, biases, "
             "[N, K] weights; multiples of the six bare products by cublasLt (best of 16 algorithms).", "",
             f"    {head['command']}", ""]
    for row in rows:
        if "wrong" in row:
            lines += [f"**Wrong**: {row['dtype']} {row['shape']}: {row['wrong']}", ""]
    return "\n".join(lines + table(*steps_table(rows)))


def gated_markdown(head, rows):
    lines = ["# A training step of a gated block (SwiGLU) D to 2 H to D on CUDA", "",
             f"{head['date']}, {head['device']}, driver {head['driver']}, PyTorch {head['torch']}; biases, [N, K] "
             "weights; multiples of the nine bare products by cublasLt (best of 16 algorithms).", "",
             f"    {head['command']}", ""]
    for row in rows:
        if "wrong" in row:
            lines += [f"**Wrong**: {row['dtype']} {row['shape']}: {row['wrong']}", ""]
    return "\n".join(lines + table(*steps_table(rows, "nine")))


def gated_cpu_table(rows):
    """Of bench/cpu/gated_step.py's rows: speeds as multiples of the peers', epigrad's least first."""
    lines, timed = [], [row for row in rows if "speed" in row]
    for row in sorted(timed, key=lambda row: min(median for _, median, _ in row["speed"].values())):
        cells = [f"**{row['speed'][peer][1]:.2f}** ({row['speed'][peer][0]:.2f} to {row['speed'][peer][2]:.2f})"
                 if peer in row["speed"] else "" for peer in ("torch", "onednn")]
        lines.append([row["dtype"], row["shape"].replace("x", " x "), row["threads"], f"{row['ms']['epigrad']:.2f}",
                      *cells])
    return ["dtype", "M x D x H", "threads", "epigrad, ms", "of PyTorch's speed", "of oneDNN's"], lines


GROUPED = ["experts", "rows of each", "K x N", "routing", "call", "epigrad, ms", "dense rate", "grouped_mm", "loop"]


def grouped_lines(row):
    """Of a row of grouped.py: a line for each call."""
    groups, mean, k, n = row["shape"].split("x")
    for way, ms in row.get("ms", {}).items():
        ours = ms["epigrad"]
        others = [f"{ms[name] / ours:.2f}" if name in ms else "" for name in ("grouped_mm", "loop")]
        yield [groups, mean, f"{k} x {n}", row["routing"], way, f"{ours:.4f}", f"**{ms['dense'] / ours:.0%}**", *others]


def grouped_table(rows):
    """Of grouped.py's rows: the share of the dense layer's rate, and how many times as long the others take."""
    lines = [line for row in rows for line in grouped_lines(row)]
    return GROUPED, sorted(lines, key=lambda line: int(line[6].strip("*%")))


def grouped_cpu_table(rows):
    lines = [[row["dtype"], row["threads"], *line] for row in rows for line in grouped_lines(row)]
    return ["dtype", "threads", *GROUPED], sorted(lines, key=lambda line: int(line[8].strip("*%")))


def grouped_markdown(head, rows):
    lines = ["# Grouped layers on CUDA", "",
             f"{head['date']}, {head['device']}, driver {head['driver']}, PyTorch {head['torch']}; GELU, [N, K] "
             "weights; forward with pre, backward from it with d_a and d_b. The rate is a share of that of the plain "
             "layer of as many rows; the others are multiples of epigrad's time.", "", f"    {head['command']}", ""]
    for row in rows:
        if "wrong" in row:
            lines += [f"**Wrong**: {row['dtype']} {row['shape']} {row['routing']}: {row['wrong']}", ""]
    return "\n".join(lines + table(*grouped_table(rows)))


DISTRIBUTED = {"epigrad": "epigrad", "epigrad, plain order": "in plain order", "epigrad, costs told": "costs told",
               "epigrad, 8 CTAs": "8 CTAs", "epigrad, costs told, 8 CTAs": "costs told, 8 CTAs",
               "epigrad, sums of f32": "sums of f32", "in sequence": "products, then NCCL", "torch": "PyTorch"}


def distributed_data_table(rows):
    """Of distributed.py's rows: multiples of the greater of the call alone and the all-reduce alone, worst first."""
    timed = sorted((row for row in rows if row["part"] == "data" and "ratio" in row),
                   key=lambda row: -row["ratio"]["epigrad"])
    names = [name for name in DISTRIBUTED if any(name in row["ratio"] for row in timed)]
    lines = []
    for row in timed:
        ratios = [f"{row['ratio'][name]:.2f}" if name in row["ratio"] else "" for name in names]
        ratios[0] = f"**{ratios[0]}**"
        lines.append([row["shape"].replace("x", " x "), row["ranks"], f"{row['ms']['alone']:.3f}",
                      f"{row['ms']['all-reduce']:.3f}", *ratios, f"{row['torch_own']:.2f}"])
    return ["M x K x N", "GPUs", "call alone, ms", "all-reduce alone, ms", *(DISTRIBUTED[name] for name in names),
            "PyTorch, over its own limit"], lines


def distributed_tensor_table(rows):
    """The share that the product alone has of the whole, least first."""
    timed = sorted((row for row in rows if row["part"] == "tensor" and "share" in row),
                   key=lambda row: row["share"]["epigrad"])
    names = [name for name in DISTRIBUTED if any(name in row["share"] for row in timed)]
    lines = []
    for row in timed:
        shares = [f"{row['share'][name]:.2f}" if name in row["share"] else "" for name in names]
        shares[0] = f"**{shares[0]}**"
        what = "product, reduce-scatter" if row["split"] == "rows" else "all-gather, product"
        lines.append([what, row["shape"].replace("x", " x "), row["ranks"], f"{row['ms']['alone']:.3f}",
                      f"{row['ms']['collective']:.3f}", *shares])
    return ["call", "M x K x N", "GPUs", "product alone, ms", "collective alone, ms",
            *(DISTRIBUTED[name] for name in names)], lines


def distributed_checks(rows):
    lines = []
    for row in rows:
        if row["part"].startswith("check"):
            lines.append(f"- {row['part']}: {row.get('calls', 0)} calls, {row.get('wrong', 'all right')}")
        elif "said" in row:
            told = "; ".join(f"rank {rank}: status {status} after {seconds} s" + (f", `{text}`" if text else "")
                             for rank, (status, seconds, text) in enumerate(row["said"]))
            lines.append(f"- {row['part']}: {told}" + (f" (wrong: {row['wrong']})" if "wrong" in row else ""))
        elif "wrong" in row:
            lines.append(f"- {row['part']}: **wrong**: {row['wrong']}")
    return lines


def distributed_markdown(head, rows):
    lines = [f"# Layers over {head['ranks']} GPUs and NCCL", "",
             f"{head['date']}, {head['ranks']} x {head['device']}, driver {head['driver']}, NCCL {head['nccl']}, "
             f"PyTorch {head['torch']}; bf16, no activation.", "", f"    {head['command']}", "",
             *distributed_checks(rows), "", "Data parallel, d_b summed in bf16: the time as a multiple of the greater "
             "of the call alone and the all-reduce alone.", "", *table(*distributed_data_table(rows)),
             "Tensor parallel: the product alone over the whole.", "", *table(*distributed_tensor_table(rows))]
    return "\n".join(lines)


def plot(rows, path):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    plt.rcParams["svg.fonttype"] = "none"  # text stays text: small, and the same bytes from run to run
    plt.rcParams["svg.hashsalt"] = "epigrad"
    timed = next(iter(by_tuning(rows).values()))
    figure, axes = plt.subplots(figsize=(9, 5))
    for operation in dict.fromkeys(row["operation"] for row in timed):
        some = [row for row in timed if row["operation"] == operation]
        axes.scatter([row["flops"] for row in some], [row["ratio"] for row in some], s=9, label=operation)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="floating-point operations of the call's products",
             ylabel="time, as a multiple of the fastest peer's")
    ticks = [t for t in (0.125, 0.25, 0.5, 0.7, 1, 1.4, 2, 4, 8, 16, 32)
             if min(r["ratio"] for r in timed) / 1.5 <= t <= max(r["ratio"] for r in timed) * 1.5]
    axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def write(path):
    """Writes the summary of the rows at `path` and the plot beside them; the summary."""
    with open(path, encoding="utf-8") as file:
        head, *rows = [json.loads(line) for line in file]
    text, base = markdown(head, rows), path.removesuffix(".jsonl")
    with open(base + ".md", "w", encoding="utf-8") as file:
        file.write(text)
    try:
        plot(rows, base + ".svg")
    except ImportError:
        print("summary: no plot, as there is no matplotlib", file=sys.stderr)
    return text


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(write(sys.argv[1]), end="")
