/* SPDX-License-Identifier: Apache-2.0 */
/* Where the rows of groups are, and which tile of rows is whose: for the kernels, which read the ends of the
 * groups when they run, and for the host, which launches blocks for any ends, and tests the same code.
 *
 * A row tile is a place for a tile of `height` rows of one group. Group g, whose rows begin at b, has the row
 * tiles from b / height + g on, as many as its rows need: they end before those of the next group, so that no
 * sum over the groups before is wanted. Of all row tiles no more than one a group is left without rows.
 *
 * Ends that are wrong name no row outside the matrix: every end is bounded here, and nowhere else. */
#ifndef EG_CUDA_GROUPS_H
#define EG_CUDA_GROUPS_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define EG_GROUPS static __device__ __forceinline__
#else
#define EG_GROUPS static inline
#endif

/* int32 [count], and the rows that there are, fewer than 2^31. */
typedef struct eg_cuda_ends {
    const int32_t *end;
    uint32_t rows, count;
} eg_cuda_ends;

/* Rows first to end - 1 of all groups' rows. */
typedef struct eg_cuda_group_rows {
    uint32_t group, first, end;
} eg_cuda_group_rows;

/* Where a group's rows begin; those of the next one do where they end. */
EG_GROUPS uint32_t eg_cuda_group_begin(eg_cuda_ends ends, uint32_t group) {
    const int32_t begin = group > 0 ? ends.end[group - 1] : 0;
    if (begin <= 0) return 0;
    return (uint32_t)begin < ends.rows ? (uint32_t)begin : ends.rows;
}

EG_GROUPS eg_cuda_group_rows eg_cuda_rows_of_group(eg_cuda_ends ends, uint32_t group) {
    const uint32_t first = eg_cuda_group_begin(ends, group), next = eg_cuda_group_begin(ends, group + 1);
    const eg_cuda_group_rows rows = {group, first, next > first ? next : first};
    return rows;
}

/* Whether an end is less than the one before, or past all rows. */
EG_GROUPS bool eg_cuda_end_is_wrong(eg_cuda_ends ends, uint32_t group) {
    const int32_t end = ends.end[group], before = group > 0 ? ends.end[group - 1] : 0;
    return end < before || end < 0 || (uint32_t)end > ends.rows;
}

/* ---- Row tiles ------------------------------------------------------------------------------------ */

/* Of all groups, whatever the ends are. */
EG_GROUPS int64_t eg_cuda_row_tiles(int64_t rows, int64_t groups, int64_t height) {
    return rows / height + groups;
}

EG_GROUPS uint32_t eg_cuda_first_row_tile(uint32_t begin, uint32_t group, uint32_t height) {
    return begin / height + group;
}

/* Groups low, low + step, ... of `count`: of 32 of them, as a warp's lanes look at them, the last one whose
 * first row tile is not after `row_tile`. */
EG_GROUPS bool eg_cuda_lane_begins(eg_cuda_ends ends, uint32_t low, uint32_t step, uint32_t count,
                                   uint32_t height, uint32_t row_tile, uint32_t lane) {
    const uint32_t group = low + lane * step;
    return lane * step < count &&
           eg_cuda_first_row_tile(eg_cuda_group_begin(ends, group), group, height) <= row_tile;
}
EG_GROUPS uint32_t eg_cuda_last_lane(eg_cuda_ends ends, uint32_t low, uint32_t step, uint32_t count,
                                     uint32_t height, uint32_t row_tile) {
#if defined(__CUDACC__)
    const uint32_t lanes = __ballot_sync(
        0xffffffffU, eg_cuda_lane_begins(ends, low, step, count, height, row_tile, threadIdx.x % 32));
    return lanes != 0 ? 31 - (uint32_t)__clz((int)lanes) : 0;
#else
    uint32_t last = 0;
    for (uint32_t lane = 0; lane < 32; lane++) {
        if (eg_cuda_lane_begins(ends, low, step, count, height, row_tile, lane)) last = lane;
    }
    return last;
#endif
}

/* By all lanes of a warp: the group that has the row tile. Two rounds find one of a thousand. */
EG_GROUPS uint32_t eg_cuda_group_of_row_tile(eg_cuda_ends ends, uint32_t height, uint32_t row_tile) {
    uint32_t low = 0, count = ends.count;
    while (count > 1) {
        const uint32_t step = (count + 31) / 32,
                       ahead = step * eg_cuda_last_lane(ends, low, step, count, height, row_tile);
        low += ahead, count -= ahead;
        if (count > step) count = step;
    }
    return low;
}

/* By all lanes of a warp: the rows of a row tile; none where first is end. */
EG_GROUPS eg_cuda_group_rows eg_cuda_rows_of_row_tile(eg_cuda_ends ends, uint32_t height, uint32_t row_tile) {
    eg_cuda_group_rows rows = eg_cuda_rows_of_group(ends, eg_cuda_group_of_row_tile(ends, height, row_tile));
    const uint32_t first = eg_cuda_first_row_tile(rows.first, rows.group, height),
                   tiles = (rows.end - rows.first + height - 1) / height;
    rows.first =
        row_tile >= first && row_tile - first < tiles ? rows.first + (row_tile - first) * height : rows.end;
    if (rows.end - rows.first > height) rows.end = rows.first + height;
    return rows;
}

/* ---- Tiles in a dense order ----------------------------------------------------------------------- */

/* Blocks that make one tile after another would not be equally busy with row tiles, of which some are empty.
 * They count the tiles that there are, group after group, and walk on from the group where they are. */
typedef struct eg_cuda_walk {
    uint32_t group, before; /* tiles of groups before this one */
} eg_cuda_walk;

EG_GROUPS uint32_t eg_cuda_tiles_of_group(eg_cuda_ends ends, uint32_t height, uint32_t across,
                                          uint32_t group) {
    const eg_cuda_group_rows rows = eg_cuda_rows_of_group(ends, group);
    return (rows.end - rows.first + height - 1) / height * across;
}

/* By all lanes of a warp: the tiles of all groups. */
EG_GROUPS uint32_t eg_cuda_all_tiles(eg_cuda_ends ends, uint32_t height, uint32_t across) {
    uint32_t tiles = 0;
#if defined(__CUDACC__)
    for (uint32_t group = threadIdx.x % 32; group < ends.count; group += 32)
        tiles += eg_cuda_tiles_of_group(ends, height, across, group);
    for (int i = 16; i > 0; i /= 2) tiles += __shfl_xor_sync(0xffffffffU, tiles, i);
#else
    for (uint32_t group = 0; group < ends.count; group++)
        tiles += eg_cuda_tiles_of_group(ends, height, across, group);
#endif
    return tiles;
}

/* To the group of a tile that is not before the last one asked for. Returns the group's tiles. */
EG_GROUPS uint32_t eg_cuda_walk_to(eg_cuda_ends ends, uint32_t height, uint32_t across, uint32_t tile,
                                   eg_cuda_walk *walk) {
    uint32_t tiles = eg_cuda_tiles_of_group(ends, height, across, walk->group);
    while (tile - walk->before >= tiles && walk->group + 1 < ends.count) {
        walk->before += tiles;
        walk->group++;
        tiles = eg_cuda_tiles_of_group(ends, height, across, walk->group);
    }
    return tiles;
}

#endif
