/* SPDX-License-Identifier: Apache-2.0 */
/* How steps are divided: those with column sums into chunks, and into portions that the workspace has room
 * for; maps between two kernels; and the last tiles of a product along its depth. Pure. */
#include "compile.h"

int64_t eg_cuda_sum_rows(const eg_cuda_kernel *row) {
    return row->sum_rows > 0 ? row->sum_rows : row->tile_rows;
}

/* ---- Column sums ---------------------------------------------------------------------------------- */

/* No row that makes column sums has smaller chunks; and portions are whole tiles of every row. */
enum { LEAST_CHUNK = 32, LEAST_PORTION = 256 };

/* Of the temporaries, others are some operation's result. */
bool eg_cuda_is_sums(const eg_op_list *list, int temporary) {
    for (int i = 0; i < list->ops; i++) {
        if (list->op[i].out.space == EG_TEMPORARY && list->op[i].out.id == temporary) return false;
    }
    return true;
}

static int count_sums(const eg_op_list *list) {
    int count = 0;
    for (int i = 0; i < list->temporaries; i++) count += eg_cuda_is_sums(list, i);
    return count;
}

/* Of all chunks, where that is not too much; else of a portion, and a row for the total. */
bool eg_cuda_rows_of_sums(const eg_op_list *list, const eg_temporary *sums, int64_t *rows) {
    const int64_t most = (int64_t)(count_sums(list) > 1 ? 15 : 30) << 20, least = LEAST_PORTION / LEAST_CHUNK;
    const int64_t fit = sums->cols > 0 ? most / (int64_t)eg_dtype_size(list->compute) / sums->cols : 0;
    const int64_t room = fit > least ? fit : least;
    if (__builtin_mul_overflow(eg_ceil_div(sums->rows, LEAST_CHUNK), sums->items, rows)) return false;
    if (*rows > room) *rows = room + 1;
    return true;
}

/* Portions of whole items, or else of rows of one. */
eg_cuda_portions eg_cuda_portions_of(const eg_op_list *list, const eg_temporary *sums, int64_t items,
                                     int64_t rows, int64_t chunk_rows) {
    const int64_t chunks = eg_ceil_div(rows, chunk_rows);
    int64_t have = 0;
    if (!eg_cuda_rows_of_sums(list, sums, &have) || items * chunks <= have)
        return (eg_cuda_portions){items, rows, 0};
    const int64_t room = have - 1;
    if (chunks <= room) return (eg_cuda_portions){room / chunks, rows, room};
    return (eg_cuda_portions){1, room * chunk_rows / LEAST_PORTION * LEAST_PORTION, room};
}

int64_t eg_cuda_launches_of(const eg_cuda_portions *portions, int64_t items, int64_t rows) {
    return eg_ceil_div(items, portions->items) * eg_ceil_div(rows, portions->rows);
}

/* ---- Maps ----------------------------------------------------------------------------------------- */

/* Of tiles begun, of bands finished, and of the tile scheduler of a persistent backward. */
int64_t eg_cuda_map_counters(int64_t rows) {
    const int64_t most_rows = 1 << 24;
    return rows > most_rows ? 0 : 1 + eg_ceil_div(rows, EG_CUDA_MAP_BAND) + 1;
}

/* Of 8 L2 has the least to read; but what the first wave reads of a map must be made before it. */
int eg_cuda_raster(const eg_cuda_compiler *c) {
    enum { HIGH = 8 };
    if (c->fused == EG_NO_OP) return HIGH;
    return eg_ceil_div(c->list->op[c->fused].rows, EG_CUDA_MAP_BAND) >= 4 * (int64_t)HIGH ? HIGH : HIGH / 2;
}

/* The bands that the first wave of tiles reads, a cluster of two multiprocessors each making a tile; or those
 * that a persistent backward's first tiles read while the next rows are made. But not more than half. */
static int64_t first_rows(const eg_cuda_compiler *c, const eg_op *map) {
    if (c->fused == EG_NO_OP) return map->rows;
    const eg_cuda_kernel *row = c->row[c->fused];
    const int64_t across = eg_ceil_div(c->list->op[c->fused].cols, row->tile_cols), high = eg_cuda_raster(c);
    const int64_t blocks = c->multiprocessors / EG_CUDA_CLUSTER / (high * across), of_backward = 6;
    const int64_t bands = row->family == EG_CUDA_BACKWARD ? of_backward : high * (blocks > 0 ? blocks : 1);
    return EG_CUDA_MAP_BAND * eg_least(bands, eg_ceil_div(map->rows, EG_CUDA_MAP_BAND) / 2);
}

/* As many chunks as make one wave: four blocks a multiprocessor, as act_grad.cu is built for. And none so
 * long that its sums in f32 lose much. */
eg_cuda_map_rows eg_cuda_share_map(const eg_cuda_compiler *c, int op) {
    const eg_op *map = &c->list->op[op];
    const eg_cuda_kernel *row = c->row[op];
    const int64_t rows = first_rows(c, map), columns = eg_ceil_div(map->cols, row->tile_cols) * map->items,
                  room = 4 * (int64_t)c->multiprocessors;
    const int64_t wave = columns > 0 && room > columns ? room / columns : 1, few = eg_ceil_div(rows, 1 << 14);
    const int64_t chunks = eg_least(wave > few ? wave : few, eg_ceil_div(rows, row->tile_rows));
    return (eg_cuda_map_rows){rows, chunks, eg_ceil_div(map->rows - rows, EG_CUDA_MAP_CHUNK)};
}

/* ---- The persistent backward (kernels/hopper_backward.cuh) ----------------------------------------------
 */

static int64_t large_tiles(int64_t rows, int64_t cols) {
    return eg_ceil_div(rows, 256) * eg_ceil_div(cols, 256);
}

/* As many as make the map's rows before d_b's tiles come to need them. */
static int64_t least_map_clusters(const eg_op *d_b) { return eg_ceil_div(d_b->cols, 136); }

/* And those that d_b has no tile for. */
int64_t eg_cuda_map_clusters(int multiprocessors, const eg_op *d_b) {
    const int64_t clusters = multiprocessors / EG_CUDA_CLUSTER, tiles = large_tiles(d_b->rows, d_b->cols);
    const int64_t idle = tiles < clusters ? clusters - tiles : 0, least = least_map_clusters(d_b);
    const int64_t wanted = idle > least ? idle : least;
    return wanted < clusters ? wanted : clusters - 1;
}

/* ---- Stream-K tails (kernels/hopper_scheduler.cuh) ------------------------------------------------- */

enum { WIDEST_TILE = 128 * 256 };

int64_t eg_cuda_tail_counters(int multiprocessors) {
    return EG_CUDA_STREAM_K_COUNTERS * (int64_t)(multiprocessors / EG_CUDA_CLUSTER);
}

size_t eg_cuda_tail_bytes(int multiprocessors) {
    return (size_t)(multiprocessors / EG_CUDA_CLUSTER) * EG_CUDA_CLUSTER * WIDEST_TILE * sizeof(float);
}

/* The time of a split tile in k-blocks, of 1150 clocks at 256 columns: helpers are to be through with their
 * partial tiles when the owners are with their own k-blocks. Measured: a partial tile's sums take 3 us until
 * they are seen, and 2 to be added. */
static int64_t tail_time(int64_t k_blocks, int64_t tiles, int64_t helpers, int64_t *owner_k_blocks) {
    const int64_t leave = 5, add = 3;
    const int64_t partial = eg_ceil_div(helpers, tiles) + (helpers % tiles != 0); /* of a tile */
    *owner_k_blocks = (k_blocks * tiles + leave * (tiles + helpers)) / (tiles + helpers);
    if (*owner_k_blocks > k_blocks - 1) *owner_k_blocks = k_blocks - 1;
    return *owner_k_blocks + add * partial;
}

eg_cuda_tail eg_cuda_tail_of(int multiprocessors, const eg_cuda_kernel *row, const eg_cuda_gemm *x,
                             bool always, double *saved) {
    const int64_t most_k_blocks = 1 << 16, clusters = multiprocessors / EG_CUDA_CLUSTER, most_partial = 8;
    const int64_t all = eg_ceil_div(x->rows, EG_CUDA_CLUSTER * (int64_t)row->tile_rows) *
                        eg_ceil_div(x->cols, row->tile_cols) * x->items;
    const int64_t k_blocks = eg_ceil_div(x->depth, row->k_block) * x->summed;
    const int64_t tiles = all % clusters, spare = clusters - tiles;
    eg_cuda_tail tail = {0};
    *saved = 0;
    if (tiles == 0 || k_blocks < 2 || k_blocks > most_k_blocks) return tail;
    int64_t least = k_blocks;
    for (int64_t partial = 0; partial <= most_partial; partial++) {
        const int64_t helpers = partial == 0 ? spare : partial * tiles; /* all, or as many for each tile */
        int64_t owner_k_blocks;
        if (helpers > spare) break;
        const int64_t time = tail_time(k_blocks, tiles, helpers, &owner_k_blocks);
        if (time >= least && !(always && tail.tiles == 0)) continue;
        least = time;
        tail.tiles = (int32_t)tiles, tail.helpers = (int32_t)helpers,
        tail.owner_k_blocks = (int32_t)owner_k_blocks;
    }
    const int64_t waves = all / clusters + 1;
    if (!always && 100 * (k_blocks - least) < waves * k_blocks) return (eg_cuda_tail){0}; /* less than 1% */
    *saved = (double)(k_blocks - least) / (double)k_blocks;
    return tail;
}
