# SPDX-License-Identifier: Apache-2.0
"""Prints src/cpu/derivative_tables.h: the f32 act' that vector units with a lookup in a register take from pieces.

    python3 tools/fit_derivatives.py > src/cpu/derivative_tables.h

Each act' here is 1/2 plus an odd function of x, which is 1/2 from some |x| on. Up to there w = |x| (1 - bend |x|)
times a scale is rounded to the number of a piece, and the rest, t in [-1/2, 1/2], goes into the piece's
polynomial: the interpolant at Chebyshev's nodes. A bend spends more of the pieces on small |x|. The last piece
is 1/2 itself, the first one has no constant term: act'(0) is exactly 1/2. The errors printed are those of the
rounded coefficients, evaluated exactly.
"""
import struct

import mpmath as mp

mp.mp.dps = 40
PIECES, NODES_CHECKED, GONE = 16, 64, mp.mpf("4e-8")


def sigmoid(v):
    return 1 / (1 + mp.exp(-v))


def gelu(x):
    c = 2 * mp.sqrt(2 / mp.pi)
    s = sigmoid(c * (x + mp.mpf("0.044715") * x**3))
    return s + x * c * (1 + 3 * mp.mpf("0.044715") * x * x) * s * (1 - s)


def gelu_erf(x):
    return mp.ncdf(x) + x * mp.npdf(x)


def silu(x):
    s = sigmoid(x)
    return s + x * s * (1 - s)


# name, act', degree, the share of w's derivative that is gone at the end, what is printed about it
CURVES = [
    ("gelu", gelu, 5, 0, "gelu"),
    ("gelu_erf", gelu_erf, 5, 0, "gelu_erf"),
    ("silu", silu, 6, mp.mpf("0.95"), "silu; of 1.702 x, quick_gelu"),
]


def to_f32(x):
    """Of what is next to nothing, zero: subnormal numbers are slow."""
    return struct.unpack("f", struct.pack("f", float(x)))[0] if abs(x) > mp.mpf("1e-20") else 0.0


def end_of(derivative):
    """The smallest |x| (to 1/1024) past which act' is 1 for f32."""
    return mp.mpf(max(i for i in range(40 * 1024) if abs(derivative(mp.mpf(i) / 1024) - 1) > GONE) + 1) / 1024


def interpolant(f, degree):
    """Powers of t of the polynomial through f at Chebyshev's nodes of [-1/2, 1/2]."""
    nodes = [mp.cos(mp.pi * (2 * k + 1) / (2 * degree + 2)) / 2 for k in range(degree + 1)]
    rows = mp.matrix([[t**j for j in range(degree + 1)] for t in nodes])
    return list(mp.lu_solve(rows, mp.matrix([f(t) for t in nodes])))


def fit(derivative, degree, gone):
    end = end_of(derivative)
    bend = gone / (2 * end)
    scale = (PIECES - mp.mpf(3) / 2) / (end * (1 - bend * end))
    scale, fall = mp.mpf(to_f32(scale)), mp.mpf(to_f32(scale * bend))  # w = |x| (scale - fall |x|)

    def x_of(w):
        return w / scale if fall == 0 else (scale - mp.sqrt(scale * scale - 4 * fall * w)) / (2 * fall)

    pieces, worst = [], mp.mpf(0)
    for i in range(PIECES - 1):
        odd = lambda t: derivative(x_of(i + t)) - mp.mpf(1) / 2  # noqa: E731
        powers = interpolant(odd, degree)
        if i == 0:
            powers[0] = mp.mpf(0)
        pieces.append([to_f32(c) for c in powers])
        for k in range(NODES_CHECKED + 1):
            t = mp.mpf(k) / NODES_CHECKED - mp.mpf(1) / 2
            if i > 0 or t >= 0:
                worst = max(worst, abs(mp.polyval([mp.mpf(c) for c in pieces[-1][::-1]], t) - odd(t)))
    pieces.append([0.5] + [0.0] * degree)
    last = x_of(mp.mpf(PIECES - 1)) if fall == 0 else scale / (2 * fall)  # where w ends, or turns
    return {"end": to_f32(last), "scale": to_f32(scale), "fall": to_f32(fall), "pieces": pieces, "worst": worst}


def number(x):
    text = f"{x:.9g}"
    return (text if "." in text or "e" in text else text + ".0") + "F"


def block(values):
    lines, line = [], "     {"
    for i, value in enumerate(values):
        word = number(value) + ("," if i + 1 < len(values) else "}")
        if len(line) + 1 + len(word) > 108:
            lines.append(line)
            line = "     "
        line += ("" if line.endswith("{") else " ") + word
    return "\n".join(lines + [line])


def main():
    print("""/* Derivative tables: act' of f32 as 1/2 and, with the sign of x, piece[0] + piece[1] t + ... of 16 pieces.
 * tools/fit_derivatives.py prints them, and says how they are fitted. vector.h evaluates them. */
// clang-format off
#ifndef EPIGRAD_CPU_DERIVATIVE_TABLES_H
#define EPIGRAD_CPU_DERIVATIVE_TABLES_H

typedef struct eg_derivative_table {
    int degree;
    float end, scale, fall; /* |x| is cut to `end`; piece number and t come from |x| (scale - fall |x|) */
    _Alignas(64) float piece[7][16];
} eg_derivative_table;
""")
    for name, derivative, degree, gone, text in CURVES:
        curve = fit(derivative, degree, gone)
        print(f"/* {text}: error {mp.nstr(curve['worst'], 2)} */")
        print(f"static const eg_derivative_table eg_derivative_{name} = {{")
        print(f"    {degree}, {number(curve['end'])}, {number(curve['scale'])}, {number(curve['fall'])},")
        print("    {" + ",\n".join(block([p[j] for p in curve["pieces"]]) for j in range(degree + 1)).lstrip() + "},")
        print("};\n")
    print("#endif /* EPIGRAD_CPU_DERIVATIVE_TABLES_H */")


main()
