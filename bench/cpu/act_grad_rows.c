/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the element-wise pass, written so that the compiler vectorises them: no branch, no call, one
 * exponential and one division an element. Compiled once for each instruction set, ISA being its name.
 *
 *     u = 2 c (x + 0.044715 x^3), s = 1 / (1 + e^-u):  gelu(x) = x s,  gelu'(x) = s + x s (1 - s) u'(x)
 *
 * and 1 - s = e^-u s, which does not cancel where s is close to 1. */
#include "act_grad.h"

#include <math.h>
#include <string.h>

#define JOIN_(a, b) a##_##b
#define JOIN(a, b)  JOIN_(a, b)
#define NAME(name)  JOIN(name, ISA)

/* e^x = 2^i e^r, |r| <= ln(2)/2: Taylor's series, off by 5e-9 after r^7 and by 2e-18 after r^14. The argument
 * is kept where 2^i is a normal number; beyond, gelu' is 0 or 1 to all digits. */
static inline float exp_f32(float x) {
    x = x < -87 ? -87 : x;
    x = x > 87 ? 87 : x;
    const float i = rintf(x * 1.44269504F);
    const float r = fmaf(i, -1.42860677e-6F, fmaf(i, -0.693145752F, x));
    float p = 1.0F / 5040;
    p = fmaf(p, r, 1.0F / 720);
    p = fmaf(p, r, 1.0F / 120);
    p = fmaf(p, r, 1.0F / 24);
    p = fmaf(p, r, 1.0F / 6);
    p = fmaf(p, r, 0.5F);
    p = fmaf(p, r, 1.0F);
    p = fmaf(p, r, 1.0F);
    const int32_t bits = ((int32_t)i + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static inline double exp_f64(double x) {
    x = x < -700 ? -700 : x;
    x = x > 700 ? 700 : x;
    const double shift = 0x1.8p52, shifted = x * 1.4426950408889634 + shift, i = shifted - shift;
    const double r = fma(i, -1.9082149292705877e-10, fma(i, -0.69314718036912382, x));
    double p = 1.0 / 87178291200;
    p = fma(p, r, 1.0 / 6227020800);
    p = fma(p, r, 1.0 / 479001600);
    p = fma(p, r, 1.0 / 39916800);
    p = fma(p, r, 1.0 / 3628800);
    p = fma(p, r, 1.0 / 362880);
    p = fma(p, r, 1.0 / 40320);
    p = fma(p, r, 1.0 / 5040);
    p = fma(p, r, 1.0 / 720);
    p = fma(p, r, 1.0 / 120);
    p = fma(p, r, 1.0 / 24);
    p = fma(p, r, 1.0 / 6);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    p = fma(p, r, 1.0);
    int64_t bits; /* the low bits of `shifted` are the integer i */
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static inline float gelu_grad_f32(float x) {
    const float c = 0.797884561F, square = x * x;
    const float e = exp_f32(-2 * c * x * fmaf(0.044715F, square, 1.0F)), s = 1 / (1 + e);
    return fmaf(2 * c * x * fmaf(3 * 0.044715F, square, 1.0F), e * s * s, s);
}

static inline double gelu_grad_f64(double x) {
    const double c = 0.79788456080286536, square = x * x;
    const double e = exp_f64(-2 * c * x * fma(0.044715, square, 1.0)), s = 1 / (1 + e);
    return fma(2 * c * x * fma(3 * 0.044715, square, 1.0), e * s * s, s);
}

static inline float from_bf16(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define SAME(x) (x)

/* pre, grad and grad_pre dense; d_bias sums are taken before grad_pre is rounded. */
#define ACT_GRAD_ROWS(name, real, stored, gelu_grad, load, store)                                            \
    void NAME(name)(int64_t rows, int64_t n, const void *pre, const void *bias, const void *grad,            \
                    void *grad_pre, void *sums) {                                                            \
        const stored *restrict shift = bias;                                                                 \
        real *restrict sum = sums;                                                                           \
        for (int64_t i = 0; i < rows; i++) {                                                                 \
            const real *x = (const real *)pre + i * n;                                                       \
            const stored *restrict g = (const stored *)grad + i * n;                                         \
            stored *y = (stored *)grad_pre + i * n;                                                          \
            _Pragma("omp simd") for (int64_t j = 0; j < n; j++) {                                            \
                const real value = load(g[j]) * gelu_grad(x[j] + load(shift[j]));                            \
                sum[j] += value;                                                                             \
                y[j] = store(value);                                                                         \
            }                                                                                                \
        }                                                                                                    \
    }

ACT_GRAD_ROWS(act_grad_f32, float, float, gelu_grad_f32, SAME, SAME)
ACT_GRAD_ROWS(act_grad_f64, double, double, gelu_grad_f64, SAME, SAME)
ACT_GRAD_ROWS(act_grad_bf16, float, uint16_t, gelu_grad_f32, from_bf16, to_bf16)

void NAME(round_bf16)(int64_t count, uint16_t *restrict to, const float *restrict from) {
    for (int64_t i = 0; i < count; i++) to[i] = to_bf16(from[i]);
}
