/* SPDX-License-Identifier: Apache-2.0 */
/* Which tile is of which group (groups.h), for many ends: the code that kernels run, block by block. Pure:
 * runs anywhere. */
#include <string.h>

#include "cuda/depth_groups.h"
#include "cuda/parameters.h"
#include "cuda/partition.h"
#include "support.h"

enum { MOST_GROUPS = 2100, MOST_ROWS = 9000, ROUNDS = 400 };

static const uint32_t heights[] = {16, 32, 64, 128, 256};

static uint64_t seed = 1;

static uint32_t random_below(uint32_t n) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    return n > 0 ? (uint32_t)(seed >> 33) % n : 0;
}

static int compare(const void *x, const void *y) {
    const int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    return (a > b) - (a < b);
}

static int32_t place[MOST_GROUPS];

/* Some groups are empty, some ends are multiples of a tile's rows, and the last rows may be of no group. */
static eg_cuda_ends random_ends(void) {
    const eg_cuda_ends ends = {place, random_below(MOST_ROWS),
                               1 + random_below(random_below(4) == 0 ? MOST_GROUPS : 70)};
    const uint32_t unit = random_below(3) == 0 ? 64 : 1;
    for (uint32_t i = 0; i < ends.count; i++) place[i] = (int32_t)(random_below(ends.rows + 1) / unit * unit);
    if (random_below(4) == 0) { /* one group has nearly all */
        const uint32_t large = random_below(ends.count);
        for (uint32_t i = 0; i < ends.count; i++) place[i] = i < large ? 0 : (int32_t)ends.rows;
    }
    qsort(place, ends.count, sizeof *place, compare);
    return ends;
}

static eg_cuda_ends wrong_ends(void) {
    static const int32_t some[] = {INT32_MIN, -1, 0, 1, MOST_ROWS, INT32_MAX};
    const eg_cuda_ends ends = random_ends();
    for (uint32_t i = 0; i < 1 + ends.count / 8; i++)
        place[random_below(ends.count)] =
            random_below(2) == 0 ? some[random_below(LENGTH(some))] : (int32_t)random_below(2 * MOST_ROWS);
    return ends;
}

static uint32_t last_end(const eg_cuda_ends *ends) { return (uint32_t)ends->end[ends->count - 1]; }

static bool any_is_wrong(const eg_cuda_ends *ends) {
    bool wrong = false;
    for (uint32_t i = 0; i < ends->count; i++) wrong = wrong || eg_cuda_end_is_wrong(*ends, i);
    return wrong;
}

/* ---- Row tiles ---------------------------------------------------------------------------------------- */

static uint8_t made[MOST_ROWS];

static void make_rows(const eg_cuda_group_rows *rows, const eg_cuda_ends *ends) {
    const eg_cuda_group_rows group = eg_cuda_rows_of_group(*ends, rows->group);
    assert_true(rows->first >= group.first && rows->end <= group.end);
    for (uint32_t row = rows->first; row < rows->end; row++) made[row]++;
}

static void expect_each_row_once(const eg_cuda_ends *ends) {
    for (uint32_t row = 0; row < ends->rows; row++) assert_int_equal(made[row], row < last_end(ends));
}

static void row_tiles_have_each_row_of_a_group_once(void **state) {
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        const eg_cuda_ends ends = random_ends();
        const uint32_t height = heights[random_below(LENGTH(heights))];
        const int64_t row_tiles = eg_cuda_row_tiles(ends.rows, ends.count, height);
        int64_t used = 0;
        memset(made, 0, sizeof made);
        assert_false(any_is_wrong(&ends));
        for (int64_t row_tile = 0; row_tile < row_tiles; row_tile++) {
            const eg_cuda_group_rows rows = eg_cuda_rows_of_row_tile(ends, height, (uint32_t)row_tile);
            assert_true(rows.end - rows.first <= height);
            make_rows(&rows, &ends);
            if (rows.first == rows.end) continue;
            used++;
            assert_int_equal(row_tile, rows.first / height + rows.group); /* where its column sums go */
        }
        assert_true(row_tiles - used <= (int64_t)ends.count + (ends.rows - last_end(&ends)) / height + 1);
        expect_each_row_once(&ends);
    }
}

/* Blocks beside each other look at groups by 32; a tile that is not there is no tile of another group. */
static void the_search_finds_what_a_walk_finds(void **state) {
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        const eg_cuda_ends ends = random_ends();
        const uint32_t height = heights[random_below(LENGTH(heights))];
        uint32_t group = 0;
        for (uint32_t row_tile = 0; row_tile < eg_cuda_row_tiles(ends.rows, ends.count, height); row_tile++) {
            while (group + 1 < ends.count && eg_cuda_first_row_tile(eg_cuda_group_begin(ends, group + 1),
                                                                    group + 1, height) <= row_tile)
                group++;
            assert_int_equal(eg_cuda_group_of_row_tile(ends, height, row_tile), group);
        }
    }
}

/* ---- One tile after another ------------------------------------------------------------------------ */

static void clusters_make_each_tile_once(void **state) {
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        const eg_cuda_ends ends = random_ends();
        const uint32_t height = 256, across = 1 + random_below(5), clusters = 1 + random_below(66);
        const uint32_t tiles = eg_cuda_all_tiles(ends, height, across);
        uint32_t count = 0;
        memset(made, 0, sizeof made);
        assert_true(tiles <= eg_cuda_row_tiles(ends.rows, ends.count, height) * across);
        for (uint32_t cluster = 0; cluster < clusters; cluster++) {
            eg_cuda_walk walk = {0, 0};
            for (uint32_t tile = cluster; tile < tiles; tile += clusters, count++) {
                const uint32_t of_group = eg_cuda_walk_to(ends, height, across, tile, &walk);
                const eg_cuda_group_rows rows = eg_cuda_rows_of_group(ends, walk.group);
                assert_in_range(tile, walk.before, walk.before + of_group - 1);
                if ((tile - walk.before) % across != 0) continue; /* a column of tiles has all rows */
                const uint32_t first = rows.first + (tile - walk.before) / across * height;
                const uint32_t end = first + height < rows.end ? first + height : rows.end;
                make_rows(&(eg_cuda_group_rows){walk.group, first, end}, &ends);
            }
        }
        assert_int_equal(count, tiles);
        expect_each_row_once(&ends);
    }
}

/* ---- Products as deep as a group ------------------------------------------------------------------- */

/* Each has a place of its own, whatever the ends, and none has more rows than the one before. */
static void groups_are_ranked_by_their_rows(void **state) {
    (void)state;
    static uint32_t at[MOST_GROUPS];
    for (int round = 0; round < ROUNDS; round++) {
        const eg_cuda_ends ends = round % 2 == 0 ? random_ends() : wrong_ends();
        if (ends.count > 300) continue;
        memset(at, 0xff, sizeof at);
        for (uint32_t group = 0; group < ends.count; group++) {
            const uint32_t rank = eg_cuda_rank_of_group(ends, group);
            assert_true(rank < ends.count && at[rank] == UINT32_MAX);
            at[rank] = group;
        }
        for (uint32_t rank = 1; rank < ends.count; rank++) {
            const eg_cuda_group_rows before = eg_cuda_rows_of_group(ends, at[rank - 1]),
                                     rows = eg_cuda_rows_of_group(ends, at[rank]);
            assert_true(before.end - before.first >= rows.end - rows.first);
        }
    }
}

static void clusters_make_tiles_of_all_turns_once(void **state) {
    (void)state;
    static uint8_t tiles[5000];
    for (int round = 0; round < ROUNDS; round++) {
        const uint32_t clusters = 1 + random_below(66), all = random_below(5000);
        memset(tiles, 0, sizeof tiles);
        for (uint32_t cluster = 0; cluster < clusters; cluster++) {
            uint32_t turn = 0, tile;
            for (; (tile = eg_cuda_tile_of_turn(turn, cluster, clusters)) < all; turn++) tiles[tile]++;
            assert_true(eg_cuda_tile_of_turn(turn + 1, cluster, clusters) >= all); /* it had its last one */
        }
        for (uint32_t tile = 0; tile < all; tile++) assert_int_equal(tiles[tile], 1);
    }
}

/* By Zipf's law: no cluster has much more than its share of the k-blocks. */
static void clusters_are_equally_busy(void **state) {
    enum { GROUPS = 128, ROWS = 65536, TILES = 48, CLUSTERS = 66 };
    (void)state;
    double sum = 0;
    uint32_t order[GROUPS], end = 0, most = 0, all = 0;
    for (int i = 0; i < GROUPS; i++) sum += 1.0 / (i + 1);
    for (int i = 0; i < GROUPS; i++) {
        const int group = i * 37 % GROUPS; /* in no order */
        end += (uint32_t)(ROWS / sum / (group + 1));
        place[i] = (int32_t)end;
    }
    const eg_cuda_ends ends = {place, ROWS, GROUPS};
    for (uint32_t group = 0; group < GROUPS; group++) order[eg_cuda_rank_of_group(ends, group)] = group;
    for (uint32_t cluster = 0; cluster < CLUSTERS; cluster++) {
        uint32_t k_blocks = 0, tile;
        for (uint32_t turn = 0; (tile = eg_cuda_tile_of_turn(turn, cluster, CLUSTERS)) < GROUPS * TILES;
             turn++) {
            const eg_cuda_group_rows rows = eg_cuda_rows_of_group(ends, order[tile / TILES]);
            k_blocks += eg_cuda_k_blocks_of_rows(rows.end - rows.first, 64);
        }
        all += k_blocks;
        if (k_blocks > most) most = k_blocks;
    }
    assert_in_range(most * CLUSTERS, all, all + all / 14);
}

static void k_blocks_end_where_the_group_does(void **state) {
    (void)state;
    for (int round = 0; round < 20 * ROUNDS; round++) {
        const uint32_t first = random_below(MOST_ROWS), end = first + 1 + random_below(300);
        const uint32_t k_blocks = eg_cuda_k_blocks_of_rows(end - first, 64);
        uint32_t at = first;
        for (uint32_t i = 0; i < k_blocks; i++) {
            const eg_cuda_rows_of_k_block rows = eg_cuda_k_block_of_group(first, end, 64, i);
            assert_int_equal(rows.row, at);
            assert_in_range(-rows.before, 0, i == 0 ? 63 : 0);
            at += (uint32_t)(64 + rows.before);
        }
        assert_int_equal(at, end);
    }
}

/* ---- Wrong ends ------------------------------------------------------------------------------------ */

static void wrong_ends_are_seen_and_stay_inside(void **state) {
    (void)state;
    int wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const eg_cuda_ends ends = wrong_ends();
        const uint32_t height = heights[random_below(LENGTH(heights))];
        const int64_t row_tiles = eg_cuda_row_tiles(ends.rows, ends.count, height);
        bool is_wrong = false;
        for (uint32_t i = 0; i < ends.count; i++) {
            const int64_t before = i > 0 ? ends.end[i - 1] : 0;
            is_wrong = is_wrong || ends.end[i] < before || ends.end[i] > (int64_t)ends.rows;
        }
        assert_int_equal(any_is_wrong(&ends), is_wrong);
        wrong += is_wrong;
        for (int64_t row_tile = 0; row_tile < row_tiles; row_tile++) {
            const eg_cuda_group_rows rows = eg_cuda_rows_of_row_tile(ends, height, (uint32_t)row_tile);
            assert_true(rows.group < ends.count && rows.first <= rows.end && rows.end <= ends.rows);
            assert_true(rows.end - rows.first <= height);
            if (rows.first < rows.end) assert_int_equal(row_tile, rows.first / height + rows.group);
        }
        const uint32_t tiles = eg_cuda_all_tiles(ends, 256, 1);
        eg_cuda_walk walk = {0, 0};
        for (uint32_t tile = 0; tile < tiles; tile++) {
            const uint32_t of_group = eg_cuda_walk_to(ends, 256, 1, tile, &walk);
            assert_true(walk.group < ends.count && tile - walk.before < of_group);
        }
    }
    assert_true(wrong > ROUNDS / 2);
}

/* ---- What is launched and laid out for it ---------------------------------------------------------- */

static void there_are_blocks_and_sums_for_any_ends(void **state) {
    (void)state;
    const eg_cuda_kernel *row;
    for (int i = 0; (row = eg_cuda_kernel_row(i)) != NULL; i++) {
        const bool takes = row->kind == EG_MAP || (row->takes & EG_CUDA_ROW_GROUPS) != 0;
        if (!takes || row->family == EG_CUDA_VECTORS || row->tile_rows == 0) continue;
        const int64_t rows = (row->takes & EG_CUDA_FEW_ROWS) != 0 ? 7 * row->tile_rows : 1000;
        eg_cuda_gemm x = {.rows = rows, .cols = 300, .depth = 64, .items = 7, .ragged = EG_CUDA_RAGGED_ROWS};
        eg_cuda_count_tiles(row, &x);
        const eg_op_list list = {.groups = 7};
        const eg_temporary sums = {.items = 1, .rows = rows, .cols = 300};
        int64_t rows_of_sums;
        assert_int_equal(x.tiles,
                         eg_cuda_row_tiles(rows, 7, row->tile_rows) * eg_ceil_div(300, row->tile_cols));
        assert_int_equal(x.chunks, eg_cuda_row_tiles(rows, 7, eg_cuda_sum_rows(row)));
        assert_true(eg_cuda_rows_of_sums(&list, &sums, &rows_of_sums));
        assert_true(x.chunks <= rows_of_sums);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(row_tiles_have_each_row_of_a_group_once),
                                       cmocka_unit_test(the_search_finds_what_a_walk_finds),
                                       cmocka_unit_test(clusters_make_each_tile_once),
                                       cmocka_unit_test(groups_are_ranked_by_their_rows),
                                       cmocka_unit_test(clusters_make_tiles_of_all_turns_once),
                                       cmocka_unit_test(clusters_are_equally_busy),
                                       cmocka_unit_test(k_blocks_end_where_the_group_does),
                                       cmocka_unit_test(wrong_ends_are_seen_and_stay_inside),
                                       cmocka_unit_test(there_are_blocks_and_sums_for_any_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
