/* SPDX-License-Identifier: Apache-2.0 */
/* As map_y.cu, of values and results that have gaps between their rows, or more than one item, or a type that
 * is not the layer's; and of rows that are no whole vectors.
 *
 *     rows of vectors:             a thread takes a vector of 16 bytes
 *     rows that begin anywhere,    the same of the result as one long row; what is read is read number by
 *     and follow each other:       number, for it may lie in rows of another pitch
 *
 * A thread has one vector, whose loads are all on their way before the activation is chosen: that is the
 * shortest way to the first result. Values may lie in the memory of a result: the thread that writes there
 * has read them before. */
#include "../map_y.h"
#include "epilogue.cuh"
#include "order.cuh"
#include "vector_epilogue.cuh"

enum { THREADS = EG_MAP_Y_THREADS };

template <typename V>
EG_DEVICE void add(typename V::real (&v)[V::COUNT], const typename V::real (&what)[V::COUNT]) {
#pragma unroll
    for (int i = 0; i < V::COUNT; i++) v[i] += what[i];
}

/* ---- Rows of vectors ---------------------------------------------------------------------------------- */

/* I: uint32_t where the number of vectors fits, for a division of 64-bit numbers takes longer than the rest.
 */
template <typename V, typename I> EG_DEVICE void map_vectors(const eg_cuda_gemm &p) {
    const I across = (I)(p.cols / V::COUNT), each = (I)p.rows * across, all = (I)p.items * each;
#pragma unroll 1
    for (I index = (I)blockIdx.x * THREADS + threadIdx.x; index < all; index += (I)gridDim.x * THREADS) {
        const I item = p.items == 1 ? 0 : index / each, in_item = index - item * each;
        const I row = in_item / across;
        const int64_t col = (int64_t)(in_item - row * across) * V::COUNT;
        typename V::real v[V::COUNT] = {}, residual[V::COUNT] = {}, bias[V::COUNT] = {};
        eg_loaded<V> left, in;
        uint4 added;
        if (p.left.data != 0) left.load(p.left, item, row, col);
        if (p.bias.data != 0) added = *eg_vector_at<V>(p.bias, item, 0, col);
        if (p.in.data != 0) in.load(p.in, item, row, col);
        if (p.left.data != 0) left.widen(p.left, v);
        if (p.bias.data != 0) V::widen(added, bias);
        if (p.in.data != 0) in.widen(p.in, residual);
        add<V>(v, bias);
        if (p.second.data != 0) eg_store_values<V>(p.second, item, row, col, v);
        eg_act(p.activation, v);
        add<V>(v, residual);
        eg_store_values<V>(p.out, item, row, col, v);
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
    const uint32_t step = gridDim.x * THREADS * V::COUNT;
#pragma unroll 1
    for (uint32_t index = (blockIdx.x * THREADS + threadIdx.x) * V::COUNT; index < all; index += step) {
        typename V::real v[V::COUNT] = {}, residual[V::COUNT] = {}, bias[V::COUNT] = {};
        const int count = all - index < V::COUNT ? (int)(all - index) : V::COUNT;
        int64_t row = index / cols, col = index - (uint32_t)row * cols;
#pragma unroll
        for (int i = 0; i < V::COUNT; i++) {
            if (i < count && p.left.data != 0) eg_load(p.left, row * p.left.row_stride + col, v[i]);
            if (i < count && p.in.data != 0) eg_load(p.in, row * p.in.row_stride + col, residual[i]);
            if (i < count && p.bias.data != 0) eg_load(p.bias, col, bias[i]);
            const bool next = ++col == cols;
            col = next ? 0 : col, row += next;
        }
        add<V>(v, bias);
        store_numbers<V>(p.second, index, count, v);
        eg_act(p.activation, v);
        add<V>(v, residual);
        store_numbers<V>(p.out, index, count, v);
    }
}

/* ---- The kernel --------------------------------------------------------------------------------------- */

template <typename V> EG_DEVICE void run(const eg_cuda_gemm &p) {
    eg_let_successor_start();
    eg_wait_for_predecessor();
    if (p.cols % V::COUNT != 0) return map_numbers<V>(p);
    if (p.items * p.rows < (1LL << 31) / p.cols) return map_vectors<V, uint32_t>(p);
    map_vectors<V, uint64_t>(p); /* where an index could overflow */
}

#define EG_ENTRY(name, vector)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, EG_MAP_Y_GAPS_BLOCKS)                              \
        eg_map_y_gaps_##name(const __grid_constant__ eg_cuda_gemm p) {                                       \
        run<vector>(p);                                                                                      \
    }
EG_ENTRY(bf16, bf16x8)
EG_ENTRY(f16, f16x8)
EG_ENTRY(f32, f32x4)
EG_ENTRY(f64, f64x2)
