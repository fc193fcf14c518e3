/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and stores of rows whose columns are neighbours, by vectors; a mask cuts the last one of a row. Part
 * of tile_template.h, for AVX-512. */
/* A whole vector is loaded without a mask: with one, a Zen 5 waits for memory half as long again. */
#if EG_REAL_BITS == 64

typedef __mmask8 EG_V(part);

EG_INLINE EG_T EG_V(load_part)(const char *from, const eg_dtype dtype, EG_V(part) part) {
    (void)dtype;
    return (EG_T)(part == 0xff ? _mm512_loadu_pd(from) : _mm512_maskz_loadu_pd(part, from));
}

EG_INLINE void EG_V(store_part)(char *to, EG_T x, const eg_dtype dtype, EG_V(part) part) {
    (void)dtype;
    _mm512_mask_storeu_pd(to, part, (__m512d)x);
}

#else

typedef __mmask16 EG_V(part);

/* To the nearest bf16, in the high half of each lane, ties to even; a NaN stays one. */
EG_INLINE __m512i EG_V(round_to_bf16)(__m512 number) {
    const __m512i x = (__m512i)number;
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmpgt_epi32_mask(_mm512_and_si512(x, _mm512_set1_epi32(EG_ABS_MASK)),
                                                  _mm512_set1_epi32(EG_EXP_FIELD));
    return _mm512_mask_mov_epi32(rounded, nan, _mm512_or_si512(x, _mm512_set1_epi32(0x400000)));
}

EG_INLINE __m256i EG_V(to_bf16)(__m512 number) {
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(EG_V(round_to_bf16)(number), 16));
}

/* The same of two vectors, one after the other. */
EG_INLINE __m512i EG_V(round_two_to_bf16)(__m512 first, __m512 second) {
    const __m512i one = _mm512_set1_epi32(1), half = _mm512_set1_epi32(0x7fff);
    const __m512i high_halves =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23,
                         21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    __m512i x = (__m512i)first, y = (__m512i)second;
    if (__builtin_expect(_mm512_cmp_ps_mask(first, second, _CMP_UNORD_Q) != 0, 0))
        return _mm512_permutex2var_epi16(EG_V(round_to_bf16)(first), high_halves,
                                         EG_V(round_to_bf16)(second));
    x = _mm512_add_epi32(_mm512_add_epi32(x, half), _mm512_and_si512(_mm512_srli_epi32(x, 16), one));
    y = _mm512_add_epi32(_mm512_add_epi32(y, half), _mm512_and_si512(_mm512_srli_epi32(y, 16), one));
    return _mm512_permutex2var_epi16(x, high_halves, y);
}

EG_INLINE __m512i EG_V(two_to_bf16)(__m512 first, __m512 second) {
#ifdef EG_BF16_INSTRUCTIONS /* for products of bf16: these take subnormal numbers for zeros, as those do */
    return (__m512i)_mm512_cvtne2ps_pbh(second, first);
#else
    return EG_V(round_two_to_bf16)(first, second);
#endif
}

EG_INLINE EG_T EG_V(load_part)(const char *from, const eg_dtype dtype, EG_V(part) part) {
    const bool whole = part == 0xffff;
    if (dtype == EG_F32) return (EG_T)(whole ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(part, from));
    const __m256i words =
        whole ? _mm256_loadu_si256((const void *)from) : _mm256_maskz_loadu_epi16(part, from);
    if (dtype == EG_F16) return (EG_T)_mm512_cvtph_ps(words);
    return (EG_T)_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16);
}

EG_INLINE __m256i EG_V(to_words)(EG_T x, const eg_dtype dtype) {
    return dtype == EG_F16 ? _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT) : EG_V(to_bf16)((__m512)x);
}

EG_INLINE void EG_V(store_part)(char *to, EG_T x, const eg_dtype dtype, EG_V(part) part) {
    if (dtype == EG_F32) {
        _mm512_mask_storeu_ps(to, part, (__m512)x);
    } else if (part == 0xffff) {
        _mm256_storeu_si256((void *)to, EG_V(to_words)(x, dtype));
    } else {
        _mm256_mask_storeu_epi16(to, part, EG_V(to_words)(x, dtype));
    }
}

#endif

/* The columns of vector j that are below `cols`. */
EG_INLINE EG_V(part) EG_V(part_of)(int64_t cols, int64_t j) {
    const int64_t count = cols - j * EG_LANES;
    return (EG_V(part))(count >= EG_LANES ? ~0U : count > 0 ? (1U << count) - 1 : 0);
}

/* Whether whole rows of sums are stored as they are in registers. */
EG_INLINE bool EG_V(stores_sums)(const eg_dtype dtype) { return (void)dtype, true; }

#if EG_REAL_BITS == 32
EG_INLINE __m512i EG_V(two_to_words)(EG_T first, EG_T second, const eg_dtype dtype) {
    if (dtype == EG_BF16) return EG_V(two_to_bf16)((__m512)first, (__m512)second);
    return _mm512_inserti64x4(_mm512_castsi256_si512(EG_V(to_words)(first, dtype)),
                              EG_V(to_words)(second, dtype), 1);
}
#endif

/* A whole row of sums. */
EG_INLINE void EG_V(store_sums)(char *to, const EG_T *x, const eg_dtype dtype, const int vectors) {
#if EG_REAL_BITS == 32
    if (dtype != EG_F32) {
#ifndef __clang__ /* which does it by itself, and warns that it had to */
        EG_UNROLL(8)
#endif
        for (int j = 0; j < vectors; j++) {
            if (j % 2 == 1)
                _mm512_storeu_si512(to + 2 * (j - 1) * EG_LANES, EG_V(two_to_words)(x[j - 1], x[j], dtype));
            if (j % 2 == 0 && j + 1 == vectors)
                _mm256_storeu_si256((void *)(to + 2 * j * EG_LANES), EG_V(to_words)(x[j], dtype));
        }
        return;
    }
#endif
    (void)dtype;
    EG_UNROLL(8)
    for (int j = 0; j < vectors; j++) EG_V(store)((EG_R *)(void *)to + j * EG_LANES, x[j]);
}

/* A vector of a row of any type: the numbers that are wanted, and zeros. */
typedef EG_V(part) EG_V(numbers);
EG_INLINE EG_V(numbers) EG_V(numbers_of)(int64_t cols, int64_t j) { return EG_V(part_of)(cols, j); }
EG_INLINE EG_T EG_V(load_numbers)(const char *from, const eg_dtype dtype, EG_V(numbers) some) {
    return EG_V(load_part)(from, dtype, some);
}

EG_INLINE void EG_V(load_vectors)(EG_R *tile, const char *src, const eg_dtype dtype, int64_t row_bytes,
                                  int64_t rows, int64_t cols) {
    const int64_t vector_bytes = EG_LANES * EG_V(size_of)(dtype);
    for (int64_t i = 0; i < rows; i++) {
        EG_UNROLL(8)
        for (int j = 0; j < EG_NV; j++) {
            EG_V(store)
            (tile + i * EG_NR + j * EG_LANES,
             EG_V(load_part)(src + i * row_bytes + j * vector_bytes, dtype, EG_V(part_of)(cols, j)));
        }
    }
}

EG_INLINE void EG_V(store_vectors)(const EG_R *tile, char *dst, const eg_dtype dtype, int64_t row_bytes,
                                   int64_t rows, int64_t cols) {
    const int64_t vector_bytes = EG_LANES * EG_V(size_of)(dtype);
    for (int64_t i = 0; i < rows; i++) {
        EG_UNROLL(8)
        for (int j = 0; j < EG_NV; j++) {
            EG_V(store_part)
            (dst + i * row_bytes + j * vector_bytes, EG_V(load)(tile + i * EG_NR + j * EG_LANES), dtype,
             EG_V(part_of)(cols, j));
        }
    }
}

static void EG_V(load_dense)(EG_R *tile, const char *src, eg_dtype dtype, int64_t row_bytes, int64_t rows,
                             int64_t cols) {
    (void)dtype;
#define EG_LOAD(type) EG_V(load_vectors)(tile, src, type, row_bytes, rows, cols)
    EG_BY_TYPE(dtype, EG_LOAD);
#undef EG_LOAD
}

static void EG_V(store_dense)(const EG_R *tile, char *dst, eg_dtype dtype, int64_t row_bytes, int64_t rows,
                              int64_t cols) {
    (void)dtype;
#define EG_STORE(type) EG_V(store_vectors)(tile, dst, type, row_bytes, rows, cols)
    EG_BY_TYPE(dtype, EG_STORE);
#undef EG_STORE
}

/* Non-temporal: rows begin with a cache line. Half lines that follow each other are written as one. */
static void EG_V(stream_dense)(const EG_R *tile, char *dst, eg_dtype dtype, int64_t row_bytes, int64_t rows,
                               int64_t cols) {
#if EG_REAL_BITS == 32
    for (int64_t i = 0; dtype != EG_F32 && i < rows; i++) {
        for (int64_t j = 0; j < cols; j += EG_LANES) {
            const EG_T x = EG_V(load)(tile + i * EG_NR + j);
            char *to = dst + i * row_bytes + 2 * j;
            if (cols - j < EG_LANES) {
                EG_V(store_part)(to, x, dtype, EG_V(part_of)(cols - j, 0));
            } else {
                _mm256_stream_si256((void *)to, EG_V(to_words)(x, dtype));
            }
        }
    }
    if (dtype != EG_F32) return;
#endif
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j += EG_LANES) {
            const EG_T x = EG_V(load)(tile + i * EG_NR + j);
            EG_R *to = (EG_R *)(void *)(dst + i * row_bytes) + j;
            if (cols - j < EG_LANES) {
                EG_V(store_part)((char *)to, x, dtype, EG_V(part_of)(cols - j, 0));
            } else {
                EG_V(stream)(to, x);
            }
        }
    }
}
