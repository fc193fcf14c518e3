/* SPDX-License-Identifier: Apache-2.0 */
/* The fused product of 16-bit matrices by mma.sync, for devices before Hopper and for operands that TMA does
 * not take: any strides, any alignment.
 *
 *     a block of 256 threads makes 128 x 128 results, 32 terms at a time
 *
 *     warps   0 1 2 3      each 64 x 32: 4 x 4 tiles of 16 x 8 by mma.sync m16n8k16
 *             4 5 6 7
 *
 * cp.async loads k-blocks of left (128 x 32) and right (32 x 128) into a ring of four stages. They lie there
 * in the direction in which they are contiguous in memory, [line][term] or [term][line]. ldmatrix, which can
 * transpose, makes the same fragments of both. Lines are padded so that the eight rows of a block lie in
 * different banks: 40 and 136 numbers are 20 and 68 words, and multiples of those by 0 to 7 differ by at
 * least four modulo 32. Operands that are not in vectors of 16 bytes are loaded number by number. */
#include "../layout.h"
#include "epilogue.cuh"
#include "order.cuh"

enum { SIDE = EG_STRIDED_SIDE, TERMS = EG_MMA_16_DEPTH, THREADS = 256, STAGES = EG_MMA_16_STAGES };
enum { LINE_TERMS = EG_MMA_16_LINE, LINE_SIDE = SIDE + 8, WIDE = EG_STRIDED_PADDED_SIDE };
enum { OPERAND = EG_MMA_16_OPERAND, STAGE = 2 * OPERAND }; /* numbers; [term][line] takes less */

/* ---- K-blocks ------------------------------------------------------------------------------------------ */

/* An operand as a block loads it: lines are the rows of left or the columns of right. */
struct operand {
    const uint16_t *from; /* line 0 of the tile, term 0 */
    int64_t line_stride, term_stride;
    int lines;    /* that there are, of SIDE */
    bool by_term; /* a stage is [line][term], else [term][line] */
    bool vectors; /* neighbours in that direction are 16 bytes of memory */
};

/* `base`: of the first term of line 0. */
EG_DEVICE operand operand_of(const eg_cuda_matrix &x, int64_t base, int64_t line_stride, int64_t term_stride,
                             int64_t first, int64_t end) {
    operand s = {(const uint16_t *)x.data + base + first * line_stride, line_stride, term_stride};
    s.lines = end - first < SIDE ? (int)(end - first) : SIDE;
    s.by_term = term_stride == 1;
    const int64_t along = s.by_term ? term_stride : line_stride,
                  other = s.by_term ? line_stride : term_stride;
    s.vectors = along == 1 && other % 8 == 0 && x.item_stride % 8 == 0 && (uint64_t)s.from % 16 == 0;
    return s;
}

/* Copies 16 bytes, or writes zeros. */
EG_DEVICE void copy_async(uint16_t *to, const uint16_t *from, bool there) {
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    const int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes));
}

EG_DEVICE int between(int low, int64_t x, int high) { return x < low ? low : (x > high ? high : (int)x); }

/* `terms`: remaining depth, from where `from` points. */
EG_DEVICE void load_k_block(const operand &s, const uint16_t *from, int64_t terms, uint16_t *stage) {
    constexpr int VECTORS = SIDE * TERMS / 8 / THREADS;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int v = threadIdx.x + i * THREADS;
        const int line = s.by_term ? v / (TERMS / 8) : v % (SIDE / 8) * 8;
        const int term = s.by_term ? v % (TERMS / 8) * 8 : v / (SIDE / 8);
        const int there = s.by_term ? (line < s.lines ? between(0, terms - term, 8) : 0)
                                    : (term < terms ? between(0, s.lines - line, 8) : 0);
        uint16_t *to = stage + (s.by_term ? line * LINE_TERMS + term : term * LINE_SIDE + line);
        const uint16_t *at = from + line * s.line_stride + term * s.term_stride;
        if (s.vectors && there % 8 == 0) {
            copy_async(to, there > 0 ? at : s.from, there > 0);
            continue;
        }
        const int64_t step = s.by_term ? s.term_stride : s.line_stride;
        uint16_t numbers[8];
#pragma unroll
        for (int j = 0; j < 8; j++) numbers[j] = j < there ? at[j * step] : 0;
#pragma unroll
        for (int j = 0; j < 8; j++) to[j] = numbers[j];
    }
}

/* ---- Products ---------------------------------------------------------------------------------------- */

/* Four blocks of 8 lines by 8 terms, from (line, term) on: first along the lines, then along the terms. */
template <bool BY_TERM>
EG_DEVICE void read_blocks(const uint16_t *from, int line, int term, uint32_t (&r)[4]) {
    const int lane = threadIdx.x % 32;
    const int at = BY_TERM ? (line + lane % 16) * LINE_TERMS + term + lane / 16 * 8
                           : (term + lane / 16 * 8 + lane % 8) * LINE_SIDE + line + lane / 8 % 2 * 8;
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(from + at);
    if (BY_TERM) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
    }
}

/* acc (16 x 8) += left (16 x 16) · right (16 x 8). */
template <bool BF16>
EG_DEVICE void multiply(float (&acc)[4], const uint32_t (&left)[4], uint32_t right_low, uint32_t right_high) {
    if (BF16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
            "%9}, "
            "{%0, %1, %2, %3};"
            : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_low), "r"(right_high));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_low), "r"(right_high));
    }
}

template <bool BF16, bool LEFT_BY_TERM, bool RIGHT_BY_TERM>
EG_DEVICE void multiply_stage(float (&acc)[4][4][4], const uint16_t *left, const uint16_t *right) {
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int term = 0; term < TERMS; term += 16) {
        uint32_t l[4][4],
            r[2][4]; /* r: two tiles of columns; the first terms of both, then the second terms */
#pragma unroll
        for (int i = 0; i < 4; i++) read_blocks<LEFT_BY_TERM>(left, warp / 4 * 64 + i * 16, term, l[i]);
#pragma unroll
        for (int i = 0; i < 2; i++) read_blocks<RIGHT_BY_TERM>(right, warp % 4 * 32 + i * 16, term, r[i]);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int col = i % 4;
            multiply<BF16>(acc[i / 4][col], l[i / 4], r[col / 2][col % 2], r[col / 2][col % 2 + 2]);
        }
    }
}

template <bool BF16>
EG_DEVICE void multiply_stage(float (&acc)[4][4][4], const operand &left, const operand &right,
                              const uint16_t *stage) {
    switch (left.by_term * 2 + right.by_term) {
    case 0:
        return multiply_stage<BF16, false, false>(acc, stage, stage + OPERAND);
    case 1:
        return multiply_stage<BF16, false, true>(acc, stage, stage + OPERAND);
    case 2:
        return multiply_stage<BF16, true, false>(acc, stage, stage + OPERAND);
    case 3:
        return multiply_stage<BF16, true, true>(acc, stage, stage + OPERAND);
    }
}

/* ---- A tile ------------------------------------------------------------------------------------------ */

/* The k-block that is loaded next: some steps ahead of the products. */
struct next_k_block {
    int64_t item, term, summand;
};

/* The products of a tile: steps of TERMS, summand after summand, with loads STAGES - 1 steps ahead. */
template <bool BF16>
EG_DEVICE void multiply_tile(const eg_cuda_gemm &p, const eg_tile &at, float (&acc)[4][4][4],
                             uint16_t *ring) {
    const operand left =
        operand_of(p.left, eg_left_at(p, at), p.left.row_stride, p.left.col_stride, at.row, at.end());
    const operand right =
        operand_of(p.right, eg_right_at(p, at), p.right.col_stride, p.right.row_stride, at.col, p.cols);
    const int64_t steps = (at.depth + TERMS - 1) / TERMS * p.summed;
    next_k_block next = {p.summed > 1 ? 0 : at.item, 0, 0};
    const auto load = [&](int stage) {
        if (next.summand < p.summed && at.depth > 0) {
            const uint16_t *l = left.from + next.item * p.left.item_stride + next.term * left.term_stride;
            const uint16_t *r = right.from + next.item * p.right.item_stride + next.term * right.term_stride;
            load_k_block(left, l, at.depth - next.term, ring + stage * STAGE);
            load_k_block(right, r, at.depth - next.term, ring + stage * STAGE + OPERAND);
            next.term += TERMS;
            if (next.term >= at.depth) next.term = 0, next.summand++, next.item++;
        }
        asm volatile("cp.async.commit_group;");
    };
    for (int i = 0; i < STAGES - 1; i++) load(i);
    int stage = 0;
    for (int64_t step = 0; step < steps; step++, stage = (stage + 1) % STAGES) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        load((stage + STAGES - 1) % STAGES);
        multiply_stage<BF16>(acc, left, right, ring + stage * STAGE);
    }
    asm volatile("cp.async.wait_group 0;");
    __syncthreads();
}

template <bool BF16> EG_DEVICE void run(const eg_cuda_gemm &p) {
    extern __shared__ __align__(16) uint8_t memory[];
    float *tile = (float *)memory;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    eg_wait_for_predecessor();
    for (int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
        const eg_tile at = eg_tile_at<SIDE, SIDE>(p, index);
        if (at.rows == 0) continue;
        float acc[4][4][4] = {};
        multiply_tile<BF16>(p, at, acc, (uint16_t *)memory);
#pragma unroll
        for (int i = 0; i < 32; i++) { /* two neighbours at once */
            const int row = warp / 4 * 64 + i / 8 * 16 + i % 2 * 8 + lane / 4;
            const int col = warp % 4 * 32 + i / 2 % 4 * 8 + lane % 4 * 2;
            const float *from = acc[i / 8][i / 2 % 4] + i % 2 * 2;
            *(float2 *)(tile + row * WIDE + col) = make_float2(from[0], from[1]);
        }
        __syncthreads();
        eg_finish_tile<float, SIDE, SIDE, WIDE, THREADS>(p, at, tile);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    eg_mma_bf16_128x128(const __grid_constant__ eg_cuda_gemm p) {
    run<true>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    eg_mma_f16_128x128(const __grid_constant__ eg_cuda_gemm p) {
    run<false>(p);
}
