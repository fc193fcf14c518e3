/* SPDX-License-Identifier: Apache-2.0 */
/* Products of few rows: their time is that of reading the right operand. So it is read once, where the caller
 * has it, and no copy of it is written. The left operand and the sums stay in the caches. */
#include <string.h>

#include "cpu.h"
#include "epilogue.h"

/* ---- When, and in what blocks ------------------------------------------------------------------- */

/* From so many rows on, the multiplication takes longer than the reading: docs/lab/cpu.md. */
enum { MOST_ROWS = 16 };

/* Whether the product's right operand can be streamed: its rows or its columns are contiguous, and no other
 * item of the batch reads it again. */
static bool can_be_streamed(const eg_op *op) {
    const eg_view *right = &op->right;
    const int64_t batch = op->items > op->summed ? op->items : op->summed;
    if (right->space == EG_PACKED_B) return true;
    return right->space == EG_OPERAND && (right->col_stride == 1 || right->row_stride == 1) &&
           (batch == 1 || right->batch_stride != 0);
}

bool eg_cpu_has_few_rows(const eg_cpu_kernel *kernel, const eg_op *op) {
    return kernel->micro.few_rows != NULL && op->rows <= MOST_ROWS && op->depth > 0 && !op->left.transposed &&
           can_be_streamed(op);
}

bool eg_cpu_few_rows_read_in_place(const eg_cpu_kernel *kernel, const eg_view *left) {
    return left->space == EG_OPERAND && left->dtype == kernel->compute && left->col_stride == 1;
}

/* Columns of a block. Where they are neighbours, a block is as wide as its sums fit L1 with some of the right
 * operand: wide blocks read long pieces of each row. Else, and from a pack, it is one micro-panel, which is
 * read from end to end. */
static int64_t block_cols(const eg_cpu_kernel *kernel, const eg_op *op, int threads) {
    enum { SUMS = 4096, BLOCKS_A_THREAD = 2 };
    const int64_t nr = kernel->micro.nr, panels = eg_ceil_div(op->cols, nr);
    if (op->right.space == EG_PACKED_B || op->right.col_stride != 1) return nr;
    const int64_t most = SUMS / op->rows / nr > 0 ? SUMS / op->rows / nr : 1;
    const int64_t even = threads > 1 ? eg_ceil_div(panels, BLOCKS_A_THREAD * threads) : panels;
    return nr * eg_least(most, even);
}

eg_cpu_blocks eg_cpu_few_rows_blocks(const eg_cpu_kernel *kernel, int threads, const eg_op *op) {
    return (eg_cpu_blocks){.mc = op->rows,
                           .nc = block_cols(kernel, op, threads),
                           .kc = eg_cpu_blocks_of(kernel, 1, op, false).kc, /* as any way: the same bits */
                           .threads = threads,
                           .single_pass = true};
}

int64_t eg_cpu_few_rows_scratch(int64_t rows, int64_t cols) { return 2 * rows * cols; }

/* ---- The product -------------------------------------------------------------------------------- */

typedef struct few_rows_job {
    const eg_cpu_run *run;
    const eg_cpu_kernel *kernel;
    const eg_op *op;
    eg_epilogue epilogue;
    eg_few_rows product;                                /* all that is the same for each pass */
    eg_operand a, b;                                    /* in place */
    const char *left, *right;                           /* or packed: */
    int64_t left_item, left_k, right_item, right_panel; /* bytes */
    int64_t nc, kc, blocks;
} few_rows_job;

static void find_left(few_rows_job *job, const eg_cpu_step *detail) {
    const int64_t nr = job->kernel->micro.nr, size = (int64_t)eg_size_of(job->kernel->compute);
    const eg_panels panels = eg_cpu_panels(job->kernel, job->op->rows, job->op->depth);
    if (detail->left == EG_CPU_IN_PLACE) {
        job->a = eg_cpu_bind(job->run->call, &job->op->left);
        job->product.left_row = job->a.row_stride;
        job->product.left_group = nr;
        return;
    }
    job->left = eg_cpu_region(job->run, detail->left);
    job->left_k = panels.stride * size; /* exact for multiples of nr, at which passes begin */
    job->left_item = job->op->left.batch_stride != 0 ? panels.panels * panels.stride * nr * size : 0;
    job->product.left_row = nr;
    job->product.left_group = panels.stride * nr;
}

static void find_right(few_rows_job *job) {
    const eg_cpu_kernel *kernel = job->kernel;
    const eg_view *view = &job->op->right;
    const int64_t nr = kernel->micro.nr;
    job->product.dtype = view->space == EG_PACKED_B ? kernel->compute : view->dtype;
    const int64_t size = (int64_t)eg_size_of(job->product.dtype);
    if (view->space != EG_PACKED_B) {
        job->b = eg_cpu_bind(job->run->call, view);
        job->product.by_columns = view->col_stride != 1;
        job->product.k_bytes = view->row_stride * size;
        job->product.col_bytes = view->col_stride * size;
        return;
    }
    const eg_panels panels = eg_cpu_panels(kernel, job->op->depth, job->op->cols);
    job->right = eg_cpu_packed_b(job->run, kernel, view->transposed);
    job->right_panel = panels.stride * nr * size;
    job->right_item = view->batch_stride != 0 ? panels.panels * job->right_panel : 0;
    job->product.k_bytes = nr * size;
    job->product.col_bytes = size;
}

static const void *left_at(const few_rows_job *job, int64_t item, int64_t k) {
    if (job->left == NULL) return eg_cpu_at(&job->a, item, 0, k);
    return job->left + item * job->left_item + k * job->left_k;
}

static const char *right_at(const few_rows_job *job, int64_t item, int64_t k, int64_t col) {
    if (job->right == NULL) return eg_cpu_at(&job->b, item, k, col);
    return job->right + item * job->right_item + col / job->kernel->micro.nr * job->right_panel +
           k * job->product.k_bytes;
}

/* A pass sums from zero, and is then added to those before, as passes of any product are. */
static void run_pass(const few_rows_job *job, eg_few_rows *x, bool first, char *totals, char *sums) {
    const int64_t numbers = x->rows * eg_ceil_div(x->cols, job->kernel->micro.nr) * job->kernel->micro.nr;
    x->sums = first ? totals : sums;
    memset(x->sums, 0, (size_t)numbers * eg_size_of(job->kernel->compute));
    job->kernel->micro.few_rows(x);
    if (!first) job->kernel->epilogue.add_rows(totals, sums, 0, 1, numbers);
}

static void run_epilogue(const few_rows_job *job, int64_t item, int64_t col, int64_t cols, char *totals,
                         char *spare) {
    const eg_cpu_kernel *kernel = job->kernel;
    const int64_t nr = kernel->micro.nr, row_bytes = nr * (int64_t)eg_size_of(kernel->compute);
    for (int64_t end = col + cols; col < end; col += nr) {
        eg_tile tile = {.item = item, .col = col, .cols = eg_least(nr, end - col), .spare = spare};
        for (; tile.row < job->op->rows; tile.row += kernel->micro.mr, totals += tile.rows * row_bytes) {
            eg_tile_epilogue t;
            tile.rows = eg_least(kernel->micro.mr, job->op->rows - tile.row);
            tile.values = totals;
            eg_cpu_epilogue_begin(&t, &job->epilogue, &tile);
            eg_cpu_epilogue_finish(&t);
        }
    }
}

static void run_block(void *arg, int64_t index, int thread) {
    const few_rows_job *job = arg;
    const eg_op *op = job->op;
    const size_t number = eg_size_of(job->kernel->compute);
    const int64_t item = eg_div(index, job->blocks), col = (index - item * job->blocks) * job->nc;
    eg_few_rows x = job->product;
    char *spare = eg_cpu_scratch(job->run, thread);
    char *totals =
        spare + (size_t)(EG_CPU_SPARE_TILES * job->kernel->micro.mr * job->kernel->micro.nr) * number;
    char *sums = totals + (size_t)(op->rows * job->nc) * number;
    x.cols = eg_least(job->nc, op->cols - col);
    for (int64_t summand = 0; summand < op->summed; summand++) {
        for (int64_t k = 0; k < op->depth; k += job->kc) {
            x.depth = eg_least(job->kc, op->depth - k);
            x.left = left_at(job, item + summand, k);
            x.right = right_at(job, item + summand, k, col);
            run_pass(job, &x, summand == 0 && k == 0, totals, sums);
        }
    }
    run_epilogue(job, item, col, x.cols, totals, spare);
}

void eg_cpu_few_rows(const eg_cpu_run *run, const eg_step *step) {
    const eg_cpu_step *detail = eg_cpu_detail(step);
    const eg_op *op = &run->program->list.op[step->op];
    few_rows_job job = {.run = run,
                        .kernel = detail->kernel,
                        .op = op,
                        .product = {.rows = op->rows},
                        .nc = step->tile_cols,
                        .kc = step->k_block,
                        .blocks = eg_ceil_div(op->cols, step->tile_cols)};
    eg_cpu_prepare_epilogue(run, step, &job.epilogue);
    find_left(&job, detail);
    find_right(&job);
    eg_cpu_parallel(run->threads, step->threads, op->items * job.blocks, run_block, &job);
}
