#include "epilogue.h"

#include <string.h>

static size_t tile_bytes(const eg_cpu_kernel *kernel) {
    return (size_t)(kernel->mr * kernel->nr) * eg_dtype_size(kernel->compute);
}

static void load(const eg_cpu_kernel *kernel, const eg_operand *x, const eg_tile *tile, void *to) {
    kernel->load(to, eg_cpu_at(x, tile->item, tile->row, tile->col), x->dtype, x->row_stride, x->col_stride,
                 tile->rows, tile->cols, kernel->mr);
}

static void store(const eg_cpu_kernel *kernel, const eg_operand *x, const eg_tile *tile, const void *from,
                  bool accumulate) {
    kernel->store(from, eg_cpu_at(x, tile->item, tile->row, tile->col), x->dtype, x->row_stride,
                  x->col_stride, tile->rows, tile->cols, accumulate);
}

static void add_bias(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile) {
    const eg_operand *bias = &run->problem->operands[EG_OP_BIAS];
    if (bias->data == NULL) return;
    kernel->load(tile->spare, eg_cpu_at(bias, 0, 0, tile->col), bias->dtype, 1, 1, 1, tile->cols, 1);
    kernel->add_row(tile->values, tile->spare, tile->rows, tile->cols);
}

/* Adds the rows of a tile to the column sums of their chunk. Tiles of a chunk come in order, on one thread.
 */
static void add_sums(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile, eg_buffer_id id,
                     int64_t cols, const void *values) {
    const int64_t width = (cols + kernel->nr - 1) / kernel->nr * kernel->nr;
    const int64_t chunk = tile->item * eg_cpu_chunks(run->problem->m) + tile->row / EG_CPU_CHUNK;
    char *sums =
        (char *)eg_cpu_region(run, id) + (size_t)(chunk * width + tile->col) * eg_dtype_size(kernel->compute);
    if (tile->row % EG_CPU_CHUNK == 0) memset(sums, 0, (size_t)kernel->nr * eg_dtype_size(kernel->compute));
    kernel->add_sums(sums, values, tile->rows, tile->cols);
}

static void forward(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile) {
    const eg_problem *p = run->problem;
    add_bias(run, kernel, tile);
    if (eg_wants(p, EG_OP_PRE)) store(kernel, &p->operands[EG_OP_PRE], tile, tile->values, false);
    kernel->act[p->activation](tile->values, tile->rows, tile->cols);
    if (eg_wants(p, EG_OP_RESIDUAL)) {
        load(kernel, &p->operands[EG_OP_RESIDUAL], tile, tile->spare);
        kernel->add_tile(tile->values, tile->spare, tile->rows, tile->cols);
    }
    store(kernel, &p->operands[EG_OP_Y], tile, tile->values, false);
}

/* Where the tile's numbers of grad_pre go; no layout is wanted where no product reads it as cells. */
static eg_cells kept_cells(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile) {
    const eg_problem *p = run->problem;
    const eg_cell_grid grid = eg_cell_grid_of(kernel->terms, p->m, p->n);
    const eg_cells first = {.across = eg_cpu_region_or_null(run, EG_BUFFER_GRAD_PRE),
                            .down = eg_cpu_region_or_null(run, EG_BUFFER_GRAD_PRE_T)};
    return eg_cells_at(&first, &grid, tile->item, tile->row / EG_CELL, tile->col / EG_CELL);
}

/* A tile of grad_pre, in the form that the products to come read. */
static void keep(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile, const char *grad) {
    if (kernel->terms > 0) {
        const eg_cells to = kept_cells(run, kernel, tile);
        if ((to.across != NULL || to.down != NULL) && !kernel->split(grad, tile->rows, tile->cols, &to))
            eg_cpu_refuse(run);
        return;
    }
    char *to = eg_cpu_region_or_null(run, EG_BUFFER_GRAD_PRE);
    if (to == NULL) return;
    const eg_panels panels = eg_cpu_panels(kernel, run->problem->m, run->problem->n);
    const int64_t panel = tile->item * panels.panels + tile->col / kernel->nr;
    const int64_t element = (panel * panels.rows + tile->row) * kernel->nr;
    memcpy(to + (size_t)element * eg_dtype_size(kernel->compute), grad, tile_bytes(kernel));
}

void eg_cpu_grad_tile(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile) {
    const eg_problem *p = run->problem;
    char *grad = tile->spare;
    load(kernel, &p->operands[EG_OP_GRAD], tile, grad);
    if (p->activation != EG_ACT_NONE) { /* whose derivative is 1 for every pre */
        const bool of_y = p->source == EG_SOURCE_Y;
        (of_y ? kernel->act_grad_y : kernel->act_grad)[p->activation](grad, tile->values, tile->rows,
                                                                      tile->cols, p->propagate);
    }
    if (eg_wants(p, EG_OP_D_BIAS)) add_sums(run, kernel, tile, EG_BUFFER_SUMS, p->n, grad);
    if (eg_wants(p, EG_OP_GRAD_PRE)) store(kernel, &p->operands[EG_OP_GRAD_PRE], tile, grad, false);
    keep(run, kernel, tile, grad);
}

static void chain(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile) {
    const eg_problem *p = run->problem;
    if (p->below_activation != EG_ACT_NONE) {
        load(kernel, &p->operands[EG_OP_BELOW], tile, tile->spare);
        const bool of_y = p->below_source == EG_SOURCE_Y;
        (of_y ? kernel->act_grad_y : kernel->act_grad)[p->below_activation](
            tile->values, tile->spare, tile->rows, tile->cols, p->propagate);
    }
    if (eg_wants(p, EG_OP_D_BIAS_BELOW))
        add_sums(run, kernel, tile, EG_BUFFER_SUMS_BELOW, p->k, tile->values);
    store(kernel, &p->operands[EG_OP_D_A], tile, tile->values, false);
}

void eg_cpu_epilogue_prefetch(const eg_cpu_run *run, const eg_step *step, const eg_tile *tile) {
    static const eg_operand_id reads[] = {[EG_EPILOGUE_STORE] = EG_OP_D_B,
                                          [EG_EPILOGUE_FORWARD] = EG_OP_RESIDUAL,
                                          [EG_EPILOGUE_ACT_GRAD] = EG_OP_GRAD,
                                          [EG_EPILOGUE_CHAIN] = EG_OP_BELOW};
    const eg_operand *x = &run->problem->operands[reads[step->epilogue]];
    if (x->data == NULL || x->col_stride != 1) return;
    if (step->epilogue == EG_EPILOGUE_STORE && !(step->product == EG_PRODUCT_D_B && run->problem->accumulate))
        return;
    const int64_t bytes = tile->cols * (int64_t)eg_dtype_size(x->dtype);
    for (int64_t i = 0; i < tile->rows; i++) {
        const char *row = eg_cpu_at(x, tile->item, tile->row + i, tile->col);
        for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
    }
}

void eg_cpu_epilogue(const eg_cpu_run *run, const eg_step *step, const eg_tile *tile) {
    const eg_problem *p = run->problem;
    const eg_cpu_kernel *kernel = step->kernel;
    switch (step->epilogue) {
    case EG_EPILOGUE_FORWARD:
        forward(run, kernel, tile);
        break;
    case EG_EPILOGUE_ACT_GRAD:
        add_bias(run, kernel, tile);
        eg_cpu_grad_tile(run, kernel, tile);
        break;
    case EG_EPILOGUE_CHAIN:
        chain(run, kernel, tile);
        break;
    case EG_EPILOGUE_STORE: {
        const bool d_b = step->product == EG_PRODUCT_D_B;
        store(kernel, &p->operands[d_b ? EG_OP_D_B : EG_OP_D_A], tile, tile->values, d_b && p->accumulate);
        break;
    }
    }
}
