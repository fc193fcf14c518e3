/* SPDX-License-Identifier: Apache-2.0 */
/* The tile loop of large products: both operands are packed in the order in which a tile reads them. Every
 * address is then one of two pointers and a constant, and a k costs nothing but its loads and multiply-adds.
 * Part of kernel_template.h. */

/* k that follow each other in a packed row of the left operand, and for which a line of each kind is
 * prefetched: a tile of 4 rows and 3 vectors of half a line needs 11 lines in 192 k. */
enum { EG_V(step) = 12 };
#define EG_STEP EG_V(step)
_Static_assert(EG_NR % EG_STEP == 0 && EG_STEP == EG_CPU_PARTS * EG_CPU_PART, "a pass is whole steps");
_Static_assert(EG_KC <= EG_CPU_MOST_STEPS * EG_STEP && EG_KC_SINGLE_PASS <= EG_CPU_MOST_STEPS * EG_STEP &&
                   EG_KC_FUSED <= EG_CPU_MOST_STEPS * EG_STEP,
               "there are lines for each step");

/* ---- The left operand ----------------------------------------------------------------------------- */

/* Numbers that are neighbours; `count` is a constant where this is inlined. */
EG_INLINE void EG_V(copy_numbers)(EG_R *to, const char *from, const eg_dtype dtype, const int64_t count) {
    if (EG_V(is_own_type)(dtype)) {
        memcpy(to, from, sizeof(EG_R) * (size_t)count);
    } else {
        EG_V(load_row)(to, from, dtype, 1, count);
    }
}

/* So many rows of some k, where the k of a row are neighbours: each row's after another. */
EG_INLINE void EG_V(pack_step)(EG_R *to, const char *from, eg_dtype dtype, int64_t row_bytes, int64_t rows,
                               int64_t depth) {
    if (rows >= EG_MR && depth == EG_STEP) {
        EG_UNROLL(8)
        for (int i = 0; i < EG_MR; i++)
            EG_V(copy_numbers)(to + i * EG_STEP, from + i * row_bytes, dtype, EG_STEP);
        return;
    }
    memset(to, 0, sizeof(EG_R) * EG_MR * EG_STEP);
    for (int64_t i = 0; i < rows && i < EG_MR; i++)
        EG_V(load_row)(to + i * EG_STEP, from + i * row_bytes, dtype, 1, depth);
}

EG_INLINE void EG_V(pack_left_rows)(EG_R *to, const char *from, const eg_dtype dtype,
                                    const eg_left_source *source) {
    const int64_t size = EG_V(size_of)(dtype), row_bytes = source->row_stride * size;
    for (int64_t rows = source->rows; rows > 0; rows -= EG_MR, from += EG_MR * row_bytes) {
        const char *group = from;
        for (int64_t left = source->depth; left > 0; left -= EG_NR, group += source->group_stride * size) {
            for (int64_t k = 0; k < EG_NR && k < left; k += EG_STEP, to += EG_MR * EG_STEP) {
                const int64_t depth = left - k < EG_STEP ? left - k : EG_STEP;
                EG_V(pack_step)(to, group + k * size, dtype, row_bytes, rows, depth);
            }
        }
    }
}

/* Where the rows are neighbours: a tile's numbers of each k, some k at a time, so that lines are written as a
 * whole. */
EG_INLINE void EG_V(pack_left_columns)(EG_R *to, const char *from, const eg_dtype dtype,
                                       const eg_left_source *source) {
    enum { SOME = 8 };
    const int64_t size = EG_V(size_of)(dtype), k_bytes = source->k_stride * size, rows = source->rows;
    const int64_t panel = (source->depth + EG_STEP - 1) / EG_STEP * EG_STEP * EG_MR;
    for (int64_t left = source->depth; left > 0; left -= SOME, from += SOME * k_bytes, to += SOME * EG_MR) {
        const int64_t depth = left < SOME ? left : SOME;
        EG_R *tile = to;
        for (int64_t i = 0; i < rows; i += EG_MR, tile += panel) {
            const char *numbers = from + i * size;
            const int64_t some = rows - i < EG_MR ? rows - i : EG_MR;
            if (some < EG_MR) memset(tile, 0, sizeof(EG_R) * EG_MR * (size_t)depth);
            for (int64_t k = 0; k < depth; k++, numbers += k_bytes) {
                if (some == EG_MR) {
                    EG_V(copy_numbers)(tile + k * EG_MR, numbers, dtype, EG_MR);
                } else {
                    EG_V(load_row)(tile + k * EG_MR, numbers, dtype, 1, some);
                }
            }
        }
    }
}

static void EG_V(pack_left)(void *to, const void *from, eg_dtype dtype, const eg_left_source *source) {
    (void)dtype;
#define EG_PACK_LEFT(dtype)                                                                                  \
    if (source->k_stride == 1) {                                                                             \
        EG_V(pack_left_rows)(to, from, dtype, source);                                                       \
    } else {                                                                                                 \
        EG_V(pack_left_columns)(to, from, dtype, source);                                                    \
    }
    EG_BY_STORAGE(dtype, EG_PACK_LEFT)
#undef EG_PACK_LEFT
}

/* ---- multiply ------------------------------------------------------------------------------------- */

#if defined(__AVX2__) && EG_VECTOR_BYTES == 32
#include "packed_avx2.h"
#define EG_HAS_FOUR 1
#else
#define EG_HAS_FOUR 0
#endif

/* count, nv, `by_rows` and `ends` are constants where these are inlined. */
EG_INLINE void EG_V(multiply_some)(EG_T sum[EG_MR][EG_NV], const EG_R *left, const EG_R *right,
                                   const int count, const int nv, const bool by_rows) {
    EG_UNROLL(12)
    for (int k = 0; k < count; k++) {
        EG_T b[EG_NV];
        EG_UNROLL(8)
        for (int j = 0; j < nv; j++) b[j] = EG_V(load)(right + k * EG_NR + j * EG_LANES);
        EG_UNROLL(16)
        for (int i = 0; i < EG_MR; i++) {
            const EG_T a = EG_V(splat)(left[by_rows ? i * EG_STEP + k : k * EG_MR + i]);
            EG_UNROLL(8)
            for (int j = 0; j < nv; j++) sum[i][j] = EG_V(fma)(a, b[j], sum[i][j]);
        }
    }
}

/* The four k of a step that begin with number `first` of it. */
EG_INLINE void EG_V(multiply_part)(EG_T sum[EG_MR][EG_NV], const EG_R *left, const EG_R *right,
                                   const int first, const int nv, const bool by_rows) {
#if EG_HAS_FOUR
    if (nv == EG_NV) {
        EG_V(multiply_four)(sum, left, right, first, by_rows);
        return;
    }
#endif
    EG_V(multiply_some)
    (sum, left + first * (by_rows ? 1 : EG_MR), right + first * EG_NR, EG_CPU_PART, nv, by_rows);
}

EG_INLINE void EG_V(multiply_packed_nv)(const void *left, const void *right, int64_t depth,
                                        const eg_micro_tile *tile, const eg_prefetch_lines *lines,
                                        const int nv, const bool by_rows, const bool ends) {
    const int a_k = by_rows ? 1 : EG_MR;
    EG_T sum[EG_MR][EG_NV] = {{{0}}};
    const EG_R *a = left, *b = right;
    const char *next_right = lines->right, *next_left = lines->left, *out = lines->out, *in = lines->in;
    const eg_prefetch_step *ahead = lines->step;
    if (tile->initial != NULL) {
        EG_UNROLL(32)
        for (int i = 0; i < EG_MR * EG_NR * (int)sizeof(EG_R); i += 64)
            __builtin_prefetch((const char *)tile->initial + i, 0, 3);
    }
    for (; depth >= EG_STEP; depth -= EG_STEP) {
        __builtin_prefetch(next_right + ahead->right, 0, 2);
        __builtin_prefetch(next_left + ahead->left, 0, 2);
        EG_UNROLL(4)
        for (int part = 0; part < EG_CPU_PARTS; part++) {
            if (ends) __builtin_prefetch(out + ahead->out[part], 0, 2);
            if (ends) __builtin_prefetch(in + ahead->in[part], 0, 2);
            EG_V(multiply_part)(sum, a, b, part * EG_CPU_PART, nv, by_rows);
        }
        a += EG_STEP * EG_MR, b += EG_STEP * EG_NR, ahead++;
    }
    for (; depth > 0; depth--, a += a_k, b += EG_NR) EG_V(multiply_some)(sum, a, b, 1, nv, by_rows);
    EG_V(store_accumulators)(sum, tile, EG_MR, nv);
}

/* Each a function of its own, as together they would not have enough registers. */
#define EG_VARIANT(name, ...)                                                                                \
    static __attribute__((noinline)) void EG_V(name)(const void *left, const void *right, int64_t depth,     \
                                                     const eg_micro_tile *tile,                              \
                                                     const eg_prefetch_lines *lines) {                       \
        EG_V(multiply_packed_nv)(left, right, depth, tile, lines, __VA_ARGS__);                              \
    }
EG_VARIANT(packed_rows, EG_NV, true, false)
EG_VARIANT(packed_columns, EG_NV, false, false)
EG_VARIANT(packed_rows_end, EG_NV, true, true)
EG_VARIANT(packed_columns_end, EG_NV, false, true)
EG_VARIANT(packed_rows_1, 1, true, true)
EG_VARIANT(packed_columns_1, 1, false, true)
#if EG_NV > 2
EG_VARIANT(packed_rows_2, 2, true, true)
EG_VARIANT(packed_columns_2, 2, false, true)
#endif
#if EG_NV > 3
EG_VARIANT(packed_rows_3, 3, true, true)
EG_VARIANT(packed_columns_3, 3, false, true)
#endif
#undef EG_VARIANT

static void EG_V(multiply_packed)(const void *left, bool by_rows, const void *right, int64_t depth,
                                  int64_t cols, const eg_micro_tile *tile, const eg_prefetch_lines *lines) {
#define EG_RUN(name)                                                                                         \
    (by_rows ? EG_V(packed_rows##name) : EG_V(packed_columns##name))(left, right, depth, tile, lines)
    if (cols <= EG_LANES) {
        EG_RUN(_1);
#if EG_NV > 2
    } else if (cols <= 2 * EG_LANES) {
        EG_RUN(_2);
#endif
#if EG_NV > 3
    } else if (cols <= 3 * EG_LANES) {
        EG_RUN(_3);
#endif
    } else if (lines->ends) {
        EG_RUN(_end);
    } else {
        EG_RUN();
    }
#undef EG_RUN
}

#undef EG_STEP
