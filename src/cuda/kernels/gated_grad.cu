/* SPDX-License-Identifier: Apache-2.0 */
/* Both gradients of a gated unit from that of its y, at the speed of memory, with their column sums:
 *
 *     d_up = d_y * act(gate)        d_gate = d_y * up * act'(gate)
 *
 * They are three maps, of which one writes d_y * up for another to read; here each matrix is read or written
 * once. d_y may be of the compute type, a product that waits. Chunks of rows are those of act_grad.cuh. A
 * result may be in the memory of d_y, element for element. */
#include "../gated.h"
#include "epilogue.cuh"
#include "order.cuh"
#include "vector_epilogue.cuh"

enum { WARPS = 8, ROWS = 2, BLOCKS = 2 }; /* a thread's rows in flight; blocks a multiprocessor */

/* Calls f(act, act'). */
template <typename F> EG_DEVICE void with_act_and_derivative(int activation, const F &f) {
    switch (activation) {
#define EG_ROW(NAME, name, value, from_y, text)                                                              \
    case value:                                                                                              \
        return f([](auto x) { return eg_act_##name(x); }, [](auto x) { return eg_act_grad_##name(x); });
        EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW
    }
}

/* A vector of a row. */
template <typename V> struct vectors {
    typename V::real d_y[V::COUNT];
    uint4 gate, up;

    __device__ __forceinline__ void load(const eg_cuda_gated &p, int64_t item, int64_t row, int64_t col) {
        eg_load_values<V>(p.d_y, item, row, col, d_y);
        gate = __ldcs(eg_vector_at<V>(p.gate, item, row, col));
        up = __ldcs(eg_vector_at<V>(p.up, item, row, col));
    }
};
template <typename V> struct both_sums { typename V::real up[V::COUNT], gate[V::COUNT]; };

/* Sums are of the unrounded numbers. */
template <typename V, typename A, typename D>
EG_DEVICE void finish(const eg_cuda_gated &p, const A &act, const D &derivative, const vectors<V> &from,
                      int64_t item, int64_t row, int64_t col, both_sums<V> &sums) {
    typename V::real gate[V::COUNT], up[V::COUNT], d_act[V::COUNT];
    V::widen(from.gate, gate);
    V::widen(from.up, up);
    eg_act_derivatives_by(derivative, p.activation == EG_ACT_NONE, p.propagate != 0, gate, d_act);
#pragma unroll
    for (int i = 0; i < V::COUNT; i++) {
        up[i] = from.d_y[i] * up[i] * d_act[i];
        gate[i] = (eg_is_nan(gate[i]) ? gate[i] : act(gate[i])) * from.d_y[i];
        sums.gate[i] += up[i], sums.up[i] += gate[i];
    }
    if (p.d_up.data != 0) __stcs(eg_vector_at<V>(p.d_up, item, row, col), V::round(gate));
    if (p.d_gate.data != 0) __stcs(eg_vector_at<V>(p.d_gate, item, row, col), V::round(up));
}

/* Rows first, first + step, ... of a thread's vector. */
template <typename V, typename A, typename D>
EG_DEVICE void map_rows(const eg_cuda_gated &p, const A &act, const D &derivative, int64_t item,
                        int64_t first, int64_t end, int64_t step, int64_t col, both_sums<V> &sums) {
    int64_t row = first;
#pragma unroll 1
    for (; row + (ROWS - 1) * step < end; row += ROWS * step) {
        vectors<V> from[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) from[i].load(p, item, row + i * step, col);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            finish<V>(p, act, derivative, from[i], item, row + i * step, col, sums);
    }
#pragma unroll 1
    for (; row < end; row += step) {
        vectors<V> from;
        from.load(p, item, row, col);
        finish<V>(p, act, derivative, from, item, row, col, sums);
    }
}

/* The warps' sums in order. */
template <typename V>
EG_DEVICE void sum_warps(uint64_t to, int64_t cols, int64_t row_of_sums, int64_t first_col,
                         const typename V::real (&sums)[V::COUNT]) {
    typedef typename V::real real;
    __shared__ real shared[WARPS][32 * V::COUNT];
    if (to == 0) return;
#pragma unroll
    for (int j = 0; j < V::COUNT; j++) shared[threadIdx.x / 32][j * 32 + threadIdx.x % 32] = sums[j];
    __syncthreads();
    const int col = threadIdx.x;
    if (col < 32 * V::COUNT && first_col + col < cols) {
        real total = 0;
        for (int i = 0; i < WARPS; i++) total += shared[i][col % V::COUNT * 32 + col / V::COUNT];
        ((real *)to)[row_of_sums * cols + first_col + col] = total;
    }
    __syncthreads();
}

/* Rows of groups are those of one matrix, up to the last end. */
EG_DEVICE int64_t end_of_rows(const eg_cuda_gated &p) {
    if (p.ends == 0) return p.rows;
    const eg_cuda_ends ends = eg_ends_of(p, p.rows, p.groups);
    if (blockIdx.x == 0) eg_check_ends(ends, p.wrong);
    return eg_cuda_group_begin(ends, ends.count);
}

template <typename V> EG_DEVICE void run(const eg_cuda_gated &p) {
    const int warp = threadIdx.x / 32, width = 32 * V::COUNT;
    const int64_t column_blocks = (p.cols + width - 1) / width;
    eg_wait_for_predecessor();
    eg_let_successor_start();
    const int64_t end = end_of_rows(p);
    for (int64_t index = blockIdx.x; index < p.items * p.chunks * column_blocks; index += gridDim.x) {
        const int64_t row_of_sums = index / column_blocks, first_col = index % column_blocks * width;
        const int64_t item = row_of_sums / p.chunks, first = row_of_sums % p.chunks * WARPS + warp;
        const int64_t col = first_col + threadIdx.x % 32 * V::COUNT, step = WARPS * p.chunks;
        both_sums<V> sums = {};
        if (col < p.cols) {
            with_act_and_derivative(p.activation, [&](const auto &act, const auto &derivative) EG_INLINE {
                map_rows<V>(p, act, derivative, item, first, end, step, col, sums);
            });
        }
        sum_warps<V>(p.sums_up, p.cols, row_of_sums, first_col, sums.up);
        sum_warps<V>(p.sums_gate, p.cols, row_of_sums, first_col, sums.gate);
    }
}

#define EG_ENTRY(name, vector)                                                                               \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)                                         \
        eg_gated_grad_##name(const __grid_constant__ eg_cuda_gated p) {                                      \
        run<vector>(p);                                                                                      \
    }
EG_ENTRY(bf16, bf16x8)
EG_ENTRY(f16, f16x8)
EG_ENTRY(f32, f32x4)
EG_ENTRY(f64, f64x2)
