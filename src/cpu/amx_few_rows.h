/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 products of few rows on the matrix unit: a tile block of 32 of them, or some. Part of kernel_amx.c.
 *
 * Where the k of the right operand are neighbours, as in a weight [N, K], its columns are rows of tiles as
 * they are in memory. So it is the left operand of the transposed product, and only the few rows are laid
 * out for that. A pack is a right operand already. Either way a number is read once, and a dot takes less
 * time than its tile takes to arrive. Within a pass the sums are those of the tile loop, in its order.
 *
 * Rows beyond 16 (`wide`) are a second tile of the few rows. */

enum { FEW_COLS = EG_AMX_BLOCK, FEW_K = EG_AMX_BLOCK, FEW_ROWS = EG_TILE_ROWS };

/* The rows of the transposed product: 32 columns of the right operand, at a time one line of each. */
typedef struct few_columns {
    const char *at;
    int64_t step; /* bytes from one to the next */
} few_columns;

EG_INLINE void dot_columns(const few_columns *x, int64_t byte, const char *left, const bool wide) {
    EG_TILE_LOAD(4, x->at + byte, x->step);
    EG_TILE_LOAD(5, x->at + 16 * x->step + byte, x->step);
    EG_TILE_LOAD(6, left, PAIRS_STRIDE);
    EG_TILE_DOT(0, 4, 6);
    EG_TILE_DOT(2, 5, 6);
    if (wide) {
        EG_TILE_LOAD(7, left + TILE_BYTES, PAIRS_STRIDE);
        EG_TILE_DOT(1, 4, 7);
        EG_TILE_DOT(3, 5, 7);
    }
}

/* `count` k, with zeros up to FEW_K and in columns that there are not: no others may be read. */
static void copy_columns(char *to, const eg_few_rows *x, int64_t k, int64_t count) {
    const __mmask32 some = mask_below(count);
    const char *from = x->right + k * 2;
    for (int64_t i = 0; i < FEW_COLS; i++, from += x->col_bytes) {
        const bool is_there = i < x->cols;
        _mm512_store_si512(to + i * PAIRS_STRIDE,
                           _mm512_maskz_loadu_epi16(is_there ? some : 0, is_there ? from : to));
    }
}

EG_INLINE void zero_sums(void) {
    EG_TILE_ZERO(0);
    EG_TILE_ZERO(1);
    EG_TILE_ZERO(2);
    EG_TILE_ZERO(3);
}

EG_INLINE void add_row(float *to, const float *left, const float *right) {
    EG_V(store)(to, EG_V(load)(to) + EG_V(load)(left));
    EG_V(store)(to + EG_LANES, EG_V(load)(to + EG_LANES) + EG_V(load)(right));
}

/* Tiles `first` and `second` side by side, up to 16 rows from `row` on. */
static void add_tiles(const eg_few_rows *x, int64_t row, const char *first, const char *second) {
    for (int64_t i = row; i < x->rows && i < row + FEW_ROWS; i++, first += 64, second += 64)
        add_row((float *)x->sums + i * FEW_COLS, (const float *)(const void *)first,
                (const float *)(const void *)second);
}

/* The sums of 32 columns and 32 rows, of which some may be 0, as those of the transposed product. */
EG_INLINE void store_tiles(char *to) {
    EG_TILE_STORE(0, to, SUM_STRIDE);
    EG_TILE_STORE(1, to + 64, SUM_STRIDE);
    EG_TILE_STORE(2, to + 16 * SUM_STRIDE, SUM_STRIDE);
    EG_TILE_STORE(3, to + 16 * SUM_STRIDE + 64, SUM_STRIDE);
}

EG_INLINE void store_turned(const eg_few_rows *x, const bool wide) {
    _Alignas(64) char sums[4 * TILE_BYTES], turned[4 * TILE_BYTES];
    EG_TILE_STORE(0, sums, PAIRS_STRIDE);
    EG_TILE_STORE(2, sums + TILE_BYTES, PAIRS_STRIDE);
    if (wide) {
        EG_TILE_STORE(1, sums + 2 * TILE_BYTES, PAIRS_STRIDE);
        EG_TILE_STORE(3, sums + 3 * TILE_BYTES, PAIRS_STRIDE);
    }
    for (int i = 0; i < (wide ? 4 : 2); i++) transpose_tile(turned + i * TILE_BYTES, sums + i * TILE_BYTES);
    add_tiles(x, 0, turned, turned + TILE_BYTES);
    if (wide) add_tiles(x, FEW_ROWS, turned + 2 * TILE_BYTES, turned + 3 * TILE_BYTES);
}

/* `again`: the columns are in L2. */
EG_INLINE void few_by_columns(const eg_few_rows *x, bool again, const bool wide) {
    enum { AHEAD = 512 }; /* k of each column that are prefetched, before those of the next columns */
    _Alignas(64) char part[EG_AMX_TERM_BYTES];
    const few_columns columns = {x->right, x->col_bytes}, copied = {part, PAIRS_STRIDE};
    const int64_t whole = x->cols == FEW_COLS ? x->depth / FEW_K * FEW_K : 0;
    const char *left = x->left, *ahead = x->right + AHEAD * 2;
    zero_sums();
    for (int64_t k = 0; k < whole; k += FEW_K, left += EG_AMX_TERM_BYTES, ahead += FEW_K * 2) {
        if (k + AHEAD == whole || (k == 0 && whole < AHEAD)) ahead = x->right + FEW_COLS * x->col_bytes;
        dot_columns(&columns, k * 2, left, wide);
        for (int64_t i = 0; i < FEW_COLS && !again; i++) PREFETCH(ahead + i * x->col_bytes);
    }
    for (int64_t k = whole; k < x->depth; k += FEW_K, left += EG_AMX_TERM_BYTES) {
        copy_columns(part, x, k, x->depth - k < FEW_K ? x->depth - k : FEW_K);
        dot_columns(&copied, 0, left, wide);
    }
    if (x->as_tiles) {
        store_tiles(x->sums);
    } else {
        store_turned(x, wide);
    }
}

EG_INLINE void few_from_pack(const eg_few_rows *x, const bool wide) {
    enum { AHEAD = 4 * EG_AMX_TERM_BYTES };
    _Alignas(64) char sums[4 * TILE_BYTES];
    const char *left = x->left, *right = x->right;
    zero_sums();
    for (int64_t k = 0; k < x->depth; k += FEW_K, left += EG_AMX_TERM_BYTES, right += EG_AMX_TERM_BYTES) {
        EG_TILE_LOAD(4, left, PAIRS_STRIDE);
        EG_TILE_LOAD(6, right, PAIRS_STRIDE);
        EG_TILE_LOAD(7, right + TILE_BYTES, PAIRS_STRIDE);
        EG_TILE_DOT(0, 4, 6);
        EG_TILE_DOT(1, 4, 7);
        if (wide) {
            EG_TILE_LOAD(5, left + TILE_BYTES, PAIRS_STRIDE);
            EG_TILE_DOT(2, 5, 6);
            EG_TILE_DOT(3, 5, 7);
        }
        for (int64_t at = 0; at < EG_AMX_TERM_BYTES; at += 64) PREFETCH(right + AHEAD + at);
    }
    EG_TILE_STORE(0, sums, PAIRS_STRIDE);
    EG_TILE_STORE(1, sums + TILE_BYTES, PAIRS_STRIDE);
    add_tiles(x, 0, sums, sums + TILE_BYTES);
    if (!wide) return;
    EG_TILE_STORE(2, sums + 2 * TILE_BYTES, PAIRS_STRIDE);
    EG_TILE_STORE(3, sums + 3 * TILE_BYTES, PAIRS_STRIDE);
    add_tiles(x, FEW_ROWS, sums + 2 * TILE_BYTES, sums + 3 * TILE_BYTES);
}

/* A tile block of the few rows. */
static void few_rows_of_block(const eg_few_rows *x, bool again) {
    const bool wide = x->rows > FEW_ROWS;
    if (x->by_columns && wide) {
        few_by_columns(x, again, true);
    } else if (x->by_columns) {
        few_by_columns(x, again, false);
    } else if (wide) {
        few_from_pack(x, true);
    } else {
        few_from_pack(x, false);
    }
}

static void few_rows(const eg_few_rows *x) {
    eg_few_rows block = *x;
    for (int64_t row = 0; row < x->rows; row += EG_AMX_BLOCK) {
        block.rows = x->rows - row < EG_AMX_BLOCK ? x->rows - row : EG_AMX_BLOCK;
        few_rows_of_block(&block, row > 0);
        block.left = (const char *)block.left + x->left_group;
        block.sums = (float *)block.sums + EG_AMX_BLOCK * FEW_COLS;
    }
}

/* A block of the left operand as the right one of its transpose. */
static void turn_few(char *to, const char *from, bool wide) {
    transpose_tile(to, from);
    if (wide) transpose_tile(to + TILE_BYTES, from + TILE_BYTES);
}
