#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/PERFORMANCE.md from the newest runs in bench/results: one current table a backend, sweeps over layers
nobody tuned for with the worst first, and the command or the way of measuring under each.

    tools/performance.py            writes it
    tools/performance.py --check    fails if it is not what the runs say

The runs: DATE-cpu-*.jsonl by bench/cpu/compare.py, DATE-webgpu.jsonl from bench_webgpu's output, DATE-python-*.jsonl
by bench/python/layers.py, DATE-sweep-cuda.jsonl, DATE-multiples-cuda.jsonl, DATE-step-cuda.jsonl,
DATE-gated-step-cuda.jsonl, DATE-grouped-cuda.jsonl and DATE-distributed-cuda.jsonl by bench/cuda/sweep.py,
multiples.py, step.py, gated_step.py, grouped.py and distributed.py, which take the place of what DATE-layers*.jsonl,
of sweeps and other tables, say about CUDA; DATE-gated-step-cpu.jsonl and DATE-grouped-cpu.jsonl by
bench/cpu/gated_step.py and grouped.py. Of each kind the newest counts."""

import argparse
import glob
import json
import math
import os
import re
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
sys.path.insert(0, os.path.join(ROOT, "bench", "cuda"))
import summary  # noqa: E402

PAGE = os.path.join(ROOT, "docs", "PERFORMANCE.md")


def newest():
    """{kind: (date, path)}, the kind being the file's name without its date."""
    found = {}
    for path in sorted(glob.glob(os.path.join(ROOT, "bench", "results", "*.jsonl"))):
        date, kind = re.fullmatch(r"(\d{4}-\d\d-\d\d)-(.*)\.jsonl", os.path.basename(path)).groups()
        found[kind] = (date, path)
    return found


def read(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def shown(x):
    return f"{x:.2f}" if isinstance(x, float) and round(x, 2) == x else str(x)


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return lines + ["| " + " | ".join(map(shown, row)) + " |" for row in rows] + [""]


def sizes(shape):
    return shape.replace("x", " x ")


def run_link(path):
    """Beside the numbers there may be a page about the run."""
    page = path.replace(".jsonl", ".md")
    best = page if os.path.exists(page) else path
    return f"[run](../{os.path.relpath(best, ROOT)})"


def plot(path, text):
    """The plot that a run may have beside it."""
    picture = path.replace(".jsonl", ".svg")
    return [f"![{text}](../{os.path.relpath(picture, ROOT)})", ""] if os.path.exists(picture) else []


# ---- Sweeps and tables of layers -------------------------------------------------------------------

def number(ratio):
    return float(str(ratio).split()[-1])


def sweep_section(records):
    columns = ["", "threads", "layers", "slower on", "geomean", "the worst: times as long"]
    if not any("threads" in record for record in records):
        columns.remove("threads")
    rows = []
    for r in records:
        worst = "; ".join(f"{name} **{ratio}**" for name, ratio in sorted(r["worst"], key=lambda x: -number(x[1])))
        row = [r["what"], r.get("threads", ""), r["layers"], r["slower"], f"{r['geomean']:.2f}", worst]
        if "threads" not in columns:
            del row[1]
        rows.append(row)
    return table(columns, rows)


def backward_peer(group):
    """Of a sweep on the CPU. Older runs name the peer of forward calls with all."""
    other = [r["peer"] for r in group if r["what"].startswith("backward") and r["peer"] != group[0]["peer"]]
    return f" Backward: {other[0]}." if other else " Backward the peer is PyTorch alone."


def layers_of(backend, found):
    lines = []
    for kind, (date, path) in found.items():
        if not kind.startswith("layers"):
            continue
        records = [r for r in read(path) if r["backend"] == backend]
        machines = []
        for r in records:
            if r["kind"] == "sweep" and r["machine"] not in machines:
                machines.append(r["machine"])
        for machine in machines:
            group = [r for r in records if r["kind"] == "sweep" and r["machine"] == machine]
            lines += [f"### Layers nobody tuned for: {machine}", "",
                      f"Time over that of {group[0]['peer']}; below 1 epigrad is faster."
                      + backward_peer(group) * (backend == "cpu"), ""]
            lines += sweep_section(group)
            layers, how = group[0]["layers_are"], group[0]["how"]
            lines += [f"{date}. {layers[0].upper()}{layers[1:]}. {how} ({run_link(path)}).", ""]
        for r in records:
            if r["kind"] == "table":
                lines += [f"### {r['title']}", ""] + table(r["columns"], r["rows"])
                lines += [f"{date}, {r['machine']}. {r['how']}.", ""]
    return lines


# ---- The benchmarks of the project ------------------------------------------------------------------

def cpu_run(date, path):
    header, *rows = read(path)
    lines = []
    for dtype in sorted({row["dtype"] for row in rows}, key=["f32", "bf16", "f64", "f16"].index):
        body = []
        for row in rows:
            if row["dtype"] != dtype:
                continue
            ours = next(peer for peer in row["peers"] if peer["name"] == "epigrad")
            others = [peer for peer in row["peers"] if not peer["name"].startswith("epigrad") and "ratio" in peer]
            others.sort(key=lambda peer: peer["ratio"][1])
            beside = "; ".join(f"{peer['label']} {peer['ratio'][1]:.2f}" for peer in others)
            first = others[0]["ratio"][1] if others else 9
            body.append((first, [sizes(row["shape"]), row["threads"], f"{ours['gflops'][1]:.0f}",
                                 f"{ours['kept']} of {ours['taken']}", beside]))
        body.sort(key=lambda item: item[0])
        lines += [f"**{dtype}**", ""]
        lines += table(["M x K x N", "threads", "GFLOP/s", "quiet samples", "epigrad's speed as a multiple of"],
                       [row for _, row in body])
    lines += plot(path, "GFLOP/s of the backward pass, by shape, beside other libraries")
    lines += [f"    {header['command']}", "",
              f"{date}, {header['cpu']}, {header['cores']} cores; a whole backward pass, recompute, GELU, operands "
              f"from memory, in turn ({run_link(path)}).", ""]
    return lines


def cuda_sweep(date, path):
    head, *rows = read(path)
    layers = len({row["layer"] for row in rows})
    lines = ["### Layers drawn with a seed", "",
             f"Time over that of the faster of PyTorch {head['torch']} and cublasLt; below 1 epigrad is faster.", ""]
    for tuning, timed in summary.by_tuning(rows).items():
        lines += [f"**{summary.TUNINGS[tuning]}**", "", *table(summary.OVERVIEW, summary.overview(timed))]
        lines += ["The worst:", "", *table(summary.WORST, summary.worst(timed, 15))]
    lines += plot(path, "Ratio to the fastest peer against the floating-point operations of the call")
    return lines + [f"    {head['command']}", "",
                    f"{date}{head.get('build', '')}, one {head['device']}; "
                    f"{layers} layers: K and N of GPT-2, Llama, Qwen, Gemma, Mixtral, "
                    "ViT, BERT, small networks and odd ones, M from 1 to 32768, both layouts of the weight, four "
                    "activations and none. cublasLt's products are the best of 16 algorithms, with its epilogues or "
                    "PyTorch's element-wise kernels. CUDA-graph replays in turn in one process, operands from beyond "
                    f"L2, medians of ratios ({run_link(path)}).", ""]


def cuda_multiples(date, path):
    head, *rows = read(path)
    return ["### What an epilogue costs", "",
            "The time of each call as a multiple of that of its products alone. In each cell: **epigrad** with kernels "
            "by measurement, with kernels by estimated time, and PyTorch's operators.", "",
            *summary.multiples_tables(rows), f"    {head['command']}", "",
            f"{date}{head.get('build', '')}, one {head['device']}, PyTorch {head['torch']}; GELU, biases, d_bias; the "
            "products by cublasLt (the best of 16 algorithms). CUDA-graph replays in turn in one process, operands "
            f"from beyond L2 ({run_link(path)}).", ""]


def cuda_step(date, path):
    head, *rows = read(path)
    lines = ["### A training step of an MLP block", "",
             "D to H to D with biases and GELU, forward and backward: multiples of its six bare products.", ""]
    return lines + table(*summary.steps_table(rows)) + [
        f"    {head['command']}", "",
        f"{date}{head.get('build', '')}, one {head['device']}, PyTorch {head['torch']}; "
        f"[N, K] weights; the products by cublasLt (the best of "
        f"16 algorithms). CUDA-graph replays in turn in one process, operands from beyond L2 ({run_link(path)}).", ""]


def cuda_gated_step(date, path):
    head, *rows = read(path)
    lines = ["### A training step of a gated block", "",
             "SwiGLU, D to 2 H to D with biases, forward and backward: multiples of its nine bare products.", ""]
    return lines + table(*summary.steps_table(rows, "nine")) + [
        f"    {head['command']}", "",
        f"{date}{head.get('build', '')}, one {head['device']}, PyTorch {head['torch']}; [N, K] weights; the products "
        f"by cublasLt (the best of 16 algorithms). CUDA-graph replays in turn in one process, operands from beyond L2 "
        f"({run_link(path)}).", ""]


def cpu_gated_step(date, path):
    head, *rows = read(path)
    lines = ["### A training step of a gated block", "",
             "SwiGLU, D to 2 H to D with biases, forward and backward: epigrad's speed as a multiple of that of "
             "PyTorch's operators, and of the same with every product by oneDNN; above 1 epigrad is faster. Medians "
             "and quartiles.", ""]
    return lines + table(*summary.gated_cpu_table(rows)) + [
        f"    {head['command']}", "",
        f"{date}, {head['cpu']}, PyTorch {head['torch']}; [N, K] weights. In turn in one process, operands from beyond "
        f"the caches ({run_link(path)}).", ""]


def cpu_grouped(date, path):
    head, *rows = read(path)
    lines = ["### Grouped layers", "",
             "A mixture of experts: its rate as a share of that of the plain layer of as many rows, which has one "
             "weight. PyTorch's grouped_mm and a loop over its products, both with element-wise kernels: multiples of "
             "epigrad's time.", ""]
    return lines + table(*summary.grouped_cpu_table(rows)) + [
        f"    {head['command']}", "",
        f"{date}, {head['cpu']}, PyTorch {head['torch']}; GELU, [N, K] weights, forward with pre, backward from it "
        f"with d_a and d_b. In turn in one process, operands from beyond the caches ({run_link(path)}).", ""]


def cuda_grouped(date, path):
    head, *rows = read(path)
    lines = ["### Grouped layers", "",
             "A mixture of experts, the ends of groups in device memory: its rate as a share of that of the plain "
             "layer of as many rows. PyTorch's grouped_mm and a loop over its products, both with element-wise "
             "kernels: multiples of epigrad's time.", ""]
    return lines + table(*summary.grouped_table(rows)) + [
        f"    {head['command']}", "",
        f"{date}{head.get('build', '')}, one {head['device']}, PyTorch {head['torch']}; GELU, [N, K] weights, forward "
        "with pre, backward from it with d_a and d_b. CUDA-graph replays in turn in one process, operands from beyond "
        f"L2 ({run_link(path)}).", ""]


def cuda_distributed(date, path):
    head, *rows = read(path)
    return ["### Over several GPUs", "",
            "Data parallel: d_a and d_b of a layer without activation, d_b summed in bf16 by NCCL. The time is given "
            "as a multiple of that of the call alone or the all-reduce alone, whichever is longer.", "",
            *table(*summary.distributed_data_table(rows)),
            "Tensor parallel: the time of the local product alone as a share of that of the call.", "",
            *table(*summary.distributed_tensor_table(rows)), f"    {head['command']}", "",
            f"{date}{head.get('build', '')}, {head['ranks']} x {head['device']}, NCCL {head['nccl']} without NVLink "
            f"multicast, PyTorch {head['torch']}. All ranks begin together, the slowest counts; in turn in one "
            f"process a GPU, operands from beyond L2 ({run_link(path)}).", ""]


CUDA_RUNS = {"sweep-cuda": cuda_sweep, "multiples-cuda": cuda_multiples, "step-cuda": cuda_step,
             "gated-step-cuda": cuda_gated_step, "grouped-cuda": cuda_grouped, "distributed-cuda": cuda_distributed}


def webgpu_run(date, path):
    header, *rows = read(path)
    body = sorted(rows, key=lambda r: r["reference_ms"] / r["epigrad_ms"])
    lines = table(["where", "layer", "M x K x N", "kernel", "a straightforward shader, ms", "epigrad, ms",
                   "times as fast"],
                  [[r["where"], r.get("layer", "GELU"), sizes(r["shape"]), f"`{r['kernel']}`", r["reference_ms"],
                    r["epigrad_ms"], f"{r['reference_ms'] / r['epigrad_ms']:.1f}"] for r in body])
    return lines + [f"    {header['command']}", "",
                    f"{header['date']}; f32, recompute, d_a, d_b, and d_bias or, of SwiGLU units (`--gated`), d_b_up; "
                    f"turn about in one process ({run_link(path)}).", ""]


def python_run(date, path):
    head, *rows = read(path)
    body = []
    for call in dict.fromkeys(row["call"] for row in rows):
        some = sorted((row for row in rows if row["call"] == call), key=lambda row: -row["ratio"])
        mean = math.exp(sum(math.log(row["ratio"]) for row in some) / len(some))
        worst = "; ".join(f"{row['layer']} **{row['ratio']:.2f}**" for row in some[:6])
        body.append([call, len(some), sum(row["ratio"] > 1 for row in some), f"{mean:.2f}", worst])
    lines = table(["call", "layers", "slower on", "geomean", "the worst: times as long"], body)
    return lines + [f"    {head['command']}", "",
                    f"{date}, {head['device']}, PyTorch {head['torch']}; time over that of torch's operators, JAX's or "
                    "NumPy's, the host's included, results in new memory; in turn in one process, operands from "
                    f"beyond the caches, medians of ratios ({run_link(path)}).", ""]


# ---- The page ----------------------------------------------------------------------------------------

CALLS = [
    ["forward", "y"],
    ["forward+pre", "y and pre, for the backward pass"],
    ["forward packed", "y, the weight packed beforehand"],
    ["backward pre", "d_a, d_b and d_bias, from a saved pre"],
    ["backward, backward recompute", "the same; pre is computed again"],
    ["chain", "d_a, multiplied by act' of the layer below, and that layer's d_bias"],
    ["accumulate", "a d_b that is added to what was there"]]

def page():
    found = newest()
    lines = ["# Performance", "",
             "`tools/performance.py` writes this page from the newest runs in [bench/results](../bench/results); "
             "nobody edits it. Tables begin with the cases where epigrad is slowest. What was tried is in "
             "[the lab](lab/README.md).", "",
             "A layer is written as its type, M x K x N, its activation and the layout of its weight: `kn` is [K, N], "
             "`nk` is [N, K], as PyTorch has it. The calls are:", "",
             *table(["call", "computes"], CALLS)]
    for backend, title, make in (("cuda", "CUDA", None), ("cpu", "CPU", cpu_run), ("webgpu", "WebGPU", webgpu_run),
                                 ("python", "From Python", python_run)):
        lines += [f"## {title}", ""]
        newer = [make_section(*found[kind]) for kind, make_section in CUDA_RUNS.items()
                 if backend == "cuda" and kind in found]
        lines += sum(newer, []) if newer else layers_of(backend, found)
        if backend == "cpu" and "gated-step-cpu" in found:
            lines += cpu_gated_step(*found["gated-step-cpu"])
        if backend == "cpu" and "grouped-cpu" in found:
            lines += cpu_grouped(*found["grouped-cpu"])
        for kind, (date, path) in found.items():
            if kind.split("-")[0] == backend and make is not None:
                name = kind.partition("-")[2].replace("-", " ")
                what = "What a user sees" if backend == "python" else "The project's own benchmark"
                lines += [f"### {what}{name and ': ' + name}", ""]
                lines += make(date, path)
    return "\n".join(lines).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = page()
    if not options.check:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(text)
        return 0
    with open(PAGE, encoding="utf-8") as file:
        if file.read() == text:
            return 0
    print("docs/PERFORMANCE.md is not what bench/results says: run tools/performance.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
