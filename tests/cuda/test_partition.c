/* SPDX-License-Identifier: Apache-2.0 */
/* How the last tiles of a product are split (partition.c), for many products: as kernels/hopper_scheduler.cuh
 * walks it, every k-block of a split tile is multiplied once, and no two partial tiles lie in one place; and
 * which products are the library's. Pure: runs anywhere. */
#include "core/validate.h"
#include "cuda/partition.h"
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(partial_tiles_are_apart_and_complete),
                                       cmocka_unit_test(a_tail_is_profitable)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
