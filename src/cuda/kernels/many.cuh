/* SPDX-License-Identifier: Apache-2.0 */
/* activation.h once more, for N numbers of f32 at once: each step of a formula is made for all of them before
 * the next step. In the order of one number after the other the compiler runs two or three side by side, and
 * a warp that is alone on its scheduler waits for each exponential and each reciprocal. */
#ifndef EG_CUDA_MANY_CUH
#define EG_CUDA_MANY_CUH

#include "dialect.cuh"

template <int N> struct eg_many {
    float x[N];
    eg_many() = default;
    __device__ __forceinline__ eg_many(float same) {
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = same;
    }
};
template <int N> struct eg_truths { bool x[N]; };

EG_DEVICE float eg_one_of(float x, int) { return x; }
template <int N> EG_DEVICE float eg_one_of(const eg_many<N> &x, int i) { return x.x[i]; }

/* A function of several arguments, of which one at least is many: number by number. */
template <int N, typename F> EG_DEVICE eg_many<N> eg_each(const F &f) {
    eg_many<N> y;
#pragma unroll
    for (int i = 0; i < N; i++) y.x[i] = f(i);
    return y;
}

#define EG_MANY_OPERATOR(op)                                                                                 \
    template <int N> EG_DEVICE eg_many<N> operator op(const eg_many<N> &a, const eg_many<N> &b) {            \
        return eg_each<N>([&](int i) { return a.x[i] op b.x[i]; });                                          \
    }                                                                                                        \
    template <int N> EG_DEVICE eg_many<N> operator op(const eg_many<N> &a, float b) {                        \
        return eg_each<N>([&](int i) { return a.x[i] op b; });                                               \
    }                                                                                                        \
    template <int N> EG_DEVICE eg_many<N> operator op(float a, const eg_many<N> &b) {                        \
        return eg_each<N>([&](int i) { return a op b.x[i]; });                                               \
    }
EG_MANY_OPERATOR(+)
EG_MANY_OPERATOR(-)
EG_MANY_OPERATOR(*)
EG_MANY_OPERATOR(/)
#undef EG_MANY_OPERATOR
template <int N> EG_DEVICE eg_many<N> operator-(const eg_many<N> &a) {
    return eg_each<N>([&](int i) { return -a.x[i]; });
}
template <int N> EG_DEVICE eg_truths<N> operator<(const eg_many<N> &a, float b) {
    eg_truths<N> y;
#pragma unroll
    for (int i = 0; i < N; i++) y.x[i] = a.x[i] < b;
    return y;
}
template <int N> EG_DEVICE eg_truths<N> operator>(const eg_many<N> &a, float b) {
    eg_truths<N> y;
#pragma unroll
    for (int i = 0; i < N; i++) y.x[i] = a.x[i] > b;
    return y;
}

template <int N, typename B, typename C>
EG_DEVICE eg_many<N> eg_fma(const eg_many<N> &a, const B &b, const C &c) {
    return eg_each<N>([&](int i) { return fmaf(a.x[i], eg_one_of(b, i), eg_one_of(c, i)); });
}
template <int N, typename C> EG_DEVICE eg_many<N> eg_fma(float a, const eg_many<N> &b, const C &c) {
    return eg_each<N>([&](int i) { return fmaf(a, b.x[i], eg_one_of(c, i)); });
}
template <int N> EG_DEVICE eg_many<N> eg_min(const eg_many<N> &a, float b) {
    return eg_each<N>([&](int i) { return eg_min(a.x[i], b); });
}
template <int N> EG_DEVICE eg_many<N> eg_max(const eg_many<N> &a, float b) {
    return eg_each<N>([&](int i) { return eg_max(a.x[i], b); });
}
template <int N> EG_DEVICE eg_many<N> eg_abs(const eg_many<N> &a) {
    return eg_each<N>([&](int i) { return fabsf(a.x[i]); });
}
template <int N> EG_DEVICE eg_many<N> eg_round(const eg_many<N> &a) {
    return eg_each<N>([&](int i) { return rintf(a.x[i]); });
}
template <int N> EG_DEVICE eg_many<N> eg_pow2(const eg_many<N> &a) {
    return eg_each<N>([&](int i) { return eg_pow2(a.x[i]); });
}
template <int N, typename A, typename B>
EG_DEVICE eg_many<N> eg_select(const eg_truths<N> &when, const A &a, const B &b) {
    return eg_each<N>([&](int i) { return when.x[i] ? eg_one_of(a, i) : eg_one_of(b, i); });
}
template <int N> EG_DEVICE eg_many<N> eg_exp2_fast(const eg_many<N> &a) {
    return eg_each<N>([&](int i) { return eg_exp2_fast(a.x[i]); });
}
template <int N> EG_DEVICE eg_many<N> eg_reciprocal(const eg_many<N> &a) {
    return eg_each<N>([&](int i) { return eg_reciprocal(a.x[i]); });
}

/* ---- Finite numbers within bounds ----------------------------------------------------------------- */

/* Two numbers of bf16 are bounded by one instruction, before they are widened. With e below 2^62 two numbers
 * share a reciprocal: that takes eight clocks of a scheduler for a warp, a product one. Results beyond the
 * bounds are those at the bound, which differ by less than 2^-50. In f16 there are numbers for which the
 * error of a shared reciprocal may be more than the contract's. */
enum : uint32_t { EG_PAIR_GELU_END = 0x40f040f0, EG_PAIR_SILU_END = 0x422b422b /* 7.5, 42.75 */ };
EG_DEVICE uint32_t eg_pair_at_most(uint32_t pair, uint32_t ends) {
    uint32_t y;
    asm("min.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(pair), "r"(ends));
    return y;
}
EG_DEVICE uint32_t eg_pair_at_least_minus(uint32_t pair, uint32_t ends) {
    uint32_t y;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(pair), "r"(ends | 0x80008000U));
    return y;
}
template <int N> EG_DEVICE eg_many<N> eg_shared_reciprocal(const eg_many<N> &a) {
    static_assert(N % 2 == 0, "pairs");
    eg_many<N> y;
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        const float of_both = eg_reciprocal(a.x[i] * a.x[i + 1]);
        y.x[i] = of_both * a.x[i + 1], y.x[i + 1] = of_both * a.x[i];
    }
    return y;
}

#undef EG_FN
#undef EG_LET
#define EG_LET(name, value) [[maybe_unused]] const auto name = value;

#define EG_REAL                 float
#define EG_REAL_BITS            32
#define EG_SELECT(when, a, b)   eg_select(when, a, b)
#define EG_EXP_TIMES(factor, x) eg_exp2_fast((float)((factor)*1.4426950408889634) * (x))
#define EG_EXP(x)               EG_EXP_TIMES(1.0, x)
#define EG_DIVIDE(a, b)         ((a)*eg_reciprocal(b))
#define EG_SIGMOID_UNIT         -1.4426950408889634
#define EG_FN(name, x)                                                                                       \
    template <int N> EG_DEVICE eg_many<N> eg_bounded_##name([[maybe_unused]] const eg_many<N> &x) {
#undef EG_MIN
#undef EG_MAX
#define EG_MIN(x, end)     (x) /* gelu' and silu have no others than those that bound x */
#define EG_MAX(x, end)     (x)
#define EG_BOUNDED(x, end) (x)
#define EG_LET_SIGMOID(v)                                                                                    \
    EG_LET(e, eg_exp2_fast(v))                                                                               \
    EG_LET(p, eg_shared_reciprocal(EG_C(1.0) + e))                                                           \
    EG_LET(q, e *p)                                                                                          \
    EG_LET(s, p)
#include "epigrad/activation.h"
#undef EG_FN
#undef EG_MIN
#undef EG_MAX
#undef EG_BOUNDED
#undef EG_LET_SIGMOID

/* ---- Any numbers ---------------------------------------------------------------------------------- */

#define EG_MIN(a, b)       eg_min(a, b)
#define EG_MAX(a, b)       eg_max(a, b)
#define EG_BOUNDED(x, end) eg_max(x, EG_C(-end))
#define EG_FN(name, x)     template <int N> EG_DEVICE eg_many<N> eg_##name([[maybe_unused]] const eg_many<N> &x) {
#define EG_LET_SIGMOID(v)                                                                                    \
    EG_LET(e, eg_exp2_fast(v))                                                                               \
    EG_LET(p, eg_reciprocal(EG_C(1.0) + e))                                                                  \
    EG_LET(q, e *p)                                                                                          \
    EG_LET(s, p)
#include "epigrad/activation.h"

/* ---- Dispatch ------------------------------------------------------------------------------------- */

enum { EG_AT_ONCE = 8 /* of 4, 8, 16, 32 what ptxas makes the shortest schedules of */ };

/* values[i] = f(values[i]). */
template <int N, typename F> EG_DEVICE void eg_apply_many(const F &f, float (&values)[N]) {
#pragma unroll
    for (int i = 0; i < N; i += EG_AT_ONCE) {
        eg_many<EG_AT_ONCE> some;
#pragma unroll
        for (int j = 0; j < EG_AT_ONCE; j++) some.x[j] = values[i + j];
        some = f(some);
#pragma unroll
        for (int j = 0; j < EG_AT_ONCE; j++) values[i + j] = some.x[j];
    }
}

/* values[i] = act(values[i]). A NaN passes through clamps, and stays. GELU does without the jump to an
 * activation, for which a warp waits. */
template <int N> EG_DEVICE void eg_act_many(int activation, float (&values)[N]) {
    const auto apply = [&](const auto &act) { eg_apply_many(act, values); };
    if (activation == EG_ACT_GELU) {
        apply([](auto x) { return eg_act_gelu(x); });
    } else {
        eg_with_act(activation, apply);
    }
}

/* values[i] = act'(values[i]), of pre or y, as eg_act_derivatives. maybe_nan: whether one of them may be NaN.
 * Which are is kept as bits, so that registers are free for the derivatives. */
template <int N>
EG_DEVICE void eg_act_derivatives_many(int activation, bool of_y, bool propagate, bool maybe_nan,
                                       float (&values)[N]) {
    static_assert(N <= 32, "the bits");
    uint32_t nan = 0;
    if (__builtin_expect(maybe_nan && activation != EG_ACT_NONE, 0)) {
#pragma unroll
        for (int i = 0; i < N; i++) nan |= (uint32_t)eg_is_nan(values[i]) << i;
    }
    const auto apply = [&](const auto &derivative) { eg_apply_many(derivative, values); };
    if (activation == EG_ACT_GELU) {
        apply([](auto x) { return eg_act_grad_gelu(x); });
    } else {
        eg_with_act_grad(activation, of_y, apply);
    }
    if (__builtin_expect(nan != 0, 0)) {
        const float poison = propagate ? __int_as_float(0x7fffffff) : 0;
#pragma unroll
        for (int i = 0; i < N; i++) values[i] = nan >> i & 1 ? poison : values[i];
    }
}

#endif
