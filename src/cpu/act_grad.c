/* The steps that are no product: grad_pre from a saved pre or y, and the final column sums. */
#include <string.h>

#include "cpu.h"
#include "epilogue.h"

/* ---- grad_pre = grad * act'(saved) --------------------------------------------------------------- */

typedef struct grad_job {
    const eg_cpu_run *run;
    const eg_cpu_kernel *kernel;
    int64_t chunks, panels;
} grad_job;

/* One chunk of rows of one panel. */
static void grad_chunk(void *arg, int64_t index, int thread) {
    const grad_job *job = arg;
    const eg_problem *p = job->run->problem;
    const eg_cpu_kernel *kernel = job->kernel;
    const eg_operand *saved = &p->operands[EG_OP_SAVED];
    char *spare = eg_cpu_scratch(job->run, thread);
    eg_tile tile = {.item = index / (job->chunks * job->panels),
                    .col = index % job->panels * kernel->nr,
                    .spare = spare,
                    .values = spare + (size_t)(kernel->mr * kernel->nr) * eg_dtype_size(kernel->compute)};
    tile.cols = p->n - tile.col < kernel->nr ? p->n - tile.col : kernel->nr;
    const int64_t first = index / job->panels % job->chunks * EG_CPU_CHUNK;
    const int64_t end = first + EG_CPU_CHUNK < p->m ? first + EG_CPU_CHUNK : p->m;
    for (tile.row = first; tile.row < end; tile.row += kernel->mr) {
        tile.rows = end - tile.row < kernel->mr ? end - tile.row : kernel->mr;
        if (p->activation != EG_ACT_NONE) {
            kernel->load(tile.values, eg_cpu_at(saved, tile.item, tile.row, tile.col), saved->dtype,
                         saved->row_stride, saved->col_stride, tile.rows, tile.cols, kernel->mr);
        }
        eg_cpu_grad_tile(job->run, kernel, &tile);
    }
}

void eg_cpu_act_grad(const eg_cpu_run *run, const eg_step *step) {
    const eg_problem *p = run->problem;
    const eg_cpu_kernel *kernel = step->kernel;
    grad_job job = {run, kernel, eg_cpu_chunks(p->m), (p->n + kernel->nr - 1) / kernel->nr};
    const int64_t count = p->batch * job.chunks * job.panels;
    eg_cpu_parallel(step->threads, count, grad_chunk, &job);
}

/* ---- Column sums ---------------------------------------------------------------------------------- */

typedef struct sum_job {
    const eg_cpu_run *run;
    const eg_cpu_kernel *kernel;
    const eg_operand *out;
    const char *sums;
    int64_t rows, width, cols;
} sum_job;

/* The sum of rows [first, first + count) of one panel's width, pairwise: the error grows with log(count). */
static void add_pairwise(const sum_job *job, int64_t col, int64_t first, int64_t count, char *total) {
    enum { STRAIGHT = 8, WIDEST = 64 };
    const size_t size = eg_dtype_size(job->kernel->compute), row = (size_t)job->kernel->nr * size;
    if (count <= STRAIGHT) {
        memset(total, 0, row);
        for (int64_t i = first; i < first + count; i++) {
            job->kernel->add_row(total, job->sums + (size_t)(i * job->width + col) * size, 1,
                                 job->kernel->nr);
        }
        return;
    }
    _Alignas(64) char other[WIDEST * sizeof(double)];
    add_pairwise(job, col, first, count / 2, total);
    add_pairwise(job, col, first + count / 2, count - count / 2, other);
    job->kernel->add_row(total, other, 1, job->kernel->nr);
}

static void sum_panel(void *arg, int64_t index, int thread) {
    (void)thread;
    enum { WIDEST = 64 };
    const sum_job *job = arg;
    const int64_t col = index * job->kernel->nr, left = job->cols - col;
    _Alignas(64) char total[WIDEST * sizeof(double)];
    add_pairwise(job, col, 0, job->rows, total);
    job->kernel->store(total, eg_cpu_at(job->out, 0, 0, col), job->out->dtype, 1, 1, 1,
                       left < job->kernel->nr ? left : job->kernel->nr, job->run->problem->accumulate);
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
    eg_cpu_parallel(step->threads, panels, sum_panel, &job);
}
