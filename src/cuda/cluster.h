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

/* The same turned (kernels/hopper_turned.cuh): a consumer for every 64 columns, and two warp groups or more
 * that finish. Of the accumulators sixteen rows and columns lie together. */
#define EG_TURNED_CONSUMERS(cols) ((cols) / 64)
#define EG_TURNED_WARPS(cols)     ((cols) > 128 ? (cols) / 16 : 8)
#define EG_TURNED_THREADS(cols)   (32 * EG_TURNED_WARPS(cols) + 32)
#define EG_TURNED_SIXTEENS(rows)  (((rows) + 15) / 16)
#define EG_TURNED_LEAST(rows, cols)                                                                          \
    (EG_TMA_SPLIT_FRONT + EG_TURNED_SIXTEENS(rows) * (16 + 1) * (cols)*4 +                                   \
     EG_TURNED_WARPS(cols) * 2 * EG_CLUSTER_BOX)
#define EG_TURNED_STAGES(rows, cols) ((224 * 1024 - EG_TMA_SPLIT_FRONT) / EG_TMA_SPLIT_STAGE(rows, cols))
#define EG_TURNED_FULL(rows, cols)                                                                           \
    (EG_TMA_SPLIT_FRONT + EG_TURNED_STAGES(rows, cols) * EG_TMA_SPLIT_STAGE(rows, cols))
#define EG_TURNED_SHARED(rows, cols)                                                                         \
    (EG_TURNED_FULL(rows, cols) > EG_TURNED_LEAST(rows, cols) ? EG_TURNED_FULL(rows, cols)                   \
                                                              : EG_TURNED_LEAST(rows, cols))

/* Tiles have `most` rows or fewer: those of a few tiles have equal shares of the result's, in eights. The
 * unit then multiplies as many rows as are some steps less than the most. */
enum { EG_TURNED_FEW_TILES = 8, EG_TURNED_STEP = 16, EG_TURNED_LEAST_WIDTH = 104 };
#define EG_TURNED_ROWS(rows, chunks, most)                                                                   \
    ((chunks) > EG_TURNED_FEW_TILES ? (most) : (((int)(rows) + (int)(chunks)-1) / (int)(chunks) + 7) / 8 * 8)
#define EG_TURNED_WIDTH(rows, most)                                                                          \
    ((most) - ((most) - ((rows) > EG_TURNED_LEAST_WIDTH ? (rows) : EG_TURNED_LEAST_WIDTH)) /                 \
                  EG_TURNED_STEP * EG_TURNED_STEP)

#endif
