/* SPDX-License-Identifier: Apache-2.0 */
/* Maps of rows that begin anywhere: every epilogue of map.cu, of any types, and the map of act_grad.cuh. A
 * lane takes four neighbours.
 *
 *     map_odd:       lanes take fours one after the other; with sums a warp takes 128 columns of a row
 *     act_grad_odd:  a warp takes 128 columns of a row; rows of up to 64 lie beside each other in it
 *
 * The warps' sums are added in order. The activation is chosen for the numbers of a lane, inside the loop:
 * loads and stores are long, and with a copy of them for each activation a kernel took minutes to compile. */
#include "epilogue.cuh"
#include "odd_vectors.cuh"
#include "order.cuh"
#include "vector_epilogue.cuh"

enum { COLS = 128, WARPS = 8, THREADS = 32 * WARPS, BLOCKS = 3 };

/* ---- Every epilogue ------------------------------------------------------------------------------------ */

enum { ROWS = 32 }; /* of a row of sums */

struct four {
    typedef float real;
    enum { COUNT = 4 };
};

/* Four neighbours of a row. */
struct place {
    int64_t item, row, col;
    eg_odd_lane lane;
};

EG_DEVICE char *address_of(const eg_cuda_matrix &x, const place &at, int size) {
    return (char *)x.data + eg_index(x, at.item, at.row, at.col) * size;
}

/* On their way: of 16 bits in the first half of each vector. */
struct fetched {
    uint4 low, high;
    int skew;

    template <typename V> __device__ void fetch_as(const char *from, const eg_odd_range &range) {
        const eg_odd_fetched<V> x = eg_odd_fetch<V>(from, range);
        memcpy(&low, &x.low, sizeof x.low), memcpy(&high, &x.high, sizeof x.high);
        skew = x.skew;
    }
    __device__ void fetch(const eg_cuda_matrix &x, const place &at, int64_t rows, int64_t cols) {
        if (x.data == 0 || at.lane.left <= 0) return;
        const int size = x.dtype == EG_F32 ? 4 : 2;
        const char *const from = address_of(x, at, size);
        const eg_odd_range range = eg_odd_range_of(x, at.item, rows, cols, size);
        if (x.dtype == EG_F32) return fetch_as<eg_odd_f32>(from, range);
        fetch_as<eg_odd_16>(from, range);
    }
    __device__ void take(const eg_cuda_matrix &x, float (&v)[4]) const {
        if (x.data == 0) return;
        if (x.dtype == EG_F32) return eg_odd_f32::widen(eg_odd_shift(low, high, skew), v);
        const uint2 bits = eg_odd_shift(make_uint2(low.x, low.y), make_uint2(high.x, high.y), skew);
        if (x.dtype == EG_BF16) return eg_odd_bf16::widen(bits, v);
        eg_odd_f16::widen(bits, v);
    }
};

EG_DEVICE void store(const eg_cuda_matrix &x, const place &at, const float (&v)[4]) {
    if (x.data == 0) return;
    if (x.dtype == EG_F32)
        return eg_odd_store<eg_odd_f32>(address_of(x, at, 4), eg_odd_f32::round(v), at.lane);
    const uint2 bits = x.dtype == EG_BF16 ? eg_odd_bf16::round(v) : eg_odd_f16::round(v);
    eg_odd_store<eg_odd_16>(address_of(x, at, 2), bits, at.lane);
}

/* v becomes the result. By all lanes of a warp. */
EG_DEVICE void finish_at(const eg_cuda_gemm &p, const place &at, float (&v)[4]) {
    float read[4] = {}, bias[4] = {};
    fetched of_left, of_in, of_bias;
    const eg_cuda_matrix &in = p.accumulate != 0 ? p.out : p.in;
    of_left.fetch(p.left, at, p.rows, p.cols);
    of_in.fetch(in, at, p.rows, p.cols);
    of_bias.fetch(p.bias, {at.item, 0, at.col, at.lane}, 1, p.cols);
    if (at.lane.left > 0) {
        of_left.take(p.left, v);
        of_in.take(in, read);
        of_bias.take(p.bias, bias);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] += bias[i];
    store(p.second, at, v);
    eg_with_terms<four>(p, [&](const auto &finish) EG_INLINE { finish(v, read); });
    store(p.out, at, v);
}

template <typename I> EG_DEVICE void map_fours(const eg_cuda_gemm &p) {
    const I across = (I)((p.cols + 3) / 4), each = (I)p.rows * across, all = (I)p.items * each,
            step = (I)gridDim.x * THREADS;
    const int lane = (int)threadIdx.x % 32;
#pragma unroll 1
    for (I first = (I)blockIdx.x * THREADS + threadIdx.x / 32 * 32; first < all; first += step) {
        const I index = first + lane, item = index / each, row = (index - item * each) / across,
                in_row = index - item * each - row * across;
        const int64_t col = (int64_t)in_row * 4, left = index < all ? p.cols - col : 0;
        float v[4] = {};
        finish_at(
            p, {(int64_t)item, (int64_t)row, col, {left, lane > 0 && in_row > 0, lane < 31 && left > 4}}, v);
    }
}

EG_DEVICE void map_rows(const eg_cuda_gemm &p, const eg_dense_tile &tile, float (&sums)[4]) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t col = tile.col + lane * 4, left = p.cols - col, end = tile.end();
#pragma unroll 1
    for (int64_t row = tile.row + threadIdx.x / 32; row < end; row += WARPS) {
        float v[4] = {};
        finish_at(p, {tile.item, row, col, {left, lane > 0, lane < 31 && left > 4}}, v);
#pragma unroll
        for (int i = 0; i < 4; i++) sums[i] += v[i];
    }
}

/* A warp has `rows` rows beside each other, in as many lanes each. */
template <typename P>
EG_DEVICE void sum_warps(const P &p, int rows, int64_t row_of_sums, int64_t first_col,
                         const float (&sums)[4]) {
    __shared__ float shared[WARPS][COLS];
    const int col = (int)threadIdx.x, beside = 32 / rows;
#pragma unroll
    for (int i = 0; i < 4; i++) shared[threadIdx.x / 32][i * 32 + threadIdx.x % 32] = sums[i];
    __syncthreads();
    if (col < beside * 4 && first_col + col < p.cols) {
        float total = 0;
        for (int i = 0; i < WARPS * rows; i++)
            total += shared[i / rows][col % 4 * 32 + i % rows * beside + col / 4];
        eg_put_column_sum(p, row_of_sums, first_col + col, total);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    eg_map_odd_f32(const __grid_constant__ eg_cuda_gemm p) {
    const int64_t tiles = p.items * p.chunks * ((p.cols + COLS - 1) / COLS);
    eg_let_successor_start();
    eg_wait_for_predecessor();
    if (p.sums == 0) {
        if (p.items * p.rows < (1LL << 30) / p.cols) return map_fours<uint32_t>(p);
        return map_fours<uint64_t>(p); /* where an index could overflow */
    }
    for (int64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const auto at = eg_tile_at<ROWS, COLS, eg_dense_tile>(p, index);
        float sums[4] = {};
        map_rows(p, at, sums);
        sum_warps(p, 1, eg_row_of_sums<ROWS>(p, at), at.col, sums);
    }
}

/* ---- A gradient at a saved matrix ---------------------------------------------------------------------- */

enum { AHEAD = 2 }; /* a thread's rows in flight */

/* How a warp's lanes lie: 32 beside each other, or fewer, in rows that follow each other. */
struct lanes {
    int beside, rows;

    __device__ explicit lanes(int64_t cols) {
        beside = 32;
        while (beside > 1 && beside * 2 >= cols) beside /= 2;
        rows = 32 / beside;
    }
};

/* A thread's four numbers of one matrix, and the bytes from one of its rows to the next. */
struct rows_of {
    char *at;
    int64_t step;
    eg_odd_range range;

    __device__ rows_of(const eg_cuda_act_grad &p, const eg_cuda_matrix &x, int64_t item, int64_t row,
                       int64_t col, int64_t hop, int size)
        : at((char *)x.data + eg_index(x, item, row, col) * size), step(x.row_stride * size * hop),
          range(eg_odd_range_of(x, item, p.rows, p.cols, size)) {}
};

/* Every `hop`th row of `item` from `row` on, `turns` at most; a lane may have one less than others. */
template <typename V>
EG_DEVICE void map_chunk(const eg_cuda_act_grad &p, int64_t item, int64_t row, int64_t col, int64_t hop,
                         int turns, const eg_odd_lane &lane, float (&sums)[4]) {
    const bool reads = p.activation != EG_ACT_NONE, of_y = p.source == EG_SOURCE_Y;
    const int size = (int)sizeof(typename V::one);
    rows_of grad(p, p.grad, item, row, col, hop, size), saved(p, p.saved, item, row, col, hop, size),
        out(p, p.out, item, row, col, hop, size);
#pragma unroll 1
    for (int turn = 0; turn < turns; turn += AHEAD, row += AHEAD * hop) {
        eg_odd_fetched<V> g[AHEAD], s[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (row + i * hop >= p.rows || lane.left <= 0) continue;
            g[i] = eg_odd_fetch<V>(grad.at + i * grad.step, grad.range);
            if (reads) s[i] = eg_odd_fetch<V>(saved.at + i * saved.step, saved.range);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (turn + i >= turns) break;
            const bool there = row + i * hop < p.rows && lane.left > 0;
            float v[4] = {}, from[4] = {};
            if (there) V::widen(g[i].take(), v);
            if (there && reads) V::widen(s[i].take(), from);
            if (reads) eg_act_grad(p.activation, of_y, p.propagate != 0, v, from);
#pragma unroll
            for (int j = 0; j < 4; j++) sums[j] += v[j];
            if (p.out.data == 0) continue;
            eg_odd_store<V>(out.at + i * out.step, V::round(v),
                            {there ? lane.left : 0, lane.follows, lane.leads});
        }
        grad.at += AHEAD * grad.step, saved.at += AHEAD * saved.step, out.at += AHEAD * out.step;
    }
}

template <typename V> EG_DEVICE void map_chunks(const eg_cuda_act_grad &p) {
    const lanes in_warp(p.cols);
    const int lane = (int)threadIdx.x % 32, beside = lane % in_warp.beside;
    const int64_t column_blocks = (p.cols + COLS - 1) / COLS, hop = WARPS * in_warp.rows * p.chunks;
    eg_wait_for_predecessor();
    eg_let_successor_start();
    if (blockIdx.x == 0) eg_clear(p.counts, threadIdx.x, THREADS);
    for (int64_t index = blockIdx.x; index < p.items * p.chunks * column_blocks; index += gridDim.x) {
        const int64_t row_of_sums = index / column_blocks, first_col = index % column_blocks * COLS,
                      item = row_of_sums / p.chunks,
                      first = (row_of_sums % p.chunks * WARPS + threadIdx.x / 32) * in_warp.rows,
                      row = first + lane / in_warp.beside, col = first_col + beside * 4, left = p.cols - col;
        float sums[4] = {};
        map_chunk<V>(p, item, row, col, hop, first < p.rows ? (int)((p.rows - first + hop - 1) / hop) : 0,
                     {left, beside > 0, beside < in_warp.beside - 1 && left > 4}, sums);
        if (p.sums != 0) sum_warps(p, in_warp.rows, row_of_sums, first_col, sums);
    }
}

#define EG_ACT_GRAD(name, vector)                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                            \
        eg_act_grad_odd_##name(const __grid_constant__ eg_cuda_act_grad p) {                                 \
        map_chunks<vector>(p);                                                                               \
    }
EG_ACT_GRAD(bf16, eg_odd_bf16)
EG_ACT_GRAD(f16, eg_odd_f16)
EG_ACT_GRAD(f32, eg_odd_f32)
