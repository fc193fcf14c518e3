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

#include "blocking.h"
#include "cpu.h"
#include "epilogue.h"

/* Where an operand of a product lies. Strides are in bytes. `index` is the dimension that the result has: a
 * row of the left operand, a column of the right one. */
typedef struct side {
    const char *data;
    int64_t item, k, index;
    eg_outer outer;             /* of an operand in place */
    int64_t panel, panel_width; /* from one micro-panel to the next, and indices of each */
    bool in_place;              /* where its caller has it, not packed */
    eg_micro_operand micro;     /* as the micro-kernel reads it, but for the address */
} side;

typedef struct product {
    const eg_cpu_run *run;
    const eg_op *op;
    const eg_cpu_kernel *kernel;
    size_t size; /* bytes of a number of the tile */
    int64_t mr, nr, mc, nc, kc;
    int64_t epilogue_rows;            /* a power of two */
    int64_t first, rows, cols, depth; /* rows from `first` on, up to `rows` */
    int64_t items, summed;            /* results, and products summed into each */
    int64_t row_blocks, col_blocks;   /* of each result */
    bool packs_left;                  /* each block packs its rows of the left operand for itself, */
    bool fused;                       /* and the right operand, */
    bool widens;                      /* or converts micro-panels of a pack */
    bool single_pass;                 /* the whole depth is summed in registers */
    bool stores_result;               /* the micro-kernel may store to the caller's memory: no epilogue, */
    bool relu;                        /* or this after the epilogue's bias */
    side left, right;
    eg_operand a, b; /* in place, or with fused packing: the operand itself */
    eg_dtype b_dtype;
    eg_operand result, grad;
    const eg_operand *out; /* the result, row by row; NULL: it is packed, or column-major */
    /* What the epilogue touches and the micro-kernel prefetches. NULL: nothing, or what is packed. */
    const eg_operand *prefetch_out, *prefetch_in;
    bool turns; /* AMX tile blocks are stored as the row-major transpose of the result, which is prefetched */
    const eg_epilogue *epilogue;
} product;

/* ---- The operands of a product ------------------------------------------------------------------ */

typedef enum role { PLAIN, TRANSPOSED, RIGHT } role;

/* Wraps around: a stride that is never used, of one row or item, may be any number. */
static int64_t times(int64_t stride, int64_t factor) {
    return (int64_t)((uint64_t)stride * (uint64_t)factor);
}

/* x is read as [index, k], or as a right operand as [k, index]. */
static void place_side(side *s, const eg_operand *x, bool right, int64_t nr) {
    const int64_t size = (int64_t)eg_size_of(x->dtype);
    const int64_t k = right ? x->row_stride : x->col_stride, index = right ? x->col_stride : x->row_stride;
    s->data = eg_cpu_at(x, 0, 0, 0);
    s->item = times(x->batch_stride, size);
    s->outer = (eg_outer){x->outer.inner, times(x->outer.stride, size)};
    s->k = times(k, size);
    s->index = times(index, size);
    s->in_place = true;
    s->micro = (eg_micro_operand){.index_stride = index, .k_stride = k, .group_stride = times(k, nr)};
}

/* A packed operand of `depth` k and `count` indices; micro-panels have numbers of `size` bytes. */
static void place_packed_side(side *s, const eg_cpu_kernel *kernel, int64_t size, role role, int64_t depth,
                              int64_t count) {
    const int64_t nr = kernel->micro.nr;
    if (eg_cpu_is_amx(kernel)) {
        const eg_amx_grid grid = eg_amx_grid_of(kernel->pack.bf16_terms, count, depth);
        s->k = (int64_t)grid.block_bytes / EG_AMX_BLOCK;
        s->panel = grid.row_pitch * (int64_t)grid.block_bytes;
        s->index = s->panel / EG_AMX_BLOCK;
        s->item = grid.rows * s->panel;
    } else if (role == PLAIN) { /* [count, depth]: rows of nr k, a micro-panel for every nr of them */
        const eg_panels panels = eg_cpu_panels(kernel, count, depth);
        s->k = panels.stride * size; /* exact for multiples of nr, at which passes begin */
        s->index = nr * size;
        s->item = panels.panels * panels.stride * nr * size;
        s->micro = (eg_micro_operand){.index_stride = nr, .k_stride = 1, .group_stride = panels.stride * nr};
    } else { /* [depth, count] */
        const eg_panels panels = eg_cpu_panels(kernel, depth, count);
        s->k = nr * size;
        s->index = size;
        s->panel_width = nr;
        s->panel = panels.stride * nr * size;
        s->item = panels.panels * s->panel;
        s->micro = (eg_micro_operand){.index_stride = 1, .k_stride = nr, .group_stride = nr * nr};
    }
}

/* Fills in `s`. A struct that is returned would be stored by words and copied by longer loads, which have to
 * wait for the stores. */
static void find_side(side *s, const product *x, const eg_view *view, int where, role role, int64_t count) {
    const bool is_pack = view->space == EG_PACKED_B;
    *s = (side){.data = "", .panel_width = INT64_MAX};
    if (where == EG_CPU_NOWHERE) return;
    if (where == EG_CPU_FUSED && role != RIGHT) return; /* of each block: pack_left */
    if (where == EG_CPU_FUSED && !is_pack) {
        s->micro = (eg_micro_operand){.index_stride = 1, .k_stride = x->nr, .group_stride = x->nr * x->nr};
    } else if (where == EG_CPU_IN_PLACE) {
        const eg_operand operand = eg_cpu_bind(x->run->call, view);
        place_side(s, &operand, role == RIGHT, x->nr);
    } else {
        const eg_dtype dtype = is_pack ? view->dtype : x->kernel->compute;
        place_packed_side(s, x->kernel, (int64_t)eg_size_of(dtype), role, x->depth, count);
        if (!eg_is_batched(view)) s->item = 0;
        s->data = is_pack ? eg_cpu_packed_b(x->run, x->kernel, view) : eg_cpu_region(x->run, where);
    }
}

/* The micro-kernel prefetches what the epilogue stores to. Where the result is packed to AMX tile blocks, it
 * prefetches the gradient that the epilogue reads instead: both at once would delay the tile loads. */
static const eg_operand *choose_prefetch_out(product *x) {
    const eg_term *grad = eg_term_of(x->op, EG_TERM_GRAD_AT_VALUE);
    if (!eg_cpu_is_amx(x->kernel) || grad == NULL || grad->view.col_stride != 1) return x->out;
    x->grad = eg_cpu_bind(x->run->call, &grad->view);
    return &x->grad;
}

/* Filled in field by field: clearing the whole struct first takes some percent of a small call. */
static void make_product(const eg_cpu_run *run, const eg_step *step, const eg_epilogue *epilogue,
                         product *x) {
    const eg_op *op = &run->list->op[step->op];
    const eg_cpu_step *detail = eg_cpu_detail(step);
    const eg_cpu_kernel *kernel = detail->kernel;
    const bool is_amx = eg_cpu_is_amx(kernel);
    x->run = run;
    x->op = op;
    x->kernel = kernel;
    x->epilogue = epilogue;
    x->size = eg_size_of(kernel->compute);
    x->mr = kernel->micro.mr, x->nr = kernel->micro.nr, x->epilogue_rows = eg_cpu_epilogue_rows(kernel);
    x->mc = step->tile_rows, x->nc = step->tile_cols, x->kc = step->k_block;
    x->first = step->rows.first, x->rows = step->rows.count > 0 ? x->first + step->rows.count : op->rows;
    x->cols = op->cols, x->depth = op->depth;
    x->items = op->items, x->summed = op->summed;
    x->row_blocks = eg_ceil_div(x->rows - x->first, x->mc), x->col_blocks = eg_ceil_div(op->cols, x->nc);
    x->widens = eg_cpu_widens_pack(kernel, &op->right);
    x->fused = detail->right == EG_CPU_FUSED && !x->widens;
    x->single_pass = detail->single_pass;
    find_side(&x->left, x, &op->left, detail->left, op->left.transposed ? TRANSPOSED : PLAIN, op->rows);
    find_side(&x->right, x, &op->right, detail->right, RIGHT, x->cols);
    if (x->fused || x->right.in_place) x->b = eg_cpu_bind(run->call, &op->right);
    x->packs_left = detail->left == EG_CPU_FUSED;
    if (x->left.in_place || x->packs_left) x->a = eg_cpu_bind(run->call, &op->left);
    x->b_dtype = op->right.dtype;
    x->result = eg_cpu_bind(run->call, &op->out);
    x->out = x->result.data != NULL && x->result.col_stride == 1 ? &x->result : NULL;
    x->turns = is_amx && epilogue->plain_store && x->out == NULL && x->result.row_stride == 1;
    if (x->turns) x->result = eg_cpu_transpose(x->result);
    x->prefetch_out = epilogue->non_temporal ? NULL : x->turns ? &x->result : choose_prefetch_out(x);
    /* An accumulated result is prefetched as prefetch_out. */
    x->prefetch_in = is_amx || op->accumulate ? NULL : eg_cpu_epilogue_reads(epilogue);
    const eg_operand *bias = epilogue->bias;
    x->stores_result = x->out != NULL && eg_cpu_stores_sums(op) && !is_amx &&
                       x->out->dtype == kernel->compute &&
                       (bias == NULL || (bias->dtype == kernel->compute && bias->col_stride == 1));
    const eg_term *act = eg_term_of(op, EG_TERM_ACT);
    x->relu = act != NULL && act->activation == EG_ACT_RELU;
}

/* The operand's index `at` from `k` on. */
static const char *side_at(const side *s, int64_t item, int64_t at, int64_t k) {
    const int64_t panel = at < s->panel_width ? 0 : eg_div(at, s->panel_width);
    return s->data + eg_item_at(s->item, s->outer, item) + panel * s->panel +
           (at - panel * s->panel_width) * s->index + k * s->k;
}

/* ---- One tile ----------------------------------------------------------------------------------- */

typedef struct block {
    int64_t item, row, col, rows, cols;
    char *tiles; /* down each micro-panel and then across; or those that take turns */
    char *spare; /* scratch for the epilogue */
    char *panel; /* the right operand's micro-panel: of fused packing, or a narrow one */
    char *tail;  /* the left operand's last rows, where they are no whole tile */
    side left;   /* its rows, where the block packs them */
    eg_deferred_flush *deferred;
    eg_tile_epilogue *epilogue; /* of the tile before */
} block;

/* k in [k, k + depth) of product number `summand`. */
typedef struct pass {
    int64_t summand, k, depth;
    int64_t groups; /* of nr k, at least 1 */
    bool first, last;
} pass;

/* The micro-kernel stores to the caller's memory: whole vectors, with no epilogue but a bias and relu. Of
 * their tiles those that lack rows have an epilogue of their own. */
static bool has_direct_tiles(const product *x, const eg_tile *tile) {
    return x->stores_result && (tile->cols & (x->kernel->micro.lanes - 1)) == 0;
}

static bool is_stored_directly(const product *x, const eg_tile *tile) {
    return has_direct_tiles(x, tile) && tile->rows == x->mr;
}

static void store_directly(const product *x, const eg_tile *tile, eg_micro_tile *sums) {
    const eg_operand *bias = x->epilogue->bias;
    sums->out = eg_cpu_at(x->out, tile->item, tile->row, tile->col);
    sums->out_stride = x->out->row_stride;
    sums->non_temporal = x->epilogue->non_temporal;
    sums->bias = bias != NULL ? eg_cpu_at(bias, 0, 0, tile->col) : NULL;
    sums->relu = x->relu;
}

/* Whether the tile is the last one of an epilogue, which has all of `finished`. */
static bool ends_epilogue(const product *x, const block *b, const eg_tile *tile, eg_tile *finished) {
    const int64_t end = tile->row + tile->rows, above = tile->row & (x->epilogue_rows - 1);
    const bool alone = has_direct_tiles(x, tile);
    if ((end & (x->epilogue_rows - 1)) != 0 && end < b->row + b->rows && !alone) return false;
    const int64_t before = alone ? 0 : eg_least(above, tile->row - b->row);
    *finished = *tile;
    finished->row -= before, finished->rows += before;
    finished->values = (char *)tile->values - (size_t)(before * x->nr) * x->size;
    return true;
}

/* One tile of one pass. After the last pass comes the epilogue: at once, or in steps during the next tile. */
static void run_tile(const product *x, const block *b, const pass *pass, const eg_micro_operand *left,
                     const eg_micro_operand *right, eg_prefetch_plan *plan, const eg_tile *tile) {
    if (pass->last && x->prefetch_in == NULL) eg_cpu_epilogue_prefetch(x->epilogue, tile, x->prefetch_out);
    plan->rows = !pass->last ? 0 : x->turns ? tile->cols : tile->rows;
    plan->epilogue = b->epilogue;
    plan->epilogue_step = eg_cpu_epilogue_step;
    plan->epilogue_steps = b->epilogue->of != NULL ? b->epilogue->steps - b->epilogue->step : 0;
    const bool direct = pass->last && is_stored_directly(x, tile);
    eg_micro_tile sums = {.initial = pass->first ? NULL : tile->values,
                          .out = tile->values,
                          .out_stride = x->nr,
                          .rows = tile->rows,
                          .deferred = b->deferred};
    if (direct) store_directly(x, tile, &sums);
    x->kernel->micro.multiply(left, right, pass->depth, tile->cols, &sums, plan);
    if (!pass->last || direct) return;
    eg_tile finished;
    if (!ends_epilogue(x, b, tile, &finished)) return;
    eg_cpu_epilogue_finish(b->epilogue);
    eg_cpu_epilogue_begin(b->epilogue, x->epilogue, &finished);
    if (!eg_cpu_has_tiles(x->kernel)) eg_cpu_epilogue_finish(b->epilogue);
}

/* ---- The prefetch plan -------------------------------------------------------------------------- */

/* What the product reads of the right operand after the `width` columns at `col`: as many further columns, or
 * the first of the next pass, summand or block. */
static eg_part part_after(const product *x, const block *b, const pass *pass, int64_t *item, int64_t col,
                          int64_t width) {
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
static void plan_source_rows(eg_prefetch_plan *plan, const product *x, const block *b, const pass *pass,
                             int64_t item, int64_t col) {
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
                                      rows > 1 ? times(down ? x->b.row_stride : x->b.col_stride, size) : 0,
                                      (down ? part.cols : part.depth) * size};
}

/* AMX: the next micro-panel of the right operand, and the left operand's for the next pass or block. No
 * hardware prefetcher follows tile loads. */
static void plan_blocks(eg_prefetch_plan *plan, const product *x, const block *b, const pass *pass,
                        int64_t item, int64_t col) {
    if (x->fused) {
        plan_source_rows(plan, x, b, pass, item, col);
    } else {
        const eg_part next = part_after(x, b, pass, &item, col, x->nr);
        plan->right_blocks = side_at(&x->right, item, next.col, next.k);
        plan->right_bytes = (size_t)eg_div(pass->depth * x->right.k, eg_ceil_div(b->rows, x->mr));
    }
    if (!x->single_pass && !x->left.in_place && !x->packs_left) /* which reads the same again */
        plan->left_bytes = (size_t)(pass->depth * x->left.k / eg_ceil_div(b->cols, x->nr));
}

/* With the left operand in place: the next tile's rows, of which so many are left, while the first
 * micro-panel of a block meets this one's. */
static void plan_left_rows(eg_prefetch_plan *plan, const product *x, const pass *pass, const char *at,
                           int64_t left) {
    plan->left_rows = left > 0 ? x->mr : 0;
    plan->left = (eg_prefetch_rows){at + x->mr * x->left.index, x->left.index, pass->depth * x->left.k};
}

/* The operand's rows of the tile. */
static eg_prefetch_rows rows_of(const eg_operand *x, const eg_tile *tile) {
    const int64_t size = (int64_t)eg_size_of(x->dtype);
    return (eg_prefetch_rows){eg_cpu_at(x, tile->item, tile->row, tile->col), times(x->row_stride, size),
                              tile->cols * size};
}

static eg_prefetch_rows rows_of_turned(const eg_operand *x, const eg_tile *tile) {
    eg_tile turned = *tile;
    turned.row = tile->col, turned.col = tile->row, turned.cols = tile->rows;
    return rows_of(x, &turned);
}

/* The rows that the epilogue of the first tile touches. They are for the last pass: prefetched earlier, they
 * would be evicted again, or evict what the passes read. */
static void plan_epilogue_rows(eg_prefetch_plan *plan, const product *x, const pass *pass,
                               const eg_tile *tile) {
    plan->rows_a_group = eg_ceil_div(x->mr, pass->groups);
    if (x->prefetch_out != NULL) {
        plan->out = x->turns ? rows_of_turned(x->prefetch_out, tile) : rows_of(x->prefetch_out, tile);
    } else if (x->epilogue->micro_panels != NULL) {
        const int64_t size = (int64_t)x->size;
        plan->out =
            (eg_prefetch_rows){eg_cpu_epilogue_panel(x->epilogue, tile), x->nr * size, tile->cols * size};
    }
    if (x->prefetch_in != NULL) plan->in = rows_of(x->prefetch_in, tile);
}

/* Vector units: memory that is read next, as lists of rows that are as long as a micro-panel's. Each of some
 * tiles prefetches a part of one list. */
typedef struct upcoming {
    const char *list;       /* the first row of the list at hand, */
    int64_t lists, to_next; /* of so many left, and bytes from one to the next */
    int64_t length, stride; /* of a list: rows, and bytes from one to the next; no rows: nothing */
    const char *at;         /* the next part begins here, */
    int64_t left;           /* and the list has so many rows left */
    int64_t part, rows_a_group;
} upcoming;

/* The micro-panel that comes next; or with fused packing the part of B from which it will be packed: rows of
 * it, or of its transpose pieces of rows. */
static upcoming upcoming_right(const product *x, const block *b, const pass *pass, int64_t item,
                               int64_t col) {
    const eg_part next = part_after(x, b, pass, &item, col, x->nr);
    const int64_t line = x->nr * (int64_t)x->size;
    if (!x->fused)
        return (upcoming){.list = side_at(&x->right, item, next.col, next.k),
                          .lists = 1,
                          .length = next.depth,
                          .stride = x->right.k};
    const int64_t size = (int64_t)eg_size_of(x->b.dtype);
    upcoming w = {.list = eg_cpu_at(&x->b, item, next.k, next.col), .lists = 1, .length = next.depth};
    if (x->b.col_stride != 1) {
        w.lists = eg_ceil_div(next.depth * size, line);
        w.to_next = line;
        w.length = x->b.row_stride == 1 ? next.cols : 0;
    }
    if (w.length > 1) w.stride = (x->b.col_stride == 1 ? x->b.row_stride : x->b.col_stride) * size;
    return w;
}

/* The left operand of the next pass, of the next summand's first one, or of the next block's. A single pass
 * reads the same again. The hardware prefetcher sees only a few lines in a row. */
static upcoming upcoming_left(const product *x, const block *b, const pass *pass, int64_t item) {
    const side *left = &x->left;
    if (left->in_place || x->depth <= x->kc) return (upcoming){.length = 0};
    const int64_t nr = x->nr, after = pass->k + pass->depth, k = after < x->depth ? after : 0;
    const int64_t depth = eg_least(x->kc, x->depth - k);
    const bool transposed = left->panel_width == nr;
    const int64_t skipped =
        transposed ? b->row - eg_div(b->row, nr) * nr : 0; /* columns of the micro-panel */
    return (upcoming){
        .list = side_at(left, k == 0 && !pass->last ? item + 1 : item, b->row - skipped, k),
        .lists = eg_ceil_div(transposed ? skipped + b->rows : depth, nr),
        .to_next = transposed ? left->panel : nr * left->k,
        .length = transposed ? depth : b->rows,
        .stride = nr * (int64_t)x->size,
    };
}

/* Divides the lists among `tiles` tiles, of which those before `tile` have had their parts. Every group of k
 * prefetches as many rows: some beyond the part cost less than a mispredicted branch. */
static void divide_prefetch(upcoming *w, int64_t tile, int64_t tiles, int64_t groups) {
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

static void take_prefetch(eg_prefetch_slice *slice, upcoming *w) {
    if (w->length == 0) return;
    slice->at = w->at, slice->stride = w->stride, slice->rows_a_group = w->lists > 0 ? w->rows_a_group : 0;
    w->at += w->part * w->stride;
    w->left -= w->part;
    if (w->left > 0) return;
    w->lists--;
    w->at = w->list += w->to_next;
    w->left = w->length;
}

/* ---- One block ---------------------------------------------------------------------------------- */

/* Steps down the left operand tile by tile, and divides only where a micro-panel ends. */
typedef struct walk {
    const side *side;
    const char *at;
    int64_t item, k, in_panel;
} walk;

static void walk_to(walk *w, int64_t row) {
    w->at = side_at(w->side, w->item, row, w->k);
    w->in_panel =
        row < w->side->panel_width ? row : row - eg_div(row, w->side->panel_width) * w->side->panel_width;
}

static void walk_on(walk *w, int64_t row, int64_t rows) {
    w->at += rows * w->side->index;
    w->in_panel += rows;
    if (w->in_panel >= w->side->panel_width) walk_to(w, row + rows);
}

/* Micro-kernels read whole vectors of an operand in place: the last, narrow micro-panel is packed. */
static bool is_narrow(const product *x, int64_t cols) {
    return x->right.in_place && (cols & (x->kernel->micro.lanes - 1)) != 0;
}

/* The right operand's micro-panel at `col`: packed before, or by fused packing now. */
static void find_right(const product *x, const block *b, const pass *pass, int64_t item, int64_t col,
                       eg_micro_operand *right) {
    const eg_part part = {
        .k = pass->k, .depth = pass->depth, .col = col, .cols = eg_least(x->nr, x->cols - col)};
    const bool narrow = is_narrow(x, part.cols);
    *right = x->right.micro;
    right->at = b->panel;
    if (x->widens) {
        x->kernel->pack.load(b->panel, side_at(&x->right, item, col, pass->k), x->b_dtype, x->nr, 1,
                             pass->depth, x->nr, pass->depth);
    } else if (x->fused || narrow) {
        eg_cpu_pack_part(x->run, x->kernel, &x->b, item, &part, b->panel);
        if (narrow) right->k_stride = x->nr, right->group_stride = x->nr * x->nr;
    } else {
        right->at = side_at(&x->right, item, col, pass->k);
    }
}

/* And whole tiles of rows: the last ones are copied, once for all micro-panels of a pass. */
static bool has_tail(const product *x, const block *b) {
    return x->left.in_place && !eg_cpu_is_amx(x->kernel) && b->rows % x->mr != 0;
}

static void load_tail(const product *x, const block *b, const pass *pass) {
    const int64_t item = x->summed > 1 ? pass->summand : b->item, nr = x->nr;
    const int64_t rows = b->rows % x->mr, first = b->row + b->rows - rows;
    char *to = b->tail;
    for (int64_t k = 0; k < pass->depth; k += nr, to += (size_t)(x->mr * nr) * x->size)
        x->kernel->pack.load(to, eg_cpu_at(&x->a, item, first, pass->k + k), x->a.dtype, x->a.row_stride,
                             x->a.col_stride, rows, eg_least(nr, pass->depth - k), x->mr);
}

/* All rows of the block against the micro-panel at `col`. */
static void run_panel(const product *x, const block *b, const pass *pass, int64_t col) {
    const int64_t item = x->summed > 1 ? pass->summand : b->item, nr = x->nr, mr = x->mr;
    const int64_t tiles_down = eg_ceil_div(b->rows, mr), panel = eg_div(col - b->col, nr);
    const size_t tile_bytes = (size_t)(mr * nr) * x->size;
    const bool tail = has_tail(x, b);
    eg_micro_operand left = x->left.micro, right;
    find_right(x, b, pass, item, col, &right);
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
    upcoming next_right = {.length = 0}, next_left = next_right;
    if (eg_cpu_is_amx(x->kernel)) {
        plan_blocks(&plan, x, b, pass, item, col);
    } else {
        next_right = upcoming_right(x, b, pass, item, col);
        next_left = upcoming_left(x, b, pass, item);
        divide_prefetch(&next_right, 0, tiles_down, pass->groups);
        divide_prefetch(&next_left, panel * tiles_down, tiles_down * eg_ceil_div(b->cols, nr), pass->groups);
    }
    if (pass->last) plan_epilogue_rows(&plan, x, pass, &tile);
    const int64_t to_next_pass = (pass->last ? -pass->k : pass->depth) * x->left.k;
    const int64_t to_next_out = x->turns ? mr * (int64_t)eg_size_of(x->result.dtype) : mr * plan.out.stride;
    const int64_t in_turn = eg_cpu_block_tiles(x->kernel, x->mc, x->nc, true) - 1;
    int64_t place = x->single_pass && !eg_cpu_is_amx(x->kernel) ? eg_div(b->row, mr) : panel * tiles_down;
    for (; tile.row < b->row + b->rows; tile.row += mr) {
        tile.rows = eg_least(mr, x->rows - tile.row);
        tile.values = b->tiles + (size_t)(x->single_pass ? place & in_turn : place) * tile_bytes;
        place++;
        plan.left_blocks = rows.at + to_next_pass + panel * (int64_t)plan.left_bytes;
        take_prefetch(&plan.next_right, &next_right);
        take_prefetch(&plan.next_left, &next_left);
        left.at = rows.at;
        if (tail && tile.rows < mr)
            left =
                (eg_micro_operand){.at = b->tail, .index_stride = nr, .k_stride = 1, .group_stride = mr * nr};
        if (x->left.in_place && x->left.micro.index_stride != 1 && col == b->col)
            plan_left_rows(&plan, x, pass, rows.at, b->row + b->rows - tile.row - mr);
        run_tile(x, b, pass, &left, &right, &plan, &tile);
        plan.right_blocks += plan.right_bytes;
        if (plan.source.at != NULL) plan.source.at += plan.source_rows * plan.source.stride;
        if (plan.out.at != NULL) plan.out.at += to_next_out;
        if (plan.in.at != NULL) plan.in.at += mr * plan.in.stride;
        walk_on(&rows, tile.row, mr);
    }
}

/* AMX: the block's rows of the left operand for this pass. They stay in L2 for all micro-panels, and no other
 * core reads them. */
static void pack_left(const product *x, block *b, const pass *pass) {
    const eg_amx_grid grid = eg_amx_grid_of(x->kernel->pack.bf16_terms, b->rows, pass->depth);
    const eg_part part = {.k = pass->k, .depth = pass->depth, .col = b->row, .cols = b->rows};
    const eg_operand transposed = eg_cpu_transpose(x->a);
    b->left = (side){.data = b->tail,
                     .index = grid.row_pitch * (int64_t)grid.block_bytes / EG_AMX_BLOCK,
                     .panel_width = INT64_MAX};
    eg_cpu_pack_left_part(x->run, x->kernel, &transposed, x->summed > 1 ? pass->summand : b->item, &part,
                          b->tail);
}

static void run_pass(const product *x, block *b, pass *pass) {
    pass->groups = pass->depth > 0 ? eg_ceil_div(pass->depth, x->nr) : 1;
    if (x->packs_left) pack_left(x, b, pass);
    if (has_tail(x, b)) load_tail(x, b, pass);
    for (int64_t col = b->col; col < b->col + b->cols; col += x->nr) run_panel(x, b, pass, col);
}

/* A product of no depth is a block of zeros; its epilogue is run all the same. */
static void run_block(void *arg, int64_t index, int thread) {
    const product *x = arg;
    const eg_cpu_kernel *kernel = x->kernel;
    const size_t tile = (size_t)(x->mr * x->nr) * x->size;
    eg_tile_epilogue epilogue;
    eg_deferred_flush deferred;
    epilogue.of = NULL;
    deferred.to = NULL, deferred.row = EG_AMX_BLOCK;
    const int64_t down = eg_div(index, x->col_blocks), item = eg_div(down, x->row_blocks);
    block b = {.item = item,
               .row = x->first + (down - item * x->row_blocks) * x->mc,
               .col = (index - down * x->col_blocks) * x->nc,
               .spare = eg_cpu_scratch(x->run, thread),
               .deferred = &deferred,
               .epilogue = &epilogue};
    b.rows = eg_least(x->mc, x->rows - b.row);
    b.cols = eg_least(x->nc, x->cols - b.col);
    b.tiles = b.spare + (size_t)eg_cpu_spare_numbers(kernel) * x->size;
    b.panel = b.tiles + (size_t)eg_cpu_block_tiles(kernel, x->mc, x->nc, x->single_pass) * tile;
    const int64_t terms = kernel->pack.bf16_terms;
    const size_t number = terms > 0 ? 2 * (size_t)terms : x->size; /* of a micro-panel */
    b.tail = b.panel + (x->right.in_place || x->fused || x->widens ? (size_t)(x->kc * x->nr) * number : 0);
    const int64_t kc = x->kc, passes = eg_ceil_div(x->depth, kc);
    if (kernel->micro.enter != NULL) kernel->micro.enter();
    for (int64_t summand = 0; summand < x->summed; summand++) {
        for (int64_t i = 0; i < passes; i++) {
            run_pass(x, &b,
                     &(pass){.summand = summand,
                             .k = i * kc,
                             .depth = eg_least(kc, x->depth - i * kc),
                             .first = summand == 0 && i == 0,
                             .last = summand == x->summed - 1 && i == passes - 1});
        }
    }
    if (x->summed == 0 || passes == 0) run_pass(x, &b, &(pass){.first = true, .last = true});
    if (kernel->micro.flush != NULL) kernel->micro.flush(&deferred);
    eg_cpu_epilogue_finish(&epilogue);
    if (x->epilogue->non_temporal) eg_cpu_order_stores();
    if (kernel->micro.leave != NULL) kernel->micro.leave();
}

typedef struct gemm_job {
    product product;
    eg_epilogue epilogue;
} gemm_job;
_Static_assert(sizeof(gemm_job) <= EG_CPU_JOB, "a job");

void eg_cpu_gemm(const eg_cpu_run *run, const eg_step *step) {
    gemm_job own, *job = eg_cpu_job(run, &own);
    product *x = &job->product;
    eg_cpu_prepare_epilogue(run, step, &job->epilogue);
    make_product(run, step, &job->epilogue, x);
    eg_cpu_share(run, step->threads, x->items * x->row_blocks * x->col_blocks, run_block, x);
}
