/* SPDX-License-Identifier: Apache-2.0 */
/* How the last tiles of a product are split (partition.c), for many products: as kernels/hopper_scheduler.cuh
 * walks it, every k-block of a split tile is multiplied once, and no two partial tiles lie in one place; and
 * what shared memory a launch asks for. Pure: runs anywhere. */
#include "core/validate.h"
#include "cuda/cluster.h"
#include "cuda/estimate.h"
#include "cuda/left_sums.h"
#include "cuda/parameters.h"
#include "cuda/partition.h"
#include "cuda/takes.h"
#include "support.h"

enum { MOST_K_BLOCKS = 400 };

static const int devices[] = {132, 114, 78}; /* multiprocessors; clusters are of two */

static const eg_cuda_kernel *row_named(const char *name) {
    const eg_cuda_kernel *row;
    for (int i = 0; (row = eg_cuda_kernel_row(i)) != NULL; i++)
        if (strcmp(row->name, name) == 0) return row;
    fail_msg("no row %s", name);
    return NULL;
}

static eg_cuda_tail tail_of(int multiprocessors, int64_t tiles, int64_t k_blocks, bool always,
                            double *saved) {
    const eg_cuda_kernel *row = row_named("hopper_bf16_stream_k_nt_128x256");
    const eg_cuda_gemm x = {
        .rows = tiles * 256, .cols = 256, .depth = k_blocks * 64, .items = 1, .summed = 1};
    return eg_cuda_tail_of(multiprocessors, row, &x, always, saved);
}

/* The k-blocks that owners leave are one sequence. Helper h has those from ceil(h * sequence / helpers) on.
 */
static void walk_the_sequence(const eg_cuda_tail *tail, int k_blocks, int clusters) {
    const int helper_k_blocks = k_blocks - tail->owner_k_blocks, sequence = tail->tiles * helper_k_blocks;
    int last_partial = -1, last_tile = -1, last_helper = -1;
    for (int at = 0; at < sequence; at++) {
        const int tile = at / helper_k_blocks, helper = (int)((int64_t)at * tail->helpers / sequence);
        const int begin = (int)(((int64_t)helper * sequence + tail->helpers - 1) / tail->helpers);
        const int end = (int)((((int64_t)helper + 1) * sequence + tail->helpers - 1) / tail->helpers);
        const int first = tile + tile * tail->helpers / tail->tiles;
        const int last = tile + (int)(((int64_t)(tile + 1) * helper_k_blocks - 1) * tail->helpers / sequence);
        const int partial = tile + helper;
        assert_in_range(at, begin, end - 1);
        assert_in_range(partial, first, last);
        if (tile != last_tile || helper != last_helper) assert_true(partial > last_partial);
        last_partial = partial, last_tile = tile, last_helper = helper;
    }
    assert_true(last_partial < clusters);
}

static void check_partial_tiles(int multiprocessors, int tiles, int k_blocks) {
    const int clusters = multiprocessors / 2;
    double saved;
    const eg_cuda_tail tail = tail_of(multiprocessors, tiles, k_blocks, true, &saved);
    assert_int_equal(tail.tiles, k_blocks > 1 ? tiles % clusters : 0);
    if (tail.tiles == 0) return;
    assert_in_range(tail.owner_k_blocks, 1, k_blocks - 1);
    assert_in_range(tail.helpers, 1, clusters - tail.tiles);
    walk_the_sequence(&tail, k_blocks, clusters);
}

static void partial_tiles_are_apart_and_complete(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(devices); i++)
        for (int tiles = 1; tiles <= devices[i]; tiles++)
            for (int k_blocks = 1; k_blocks <= MOST_K_BLOCKS; k_blocks += 1 + k_blocks / 8)
                check_partial_tiles(devices[i], tiles, k_blocks);
}

/* Never more than the idle part of a wave, and nothing is split for less than a hundredth of the product. */
static void a_tail_is_profitable(void **state) {
    int tails = 0;
    (void)state;
    for (int tiles = 1; tiles <= 30 * devices[0] / 2; tiles++) {
        for (int k_blocks = 8; k_blocks <= MOST_K_BLOCKS; k_blocks *= 2) {
            double saved;
            const eg_cuda_tail tail = tail_of(devices[0], tiles, k_blocks, false, &saved);
            const int clusters = devices[0] / 2, waves = tiles / clusters + 1;
            const double idle = 1 - (double)(tiles % clusters) / clusters;
            assert_true(tail.tiles > 0 ? saved >= 0.01 * waves && saved < idle : saved == 0);
            tails += tail.tiles > 0;
        }
    }
    assert_true(tails > 0);
}

/* A block loads as many k-blocks as it has stages before it waits, and its tile lies where they were. What it
 * receives, and what it does not know, have all of the room. */
static void a_launch_has_the_stages_that_it_fills(void **state) {
    static const struct {
        const char *name;
        int stage, tile, blocks; /* bytes; blocks a multiprocessor, of the shortest depth */
    } rows[] = {{"hopper_bf16_split_16x64", (16 + 64) * 128, 16 * 68 * 4, 3},
                {"hopper_bf16_split_64x64", (64 + 64) * 128, 64 * 68 * 4, 3},
                {"hopper_f16_split_128x128", (128 + 128) * 128, 128 * 132 * 4, 1}};
    const int room = 227 * 1024, reserved = 1024;
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        const eg_cuda_kernel *row = row_named(rows[i].name);
        const int all = EG_TMA_SPLIT_STAGES(row->tile_rows, row->tile_cols);
        for (int k_blocks = 1; k_blocks < 2 * all; k_blocks++) {
            eg_cuda_gemm x = {
                .rows = 1000, .cols = 1000, .depth = k_blocks * 64 - 8, .items = 1, .summed = 1};
            const int shared = eg_cuda_shared_of(row, &x, 1), least = k_blocks < all ? k_blocks : all;
            assert_in_range(shared, EG_TMA_SPLIT_FRONT + least * rows[i].stage, row->shared);
            assert_true(shared >= EG_TMA_SPLIT_FRONT + rows[i].tile);
            if (k_blocks == 1) assert_true(rows[i].blocks * (shared + reserved) <= room);
            assert_int_equal(eg_cuda_shared_of(row, &x, 2), row->shared);
            x.depth = 64, x.summed = k_blocks;
            assert_int_equal(eg_cuda_shared_of(row, &x, 1), shared);
            x.ragged = EG_CUDA_RAGGED_DEPTH;
            assert_int_equal(eg_cuda_shared_of(row, &x, 1), row->shared);
            x.ragged = EG_CUDA_DENSE, x.tiles = (int64_t)INT32_MAX + 1;
            assert_int_equal(eg_cuda_shared_of(row, &x, 1), row->shared);
        }
    }
}

/* A few turned tiles share the rows equally, each has some, and the unit multiplies them all. */
static void turned_tiles_share_the_rows(void **state) {
    static const int most[] = {152, 200};
    (void)state;
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        for (int rows = 1; rows < 4000; rows++) {
            const int tiles = (rows + most[i] - 1) / most[i], each = EG_TURNED_ROWS(rows, tiles, most[i]),
                      width = EG_TURNED_WIDTH(each, most[i]);
            assert_int_equal(each % 8, 0);
            assert_in_range(each, 8, most[i]);
            assert_true((tiles - 1) * each < rows && rows <= tiles * each);
            if (tiles <= EG_TURNED_FEW_TILES) assert_true(each * tiles < rows + 8 * tiles);
            assert_in_range(width, each > EG_TURNED_LEAST_WIDTH ? each : EG_TURNED_LEAST_WIDTH, most[i]);
            assert_int_equal((most[i] - width) % EG_TURNED_STEP, 0);
        }
    }
}

/* Of a cluster's tile each block finishes whole parts of sixteen columns of each consumer, and what it
 * finishes has room where the stages were. Results are of the operands' type. */
static void a_cluster_shares_whole_parts_of_columns(void **state) {
    const eg_cuda_machine machine = {
        .calibration = eg_cuda_calibration_of("H200"), .multiprocessors = 132, .most_splits = EG_MOST_SPLITS};
    const eg_cuda_kernel *row;
    int seen = 0, split = 0;
    (void)state;
    for (int i = 0; (row = eg_cuda_kernel_row(i)) != NULL; i++) {
        if (row->family != EG_CUDA_TMA_SPLIT || (row->takes & EG_CUDA_ONE_TYPE) == 0) continue;
        const int rows = row->tile_rows, cols = row->tile_cols;
        const bool turned = (row->takes & EG_CUDA_TURNED) != 0;
        const int parts = turned ? cols / 32 : EG_CLUSTER_WIDE(rows, cols) / 16,
                  least = turned ? EG_TURNED_LEAST(rows, cols) : EG_CLUSTER_LEAST(rows, cols);
        for (int depth = 64; depth <= 1 << 15; depth *= 2) {
            for (int tiles = 1; tiles <= 64; tiles++) {
                const eg_cuda_gemm x = {
                    .rows = rows, .cols = tiles * cols, .depth = depth, .items = 1, .summed = 1};
                const int splits = eg_cuda_splits_of(&machine, row, &x);
                const int shared = eg_cuda_shared_of(row, &x, splits);
                assert_int_equal(parts % splits, 0);
                assert_true(splits * eg_cuda_cluster_tiles(row) <= EG_MOST_SPLITS);
                assert_in_range(shared, least, row->shared);
                split += splits > 1;
            }
        }
        assert_true((turned ? 1 : EG_CLUSTER_BLOCKS(rows, cols)) * (row->shared + 1024) <= 227 * 1024);
        const eg_cuda_matrix x = {.data = 256, .row_stride = 64, .col_stride = 1, .dtype = row->dtype};
        eg_cuda_gemm product = {.left = x, .right = x, .out = x, .rows = 64, .cols = 64, .depth = 64};
        product.items = product.summed = 1;
        assert_true(eg_cuda_takes(row, EG_CUDA_WHOLE, &product));
        product.out.dtype = EG_F32;
        assert_false(eg_cuda_takes(row, EG_CUDA_WHOLE, &product));
        seen++;
    }
    assert_true(seen > 0 && split > 0);
}

/* The four warps of a tile leave sums, also where the result has fewer rows than the tile. */
static void column_sums_are_those_of_whole_tiles(void **state) {
    static const struct {
        const char *name;
        int64_t rows, sums;
    } cases[] = {{"hopper_bf16_pingpong_nn_128x128", 1, 4},     {"hopper_bf16_pingpong_nn_128x128", 128, 4},
                 {"hopper_bf16_pingpong_nn_128x128", 129, 8},   {"hopper_f16_pingpong_nt_128x192", 129, 8},
                 {"hopper_f16_gated_chain_nt_128x128", 200, 8}, {"hopper_bf16_nn_128x256", 130, 4},
                 {"hopper_bf16_grouped_nn_128x128", 130, 2},    {"map_bf16", 33, 2}};
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++)
        assert_int_equal(eg_cuda_sums_of(row_named(cases[i].name), cases[i].rows), cases[i].sums);
}

/* y of a product that waits in rows of whole vectors: results in vectors, or in one long row without a gap.
 */
static void y_is_made_of_vectors_or_of_one_row(void **state) {
    enum { ROWS = 3, COLS = 13, PADDED = 16 };
    const eg_cuda_kernel *row = row_named("map_y_gaps_bf16");
    const eg_cuda_matrix product = {.data = 256, .row_stride = PADDED, .col_stride = 1, .dtype = EG_F32},
                         y = {.data = 512, .row_stride = COLS, .col_stride = 1, .dtype = EG_BF16};
    eg_cuda_gemm x = {.left = product, .out = y, .rows = ROWS, .cols = COLS, .items = 1, .summed = 1};
    (void)state;
    x.epilogue = EG_CUDA_FORWARD, x.ragged = EG_CUDA_DENSE;
    assert_true(eg_cuda_takes(row, EG_CUDA_FINISH, &x));
    x.out.row_stride = PADDED;
    assert_false(eg_cuda_takes(row, EG_CUDA_FINISH, &x));
    x.cols = PADDED;
    assert_true(eg_cuda_takes(row, EG_CUDA_FINISH, &x));
    x.sums = 1024;
    assert_false(eg_cuda_takes(row, EG_CUDA_FINISH, &x));
    x.sums = 0, x.epilogue = EG_CUDA_CHAIN;
    assert_false(eg_cuda_takes(row, EG_CUDA_FINISH, &x));
    x.tiles = 7;
    assert_int_equal(eg_cuda_blocks_of(row, &x), eg_ceil_div(ROWS * PADDED, 8 * 256));
    assert_int_equal(eg_cuda_blocks_of(row_named("map_bf16"), &x), eg_ceil_div(ROWS * PADDED, 8 * 512));
    assert_int_equal(eg_cuda_blocks_of(row_named("map_any_f32"), &x), 7);
    x.sums = 1024;
    assert_int_equal(eg_cuda_blocks_of(row_named("map_bf16"), &x), 7);
}

/* One long row: of one item, of the layer's type but for the product, and in whole vectors. */
static void y_without_gaps_is_one_long_row(void **state) {
    enum { ROWS = 3, COLS = 16, MOST = 1 << 30 };
    const eg_cuda_kernel *row = row_named("map_y_bf16"), *f32 = row_named("map_y_f32");
    const eg_cuda_matrix product = {.data = 256, .row_stride = COLS, .col_stride = 1, .dtype = EG_F32},
                         y = {.data = 512, .row_stride = COLS, .col_stride = 1, .dtype = EG_BF16};
    const eg_cuda_gemm x = {.left = product,
                            .out = y,
                            .rows = ROWS,
                            .cols = COLS,
                            .items = 1,
                            .summed = 1,
                            .epilogue = EG_CUDA_FORWARD};
    eg_cuda_gemm other = x;
    (void)state;
    assert_true(eg_cuda_takes(row, EG_CUDA_FINISH, &x));
    assert_int_equal(eg_cuda_blocks_of(row, &x), 1);
    other.second = y, other.in = y;
    assert_true(eg_cuda_takes(row, EG_CUDA_FINISH, &other));
    other.in.dtype = EG_F32;
    assert_false(eg_cuda_takes(row, EG_CUDA_FINISH, &other));
    other = x, other.left.row_stride = 2L * COLS;
    assert_false(eg_cuda_takes(row, EG_CUDA_FINISH, &other));
    other.rows = 1;
    assert_true(eg_cuda_takes(row, EG_CUDA_FINISH, &other));
    other = x, other.out.row_stride = 2L * COLS;
    assert_false(eg_cuda_takes(row, EG_CUDA_FINISH, &other));
    other = x, other.items = 2;
    assert_false(eg_cuda_takes(row, EG_CUDA_FINISH, &other));
    other = x, other.left.data = 0;
    assert_false(eg_cuda_takes(row, EG_CUDA_FINISH, &other));
    other = x, other.cols = COLS - 4, other.left.row_stride = other.out.row_stride = other.cols;
    assert_false(eg_cuda_takes(row, EG_CUDA_FINISH, &other));
    other = x, other.rows = MOST - 1;
    assert_true(eg_cuda_takes(row, EG_CUDA_FINISH, &other));
    other.rows = MOST;
    assert_false(eg_cuda_takes(row, EG_CUDA_FINISH, &other));
    other = x, other.out.dtype = EG_F32;
    assert_true(eg_cuda_takes(f32, EG_CUDA_FINISH, &other));
    other.rows = 1024; /* of f32 a thread has two vectors */
    assert_int_equal(eg_cuda_blocks_of(f32, &other), 1024 * COLS / (2 * 4 * 256));
    other.rows = 3, other.cols = other.left.row_stride = other.out.row_stride = 4096;
    assert_int_equal(eg_cuda_blocks_of(f32, &other), 2 * 4096 / (4 * 256));
}

static void rows_begin_on_lines_where_that_adds_little(void **state) {
    static const struct {
        eg_dtype dtype;
        int64_t cols, pitch;
    } cases[] = {{EG_BF16, 4100, 4160}, {EG_BF16, 4096, 4096}, {EG_F16, 1000, 1024}, {EG_F16, 513, 576},
                 {EG_BF16, 511, 512},   {EG_BF16, 500, 512},   {EG_BF16, 100, 104},  {EG_BF16, 10, 16},
                 {EG_F32, 1000, 1024},  {EG_F32, 257, 288},    {EG_F32, 30, 32},     {EG_F64, 129, 144}};
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++)
        assert_int_equal(eg_cuda_pitch_of(cases[i].cols, cases[i].dtype), cases[i].pitch);
}

/* Of 16 bits: 2025 rows have chunks of an odd number of rows alone, which are 30 or 31 numbers long. */
static void chunks_of_a_depth_begin_on_words(void **state) {
    enum { K = 30, N = 50, ROWS = 2025 };
    eg_cuda_gemm x = {.rows = K, .cols = N, .depth = ROWS, .items = 1, .summed = 1};
    (void)state;
    x.left = (eg_cuda_matrix){.data = 256, .row_stride = 1, .col_stride = K, .dtype = EG_BF16};
    x.right = (eg_cuda_matrix){.data = 256, .row_stride = N, .col_stride = 1, .dtype = EG_BF16};
    x.out = (eg_cuda_matrix){.data = 256, .row_stride = N, .col_stride = 1, .dtype = EG_F32};
    assert_int_equal(eg_cuda_depth_chunks(&x), 27);
    x.left.col_stride = K + 1;
    assert_int_equal(eg_cuda_depth_chunks(&x), 0);
    x.left.col_stride = K, x.right.row_stride = N + 1;
    assert_int_equal(eg_cuda_depth_chunks(&x), 0);
    x.left.dtype = x.right.dtype = EG_F32;
    assert_int_equal(eg_cuda_depth_chunks(&x), 27);
}

/* A row of left in whole sectors, or in less where that gives more blocks some columns. */
static void columns_of_left_are_for_all_blocks(void **state) {
    static const struct {
        uint32_t cols, lanes;
    } cases[] = {{8, 1}, {512, 1}, {528, 1}, {529, 2}, {1024, 2}, {1056, 2}, {1057, 4}, {4096, 4}};
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++)
        assert_int_equal(eg_cuda_left_lanes(cases[i].cols, 132), cases[i].lanes);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(columns_of_left_are_for_all_blocks),
                                       cmocka_unit_test(chunks_of_a_depth_begin_on_words),
                                       cmocka_unit_test(y_is_made_of_vectors_or_of_one_row),
                                       cmocka_unit_test(y_without_gaps_is_one_long_row),
                                       cmocka_unit_test(rows_begin_on_lines_where_that_adds_little),
                                       cmocka_unit_test(column_sums_are_those_of_whole_tiles),
                                       cmocka_unit_test(partial_tiles_are_apart_and_complete),
                                       cmocka_unit_test(a_tail_is_profitable),
                                       cmocka_unit_test(a_launch_has_the_stages_that_it_fills),
                                       cmocka_unit_test(turned_tiles_share_the_rows),
                                       cmocka_unit_test(a_cluster_shares_whole_parts_of_columns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
