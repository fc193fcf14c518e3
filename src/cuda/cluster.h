/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles that are finished from the accumulators (kernels/hopper_cluster.cuh): their shared memory, in bytes,
 * for the host and for the kernels. */
#ifndef EG_CUDA_CLUSTER_H
#define EG_CUDA_CLUSTER_H

#include "layout.h"

/* Barriers and the bias; stages; where those were, the accumulators of a tile that the blocks of a cluster
 * have sent, two boxes of 16 rows of 64 numbers for each warp, whose rows have a padding, and column sums of
 * each warp. A launch whose blocks have the whole of a short depth asks for the stages that it fills. */
enum { EG_CLUSTER_BIAS = 256, EG_CLUSTER_BOX = 16 * (64 * 2 + 16) };
#define EG_CLUSTER_CONSUMERS(rows, cols) ((rows) > 64 ? (rows) / 64 : (cols) > 64 ? 2 : 1)
#define EG_CLUSTER_THREADS(rows, cols)   (128 * EG_CLUSTER_CONSUMERS(rows, cols) + 32)
/* Of a larger tile, two blocks a multiprocessor have too few stages to hide L2's latency. */
#define EG_CLUSTER_BLOCKS(rows, cols) ((rows) * (cols) > 64 * 64 ? 1 : 2)
/* Columns of a consumer. A block finishes sixteen of them or more. */
#define EG_CLUSTER_WIDE(rows, cols) ((rows) == 64 && (cols) > 64 ? (cols) / 2 : (cols))
#define EG_CLUSTER_LEAST(rows, cols)                                                                         \
    (EG_TMA_SPLIT_FRONT + (rows) * (cols)*4 +                                                                \
     4 * EG_CLUSTER_CONSUMERS(rows, cols) * (2 * EG_CLUSTER_BOX + EG_CLUSTER_WIDE(rows, cols) * 4))
#define EG_CLUSTER_STAGES(rows, cols)                                                                        \
    ((224 * 1024 / EG_CLUSTER_BLOCKS(rows, cols) - EG_TMA_SPLIT_FRONT) / EG_TMA_SPLIT_STAGE(rows, cols))
#define EG_CLUSTER_FULL(rows, cols)                                                                          \
    (EG_TMA_SPLIT_FRONT + EG_CLUSTER_STAGES(rows, cols) * EG_TMA_SPLIT_STAGE(rows, cols))
#define EG_CLUSTER_SHARED(rows, cols)                                                                        \
    (EG_CLUSTER_FULL(rows, cols) > EG_CLUSTER_LEAST(rows, cols) ? EG_CLUSTER_FULL(rows, cols)                \
                                                                : EG_CLUSTER_LEAST(rows, cols))

#endif
