/* SPDX-License-Identifier: Apache-2.0 */
/* Products of little depth that have no epilogue but a bias and relu, such as d_b of few rows: sums are
 * rounded and stored from registers, tile after tile along the rows, and `pre` with them. Part of
 * kernel_template.h. The sums are those of the micro-kernel.
 *
 * A tile has `rows` rows of `width` micro-panels, mr of both together. Two of 16-bit numbers are whole
 * cache lines where one is not. */

/* `depth` k of a tile. Of both strides of the left operand one is 1 and the other one nr, as constants. */
EG_INLINE void EG_V(outer_sums)(EG_T sum[EG_MR * EG_NV], const EG_R *left, const int64_t index_stride,
                                const int64_t k_stride, const EG_R *right, int64_t panel, int64_t depth,
                                const int rows, const int width, const int nv) {
    EG_PARTS(2)
    for (int64_t k = 0; k < depth; k++) {
        EG_UNROLL(2)
        for (int p = 0; p < width; p++) {
            EG_T b[EG_NV];
            EG_UNROLL(8)
            for (int j = 0; j < nv; j++) b[j] = EG_V(load)(right + p * panel + k * EG_NR + j * EG_LANES);
            EG_UNROLL(16)
            for (int i = 0; i < rows; i++) {
                const EG_T a = EG_V(splat)(left[i * index_stride + k * k_stride]);
                EG_T *const to = sum + (i * width + p) * nv;
                EG_UNROLL(8)
                for (int j = 0; j < nv; j++) to[j] = EG_V(fma)(a, b[j], to[j]);
            }
        }
    }
}

EG_INLINE void EG_V(put_sums)(EG_R *to, int64_t step, const EG_T *sum, const int rows, const int vectors,
                              const bool non_temporal) {
    EG_UNROLL(16)
    for (int i = 0; i < rows; i++, to += step) {
        EG_UNROLL(8)
        for (int j = 0; j < vectors; j++) {
            if (non_temporal) EG_V(stream)(to + j * EG_LANES, sum[i * vectors + j]);
            if (!non_temporal) EG_V(store)(to + j * EG_LANES, sum[i * vectors + j]);
        }
    }
}

/* What an epilogue of a bias, and perhaps of relu, makes of the sums. NULL: no bias. */
EG_INLINE void EG_V(finish_sums)(EG_T sum[EG_MR * EG_NV], const EG_R *bias, const bool relu, const int rows,
                                 const int vectors) {
    EG_UNROLL(8)
    for (int j = 0; j < vectors; j++) {
        const EG_T b = bias != NULL ? EG_V(load)(bias + j * EG_LANES) : EG_V(splat)((EG_R)-0.0);
        EG_UNROLL(16)
        for (int i = 0; i < rows; i++) sum[i * vectors + j] = EG_V(finish_sum)(sum[i * vectors + j], b, relu);
    }
}

/* The lines of the next tile, for their stores: a processor asks for them no earlier than it stores, and
 * waits for each. Of rows that begin between cache lines the tile to the left has stored to the first. */
EG_INLINE void EG_V(prefetch_tile)(const char *next, int64_t step, const int rows, const int64_t bytes) {
    enum { LINE = 64 };
    EG_UNROLL(16)
    for (int i = 0; i < rows; i++) {
        EG_UNROLL(8)
        for (int64_t j = eg_prefetch_offset(bytes); j < bytes; j += LINE)
            __builtin_prefetch(next + i * step + j, 1, 3);
    }
}

#if EG_VECTOR_BYTES == 64
/* Fewer rows and columns than a tile has: parts of vectors, by masks. */
EG_INLINE void EG_V(put_parts)(char *out, int64_t step, const EG_T *sum, int64_t rows_left, int64_t cols_left,
                               const eg_dtype dtype, const int rows, const int vectors) {
    const int64_t vector = EG_LANES * EG_V(size_of)(dtype);
    EG_V(part) part[EG_NV];
    EG_UNROLL(8)
    for (int j = 0; j < vectors && j < EG_NV; j++) part[j] = EG_V(part_of)(cols_left, j);
    EG_UNROLL(16)
    for (int i = 0; i < rows; i++, out += step) {
        if (i >= rows_left) return;
        EG_UNROLL(8)
        for (int j = 0; j < vectors && j < EG_NV; j++)
            EG_V(store_part)(out + j * vector, sum[i * vectors + j], dtype, part[j]);
    }
}
#else
/* Without masks, numbers of a part of a vector are stored one by one. But where rows follow each other, what
 * a whole vector writes beyond its row is in the next one, which is stored after it. */
EG_INLINE bool EG_V(may_overrun)(int64_t step, int64_t cols, const eg_dtype dtype, const int vectors) {
    return EG_V(is_own_type)(dtype) && step == cols * (int64_t)sizeof(EG_R) && vectors * EG_LANES <= 2 * cols;
}

EG_INLINE void EG_V(put_parts)(char *out, int64_t step, const EG_T *sum, int64_t rows_left, int64_t cols_left,
                               const eg_dtype dtype, const int rows, const int vectors) {
    EG_R tile[EG_MR * EG_NR]; /* of one micro-panel */
    EG_UNROLL(16)
    for (int i = 0; i < EG_MR * EG_NV; i++) EG_V(store)(tile + i * EG_LANES, (EG_T){0});
    const int last = rows - 1;
    if (rows_left >= rows && EG_V(may_overrun)(step, cols_left, dtype, vectors)) {
        EG_V(put_sums)((EG_R *)(void *)out, cols_left, sum, last, vectors, false);
        EG_V(put_sums)(tile, EG_NR, sum + last * vectors, 1, vectors < EG_NV ? vectors : EG_NV, false);
        EG_V(store_dense)(tile, out + last * step, dtype, step, 1, cols_left);
        return;
    }
    EG_V(put_sums)(tile, EG_NR, sum, rows, vectors < EG_NV ? vectors : EG_NV, false);
    EG_V(store_dense)
    (tile, out, dtype, step, rows_left < rows ? rows_left : rows, cols_left < EG_NR ? cols_left : EG_NR);
}
#endif

/* Numbers of a tile, of which there may be fewer rows and columns. */
EG_INLINE void EG_V(put_tile)(char *out, int64_t step, const EG_T *sum, int64_t rows_left, int64_t cols_left,
                              const bool non_temporal, const eg_dtype dtype, const int rows,
                              const int vectors) {
    if (rows_left < rows || cols_left < vectors * EG_LANES || !EG_V(stores_sums)(dtype)) {
        EG_V(put_parts)(out, step, sum, rows_left, cols_left, dtype, rows, vectors);
    } else if (EG_V(is_own_type)(dtype) && non_temporal) {
        EG_V(put_sums)
        ((EG_R *)(void *)out, step / (int64_t)sizeof(EG_R), sum, rows, vectors, true);
    } else {
        EG_UNROLL(16)
        for (int i = 0; i < rows; i++) EG_V(store_sums)(out + i * step, sum + i * vectors, dtype, vectors);
    }
}

/* Where a tile and the one after it are stored, and what bias they have. */
typedef struct EG_V(outer_place) {
    char *out, *pre; /* NULL: none */
    const EG_R *bias;
    int64_t to_next, pre_to_next; /* bytes */
} EG_V(outer_place);

/* One tile, and a prefetch of the lines of the next. */
EG_INLINE void EG_V(outer_tile)(const eg_little_depth *x, const EG_R *left, const EG_R *right,
                                const EG_V(outer_place) * at, int64_t rows_left, int64_t cols_left,
                                const bool transposed, const bool with_pre, const eg_dtype dtype,
                                const int rows, const int width, const int nv) {
    const int vectors = width * nv;
    const int64_t bytes = vectors * EG_LANES * EG_V(size_of)(dtype);
    const EG_R *bias = at->bias;
    EG_T sum[EG_MR * EG_NV] = {{0}};
    if (!x->non_temporal) {
        EG_V(prefetch_tile)(at->out + at->to_next, x->out_step, rows, bytes);
        if (with_pre) EG_V(prefetch_tile)(at->pre + at->pre_to_next, x->pre_step, rows, bytes);
    }
    for (int64_t k = x->depth; k > 0; k -= EG_NR, left += x->left_group, right += EG_NR * EG_NR) {
        const int64_t count = k < EG_NR ? k : EG_NR;
        if (transposed) EG_V(outer_sums)(sum, left, 1, EG_NR, right, x->right_panel, count, rows, width, nv);
        if (!transposed) EG_V(outer_sums)(sum, left, EG_NR, 1, right, x->right_panel, count, rows, width, nv);
    }
    if (with_pre) {
        EG_V(finish_sums)(sum, bias, false, rows, vectors);
        EG_V(put_tile)
        (at->pre, x->pre_step, sum, rows_left, cols_left, x->non_temporal, dtype, rows, vectors);
        if (x->relu) EG_V(finish_sums)(sum, NULL, true, rows, vectors);
    } else if (bias != NULL && x->relu) {
        EG_V(finish_sums)(sum, bias, true, rows, vectors);
    } else if (bias != NULL) {
        EG_V(finish_sums)(sum, bias, false, rows, vectors);
    }
    EG_V(put_tile)(at->out, x->out_step, sum, rows_left, cols_left, x->non_temporal, dtype, rows, vectors);
}

/* To the tile on the right. */
EG_INLINE void EG_V(outer_right)(EG_V(outer_place) * at, const bool with_pre, const eg_dtype dtype,
                                 const int width) {
    const int64_t bytes = width * EG_NR * EG_V(size_of)(dtype);
    at->out += bytes;
    if (with_pre) at->pre += bytes;
    if (at->bias != NULL) at->bias += width * EG_NR;
}

/* A tile of fewer vectors than a micro-panel has. A function of its own: within that of whole tiles, it would
 * take registers from them. */
static __attribute__((noinline)) void EG_V(outer_tail)(const eg_little_depth *x, const EG_R *left,
                                                       const EG_R *right, const EG_V(outer_place) * at,
                                                       int64_t rows_left, int64_t cols_left) {
    enum { MOST = EG_NV > 2 ? EG_NV - 1 : 1 };
    const bool transposed = x->left_is_transposed, with_pre = at->pre != NULL, wide = cols_left > EG_LANES;
#define EG_TAIL(type)                                                                                        \
    if (wide && transposed) {                                                                                \
        EG_V(outer_tile)(x, left, right, at, rows_left, cols_left, true, with_pre, type, EG_MR, 1, MOST);    \
    } else if (wide) {                                                                                       \
        EG_V(outer_tile)(x, left, right, at, rows_left, cols_left, false, with_pre, type, EG_MR, 1, MOST);   \
    } else if (transposed) {                                                                                 \
        EG_V(outer_tile)(x, left, right, at, rows_left, cols_left, true, with_pre, type, EG_MR, 1, 1);       \
    } else {                                                                                                 \
        EG_V(outer_tile)(x, left, right, at, rows_left, cols_left, false, with_pre, type, EG_MR, 1, 1);      \
    }
    EG_BY_STORAGE(x->dtype, EG_TAIL);
#undef EG_TAIL
}

/* Of a result as narrow as that. */
static void EG_V(outer_narrow)(const eg_little_depth *x) {
    const EG_R *left = x->left;
    EG_V(outer_place)
    at = {.out = x->out,
          .pre = x->pre,
          .bias = x->bias,
          .to_next = EG_MR * x->out_step,
          .pre_to_next = EG_MR * x->pre_step};
    for (int64_t row = 0; row < x->rows; row += EG_MR, at.out += at.to_next) {
        EG_V(outer_tail)(x, left, x->right, &at, x->rows - row, x->cols);
        left += EG_MR * (x->left_is_transposed ? 1 : EG_NR);
        if (at.pre != NULL) at.pre += at.pre_to_next;
    }
}

/* All rows from left to right, some at a time. The left operand has mr of the last ones too. */
EG_INLINE void EG_V(outer_rows)(const eg_little_depth *x, const bool transposed, const bool with_pre,
                                const eg_dtype dtype, const int width) {
    const int rows = EG_MR / width;
    const int64_t panel_bytes = EG_NR * EG_V(size_of)(dtype);
    const EG_R *left = x->left;
    for (int64_t row = 0; row < x->rows; row += rows, left += rows * (transposed ? 1 : EG_NR)) {
        const EG_R *right = x->right;
        EG_V(outer_place) at = {.out = x->out + row * x->out_step, .bias = x->bias};
        int64_t cols = x->cols, done = 0; /* bytes of the rows */
        if (with_pre) at.pre = x->pre + row * x->pre_step;
        for (; width > 1 && cols >= width * EG_NR && x->rows - row >= rows; cols -= width * EG_NR) {
            const bool ends = cols <= width * EG_NR;
            at.to_next = ends ? rows * x->out_step - done : width * panel_bytes;
            at.pre_to_next = ends ? rows * x->pre_step - done : width * panel_bytes;
            EG_V(outer_tile)
            (x, left, right, &at, rows, cols, transposed, with_pre, dtype, rows, width, EG_NV);
            EG_V(outer_right)(&at, with_pre, dtype, width);
            right += width * x->right_panel, done += width * panel_bytes;
        }
        for (; cols > 0; cols -= EG_NR, right += x->right_panel, done += panel_bytes) {
            at.to_next = cols <= EG_NR ? rows * x->out_step - done : panel_bytes;
            at.pre_to_next = cols <= EG_NR ? rows * x->pre_step - done : panel_bytes;
            if (EG_V(is_own_type)(dtype) && cols <= EG_NR - EG_LANES) {
                EG_V(outer_tail)(x, left, right, &at, x->rows - row, cols);
            } else {
                EG_V(outer_tile)
                (x, left, right, &at, x->rows - row, cols, transposed, with_pre, dtype, rows, 1, EG_NV);
            }
            EG_V(outer_right)(&at, with_pre, dtype, 1);
        }
    }
}

/* With `pre` and without it: each would take registers from the other's loop. */
#define EG_OUTER_OF(name, with_pre)                                                                          \
    static __attribute__((noinline)) void EG_V(name)(const eg_little_depth *x) {                             \
        enum { PAIRS = EG_VECTOR_BYTES == 64 && EG_NV % 2 == 1 ? 2 : 1 };                                    \
        if (x->left_is_transposed) {                                                                         \
            EG_BY_STORAGE(x->dtype, EG_OUTER_TRANSPOSED_##with_pre);                                         \
        } else {                                                                                             \
            EG_BY_STORAGE(x->dtype, EG_OUTER_PLAIN_##with_pre);                                              \
        }                                                                                                    \
    }
#define EG_OUTER_TRANSPOSED_true(type)                                                                       \
    EG_V(outer_rows)(x, true, true, type, EG_V(is_own_type)(type) ? 1 : PAIRS)
#define EG_OUTER_TRANSPOSED_false(type)                                                                      \
    EG_V(outer_rows)(x, true, false, type, EG_V(is_own_type)(type) ? 1 : PAIRS)
#define EG_OUTER_PLAIN_true(type) EG_V(outer_rows)(x, false, true, type, EG_V(is_own_type)(type) ? 1 : PAIRS)
#define EG_OUTER_PLAIN_false(type)                                                                           \
    EG_V(outer_rows)(x, false, false, type, EG_V(is_own_type)(type) ? 1 : PAIRS)
EG_OUTER_OF(outer_pre, true)
EG_OUTER_OF(outer_alone, false)
#undef EG_OUTER_OF
#undef EG_OUTER_TRANSPOSED_true
#undef EG_OUTER_TRANSPOSED_false
#undef EG_OUTER_PLAIN_true
#undef EG_OUTER_PLAIN_false

static void EG_V(outer)(const eg_little_depth *x) {
    if (x->cols <= EG_NR - EG_LANES) {
        EG_V(outer_narrow)(x);
    } else if (x->pre != NULL) {
        EG_V(outer_pre)(x);
    } else {
        EG_V(outer_alone)(x);
    }
}

/* A row by non-temporal stores: of whole cache lines, wherever they begin, and the numbers before and behind
 * them as they are. */
static void EG_V(stream_row)(void *row, const void *numbers, int64_t count) {
    enum { LINE = 64, OF_LINE = LINE / sizeof(EG_R) };
    EG_R *to = row;
    const EG_R *from = numbers;
    const int64_t over = (int64_t)((uintptr_t)row & (LINE - 1)) / (int64_t)sizeof(EG_R);
    int64_t before = over > 0 ? OF_LINE - over : 0, at;
    if (before > count) before = count;
    memcpy(to, from, (size_t)before * sizeof(EG_R));
    for (at = before; at + OF_LINE <= count; at += OF_LINE) {
        EG_UNROLL(4)
        for (int64_t j = 0; j < OF_LINE; j += EG_LANES) EG_V(stream)(to + at + j, EG_V(load)(from + at + j));
    }
    memcpy(to + at, from + at, (size_t)(count - at) * sizeof(EG_R));
}
