/* SPDX-License-Identifier: Apache-2.0 */
/* The transpose-pack: loads a tile from a column-major source and transposes it in registers. Part of
 * tile_template.h.
 *
 * It works on squares of EG_BLOCK columns by EG_BLOCK rows. EG_V(transpose) reads each column where it is
 * contiguous: to[i][j] = from[j][i], with `step` numbers from column to column. */
#if EG_VECTOR_BYTES == 64

#define EG_BLOCK ((int)EG_LANES)

/* Collects 128 bits of every EG_LANES / 4-th column in one register, which saves the shuffles between 128-bit
 * lanes. */
EG_INLINE EG_T EG_V(gather)(const EG_R *from, int64_t step) {
#if EG_REAL_BITS == 64
    const __m512d low =
        _mm512_insertf64x2(_mm512_castpd128_pd512(_mm_loadu_pd(from)), _mm_loadu_pd(from + step), 1);
    return (EG_T)_mm512_insertf64x2(_mm512_insertf64x2(low, _mm_loadu_pd(from + 2 * step), 2),
                                    _mm_loadu_pd(from + 3 * step), 3);
#else
    const __m512 low =
        _mm512_insertf32x4(_mm512_castps128_ps512(_mm_loadu_ps(from)), _mm_loadu_ps(from + step), 1);
    return (EG_T)_mm512_insertf32x4(_mm512_insertf32x4(low, _mm_loadu_ps(from + 2 * step), 2),
                                    _mm_loadu_ps(from + 3 * step), 3);
#endif
}

#if EG_REAL_BITS == 32
/* Four rows of the transpose. */
EG_INLINE void EG_V(transpose_lanes)(EG_R *to, __m512 a, __m512 b, __m512 c, __m512 d) {
    const __m512d ab_low = (__m512d)_mm512_unpacklo_ps(a, b), cd_low = (__m512d)_mm512_unpacklo_ps(c, d),
                  ab_high = (__m512d)_mm512_unpackhi_ps(a, b), cd_high = (__m512d)_mm512_unpackhi_ps(c, d);
    EG_V(store)(to, (EG_T)_mm512_unpacklo_pd(ab_low, cd_low));
    EG_V(store)(to + EG_NR, (EG_T)_mm512_unpackhi_pd(ab_low, cd_low));
    EG_V(store)(to + 2 * EG_NR, (EG_T)_mm512_unpacklo_pd(ab_high, cd_high));
    EG_V(store)(to + 3 * EG_NR, (EG_T)_mm512_unpackhi_pd(ab_high, cd_high));
}
#endif

EG_INLINE void EG_V(transpose)(EG_R *to, const EG_R *from, int64_t step) {
#if EG_REAL_BITS == 64
    EG_UNROLL(4)
    for (int i = 0; i < 8; i += 2, to += 2 * EG_NR) {
        const __m512d even = (__m512d)EG_V(gather)(from + i, 2 * step),
                      odd = (__m512d)EG_V(gather)(from + i + step, 2 * step);
        EG_V(store)(to, (EG_T)_mm512_unpacklo_pd(even, odd));
        EG_V(store)(to + EG_NR, (EG_T)_mm512_unpackhi_pd(even, odd));
    }
#else
    EG_UNROLL(4)
    for (int i = 0; i < 16; i += 4, to += 4 * EG_NR) {
        const __m512 a = (__m512)EG_V(gather)(from + i, 4 * step),
                     b = (__m512)EG_V(gather)(from + i + step, 4 * step),
                     c = (__m512)EG_V(gather)(from + i + 2 * step, 4 * step),
                     d = (__m512)EG_V(gather)(from + i + 3 * step, 4 * step);
        EG_V(transpose_lanes)(to, a, b, c, d);
    }
#endif
}

#else

#define EG_BLOCK 4

typedef EG_R EG_V(four)
    __attribute__((vector_size(4 * EG_REAL_BITS / 8), aligned(EG_REAL_BITS / 8), may_alias));

EG_INLINE void EG_V(transpose)(EG_R *to, const EG_R *from, int64_t step) {
    const EG_V(four) a = *(const EG_V(four) *)from, b = *(const EG_V(four) *)(from + step);
    const EG_V(four) c = *(const EG_V(four) *)(from + 2 * step), d = *(const EG_V(four) *)(from + 3 * step);
    const EG_V(four) ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5),
                     ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const EG_V(four) cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5),
                     cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(EG_V(four) *)to = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    *(EG_V(four) *)(to + EG_NR) = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    *(EG_V(four) *)(to + 2 * EG_NR) = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    *(EG_V(four) *)(to + 3 * EG_NR) = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

#endif

/* Transposes `rows` rows of EG_BLOCK columns. */
EG_INLINE void EG_V(transpose_rows)(EG_R *to, const EG_R *from, int64_t step, int64_t rows) {
    int64_t i = 0;
    for (; i + EG_BLOCK <= rows; i += EG_BLOCK) EG_V(transpose)(to + i * EG_NR, from + i, step);
    for (; i < rows; i++) {
        for (int j = 0; j < EG_BLOCK; j++) to[i * EG_NR + j] = from[i + j * step];
    }
}

/* Columns of another type, or fewer than EG_BLOCK: they are converted to a buffer in L1 first. */
EG_INLINE void EG_V(widen_rows)(EG_R *to, const char *src, eg_dtype dtype, int64_t col_bytes, int64_t rows,
                                int64_t cols) {
    enum { PART = 64 };
    EG_R part[EG_BLOCK * PART];
    for (; rows > 0; rows -= PART, src += PART * EG_V(size_of)(dtype), to += PART * EG_NR) {
        const int64_t count = rows < PART ? rows : PART;
        for (int64_t j = 0; j < EG_BLOCK; j++) {
            EG_R *column = part + j * PART;
            if (j < cols) EG_V(load_row)(column, src + j * col_bytes, dtype, 1, count);
            if (j >= cols) memset(column, 0, (size_t)count * sizeof *column);
        }
        EG_V(transpose_rows)(to, part, PART, count);
    }
}

static void EG_V(load_columns)(EG_R *tile, const char *src, eg_dtype dtype, int64_t col_stride, int64_t rows,
                               int64_t cols) {
    const int64_t col_bytes = col_stride * EG_V(size_of)(dtype);
    for (int64_t col = 0; col < cols; col += EG_BLOCK) {
        const char *from = src + col * col_bytes;
        if (dtype == (EG_REAL_BITS == 64 ? EG_F64 : EG_F32) && col + EG_BLOCK <= cols) {
            EG_V(transpose_rows)(tile + col, (const EG_R *)from, col_stride, rows);
        } else {
            EG_V(widen_rows)(tile + col, from, dtype, col_bytes, rows, cols - col);
        }
    }
}
