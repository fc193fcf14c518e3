#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small character GPT on the documents of this repository, with torch's layers and with epigrad's.

    python3 examples/python/char_gpt.py [--steps 200] [--dtype float32] [--device cpu] [--plot FILE]

Both begin with the same weights and see the same batches, so their losses are the same but for rounding. The steps of
the two take turns; the time of a step is the median."""
import argparse
import copy
import glob
import os
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

import epigrad.torch

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        attended = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, letters, length, width=128, heads=4, layers=3):
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, text):
        x = self.letters(text) + self.places.weight[:text.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def read_text():
    text = "".join(open(page, encoding="utf-8").read() for page in sorted(glob.glob(f"{ROOT}/docs/explanation/*.md")))
    letters = sorted(set(text))
    return torch.tensor([letters.index(c) for c in text]), len(letters)


def step(model, optimiser, text, target):
    start = time.perf_counter()
    loss = F.cross_entropy(model(text).flatten(0, 1).float(), target.flatten())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    value = loss.item()  # waits for the device
    return value, time.perf_counter() - start


def plot(file, losses):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    for (name, values), style in zip(losses.items(), ("-", "--")):
        pyplot.plot(values, style, label=name)
    pyplot.xlabel("step")
    pyplot.ylabel("loss")
    pyplot.legend()
    pyplot.savefig(file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--plot")
    options = parser.parse_args()
    torch.manual_seed(1)
    data, letters = read_text()
    length, batch = 64, 8
    models = {"torch": GPT(letters, length).to(options.device, getattr(torch, options.dtype))}
    models["epigrad"] = copy.deepcopy(models["torch"])
    for replaced in epigrad.torch.patch(models["epigrad"]):
        print("replaced", replaced)
    optimisers = {name: torch.optim.AdamW(model.parameters(), 1e-3) for name, model in models.items()}
    losses, seconds = {name: [] for name in models}, {name: [] for name in models}
    for i in range(options.steps):
        starts = torch.randint(len(data) - length - 1, (batch, 1))
        piece = data[starts + torch.arange(length + 1)].to(options.device)
        for name, model in models.items():
            loss, time_of_step = step(model, optimisers[name], piece[:, :-1], piece[:, 1:])
            losses[name].append(loss)
            seconds[name].append(time_of_step)
        if i % 50 == 0 or i == options.steps - 1:
            print(f"step {i:4d}  loss " + "  ".join(f"{name} {losses[name][-1]:.4f}" for name in models))
    apart = max(abs(a - b) for a, b in zip(*losses.values()))
    print(f"losses are {apart:.4f} apart at most")
    print("a step takes " + ", ".join(f"{name} {statistics.median(s) * 1e3:.1f} ms" for name, s in seconds.items()))
    if options.plot:
        plot(options.plot, losses)


if __name__ == "__main__":
    main()
