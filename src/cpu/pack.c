/* Packing: an operand of any layout and storage type, read once, into every form its products read. */
#include "cpu.h"

typedef struct pack_job {
    const eg_cpu_run *run;
    const eg_cpu_kernel *kernel;
    eg_operand x;
    char *to;       /* panels */
    eg_cells cells; /* the first of each layout of X; NULL: not wanted */
    int64_t band, bands;
} pack_job;

static eg_operand transpose(eg_operand x) {
    const eg_operand was = x;
    x.rows = was.cols;
    x.cols = was.rows;
    x.row_stride = was.col_stride;
    x.col_stride = was.row_stride;
    return x;
}

/* ---- Panels ------------------------------------------------------------------------------------- */

/* Rows packed by one work item, panel after panel: few enough that the pages of a row-major band are still
 * at hand when the next panel reads on in them; a column-major one is read down its columns, where longer
 * is better. */
enum { ROW_BAND = 64, COLUMN_BAND = 256 };

/* Rows [row, row + rows) of `x` to its panels. */
static void pack_rows(const eg_cpu_kernel *kernel, const eg_operand *x, int64_t item, int64_t row,
                      int64_t rows, char *to) {
    const eg_panels panels = eg_cpu_panels(kernel, x->rows, x->cols);
    const int64_t padded = row + rows == x->rows ? panels.rows - row : rows;
    for (int64_t panel = 0; panel < panels.panels; panel++) {
        const int64_t col = panel * kernel->nr, cols = eg_least(kernel->nr, x->cols - col);
        const int64_t element = ((item * panels.panels + panel) * panels.rows + row) * kernel->nr;
        kernel->load(to + element * (int64_t)eg_size_of(kernel->compute), eg_cpu_at(x, item, row, col),
                     x->dtype, x->row_stride, x->col_stride, rows, cols, padded);
    }
}

static void pack_band(void *arg, int64_t index, int thread) {
    (void)thread;
    const pack_job *job = arg;
    const int64_t item = index / job->bands, row = index % job->bands * job->band;
    pack_rows(job->kernel, &job->x, item, row, eg_least(job->band, job->x.rows - row), job->to);
}

static void pack_panels(const eg_cpu_run *run, const eg_step *step, eg_operand x, int64_t items, char *to) {
    if (x.rows == 0 || x.cols == 0) return;
    pack_job job = {.run = run, .kernel = step->kernel, .x = x, .to = to};
    job.band = x.col_stride == 1 ? ROW_BAND : COLUMN_BAND;
    job.bands = (x.rows + job.band - 1) / job.band;
    eg_cpu_parallel(step->threads, job.bands * items, pack_band, &job);
}

/* ---- Cells -------------------------------------------------------------------------------------- */

/* One row of cells of X, each read into a tile and split from there. */
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
        kernel->load(tile, eg_cpu_at(x, item, row, col), x->dtype, x->row_stride, x->col_stride, rows, cols,
                     rows);
        const eg_cells to = eg_cells_at(&job->cells, &grid, item, strip, cell);
        fits &= kernel->split(tile, 0, EG_CELL / 2, rows, cols, &to);
    }
    if (!fits) eg_cpu_refuse(job->run);
}

/* A column-major X is taken as its row-major transpose: what lies across in one lies down in the other. */
static void pack_cells(const eg_cpu_run *run, const eg_step *step, eg_operand x, int64_t items, eg_cells to) {
    if (x.rows == 0 || x.cols == 0) return;
    if (x.row_stride == 1 && x.col_stride != 1) {
        x = transpose(x);
        to = (eg_cells){.across = to.down_t, .across_t = to.down, .down = to.across_t, .down_t = to.across};
    }
    pack_job job = {.run = run, .kernel = step->kernel, .x = x, .cells = to};
    eg_cpu_parallel(step->threads, (x.rows + EG_CELL - 1) / EG_CELL * items, pack_strip, &job);
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
        if (!cells) pack_panels(run, step, x, items, a);
    } else {
        char *b = eg_cpu_region_or_null(run, EG_BUFFER_B), *bt = eg_cpu_region_or_null(run, EG_BUFFER_BT);
        if (cells) pack_cells(run, step, x, items, (eg_cells){.down = b, .across_t = bt});
        if (!cells && b != NULL) pack_panels(run, step, x, items, b);
        if (!cells && bt != NULL) pack_panels(run, step, transpose(x), items, bt);
    }
}
