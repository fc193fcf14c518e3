/* SPDX-License-Identifier: Apache-2.0 */
/* The micro-kernels of the matrix unit. Part of kernel_amx.c. */

enum { TILE_BYTES = 1024, SUM_STRIDE = EG_AMX_BLOCK * sizeof(float), PAIRS_STRIDE = 64 };

/* Rounding errors grow with the square root of how many numbers are added in turn. So where the result is
 * f32 itself, every run of RUN_DEPTH k is summed from zero, and vector units add its sum to the tile while
 * the matrix unit is on the next run. */
enum { RUN_DEPTH = 128, ROWS_A_BLOCK = EG_AMX_BLOCK / (RUN_DEPTH / EG_AMX_BLOCK) };

/* One call of `multiply`. It is all in registers: every function that gets one is inlined. `products` of bf16
 * make one product of numbers. A narrow tile has no columns beyond 16, and takes half of the work (`wide`).
 */
typedef struct multiplication {
    const char *left, *right; /* the blocks at hand */
    /* bf16 themselves: from row to row of the left operand, and to its second tile and its next block. */
    int64_t left_step, left_tile, left_block;
    const char *last; /* a copy of the left operand's last block, if that is not whole; else NULL */
    eg_deferred_flush *deferred;
    const char *initial; /* what the tile registers begin with; NULL: zeros */
    /* Work beside the matrix unit: all of it, and the share of each dot. */
    eg_prefetch_plan plan;
    const char *next_right, *next_left;
    int64_t right_share, left_share;                 /* prefetch groups of lines */
    int64_t row_share, source_share, left_row_share; /* rows */
    int64_t step_share;                              /* steps of the epilogue before */
} multiplication;

/* Tile registers: 0 to 3 are the accumulators, two by two; 4 and 5 the left operand's tiles, one below the
 * other; 6 and 7 the right operand's, side by side. Each tile of the block reads the right operand's
 * micro-panel again. It has to stay in L1, and the left operand must not evict it. */
EG_INLINE void load_left(const multiplication *m, const int term, const int products) {
    const char *from = m->left + term * EG_AMX_TERM_BYTES;
    const int64_t step = products == 1 ? m->left_step : PAIRS_STRIDE;
    EG_TILE_LOAD_NON_TEMPORAL(4, from, step);
    EG_TILE_LOAD_NON_TEMPORAL(5, from + (products == 1 ? m->left_tile : TILE_BYTES), step);
}

EG_INLINE void load_right(const multiplication *m, const int term, const bool wide) {
    const char *from = m->right + term * EG_AMX_TERM_BYTES;
    EG_TILE_LOAD(6, from, PAIRS_STRIDE);
    if (wide) EG_TILE_LOAD(7, from + TILE_BYTES, PAIRS_STRIDE);
}

EG_INLINE void dot_alone(const bool wide) {
    EG_TILE_DOT(0, 4, 6);
    EG_TILE_DOT(2, 5, 6);
    if (wide) {
        EG_TILE_DOT(1, 4, 7);
        EG_TILE_DOT(3, 5, 7);
    }
}

EG_INLINE void add_sums(eg_deferred_flush *deferred, int64_t rows) {
    for (const int64_t end = deferred->row + rows; deferred->row < end && deferred->row < EG_AMX_BLOCK;
         deferred->row++) {
        float *to = deferred->tile + deferred->row * EG_AMX_BLOCK;
        const float *from = deferred->sums + deferred->row * EG_AMX_BLOCK;
        _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), _mm512_load_ps(from)));
        _mm512_store_ps(to + 16, _mm512_add_ps(_mm512_load_ps(to + 16), _mm512_load_ps(from + 16)));
    }
}

/* Stores accumulator `t`, which still holds the last tile or run, and gives it its initial value. `at`: its
 * bytes in a tile. */
#define RENEW(t, at)                                                                                         \
    if (deferred->to != NULL) EG_TILE_STORE(t, deferred->to + (at), SUM_STRIDE);                             \
    if (initial != NULL) {                                                                                   \
        EG_TILE_LOAD(t, initial + (at), SUM_STRIDE);                                                         \
    } else {                                                                                                 \
        EG_TILE_ZERO(t);                                                                                     \
    }
#define RENEW_0 RENEW(0, 0)
#define RENEW_1 RENEW(1, 64)
#define RENEW_2 RENEW(2, 16 * SUM_STRIDE)
#define RENEW_3 RENEW(3, 16 * SUM_STRIDE + 64)

EG_INLINE void note_flushed(eg_deferred_flush *deferred) {
    if (deferred->to == (char *)deferred->sums) deferred->row = 0;
    deferred->to = NULL;
}

/* The first dot of a tile or run. A store would stall the unit, unless a multiplication with another register
 * stands between it and the next one. */
EG_INLINE void first_dot(const multiplication *m, const bool wide) {
    eg_deferred_flush *deferred = m->deferred;
    const char *const initial = m->initial;
    RENEW_0 EG_TILE_DOT(0, 4, 6);
    RENEW_2 EG_TILE_DOT(2, 5, 6);
    RENEW_1 if (wide) EG_TILE_DOT(1, 4, 7);
    RENEW_3 if (wide) EG_TILE_DOT(3, 5, 7);
    note_flushed(deferred);
}

static void flush(eg_deferred_flush *deferred) {
    const char *const initial = NULL;
    RENEW_0 RENEW_2 RENEW_1 RENEW_3 note_flushed(deferred);
    add_sums(deferred, EG_AMX_BLOCK);
}

/* Tile loads do not start the hardware prefetcher. So what comes next is prefetched into L2 here, a few lines
 * at a time. */
#define PREFETCH(at) __builtin_prefetch(at, 0, 2)

EG_INLINE const char *prefetch_lines(const char *at, int64_t groups, const int lines) {
    for (; groups > 0; groups--, at += lines * 64) {
        EG_UNROLL(4)
        for (int i = 0; i < lines; i++) PREFETCH(at + i * 64);
    }
    return at;
}

/* Rows of a tile, which have two lines at most. */
EG_INLINE void prefetch_rows(eg_prefetch_rows *of, int64_t *left, int64_t rows) {
    for (; rows > 0 && *left > 0; rows--, --*left, of->at += of->stride) {
        PREFETCH(of->at);
        PREFETCH(of->at + of->bytes - 1);
    }
}

EG_INLINE void prefetch_long_rows(eg_prefetch_rows *of, int64_t *left, int64_t rows) {
    for (; rows > 0 && *left > 0; rows--, --*left, of->at += of->stride) {
        for (int64_t i = 0; i < of->bytes; i += 64) PREFETCH(of->at + i);
        PREFETCH(of->at + of->bytes - 1);
    }
}

EG_INLINE int64_t share(int64_t all, int64_t turns) { return turns > 0 ? (all + turns - 1) / turns : 0; }

/* A dot takes 64 cycles, in which some 60 other instructions cost nothing if they stand right behind it. Of
 * 200 instructions behind six dots most are waited for. So each dot is followed by its share of the
 * prefetches, of the sums to add, and of the epilogue of the tile before. */
EG_INLINE void work_beside_dot(multiplication *m, const int products) {
    const int lines = products == 1 ? 4 : 2;
    m->next_right = prefetch_lines(m->next_right, m->right_share, lines);
    m->next_left = prefetch_lines(m->next_left, m->left_share, lines);
    prefetch_rows(&m->plan.out, &m->plan.rows, m->row_share);
    if (m->source_share > 0) prefetch_long_rows(&m->plan.source, &m->plan.source_rows, m->source_share);
    if (m->left_row_share > 0) prefetch_long_rows(&m->plan.left, &m->plan.left_rows, m->left_row_share);
    if (products == 6) add_sums(m->deferred, share(ROWS_A_BLOCK, products));
    for (int64_t i = 0; i < m->step_share; i++) m->plan.epilogue_step(m->plan.epilogue);
}

EG_INLINE void dot(multiplication *m, const int products, const bool wide) {
    dot_alone(wide);
    work_beside_dot(m, products);
}

/* The products of two numbers' bf16 terms, 0 being the highest. Products that share a term follow each other,
 * smallest first. */
EG_INLINE void load_first_product(const multiplication *m, const int products, const bool wide) {
    load_left(m, products == 3 || products == 4 ? 1 : 0, products);
    load_right(m, products == 6 ? 2 : products == 4 ? 1 : 0, wide);
}

EG_INLINE void further_products(multiplication *m, const int products, const bool wide) {
    if (products == 3) {                                   /* middle·high, then */
        load_left(m, 0, products), dot(m, products, wide); /* high·high */
        load_right(m, 1, wide), dot(m, products, wide);    /* high·middle */
    }
    if (products == 4) {                                   /* middle·middle, then */
        load_right(m, 0, wide), dot(m, products, wide);    /* middle·high */
        load_left(m, 0, products), dot(m, products, wide); /* high·high */
        load_right(m, 1, wide), dot(m, products, wide);    /* high·middle */
    }
    if (products == 6) {                                   /* high·low, then */
        load_right(m, 1, wide), dot(m, products, wide);    /* high·middle */
        load_left(m, 1, products), dot(m, products, wide); /* middle·middle */
        load_right(m, 0, wide), dot(m, products, wide);    /* middle·high */
        load_left(m, 0, products), dot(m, products, wide); /* high·high */
        load_left(m, 2, products), dot(m, products, wide); /* low·high */
    }
}

/* A last block that is not whole, of `depth` k. */
EG_INLINE void find_last(multiplication *m, int64_t depth, const int products) {
    if (products == 1 && m->last != NULL && depth < EG_AMX_BLOCK)
        m->left = m->last, m->left_step = PAIRS_STRIDE, m->left_tile = TILE_BYTES;
}

/* Of which `depth` k are left. */
EG_INLINE void next_block(multiplication *m, int64_t depth, const int products) {
    const int block_bytes = (products == 1 ? 1 : products == 6 ? 3 : 2) * EG_AMX_TERM_BYTES;
    m->left += products == 1 ? m->left_block : block_bytes, m->right += block_bytes;
    find_last(m, depth, products);
}

/* A matrix unit that never pauses is clocked lower for some milliseconds. With fewer dots a tile, that costs
 * more than a deferred flush gains. Measured: docs/lab/cpu.md. */
enum { DOTS_TO_DEFER = 12 };

EG_INLINE void multiply_blocks(const eg_micro_operand *left, const char *right, int64_t depth,
                               const eg_micro_tile *tile, const eg_prefetch_plan *plan, const int products,
                               const bool wide) {
    const int64_t in_place = left->index_stride * 2; /* bytes from row to row; 0: it is packed */
    const int group_bytes = (products == 1 ? 4 : 2) * 64;
    const bool in_runs = products == 6;
    const int64_t dots = (depth + EG_AMX_BLOCK - 1) / EG_AMX_BLOCK * products;
    multiplication m = {.left = left->at,
                        .left_step = in_place != 0 ? in_place : PAIRS_STRIDE,
                        .left_tile = in_place != 0 ? 16 * in_place : TILE_BYTES,
                        .left_block = in_place != 0 ? PAIRS_STRIDE : EG_AMX_TERM_BYTES,
                        .last = left->last,
                        .right = right,
                        .deferred = tile->deferred,
                        .initial = in_runs ? NULL : tile->initial,
                        .plan = *plan,
                        .next_right = plan->right_blocks,
                        .next_left = plan->left_blocks,
                        .right_share = share((int64_t)plan->right_bytes, dots * group_bytes),
                        .left_share = share((int64_t)plan->left_bytes, dots * group_bytes),
                        .row_share = plan->out.at != NULL ? share(plan->rows, dots) : 0,
                        .source_share = share(plan->source_rows, dots),
                        .left_row_share = share(plan->left_rows, dots),
                        .step_share = share(plan->epilogue_steps, dots)};
    bool accumulate = tile->initial != NULL;
    find_last(&m, depth, products);
    for (bool first = true; depth > 0; first = false, accumulate = true) {
        const int64_t end = in_runs ? depth - RUN_DEPTH : 0;
        load_first_product(&m, products, wide);
        first_dot(&m, wide);
        if (in_runs && first) add_sums(m.deferred, EG_AMX_BLOCK); /* for the epilogue of that tile */
        work_beside_dot(&m, products);
        further_products(&m, products, wide);
        depth -= EG_AMX_BLOCK;
        for (next_block(&m, depth, products); depth > 0 && depth > end; next_block(&m, depth, products)) {
            load_first_product(&m, products, wide);
            dot(&m, products, wide);
            further_products(&m, products, wide);
            depth -= EG_AMX_BLOCK;
        }
        if (in_runs) add_sums(m.deferred, EG_AMX_BLOCK);
        m.deferred->to = in_runs && accumulate ? (char *)m.deferred->sums : tile->out;
        m.deferred->tile = tile->out;
    }
    if (dots < DOTS_TO_DEFER) flush(m.deferred);
}

EG_INLINE void multiply(const eg_micro_operand *left, const eg_micro_operand *right, int64_t depth,
                        int64_t cols, const eg_micro_tile *tile, const eg_prefetch_plan *plan,
                        const int products) {
    if (depth == 0) {
        flush(tile->deferred);
        memset(tile->out, 0, EG_AMX_BLOCK * SUM_STRIDE);
    } else if (cols > EG_TILE_WORDS) {
        multiply_blocks(left, right->at, depth, tile, plan, products, true);
    } else {
        multiply_blocks(left, right->at, depth, tile, plan, products, false);
    }
}

static void multiply_x1(const eg_micro_operand *left, const eg_micro_operand *right, int64_t depth,
                        int64_t cols, const eg_micro_tile *tile, const eg_prefetch_plan *plan) {
    multiply(left, right, depth, cols, tile, plan, 1);
}

static void multiply_x3(const eg_micro_operand *left, const eg_micro_operand *right, int64_t depth,
                        int64_t cols, const eg_micro_tile *tile, const eg_prefetch_plan *plan) {
    multiply(left, right, depth, cols, tile, plan, 3);
}

static void multiply_x4(const eg_micro_operand *left, const eg_micro_operand *right, int64_t depth,
                        int64_t cols, const eg_micro_tile *tile, const eg_prefetch_plan *plan) {
    multiply(left, right, depth, cols, tile, plan, 4);
}

static void multiply_x6(const eg_micro_operand *left, const eg_micro_operand *right, int64_t depth,
                        int64_t cols, const eg_micro_tile *tile, const eg_prefetch_plan *plan) {
    multiply(left, right, depth, cols, tile, plan, 6);
}
