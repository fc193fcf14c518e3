/* SPDX-License-Identifier: Apache-2.0 */
/* Every map and every epilogue of map.cu, for rows or columns of any strides and types: those that are not
 * vectors of 16 bytes. */
#include "map_tile.cuh"
#include "order.cuh"

template <typename T> EG_DEVICE void run(const eg_cuda_gemm &p) {
    __shared__ T numbers[EG_MAP_ROWS][EG_MAP_LD];
    eg_let_successor_start();
    eg_wait_for_predecessor();
    for (int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
        const eg_tile at = eg_tile_at<EG_MAP_ROWS, EG_MAP_COLS>(p, index);
        if (at.rows == 0) continue;
        T added[4];
        eg_map_tile<false>(p, at, added, numbers);
    }
}

extern "C" __global__ void __launch_bounds__(EG_MAP_THREADS, 4)
    eg_map_any_f32(const __grid_constant__ eg_cuda_gemm p) {
    run<float>(p);
}
extern "C" __global__ void __launch_bounds__(EG_MAP_THREADS, 2)
    eg_map_any_f64(const __grid_constant__ eg_cuda_gemm p) {
    run<double>(p);
}
