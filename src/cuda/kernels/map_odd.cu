/* SPDX-License-Identifier: Apache-2.0 */
/* Maps of rows that begin anywhere: every epilogue of map.cu, of any types. A lane takes four neighbours, one
 * four after the other; with sums a warp takes 128 columns of a row.
 *
 * The warps' sums are added in order. The activation is chosen for the numbers of a lane, inside the loop:
 * loads and stores are long, and with a copy of them for each activation a kernel took minutes to compile. */
#include "epilogue.cuh"
#include "odd_vectors.cuh"
#include "order.cuh"
#include "vector_epilogue.cuh"

enum { COLS = 128, WARPS = 8, THREADS = 32 * WARPS, BLOCKS = 3 };

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

EG_DEVICE void sum_warps(const eg_cuda_gemm &p, int64_t row_of_sums, int64_t first_col,
                         const float (&sums)[4]) {
    __shared__ float shared[WARPS][COLS];
    const int col = (int)threadIdx.x;
#pragma unroll
    for (int i = 0; i < 4; i++) shared[threadIdx.x / 32][i * 32 + threadIdx.x % 32] = sums[i];
    __syncthreads();
    if (col < COLS && first_col + col < p.cols) {
        float total = 0;
        for (int i = 0; i < WARPS; i++) total += shared[i][col % 4 * 32 + col / 4];
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
        sum_warps(p, eg_row_of_sums<ROWS>(p, at), at.col, sums);
    }
}
