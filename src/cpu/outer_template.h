/* SPDX-License-Identifier: Apache-2.0 */
/* Products of little depth that have no epilogue but a bias and relu, such as d_b of few rows: sums are
 * rounded and stored from registers, tile after tile along the rows. Part of kernel_template.h. The sums are
 * those of the micro-kernel.
 *
 * A tile has `rows` rows of `width` micro-panels, mr of both together. Two of 16-bit numbers are whole
 * cache lines where one is not. */

/* `depth` k of a tile. Of both strides of the left operand one is 1 and the other one nr, as constants. */
EG_INLINE void EG_V(outer_sums)(EG_T sum[EG_MR * EG_NV], const EG_R *left, const int64_t index_stride,
                                const int64_t k_stride, const EG_R *right, int64_t panel, int64_t depth,
                                const int rows, const int width) {
    EG_PARTS(2)
    for (int64_t k = 0; k < depth; k++) {
        EG_UNROLL(2)
        for (int p = 0; p < width; p++) {
            EG_T b[EG_NV];
            EG_UNROLL(8)
            for (int j = 0; j < EG_NV; j++) b[j] = EG_V(load)(right + p * panel + k * EG_NR + j * EG_LANES);
            EG_UNROLL(16)
            for (int i = 0; i < rows; i++) {
                const EG_T a = EG_V(splat)(left[i * index_stride + k * k_stride]);
                EG_T *const to = sum + (i * width + p) * EG_NV;
                EG_UNROLL(8)
                for (int j = 0; j < EG_NV; j++) to[j] = EG_V(fma)(a, b[j], to[j]);
            }
        }
    }
}

EG_INLINE void EG_V(put_sums)(EG_R *to, int64_t step, const EG_T sum[EG_MR * EG_NV], const int rows,
                              const int vectors, const bool non_temporal) {
    EG_UNROLL(16)
    for (int i = 0; i < rows; i++, to += step) {
        EG_UNROLL(8)
        for (int j = 0; j < vectors; j++) {
            if (non_temporal) EG_V(stream)(to + j * EG_LANES, sum[i * vectors + j]);
            if (!non_temporal) EG_V(store)(to + j * EG_LANES, sum[i * vectors + j]);
        }
    }
}

/* What an epilogue of a bias, and perhaps of relu, makes of the sums. */
EG_INLINE void EG_V(finish_sums)(EG_T sum[EG_MR * EG_NV], const EG_R *bias, const bool relu, const int rows,
                                 const int vectors) {
    EG_UNROLL(8)
    for (int j = 0; j < vectors; j++) {
        const EG_T b = EG_V(load)(bias + j * EG_LANES);
        EG_UNROLL(16)
        for (int i = 0; i < rows; i++) sum[i * vectors + j] = EG_V(finish_sum)(sum[i * vectors + j], b, relu);
    }
}

/* The lines of the next tile, for their stores: a processor asks for them no earlier than it stores, and
 * waits for each. */
EG_INLINE void EG_V(prefetch_tile)(const char *next, int64_t step, const int rows, const int64_t bytes) {
    enum { LINE = 64 };
    EG_UNROLL(16)
    for (int i = 0; i < rows; i++) {
        EG_UNROLL(8)
        for (int64_t j = 0; j < bytes; j += LINE) __builtin_prefetch(next + i * step + j, 1, 3);
    }
}

/* One tile, of which there may be fewer rows and columns. */
EG_INLINE void EG_V(outer_tile)(const eg_little_depth *x, const EG_R *left, const EG_R *right,
                                const EG_R *bias, char *out, const char *next, int64_t rows_left,
                                int64_t cols_left, const bool transposed, const eg_dtype dtype,
                                const int rows, const int width) {
    EG_T sum[EG_MR * EG_NV] = {{0}};
    if (!x->non_temporal) EG_V(prefetch_tile)(next, x->out_step, rows, width * EG_NR * EG_V(size_of)(dtype));
    for (int64_t k = x->depth; k > 0; k -= EG_NR, left += x->left_group, right += EG_NR * EG_NR) {
        const int64_t count = k < EG_NR ? k : EG_NR;
        if (transposed) EG_V(outer_sums)(sum, left, 1, EG_NR, right, x->right_panel, count, rows, width);
        if (!transposed) EG_V(outer_sums)(sum, left, EG_NR, 1, right, x->right_panel, count, rows, width);
    }
    if (bias != NULL && x->relu) {
        EG_V(finish_sums)(sum, bias, true, rows, width * EG_NV);
    } else if (bias != NULL) {
        EG_V(finish_sums)(sum, bias, false, rows, width * EG_NV);
    }
    if (rows_left < rows || cols_left < width * EG_NR || !EG_V(stores_sums)(dtype)) {
        EG_R tile[EG_MR * EG_NR]; /* of one micro-panel */
        EG_V(put_sums)(tile, EG_NR, sum, rows, EG_NV, false);
        EG_V(store_dense)
        (tile, out, dtype, x->out_step, rows_left < rows ? rows_left : rows,
         cols_left < EG_NR ? cols_left : EG_NR);
    } else if (EG_V(is_own_type)(dtype) && x->non_temporal) {
        EG_V(put_sums)
        ((EG_R *)(void *)out, x->out_step / (int64_t)sizeof(EG_R), sum, rows, width * EG_NV, true);
    } else {
        EG_UNROLL(16)
        for (int i = 0; i < rows; i++)
            EG_V(store_sums)(out + i * x->out_step, sum + i * width * EG_NV, dtype, width * EG_NV);
    }
}

/* All rows from left to right, some at a time. The left operand has mr of the last ones too. */
EG_INLINE void EG_V(outer_rows)(const eg_little_depth *x, const bool transposed, const eg_dtype dtype,
                                const int width) {
    const int rows = EG_MR / width;
    const int64_t panel_bytes = EG_NR * EG_V(size_of)(dtype);
    const EG_R *left = x->left;
    for (int64_t row = 0; row < x->rows; row += rows, left += rows * (transposed ? 1 : EG_NR)) {
        const EG_R *right = x->right, *bias = x->bias;
        char *out = x->out + row * x->out_step;
        const char *below = out + rows * x->out_step;
        int64_t cols = x->cols;
        for (; width > 1 && cols >= width * EG_NR && x->rows - row >= rows; cols -= width * EG_NR) {
            const char *next = cols > width * EG_NR ? out + width * panel_bytes : below;
            EG_V(outer_tile)(x, left, right, bias, out, next, rows, cols, transposed, dtype, rows, width);
            right += width * x->right_panel, out += width * panel_bytes;
            if (bias != NULL) bias += width * EG_NR;
        }
        for (; cols > 0; cols -= EG_NR, right += x->right_panel, out += panel_bytes) {
            const char *next = cols > EG_NR ? out + panel_bytes : below;
            EG_V(outer_tile)
            (x, left, right, bias, out, next, x->rows - row, cols, transposed, dtype, rows, 1);
            if (bias != NULL) bias += EG_NR;
        }
    }
}

static void EG_V(outer)(const eg_little_depth *x) {
    enum { PAIRS = EG_VECTOR_BYTES == 64 && EG_NV % 2 == 1 ? 2 : 1 };
#define EG_OUTER(type)                                                                                       \
    if (x->left_is_transposed) {                                                                             \
        EG_V(outer_rows)(x, true, type, EG_V(is_own_type)(type) ? 1 : PAIRS);                                \
    } else {                                                                                                 \
        EG_V(outer_rows)(x, false, type, EG_V(is_own_type)(type) ? 1 : PAIRS);                               \
    }
    EG_BY_STORAGE(x->dtype, EG_OUTER);
#undef EG_OUTER
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
