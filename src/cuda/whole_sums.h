/* SPDX-License-Identifier: Apache-2.0 */
/* Maps whose cluster has all rows of its columns (kernels/hopper_act_grad.cuh), for the host and for the
 * kernels. */
#ifndef EG_CUDA_WHOLE_SUMS_H
#define EG_CUDA_WHOLE_SUMS_H

#include <stdint.h>

enum {
    EG_WHOLE_SUMS_BLOCKS = 8,  /* of a cluster, at most */
    EG_WHOLE_SUMS_ROWS = 32,   /* of a block, half of those that its threads have on their way */
    EG_WHOLE_SUMS_RESIDENT = 3 /* blocks a multiprocessor */
};

/* Blocks of a cluster: a power of two, by which threads have two rows each, or all of them more. */
static inline int eg_whole_sums_blocks(int64_t rows) {
    int blocks = 1;
    while (blocks < EG_WHOLE_SUMS_BLOCKS && rows > (int64_t)2 * EG_WHOLE_SUMS_ROWS * blocks) blocks *= 2;
    return blocks;
}

#endif
