/* SPDX-License-Identifier: Apache-2.0 */
/* The steps that are no product: element by element, and the final column sums. */
#include <string.h>

#include "cpu.h"
#include "epilogue.h"

/* ---- Maps --------------------------------------------------------------------------------------- */

typedef struct map_job {
    const eg_cpu_run *run;
    const eg_cpu_kernel *kernel;
    eg_epilogue epilogue;
    int64_t rows, cols, chunks, panels;
} map_job;

/* One chunk of rows of one micro-panel. */
static void map_chunk(void *arg, int64_t index, int thread) {
    const map_job *job = arg;
    const eg_cpu_kernel *kernel = job->kernel;
    char *scratch = eg_cpu_scratch(job->run, thread);
    eg_tile tile = {.item = index / (job->chunks * job->panels),
                    .col = index % job->panels * kernel->micro.nr,
                    .values = scratch,
                    .spare = scratch +
                             (size_t)(kernel->micro.mr * kernel->micro.nr) * eg_dtype_size(kernel->compute)};
    tile.cols = eg_least(kernel->micro.nr, job->cols - tile.col);
    const int64_t first = index / job->panels % job->chunks * EG_CPU_CHUNK;
    const int64_t end = eg_least(first + EG_CPU_CHUNK, job->rows);
    for (tile.row = first; tile.row < end; tile.row += kernel->micro.mr) {
        tile.rows = eg_least(kernel->micro.mr, end - tile.row);
        eg_tile_epilogue t;
        eg_cpu_epilogue_begin(&t, &job->epilogue, &tile);
        eg_cpu_epilogue_finish(&t);
    }
}

void eg_cpu_map(const eg_cpu_run *run, const eg_step *step) {
    const eg_op *op = &run->program->list.op[step->op];
    const eg_cpu_kernel *kernel = eg_cpu_detail(step)->kernel;
    map_job job = {.run = run,
                   .kernel = kernel,
                   .rows = op->rows,
                   .cols = op->cols,
                   .chunks = eg_cpu_chunks(op->rows),
                   .panels = eg_ceil_div(op->cols, kernel->micro.nr)};
    eg_cpu_prepare_epilogue(run, step, &job.epilogue);
    eg_cpu_parallel(run->threads, step->threads, op->items * job.chunks * job.panels, map_chunk, &job);
}

/* ---- Column sums -------------------------------------------------------------------------------- */

typedef struct sum_job {
    const eg_cpu_run *run;
    const eg_cpu_kernel *kernel;
    eg_operand out;
    bool accumulate;
    const char *sums;
    int64_t rows, width, cols;
} sum_job;

/* The sum of rows [first, first + count) of one micro-panel's width, pairwise: the error grows with
 * log(count). */
static void add_pairwise(const sum_job *job, int64_t col, int64_t first, int64_t count, char *total) {
    enum { STRAIGHT = 8 };
    const size_t size = eg_dtype_size(job->kernel->compute), row = (size_t)job->kernel->micro.nr * size;
    if (count <= STRAIGHT) {
        memset(total, 0, row);
        job->kernel->epilogue.add_rows(total, job->sums + (size_t)(first * job->width + col) * size,
                                       job->width, count, job->kernel->micro.nr);
        return;
    }
    _Alignas(64) char other[EG_CPU_WIDEST * sizeof(double)];
    add_pairwise(job, col, first, count / 2, total);
    add_pairwise(job, col, first + count / 2, count - count / 2, other);
    job->kernel->epilogue.add_rows(total, other, job->kernel->micro.nr, 1, job->kernel->micro.nr);
}

static void sum_panel(void *arg, int64_t index, int thread) {
    (void)thread;
    const sum_job *job = arg;
    const int64_t col = index * job->kernel->micro.nr, left = job->cols - col;
    _Alignas(64) char total[EG_CPU_WIDEST * sizeof(double)];
    add_pairwise(job, col, 0, job->rows, total);
    const int64_t cols = eg_least(left, job->kernel->micro.nr);
    void *out = eg_cpu_at(&job->out, 0, 0, col);
    if (job->accumulate) {
        _Alignas(64) char before[EG_CPU_WIDEST * sizeof(double)];
        job->kernel->pack.load(before, out, job->out.dtype, 1, 1, 1, cols, 1);
        job->kernel->epilogue.add_rows(total, before, job->kernel->micro.nr, 1, cols);
    }
    job->kernel->epilogue.store(total, out, job->out.dtype, 1, 1, 1, cols);
}

void eg_cpu_reduce(const eg_cpu_run *run, const eg_step *step) {
    const eg_op_list *list = &run->program->list;
    const eg_op *op = &list->op[step->op];
    const eg_temporary *sums = &list->temporary[op->left.id];
    const eg_cpu_step *detail = eg_cpu_detail(step);
    const int64_t panels = eg_ceil_div(op->cols, detail->kernel->micro.nr);
    sum_job job = {.run = run,
                   .kernel = detail->kernel,
                   .out = eg_cpu_bind(run->call, &op->out),
                   .accumulate = op->accumulate,
                   .sums = eg_cpu_region(run, detail->sums),
                   .rows = eg_cpu_chunks(sums->rows) * sums->items,
                   .width = panels * detail->kernel->micro.nr,
                   .cols = op->cols};
    eg_cpu_parallel(run->threads, step->threads, panels, sum_panel, &job);
}
