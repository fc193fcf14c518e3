/* SPDX-License-Identifier: Apache-2.0 */
/* Products of few rows whose right operand has its k as neighbours, such as a weight [N, K]: dot products of
 * rows of the left operand with columns of the right one, by vectors along k. Part of kernel_template.h.
 *
 * Each lane sums its own k, and the lanes are added at the end of a pass. A transposition in registers would
 * keep the order of sums that other products have, but takes longer than memory does. */

/* Columns at a time. They are a quarter of a micro-panel apart: each quarter is a stream of memory, one
 * column of it after the other, which the hardware's prefetcher follows past the end of a column. And rows,
 * by the registers that there are for sums. */
enum { EG_V(dot_cols) = 4, EG_V(dot_rows) = EG_VECTOR_BYTES == 64 ? 4 : 2 };
/* Bytes of a column whose quarters are too short for that: neighbours are read side by side. */
enum { EG_V(short_column) = EG_VECTOR_BYTES == 64 ? 448 : 1024 };

#define EG_LANE_COUNT (EG_VECTOR_BYTES * 8 / EG_REAL_BITS)
#if EG_LANE_COUNT == 16
#define EG_HALVES(x, y, at)                                                                                  \
    __builtin_shufflevector(x, y, (at), (at) + 1, (at) + 2, (at) + 3, (at) + 4, (at) + 5, (at) + 6,          \
                            (at) + 7, (at) + 16, (at) + 17, (at) + 18, (at) + 19, (at) + 20, (at) + 21,      \
                            (at) + 22, (at) + 23)
#define EG_QUARTERS(x, y, at)                                                                                \
    __builtin_shufflevector(x, y, (at), (at) + 1, (at) + 2, (at) + 3, (at) + 8, (at) + 9, (at) + 10,         \
                            (at) + 11, (at) + 16, (at) + 17, (at) + 18, (at) + 19, (at) + 24, (at) + 25,     \
                            (at) + 26, (at) + 27)
#define EG_PAIRS(x)      __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define EG_NEIGHBOURS(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#elif EG_LANE_COUNT == 8
#define EG_HALVES(x, y, at)                                                                                  \
    __builtin_shufflevector(x, y, (at), (at) + 1, (at) + 2, (at) + 3, (at) + 8, (at) + 9, (at) + 10,         \
                            (at) + 11)
#define EG_QUARTERS(x, y, at)                                                                                \
    __builtin_shufflevector(x, y, (at), (at) + 1, (at) + 4, (at) + 5, (at) + 8, (at) + 9, (at) + 12,         \
                            (at) + 13)
#define EG_NEIGHBOURS(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6)
#elif EG_LANE_COUNT == 4
#define EG_HALVES(x, y, at)   __builtin_shufflevector(x, y, (at), (at) + 1, (at) + 4, (at) + 5)
#define EG_QUARTERS(x, y, at) __builtin_shufflevector(x, y, (at), (at) + 2, (at) + 4, (at) + 6)
#else
#define EG_HALVES(x, y, at) __builtin_shufflevector(x, y, (at), (at) + 2)
#endif

/* to[c * part] += the lanes of sum[c], below `cols`. */
EG_INLINE void EG_V(add_lanes)(EG_R *to, const EG_T sum[4], int64_t part, int64_t cols) {
    EG_T all[2];
    all[0] = EG_HALVES(sum[0], sum[1], 0) + EG_HALVES(sum[0], sum[1], EG_LANE_COUNT / 2);
    all[1] = EG_HALVES(sum[2], sum[3], 0) + EG_HALVES(sum[2], sum[3], EG_LANE_COUNT / 2);
#ifdef EG_QUARTERS
    all[0] = EG_QUARTERS(all[0], all[1], 0) + EG_QUARTERS(all[0], all[1], EG_LANE_COUNT / 4);
#endif
#ifdef EG_PAIRS
    all[0] += EG_PAIRS(all[0]);
#endif
#ifdef EG_NEIGHBOURS
    all[0] += EG_NEIGHBOURS(all[0]);
#endif
    for (int c = 0; c < EG_V(dot_cols) && c * part < cols; c++) {
        const int lane = EG_LANE_COUNT == 2 ? c : c * EG_LANE_COUNT / 4;
        to[c * part] += all[lane / EG_LANE_COUNT][lane % EG_LANE_COUNT];
    }
}
#undef EG_LANE_COUNT
#undef EG_HALVES
#undef EG_QUARTERS
#undef EG_PAIRS
#undef EG_NEIGHBOURS

/* A vector of k: of `rows` rows at `left`, and of every column `at` bytes into it. */
EG_INLINE void EG_V(add_products)(EG_T sum[][4], const EG_R *left, int64_t left_row,
                                  const char *const column[4], int64_t at, const eg_dtype dtype,
                                  const EG_V(numbers) some, const int rows) {
    const eg_dtype of_left = EG_REAL_BITS == 64 ? EG_F64 : EG_F32;
    EG_T b[4];
    EG_UNROLL(4)
    for (int c = 0; c < 4; c++) b[c] = EG_V(load_numbers)(column[c] + at, dtype, some);
    EG_UNROLL(4)
    for (int i = 0; i < rows; i++) {
        const EG_T a = EG_V(load_numbers)((const char *)(left + i * left_row), of_left, some);
        EG_UNROLL(4)
        for (int c = 0; c < 4; c++) sum[i][c] = EG_V(fma)(a, b[c], sum[i][c]);
    }
}

/* What is prefetched of each stream: bytes from where it is read, in columns of which `bytes` are read. */
typedef struct EG_V(stream_ahead) {
    int64_t offset, rest, skipped; /* `skipped` more where `rest` is past the end of a column */
} EG_V(stream_ahead);

EG_INLINE EG_V(stream_ahead) EG_V(ahead_in)(const eg_few_rows *x, int64_t bytes) {
    enum { AHEAD = 4096 };
    const int64_t whole = AHEAD / bytes, rest = AHEAD - whole * bytes;
    return (EG_V(stream_ahead)){whole * x->col_bytes + rest, rest, x->col_bytes - bytes};
}

/* Four neighbours are one stream, which is read at memory's rate where all its lines are asked for in time. */
EG_INLINE void EG_V(prefetch_neighbours)(const eg_few_rows *x, const char *column) {
    enum { AHEAD = 8192, LINE = 64 };
    for (int64_t at = 0; at < 4 * x->col_bytes; at += LINE) __builtin_prefetch(column + AHEAD + at, 0, 2);
}

/* `rows` rows from `row` on with the four columns from `col` on that are `part` apart, of which there may be
 * fewer: the last one then takes the place of those that there are not. All such blocks of rows read the same
 * columns. Of many each prefetches its share of what follows, so that memory is read all the time. */
EG_INLINE void EG_V(dot_block)(const eg_few_rows *x, int64_t row, int64_t col, int64_t part,
                               const eg_dtype dtype, const int rows) {
    enum { MANY = 3 };
    const int64_t blocks = (x->rows + EG_V(dot_rows) - 1) / EG_V(dot_rows),
                  shares = blocks < MANY ? 1 : blocks;
    int64_t others = shares > 1 ? row / EG_V(dot_rows) : 0; /* groups of k whose prefetch is another's */
    const int64_t vector = EG_LANES * EG_V(size_of)(dtype), group = EG_NV * vector;
    const int64_t bytes = x->depth * EG_V(size_of)(dtype);
    const EG_V(stream_ahead) stream = EG_V(ahead_in)(x, bytes);
    const EG_R *left = (const EG_R *)x->left + row * x->left_row;
    const char *column[4];
    const bool one_stream = x->col_bytes <= EG_V(short_column);
    EG_T sum[4][4] = {{{0}}};
    EG_UNROLL(4)
    for (int64_t c = 0; c < 4; c++)
        column[c] = x->right + (col + c * part < x->cols ? col + c * part : x->cols - 1) * x->col_bytes;
    int64_t k = x->depth, at = 0;
    if (one_stream) EG_V(prefetch_neighbours)(x, column[0]);
    for (; k >= EG_NR; k -= EG_NR, left += x->left_group, at += group) {
        EG_UNROLL(4)
        for (int j = 0; j < EG_NV; j++) EG_V(add_products)
        (sum, left + j * EG_LANES, x->left_row, column, at + j * vector, dtype, EG_V(numbers_of)(EG_LANES, 0),
         rows);
        if (others-- > 0) continue;
        others = shares - 1;
        const int64_t ahead = at + stream.offset + (at + stream.rest < bytes ? 0 : stream.skipped);
        EG_UNROLL(4)
        for (int c = 0; c < 4 && !one_stream; c++) {
            for (int64_t line = 0; line < group; line += 64)
                __builtin_prefetch(column[c] + ahead + line, 0, 2);
        }
    }
    for (int j = 0; j * EG_LANES < k; j++) EG_V(add_products)
    (sum, left + j * EG_LANES, x->left_row, column, at + j * vector, dtype, EG_V(numbers_of)(k, j), rows);
    for (int i = 0; i < rows; i++)
        EG_V(add_lanes)((EG_R *)x->sums + (row + i) * EG_NR + col, sum[i], part, x->cols - col);
}

/* All rows with the columns of a micro-panel. Quarters of short columns are no streams: there, neighbours are
 * read as one. */
EG_INLINE void EG_V(dot_rows_of)(const eg_few_rows *x, const eg_dtype dtype) {
    const bool is_short = x->depth * EG_V(size_of)(dtype) <= EG_V(short_column);
    const int64_t part = is_short ? 1 : eg_ceil_div(x->cols, EG_V(dot_cols)), end = is_short ? x->cols : part,
                  step = is_short ? EG_V(dot_cols) : 1;
    for (int64_t col = 0; col < end; col += step) {
        int64_t row = 0;
        for (; row + EG_V(dot_rows) <= x->rows; row += EG_V(dot_rows))
            EG_V(dot_block)(x, row, col, part, dtype, EG_V(dot_rows));
        if (EG_V(dot_rows) == 4 && row + 3 == x->rows) {
            EG_V(dot_block)(x, row, col, part, dtype, 3);
            continue;
        }
        for (; row + 2 <= x->rows; row += 2) EG_V(dot_block)(x, row, col, part, dtype, 2);
        if (row < x->rows) EG_V(dot_block)(x, row, col, part, dtype, 1);
    }
}

static void EG_V(few_by_columns)(const eg_few_rows *x) {
#define EG_DOT(type) EG_V(dot_rows_of)(x, type)
    EG_BY_STORAGE(x->dtype, EG_DOT);
#undef EG_DOT
}
