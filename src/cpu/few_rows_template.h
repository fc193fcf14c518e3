/* SPDX-License-Identifier: Apache-2.0 */
/* The multiplication of few rows, which reads the right operand once, where it is. Part of kernel_template.h.
 *
 * Where columns are neighbours, as in a row-major B or a pack, its sums are those of the micro-kernel: one
 * chain of multiply-adds over the k of a pass. Where the k are, see dot_template.h. */

/* k that are added to a row's sums at once, and vectors of columns: those of the right operand stay in
 * registers while all rows are multiplied with them. Side by side, vectors share the numbers of the left
 * operand, and their chains of multiply-adds do not wait for each other. */
#ifdef EG_USE_NEON
enum { EG_V(at_once) = EG_NR % 8 == 0 ? 8 : 4, EG_V(abreast) = 1 };
#else
enum { EG_V(at_once) = EG_VECTOR_BYTES == 64 ? 8 : 4, EG_V(abreast) = EG_NV == 3 ? 3 : 2 };

/* sum + the products of `count` k, one after the other. */
EG_INLINE EG_T EG_V(add_k)(EG_T sum, const EG_R *left, const EG_T *b, const int count) {
    EG_UNROLL(8)
    for (int u = 0; u < count; u++) sum = EG_V(fma)(EG_V(splat)(left[u]), b[u], sum);
    return sum;
}
#endif

/* `some` numbers of each of `width` vectors of columns, times `count` k. */
EG_INLINE void EG_V(add_vectors)(const eg_few_rows *x, const EG_R *left, const char *right,
                                 const eg_dtype dtype, const int64_t k_bytes, const int count,
                                 const EG_V(numbers) some, EG_R *sums, const int64_t ahead,
                                 const bool prefetches, const int width) {
    const int64_t vector = EG_LANES * EG_V(size_of)(dtype);
    EG_T b[EG_V(abreast)][EG_V(at_once)];
    EG_UNROLL(8)
    for (int u = 0; u < count; u++) {
        EG_UNROLL(4)
        for (int v = 0; v < width; v++) {
            b[v][u] = EG_V(load_numbers)(right + u * k_bytes + v * vector, dtype, some);
            if (prefetches) __builtin_prefetch(right + u * k_bytes + v * vector + ahead, 0, 2);
        }
    }
    for (int64_t i = 0; i < x->rows; i++) {
        EG_R *const to = sums + i * EG_NR;
        const EG_R *const from = left + i * x->left_row;
        if (width == 1) {
            EG_V(store)(to, EG_V(add_k)(EG_V(load)(to), from, b[0], count));
            continue;
        }
        EG_T sum[EG_V(abreast)];
        EG_UNROLL(4)
        for (int v = 0; v < width; v++) sum[v] = EG_V(load)(to + v * EG_LANES);
        EG_UNROLL(8)
        for (int u = 0; u < count; u++) {
            const EG_T a = EG_V(splat)(from[u]);
            EG_UNROLL(4)
            for (int v = 0; v < width; v++) sum[v] = EG_V(fma)(a, b[v][u], sum[v]);
        }
        EG_UNROLL(4)
        for (int v = 0; v < width; v++) EG_V(store)(to + v * EG_LANES, sum[v]);
    }
}

/* Columns [0, cols) of `count` k, at most at_once; those of a row are neighbours. `left` points to the first
 * k of the first row. dtype and count are constants where this is inlined. */
EG_INLINE void EG_V(add_few)(const eg_few_rows *x, const EG_R *left, const char *right, const eg_dtype dtype,
                             const int64_t k_bytes, const int count, int64_t cols, EG_R *sums,
                             const int64_t ahead) {
    enum { ABREAST = EG_V(abreast) };
    const int64_t vector = EG_LANES * EG_V(size_of)(dtype);
    int64_t j = 0;
    for (; ABREAST > 1 && (j + ABREAST) * EG_LANES <= cols; j += ABREAST) {
        const EG_V(numbers) all = EG_V(numbers_of)(EG_LANES, 0);
        EG_V(add_vectors)
        (x, left, right + j * vector, dtype, k_bytes, count, all, sums + j * EG_LANES, ahead, ahead != 0,
         ABREAST);
    }
    for (; j * EG_LANES < cols; j++) {
        const EG_V(numbers) some = EG_V(numbers_of)(cols, j);
        const bool prefetches = ahead != 0 && (EG_VECTOR_BYTES > 16 || j * vector % 64 == 0);
        EG_V(add_vectors)
        (x, left, right + j * vector, dtype, k_bytes, count, some, sums + j * EG_LANES, ahead, prefetches, 1);
    }
}

/* Whether the rows of the right operand follow each other, as in a pack. */
EG_INLINE bool EG_V(is_pack)(const eg_few_rows *x, const eg_dtype dtype) {
    return x->k_bytes == EG_NR * EG_V(size_of)(dtype);
}

/* The same for a single row, whose numbers `left` stay in registers too, and a pack. */
EG_INLINE void EG_V(add_one)(const EG_T left[EG_V(at_once)], const char *right, const eg_dtype dtype,
                             const int64_t k_bytes, const int count, int64_t cols, EG_R *sums,
                             const int64_t ahead) {
    const int64_t vector = EG_LANES * EG_V(size_of)(dtype);
    for (int64_t j = 0; j * EG_LANES < cols; j++, right += vector, sums += EG_LANES) {
        const EG_V(numbers) some = EG_V(numbers_of)(cols, j);
        const bool begins_line = ahead != 0 && j * vector % 64 == 0;
        EG_T sum = EG_V(load)(sums);
        EG_UNROLL(8)
        for (int u = 0; u < count; u++) {
            sum = EG_V(fma)(left[u], EG_V(load_numbers)(right + u * k_bytes, dtype, some), sum);
            if (begins_line) __builtin_prefetch(right + u * k_bytes + ahead, 0, 2);
        }
        EG_V(store)(sums, sum);
    }
}

/* The same for all columns, by micro-panels of the sums. */
EG_INLINE void EG_V(add_panels)(const eg_few_rows *x, int64_t k, const char *right, const eg_dtype dtype,
                                const int64_t k_bytes, const int count, const int64_t ahead) {
    const int64_t group = eg_div(k, EG_NR);
    const EG_R *left = (const EG_R *)x->left + group * x->left_group + (k - group * EG_NR);
    EG_R *sums = x->sums;
    if (x->rows == 1 && EG_V(is_pack)(x, dtype)) {
        EG_T one[EG_V(at_once)];
        EG_UNROLL(8)
        for (int u = 0; u < count; u++) one[u] = EG_V(splat)(left[u]);
        for (int64_t col = 0; col < x->cols; col += EG_NR, sums += EG_NR, right += x->panel_bytes) {
            const int64_t cols = x->cols - col < EG_NR ? x->cols - col : EG_NR;
            EG_V(add_one)(one, right, dtype, k_bytes, count, cols, sums, ahead);
        }
        return;
    }
    for (int64_t col = 0; col < x->cols; col += EG_NR, sums += x->rows * EG_NR, right += x->panel_bytes) {
        const int64_t cols = x->cols - col < EG_NR ? x->cols - col : EG_NR;
        EG_V(add_few)(x, left, right, dtype, k_bytes, count, cols, sums, ahead);
    }
}

/* `depth` k from `k` on, whose rows at `right` are `k_bytes` apart. */
EG_INLINE void EG_V(add_rows_of)(const eg_few_rows *x, int64_t k, int64_t depth, const char *right,
                                 const eg_dtype dtype, const int64_t k_bytes, const int64_t ahead) {
    const int64_t end = k + depth;
    for (; k + EG_V(at_once) <= end; k += EG_V(at_once), right += EG_V(at_once) * k_bytes)
        EG_V(add_panels)(x, k, right, dtype, k_bytes, EG_V(at_once), ahead);
    for (; k < end; k++, right += k_bytes) EG_V(add_panels)(x, k, right, dtype, k_bytes, 1, 0);
}

/* The columns of the right operand are neighbours. The rows that come next are prefetched: they are in other
 * pages, where the hardware does not look ahead. Those of a pack are short, and are prefetched earlier. */
static void EG_V(few_by_rows)(const eg_few_rows *x) {
    enum { OF_PACK = 4 };
#define EG_FEW(type)                                                                                         \
    EG_V(add_rows_of)                                                                                        \
    (x, 0, x->depth, x->right, type, x->k_bytes,                                                             \
     (EG_V(is_pack)(x, type) ? OF_PACK : 1) * EG_V(at_once) * x->k_bytes)
    EG_BY_STORAGE(x->dtype, EG_FEW);
#undef EG_FEW
}

#include "dot_template.h"

static void EG_V(few_rows)(const eg_few_rows *x) {
    if (x->by_columns) {
        EG_V(few_by_columns)(x);
    } else {
        EG_V(few_by_rows)(x);
    }
}
