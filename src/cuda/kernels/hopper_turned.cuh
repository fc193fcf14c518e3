/* SPDX-License-Identifier: Apache-2.0 */
/* The tiles of hopper_cluster.cuh, turned: the columns of right are the rows of the unit, 64 a consumer, and
 * the rows of left its columns, which may be any multiple of eight. 197 rows are then 200, not 256.
 *
 *                 64 columns   64 columns        of right, of a tile of COLS
 *               +------------+------------+
 *     ROWS      | consumer 0 | consumer 1 |      a thread has two neighbouring rows of a column
 *               +------------+------------+
 *
 * A few tiles share the rows of the result equally (EG_TURNED_ROWS), and multiply no more than they have, in
 * steps of 16. What the consumers have summed any warp may finish, sixteen rows at a time.
 *
 * Contract: that of hopper_cluster.cuh. */
#ifndef EG_CUDA_HOPPER_TURNED_CUH
#define EG_CUDA_HOPPER_TURNED_CUH

#include "hopper_cluster.cuh"

template <bool BF16_, int ROWS_, int COLS_, int TILES_DOWN_ = 1, int TILES_BESIDE_ = 1> struct eg_turned {
    using tile = eg_dense_tile;
    static constexpr bool BF16 = BF16_, TURNED = true, BESIDE = false;
    static constexpr int ROWS = ROWS_, COLS = COLS_, DEPTH = EG_HOPPER_DEPTH;
    static constexpr int TILES_DOWN = TILES_DOWN_, TILES_BESIDE = TILES_BESIDE_,
                         TILES = TILES_DOWN * TILES_BESIDE; /* of a cluster */
    static constexpr int CONSUMERS = EG_TURNED_CONSUMERS(COLS), WARPS = EG_TURNED_WARPS(COLS);
    static constexpr int WIDE = COLS, ACCUMULATORS = ROWS / 2;
    static constexpr int PRODUCER = WARPS; /* the warp that loads */
    static constexpr int STAGES = EG_TURNED_STAGES(ROWS, COLS), STAGE = EG_TMA_SPLIT_STAGE(ROWS, COLS);
    static constexpr int LEFT = ROWS * DEPTH * 2; /* bytes; right follows */
    static constexpr int ARRIVED = 2 * STAGES * 8, BIAS = EG_CLUSTER_BIAS, TILE_AT = EG_TMA_SPLIT_FRONT;
    static constexpr int CHUNK = 32 * 32; /* bytes of sixteen columns and rows */
    static constexpr int LINES = EG_TURNED_SIXTEENS(ROWS);
    static constexpr int BOX = EG_CLUSTER_BOX, PITCH = BOX / 16;
    static constexpr int BOXES = TILE_AT + LINES * 16 * COLS * 4, SUMS = BOXES + WARPS * 2 * BOX;
    static_assert(ROWS % 8 == 0 && COLS % 64 == 0 && LEFT % 1024 == 0, "what the unit takes");
    static_assert(ARRIVED + 8 <= BIAS && BIAS + COLS * 2 <= TILE_AT, "what lies before the stages");
    static_assert(SUMS + LINES * COLS * 4 == EG_TURNED_LEAST(ROWS, COLS) &&
                      EG_TURNED_LEAST(ROWS, COLS) <= EG_TURNED_SHARED(ROWS, COLS) &&
                      EG_TURNED_SHARED(ROWS, COLS) <= 227 * 1024,
                  "the parts lie where the stages were");
};

#define EG_TURNED_MULTICAST_KERNEL(type, bf16, down, across, rows, cols)                                     \
    extern "C" __global__ void __launch_bounds__(EG_TURNED_THREADS(cols), 1)                                 \
        eg_hopper_##type##_turned_##down##x##across##_##rows##x##cols(                                       \
            const __grid_constant__ eg_cuda_hopper p) {                                                      \
        eg_cluster_run<eg_turned<bf16, rows, cols, down, across>>(p);                                        \
    }
#define EG_TURNED_KERNEL(type, bf16, rows, cols)                                                             \
    extern "C" __global__ void __launch_bounds__(EG_TURNED_THREADS(cols), 1)                                 \
        eg_hopper_##type##_turned_##rows##x##cols(const __grid_constant__ eg_cuda_hopper p) {                \
        eg_cluster_run<eg_turned<bf16, rows, cols>>(p);                                                      \
    }
#define EG_TURNED_KERNELS(type, bf16)                                                                        \
    EG_TURNED_KERNEL(type, bf16, 200, 64)                                                                    \
    EG_TURNED_MULTICAST_KERNEL(type, bf16, 1, 2, 200, 128)                                                   \
    EG_TURNED_MULTICAST_KERNEL(type, bf16, 1, 2, 152, 128)

#endif
