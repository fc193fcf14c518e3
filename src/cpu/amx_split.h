/* SPDX-License-Identifier: Apache-2.0 */
/* Before and after the matrix unit: numbers are split into bf16 terms, and sums are scaled back, rounded and
 * stored. Part of kernel_amx.c. */

/* ---- split -------------------------------------------------------------------------------------- */

static const float scale = 0x1p24F;
static const uint32_t largest = 0x4c800000; /* the bits of 2^26 */

/* Rounds to the nearest bf16, in the high half of each lane, ties away from zero: the next term holds
 * what is lost. */
EG_INLINE __m512i nearest(__m512i x) {
    return _mm512_and_si512(_mm512_add_epi32(x, _mm512_set1_epi32(0x8000)),
                            _mm512_set1_epi32((int)0xffff0000));
}

/* The bf16 terms of 16 numbers, each in the high half of its lane. Lanes that are true in the result hold a
 * number that is not a sum of such terms. */
EG_INLINE __mmask16 bf16_terms_of(__m512 x, __m512i *term, const int bf16_terms) {
    const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(EG_ABS_MASK));
    x = _mm512_mul_ps(x, _mm512_set1_ps(scale));
    EG_UNROLL(3)
    for (int t = 0; t < bf16_terms; t++) {
        term[t] = nearest(_mm512_castps_si512(x));
        x = _mm512_sub_ps(x, _mm512_castsi512_ps(term[t]));
    }
    return _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32((int)largest));
}

/* The pair of a lane: `first` in its low half, `second` in its high half. */
EG_INLINE __m512i pair(__m512i first, __m512i second) {
    return _mm512_or_si512(_mm512_srli_epi32(first, 16), second);
}

EG_INLINE void put(char *block, int term, int tile, int64_t row, __m512i words) {
    _mm512_store_si512(block + term * EG_AMX_TERM_BYTES + tile * TILE_BYTES + row * 64, words);
}

/* The numbers of a block: rows x cols of them, and zeros beyond. */
typedef struct block_numbers {
    const eg_rows *from;
    int64_t rows, cols;
} block_numbers;

EG_INLINE uint32_t mask_below(int64_t count) { return count >= 32 ? ~0U : count > 0 ? (1U << count) - 1 : 0; }

/* Where a row is, or the first one in place of those that there are not: a load of nothing from a page that
 * there is not takes a hundred cycles. */
EG_INLINE const char *row_at(const block_numbers *x, int64_t row) {
    return x->from->at + (row < x->rows ? row * x->from->step : 0);
}

/* Numbers [col, col + 16) of a row. */
EG_INLINE __m512 numbers(const block_numbers *x, int64_t row, int64_t col, const eg_dtype dtype) {
    const uint32_t wanted = row < x->rows ? mask_below(x->cols - col) : 0;
    const int64_t bytes = col < x->cols ? col * (int64_t)eg_size_of(dtype) : 0;
    return (__m512)load_part_amx(row_at(x, row) + bytes, dtype, (__mmask16)wanted);
}

/* Splits rows p and p + 16. As a left operand, both ends of a row are pairs; as a right one, the two rows.
 */
EG_INLINE bool split_rows(const block_numbers *x, int64_t p, char *left, char *right, const int bf16_terms,
                          const eg_dtype dtype) {
    __m512i top_left[3], top_right[3], low_left[3], low_right[3];
    const __mmask16 unfit = bf16_terms_of(numbers(x, p, 0, dtype), top_left, bf16_terms) |
                            bf16_terms_of(numbers(x, p, 16, dtype), top_right, bf16_terms) |
                            bf16_terms_of(numbers(x, p + 16, 0, dtype), low_left, bf16_terms) |
                            bf16_terms_of(numbers(x, p + 16, 16, dtype), low_right, bf16_terms);
    EG_UNROLL(3)
    for (int t = 0; t < bf16_terms; t++) {
        if (left != NULL) {
            put(left, t, 0, p, pair(top_left[t], top_right[t]));
            put(left, t, 1, p, pair(low_left[t], low_right[t]));
        }
        if (right != NULL) {
            put(right, t, 0, p, pair(top_left[t], low_left[t]));
            put(right, t, 1, p, pair(top_right[t], low_right[t]));
        }
    }
    return unfit == 0;
}

/* A row as bf16. */
EG_INLINE __m512i row_of(const block_numbers *x, int64_t row, const eg_dtype dtype) {
    if (dtype != EG_BF16) return two_to_bf16_amx(numbers(x, row, 0, dtype), numbers(x, row, 16, dtype));
    if (row < x->rows && x->cols >= EG_AMX_BLOCK) return _mm512_loadu_si512(row_at(x, row));
    return _mm512_maskz_loadu_epi16(row < x->rows ? mask_below(x->cols) : 0, row_at(x, row));
}

/* bf16 itself: rows p, p + 1 and those 16 below them. A left operand has them as they are; a right one pairs
 * neighbours of a column. */
EG_INLINE void pair_rows(const block_numbers *x, int64_t p, char *left, char *right, const eg_dtype dtype) {
    const __m512i first_half = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                                39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second_half = _mm512_add_epi32(first_half, _mm512_set1_epi32(16 << 16 | 16));
    EG_UNROLL(2)
    for (int tile = 0; tile < 2; tile++) {
        const __m512i even = row_of(x, 16 * tile + p, dtype), odd = row_of(x, 16 * tile + p + 1, dtype);
        if (left != NULL) {
            put(left, 0, tile, p, even);
            put(left, 0, tile, p + 1, odd);
        }
        if (right != NULL) {
            put(right, 0, 0, 8 * tile + p / 2, _mm512_permutex2var_epi16(even, first_half, odd));
            put(right, 0, 1, 8 * tile + p / 2, _mm512_permutex2var_epi16(even, second_half, odd));
        }
    }
}

/* 4 x 4 blocks of words are transposed within each quarter of four rows, then the blocks change places. */
EG_INLINE void transpose_tile(char *to, const char *from) {
    __m512i row[16], mixed[16];
    EG_UNROLL(16)
    for (int i = 0; i < 16; i++) row[i] = _mm512_load_si512(from + i * 64);
    EG_UNROLL(4)
    for (int q = 0; q < 16; q += 4) {
        const __m512i low01 = _mm512_unpacklo_epi32(row[q], row[q + 1]),
                      high01 = _mm512_unpackhi_epi32(row[q], row[q + 1]),
                      low23 = _mm512_unpacklo_epi32(row[q + 2], row[q + 3]),
                      high23 = _mm512_unpackhi_epi32(row[q + 2], row[q + 3]);
        mixed[q] = _mm512_unpacklo_epi64(low01, low23);
        mixed[q + 1] = _mm512_unpackhi_epi64(low01, low23);
        mixed[q + 2] = _mm512_unpacklo_epi64(high01, high23);
        mixed[q + 3] = _mm512_unpackhi_epi64(high01, high23);
    }
    EG_UNROLL(4)
    for (int i = 0; i < 4; i++) { /* column 4b + i of quarter q is block b of mixed[q + i] */
        const __m512i even01 = _mm512_shuffle_i32x4(mixed[i], mixed[4 + i], 0x88),
                      odd01 = _mm512_shuffle_i32x4(mixed[i], mixed[4 + i], 0xdd),
                      even23 = _mm512_shuffle_i32x4(mixed[8 + i], mixed[12 + i], 0x88),
                      odd23 = _mm512_shuffle_i32x4(mixed[8 + i], mixed[12 + i], 0xdd);
        _mm512_store_si512(to + i * 64, _mm512_shuffle_i32x4(even01, even23, 0x88));
        _mm512_store_si512(to + (4 + i) * 64, _mm512_shuffle_i32x4(odd01, odd23, 0x88));
        _mm512_store_si512(to + (8 + i) * 64, _mm512_shuffle_i32x4(even01, even23, 0xdd));
        _mm512_store_si512(to + (12 + i) * 64, _mm512_shuffle_i32x4(odd01, odd23, 0xdd));
    }
}

EG_INLINE void transpose_block(char *to, const char *from, const int bf16_terms) {
    for (int i = 0; i < 2 * bf16_terms; i++) transpose_tile(to + i * TILE_BYTES, from + i * TILE_BYTES);
}

EG_INLINE bool split(const block_numbers *x, int64_t first, int64_t count, const eg_cpu_packs *to,
                     const int bf16_terms, const eg_dtype dtype) {
    _Alignas(64) char left_scratch[3 * EG_AMX_TERM_BYTES], right_scratch[3 * EG_AMX_TERM_BYTES];
    char *left = to->left, *right = to->right;
    if (left == NULL && to->right_t != NULL) left = left_scratch;
    if (right == NULL && to->left_t != NULL) right = right_scratch;
    bool fits = true;
    for (int64_t p = first; p < first + count; p += bf16_terms == 1 ? 2 : 1) {
        if (bf16_terms == 1) pair_rows(x, p, left, right, dtype);
        if (bf16_terms > 1) fits &= split_rows(x, p, left, right, bf16_terms, dtype);
    }
    if (to->right_t != NULL) transpose_block(to->right_t, left, bf16_terms);
    if (to->left_t != NULL) transpose_block(to->left_t, right, bf16_terms);
    return fits;
}

/* A prefetch for writing: one for reading would fetch a line that another core owns twice. */
EG_INLINE void prefetch_rows_to_write(const char *rows, int64_t count) {
    for (int64_t at = 0; at < count * 64; at += 64) __asm__ volatile("prefetchw %0" ::"m"(rows[at]));
}

EG_INLINE void prefetch_write(const eg_cpu_packs *to, int64_t first, int64_t count, const int bf16_terms) {
    const char *const layouts[] = {to->left, to->right_t, to->right, to->left_t};
    for (int i = 0; i < 4; i++) {
        const bool pairs_rows = bf16_terms == 1 && i >= 2; /* two of the matrix make one, in each half */
        for (int tile = 0; layouts[i] != NULL && tile < 2 * bf16_terms; tile++) {
            const char *rows = layouts[i] + tile * TILE_BYTES;
            if (pairs_rows) {
                prefetch_rows_to_write(rows + first / 2 * 64, count / 2);
                prefetch_rows_to_write(rows + (8 + first / 2) * 64, count / 2);
            } else {
                prefetch_rows_to_write(rows + first * 64, count);
            }
        }
    }
}

/* ---- store ---------------------------------------------------------------------------------------- */

enum { HALF_ROW = EG_AMX_BLOCK / 2 };

EG_INLINE __m512i two_to_f16(__m512 first, __m512 second) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(first, _MM_FROUND_TO_NEAREST_INT)),
                              _mm512_cvtps_ph(second, _MM_FROUND_TO_NEAREST_INT), 1);
}

/* 32 numbers as 16-bit ones. */
EG_INLINE __m512i two_to(EG_T first, EG_T second, const eg_dtype dtype) {
    return dtype == EG_BF16 ? two_to_bf16_amx((__m512)first, (__m512)second)
                            : two_to_f16((__m512)first, (__m512)second);
}

EG_INLINE void store_line(char *to, __m512i line, bool non_temporal) {
    if (non_temporal) {
        _mm512_stream_si512((void *)to, line);
    } else {
        _mm512_storeu_si512(to, line);
    }
}

EG_INLINE void store_sum(char *to, const float *sums, int64_t cols, bool non_temporal, const float unscale,
                         const eg_dtype dtype) {
    const bool whole = cols == EG_AMX_BLOCK;
    const uint32_t part = mask_below(cols);
    const __m512 left = _mm512_mul_ps(_mm512_load_ps(sums), _mm512_set1_ps(unscale)),
                 right = _mm512_mul_ps(_mm512_load_ps(sums + HALF_ROW), _mm512_set1_ps(unscale));
    const __m512i words = two_to((EG_T)left, (EG_T)right, dtype);
    if (dtype != EG_F32 && whole) {
        store_line(to, words, non_temporal);
    } else if (dtype != EG_F32) {
        _mm512_mask_storeu_epi16(to, part, words);
    } else if (whole) {
        store_line(to, _mm512_castps_si512(left), non_temporal);
        store_line(to + 64, _mm512_castps_si512(right), non_temporal);
    } else {
        _mm512_mask_storeu_ps(to, (__mmask16)part, left);
        _mm512_mask_storeu_ps(to + 64, (__mmask16)(part >> HALF_ROW), right);
    }
}

EG_INLINE void store_sums(const float *sums, char *to, int64_t step, eg_dtype dtype, int64_t rows,
                          int64_t cols, bool non_temporal, const float unscale) {
#define STORE(type)                                                                                          \
    for (int64_t i = 0; i < rows; i++)                                                                       \
    store_sum(to + i * step, sums + i * EG_AMX_BLOCK, cols, non_temporal, unscale, type)
    EG_BY_TYPE(dtype, STORE);
#undef STORE
}

/* The transpose of a tile block, as 16-bit numbers: rows of `to` are its columns. Two rows are rounded to a
 * line of pairs, so that half as much is transposed as in f32. */
EG_INLINE void store_turned_words(const float *sums, char *to, int64_t step, int64_t rows, int64_t cols,
                                  bool non_temporal, const float unscale, const eg_dtype dtype) {
    const __m512i in_pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                              23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512 factor = _mm512_set1_ps(unscale);
    _Alignas(64) char pairs[TILE_BYTES], turned[TILE_BYTES];
    for (int64_t half = 0; half < cols; half += HALF_ROW) {
        for (int64_t i = 0; i < HALF_ROW; i++) {
            const float *row = sums + 2 * i * EG_AMX_BLOCK + half;
            __m512i words = _mm512_set1_epi32(0);
            if (2 * i < rows)
                words = two_to((EG_T)_mm512_mul_ps(_mm512_load_ps(row), factor),
                               (EG_T)_mm512_mul_ps(_mm512_load_ps(row + EG_AMX_BLOCK), factor), dtype);
            _mm512_store_si512(pairs + i * 64, _mm512_permutexvar_epi16(in_pairs, words));
        }
        transpose_tile(turned, pairs);
        for (int64_t j = 0; j < HALF_ROW && half + j < cols; j++) {
            const __m512i words = _mm512_load_si512(turned + j * 64);
            if (rows == EG_AMX_BLOCK) {
                store_line(to + (half + j) * step, words, non_temporal);
            } else {
                _mm512_mask_storeu_epi16(to + (half + j) * step, mask_below(rows), words);
            }
        }
    }
}
