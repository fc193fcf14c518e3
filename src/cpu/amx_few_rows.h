/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 products of up to 16 rows on the matrix unit. Part of kernel_amx.c.
 *
 * Where the k of the right operand are neighbours, as in a weight [N, K], its columns are rows of tiles as
 * they are in memory. So it is the left operand of the transposed product, and only the few rows are laid
 * out for that. A pack is a right operand already. Either way a number is read once, and a dot takes less
 * time than its tile takes to arrive. */

enum { FEW_COLS = EG_AMX_BLOCK, FEW_K = EG_AMX_BLOCK, FEW_MOST_DEPTH = EG_AMX_FEW_DEPTH };

/* The rows of the transposed product: 32 columns of the right operand, at a time one line of each. */
typedef struct few_columns {
    const char *at;
    int64_t step; /* bytes from one to the next */
} few_columns;

EG_INLINE void dot_columns(const few_columns *x, int64_t byte, const char *left) {
    EG_TILE_LOAD(4, x->at + byte, x->step);
    EG_TILE_LOAD(5, x->at + 16 * x->step + byte, x->step);
    EG_TILE_LOAD(6, left, PAIRS_STRIDE);
    EG_TILE_DOT(0, 4, 6);
    EG_TILE_DOT(1, 5, 6);
}

/* Fewer columns than 32 are copied: no others may be read. */
static few_columns whole_columns(const eg_few_rows *x, char *edge) {
    const size_t bytes = (size_t)x->depth * 2, step = (bytes + 63) & ~(size_t)63;
    if (x->cols == FEW_COLS) return (few_columns){x->right, x->col_bytes};
    memset(edge, 0, FEW_COLS * step);
    for (int64_t i = 0; i < x->cols; i++) memcpy(edge + (size_t)i * step, x->right + i * x->col_bytes, bytes);
    return (few_columns){edge, (int64_t)step};
}

/* The last k, fewer than 32, with zeros after them. */
static void copy_last_k(char *last, const few_columns *x, int64_t k, int64_t count) {
    memset(last, 0, EG_AMX_TERM_BYTES);
    for (int64_t i = 0; i < FEW_COLS; i++)
        memcpy(last + i * PAIRS_STRIDE, x->at + i * x->step + k * 2, (size_t)count * 2);
}

EG_INLINE void add_row(float *to, const float *left, const float *right) {
    EG_V(store)(to, EG_V(load)(to) + EG_V(load)(left));
    EG_V(store)(to + EG_LANES, EG_V(load)(to + EG_LANES) + EG_V(load)(right));
}

static void few_by_columns(const eg_few_rows *x) {
    _Alignas(64) char edge[FEW_COLS * FEW_MOST_DEPTH * 2], last[EG_AMX_TERM_BYTES];
    _Alignas(64) char sums[2 * TILE_BYTES], turned[2 * TILE_BYTES];
    const few_columns columns = whole_columns(x, edge);
    const int64_t whole = x->depth / FEW_K * FEW_K, to_next = FEW_COLS * x->col_bytes;
    const char *left = x->left;
    EG_TILE_ZERO(0);
    EG_TILE_ZERO(1);
    for (int64_t k = 0; k < whole; k += FEW_K, left += EG_AMX_TERM_BYTES) {
        dot_columns(&columns, k * 2, left);
        for (int64_t i = 0; i < FEW_COLS; i++) PREFETCH(x->right + to_next + i * x->col_bytes + k * 2);
    }
    if (whole < x->depth) {
        copy_last_k(last, &columns, whole, x->depth - whole);
        dot_columns(&(few_columns){last, PAIRS_STRIDE}, 0, left);
    }
    EG_TILE_STORE(0, sums, PAIRS_STRIDE);
    EG_TILE_STORE(1, sums + TILE_BYTES, PAIRS_STRIDE);
    transpose_tile(turned, sums);
    transpose_tile(turned + TILE_BYTES, sums + TILE_BYTES);
    for (int64_t i = 0; i < x->rows; i++)
        add_row((float *)x->sums + i * FEW_COLS, (const float *)(const void *)turned + i * 16,
                (const float *)(const void *)(turned + TILE_BYTES) + i * 16);
}

static void few_from_pack(const eg_few_rows *x) {
    enum { AHEAD = 4 * EG_AMX_TERM_BYTES };
    _Alignas(64) char sums[2 * TILE_BYTES];
    const char *left = x->left, *right = x->right;
    EG_TILE_ZERO(0);
    EG_TILE_ZERO(1);
    for (int64_t k = 0; k < x->depth; k += FEW_K, left += EG_AMX_TERM_BYTES, right += EG_AMX_TERM_BYTES) {
        EG_TILE_LOAD(4, left, PAIRS_STRIDE);
        EG_TILE_LOAD(6, right, PAIRS_STRIDE);
        EG_TILE_LOAD(7, right + TILE_BYTES, PAIRS_STRIDE);
        EG_TILE_DOT(0, 4, 6);
        EG_TILE_DOT(1, 4, 7);
        for (int64_t at = 0; at < EG_AMX_TERM_BYTES; at += 64) PREFETCH(right + AHEAD + at);
    }
    EG_TILE_STORE(0, sums, PAIRS_STRIDE);
    EG_TILE_STORE(1, sums + TILE_BYTES, PAIRS_STRIDE);
    for (int64_t i = 0; i < x->rows; i++)
        add_row((float *)x->sums + i * FEW_COLS, (const float *)(const void *)sums + i * 16,
                (const float *)(const void *)(sums + TILE_BYTES) + i * 16);
}

static void few_rows(const eg_few_rows *x) {
    if (x->by_columns) {
        few_by_columns(x);
    } else {
        few_from_pack(x);
    }
}

/* A block of the left operand as the right one of its transpose: of both only the first 16 rows or columns.
 */
static void turn_few(char *to, const char *from) { transpose_tile(to, from); }
