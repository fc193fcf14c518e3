/* SPDX-License-Identifier: Apache-2.0 */
/* The tile loop of large products on vector units. For each pass a block packs its rows of the left operand
 * and its columns of the right one in the order in which tiles read them. Both stay in L2:
 *
 *   for each pass of KC over the depth
 *     pack the block's rows of the left operand          MC x KC
 *     and its columns of the right one                   KC x NC
 *     for each micro-panel of the right operand          KC x NR   stays in L1
 *       for each MR rows of the left operand             MR x KC   streams from L2
 *         multiply into the tile, and prefetch a part of what the next pass packs
 */
#include <stddef.h>
#include <string.h>

#include "gemm.h"

enum { LINE = 64 };

/* ---- Packing ------------------------------------------------------------------------------------ */

static int64_t item_of(const eg_product *x, const eg_gemm_block *b, const eg_gemm_pass *pass) {
    return x->summed > 1 ? pass->summand : b->item;
}

/* Bytes of a packed row of the left operand. */
static int64_t row_bytes(const eg_product *x, const eg_gemm_pass *pass) {
    const int64_t step = x->kernel->micro.step;
    return eg_ceil_div(pass->depth, step) * step * (int64_t)x->size;
}

/* Of a transposed operand that was packed before, each micro-panel has nr rows. */
static void pack_left(const eg_product *x, const eg_gemm_block *b, const eg_gemm_pass *pass, int64_t first,
                      int64_t end) {
    const eg_side *from = &x->left;
    const int64_t bytes = row_bytes(x, pass);
    const eg_dtype dtype = from->in_place ? x->a.dtype : x->kernel->compute;
    char *to = b->tail;
    for (int64_t row = first, rows; row < end; row += rows, to += eg_ceil_div(rows, x->mr) * x->mr * bytes) {
        const int64_t width = from->panel_width, panel = row < width ? 0 : eg_div(row, width);
        rows = eg_least(width - (row - panel * width), end - row);
        const eg_left_source source = {from->micro.index_stride, from->micro.k_stride,
                                       from->micro.group_stride, rows, pass->depth};
        x->kernel->pack.left(to, eg_side_at(from, item_of(x, b, pass), row, pass->k), dtype, &source);
    }
}

static void pack_right(const eg_product *x, const eg_gemm_block *b, const eg_gemm_pass *pass) {
    const int64_t item = item_of(x, b, pass), nr = x->nr, end = b->col + b->cols;
    const size_t bytes = (size_t)(pass->depth * nr) * x->size;
    char *to = b->panel;
    for (int64_t col = b->col; col < end; col += nr, to += bytes) {
        const eg_part part = {
            .k = pass->k, .depth = pass->depth, .col = col, .cols = eg_least(nr, x->cols - col)};
        if (x->widens) {
            x->kernel->pack.load(to, eg_side_at(&x->right, item, col, pass->k), x->b_dtype, nr, 1,
                                 pass->depth, nr, pass->depth);
        } else {
            eg_cpu_pack_part(x->run, x->kernel, &x->b, item, &part, to);
        }
    }
}

/* ---- What is read next -------------------------------------------------------------------------- */

/* Memory of so many rows, divided among so many tiles: whole rows of it, or a piece of one. */
static eg_upcoming divide_rows(const char *at, int64_t rows, int64_t stride, int64_t bytes, int64_t tiles) {
    eg_upcoming w = {.list = at, .at = at, .lists = 1, .length = rows, .left = rows, .stride = stride};
    if (rows < 1 || bytes < 1) return (eg_upcoming){.lists = 0};
    const int64_t lines = (bytes - 1 + eg_straddle_bytes(at, stride)) / LINE + 1;
    if (tiles > rows) w.lists = eg_least(eg_div(tiles, rows), lines);
    const int64_t each = (lines - 1) / w.lists + 1;
    w.lists = (lines - 1) / each + 1;
    w.bytes = w.to_next = each * LINE;
    w.part = eg_ceil_div(rows, tiles > w.lists ? eg_div(tiles, w.lists) : 1);
    return w;
}

/* An operand in memory, or a pack of it: of indices [at, at + count) and k [k, k + depth). */
static eg_upcoming divide_side(const eg_product *x, const eg_side *side, eg_dtype dtype, int64_t item,
                               int64_t at, int64_t count, int64_t k, int64_t depth, int64_t tiles) {
    const int64_t size = (int64_t)eg_size_of(dtype);
    const char *from = eg_side_at(side, item, at, k);
    if (!side->in_place && side->panel_width == x->nr)
        return divide_rows(from, eg_ceil_div(count, x->nr), side->panel, depth * x->nr * size, tiles);
    if (!side->in_place) return (eg_upcoming){.lists = 0};
    if (side->k == size) return divide_rows(from, count, side->index, depth * size, tiles);
    return side->index == size ? divide_rows(from, depth, side->k, count * size, tiles)
                               : (eg_upcoming){.lists = 0};
}

typedef struct next_pass {
    int64_t item, k, depth, col, cols;
    bool same_left; /* as this pass's */
} next_pass;

/* The next pass of the block, of its next summand, or of the block to the right. */
static next_pass after(const eg_product *x, const eg_gemm_block *b, const eg_gemm_pass *pass) {
    next_pass next = {
        .item = item_of(x, b, pass), .k = pass->k + pass->depth, .col = b->col, .cols = b->cols};
    if (next.k >= x->depth) {
        next.k = 0;
        if (!pass->last) next.item++;
        if (pass->last) next.col = b->col + b->cols < x->cols ? b->col + b->cols : 0;
        next.cols = eg_least(x->nc, x->cols - next.col);
    }
    next.depth = eg_least(x->kc, x->depth - next.k);
    next.same_left = next.k == pass->k && next.item == item_of(x, b, pass);
    return next;
}

/* Fills in a field of the steps, or `parts` of each: the lines of so many rows from `first` on, row by row. */
static void place_lines(eg_packed_lines *of, size_t field, int64_t parts, eg_line_rows *made, int64_t rows,
                        int64_t first, int64_t bytes, int64_t stride) {
    const int64_t across = eg_ceil_div(bytes, LINE), lines = rows * across, count = of->steps * parts;
    if (made->rows == rows && made->lines == across && made->stride == stride) return;
    *made = (eg_line_rows){rows, across, stride};
    int64_t row = 0, line = 0, due = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = row * stride + line * LINE + first, step = eg_div(i, parts);
        memcpy((char *)&of->step[step] + field + (size_t)(i - step * parts) * sizeof at, &at, sizeof at);
        for (due += lines; due >= count; due -= count) {
            if (++line == across) line = 0, row++;
        }
    }
}

/* The rows of a tile that its epilogue touches. */
static void place_rows(eg_packed_lines *of, size_t field, eg_line_rows *made, const eg_prefetch_rows *rows,
                       int64_t count) {
    place_lines(of, field, EG_CPU_PARTS, made, rows->at != NULL ? count : 0, eg_prefetch_offset(rows->bytes),
                rows->bytes, rows->stride);
}

static void place_part(eg_packed_lines *of, size_t field, eg_line_rows *made, const eg_upcoming *w) {
    place_lines(of, field, 1, made, w->part, 0, w->bytes, w->stride);
}

static const char *take(eg_upcoming *w, const char *otherwise) {
    if (w->lists <= 0) return otherwise;
    const char *at = w->at;
    eg_go_on(w);
    return at;
}

/* ---- One pass ----------------------------------------------------------------------------------- */

static const char *panel_at(const eg_product *x, const eg_gemm_block *b, const eg_gemm_pass *pass,
                            int64_t col) {
    if (!x->fused && !x->widens) return eg_side_at(&x->right, item_of(x, b, pass), col, pass->k);
    return b->panel + (size_t)((col - b->col) * pass->depth) * x->size;
}

/* The rows that the epilogue of the tile below touches. */
static void next_tile(eg_prefetch_plan *plan, int64_t mr) {
    if (plan->out.at != NULL) plan->out.at += mr * plan->out.stride;
    if (plan->in.at != NULL) plan->in.at += mr * plan->in.stride;
}

/* The last pass of a tile, and its epilogue. The tile is made here: a copy of one would be read by longer loads
 * than its stores, which have to wait until those and all before them are in the cache. */
static void run_last_pass(const eg_product *x, const eg_gemm_block *b, const eg_gemm_pass *pass,
                          const void *left, const void *right, const eg_tile *tile,
                          const eg_prefetch_lines *lines) {
    const bool direct = eg_cpu_stores_tile(x, tile);
    eg_micro_tile sums = {.initial = pass->first ? NULL : tile->values,
                          .out = tile->values,
                          .out_stride = x->nr,
                          .rows = tile->rows};
    if (direct) eg_cpu_place_result(x, tile, &sums);
    if (x->prefetch_in == NULL) eg_cpu_epilogue_prefetch(x->epilogue, tile, x->prefetch_out);
    x->kernel->micro.multiply_packed(left, x->left.micro.k_stride == 1, right, pass->depth, tile->cols, &sums,
                                     lines);
    if (!direct) eg_cpu_finish_tile(x, b, tile);
}

/* Packed rows of the block, [first, end), against the micro-panel at `col`. A tile takes a microsecond or less,
 * so nothing is found out again for each but where it lies. */
static void run_panel(const eg_product *x, const eg_gemm_block *b, const eg_gemm_pass *pass, int64_t first,
                      int64_t end, int64_t col, eg_upcoming *next_right, eg_upcoming *next_left) {
    const int64_t nr = x->nr, mr = x->mr, tiles_down = eg_ceil_div(b->rows, mr), depth = pass->depth;
    const size_t tile_bytes = (size_t)(mr * nr) * x->size;
    const char *right = panel_at(x, b, pass, col), *left = b->tail;
    const bool by_rows = x->left.micro.k_stride == 1;
    const int64_t to_next_left = mr * row_bytes(x, pass);
    const int64_t in_turn = x->single_pass ? eg_cpu_block_tiles(x->kernel, x->mc, x->nc, true) - 1 : -1;
    int64_t place = x->single_pass ? eg_div(first, mr)
                                   : eg_div(col - b->col, nr) * tiles_down + eg_div(first - b->row, mr);
    eg_tile tile = {.item = b->item,
                    .row = first,
                    .col = col,
                    .rows = eg_least(mr, end - first),
                    .cols = eg_least(nr, x->cols - col),
                    .spare = b->spare};
    eg_prefetch_plan plan = {0};
    eg_prefetch_lines lines = {.step = b->packed->step, .ends = pass->last};
    if (pass->last) {
        eg_cpu_plan_epilogue(&plan, x, pass, &tile);
        next_tile(&plan, mr); /* a pass may be shorter than the way from memory */
        place_rows(b->packed, offsetof(eg_prefetch_step, out), &b->packed->out, &plan.out, tile.rows);
        place_rows(b->packed, offsetof(eg_prefetch_step, in), &b->packed->in, &plan.in, tile.rows);
    }
    eg_micro_tile sums = {.out_stride = nr};
    for (; tile.row < end; tile.row += mr, left += to_next_left, place++) {
        tile.rows = sums.rows = eg_least(mr, end - tile.row);
        tile.values = sums.out = b->tiles + (size_t)(place & in_turn) * tile_bytes;
        if (!pass->first) sums.initial = sums.out;
        lines.right = take(next_right, right), lines.left = take(next_left, right);
        if (!pass->last) {
            x->kernel->micro.multiply_packed(left, by_rows, right, depth, tile.cols, &sums, &lines);
            continue;
        }
        lines.out = plan.out.at != NULL ? plan.out.at : right;
        lines.in = plan.in.at != NULL ? plan.in.at : right;
        run_last_pass(x, b, pass, left, right, &tile, &lines);
        next_tile(&plan, mr);
    }
}

static eg_upcoming next_rows(const eg_product *x, const eg_gemm_block *b, const eg_gemm_pass *pass,
                             const next_pass *next, int64_t end, int64_t tiles) {
    const eg_dtype dtype = x->left.in_place ? x->a.dtype : x->kernel->compute;
    if (end < b->row + b->rows)
        return divide_side(x, &x->left, dtype, item_of(x, b, pass), end,
                           eg_least(EG_CPU_PACKED_ROWS, b->row + b->rows - end), pass->k, pass->depth, tiles);
    if (next->same_left && b->rows <= EG_CPU_PACKED_ROWS) return (eg_upcoming){.lists = 0};
    return divide_side(x, &x->left, dtype, next->item, b->row, eg_least(EG_CPU_PACKED_ROWS, b->rows), next->k,
                       next->depth, tiles);
}

void eg_cpu_run_packed_pass(const eg_product *x, eg_gemm_block *b, eg_gemm_pass *pass) {
    const int64_t steps = eg_ceil_div(pass->depth, x->kernel->micro.step);
    const int64_t tiles_down = eg_ceil_div(b->rows, x->mr), panels = eg_ceil_div(b->cols, x->nr);
    const next_pass next = after(x, b, pass);
    eg_packed_lines *s = b->packed;
    eg_upcoming right = divide_side(x, &x->right, x->fused || x->widens ? x->b_dtype : x->kernel->compute,
                                    next.item, next.col, next.cols, next.k, next.depth, tiles_down * panels);
    if (x->fused || x->widens) pack_right(x, b, pass);
    if (s->steps != steps) {
        memset(s, 0, sizeof *s);
        s->steps = steps;
    }
    place_part(s, offsetof(eg_prefetch_step, right), &s->right, &right);
    for (int64_t row = b->row, end; row < b->row + b->rows; row = end) {
        end = eg_least(row + EG_CPU_PACKED_ROWS, b->row + b->rows);
        eg_upcoming left = next_rows(x, b, pass, &next, end, eg_ceil_div(end - row, x->mr) * panels);
        place_part(s, offsetof(eg_prefetch_step, left), &s->left, &left);
        pack_left(x, b, pass, row, end);
        for (int64_t col = b->col; col < b->col + b->cols; col += x->nr)
            run_panel(x, b, pass, row, end, col, &right, &left);
    }
}
