/* SPDX-License-Identifier: Apache-2.0 */
/* d_bias from the column sums of chunks. A block takes 32 columns. Each of its 32 warps adds every 32nd row,
 * and the first warp adds their results in order. */
#include "column_sum.cuh"
#include "order.cuh"

enum { WARPS = 32 };

template <typename T> EG_DEVICE void run(const eg_cuda_column_sum &p) {
    __shared__ T shared[WARPS][33];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    eg_wait_for_predecessor();
    for (int64_t first = (int64_t)blockIdx.x * 32; first < p.cols; first += (int64_t)gridDim.x * 32) {
        const int64_t col = first + lane;
        shared[warp][lane] = col < p.cols ? eg_sum_column<T>(p, col, warp, WARPS) : (T)0;
        __syncthreads();
        if (warp == 0 && col < p.cols) {
            T total = 0;
#pragma unroll
            for (int i = 0; i < WARPS; i++) total += shared[i][lane];
            eg_put_sum(p, col, total);
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    eg_column_sum_f32(const __grid_constant__ eg_cuda_column_sum p) {
    run<float>(p);
}
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    eg_column_sum_f64(const __grid_constant__ eg_cuda_column_sum p) {
    run<double>(p);
}
