/* SPDX-License-Identifier: Apache-2.0 */
/* How steps are divided: those with column sums into chunks, and into portions that the workspace has room
 * for; maps; and the last tiles of a product along its depth. Pure. */
#include "partition.h"

#include "groups.h"
#include "map_y.h"

int64_t eg_cuda_sum_rows(const eg_cuda_kernel *row) {
    return row->sum_rows > 0 ? row->sum_rows : row->tile_rows;
}

int64_t eg_cuda_sums_of(const eg_cuda_kernel *row, int64_t rows) {
    const int64_t each = eg_cuda_sum_rows(row), tile = row->tile_rows > each ? row->tile_rows : each;
    return eg_ceil_div(rows, tile) * (tile / each);
}

/* ---- Column sums ---------------------------------------------------------------------------------- */

/* No row that makes column sums of many rows has smaller chunks; and portions are whole tiles of every row.
 */
enum { LEAST_CHUNK = 32, HIGHEST_TILE = 128, LEAST_PORTION = 256 };

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

/* Of all chunks, where that is not too much; else of a portion, and a row for the total. The host does not
 * know what rows a portion of groups would have: all are made at once. Rows for few rows have chunks of 16,
 * but take no more than 16 rows a group, which are a chunk a group more. */
bool eg_cuda_rows_of_sums(const eg_op_list *list, const eg_temporary *sums, int64_t *rows) {
    if (list->groups > 0) {
        *rows = eg_cuda_row_tiles(sums->rows, list->groups, LEAST_CHUNK) + list->groups;
        return true;
    }
    const int64_t most = (int64_t)(count_sums(list) > 1 ? 15 : 30) << 20, least = LEAST_PORTION / LEAST_CHUNK;
    const int64_t fit = sums->cols > 0 ? most / (int64_t)eg_dtype_size(list->compute) / sums->cols : 0;
    const int64_t room = fit > least ? fit : least;
    const int64_t chunks = eg_ceil_div(sums->rows, HIGHEST_TILE) * (HIGHEST_TILE / LEAST_CHUNK);
    if (__builtin_mul_overflow(chunks, sums->items, rows)) return false;
    if (*rows > room) *rows = room + 1;
    return true;
}

/* Portions of whole items, or else of rows of one. */
eg_cuda_portions eg_cuda_portions_of(const eg_op_list *list, const eg_temporary *sums, int64_t items,
                                     int64_t rows, int64_t chunks, int64_t chunk_rows) {
    int64_t have = 0;
    if (list->groups > 0 || !eg_cuda_rows_of_sums(list, sums, &have) || items * chunks <= have)
        return (eg_cuda_portions){items, rows, 0};
    const int64_t room = have - 1;
    if (chunks <= room) return (eg_cuda_portions){room / chunks, rows, room};
    return (eg_cuda_portions){1, room * chunk_rows / LEAST_PORTION * LEAST_PORTION, room};
}

int64_t eg_cuda_launches_of(const eg_cuda_portions *portions, int64_t items, int64_t rows) {
    return eg_ceil_div(items, portions->items) * eg_ceil_div(rows, portions->rows);
}

/* ---- Maps ----------------------------------------------------------------------------------------- */

/* As many as make one wave: four blocks a multiprocessor, as act_grad.cuh is built for, three of single
 * numbers. And none so long that its sums in f32 lose much. Few rows are one chunk, whose sums need no other
 * kernel. Without sums a chunk may be a row for each warp. */
int64_t eg_cuda_map_chunks(int multiprocessors, const eg_cuda_kernel *row, const eg_op *map) {
    const bool odd = (row->takes & EG_CUDA_ODD) != 0;
    if ((row->takes & EG_CUDA_WHOLE_SUMS) != 0) return 1;
    const int64_t columns = eg_ceil_div(map->cols, row->tile_cols) * map->items,
                  room = (odd ? 3 : 4) * (int64_t)multiprocessors;
    const int64_t wave = columns > 0 && room > columns ? room / columns : 1;
    const int64_t few = eg_ceil_div(map->rows, 1 << 14);
    const bool sums = eg_term_of(map, EG_TERM_COLUMN_SUMS) != NULL;
    const int64_t least_rows = sums ? row->tile_rows : row->threads / 32; /* a row a warp */
    const int64_t most =
        sums && map->rows <= 2 * (int64_t)row->tile_rows ? 1 : eg_ceil_div(map->rows, least_rows);
    return eg_least(wave > few ? wave : few, most);
}

int64_t eg_cuda_sums_left(int multiprocessors, const eg_cuda_kernel *row, const eg_op *op) {
    const bool by_chunks = row->family == EG_CUDA_VECTORS || row->family == EG_CUDA_GATED;
    return by_chunks ? eg_cuda_map_chunks(multiprocessors, row, op) : eg_cuda_sums_of(row, op->rows);
}

/* A thread of a map of vectors has one; of other kernels each block has a tile. */
int64_t eg_cuda_blocks_of(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    const uint32_t rows_of_vectors = EG_CUDA_ROW_STORES, odd = EG_CUDA_ODD;
    if (row->kind != EG_MAP || (row->takes & (rows_of_vectors | odd)) != rows_of_vectors || x->sums != 0 ||
        x->ragged != EG_CUDA_DENSE)
        return x->tiles;
    const int64_t block =
                      row->threads * (16 / (int64_t)eg_dtype_size(row->dtype)), /* numbers, a vector each */
        lines = row->tile_rows * row->tile_cols / block; /* that a thread has a vector of */
    return eg_ceil_div(x->items * eg_ceil_div(x->rows, lines) * x->cols, block);
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

/* ---- Clusters (kernels/hopper_gemm.cuh) ------------------------------------------------------------- */

eg_cuda_cluster eg_cuda_cluster_of(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    const eg_cuda_cluster below = {EG_CUDA_CLUSTER * row->tile_rows, row->tile_cols, false},
                          beside = {row->tile_rows, EG_CUDA_CLUSTER * row->tile_cols, true};
    if ((row->takes & EG_CUDA_SHARES_LEFT) != 0) return beside;
    const uint32_t fixed = EG_CUDA_STREAM_K | EG_CUDA_GROUPS_ALONE;
    if (row->family != EG_CUDA_TMA || (row->takes & fixed) != 0) return below;
    const int64_t tiles_below = eg_ceil_div(x->rows, below.rows) * eg_ceil_div(x->cols, below.cols),
                  tiles_beside = eg_ceil_div(x->rows, beside.rows) * eg_ceil_div(x->cols, beside.cols);
    return tiles_beside < tiles_below ? beside : below;
}
