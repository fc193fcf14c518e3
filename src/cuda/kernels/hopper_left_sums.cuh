/* SPDX-License-Identifier: Apache-2.0 */
/* Column sums of left, beside the products that read it: d_bias of a layer whose gradient no activation
 * changes. The warp that loads stages has three beside it with nothing to do, and left comes from L2 just
 * then. So the sums cost no kernel of their own, for which the products would have to make room.
 *
 * Left is row-major, and its rows are vectors of 16 bytes. A block has all rows of a few columns. */
#ifndef EG_CUDA_HOPPER_LEFT_SUMS_CUH
#define EG_CUDA_HOPPER_LEFT_SUMS_CUH

#include "../left_sums.h"
#include "hopper_boxes.cuh"

enum { EG_LEFT_SUMS_SYNC = 8 /* a named barrier: of these warps */ };

/* A lane's columns of every `apart`th row, some loads at once. They take few registers, as those of the warp
 * that loads stages are few. */
template <bool BF16>
EG_DEVICE void eg_sum_rows_of_left(const char *from, int64_t pitch, int rows, int apart,
                                   float (&sums)[EG_LEFT_SUMS_EACH]) {
    const int64_t step = apart * pitch;
#pragma unroll 1
    while (rows > 0) {
        uint2 v[EG_LEFT_SUMS_AT_ONCE];
#pragma unroll
        for (int i = 0; i < EG_LEFT_SUMS_AT_ONCE; i++, from += step, rows -= apart)
            v[i] = rows > 0 ? *(const uint2 *)from : make_uint2(0, 0);
#pragma unroll
        for (int i = 0; i < EG_LEFT_SUMS_AT_ONCE; i++) {
            float low, high;
            eg_widen_pair<BF16>(v[i].x, low, high);
            sums[0] += low, sums[1] += high;
            eg_widen_pair<BF16>(v[i].y, low, high);
            sums[2] += low, sums[3] += high;
        }
    }
}

/* By warps 0, 1 and 2 of every block; `of_warps`: the address of room for EG_LEFT_SUMS_BYTES. */
template <bool BF16> EG_DEVICE void eg_sum_left(const eg_cuda_hopper &p, uint32_t of_warps, int warp) {
    enum { EACH = EG_LEFT_SUMS_EACH, MOST = EG_LEFT_SUMS_LANES * EACH, THREADS = 32 * EG_LEFT_SUMS_WARPS };
    static_assert(EG_LEFT_SUMS_WARPS * MOST * 4 == EG_LEFT_SUMS_BYTES, "a sum of each column of each warp");
    if (p.left_sums.data == 0) return;
    const int lane = threadIdx.x % 32, cols = (int)p.gemm.depth;
    const int lanes = (int)eg_cuda_left_lanes((uint32_t)cols, gridDim.x), wide = lanes * EACH;
    for (int first = blockIdx.x * wide; first < cols; first += gridDim.x * wide) {
        const int row = (warp * 32 + lane) / lanes, col = first + lane % lanes * EACH;
        const int64_t pitch = p.gemm.left.row_stride * 2;
        float sums[EACH] = {};
        if (col < cols)
            eg_sum_rows_of_left<BF16>((const char *)p.gemm.left.data + row * pitch + col * 2, pitch,
                                      (int)p.gemm.rows - row, THREADS / lanes, sums);
        for (int apart = lanes; apart < 32; apart *= 2) {
#pragma unroll
            for (int i = 0; i < EACH; i++) sums[i] += __shfl_xor_sync(0xffffffffU, sums[i], apart);
        }
        if (lane < lanes) {
#pragma unroll
            for (int i = 0; i < EACH; i++)
                eg_store_number(of_warps + (warp * MOST + lane * EACH + i) * 4, sums[i]);
        }
        eg_sync_threads<THREADS>(EG_LEFT_SUMS_SYNC);
        if (warp == 0 && lane < wide && first + lane < cols) {
            const int64_t at = (first + lane) * p.left_sums.col_stride;
            float sum = 0, old = 0;
#pragma unroll
            for (int i = 0; i < EG_LEFT_SUMS_WARPS; i++) {
                float x;
                eg_load_shared(of_warps + (i * MOST + lane) * 4, x);
                sum += x;
            }
            if (p.add_to_left_sums) eg_load(p.left_sums, at, old);
            eg_store(p.left_sums, at, old + sum);
        }
        eg_sync_threads<THREADS>(EG_LEFT_SUMS_SYNC);
    }
}

#endif
