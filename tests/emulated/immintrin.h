/* SPDX-License-Identifier: Apache-2.0 */
/* The intrinsics that src/cpu uses, in plain C: found in the place of the compiler's own <immintrin.h>, it
 * lets the kernels for AVX2, AVX-512 and AMX run on any x86-64 processor (amx_tiles.h has AMX's registers).
 *
 * Each does what Intel's guide says, in the default rounding mode. Two things are stricter than a processor:
 * what is undefined there is NaN here, and a masked access touches nothing but its lanes. An address that a
 * processor wants aligned, and is not, aborts. */
#ifndef EG_EMULATED_IMMINTRIN_H
#define EG_EMULATED_IMMINTRIN_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/half.h"

/* The instruction sets that the kernels ask the compiler for. */
#ifndef __AVX512F__
#define __AVX__      1
#define __FMA__      1
#define __F16C__     1
#define __AVX512F__  1
#define __AVX512DQ__ 1
#endif

#define EMU_FN            static inline __attribute__((unused))
#define EMU_VECTOR(bytes) __attribute__((vector_size(bytes), may_alias))

typedef float __m128 EMU_VECTOR(16), __m256 EMU_VECTOR(32), __m512 EMU_VECTOR(64);
typedef double __m128d EMU_VECTOR(16), __m256d EMU_VECTOR(32), __m512d EMU_VECTOR(64);
typedef long long __m128i EMU_VECTOR(16), __m256i EMU_VECTOR(32), __m512i EMU_VECTOR(64);
typedef uint16_t __m256bh EMU_VECTOR(32), __m512bh EMU_VECTOR(64);
typedef uint8_t __mmask8;
typedef uint16_t __mmask16;
typedef uint32_t __mmask32;

typedef uint16_t emu_u16x16 EMU_VECTOR(32), emu_u16x32 EMU_VECTOR(64);
typedef uint32_t emu_u32x16 EMU_VECTOR(64);
typedef int32_t emu_i32x16 EMU_VECTOR(64);
typedef uint64_t emu_u64x8 EMU_VECTOR(64);
typedef int64_t emu_i64x8 EMU_VECTOR(64);

enum { _MM_FROUND_TO_NEAREST_INT = 0 };

#define EMU_EACH(i, lanes)  for (int i = 0; i < (lanes); i++)
#define EMU_IS_SET(mask, i) (((uint32_t)(mask) >> (i)) & 1U)

/* ---- Memory ------------------------------------------------------------------------------------- */

EMU_FN void emu_want_aligned(const void *at, size_t bytes) {
    if ((uintptr_t)at % bytes != 0) abort();
}

#define EMU_LOAD(name, type)                                                                                 \
    EMU_FN type name(const void *from) {                                                                     \
        type x;                                                                                              \
        memcpy(&x, from, sizeof x);                                                                          \
        return x;                                                                                            \
    }
#define EMU_LOAD_ALIGNED(name, type)                                                                         \
    EMU_FN type name(const void *from) {                                                                     \
        type x;                                                                                              \
        emu_want_aligned(from, sizeof x);                                                                    \
        memcpy(&x, from, sizeof x);                                                                          \
        return x;                                                                                            \
    }
#define EMU_STORE(name, type)                                                                                \
    EMU_FN void name(void *to, type x) { memcpy(to, &x, sizeof x); }
#define EMU_STORE_ALIGNED(name, type)                                                                        \
    EMU_FN void name(void *to, type x) {                                                                     \
        emu_want_aligned(to, sizeof x);                                                                      \
        memcpy(to, &x, sizeof x);                                                                            \
    }
#define EMU_MASKED(load, store, mask, type, lanes_type, lane, lanes)                                         \
    EMU_FN type load(mask wanted, const void *from) {                                                        \
        lanes_type x = {0};                                                                                  \
        EMU_EACH(i, lanes) {                                                                                 \
            lane one = 0;                                                                                    \
            if (EMU_IS_SET(wanted, i))                                                                       \
                memcpy(&one, (const char *)from + (size_t)i * sizeof one, sizeof one);                       \
            x[i] = one;                                                                                      \
        }                                                                                                    \
        return (type)x;                                                                                      \
    }                                                                                                        \
    EMU_FN void store(void *to, mask wanted, type vector) {                                                  \
        const lanes_type x = (lanes_type)vector;                                                             \
        EMU_EACH(i, lanes) {                                                                                 \
            const lane one = x[i];                                                                           \
            if (EMU_IS_SET(wanted, i)) memcpy((char *)to + (size_t)i * sizeof one, &one, sizeof one);        \
        }                                                                                                    \
    }
/* The sign of each lane of the mask says whether it is wanted. */
#define EMU_MASK_LOAD(name, type, real, word, lanes)                                                         \
    EMU_FN type name(const real *from, __m256i mask) {                                                       \
        type x = {0};                                                                                        \
        EMU_EACH(i, lanes) {                                                                                 \
            word wanted;                                                                                     \
            memcpy(&wanted, (const char *)&mask + (size_t)i * sizeof wanted, sizeof wanted);                 \
            if (wanted < 0) x[i] = from[i];                                                                  \
        }                                                                                                    \
        return x;                                                                                            \
    }

EMU_LOAD(_mm_loadu_ps, __m128)
EMU_LOAD(_mm_loadu_pd, __m128d)
EMU_LOAD(_mm_loadu_si128, __m128i)
EMU_LOAD(_mm256_loadu_ps, __m256)
EMU_LOAD(_mm256_loadu_si256, __m256i)
EMU_LOAD(_mm512_loadu_ps, __m512)
EMU_LOAD(_mm512_loadu_pd, __m512d)
EMU_LOAD(_mm512_loadu_si512, __m512i)
EMU_LOAD_ALIGNED(_mm512_load_ps, __m512)
EMU_LOAD_ALIGNED(_mm512_load_si512, __m512i)
EMU_STORE(_mm_storeu_si128, __m128i)
EMU_STORE(_mm256_storeu_ps, __m256)
EMU_STORE(_mm256_storeu_si256, __m256i)
EMU_STORE(_mm512_storeu_si512, __m512i)
EMU_STORE_ALIGNED(_mm512_store_ps, __m512)
EMU_STORE_ALIGNED(_mm512_store_si512, __m512i)
EMU_STORE_ALIGNED(_mm512_stream_si512, __m512i)
EMU_STORE_ALIGNED(_mm256_stream_si256, __m256i)
EMU_MASK_LOAD(_mm256_maskload_ps, __m256, float, int32_t, 8)
EMU_MASK_LOAD(_mm256_maskload_pd, __m256d, double, int64_t, 4)
EMU_MASKED(_mm512_maskz_loadu_ps, _mm512_mask_storeu_ps, __mmask16, __m512, __m512, float, 16)
EMU_MASKED(_mm512_maskz_loadu_pd, _mm512_mask_storeu_pd, __mmask8, __m512d, __m512d, double, 8)
EMU_MASKED(_mm512_maskz_loadu_epi16, _mm512_mask_storeu_epi16, __mmask32, __m512i, emu_u16x32, uint16_t, 32)
EMU_MASKED(_mm256_maskz_loadu_epi16, _mm256_mask_storeu_epi16, __mmask16, __m256i, emu_u16x16, uint16_t, 16)

/* ---- Arithmetic --------------------------------------------------------------------------------- */

#define EMU_TWO(name, type, lanes_type, expression)                                                          \
    EMU_FN type name(type first, type second) {                                                              \
        const lanes_type a = (lanes_type)first, b = (lanes_type)second;                                      \
        return (type)(expression);                                                                           \
    }
EMU_TWO(_mm512_add_ps, __m512, __m512, a + b)
EMU_TWO(_mm512_sub_ps, __m512, __m512, a - b)
EMU_TWO(_mm512_mul_ps, __m512, __m512, a *b)
EMU_TWO(_mm512_add_epi32, __m512i, emu_u32x16, a + b)
EMU_TWO(_mm512_and_si512, __m512i, __m512i, a &b)
EMU_TWO(_mm512_or_si512, __m512i, __m512i, a | b)

/* Unless the comparison is true, the second number: also where one is NaN. */
#define EMU_EXTREMES(bits, suffix, type, lanes)                                                              \
    EMU_FN type _mm##bits##_min_##suffix(type a, type b) {                                                   \
        EMU_EACH(i, lanes) a[i] = a[i] < b[i] ? a[i] : b[i];                                                 \
        return a;                                                                                            \
    }                                                                                                        \
    EMU_FN type _mm##bits##_max_##suffix(type a, type b) {                                                   \
        EMU_EACH(i, lanes) a[i] = a[i] > b[i] ? a[i] : b[i];                                                 \
        return a;                                                                                            \
    }
EMU_EXTREMES(256, ps, __m256, 8)
EMU_EXTREMES(256, pd, __m256d, 4)
EMU_EXTREMES(512, ps, __m512, 16)
EMU_EXTREMES(512, pd, __m512d, 8)

/* The sign of each lane of the mask says which of two numbers it is. */
#define EMU_BLEND_BY_SIGN(suffix, type, word, lanes)                                                         \
    EMU_FN type _mm256_blendv_##suffix(type no, type yes, type mask) {                                       \
        EMU_EACH(i, lanes) {                                                                                 \
            word wanted;                                                                                     \
            memcpy(&wanted, (const char *)&mask + (size_t)i * sizeof wanted, sizeof wanted);                 \
            if (wanted < 0) no[i] = yes[i];                                                                  \
        }                                                                                                    \
        return no;                                                                                           \
    }
EMU_BLEND_BY_SIGN(ps, __m256, int32_t, 8)
EMU_BLEND_BY_SIGN(pd, __m256d, int64_t, 4)

/* Of eight f32, without the processor's: the product is exact in f64, and a sum whose last bit is odd where
 * it is inexact rounds to f32 as the exact one would. */
EMU_FN __m256 _mm256_fmadd_ps(__m256 a, __m256 b, __m256 c) {
    const __m512d product = __builtin_convertvector(a, __m512d) * __builtin_convertvector(b, __m512d);
    const __m512d addend = __builtin_convertvector(c, __m512d), sum = product + addend;
    const __m512d back = sum - product, lost = (product - (sum - back)) + (addend - back);
    const emu_i64x8 inexact = (emu_i64x8)(lost < 0.0) | (emu_i64x8)(lost > 0.0);
    const emu_i64x8 outward = ~((emu_i64x8)(lost > 0.0) ^ (emu_i64x8)(sum > 0.0));
    const emu_i64x8 bits = (emu_i64x8)sum, even = (bits & 1) - 1;
    const __m512d odd = (__m512d)(bits + ((-1 - 2 * outward) & inexact & even));
    return __builtin_convertvector(odd, __m256);
}

EMU_FN __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
    __m256 part[3][2];
    memcpy(part[0], &a, sizeof a);
    memcpy(part[1], &b, sizeof b);
    memcpy(part[2], &c, sizeof c);
    EMU_EACH(i, 2) part[0][i] = _mm256_fmadd_ps(part[0][i], part[1][i], part[2][i]);
    memcpy(&a, part[0], sizeof a);
    return a;
}

EMU_FN __m256d _mm256_fmadd_pd(__m256d a, __m256d b, __m256d c) {
    EMU_EACH(i, 4) c[i] = fma(a[i], b[i], c[i]);
    return c;
}

EMU_FN __m512d _mm512_fmadd_pd(__m512d a, __m512d b, __m512d c) {
    EMU_EACH(i, 8) c[i] = fma(a[i], b[i], c[i]);
    return c;
}

EMU_FN __m512 _mm512_set1_ps(float x) { return x - (__m512){0}; }
EMU_FN __m512i _mm512_set1_epi32(int x) { return (__m512i)((emu_i32x16){0} + x); }

/* From the last lane to the first. */
#define _mm512_set_epi16(...) emu_set_epi16((const short[32]){__VA_ARGS__})
EMU_FN __m512i emu_set_epi16(const short *last_first) {
    emu_u16x32 x = {0};
    EMU_EACH(i, 32) x[i] = (uint16_t)last_first[31 - i];
    return (__m512i)x;
}

EMU_FN __m512i _mm512_slli_epi32(__m512i x, unsigned count) { return (__m512i)((emu_u32x16)x << count); }
EMU_FN __m512i _mm512_srli_epi32(__m512i x, unsigned count) { return (__m512i)((emu_u32x16)x >> count); }

/* ---- Masks -------------------------------------------------------------------------------------- */

EMU_FN __mmask16 _mm512_cmpgt_epi32_mask(__m512i first, __m512i second) {
    const emu_i32x16 greater = (emu_i32x16)first > (emu_i32x16)second;
    uint32_t mask = 0;
    EMU_EACH(i, 16) mask |= (uint32_t)(greater[i] != 0) << i;
    return (__mmask16)mask;
}

/* NaNs, quiet or not, are the only class that is asked for. */
#define EMU_FPCLASS(name, mask_type, type, lanes)                                                            \
    EMU_FN mask_type name(type x, int classes) {                                                             \
        uint32_t mask = 0;                                                                                   \
        if (classes != 0x81) abort();                                                                        \
        EMU_EACH(i, lanes) mask |= (uint32_t)(x[i] != x[i]) << i;                                            \
        return (mask_type)mask;                                                                              \
    }
EMU_FPCLASS(_mm512_fpclass_ps_mask, __mmask16, __m512, 16)
EMU_FPCLASS(_mm512_fpclass_pd_mask, __mmask8, __m512d, 8)

/* Lanes where either number is NaN: no other comparison is used. */
enum { _CMP_UNORD_Q = 3 };
EMU_FN __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int comparison) {
    (void)comparison;
    __mmask16 mask = 0;
    EMU_EACH(i, 16) if (a[i] != a[i] || b[i] != b[i]) mask |= (__mmask16)(1U << i);
    return mask;
}

/* Lanes of `yes` where the mask is set, of `no` elsewhere. */
#define EMU_BLEND(name, mask_type, lanes_type, lanes)                                                        \
    EMU_FN __m512i name(mask_type mask, __m512i no, __m512i yes) {                                           \
        lanes_type x = (lanes_type)no;                                                                       \
        EMU_EACH(i, lanes) x[i] = EMU_IS_SET(mask, i) ? ((lanes_type)yes)[i] : x[i];                         \
        return (__m512i)x;                                                                                   \
    }
EMU_BLEND(_mm512_mask_blend_epi16, __mmask32, emu_u16x32, 32)
EMU_BLEND(emu_blend_epi32, __mmask16, emu_u32x16, 16)
EMU_BLEND(emu_blend_epi64, __mmask8, emu_u64x8, 8)
EMU_FN __m512i _mm512_mask_mov_epi32(__m512i no, __mmask16 mask, __m512i yes) {
    return emu_blend_epi32(mask, no, yes);
}
EMU_FN __m512 _mm512_mask_and_ps(__m512 no, __mmask16 mask, __m512 a, __m512 b) {
    return (__m512)emu_blend_epi32(mask, (__m512i)no, (__m512i)a & (__m512i)b);
}
EMU_FN __m512d _mm512_mask_and_pd(__m512d no, __mmask8 mask, __m512d a, __m512d b) {
    return (__m512d)emu_blend_epi64(mask, (__m512i)no, (__m512i)a & (__m512i)b);
}

/* ---- Places ------------------------------------------------------------------------------------- */

EMU_FN __m512i _mm512_castps_si512(__m512 x) { return (__m512i)x; }
EMU_FN __m512 _mm512_castsi512_ps(__m512i x) { return (__m512)x; }

#define EMU_WIDEN(name, narrow, wide)                                                                        \
    EMU_FN wide name(narrow low) {                                                                           \
        wide x;                                                                                              \
        memset(&x, 0xff, sizeof x);                                                                          \
        memcpy(&x, &low, sizeof low);                                                                        \
        return x;                                                                                            \
    }
EMU_WIDEN(_mm512_castps128_ps512, __m128, __m512)
EMU_WIDEN(_mm512_castpd128_pd512, __m128d, __m512d)
EMU_WIDEN(_mm512_castsi256_si512, __m256i, __m512i)

#define EMU_INSERT(name, narrow, wide)                                                                       \
    EMU_FN wide name(wide x, narrow part, int place) {                                                       \
        memcpy((char *)&x + (size_t)place * sizeof part, &part, sizeof part);                                \
        return x;                                                                                            \
    }
EMU_INSERT(_mm512_insertf32x4, __m128, __m512)
EMU_INSERT(_mm512_insertf64x2, __m128d, __m512d)
EMU_INSERT(_mm512_inserti64x4, __m256i, __m512i)

/* Within each quarter of a vector, its low or its high half: lanes of one and of the other in turns. */
#define EMU_UNPACK(name, type, lanes_type, first, quarter)                                                   \
    EMU_FN type name(type x, type y) {                                                                       \
        const lanes_type a = (lanes_type)x, b = (lanes_type)y;                                               \
        lanes_type mixed = {0};                                                                              \
        EMU_EACH(i, (int)(sizeof mixed / sizeof mixed[0])) {                                                 \
            const int from = i / (quarter) * (quarter) + (first) + i % (quarter) / 2;                        \
            mixed[i] = i % 2 == 0 ? a[from] : b[from];                                                       \
        }                                                                                                    \
        return (type)mixed;                                                                                  \
    }
EMU_UNPACK(_mm512_unpacklo_ps, __m512, __m512, 0, 4)
EMU_UNPACK(_mm512_unpackhi_ps, __m512, __m512, 2, 4)
EMU_UNPACK(_mm512_unpacklo_pd, __m512d, __m512d, 0, 2)
EMU_UNPACK(_mm512_unpackhi_pd, __m512d, __m512d, 1, 2)
EMU_UNPACK(_mm512_unpacklo_epi32, __m512i, emu_u32x16, 0, 4)
EMU_UNPACK(_mm512_unpackhi_epi32, __m512i, emu_u32x16, 2, 4)
EMU_UNPACK(_mm512_unpacklo_epi64, __m512i, emu_u64x8, 0, 2)
EMU_UNPACK(_mm512_unpackhi_epi64, __m512i, emu_u64x8, 1, 2)

/* Two quarters of one vector, then two of the other. */
EMU_FN __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int quarters) {
    __m512i x = {0};
    EMU_EACH(i, 8) {
        const int from = quarters >> (i / 2 * 2) & 3;
        x[i] = i < 4 ? a[2 * from + i % 2] : b[2 * from + i % 2];
    }
    return x;
}

EMU_FN __m512 _mm512_permutexvar_ps(__m512i places, __m512 from) {
    __m512 x = {0};
    EMU_EACH(i, 16) x[i] = from[((emu_u32x16)places)[i] % 16];
    return x;
}

EMU_FN __m512i _mm512_permutexvar_epi16(__m512i places, __m512i from) {
    emu_u16x32 x = {0};
    EMU_EACH(i, 32) x[i] = ((emu_u16x32)from)[((emu_u16x32)places)[i] % 32];
    return (__m512i)x;
}

EMU_FN __m512i _mm512_permutex2var_epi16(__m512i first, __m512i places, __m512i second) {
    emu_u16x32 x = {0};
    EMU_EACH(i, 32) {
        const int place = ((emu_u16x32)places)[i] % 64;
        x[i] = ((emu_u16x32)(place < 32 ? first : second))[place % 32];
    }
    return (__m512i)x;
}

/* ---- Conversions -------------------------------------------------------------------------------- */

EMU_FN __m512i _mm512_cvtepu16_epi32(__m256i x) {
    return (__m512i) __builtin_convertvector((emu_u16x16)x, emu_u32x16);
}
EMU_FN __m256i _mm512_cvtepi32_epi16(__m512i x) {
    return (__m256i) __builtin_convertvector((emu_u32x16)x, emu_u16x16);
}

#define EMU_F16(from_f16, to_f16, halves, halves_lanes, type, lanes)                                         \
    EMU_FN type from_f16(halves x) {                                                                         \
        type y = {0};                                                                                        \
        EMU_EACH(i, lanes) y[i] = eg_f32_of_f16(((halves_lanes)x)[i]);                                       \
        return y;                                                                                            \
    }                                                                                                        \
    EMU_FN halves to_f16(type x, int rounding) {                                                             \
        halves_lanes y = {0};                                                                                \
        if (rounding != _MM_FROUND_TO_NEAREST_INT) abort();                                                  \
        EMU_EACH(i, lanes) y[i] = eg_f16_of_f32(x[i]);                                                       \
        return (halves)y;                                                                                    \
    }
typedef uint16_t emu_u16x8 EMU_VECTOR(16);
EMU_F16(_mm256_cvtph_ps, _mm256_cvtps_ph, __m128i, emu_u16x8, __m256, 8)
EMU_F16(_mm512_cvtph_ps, _mm512_cvtps_ph, __m256i, emu_u16x16, __m512, 16)

/* Subnormal numbers are zeros to these. */
EMU_FN uint16_t emu_bf16(float x) {
    return fabsf(x) < 0x1p-126F ? signbit(x) ? 0x8000 : 0 : eg_bf16_of_f32(x);
}

/* Subnormal numbers are zeros, in and out. A product of two bf16 is exact in f64; where its sum with an f32
 * is not, one of the two is below half of the other's last bit in f32, and changes neither rounding. */
EMU_FN float emu_flushed(float x) { return fabsf(x) < 0x1p-126F ? copysignf(0, x) : x; }
EMU_FN float emu_of_bf16(uint16_t x) { return emu_flushed(eg_f32_of_bf16(x)); }

EMU_FN __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh x, __m512bh y) {
    EMU_EACH(i, 16) {
        float to = emu_flushed(sum[i]);
        for (int j = 2 * i + 1; j >= 2 * i; j--)
            to = emu_flushed((float)((double)emu_of_bf16(x[j]) * (double)emu_of_bf16(y[j]) + (double)to));
        sum[i] = to;
    }
    return sum;
}

EMU_FN __m256bh _mm512_cvtneps_pbh(__m512 x) {
    __m256bh y = {0};
    EMU_EACH(i, 16) y[i] = emu_bf16(x[i]);
    return y;
}

EMU_FN __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
    __m512bh y = {0};
    EMU_EACH(i, 16) {
        y[i] = emu_bf16(low[i]);
        y[16 + i] = emu_bf16(high[i]);
    }
    return y;
}

#endif
