#include "epilogue.h"

#include <string.h>

/* ---- Preparing ---------------------------------------------------------------------------------- */

/* Stands for the operand that is the tile itself. */
static const eg_operand product;

static const eg_operand *wanted(const eg_problem *p, eg_operand_id id) {
    return eg_wants(p, id) ? &p->operands[id] : NULL;
}

/* y = act(product + bias) + residual */
static void prepare_forward(eg_ending *e, const eg_problem *p) {
    e->sweeper = e->kernel->act[p->activation];
    e->x = &product;
    e->bias = wanted(p, EG_OP_BIAS);
    e->other = wanted(p, EG_OP_RESIDUAL);
    e->pre = wanted(p, EG_OP_PRE);
    e->out = &p->operands[EG_OP_Y];
}

static void as_it_is(const eg_sweep *sweep) { (void)sweep; }

/* Of a result larger than this little would be left in L2 until it is read. */
enum { KEPT_A_THREAD = 1 << 20 }; /* bytes */

static bool is_whole_lines(const eg_problem *p, const eg_operand *x) {
    const int64_t size = (int64_t)eg_size_of(x->dtype);
    const uintptr_t distances = (uintptr_t)((x->row_stride | x->batch_stride) * size);
    return x->col_stride == 1 && ((eg_begin(p, x->data, x->offset) | distances) & 63) == 0;
}

/* A line that is stored past the caches is not read first, and throws nothing out of them. */
static bool goes_past_caches(const eg_ending *e, const eg_step *step, const eg_operand *out) {
    const eg_problem *p = e->run->problem;
    const eg_cpu_kernel *kernel = e->kernel;
    const int64_t depth = step->product == EG_PRODUCT_D_B ? p->m : p->n;
    const int64_t items = out->batch_stride != 0 ? p->batch : 1;
    const int64_t bytes = items * out->rows * out->cols * (int64_t)eg_size_of(out->dtype);
    const bool by_lines = kernel->terms > 0 || out->dtype == kernel->compute;
    return depth < kernel->streams && by_lines && eg_div(bytes, step->threads) > KEPT_A_THREAD &&
           is_whole_lines(p, out);
}

/* out = product, or out + product. A product that is the result as it is has only to be stored. */
static void prepare_store(eg_ending *e, const eg_step *step, const eg_operand *out, bool accumulate) {
    e->as_it_is = !accumulate;
    e->past = e->as_it_is && goes_past_caches(e, step, out);
    e->sweeper = e->as_it_is && e->kernel->terms == 0 ? as_it_is : e->kernel->act[EG_ACT_NONE];
    e->x = &product;
    e->other = accumulate ? out : NULL;
    e->out = out;
}

/* other * act'(x); without an activation act' is 1 whatever x. */
static void prepare_grad(eg_ending *e, eg_activation activation, eg_source source, const eg_operand *x,
                         const eg_operand *other) {
    e->sweeper = (source == EG_SOURCE_Y ? e->kernel->act_grad_y : e->kernel->act_grad)[activation];
    e->x = activation != EG_ACT_NONE ? x : NULL;
    e->other = other;
}

static void prepare_sums(eg_ending *e, bool wanted, eg_buffer_id id, int64_t cols) {
    e->width = eg_ceil_div(cols, e->kernel->nr) * e->kernel->nr;
    e->sums = wanted ? eg_cpu_region(e->run, id) : NULL;
}

static bool keeps_cells(const eg_ending *e) { return e->cells.across != NULL || e->cells.down != NULL; }

/* grad_pre, of a product or of what was saved. */
static void prepare_grad_pre(eg_ending *e, const eg_problem *p, const eg_operand *x) {
    prepare_grad(e, p->activation, p->source, x, &p->operands[EG_OP_GRAD]);
    e->bias = e->x == &product ? wanted(p, EG_OP_BIAS) : NULL;
    e->out = wanted(p, EG_OP_GRAD_PRE);
    prepare_sums(e, eg_wants(p, EG_OP_D_BIAS), EG_BUFFER_SUMS, p->n);
    char *kept = eg_cpu_region_or_null(e->run, EG_BUFFER_GRAD_PRE),
         *kept_t = eg_cpu_region_or_null(e->run, EG_BUFFER_GRAD_PRE_T);
    if (e->kernel->terms > 0) {
        e->grid = eg_cell_grid_of(e->kernel->terms, p->m, p->n);
        e->cells = (eg_cells){.across = kept, .down = kept_t};
        const bool plain = e->x == &product && e->out == NULL && e->other->col_stride == 1 && keeps_cells(e);
        e->grad_rows = plain ? e->kernel->grad_rows[p->activation] : NULL;
    } else {
        e->panels = kept;
    }
}

/* d_a = product * act'(layer below) */
static void prepare_chain(eg_ending *e, const eg_problem *p) {
    prepare_grad(e, p->below_activation, p->below_source, &p->operands[EG_OP_BELOW], &product);
    e->out = &p->operands[EG_OP_D_A];
    prepare_sums(e, eg_wants(p, EG_OP_D_BIAS_BELOW), EG_BUFFER_SUMS_BELOW, p->k);
}

static void prepare_product(eg_ending *e, const eg_problem *p, const eg_step *step) {
    const bool d_b = step->product == EG_PRODUCT_D_B;
    switch (step->epilogue) {
    case EG_EPILOGUE_FORWARD:
        prepare_forward(e, p);
        break;
    case EG_EPILOGUE_ACT_GRAD:
        prepare_grad_pre(e, p, &product);
        break;
    case EG_EPILOGUE_CHAIN:
        prepare_chain(e, p);
        break;
    case EG_EPILOGUE_STORE:
        prepare_store(e, step, &p->operands[d_b ? EG_OP_D_B : EG_OP_D_A], d_b && p->accumulate);
        break;
    }
}

eg_ending eg_cpu_ending(const eg_cpu_run *run, const eg_step *step) {
    const eg_problem *p = run->problem;
    eg_ending e = {.run = run, .kernel = step->kernel};
    if (step->kind == EG_STEP_ACT_GRAD) {
        prepare_grad_pre(&e, p, &p->operands[EG_OP_SAVED]);
    } else {
        prepare_product(&e, p, step);
    }
    e.leisurely = e.kernel->terms > 0;
    return e;
}

/* ---- What a sweep reads and writes -------------------------------------------------------------- */

static size_t size_of(const eg_ending *e, int64_t numbers) {
    return (size_t)numbers * eg_size_of(e->kernel->compute);
}

/* These fill a place field by field: a struct of three words that is returned is stored by words and copied
 * by longer loads, which wait for the stores. */
static void tile_rows(eg_rows *rows, const eg_ending *e, void *values, float scale) {
    rows->at = values;
    rows->step = (int64_t)size_of(e, e->kernel->nr);
    rows->dtype = e->kernel->compute;
    rows->scale = scale;
}

static void memory_rows(eg_rows *rows, const eg_operand *x, const eg_tile *tile) {
    rows->at = eg_cpu_at(x, tile->item, tile->row, tile->col);
    rows->step = x->row_stride * (int64_t)eg_size_of(x->dtype);
    rows->dtype = x->dtype;
    rows->scale = 1;
}

/* Whether a sweep can go over the operand where it is. Without masks it takes whole vectors of the compute
 * type alone. */
static bool in_place(const eg_ending *e, const eg_operand *x, const eg_tile *tile) {
    const eg_cpu_kernel *kernel = e->kernel;
    const bool masks = (kernel->needs & EG_CPU_AVX512) != 0;
    return x->col_stride == 1 && (masks || (x->dtype == kernel->compute && tile->cols == kernel->nr));
}

/* An operand that is read: there, or in `spare`. */
static void source(eg_rows *rows, const eg_ending *e, const eg_operand *x, const eg_tile *tile, void *spare) {
    rows->at = NULL;
    if (x == NULL) return;
    if (x == &product) {
        tile_rows(rows, e, tile->values, e->kernel->unscale);
    } else if (in_place(e, x, tile)) {
        memory_rows(rows, x, tile);
    } else {
        e->kernel->load(spare, eg_cpu_at(x, tile->item, tile->row, tile->col), x->dtype, x->row_stride,
                        x->col_stride, tile->rows, tile->cols, tile->rows);
        tile_rows(rows, e, spare, 1);
    }
}

/* An operand that is written: likewise, and then `deliver` takes it where it belongs. */
static void target(eg_rows *rows, const eg_ending *e, const eg_operand *x, const eg_tile *tile, void *spare) {
    rows->at = NULL;
    if (x == NULL) return;
    if (in_place(e, x, tile)) {
        memory_rows(rows, x, tile);
    } else {
        tile_rows(rows, e, spare, 1);
    }
}

static void deliver(const eg_ending *e, const eg_operand *x, const eg_tile *tile, const void *spare) {
    const bool is_there = x != NULL && in_place(e, x, tile) && e->sweeper != as_it_is;
    if (x == NULL || is_there) return;
    e->kernel->store(spare, eg_cpu_at(x, tile->item, tile->row, tile->col), x->dtype, x->row_stride,
                     x->col_stride, tile->rows, tile->cols);
}

/* One row that is added to all. */
static void bias_row(eg_rows *rows, const eg_ending *e, const eg_tile *tile, void *spare) {
    const eg_tile one = {.col = tile->col, .rows = 1, .cols = tile->cols};
    source(rows, e, e->bias, &one, spare);
}

/* The same as f32; none is -0, which leaves even a zero's sign as it is. */
static void bias_numbers(float *to, const eg_ending *e, const eg_tile *tile) {
    const eg_operand *bias = e->bias;
    for (int j = 0; bias == NULL && j < EG_CELL; j++) to[j] = -0.0F;
    if (bias != NULL)
        e->kernel->load(to, eg_cpu_at(bias, 0, 0, tile->col), bias->dtype, bias->row_stride, bias->col_stride,
                        1, tile->cols, 1);
}

char *eg_cpu_ending_panel(const eg_ending *e, const eg_tile *tile) {
    const eg_cpu_kernel *kernel = e->kernel;
    const int64_t rows = eg_cpu_panels(kernel, e->run->problem->m, 0).apart;
    return e->panels + size_of(e, (tile->item * e->width + tile->col) * rows + tile->row * kernel->nr);
}

/* The tile's part of a panel of grad_pre, with zeros where the sweep will not come. */
static char *panel_part(const eg_ending *e, const eg_tile *tile) {
    const eg_cpu_kernel *kernel = e->kernel;
    char *part = eg_cpu_ending_panel(e, tile);
    if (tile->rows < kernel->mr || tile->cols < kernel->nr)
        memset(part, 0, size_of(e, kernel->mr * kernel->nr));
    return part;
}

/* ---- A tile ------------------------------------------------------------------------------------- */

/* The column sums of a tile's chunk of rows, whose tiles come in order and on one thread. */
static void *sums_of(const eg_ending *e, const eg_tile *tile) {
    const int64_t chunk = tile->item * eg_cpu_chunks(e->run->problem->m) + tile->row / EG_CPU_CHUNK;
    char *sums = e->sums + size_of(e, chunk * e->width + tile->col);
    if (tile->row % EG_CPU_CHUNK == 0) memset(sums, 0, size_of(e, e->kernel->nr));
    return sums;
}

/* Of a step, between tile multiplications, as little as is worth a call. Sweeps take longer to start, and are
 * for what is seldom: edges, other layouts, what else is read or written. */
enum { STORED_ROWS = 4, KEPT_ROWS = 8, HALF = EG_CELL / 2, STEPS_A_SLICE = 3 };

static void split_rows(eg_finish *f, void *tile, int64_t row, int64_t rows) {
    eg_rows from;
    tile_rows(&from, f->ending, tile, 1);
    if (!f->ending->kernel->split(&from, row, rows, f->tile.rows, f->tile.cols, &f->cells))
        eg_cpu_refuse(f->ending->run);
}

static void sweep_rows(eg_finish *f, int64_t row, int64_t rows) {
    f->sweep.row = row, f->sweep.end = eg_least(row + rows, f->tile.rows);
    f->ending->sweeper(&f->sweep);
}

/* All at once. */
static void sweep_all(eg_finish *f) { f->ending->sweeper(&f->sweep); }

static void sweep_some(eg_finish *f) { sweep_rows(f, f->step * STORED_ROWS, STORED_ROWS); }

/* Some rows of one half, of the other, and these to cells. */
static void sweep_to_cells(eg_finish *f) {
    const int slice = f->step / STEPS_A_SLICE * KEPT_ROWS, part = f->step % STEPS_A_SLICE;
    if (part == 0 && slice + KEPT_ROWS < HALF)
        f->ending->kernel->own(&f->cells, slice + KEPT_ROWS, KEPT_ROWS);
    if (part < 2) {
        sweep_rows(f, slice + part * HALF, KEPT_ROWS);
    } else {
        split_rows(f, f->sweep.result, slice, KEPT_ROWS);
    }
}

static void store_some(eg_finish *f) {
    const eg_ending *e = f->ending;
    const eg_rows *out = &f->sweep.out;
    const int64_t row = f->step * STORED_ROWS;
    if (row >= f->tile.rows) return;
    e->kernel->store_rows((const float *)f->tile.values + row * EG_CELL, out->at + row * out->step, out->step,
                          out->dtype, eg_least(STORED_ROWS, f->tile.rows - row), f->tile.cols, e->past);
}

/* Some rows after the other, then they and those 16 below to cells. */
static void grad_rows(eg_finish *f) {
    const eg_cpu_kernel *kernel = f->ending->kernel;
    const int64_t rows = kernel->row_step, row = f->step * rows;
    if (row >= EG_CELL) {
        split_rows(f, f->grad_rows.tile, row - EG_CELL, rows);
        return;
    }
    if (row < HALF) kernel->own(&f->cells, row, rows);
    f->ending->grad_rows(&f->grad_rows, row);
}

static void take_steps(eg_finish *f, void (*take)(eg_finish *finish), int steps) {
    f->take = take, f->step = 0, f->steps = steps;
}

/* A sweep is prepared field by field: zeros for the whole first would take longer than the rest. */
static void begin_sweeps(eg_finish *f, const eg_ending *e, const eg_tile *tile) {
    char *spare = tile->spare, *other_spare = spare + size_of(e, e->kernel->mr * e->kernel->nr);
    eg_sweep *s = &f->sweep;
    s->row = 0, s->end = tile->rows, s->cols = tile->cols;
    source(&s->x, e, e->x, tile, spare); /* and where `pre` is wanted, x is the product */
    bias_row(&s->bias, e, tile, f->bias);
    source(&s->other, e, e->other, tile, other_spare);
    target(&s->pre, e, e->pre, tile, spare);
    target(&s->out, e, e->out, tile, tile->values);
    s->result = e->panels != NULL ? panel_part(e, tile) : tile->values;
    s->tile_row = e->kernel->nr;
    s->propagate = e->run->problem->propagate;
    f->ends_by_sweeps = true;
    if (keeps_cells(e)) {
        e->kernel->own(&f->cells, 0, KEPT_ROWS);
        take_steps(f, sweep_to_cells, HALF / KEPT_ROWS * STEPS_A_SLICE);
    } else {
        take_steps(f, e->leisurely ? sweep_some : sweep_all, e->leisurely ? EG_CELL / STORED_ROWS : 1);
    }
}

static bool is_whole_cell(const eg_tile *tile) { return tile->rows == EG_CELL && tile->cols == EG_CELL; }

static void begin_grad_rows(eg_finish *f, const eg_ending *e, const eg_tile *tile) {
    eg_grad_rows *g = &f->grad_rows;
    eg_rows grad;
    memory_rows(&grad, e->other, tile);
    bias_numbers((float *)f->bias, e, tile);
    *g = (eg_grad_rows){.tile = tile->values,
                        .bias = (const float *)f->bias,
                        .grad = grad.at,
                        .grad_step = grad.step,
                        .sums = e->sums != NULL ? sums_of(e, tile) : f->unwanted,
                        .propagate = e->run->problem->propagate};
    take_steps(f, grad_rows, (EG_CELL + HALF) / e->kernel->row_step);
}

void eg_cpu_finish_begin(eg_finish *f, const eg_ending *e, const eg_tile *tile) {
    f->ending = e;
    f->tile = *tile;
    f->ends_by_sweeps = false;
    if (keeps_cells(e))
        f->cells = eg_cells_at(&e->cells, &e->grid, tile->item, tile->row / EG_CELL, tile->col / EG_CELL);
    if (e->as_it_is && e->leisurely && in_place(e, e->out, tile)) {
        memory_rows(&f->sweep.out, e->out, tile);
        take_steps(f, store_some, EG_CELL / STORED_ROWS);
    } else if (e->grad_rows != NULL && is_whole_cell(tile)) {
        begin_grad_rows(f, e, tile);
    } else {
        begin_sweeps(f, e, tile);
    }
}

static void finish_step(eg_finish *f) {
    f->take(f);
    f->step++;
}

void eg_cpu_finish_some(void *finish) {
    eg_finish *f = finish;
    if (f->step < f->steps) finish_step(f);
}

void eg_cpu_finish_rest(eg_finish *f) {
    const eg_ending *e = f->ending;
    if (e == NULL) return;
    while (f->step < f->steps) finish_step(f);
    f->ending = NULL;
    if (!f->ends_by_sweeps) return;
    deliver(e, e->pre, &f->tile, f->tile.spare);
    deliver(e, e->out, &f->tile, f->tile.values);
    if (e->sums != NULL)
        e->kernel->add_rows(sums_of(e, &f->tile), f->sweep.result, e->kernel->nr, f->tile.rows, f->tile.cols);
}

static bool is_read(const eg_operand *x) { return x != NULL && x != &product && x->col_stride == 1; }

const eg_operand *eg_cpu_ending_reads(const eg_ending *e) {
    return is_read(e->other) ? e->other : is_read(e->x) ? e->x : NULL;
}

static void prefetch(const eg_operand *x, const eg_tile *tile) {
    if (!is_read(x)) return;
    const int64_t bytes = tile->cols * (int64_t)eg_size_of(x->dtype);
    for (int64_t i = 0; i < tile->rows; i++) {
        const char *row = eg_cpu_at(x, tile->item, tile->row + i, tile->col);
        for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
    }
}

void eg_cpu_ending_prefetch(const eg_ending *e, const eg_tile *tile, const eg_operand *asked) {
    prefetch(e->x, tile);
    if (e->other != asked) prefetch(e->other, tile);
}
