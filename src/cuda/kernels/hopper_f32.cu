/* SPDX-License-Identifier: Apache-2.0 */
/* The fused product in f32 on the FMA units, where TMA can load the operands: left row-major, right either
 * way.
 *
 *     a block of 128 threads makes 128 x 128 results, a warp 64 x 64, a thread 16 x 8, 32 terms at a time
 *
 *     a warp is 4 x 8 threads: bits 4 and 0 of the lane are the row, bits 1 to 3 the column
 *     a thread's rows are 4 apart; its columns are 8 apart, or, of a row-major right, two quads 32 apart
 *
 * A k-block of left lies in shared memory as in device memory, [row][term]. A thread reads four terms of a
 * row at once, so nothing is transposed, and no thread spends instructions on copies. The lanes that read the
 * same number are i and i ^ 1, or i ^ 2: then the 16 bytes of all lanes take two passes over the banks, not
 * four. TMA swizzles lines of 128 bytes, so that neighbouring rows lie in different banks.
 *
 * An FMA needs two clocks to read three registers; with .reuse it keeps one from the FMA before. So columns
 * are visited to and fro, and consecutive FMAs share an operand. The compiler keeps most of that order. */
#include "../layout.h"
#include "hopper_ring.cuh"

enum { SIDE = EG_HOPPER_F32_SIDE, TERMS = EG_HOPPER_F32_DEPTH, GROUP = 4, THREADS = 128 };
enum { STAGES = EG_HOPPER_F32_STAGES, STAGE = EG_HOPPER_F32_STAGE_BYTES };
enum { LINE_BYTES = TERMS * 4, OPERAND = SIDE * LINE_BYTES, ROW_STEP = 4 };
enum { WIDE = SIDE + 1 }; /* a line of the finished tile: the warp's rows lie in different banks */
using stage_ring = eg_ring<STAGES, STAGE>;
using next_k_block = eg_next_k_block<TERMS>;

/* A line of right is 32 terms of a column, or, RIGHT_ROWS, 128 columns of a term. */
template <bool RIGHT_ROWS> struct thread_tile {
    int row, col; /* the first of the thread's */
    __device__ __forceinline__ thread_tile() {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, across = lane / 2 % 8;
        row = warp / 2 * 64 + lane % 2 + lane / 16 * 2;
        col = warp % 2 * 64 + (RIGHT_ROWS ? across * 4 : across);
    }
    __device__ __forceinline__ int row_of(int i) const { return row + i * ROW_STEP; }
    __device__ __forceinline__ int col_of(int j) const {
        return col + (RIGHT_ROWS ? j / 4 * 32 + j % 4 : j * 8);
    }
    /* Where the quads of group g of a stage begin. Quad q of a line lies at q ^ (line % 8). */
    __device__ __forceinline__ uint32_t left_at(uint32_t stage, int g) const {
        return stage + row * LINE_BYTES + ((g ^ (row % 8)) << 4);
    }
    __device__ __forceinline__ uint32_t right_at(uint32_t stage, int g) const {
        return stage + OPERAND +
               (RIGHT_ROWS ? (g * GROUP * SIDE + col) * 4 : col * LINE_BYTES + ((g ^ (col % 8)) << 4));
    }
};

EG_DEVICE float4 read_quad(uint32_t from) { return *(const float4 *)__cvta_shared_to_generic(from); }

/* Four terms of the thread's row i; `from` is of row 0. */
EG_DEVICE void read_left(uint32_t from, int i, float (&l)[GROUP]) {
    const float4 v = read_quad((from ^ (i % 2 * ROW_STEP << 4)) + i * ROW_STEP * LINE_BYTES);
    l[0] = v.x, l[1] = v.y, l[2] = v.z, l[3] = v.w;
}

/* Four terms of the thread's columns. */
template <bool RIGHT_ROWS> EG_DEVICE void read_right(uint32_t from, float (&r)[GROUP][8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float4 v = read_quad(from + (RIGHT_ROWS ? i / 2 * SIDE * 4 + i % 2 * 128 : i * 8 * LINE_BYTES));
        const float quad[] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; j++) (RIGHT_ROWS ? r[i / 2][i % 2 * 4 + j] : r[j][i]) = quad[j];
    }
}

/* The products of a group of terms. Meanwhile right's numbers of the next group are read, and left's two rows
 * ahead. */
template <bool RIGHT_ROWS>
EG_DEVICE void multiply(float (&acc)[16][8], float (&l)[4][GROUP], const float (&now)[GROUP][8],
                        float (&next)[GROUP][8], uint32_t left, uint32_t next_left, uint32_t next_right) {
    read_right<RIGHT_ROWS>(next_right, next);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        read_left(i + 2 < 16 ? left : next_left, (i + 2) % 16, l[(i + 2) % 4]);
#pragma unroll
        for (int t = 0; t < GROUP; t++) {
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const int j = t % 2 ? 7 - k : k;
                acc[i][j] = fmaf(l[i % 4][t], now[t][j], acc[i][j]);
            }
        }
    }
}

template <bool RIGHT_ROWS>
EG_DEVICE void load_stage(const eg_cuda_hopper &p, const eg_tile &at, next_k_block &next,
                          const stage_ring &ring, uint32_t stage) {
    const uint32_t to = ring.address(stage), full = ring.full(stage);
    eg_barrier_expect(full, STAGE);
    eg_load_box(to, p.left, full, next.term, (int)at.row, next.item_of(p.gemm.left));
    const int x = RIGHT_ROWS ? (int)at.col : next.term, y = RIGHT_ROWS ? next.term : (int)at.col;
    eg_load_box(to + OPERAND, p.right, full, x, y, next.item_of(p.gemm.right));
    next.advance();
}

template <bool RIGHT_ROWS>
EG_DEVICE void multiply_tile(const eg_cuda_hopper &p, const eg_tile &at, const thread_tile<RIGHT_ROWS> &mine,
                             float (&acc)[16][8], stage_ring &ring) {
    next_k_block next(p.gemm, at);
    const int steps = next.left;
    for (int i = 0; i < STAGES && next.left > 0 && threadIdx.x == 0; i++)
        load_stage<RIGHT_ROWS>(p, at, next, ring, i);
    float l[4][GROUP], r[2][GROUP][8];
    ring.wait();
    uint32_t left = mine.left_at(ring.now(), 0), right = mine.right_at(ring.now(), 0);
    read_left(left, 0, l[0]);
    read_left(left, 1, l[1]);
    read_right<RIGHT_ROWS>(right, r[0]);
    for (int step = 1; step <= steps; step++) {
#pragma unroll 1
        for (int g = 0; g < TERMS / GROUP; g += 2) {
            const uint32_t odd_left = mine.left_at(ring.now(), g + 1), odd = mine.right_at(ring.now(), g + 1);
            multiply<RIGHT_ROWS>(acc, l, r[0], r[1], left, odd_left, odd);
            if (g + 2 == TERMS / GROUP) {
                ring.advance();
                if (step < steps) ring.wait();
            }
            const int even = (g + 2) % (TERMS / GROUP);
            left = mine.left_at(ring.now(), even), right = mine.right_at(ring.now(), even);
            multiply<RIGHT_ROWS>(acc, l, r[1], r[0], odd_left, left, right);
            if (g == 2 && threadIdx.x == 0 && step > 1 && next.left > 0) {
                ring.wait_released();
                load_stage<RIGHT_ROWS>(p, at, next, ring, ring.before());
            }
        }
        ring.release();
    }
    __syncthreads();
}

template <bool RIGHT_ROWS> EG_DEVICE void run(const eg_cuda_hopper &p) {
    extern __shared__ __align__(1024) uint8_t memory[];
    const thread_tile<RIGHT_ROWS> mine;
    stage_ring ring(memory, THREADS / 32);
    eg_wait_for_predecessor();
    __syncthreads();
    const eg_tile at = eg_tile_at<SIDE, SIDE>(p.gemm, blockIdx.x);
    if (at.rows == 0) return;
    float acc[16][8] = {};
    multiply_tile(p, at, mine, acc, ring);
    float *tile = (float *)memory;
#pragma unroll
    for (int i = 0; i < 128; i++) tile[mine.row_of(i / 8) * WIDE + mine.col_of(i % 8)] = acc[i / 8][i % 8];
    __syncthreads();
    eg_finish_tile<float, SIDE, SIDE, WIDE, THREADS>(p.gemm, at, tile);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    eg_hopper_f32_nn_128x128(const __grid_constant__ eg_cuda_hopper p) {
    run<true>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    eg_hopper_f32_nt_128x128(const __grid_constant__ eg_cuda_hopper p) {
    run<false>(p);
}
