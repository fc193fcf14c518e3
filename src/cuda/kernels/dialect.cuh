/* SPDX-License-Identifier: Apache-2.0 */
/* activation.h as CUDA C: every act, act' and act'(y) as overloads of f32 and f64, and their dispatch.
 *
 * In f32 the exponential is the hardware's ex2 of a scaled argument: its error, some 2^-22 of a value in
 * [0, 1], stays within the contract of 4e-7. Compile with -prec-div=false: a division is then a reciprocal
 * and a multiplication (2 ulp over the full range), which every formula is bounded for.
 *
 * In f64 nothing branches, so that the compiler can interleave several elements: the epilogue shares the f64
 * unit with the products, and its latencies are long. */
#ifndef EG_CUDA_DIALECT_CUH
#define EG_CUDA_DIALECT_CUH

#include <stdint.h>

#include "epigrad/epigrad.h"

#define EG_DEVICE static __device__ __forceinline__
#define EG_INLINE __attribute__((always_inline)) /* of lambdas: what they capture stays in registers */

/* Instructions name shared memory by its address in the block's window. */
EG_DEVICE uint32_t eg_shared_address(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}

EG_DEVICE float eg_fma(float a, float b, float c) { return fmaf(a, b, c); }
EG_DEVICE double eg_fma(double a, double b, double c) { return fma(a, b, c); }
/* NaN where one of them is. */
EG_DEVICE float eg_min(float a, float b) {
    float least;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
    return least;
}
EG_DEVICE double eg_min(double a, double b) { return a < b ? a : b; }
EG_DEVICE float eg_max(float a, float b) {
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
}
EG_DEVICE double eg_max(double a, double b) { return a > b ? a : b; }
EG_DEVICE float eg_abs(float x) { return fabsf(x); }
EG_DEVICE double eg_abs(double x) { return fabs(x); }
EG_DEVICE float eg_round(float x) { return rintf(x); }
EG_DEVICE float eg_pow2(float n) { return __int_as_float(((int)n + 127) << 23); }

/* The integer nearest to |x| < 2^31 is the low half of x + 1.5 * 2^52: conversions are slow instructions. */
#define EG_TO_INTEGER 6755399441055744.0
EG_DEVICE double eg_round(double x) { return (x + EG_TO_INTEGER) - EG_TO_INTEGER; }
EG_DEVICE double eg_pow2(double n) {
    return __hiloint2double((__double2loint(n + EG_TO_INTEGER) + 1023) << 20, 0);
}

/* a / b for a b whose reciprocal is a normal number: two of Newton's steps from the hardware's 20 bits, and
 * one for the quotient. */
EG_DEVICE double eg_divide(double a, double b) {
    double r;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(b));
    r = fma(fma(-b, r, 1.0), r, r);
    r = fma(fma(-b, r, 1.0), r, r);
    const double q = a * r;
    return fma(fma(-b, q, a), r, q);
}

EG_DEVICE float eg_exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

EG_DEVICE float eg_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* One instruction that no compiler option can remove. */
EG_DEVICE bool eg_is_nan(float x) {
    int answer;
    asm("{.reg .pred p; setp.nan.f32 p, %1, %1; selp.s32 %0, 1, 0, p;}" : "=r"(answer) : "f"(x));
    return answer != 0;
}
EG_DEVICE bool eg_is_nan(double x) {
    int answer;
    asm("{.reg .pred p; setp.nan.f64 p, %1, %1; selp.s32 %0, 1, 0, p;}" : "=r"(answer) : "d"(x));
    return answer != 0;
}

#define EG_ACTIVATION_FORMULAS
#define EG_FN(name, x)      EG_OF_DOUBLE(name) EG_DEVICE EG_REAL eg_##name([[maybe_unused]] const EG_REAL x) {
#define EG_END              }
#define EG_CALL(name, x)    eg_##name(x)
#define EG_LET(name, value) [[maybe_unused]] const EG_REAL name = value;
#define EG_RETURN(value)    return value;
#define EG_C(number)        ((EG_REAL)(number))
#define EG_FMA(a, b, c)     eg_fma(a, b, c)
#define EG_MIN(a, b)        eg_min(a, b)
#define EG_MAX(a, b)        eg_max(a, b)
#define EG_ABS(x)           eg_abs(x)
#define EG_ROUND(x)         eg_round(x)
#define EG_POW2(n)          eg_pow2(n)

#define EG_REAL      float
#define EG_REAL_BITS 32
#define EG_OF_DOUBLE(name)
#define EG_SELECT(when, a, b)   ((when) ? (a) : (b))
#define EG_EXP_TIMES(factor, x) eg_exp2_fast((float)((factor)*1.4426950408889634) * (x))
#define EG_EXP(x)               EG_EXP_TIMES(1.0, x)
#define EG_DIVIDE(a, b)         ((a)*eg_reciprocal(b))
/* An f32 has room for both ends of the exponential: s = 1 / (1 + e) for either sign of v, and p q = s (e s).
 * At v = -88.2 e is 2^127.2, whose reciprocal is flushed to 0. v is in binary digits, as ex2 takes it. */
#define EG_SIGMOID_UNIT    -1.4426950408889634
#define EG_BOUNDED(x, end) eg_max(x, EG_C(-end))
#define EG_LET_SIGMOID(v)                                                                                    \
    EG_LET(e, eg_exp2_fast(v))                                                                               \
    EG_LET(p, eg_reciprocal(EG_C(1.0) + e))                                                                  \
    EG_LET(q, e *p)                                                                                          \
    EG_LET(s, p)
#include "epigrad/activation.h"
#undef EG_REAL
#undef EG_REAL_BITS
#undef EG_OF_DOUBLE
#undef EG_SELECT
#undef EG_EXP
#undef EG_EXP_TIMES
#undef EG_DIVIDE
#undef EG_LET_SIGMOID
#undef EG_SIGMOID_UNIT
#undef EG_BOUNDED

/* A double whose division is eg_divide: the formulas' own. Who calls them passes a double. */
struct eg_f64 {
    double x;
    __device__ __forceinline__ eg_f64(double value) : x(value) {}
    __device__ __forceinline__ operator double() const { return x; }
};
EG_DEVICE eg_f64 operator/(eg_f64 a, eg_f64 b) { return eg_divide(a.x, b.x); }
EG_DEVICE eg_f64 operator+(eg_f64 a, eg_f64 b) { return a.x + b.x; }
EG_DEVICE eg_f64 operator-(eg_f64 a, eg_f64 b) { return a.x - b.x; }
EG_DEVICE eg_f64 operator*(eg_f64 a, eg_f64 b) { return a.x * b.x; }
EG_DEVICE eg_f64 operator-(eg_f64 a) { return -a.x; }
EG_DEVICE eg_f64 eg_fma(eg_f64 a, eg_f64 b, eg_f64 c) { return eg_fma(a.x, b.x, c.x); }
EG_DEVICE eg_f64 eg_min(eg_f64 a, eg_f64 b) { return eg_min(a.x, b.x); }
EG_DEVICE eg_f64 eg_max(eg_f64 a, eg_f64 b) { return eg_max(a.x, b.x); }
EG_DEVICE eg_f64 eg_abs(eg_f64 a) { return eg_abs(a.x); }
EG_DEVICE eg_f64 eg_round(eg_f64 a) { return eg_round(a.x); }
EG_DEVICE eg_f64 eg_pow2(eg_f64 a) { return eg_pow2(a.x); }
/* Both are evaluated. */
EG_DEVICE eg_f64 eg_select(bool when, eg_f64 a, eg_f64 b) { return when ? a.x : b.x; }

#define EG_REAL      eg_f64
#define EG_REAL_BITS 64
#define EG_OF_DOUBLE(name)                                                                                   \
    EG_DEVICE eg_f64 eg_##name(eg_f64 x);                                                                    \
    EG_DEVICE double eg_##name(double x) { return eg_##name(eg_f64(x)); }
#define EG_SELECT(when, a, b) eg_select(when, a, b)
#include "epigrad/activation.h"
#undef EG_REAL
#undef EG_REAL_BITS

/* ---- Dispatch ------------------------------------------------------------------------------------- */

/* Whether one of the numbers is NaN, or perhaps an infinity: one FMA a number where a test would take two
 * instructions of the slower integer pipe. Each chain of FMAs has eight. */
template <int N, typename T> EG_DEVICE bool eg_maybe_nan(const T (&values)[N]) {
    T sum = 0;
#pragma unroll
    for (int i = 0; i < N; i += 8) {
        T chain = 0;
#pragma unroll
        for (int j = i; j < i + 8 && j < N; j++) chain = eg_fma(values[j], (T)0, chain);
        sum += chain;
    }
    return eg_is_nan(sum);
}

/* f(act), f(act'), with the activation's function of one number. The loops of f are inside the switch: no
 * step of theirs branches, and exponentials and reciprocals overlap with other work. Each activation has its
 * own copy of f. */
template <typename F> EG_DEVICE void eg_with_act(int activation, const F &f) {
    switch (activation) {
#define EG_ROW(NAME, name, value, from_y, text)                                                              \
    case value:                                                                                              \
        return f([](auto x) { return eg_act_##name(x); });
        EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW
    }
}

#define EG_WITH(derivative) f([](auto x) { return derivative(x); })
#define EG_WITH_Y_0(name)   EG_WITH(eg_act_grad_##name)
#define EG_WITH_Y_1(name)   of_y ? EG_WITH(eg_act_grad_y_##name) : EG_WITH(eg_act_grad_##name)
template <typename F> EG_DEVICE void eg_with_act_grad(int activation, bool of_y, const F &f) {
    switch (activation) {
#define EG_ROW(NAME, name, value, from_y, text)                                                              \
    case value:                                                                                              \
        return EG_WITH_Y_##from_y(name);
        EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW
    }
}

/* values[i] = act(values[i]). act(NaN) is NaN: in f64 the clamps hide it. */
template <int N> EG_DEVICE void eg_act(int activation, float (&values)[N]) {
    eg_with_act(activation, [&](const auto &act) {
#pragma unroll
        for (int i = 0; i < N; i++) values[i] = act(values[i]);
    });
}
template <int N> EG_DEVICE void eg_act(int activation, double (&values)[N]) {
    double y[N];
    eg_with_act(activation, [&](const auto &act) {
#pragma unroll
        for (int i = 0; i < N; i++) y[i] = act(values[i]);
    });
    if (eg_maybe_nan(values)) {
#pragma unroll
        for (int i = 0; i < N; i++) y[i] = eg_is_nan(values[i]) ? values[i] : y[i];
    }
#pragma unroll
    for (int i = 0; i < N; i++) values[i] = y[i];
}

/* d_act[i] = act'(saved[i]), where saved is pre or y. That of none is 1 for NaN as well. */
template <int N, typename T, typename D>
EG_DEVICE void eg_act_derivatives_by(const D &derivative, bool none, bool propagate, const T (&saved)[N],
                                     T (&d_act)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) d_act[i] = derivative(saved[i]);
    if (!none && eg_maybe_nan(saved)) {
        const T poison = propagate ? (T)__int_as_float(0x7fffffff) : (T)0;
#pragma unroll
        for (int i = 0; i < N; i++) d_act[i] = eg_is_nan(saved[i]) ? poison : d_act[i];
    }
}

template <int N, typename T>
EG_DEVICE void eg_act_derivatives(int activation, bool of_y, bool propagate, const T (&saved)[N],
                                  T (&d_act)[N]) {
    eg_with_act_grad(activation, of_y, [&](const auto &derivative) {
        eg_act_derivatives_by(derivative, activation == EG_ACT_NONE, propagate, saved, d_act);
    });
}

/* grad[i] *= act'(saved[i]). */
template <int N, typename T>
EG_DEVICE void eg_act_grad(int activation, bool of_y, bool propagate, T (&grad)[N], const T (&saved)[N]) {
    T d_act[N];
    eg_act_derivatives(activation, of_y, propagate, saved, d_act);
#pragma unroll
    for (int i = 0; i < N; i++) grad[i] *= d_act[i];
}

#endif
