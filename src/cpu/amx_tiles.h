/* SPDX-License-Identifier: Apache-2.0 */
/* The tile registers of AMX: eight of 16 rows x 64 bytes. `t`, `c`, `a` and `b` are register numbers, written
 * as literals; `stride` is in bytes.
 *
 * They are assembly rather than intrinsics: GCC 12's have no memory operand, so it may drop stores that a
 * tile load or LDTILECFG reads. With EG_EMULATED the same operations are plain C. The tests build the library
 * so, with vectors from tests/emulated/immintrin.h, and run these kernels on any processor. */
#ifndef EG_CPU_AMX_TILES_H
#define EG_CPU_AMX_TILES_H

#include <stdint.h>

enum { EG_TILE_ROWS = 16, EG_TILE_WORDS = 16 };

#ifndef EG_EMULATED

#define EG_TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define EG_TILE_LOAD(t, from, stride)                                                                        \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"((int64_t)(stride)) : "memory")
/* The same with a hint that the data need not stay in L1. */
#define EG_TILE_LOAD_NON_TEMPORAL(t, from, stride)                                                           \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #t ::"r"(from), "r"((int64_t)(stride)) : "memory")
#define EG_TILE_STORE(t, to, stride)                                                                         \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"((int64_t)(stride)) : "memory")
/* c += a · b: rows of 16 pairs of bf16 by 16 rows of pairs, summed in f32. */
#define EG_TILE_DOT(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

/* All eight registers as 16 rows of 64 bytes. */
static inline void eg_tiles_configure(void) {
    const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1,
                .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}

/* Back to the initial state, in which a context switch has no tiles to save. */
static inline void eg_tiles_release(void) { __asm__ volatile("tilerelease"); }

#else

#include <math.h>
#include <string.h>

static _Thread_local uint32_t eg_tile[8][EG_TILE_ROWS][EG_TILE_WORDS];

#define EG_TILE_ZERO(t)               memset(eg_tile[t], 0, sizeof eg_tile[t])
#define EG_TILE_LOAD(t, from, stride) eg_tile_load(eg_tile[t], from, stride)
#define EG_TILE_LOAD_NON_TEMPORAL     EG_TILE_LOAD
#define EG_TILE_STORE(t, to, stride)  eg_tile_store(eg_tile[t], to, stride)
#define EG_TILE_DOT(c, a, b)          eg_tile_dot(eg_tile[c], eg_tile[a], eg_tile[b])

typedef uint32_t eg_tile_row[EG_TILE_WORDS];

static inline void eg_tile_load(eg_tile_row *tile, const char *from, int64_t stride) {
    for (int i = 0; i < EG_TILE_ROWS; i++) memcpy(tile[i], from + i * stride, sizeof tile[i]);
}

static inline void eg_tile_store(eg_tile_row *tile, char *to, int64_t stride) {
    for (int i = 0; i < EG_TILE_ROWS; i++) memcpy(to + i * stride, tile[i], sizeof tile[i]);
}

/* No subnormal numbers, in or out. */
static inline float eg_tile_flush(float x) { return fabsf(x) < 0x1p-126F ? copysignf(0, x) : x; }

static inline float eg_tile_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return eg_tile_flush(x);
}

/* sum + x * y, rounded once: a product of two bf16 has 16 bits and is exact in f64. Where the sum is not, one
 * of the two is below half of the other's last bit in f32, and changes neither rounding. */
static inline float eg_tile_fma(double x, float y, float sum) {
    return eg_tile_flush((float)(x * (double)y + (double)sum));
}

/* In the order of the processor's manual: even and odd terms apart. */
static inline void eg_tile_dot(eg_tile_row *c, eg_tile_row *a, eg_tile_row *b) {
    float low[EG_TILE_ROWS][EG_TILE_WORDS], high[EG_TILE_ROWS][EG_TILE_WORDS];
    for (int p = 0; p < EG_TILE_ROWS; p++) {
        for (int j = 0; j < EG_TILE_WORDS; j++) {
            low[p][j] = eg_tile_float(b[p][j] << 16);
            high[p][j] = eg_tile_float(b[p][j] & 0xffff0000U);
        }
    }
    for (int i = 0; i < EG_TILE_ROWS; i++) {
        float even[EG_TILE_WORDS] = {0}, odd[EG_TILE_WORDS] = {0};
        for (int p = 0; p < EG_TILE_ROWS; p++) {
            const double first = eg_tile_float(a[i][p] << 16), second = eg_tile_float(a[i][p] & 0xffff0000U);
            for (int j = 0; j < EG_TILE_WORDS; j++) {
                even[j] = eg_tile_fma(first, low[p][j], even[j]);
                odd[j] = eg_tile_fma(second, high[p][j], odd[j]);
            }
        }
        for (int j = 0; j < EG_TILE_WORDS; j++) {
            const float sum = eg_tile_flush(eg_tile_float(c[i][j]) + eg_tile_flush(even[j] + odd[j]));
            memcpy(&c[i][j], &sum, sizeof sum);
        }
    }
}

static inline void eg_tiles_configure(void) {}
static inline void eg_tiles_release(void) {}

#endif
#endif
