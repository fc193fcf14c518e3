/* SPDX-License-Identifier: Apache-2.0 */
/* Every activation of epigrad, ONCE: the table of rows, and below it each act(x) and act'(x).
 *
 * The formulas are written in a small dialect of macros that the C preprocessor turns into C over vectors
 * (src/cpu), CUDA C (src/cuda) and WGSL (src/webgpu): one text, one arithmetic on every device.
 *
 * To add an activation: one row in the table, and EG_FN(act_name, x), EG_FN(act_grad_name, x) below it
 * (and EG_FN(act_grad_y_name, y) if act' is a function of y). docs/howto/add-an-activation.md walks through.
 */
/* The dialect is not C to a formatter. */
// clang-format off
#ifndef EPIGRAD_ACTIVATION_H
#define EPIGRAD_ACTIVATION_H

/* X(NAME, name, value, from_y, text). `value` is ABI: rows are appended, never renumbered.
 * from_y: 1 if act' is a function of Y. */
#define EG_ACTIVATION_TABLE(X)                                                                             \
    X(NONE, none, 0, 1, "x")                                                                               \
    X(RELU, relu, 1, 1, "max(x, 0), with relu'(0) = 0")                                                    \
    X(GELU, gelu, 2, 0, "x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))")                                   \
    X(SILU, silu, 3, 0, "x sigmoid(x)")                                                                    \
    X(SIGMOID, sigmoid, 4, 1, "1 / (1 + exp(-x))")                                                         \
    X(TANH, tanh, 5, 1, "tanh(x)")                                                                         \
    X(GELU_ERF, gelu_erf, 6, 0, "x Phi(x), Phi the normal distribution")                                   \
    X(QUICK_GELU, quick_gelu, 7, 0, "x sigmoid(1.702 x)")                                                  \
    X(RELU2, relu2, 8, 0, "max(x, 0)^2")                                                                   \
    X(SOFTPLUS, softplus, 9, 0, "log(1 + exp(x))")                                                         \
    X(HARDSWISH, hardswish, 10, 0, "x min(max(x + 3, 0), 6) / 6, with derivative 0 at -3 and 1 at 3")      \
    X(MISH, mish, 11, 0, "x tanh(softplus(x))")

/* "none, relu, ...": the names of those whose act' is a function of Y, for messages. */
#define EG_NAMES_FROM_Y                                    (&EG_ACTIVATION_TABLE(EG_NAME_FROM_Y)[2])
#define EG_NAME_FROM_Y(NAME, name, value, from_y, text)    EG_NAME_FROM_Y_##from_y(name)
#define EG_NAME_FROM_Y_0(name)
#define EG_NAME_FROM_Y_1(name)                             ", " #name

#endif /* EPIGRAD_ACTIVATION_H */

/* ---- The formulas --------------------------------------------------------------------------------
 *
 * A file that wants them defines EG_ACTIVATION_FORMULAS and the dialect, then includes this header (as
 * often as it likes, once per dialect):
 *
 *   EG_REAL_BITS          32 or 64
 *   EG_FN(name, x)        opens a function of one value x      EG_CALL(name, x)   calls it
 *   EG_LET(name, value)   a named value                        EG_RETURN(value)
 *   EG_C(number)          a constant                           + - * / and < > are written as such
 *   EG_FMA(a, b, c)       a*b + c, fused where the device can
 *   EG_ABS, EG_MIN, EG_MAX, EG_ROUND (to nearest), EG_SELECT(condition, if_true, if_false)
 *   EG_POW2(n)            2^n for an integral n in the normal range; 0 for the exponent just below it
 *
 * A dialect may define for itself, where its device has them within the contract's error,
 *
 *   EG_EXP(x), EG_EXP_TIMES(factor, x)    e^x, e^(factor x) of numbers up to 40
 *   EG_DIVIDE(a, b)                       a / b for a b whose reciprocal is a normal number
 *   EG_LET_SIGMOID(v)                     with EG_SIGMOID_UNIT and EG_BOUNDED
 *   EG_ACT_FN(name, x), EG_GRAD_FN(name, x)   open an act or act' that it has as a table
 *
 * Rules that keep every formula finite (docs/reference/numerics.md has the errors):
 *   - exponentials are taken of -|.|, so they lie in [0, 1], or of what has an end above (mish, and a dialect's
 *     own EG_LET_SIGMOID): they never overflow;
 *   - x is clamped before it is multiplied by something that vanishes: never inf * 0;
 *   - 1 - sigmoid is computed as sigmoid of the negative, never by subtraction.
 * A NaN needs no care here: the epilogues test pre for it.
 */
#ifdef EG_ACTIVATION_FORMULAS

#define EG_STEP(c, rest) EG_FMA(rest, t, EG_C(c)) /* one step of Horner's rule in t */

#ifndef EG_DIVIDE
#define EG_DIVIDE(a, b) ((a) / (b))
#define EG_DIVIDE_IS_OURS
#endif

/* exp(t) - 1 for |t| <= ln(2)/2: the Taylor series, cut where the next term is below the rounding. */
EG_FN(expm1_near_0, t)
#if EG_REAL_BITS == 64
EG_LET(series,
       EG_STEP(1.0, EG_STEP(0.5, EG_STEP(1.6666666666666666667e-1, EG_STEP(4.1666666666666666667e-2,
       EG_STEP(8.3333333333333333333e-3, EG_STEP(1.3888888888888888889e-3, EG_STEP(1.9841269841269841270e-4,
       EG_STEP(2.4801587301587301587e-5, EG_STEP(2.7557319223985890653e-6, EG_STEP(2.7557319223985890653e-7,
       EG_STEP(2.5052108385441718775e-8, EG_STEP(2.0876756987868098979e-9,
       EG_C(1.6059043836821614599e-10))))))))))))))
#else
EG_LET(series,
       EG_STEP(1.0, EG_STEP(0.5, EG_STEP(1.6666666666666666667e-1, EG_STEP(4.1666666666666666667e-2,
       EG_STEP(8.3333333333333333333e-3, EG_STEP(1.3888888888888888889e-3, EG_C(1.9841269841269841270e-4))))))))
#endif
EG_RETURN(t * series)
EG_END

/* exp for x <= 40, expm1 for x <= 0: x = n ln 2 + t with n integral. ln 2 is split so that n * LN2_HIGH is exact.
 * At -EXP_END n is the exponent below that of the smallest normal number, where EG_POW2 is 0. */
#if EG_REAL_BITS == 64
#define EG_EXP_END  709.0
#define EG_LN2_HIGH 6.93147180369123816490e-1
#define EG_LN2_LOW  1.90821492927058770002e-10
#else
#define EG_EXP_END  88.2
#define EG_LN2_HIGH 6.933593750e-1
#define EG_LN2_LOW  (-2.12194440054690583e-4)
#endif

#ifndef EG_EXP
EG_FN(exp_bounded, x)
EG_LET(n, EG_ROUND(x * EG_C(1.4426950408889634074)))
EG_LET(t, EG_FMA(n, EG_C(-EG_LN2_LOW), EG_FMA(n, EG_C(-EG_LN2_HIGH), x)))
EG_LET(power, EG_POW2(n))
EG_RETURN(EG_FMA(power, EG_CALL(expm1_near_0, t), power))
EG_END
#define EG_EXP_BOUNDED(x) EG_CALL(exp_bounded, x)
#define EG_EXP(x) EG_EXP_BOUNDED(EG_MAX(x, EG_C(-EG_EXP_END)))
#define EG_EXP_IS_OURS
#endif
#ifndef EG_EXP_TIMES
#define EG_EXP_TIMES(factor, x) EG_EXP(EG_C(factor) * (x))
#define EG_EXP_TIMES_IS_OURS
#endif

EG_FN(expm1_nonpositive, x)
EG_LET(bounded, EG_MAX(x, EG_C(-EG_EXP_END)))
EG_LET(n, EG_ROUND(bounded * EG_C(1.4426950408889634074)))
EG_LET(t, EG_FMA(n, EG_C(-EG_LN2_LOW), EG_FMA(n, EG_C(-EG_LN2_HIGH), bounded)))
EG_LET(power, EG_POW2(n))
EG_RETURN(EG_FMA(power, EG_CALL(expm1_near_0, t), power - EG_C(1.0)))
EG_END

/* log(1 + e) for 0 <= e <= 1, as 2 artanh(r), r = e / (2 + e) <= 1/3: the Taylor series in t = r^2. */
EG_FN(log1p_unit, e)
EG_LET(r, EG_DIVIDE(e, EG_C(2.0) + e))
EG_LET(t, r * r)
#if EG_REAL_BITS == 64
EG_LET(series,
       EG_STEP(2.0, EG_STEP(6.6666666666666666667e-1, EG_STEP(0.4, EG_STEP(2.8571428571428571429e-1,
       EG_STEP(2.2222222222222222222e-1, EG_STEP(1.8181818181818181818e-1, EG_STEP(1.5384615384615384615e-1,
       EG_STEP(1.3333333333333333333e-1, EG_STEP(1.1764705882352941176e-1, EG_STEP(1.0526315789473684211e-1,
       EG_STEP(9.5238095238095238095e-2, EG_STEP(8.6956521739130434783e-2, EG_STEP(0.08,
       EG_STEP(7.4074074074074074074e-2, EG_STEP(6.8965517241379310345e-2,
       EG_C(6.4516129032258064516e-2)))))))))))))))))
#else
EG_LET(series,
       EG_STEP(2.0, EG_STEP(6.6666666666666666667e-1, EG_STEP(0.4, EG_STEP(2.8571428571428571429e-1,
       EG_STEP(2.2222222222222222222e-1, EG_STEP(1.8181818181818181818e-1,
       EG_C(1.5384615384615384615e-1))))))))
#endif
EG_RETURN(r * series)
EG_END

/* (1 - Phi(z)) exp(z^2/2) for z >= 0, Phi the normal distribution, as a polynomial in
 * t = (z - 4)/(z + 4) = 1 - 8/(z + 4). Coefficients: tools/fit_phi_tail.py. Error times
 * exp(-z^2/2): 8.5e-9, of f64 5.3e-17. */
EG_FN(phi_tail, z)
EG_LET(t, EG_FMA(EG_C(-8.0), EG_DIVIDE(EG_C(1.0), z + EG_C(4.0)), EG_C(1.0)))
#if EG_REAL_BITS == 64
EG_RETURN(EG_STEP(0.094410641301968929647, EG_STEP(-0.17039772154845439364, EG_STEP(0.12437925533926537758,
          EG_STEP(-0.07170740733782752436, EG_STEP(0.030864804106225148285, EG_STEP(-0.0084920954797582159091,
          EG_STEP(0.00050756207679998798414, EG_STEP(0.00063881382348542079249,
          EG_STEP(-0.00018718428669896723996, EG_STEP(-0.000045554706500327972707,
          EG_STEP(0.000028648442798579606927, EG_STEP(4.6307969177245657649e-6,
          EG_STEP(-4.3039043464912183561e-6, EG_STEP(-8.2743022565203666588e-7,
          EG_STEP(6.6229710875344592953e-7, EG_STEP(2.0262365606909649002e-7,
          EG_STEP(-9.534702277947433481e-8, EG_STEP(-4.9046782847242660783e-8,
          EG_STEP(1.047997890348480463e-8, EG_STEP(9.2598447471443118696e-9,
          EG_STEP(-4.5839893569679710067e-10, EG_STEP(-9.5435504309035015693e-10,
          EG_C(-4.7678512288096093092e-11))))))))))))))))))))))))
#else
EG_RETURN(EG_STEP(0.09441024065, EG_STEP(-0.1703996509, EG_STEP(0.124384515, EG_STEP(-0.07167481631,
          EG_STEP(0.03087359481, EG_STEP(-0.008613761514, EG_STEP(0.0003763455315,
          EG_C(0.0007329328801)))))))))
#endif
EG_END

/* sigmoid(v) as s, from p = sigmoid(|v|) and q = sigmoid(-|v|) = 1 - p; sigmoid'(v) = p q. Arguments are
 * clamped to where s is 0 or 1 and p q is 0: |v| to EXP_END, for which |x| of gelu is clamped to GELU_END. A
 * dialect may have another way to s and p q, take v in another unit, and bound it from below only where s alone
 * is wanted. */
#if EG_REAL_BITS == 64
#define EG_GELU_END 21.152
#else
#define EG_GELU_END 10.04
#endif
#ifndef EG_LET_SIGMOID
#define EG_SIGMOID_UNIT 1.0
#define EG_BOUNDED(x, end) EG_CLAMP(x, end)
#ifndef EG_EXP_BOUNDED
#define EG_EXP_BOUNDED(x) EG_EXP(x)
#define EG_EXP_BOUNDED_IS_EXP
#endif
#define EG_LET_SIGMOID(v)                                                                                  \
    EG_LET(e, EG_EXP_BOUNDED(-EG_ABS(v)))                                                                  \
    EG_LET(p, EG_C(1.0) / (EG_C(1.0) + e))                                                                 \
    EG_LET(q, e * p)                                                                                       \
    EG_LET(s, EG_SELECT((v) < EG_C(0.0), q, p))
#define EG_SIGMOID_IS_OURS
#endif
#define EG_CLAMP(x, end) EG_MAX(EG_MIN(x, EG_C(end)), EG_C(-end))

#ifndef EG_ACT_FN
#define EG_ACT_FN(name, x) EG_FN(act_##name, x)
#define EG_ACT_FN_IS_OURS
#endif
#ifndef EG_GRAD_FN
#define EG_GRAD_FN(name, x) EG_FN(act_grad_##name, x)
#define EG_GRAD_FN_IS_OURS
#endif

/* none */
EG_FN(act_none, x) EG_RETURN(x) EG_END
EG_FN(act_grad_none, x) EG_RETURN(EG_C(1.0)) EG_END
EG_FN(act_grad_y_none, y) EG_RETURN(EG_C(1.0)) EG_END

/* relu */
EG_FN(act_relu, x) EG_RETURN(EG_MAX(x, EG_C(0.0))) EG_END
EG_FN(act_grad_relu, x) EG_RETURN(EG_SELECT(x > EG_C(0.0), EG_C(1.0), EG_C(0.0))) EG_END
EG_FN(act_grad_y_relu, y) EG_RETURN(EG_SELECT(y > EG_C(0.0), EG_C(1.0), EG_C(0.0))) EG_END

/* gelu: with v = 2 sqrt(2/pi) (x + 0.044715 x^3), y = x sigmoid(v) and y' = sigmoid(v) + x v' p q */
#define EG_LET_GELU(bounded)                                                                               \
    EG_LET(c, bounded)                                                                                     \
    EG_LET(c2, c * c)                                                                                      \
    EG_LET(v, c * EG_FMA(c2, EG_C(7.1354816272600250e-2 * EG_SIGMOID_UNIT),                                \
                         EG_C(1.5957691216057307117598 * EG_SIGMOID_UNIT)))                                \
    EG_LET_SIGMOID(v)
EG_ACT_FN(gelu, x) EG_LET_GELU(EG_BOUNDED(x, EG_GELU_END)) EG_RETURN(EG_MAX(x, EG_C(-EG_GELU_END)) * s) EG_END
EG_GRAD_FN(gelu, x)
EG_LET_GELU(EG_CLAMP(x, EG_GELU_END))
EG_LET(dv, EG_FMA(c2, EG_C(2.1406444881780075e-1), EG_C(1.5957691216057307117598)))
EG_RETURN(EG_FMA(c * dv, p * q, s))
EG_END

/* silu: y' = s + x p q */
#define EG_LET_SILU(bounded)                                                                               \
    EG_LET(c, bounded)                                                                                     \
    EG_LET_SIGMOID(c * EG_C(EG_SIGMOID_UNIT))
EG_ACT_FN(silu, x) EG_LET_SILU(EG_BOUNDED(x, EG_EXP_END)) EG_RETURN(EG_MAX(x, EG_C(-EG_EXP_END)) * s) EG_END
EG_GRAD_FN(silu, x) EG_LET_SILU(EG_CLAMP(x, EG_EXP_END)) EG_RETURN(EG_FMA(c * p, q, s)) EG_END

/* sigmoid */
EG_FN(act_sigmoid, x) EG_LET_SIGMOID(EG_BOUNDED(x, EG_EXP_END) * EG_C(EG_SIGMOID_UNIT)) EG_RETURN(s) EG_END
EG_FN(act_grad_sigmoid, x) EG_LET_SIGMOID(EG_BOUNDED(x, EG_EXP_END) * EG_C(EG_SIGMOID_UNIT)) EG_RETURN(p * q) EG_END
EG_FN(act_grad_y_sigmoid, y) EG_RETURN(y * (EG_C(1.0) - y)) EG_END

/* tanh: from expm1, so that a small x keeps its relative accuracy; tanh' = sech^2 = 4 p q at 2x */
EG_ACT_FN(tanh, x)
EG_LET(f, EG_CALL(expm1_nonpositive, EG_C(-2.0) * EG_ABS(x)))
EG_LET(t, EG_DIVIDE(f, EG_C(2.0) + f))
EG_RETURN(EG_SELECT(x > EG_C(0.0), -t, t))
EG_END
EG_GRAD_FN(tanh, x)
EG_LET(e, EG_EXP_TIMES(-2.0, EG_ABS(x)))
EG_LET(p, EG_DIVIDE(EG_C(1.0), EG_C(1.0) + e))
EG_RETURN(EG_C(4.0) * p * (e * p))
EG_END
EG_FN(act_grad_y_tanh, y) EG_RETURN((EG_C(1.0) - y) * (EG_C(1.0) + y)) EG_END

/* gelu_erf: y = x Phi(x) and y' = Phi(x) + x phi(x); with z = |x| both are from Phi(-z) = bell T(z), T the tail's
 * polynomial: y'(-z) = bell (T(z) - z/sqrt(2 pi)), y'(z) = 1 - y'(-z). bell = exp(-z^2/2) is 0 from 40 on. */
#define EG_LET_PHI(x)                                                                                      \
    EG_LET(z, EG_MIN(EG_ABS(x), EG_C(40.0)))                                                               \
    EG_LET(bell, EG_EXP_TIMES(-0.5, z * z))                                                                \
    EG_LET(tail, EG_CALL(phi_tail, z))
EG_ACT_FN(gelu_erf, x)
EG_LET_PHI(x)
EG_LET(below, bell * tail)
EG_RETURN(EG_MAX(x, EG_C(-40.0)) * EG_SELECT(x < EG_C(0.0), below, EG_C(1.0) - below))
EG_END
EG_GRAD_FN(gelu_erf, x)
EG_LET_PHI(x)
EG_LET(below, bell * EG_FMA(EG_C(-3.9894228040143267794e-1), z, tail))
EG_RETURN(EG_SELECT(x < EG_C(0.0), below, EG_C(1.0) - below))
EG_END

/* quick_gelu */
#define EG_LET_QUICK(x)                                                                                    \
    EG_LET(v, EG_CLAMP(EG_C(1.702) * x, EG_EXP_END))                                                   \
    EG_LET_SIGMOID(v * EG_C(EG_SIGMOID_UNIT))
EG_ACT_FN(quick_gelu, x) EG_LET_QUICK(x) EG_RETURN(EG_MAX(x, EG_C(-EG_EXP_END)) * s) EG_END
EG_GRAD_FN(quick_gelu, x) EG_LET_QUICK(x) EG_RETURN(EG_FMA(v * p, q, s)) EG_END

/* relu2 */
EG_FN(act_relu2, x) EG_LET(r, EG_MAX(x, EG_C(0.0))) EG_RETURN(r * r) EG_END
EG_FN(act_grad_relu2, x) EG_RETURN(EG_C(2.0) * EG_MAX(x, EG_C(0.0))) EG_END

/* softplus: max(x, 0) + log(1 + exp(-|x|)) */
EG_FN(act_softplus, x)
EG_RETURN(EG_MAX(x, EG_C(0.0)) + EG_CALL(log1p_unit, EG_EXP(-EG_ABS(x))))
EG_END
EG_FN(act_grad_softplus, x) EG_LET_SIGMOID(EG_BOUNDED(x, EG_EXP_END) * EG_C(EG_SIGMOID_UNIT)) EG_RETURN(s) EG_END

/* hardswish */
EG_FN(act_hardswish, x)
EG_LET(gate, EG_MAX(EG_MIN(x + EG_C(3.0), EG_C(6.0)), EG_C(0.0)) / EG_C(6.0))
EG_RETURN(EG_MAX(x, EG_C(-3.0)) * gate)
EG_END
EG_FN(act_grad_hardswish, x)
/* exactly 0 at -1.5 */
EG_LET(inside, (EG_MAX(EG_MIN(x, EG_C(3.0)), EG_C(-3.0)) + EG_C(1.5)) / EG_C(3.0))
EG_LET(right, EG_SELECT(x < EG_C(3.0), inside, EG_C(1.0)))
EG_RETURN(EG_SELECT(x > EG_C(-3.0), right, EG_C(0.0)))
EG_END

/* mish: with e = exp(x) and n = e (e + 2), tanh(softplus(x)) = n / (n + 2), whose derivative is
 * 4 e (e + 1) / (n + 2)^2. From MISH_END on the first is 1 and the second 0. */
#if EG_REAL_BITS == 64
#define EG_MISH_END 40.0
#else
#define EG_MISH_END 20.0
#endif
#define EG_LET_MISH(x)                                                                                     \
    EG_LET(c, EG_MAX(EG_MIN(x, EG_C(EG_MISH_END)), EG_C(-750.0)))                                          \
    EG_LET(e, EG_EXP(c))                                                                                   \
    EG_LET(n, e * (e + EG_C(2.0)))                                                                         \
    EG_LET(r, EG_DIVIDE(EG_C(1.0), n + EG_C(2.0)))                                                         \
    EG_LET(w, n * r)
EG_FN(act_mish, x) EG_LET_MISH(x) EG_RETURN(EG_MAX(x, EG_C(-750.0)) * w) EG_END
EG_FN(act_grad_mish, x)
EG_LET_MISH(x)
EG_LET(dw, EG_C(4.0) * r * (e * r) * (e + EG_C(1.0)))
EG_RETURN(EG_FMA(c, dw, w))
EG_END

#undef EG_STEP
#undef EG_CLAMP
#undef EG_EXP_END
#undef EG_GELU_END
#undef EG_LN2_HIGH
#undef EG_LN2_LOW
#undef EG_LET_GELU
#undef EG_LET_SILU
#undef EG_LET_PHI
#undef EG_LET_QUICK
#undef EG_LET_MISH
#undef EG_MISH_END
#ifdef EG_DIVIDE_IS_OURS
#undef EG_DIVIDE
#undef EG_DIVIDE_IS_OURS
#endif
#ifdef EG_EXP_TIMES_IS_OURS
#undef EG_EXP_TIMES
#undef EG_EXP_TIMES_IS_OURS
#endif
#ifdef EG_EXP_IS_OURS
#undef EG_EXP
#undef EG_EXP_BOUNDED
#undef EG_EXP_IS_OURS
#endif
#ifdef EG_ACT_FN_IS_OURS
#undef EG_ACT_FN
#undef EG_ACT_FN_IS_OURS
#endif
#ifdef EG_GRAD_FN_IS_OURS
#undef EG_GRAD_FN
#undef EG_GRAD_FN_IS_OURS
#endif
#ifdef EG_SIGMOID_IS_OURS
#undef EG_LET_SIGMOID
#undef EG_SIGMOID_UNIT
#undef EG_BOUNDED
#undef EG_SIGMOID_IS_OURS
#endif
#ifdef EG_EXP_BOUNDED_IS_EXP
#undef EG_EXP_BOUNDED
#undef EG_EXP_BOUNDED_IS_EXP
#endif

#endif /* EG_ACTIVATION_FORMULAS */
