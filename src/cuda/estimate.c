/* SPDX-License-Identifier: Apache-2.0 */
/* Estimated times. A product takes as many waves of tiles as its multiprocessors need, each as long as the
 * k-blocks of a tile and its epilogue; or as long as its operands take to come and go, where that is more.
 * Constants are those of calibration.c, which are fitted to measured times. */
#include "estimate.h"

#include "cluster.h"
#include "core/sizes.h"
#include "layout.h"
#include "left_sums.h"
#include "partition.h"
#include "whole_sums.h"

/* ---- Parts of a time ------------------------------------------------------------------------------ */

/* Of what goes on at the same time: the longer part, and some of the other. `share`: what is not hidden of two
 * that are as long. */
static double partly_beside(double share, double a, double b) {
    const double longer = eg_greatest(a, b), shorter = a + b - longer;
    return longer > 0 ? longer + share * shorter * shorter / longer : 0;
}
static double beside(double a, double b) { return partly_beside(0.3, a, b); }

static double bytes_of(const eg_cuda_matrix *x, int64_t rows, int64_t cols, int64_t items) {
    if (x->data == 0) return 0;
    return (double)rows * (double)cols * (double)(x->item_stride != 0 ? items : 1) *
           (double)eg_size_of((eg_dtype)x->dtype);
}

/* Bandwidth of memory, as a part of the measured device's. */
static double grown_of(const eg_cuda_machine *machine) {
    return (double)machine->multiprocessors / machine->calibration->multiprocessors;
}

/* Of memory that an operation reads and writes, each byte once. */
static double memory_time(const eg_cuda_machine *machine, const eg_cuda_costs *costs, const eg_cuda_gemm *x) {
    const int64_t sources = x->summed > 1 ? x->summed : x->items;
    const int64_t depth = x->depth > 0 ? x->depth : x->cols; /* a map's left is as large as its result */
    const double out = bytes_of(&x->out, x->rows, x->cols, x->items);
    const double read = bytes_of(&x->left, x->rows, depth, sources) +
                        bytes_of(&x->right, x->depth, x->cols, sources) +
                        bytes_of(&x->in, x->rows, x->cols, x->items) + (x->accumulate ? out : 0);
    const double written = out + bytes_of(&x->second, x->rows, x->cols, x->items);
    const double writing = costs->writing > 0 ? costs->writing : costs->reading;
    return (read / costs->reading + written / writing) * 1e-6 / grown_of(machine);
}

/* Bytes of an operand whose lines of 16 bits begin in the middle of a word. */
static double bytes_inside_words(const eg_cuda_matrix *x, int64_t rows, int64_t cols, int64_t items) {
    const int64_t ld = x->col_stride == 1 ? x->row_stride : x->col_stride;
    const bool inside = eg_size_of((eg_dtype)x->dtype) == 2 && (ld % 2 != 0 || x->data % 4 != 0);
    return inside && rows > 1 && cols > 1 ? bytes_of(x, rows, cols, items) : 0;
}

static double terms_of(const eg_cuda_costs *costs, const eg_cuda_gemm *x) {
    double time = x->second.data != 0 ? costs->second : 0;
    switch ((eg_cuda_epilogue)x->epilogue) {
    case EG_CUDA_STORE:
        return time + (x->accumulate ? costs->add : 0);
    case EG_CUDA_FORWARD:
        return time + (x->activation == EG_ACT_NONE ? costs->bias : costs->forward);
    case EG_CUDA_TIMES:
        return time + costs->forward;
    case EG_CUDA_ACT_GRAD:
        return time + costs->grad;
    case EG_CUDA_CHAIN:
        return time + costs->chain;
    }
    return time;
}

static double ceil_of(double x) {
    const double whole = (double)(int64_t)x;
    return whole < x ? whole + 1 : whole;
}

/* ---- Products ------------------------------------------------------------------------------------- */

bool eg_cuda_is_aligned(const eg_cuda_matrix *x) {
    if (x->data == 0) return true;
    const int64_t size = (int64_t)eg_size_of((eg_dtype)x->dtype), each = size > 0 ? 16 / size : 1;
    const int64_t ld = x->col_stride == 1 ? x->row_stride : x->col_stride;
    return x->data % 16 == 0 && ld % each == 0 && x->item_stride % each == 0 &&
           (x->col_stride == 1 || x->row_stride == 1);
}

/* Whether the library lacks fast kernels for the matrix unit: of 16-bit numbers in lines that do not begin or
 * end on 16 bytes, also where a padded copy begins there; of others where the depth does not end so. */
static bool is_odd(const eg_cuda_gemm *x) {
    const bool begins =
        eg_cuda_is_aligned(&x->left) && eg_cuda_is_aligned(&x->right) && eg_cuda_is_aligned(&x->out);
    const int64_t size = (int64_t)eg_size_of((eg_dtype)x->left.dtype), each = size > 0 ? 16 / size : 1;
    const bool deep = x->left.col_stride == 1 || x->right.row_stride == 1,
               down = x->left.col_stride != 1 && size == 2,
               across = (x->right.row_stride != 1 || x->out.col_stride == 1) && size == 2;
    if (size == 2 && !begins) return true;
    return (deep && x->depth % each != 0) || (down && x->rows % each != 0) || (across && x->cols % each != 0);
}

static bool is_on_words(const eg_cuda_matrix *x) {
    const int64_t ld = x->col_stride == 1 ? x->row_stride : x->col_stride;
    return x->data % 8 == 0 && ld * (int64_t)eg_size_of((eg_dtype)x->dtype) % 8 == 0;
}

/* The library's kernels are not known. It is taken to have tiles of a few sizes, to split the depth where
 * tiles are few, and to choose well. */
typedef struct library_tiles {
    double k_blocks;   /* of 64 */
    double full;       /* microseconds of one, of a tile of 128 x 128 */
    double alone;      /* the least that one takes */
    double parts;      /* of a k-block that are made at once */
    double least_part; /* k-blocks that a part of the depth has */
    int most_splits;
} library_tiles;

/* By tiles of one size, in as many parts as take the least. */
static double library_by_tiles(const eg_cuda_machine *machine, const eg_cuda_costs *costs,
                               const library_tiles *all, const eg_cuda_gemm *x, int rows, int cols) {
    const double area = rows * cols / (128.0 * 128.0), k_block = beside(all->full * area, costs->latency);
    const double result = (double)x->rows * (double)x->cols * (double)x->items;
    const double count =
        (double)eg_ceil_div(x->rows, rows) * (double)eg_ceil_div(x->cols, cols) * (double)x->items;
    double least = 0;
    for (int splits = 1;
         splits <= all->most_splits && (splits == 1 || all->k_blocks >= all->least_part * splits);
         splits *= 2) {
        const double waves = ceil_of(count * splits / machine->multiprocessors);
        const double split = splits == 1 ? 0 : costs->second + 8e-6 * splits * result / costs->writing;
        const double products = ceil_of(all->k_blocks * all->parts / splits) / all->parts *
                                eg_greatest(waves * k_block, all->alone);
        const double time = products + waves * costs->tile * area + split;
        if (least == 0 || time < least) least = time;
    }
    return least;
}

/* Sums of one term in 16 bits that are added to what is there, measured on an H200. */
static double library_outer_added(const eg_cuda_machine *machine, const eg_cuda_gemm *x) {
    const double launch = 3.4, rate = 3.2; /* 1e6 bytes a microsecond */
    return launch + 2 * bytes_of(&x->out, x->rows, x->cols, x->items) * 1e-6 / (rate * grown_of(machine));
}

/* Sums of one term: as long as results take to be stored, at a rate for each type, measured on an H200. */
static double library_outer(const eg_cuda_machine *machine, const eg_cuda_gemm *x) {
    const double launch = 1.6, rates[] = {1.83, 3.05, 4.55}; /* 1e6 bytes a microsecond */
    const size_t size = eg_size_of((eg_dtype)x->out.dtype);
    const double rate = rates[size == 2 ? 0 : size == 4 ? 1 : 2] * grown_of(machine);
    return launch + bytes_of(&x->out, x->rows, x->cols, x->items) * 1e-6 / rate;
}

/* Few rows of f32 and f64 are also made as vectors are: threads go along the depth, which they do not split,
 * and each further row takes a part of memory's rate. Measured on an H200. 0: they are not few. */
static double library_few_rows(const eg_cuda_gemm *x, double memory) {
    enum { MOST = 15 };
    const double along = 5.2e-3, across = 20e-3, each = 0.13; /* microseconds a term; of memory's time */
    const bool down = x->rows <= x->cols;
    const int64_t rows = down ? x->rows : x->cols;
    const bool is_along = down ? x->right.row_stride == 1 : x->left.col_stride == 1;
    if (rows > MOST || x->items > 1 || x->summed > 1) return 0;
    return eg_greatest((double)x->depth * (is_along ? along : across), memory * (1 + each * (double)rows));
}

/* A small result that is added to is often still in L2 since the last call. */
static bool stays_in_l2(const eg_cuda_gemm *x) {
    const double most = 3 << 20;
    return x->accumulate && bytes_of(&x->out, x->rows, x->cols, x->items) <= most;
}

/* Few rows read a large operand of 16 bits the faster, the longer they do: up to a tenth. */
static double long_stream(const eg_cuda_gemm *x) {
    const double begins = 64 << 20, ends = 300 << 20;
    const int64_t few = 64, sources = x->summed > 1 ? x->summed : x->items;
    const bool wide = x->rows <= few;
    const double read = wide ? bytes_of(&x->right, x->depth, x->cols, sources)
                             : bytes_of(&x->left, x->rows, x->depth, sources);
    if ((!wide && x->cols > few) || x->accumulate || x->depth <= few || read <= begins) return 1;
    return 1 - 0.1 * (read < ends ? (read - begins) / (ends - begins) : 1);
}

/* Of 16 bits, lines that begin in the middle of a word are read at a quarter of the rate, which few rows
 * wait for. Where lines begin on 8 bytes, as many are copied at once; where they begin anywhere, there are no
 * small tiles for large results. Others than those of the matrix unit take 16 terms at once. */
static double estimate_library(const eg_cuda_machine *machine, const eg_cuda_costs *costs,
                               const eg_cuda_gemm *x) {
    static const int tiles[][2] = {{64, 64},   {64, 128},  {128, 64},  {64, 256},  {128, 128},
                                   {128, 192}, {192, 128}, {128, 208}, {128, 256}, {256, 128}},
                     small[][2] = {{32, 32}, {32, 64}, {64, 32}}; /* not of 16 bits */
    enum { TILES = sizeof tiles / sizeof *tiles, SMALL = sizeof small / sizeof *small, LARGE = 128 * 64 };
    const bool odd = is_odd(x), narrow = eg_size_of((eg_dtype)x->left.dtype) == 2;
    const bool deep = x->left.col_stride == 1 || x->right.row_stride == 1;
    const bool ends = !deep || x->depth % 2 == 0; /* a line of the depth on a word, too */
    const bool words = ends && is_on_words(&x->left) && is_on_words(&x->right) && is_on_words(&x->out);
    const bool rounds = eg_size_of((eg_dtype)x->out.dtype) == 2;
    const bool whole = rounds && (x->bias.data != 0 || odd); /* it is not split: lt.c */
    const bool short_parts = odd && narrow && !rounds;       /* as of f32 */
    const double odd_with_bias = 1.2;                        /* microseconds of a k-block, alone */
    const int64_t depth = x->depth * x->summed, sources = x->summed > 1 ? x->summed : x->items;
    const bool wide = odd && narrow && !words && eg_ceil_div(x->rows, 128) * eg_ceil_div(x->cols, 128) >= 16;
    const library_tiles all = {.k_blocks = (double)eg_ceil_div(x->depth, 16) / 4 * (double)x->summed,
                               .full =
                                   odd ? costs->odd * (words && x->bias.data == 0 ? 0.6 : 1) : costs->k_block,
                               .alone = whole && odd && x->bias.data != 0 ? odd_with_bias
                                        : whole                           ? costs->bias
                                                                          : 0,
                               .parts = odd || !narrow ? 4 : 1,
                               .least_part = narrow && !short_parts ? 4 : 1,
                               .most_splits = whole         ? 1
                                              : short_parts ? 64
                                              : narrow      ? 16
                                                            : 32};
    const double adding = narrow && x->accumulate && depth > 1 ? 1.14 : 1; /* which memory waits for */
    const double memory =
        memory_time(machine, costs, x) * adding * (stays_in_l2(x) ? 0.5 : 1) * (narrow ? long_stream(x) : 1);
    double least = 0;
    if (depth == 1 && !x->accumulate) return library_outer(machine, x);
    if (depth == 1 && narrow) return library_outer_added(machine, x);
    /* Of vectors f32 and f64 come from memory faster than of tiles; a long sum is made by few threads. */
    if (x->rows == 1 || x->cols == 1)
        return costs->launch + beside((narrow ? 1 : 0.85) * memory, 1e-3 * (double)depth);
    for (int i = narrow ? 0 : -SMALL; i < TILES; i++) {
        const int *tile = i < 0 ? small[-i - 1] : tiles[i];
        if (wide && tile[0] * tile[1] < LARGE) continue;
        const double time = library_by_tiles(machine, costs, &all, x, tile[0], tile[1]);
        if (least == 0 || time < least) least = time;
    }
    const double again = 3 * (bytes_inside_words(&x->left, x->rows, x->depth, sources) +
                              bytes_inside_words(&x->right, x->depth, x->cols, sources));
    const double few = narrow ? 0 : library_few_rows(x, memory);
    const double share = narrow && x->left.col_stride != 1 ? 0.15 : 0.3; /* of d_b, and of others */
    const double time = partly_beside(share, least, memory + again / costs->reading * 1e-6);
    return costs->launch + (few > 0 && few < time ? few : time);
}

/* What part of the tiles is inside the result: threads visit no other elements. */
static double inside_of(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    return (double)x->rows / (double)(eg_ceil_div(x->rows, row->tile_rows) * row->tile_rows) *
           (double)x->cols / (double)(eg_ceil_div(x->cols, row->tile_cols) * row->tile_cols);
}

/* Kernels of any strides load an operand that is not in vectors number by number, and wait for that. */
static double k_block_of(const eg_cuda_costs *costs, const eg_cuda_gemm *x) {
    const bool vectors = eg_cuda_is_aligned(&x->left) && eg_cuda_is_aligned(&x->right);
    return vectors || costs->odd == 0 ? costs->k_block : costs->odd;
}

/* Rows of tiles of all items. That of a group's last rows is half empty; any group with rows has one. */
static double tiles_down(const eg_cuda_gemm *x, int64_t height) {
    const int64_t full = x->rows / height;
    if (x->ragged == EG_CUDA_RAGGED_ROWS)
        return eg_greatest((double)full + (double)x->items / 2, (double)eg_least(x->rows, x->items));
    return (double)eg_ceil_div(x->rows, height) * (double)x->items;
}

/* k-blocks of a result; of a group those of as many rows as groups have on average. */
static double k_blocks_of(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    const int64_t depth = x->ragged == EG_CUDA_RAGGED_DEPTH ? eg_ceil_div(x->depth, x->items) : x->depth;
    return (double)eg_ceil_div(depth, row->k_block) * (double)x->summed;
}

/* Of a persistent kernel's tile, whose rows do not begin on 16 bytes: threads store it, which TMA cannot. */
static double stores_of(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    const double each = x->accumulate ? 4 : 2; /* of 128 x 128 results */
    if (row->family != EG_CUDA_TMA) return 0;
    return each * (!eg_cuda_is_aligned(&x->out) + !eg_cuda_is_aligned(&x->second)) * row->tile_cols / 128;
}

/* Of lines of L2, how many are read for one: 128 bytes of a row that begin within a line are in two. */
static double lines_of_each(const eg_cuda_matrix *x) {
    const int64_t pitch = x->row_stride > x->col_stride ? x->row_stride : x->col_stride;
    return pitch * (int64_t)eg_size_of((eg_dtype)x->dtype) % EG_CUDA_LINE == 0 ? 1 : 2;
}

/* What the tiles of a persistent kernel load of a k-block comes out of L2, whose rate they share; of what a
 * cluster shares each tile loads a half. It counts where rows begin within lines. */
static double loading_of_tiles(const eg_cuda_machine *machine, const eg_cuda_kernel *row,
                               const eg_cuda_gemm *x, bool shares_left) {
    const double rate = 12e6; /* bytes a microsecond */
    const double left = row->tile_rows * lines_of_each(&x->left) / (shares_left ? 2 : 1),
                 right = row->tile_cols * lines_of_each(&x->right) / (shares_left ? 1 : 2);
    const double bytes = (left + right) * row->k_block * (double)eg_size_of((eg_dtype)x->left.dtype);
    return bytes * machine->multiprocessors / (rate * grown_of(machine));
}

/* What column sums of few rows take longer beside a product, by trials of whole calls: of a chain in split
 * tiles, from some k-blocks on; recomputing in kernels for short rows; and in those that stream columns of
 * weights, which then fall short of memory's rate (why is not known). */
static double sums_of_few_rows(const eg_cuda_kernel *row, const eg_cuda_gemm *x, double memory) {
    const bool streams_cols = row->family == EG_CUDA_STREAMED && (row->takes & EG_CUDA_RIGHT_COLS) != 0 &&
                              eg_size_of(row->dtype) == 2,
               splits = row->family == EG_CUDA_TMA_SPLIT && (row->takes & EG_CUDA_FEW_ROWS) != 0 &&
                        x->depth >= 8 * (int64_t)row->k_block;
    if (x->sums == 0) return 0;
    if (x->epilogue == EG_CUDA_CHAIN) return splits ? 2 : 0;
    if (x->epilogue != EG_CUDA_ACT_GRAD) return 0;
    if (streams_cols) return 3.5 + 0.6 * memory;
    return (row->takes & EG_CUDA_TALL) != 0 ? 2.5 : 0;
}

static double estimate_tiles(const eg_cuda_machine *machine, const eg_cuda_kernel *row,
                             const eg_cuda_costs *costs, const eg_cuda_gemm *x, double saved) {
    const bool clusters = eg_cuda_is_persistent(row);
    const int blocks = clusters ? EG_CUDA_CLUSTER : 1;
    const eg_cuda_cluster cluster =
        clusters ? eg_cuda_cluster_of(row, x) : (eg_cuda_cluster){row->tile_rows, row->tile_cols, false};
    const double tiles = tiles_down(x, cluster.rows) * (double)eg_ceil_div(x->cols, cluster.cols);
    const int places = machine->multiprocessors / blocks;
    const double k_blocks = row->k_block > 0 ? k_blocks_of(row, x) : 0;
    const bool has_tail = saved >= 0;
    const double waves = ceil_of(tiles / places) - (has_tail ? saved : 0);
    const double rounds = ceil_of(tiles / (places * costs->resident));
    const double inside = clusters ? 1 : inside_of(row, x);
    /* Kernels of any type wait longer for what they load one by one. */
    const double waiting = row->dtype == EG_DTYPE_DEFAULT ? (3 + inside) / 4 : 1;
    const double loading = clusters ? loading_of_tiles(machine, row, x, cluster.shares_left) : 0;
    const double products =
        eg_greatest(waves * eg_greatest(k_block_of(costs, x), loading), rounds * costs->latency * waiting);
    const double stores = stores_of(row, x);
    const double epilogue = (costs->tile + terms_of(costs, x)) * inside + stores;
    /* Two tiles in turn take the products and the epilogue of one; or the products of both, if that is more.
     */
    const bool in_turn = (row->takes & EG_CUDA_PINGPONG) != 0;
    const double each = in_turn ? eg_greatest(epilogue - k_blocks * costs->k_block, 0) / 2 : epilogue;
    const double epilogues = epilogue + eg_greatest(waves - 1, 0) * each + (has_tail ? saved * stores : 0);
    /* A block's only tile is added by TMA, with nothing beside it. */
    const bool adds_alone = (row->takes & EG_CUDA_PINGPONG) != 0 && x->accumulate && waves <= 1;
    const double memory = memory_time(machine, costs, x) * (adds_alone ? 1.15 : 1);
    /* Few outer products: a block reads what is there, multiplies, and then stores. f32 is not widened. */
    const bool one_by_one = (row->takes & EG_CUDA_SHALLOW) != 0;
    const double widened = x->left.dtype == EG_F32 ? 0.6 : 1;
    const double share = in_turn && x->left.col_stride != 1 ? 0.5 : 0.3; /* of d_b, and of others */
    const double both = one_by_one ? widened * products * k_blocks + memory
                                   : partly_beside(share, products * k_blocks, memory);
    return costs->launch + (has_tail ? costs->tail : 0) + epilogues + sums_of_few_rows(row, x, memory) + both;
}

/* A cluster has all of its tiles, also those outside the result. */
static double tiles_of(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    return tiles_down(x, eg_cuda_cluster_rows(row)) *
           (double)eg_ceil_div(x->cols, eg_cuda_cluster_cols(row)) * eg_cuda_cluster_tiles(row);
}

static bool is_turned(const eg_cuda_kernel *row) { return (row->takes & EG_CUDA_TURNED) != 0; }

/* Of a tile, without those of the last. */
static int rows_of(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    return is_turned(row) ? (int)EG_TURNED_ROWS(x->rows, eg_ceil_div(x->rows, row->tile_rows), row->tile_rows)
                          : row->tile_rows;
}

/* Blocks that have all of a short depth fill few stages, and receive nothing. Where they make several tiles
 * one after the other, they go on through all stages. */
int eg_cuda_shared_of(const eg_cuda_kernel *row, const eg_cuda_gemm *x, int splits) {
    const int rows = row->tile_rows, cols = row->tile_cols;
    const bool registers = (row->takes & EG_CUDA_ONE_TYPE) != 0, turned = is_turned(row);
    if (row->family != EG_CUDA_TMA_SPLIT || splits > 1 || x->ragged == EG_CUDA_RAGGED_DEPTH ||
        x->tiles > INT32_MAX)
        return row->shared;
    const int64_t k_blocks = eg_least(eg_ceil_div(x->depth, row->k_block) * x->summed,
                                      turned      ? EG_TURNED_STAGES(rows, cols)
                                      : registers ? EG_CLUSTER_STAGES(rows, cols)
                                                  : EG_TMA_SPLIT_STAGES(rows, cols)),
                  stages = EG_TMA_SPLIT_FRONT + k_blocks * EG_TMA_SPLIT_STAGE(rows, cols),
                  tile = EG_TMA_SPLIT_FRONT + (int64_t)rows * EG_TMA_SPLIT_PITCH(cols) * 4,
                  least = turned      ? EG_TURNED_LEAST(rows, cols)
                          : registers ? EG_CLUSTER_LEAST(rows, cols)
                                      : tile;
    return (int)(stages > least ? stages : least);
}

/* Blocks that share a multiprocessor. */
static double resident_of(const eg_cuda_kernel *row, const eg_cuda_costs *costs, const eg_cuda_gemm *x,
                          int splits) {
    const int room = 227 * 1024, reserved = 1024,
              most = (row->takes & EG_CUDA_ONE_TYPE) != 0 ? EG_CLUSTER_BLOCKS(row->tile_rows, row->tile_cols)
                                                          : EG_TMA_SPLIT_MOST_BLOCKS(row->tile_rows);
    if (row->family != EG_CUDA_TMA_SPLIT || (row->takes & (EG_CUDA_GROUPS_ALONE | EG_CUDA_TURNED)) != 0 ||
        most * (eg_cuda_shared_of(row, x, splits) + reserved) > room)
        return costs->resident;
    return most;
}

/* A k-block's cost is that of 16 KiB of right where it is read as a stream; tiles of few columns take longer
 * than those of few rows, whose kind they are. */
static double per_k_block_of(const eg_cuda_kernel *row) {
    const double few_cols = 1.3;
    if (row->family != EG_CUDA_STREAMED) return (row->takes & EG_CUDA_FEW_COLS) != 0 ? few_cols : 1;
    return (double)row->k_block * row->tile_cols * (double)eg_size_of(row->dtype) / (16 << 10);
}

/* Each further part of a stream's depth reads from another place: memory's rate falls by a twenty-fifth. */
static double spread_of(const eg_cuda_kernel *row, int splits) {
    return row->family == EG_CUDA_STREAMED ? 1 + 0.04 * (splits - 1) : 1;
}

/* Of the k-blocks of a last round that leaves places empty, the part that memory does not hide. */
static double exposed_of(const eg_cuda_kernel *row, const eg_cuda_costs *costs, double rounds,
                         double filled) {
    if (row->family != EG_CUDA_STREAMED || rounds <= 1) return 0;
    return costs->latency * per_k_block_of(row) * (rounds - filled) / 2;
}

/* Numbers of parts. Clusters of 5 and of 7 leave multiprocessors idle. */
static int more_splits(const eg_cuda_kernel *row, int splits) {
    if (row->family != EG_CUDA_STREAMED) return splits * 2;
    return splits < 4 ? splits + 1 : splits + 2;
}

/* Constants of one wave are those of a quick clock, which falls where matrix units are busy for long. */
static double slowed_by(double busy) {
    const double most = 0.35, after = 90; /* microseconds */
    return 1 + most * (busy < after ? busy / after : 1);
}

/* What the blocks load of a k-block comes out of L2, whose rate they share. Half of it comes to several
 * blocks at once where neighbours read the same: columns of right, if none has a part of the depth, or the
 * only rows of left; and as long as they go in step, which they leave after some k-blocks. Rows that begin
 * within lines count twice, as of persistent tiles, and once more where no other block runs meanwhile. */
static double loading_of(const eg_cuda_machine *machine, const eg_cuda_kernel *row, const eg_cuda_gemm *x,
                         double blocks, int splits, double k_blocks) {
    const double rate = 7.3e6, in_step = 32; /* bytes a microsecond; k-blocks */
    const double more = blocks > machine->multiprocessors ? 1 : 2;
    const double left = 1 + more * (lines_of_each(&x->left) - 1),
                 right = 1 + more * (lines_of_each(&x->right) - 1);
    const double lines = (double)rows_of(row, x) / eg_cuda_tiles_across(row) * left +
                         (double)row->tile_cols / eg_cuda_tiles_down(row) * right;
    const double bytes = blocks * lines * row->k_block * (double)eg_size_of(row->dtype);
    const bool same_right = splits == 1 && eg_cuda_cluster_tiles(row) == 1,
               same_left = x->rows <= row->tile_rows;
    const double together = same_right || same_left || k_blocks <= in_step ? 1 : in_step / k_blocks;
    return bytes / (rate * grown_of(machine)) * (1 - together / 2);
}

/* Of a tile's rows those that the unit multiplies. */
static double part_of(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    const int multiplied = EG_TURNED_WIDTH(rows_of(row, x), row->tile_rows);
    return is_turned(row) ? (double)multiplied / row->tile_rows : 1;
}

/* Of a tile's blocks each sums a part of the depth. What does not fit on the device at once waits until
 * blocks have ended. Larger clusters do not fill it: on an H200, 256 blocks in
 * fours did not all run at once, nor 128 in eights. */
static double estimate_split(const eg_cuda_machine *machine, const eg_cuda_kernel *row,
                             const eg_cuda_costs *costs, const eg_cuda_gemm *x, int splits) {
    const double blocks = tiles_of(row, x) * splits;
    const double k_blocks = ceil_of(k_blocks_of(row, x) / splits);
    const double filled = splits * eg_cuda_cluster_tiles(row) > 2 ? 0.92 : 1;
    const double places = machine->multiprocessors * resident_of(row, costs, x, splits) * filled;
    const double rounds = ceil_of(blocks / places);
    const double waves = is_turned(row) ? rounds : ceil_of(blocks / machine->multiprocessors);
    const bool shares = (row->takes & EG_CUDA_ONE_TYPE) != 0; /* each block finishes a part */
    const bool within_lines = lines_of_each(&x->left) > 1 || lines_of_each(&x->right) > 1;
    const bool loads = shares || (row->family == EG_CUDA_TMA_SPLIT && within_lines);
    const double loading = loads ? loading_of(machine, row, x, blocks, splits, k_blocks) : 0;
    const double made = eg_greatest(waves * k_block_of(costs, x) * part_of(row, x), rounds * costs->latency) *
                        per_k_block_of(row);
    const double quick = eg_greatest(made, loading);
    const double products = shares ? quick * slowed_by(quick * k_blocks) : quick;
    const double epilogue = (costs->tile + terms_of(costs, x)) * part_of(row, x) / (shares ? splits : 1);
    const double busy = products * k_blocks + (rounds - 1) * (costs->launch + epilogue);
    const double exposed = k_blocks * exposed_of(row, costs, rounds, blocks / places);
    const double memory = memory_time(machine, costs, x);
    return costs->launch + exposed + (splits > 1 ? costs->tail * splits / 2 : 0) + epilogue +
           sums_of_few_rows(row, x, memory) + beside(busy, memory * spread_of(row, splits));
}

/* A block finishes sixteen columns of each consumer, or more; of a turned tile 32. */
static int most_splits_of(const eg_cuda_machine *machine, const eg_cuda_kernel *row) {
    const int chunks =
        is_turned(row) ? row->tile_cols / 32 : EG_CLUSTER_WIDE(row->tile_rows, row->tile_cols) / 16;
    if ((row->takes & EG_CUDA_ONE_TYPE) == 0) return machine->most_splits;
    return (int)eg_least(machine->most_splits / eg_cuda_cluster_tiles(row), chunks & -chunks);
}

/* More parts than run at once gain little, and where a kernel waits for memory alone, equal shares of it. */
static double least_of_splits(const eg_cuda_machine *machine, const eg_cuda_kernel *row,
                              const eg_cuda_costs *costs, const eg_cuda_gemm *x, int *best) {
    const double tiles = tiles_of(row, x), places = machine->multiprocessors * costs->resident;
    double least = estimate_split(machine, row, costs, x, 1);
    *best = 1;
    const double most = (row->family == EG_CUDA_TMA_SPLIT ? 8 : 2) * places;
    for (int splits = 2; splits <= most_splits_of(machine, row) && tiles * splits <= most;
         splits = more_splits(row, splits)) {
        const double time = estimate_split(machine, row, costs, x, splits);
        if (time < least) least = time, *best = splits;
    }
    return least;
}

/* ---- The rest ------------------------------------------------------------------------------------- */

static const eg_cuda_costs *costs_of(const eg_cuda_machine *machine, const eg_cuda_kernel *row) {
    return &machine->calibration->costs[eg_cuda_kind_of(row)];
}

/* Of what is read number by number: y of 16 bits in rows that are no whole vectors. */
static double by_numbers(const eg_cuda_kernel *row, const eg_cuda_costs *costs, const eg_cuda_gemm *x) {
    const int64_t each = row->dtype != EG_DTYPE_DEFAULT ? 16 / (int64_t)eg_size_of(row->dtype) : 1;
    return each == 8 && x->cols % each != 0 ? (double)x->rows * (double)x->cols * costs->odd * 1e-6 : 0;
}

/* Of the rows of its columns a thread reads two at once. Blocks of a cluster wait for each other; more than
 * run at once read what is far apart. */
static double estimate_whole_sums(const eg_cuda_machine *machine, const eg_cuda_kernel *row,
                                  const eg_cuda_costs *costs, const eg_cuda_gemm *x) {
    const int blocks = eg_whole_sums_blocks(x->rows), resident = EG_WHOLE_SUMS_RESIDENT;
    const double all = (double)eg_ceil_div(x->cols, row->tile_cols) * blocks;
    const double rounds = ceil_of(all / (resident * machine->multiprocessors));
    const double turns = (double)eg_ceil_div(x->rows, 2 * EG_WHOLE_SUMS_ROWS * blocks);
    /* Single numbers of few rows are there sooner, as long as every block has a multiprocessor. */
    const bool sooner = (row->takes & EG_CUDA_ODD) != 0 && x->rows < 16 && all <= machine->multiprocessors;
    const double latency = costs->latency * (sooner ? 0.85 + 0.15 * (double)x->rows / 16 : 1);
    return costs->launch + (blocks > 1 ? costs->tile : 0) + (rounds - 1) * costs->tail +
           beside(rounds * turns * latency, memory_time(machine, costs, x));
}

/* Columns of few rows are summed by the warps of one block. Of single numbers wide rows take more blocks than
 * run at once. */
static double estimate_map(const eg_cuda_machine *machine, const eg_cuda_kernel *row,
                           const eg_cuda_costs *costs, const eg_cuda_gemm *x) {
    const int64_t at_once = 2 * row->threads / 32, few = 2 * (int64_t)row->tile_rows, resident = 3;
    const bool one_block = x->sums != 0 && x->rows <= few;
    const double turns = one_block ? (double)eg_ceil_div(x->rows, at_once) : 0;
    /* f64 has no unit for exponentials, and a warp alone waits for each step of one. */
    const bool formula = x->activation != EG_ACT_NONE && x->activation != EG_ACT_RELU;
    const double latency = costs->latency * (row->compute == EG_F64 && formula ? 2.4 : 1);
    const double rounds = costs->tile > 0 ? ceil_of((double)eg_ceil_div(x->cols, row->tile_cols) /
                                                    (double)(resident * machine->multiprocessors))
                                          : 1;
    return costs->launch + memory_time(machine, costs, x) + by_numbers(row, costs, x) + turns * latency +
           (rounds - 1) * costs->tile;
}

double eg_cuda_estimate(const eg_cuda_machine *machine, const eg_cuda_kernel *row, const eg_cuda_gemm *x,
                        double saved) {
    const eg_cuda_costs *costs = costs_of(machine, row);
    if ((row->takes & EG_CUDA_WHOLE_SUMS) != 0) return estimate_whole_sums(machine, row, costs, x);
    if (row->kind == EG_MAP || row->kind == EG_COPY || (row->takes & EG_CUDA_COPY) != 0)
        return estimate_map(machine, row, costs, x);
    int splits;
    if (row->family == EG_CUDA_LIBRARY) return estimate_library(machine, costs, x);
    if (row->family == EG_CUDA_SPLIT || row->family == EG_CUDA_TMA_SPLIT || row->family == EG_CUDA_STREAMED)
        return least_of_splits(machine, row, costs, x, &splits);
    return estimate_tiles(machine, row, costs, x, saved);
}

int eg_cuda_splits_of(const eg_cuda_machine *machine, const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    int splits;
    least_of_splits(machine, row, costs_of(machine, row), x, &splits);
    return splits;
}

/* A block has few columns at a time, of which its warps wait for some rows at once: measured on an H200, of
 * an operand that L2 holds, beside others, and of one that it does not. */
double eg_cuda_estimate_left_sums(const eg_cuda_machine *machine, int64_t rows, int64_t cols) {
    const double near = 0.8, far = 2, held = 16 << 20; /* microseconds; bytes of 16-bit numbers */
    const uint32_t lanes = eg_cuda_left_lanes((uint32_t)cols, (uint32_t)machine->multiprocessors);
    const int64_t at_once = 32 * EG_LEFT_SUMS_WARPS * EG_LEFT_SUMS_AT_ONCE / lanes;
    return ceil_of((double)eg_ceil_div(cols, lanes * EG_LEFT_SUMS_EACH) / machine->multiprocessors) *
           (double)eg_ceil_div(rows, at_once) * (2.0 * (double)rows * (double)cols > held ? far : near);
}

/* A block adds up 32 rows of its columns at once, and waits for them; a multiprocessor has room for two. */
double eg_cuda_estimate_sums(const eg_cuda_machine *machine, const eg_cuda_kernel *row, int64_t rows,
                             int64_t cols) {
    const eg_cuda_costs *costs = costs_of(machine, row);
    const double waves = ceil_of((double)eg_ceil_div(cols, row->tile_cols) / (2 * machine->multiprocessors));
    return costs->launch + waves * (double)eg_ceil_div(rows, 32) * costs->latency;
}
