/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on sizes: numbers that are not negative. */
#ifndef EG_SIZES_H
#define EG_SIZES_H

#include <stddef.h>
#include <stdint.h>

/* A division of 64 bits takes two to four times as long as one of 32 on processors before Ice Lake, and a
 * call on the CPU makes some fifty. */
static inline int64_t eg_div(int64_t a, int64_t b) {
    return ((a | b) >> 32) == 0 ? (int64_t)((uint32_t)a / (uint32_t)b) : a / b;
}
static inline int64_t eg_ceil_div(int64_t a, int64_t b) { return a > 0 && a <= b ? 1 : eg_div(a + b - 1, b); }
static inline int64_t eg_least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline size_t eg_most_bytes(size_t a, size_t b) { return a > b ? a : b; }

/* Of estimates, too. */
static inline double eg_greatest(double a, double b) { return a > b ? a : b; }

#endif
