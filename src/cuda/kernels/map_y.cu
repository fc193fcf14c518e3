/* SPDX-License-Identifier: Apache-2.0 */
/* y = act(v + bias) + residual, and v + bias as a second result, of values that lie in memory: what finishes
 * most products of the library. map.cu makes every other epilogue, and column sums.
 *
 *     rows of vectors:             a thread takes vectors of 16 bytes, several at once
 *     rows that begin anywhere,    the same of the result as one long row; what is read is read number by
 *     and follow each other:       number, for it may lie in rows of another pitch
 *
 * There are as many blocks as run at once, and each has several vectors a thread on their way: memory is
 * busy, and no time goes into beginning blocks. Small results have a vector a thread, by instructions that
 * are fewer to be fetched. Where a vector is, is known from where the thread's last one was: a division takes
 * longer than the rest. Values may lie in the memory of a result: the thread that writes there has read them
 * before. */
#include "../map_y.h"
#include "epilogue.cuh"
#include "order.cuh"
#include "vector_epilogue.cuh"

enum { THREADS = EG_MAP_Y_THREADS };

/* Vectors of a thread that are on their way at once. */
template <typename V> constexpr int AHEAD = V::COUNT == 4 ? 4 : 2;

/* The row and column of a number, or of a vector, which are counted row by row; or how far on the next is. */
template <typename I> struct walk {
    I index, row, col;

    __device__ walk(I at, I across) : index(at), row(at / across), col(at - at / across * across) {}
    __device__ void go(const walk &by, I across) {
        index += by.index, row += by.row, col += by.col;
        const bool next = col >= across;
        col -= next ? across : 0, row += next;
    }
};

template <typename V, typename F>
EG_DEVICE void finish(const F &act, typename V::real (&v)[V::COUNT],
                      const typename V::real (&residual)[V::COUNT]) {
#pragma unroll
    for (int i = 0; i < V::COUNT; i++) v[i] = (eg_is_nan(v[i]) ? v[i] : act(v[i])) + residual[i];
}

/* ---- Rows of vectors ---------------------------------------------------------------------------------- */

/* I: uint32_t where the number of vectors fits. */
template <typename V, typename I, int N, typename F>
EG_DEVICE void map_vectors(const eg_cuda_gemm &p, int64_t item, const F &act) {
    const I across = (I)(p.cols / V::COUNT), all = (I)p.rows * across;
    const walk<I> step((I)gridDim.x * THREADS, across);
    walk<I> to((I)blockIdx.x * THREADS + threadIdx.x, across);
#pragma unroll 1
    while (to.index < all) {
        typename V::real v[N][V::COUNT] = {}, residual[N][V::COUNT] = {}, bias[N][V::COUNT] = {};
        walk<I> from = to;
#pragma unroll
        for (int i = 0; i < N; i++, from.go(step, across)) {
            const int64_t col = (int64_t)from.col * V::COUNT;
            if (from.index >= all) continue;
            if (p.left.data != 0) eg_load_values<V>(p.left, item, from.row, col, v[i]);
            if (p.bias.data != 0) V::widen(*eg_vector_at<V>(p.bias, item, 0, col), bias[i]);
            if (p.in.data != 0) eg_load_values<V>(p.in, item, from.row, col, residual[i]);
        }
#pragma unroll
        for (int i = 0; i < N; i++, to.go(step, across)) {
            const int64_t col = (int64_t)to.col * V::COUNT;
            if (to.index >= all) continue;
#pragma unroll
            for (int j = 0; j < V::COUNT; j++) v[i][j] += bias[i][j];
            if (p.second.data != 0) eg_store_values<V>(p.second, item, to.row, col, v[i]);
            finish<V>(act, v[i], residual[i]);
            eg_store_values<V>(p.out, item, to.row, col, v[i]);
        }
    }
}

/* ---- Rows that begin anywhere ------------------------------------------------------------------------- */

template <typename V>
EG_DEVICE void store_numbers(const eg_cuda_matrix &x, int64_t at, int count,
                             const typename V::real (&v)[V::COUNT]) {
    if (x.data == 0) return;
    if (count == V::COUNT) return eg_store_values<V>(x, 0, 0, at, v);
#pragma unroll
    for (int i = 0; i < V::COUNT; i++) {
        if (i < count) eg_store(x, at + i, v[i]);
    }
}

/* The last vector may end outside. */
template <typename V> EG_DEVICE void map_numbers(const eg_cuda_gemm &p) {
    const uint32_t cols = (uint32_t)p.cols, all = (uint32_t)p.rows * cols;
    const walk<uint32_t> step(gridDim.x * THREADS * V::COUNT, cols);
    walk<uint32_t> at((blockIdx.x * THREADS + threadIdx.x) * V::COUNT, cols);
#pragma unroll 1
    for (; at.index < all; at.go(step, cols)) {
        typename V::real v[V::COUNT] = {}, residual[V::COUNT] = {}, bias[V::COUNT] = {};
        const int count = all - at.index < V::COUNT ? (int)(all - at.index) : V::COUNT;
        int64_t row = at.row, col = at.col;
#pragma unroll
        for (int i = 0; i < V::COUNT; i++) {
            if (i < count && p.left.data != 0) eg_load(p.left, row * p.left.row_stride + col, v[i]);
            if (i < count && p.in.data != 0) eg_load(p.in, row * p.in.row_stride + col, residual[i]);
            if (i < count && p.bias.data != 0) eg_load(p.bias, col, bias[i]);
            const bool next = ++col == cols;
            col = next ? 0 : col, row += next;
        }
#pragma unroll
        for (int i = 0; i < V::COUNT; i++) v[i] += bias[i];
        store_numbers<V>(p.second, at.index, count, v);
        eg_with_act(p.activation, [&](const auto &act) EG_INLINE { finish<V>(act, v, residual); });
        store_numbers<V>(p.out, at.index, count, v);
    }
}

/* ---- The kernel --------------------------------------------------------------------------------------- */

template <typename V> EG_DEVICE void run(const eg_cuda_gemm &p) {
    eg_let_successor_start();
    eg_wait_for_predecessor();
    if (p.cols % V::COUNT != 0) return map_numbers<V>(p);
    eg_with_act(p.activation, [&](const auto &act) {
        for (int64_t item = 0; item < p.items; item++) {
            const int64_t vectors = p.rows * (p.cols / V::COUNT);
            if (vectors <= (int64_t)gridDim.x * THREADS)
                map_vectors<V, uint32_t, 1>(p, item, act);
            else if (p.rows < (1LL << 31) / p.cols)
                map_vectors<V, uint32_t, AHEAD<V>>(p, item, act);
            else /* where an index could overflow */
                map_vectors<V, uint64_t, 1>(p, item, act);
        }
    });
}

#define EG_ENTRY(name, vector)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, EG_MAP_Y_BLOCKS)                                   \
        eg_map_y_##name(const __grid_constant__ eg_cuda_gemm p) {                                            \
        run<vector>(p);                                                                                      \
    }
EG_ENTRY(bf16, bf16x8)
EG_ENTRY(f16, f16x8)
EG_ENTRY(f32, f32x4)
EG_ENTRY(f64, f64x2)
