/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the candidates of cublasLt's heuristics is taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <cublasLt.h>

#include "epigrad/epigrad.h"

#include "cuda/lt_choose.h"

#define CHOOSE(key, ...)                                                                                     \
    eg_cuda_lt_choose(&(key), sizeof((eg_cuda_lt_candidate[]){__VA_ARGS__}) / sizeof(eg_cuda_lt_candidate),  \
                      (eg_cuda_lt_candidate[]){__VA_ARGS__})

static eg_cuda_lt_key key_of(eg_dtype dtype, int64_t rows, int64_t cols, int64_t depth) {
    return (eg_cuda_lt_key){.rows = rows,
                            .cols = cols,
                            .depth = depth,
                            .items = 1,
                            .dtype = dtype,
                            .result_dtype = dtype,
                            .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
}

static void the_first_is_taken(void **state) {
    (void)state;
    const eg_cuda_lt_key key = key_of(EG_BF16, 1024, 1024, 1024);
    assert_int_equal(CHOOSE(key, {.id = 66, .waves = 0.9F}, {.id = 66, .waves = 0.5F}), 0);
    assert_int_equal(CHOOSE(key, {.id = 41}), 0);
    assert_int_equal(CHOOSE(key, {.id = 41}, {.id = 66, .splits = 65}, {.id = 66, .splits = 64}), 2);
}

/* Split sums of 16 bits are rounded before a bias is added; kernels but Hopper's lose a NaN in a ReLU. */
static void a_result_is_rounded_once(void **state) {
    (void)state;
    const eg_cuda_lt_candidate whole = {.id = 66, .splits = 1},
                               split = {.id = 66, .splits = 2, .reduction = 2},
                               other = {.id = 23, .splits = 1};
    eg_cuda_lt_key key = key_of(EG_F16, 64, 64, 64);
    assert_true(eg_cuda_lt_keeps(&key, &split));
    key.epilogue = CUBLASLT_EPILOGUE_BIAS;
    assert_true(eg_cuda_lt_keeps(&key, &whole) && eg_cuda_lt_keeps(&key, &other));
    assert_false(eg_cuda_lt_keeps(&key, &split));
    key.epilogue = CUBLASLT_EPILOGUE_RELU_BIAS;
    assert_true(eg_cuda_lt_keeps(&key, &whole));
    assert_false(eg_cuda_lt_keeps(&key, &other));
    key.result_dtype = EG_F32;
    assert_true(eg_cuda_lt_keeps(&key, &split));
}

static void sums_of_one_term_are_outer_products(void **state) {
    (void)state;
    eg_cuda_lt_key key = key_of(EG_F32, 4096, 4096, 1);
    assert_int_equal(CHOOSE(key, {.id = 20}, {.id = 12, .splits = UINT32_MAX}, {.id = 12}), 2);
    key.accumulate = 1;
    assert_int_equal(CHOOSE(key, {.id = 20}, {.id = 12}), 0);
    key.dtype = EG_F64;
    assert_int_equal(CHOOSE(key, {.id = 22}, {.id = 12, .splits = UINT32_MAX}), 1);
}

static void short_sums_are_made_by_what_stores_best(void **state) {
    (void)state;
    eg_cuda_lt_key key = key_of(EG_F32, 4096, 1024, 16);
    const eg_cuda_lt_candidate large = {
        .id = 20, .tile = CUBLASLT_MATMUL_TILE_128x128, .stages = CUBLASLT_MATMUL_STAGES_8x4};
    const eg_cuda_lt_candidate low = {
        .id = 20, .tile = CUBLASLT_MATMUL_TILE_128x32, .stages = CUBLASLT_MATMUL_STAGES_8x5};
    eg_cuda_lt_candidate split = large;
    split.splits = 2;
    assert_int_equal(CHOOSE(key, {.id = 55}, low, split, large), 3);
    assert_int_equal(CHOOSE(key, {.id = 55}, low, split), 1);
    eg_cuda_lt_candidate second = large; /* a second wave of few blocks */
    second.waves = 1.1F;
    assert_int_equal(CHOOSE(key, {.id = 55}, second, low), 2);
    key.accumulate = 1;
    assert_int_equal(CHOOSE(key, {.id = 55}, large, low), 2);
    assert_int_equal(CHOOSE(key, {.id = 55}, large), 0);
    key.cols = 128; /* few results */
    assert_int_equal(CHOOSE(key, {.id = 55}, large, low), 0);
    key.cols = 1024, key.depth = 25;
    assert_int_equal(CHOOSE(key, {.id = 55}, large, low), 0);
}

static void stored_sums_of_f64_have_large_tiles(void **state) {
    (void)state;
    eg_cuda_lt_key key = key_of(EG_F64, 2304, 768, 85);
    const eg_cuda_lt_candidate small = {
        .id = 35, .tile = CUBLASLT_MATMUL_TILE_64x32, .stages = CUBLASLT_MATMUL_STAGES_32x3};
    const eg_cuda_lt_candidate large = {
        .id = 35, .tile = CUBLASLT_MATMUL_TILE_128x64, .stages = CUBLASLT_MATMUL_STAGES_16x3};
    assert_int_equal(CHOOSE(key, small, large), 0); /* it is no d_b */
    key.transposed[1] = 1;
    assert_int_equal(CHOOSE(key, small, large), 1);
    key.depth = 301;
    assert_int_equal(CHOOSE(key, small, large), 0);
    key.depth = 85, key.accumulate = 1;
    assert_int_equal(CHOOSE(key, small, large), 0);
}

static void a_vector_kernel_uses_the_device(void **state) {
    (void)state;
    const eg_cuda_lt_key key = key_of(EG_F32, 4096, 1, 4096);
    assert_int_equal(CHOOSE(key, {.id = 13, .waves = 0.04F}, {.id = 13, .waves = 0.1F},
                            {.id = 20, .waves = 1}, {.id = 13, .waves = 0.25F}),
                     3);
    assert_int_equal(CHOOSE(key, {.id = 13, .custom = 11, .waves = 0.5F},
                            {.id = 13, .custom = 75, .waves = 1}, {.id = 13, .custom = 75, .waves = 3}),
                     2);
    assert_int_equal(
        CHOOSE(key, {.id = 13, .custom = 12, .waves = 0.5F}, {.id = 13, .custom = 75, .waves = 3}), 0);
    const eg_cuda_lt_candidate half = {.id = 13, .custom = 100, .waves = 0.48F},
                               all = {.id = 13, .custom = 100, .waves = 0.97F},
                               low = {.id = 13, .custom = 92, .waves = 0.97F};
    eg_cuda_lt_key along = key;
    along.transposed[0] = 1;
    assert_int_equal(CHOOSE(key, half, low), 1);
    assert_int_equal(CHOOSE(key, all, low), 0);
    assert_int_equal(CHOOSE(along, half, low), 0);
}

/* Tiles that hide their stores, unless they make more than a tenth more. */
static void large_tiles_give_way(void **state) {
    (void)state;
    const eg_cuda_lt_key key = key_of(EG_BF16, 4864, 896, 8192), deep = key_of(EG_BF16, 4864, 896, 16384);
    const eg_cuda_lt_candidate large = {.id = 66, .tile = CUBLASLT_MATMUL_TILE_192x192, .waves = 3.9F};
    eg_cuda_lt_candidate better = {.id = 66, .tile = CUBLASLT_MATMUL_TILE_128x160, .waves = 7};
    assert_int_equal(CHOOSE(key, large, {.id = 66}, better), 2);
    assert_int_equal(CHOOSE(deep, large, {.id = 66}, better), 0);
    better.waves = 7.1F; /* 8 of 20480 for 4 of 36864 */
    assert_int_equal(CHOOSE(key, large, {.id = 66}, better), 0);
    better.waves = 7, better.splits = 2;
    assert_int_equal(CHOOSE(key, large, {.id = 66}, better), 0);
}

/* Of a large matrix for few columns: tiles as wide as the result, that fill the device once. */
static void a_large_matrix_is_read_at_once(void **state) {
    (void)state;
    const eg_cuda_lt_candidate split = {.id = 66, .splits = 4, .waves = 0.24F};
    eg_cuda_lt_candidate whole = {.id = 66, .tile = CUBLASLT_MATMUL_TILE_64x72, .splits = 1, .waves = 0.7F};
    eg_cuda_lt_key key = key_of(EG_BF16, 6144, 71, 16384);
    assert_true(eg_cuda_lt_is_stream(&key));
    assert_int_equal(CHOOSE(key, split, {.id = 66, .tile = CUBLASLT_MATMUL_TILE_64x56, .waves = 0.7F}, whole),
                     2);
    assert_int_equal(CHOOSE(key, {.id = 66, .tile = CUBLASLT_MATMUL_TILE_192x72, .waves = 0.5F}, whole), 0);
    whole.tile = CUBLASLT_MATMUL_TILE_64x80;
    assert_int_equal(CHOOSE(key, split, whole), 1);
    whole.tile = CUBLASLT_MATMUL_TILE_64x88;
    assert_int_equal(CHOOSE(key, split, whole), 0);
    whole.tile = CUBLASLT_MATMUL_TILE_64x72, whole.waves = 0.3F;
    assert_int_equal(CHOOSE(key, split, whole), 0);
    key.epilogue = CUBLASLT_EPILOGUE_BIAS; /* nothing is split */
    assert_false(eg_cuda_lt_is_stream(&key));
    const eg_cuda_lt_key small = key_of(EG_BF16, 1024, 71, 8192), wide = key_of(EG_BF16, 6144, 264, 16384);
    assert_false(eg_cuda_lt_is_stream(&small));
    assert_false(eg_cuda_lt_is_stream(&wide));
}

static void split_tiles_fill_the_device(void **state) {
    (void)state;
    const eg_cuda_lt_candidate half = {.id = 20, .splits = 5, .waves = 0.47F},
                               over = {.id = 20, .splits = 16, .waves = 1.2F};
    eg_cuda_lt_candidate full = {.id = 20, .splits = 8, .waves = 0.9F};
    const eg_cuda_lt_key key = key_of(EG_F32, 1280, 320, 2048), low = key_of(EG_F32, 1280, 64, 2048);
    assert_int_equal(CHOOSE(key, half, over, full), 2);
    assert_int_equal(CHOOSE(low, half, over, full), 0);
    full.splits = 10;
    assert_int_equal(CHOOSE(key, half, over, full), 0);
    assert_int_equal(CHOOSE(key, {.id = 55, .tile = CUBLASLT_MATMUL_TILE_128x256, .splits = 4},
                            {.id = 55, .tile = CUBLASLT_MATMUL_TILE_128x128, .splits = 4}),
                     1);
    /* Twice the parts and one, where they are long. */
    eg_cuda_lt_candidate twice = {.id = 20, .splits = 11, .waves = 0.95F};
    eg_cuda_lt_key deep = key_of(EG_F32, 320, 1280, 32768);
    assert_int_equal(CHOOSE(deep, half, twice), 1);
    deep.depth = 11 * 512 - 1;
    assert_int_equal(CHOOSE(deep, half, twice), 0);
    deep.depth = 32768, twice.splits = 12;
    assert_int_equal(CHOOSE(deep, half, twice), 0);
}

static void two_blocks_share_a_multiprocessor(void **state) {
    (void)state;
    const eg_cuda_lt_candidate large = {.id = 20, .tile = CUBLASLT_MATMUL_TILE_256x128, .splits = 1},
                               two = {.id = 55, .tile = CUBLASLT_MATMUL_TILE_128x128, .splits = 1};
    eg_cuda_lt_key key = key_of(EG_F32, 50257, 1000, 768);
    assert_int_equal(CHOOSE(key, large, {.id = 55}, two), 2);
    key.transposed[1] = 1;
    assert_int_equal(CHOOSE(key, large, {.id = 55}, two), 0);
}

static void stored_sums_of_some_rows_have_large_tiles(void **state) {
    (void)state;
    const eg_cuda_lt_candidate small = {.id = 55,
                                        .tile = CUBLASLT_MATMUL_TILE_64x64,
                                        .splits = 1,
                                        .waves = 2},
                               split = {.id = 20, .tile = CUBLASLT_MATMUL_TILE_256x128, .splits = 2},
                               large = {.id = 20, .tile = CUBLASLT_MATMUL_TILE_128x128, .splits = 1},
                               low = {.id = 20, .tile = CUBLASLT_MATMUL_TILE_128x64, .splits = 1};
    eg_cuda_lt_key key = key_of(EG_F32, 9216, 2304, 100);
    key.transposed[1] = 1;
    assert_int_equal(CHOOSE(key, small, split, low, large), 2);
    key.accumulate = 1;
    assert_int_equal(CHOOSE(key, small, split, low, large), 0);
    key.accumulate = 0, key.depth = 64;
    assert_int_equal(CHOOSE(key, small, split, low, large), 0);
    key.depth = 100, key.transposed[1] = 0;
    assert_int_equal(CHOOSE(key, small, split, low, large), 0);
}

static void a_short_depth_has_few_stages(void **state) {
    (void)state;
    const eg_cuda_lt_key key = key_of(EG_BF16, 50, 1024, 30), deep = key_of(EG_BF16, 50, 1024, 512);
    assert_int_equal(CHOOSE(key, {.id = 23, .stages = 15}, {.id = 23, .stages = 7}, {.id = 24, .stages = 1}),
                     1);
    assert_int_equal(CHOOSE(deep, {.id = 23, .stages = 15}, {.id = 23, .stages = 7}), 0);
}

/* Of 16 bits: what fills the device and does not read the result has large tiles, a short sum that is added
 * to small ones; a d_b has none of 256 rows, nor has what needs more rounds of them. */
static void lines_that_begin_anywhere_have_tiles_of_their_own(void **state) {
    (void)state;
    eg_cuda_lt_candidate small = {.id = 24, .tile = CUBLASLT_MATMUL_TILE_64x64, .splits = 1, .waves = 0.9F},
                         large = {.id = 24, .tile = CUBLASLT_MATMUL_TILE_128x128, .splits = 1, .waves = 8.9F},
                         high = {.id = 24, .tile = CUBLASLT_MATMUL_TILE_256x128, .splits = 1, .waves = 8.95F};
    eg_cuda_lt_key key = key_of(EG_BF16, 50257, 28, 768), sum = key_of(EG_BF16, 50257, 768, 28);
    assert_int_equal(CHOOSE(key, small, large), 1);
    assert_int_equal(CHOOSE(key, large, high), 1);
    high.waves = 9.1F;
    assert_int_equal(CHOOSE(key, large, high), 0);
    high.waves = 8.95F, key.transposed[1] = 1;
    assert_int_equal(CHOOSE(key, large, high), 0);
    small.waves = 0.3F;
    assert_int_equal(CHOOSE(key, small, large), 0);
    sum.accumulate = 1, sum.transposed[1] = 1;
    assert_int_equal(CHOOSE(sum, large, small), 1);
    sum.depth = 512;
    assert_int_equal(CHOOSE(sum, large, small), 0);
    large.id = small.id = 66;
    assert_int_equal(CHOOSE(key, small, large), 0);
}

/* Each condition of the table of tiles that are taken instead of others. */
static void one_tile_is_taken_instead_of_another(void **state) {
    (void)state;
    const eg_cuda_lt_key key = key_of(EG_F32, 3072, 2048, 768), narrow = key_of(EG_BF16, 3072, 2048, 768);
    eg_cuda_lt_key added = key;
    added.accumulate = 1;
    const eg_cuda_lt_candidate high = {.id = 20, .tile = CUBLASLT_MATMUL_TILE_256x128, .waves = 1.5F},
                               small = {.id = 55, .tile = CUBLASLT_MATMUL_TILE_64x64, .waves = 2},
                               turned = {.id = 66, .tile = CUBLASLT_MATMUL_TILE_96x128, .waves = 1},
                               across = {
                                   .id = 66, .tile = CUBLASLT_MATMUL_TILE_192x64, .custom = 3, .waves = 1};
    eg_cuda_lt_candidate low = {.id = 20, .tile = CUBLASLT_MATMUL_TILE_128x64, .splits = 1, .waves = 1.5F},
                         of_two = {.id = 66, .tile = CUBLASLT_MATMUL_TILE_96x64, .custom = 2, .waves = 1.2F},
                         full = {.id = 66, .tile = CUBLASLT_MATMUL_TILE_64x64, .custom = 3, .waves = 1.9F};
    assert_int_equal(CHOOSE(added, high, low), 1); /* what is added to */
    assert_int_equal(CHOOSE(key, high, low), 0);
    assert_int_equal(CHOOSE(key, small, low), 1); /* more than a wave */
    low.waves = 1;
    assert_int_equal(CHOOSE(key, small, low), 0);
    low.waves = 1.5F, low.splits = 2;
    assert_int_equal(CHOOSE(key, small, low), 0);
    assert_int_equal(CHOOSE(narrow, turned, across), 1); /* always, of this shape of cluster */
    assert_int_equal(CHOOSE(narrow, of_two, full), 1);   /* a fuller last wave */
    full.waves = 1.1F;
    assert_int_equal(CHOOSE(narrow, of_two, full), 0);
    of_two.custom = 0;
    assert_int_equal(CHOOSE(narrow, of_two, full), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_is_taken),
        cmocka_unit_test(a_result_is_rounded_once),
        cmocka_unit_test(sums_of_one_term_are_outer_products),
        cmocka_unit_test(short_sums_are_made_by_what_stores_best),
        cmocka_unit_test(stored_sums_of_f64_have_large_tiles),
        cmocka_unit_test(a_vector_kernel_uses_the_device),
        cmocka_unit_test(large_tiles_give_way),
        cmocka_unit_test(a_large_matrix_is_read_at_once),
        cmocka_unit_test(split_tiles_fill_the_device),
        cmocka_unit_test(two_blocks_share_a_multiprocessor),
        cmocka_unit_test(stored_sums_of_some_rows_have_large_tiles),
        cmocka_unit_test(a_short_depth_has_few_stages),
        cmocka_unit_test(lines_that_begin_anywhere_have_tiles_of_their_own),
        cmocka_unit_test(one_tile_is_taken_instead_of_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
