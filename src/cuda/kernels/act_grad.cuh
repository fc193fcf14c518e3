/* SPDX-License-Identifier: Apache-2.0 */
/* The map grad_pre = grad * act'(saved) at the speed of memory, with the column sums of its chunks of rows.
 *
 *     a warp reads 32 vectors of 16 bytes side by side: one row of 256 columns of bf16
 *     a block's 8 warps take 8 rows, and then the 8 rows that are as many rows on as all chunks take at once
 *     a thread loads two rows of both operands ahead, and adds its column sums in registers; at the end the
 *     warps' sums are added in order
 *
 * The host divides the rows into as many chunks as make one wave of blocks. So all blocks stream until the
 * end, and there are few sums to add. Chunks are interleaved, so that all blocks together walk through memory
 * once. Nothing is read or written twice, so loads and stores are streaming ones (ldcs, stcs). Sums are of
 * the unrounded numbers. Rows must be 16-byte vectors, or are read number by number.
 *
 * The gradient of 16-bit layers may be a product that waits in f32: G are its vectors, V those of the rest.
 */
#ifndef EG_CUDA_ACT_GRAD_CUH
#define EG_CUDA_ACT_GRAD_CUH

#include "epilogue.cuh"
#include "order.cuh"
#include "vectors.cuh"

enum { WARPS = 8 };

/* Rows of a thread that are on their way, more of single numbers (numbers.cuh); blocks a multiprocessor. */
template <typename V> constexpr int rows_ahead = V::COUNT > 1 ? 2 : 8;
template <typename V> constexpr int resident = V::COUNT > 1 ? 4 : 3;

/* ---- One activation ---------------------------------------------------------------------------------- */

/* The rows of a thread: its vector in the first of them, and the bytes from one to the next. */
struct thread_rows {
    const char *grad, *saved;
    char *out; /* NULL: not wanted */
    int64_t grad_step, saved_step, out_step;
    int rows; /* of the thread */
    bool propagate;
};

/* The gradient's numbers of a vector: as many G as have them. */
template <typename V, typename G> struct gradient {
    enum { PARTS = V::COUNT / G::COUNT };
    typename G::bits part[PARTS];

    __device__ void load(const char *from) {
#pragma unroll
        for (int i = 0; i < PARTS; i++) part[i] = __ldcs((const typename G::bits *)from + i);
    }
    __device__ void widen(typename V::real (&v)[V::COUNT]) const {
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            typename V::real some[G::COUNT];
            G::widen(part[i], some);
#pragma unroll
            for (int j = 0; j < G::COUNT; j++) v[i * G::COUNT + j] = some[j];
        }
    }
};

/* product = grad * act'(saved) for one row of the thread; the sums are of the unrounded products. */
template <typename V, typename G, typename F>
EG_DEVICE void finish_row(const thread_rows &w, const F &derivative, const gradient<V, G> &g,
                          const typename V::bits &s, int row, typename V::real (&sums)[V::COUNT]) {
    typename V::real product[V::COUNT], from[V::COUNT];
    g.widen(product);
    V::widen(s, from);
#pragma unroll
    for (int j = 0; j < V::COUNT; j++) {
        product[j] *= derivative(from[j], w.propagate);
        sums[j] += product[j];
    }
    if (w.out != nullptr) __stcs((typename V::bits *)(w.out + row * w.out_step), V::round(product));
}

template <typename V, bool READS> EG_DEVICE typename V::bits load_saved(const thread_rows &w, int row) {
    return READS ? __ldcs((const typename V::bits *)(w.saved + row * w.saved_step)) : typename V::bits();
}

template <typename V, typename G, bool READS, typename F>
EG_DEVICE void map_rows(const thread_rows &w, const F &derivative, typename V::real (&sums)[V::COUNT]) {
    constexpr int ROWS = rows_ahead<V>;
    int row = 0;
    for (; row + ROWS <= w.rows; row += ROWS) {
        gradient<V, G> g[ROWS];
        typename V::bits s[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            g[i].load(w.grad + (row + i) * w.grad_step);
            s[i] = load_saved<V, READS>(w, row + i);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) finish_row<V, G>(w, derivative, g[i], s[i], row + i, sums);
    }
    for (; row < w.rows; row++) {
        gradient<V, G> g;
        g.load(w.grad + row * w.grad_step);
        finish_row<V, G>(w, derivative, g, load_saved<V, READS>(w, row), row, sums);
    }
}

template <typename V, typename G>
EG_DEVICE void map_with_activation(int activation, bool of_y, const thread_rows &w,
                                   typename V::real (&sums)[V::COUNT]) {
    typedef typename V::real real;
    if (activation == EG_ACT_NONE) {
        map_rows<V, G, false>(
            w, [](real, bool) { return (real)1; }, sums);
        return;
    }
    eg_with_act_grad(activation, of_y, [&](const auto &derivative) {
        const auto derivative_of = [&](real x, bool propagate) {
            const real d_act = derivative(x);
            return eg_is_nan(x) ? (propagate ? x : (real)0) : d_act;
        };
        map_rows<V, G, true>(w, derivative_of, sums);
    });
}

/* ---- The kernel -------------------------------------------------------------------------------------- */

/* Every `step`-th row from `row` on. */
template <typename V, typename G>
EG_DEVICE thread_rows thread_rows_of(const eg_cuda_act_grad &p, int64_t item, int64_t row, int64_t end,
                                     int64_t step, int64_t col) {
    const int64_t bytes = V::BYTES, grad_bytes = G::BYTES;
    const auto at = [&](const eg_cuda_matrix &x, int64_t size) {
        return (char *)x.data + (item * x.item_stride + row * x.row_stride + col) * size;
    };
    return {at(p.grad, grad_bytes),
            at(p.saved, bytes),
            p.out.data != 0 ? at(p.out, bytes) : nullptr,
            p.grad.row_stride * grad_bytes * step,
            p.saved.row_stride * bytes * step,
            p.out.row_stride * bytes * step,
            row < end ? (int)((end - row + step - 1) / step) : 0,
            p.propagate != 0};
}

/* The warps' sums in order. */
template <typename V>
EG_DEVICE void sum_warps(const eg_cuda_act_grad &p, int64_t row_of_sums, int64_t first_col,
                         const typename V::real (&sums)[V::COUNT]) {
    typedef typename V::real real;
    __shared__ real shared[WARPS][32 * V::COUNT];
#pragma unroll
    for (int j = 0; j < V::COUNT; j++) shared[threadIdx.x / 32][j * 32 + threadIdx.x % 32] = sums[j];
    __syncthreads();
    const int col = threadIdx.x;
    if (col < 32 * V::COUNT && first_col + col < p.cols) {
        real total = 0;
        for (int i = 0; i < WARPS; i++) total += shared[i][col % V::COUNT * 32 + col / V::COUNT];
        eg_put_column_sum(p, row_of_sums, first_col + col, total);
    }
    __syncthreads();
}

/* Rows of groups are those of one matrix, up to the last end. */
EG_DEVICE int64_t end_of_rows(const eg_cuda_act_grad &p) {
    if (p.ends == 0) return p.rows;
    const eg_cuda_ends ends = eg_ends_of(p, p.rows, p.groups);
    if (blockIdx.x == 0) eg_check_ends(ends, p.wrong);
    return eg_cuda_group_begin(ends, ends.count);
}

template <typename V, typename G> EG_DEVICE void run(const eg_cuda_act_grad &p) {
    const int warp = threadIdx.x / 32, width = 32 * V::COUNT;
    const int64_t column_blocks = (p.cols + width - 1) / width;
    eg_wait_for_predecessor();
    eg_let_successor_start();
    if (blockIdx.x == 0) eg_clear(p.counts, threadIdx.x, 32 * WARPS);
    const int64_t end = end_of_rows(p);
    for (int64_t index = blockIdx.x; index < p.items * p.chunks * column_blocks; index += gridDim.x) {
        const int64_t row_of_sums = index / column_blocks, first_col = index % column_blocks * width;
        const int64_t item = row_of_sums / p.chunks, row = row_of_sums % p.chunks * WARPS + warp;
        const int64_t col = first_col + threadIdx.x % 32 * V::COUNT;
        typename V::real sums[V::COUNT] = {};
        if (col < p.cols) {
            const thread_rows rows = thread_rows_of<V, G>(p, item, row, end, WARPS * p.chunks, col);
            map_with_activation<V, G>(p.activation, p.source == EG_SOURCE_Y, rows, sums);
        }
        if (p.sums != 0) sum_warps<V>(p, row_of_sums, first_col, sums);
    }
}

#define EG_ACT_GRAD_ENTRY(name, vector, of_grad)                                                             \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, resident<vector>)                               \
        eg_act_grad_##name(const __grid_constant__ eg_cuda_act_grad p) {                                     \
        run<vector, of_grad>(p);                                                                             \
    }

#endif
