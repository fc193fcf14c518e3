/* How steps are cut: those with column sums into chunks, and into portions that the workspace has room for;
 * and the last tiles of a product along its depth. Pure, like select.c. */
#include "../sizes.h"
#include "device.h"

const eg_step *eg_cuda_rest_step(const eg_plan *plan) {
    for (int i = 1; i < plan->steps; i++) {
        const eg_cuda_kernel *row = plan->step[i].kernel;
        if (row != NULL && (row->takes & EG_CUDA_REST) != 0) return &plan->step[i];
    }
    return NULL;
}

bool eg_cuda_pools(const eg_plan *plan) {
    const eg_step *rest = eg_cuda_rest_step(plan);
    return rest != NULL && ((const eg_cuda_kernel *)rest->kernel)->family == EG_CUDA_POOL;
}

/* Of parts begun, bands finished, and the tiles of a pool. */
int64_t eg_cuda_pass_counts(const eg_plan *plan) {
    const int64_t most_rows = 1 << 24, m = plan->problem.m;
    return m > most_rows ? 0 : 1 + eg_ceil_div(m, EG_CUDA_REST_BAND) + 1;
}

/* Of 8 L2 has the least to read; but what the first wave reads must be made before it. */
int64_t eg_cuda_high(const eg_plan *plan) {
    const int64_t high = 8, bands = eg_ceil_div(plan->problem.m, EG_CUDA_REST_BAND);
    return eg_cuda_rest_step(plan) == NULL || bands >= 4 * high ? high : high / 2;
}

/* The bands that the first wave of tiles reads, a cluster of two multiprocessors each making a tile; or those
 * that a pool's tiles of d_b read while its first parts are made. But not more than half of all. */
int64_t eg_cuda_head(int multiprocessors, const eg_plan *plan) {
    const eg_problem *p = &plan->problem;
    const eg_step *rest = eg_cuda_rest_step(plan);
    if (rest == NULL) return p->m;
    const int64_t across = eg_ceil_div(p->k, rest->tile_cols), high = eg_cuda_high(plan);
    const int64_t blocks = multiprocessors / EG_CUDA_CLUSTER / (high * across), of_pool = 6;
    const int64_t bands = eg_cuda_pools(plan) ? of_pool : high * (blocks > 0 ? blocks : 1);
    return EG_CUDA_REST_BAND * eg_least(bands, eg_ceil_div(p->m, EG_CUDA_REST_BAND) / 2);
}

int64_t eg_cuda_rest_chunks(int multiprocessors, const eg_plan *plan) {
    return eg_ceil_div(plan->problem.m - eg_cuda_head(multiprocessors, plan), EG_CUDA_REST_CHUNK);
}

/* As many chunks as make one wave: four blocks a multiprocessor, as act_grad.cu is built for. And none so
 * long that its sums in f32 lose much. */
int64_t eg_cuda_chunks(int multiprocessors, const eg_plan *plan) {
    const eg_problem *p = &plan->problem;
    const int64_t rows = eg_cuda_head(multiprocessors, plan);
    const eg_cuda_kernel *row = plan->step[0].kernel;
    const int64_t strips = eg_ceil_div(p->n, row->tile_cols) * p->batch, room = 4 * (int64_t)multiprocessors;
    const int64_t wave = strips > 0 && room > strips ? room / strips : 1, few = eg_ceil_div(rows, 1 << 14);
    return eg_least(wave > few ? wave : few, eg_ceil_div(rows, row->tile_rows));
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
    if (__builtin_mul_overflow(eg_ceil_div(p->m, LEAST_CHUNK), p->batch, rows)) return false;
    if (*rows > room) *rows = room + 1;
    return true;
}

/* Portions of whole items, or else of rows of one. */
eg_cuda_portions eg_cuda_portions_of(const eg_plan *plan, int64_t cols, int64_t items, int64_t rows,
                                     int64_t chunk_rows) {
    const int64_t chunks = eg_ceil_div(rows, chunk_rows);
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
    sum.rows = by.total > 0 ? 1 : items * eg_ceil_div(rows, chunk_rows);
    return sum;
}

/* ---- All in one launch (kernels/hopper_pool.cuh) ------------------------------------------------------ */

static int64_t tiles_of_d_b(const eg_problem *p) { return eg_ceil_div(p->k, 256) * eg_ceil_div(p->n, 256); }

/* As many as make grad_pre before d_b's tiles come to need it. */
static int64_t least_passers(const eg_problem *p) { return eg_ceil_div(p->n, 136); }

/* And those that d_b has no tile for. */
int64_t eg_cuda_passers(int multiprocessors, const eg_problem *p) {
    const int64_t clusters = multiprocessors / EG_CUDA_CLUSTER, tiles = tiles_of_d_b(p),
                  least = least_passers(p);
    const int64_t idle = tiles < clusters ? clusters - tiles : 0;
    const int64_t passers = idle > least ? idle : least;
    return passers < clusters ? passers : clusters - 1;
}

/* Where a tile of d_b and one of d_a after it take not much longer than the whole shared out evenly. A strip
 * of a tile is the unit; 128 x 256 elements of grad_pre take a cluster as long as three. */
bool eg_cuda_pool_pays(int multiprocessors, const eg_problem *p) {
    const int64_t clusters = multiprocessors / EG_CUDA_CLUSTER, d_b = tiles_of_d_b(p);
    const int64_t d_a = eg_ceil_div(p->m, 256) * eg_ceil_div(p->k, 256);
    const int64_t of_d_b = eg_ceil_div(p->m, 64), of_d_a = eg_ceil_div(p->n, 64) + 3;
    const int64_t pass = 3 * eg_ceil_div(p->m, 128) * eg_ceil_div(p->n, 256);
    const int64_t even = (d_b * of_d_b + d_a * of_d_a + pass) / clusters;
    return d_b + least_passers(p) <= clusters && 10 * (of_d_b + of_d_a) <= 11 * even;
}

/* ---- The last tiles of a product (kernels/hopper_cut.cuh) --------------------------------------------- */

enum { WIDEST_TILE = 128 * 256 };

int64_t eg_cuda_cut_counts(int multiprocessors) {
    return EG_PRODUCTS * EG_CUDA_CUT_COUNTS * (int64_t)(multiprocessors / EG_CUDA_CLUSTER);
}

size_t eg_cuda_cut_bytes(int multiprocessors) {
    return (size_t)(multiprocessors / EG_CUDA_CLUSTER) * EG_CUDA_CLUSTER * WIDEST_TILE * sizeof(float);
}

/* The time of a cut tile in strips of its depth, of 1150 clocks at 256 columns: helpers are to be through
 * with their pieces when the owners are with what they kept. Measured: a piece's sums take 3 us until they
 * are seen, and 2 to be added. */
static int64_t cut_time(int64_t strips, int64_t tiles, int64_t helpers, int64_t *kept) {
    const int64_t leave = 5, add = 3;
    const int64_t pieces = eg_ceil_div(helpers, tiles) + (helpers % tiles != 0); /* of a tile */
    *kept = (strips * tiles + leave * (tiles + helpers)) / (tiles + helpers);
    if (*kept > strips - 1) *kept = strips - 1;
    return *kept + add * pieces;
}

eg_cuda_cut eg_cuda_cut_of(int multiprocessors, const eg_cuda_kernel *row, const eg_cuda_gemm *x, bool always,
                           double *saved) {
    const int64_t most_strips = 1 << 16, clusters = multiprocessors / EG_CUDA_CLUSTER, most_pieces = 8;
    const int64_t all = eg_ceil_div(x->rows, EG_CUDA_CLUSTER * (int64_t)row->tile_rows) *
                        eg_ceil_div(x->cols, row->tile_cols) * x->items;
    const int64_t strips = eg_ceil_div(x->depth, row->depth) * x->summed;
    const int64_t tiles = all % clusters, spare = clusters - tiles;
    eg_cuda_cut cut = {0};
    *saved = 0;
    if (tiles == 0 || strips < 2 || strips > most_strips) return cut;
    int64_t least = strips;
    for (int64_t pieces = 0; pieces <= most_pieces; pieces++) {
        const int64_t helpers = pieces == 0 ? spare : pieces * tiles; /* all, or as many for each tile */
        int64_t kept;
        if (helpers > spare) break;
        const int64_t time = cut_time(strips, tiles, helpers, &kept);
        if (time >= least && !(always && cut.tiles == 0)) continue;
        least = time;
        cut.tiles = (int32_t)tiles, cut.helpers = (int32_t)helpers, cut.kept = (int32_t)kept;
    }
    const int64_t waves = all / clusters + 1;
    if (!always && 100 * (strips - least) < waves * strips) return (eg_cuda_cut){0}; /* less than 1% */
    *saved = (double)(strips - least) / (double)strips;
    return cut;
}
