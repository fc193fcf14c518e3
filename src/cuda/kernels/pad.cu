/* SPDX-License-Identifier: Apache-2.0 */
/* A copy of rows of any strides, in rows that begin on 16 bytes, or on lines of L2 (eg_cuda_pitch_of): for
 * kernels that read vectors, and the copy engine.
 *
 * A block takes 8 rows of 256 numbers, a warp a row, a lane every 32nd number: what a warp reads and writes
 * at once is dense, whatever the pitch. */
#include "epilogue.cuh"
#include "order.cuh"

enum { ROWS = 8, COLS = 256, THREADS = 32 * ROWS };

template <typename T> EG_DEVICE void run(const eg_cuda_gemm &p) {
    eg_let_successor_start();
    eg_wait_for_predecessor();
    for (int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
        const eg_tile at = eg_tile_at<ROWS, COLS>(p, index);
        const int64_t row = at.row + threadIdx.x / 32, first = at.col + threadIdx.x % 32;
        if (row >= p.rows) continue;
        const T *from = (const T *)p.in.data + eg_index(p.in, at.item, row, 0);
        T *to = (T *)p.out.data + eg_index(p.out, at.item, row, 0);
        T v[COLS / 32];
#pragma unroll
        for (int i = 0; i < COLS / 32; i++) {
            const int64_t col = first + i * 32;
            if (col < p.cols) v[i] = from[col * p.in.col_stride];
        }
#pragma unroll
        for (int i = 0; i < COLS / 32; i++) {
            if (first + i * 32 < p.cols) to[first + i * 32] = v[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) eg_pad_16(const __grid_constant__ eg_cuda_gemm p) {
    run<uint16_t>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS) eg_pad_32(const __grid_constant__ eg_cuda_gemm p) {
    run<uint32_t>(p);
}
