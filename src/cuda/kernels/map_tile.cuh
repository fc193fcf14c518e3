/* SPDX-License-Identifier: Apache-2.0 */
/* Every epilogue, on a tile of rows or columns of any strides and types.
 *
 *     8 warps take 32 rows of 128 columns, a thread four numbers at a time, in four turns:
 *
 *         result in rows:     a warp every eighth of the rows, a lane every 32nd of 128 columns
 *         result in columns:  a lane a row, a warp every eighth of 32 groups of four columns
 *
 * So what a warp reads and writes at once is dense, and all of it is on its way before it is used. For column
 * sums the numbers wait in shared memory, and each column is added by one thread. */
#ifndef EG_CUDA_MAP_TILE_CUH
#define EG_CUDA_MAP_TILE_CUH

#include "epilogue.cuh"
#include "vector_epilogue.cuh"

enum {
    EG_MAP_ROWS = 32,
    EG_MAP_COLS = 128,
    EG_MAP_LD = EG_MAP_COLS + 1,
    EG_MAP_WARPS = 8,
    EG_MAP_THREADS = 32 * EG_MAP_WARPS,
    EG_MAP_TURNS = EG_MAP_ROWS / EG_MAP_WARPS
};
static_assert(EG_MAP_COLS == EG_MAP_TURNS * 4 * EG_MAP_WARPS, "as many turns in columns as in rows");

/* Four numbers of the compute type, which eg_with_terms works on. */
template <typename T> struct eg_map_four {
    typedef T real;
    enum { COUNT = 4 };
};

/* Whether results lie in columns. */
EG_DEVICE bool eg_map_is_down(const eg_cuda_gemm &p) {
    const eg_cuda_matrix &lead = p.out.data != 0 ? p.out : p.in;
    return lead.row_stride == 1 && lead.col_stride != 1;
}

/* A thread's way over a matrix. Addresses and steps in bytes: what is computed here once is not in the loop,
 * whose instructions a small map waits for more than for its numbers. */
struct eg_map_walk {
    uint64_t at; /* of the first of four numbers; 0: there is no matrix */
    int64_t step, turn;
    int32_t dtype;
};

/* The thread's first number, and how many of the four are there. */
struct eg_map_lane {
    int row, col; /* in the tile */
    int64_t rows, cols;
    bool down;

    __device__ eg_map_lane(const eg_cuda_gemm &p, const eg_tile &at) {
        const int in_warp = threadIdx.x % 32, warp = threadIdx.x / 32;
        down = eg_map_is_down(p);
        row = down ? in_warp : warp;
        col = down ? warp * 4 : in_warp;
        rows = at.rows, cols = p.cols - at.col;
    }
    __device__ int across() const { return down ? 1 : 32; }
    __device__ void turn() { (down ? col : row) += down ? 4 * EG_MAP_WARPS : EG_MAP_WARPS; }
    __device__ int count() const {
        const int64_t left = row < rows ? cols - col : 0, each = across();
        return left <= 0 ? 0 : left > 3 * each ? 4 : (int)((left + each - 1) / each);
    }
    __device__ eg_map_walk over(const eg_cuda_matrix &x, const eg_tile &tile) const {
        const int64_t size = x.dtype == EG_F64 ? 8 : x.dtype == EG_F32 ? 4 : 2;
        const int64_t col_step = x.col_stride * size, row_step = x.row_stride * size;
        if (x.data == 0) return {0, 0, 0, x.dtype};
        return {x.data + tile.item * x.item_stride * size + (tile.row + row) * row_step +
                    (tile.col + col) * col_step,
                across() * col_step, EG_MAP_WARPS * (down ? 4 * col_step : row_step), x.dtype};
    }
    /* The bias is the same for all rows of an item. */
    __device__ eg_map_walk over_bias(eg_cuda_matrix x, const eg_tile &tile) const {
        x.row_stride = 0;
        return over(x, tile);
    }
};

template <typename S> EG_DEVICE void eg_map_fetch(const eg_map_walk &x, int count, S (&v)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = i < count ? *(const S *)(x.at + i * x.step) : (S)0;
}

/* 0 where there is nothing. */
EG_DEVICE void eg_map_take(eg_map_walk &x, int count, double (&v)[4]) {
    eg_map_fetch(x, x.at != 0 ? count : 0, v);
    x.at += x.turn;
}
EG_DEVICE void eg_map_take(eg_map_walk &x, int count, float (&v)[4]) {
    if (x.dtype == EG_F32 || x.at == 0) {
        eg_map_fetch(x, x.at != 0 ? count : 0, v);
    } else {
        uint16_t bits[4];
        eg_map_fetch(x, count, bits);
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = x.dtype == EG_BF16 ? eg_widen_bf16(bits[i]) : eg_widen_f16(bits[i]);
    }
    x.at += x.turn;
}

template <typename S, typename T>
EG_DEVICE void eg_map_store(const eg_map_walk &x, int count, const T (&v)[4], S (*round)(T)) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i < count) *(S *)(x.at + i * x.step) = round(v[i]);
    }
}
EG_DEVICE double eg_map_as_it_is(double x) { return x; }
EG_DEVICE float eg_map_as_it_is(float x) { return x; }
EG_DEVICE void eg_map_put(eg_map_walk &x, int count, const double (&v)[4]) {
    if (x.at != 0) eg_map_store<double, double>(x, count, v, eg_map_as_it_is);
    x.at += x.turn;
}
EG_DEVICE void eg_map_put(eg_map_walk &x, int count, const float (&v)[4]) {
    if (x.at == 0) return;
    if (x.dtype == EG_F32) eg_map_store<float, float>(x, count, v, eg_map_as_it_is);
    if (x.dtype == EG_BF16) eg_map_store<uint16_t, float>(x, count, v, eg_round_bf16);
    if (x.dtype == EG_F16) eg_map_store<uint16_t, float>(x, count, v, eg_round_f16);
    x.at += x.turn;
}

/* Of the thread's first four numbers: a kernel that does something else first loads it before that. */
template <typename T>
EG_DEVICE void eg_map_load_bias(const eg_cuda_gemm &p, const eg_tile &at, T (&bias)[4]) {
    const eg_map_lane first(p, at);
    eg_map_walk walk = first.over_bias(p.bias, at);
    eg_map_take(walk, first.count(), bias);
}

/* HELD: each thread has left its values in `numbers`, where else they are those of p.left, and `added` is the
 * bias of the first ones. */
template <bool HELD, typename T, typename F>
EG_DEVICE void eg_map_numbers(const eg_cuda_gemm &p, const eg_tile &at, const F &finish, T (&added)[4],
                              T (*numbers)[EG_MAP_LD]) {
    eg_map_lane lane(p, at);
    eg_map_walk left = HELD ? eg_map_walk{} : lane.over(p.left, at),
                in = lane.over(p.accumulate ? p.out : p.in, at), bias = lane.over_bias(p.bias, at),
                second = lane.over(p.second, at), out = lane.over(p.out, at);
    const int across = lane.across();
    if (!lane.down) bias.turn = 0;
#pragma unroll 1
    for (int turn = 0; turn < EG_MAP_TURNS; turn++, lane.turn()) {
        const int count = lane.count();
        T *const own = &numbers[lane.row][lane.col];
        T v[4], read[4];
        if (count == 0 && p.sums == 0) break; /* nor is there any after it */
        if (!HELD) eg_map_take(left, count, v);
        eg_map_take(in, count, read);
        if (!HELD || lane.down) eg_map_take(bias, count, added);
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = (HELD ? own[i * across] : v[i]) + added[i];
        eg_map_put(second, count, v);
        finish(v, read);
        eg_map_put(out, count, v);
        if (p.sums == 0) continue;
#pragma unroll
        for (int i = 0; i < 4; i++) own[i * across] = i < count ? v[i] : (T)0;
    }
}

template <typename T>
EG_DEVICE void eg_map_sums(const eg_cuda_gemm &p, const eg_tile &at, const T (*numbers)[EG_MAP_LD]) {
    const int col = threadIdx.x;
    __syncthreads();
    if (col < EG_MAP_COLS && at.col + col < p.cols) {
        T even = 0, odd = 0;
#pragma unroll
        for (int row = 0; row < EG_MAP_ROWS; row += 2)
            even += numbers[row][col], odd += numbers[row + 1][col];
        eg_put_column_sum(p, eg_row_of_sums<EG_MAP_ROWS>(p, at), at.col + col, even + odd);
    }
    __syncthreads();
}

/* By all threads of a block. */
template <bool HELD, typename T>
EG_DEVICE void eg_map_tile(const eg_cuda_gemm &p, const eg_tile &at, T (&added)[4], T (*numbers)[EG_MAP_LD]) {
    eg_with_terms<eg_map_four<T>>(
        p, [&](const auto &finish) { eg_map_numbers<HELD>(p, at, finish, added, numbers); });
    if (p.sums != 0) eg_map_sums<T>(p, at, numbers);
}

#endif
