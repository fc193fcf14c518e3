/* SPDX-License-Identifier: Apache-2.0 */
/* Products of few rows: their time is that of reading the right operand. So it is read once, where the caller
 * has it, and no copy of it is written. The left operand and the sums stay in the caches.
 *
 * A product of few columns is the transpose of one of few rows. Its sums are transposed before the epilogue,
 * which sees the result as it is. */
#include <string.h>

#include "blocking.h"
#include "cpu.h"
#include "epilogue.h"

/* ---- The product -------------------------------------------------------------------------------- */

typedef struct few_rows_job {
    const eg_cpu_run *run;
    const eg_cpu_kernel *kernel;
    const eg_op *op;
    eg_op product; /* of few rows: the operation itself, or its transpose */
    bool is_turned;
    eg_epilogue epilogue;
    eg_few_rows part;                                   /* all that is the same for each pass */
    eg_operand a, b;                                    /* in place */
    const char *left, *right;                           /* or packed: */
    eg_dtype left_dtype;                                /* and of this type */
    int64_t left_item, left_k, right_item, right_panel; /* bytes */
    bool gathers; /* the left operand is laid out by each block; `left` is a micro-panel of its transpose */
    int64_t nc, kc, blocks;
} few_rows_job;

/* The transpose of a left operand as a micro-panel: the numbers of a k are neighbours. */
static void find_panel(few_rows_job *job, const char *panel, eg_dtype dtype) {
    const eg_cpu_kernel *kernel = job->kernel;
    const int64_t size = (int64_t)eg_size_of(dtype);
    const eg_panels panels = eg_cpu_panels(kernel, job->product.depth, job->product.rows);
    job->left = panel;
    job->left_dtype = dtype;
    job->left_k = kernel->micro.nr * size;
    job->left_item = eg_is_batched(&job->product.left) ? panels.stride * job->left_k * panels.panels : 0;
}

/* Whether the few rows are laid out as a right operand's blocks, which the transposed product reads. */
static bool turns_left(const few_rows_job *job) {
    return job->product.right.space != EG_PACKED_B && job->product.rows > job->kernel->micro.rows_along_k;
}

/* The pack whose transpose the left operand is. */
static const char *packed_left(const few_rows_job *job) {
    const eg_view pack = eg_transposed(job->product.left);
    return eg_cpu_packed_b(job->run, job->kernel, &pack);
}

/* AMX tile blocks: the few rows as a left operand, or where the right one's columns are read as rows of
 * tiles, as a right one. */
static void find_left_blocks(few_rows_job *job, int where) {
    const eg_view *view = &job->product.left;
    const eg_amx_grid grid =
        eg_amx_grid_of(job->kernel->pack.bf16_terms, job->product.rows, job->product.depth);
    if (where == EG_CPU_IN_PLACE) {
        job->a = eg_cpu_bind(job->run->call, view);
    } else if (where == EG_CPU_FROM_PACK) {
        job->left = packed_left(job);
    } else {
        job->left = eg_cpu_region(job->run, where);
    }
    job->left_k = (int64_t)grid.block_bytes / EG_AMX_BLOCK;
    job->part.left_group = grid.row_pitch * (int64_t)grid.block_bytes;
    job->left_item = eg_is_batched(view) ? grid.rows * job->part.left_group : 0;
    /* a right operand's blocks, such as a pack's, are as the transposed product reads them */
    const bool of_right = job->is_turned || where == EG_CPU_FROM_PACK;
    job->gathers = job->left == NULL || of_right != turns_left(job);
}

static void find_left(few_rows_job *job, int where) {
    const int64_t nr = job->kernel->micro.nr, size = (int64_t)eg_size_of(job->kernel->compute);
    const eg_view *view = &job->product.left;
    if (eg_cpu_is_amx(job->kernel)) {
        find_left_blocks(job, where);
        return;
    }
    const eg_panels panels = eg_cpu_panels(job->kernel, job->product.rows, job->product.depth);
    job->gathers = job->is_turned || view->transposed;
    if (job->gathers) {
        job->part.left_row = nr;
        job->part.left_group = job->product.rows * nr;
        if (where >= 0) find_panel(job, eg_cpu_region(job->run, where), job->kernel->compute);
        if (where == EG_CPU_FROM_PACK) find_panel(job, packed_left(job), view->dtype);
        if (where == EG_CPU_IN_PLACE) job->a = eg_cpu_bind(job->run->call, view);
        return;
    }
    if (where == EG_CPU_IN_PLACE) {
        job->a = eg_cpu_bind(job->run->call, view);
        job->part.left_row = job->a.row_stride;
        job->part.left_group = nr;
        return;
    }
    job->left = eg_cpu_region(job->run, where);
    job->left_k = panels.stride * size; /* exact for multiples of nr, at which passes begin */
    job->left_item = eg_is_batched(view) ? panels.panels * panels.stride * nr * size : 0;
    job->part.left_row = nr;
    job->part.left_group = panels.stride * nr;
}

static void find_right(few_rows_job *job) {
    const eg_cpu_kernel *kernel = job->kernel;
    const eg_view *view = &job->product.right;
    const int64_t nr = kernel->micro.nr;
    job->part.dtype = view->dtype;
    const int64_t size = (int64_t)eg_size_of(job->part.dtype);
    if (view->space != EG_PACKED_B) {
        job->b = eg_cpu_bind(job->run->call, view);
        job->part.by_columns = eg_cpu_is_amx(kernel) || view->col_stride != 1;
        job->part.k_bytes = view->row_stride * size;
        job->part.panel_bytes = nr * size;
        job->part.col_bytes = view->col_stride * size;
        return;
    }
    job->right = eg_cpu_packed_b(job->run, kernel, view);
    job->part.padded = true;
    if (eg_cpu_is_amx(kernel)) {
        const eg_amx_grid grid =
            eg_amx_grid_of(kernel->pack.bf16_terms, job->product.cols, job->product.depth);
        job->right_panel = grid.row_pitch * (int64_t)grid.block_bytes;
        job->right_item = eg_is_batched(view) ? grid.rows * job->right_panel : 0;
        job->part.k_bytes = (int64_t)grid.block_bytes / EG_AMX_BLOCK;
        return;
    }
    const eg_panels panels = eg_cpu_panels(kernel, job->product.depth, job->product.cols);
    job->right_panel = panels.stride * nr * size;
    job->right_item = eg_is_batched(view) ? panels.panels * job->right_panel : 0;
    job->part.k_bytes = nr * size;
    job->part.col_bytes = size;
    job->part.panel_bytes = job->right_panel;
}

/* A block of 32 k after the other. More rows than a block has are laid out before. */
static const void *gather_blocks(const few_rows_job *job, int64_t item, int64_t k, int64_t depth, char *to) {
    const eg_cpu_kernel *kernel = job->kernel;
    const int64_t rows = job->product.rows;
    _Alignas(64) float tile[EG_AMX_BLOCK * EG_AMX_BLOCK];
    char *at = to;
    for (int64_t end = k + depth; k < end; k += EG_AMX_BLOCK, at += EG_AMX_TERM_BYTES) {
        if (job->left != NULL) {
            kernel->pack.turn_few(at, job->left + item * job->left_item + k * job->left_k,
                                  rows > EG_AMX_BLOCK / 2);
            continue;
        }
        const bool turns = turns_left(job);
        const int64_t cols = eg_least(EG_AMX_BLOCK, end - k);
        if (job->a.row_stride == 1 && job->a.col_stride != 1) { /* as it lies: its transpose */
            const eg_operand a = eg_cpu_transpose(job->a);
            const eg_cpu_packs packs = {.left_t = turns ? NULL : at, .right = turns ? at : NULL};
            const eg_rows from = eg_cpu_block_rows(kernel, &a, item, k, cols, 0, rows, tile);
            kernel->pack.split(&from, 0, EG_AMX_BLOCK / 2, cols, rows, &packs);
            continue;
        }
        const bool some =
            rows <= kernel->micro.rows_along_k && job->right == NULL; /* are read of the block */
        const int64_t count = some ? eg_ceil_div(rows, 2) * 2 : EG_AMX_BLOCK / 2;
        const eg_cpu_packs packs = {.left = turns ? NULL : at, .right_t = turns ? at : NULL};
        const eg_rows from = eg_cpu_block_rows(kernel, &job->a, item, 0, rows, k, cols, tile);
        kernel->pack.split(&from, 0, count, rows, cols, &packs); /* bf16 take any number */
    }
    return to;
}

/* Lays out a pass of the left operand in L1: rows of nr k. */
static const void *gather(const few_rows_job *job, int64_t item, int64_t k, int64_t depth, char *to) {
    const eg_cpu_kernel *kernel = job->kernel;
    if (eg_cpu_is_amx(kernel)) return gather_blocks(job, item, k, depth, to);
    const int64_t nr = kernel->micro.nr, rows = job->product.rows;
    const size_t group = (size_t)(rows * nr) * eg_size_of(kernel->compute);
    char *at = to;
    for (int64_t end = k + depth; k < end; k += nr, at += group) {
        const int64_t count = eg_least(nr, end - k);
        if (job->left != NULL) {
            kernel->pack.load(at, job->left + item * job->left_item + k * job->left_k, job->left_dtype, 1, nr,
                              rows, count, rows);
        } else {
            kernel->pack.load(at, eg_cpu_at(&job->a, item, 0, k), job->a.dtype, job->a.row_stride,
                              job->a.col_stride, rows, count, rows);
        }
    }
    return to;
}

static const void *left_at(const few_rows_job *job, int64_t item, int64_t k) {
    if (job->left == NULL) return eg_cpu_at(&job->a, item, 0, k);
    return job->left + item * job->left_item + k * job->left_k;
}

static const char *right_at(const few_rows_job *job, int64_t item, int64_t k, int64_t col) {
    if (job->right == NULL) return eg_cpu_at(&job->b, item, k, col);
    const int64_t panel = eg_div(col, job->kernel->micro.nr), first = col - panel * job->kernel->micro.nr;
    return job->right + item * job->right_item + panel * job->right_panel + k * job->part.k_bytes +
           first * job->part.col_bytes;
}

/* Of a micro-panel of sums. Tiles have room for whole ones of the few rows. */
static int64_t rows_of_sums(const few_rows_job *job) {
    return job->part.as_tiles ? eg_cpu_whole_panels(job->kernel, job->product.rows) : job->product.rows;
}

/* A pass sums from zero, and is then added to those before, as passes of any product are. */
static void run_part(const few_rows_job *job, eg_few_rows *x, bool first, char *totals, char *sums) {
    const int64_t numbers = rows_of_sums(job) * eg_cpu_whole_panels(job->kernel, x->cols);
    x->sums = first ? totals : sums;
    if (!x->as_tiles) memset(x->sums, 0, (size_t)numbers * eg_size_of(job->kernel->compute));
    job->kernel->micro.few_rows(x);
    if (!first) job->kernel->epilogue.add_rows(totals, sums, 0, 1, numbers);
}

/* By micro-panels where the columns of the right operand are not neighbours, and on the matrix unit. */
static void run_pass(const few_rows_job *job, eg_few_rows *x, int64_t item, int64_t k, int64_t col,
                     int64_t cols, bool first, char *totals, char *sums) {
    const int64_t step = x->by_columns || eg_cpu_is_amx(job->kernel) ? job->kernel->micro.nr : cols;
    for (int64_t at = 0; at < cols; at += step) {
        x->cols = eg_least(step, cols - at);
        x->right = right_at(job, item, k, col + at);
        run_part(job, x, first, totals + (size_t)(at * rows_of_sums(job)) * eg_size_of(job->kernel->compute),
                 sums);
    }
}

static void run_epilogue(const few_rows_job *job, int64_t item, int64_t col, int64_t cols, char *totals,
                         char *spare) {
    const eg_cpu_kernel *kernel = job->kernel;
    const int64_t nr = kernel->micro.nr, row_bytes = nr * (int64_t)eg_size_of(kernel->compute);
    const int64_t rows = eg_cpu_epilogue_rows(kernel);
    for (int64_t end = col + cols; col < end; col += nr) {
        eg_tile tile = {.item = item, .col = col, .cols = eg_least(nr, end - col), .spare = spare};
        for (; tile.row < job->op->rows; tile.row += rows, totals += tile.rows * row_bytes) {
            eg_tile_epilogue t;
            tile.rows = eg_least(rows, job->op->rows - tile.row);
            tile.values = totals;
            eg_cpu_epilogue_begin(&t, &job->epilogue, &tile);
            eg_cpu_epilogue_finish(&t);
        }
    }
}

/* A tile of few columns, where it is, or from the sums of its transpose. */
static void find_tile(const few_rows_job *job, eg_tile *tile, int64_t first_row, char *totals) {
    const eg_cpu_kernel *kernel = job->kernel;
    const int64_t nr = kernel->micro.nr, at = tile->row - first_row, panel = eg_div(at, nr);
    const int64_t number = (panel * rows_of_sums(job) + tile->col) * nr + (at - panel * nr);
    if (job->part.as_tiles) {
        tile->values = totals + (size_t)number * eg_size_of(kernel->compute);
        return;
    }
    kernel->pack.load(tile->values, totals + (size_t)number * eg_size_of(kernel->compute), kernel->compute, 1,
                      nr, tile->rows, tile->cols, tile->rows);
}

static void run_turned_epilogue(const few_rows_job *job, int64_t item, int64_t row, int64_t rows,
                                char *totals, char *spare) {
    enum { OF_EPILOGUE = 2 }; /* spare tiles of it */
    const eg_cpu_kernel *kernel = job->kernel;
    const int64_t mr = kernel->micro.mr;
    eg_tile tile = {.item = item, .spare = spare};
    tile.values = spare + (size_t)(OF_EPILOGUE * eg_cpu_epilogue_rows(kernel) * kernel->micro.nr) *
                              eg_size_of(kernel->compute);
    for (; tile.col < job->op->cols; tile.col += kernel->micro.nr) {
        tile.cols = eg_least(kernel->micro.nr, job->op->cols - tile.col);
        for (tile.row = row; tile.row < row + rows; tile.row += mr) {
            eg_tile_epilogue t;
            tile.rows = eg_least(mr, row + rows - tile.row);
            find_tile(job, &tile, row, totals);
            eg_cpu_epilogue_begin(&t, &job->epilogue, &tile);
            eg_cpu_epilogue_finish(&t);
        }
    }
}

static void run_block(void *arg, int64_t index, int thread) {
    const few_rows_job *job = arg;
    const eg_op *product = &job->product;
    const eg_cpu_kernel *kernel = job->kernel;
    const size_t number = eg_size_of(kernel->compute);
    const int64_t item = eg_div(index, job->blocks), col = (index - item * job->blocks) * job->nc,
                  cols = eg_least(job->nc, product->cols - col);
    eg_few_rows x = job->part;
    char *spare = eg_cpu_scratch(job->run, thread);
    char *totals = spare + (size_t)eg_cpu_spare_numbers(kernel) * number;
    const size_t of_sums = (size_t)(rows_of_sums(job) * eg_cpu_whole_panels(kernel, job->nc)) * number;
    char *sums = totals + of_sums, *gathered = sums + of_sums;
    if (kernel->micro.enter != NULL) kernel->micro.enter();
    for (int64_t summand = 0; summand < product->summed; summand++) {
        for (int64_t k = 0; k < product->depth; k += job->kc) {
            x.depth = eg_least(job->kc, product->depth - k);
            x.left = job->gathers ? gather(job, item + summand, k, x.depth, gathered)
                                  : left_at(job, item + summand, k);
            run_pass(job, &x, item + summand, k, col, cols, summand == 0 && k == 0, totals, sums);
        }
    }
    if (kernel->micro.leave != NULL) kernel->micro.leave();
    if (job->is_turned) {
        run_turned_epilogue(job, item, col, cols, totals, spare);
    } else {
        run_epilogue(job, item, col, cols, totals, spare);
    }
    if (job->epilogue.non_temporal) eg_cpu_order_stores();
}

static eg_op transpose_of(const eg_op *op) {
    eg_op x = *op;
    x.left = eg_transposed(op->right), x.right = eg_transposed(op->left);
    x.rows = op->cols, x.cols = op->rows;
    return x;
}

_Static_assert(sizeof(few_rows_job) <= EG_CPU_JOB, "a job");

void eg_cpu_few_rows(const eg_cpu_run *run, const eg_step *step) {
    const eg_cpu_step *detail = eg_cpu_detail(step);
    const eg_op *op = &run->list->op[step->op];
    const bool turned = detail->streams == EG_CPU_STREAMS_LEFT;
    few_rows_job own, *job = eg_cpu_job(run, &own);
    *job = (few_rows_job){.run = run,
                          .kernel = detail->kernel,
                          .op = op,
                          .product = turned ? transpose_of(op) : *op,
                          .is_turned = turned,
                          .nc = turned ? step->tile_rows : step->tile_cols,
                          .kc = step->k_block};
    job->part.rows = job->product.rows;
    job->part.as_tiles = turned && eg_cpu_has_tiles(job->kernel);
    job->blocks = eg_ceil_div(job->product.cols, job->nc);
    eg_cpu_prepare_epilogue(run, step, &job->epilogue);
    find_left(job, turned ? detail->right : detail->left);
    find_right(job);
    eg_cpu_share(run, step->threads, op->items * job->blocks, run_block, job);
}
