/* Packing: an operand of any layout and storage type, read once, into every form its products read. */
#include "cpu.h"

typedef struct pack_job {
    const eg_cpu_run *run;
    const eg_cpu_kernel *kernel;
    eg_operand x;
    char *panels, *panels_t; /* X as panels, and its transpose; NULL: not wanted */
    int64_t bands, segments;
    eg_cells cells; /* the first of each layout of X; NULL: not wanted */
    bool shared;    /* other cores read them */
} pack_job;

/* ---- Panels ------------------------------------------------------------------------------------- */

/* Rows whose columns are neighbours: no prefetcher follows from one to the next. */
static void ask_for_rows(const eg_operand *x, int64_t item, int64_t row, int64_t rows, int64_t col,
                         int64_t cols) {
    const int64_t bytes = cols * (int64_t)eg_size_of(x->dtype);
    for (int64_t i = row; i < row + rows; i++) {
        const char *from = eg_cpu_at(x, item, i, col);
        for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
    }
}

/* A block of `x` to its panels. */
static void to_panels(const eg_cpu_kernel *kernel, const eg_operand *x, int64_t item, int64_t row,
                      int64_t rows, int64_t col, int64_t cols, char *to) {
    const eg_panels panels = eg_cpu_panels(kernel, x->rows, x->cols);
    const int64_t padded = row + rows == x->rows ? panels.rows - row : rows;
    for (const int64_t end = col + cols; col < end; col += kernel->nr) {
        const int64_t panel = item * panels.panels + eg_div(col, kernel->nr);
        const int64_t element = (panel * panels.apart + row) * kernel->nr, next = col + kernel->nr;
        if (x->col_stride == 1 && next < end)
            ask_for_rows(x, item, row, rows, next, eg_least(kernel->nr, end - next));
        kernel->load(to + element * (int64_t)eg_size_of(kernel->compute), eg_cpu_at(x, item, row, col),
                     x->dtype, x->row_stride, x->col_stride, rows, eg_least(kernel->nr, end - col), padded);
    }
}

/* One work item is a panel's width of X's rows, some panels long: read from memory once, and if its transpose
 * is wanted too, for that from L2. */
enum { SEGMENT = 16 };

static void pack_block(void *arg, int64_t index, int thread) {
    (void)thread;
    const pack_job *job = arg;
    const eg_operand *x = &job->x;
    const int64_t nr = job->kernel->nr, item = index / (job->bands * job->segments);
    const int64_t row = index / job->segments % job->bands * nr, rows = eg_least(nr, x->rows - row);
    const int64_t col = index % job->segments * SEGMENT * nr, cols = eg_least(SEGMENT * nr, x->cols - col);
    if (job->panels != NULL) to_panels(job->kernel, x, item, row, rows, col, cols, job->panels);
    if (job->panels_t == NULL) return;
    const eg_operand xt = eg_cpu_transpose(*x);
    to_panels(job->kernel, &xt, item, col, cols, row, rows, job->panels_t);
}

/* A column-major X is taken as its row-major transpose. */
static void pack_panels(const eg_cpu_run *run, const eg_step *step, eg_operand x, int64_t items, char *to,
                        char *to_t) {
    if (x.rows == 0 || x.cols == 0) return;
    const bool turn = x.row_stride == 1 && x.col_stride != 1;
    pack_job job = {.run = run, .kernel = step->kernel, .x = turn ? eg_cpu_transpose(x) : x};
    job.panels = turn ? to_t : to;
    job.panels_t = turn ? to : to_t;
    job.bands = eg_ceil_div(job.x.rows, job.kernel->nr);
    job.segments = eg_ceil_div(job.x.cols, SEGMENT * (int64_t)job.kernel->nr);
    eg_cpu_parallel(run->plan->threads, step->threads, job.bands * job.segments * items, pack_block, &job);
}

/* ---- Cells -------------------------------------------------------------------------------------- */

/* A cell's numbers: where they are, or in a tile. */
static eg_rows rows_of(const eg_cpu_kernel *kernel, const eg_operand *x, int64_t item, int64_t row,
                       int64_t rows, int64_t col, int64_t cols, float *tile) {
    const char *at = eg_cpu_at(x, item, row, col);
    if (x->col_stride == 1 && x->dtype == kernel->dtype)
        return (eg_rows){(char *)at, x->row_stride * (int64_t)eg_size_of(x->dtype), x->dtype, 1};
    kernel->load(tile, at, x->dtype, x->row_stride, x->col_stride, rows, cols, rows);
    return (eg_rows){(char *)tile, EG_CELL * sizeof(float), EG_F32, 1};
}

/* One row of cells of X. */
static void pack_strip(void *arg, int64_t index, int thread) {
    (void)thread;
    const pack_job *job = arg;
    const eg_operand *x = &job->x;
    const eg_cpu_kernel *kernel = job->kernel;
    const eg_cell_grid grid = eg_cell_grid_of(kernel->terms, x->rows, x->cols);
    const int64_t item = index / grid.rows, strip = index % grid.rows, row = strip * EG_CELL;
    const int64_t rows = eg_least(EG_CELL, x->rows - row);
    _Alignas(64) float tile[EG_CELL * EG_CELL];
    bool fits = true;
    for (int64_t cell = 0; cell < grid.cols; cell++) {
        const int64_t col = cell * EG_CELL, cols = eg_least(EG_CELL, x->cols - col);
        const eg_rows from = rows_of(kernel, x, item, row, rows, col, cols, tile);
        const eg_cells to = eg_cells_at(&job->cells, &grid, item, strip, cell);
        if (job->shared && cell + 1 < grid.cols) {
            const eg_cells next = eg_cells_at(&job->cells, &grid, item, strip, cell + 1);
            kernel->own(&next, 0, EG_CELL / 2);
        }
        fits &= kernel->split(&from, 0, EG_CELL / 2, rows, cols, &to);
    }
    if (!fits) eg_cpu_refuse(job->run);
}

/* A column-major X is taken as its row-major transpose: what lies across in one lies down in the other. */
static void pack_cells(const eg_cpu_run *run, const eg_step *step, eg_operand x, int64_t items, eg_cells to) {
    if (x.rows == 0 || x.cols == 0) return;
    if (x.row_stride == 1 && x.col_stride != 1) {
        x = eg_cpu_transpose(x);
        to = (eg_cells){.across = to.down_t, .across_t = to.down, .down = to.across_t, .down_t = to.across};
    }
    pack_job job = {.run = run, .kernel = step->kernel, .x = x, .cells = to, .shared = step->threads > 1};
    eg_cpu_parallel(run->plan->threads, step->threads, (x.rows + EG_CELL - 1) / EG_CELL * items, pack_strip,
                    &job);
}

/* ---- For one block ------------------------------------------------------------------------------ */

static void cells_of_part(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_operand *x,
                          int64_t item, const eg_part *part, char *to) {
    const bool turn = x->row_stride == 1 && x->col_stride != 1;
    const eg_operand from = turn ? eg_cpu_transpose(*x) : *x;
    const int64_t row = turn ? part->col : part->term, row_end = row + (turn ? part->cols : part->depth);
    const int64_t col = turn ? part->term : part->col, col_end = col + (turn ? part->depth : part->cols);
    const eg_cell_grid grid = eg_cell_grid_of(kernel->terms, row_end - row, col_end - col);
    const eg_cells first = {.down = turn ? NULL : to, .across_t = turn ? to : NULL};
    _Alignas(64) float tile[EG_CELL * EG_CELL];
    bool fits = true;
    for (int64_t i = 0; i < grid.rows; i++) {
        const int64_t at = row + i * EG_CELL, rows = eg_least(EG_CELL, row_end - at);
        for (int64_t j = 0; j < grid.cols; j++) {
            const int64_t across = col + j * EG_CELL, cols = eg_least(EG_CELL, col_end - across);
            const eg_rows numbers = rows_of(kernel, &from, item, at, rows, across, cols, tile);
            const eg_cells cells = eg_cells_at(&first, &grid, 0, i, j);
            fits &= kernel->split(&numbers, 0, EG_CELL / 2, rows, cols, &cells);
        }
    }
    if (!fits) eg_cpu_refuse(run);
}

void eg_cpu_pack_part(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_operand *x, int64_t item,
                      const eg_part *part, char *to) {
    if (kernel->terms > 0) {
        cells_of_part(run, kernel, x, item, part, to);
    } else {
        kernel->load(to, eg_cpu_at(x, item, part->term, part->col), x->dtype, x->row_stride, x->col_stride,
                     part->depth, part->cols, part->depth);
    }
}

/* ---- The step ----------------------------------------------------------------------------------- */

void eg_cpu_pack(const eg_cpu_run *run, const eg_step *step) {
    const eg_problem *p = run->problem;
    const eg_cpu_kernel *kernel = step->kernel;
    const eg_operand x = p->operands[step->operand];
    if (x.data == NULL) return; /* only where it has no elements */
    const int64_t items = x.batch_stride == 0 && p->batch > 0 ? 1 : p->batch;
    const bool cells = kernel->terms > 0;
    if (step->operand == EG_OP_A) {
        char *a = eg_cpu_region_or_null(run, EG_BUFFER_A), *at = eg_cpu_region_or_null(run, EG_BUFFER_AT);
        if (cells) pack_cells(run, step, x, items, (eg_cells){.across = a, .down_t = at});
        if (!cells) pack_panels(run, step, x, items, a, NULL);
    } else {
        char *b = eg_cpu_region_or_null(run, EG_BUFFER_B), *bt = eg_cpu_region_or_null(run, EG_BUFFER_BT);
        if (cells) pack_cells(run, step, x, items, (eg_cells){.down = b, .across_t = bt});
        if (!cells) pack_panels(run, step, x, items, b, bt);
    }
}
