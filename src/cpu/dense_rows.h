/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and stores of rows whose columns are neighbours, for instruction sets without masks: rows of any type
 * and length are converted number by number, and vectors are whole ones of the compute type. Part of
 * tile_template.h; dense_rows_avx512.h is the same with masks. */

static void EG_V(load_dense)(EG_R *tile, const char *src, eg_dtype dtype, int64_t row_bytes, int64_t rows,
                             int64_t cols) {
    for (int64_t i = 0; i < rows; i++) EG_V(load_row)(tile + i * EG_NR, src + i * row_bytes, dtype, 1, cols);
}

static void EG_V(store_dense)(const EG_R *tile, char *dst, eg_dtype dtype, int64_t row_bytes, int64_t rows,
                              int64_t cols) {
    for (int64_t i = 0; i < rows; i++) EG_V(store_row)(dst + i * row_bytes, tile + i * EG_NR, dtype, 1, cols);
}

/* Non-temporal: rows begin with a cache line. Numbers of another type are converted one by one, which takes
 * longer than the caches do. */
static void EG_V(stream_dense)(const EG_R *tile, char *dst, eg_dtype dtype, int64_t row_bytes, int64_t rows,
                               int64_t cols) {
    const int64_t whole = dtype == (EG_REAL_BITS == 64 ? EG_F64 : EG_F32) ? cols / EG_LANES * EG_LANES : 0;
    for (int64_t i = 0; i < rows; i++) {
        const EG_R *from = tile + i * EG_NR;
        char *to = dst + i * row_bytes;
        for (int64_t j = 0; j < whole; j += EG_LANES)
            EG_V(stream)((EG_R *)(void *)to + j, EG_V(load)(from + j));
        EG_V(store_row)(to + (size_t)whole * eg_dtype_size(dtype), from + whole, dtype, 1, cols - whole);
    }
}

#if defined(__AVX2__) && EG_VECTOR_BYTES == 32 && EG_REAL_BITS == 32
/* To the nearest bf16, in the low half of each lane, ties to even; a NaN stays one. */
EG_INLINE __m256i EG_V(round_to_bf16)(EG_T number) {
    const EG_I x = (EG_I)number, odd = (x >> 16) & 1;
    const __m256i half = _mm256_add_epi32((__m256i)odd, _mm256_set1_epi32(0x7fff));
    const EG_T rounded = (EG_T)_mm256_add_epi32((__m256i)x, half), quiet = (EG_T)(x | 0x400000);
    const EG_I nan = (x & EG_ABS_MASK) > EG_EXP_FIELD;
    return _mm256_srli_epi32((__m256i)EG_V(select)(nan, quiet, rounded), 16);
}

/* A vector as 16-bit numbers. */
EG_INLINE void EG_V(store_words)(char *to, EG_T x, const eg_dtype dtype) {
    if (dtype == EG_F16) {
        _mm_storeu_si128((void *)to, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
    } else {
        const __m256i words = EG_V(round_to_bf16)(x);
        _mm_storeu_si128((void *)to,
                         _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
}
#define EG_STORES_WORDS 1
#else
#define EG_STORES_WORDS 0
#endif

/* Whether whole rows of sums are stored as they are in registers. */
EG_INLINE bool EG_V(stores_sums)(const eg_dtype dtype) {
    return EG_STORES_WORDS || dtype == (EG_REAL_BITS == 64 ? EG_F64 : EG_F32);
}

/* A whole row of sums. */
EG_INLINE void EG_V(store_sums)(char *to, const EG_T *x, const eg_dtype dtype, const int vectors) {
    (void)dtype;
    EG_UNROLL(8)
    for (int j = 0; j < vectors; j++) {
#if EG_STORES_WORDS
        if (dtype != EG_F32) {
            EG_V(store_words)(to + 2 * j * EG_LANES, x[j], dtype);
            continue;
        }
#endif
        EG_V(store)((EG_R *)(void *)to + j * EG_LANES, x[j]);
    }
}
#undef EG_STORES_WORDS

typedef bool EG_V(part);

EG_INLINE EG_V(part) EG_V(part_of)(int64_t cols, int64_t j) { return j * EG_LANES < cols; }

EG_INLINE EG_T EG_V(load_part)(const char *from, const eg_dtype dtype, EG_V(part) part) {
    (void)dtype, (void)part;
    return EG_V(load)((const EG_R *)(const void *)from);
}

EG_INLINE void EG_V(store_part)(char *to, EG_T x, const eg_dtype dtype, EG_V(part) part) {
    (void)dtype, (void)part;
    EG_V(store)((EG_R *)(void *)to, x);
}

/* A vector of a row of any type: the numbers below `cols`, from column j * EG_LANES on, and zeros. */
typedef int64_t EG_V(numbers);

EG_INLINE EG_V(numbers) EG_V(numbers_of)(int64_t cols, int64_t j) { return cols - j * EG_LANES; }

#if EG_REAL_BITS == 32
typedef uint16_t EG_V(halves) __attribute__((vector_size(EG_VECTOR_BYTES / 2), aligned(2), may_alias));
#endif

EG_INLINE EG_T EG_V(load_numbers)(const char *from, const eg_dtype dtype, EG_V(numbers) count) {
    if (count >= EG_LANES) {
        if (dtype == (EG_REAL_BITS == 64 ? EG_F64 : EG_F32))
            return EG_V(load)((const EG_R *)(const void *)from);
#if EG_REAL_BITS == 32
        if (dtype == EG_BF16)
            return (EG_T)(__builtin_convertvector(*(const EG_V(halves) *)(const void *)from, EG_I) << 16);
#endif
    }
#if defined(__AVX2__) && EG_VECTOR_BYTES == 32
    if (dtype == (EG_REAL_BITS == 64 ? EG_F64 : EG_F32)) {
        EG_I lane = {0};
        EG_UNROLL(8)
        for (int i = 0; i < EG_LANES; i++) lane[i] = i;
        const EG_I below = lane < (EG_V(word))count;
#if EG_REAL_BITS == 64
        return (EG_T)_mm256_maskload_pd((const double *)(const void *)from, (__m256i)below);
#else
        return (EG_T)_mm256_maskload_ps((const float *)(const void *)from, (__m256i)below);
#endif
    }
#endif
    EG_R numbers[EG_LANES] = {0};
    EG_V(load_row)(numbers, from, dtype, 1, count < EG_LANES ? count : EG_LANES);
    return EG_V(load)(numbers);
}
