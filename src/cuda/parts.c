/* How steps with column sums are cut: into chunks, and into portions that the workspace has room for. Pure,
 * like select.c. */
#include "device.h"

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

const eg_step *eg_cuda_rest_step(const eg_plan *plan) {
    for (int i = 1; i < plan->steps; i++) {
        const eg_cuda_kernel *row = plan->step[i].kernel;
        if (row != NULL && (row->takes & EG_CUDA_REST) != 0) return &plan->step[i];
    }
    return NULL;
}

int64_t eg_cuda_counts(const eg_plan *plan) { return 1 + ceil_div(plan->problem.m, EG_CUDA_REST_BAND); }

/* Of 8 L2 has the least to read; but what the first wave reads must be made before it. */
int64_t eg_cuda_high(const eg_plan *plan) {
    const int64_t high = 8, bands = ceil_div(plan->problem.m, EG_CUDA_REST_BAND);
    return eg_cuda_rest_step(plan) == NULL || bands >= 4 * high ? high : high / 2;
}

/* The bands that the first wave of tiles reads, a cluster of two multiprocessors each making a tile; but not
 * more than half of all. */
int64_t eg_cuda_head(int multiprocessors, const eg_plan *plan) {
    const eg_problem *p = &plan->problem;
    const eg_step *rest = eg_cuda_rest_step(plan);
    if (rest == NULL) return p->m;
    const int64_t across = ceil_div(p->k, rest->tile_cols), high = eg_cuda_high(plan);
    const int64_t blocks = multiprocessors / 2 / (high * across);
    const int64_t bands = high * (blocks > 0 ? blocks : 1);
    return EG_CUDA_REST_BAND * lesser(bands, ceil_div(p->m, EG_CUDA_REST_BAND) / 2);
}

int64_t eg_cuda_rest_chunks(int multiprocessors, const eg_plan *plan) {
    return ceil_div(plan->problem.m - eg_cuda_head(multiprocessors, plan), EG_CUDA_REST_CHUNK);
}

/* As many chunks as make one wave: four blocks a multiprocessor, as act_grad.cu is built for. And none so
 * long that its sums in f32 lose much. */
int64_t eg_cuda_chunks(int multiprocessors, const eg_plan *plan) {
    const eg_problem *p = &plan->problem;
    const int64_t rows = eg_cuda_head(multiprocessors, plan);
    const eg_cuda_kernel *row = plan->step[0].kernel;
    const int64_t strips = ceil_div(p->n, row->tile_cols) * p->batch, room = 4 * (int64_t)multiprocessors;
    const int64_t wave = strips > 0 && room > strips ? room / strips : 1, few = ceil_div(rows, 1 << 14);
    return lesser(wave > few ? wave : few, ceil_div(rows, row->tile_rows));
}

/* No row that makes column sums has smaller chunks; and portions are whole tiles of every row. */
enum { LEAST_CHUNK = 32, LEAST_PORTION = 256 };

/* Of all chunks, where that is not too much; else of a portion, and a row for the total. */
bool eg_cuda_sums_rows(const eg_plan *plan, int64_t cols, int64_t *rows) {
    const eg_problem *p = &plan->problem;
    const bool both = eg_wants(p, EG_OP_D_BIAS) && eg_wants(p, EG_OP_D_BIAS_BELOW);
    const int64_t most = (int64_t)(both ? 15 : 30) << 20, least = LEAST_PORTION / LEAST_CHUNK;
    const int64_t fit = cols > 0 ? most / (int64_t)eg_dtype_size(p->compute) / cols : 0;
    const int64_t room = fit > least ? fit : least;
    if (__builtin_mul_overflow(ceil_div(p->m, LEAST_CHUNK), p->batch, rows)) return false;
    if (*rows > room) *rows = room + 1;
    return true;
}

/* Portions of whole items, or else of rows of one. */
eg_cuda_portions eg_cuda_portions_of(const eg_plan *plan, int64_t cols, int64_t items, int64_t rows,
                                     int64_t chunk_rows) {
    const int64_t chunks = ceil_div(rows, chunk_rows);
    int64_t have = 0;
    if (!eg_cuda_sums_rows(plan, cols, &have) || items * chunks <= have)
        return (eg_cuda_portions){items, rows, 0};
    const int64_t room = have - 1;
    if (chunks <= room) return (eg_cuda_portions){room / chunks, rows, room};
    return (eg_cuda_portions){1, room * chunk_rows / LEAST_PORTION * LEAST_PORTION, room};
}

static const eg_step *maker_of(const eg_plan *plan, eg_buffer_id buffer) {
    const eg_step *step = plan->step;
    while (buffer == EG_BUFFER_SUMS_BELOW && step->epilogue != EG_EPILOGUE_CHAIN) step++;
    return step; /* those of d_bias are made by the first step */
}

eg_cuda_column_sum eg_cuda_last_sum(int multiprocessors, const eg_plan *plan, uint64_t workspace,
                                    eg_buffer_id buffer) {
    const eg_problem *p = &plan->problem;
    const eg_step *maker = maker_of(plan, buffer);
    const eg_cuda_kernel *row = maker->kernel;
    int64_t items = p->batch, rows = p->m, chunk_rows = eg_cuda_sum_rows(row);
    eg_cuda_column_sum sum = {.sums = workspace + plan->region[buffer].offset,
                              .cols = buffer == EG_BUFFER_SUMS ? p->n : p->k};
    if (row->family == EG_CUDA_VECTORS) {
        rows = eg_cuda_chunks(multiprocessors, plan) + eg_cuda_rest_chunks(multiprocessors, plan);
        chunk_rows = 1;
    }
    if (maker->kind == EG_STEP_GEMM) items = eg_cuda_product(plan, maker, workspace).items;
    const eg_cuda_portions by = eg_cuda_portions_of(plan, sum.cols, items, rows, chunk_rows);
    sum.sums += (uint64_t)(by.total * sum.cols) * eg_dtype_size(p->compute);
    sum.rows = by.total > 0 ? 1 : items * ceil_div(rows, chunk_rows);
    return sum;
}
