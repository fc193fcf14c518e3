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
    int64_t rows, cols, bands, segments;
    int64_t band, segment; /* rows, a multiple of a chunk of column sums, and columns */
    bool only_sums;        /* of columns: there is no result */
    bool by_rows;          /* from end to end */
    bool is_far;           /* what it reads comes from memory: not, where steps run block by block */
} map_job;

/* A segment of a band: long pieces of rows, tile after tile. The same segment of the next band follows, of
 * which the first rows have been prefetched; block by block, the blocks are those of the other steps. */
static void map_segment(void *arg, int64_t index, int thread) {
    const map_job *job = arg;
    const eg_cpu_kernel *kernel = job->kernel;
    const int64_t rows = eg_cpu_epilogue_rows(kernel), nr = kernel->micro.nr;
    char *scratch = eg_cpu_scratch(job->run, thread);
    eg_tile tile = {.item = index / (job->bands * job->segments),
                    .values = scratch,
                    .spare = scratch + (size_t)(rows * nr) * eg_dtype_size(kernel->compute)};
    const int64_t in_item = index % (job->bands * job->segments);
    const int64_t band = job->is_far ? in_item % job->bands : in_item / job->segments,
                  segment = job->is_far ? in_item / job->bands : in_item % job->segments;
    const int64_t first = band * job->band, col = segment * job->segment;
    const int64_t end = eg_least(first + job->band, job->rows),
                  cols = eg_least(job->segment, job->cols - col);
    const bool fetches = job->epilogue.ahead > 0;
    const bool by_chunks = job->only_sums || job->by_rows;
    for (tile.row = first; by_chunks && tile.row < end; tile.row += EG_CPU_CHUNK) {
        tile.rows = eg_least(EG_CPU_CHUNK, end - tile.row);
        tile.col = col, tile.cols = cols;
        (job->only_sums ? eg_cpu_epilogue_sum : eg_cpu_epilogue_by_rows)(&job->epilogue, &tile);
    }
    if (by_chunks) return;
    for (tile.row = first; tile.row < end; tile.row += rows) {
        tile.rows = eg_least(rows, end - tile.row);
        tile.col = col, tile.cols = cols;
        if (job->is_far && (!fetches || tile.row == 0)) eg_cpu_epilogue_touch(&job->epilogue, &tile);
        for (tile.col = col; tile.col < col + cols; tile.col += nr) {
            eg_tile_epilogue t;
            tile.cols = eg_least(nr, col + cols - tile.col);
            eg_cpu_epilogue_begin(&t, &job->epilogue, &tile);
            eg_cpu_epilogue_finish(&t);
        }
    }
}

/* Whether lines had better be prefetched beside the work than loaded before it, in one go. Tile blocks take a
 * line of each row: of long rows, one go is faster in itself, and only an activation is work enough. */
static bool overlaps(const map_job *job, const eg_op *op) {
    enum { SHORT = 512 };
    const eg_term *at_value = eg_term_of(op, EG_TERM_GRAD_AT_VALUE),
                  *act = at_value != NULL ? at_value : eg_term_of(op, EG_TERM_GRAD_AT_SAVED);
    const bool is_long = eg_least(job->segment, job->cols) * (int64_t)eg_size_of(op->left.dtype) > SHORT;
    return !eg_cpu_is_amx(job->kernel) || !is_long ||
           (act != NULL && act->activation != EG_ACT_NONE && act->activation != EG_ACT_RELU);
}

/* Micro-panels of a segment: many, or as few as give every thread its part. Row by row, the column sums of a
 * segment stay in L1. */
static int64_t segment_of(const map_job *job, const eg_op *op, int64_t bands, int threads) {
    enum { LONG = 16, PARTS_A_THREAD = 4, SUMS = 8192 /* bytes */ };
    const int64_t nr = job->kernel->micro.nr, panels = eg_ceil_div(op->cols, nr);
    const int64_t even = threads > 1 ? panels * bands / (PARTS_A_THREAD * threads) : panels;
    const int64_t sums = job->kernel->compute == EG_F64 ? SUMS / 8 : SUMS / 4;
    const int64_t most = job->by_rows ? sums / nr : LONG;
    return even < 1 ? 1 : eg_least(most, even);
}

_Static_assert(sizeof(map_job) <= EG_CPU_JOB, "a job");

void eg_cpu_map(const eg_cpu_run *run, const eg_step *step) {
    const eg_op *op = &run->list->op[step->op];
    const eg_cpu_kernel *kernel = eg_cpu_detail(step)->kernel;
    const int64_t nr = kernel->micro.nr, chunks = op->items * eg_cpu_chunks(op->rows);
    map_job own, *job = eg_cpu_job(run, &own);
    *job = (map_job){.run = run,
                     .kernel = kernel,
                     .rows = op->rows,
                     .cols = op->cols,
                     .band = EG_CPU_CHUNK,
                     .is_far = step->tile_rows == 0};
    eg_cpu_prepare_epilogue(run, step, &job->epilogue);
    job->only_sums = eg_cpu_epilogue_only_sums(&job->epilogue);
    job->by_rows = !job->only_sums && job->is_far && eg_cpu_epilogue_goes_by_rows(&job->epilogue, op->cols);
    job->segment = nr * segment_of(job, op, chunks, step->threads);
    if (step->tile_rows > 0) job->band = step->tile_rows, job->segment = step->tile_cols;
    job->bands = eg_ceil_div(op->rows, job->band);
    job->segments = eg_ceil_div(op->cols, job->segment);
    if (job->is_far && overlaps(job, op) && eg_cpu_epilogue_fetches(&job->epilogue, eg_least(nr, op->cols)))
        job->epilogue.ahead = eg_cpu_epilogue_rows(kernel);
    eg_cpu_share(run, step->threads, op->items * job->bands * job->segments, map_segment, job);
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

_Static_assert(sizeof(sum_job) <= EG_CPU_JOB, "a job");

void eg_cpu_reduce(const eg_cpu_run *run, const eg_step *step) {
    const eg_op_list *list = run->list;
    const eg_op *op = &list->op[step->op];
    const eg_temporary *sums = &list->temporary[op->left.id];
    const eg_cpu_step *detail = eg_cpu_detail(step);
    const int64_t panels = eg_ceil_div(op->cols, detail->kernel->micro.nr);
    sum_job own, *job = eg_cpu_job(run, &own);
    *job = (sum_job){.run = run,
                     .kernel = detail->kernel,
                     .out = eg_cpu_bind(run->call, &op->out),
                     .accumulate = op->accumulate,
                     .sums = eg_cpu_region(run, detail->sums),
                     .rows = eg_cpu_chunks(sums->rows) * sums->items,
                     .width = panels * detail->kernel->micro.nr,
                     .cols = op->cols};
    eg_cpu_share(run, step->threads, panels, sum_panel, job);
}
