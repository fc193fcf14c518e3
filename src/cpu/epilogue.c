/* SPDX-License-Identifier: Apache-2.0 */
#include "epilogue.h"

#include <string.h>

/* ---- What an epilogue reads and writes ---------------------------------------------------------- */

static size_t size_of(const eg_epilogue *e, int64_t numbers) {
    return (size_t)numbers * eg_size_of(e->kernel->compute);
}

/* These fill in field by field. A struct that is returned would be stored by words and copied by longer
 * loads, which have to wait for the stores. */
static void tile_rows(eg_rows *rows, const eg_epilogue *e, void *values, float scale) {
    rows->at = values;
    rows->step = (int64_t)size_of(e, e->kernel->micro.nr);
    rows->dtype = e->kernel->compute;
    rows->scale = scale;
}

static void memory_rows(eg_rows *rows, const eg_operand *x, const eg_tile *tile) {
    rows->at = eg_cpu_at(x, tile->item, tile->row, tile->col);
    rows->step = x->row_stride * (int64_t)eg_size_of(x->dtype);
    rows->dtype = x->dtype;
    rows->scale = 1;
}

/* Whether the operand can be read and written where it is. Without masks, that takes whole vectors of the
 * compute type. */
static bool in_place(const eg_epilogue *e, const eg_operand *x, const eg_tile *tile) {
    const eg_cpu_kernel *kernel = e->kernel;
    const bool masks = (kernel->needs & EG_CPU_AVX512) != 0;
    const bool whole_vectors = kernel->micro.lanes > 0 && (tile->cols & (kernel->micro.lanes - 1)) == 0;
    return x->col_stride == 1 && (masks || (x->dtype == kernel->compute && whole_vectors));
}

/* Rows to read an operand from: where it is, or a copy in `spare`. */
static void source(eg_rows *rows, const eg_epilogue *e, const eg_operand *x, const eg_tile *tile,
                   void *spare) {
    rows->at = NULL;
    if (x == NULL) return;
    if (x == &eg_cpu_product) {
        tile_rows(rows, e, tile->values, e->kernel->pack.unscale);
    } else if (in_place(e, x, tile)) {
        memory_rows(rows, x, tile);
    } else {
        e->kernel->pack.load(spare, eg_cpu_at(x, tile->item, tile->row, tile->col), x->dtype, x->row_stride,
                             x->col_stride, tile->rows, tile->cols, tile->rows);
        tile_rows(rows, e, spare, 1);
    }
}

/* Rows to write an operand to: where it is, or `spare`, from which `deliver` copies it. Element-wise, columns
 * of vectors are finished one after the other: non-temporal stores, by whole lines, come afterwards. */
static void target(eg_rows *rows, const eg_epilogue *e, const eg_operand *x, const eg_tile *tile,
                   void *spare) {
    rows->at = NULL;
    if (x == NULL) return;
    if (!e->non_temporal && in_place(e, x, tile)) {
        memory_rows(rows, x, tile);
    } else {
        tile_rows(rows, e, spare, 1);
    }
}

/* Stores rows of a tile by non-temporal stores. */
static void stream(const eg_epilogue *e, const eg_operand *x, const eg_tile *tile, const char *values,
                   int64_t row, int64_t rows) {
    if (x == NULL || rows <= 0) return;
    e->kernel->epilogue.stream(values + (size_t)row * size_of(e, e->kernel->micro.nr),
                               eg_cpu_at(x, tile->item, tile->row + row, tile->col), x->dtype, x->row_stride,
                               rows, tile->cols);
}

static void deliver(const eg_epilogue *e, const eg_operand *x, const eg_tile *tile, const void *spare) {
    const bool is_stored = !e->plain_store || e->in_blocks; /* by its steps, else there are none */
    const bool is_there = x != NULL && in_place(e, x, tile) && is_stored;
    if (e->non_temporal) {
        if (!e->in_blocks) stream(e, x, tile, spare, 0, tile->rows); /* else each step does its own */
        return;
    }
    if (x == NULL || is_there) return;
    e->kernel->epilogue.store(spare, eg_cpu_at(x, tile->item, tile->row, tile->col), x->dtype, x->row_stride,
                              x->col_stride, tile->rows, tile->cols);
}

static void bias_row(eg_rows *rows, const eg_epilogue *e, const eg_tile *tile, void *spare) {
    const eg_tile one = {.col = tile->col, .rows = 1, .cols = tile->cols};
    source(rows, e, e->bias, &one, spare);
}

/* The bias as f32. An absent one is -0: adding it changes no number, not even the sign of a zero. */
static void bias_numbers(float *to, const eg_epilogue *e, const eg_tile *tile) {
    const eg_operand *bias = e->bias;
    for (int j = 0; bias == NULL && j < EG_AMX_BLOCK; j++) to[j] = -0.0F;
    if (bias != NULL)
        e->kernel->pack.load(to, eg_cpu_at(bias, 0, 0, tile->col), bias->dtype, bias->row_stride,
                             bias->col_stride, 1, tile->cols, 1);
}

char *eg_cpu_epilogue_panel(const eg_epilogue *e, const eg_tile *tile) {
    const eg_cpu_kernel *kernel = e->kernel;
    const int64_t rows = eg_cpu_panels(kernel, e->rows, 0).stride;
    return e->micro_panels +
           size_of(e, (tile->item * e->width + tile->col) * rows + tile->row * kernel->micro.nr);
}

/* The same, with zeros where the tile has only padding. */
static char *panel_part(const eg_epilogue *e, const eg_tile *tile) {
    const eg_cpu_kernel *kernel = e->kernel;
    char *part = eg_cpu_epilogue_panel(e, tile);
    const int64_t rows = eg_ceil_div(tile->rows, kernel->micro.mr) * kernel->micro.mr;
    if (tile->rows < rows || tile->cols < kernel->micro.nr)
        memset(part, 0, size_of(e, rows * kernel->micro.nr));
    return part;
}

/* ---- A tile ------------------------------------------------------------------------------------- */

/* The column sums of the tile's chunk of rows. One thread runs the chunk's tiles, in order. */
static void *sums_of(const eg_epilogue *e, const eg_tile *tile) {
    const int64_t chunk = tile->item * eg_cpu_chunks(e->rows) + tile->row / EG_CPU_CHUNK,
                  nr = e->kernel->micro.nr;
    char *sums = e->sums + size_of(e, chunk * e->width + tile->col);
    if (tile->row % EG_CPU_CHUNK == 0) memset(sums, 0, size_of(e, eg_ceil_div(tile->cols, nr) * nr));
    return sums;
}

/* Whether the element-wise epilogue adds them while it goes down the rows. That of a tile block goes down
 * both of its tiles of 16 rows at once. */
static bool adds_sums(const eg_epilogue *e) { return e->sums != NULL && e->is_grad && !e->in_blocks; }

/* A step is as little as is worth a call, because it has to fit between two multiplications of the matrix
 * unit. Element-wise ones take longer to start. They are for the rare cases: edges, other layouts, further
 * operands. */
enum { STORED_ROWS = 4, PACKED_ROWS = 8, HALF = EG_AMX_BLOCK / 2, STEPS_A_SLICE = 3 };

static void split_rows(eg_tile_epilogue *t, void *tile, int64_t row, int64_t rows) {
    eg_rows from;
    tile_rows(&from, t->of, tile, 1);
    if (!t->of->kernel->pack.split(&from, row, rows, t->tile.rows, t->tile.cols, &t->block))
        eg_cpu_refuse(t->of->run);
}

static void elementwise_rows(eg_tile_epilogue *t, int64_t row, int64_t rows) {
    t->elementwise.row = row, t->elementwise.end = eg_least(row + rows, t->tile.rows);
    t->of->elementwise(&t->elementwise);
}

/* Without a matrix unit there is no multiplication that a step has to fit in between. */
static int64_t rows_a_step(const eg_epilogue *e) {
    return eg_cpu_has_tiles(e->kernel) ? STORED_ROWS : EG_AMX_BLOCK;
}

static void elementwise_all(eg_tile_epilogue *t) { t->of->elementwise(&t->elementwise); }

static void elementwise_some(eg_tile_epilogue *t) {
    const int64_t each = rows_a_step(t->of), row = t->step * each, rows = eg_least(each, t->tile.rows - row);
    elementwise_rows(t, row, rows);
    if (!t->of->non_temporal) return;
    stream(t->of, t->of->pre, &t->tile, t->tile.spare, row, rows);
    stream(t->of, t->of->out, &t->tile, t->tile.values, row, rows);
}

/* Three steps a slice: rows of the upper half, the rows 16 below them, and packing both. */
static void elementwise_to_blocks(eg_tile_epilogue *t) {
    const int slice = t->step / STEPS_A_SLICE * PACKED_ROWS, part = t->step % STEPS_A_SLICE;
    if (part == 0 && slice + PACKED_ROWS < HALF)
        t->of->kernel->pack.prefetch_write(&t->block, slice + PACKED_ROWS, PACKED_ROWS);
    if (part < 2) {
        elementwise_rows(t, slice + part * HALF, PACKED_ROWS);
    } else {
        split_rows(t, t->elementwise.result, slice, PACKED_ROWS);
    }
}

static void store_rows_step(eg_tile_epilogue *t) {
    const eg_epilogue *e = t->of;
    const eg_rows *out = &t->elementwise.out;
    const int64_t row = t->step * STORED_ROWS;
    if (row >= t->tile.rows) return;
    e->kernel->epilogue.store_rows((const float *)t->tile.values + row * EG_AMX_BLOCK,
                                   out->at + row * out->step, out->step, out->dtype,
                                   eg_least(STORED_ROWS, t->tile.rows - row), t->tile.cols, e->non_temporal);
}

/* First grad_pre of all rows, some at a time, and then packing them with those 16 below. */
static void grad_rows(eg_tile_epilogue *t) {
    const eg_cpu_kernel *kernel = t->of->kernel;
    const int64_t rows = kernel->epilogue.rows_a_step, row = t->step * rows;
    if (row >= EG_AMX_BLOCK) {
        split_rows(t, t->grad_rows.tile, row - EG_AMX_BLOCK, rows);
        return;
    }
    if (row < HALF) kernel->pack.prefetch_write(&t->block, row, rows);
    t->of->grad_rows(&t->grad_rows, row);
}

static void act_rows(eg_tile_epilogue *t) {
    t->of->act_rows(&t->act_rows, (int64_t)t->step * t->of->kernel->epilogue.rows_a_step);
}

static void take_steps(eg_tile_epilogue *t, void (*take)(eg_tile_epilogue *t), int steps) {
    t->take = take, t->step = 0, t->steps = steps;
}

/* Filled in field by field: clearing the whole struct first would take longer than the rest. */
static void begin_elementwise(eg_tile_epilogue *t, const eg_epilogue *e, const eg_tile *tile) {
    char *spare = tile->spare;
    char *other_spare = spare + size_of(e, eg_cpu_epilogue_rows(e->kernel) * e->kernel->micro.nr);
    eg_elementwise *s = &t->elementwise;
    s->row = 0, s->end = tile->rows, s->cols = tile->cols;
    source(&s->x, e, e->x, tile, spare); /* the tile itself where `pre` is wanted: `spare` is free */
    bias_row(&s->bias, e, tile, t->bias);
    source(&s->other, e, e->other, tile, other_spare);
    target(&s->pre, e, e->pre, tile, spare);
    target(&s->out, e, e->out, tile, tile->values);
    s->result = e->micro_panels != NULL ? panel_part(e, tile) : tile->values;
    s->tile_row = e->kernel->micro.nr;
    s->sums = adds_sums(e) ? sums_of(e, tile) : NULL;
    s->ahead = e->ahead;
    s->panel = 0;
    s->propagate = e->propagate;
    s->times = e->times;
    s->by_rows = false;
    t->is_elementwise = true;
    if (eg_cpu_epilogue_packs_blocks(e)) {
        e->kernel->pack.prefetch_write(&t->block, 0, PACKED_ROWS);
        take_steps(t, elementwise_to_blocks, HALF / PACKED_ROWS * STEPS_A_SLICE);
    } else {
        take_steps(t, e->in_blocks ? elementwise_some : elementwise_all,
                   e->in_blocks ? (int)(EG_AMX_BLOCK / rows_a_step(e)) : 1);
    }
}

static void begin_grad_rows(eg_tile_epilogue *t, const eg_epilogue *e, const eg_tile *tile) {
    eg_grad_rows *g = &t->grad_rows;
    eg_rows grad;
    memory_rows(&grad, e->other, tile);
    bias_numbers((float *)t->bias, e, tile);
    *g = (eg_grad_rows){.tile = tile->values,
                        .bias = (const float *)t->bias,
                        .grad = grad.at,
                        .grad_step = grad.step,
                        .sums = e->sums != NULL ? sums_of(e, tile) : t->unwanted,
                        .propagate = e->propagate};
    take_steps(t, grad_rows, (EG_AMX_BLOCK + HALF) / e->kernel->epilogue.rows_a_step);
}

static void begin_act_rows(eg_tile_epilogue *t, const eg_epilogue *e, const eg_tile *tile) {
    eg_act_rows *a = &t->act_rows;
    eg_rows out, pre = {.at = NULL};
    memory_rows(&out, e->out, tile);
    if (e->pre != NULL) memory_rows(&pre, e->pre, tile);
    bias_numbers((float *)t->bias, e, tile);
    *a = (eg_act_rows){.tile = tile->values,
                       .bias = (const float *)t->bias,
                       .pre = pre.at,
                       .out = out.at,
                       .pre_step = pre.step,
                       .out_step = out.step,
                       .non_temporal = e->non_temporal};
    take_steps(t, act_rows, EG_AMX_BLOCK / e->kernel->epilogue.rows_a_step);
}

/* A column-major result is stored as its row-major transpose, when all its sums are there. */
static void store_turned(const eg_tile_epilogue *t) {
    const eg_epilogue *e = t->of;
    const eg_tile *tile = &t->tile;
    const int64_t step = e->out->col_stride * (int64_t)eg_size_of(e->out->dtype);
    char *to = eg_cpu_at(e->out, tile->item, tile->row, tile->col);
    if (e->kernel->epilogue.store_turned != NULL && e->out->dtype == e->kernel->dtype) {
        e->kernel->epilogue.store_turned(tile->values, to, step, tile->rows, tile->cols, e->non_temporal);
        return;
    }
    e->kernel->pack.load(tile->spare, tile->values, EG_F32, 1, EG_AMX_BLOCK, tile->cols, tile->rows,
                         tile->cols);
    e->kernel->epilogue.store_rows((const float *)tile->spare, to, step, e->out->dtype, tile->cols,
                                   tile->rows, e->non_temporal);
}

/* In L1, before the first step, when the matrix unit has stored the tile: without a scale no step takes
 * longer.
 */
static void scale_tile(eg_tile_epilogue *t) {
    const eg_epilogue *e = t->of;
    const eg_tile *tile = &t->tile;
    const int64_t count = tile->rows * e->kernel->micro.nr;
    t->waits_for_scale = false;
    if (e->kernel->compute == EG_F64) {
        double *values = tile->values;
        for (int64_t i = 0; i < count; i++) values[i] *= e->scale;
    } else {
        float *values = tile->values;
        for (int64_t i = 0; i < count; i++) values[i] *= (float)e->scale;
    }
}

void eg_cpu_epilogue_begin(eg_tile_epilogue *t, const eg_epilogue *e, const eg_tile *tile) {
    t->of = e;
    t->waits_for_scale = e->scale != 1;
    t->tile = *tile;
    t->is_elementwise = t->is_turned = false;
    if (eg_cpu_epilogue_packs_blocks(e))
        t->block = eg_amx_block_at(&e->blocks, &e->grid, tile->item, tile->row / EG_AMX_BLOCK,
                                   tile->col / EG_AMX_BLOCK);
    if (e->plain_store && e->in_blocks && in_place(e, e->out, tile)) {
        memory_rows(&t->elementwise.out, e->out, tile);
        take_steps(t, store_rows_step, EG_AMX_BLOCK / STORED_ROWS);
    } else if (e->plain_store && e->in_blocks && e->out->row_stride == 1) {
        t->is_turned = true;
        take_steps(t, NULL, 0);
    } else if (e->grad_rows != NULL && tile->rows == EG_AMX_BLOCK && tile->cols == EG_AMX_BLOCK) {
        begin_grad_rows(t, e, tile);
    } else if (e->act_rows != NULL && tile->rows == EG_AMX_BLOCK && tile->cols == EG_AMX_BLOCK) {
        begin_act_rows(t, e, tile);
    } else {
        begin_elementwise(t, e, tile);
    }
}

void eg_cpu_epilogue_step(void *tile_epilogue) {
    eg_tile_epilogue *t = tile_epilogue;
    if (t->of != NULL && t->waits_for_scale) scale_tile(t);
    if (t->step < t->steps) t->take(t), t->step++;
}

void eg_cpu_epilogue_finish(eg_tile_epilogue *t) {
    const eg_epilogue *e = t->of;
    if (e == NULL) return;
    if (t->waits_for_scale) scale_tile(t);
    for (; t->step < t->steps; t->step++) t->take(t);
    if (t->is_turned) store_turned(t);
    t->of = NULL;
    if (!t->is_elementwise) return;
    deliver(e, e->pre, &t->tile, t->tile.spare);
    deliver(e, e->out, &t->tile, t->tile.values);
    if (e->sums != NULL && !adds_sums(e))
        e->kernel->epilogue.add_rows(sums_of(e, &t->tile), t->elementwise.result, e->kernel->micro.nr,
                                     t->tile.rows, t->tile.cols);
}

static bool is_read(const eg_operand *x) { return x != NULL && x != &eg_cpu_product && x->col_stride == 1; }

const eg_operand *eg_cpu_epilogue_reads(const eg_epilogue *e) {
    return is_read(e->other) ? e->other : is_read(e->x) ? e->x : NULL;
}

const eg_operand *eg_cpu_epilogue_stores(const eg_epilogue *e) {
    return e->pre != NULL && e->pre->col_stride == 1 && !e->non_temporal ? e->pre : NULL;
}

static void prefetch(const eg_operand *x, const eg_tile *tile) {
    if (!is_read(x)) return;
    const int64_t bytes = tile->cols * (int64_t)eg_size_of(x->dtype);
    for (int64_t i = 0; i < tile->rows; i++) {
        const char *row = eg_cpu_at(x, tile->item, tile->row + i, tile->col);
        for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
    }
}

static void touch(const eg_operand *x, const eg_tile *tile) {
    if (is_read(x)) eg_cpu_touch(x, tile->item, tile->row, tile->rows, tile->col, tile->cols);
}

bool eg_cpu_epilogue_fetches(const eg_epilogue *e, int64_t cols) {
    const eg_tile tile = {.cols = cols};
    return e->is_grad && e->other != NULL && in_place(e, e->other, &tile) && e->out == NULL &&
           (e->x == NULL || (in_place(e, e->x, &tile) && e->x->dtype == e->other->dtype));
}

bool eg_cpu_epilogue_only_sums(const eg_epilogue *e) {
    return e->is_grad && e->sums != NULL && is_read(e->other) && e->x == NULL && e->out == NULL &&
           e->scale == 1 && e->micro_panels == NULL && !eg_cpu_epilogue_packs_blocks(e);
}

void eg_cpu_epilogue_sum(const eg_epilogue *e, const eg_tile *tile) {
    eg_rows rows;
    memory_rows(&rows, e->other, tile);
    e->kernel->epilogue.sum_rows(sums_of(e, tile), rows.at, rows.dtype, rows.step, tile->rows, tile->cols);
}

/* Blocks of bf16 in one layout are rows as they are. */
static bool fits_rows(const eg_epilogue *e, int64_t cols) {
    if (!e->in_blocks) return cols > e->kernel->micro.nr;
    return e->kernel->pack.bf16_terms == 1 && e->other->dtype == EG_BF16 && e->blocks.right == NULL;
}

bool eg_cpu_epilogue_goes_by_rows(const eg_epilogue *e, int64_t cols) {
    if (!e->is_grad || !is_read(e->other) || e->bias != NULL || e->scale != 1) return false;
    if (e->out != NULL && !e->fills_rows) return false;
    return (e->x == NULL || (is_read(e->x) && e->x->dtype == e->other->dtype)) && fits_rows(e, cols);
}

/* Zeros beyond the columns and rows of micro-panels. */
static void pad_panels(const eg_epilogue *e, const eg_tile *tile, char *panels, int64_t step) {
    const int64_t nr = e->kernel->micro.nr, mr = e->kernel->micro.mr, last = eg_div(tile->cols, nr);
    const int64_t rows = eg_ceil_div(tile->rows, mr) * mr;
    if (last * nr < tile->cols) memset(panels + last * step, 0, size_of(e, rows * nr));
    for (int64_t i = 0; rows > tile->rows && i < last; i++)
        memset(panels + i * step + size_of(e, tile->rows * nr), 0, size_of(e, (rows - tile->rows) * nr));
}

static void rows_to_panels(const eg_epilogue *e, const eg_tile *tile, eg_elementwise *s) {
    const int64_t nr = e->kernel->micro.nr;
    s->panel = (int64_t)size_of(e, eg_cpu_panels(e->kernel, e->rows, 0).stride * nr);
    if (e->micro_panels != NULL) {
        s->result = eg_cpu_epilogue_panel(e, tile);
        pad_panels(e, tile, s->result, s->panel);
    }
    s->end = tile->rows;
    e->elementwise(s);
}

static void rows_to_buffer(const eg_epilogue *e, const eg_tile *tile, eg_elementwise *s) {
    s->result = eg_cpu_at(e->out, tile->item, tile->row, tile->col);
    s->tile_row = e->out->row_stride;
    s->panel = (int64_t)size_of(e, s->tile_row); /* there is one */
    s->end = tile->rows;
    e->elementwise(s);
}

static void rows_to_blocks(const eg_epilogue *e, const eg_tile *tile, eg_elementwise *s) {
    const int64_t blocks = eg_ceil_div(tile->cols, EG_AMX_BLOCK), line = EG_AMX_TERM_BYTES / EG_AMX_BLOCK;
    s->panel = (int64_t)e->grid.block_bytes;
    for (int64_t row = 0; row < tile->rows; row += EG_AMX_BLOCK) {
        s->end = eg_least(EG_AMX_BLOCK, tile->rows - row);
        char *to = eg_amx_block_at(&e->blocks, &e->grid, tile->item, (tile->row + row) / EG_AMX_BLOCK,
                                   tile->col / EG_AMX_BLOCK)
                       .left;
        s->result = to;
        e->elementwise(s);
        s->other.at += EG_AMX_BLOCK * s->other.step;
        if (s->x.at != NULL) s->x.at += EG_AMX_BLOCK * s->x.step;
        for (int64_t i = 0; to != NULL && s->end < EG_AMX_BLOCK && i < blocks; i++)
            memset(to + i * s->panel + s->end * line, 0, (size_t)((EG_AMX_BLOCK - s->end) * line));
    }
}

void eg_cpu_epilogue_of_rows(const eg_epilogue *e, const eg_tile *tile, const eg_rows *x) {
    eg_elementwise s = {.cols = tile->cols, .tile_row = e->kernel->micro.nr, .propagate = e->propagate};
    memory_rows(&s.other, e->other, tile);
    s.x = *x;
    if (e->sums != NULL) s.sums = sums_of(e, tile);
    (e->in_blocks ? rows_to_blocks : e->fills_rows ? rows_to_buffer : rows_to_panels)(e, tile, &s);
}

void eg_cpu_epilogue_by_rows(const eg_epilogue *e, const eg_tile *tile) {
    eg_rows x = {.at = NULL};
    if (e->x != NULL) memory_rows(&x, e->x, tile);
    eg_cpu_epilogue_of_rows(e, tile, &x);
}

bool eg_cpu_epilogue_takes_rows(const eg_epilogue *e, int64_t cols) {
    const bool goes_there = e->out != NULL ? e->fills_rows : e->micro_panels != NULL;
    return e->is_grad && e->x == &eg_cpu_product && is_read(e->other) &&
           e->other->dtype == e->kernel->compute && e->scale == 1 && goes_there && fits_rows(e, cols);
}

void eg_cpu_epilogue_touch(const eg_epilogue *e, const eg_tile *tile) {
    touch(e->x, tile);
    touch(e->other, tile);
}

void eg_cpu_epilogue_prefetch(const eg_epilogue *e, const eg_tile *tile, const eg_operand *done) {
    prefetch(e->x, tile);
    if (e->other != done) prefetch(e->other, tile);
}
