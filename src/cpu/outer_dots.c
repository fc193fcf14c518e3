/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 of little depth by dots of vector units: their time is that of writing the result, and so
 * it is written row by row. Each block lays out pairs of its right operand in L1, without the gaps that a
 * tile block of few k has, and multiplies some rows with all of them.
 *
 * The sums are those of the tile loop, in the same order: the same bits. */
#include <string.h>

#include "blocking.h"
#include "cpu.h"
#include "epilogue.h"

typedef struct dots_job {
    const eg_cpu_run *run;
    const eg_cpu_kernel *kernel;
    const eg_op *op;
    eg_epilogue epilogue;
    eg_operand a, b, out;         /* a and b: where they are the caller's */
    const char *left, *right;     /* tile blocks, which an operation has made or a pack has; else NULL */
    const char *made;             /* or those of leftᵀ, as a left operand; else NULL */
    int64_t left_item, left_band; /* bytes, a band is 32 rows; of what was made 32 k */
    int64_t right_item, right_panel;
    bool is_relu;
    int64_t mc, nc, part, row_blocks, col_blocks;
} dots_job;

static void find_left(dots_job *job, const eg_cpu_step *detail) {
    const eg_view *view = &job->op->left;
    const bool turns = detail->left == EG_CPU_FUSED;
    const int64_t rows = turns ? job->op->depth : job->op->rows,
                  cols = turns ? job->op->rows : job->op->depth;
    const eg_amx_grid grid = eg_amx_grid_of(job->kernel->pack.bf16_terms, rows, cols);
    if (turns) {
        job->made = eg_cpu_region(job->run, detail->made_blocks);
    } else if (detail->left >= 0) {
        job->left = eg_cpu_region(job->run, detail->left);
    } else {
        job->a = eg_cpu_transpose(eg_cpu_bind(job->run->call, view));
    }
    job->left_band = grid.row_pitch * (int64_t)grid.block_bytes;
    job->left_item = eg_is_batched(view) ? grid.rows * job->left_band : 0;
}

static void find_right(dots_job *job, int where) {
    const eg_amx_grid grid = eg_amx_grid_of(job->kernel->pack.bf16_terms, job->op->cols, job->op->depth);
    const eg_view *view = &job->op->right;
    if (view->space == EG_PACKED_B) {
        job->right = eg_cpu_packed_b(job->run, job->kernel, view);
    } else if (where >= 0) {
        job->right = eg_cpu_region(job->run, where);
    } else {
        job->b = eg_cpu_bind(job->run->call, view);
    }
    job->right_panel = grid.row_pitch * (int64_t)grid.block_bytes;
    job->right_item = eg_is_batched(view) ? grid.rows * job->right_panel : 0;
}

/* The pairs of k that there are, of the first 16 columns of each micro-panel and then of the others. */
static void copy_pairs(char *to, const char *blocks, int64_t bytes) {
    const int64_t tile = EG_AMX_TERM_BYTES / 2, all = bytes / 2;
    for (int64_t done = 0; done < all; done += tile, blocks += EG_AMX_TERM_BYTES) {
        memcpy(to + done, blocks, (size_t)eg_least(tile, all - done));
        memcpy(to + all + done, blocks + tile, (size_t)eg_least(tile, all - done));
    }
}

static void load_right(const dots_job *job, int64_t item, int64_t col, int64_t cols, char *to, char *blocks) {
    const int64_t bytes = eg_cpu_outer_dots_bytes(job->op->depth);
    for (int64_t at = 0; at < cols; at += EG_AMX_BLOCK, to += bytes) {
        const eg_part part = {
            .depth = job->op->depth, .col = col + at, .cols = eg_least(EG_AMX_BLOCK, cols - at)};
        if (job->right != NULL) {
            copy_pairs(to, job->right + item * job->right_item + part.col / EG_AMX_BLOCK * job->right_panel,
                       bytes);
        } else {
            eg_cpu_pack_part(job->run, job->kernel, &job->b, item, &part, blocks);
            copy_pairs(to, blocks, bytes);
        }
    }
}

/* As f32. An absent bias is -0, as in an epilogue. */
static void load_bias(const dots_job *job, int64_t col, int64_t cols, float *to) {
    const eg_operand *bias = job->epilogue.bias;
    for (int64_t at = 0; at < cols; at += EG_AMX_BLOCK, to += EG_AMX_BLOCK) {
        for (int64_t j = 0; bias == NULL && j < EG_AMX_BLOCK; j++) to[j] = -0.0F;
        if (bias != NULL)
            job->kernel->pack.load(to, eg_cpu_at(bias, 0, 0, col + at), bias->dtype, bias->row_stride,
                                   bias->col_stride, 1, eg_least(EG_AMX_BLOCK, cols - at), 1);
    }
}

/* All rows of the block with a part of its columns. */
static void run_part(const dots_job *job, int64_t item, int64_t first, int64_t end, int64_t col, int64_t cols,
                     const char *right, const float *bias, const char *left, int64_t left_band) {
    const int64_t size = (int64_t)sizeof(uint16_t);
    const eg_operand *pre = job->epilogue.pre;
    eg_little_depth of = {.right = right,
                          .right_panel = eg_cpu_outer_dots_bytes(job->op->depth),
                          .bias = bias,
                          .relu = job->is_relu,
                          .non_temporal = job->epilogue.non_temporal,
                          .dtype = job->out.dtype,
                          .out_step = job->out.row_stride * size,
                          .pre_step = pre != NULL ? pre->row_stride * size : 0,
                          .cols = cols,
                          .depth = job->op->depth};
    for (int64_t row = first; row < end; row += EG_AMX_BLOCK, left += left_band) {
        of.left = left;
        of.rows = eg_least(EG_AMX_BLOCK, end - row);
        of.out = eg_cpu_at(&job->out, item, row, col);
        if (pre != NULL) of.pre = eg_cpu_at(pre, item, row, col);
        job->kernel->micro.outer(&of);
    }
}

/* Bands of the block's rows, `deep` bytes each. */
static void lay_out_left(const dots_job *job, int64_t item, int64_t first, int64_t end, int64_t deep,
                         char *to) {
    if (job->made == NULL) {
        const eg_part part = {.depth = job->op->depth, .col = first, .cols = end - first};
        eg_cpu_pack_left_part(job->run, job->kernel, &job->a, item, &part, to);
        return;
    }
    const char *from = job->made + item * job->left_item;
    for (int64_t row = first; row < end; row += EG_AMX_BLOCK, to += deep)
        eg_cpu_turn_blocks(job->kernel, from + row / EG_AMX_BLOCK * EG_AMX_TERM_BYTES, job->left_band,
                           job->op->depth, true, to);
}

static void run_block(void *arg, int64_t index, int thread) {
    const dots_job *job = arg;
    const int64_t down = eg_div(index, job->col_blocks), item = eg_div(down, job->row_blocks);
    const int64_t first = (down - item * job->row_blocks) * job->mc,
                  end = eg_least(first + job->mc, job->op->rows);
    const int64_t begin = (index - down * job->col_blocks) * job->nc,
                  last = eg_least(begin + job->nc, job->op->cols);
    float *bias = (float *)eg_cpu_scratch(job->run, thread) + eg_cpu_spare_numbers(job->kernel);
    const int64_t deep = eg_ceil_div(job->op->depth, EG_AMX_BLOCK) * EG_AMX_TERM_BYTES;
    char *blocks = (char *)(bias + job->part), *laid_out = blocks + deep;
    char *right = laid_out + eg_ceil_div(job->mc, EG_AMX_BLOCK) * deep;
    const char *left = laid_out;
    int64_t band = deep;
    if (job->left != NULL) {
        left = job->left + item * job->left_item + first / EG_AMX_BLOCK * job->left_band;
        band = job->left_band;
    } else {
        lay_out_left(job, item, first, end, deep, laid_out);
    }
    for (int64_t col = begin; col < last; col += job->part) {
        const int64_t cols = eg_least(job->part, last - col);
        load_right(job, item, col, cols, right, blocks);
        load_bias(job, col, cols, bias);
        run_part(job, item, first, end, col, cols, right, bias, left, band);
    }
    if (job->epilogue.non_temporal) eg_cpu_order_stores();
}

_Static_assert(sizeof(dots_job) <= EG_CPU_JOB, "a job");

void eg_cpu_outer_dots(const eg_cpu_run *run, const eg_step *step) {
    const eg_cpu_step *detail = eg_cpu_detail(step);
    const eg_op *op = &run->list->op[step->op];
    const eg_term *act = eg_term_of(op, EG_TERM_ACT);
    dots_job own, *job = eg_cpu_job(run, &own);
    *job = (dots_job){.run = run,
                      .kernel = detail->kernel,
                      .op = op,
                      .out = eg_cpu_bind(run->call, &op->out),
                      .is_relu = act != NULL && act->activation == EG_ACT_RELU,
                      .mc = step->tile_rows,
                      .nc = step->tile_cols,
                      .part = detail->part};
    find_left(job, detail);
    find_right(job, detail->right);
    eg_cpu_prepare_epilogue(run, step, &job->epilogue);
    job->row_blocks = eg_ceil_div(op->rows, job->mc);
    job->col_blocks = eg_ceil_div(op->cols, job->nc);
    eg_cpu_share(run, step->threads, op->items * job->row_blocks * job->col_blocks, run_block, job);
}
