# SPDX-License-Identifier: Apache-2.0
"""Prints the polynomial that activation.h uses for the tail of the normal distribution.

    q(z) = (1 - Phi(z)) * exp(z*z/2),  z >= 0,   as a polynomial in t = (z - 4) / (z + 4)

    python3 tools/fit_phi_tail.py f64 22
    python3 tools/fit_phi_tail.py f32 7

f64: the map takes [0, inf] to [-1, 1], where q is smooth: a Chebyshev interpolant at 96 nodes, cut at the degree
asked for and rewritten in powers of t, is within a hair of the best polynomial. The sum of the dropped coefficients
bounds the error.

f32: q is multiplied by exp(-z*z/2), so its error counts as much, but at least a hundredth, so that small values of
the tail keep four digits; and not at all from where that is 0. The polynomial with the least greatest error is found
by Lawson's iteration: least squares, whose weights grow where the error is large."""

import sys

import mpmath as mp
import numpy as np

mp.mp.dps = 60
NODES, CENTRE = 96, mp.mpf(4)
POINTS, ITERATIONS, END, LEAST_WEIGHT = 1001, 1000, 14.5, 1e-2


def tail(t):
    z = CENTRE * (1 + t) / (1 - t)
    return mp.erfc(z / mp.sqrt(2)) * mp.exp(z * z / 2) / 2


def powers_of(cheb):
    """Coefficients of Chebyshev's polynomials, as those of powers."""
    powers = [mp.mpf(0)] * len(cheb)
    before, current = [mp.mpf(1)], [mp.mpf(0), mp.mpf(1)]
    for j, of_basis in enumerate(cheb):
        basis = before if j == 0 else current
        for i, c in enumerate(basis):
            powers[i] += of_basis * c
        if j >= 1:
            after = [mp.mpf(0)] + [2 * c for c in current]
            for i, c in enumerate(before):
                after[i] -= c
            before, current = current, after
    return powers


def interpolant(degree):
    angles = [mp.pi * (k + mp.mpf(1) / 2) / NODES for k in range(NODES)]
    values = [tail(mp.cos(a)) for a in angles]
    cheb = [mp.mpf(2) / NODES * mp.fsum(v * mp.cos(j * a) for v, a in zip(values, angles)) for j in range(NODES)]
    cheb[0] /= 2
    print(f"# degree {degree}, dropped terms sum to {mp.nstr(mp.fsum(map(abs, cheb[degree + 1:])), 3)}")
    return powers_of(cheb[:degree + 1])


def weighted(degree):
    last = (END - 4) / (END + 4)
    t = -1 + (last + 1) * (1 - np.cos(np.linspace(0, np.pi, POINTS))) / 2
    z, q = 4 * (1 + t) / (1 - t), np.array([float(tail(mp.mpf(x))) for x in t])
    counts, basis = np.maximum(np.exp(-z * z / 2), LEAST_WEIGHT), np.vander(t, degree + 1, increasing=True)
    weights = np.ones_like(t)
    for _ in range(ITERATIONS):
        scale = counts * np.sqrt(weights)
        powers = np.linalg.lstsq(basis * scale[:, None], q * scale, rcond=None)[0]
        error = np.abs(basis @ powers - q) * counts
        weights *= error / error.max() + 1e-3
        weights /= weights.mean()
    powers = powers.astype(np.float32).astype(float)  # as they will be
    error = np.abs(basis @ powers - q)
    print(f"# degree {degree}, weighted error {(error * counts).max():.2g}, relative {(error / q).max():.2g}")
    return powers


def main():
    digits = {"f64": 20, "f32": 10}[sys.argv[1]]
    for i, c in enumerate({"f64": interpolant, "f32": weighted}[sys.argv[1]](int(sys.argv[2]))):
        print(f"{i:2d} {mp.nstr(mp.mpf(c), digits)}")


main()
