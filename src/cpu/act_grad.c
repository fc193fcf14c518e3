/* The steps that are no product: grad_pre from a saved pre or y, and the final column sums. */
#include <string.h>

#include "cpu.h"
#include "epilogue.h"

/* ---- grad_pre = grad * act'(saved) -------------------------------------------------------------- */

typedef struct grad_job {
    const eg_cpu_run *run;
    const eg_cpu_kernel *kernel;
    eg_ending ending;
    int64_t chunks, panels;
} grad_job;

/* One chunk of rows of one panel. */
static void grad_chunk(void *arg, int64_t index, int thread) {
    const grad_job *job = arg;
    const eg_problem *p = job->run->problem;
    const eg_cpu_kernel *kernel = job->kernel;
    char *scratch = eg_cpu_scratch(job->run, thread);
    eg_tile tile = {.item = index / (job->chunks * job->panels),
                    .col = index % job->panels * kernel->nr,
                    .values = scratch,
                    .spare = scratch + (size_t)(kernel->mr * kernel->nr) * eg_dtype_size(kernel->compute)};
    tile.cols = p->n - tile.col < kernel->nr ? p->n - tile.col : kernel->nr;
    const int64_t first = index / job->panels % job->chunks * EG_CPU_CHUNK;
    const int64_t end = first + EG_CPU_CHUNK < p->m ? first + EG_CPU_CHUNK : p->m;
    for (tile.row = first; tile.row < end; tile.row += kernel->mr) {
        tile.rows = end - tile.row < kernel->mr ? end - tile.row : kernel->mr;
        eg_finish finish;
        eg_cpu_finish_begin(&finish, &job->ending, &tile);
        eg_cpu_finish_rest(&finish);
    }
}

void eg_cpu_act_grad(const eg_cpu_run *run, const eg_step *step) {
    const eg_problem *p = run->problem;
    const eg_cpu_kernel *kernel = step->kernel;
    grad_job job = {.run = run,
                    .kernel = kernel,
                    .ending = eg_cpu_ending(run, step),
                    .chunks = eg_cpu_chunks(p->m),
                    .panels = eg_ceil_div(p->n, kernel->nr)};
    const int64_t count = p->batch * job.chunks * job.panels;
    eg_cpu_parallel(run->plan->threads, step->threads, count, grad_chunk, &job);
}

/* ---- Column sums -------------------------------------------------------------------------------- */

typedef struct sum_job {
    const eg_cpu_run *run;
    const eg_cpu_kernel *kernel;
    const eg_operand *out;
    const char *sums;
    int64_t rows, width, cols;
} sum_job;

/* The sum of rows [first, first + count) of one panel's width, pairwise: the error grows with log(count). */
static void add_pairwise(const sum_job *job, int64_t col, int64_t first, int64_t count, char *total) {
    enum { STRAIGHT = 8 };
    const size_t size = eg_dtype_size(job->kernel->compute), row = (size_t)job->kernel->nr * size;
    if (count <= STRAIGHT) {
        memset(total, 0, row);
        job->kernel->add_rows(total, job->sums + (size_t)(first * job->width + col) * size, job->width, count,
                              job->kernel->nr);
        return;
    }
    _Alignas(64) char other[EG_CPU_WIDEST * sizeof(double)];
    add_pairwise(job, col, first, count / 2, total);
    add_pairwise(job, col, first + count / 2, count - count / 2, other);
    job->kernel->add_rows(total, other, job->kernel->nr, 1, job->kernel->nr);
}

static void sum_panel(void *arg, int64_t index, int thread) {
    (void)thread;
    const sum_job *job = arg;
    const int64_t col = index * job->kernel->nr, left = job->cols - col;
    _Alignas(64) char total[EG_CPU_WIDEST * sizeof(double)];
    add_pairwise(job, col, 0, job->rows, total);
    const int64_t cols = eg_least(left, job->kernel->nr);
    void *out = eg_cpu_at(job->out, 0, 0, col);
    if (job->run->problem->accumulate) {
        _Alignas(64) char before[EG_CPU_WIDEST * sizeof(double)];
        job->kernel->load(before, out, job->out->dtype, 1, 1, 1, cols, 1);
        job->kernel->add_rows(total, before, job->kernel->nr, 1, cols);
    }
    job->kernel->store(total, out, job->out->dtype, 1, 1, 1, cols);
}

void eg_cpu_column_sum(const eg_cpu_run *run, const eg_step *step) {
    const eg_problem *p = run->problem;
    const bool below = step->buffer == EG_BUFFER_SUMS_BELOW;
    const eg_cpu_kernel *kernel = step->kernel;
    sum_job job = {.run = run,
                   .kernel = kernel,
                   .out = &p->operands[below ? EG_OP_D_BIAS_BELOW : EG_OP_D_BIAS],
                   .sums = eg_cpu_region(run, step->buffer),
                   .rows = eg_cpu_chunks(p->m) * p->batch,
                   .cols = below ? p->k : p->n};
    const int64_t panels = (job.cols + kernel->nr - 1) / kernel->nr;
    job.width = panels * kernel->nr;
    eg_cpu_parallel(run->plan->threads, step->threads, panels, sum_panel, &job);
}
