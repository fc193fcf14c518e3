/* SPDX-License-Identifier: Apache-2.0 */
/* EG_STAMP(lane, tile, span, end): takes a stamp (../stamps.h), by one thread of a consumer or of the
 * producer. Nothing where the kernels have no stamps. `tile` is the number of a tile of all. */
#ifndef EG_CUDA_STAMPS_CUH
#define EG_CUDA_STAMPS_CUH

#ifdef EG_STAMPS
#include "../stamps.h"
#include "dialect.cuh"

extern "C" __device__ eg_stamps_of_block eg_stamps;

EG_DEVICE void eg_stamp_span(int lane, uint32_t tile, int span, int end) {
    const uint32_t index =
        tile / (gridDim.x / 2); /* of this block's: a cluster has two blocks and one tile */
    if (blockIdx.x != 0 || index >= EG_STAMP_TILES || threadIdx.x % 128 != 0) return;
    eg_stamp stamp;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(stamp.clock)::"memory");
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(stamp.nanoseconds)::"memory");
    eg_stamps[lane][index][span][end] = stamp;
}
#define EG_STAMP(lane, tile, span, end) eg_stamp_span(lane, tile, span, end)
#else
#define EG_STAMP(lane, tile, span, end) ((void)0)
#endif

#endif
