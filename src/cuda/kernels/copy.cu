/* SPDX-License-Identifier: Apache-2.0 */
/* The copy out = 0 + in, in another type or another place. Low memory moves and rounds its sums by it.
 *
 * A block of 256 threads copies 128 x 128 numbers, 8 lines at a time. A thread copies four neighbours along
 * the lines of out, which are rows or columns. Eight blocks a multiprocessor have 16 to 32 KB of loads in
 * flight, which hides the latency of memory. */
#include "epilogue.cuh"
#include "order.cuh"

enum { SIDE = 128, THREADS = 256, BLOCKS = 8, VECTORS = SIDE / 4, DOWN = THREADS / VECTORS };

EG_DEVICE void copy_tile(const eg_cuda_gemm &p, const eg_tile &at, bool down) {
    const eg_lane in = eg_lane_of(p.in, at, down), out = eg_lane_of(p.out, at, down);
    const int along = threadIdx.x % VECTORS * 4;
    const int64_t left = (down ? p.rows - at.row : p.cols - at.col) - along;
    const int64_t lines = down ? p.cols - at.col : p.rows - at.row;
    const int count = left < 4 ? (int)left : 4;
    if (count <= 0) return;
    for (int line = threadIdx.x / VECTORS; line < SIDE && line < lines; line += DOWN) {
        const int64_t row = at.row + (down ? along : line), col = at.col + (down ? line : along);
        float v[4];
        eg_take(p.in, in, row, col, count, v);
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] += 0.0F;
        eg_put(p.out, out, row, col, count, v);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    eg_copy_f32(const __grid_constant__ eg_cuda_gemm p) {
    const bool down = p.out.row_stride == 1 && p.out.col_stride != 1;
    eg_let_successor_start();
    eg_wait_for_predecessor();
    for (int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
        copy_tile(p, eg_tile_at<SIDE, SIDE>(p, index), down);
    }
}
