/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of a few outer products: d_b of few rows. The result is all that memory is asked for, written once,
 * and read once where it is added to.
 *
 *     a warp makes ROWS rows of 128 columns, a lane four columns of each:
 *
 *         rows on vectors:   neighbours, as one vector        anywhere:   32 apart, one by one
 *
 * What a result is added to is on its way before the operands are there. Those wait in shared memory, term by
 * term: a term of a row is read by all lanes at once. */
#include "../skinny.h"
#include "epilogue.cuh"
#include "order.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, COLS = 128 };

template <typename T> struct alignas(16) four { T x[4]; };

/* LINES lines of all terms, which are on their way at once; 0 outside. */
template <typename S, int COUNT>
EG_DEVICE void fetch(const S *from, int64_t step, int distance, int terms, S (&x)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) x[i] = i * distance < terms ? from[i * distance * step] : (S)0;
}
template <typename T, int LINES> struct lines {
    enum { COUNT = EG_OUTER_TERMS * LINES / THREADS, DISTANCE = THREADS / LINES };
    T x[COUNT];

    __device__ __forceinline__ lines(const eg_cuda_matrix &m, int64_t base, int64_t line_stride,
                                     int64_t term_stride, int64_t there, int terms) {
        const int line = (int)threadIdx.x % LINES, term = (int)threadIdx.x / LINES;
        const int64_t at = base + line * line_stride + term * term_stride;
        const int left = line < there ? terms - term : 0;
        if (sizeof(T) == 8 || m.dtype == EG_F32) {
            fetch((const T *)m.data + at, term_stride, DISTANCE, left, x);
            return;
        }
        uint16_t bits[COUNT];
        fetch((const uint16_t *)m.data + at, term_stride, DISTANCE, left, bits);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            x[i] = (T)(m.dtype == EG_BF16 ? eg_widen_bf16(bits[i]) : eg_widen_f16(bits[i]));
    }
    __device__ __forceinline__ void put(T (*to)[LINES]) const {
        const int line = (int)threadIdx.x % LINES, term = (int)threadIdx.x / LINES;
#pragma unroll
        for (int i = 0; i < COUNT; i++) to[term + i * DISTANCE][line] = x[i];
    }
};

/* The four numbers from `index` on, or 32 apart, of which `count` are there. */
template <bool VECTORS, typename T>
EG_DEVICE void take(const eg_cuda_matrix &x, int64_t index, int count, T (&v)[4]) {
    if (VECTORS) return eg_load4(x, index, v);
    eg_load_some(x, index, 32, count, v);
}
template <typename S> EG_DEVICE void put_some(S *to, int count, const S (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i < count) to[i * 32] = x[i];
    }
}
template <bool VECTORS, typename T>
EG_DEVICE void put(const eg_cuda_matrix &x, int64_t index, int count, const T (&v)[4]) {
    if (VECTORS) return eg_store4(x, index, v);
    if (sizeof(T) == 8 || x.dtype == EG_F32) return put_some((T *)x.data + index, count, v);
    if constexpr (sizeof(T) != 8) {
        uint16_t bits[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            bits[i] = x.dtype == EG_BF16 ? eg_round_bf16((float)v[i]) : eg_round_f16((float)v[i]);
        put_some((uint16_t *)x.data + index, count, bits);
    }
}

/* The columns of a lane that are inside. */
template <bool VECTORS> EG_DEVICE int inside(int64_t cols, int col) {
    if (cols <= col) return 0;
    if (VECTORS) return 4;
    return cols - col > 96 ? 4 : (int)(cols - col + 31) / 32;
}

/* ADDS: to a result that is there, if p.accumulate, which takes registers: a kernel that never does has more
 * rows a warp. */
template <bool ADDS, bool VECTORS, typename T, int ROWS>
EG_DEVICE void make_tile(const eg_cuda_gemm &p, int64_t index) {
    constexpr int TILE_ROWS = ROWS * WARPS;
    __shared__ __align__(16) T left[EG_OUTER_TERMS][TILE_ROWS], right[EG_OUTER_TERMS][COLS];
    const int lane = (int)threadIdx.x % 32, first = (int)threadIdx.x / 32 * ROWS, terms = (int)p.depth;
    const auto at = eg_tile_at<TILE_ROWS, COLS, eg_dense_tile>(p, index);
    const int col = VECTORS ? lane * 4 : lane, count = inside<VECTORS>(p.cols - at.col, col);
    const int rows = count == 0 ? 0 : min(at.rows - first, ROWS);
    const int64_t begin = eg_index(p.out, at.item, at.row + first, at.col + col);
    T old[ROWS][4] = {}, acc[ROWS][4] = {};
    if (ADDS && p.accumulate) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (i < rows) take<VECTORS>(p.out, begin + i * p.out.row_stride, count, old[i]);
        }
    }
    const lines<T, TILE_ROWS> of_left(p.left, eg_index(p.left, at.item, at.row, 0), p.left.row_stride,
                                      p.left.col_stride, at.rows, terms);
    const lines<T, COLS> of_right(p.right, eg_index(p.right, at.item, 0, at.col), p.right.col_stride,
                                  p.right.row_stride, p.cols - at.col, terms);
    of_left.put(left), of_right.put(right);
    __syncthreads();
#pragma unroll 1
    for (int t = 0; t < terms; t++) {
        four<T> l[ROWS / 4], r;
#pragma unroll
        for (int i = 0; i < ROWS / 4; i++) l[i] = *(const four<T> *)&left[t][first + i * 4];
        if (VECTORS) {
            r = *(const four<T> *)&right[t][col];
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) r.x[i] = right[t][col + i * 32];
        }
#pragma unroll
        for (int i = 0; i < ROWS * 4; i++)
            acc[i / 4][i % 4] = eg_fma(l[i / 16].x[i / 4 % 4], r.x[i % 4], acc[i / 4][i % 4]);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) acc[i][j] = acc[i][j] * (T)p.scale + (ADDS ? old[i][j] : 0);
        if (i < rows) put<VECTORS>(p.out, begin + i * p.out.row_stride, count, acc[i]);
    }
}

template <bool ADDS, bool VECTORS, typename T, int ROWS> EG_DEVICE void make_tiles(const eg_cuda_gemm &p) {
    for (int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
        if (index != blockIdx.x) __syncthreads();
        make_tile<ADDS, VECTORS, T, ROWS>(p, index);
    }
}

/* Vectors where no row ends inside one. */
template <bool ADDS, typename T, int ROWS> EG_DEVICE void run(const eg_cuda_gemm &p) {
    eg_let_successor_start();
    eg_wait_for_predecessor();
    if (eg_vectors(p.out, p.out.col_stride, p.out.row_stride) && p.cols % 4 == 0)
        return make_tiles<ADDS, true, T, ROWS>(p);
    make_tiles<ADDS, false, T, ROWS>(p);
}

#define ENTRY(name, blocks, ...)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, blocks)                                            \
        eg_##name(const __grid_constant__ eg_cuda_gemm p) {                                                  \
        run<__VA_ARGS__>(p);                                                                                 \
    }
ENTRY(outer_f32, 4, false, float, 8)
ENTRY(outer_add_f32, 4, true, float, 4)
ENTRY(outer_add_f64, 2, true, double, 4)
