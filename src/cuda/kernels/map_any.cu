/* SPDX-License-Identifier: Apache-2.0 */
/* Every map and every epilogue of map.cu, for rows or columns of any strides and types: those that are not
 * vectors of 16 bytes.
 *
 *     a block of 8 warps takes 32 rows of 128 columns, a thread four numbers at a time, in four turns:
 *
 *         result in rows:     a warp 128 numbers of a row, a lane every 32nd of them
 *         result in columns:  a warp 32 rows of four columns, a lane a row
 *
 * So what a warp reads and writes at once is dense, and all of it is on its way before it is used. For column
 * sums the numbers wait in shared memory, and each column is added by one thread. */
#include "epilogue.cuh"
#include "order.cuh"
#include "vector_epilogue.cuh"

enum { ROWS = 32, COLS = 128, WARPS = 8, THREADS = 32 * WARPS, TURNS = ROWS / WARPS };
static_assert(COLS == TURNS * 4 * WARPS, "as many turns in columns as in rows");

/* Four numbers of the compute type, which eg_with_terms works on. */
template <typename T> struct four {
    typedef T real;
    enum { COUNT = 4 };
};

/* A thread's way over a matrix. Addresses and steps in bytes: what is computed here once is not in the loop,
 * whose instructions a small map waits for more than for its numbers. */
struct walk {
    uint64_t at; /* of the first of four numbers; 0: there is no matrix */
    int64_t step, turn;
    int32_t dtype;
};

/* The thread's first number, and how many of the four are there. */
struct lane {
    int64_t row, col;
    bool down; /* the result is in columns */

    __device__ lane(const eg_cuda_gemm &p, const eg_tile &at) {
        const eg_cuda_matrix &lead = p.out.data != 0 ? p.out : p.in;
        const int in_warp = threadIdx.x % 32, warp = threadIdx.x / 32;
        down = lead.row_stride == 1 && lead.col_stride != 1;
        row = at.row + (down ? in_warp : warp);
        col = at.col + (down ? warp * 4 : in_warp);
    }
    __device__ void turn() { (down ? col : row) += down ? 4 * WARPS : WARPS; }
    __device__ int count(const eg_cuda_gemm &p, int64_t end) const {
        const int64_t left = row < end ? p.cols - col : 0, each = down ? 1 : 32;
        return left <= 0 ? 0 : left > 3 * each ? 4 : (int)((left + each - 1) / each);
    }
    __device__ walk over(const eg_cuda_matrix &x, int64_t item) const {
        const int64_t size = x.dtype == EG_F64 ? 8 : x.dtype == EG_F32 ? 4 : 2;
        const int64_t col_step = x.col_stride * size, row_step = x.row_stride * size;
        if (x.data == 0) return {0, 0, 0, x.dtype};
        return {x.data + item * x.item_stride * size + row * row_step + col * col_step,
                (down ? 1 : 32) * col_step, down ? 4 * WARPS * col_step : WARPS * row_step, x.dtype};
    }
    /* The bias is the same for all rows of an item. */
    __device__ walk over_bias(eg_cuda_matrix x, int64_t item) const {
        x.row_stride = 0;
        return over(x, item);
    }
};

template <typename S> EG_DEVICE void fetch(const walk &x, int count, S (&v)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = i < count ? *(const S *)(x.at + i * x.step) : (S)0;
}

/* 0 where there is nothing. */
EG_DEVICE void take(walk &x, int count, double (&v)[4]) {
    fetch(x, x.at != 0 ? count : 0, v);
    x.at += x.turn;
}
EG_DEVICE void take(walk &x, int count, float (&v)[4]) {
    if (x.dtype == EG_F32 || x.at == 0) {
        fetch(x, x.at != 0 ? count : 0, v);
    } else {
        uint16_t bits[4];
        fetch(x, count, bits);
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = x.dtype == EG_BF16 ? eg_widen_bf16(bits[i]) : eg_widen_f16(bits[i]);
    }
    x.at += x.turn;
}

template <typename S, typename T>
EG_DEVICE void store(const walk &x, int count, const T (&v)[4], S (*round)(T)) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i < count) *(S *)(x.at + i * x.step) = round(v[i]);
    }
}
EG_DEVICE double as_it_is(double x) { return x; }
EG_DEVICE float as_it_is(float x) { return x; }
EG_DEVICE void put(walk &x, int count, const double (&v)[4]) {
    if (x.at != 0) store<double, double>(x, count, v, as_it_is);
    x.at += x.turn;
}
EG_DEVICE void put(walk &x, int count, const float (&v)[4]) {
    if (x.at == 0) return;
    if (x.dtype == EG_F32) store<float, float>(x, count, v, as_it_is);
    if (x.dtype == EG_BF16) store<uint16_t, float>(x, count, v, eg_round_bf16);
    if (x.dtype == EG_F16) store<uint16_t, float>(x, count, v, eg_round_f16);
    x.at += x.turn;
}

template <typename T, typename F>
EG_DEVICE void map_tile(const eg_cuda_gemm &p, const eg_tile &at, const F &finish, T (*numbers)[COLS + 1]) {
    lane first(p, at);
    walk left = first.over(p.left, at.item), in = first.over(p.in, at.item),
         bias = first.over_bias(p.bias, at.item), second = first.over(p.second, at.item),
         out = first.over(p.out, at.item);
    const int across = first.down ? 1 : 32;
    if (!first.down) bias.turn = 0;
#pragma unroll 1
    for (int turn = 0; turn < TURNS; turn++, first.turn()) {
        const int count = first.count(p, at.end());
        T v[4], read[4], added[4];
        if (count == 0 && p.sums == 0) break; /* nor is there any after it */
        take(left, count, v);
        take(in, count, read);
        take(bias, count, added);
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] += added[i];
        put(second, count, v);
        finish(v, read);
        put(out, count, v);
        if (p.sums == 0) continue;
#pragma unroll
        for (int i = 0; i < 4; i++)
            numbers[first.row - at.row][first.col - at.col + i * across] = i < count ? v[i] : (T)0;
    }
}

template <typename T>
EG_DEVICE void sum_columns(const eg_cuda_gemm &p, const eg_tile &at, const T (*numbers)[COLS + 1]) {
    const int col = threadIdx.x;
    __syncthreads();
    if (col < COLS && at.col + col < p.cols) {
        T even = 0, odd = 0;
#pragma unroll
        for (int row = 0; row < ROWS; row += 2) even += numbers[row][col], odd += numbers[row + 1][col];
        eg_put_column_sum(p, eg_row_of_sums<ROWS>(p, at), at.col + col, even + odd);
    }
    __syncthreads();
}

template <typename T> EG_DEVICE void run(const eg_cuda_gemm &p) {
    __shared__ T numbers[ROWS][COLS + 1];
    eg_let_successor_start();
    eg_wait_for_predecessor();
    for (int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
        const eg_tile at = eg_tile_at<ROWS, COLS>(p, index);
        if (at.rows == 0) continue;
        eg_with_terms<four<T>>(p, [&](const auto &finish) { map_tile<T>(p, at, finish, numbers); });
        if (p.sums != 0) sum_columns<T>(p, at, numbers);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    eg_map_any_f32(const __grid_constant__ eg_cuda_gemm p) {
    run<float>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    eg_map_any_f64(const __grid_constant__ eg_cuda_gemm p) {
    run<double>(p);
}
