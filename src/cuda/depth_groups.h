/* SPDX-License-Identifier: Apache-2.0 */
/* Products that are as deep as a group has rows: which cluster makes which tile, and which rows a k-block
 * has. For the kernels, and for the host, which tests the same code. */
#ifndef EG_CUDA_DEPTH_GROUPS_H
#define EG_CUDA_DEPTH_GROUPS_H

#include "groups.h"

/* A tile takes as long as its group has rows. So clusters take tiles of the largest groups first, and every
 * second turn in the opposite order: who had the longest tile of a turn has the shortest of the next. */

/* Of a group: those before it in that order. */
EG_GROUPS uint32_t eg_cuda_rank_of_group(eg_cuda_ends ends, uint32_t group) {
    const eg_cuda_group_rows of = eg_cuda_rows_of_group(ends, group);
    uint32_t rank = 0, first = 0;
    for (uint32_t i = 0; i < ends.count; i++) {
        const uint32_t next = eg_cuda_group_begin(ends, i + 1), rows = next > first ? next - first : 0;
        rank += rows > of.end - of.first || (rows == of.end - of.first && i < group);
        first = next;
    }
    return rank;
}

/* The number of a cluster's tile in its turn. */
EG_GROUPS uint32_t eg_cuda_tile_of_turn(uint32_t turn, uint32_t cluster, uint32_t clusters) {
    return turn * clusters + (turn % 2 == 0 ? cluster : clusters - 1 - cluster);
}

EG_GROUPS uint32_t eg_cuda_k_blocks_of_rows(uint32_t rows, uint32_t depth) {
    return (rows + depth - 1) / depth;
}

/* A group's k-blocks end where the group does. The first one may have fewer rows than `depth`: its box begins
 * `before` rows (0 or less) from `row`, and TMA has zeros for what is before row 0 of a box's item. */
typedef struct eg_cuda_rows_of_k_block {
    uint32_t row;
    int32_t before;
} eg_cuda_rows_of_k_block;

EG_GROUPS eg_cuda_rows_of_k_block eg_cuda_k_block_of_group(uint32_t first, uint32_t end, uint32_t depth,
                                                           uint32_t k_block) {
    const uint32_t k_blocks = eg_cuda_k_blocks_of_rows(end - first, depth),
                   after = (k_blocks - k_block) * depth;
    const bool whole = end - first >= after;
    const eg_cuda_rows_of_k_block rows = {whole ? end - after : first,
                                          whole ? 0 : (int32_t)(end - first) - (int32_t)after};
    return rows;
}

#endif
