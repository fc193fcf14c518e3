/* SPDX-License-Identifier: Apache-2.0 */
/* The epilogue of a product that another kernel has made, and any other map of rows: every term that a
 * product can have, on values that lie in memory; and copies, which are a map of nothing with a residual.
 *
 *     without sums:  a thread takes a vector of 16 bytes, wherever it is
 *     with sums, or of groups:  a block takes 32 rows of 32 vectors: 256 columns of bf16, each lane a
 *                    vector; each of its 16 warps finishes two of the rows, one after the other
 *
 * Most maps are small and come right after a product, so what counts is how soon the first block is done: the
 * loops are not unrolled.
 *
 * With sums a thread's columns are the same in both rows. So it adds their sums in registers; at the end the
 * warps' sums are added in order. Values may lie in the memory of a result: each is read by the thread that
 * writes there. */
#include "epilogue.cuh"
#include "order.cuh"
#include "vector_epilogue.cuh"

enum { ROWS = 32, WARPS = 16, THREADS = 32 * WARPS, BLOCKS = 2 };

/* ---- Vectors anywhere --------------------------------------------------------------------------------- */

/* I: uint32_t where the number of vectors fits, for a division of 64-bit numbers takes longer than the rest.
 */
template <typename V, typename I, typename F>
EG_DEVICE void map_vectors(const eg_cuda_gemm &p, const F &finish) {
    const I across = (I)(p.cols / V::COUNT), each = (I)p.rows * across, all = (I)p.items * each,
            step = (I)gridDim.x * THREADS;
#pragma unroll 1
    for (I index = (I)blockIdx.x * THREADS + threadIdx.x; index < all; index += step) {
        const I item = index / each, row = (index - item * each) / across,
                col = (index - item * each - row * across) * V::COUNT;
        typename V::real v[V::COUNT] = {};
        if (p.left.data != 0) eg_load_values<V>(p.left, item, row, col, v);
        eg_finish_vector<V>(p, item, row, col, finish, v);
    }
}

/* ---- Rows of a tile -------------------------------------------------------------------------------------
 */

template <typename V, typename F>
EG_DEVICE void map_rows(const eg_cuda_gemm &p, const eg_tile &tile, const F &finish,
                        typename V::real (&sums)[V::COUNT]) {
    const int64_t col = tile.col + threadIdx.x % 32 * V::COUNT;
    const int64_t end = tile.end();
    if (col >= p.cols) return;
#pragma unroll 1
    for (int64_t row = tile.row + threadIdx.x / 32; row < end; row += WARPS) {
        typename V::real v[V::COUNT] = {};
        if (p.left.data != 0) eg_load_values<V>(p.left, tile.item, row, col, v);
        eg_finish_vector<V>(p, tile.item, row, col, finish, v);
#pragma unroll
        for (int i = 0; i < V::COUNT; i++) sums[i] += v[i];
    }
}

/* ---- The kernel -----------------------------------------------------------------------------------------
 */

/* The warps' sums in order. */
template <typename V>
EG_DEVICE void sum_warps(const eg_cuda_gemm &p, const eg_tile &at, const typename V::real (&sums)[V::COUNT]) {
    typedef typename V::real real;
    __shared__ real shared[WARPS][32 * V::COUNT];
#pragma unroll
    for (int i = 0; i < V::COUNT; i++) shared[threadIdx.x / 32][i * 32 + threadIdx.x % 32] = sums[i];
    __syncthreads();
    for (int col = threadIdx.x; col < 32 * V::COUNT && at.col + col < p.cols; col += THREADS) {
        real total = 0;
        for (int i = 0; i < WARPS; i++) total += shared[i][col % V::COUNT * 32 + col / V::COUNT];
        eg_put_column_sum(p, eg_row_of_sums<ROWS>(p, at), at.col + col, total);
    }
    __syncthreads();
}

template <typename V> EG_DEVICE void run(const eg_cuda_gemm &p) {
    eg_let_successor_start();
    eg_wait_for_predecessor();
    if (p.sums == 0 && p.ragged == EG_CUDA_DENSE) {
        const bool few = p.items * p.rows < (1LL << 31) / p.cols; /* so that no index overflows */
        eg_with_terms<V>(p, [&](const auto &finish) {
            if (few) return map_vectors<V, uint32_t>(p, finish);
            map_vectors<V, uint64_t>(p, finish);
        });
        return;
    }
    const int64_t items =
        p.ragged == EG_CUDA_DENSE ? p.items : 1; /* else chunks are row tiles of all groups */
    const int64_t tiles = items * p.chunks * ((p.cols + 32 * V::COUNT - 1) / (32 * V::COUNT));
    for (int64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const eg_tile at = eg_tile_at<ROWS, 32 * V::COUNT>(p, index);
        if (at.rows == 0) continue;
        typename V::real sums[V::COUNT] = {};
        eg_with_terms<V>(p, [&](const auto &finish) { map_rows<V>(p, at, finish, sums); });
        if (p.sums != 0) sum_warps<V>(p, at, sums);
    }
}

#define EG_ENTRY(name, vector)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                            \
        eg_map_##name(const __grid_constant__ eg_cuda_gemm p) {                                              \
        run<vector>(p);                                                                                      \
    }
EG_ENTRY(bf16, bf16x8)
EG_ENTRY(f16, f16x8)
EG_ENTRY(f32, f32x4)
EG_ENTRY(f64, f64x2)
