/* SPDX-License-Identifier: Apache-2.0 */
/* The multiplication of few rows, which reads the right operand once, where it is. Part of kernel_template.h.
 *
 * Its sums are those of the micro-kernel: one chain of multiply-adds over the k of a pass. So a packed b, or
 * another layout of it, gives the same bits. */

#define EG_FEW_LINE 64 /* bytes of a cache line */

/* k that are added to a row's sums at once: so many vectors of the right operand stay in registers while all
 * rows are multiplied with them. */
enum { EG_V(at_once) = EG_NR % 8 == 0 ? 8 : 4 };

/* Columns [0, cols) of `count` k, at most at_once; those of a row are neighbours. `left` points to the first
 * k of the first row. dtype and count are constants where this is inlined. */
EG_INLINE void EG_V(add_few)(const eg_few_rows *x, const EG_R *left, const char *right, const eg_dtype dtype,
                             const int64_t k_bytes, const int count, int64_t cols, EG_R *sums,
                             const int64_t ahead) {
    const int64_t vector = EG_LANES * (int64_t)eg_dtype_size(dtype);
    for (int64_t j = 0; j * EG_LANES < cols; j++, right += vector, sums += EG_LANES) {
        EG_T b[EG_V(at_once)];
        const EG_V(numbers) some = EG_V(numbers_of)(cols, j);
        EG_UNROLL(8)
        for (int u = 0; u < count; u++) {
            b[u] = EG_V(load_numbers)(right + u * k_bytes, dtype, some);
            if (ahead != 0) __builtin_prefetch(right + u * k_bytes + ahead, 0, 2);
        }
        for (int64_t i = 0; i < x->rows; i++) {
            EG_T sum = EG_V(load)(sums + i * EG_NR);
            EG_UNROLL(8)
            for (int u = 0; u < count; u++)
                sum = EG_V(fma)(EG_V(splat)(left[i * x->left_row + u]), b[u], sum);
            EG_V(store)(sums + i * EG_NR, sum);
        }
    }
}

/* The same for all columns, by micro-panels of the sums. */
EG_INLINE void EG_V(add_panels)(const eg_few_rows *x, int64_t k, const char *right, const eg_dtype dtype,
                                const int64_t k_bytes, const int count, const int64_t ahead) {
    const int64_t group = eg_div(k, EG_NR);
    const EG_R *left = (const EG_R *)x->left + group * x->left_group + (k - group * EG_NR);
    EG_R *sums = x->sums;
    for (int64_t col = 0; col < x->cols; col += EG_NR, sums += x->rows * EG_NR) {
        const int64_t cols = x->cols - col < EG_NR ? x->cols - col : EG_NR;
        EG_V(add_few)
        (x, left, right + col * (int64_t)eg_dtype_size(dtype), dtype, k_bytes, count, cols, sums, ahead);
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
 * pages, where the hardware does not look ahead. */
static void EG_V(few_by_rows)(const eg_few_rows *x) {
#define EG_FEW(type) EG_V(add_rows_of)(x, 0, x->depth, x->right, type, x->k_bytes, EG_V(at_once) * x->k_bytes)
    EG_BY_STORAGE(x->dtype, EG_FEW);
#undef EG_FEW
}

#if EG_REAL_BITS == 32
/* Pairs of bf16 as f32: row 2k of `to` from the low 16 bits of row k, 2k + 1 from the high ones. */
EG_INLINE void EG_V(split_pairs)(EG_R *to, const EG_R *pairs, int64_t rows, int64_t cols) {
    const EG_I high = (EG_I){0} - 65536;
    for (int64_t k = 0; k < rows; k++, pairs += EG_NR, to += 2 * EG_NR) {
        for (int64_t j = 0; j < cols; j += EG_LANES) {
            const EG_I x = (EG_I)EG_V(load)(pairs + j);
            EG_V(store)(to + j, (EG_T)(x << 16));
            EG_V(store)(to + EG_NR + j, (EG_T)(x & high));
        }
    }
}
#endif

/* As many k as a cache line has, of all columns of a micro-panel, to rows of numbers in L1. */
EG_INLINE void EG_V(load_lines)(EG_R *rows, EG_R *pairs, const char *from, const eg_dtype dtype,
                                int64_t col_bytes, int64_t cols) {
    const int64_t size = (int64_t)eg_dtype_size(dtype);
    const bool in_pairs = dtype == EG_BF16,
               by_lines = dtype != EG_F16 && (((uintptr_t)from | (uintptr_t)col_bytes) & 3) == 0;
    const int64_t whole = by_lines ? cols & -(int64_t)EG_BLOCK : 0;
    EG_R *to = in_pairs ? pairs : rows;
    for (int64_t j = 0; j < whole; j += EG_BLOCK)
        EG_V(transpose_lines)(to + j, from + j * col_bytes, col_bytes);
#if EG_REAL_BITS == 32
    if (in_pairs) EG_V(split_pairs)(rows, pairs, EG_FEW_LINE / 4, whole);
#endif
    if (whole < cols) EG_V(load_columns)
    (rows + whole, from + whole * col_bytes, dtype, col_bytes / size, EG_FEW_LINE / size, cols - whole);
}

/* The k of the right operand are neighbours. The hardware prefetcher follows its columns: prefetches were
 * slower. */
EG_INLINE void EG_V(add_columns_of)(const eg_few_rows *x, const eg_dtype dtype) {
    enum { MOST = EG_FEW_LINE / 2 };
    const int64_t size = (int64_t)eg_dtype_size(dtype), line_k = EG_FEW_LINE / size;
    _Alignas(64) EG_R rows[MOST * EG_NR] = {0}, pairs[MOST / 2 * EG_NR] = {0};
    for (int64_t k = 0; k < x->depth; k += line_k) {
        const int64_t depth = x->depth - k < line_k ? x->depth - k : line_k;
        const char *from = x->right + k * size;
        if (depth == line_k) {
            EG_V(load_lines)(rows, pairs, from, dtype, x->col_bytes, x->cols);
        } else {
            EG_V(load_columns)(rows, from, dtype, x->col_bytes / size, depth, x->cols);
        }
        EG_V(add_rows_of)
        (x, k, depth, (const char *)rows, EG_REAL_BITS == 64 ? EG_F64 : EG_F32, EG_NR * sizeof(EG_R), 0);
    }
}

static void EG_V(few_by_columns)(const eg_few_rows *x) {
#define EG_FEW(type) EG_V(add_columns_of)(x, type)
    EG_BY_STORAGE(x->dtype, EG_FEW);
#undef EG_FEW
}

static void EG_V(few_rows)(const eg_few_rows *x) {
    if (x->by_columns) {
        EG_V(few_by_columns)(x);
    } else {
        EG_V(few_by_rows)(x);
    }
}

#undef EG_FEW_LINE
