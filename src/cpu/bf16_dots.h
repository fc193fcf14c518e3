/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 on vector units, by AVX-512 BF16 (Zen 4, Cooper Lake): an instruction adds the two
 * products of a pair to each of 16 sums, at the price of one multiply-add. Part of kernel_amx.c.
 *
 * The operands are the matrix unit's tile blocks. A row of a right operand's tile is a vector of pairs. A
 * pair of the left operand is broadcast. Every sum is one chain over the k, in whatever blocks or passes they
 * come: all products here have the same bits. */

/* Rows at once: each pair of k takes two loads and eight broadcasts for 16 dots. A block has room for 32
 * rows, so the last ones are four even where there are fewer: two sums a row would wait for each other. */
enum { DOT_ROWS = 8, DOT_LEAST_ROWS = 4, DOT_PAIRS = EG_AMX_BLOCK / 2 };

EG_INLINE __m512 dots(__m512 sum, __m512i x, __m512i y) {
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
}

EG_INLINE __m512i pair_at(const char *at) {
    int32_t pair;
    memcpy(&pair, at, sizeof pair);
    return _mm512_set1_epi32(pair);
}

/* Rows of a left operand, in blocks of 32 k. */
typedef struct dot_left {
    const char *at;
    int64_t step, block; /* bytes from row to row, and from block to block */
    const char *last;    /* a copy of a last block that is not whole; NULL: it follows the others */
} dot_left;

/* What is prefetched while a tile is multiplied, by shares of a block of 32 k: the right operand that comes
 * next, rows that the epilogue writes, and with fused packing those from which the next micro-panel is
 * packed. */
typedef struct dot_prefetch {
    const char *right;
    eg_prefetch_rows out, source;
    int64_t lines, rows, source_rows;                /* that are left, */
    int64_t line_share, row_share, source_row_share; /* and with each block */
} dot_prefetch;

EG_INLINE void prefetch_beside_dots(dot_prefetch *of) {
    for (int64_t i = of->line_share; i > 0 && of->lines > 0; i--, of->lines--, of->right += 64)
        PREFETCH(of->right);
    prefetch_rows(&of->out, &of->rows, of->row_share);
    prefetch_long_rows(&of->source, &of->source_rows, of->source_row_share);
}

EG_INLINE void dot_pairs(__m512 sum[DOT_ROWS][2], const dot_left *left, const char *right, int64_t pairs,
                         const int rows, const int vectors) {
    EG_PARTS(2)
    for (int64_t p = 0; p < pairs; p++) {
        __m512i b[2];
        EG_UNROLL(2)
        for (int j = 0; j < vectors; j++) b[j] = _mm512_load_si512(right + j * TILE_BYTES + p * PAIRS_STRIDE);
        EG_UNROLL(8)
        for (int i = 0; i < rows; i++) {
            const __m512i a = pair_at(left->at + i * left->step + p * 4);
            EG_UNROLL(2)
            for (int j = 0; j < vectors; j++) sum[i][j] = dots(sum[i][j], a, b[j]);
        }
    }
}

/* Where sums go as bf16: to the caller's memory, with an epilogue of a bias and perhaps of relu. */
typedef struct dot_result {
    char *out, *pre;        /* NULL: out, of a tile in L1; pre, not wanted */
    int64_t step, pre_step; /* bytes from row to row */
    int64_t rows;           /* that are left */
    __mmask32 cols;
    EG_T bias[2];
    bool relu, non_temporal;
} dot_result;

EG_INLINE void store_dots(char *to, const EG_T x[2], const dot_result *of) {
    const __m512i words = EG_V(two_to_bf16)((__m512)x[0], (__m512)x[1]);
    if (of->cols == ~(__mmask32)0) {
        store_line(to, words, of->non_temporal);
    } else {
        _mm512_mask_storeu_epi16(to, of->cols, words);
    }
}

EG_INLINE void finish_dots(__m512 sum[DOT_ROWS][2], dot_result *to, const int rows, const int vectors) {
    EG_UNROLL(8)
    for (int i = 0; i < rows; i++) {
        EG_T x[2] = {{0}};
        if (i >= to->rows) break;
        EG_UNROLL(2)
        for (int j = 0; j < vectors; j++) x[j] = (EG_T)sum[i][j] + to->bias[j];
        if (to->pre != NULL) store_dots(to->pre + i * to->pre_step, x, to);
        if (to->relu) {
            EG_UNROLL(2)
            for (int j = 0; j < vectors; j++) x[j] = EG_V(unless_nan)(x[j], EG_V(act_relu)(x[j]), ~(EG_I){0});
        }
        store_dots(to->out + i * to->step, x, to);
    }
    to->out += rows * to->step, to->rows -= rows;
    if (to->pre != NULL) to->pre += rows * to->pre_step;
}

/* to = initial + left · right: rows of 32 numbers; or of `result`, where that is there. */
EG_INLINE void dot_rows(float *to, const float *initial, dot_left left, const char *right, dot_prefetch *next,
                        dot_result *result, int64_t depth, const int rows, const int vectors) {
    __m512 sum[DOT_ROWS][2];
    EG_UNROLL(8)
    for (int i = 0; i < rows; i++) {
        EG_UNROLL(2)
        for (int j = 0; j < vectors; j++)
            sum[i][j] = initial != NULL ? _mm512_load_ps(initial + i * EG_AMX_BLOCK + j * 16)
                                        : _mm512_castsi512_ps(_mm512_set1_epi32(0));
    }
    for (; depth >= EG_AMX_BLOCK; depth -= EG_AMX_BLOCK, right += EG_AMX_TERM_BYTES) {
        EG_UNROLL(8)
        for (int i = 0; i < rows; i++) __builtin_prefetch(left.at + left.block + i * left.step, 0, 3);
        prefetch_beside_dots(next);
        dot_pairs(sum, &left, right, DOT_PAIRS, rows, vectors);
        left.at += left.block;
    }
    if (depth > 0) prefetch_beside_dots(next);
    if (left.last != NULL) left.at = left.last, left.step = PAIRS_STRIDE;
    dot_pairs(sum, &left, right, (depth + 1) / 2, rows, vectors);
    if (result->out != NULL) {
        finish_dots(sum, result, rows, vectors);
        return;
    }
    EG_UNROLL(8)
    for (int i = 0; i < rows; i++) {
        EG_UNROLL(2)
        for (int j = 0; j < vectors; j++) _mm512_store_ps(to + i * EG_AMX_BLOCK + j * 16, sum[i][j]);
    }
}

EG_INLINE void dot_all_rows(float *to, const float *initial, dot_left left, const char *right,
                            dot_prefetch *next, dot_result *result, int64_t depth, int64_t rows,
                            const int vectors) {
    for (; rows > DOT_LEAST_ROWS; rows -= DOT_ROWS) {
        dot_rows(to, initial, left, right, next, result, depth, DOT_ROWS, vectors);
        to += DOT_ROWS * EG_AMX_BLOCK, left.at += DOT_ROWS * left.step;
        if (left.last != NULL) left.last += DOT_ROWS * PAIRS_STRIDE;
        if (initial != NULL) initial += DOT_ROWS * EG_AMX_BLOCK;
    }
    if (rows > 0) dot_rows(to, initial, left, right, next, result, depth, DOT_LEAST_ROWS, vectors);
}

/* An absent bias is -0, as in an epilogue. */
EG_INLINE dot_result result_of(const eg_micro_tile *tile, int64_t cols) {
    const int64_t word = sizeof(uint16_t);
    dot_result to = {.out = NULL};
    if (!tile->rounds) return to;
    to = (dot_result){.out = tile->out,
                      .pre = tile->pre,
                      .step = tile->out_stride * word,
                      .pre_step = tile->pre_stride * word,
                      .rows = tile->rows,
                      .cols = mask_below(cols),
                      .bias = {EG_V(splat)(-0.0F), EG_V(splat)(-0.0F)},
                      .relu = tile->relu,
                      .non_temporal = tile->non_temporal};
    for (int j = 0; tile->bias != NULL && j * EG_LANES < cols; j++)
        to.bias[j] =
            EG_V(load_part)((const char *)tile->bias + j * EG_LANES * word, EG_BF16, EG_V(part_of)(cols, j));
    return to;
}

static void multiply_dots(const eg_micro_operand *left, const eg_micro_operand *right, int64_t depth,
                          int64_t cols, const eg_micro_tile *tile, const eg_prefetch_plan *plan) {
    const int64_t in_place = left->index_stride * 2; /* bytes from row to row; 0: it is packed */
    const dot_left rows = {.at = left->at,
                           .step = in_place != 0 ? in_place : PAIRS_STRIDE,
                           .block = in_place != 0 ? PAIRS_STRIDE : EG_AMX_TERM_BYTES,
                           .last = left->last};
    const int64_t blocks = share(depth, EG_AMX_BLOCK) * share(tile->rows, DOT_ROWS);
    dot_prefetch next = {.right = plan->right_blocks,
                         .out = plan->out,
                         .source = plan->source,
                         .lines = (int64_t)plan->right_bytes / 64,
                         .rows = plan->out.at != NULL ? plan->rows : 0,
                         .source_rows = plan->source_rows};
    next.line_share = share(next.lines, blocks);
    next.row_share = share(next.rows, blocks);
    next.source_row_share = share(next.source_rows, blocks);
    dot_result result = result_of(tile, cols);
    if (cols > EG_TILE_WORDS) {
        dot_all_rows(tile->out, tile->initial, rows, right->at, &next, &result, depth, tile->rows, 2);
    } else {
        dot_all_rows(tile->out, tile->initial, rows, right->at, &next, &result, depth, tile->rows, 1);
    }
}

/* ---- Little depth ------------------------------------------------------------------------------------- */

/* A tile of some rows, and a prefetch of the lines to its right, or of the next rows, for their stores. */
EG_INLINE void outer_dot_tile(const eg_little_depth *x, const char *left, const char *right, dot_result *to,
                              const char *next, const int rows, const int vectors) {
    const int64_t pairs = (x->depth + 1) / 2;
    __m512 sum[DOT_ROWS][2];
    EG_UNROLL(8)
    for (int i = 0; i < rows; i++) {
        if (!to->non_temporal) __builtin_prefetch(next + i * to->step, 1, 3);
        sum[i][0] = sum[i][1] = _mm512_castsi512_ps(_mm512_set1_epi32(0));
    }
    for (int64_t p = 0; p < pairs; p++) {
        if (p == DOT_PAIRS) left += EG_AMX_TERM_BYTES - DOT_PAIRS * 4; /* in the next block of k */
        const __m512i first = _mm512_load_si512(right + p * PAIRS_STRIDE),
                      second = _mm512_load_si512(right + (pairs + p) * PAIRS_STRIDE);
        EG_UNROLL(8)
        for (int i = 0; i < rows; i++) {
            const __m512i a = pair_at(left + i * PAIRS_STRIDE + p * 4);
            sum[i][0] = dots(sum[i][0], a, first);
            if (vectors > 1) sum[i][1] = dots(sum[i][1], a, second);
        }
    }
    finish_dots(sum, to, rows, vectors);
}

/* Some rows from left to right, then the next ones. */
static void outer_dots(const eg_little_depth *x) {
    enum { LAST_BYTE = PAIRS_STRIDE - 1 };
    const char *left = x->left;
    for (int64_t row = 0; row < x->rows; row += DOT_ROWS, left += DOT_ROWS * PAIRS_STRIDE) {
        const char *right = x->right;
        const float *bias = x->bias;
        char *out = x->out + row * x->out_step, *pre = x->pre;
        const char *below = out + DOT_ROWS * x->out_step;
        if (pre != NULL) pre += row * x->pre_step;
        for (int64_t col = 0; col < x->cols; col += EG_AMX_BLOCK, right += x->right_panel) {
            const bool ends = col + EG_AMX_BLOCK >= x->cols;
            dot_result to = {.out = out,
                             .pre = pre,
                             .step = x->out_step,
                             .pre_step = x->pre_step,
                             .rows = x->rows - row,
                             .cols = mask_below(x->cols - col),
                             .bias = {EG_V(load)(bias + col), EG_V(load)(bias + col + EG_LANES)},
                             .relu = x->relu,
                             .non_temporal = x->non_temporal};
            const char *next = ends ? below : out + PAIRS_STRIDE + LAST_BYTE;
            const bool few = x->rows - row <= DOT_LEAST_ROWS;
            if (x->cols - col > EG_TILE_WORDS) {
                if (!few) outer_dot_tile(x, left, right, &to, next, DOT_ROWS, 2);
                if (few) outer_dot_tile(x, left, right, &to, next, DOT_LEAST_ROWS, 2);
            } else {
                if (!few) outer_dot_tile(x, left, right, &to, next, DOT_ROWS, 1);
                if (few) outer_dot_tile(x, left, right, &to, next, DOT_LEAST_ROWS, 1);
            }
            out += PAIRS_STRIDE;
            if (pre != NULL) pre += PAIRS_STRIDE;
        }
    }
}

/* ---- Few rows ------------------------------------------------------------------------------------- */

/* Columns of the right operand at a time, where their k are neighbours: a pair of each is broadcast, and
 * multiplied with those of up to 16 rows. */
EG_INLINE void dot_few_columns(const few_columns *x, int64_t pairs, const char *left, __m512 (*sum)[2],
                               const int cols, const int vectors) {
    EG_PARTS(2)
    for (int64_t p = 0; p < pairs; p++) {
        __m512i a[2];
        EG_UNROLL(2)
        for (int j = 0; j < vectors; j++) a[j] = _mm512_load_si512(left + j * TILE_BYTES + p * PAIRS_STRIDE);
        EG_UNROLL(16)
        for (int c = 0; c < cols; c++) {
            const __m512i b = pair_at(x->at + c * x->step + p * 4);
            EG_UNROLL(2)
            for (int j = 0; j < vectors; j++) sum[c][j] = dots(sum[c][j], b, a[j]);
        }
    }
}

/* `cols` columns of the micro-panel's from `col` on; each becomes a row of a tile of sums. A line of each is
 * copied first: where columns are pages apart, L1 has not the ways to keep their lines while pair after pair
 * is read. */
EG_INLINE void dot_few_group(const eg_few_rows *x, int64_t col, char *sums, const int cols,
                             const int vectors) {
    enum { AHEAD = 1024 }; /* bytes of each column that are prefetched */
    _Alignas(64) char part[EG_AMX_TERM_BYTES];
    const int64_t whole = x->cols == FEW_COLS ? x->depth / FEW_K * FEW_K : 0;
    const few_columns copied = {part, PAIRS_STRIDE};
    const char *left = x->left, *from = x->right + col * x->col_bytes;
    __m512 sum[16][2];
    EG_UNROLL(16)
    for (int c = 0; c < cols; c++) sum[c][0] = sum[c][1] = _mm512_castsi512_ps(_mm512_set1_epi32(0));
    for (int64_t k = 0; k < whole; k += FEW_K, left += EG_AMX_TERM_BYTES, from += FEW_K * 2) {
        /* after the last of these columns come the first of the next */
        const int64_t ahead = k + AHEAD / 2 < whole ? AHEAD : cols * x->col_bytes + AHEAD - whole * 2;
        EG_UNROLL(16)
        for (int c = 0; c < cols; c++) {
            const __m512i line = _mm512_loadu_si512(from + c * x->col_bytes);
            _mm512_store_si512(part + c * PAIRS_STRIDE, line);
            PREFETCH(from + c * x->col_bytes + ahead);
        }
        dot_few_columns(&copied, DOT_PAIRS, left, sum, cols, vectors);
    }
    for (int64_t k = whole; k < x->depth; k += FEW_K, left += EG_AMX_TERM_BYTES) {
        const int64_t count = x->depth - k < FEW_K ? x->depth - k : FEW_K;
        copy_columns(part, x, k, count);
        dot_few_columns(&(few_columns){part + col * PAIRS_STRIDE, PAIRS_STRIDE}, (count + 1) / 2, left, sum,
                        cols, vectors);
    }
    EG_UNROLL(16)
    for (int c = 0; c < cols; c++) {
        EG_UNROLL(2)
        for (int j = 0; j < vectors; j++)
            _mm512_store_ps((float *)(void *)(sums + 2 * j * TILE_BYTES + (col + c) * PAIRS_STRIDE),
                            sum[c][j]);
    }
}

static void dot_few_by_columns(const eg_few_rows *x) {
    enum { COLS = 16, COLS_OF_MANY = 8 };
    _Alignas(64) char sums[4 * TILE_BYTES], turned[4 * TILE_BYTES];
    const bool wide = x->rows > FEW_ROWS;
    for (int64_t col = 0; !wide && col < x->cols; col += COLS) dot_few_group(x, col, sums, COLS, 1);
    for (int64_t col = 0; wide && col < x->cols; col += COLS_OF_MANY)
        dot_few_group(x, col, sums, COLS_OF_MANY, 2);
    for (int i = 0; i < (wide ? 4 : 2); i++) transpose_tile(turned + i * TILE_BYTES, sums + i * TILE_BYTES);
    add_tiles(x, 0, turned, turned + TILE_BYTES);
    if (wide) add_tiles(x, FEW_ROWS, turned + 2 * TILE_BYTES, turned + 3 * TILE_BYTES);
}

/* All rows with a part of the pack that stays in L1, while the next part is prefetched. */
static void dot_few_from_pack(const eg_few_rows *x) {
    enum { K = 256 };
    _Alignas(64) char sums[4 * TILE_BYTES];
    float *const to = (float *)(void *)sums;
    dot_left left = {x->left, PAIRS_STRIDE, EG_AMX_TERM_BYTES, NULL};
    const char *right = x->right;
    for (int64_t k = 0; k < x->depth; k += K) {
        dot_prefetch next = {.right = right + K * PAIRS_STRIDE, .lines = K};
        dot_result none = {.out = NULL};
        next.line_share = share(K, K / EG_AMX_BLOCK * share(x->rows, DOT_ROWS));
        dot_all_rows(to, k > 0 ? to : NULL, left, right, &next, &none, x->depth - k < K ? x->depth - k : K,
                     x->rows, 2);
        left.at += K * PAIRS_STRIDE, right += K * PAIRS_STRIDE;
    }
    for (int64_t i = 0; i < x->rows; i++)
        add_row((float *)x->sums + i * FEW_COLS, to + i * FEW_COLS, to + i * FEW_COLS + 16);
}

/* Up to eight rows are multiplied by vectors of k, as they lie in a left operand: a load and a dot for 32 k
 * of a column. Four columns at a time, so many streams of memory, and four rows, by the registers for sums.
 */
enum { ROWS_ALONG_K = 8, SUMS_ALONG_K = 4, COLS_ALONG_K = 4 };

/* The columns from `col` on that are `part` apart, of which there may be fewer than four: the last one then
 * takes the place of those that there are not. */
EG_INLINE void dot_along_k(const eg_few_rows *x, int64_t col, int64_t part, __m512 *sum, const int rows) {
    enum { AHEAD = 4096 }; /* bytes of each stream that are prefetched */
    const char *left = x->left, *from[COLS_ALONG_K];
    const int64_t row_end = x->depth * 2, whole = AHEAD / row_end, rest = AHEAD - whole * row_end;
    EG_UNROLL(16)
    for (int c = 0; c < COLS_ALONG_K * rows; c++) sum[c] = _mm512_castsi512_ps(_mm512_set1_epi32(0));
    EG_UNROLL(4)
    for (int c = 0; c < COLS_ALONG_K; c++)
        from[c] = x->right + (col + c * part < x->cols ? col + c * part : x->cols - 1) * x->col_bytes;
    for (int64_t at = 0; at < row_end; at += 64, left += EG_AMX_TERM_BYTES) {
        const __mmask32 some = mask_below((row_end - at) / 2);
        const int64_t ahead = (at + rest < row_end ? whole : whole + 1) * (x->col_bytes - row_end) + AHEAD;
        __m512i b[COLS_ALONG_K];
        EG_UNROLL(4)
        for (int c = 0; c < COLS_ALONG_K; c++) {
            b[c] = _mm512_maskz_loadu_epi16(some, from[c] + at);
            PREFETCH(from[c] + at + ahead);
        }
        EG_UNROLL(4)
        for (int i = 0; i < rows; i++) {
            const __m512i a = _mm512_load_si512(left + i * PAIRS_STRIDE);
            EG_UNROLL(4)
            for (int c = 0; c < COLS_ALONG_K; c++) sum[c * rows + i] = dots(sum[c * rows + i], a, b[c]);
        }
    }
}

/* The lanes of 16 sums are added by way of their transpose. Four streams of memory, each a quarter of the
 * columns: the hardware's prefetcher follows them past the end of a column. */
EG_INLINE void dot_rows_along_k(const eg_few_rows *x, const int rows) {
    enum { SUMS = 16 };
    _Alignas(64) char sums[TILE_BYTES], turned[TILE_BYTES];
    _Alignas(64) float total[SUMS];
    const int64_t part = share(x->cols, COLS_ALONG_K), steps = SUMS / COLS_ALONG_K / rows;
    for (int64_t first = 0; first < part; first += steps) {
        for (int group = 0; group < steps; group++) {
            __m512 sum[SUMS];
            dot_along_k(x, first + group, part, sum, rows);
            EG_UNROLL(16)
            for (int i = 0; i < COLS_ALONG_K * rows; i++)
                _mm512_store_ps((float *)(void *)(sums + (group * COLS_ALONG_K * rows + i) * PAIRS_STRIDE),
                                sum[i]);
        }
        transpose_tile(turned, sums);
        __m512 all = _mm512_load_ps(turned);
        for (int i = 1; i < SUMS; i++) all = _mm512_add_ps(all, _mm512_load_ps(turned + i * PAIRS_STRIDE));
        _mm512_store_ps(total, all);
        for (int64_t at = 0; at < SUMS / rows; at++) {
            const int64_t in_part = first + at / COLS_ALONG_K, col = in_part + at % COLS_ALONG_K * part;
            for (int64_t i = 0; in_part < part && col < x->cols && i < rows && i < x->rows; i++)
                ((float *)x->sums)[i * FEW_COLS + col] += total[at * rows + i];
        }
    }
}

static void dot_few_along_k(eg_few_rows x) {
    for (; x.rows > 2; x.rows -= SUMS_ALONG_K) {
        dot_rows_along_k(&x, SUMS_ALONG_K);
        x.left = (const char *)x.left + SUMS_ALONG_K * PAIRS_STRIDE;
        x.sums = (float *)x.sums + SUMS_ALONG_K * FEW_COLS;
    }
    if (x.rows == 1) dot_rows_along_k(&x, 1);
    if (x.rows == 2) dot_rows_along_k(&x, 2);
}

static void few_rows_dots(const eg_few_rows *x) {
    if (x->by_columns && x->rows <= ROWS_ALONG_K) {
        dot_few_along_k(*x);
    } else if (x->by_columns) {
        dot_few_by_columns(x);
    } else {
        dot_few_from_pack(x);
    }
}

/* ---- The peak --------------------------------------------------------------------------------------- */

static double peak_dots(int64_t turns) {
    enum { SUMS = 16 };
    _Alignas(64) char block[EG_AMX_TERM_BYTES];
    __m512 sum[SUMS];
    fill_block(block);
    const __m512i a = _mm512_load_si512(block), b = _mm512_load_si512(block + 64);
    for (int i = 0; i < SUMS; i++) sum[i] = _mm512_load_ps(block + 64 * i);
    for (int64_t turn = 0; turn < turns; turn++) {
        EG_UNROLL(16)
        for (int i = 0; i < SUMS; i++) sum[i] = dots(sum[i], a, b);
    }
    for (int i = 1; i < SUMS; i++) sum[0] = _mm512_add_ps(sum[0], sum[i]);
    volatile float keep = sum[0][0];
    (void)keep;
    return (double)turns * SUMS * EG_AMX_BLOCK;
}
