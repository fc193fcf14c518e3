# SPDX-License-Identifier: Apache-2.0
"""Prints src/cpu/activation_tables.h: f32 activations that vector units with a lookup in a register take from pieces.

    python3 tools/fit_activations.py > src/cpu/activation_tables.h

Each table is of a function of |x| that is 0 at 0, and a constant from some |x| on:

    act'  of gelu and its like   1/2 + sign(x) f(|x|)      from 1 at the right end, 0 at the left
    act   of gelu and its like   max(x, 0) - f(|x|)
    tanh  and tanh'              sign(x) f(|x|) and 1 - f(|x|)

Up to its end w = |x| (1 - bend |x|) times a scale is rounded to the number of a piece, and the rest, t in [-1/2, 1/2],
goes into the piece's polynomial: the interpolant at Chebyshev's nodes. A bend spends more of the pieces on small |x|.
The last piece is the constant. The first has no constant term, so that a small x keeps its relative accuracy. The
errors printed are those of the rounded coefficients, evaluated exactly.
"""
import struct

import mpmath as mp

mp.mp.dps = 40
PIECES, NODES_CHECKED, GONE = 16, 64, mp.mpf("4e-8")
HALF = mp.mpf(1) / 2


def sigmoid(v):
    return 1 / (1 + mp.exp(-v))


def of_gelu(x):
    """The argument of gelu's sigmoid, and its derivative."""
    c, cubic = 2 * mp.sqrt(2 / mp.pi), mp.mpf("0.044715")
    return c * (x + cubic * x**3), c * (1 + 3 * cubic * x * x)


def gelu_grad(x):
    v, dv = of_gelu(x)
    return sigmoid(v) + x * dv * sigmoid(v) * sigmoid(-v) - HALF


# table, f, where f ends, degree, the share of w's derivative that is gone at the end, what is printed about it
CURVES = [
    ("gelu_grad", gelu_grad, HALF, 5, 0, "gelu'"),
    ("gelu_erf_grad", lambda x: mp.ncdf(x) + x * mp.npdf(x) - HALF, HALF, 5, 0, "gelu_erf'"),
    ("silu_grad", lambda x: sigmoid(x) + x * sigmoid(x) * sigmoid(-x) - HALF, HALF, 6, mp.mpf("0.95"),
     "silu'; of 1.702 x, quick_gelu'"),
    ("tanh_grad", lambda x: mp.tanh(x)**2, 1, 6, mp.mpf("0.85"), "tanh'"),
    ("gelu", lambda x: x * sigmoid(-of_gelu(x)[0]), 0, 4, mp.mpf("0.95"), "gelu"),
    ("gelu_erf", lambda x: x * mp.ncdf(-x), 0, 4, mp.mpf("0.95"), "gelu_erf"),
    ("silu", lambda x: x * sigmoid(-x), 0, 5, mp.mpf("0.95"), "silu; of 1.702 x, 1.702 quick_gelu"),
    ("tanh", mp.tanh, 1, 5, mp.mpf("0.95"), "tanh"),
]


def to_f32(x):
    """Of what is next to nothing, zero: subnormal numbers are slow."""
    return struct.unpack("f", struct.pack("f", float(x)))[0] if abs(x) > mp.mpf("1e-20") else 0.0


def end_of(f, limit):
    """The smallest |x| (to 1/1024) past which f is `limit` for f32."""
    return mp.mpf(max(i for i in range(40 * 1024) if abs(f(mp.mpf(i) / 1024) - limit) > GONE) + 1) / 1024


def interpolant(f, nodes, powers):
    """Coefficients of these powers of t, of the polynomial through f at the nodes."""
    rows = mp.matrix([[t**j for j in powers] for t in nodes])
    return list(mp.lu_solve(rows, mp.matrix([f(t) for t in nodes])))


def nodes_of(count):
    """Chebyshev's, of [-1, 1]."""
    return [mp.cos(mp.pi * (2 * k + 1) / (2 * count)) for k in range(count)]


def piece_of(f, degree, first):
    if not first:
        return interpolant(f, [t / 2 for t in nodes_of(degree + 1)], range(degree + 1))
    return [mp.mpf(0)] + interpolant(f, [(t + 1) / 4 for t in nodes_of(degree)], range(1, degree + 1))


def fit(f, limit, degree, gone):
    end = end_of(f, limit)
    bend = gone / (2 * end)
    scale = (PIECES - mp.mpf(3) / 2) / (end * (1 - bend * end))
    scale, fall = mp.mpf(to_f32(scale)), mp.mpf(to_f32(scale * bend))  # w = |x| (scale - fall |x|)

    def x_of(w):
        return w / scale if fall == 0 else (scale - mp.sqrt(scale * scale - 4 * fall * w)) / (2 * fall)

    pieces, worst = [], mp.mpf(0)
    for i in range(PIECES - 1):
        of_t = lambda t: f(x_of(i + t))  # noqa: E731
        pieces.append([to_f32(c) for c in piece_of(of_t, degree, i == 0)])
        for k in range(NODES_CHECKED + 1):
            t = mp.mpf(k) / NODES_CHECKED - HALF
            if i > 0 or t >= 0:
                worst = max(worst, abs(mp.polyval([mp.mpf(c) for c in pieces[-1][::-1]], t) - of_t(t)))
    pieces.append([float(limit)] + [0.0] * degree)
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
    print("""/* SPDX-License-Identifier: Apache-2.0 */
/* Activation tables: f32 functions of |x| as piece[0] + piece[1] t + ... of 16 pieces, for act and act'.
 * tools/fit_activations.py prints them, and says how they are fitted. vector.h evaluates them. */
// clang-format off
#ifndef EPIGRAD_CPU_ACTIVATION_TABLES_H
#define EPIGRAD_CPU_ACTIVATION_TABLES_H

typedef struct eg_activation_table {
    int degree;
    float end, scale, fall; /* |x| is cut to `end`; piece number and t come from |x| (scale - fall |x|) */
    _Alignas(64) float piece[7][16];
} eg_activation_table;
""")
    for name, f, limit, degree, gone, text in CURVES:
        curve = fit(f, limit, degree, gone)
        print(f"/* {text}: error {mp.nstr(curve['worst'], 2)} */")
        print(f"static const eg_activation_table eg_table_{name} = {{")
        print(f"    {degree}, {number(curve['end'])}, {number(curve['scale'])}, {number(curve['fall'])},")
        print("    {" + ",\n".join(block([p[j] for p in curve["pieces"]]) for j in range(degree + 1)).lstrip() + "},")
        print("};\n")
    print("#endif /* EPIGRAD_CPU_ACTIVATION_TABLES_H */")


main()
