/* SPDX-License-Identifier: Apache-2.0 */
/* Tall and skinny products of f32: few terms and few columns. As in tall.cuh it is a wait for memory and a
 * launch, but no vector of 16 bytes is needed: neighbouring lanes read neighbouring numbers, wherever rows
 * begin, and all that a thread reads is on its way at once.
 *
 *     right    all of it, by term             shared memory, of which a lane takes two columns
 *     left     a warp's four rows, by term    shared memory, of which all lanes take the same four numbers
 *     in       two columns of four rows       registers
 *
 * A warp reads three lines of shared memory for eight multiply-adds a lane.
 */
#ifndef EG_CUDA_TALL_FMA_CUH
#define EG_CUDA_TALL_FMA_CUH

#include "tall_tile.cuh"

enum {
    EG_TALL_WARPS = EG_TALL_THREADS / 32,
    EG_TALL_EACH = EG_TALL_ROWS / EG_TALL_WARPS, /* rows of a warp */
    EG_TALL_RIGHT_LD = EG_TALL_COLS + 2 /* so that two lanes, not 32, meet in a bank where terms are lines */
};

struct eg_tall_fma_memory {
    union {
        struct {
            float right[EG_TALL_F32_TERMS * EG_TALL_RIGHT_LD];
            float4 left[EG_TALL_WARPS][EG_TALL_F32_TERMS]; /* of each term, the warp's rows */
        } operands;
        float tile[EG_TALL_ROWS * EG_TALL_LD];
    };
    float bias[EG_TALL_COLS];
};

/* Two neighbours of each of a warp's rows: a warp writes whole lines. */
struct eg_tall_fma_place {
    int row, col;
    __device__ int row_of(int pair) const { return row + pair; }
    __device__ int col_of(int) const { return col; }
};

/* Each warp takes every eighth line. 0 past the columns, which are multiplied as well. */
EG_DEVICE void eg_tall_fma_right(const eg_cuda_gemm &p, int64_t item, float *to) {
    enum { LINES = 64 / EG_TALL_WARPS };
    static_assert(EG_TALL_F32_TERMS == 64 && EG_TALL_COLS == 64, "a line is two numbers a lane");
    const bool by_term = p.right.row_stride == 1;
    const int lines = (int)(by_term ? p.cols : p.depth), length = (int)(by_term ? p.depth : p.cols),
              lane = (int)threadIdx.x % 32, first = (int)threadIdx.x / 32;
    const int64_t pitch = by_term ? p.right.col_stride : p.right.row_stride;
    const float *const from = (const float *)p.right.data + item * p.right.item_stride;
    float v[LINES][2];
#pragma unroll
    for (int i = 0; i < LINES; i++) {
        const int line = first + i * EG_TALL_WARPS;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = lane + half * 32;
            v[i][half] = line < lines && at < length ? from[line * pitch + at] : 0;
        }
    }
#pragma unroll
    for (int i = 0; i < LINES; i++) {
        const int line = first + i * EG_TALL_WARPS;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = lane + half * 32;
            to[by_term ? at * EG_TALL_RIGHT_LD + line : line * EG_TALL_RIGHT_LD + at] = v[i][half];
        }
    }
}

/* The warp's rows; 0 where there is none. */
EG_DEVICE void eg_tall_fma_left(const eg_cuda_gemm &p, const eg_dense_tile &tile, int row, float4 *to) {
    static_assert(EG_TALL_EACH == 4, "a vector");
    const int lane = (int)threadIdx.x % 32;
    const float *const from =
        (const float *)p.left.data + tile.item * p.left.item_stride + (tile.row + row) * p.left.row_stride;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int term = lane + half * 32;
        float v[EG_TALL_EACH];
#pragma unroll
        for (int i = 0; i < EG_TALL_EACH; i++)
            v[i] = row + i < tile.rows && term < p.depth ? from[i * p.left.row_stride + term] : 0;
        to[term] = make_float4(v[0], v[1], v[2], v[3]);
    }
}

EG_DEVICE void eg_tall_fma_read(const eg_cuda_gemm &p, const eg_dense_tile &tile, const eg_tall_fma_place &at,
                                float (&in)[8]) {
    const float *const from =
        (const float *)p.in.data + tile.item * p.in.item_stride + tile.row * p.in.row_stride;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int row = at.row_of(i / 2), col = at.col_of(i / 2) + i % 2;
        if (p.in.data != 0 && row < tile.rows && col < p.cols) in[i] = from[row * p.in.row_stride + col];
    }
}

/* Terms past the depth are 0 in both operands: eight at a time leave none over. */
EG_DEVICE void eg_tall_fma_products(const eg_tall_fma_memory &memory, int depth, float (&v)[8]) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const float *const right = memory.operands.right + lane * 2;
    const float4 *const left = memory.operands.left[warp];
#pragma unroll 8
    for (int term = 0; term < (depth + 7) / 8 * 8; term++) {
        const float4 l = left[term];
        const float2 r = *(const float2 *)(right + term * EG_TALL_RIGHT_LD);
        v[0] += l.x * r.x, v[1] += l.x * r.y;
        v[2] += l.y * r.x, v[3] += l.y * r.y;
        v[4] += l.z * r.x, v[5] += l.z * r.y;
        v[6] += l.w * r.x, v[7] += l.w * r.y;
    }
}

EG_DEVICE void eg_tall_fma_run(const eg_cuda_gemm &p) {
    __shared__ __align__(16) eg_tall_fma_memory memory;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const eg_tall_fma_place place = {warp * EG_TALL_EACH, lane * 2};
    int64_t item = -1; /* whose right operand is there */
    eg_let_successor_start();
    eg_wait_for_predecessor();
    for (int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
        const eg_dense_tile at = eg_tall_tile(p, index);
        float v[8] = {}, in[8] = {};
        eg_tall_fma_left(p, at, place.row, memory.operands.left[warp]);
        if (at.item != item) eg_tall_fma_right(p, at.item, memory.operands.right);
        item = p.sums == 0 ? at.item : -1; /* sums go where it lies */
        eg_tall_fma_read(p, at, place, in);
        eg_tall_load_bias(p, at, memory.bias);
        __syncthreads();
        eg_tall_fma_products(memory, (int)p.depth, v);
        eg_tall_finish(p, at, memory.bias, place, in, v);
        if (p.sums != 0) eg_tall_sum(p, at, memory.tile, place, v);
        __syncthreads();
    }
}

#endif
