/* SPDX-License-Identifier: Apache-2.0 */
/* f16 and bf16 to and from f32 and f64, one number at a time: rounding to nearest even, NaNs stay NaNs
 * (quiet), overflow goes to infinity. */
#ifndef EG_HALF_H
#define EG_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t eg_bits_of_f32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float eg_f32_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float eg_f32_of_bf16(uint16_t x) { return eg_f32_of_bits((uint32_t)x << 16); }

static inline uint16_t eg_bf16_of_f32(float x) {
    const uint32_t bits = eg_bits_of_f32(x);
    if ((bits & 0x7fffffffU) > 0x7f800000U) return (uint16_t)((bits >> 16) | 0x40U);
    return (uint16_t)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/* f16 has 10 fraction bits and exponent bias 15, f32 has 23 and 127. */
#ifdef __aarch64__ /* which converts f16 in hardware, by the same rules */
static inline float eg_f32_of_f16(uint16_t x) {
    __fp16 number;
    memcpy(&number, &x, sizeof number);
    return (float)number;
}

static inline uint16_t eg_f16_of_f32(float x) {
    const __fp16 number = (__fp16)x;
    uint16_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}
#else
static inline float eg_f32_of_f16(uint16_t x) {
    const uint32_t sign = (uint32_t)(x & 0x8000U) << 16, magnitude = x & 0x7fffU;
    if (magnitude >= 0x7c00U) return eg_f32_of_bits(sign | 0x7f800000U | (magnitude << 13)); /* inf, NaN */
    if (magnitude >= 0x0400U) return eg_f32_of_bits(sign | ((magnitude << 13) + (112U << 23)));
    const float value = (float)magnitude * 0x1p-24F; /* subnormal */
    return sign ? -value : value;
}

static inline uint16_t eg_f16_of_f32(float x) {
    const uint32_t bits = eg_bits_of_f32(x), magnitude = bits & 0x7fffffffU;
    const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000U);
    if (magnitude > 0x7f800000U) return (uint16_t)(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
    if (magnitude >= 0x477ff000U) return (uint16_t)(sign | 0x7c00U); /* rounds past 65504 */
    if (magnitude >= 0x38800000U) {
        return (uint16_t)(sign | ((magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13));
    }
    /* Subnormal: adding 0.5 puts the last bit kept, 2^-24, at the end of the sum's fraction. */
    const float shifted = eg_f32_of_bits(magnitude) + 0.5F;
    return (uint16_t)(sign | (eg_bits_of_f32(shifted) - 0x3f000000U));
}
#endif

/* Rounds to f32 toward zero with the last bit set when inexact ("round to odd"), after which a second
 * rounding to at most 22 bits gives what one rounding would have given. */
static inline float eg_f32_odd_of_f64(double x) {
    const float nearest = (float)x;
    if ((double)nearest == x || nearest != nearest) return nearest;
    uint32_t bits = eg_bits_of_f32(nearest);
    const double back = (double)nearest;
    if ((x > 0 && back > x) || (x < 0 && back < x)) bits -= 1;
    return eg_f32_of_bits(bits | 1U);
}

#endif
