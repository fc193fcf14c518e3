/* SPDX-License-Identifier: Apache-2.0 */
/* The epilogue of a product that another kernel has made, and any other map over rows: every term that a
 * product can have, on values that lie in memory.
 *
 *     a block takes 32 rows of 128 columns; each of its 8 warps 4 of the rows, with 4 columns a lane
 *     a warp loads the values of its rows before it finishes the first, to have enough loads in flight
 *
 * A thread's columns are the same in all of its rows. So it loads their bias once, and adds their sums in
 * registers; at the end the warps' sums are added in order. The values may lie in the memory of a result:
 * each is read by the thread that writes there. */
#include "epilogue.cuh"
#include "order.cuh"

enum { ROWS = 32, COLS = 128, WARPS = 8, THREADS = 32 * WARPS, EACH = ROWS / WARPS, BLOCKS = 4 };

/* The warps' sums in order. */
template <typename T> EG_DEVICE void sum_warps(const eg_cuda_gemm &p, const eg_tile &at, const T (&sums)[4]) {
    __shared__ T shared[WARPS][COLS];
    const int col = threadIdx.x;
#pragma unroll
    for (int i = 0; i < 4; i++) shared[threadIdx.x / 32][threadIdx.x % 32 * 4 + i] = sums[i];
    __syncthreads();
    if (col < COLS && at.col + col < p.cols) {
        T total = 0;
        for (int i = 0; i < WARPS; i++) total += shared[i][col];
        ((T *)p.sums)[(at.item * p.chunks + at.chunk) * p.cols + at.col + col] = total;
    }
    __syncthreads();
}

template <typename T> EG_DEVICE void map_tile(const eg_cuda_gemm &p, const eg_tile &at) {
    const eg_lane left = eg_lane_of(p.left, at.item, false), out = eg_lane_of(p.out, at.item, false),
                  second = eg_lane_of(p.second, at.item, false), in = eg_lane_of(p.in, at.item, false);
    const int64_t col = at.col + threadIdx.x % 32 * 4, ahead = p.cols - col;
    const int count = ahead < 4 ? (int)ahead : 4;
    const int64_t first = at.row + threadIdx.x / 32;
    T v[EACH][4] = {}, bias[4] = {}, sums[4] = {};
    if (count > 0) {
        eg_load_bias(p, col, count, bias);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (left.there && first + i * WARPS < p.rows)
                eg_take(p.left, left, first + i * WARPS, col, count, v[i]);
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (first + i * WARPS >= p.rows) continue;
#pragma unroll
            for (int j = 0; j < 4; j++) v[i][j] += bias[j];
            eg_finish(p, out, second, in, false, first + i * WARPS, col, count, v[i]);
#pragma unroll
            for (int j = 0; j < 4; j++) sums[j] += v[i][j];
        }
    }
    if (p.sums != 0) sum_warps(p, at, sums);
}

template <typename T> EG_DEVICE void run(const eg_cuda_gemm &p) {
    eg_let_successor_start();
    eg_wait_for_predecessor();
    for (int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x)
        map_tile<T>(p, eg_tile_at<ROWS, COLS>(p, index));
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    eg_map_f32(const __grid_constant__ eg_cuda_gemm p) {
    run<float>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS) eg_map_f64(const __grid_constant__ eg_cuda_gemm p) {
    run<double>(p);
}
