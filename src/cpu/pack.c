/* SPDX-License-Identifier: Apache-2.0 */
/* Packing: reads an operand of any layout and storage type once, and writes every layout that products read.
 */
#include "cpu.h"

typedef struct pack_job {
    const eg_cpu_run *run;
    const eg_cpu_kernel *kernel;
    eg_dtype dtype; /* of micro-panels */
    eg_operand x;
    char *panels, *panels_t; /* X in micro-panels, and its transpose; NULL: not wanted */
    int64_t bands, segments, segment_blocks;
    eg_cpu_packs blocks; /* the first AMX tile block of each layout of X */
    bool shared;         /* other cores read them */
} pack_job;

/* ---- Memory --------------------------------------------------------------------------------------- */

void eg_cpu_touch(const eg_operand *x, int64_t item, int64_t row, int64_t rows, int64_t col, int64_t cols) {
    enum { LINE = 64, SHORT = 2 * LINE };
    const int64_t bytes = cols * (int64_t)eg_size_of(x->dtype);
    if (x->col_stride != 1 || bytes <= SHORT) return;
    for (int64_t i = 0; i < rows; i++) {
        const volatile char *from = eg_cpu_at(x, item, row + i, col);
        for (int64_t at = 0; at < bytes; at += LINE) (void)from[at];
    }
}

/* ---- Micro-panels ------------------------------------------------------------------------------- */

/* Rows whose columns are neighbours. The hardware prefetcher does not follow from one row to the next. */
static void prefetch_rows(const eg_operand *x, int64_t item, int64_t row, int64_t rows, int64_t col,
                          int64_t cols) {
    const int64_t bytes = cols * (int64_t)eg_size_of(x->dtype);
    for (int64_t i = row; i < row + rows; i++) {
        const char *from = eg_cpu_at(x, item, i, col);
        for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
    }
}

/* `rows` rows of a micro-panel from rows of `cols` elements, and zeros up to `padded` rows. */
static void to_panel(const eg_cpu_kernel *kernel, eg_dtype dtype, char *to, const eg_operand *x,
                     const char *from, int64_t rows, int64_t cols, int64_t padded) {
    _Alignas(64) char tile[EG_CPU_WIDEST * EG_CPU_WIDEST * sizeof(float)];
    const int64_t nr = kernel->micro.nr, from_bytes = nr * x->row_stride * (int64_t)eg_size_of(x->dtype);
    if (dtype == kernel->compute) {
        kernel->pack.load(to, from, x->dtype, x->row_stride, x->col_stride, rows, cols, padded);
        return;
    }
    for (; padded > 0; padded -= nr, rows -= nr, from += from_bytes) {
        const int64_t some = eg_least(nr, padded);
        kernel->pack.load(tile, from, x->dtype, x->row_stride, x->col_stride, eg_least(rows, some), cols,
                          some);
        kernel->epilogue.store(tile, to, dtype, nr, 1, some, nr);
        to += nr * nr * (int64_t)eg_size_of(dtype);
    }
}

/* Packs a part of `x` to its micro-panels. */
static void to_panels(const pack_job *job, const eg_operand *x, int64_t item, int64_t row, int64_t rows,
                      int64_t col, int64_t cols, char *to) {
    const eg_cpu_kernel *kernel = job->kernel;
    const eg_panels panels = eg_cpu_panels(kernel, x->rows, x->cols);
    const int64_t padded = row + rows == x->rows ? panels.rows - row : rows;
    for (const int64_t end = col + cols; col < end; col += kernel->micro.nr) {
        const int64_t panel = item * panels.panels + eg_div(col, kernel->micro.nr);
        const int64_t element = (panel * panels.stride + row) * kernel->micro.nr,
                      next = col + kernel->micro.nr;
        if (x->col_stride == 1 && next < end)
            prefetch_rows(x, item, row, rows, next, eg_least(kernel->micro.nr, end - next));
        to_panel(kernel, job->dtype, to + element * (int64_t)eg_size_of(job->dtype), x,
                 eg_cpu_at(x, item, row, col), rows, eg_least(kernel->micro.nr, end - col), padded);
    }
}

/* One work item is NR rows of X, as long as some micro-panels are wide. It is read from memory once, and for
 * the transpose again from L2. */
enum { SEGMENT = 16 };

static void pack_segment(void *arg, int64_t index, int thread) {
    (void)thread;
    const pack_job *job = arg;
    const eg_operand *x = &job->x;
    const int64_t nr = job->kernel->micro.nr, item = index / (job->bands * job->segments);
    const int64_t row = index / job->segments % job->bands * nr, rows = eg_least(nr, x->rows - row);
    const int64_t col = index % job->segments * SEGMENT * nr, cols = eg_least(SEGMENT * nr, x->cols - col);
    if (job->panels != NULL) to_panels(job, x, item, row, rows, col, cols, job->panels);
    if (job->panels_t == NULL) return;
    const eg_operand xt = eg_cpu_transpose(*x);
    to_panels(job, &xt, item, col, cols, row, rows, job->panels_t);
}

/* A column-major X is taken as its row-major transpose. */
static void pack_panels(pack_job *job, int threads, int64_t items, char *to, char *to_t) {
    const bool turn = job->x.row_stride == 1 && job->x.col_stride != 1;
    if (turn) job->x = eg_cpu_transpose(job->x);
    job->panels = turn ? to_t : to;
    job->panels_t = turn ? to : to_t;
    job->bands = eg_ceil_div(job->x.rows, job->kernel->micro.nr);
    job->segments = eg_ceil_div(job->x.cols, SEGMENT * (int64_t)job->kernel->micro.nr);
    eg_cpu_share(job->run, threads, job->bands * job->segments * items, pack_segment, job);
}

/* ---- AMX tile blocks ---------------------------------------------------------------------------- */

eg_rows eg_cpu_block_rows(const eg_cpu_kernel *kernel, const eg_operand *x, int64_t item, int64_t row,
                          int64_t rows, int64_t col, int64_t cols, float *tile) {
    const char *at = eg_cpu_at(x, item, row, col);
    if (x->col_stride == 1 && x->dtype == kernel->dtype)
        return (eg_rows){(char *)at, x->row_stride * (int64_t)eg_size_of(x->dtype), x->dtype, 1};
    kernel->pack.load(tile, at, x->dtype, x->row_stride, x->col_stride, rows, cols, rows);
    return (eg_rows){(char *)tile, EG_AMX_BLOCK * sizeof(float), EG_F32, 1};
}

/* A part of a micro-panel of blocks: 32 rows of X. */
static void pack_block_row(void *arg, int64_t index, int thread) {
    enum { TOUCHED = 16 }; /* blocks */
    (void)thread;
    const pack_job *job = arg;
    const eg_operand *x = &job->x;
    const eg_cpu_kernel *kernel = job->kernel;
    const eg_amx_grid grid = eg_amx_grid_of(kernel->pack.bf16_terms, x->rows, x->cols);
    const int64_t of_rows = index / job->segments, first = index % job->segments * job->segment_blocks;
    const int64_t item = of_rows / grid.rows, panel = of_rows % grid.rows, row = panel * EG_AMX_BLOCK;
    const int64_t rows = eg_least(EG_AMX_BLOCK, x->rows - row),
                  end = eg_least(first + job->segment_blocks, grid.cols);
    _Alignas(64) float tile[EG_AMX_BLOCK * EG_AMX_BLOCK];
    bool fits = true;
    for (int64_t i = first; i < end; i++) {
        const int64_t col = i * EG_AMX_BLOCK, cols = eg_least(EG_AMX_BLOCK, x->cols - col);
        if ((i - first) % TOUCHED == 0)
            eg_cpu_touch(x, item, row, rows, col,
                         eg_least(eg_least(TOUCHED, end - i) * EG_AMX_BLOCK, x->cols - col));
        const eg_rows from = eg_cpu_block_rows(kernel, x, item, row, rows, col, cols, tile);
        const eg_cpu_packs to = eg_amx_block_at(&job->blocks, &grid, item, panel, i);
        if (job->shared && i + 1 < end) {
            const eg_cpu_packs next = eg_amx_block_at(&job->blocks, &grid, item, panel, i + 1);
            kernel->pack.prefetch_write(&next, 0, EG_AMX_BLOCK / 2);
        }
        fits &= kernel->pack.split(&from, 0, EG_AMX_BLOCK / 2, rows, cols, &to);
    }
    if (!fits) eg_cpu_refuse(job->run);
}

/* Few rows are too few micro-panels for many threads. */
static int64_t blocks_of_segment(int64_t rows, int64_t cols, int threads) {
    enum { PARTS_A_THREAD = 2, LEAST = 4 };
    int64_t blocks = cols;
    if (threads > 1 && rows > 0) blocks = eg_ceil_div(cols, eg_ceil_div(PARTS_A_THREAD * threads, rows));
    return blocks > LEAST ? blocks : LEAST;
}

/* A column-major X is taken as its row-major transpose: a left operand of one is a transposed left operand of
 * the other. */
static void pack_blocks(pack_job *job, int threads, int64_t items, eg_cpu_packs to) {
    if (job->x.row_stride == 1 && job->x.col_stride != 1) {
        job->x = eg_cpu_transpose(job->x);
        to = (eg_cpu_packs){.left = to.left_t, .right_t = to.right, .right = to.right_t, .left_t = to.left};
    }
    const int64_t rows = eg_ceil_div(job->x.rows, EG_AMX_BLOCK) * items,
                  cols = eg_ceil_div(job->x.cols, EG_AMX_BLOCK);
    job->blocks = to;
    job->shared = threads > 1;
    job->segment_blocks = blocks_of_segment(rows, cols, threads);
    job->segments = eg_ceil_div(cols, job->segment_blocks);
    eg_cpu_share(job->run, threads, rows * job->segments, pack_block_row, job);
}

/* ---- Fused packing ------------------------------------------------------------------------------ */

/* To the layout of a right operand, or `left`: of its transpose as a left one. */
static void pack_part_blocks(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_operand *x,
                             int64_t item, const eg_part *part, bool left, char *to) {
    enum { TOUCHED = 16 }; /* blocks */
    const bool turn = x->row_stride == 1 && x->col_stride != 1;
    const eg_operand from = turn ? eg_cpu_transpose(*x) : *x;
    const int64_t row = turn ? part->col : part->k, row_end = row + (turn ? part->cols : part->depth);
    const int64_t col = turn ? part->k : part->col, col_end = col + (turn ? part->depth : part->cols);
    const eg_amx_grid grid = eg_amx_grid_of(kernel->pack.bf16_terms, row_end - row, col_end - col);
    const eg_cpu_packs first = {.right = turn || left ? NULL : to,
                                .right_t = turn && !left ? to : NULL,
                                .left = turn && left ? to : NULL,
                                .left_t = !turn && left ? to : NULL};
    _Alignas(64) float tile[EG_AMX_BLOCK * EG_AMX_BLOCK];
    bool fits = true;
    for (int64_t i = 0; i < grid.rows; i++) {
        const int64_t at = row + i * EG_AMX_BLOCK, rows = eg_least(EG_AMX_BLOCK, row_end - at);
        for (int64_t j = 0; j < grid.cols; j++) {
            const int64_t across = col + j * EG_AMX_BLOCK, cols = eg_least(EG_AMX_BLOCK, col_end - across);
            if (left && j % TOUCHED == 0)
                eg_cpu_touch(&from, item, at, rows, across,
                             eg_least(TOUCHED * EG_AMX_BLOCK, col_end - across));
            const eg_rows numbers = eg_cpu_block_rows(kernel, &from, item, at, rows, across, cols, tile);
            const eg_cpu_packs block = eg_amx_block_at(&first, &grid, 0, i, j);
            fits &= kernel->pack.split(&numbers, 0, EG_AMX_BLOCK / 2, rows, cols, &block);
        }
    }
    if (!fits) eg_cpu_refuse(run);
}

void eg_cpu_pack_part(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_operand *x, int64_t item,
                      const eg_part *part, char *to) {
    if (eg_cpu_is_amx(kernel)) {
        pack_part_blocks(run, kernel, x, item, part, false, to);
    } else {
        kernel->pack.load(to, eg_cpu_at(x, item, part->k, part->col), x->dtype, x->row_stride, x->col_stride,
                          part->depth, part->cols, part->depth);
    }
}

/* A block of a left operand is 32 rows as they are, with zeros beyond the matrix. */
void eg_cpu_turn_blocks(const eg_cpu_kernel *kernel, const char *from, int64_t step, int64_t depth, bool left,
                        char *to) {
    const int64_t row = EG_AMX_TERM_BYTES / EG_AMX_BLOCK;
    for (; depth > 0; depth -= EG_AMX_BLOCK, from += step, to += EG_AMX_TERM_BYTES) {
        const eg_rows rows = {(char *)from, row, kernel->dtype, 1};
        const eg_cpu_packs packs = {.right = left ? NULL : to, .left_t = left ? to : NULL};
        kernel->pack.split(&rows, 0, EG_AMX_BLOCK / 2, EG_AMX_BLOCK, EG_AMX_BLOCK, &packs);
    }
}

void eg_cpu_pack_left_part(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_operand *x_t,
                           int64_t item, const eg_part *part, char *to) {
    pack_part_blocks(run, kernel, x_t, item, part, true, to);
}

/* ---- A matrix ------------------------------------------------------------------------------------- */

_Static_assert(sizeof(pack_job) <= EG_CPU_JOB, "a job");

void eg_cpu_pack_matrix(const eg_cpu_run *run, const eg_cpu_kernel *kernel, eg_dtype dtype, int threads,
                        eg_operand x, int64_t items, const eg_cpu_packs *to) {
    pack_job own, *job = eg_cpu_job(run, &own);
    if (x.data == NULL || x.rows == 0 || x.cols == 0) return;
    *job = (pack_job){.run = run, .kernel = kernel, .dtype = dtype, .x = x};
    if (eg_cpu_is_amx(kernel)) {
        pack_blocks(job, threads, items, *to);
    } else {
        pack_panels(job, threads, items, to->left != NULL ? to->left : to->right, to->right_t);
    }
}

void eg_cpu_pack(const eg_cpu_run *run, const eg_step *step) {
    const eg_cpu_step *detail = eg_cpu_detail(step);
    const eg_op *op = &run->list->op[detail->source];
    const eg_view *view = detail->source_is_right ? &op->right : &op->left;
    const int64_t batch = op->items > op->summed ? op->items : op->summed;
    eg_operand x = eg_cpu_bind(run->call, view);
    if (view->transposed) x = eg_cpu_transpose(x);
    const eg_cpu_packs to = eg_cpu_packs_of(run, &detail->packs);
    eg_cpu_pack_matrix(run, detail->kernel, detail->kernel->compute, step->threads, x,
                       eg_has_items(&x) ? batch : 1, &to);
}
