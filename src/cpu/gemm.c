/* SPDX-License-Identifier: Apache-2.0 */
/* The blocked product. One thread sums every tile of the result, in one order, so that the bits do not depend
 * on the number of threads.
 *
 *   for each block of the result (MC x NC; shared out among the threads)
 *     for each pass of KC over the depth (of each item that is summed)
 *       for each micro-panel of the right operand    KC x NR   stays in L2, and in L1 as far as it fits
 *         for each MR rows of the left operand       MR x KC   streams from L2
 *           multiply into the tile                   MR x NR   in registers
 *           after the last pass: the epilogue                  in L1
 */
#include <string.h>

#include "gemm.h"

/* ---- One tile ----------------------------------------------------------------------------------- */

/* One tile of one pass. After the last pass comes the epilogue: at once, or in steps during the next tile. */
static void run_tile(const eg_product *x, const eg_gemm_block *b, const eg_gemm_pass *pass,
                     const eg_micro_operand *left, const eg_micro_operand *right, eg_prefetch_plan *plan,
                     const eg_tile *tile, char *copy) {
    if (pass->last && x->prefetch_in == NULL) eg_cpu_epilogue_prefetch(x->epilogue, tile, x->prefetch_out);
    plan->rows = !pass->last ? 0 : x->turns ? tile->cols : tile->rows;
    plan->epilogue = b->epilogue;
    plan->epilogue_step = eg_cpu_epilogue_step;
    plan->epilogue_steps = b->epilogue->of != NULL ? b->epilogue->steps - b->epilogue->step : 0;
    const bool direct = pass->last && eg_cpu_stores_tile(x, tile);
    eg_micro_tile sums = {.initial = pass->first ? NULL : tile->values,
                          .out = tile->values,
                          .out_stride = x->nr,
                          .rows = tile->rows,
                          .copy = copy,
                          .deferred = b->deferred};
    if (direct) eg_cpu_place_result(x, tile, &sums);
    x->kernel->micro.multiply(left, right, pass->depth, tile->cols, &sums, plan);
    if (pass->last && !direct) eg_cpu_finish_tile(x, b, tile);
}

/* ---- The prefetch plan -------------------------------------------------------------------------- */

/* What the product reads of the right operand after the `width` columns at `col`: as many further columns, or
 * the first of the next pass, summand or block. */
static eg_part part_after(const eg_product *x, const eg_gemm_block *b, const eg_gemm_pass *pass,
                          int64_t *item, int64_t col, int64_t width) {
    eg_part next = {.k = pass->k, .depth = pass->depth, .col = col + width};
    if (next.col >= b->col + b->cols && !pass->last) {
        next.col = b->col;
        next.k += pass->depth;
        if (next.k >= x->depth) next.k = 0, ++*item;
    } else if (next.col >= b->col + b->cols) {
        next.col = next.col < x->cols ? next.col : 0;
        next.k = 0;
    }
    next.depth = eg_least(x->kc, x->depth - next.k);
    next.cols = eg_least(width, x->cols - next.col);
    return next;
}

/* AMX with fused packing: the rows of B from which the next micro-panel will be packed, some with each tile.
 * Distant lines come at half the speed. So where a row of it is one line, the plan takes the next pass
 * instead, with all columns of the block. */
static void plan_source_rows(eg_prefetch_plan *plan, const eg_product *x, const eg_gemm_block *b,
                             const eg_gemm_pass *pass, int64_t item, int64_t col) {
    enum { LINE = 64 };
    const bool down = x->b.col_stride == 1;
    if (!down && x->b.row_stride != 1) return;
    const int64_t nr = x->nr, size = (int64_t)eg_size_of(x->b.dtype);
    const bool whole = down && nr * size <= LINE;
    const eg_part part = part_after(x, b, pass, &item, whole ? b->col : col, whole ? b->cols : nr);
    const int64_t rows = down ? part.depth : part.cols, tiles_down = eg_ceil_div(b->rows, x->mr);
    const int64_t each = eg_ceil_div(rows, tiles_down * (whole ? eg_ceil_div(b->cols, nr) : 1));
    const int64_t before = whole ? eg_div(col - b->col, nr) * tiles_down * each : 0;
    if (part.depth == 0 || before >= rows) return;
    plan->source_rows = each;
    plan->source = (eg_prefetch_rows){eg_cpu_at(&x->b, item, part.k + before, part.col),
                                      rows > 1 ? eg_times(down ? x->b.row_stride : x->b.col_stride, size) : 0,
                                      (down ? part.cols : part.depth) * size};
}

/* AMX: the next micro-panel of the right operand, and the left operand's for the next pass or block. No
 * hardware prefetcher follows tile loads. */
static void plan_blocks(eg_prefetch_plan *plan, const eg_product *x, const eg_gemm_block *b,
                        const eg_gemm_pass *pass, int64_t item, int64_t col) {
    if (x->fused) {
        plan_source_rows(plan, x, b, pass, item, col);
    } else if (!x->turns_made) {
        const eg_part next = part_after(x, b, pass, &item, col, x->nr);
        plan->right_blocks = eg_side_at(&x->right, item, next.col, next.k);
        plan->right_bytes = (size_t)eg_div(pass->depth * x->right.k, eg_ceil_div(b->rows, x->mr));
    }
    if (!x->single_pass && !x->left.in_place && !x->packs_left) /* which reads the same again */
        plan->left_bytes = (size_t)(pass->depth * x->left.k / eg_ceil_div(b->cols, x->nr));
}

/* With the left operand in place: the next tile's rows, of which so many are left, while the first
 * micro-panel of a block meets this one's. */
static void plan_left_rows(eg_prefetch_plan *plan, const eg_product *x, const eg_gemm_pass *pass,
                           const char *at, int64_t left) {
    plan->left_rows = left > 0 ? x->mr : 0;
    plan->left = (eg_prefetch_rows){at + x->mr * x->left.index, x->left.index, pass->depth * x->left.k};
}

/* Whether what the right operand is read from is prefetched as a stream. */
static bool has_stream(const eg_product *x, const eg_gemm_block *b) {
    return x->kernel->micro.streams && x->left.micro.index_stride != 1 &&
           b->rows * (int64_t)x->size <= EG_CPU_STREAMED_BYTES;
}

/* And for a whole pass. Rows of B are then long pieces of memory, which come at twice the rate of those of a
 * micro-panel. */
static bool reads_passes(const eg_product *x, const eg_gemm_block *b) {
    return has_stream(x, b) && x->fused && x->b.col_stride == 1;
}

/* What follows the `width` columns at `col`: of micro-panels, or with fused packing of B, from which they
 * will be packed. In rows of `most` bytes. */
static eg_upcoming upcoming_right(const eg_product *x, const eg_gemm_block *b, const eg_gemm_pass *pass,
                                  int64_t item, int64_t col, int64_t width, int64_t most) {
    enum { LINE = 64 };
    const eg_part next = part_after(x, b, pass, &item, col, width);
    const int64_t size = (int64_t)eg_size_of(x->b.dtype), row = x->nr * (int64_t)x->size;
    if (!x->fused) {
        const bool dense = x->right.k == row;
        return (eg_upcoming){.list = eg_side_at(&x->right, item, next.col, next.k),
                             .lists = 1,
                             .length = dense ? eg_ceil_div(next.depth * row, most) : next.depth,
                             .stride = dense            ? most
                                       : next.depth > 1 ? x->right.k
                                                        : 0,
                             .bytes = dense ? most : row};
    }
    const bool down = x->b.col_stride == 1;
    const char *const at = eg_cpu_at(&x->b, item, next.k, next.col);
    const int64_t straddle =
        most > row ? eg_straddle_bytes(at, (down ? x->b.row_stride : x->b.col_stride) * size) : 0;
    const int64_t bytes = (down ? next.cols : next.depth) * size + straddle, lists = eg_ceil_div(bytes, most);
    eg_upcoming w = {.list = at,
                     .lists = lists,
                     .to_next = eg_ceil_div(bytes, lists * LINE) * LINE,
                     .length = down ? next.depth : next.cols};
    if (!down && x->b.row_stride != 1) w.length = 0;
    w.bytes = w.to_next;
    if (w.length > 1) w.stride = (down ? x->b.row_stride : x->b.col_stride) * size;
    return w;
}

/* The left operand of the next pass, of the next summand's first one, or of the next block's. A single pass
 * reads the same again. The hardware prefetcher sees only a few lines in a row. */
static eg_upcoming upcoming_left(const eg_product *x, const eg_gemm_block *b, const eg_gemm_pass *pass,
                                 int64_t item) {
    const eg_side *left = &x->left;
    if (left->in_place || x->depth <= x->kc) return (eg_upcoming){.length = 0};
    const int64_t nr = x->nr, after = pass->k + pass->depth, k = after < x->depth ? after : 0;
    const int64_t depth = eg_least(x->kc, x->depth - k);
    const bool transposed = left->panel_width == nr;
    const int64_t skipped =
        transposed ? b->row - eg_div(b->row, nr) * nr : 0; /* columns of the micro-panel */
    return (eg_upcoming){
        .list = eg_side_at(left, k == 0 && !pass->last ? item + 1 : item, b->row - skipped, k),
        .lists = eg_ceil_div(transposed ? skipped + b->rows : depth, nr),
        .to_next = transposed ? left->panel : nr * left->k,
        .length = transposed ? depth : b->rows,
        .stride = nr * (int64_t)x->size,
    };
}

/* Divides the lists among `tiles` tiles, of which those before `tile` have had their parts. Every group of k
 * prefetches as many rows: some beyond the part cost less than a mispredicted branch. */
static void divide_prefetch(eg_upcoming *w, int64_t tile, int64_t tiles, int64_t groups) {
    if (w->length == 0) return;
    const int64_t a_list = tiles > w->lists ? eg_div(tiles, w->lists) : 1, before = eg_div(tile, a_list);
    w->part = eg_ceil_div(w->length, a_list);
    w->rows_a_group = eg_ceil_div(w->part, groups);
    w->lists -= before;
    w->list += before * w->to_next;
    const int64_t row = eg_least((tile - before * a_list) * w->part, w->length);
    w->at = w->list + row * w->stride;
    w->left = w->length - row;
}

static void take_prefetch(eg_prefetch_slice *slice, eg_upcoming *w) {
    if (w->length == 0) return;
    slice->at = w->at, slice->stride = w->stride, slice->rows_a_group = w->lists > 0 ? w->rows_a_group : 0;
    eg_go_on(w);
}

static void take_stream(eg_prefetch_stream *stream, eg_upcoming *w, const int64_t *offsets) {
    const bool any = w->length > 0 && w->lists > 0;
    *stream = (eg_prefetch_stream){any ? w->at : NULL, offsets, w->rows_a_group * w->stride};
    if (any) eg_go_on(w);
}

/* A stream's lines of a group of nr k: of as many rows as have room, and across them. Most micro-panels have
 * those of the one before. */
static void place_lines(eg_upcoming *w, int64_t nr, eg_stream_lines *at) {
    enum { LINE = 64 };
    if (w->length == 0) return;
    const int64_t of_row = eg_ceil_div(w->bytes, LINE);
    if (w->rows_a_group * of_row > nr) w->rows_a_group = of_row < nr ? eg_div(nr, of_row) : 1;
    const int64_t rows = w->rows_a_group;
    if (at->rows == rows && at->of_row == of_row && at->stride == w->stride) return;
    at->rows = rows, at->of_row = of_row, at->stride = w->stride;
    int64_t row = 0, offset = 0, due = 0;
    for (int64_t i = 0; i < nr; i++) {
        at->offsets[i] = offset;
        for (due += rows * of_row; due >= nr; due -= nr) {
            offset += w->stride;
            if (++row == rows) row = 0, offset += LINE - rows * w->stride;
        }
    }
}

/* What comes after `width` columns, divided among the tiles that multiply with them. */
static void begin_right(const eg_product *x, const eg_gemm_block *b, eg_gemm_pass *pass, int64_t col,
                        int64_t width) {
    const int64_t item = x->summed > 1 ? pass->summand : b->item, nr = x->nr;
    const int64_t tiles = eg_ceil_div(b->rows, x->mr) * eg_ceil_div(width, nr);
    const bool stream = has_stream(x, b);
    pass->right = upcoming_right(x, b, pass, item, col, width, stream ? 16 * nr : nr * (int64_t)x->size);
    divide_prefetch(&pass->right, 0, tiles, pass->groups);
    if (stream) place_lines(&pass->right, nr, b->lines);
}

/* ---- One block ---------------------------------------------------------------------------------- */

/* Steps down the left operand tile by tile, and divides only where a micro-panel ends. */
typedef struct walk {
    const eg_side *side;
    const char *at;
    int64_t item, k, in_panel;
} walk;

static void walk_to(walk *w, int64_t row) {
    w->at = eg_side_at(w->side, w->item, row, w->k);
    w->in_panel =
        row < w->side->panel_width ? row : row - eg_div(row, w->side->panel_width) * w->side->panel_width;
}

static void walk_on(walk *w, int64_t row, int64_t rows) {
    w->at += rows * w->side->index;
    w->in_panel += rows;
    if (w->in_panel >= w->side->panel_width) walk_to(w, row + rows);
}

/* Micro-kernels read whole vectors of an operand in place: the last, narrow micro-panel is packed. */
static bool is_narrow(const eg_product *x, int64_t cols) {
    return x->right.in_place && (cols & (x->kernel->micro.lanes - 1)) != 0;
}

/* Fused packing by the first tile, which reads B in place and copies what it reads. */
static bool copies(const eg_product *x, const eg_gemm_block *b, int64_t cols) {
    return reads_passes(x, b) && x->b.dtype == x->kernel->compute && cols == x->nr && b->rows > x->mr;
}

/* The right operand's micro-panel at `col`: packed before, or by fused packing now. */
static void find_right(const eg_product *x, const eg_gemm_block *b, const eg_gemm_pass *pass, int64_t item,
                       int64_t col, eg_micro_operand *right) {
    const eg_part part = {
        .k = pass->k, .depth = pass->depth, .col = col, .cols = eg_least(x->nr, x->cols - col)};
    const bool narrow = is_narrow(x, part.cols);
    *right = x->right.micro;
    right->at = b->panel;
    if (x->turns_made) {
        eg_cpu_turn_blocks(x->kernel, eg_side_at(&x->right, item, pass->k, col), x->right.panel, pass->depth,
                           false, b->panel);
    } else if (x->widens) {
        x->kernel->pack.load(b->panel, eg_side_at(&x->right, item, col, pass->k), x->b_dtype, x->nr, 1,
                             pass->depth, x->nr, pass->depth);
    } else if (copies(x, b, part.cols)) {
        right->at = eg_cpu_at(&x->b, item, pass->k, col);
        right->k_stride = x->b.row_stride, right->group_stride = eg_times(x->b.row_stride, x->nr);
    } else if (x->fused || narrow) {
        eg_cpu_pack_part(x->run, x->kernel, &x->b, item, &part, b->panel);
        if (narrow) right->k_stride = x->nr, right->group_stride = x->nr * x->nr;
    } else {
        right->at = eg_side_at(&x->right, item, col, pass->k);
    }
}

/* And whole tiles of rows: the last ones are copied, once for all micro-panels of a pass. */
static bool has_tail(const eg_product *x, const eg_gemm_block *b) {
    return x->left.in_place && b->rows % x->mr != 0;
}

static void load_tail(const eg_product *x, const eg_gemm_block *b, const eg_gemm_pass *pass) {
    const int64_t item = x->summed > 1 ? pass->summand : b->item, nr = x->nr;
    const int64_t rows = b->rows % x->mr, first = b->row + b->rows - rows;
    char *to = b->tail;
    if (eg_cpu_is_amx(x->kernel)) {
        const eg_operand transposed = eg_cpu_transpose(x->a);
        const eg_part part = {.k = pass->k, .depth = pass->depth, .col = first, .cols = rows};
        eg_cpu_pack_left_part(x->run, x->kernel, &transposed, item, &part, to);
        return;
    }
    for (int64_t k = 0; k < pass->depth; k += nr, to += (size_t)(x->mr * nr) * x->size)
        x->kernel->pack.load(to, eg_cpu_at(&x->a, item, first, pass->k + k), x->a.dtype, x->a.row_stride,
                             x->a.col_stride, rows, eg_least(nr, pass->depth - k), x->mr);
}

/* AMX: and whole blocks of k. The last one of a row in place would go on in the next row, or past the matrix:
 * it is copied, with zeros. */
static bool has_last_block(const eg_product *x, const eg_gemm_pass *pass) {
    return x->left.in_place && eg_cpu_is_amx(x->kernel) && pass->depth % EG_AMX_BLOCK != 0;
}

static void copy_last_block(const eg_product *x, const eg_gemm_block *b, const eg_gemm_pass *pass) {
    const int64_t item = x->summed > 1 ? pass->summand : b->item, rest = pass->depth % EG_AMX_BLOCK;
    const eg_operand transposed = eg_cpu_transpose(x->a);
    const eg_part part = {
        .k = pass->k + pass->depth - rest, .depth = rest, .col = b->row, .cols = b->rows - b->rows % x->mr};
    eg_cpu_pack_left_part(x->run, x->kernel, &transposed, item, &part, b->last);
}

/* What the tiles of a micro-panel, of which `tile` is the first, prefetch. Returns their rows of the left
 * operand: none on AMX. */
static eg_upcoming plan_panel(const eg_product *x, const eg_gemm_block *b, eg_gemm_pass *pass, int64_t item,
                              const eg_tile *tile, eg_prefetch_plan *plan) {
    const int64_t tiles_down = eg_ceil_div(b->rows, x->mr), panel = eg_div(tile->col - b->col, x->nr);
    eg_upcoming next_left = {.length = 0};
    if (eg_cpu_is_amx(x->kernel)) {
        plan_blocks(plan, x, b, pass, item, tile->col);
    } else {
        next_left = upcoming_left(x, b, pass, item);
        if (!reads_passes(x, b)) begin_right(x, b, pass, tile->col, x->nr);
        divide_prefetch(&next_left, panel * tiles_down, tiles_down * eg_ceil_div(b->cols, x->nr),
                        pass->groups);
    }
    if (pass->last) eg_cpu_plan_epilogue(plan, x, pass, tile);
    return next_left;
}

static eg_micro_operand tail_of(const eg_product *x, const eg_gemm_block *b) {
    if (eg_cpu_is_amx(x->kernel)) return (eg_micro_operand){.at = b->tail};
    return (eg_micro_operand){
        .at = b->tail, .index_stride = x->nr, .k_stride = 1, .group_stride = x->mr * x->nr};
}

/* All rows of the block against the micro-panel at `col`. */
static void run_panel(const eg_product *x, const eg_gemm_block *b, eg_gemm_pass *pass, int64_t col) {
    const int64_t item = x->summed > 1 ? pass->summand : b->item, nr = x->nr, mr = x->mr;
    const int64_t tiles_down = eg_ceil_div(b->rows, mr), panel = eg_div(col - b->col, nr);
    const size_t tile_bytes = (size_t)(mr * nr) * x->size;
    const bool tail = has_tail(x, b), last = has_last_block(x, pass);
    eg_micro_operand left = x->left.micro, right;
    find_right(x, b, pass, item, col, &right);
    char *copy = copies(x, b, eg_least(nr, x->cols - col)) ? b->panel : NULL;
    walk rows = {.side = &x->left, .item = item, .k = pass->k};
    if (x->packs_left) {
        rows.side = &b->left;
        rows.at = b->left.data;
    } else {
        walk_to(&rows, b->row);
    }
    eg_tile tile = {.item = b->item,
                    .row = b->row,
                    .col = col,
                    .rows = eg_least(mr, b->rows),
                    .cols = eg_least(nr, x->cols - col),
                    .spare = b->spare};
    eg_prefetch_plan plan = {.right_blocks = right.at};
    const bool stream = has_stream(x, b);
    eg_upcoming next_left = plan_panel(x, b, pass, item, &tile, &plan);
    const int64_t to_next_pass = (pass->last ? -pass->k : pass->depth) * x->left.k;
    const int64_t to_next_out = x->turns ? mr * (int64_t)eg_size_of(x->result.dtype) : mr * plan.out.stride;
    const int64_t in_turn = eg_cpu_block_tiles(x->kernel, x->mc, x->nc, true) - 1;
    int64_t place = x->single_pass && !eg_cpu_is_amx(x->kernel) ? eg_div(b->row, mr) : panel * tiles_down;
    for (; tile.row < b->row + b->rows; tile.row += mr) {
        tile.rows = eg_least(mr, x->rows - tile.row);
        tile.values = b->tiles + (size_t)(x->single_pass ? place & in_turn : place) * tile_bytes;
        place++;
        plan.left_blocks = rows.at + to_next_pass + panel * (int64_t)plan.left_bytes;
        if (stream) {
            take_stream(&plan.right_stream, &pass->right, b->lines->offsets);
        } else {
            take_prefetch(&plan.next_right, &pass->right);
        }
        take_prefetch(&plan.next_left, &next_left);
        left.at = rows.at;
        if (last) left.last = b->last + (tile.row - b->row) * (EG_AMX_TERM_BYTES / EG_AMX_BLOCK);
        if (tail && tile.rows < mr) left = tail_of(x, b);
        if (x->left.in_place && x->left.micro.index_stride != 1 && col == b->col)
            plan_left_rows(&plan, x, pass, rows.at, b->row + b->rows - tile.row - mr);
        run_tile(x, b, pass, &left, &right, &plan, &tile, copy);
        if (copy != NULL) right = x->right.micro, right.at = copy, copy = NULL;
        plan.right_blocks += plan.right_bytes;
        if (plan.source.at != NULL) plan.source.at += plan.source_rows * plan.source.stride;
        if (plan.out.at != NULL) plan.out.at += to_next_out;
        if (plan.in.at != NULL) plan.in.at += mr * plan.in.stride;
        walk_on(&rows, tile.row, mr);
    }
}

/* AMX: the block's rows of the left operand for this pass. They stay in L2 for all micro-panels, and no other
 * core reads them. */
static void pack_left(const eg_product *x, eg_gemm_block *b, const eg_gemm_pass *pass) {
    const eg_amx_grid grid = eg_amx_grid_of(x->kernel->pack.bf16_terms, b->rows, pass->depth);
    const eg_part part = {.k = pass->k, .depth = pass->depth, .col = b->row, .cols = b->rows};
    const eg_operand transposed = eg_cpu_transpose(x->a);
    b->left = (eg_side){.data = b->tail,
                        .index = grid.row_pitch * (int64_t)grid.block_bytes / EG_AMX_BLOCK,
                        .panel_width = INT64_MAX};
    if (x->turns_made_left) {
        char *to = b->tail;
        for (int64_t i = 0; i < b->rows; i += EG_AMX_BLOCK, to += b->left.index * EG_AMX_BLOCK)
            eg_cpu_turn_blocks(
                x->kernel, eg_side_at(&x->left, x->summed > 1 ? pass->summand : b->item, pass->k, b->row + i),
                x->left.panel, pass->depth, true, to);
        return;
    }
    eg_cpu_pack_left_part(x->run, x->kernel, &transposed, x->summed > 1 ? pass->summand : b->item, &part,
                          b->tail);
}

static void run_pass(const eg_product *x, eg_gemm_block *b, eg_gemm_pass *pass) {
    pass->groups = pass->depth > 0 ? eg_ceil_div(pass->depth, x->nr) : 1;
    if (x->packs_both) {
        eg_cpu_run_packed_pass(x, b, pass);
        return;
    }
    if (x->packs_left) pack_left(x, b, pass);
    if (has_tail(x, b)) load_tail(x, b, pass);
    if (has_last_block(x, pass)) copy_last_block(x, b, pass);
    if (reads_passes(x, b)) begin_right(x, b, pass, b->col, b->cols);
    for (int64_t col = b->col; col < b->col + b->cols; col += x->nr) run_panel(x, b, pass, col);
}

/* A product of no depth is a block of zeros; its epilogue is run all the same. */
static void run_block(void *arg, int64_t index, int thread) {
    const eg_product *x = arg;
    const eg_cpu_kernel *kernel = x->kernel;
    const size_t tile = (size_t)(x->mr * x->nr) * x->size;
    eg_tile_epilogue epilogue;
    eg_deferred_flush deferred;
    eg_stream_lines lines;
    eg_packed_lines packed;
    lines.rows = 0;
    packed.steps = 0;
    epilogue.of = NULL;
    deferred.to = NULL, deferred.row = EG_AMX_BLOCK;
    const int64_t down = eg_div(index, x->col_blocks), item = eg_div(down, x->row_blocks);
    eg_gemm_block b = {.item = item,
                       .row = x->first + (down - item * x->row_blocks) * x->mc,
                       .col = (index - down * x->col_blocks) * x->nc,
                       .spare = eg_cpu_scratch(x->run, thread),
                       .lines = &lines,
                       .packed = &packed,
                       .deferred = &deferred,
                       .epilogue = &epilogue};
    b.rows = eg_least(x->mc, x->rows - b.row);
    b.cols = eg_least(x->nc, x->cols - b.col);
    b.tiles = b.spare + (size_t)eg_cpu_spare_numbers(kernel) * x->size;
    b.panel = b.tiles + (size_t)eg_cpu_block_tiles(kernel, x->mc, x->nc, x->single_pass) * tile;
    const int64_t terms = kernel->pack.bf16_terms;
    const size_t number = terms > 0 ? 2 * (size_t)terms : x->size; /* of a micro-panel */
    b.tail =
        b.panel +
        (x->right.in_place || x->fused || x->widens || x->turns_made ? (size_t)(x->kc * x->nr) * number : 0);
    if (terms > 0)
        b.last = b.tail + eg_cpu_left_numbers(kernel, EG_AMX_BLOCK, x->kc) * (int64_t)sizeof(float);
    if (x->packs_both) b.tail = b.panel + (x->fused || x->widens ? (size_t)(x->kc * x->nc) * number : 0);
    const int64_t kc = x->kc, passes = eg_ceil_div(x->depth, kc);
    if (kernel->micro.enter != NULL) kernel->micro.enter();
    for (int64_t summand = 0; summand < x->summed; summand++) {
        for (int64_t i = 0; i < passes; i++) {
            run_pass(x, &b,
                     &(eg_gemm_pass){.summand = summand,
                                     .k = i * kc,
                                     .depth = eg_least(kc, x->depth - i * kc),
                                     .first = summand == 0 && i == 0,
                                     .last = summand == x->summed - 1 && i == passes - 1});
        }
    }
    if (x->summed == 0 || passes == 0) run_pass(x, &b, &(eg_gemm_pass){.first = true, .last = true});
    if (kernel->micro.flush != NULL) kernel->micro.flush(&deferred);
    eg_cpu_epilogue_finish(&epilogue);
    if (x->epilogue->non_temporal) eg_cpu_order_stores();
    if (kernel->micro.leave != NULL) kernel->micro.leave();
}

typedef struct gemm_job {
    eg_product product;
    eg_epilogue epilogue;
} gemm_job;
_Static_assert(sizeof(gemm_job) <= EG_CPU_JOB, "a job");

void eg_cpu_gemm(const eg_cpu_run *run, const eg_step *step) {
    gemm_job own, *job = eg_cpu_job(run, &own);
    eg_product *x = &job->product;
    eg_cpu_prepare_epilogue(run, step, &job->epilogue);
    eg_cpu_make_product(run, step, &job->epilogue, x);
    eg_cpu_share(run, step->threads, x->items * x->row_blocks * x->col_blocks, run_block, x);
}
