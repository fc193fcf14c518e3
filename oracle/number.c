/* SPDX-License-Identifier: Apache-2.0 */
#include "number.h"

#include <math.h>
#include <string.h>

/* ---- The formats -------------------------------------------------------------------------------- */

typedef struct format {
    int digits;      /* significant bits, the leading one included */
    int least, most; /* exponents of the smallest normal and the largest number */
} format;

static format format_of(eg_dtype dtype) {
    switch (dtype) {
    case EG_F64:
        return (format){53, -1022, 1023};
    case EG_F16:
        return (format){11, -14, 15};
    case EG_BF16:
        return (format){8, -126, 127};
    case EG_F32:
    case EG_DTYPE_DEFAULT:
        break;
    }
    return (format){24, -126, 127};
}

/* A quarter of a test's time would be ldexp's and ilogb's, once or more for each number. */
static double power_of_two(int exponent) {
    double x;
    if (exponent < -1022 || exponent > 1023) return ldexp(1, exponent);
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* x is not 0. ilogb where it must be. */
static int exponent_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int biased = (int)(bits >> 52 & 0x7ff);
    return biased == 0 || biased == 0x7ff ? ilogb(x) : biased - 1023;
}

double oracle_unit_roundoff(eg_dtype dtype) { return power_of_two(-format_of(dtype).digits); }

eg_dtype oracle_compute_dtype(eg_dtype dtype) { return dtype == EG_F64 ? EG_F64 : EG_F32; }

/* Subnormal numbers, and 0, share the spacing of the smallest normal. */
double oracle_spacing(double x, eg_dtype dtype) {
    const format f = format_of(dtype);
    const int exponent = x == 0 ? f.least : exponent_of(x);
    return power_of_two((exponent < f.least ? f.least : exponent) - f.digits + 1);
}

double oracle_round(double x, eg_dtype dtype) {
    if (dtype == EG_F64 || x == 0 || !isfinite(x)) return x;
    if (dtype == EG_F32) return (double)(float)x;
    const double spacing = oracle_spacing(x, dtype), rounded = nearbyint(x / spacing) * spacing;
    return fabs(rounded) >= power_of_two(format_of(dtype).most + 1) ? copysign((double)INFINITY, x) : rounded;
}

/* ---- f16 and bf16 in memory --------------------------------------------------------------------- */

static double half_value(uint16_t bits, eg_dtype dtype) {
    const format f = format_of(dtype);
    const int fraction_bits = f.digits - 1;
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const int exponent = (bits & 0x7fff) >> fraction_bits, all_ones = f.most - f.least + 2;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == all_ones) return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * fraction * power_of_two(f.least - fraction_bits);
    return sign * ((1 << fraction_bits) + fraction) * power_of_two(exponent - 1 + f.least - fraction_bits);
}

static uint16_t half_bits(double x, eg_dtype dtype) {
    const format f = format_of(dtype);
    const int fraction_bits = f.digits - 1, all_ones = f.most - f.least + 2;
    const unsigned sign = signbit(x) ? 0x8000U : 0U;
    if (isnan(x)) return (uint16_t)(sign | (unsigned)all_ones << fraction_bits | 1U << (fraction_bits - 1));
    if (isinf(x)) return (uint16_t)(sign | (unsigned)all_ones << fraction_bits);
    if (x == 0) return (uint16_t)sign;
    const int exponent = exponent_of(x);
    if (exponent < f.least)
        return (uint16_t)(sign | (unsigned)(fabs(x) * power_of_two(fraction_bits - f.least)));
    const unsigned significand =
        (unsigned)(fabs(x) * power_of_two(fraction_bits - exponent)) - (1U << fraction_bits);
    return (uint16_t)(sign | (unsigned)(exponent - f.least + 1) << fraction_bits | significand);
}

double oracle_get(const void *array, size_t index, eg_dtype dtype) {
    const char *at = (const char *)array + index * eg_dtype_size(dtype);
    uint16_t half;
    float single;
    double number = 0;
    switch (dtype) {
    case EG_F64:
        memcpy(&number, at, sizeof number);
        break;
    case EG_F32:
        memcpy(&single, at, sizeof single);
        number = (double)single;
        break;
    case EG_F16:
    case EG_BF16:
        memcpy(&half, at, sizeof half);
        number = half_value(half, dtype);
        break;
    case EG_DTYPE_DEFAULT:
        break;
    }
    return number;
}

void oracle_put(void *array, size_t index, eg_dtype dtype, double x) {
    char *at = (char *)array + index * eg_dtype_size(dtype);
    const double rounded = oracle_round(x, dtype);
    const float single = (float)rounded;
    uint16_t half;
    switch (dtype) {
    case EG_F64:
        memcpy(at, &rounded, sizeof rounded);
        break;
    case EG_F32:
        memcpy(at, &single, sizeof single);
        break;
    case EG_F16:
    case EG_BF16:
        half = half_bits(rounded, dtype);
        memcpy(at, &half, sizeof half);
        break;
    case EG_DTYPE_DEFAULT:
        break;
    }
}

/* ---- Random numbers ----------------------------------------------------------------------------- */

uint64_t oracle_random_bits(oracle_random *random) {
    uint64_t z = random->state += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

int64_t oracle_random_below(oracle_random *random, int64_t count) {
    return (int64_t)(oracle_random_bits(random) % (uint64_t)count);
}

double oracle_random_unit(oracle_random *random) {
    return (double)(oracle_random_bits(random) >> 11) * 0x1p-52 - 1;
}
