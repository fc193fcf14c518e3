/* activation.h as CUDA C: every act, act' and act'(y) as overloads of f32 and f64, and their dispatch.
 *
 * In f32 the exponential is the hardware's ex2 of a scaled argument: its error, some 2^-22 of a value in
 * [0, 1], stays within the contract of 4e-7. Compile with -prec-div=false: a division is then a reciprocal
 * and a multiplication (2 ulp over the full range), which every formula is bounded for. */
#ifndef EG_CUDA_DIALECT_CUH
#define EG_CUDA_DIALECT_CUH

#include "epigrad/epigrad.h"

#define EG_DEVICE static __device__ __forceinline__

EG_DEVICE float eg_fma(float a, float b, float c) { return fmaf(a, b, c); }
EG_DEVICE double eg_fma(double a, double b, double c) { return fma(a, b, c); }
EG_DEVICE float eg_min(float a, float b) { return fminf(a, b); }
EG_DEVICE double eg_min(double a, double b) { return fmin(a, b); }
EG_DEVICE float eg_max(float a, float b) { return fmaxf(a, b); }
EG_DEVICE double eg_max(double a, double b) { return fmax(a, b); }
EG_DEVICE float eg_abs(float x) { return fabsf(x); }
EG_DEVICE double eg_abs(double x) { return fabs(x); }
EG_DEVICE float eg_round(float x) { return rintf(x); }
EG_DEVICE double eg_round(double x) { return rint(x); }
EG_DEVICE float eg_pow2(float n) { return __int_as_float(((int)n + 127) << 23); }
EG_DEVICE double eg_pow2(double n) { return __longlong_as_double(((long long)n + 1023) << 52); }

EG_DEVICE float eg_exp_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
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
#define EG_FN(name, x)        EG_DEVICE EG_REAL eg_##name([[maybe_unused]] const EG_REAL x) {
#define EG_END                }
#define EG_CALL(name, x)      eg_##name(x)
#define EG_LET(name, value)   [[maybe_unused]] const EG_REAL name = value;
#define EG_RETURN(value)      return value;
#define EG_C(number)          ((EG_REAL)(number))
#define EG_FMA(a, b, c)       eg_fma(a, b, c)
#define EG_MIN(a, b)          eg_min(a, b)
#define EG_MAX(a, b)          eg_max(a, b)
#define EG_ABS(x)             eg_abs(x)
#define EG_ROUND(x)           eg_round(x)
#define EG_POW2(n)            eg_pow2(n)
#define EG_SELECT(when, a, b) ((when) ? (a) : (b))

#define EG_REAL      float
#define EG_REAL_BITS 32
#define EG_EXP(x)    eg_exp_fast(x)
#include "epigrad/activation.h"
#undef EG_REAL
#undef EG_REAL_BITS
#undef EG_EXP

#define EG_REAL      double
#define EG_REAL_BITS 64
#include "epigrad/activation.h"
#undef EG_REAL
#undef EG_REAL_BITS

/* ---- Dispatch ------------------------------------------------------------------------------------- */

/* Whether one of the numbers is NaN, or perhaps an infinity: one FMA a number where a test would take two
 * instructions of the slower integer pipe. */
template <int N, typename T> EG_DEVICE bool eg_maybe_nan(const T (&values)[N]) {
    T sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++) sum = eg_fma(values[i], (T)0, sum);
    return eg_is_nan(sum);
}

/* values[i] = act(values[i]). The switch stands outside the loop, so that it costs one uniform branch;
 * N is small, as each activation has its own copy of the loop. act(NaN) is NaN: the clamps hide it. */
template <int N, typename T> EG_DEVICE void eg_act(int activation, T (&values)[N]) {
    T y[N];
    switch (activation) {
#define EG_ROW(NAME, name, value, from_y, text)                                                              \
    case value:                                                                                              \
        _Pragma("unroll") for (int i = 0; i < N; i++) y[i] = eg_act_##name(values[i]);                       \
        break;
        EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW
    }
    if (eg_maybe_nan(values)) {
#pragma unroll
        for (int i = 0; i < N; i++) y[i] = eg_is_nan(values[i]) ? values[i] : y[i];
    }
#pragma unroll
    for (int i = 0; i < N; i++) values[i] = y[i];
}

/* slope[i] = act'(saved[i]), saved being pre or, with of_y, y. The derivative of none is 1 for NaN as well. */
#define EG_SLOPES(derivative)                                                                                \
    _Pragma("unroll") for (int i = 0; i < N; i++) slope[i] = derivative(saved[i]);
#define EG_SLOPES_OF_Y_0(name) EG_SLOPES(eg_act_grad_##name)
#define EG_SLOPES_OF_Y_1(name)                                                                               \
    if (of_y) {                                                                                              \
        EG_SLOPES(eg_act_grad_y_##name)                                                                      \
    } else {                                                                                                 \
        EG_SLOPES(eg_act_grad_##name)                                                                        \
    }
template <int N, typename T>
EG_DEVICE void eg_slopes(int activation, bool of_y, bool propagate, const T (&saved)[N], T (&slope)[N]) {
    switch (activation) {
#define EG_ROW(NAME, name, value, from_y, text)                                                              \
    case value:                                                                                              \
        EG_SLOPES_OF_Y_##from_y(name) break;
        EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW
    }
    if (activation != EG_ACT_NONE && eg_maybe_nan(saved)) {
        const T poison = propagate ? (T)__int_as_float(0x7fffffff) : (T)0;
#pragma unroll
        for (int i = 0; i < N; i++) slope[i] = eg_is_nan(saved[i]) ? poison : slope[i];
    }
}

/* grad[i] *= act'(saved[i]). */
template <int N, typename T>
EG_DEVICE void eg_act_grad(int activation, bool of_y, bool propagate, T (&grad)[N], const T (&saved)[N]) {
    T slope[N];
    eg_slopes(activation, of_y, propagate, saved, slope);
#pragma unroll
    for (int i = 0; i < N; i++) grad[i] *= slope[i];
}

#endif
