/* SPDX-License-Identifier: Apache-2.0 */
/* The epilogue of a product that another kernel has made, and any other map of rows: every term that a
 * product can have, on values that lie in memory; and copies, which are a map of nothing with a residual.
 *
 *     a block takes 32 rows of 32 vectors of 16 bytes: 256 columns of bf16, each lane a vector
 *     each of its 16 warps finishes two of the rows, one after the other
 *
 * Most maps are small and come right after a product, so what counts is how soon the first block is done. The
 * activation is chosen before the loop over rows, and the loop is not unrolled: the instructions that a block
 * runs are few and lie side by side. With all activations inside the loop, fetching them took 6 us.
 *
 * A thread's columns are the same in both rows. So it loads their bias once, and adds their sums in
 * registers; at the end the warps' sums are added in order. Values may lie in the memory of a result: each is
 * read by the thread that writes there. */
#include "epilogue.cuh"
#include "order.cuh"
#include "vectors.cuh"

enum { ROWS = 32, WARPS = 16, THREADS = 32 * WARPS, BLOCKS = 2 };

/* ---- Rows of a tile -------------------------------------------------------------------------------------
 */

/* Where a thread's vector of a row is. */
template <typename V>
EG_DEVICE uint4 *vector_at(const eg_cuda_matrix &x, int64_t item, int64_t row, int64_t col) {
    return (uint4 *)x.data + (item * x.item_stride + row * x.row_stride + col) / V::COUNT;
}

/* A product of 16-bit numbers waits in f32, and so do factors: as many numbers, in two vectors. */
template <typename V, typename T>
EG_DEVICE void load_value(const eg_cuda_matrix &x, int64_t item, int64_t row, int64_t col, T (&v)[V::COUNT]) {
    if (V::COUNT != 8 || x.dtype != EG_F32) return V::widen(*vector_at<V>(x, item, row, col), v);
    float low[4], high[4];
    const uint4 *from = vector_at<f32x4>(x, item, row, col);
    f32x4::widen(from[0], low);
    f32x4::widen(from[V::COUNT == 8], high);
#pragma unroll
    for (int i = 0; i < V::COUNT; i++) v[i] = i < 4 ? low[i % 4] : high[i % 4];
}

template <typename V, typename T>
EG_DEVICE void store_value(const eg_cuda_matrix &x, int64_t item, int64_t row, int64_t col,
                           const T (&v)[V::COUNT]) {
    if (V::COUNT != 8 || x.dtype != EG_F32) {
        *vector_at<V>(x, item, row, col) = V::round(v);
        return;
    }
    uint4 *to = vector_at<f32x4>(x, item, row, col);
#pragma unroll
    for (int half = 0; half < (V::COUNT == 8 ? 2 : 1); half++) {
        float four[4];
#pragma unroll
        for (int i = 0; i < 4; i++) four[i] = (float)v[(half * 4 + i) % V::COUNT];
        to[half] = f32x4::round(four);
    }
}

/* `finish` makes a result of a value, to which the bias is added, and of `in`; the sums are of results. */
template <typename V, typename F>
EG_DEVICE void map_rows(const eg_cuda_gemm &p, const eg_tile &tile, const F &finish,
                        typename V::real (&sums)[V::COUNT]) {
    typedef typename V::real real;
    const int64_t col = tile.col + threadIdx.x % 32 * V::COUNT, item = tile.item;
    const int64_t end = tile.row + ROWS < p.rows ? tile.row + ROWS : p.rows;
    if (col >= p.cols) return;
    real bias[V::COUNT] = {};
    if (p.bias.data != 0) V::widen(*((const uint4 *)p.bias.data + col / V::COUNT), bias);
#pragma unroll 1
    for (int64_t row = tile.row + threadIdx.x / 32; row < end; row += WARPS) {
        real v[V::COUNT] = {}, in[V::COUNT] = {};
        if (p.left.data != 0) load_value<V>(p.left, item, row, col, v);
        if (p.in.data != 0) load_value<V>(p.in, item, row, col, in);
#pragma unroll
        for (int i = 0; i < V::COUNT; i++) v[i] += bias[i];
        if (p.second.data != 0) *vector_at<V>(p.second, item, row, col) = V::round(v);
        finish(v, in);
        if (p.out.data != 0) store_value<V>(p.out, item, row, col, v);
#pragma unroll
        for (int i = 0; i < V::COUNT; i++) sums[i] += v[i];
    }
}

template <typename V>
EG_DEVICE void map_by_epilogue(const eg_cuda_gemm &p, const eg_tile &tile,
                               typename V::real (&sums)[V::COUNT]) {
    typedef typename V::real real;
    const bool none = p.activation == EG_ACT_NONE, propagate = p.propagate != 0;
    if (p.epilogue == EG_CUDA_TIMES) {
        eg_with_act(p.activation, [&](const auto &act) {
            map_rows<V>(
                p, tile,
                [&](real(&v)[V::COUNT], const real(&in)[V::COUNT]) {
#pragma unroll
                    for (int i = 0; i < V::COUNT; i++) v[i] = (eg_is_nan(v[i]) ? v[i] : act(v[i])) * in[i];
                },
                sums);
        });
        return;
    }
    if (p.epilogue == EG_CUDA_FORWARD) {
        eg_with_act(p.activation, [&](const auto &act) {
            map_rows<V>(
                p, tile,
                [&](real(&v)[V::COUNT], const real(&in)[V::COUNT]) {
#pragma unroll
                    for (int i = 0; i < V::COUNT; i++) v[i] = (eg_is_nan(v[i]) ? v[i] : act(v[i])) + in[i];
                },
                sums);
        });
        return;
    }
    const bool of_value = p.epilogue == EG_CUDA_ACT_GRAD; /* act' is taken at the value, else at `in` */
    eg_with_act_grad(p.activation, p.source == EG_SOURCE_Y, [&](const auto &derivative) {
        map_rows<V>(
            p, tile,
            [&](real(&v)[V::COUNT], const real(&in)[V::COUNT]) {
                real saved[V::COUNT], d_act[V::COUNT];
#pragma unroll
                for (int i = 0; i < V::COUNT; i++) saved[i] = of_value ? v[i] : in[i];
                eg_act_derivatives_by(derivative, none, propagate, saved, d_act);
#pragma unroll
                for (int i = 0; i < V::COUNT; i++) v[i] = (of_value ? in[i] : v[i]) * d_act[i];
            },
            sums);
    });
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
        ((real *)p.sums)[(at.item * p.chunks + at.chunk) * p.cols + at.col + col] = total;
    }
    __syncthreads();
}

template <typename V> EG_DEVICE void run(const eg_cuda_gemm &p) {
    eg_let_successor_start();
    eg_wait_for_predecessor();
    for (int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
        const eg_tile at = eg_tile_at<ROWS, 32 * V::COUNT>(p, index);
        typename V::real sums[V::COUNT] = {};
        map_by_epilogue<V>(p, at, sums);
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
