# SPDX-License-Identifier: Apache-2.0
"""Prints the polynomial that activation.h uses for the tail of the normal distribution.

    q(z) = (1 - Phi(z)) * exp(z*z/2),  z >= 0,   as a polynomial in t = (z - 4) / (z + 4)

The map takes [0, inf] to [-1, 1], where q is smooth: a Chebyshev interpolant at 96 nodes, cut at the
degree asked for and rewritten in powers of t, is within a hair of the best polynomial. The sum of the
dropped coefficients bounds the error.

    python3 tools/fit_phi_tail.py 22      # f64
    python3 tools/fit_phi_tail.py 11      # f32
"""
import sys

import mpmath as mp

mp.mp.dps = 60
NODES, CENTRE = 96, mp.mpf(4)


def tail(t):
    z = CENTRE * (1 + t) / (1 - t)
    return mp.erfc(z / mp.sqrt(2)) * mp.exp(z * z / 2) / 2


def main():
    degree = int(sys.argv[1])
    angles = [mp.pi * (k + mp.mpf(1) / 2) / NODES for k in range(NODES)]
    values = [tail(mp.cos(a)) for a in angles]
    cheb = [mp.mpf(2) / NODES * mp.fsum(v * mp.cos(j * a) for v, a in zip(values, angles)) for j in range(NODES)]
    cheb[0] /= 2
    print(f"# degree {degree}, dropped terms sum to {mp.nstr(mp.fsum(map(abs, cheb[degree + 1:])), 3)}")

    powers = [mp.mpf(0)] * (degree + 1)
    before, current = [mp.mpf(1)], [mp.mpf(0), mp.mpf(1)]
    for j in range(degree + 1):
        basis = before if j == 0 else current
        for i, c in enumerate(basis):
            powers[i] += cheb[j] * c
        if j >= 1:
            after = [mp.mpf(0)] + [2 * c for c in current]
            for i, c in enumerate(before):
                after[i] -= c
            before, current = current, after
    for i, c in enumerate(powers):
        print(f"{i:2d} {mp.nstr(c, 20 if degree > 12 else 10)}")


main()
