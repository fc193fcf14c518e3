/* SPDX-License-Identifier: Apache-2.0 */
/* The fused product in f32 on the FMA units.
 *
 *     a block of 128 threads makes 128 x 128 results, a thread 16 x 8 of them, 16 terms at a time:
 *     for each term it reads 16 numbers of left and 8 of right from shared memory, and does 128 FMAs
 *
 *     a warp is 4 x 8 threads, each with four quads of rows, 32 apart, and two of columns, 64 apart; bits 4
 *     and 0 of the lane are the row, so that lanes that read the same are neighbours: the 16 bytes of all
 *     lanes are then two passes over the banks, not four
 *
 * cp.async loads k-blocks into a ring of stages, where they lie term by term. Where neighbours in memory are
 * neighbours in the tile it copies 16 bytes at once, else number by number, which transposes them. A line has
 * 132 numbers: then 8 terms of 4 rows, as a warp writes them, lie in different banks. */
#include "../layout.h"
#include "epilogue.cuh"
#include "order.cuh"

enum { SIDE = EG_STRIDED_SIDE, TERMS = EG_FMA_F32_DEPTH, THREADS = 128, STAGES = EG_FMA_F32_STAGES };
enum { LINE = EG_STRIDED_PADDED_SIDE, OPERAND = EG_FMA_F32_OPERAND };
enum { LINES_AT_ONCE = THREADS / 8, TERMS_AT_ONCE = THREADS / 32 }; /* of the two ways to copy a k-block */

/* An operand as a thread copies k-blocks of it: its first number, the steps to its others, and which of them
 * the matrix has. A number outside the matrix is written as 0, and its address is not read. */
struct operand {
    const float *from, *nothing;    /* nothing: a valid address, for numbers outside */
    int64_t term_stride, hop, leap; /* elements from term to term, and from copy to copy */
    int to, term;                   /* where the first one lies in the stage, and its term */
    int lines;                      /* numbers of a vector that the matrix has; or a bit for each line */
    bool vector;                    /* four lines lie side by side, on 16 bytes */
};

/* `base`: of the first term of line 0. */
EG_DEVICE operand operand_of(const eg_cuda_matrix &x, int64_t base, int64_t line_stride, int64_t term_stride,
                             int64_t first, int64_t end) {
    operand s = {};
    const int thread = threadIdx.x;
    s.vector = eg_vectors(x, line_stride, term_stride) && end % 4 == 0 && /* whole vectors, or none */
               (base + first * line_stride) % 4 == 0;
    s.nothing = (const float *)x.data;
    const int line = s.vector ? thread % 32 * 4 : thread / 8;
    s.term = s.vector ? thread / 32 : thread % 8; /* a warp: one term, or 8 terms of 4 lines */
    s.to = s.term * LINE + line;
    s.from = (const float *)x.data + base + (first + line) * line_stride + s.term * term_stride;
    s.term_stride = term_stride;
    s.hop = LINES_AT_ONCE * line_stride;
    s.leap = (s.vector ? TERMS_AT_ONCE : 8) * term_stride;
    const int64_t left = end - first - line;
    if (s.vector) s.lines = left < 0 ? 0 : (left < 4 ? (int)left : 4);
    for (int i = 0; i < SIDE / LINES_AT_ONCE && !s.vector; i++) s.lines |= (left > i * LINES_AT_ONCE) << i;
    return s;
}

template <int BYTES> EG_DEVICE void copy_async(float *to, const float *from, int bytes) {
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(BYTES),
                 "r"(bytes));
}

/* `left`: remaining depth, from where `from` points. */
EG_DEVICE void load_k_block(const operand &s, const float *from, int64_t left, float *stage) {
    float *to = stage + s.to;
    const int terms = left < TERMS ? (int)left : TERMS;
    if (s.vector) {
#pragma unroll
        for (int t = 0; t < TERMS; t += TERMS_AT_ONCE, from += s.leap) {
            const int bytes = s.term + t < terms ? s.lines * 4 : 0;
            copy_async<16>(to + t * LINE, bytes > 0 ? from : s.nothing, bytes);
        }
        return;
    }
#pragma unroll
    for (int t = 0; t < TERMS; t += 8, from += s.leap) {
        const float *line = from;
#pragma unroll
        for (int i = 0; i < SIDE / LINES_AT_ONCE; i++, line += s.hop) {
            const bool there = s.term + t < terms && (s.lines >> i & 1);
            copy_async<4>(to + t * LINE + i * LINES_AT_ONCE, there ? line : s.nothing, there ? 4 : 0);
        }
    }
}

/* The first of the thread's rows and columns. */
struct thread_tile {
    int row, col;
};
EG_DEVICE thread_tile tile_of_thread() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int down = lane % 2 + lane / 16 * 2, across = lane / 2 % 8;
    return {warp / 2 * 16 + down * 4, warp % 2 * 32 + across * 4};
}

/* COUNT quads, STEP apart. */
template <int COUNT, int STEP> EG_DEVICE void read_quads(const float *line, float (&v)[COUNT * 4]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const float4 quad = *(const float4 *)(line + i * STEP);
        v[i * 4] = quad.x, v[i * 4 + 1] = quad.y, v[i * 4 + 2] = quad.z, v[i * 4 + 3] = quad.w;
    }
}

/* The numbers of the next term are read while those of this one are multiplied. Columns are visited to and
 * fro, so that every FMA shares an operand with the one before. Reading three registers takes two clocks. */
EG_DEVICE void multiply_stage(float (&acc)[16][8], const float *left, const float *right) {
    float l[2][16], r[2][8];
    read_quads<4, 32>(left, l[0]);
    read_quads<2, 64>(right, r[0]);
#pragma unroll
    for (int t = 0; t < TERMS; t++) {
        if (t + 1 < TERMS) {
            read_quads<4, 32>(left + (t + 1) * LINE, l[(t + 1) % 2]);
            read_quads<2, 64>(right + (t + 1) * LINE, r[(t + 1) % 2]);
        }
#pragma unroll
        for (int i = 0; i < 128; i++) {
            const int row = i / 8, col = row % 2 ? 7 - i % 8 : i % 8;
            acc[row][col] = fmaf(l[t % 2][row], r[t % 2][col], acc[row][col]);
        }
    }
}

/* The k-block that is loaded next: some steps ahead of the products. */
struct next_k_block {
    const float *left, *right;
    int64_t term, summand;
};

EG_DEVICE void multiply_tile(const eg_cuda_gemm &p, const eg_tile &at, const thread_tile &mine,
                             float (&acc)[16][8], float *ring) {
    const operand left =
        operand_of(p.left, eg_left_at(p, at), p.left.row_stride, p.left.col_stride, at.row, at.end());
    const operand right =
        operand_of(p.right, eg_right_at(p, at), p.right.col_stride, p.right.row_stride, at.col, p.cols);
    const int64_t each = (at.depth + TERMS - 1) / TERMS, steps = each * p.summed;
    const int64_t item = p.summed > 1 ? 0 : at.item;
    next_k_block next = {left.from + item * p.left.item_stride, right.from + item * p.right.item_stride, 0,
                         0};
    const auto load = [&](int stage) {
        if (next.summand < p.summed && at.depth > 0) {
            load_k_block(left, next.left, at.depth - next.term, ring + stage * 2 * OPERAND);
            load_k_block(right, next.right, at.depth - next.term, ring + stage * 2 * OPERAND + OPERAND);
            next.term += TERMS;
            next.left += TERMS * left.term_stride;
            next.right += TERMS * right.term_stride;
            if (next.term >= at.depth) {
                next.term = 0;
                next.summand++;
                next.left = left.from + next.summand * p.left.item_stride;
                next.right = right.from + next.summand * p.right.item_stride;
            }
        }
        asm volatile("cp.async.commit_group;");
    };
    for (int i = 0; i < STAGES - 1; i++) load(i);
    int stage = 0;
    for (int64_t step = 0; step < steps; step++, stage = stage + 1 == STAGES ? 0 : stage + 1) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        load(stage == 0 ? STAGES - 1 : stage - 1);
        const float *from = ring + stage * 2 * OPERAND;
        multiply_stage(acc, from + mine.row, from + OPERAND + mine.col);
    }
    asm volatile("cp.async.wait_group 0;");
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    eg_fma_f32_128x128(const __grid_constant__ eg_cuda_gemm p) {
    extern __shared__ __align__(16) float memory[];
    const thread_tile mine = tile_of_thread();
    eg_wait_for_predecessor();
    for (int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
        const eg_tile at = eg_tile_at<SIDE, SIDE>(p, index);
        if (at.rows == 0) continue;
        float acc[16][8] = {};
        multiply_tile(p, at, mine, acc, memory);
#pragma unroll
        for (int i = 0; i < 32; i++) { /* four neighbours at once */
            const int row = mine.row + i / 2 % 4 + i / 8 * 32, col = mine.col + i % 2 * 64;
            const float *from = acc[i / 2] + i % 2 * 4;
            *(float4 *)(memory + row * LINE + col) = make_float4(from[0], from[1], from[2], from[3]);
        }
        __syncthreads();
        eg_finish_tile<float, SIDE, SIDE, LINE, THREADS>(p, at, memory);
    }
}
