/* SPDX-License-Identifier: Apache-2.0 */
/* d_bias from the column sums of chunks. A block takes 32 columns. Each of its 32 warps adds every 32nd row,
 * and the first warp adds their results in order. */
#include "epilogue.cuh"
#include "order.cuh"

enum { WARPS = 32 };

/* Rows of `sums`: first to end - 1 */
struct sum_rows {
    int64_t first, end;
};

EG_DEVICE sum_rows rows_of(const eg_cuda_column_sum &p, int64_t group) {
    if (p.ends == 0) return {0, p.rows};
    const eg_cuda_ends ends = eg_ends_of(p, p.all_rows, p.groups);
    const eg_cuda_group_rows rows = eg_cuda_rows_of_group(ends, (uint32_t)group);
    const int64_t first = eg_cuda_first_row_tile(rows.first, rows.group, (uint32_t)p.chunk_rows);
    return {first, first + (rows.end - rows.first + p.chunk_rows - 1) / p.chunk_rows};
}

/* The sum of every `step`-th row from `first` on, with compensation (Neumaier), so that the error does not
 * grow with their number. */
template <typename T>
EG_DEVICE T sum_column(const eg_cuda_column_sum &p, const sum_rows &rows, int64_t col, int64_t first,
                       int64_t step) {
    const T *from = (const T *)p.sums + col;
    T total = 0, lost = 0;
    for (int64_t row = rows.first + first; row < rows.end; row += step) {
        const T x = from[row * p.cols], sum = total + x;
        const T error = eg_abs(total) < eg_abs(x) ? (x - sum) + total : (total - sum) + x;
        lost += eg_is_nan(error) ? (T)0 : error; /* NaN where the sum is infinite */
        total = sum;
    }
    return total + lost;
}

template <typename T>
EG_DEVICE void put_sum(const eg_cuda_column_sum &p, int64_t group, int64_t col, T total) {
    const int64_t at = group * p.out.item_stride + col * p.out.col_stride;
    T old = 0;
    if (p.accumulate) eg_load(p.out, at, old);
    eg_store(p.out, at, old + total);
}

template <typename T> EG_DEVICE void run(const eg_cuda_column_sum &p) {
    __shared__ T shared[WARPS][33];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    eg_wait_for_predecessor();
    const int64_t across = (p.cols + 31) / 32, all = (p.ends != 0 ? p.groups : 1) * across;
    for (int64_t index = blockIdx.x; index < all; index += gridDim.x) {
        const int64_t group = p.ends != 0 ? index / across : 0, col = (index - group * across) * 32 + lane;
        const sum_rows rows = rows_of(p, group);
        shared[warp][lane] = col < p.cols ? sum_column<T>(p, rows, col, warp, WARPS) : (T)0;
        __syncthreads();
        if (warp == 0 && col < p.cols) {
            T total = 0;
#pragma unroll
            for (int i = 0; i < WARPS; i++) total += shared[i][lane];
            put_sum(p, group, col, total);
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
