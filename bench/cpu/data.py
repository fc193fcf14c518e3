# SPDX-License-Identifier: Apache-2.0
"""Random operands of a layer, the same for every peer, and the double-precision results to hold them against."""

import numpy as np

BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}
# Relative Frobenius error allowed: some ten times what a correct result shows, which rounds pre, grad_pre and the
# result to the type at worst. A wrong term, row or column is far beyond.
LIMIT = {"f64": 1e-13, "f32": 1e-5, "f16": 3e-3, "bf16": 2e-2}
SAMPLED = 16


def to_stored(x, dtype):
    if dtype == "bf16":
        bits = x.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return x.astype({"f64": np.float64, "f32": np.float32, "f16": np.float16}[dtype])


def from_stored(raw, dtype):
    if dtype == "bf16":
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.frombuffer(raw, {"f64": np.float64, "f32": np.float32, "f16": np.float16}[dtype]).astype(np.float64)


def gelu_grad(x):
    c = np.sqrt(2 / np.pi)
    t = np.tanh(c * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x)


def pick(generator, count):
    """The first, the last and some between."""
    return np.unique(np.concatenate(([0, count - 1], generator.integers(0, count, SAMPLED))))


class Problem:
    """Operands on disk at `path`; b is scaled so that pre is of order 1, where gelu bends."""

    def __init__(self, shape, dtype, path):
        self.m, self.k, self.n = shape
        self.shape, self.dtype, self.path = shape, dtype, path
        generator = np.random.default_rng()
        m, k, n = shape
        scales = {"a": ((m, k), 1), "b": ((k, n), k**-0.5), "bias": ((n,), 1), "grad": ((m, n), 1)}
        with open(path, "wb") as file:
            for name, (size, scale) in scales.items():
                raw = to_stored(scale * generator.uniform(-1, 1, size), dtype).tobytes()
                file.write(raw)
                setattr(self, name, from_stored(raw, dtype).reshape(size))
        self.want(generator)

    def want(self, generator):
        """Some rows of d_a, some columns of d_b and d_bias: enough to see a wrong product, and little work."""
        self.rows, self.columns = pick(generator, self.m), pick(generator, self.n)
        r, c = self.rows, self.columns
        across = self.grad[r] * gelu_grad(self.a[r] @ self.b + self.bias)
        down = self.grad[:, c] * gelu_grad(self.a @ self.b[:, c] + self.bias[c])
        self.d_a, self.d_b, self.d_bias = across @ self.b.T, self.a.T @ down, down.sum(0)

    def bytes(self):
        return BYTES[self.dtype] * (2 * self.m * self.k + 2 * self.k * self.n + self.m * self.n + 2 * self.n)

    def flops(self):
        return 6.0 * self.m * self.k * self.n

    def error(self, path):
        """The worst relative error of d_a, d_b and d_bias as a peer wrote them; infinite where it left a NaN."""
        with open(path, "rb") as file:
            values = from_stored(file.read(), self.dtype)
        d_a, d_b, d_bias = np.split(values, [self.m * self.k, self.m * self.k + self.k * self.n])
        if not np.isfinite(values).all() or d_bias.size != self.n:
            return float("inf")
        pairs = ((d_a.reshape(self.m, self.k)[self.rows], self.d_a),
                 (d_b.reshape(self.k, self.n)[:, self.columns], self.d_b), (d_bias[self.columns], self.d_bias))
        return max(float(np.linalg.norm(got - want) / np.linalg.norm(want)) for got, want in pairs)
