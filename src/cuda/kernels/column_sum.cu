/* d_bias from the column sums of row chunks: a block takes 32 columns, its 32 warps every 32nd row each, and
 * the first warp adds theirs in order. The rows are added with compensation (Neumaier), so the error does
 * not grow with their number. */
#include "matrix.cuh"
#include "order.cuh"

enum { WARPS = 32 };

template <typename T> EG_DEVICE void run(const eg_cuda_column_sum &p) {
    __shared__ T shared[WARPS][33];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    eg_wait_for_predecessor();
    for (int64_t first = (int64_t)blockIdx.x * 32; first < p.cols; first += (int64_t)gridDim.x * 32) {
        const int64_t col = first + lane;
        const T *from = (const T *)p.sums + col;
        T total = 0, lost = 0;
        for (int64_t row = warp; col < p.cols && row < p.rows; row += WARPS) {
            const T x = from[row * p.cols], sum = total + x;
            const T rest = eg_abs(total) < eg_abs(x) ? (x - sum) + total : (total - sum) + x;
            lost += eg_is_nan(rest) ? (T)0 : rest; /* of infinite sums */
            total = sum;
        }
        shared[warp][lane] = total + lost;
        __syncthreads();
        if (warp == 0 && col < p.cols) {
            total = 0;
#pragma unroll
            for (int i = 0; i < WARPS; i++) total += shared[i][lane];
            const int64_t at = col * p.out.col_stride;
            T old = 0;
            if (p.accumulate) eg_load(p.out, at, old);
            eg_store(p.out, at, old + total);
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
