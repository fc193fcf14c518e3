# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of steps and of grouped layers on CUDA have in common: options, a stream, and files."""

import argparse
import json
import os
import sys
import time

import torch

import epigrad_c as eg
from graphs import header


def parser_of(text, sizes, dtypes, out):
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--sizes", default=sizes)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", default="bf16", choices=dtypes)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no further size is begun")
    parser.add_argument("--out", default=out)
    return parser


def parse_sizes(text):
    return [tuple(map(int, size.split("x"))) for size in text.split(",") if size]


def run(options, command, cases, measure, markdown):
    """measure(library, case) of each case, a row of a result; writes OUT.jsonl and markdown(head, rows) to OUT.md.
    Returns the exit status: 1 where a row is wrong."""
    torch.backends.cuda.matmul.allow_tf32 = False
    stream, begin, rows = torch.cuda.Stream(), time.monotonic(), []
    head = header(command, options.seed)
    os.makedirs(os.path.dirname(options.out) or ".", exist_ok=True)
    with torch.cuda.stream(stream), open(options.out + ".jsonl", "w", encoding="utf-8") as file:
        library = eg.Library(options.library, stream.cuda_stream)
        file.write(json.dumps(head) + "\n")
        for case in cases:
            if time.monotonic() - begin > options.seconds:
                break
            rows.append(measure(library, case))
            file.write(json.dumps(rows[-1]) + "\n")
            file.flush()
            print(json.dumps({key: value for key, value in rows[-1].items() if key != "steps"}), flush=True)
    text = markdown(head, rows)
    with open(options.out + ".md", "w", encoding="utf-8") as file:
        file.write(text)
    print(text, end="")
    return int(any("wrong" in row for row in rows))


def begin_on_device(seed):
    """Exits where there is no device; afterwards tensors are made on it."""
    if not torch.cuda.is_available():
        sys.exit("no CUDA device")
    torch.set_grad_enabled(False)
    torch.set_default_device("cuda")
    torch.manual_seed(seed)
