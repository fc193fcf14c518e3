/* SPDX-License-Identifier: Apache-2.0 */
/* Column sums of a product's left operand, beside the product (kernels/hopper_left_sums.cuh): how they are
 * divided. For the kernels, and for the host, which estimates their time. */
#ifndef EG_CUDA_LEFT_SUMS_H
#define EG_CUDA_LEFT_SUMS_H

#include "groups.h"

enum {
    EG_LEFT_SUMS_WARPS = 3,   /* of a block, which do nothing else */
    EG_LEFT_SUMS_EACH = 4,    /* columns of a lane */
    EG_LEFT_SUMS_AT_ONCE = 4, /* rows of a lane */
    EG_LEFT_SUMS_LANES = 4    /* of a row, at most */
};

/* Lanes that read a row. Four read 32 bytes, a sector of memory; fewer do where that gives more blocks some
 * columns. */
EG_GROUPS uint32_t eg_cuda_left_lanes(uint32_t cols, uint32_t blocks) {
    uint32_t lanes = EG_LEFT_SUMS_LANES;
    while (lanes > 1 && cols <= blocks * (lanes / 2) * EG_LEFT_SUMS_EACH) lanes /= 2;
    return lanes;
}

#endif
