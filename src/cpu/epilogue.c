#include "epilogue.h"

#include <string.h>

static size_t tile_bytes(const eg_cpu_kernel *kernel) {
    return (size_t)(kernel->mr * kernel->nr) * eg_dtype_size(kernel->compute);
}

/* ---- What a sweep reads and writes -------------------------------------------------------------- */

static eg_rows tile_rows(const eg_cpu_kernel *kernel, void *values) {
    const int64_t step = kernel->nr * (int64_t)eg_dtype_size(kernel->compute);
    return (eg_rows){.at = values, .step = step, .dtype = kernel->compute, .scale = 1};
}

static eg_rows product_rows(const eg_cpu_kernel *kernel, const eg_tile *tile) {
    eg_rows rows = tile_rows(kernel, tile->values);
    rows.scale = kernel->unscale;
    return rows;
}

static bool in_place(const eg_operand *x) { return x->col_stride == 1; }

static eg_rows memory_rows(const eg_operand *x, const eg_tile *tile) {
    return (eg_rows){.at = eg_cpu_at(x, tile->item, tile->row, tile->col),
                     .step = x->row_stride * (int64_t)eg_dtype_size(x->dtype),
                     .dtype = x->dtype,
                     .scale = 1};
}

/* An operand that is read: where it is, or in `spare` if its columns are no neighbours there. */
static eg_rows source(const eg_cpu_kernel *kernel, const eg_operand *x, const eg_tile *tile, void *spare) {
    if (in_place(x)) return memory_rows(x, tile);
    kernel->load(spare, eg_cpu_at(x, tile->item, tile->row, tile->col), x->dtype, x->row_stride,
                 x->col_stride, tile->rows, tile->cols, tile->rows);
    return tile_rows(kernel, spare);
}

/* An operand that is written: likewise, and then `deliver` takes it where it belongs. */
static eg_rows target(const eg_cpu_kernel *kernel, const eg_operand *x, const eg_tile *tile, void *spare) {
    return in_place(x) ? memory_rows(x, tile) : tile_rows(kernel, spare);
}

static void deliver(const eg_cpu_kernel *kernel, const eg_operand *x, const eg_tile *tile,
                    const void *spare) {
    if (in_place(x)) return;
    kernel->store(spare, eg_cpu_at(x, tile->item, tile->row, tile->col), x->dtype, x->row_stride,
                  x->col_stride, tile->rows, tile->cols);
}

static eg_rows bias_row(const eg_cpu_run *run, const eg_tile *tile) {
    const eg_operand *bias = &run->problem->operands[EG_OP_BIAS];
    if (bias->data == NULL) return (eg_rows){0};
    return (eg_rows){.at = eg_cpu_at(bias, 0, 0, tile->col), .dtype = bias->dtype, .scale = 1};
}

/* Room for a tile beside the first. */
static void *second(const eg_cpu_kernel *kernel, const eg_tile *tile) {
    return tile->spare + tile_bytes(kernel);
}

/* ---- Forward, and products that are results ------------------------------------------------------ */

static void forward(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile) {
    const eg_problem *p = run->problem;
    const eg_operand *y = &p->operands[EG_OP_Y], *pre = &p->operands[EG_OP_PRE];
    const bool wants_pre = eg_wants(p, EG_OP_PRE);
    eg_sweep sweep = {.end = tile->rows,
                      .cols = tile->cols,
                      .x = product_rows(kernel, tile),
                      .bias = bias_row(run, tile),
                      .out = target(kernel, y, tile, tile->values)};
    if (wants_pre) sweep.pre = target(kernel, pre, tile, second(kernel, tile));
    if (eg_wants(p, EG_OP_RESIDUAL))
        sweep.other = source(kernel, &p->operands[EG_OP_RESIDUAL], tile, tile->spare);
    kernel->act[p->activation](&sweep);
    deliver(kernel, y, tile, tile->values);
    if (wants_pre) deliver(kernel, pre, tile, second(kernel, tile));
}

static void store(const eg_cpu_kernel *kernel, const eg_operand *out, const eg_tile *tile, bool accumulate) {
    eg_sweep sweep = {.end = tile->rows,
                      .cols = tile->cols,
                      .x = product_rows(kernel, tile),
                      .out = target(kernel, out, tile, tile->values)};
    if (accumulate) sweep.other = source(kernel, out, tile, tile->spare);
    kernel->act[EG_ACT_NONE](&sweep);
    deliver(kernel, out, tile, tile->values);
}

/* ---- Gradients ----------------------------------------------------------------------------------- */

/* Adds the rows of a tile to the column sums of their chunk. Tiles of a chunk come in order, on one thread.
 */
static void add_sums(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile, eg_buffer_id id,
                     int64_t cols, const void *values) {
    const int64_t width = (cols + kernel->nr - 1) / kernel->nr * kernel->nr;
    const int64_t chunk = tile->item * eg_cpu_chunks(run->problem->m) + tile->row / EG_CPU_CHUNK;
    char *sums =
        (char *)eg_cpu_region(run, id) + (size_t)(chunk * width + tile->col) * eg_dtype_size(kernel->compute);
    if (tile->row % EG_CPU_CHUNK == 0) memset(sums, 0, (size_t)kernel->nr * eg_dtype_size(kernel->compute));
    kernel->add_rows(sums, values, kernel->nr, tile->rows, tile->cols);
}

/* Where the tile's numbers of grad_pre go as cells; no layout is wanted where no product reads it. */
static eg_cells kept_cells(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile) {
    const eg_problem *p = run->problem;
    const eg_cell_grid grid = eg_cell_grid_of(kernel->terms, p->m, p->n);
    const eg_cells first = {.across = eg_cpu_region_or_null(run, EG_BUFFER_GRAD_PRE),
                            .down = eg_cpu_region_or_null(run, EG_BUFFER_GRAD_PRE_T)};
    return eg_cells_at(&first, &grid, tile->item, tile->row / EG_CELL, tile->col / EG_CELL);
}

/* And as a part of a panel; NULL likewise. */
static char *kept_panel(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile) {
    char *first = eg_cpu_region_or_null(run, EG_BUFFER_GRAD_PRE);
    if (first == NULL) return NULL;
    const eg_panels panels = eg_cpu_panels(kernel, run->problem->m, run->problem->n);
    const int64_t panel = tile->item * panels.panels + tile->col / kernel->nr;
    const int64_t element = (panel * panels.rows + tile->row) * kernel->nr;
    return first + (size_t)element * eg_dtype_size(kernel->compute);
}

typedef void (*sweeper)(const eg_sweep *sweep);

static sweeper grad_sweeper(const eg_cpu_kernel *kernel, eg_activation activation, eg_source source) {
    return (source == EG_SOURCE_Y ? kernel->act_grad_y : kernel->act_grad)[activation];
}

/* grad_pre straight into its panel. */
static void grad_to_panel(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile,
                          sweeper act_grad, eg_sweep *sweep) {
    char *panel = kept_panel(run, kernel, tile);
    if (panel != NULL) sweep->result = panel;
    if (panel != NULL && (tile->rows < kernel->mr || tile->cols < kernel->nr))
        memset(panel, 0, tile_bytes(kernel));
    act_grad(sweep);
}

/* grad_pre to its cells, a few rows of both halves at a time: the stores of one slice and the arithmetic of
 * the next overlap. */
static void grad_to_cells(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile,
                          sweeper act_grad, eg_sweep *sweep) {
    enum { HALF = EG_CELL / 2, SLICE = 4 };
    const eg_cells to = kept_cells(run, kernel, tile);
    const bool kept = to.across != NULL || to.down != NULL;
    bool fits = true;
    for (int64_t first = 0; first < HALF; first += SLICE) {
        for (int64_t row = first; row < EG_CELL; row += HALF) {
            sweep->row = row, sweep->end = eg_least(row + SLICE, tile->rows);
            act_grad(sweep);
        }
        if (kept) fits &= kernel->split(sweep->result, first, SLICE, tile->rows, tile->cols, &to);
    }
    if (!fits) eg_cpu_refuse(run);
}

/* grad_pre = grad * act'(x + bias); without an activation act' is 1 whatever x. */
static void grad_pre(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile, eg_rows x,
                     eg_rows bias) {
    const eg_problem *p = run->problem;
    const eg_operand *out = &p->operands[EG_OP_GRAD_PRE];
    const bool none = p->activation == EG_ACT_NONE, wanted = eg_wants(p, EG_OP_GRAD_PRE);
    eg_sweep sweep = {.end = tile->rows,
                      .cols = tile->cols,
                      .other = source(kernel, &p->operands[EG_OP_GRAD], tile, second(kernel, tile)),
                      .result = tile->values,
                      .propagate = p->propagate};
    if (!none) sweep.x = x, sweep.bias = bias;
    if (wanted && in_place(out)) sweep.out = memory_rows(out, tile);
    const sweeper act_grad = grad_sweeper(kernel, p->activation, p->source);
    (kernel->terms > 0 ? grad_to_cells : grad_to_panel)(run, kernel, tile, act_grad, &sweep);
    if (wanted) deliver(kernel, out, tile, sweep.result);
    if (eg_wants(p, EG_OP_D_BIAS)) add_sums(run, kernel, tile, EG_BUFFER_SUMS, p->n, sweep.result);
}

void eg_cpu_epilogue_saved(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile) {
    const eg_problem *p = run->problem;
    eg_rows saved = {0};
    if (p->activation != EG_ACT_NONE) saved = source(kernel, &p->operands[EG_OP_SAVED], tile, tile->spare);
    grad_pre(run, kernel, tile, saved, (eg_rows){0});
}

static void chain(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile) {
    const eg_problem *p = run->problem;
    const eg_operand *d_a = &p->operands[EG_OP_D_A];
    eg_sweep sweep = {.end = tile->rows,
                      .cols = tile->cols,
                      .other = product_rows(kernel, tile),
                      .result = tile->values,
                      .propagate = p->propagate};
    if (p->below_activation != EG_ACT_NONE)
        sweep.x = source(kernel, &p->operands[EG_OP_BELOW], tile, tile->spare);
    if (in_place(d_a)) sweep.out = memory_rows(d_a, tile);
    grad_sweeper(kernel, p->below_activation, p->below_source)(&sweep);
    deliver(kernel, d_a, tile, tile->values);
    if (eg_wants(p, EG_OP_D_BIAS_BELOW))
        add_sums(run, kernel, tile, EG_BUFFER_SUMS_BELOW, p->k, tile->values);
}

/* ---- By step ------------------------------------------------------------------------------------- */

static void prefetch(const eg_operand *x, const eg_tile *tile) {
    if (x->data == NULL || !in_place(x)) return;
    const int64_t bytes = tile->cols * (int64_t)eg_dtype_size(x->dtype);
    for (int64_t i = 0; i < tile->rows; i++) {
        const char *row = eg_cpu_at(x, tile->item, tile->row + i, tile->col);
        for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
    }
}

void eg_cpu_epilogue_prefetch(const eg_cpu_run *run, const eg_step *step, const eg_tile *tile) {
    static const eg_operand_id reads[] = {[EG_EPILOGUE_STORE] = EG_OP_D_B,
                                          [EG_EPILOGUE_FORWARD] = EG_OP_RESIDUAL,
                                          [EG_EPILOGUE_ACT_GRAD] = EG_OP_GRAD,
                                          [EG_EPILOGUE_CHAIN] = EG_OP_BELOW};
    if (step->epilogue == EG_EPILOGUE_STORE && !(step->product == EG_PRODUCT_D_B && run->problem->accumulate))
        return;
    prefetch(&run->problem->operands[reads[step->epilogue]], tile);
}

void eg_cpu_epilogue(const eg_cpu_run *run, const eg_step *step, const eg_tile *tile) {
    const eg_problem *p = run->problem;
    const eg_cpu_kernel *kernel = step->kernel;
    switch (step->epilogue) {
    case EG_EPILOGUE_FORWARD:
        forward(run, kernel, tile);
        break;
    case EG_EPILOGUE_ACT_GRAD:
        grad_pre(run, kernel, tile, product_rows(kernel, tile), bias_row(run, tile));
        break;
    case EG_EPILOGUE_CHAIN:
        chain(run, kernel, tile);
        break;
    case EG_EPILOGUE_STORE: {
        const bool d_b = step->product == EG_PRODUCT_D_B;
        store(kernel, &p->operands[d_b ? EG_OP_D_B : EG_OP_D_A], tile, d_b && p->accumulate);
        break;
    }
    }
}
