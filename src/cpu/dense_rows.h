/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and stores of rows whose columns are neighbours, for instruction sets without masks: rows of any type
 * and length are converted number by number, and vectors are whole ones of the compute type. Part of
 * tile_template.h; dense_rows_avx512.h is the same with masks. */

/* Whole rows are copied by vectors: loops over a number of columns that is not known take half as long again. */
static void EG_V(load_dense)(EG_R *tile, const char *src, eg_dtype dtype, int64_t row_bytes, int64_t rows,
                             int64_t cols) {
    if (cols == EG_NR && EG_V(is_own_type)(dtype)) {
        for (int64_t i = 0; i < rows; i++)
            memcpy(tile + i * EG_NR, src + i * row_bytes, sizeof(EG_R) * EG_NR);
        return;
    }
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
        EG_V(store_row)(to + whole * EG_V(size_of)(dtype), from + whole, dtype, 1, cols - whole);
    }
}

#if EG_REAL_BITS == 32
typedef uint32_t EG_V(bits) __attribute__((vector_size(EG_VECTOR_BYTES)));

/* To the nearest bf16, in the low half of each lane, ties to even; a NaN stays one. */
EG_INLINE EG_V(bits) EG_V(round_to_bf16)(EG_T number) {
    const EG_V(bits) x = (EG_V(bits))number, rounded = x + ((x >> 16) & 1) + 0x7fff, quiet = x | 0x400000;
    const EG_I nan = ((EG_I)number & EG_ABS_MASK) > EG_EXP_FIELD;
    return (EG_V(bits))EG_V(select)(nan, (EG_T)quiet, (EG_T)rounded) >> 16;
}
#endif

#if defined(__AVX2__) && EG_VECTOR_BYTES == 32 && EG_REAL_BITS == 32

/* A vector as 16-bit numbers. */
EG_INLINE void EG_V(store_words)(char *to, EG_T x, const eg_dtype dtype) {
    if (dtype == EG_F16) {
        _mm_storeu_si128((void *)to, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
    } else {
        const __m256i words = (__m256i)EG_V(round_to_bf16)(x);
        _mm_storeu_si128((void *)to,
                         _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
}
#define EG_STORES_WORDS 1
#elif defined(EG_USE_NEON) && EG_REAL_BITS == 32
EG_INLINE void EG_V(store_words)(char *to, EG_T x, const eg_dtype dtype) {
    const uint16x4_t words = dtype == EG_F16 ? (uint16x4_t)vcvt_f16_f32((float32x4_t)x)
                                             : vmovn_u32((uint32x4_t)EG_V(round_to_bf16)(x));
    memcpy(to, &words, sizeof words);
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
#if EG_REAL_BITS == 32 && defined(EG_USE_NEON)
        const uint16x4_t halves = (uint16x4_t) * (const EG_V(halves) *)(const void *)from;
        return (EG_T)(dtype == EG_BF16 ? (float32x4_t)vshll_n_u16(halves, 16)
                                       : vcvt_f32_f16((float16x4_t)halves));
#elif EG_REAL_BITS == 32 && defined(__AVX2__) && EG_VECTOR_BYTES == 32
        const __m128i halves = _mm_loadu_si128((const void *)from); /* gcc takes six instructions for it */
        return (EG_T)(dtype == EG_BF16 ? (__m256)_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)
                                       : _mm256_cvtph_ps(halves));
#elif EG_REAL_BITS == 32
        if (dtype == EG_BF16)
            return (EG_T)(__builtin_convertvector(*(const EG_V(halves) *)(const void *)from, EG_I) << 16);
#endif
    }
#ifdef EG_USE_NEON
    EG_T some = {0};
    EG_UNROLL(4)
    for (int64_t i = 0; i < EG_LANES - 1; i++) { /* as calls of memcpy, they took longer than the products */
        EG_R number = 0;
        if (i < count) EG_V(load_row)(&number, from + i * EG_V(size_of)(dtype), dtype, 1, 1);
        some[i] = number;
    }
    return some;
#else
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
#endif
}
