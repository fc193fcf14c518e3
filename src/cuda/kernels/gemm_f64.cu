/* SPDX-License-Identifier: Apache-2.0 */
/* The fused product in f64 on the matrix unit, which multiplies and adds in full f64 (every step is an FMA).
 *
 *     a block of 256 threads makes 128 x 128 results, 16 terms at a time
 *
 *     warps   0 1 2 3      each 64 x 32: 4 x 4 tiles of 16 x 8 by mma.sync m16n8k4
 *             4 5 6 7
 *
 * cp.async loads k-blocks of left (128 x 16) and right (16 x 128) into a ring of three stages. They lie there
 * in the direction in which they are contiguous in memory, [row][term] or [term][row], so any stride is the
 * same case. Lines are padded so that 16 lanes, 4 rows by 4 terms, which could conflict, read different
 * banks: 20 and 132 doubles are both 4 modulo 16. */
#include "../layout.h"
#include "epilogue.cuh"
#include "order.cuh"

enum { SIDE = EG_STRIDED_SIDE, TERMS = EG_MMA_F64_DEPTH, THREADS = 256, STAGES = EG_MMA_F64_STAGES };
enum { LINE_TERMS = EG_MMA_F64_LINE, LINE_SIDE = SIDE + 4, COPIES = SIDE * TERMS / THREADS };
enum { OPERAND = EG_MMA_F64_OPERAND, STAGE = 2 * OPERAND }; /* doubles; [term][row] takes less */

/* An operand as a thread copies k-blocks of it: its first number, and the steps to its seven others, along
 * the lines or along the terms. A number outside the matrix is written as 0, and its address is not read. */
struct operand {
    const double *from, *nothing; /* nothing: a valid address, for numbers outside */
    int64_t term_stride, hop;
    int to, to_hop;  /* place in the stage, and steps there */
    int term, lines; /* the thread's term; a bit for each line */
    bool by_term;    /* a stage is [line][term], else [term][line] */
};

/* `base`: of the first term of line 0. */
EG_DEVICE operand operand_of(const eg_cuda_matrix &x, int64_t base, int64_t line_stride, int64_t term_stride,
                             int64_t first, int64_t end) {
    operand s = {};
    const int thread = threadIdx.x;
    s.by_term = term_stride == 1;
    const int line = s.by_term ? thread / TERMS : thread % SIDE;
    s.term = s.by_term ? thread % TERMS : thread / SIDE;
    s.to = s.by_term ? line * LINE_TERMS + s.term : s.term * LINE_SIDE + line;
    s.to_hop = s.by_term ? THREADS / TERMS * LINE_TERMS : THREADS / SIDE * LINE_SIDE;
    s.from = (const double *)x.data + base + (first + line) * line_stride + s.term * term_stride;
    s.nothing = (const double *)x.data;
    s.term_stride = term_stride;
    s.hop = s.by_term ? THREADS / TERMS * line_stride : THREADS / SIDE * term_stride;
    for (int i = 0; i < COPIES; i++) {
        s.lines |= (first + line + (s.by_term ? i * (THREADS / TERMS) : 0) < end) << i;
    }
    return s;
}

EG_DEVICE void copy_async(double *to, const double *from, bool there) {
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    const int bytes = there ? 8 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(address), "l"(from), "r"(bytes));
}

/* `left`: remaining depth, from where `from` points. */
EG_DEVICE void load_k_block(const operand &s, const double *from, int64_t left, double *stage) {
    const int terms = left < TERMS ? (int)left : TERMS;
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        const bool there = s.term + (s.by_term ? 0 : i * (THREADS / SIDE)) < terms && (s.lines >> i & 1);
        copy_async(stage + s.to + i * s.to_hop, there ? from + i * s.hop : s.nothing, there);
    }
}

/* acc (16 x 8) += left (16 x 4) · right (4 x 8). Lane l holds left rows l/4 and l/4 + 8 of term l%4, right
 * term l%4 of column l/4, and results of columns 2 (l%4) and the next in its two rows. */
EG_DEVICE void multiply(double (&acc)[4], double low, double high, double right) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+d"(acc[0]), "+d"(acc[1]), "+d"(acc[2]), "+d"(acc[3])
        : "d"(low), "d"(high), "d"(right));
#else
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(acc[0]), "+d"(acc[1])
        : "d"(low), "d"(right));
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(acc[2]), "+d"(acc[3])
        : "d"(high), "d"(right));
#endif
}

/* What a lane multiplies at once: 4 terms. */
struct fragments {
    double a[4][2], b[4];
    __device__ void read(const double *l, int left_row, const double *r, int right_col) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[i][0] = l[i * 16 * left_row];
            a[i][1] = l[(i * 16 + 8) * left_row];
            b[i] = r[i * 8 * right_col];
        }
    }
};

/* The next fragments are read while these are multiplied. */
EG_DEVICE void multiply_stage(double (&acc)[4][4][4], const double *left, int left_row, int left_term,
                              const double *right, int right_col, int right_term) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const double *l = left + (warp / 4 * 64 + lane / 4) * left_row + lane % 4 * left_term;
    const double *r = right + (warp % 4 * 32 + lane / 4) * right_col + lane % 4 * right_term;
    fragments f[2];
    f[0].read(l, left_row, r, right_col);
#pragma unroll
    for (int t = 0; t < TERMS / 4; t++) {
        if (t + 1 < TERMS / 4)
            f[(t + 1) % 2].read(l + (t + 1) * 4 * left_term, left_row, r + (t + 1) * 4 * right_term,
                                right_col);
        const fragments &now = f[t % 2];
#pragma unroll
        for (int i = 0; i < 16; i++)
            multiply(acc[i / 4][i % 4], now.a[i / 4][0], now.a[i / 4][1], now.b[i % 4]);
    }
}

/* The k-block that is loaded next: some steps ahead of the products. */
struct next_k_block {
    const double *left, *right;
    int64_t term, summand;
};

/* The products of a tile: steps of TERMS, summand after summand, with loads STAGES - 1 steps ahead. */
EG_DEVICE void multiply_tile(const eg_cuda_gemm &p, const eg_tile &at, double (&acc)[4][4][4], double *ring) {
    const operand left =
        operand_of(p.left, eg_left_at(p, at), p.left.row_stride, p.left.col_stride, at.row, at.end());
    const operand right =
        operand_of(p.right, eg_right_at(p, at), p.right.col_stride, p.right.row_stride, at.col, p.cols);
    const int64_t each = (at.depth + TERMS - 1) / TERMS, steps = each * p.summed;
    const int64_t item = p.summed > 1 ? 0 : at.item;
    const int left_row = left.by_term ? LINE_TERMS : 1, left_term = left.by_term ? 1 : LINE_SIDE;
    const int right_col = right.by_term ? LINE_TERMS : 1, right_term = right.by_term ? 1 : LINE_SIDE;
    next_k_block next = {left.from + item * p.left.item_stride, right.from + item * p.right.item_stride, 0,
                         0};
    const auto load = [&](int stage) {
        if (next.summand < p.summed && at.depth > 0) {
            load_k_block(left, next.left, at.depth - next.term, ring + stage * STAGE);
            load_k_block(right, next.right, at.depth - next.term, ring + stage * STAGE + OPERAND);
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
        multiply_stage(acc, ring + stage * STAGE, left_row, left_term, ring + stage * STAGE + OPERAND,
                       right_col, right_term);
    }
    asm volatile("cp.async.wait_group 0;");
    __syncthreads();
}

enum { WIDE = EG_STRIDED_PADDED_SIDE };

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    eg_mma_f64_128x128(const __grid_constant__ eg_cuda_gemm p) {
    extern __shared__ __align__(16) double memory[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    eg_wait_for_predecessor();
    for (int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
        const eg_tile at = eg_tile_at<SIDE, SIDE>(p, index);
        if (at.rows == 0) continue;
        double acc[4][4][4] = {};
        multiply_tile(p, at, acc, memory);
#pragma unroll
        for (int i = 0; i < 64; i++) {
            const int row = warp / 4 * 64 + i / 16 * 16 + i / 2 % 2 * 8 + lane / 4;
            const int col = warp % 4 * 32 + i / 4 % 4 * 8 + lane % 4 * 2 + i % 2;
            memory[row * WIDE + col] = acc[i / 16][i / 4 % 4][i % 4];
        }
        __syncthreads();
        eg_finish_tile<double, SIDE, SIDE, WIDE, THREADS>(p, at, memory);
    }
}
