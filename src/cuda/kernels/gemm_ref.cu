/* SPDX-License-Identifier: Apache-2.0 */
/* The product that takes anything: any storage types, strides and alignment. The last rows of the table,
 * and the reference for all other kernels.
 *
 *     a block of 256 threads makes 64 x 64 results, a thread 4 x 4 of them, 16 terms at a time:
 *
 *                          right  16 x 64
 *         left 64 x 16  x              ->   64 x 64 in registers -> shared memory -> epilogue
 */
#include "epilogue.cuh"
#include "order.cuh"

enum { SIDE = 64, TERMS = 16, WIDE = SIDE + 4, THREADS = 256 };

/* A k-block [SIDE, TERMS] of x, term by term, with zeros outside. Neighbouring threads read neighbouring
 * elements. */
template <typename T>
EG_DEVICE void load_k_block(const eg_cuda_matrix &x, int64_t base, int64_t stride, int64_t term_stride,
                            int64_t first, int64_t end, int64_t term, int64_t terms, T (*k_block)[WIDE]) {
    for (int i = threadIdx.x; i < SIDE * TERMS; i += THREADS) {
        const int t = term_stride == 1 ? i % TERMS : i / SIDE, s = term_stride == 1 ? i / TERMS : i % SIDE;
        T value = 0;
        if (first + s < end && term + t < terms) {
            eg_load(x, base + (first + s) * stride + (term + t) * term_stride, value);
        }
        k_block[t][s] = value;
    }
}

template <typename T> EG_DEVICE void multiply(const eg_cuda_gemm &p, const eg_tile &at, T *shared) {
    T(*left)[WIDE] = (T(*)[WIDE])shared;
    T(*right)[WIDE] = left + TERMS;
    const int row = threadIdx.x / 16 * 4, col = threadIdx.x % 16 * 4;
    T acc[4][4] = {};
    for (int64_t s = 0; s < p.summed; s++) {
        const int64_t item = p.summed > 1 ? s : at.item;
        for (int64_t term = 0; term < at.depth; term += TERMS) {
            load_k_block(p.left, item * p.left.item_stride + eg_left_at(p, at), p.left.row_stride,
                         p.left.col_stride, at.row, at.end(), term, at.depth, left);
            load_k_block(p.right, item * p.right.item_stride + eg_right_at(p, at), p.right.col_stride,
                         p.right.row_stride, at.col, p.cols, term, at.depth, right);
            __syncthreads();
#pragma unroll
            for (int t = 0; t < TERMS; t++) {
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    acc[i / 4][i % 4] =
                        eg_fma(left[t][row + i / 4], right[t][col + i % 4], acc[i / 4][i % 4]);
                }
            }
            __syncthreads();
        }
    }
#pragma unroll
    for (int i = 0; i < 16; i++) shared[(row + i / 4) * WIDE + col + i % 4] = acc[i / 4][i % 4];
    __syncthreads();
}

template <typename T> EG_DEVICE void run(const eg_cuda_gemm &p) {
    __shared__ __align__(16) T shared[SIDE * WIDE];
    eg_wait_for_predecessor();
    for (int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
        const eg_tile at = eg_tile_at<SIDE, SIDE>(p, index);
        if (at.rows == 0) continue;
        multiply<T>(p, at, shared);
        eg_finish_tile<T, SIDE, SIDE, WIDE, THREADS>(p, at, shared);
    }
}

#define EG_ENTRY(name, type)                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                    \
        eg_##name(const __grid_constant__ eg_cuda_gemm p) {                                                  \
        run<type>(p);                                                                                        \
    }
EG_ENTRY(ref_f32, float)
EG_ENTRY(ref_f64, double)
