# SPDX-License-Identifier: Apache-2.0
"""Layers drawn with a seed, for record.py and sweep.py. The first layers of a longer draw are those of a shorter."""

import random
import typing

WIDTHS = [(768, 3072), (3072, 768), (768, 2304), (768, 768), (768, 50257), (1280, 5120), (1600, 6400),  # GPT-2
          (4096, 14336), (14336, 4096), (4096, 4096), (4096, 6144), (2048, 8192), (8192, 28672),  # Llama
          (3584, 18944), (18944, 3584), (896, 4864), (2048, 11008),  # Qwen
          (2304, 9216), (3072, 24576), (2048, 16384),  # Gemma
          (6144, 16384), (16384, 6144), (2048, 768), (768, 2048),  # experts of Mixtral and Qwen
          (384, 1536), (192, 768), (320, 1280), (1024, 4096), (4096, 1024), (1024, 1024),  # ViT, BERT
          (256, 128), (128, 256), (512, 512), (784, 512), (30, 50), (64, 64), (2048, 2048), (2048, 5632),  # small
          (1000, 10), (513, 1025), (1000, 1000), (4095, 4097), (4100, 4100), (50257, 768)]  # odd
ROWS = [1, 2, 4, 8, 16, 32, 64, 100, 128, 197, 256, 512, 1000, 1024, 1576, 2048, 3000, 4096, 8192, 16384, 32768]
MOST_FLOPS = {"bf16": 1.2e12, "f16": 1.2e12, "f32": 1.2e11, "f64": 4e10}


class Layer(typing.NamedTuple):
    dtype: str
    m: int
    k: int
    n: int
    weight: str  # kn: row-major b; nk: column-major, as PyTorch stores it
    activation: str


def draw_layers(seed, count, activations):
    """Different layers; an activation named twice is twice as frequent."""
    draw, layers = random.Random(seed), {}
    while len(layers) < count:
        k, n = draw.choice(WIDTHS)
        m = draw.choice(ROWS)
        if draw.random() < 0.2:  # any number, not only those that people choose
            m = round(2 ** draw.uniform(0, 15))
        dtype = draw.choices(list(MOST_FLOPS), [68, 12, 15, 5])[0]
        layer = Layer(dtype, m, k, n, draw.choice(["kn", "nk"]), draw.choice(activations))
        if 2.0 * m * k * n <= MOST_FLOPS[dtype]:
            layers[layer] = None
    return list(layers)
