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

/* The same for all columns, by micro-panels of the sums. */
EG_INLINE void EG_V(add_panels)(const eg_few_rows *x, int64_t k, const char *right, const eg_dtype dtype,
                                const int64_t k_bytes, const int count, const int64_t ahead) {
    const int64_t group = eg_div(k, EG_NR);
    const EG_R *left = (const EG_R *)x->left + group * x->left_group + (k - group * EG_NR);
    EG_R *sums = x->sums;
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

/* ---- Packs ---------------------------------------------------------------------------------------- */

/* Rows whose sums have room in registers, micro-panels that are read side by side at most, and rows of a pack
 * that are prefetched before they are read. */
enum {
    EG_V(rows_of_pack) = EG_VECTOR_BYTES == 64 ? 24 / EG_NV : EG_CPU_PACK_ROWS,
    EG_V(most_abreast) = 4,
    EG_V(pack_ahead) = 16
};

/* Whether the rows of the right operand follow each other, as in a pack. */
EG_INLINE bool EG_V(is_pack)(const eg_few_rows *x, const eg_dtype dtype) {
    return x->k_bytes == EG_NR * EG_V(size_of)(dtype);
}

/* `rows` rows with `abreast` whole micro-panels: the sums stay in registers. Each micro-panel is a stream of
 * memory, and a core reads several streams faster than one. */
EG_INLINE void EG_V(sum_panels)(const eg_few_rows *x, const char *right, const eg_dtype dtype, EG_R *sums,
                                const int rows, const int abreast) {
    const int64_t vector = EG_LANES * EG_V(size_of)(dtype), k_bytes = EG_NV * vector, tile = rows * EG_NR;
    const EG_V(numbers) all = EG_V(numbers_of)(EG_LANES, 0);
    const EG_R *left = (const EG_R *)x->left;
    EG_T sum[EG_V(rows_of_pack)][EG_NV]; /* of all rows in the first micro-panel, in the next, ... */
    EG_UNROLL(8)
    for (int i = 0; i < rows * abreast; i++) {
        EG_UNROLL(8)
        for (int v = 0; v < EG_NV; v++)
            sum[i][v] = EG_V(load)(sums + i / rows * tile + i % rows * EG_NR + v * EG_LANES);
    }
    for (int64_t first = 0; first < x->depth; first += EG_NR, left += x->left_group) {
        const int64_t count = x->depth - first < EG_NR ? x->depth - first : EG_NR;
        for (int64_t k = 0; k < count; k++, right += k_bytes) {
            EG_UNROLL(4)
            for (int p = 0; p < abreast; p++) {
                const char *from = right + p * x->panel_bytes;
                EG_T b[EG_NV];
                EG_UNROLL(8)
                for (int v = 0; v < EG_NV; v++) {
                    b[v] = EG_V(load_numbers)(from + v * vector, dtype, all);
                    if (v * vector % 64 == 0)
                        __builtin_prefetch(from + v * vector + EG_V(pack_ahead) * k_bytes, 0, 2);
                }
                EG_UNROLL(8)
                for (int i = 0; i < rows; i++) {
                    const EG_T a = EG_V(splat)(left[i * x->left_row + k]);
                    EG_T *to = sum[p * rows + i];
                    EG_UNROLL(8)
                    for (int v = 0; v < EG_NV; v++) to[v] = EG_V(fma)(a, b[v], to[v]);
                }
            }
        }
    }
    EG_UNROLL(8)
    for (int i = 0; i < rows * abreast; i++) {
        EG_UNROLL(8)
        for (int v = 0; v < EG_NV; v++)
            EG_V(store)(sums + i / rows * tile + i % rows * EG_NR + v * EG_LANES, sum[i][v]);
    }
}

/* From `col` on as many columns as are `abreast` whole micro-panels; returns the first that is left. */
EG_INLINE int64_t EG_V(sum_abreast)(const eg_few_rows *x, int64_t col, const eg_dtype dtype, const int rows,
                                    const int abreast) {
    const char *right = x->right + eg_div(col, EG_NR) * x->panel_bytes;
    EG_R *sums = (EG_R *)x->sums + col * rows;
    for (; col + abreast * EG_NR <= x->cols; col += abreast * EG_NR) {
        EG_V(sum_panels)(x, right, dtype, sums, rows, abreast);
        right += abreast * x->panel_bytes, sums += abreast * EG_NR * rows;
    }
    return col;
}

/* All whole micro-panels, for a constant number of rows; returns the first column that is left. */
EG_INLINE int64_t EG_V(sum_columns)(const eg_few_rows *x, const eg_dtype dtype, const int rows) {
    const int room = EG_V(rows_of_pack) / rows, most = room < EG_V(most_abreast) ? room : EG_V(most_abreast);
    int64_t col = EG_V(sum_abreast)(x, 0, dtype, rows, most);
    if (most > 2) col = EG_V(sum_abreast)(x, col, dtype, rows, 2);
    if (most > 1) col = EG_V(sum_abreast)(x, col, dtype, rows, 1);
    return col;
}

EG_INLINE int64_t EG_V(sum_pack)(const eg_few_rows *x, const eg_dtype dtype) {
#define EG_ROWS(rows)                                                                                        \
    case rows:                                                                                               \
        return EG_V(sum_columns)(x, dtype, rows);
    switch (x->rows) {
        EG_ROWS(1)
        EG_ROWS(2)
        EG_ROWS(3)
        EG_ROWS(4)
#if EG_VECTOR_BYTES == 64
        EG_ROWS(5)
        EG_ROWS(6)
#endif
#if EG_VECTOR_BYTES == 64 && EG_NV < 4
        EG_ROWS(7)
        EG_ROWS(8)
#endif
    default:
        return 0;
    }
#undef EG_ROWS
}

/* ---- Rows or a pack ------------------------------------------------------------------------------- */

/* The columns of the right operand are neighbours. The rows that come next are prefetched: they are in other
 * pages, where the hardware does not look ahead. Those of a pack are short, and are prefetched earlier. */
EG_INLINE void EG_V(few_of)(const eg_few_rows *x, const eg_dtype dtype) {
    eg_few_rows rest = *x;
    const bool is_pack = EG_V(is_pack)(x, dtype);
    const int64_t ahead = (is_pack ? EG_V(pack_ahead) : EG_V(at_once)) * x->k_bytes;
    if (is_pack) {
        /* zeros are as good as numbers, and quicker to load than a part of a vector */
        if (x->padded) rest.cols = eg_ceil_div(x->cols, EG_LANES) * EG_LANES;
        const int64_t some = rest.cols, last = some - eg_div(some, EG_NR) * EG_NR;
        if (x->padded && 2 * last >= EG_NR) rest.cols += EG_NR - last;
        const int64_t done = EG_V(sum_pack)(&rest, dtype), panels = eg_div(done, EG_NR);
        rest.cols = some - done;
        rest.right += panels * x->panel_bytes;
        rest.sums = (EG_R *)x->sums + done * x->rows;
    }
    if (rest.cols > 0) EG_V(add_rows_of)(&rest, 0, x->depth, rest.right, dtype, x->k_bytes, ahead);
}

static void EG_V(few_by_rows)(const eg_few_rows *x) {
#define EG_FEW(type) EG_V(few_of)(x, type)
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
