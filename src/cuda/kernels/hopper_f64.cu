/* SPDX-License-Identifier: Apache-2.0 */
/* The fused product in f64 on the matrix unit, where TMA can load the operands: left row-major, right either
 * way.
 *
 *     a block of 128 threads makes 128 x 64 results, a warp 64 x 32, 16 terms at a time; two blocks share a
 *     multiprocessor, so that the epilogue of one overlaps with the products of the other
 *
 * The instruction is mma.sync m16n8k8. Its 16 lines are columns of right, and its 8 columns are rows of left.
 * It takes lines in pairs (l, l + 8) from neighbouring registers, and terms in pairs (t, t + 4). Which
 * columns and terms these are may be chosen: here neighbours in memory, so that one read of 16 bytes brings a
 * pair, of terms along a row of left, of columns along a row of right. A column-major right is read number by
 * number.
 *
 * K-blocks lie in shared memory as in device memory, in lines of 128 bytes, 16 numbers each. TMA puts pair q
 * of a line at q ^ (line % 8). Rows go to lanes 0, 4, 1, 5, ...: then neighbouring rows share no bank. */
#include "../layout.h"
#include "hopper_ring.cuh"

enum { ROWS = EG_HOPPER_F64_ROWS, COLS = EG_HOPPER_F64_COLS, TERMS = EG_HOPPER_F64_DEPTH, THREADS = 128 };
enum { STAGES = EG_HOPPER_F64_STAGES, STAGE = EG_HOPPER_F64_STAGE_BYTES };
enum { LINE_BYTES = TERMS * 8, LEFT = ROWS * LINE_BYTES };
enum { BOX = TERMS * 16 * 8 }; /* 16 columns of a row-major right */
enum { WIDE = COLS + 4 };      /* of the finished tile */
using stage_ring = eg_ring<STAGES, STAGE>;
using next_k_block = eg_next_k_block<TERMS>;

template <bool RIGHT_ROWS> struct warp_tile {
    int row, col;         /* the first of the warp's */
    int lane, turned;     /* turned: the lane's row of eight */
    uint32_t left, right; /* where it reads in a stage: the first half of the terms */
    __device__ __forceinline__ warp_tile() {
        const int warp = threadIdx.x / 32;
        lane = threadIdx.x % 32, turned = lane / 4 % 2 * 4 + lane / 8;
        row = warp / 2 * 64, col = warp % 2 * 32;
        const int pair = lane % 4;
        left = (row + turned) * LINE_BYTES + ((pair ^ turned) << 4);
        right = LEFT + (RIGHT_ROWS ? col / 16 * BOX + pair * 2 * LINE_BYTES + ((lane / 4 ^ pair * 2) << 4)
                                   : (col + turned) * LINE_BYTES + ((pair ^ turned) << 4));
    }
    /* Of acc[i][j][e]: of eight rows, in the order of the lanes, this one has number 2 (lane % 4) and the
     * next. */
    __device__ __forceinline__ int row_of(int j, int e) const { return row + j * 8 + e % 2 * 4 + lane % 4; }
    __device__ __forceinline__ int col_of(int i, int e) const {
        return col + i * 16 + (RIGHT_ROWS ? lane / 4 * 2 + e / 2 : turned + e / 2 * 8);
    }
};

EG_DEVICE void read_pair(uint32_t from, double (&v)[2]) {
    asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];" : "=d"(v[0]), "=d"(v[1]) : "r"(from));
}
/* Volatile, or the compiler reads two neighbours at once and needs more instructions to move them apart. */
EG_DEVICE double read_number(uint32_t from) {
    double v;
    asm volatile("ld.volatile.shared.f64 %0, [%1];" : "=d"(v) : "r"(from));
    return v;
}

/* What a lane multiplies at once: 8 terms of 8 rows and of 2 times 2 columns. */
struct fragments {
    double left[8][2], right[2][2][2]; /* right: [16 columns][term][column] */

    template <bool RIGHT_ROWS>
    __device__ __forceinline__ void read(const warp_tile<RIGHT_ROWS> &at, uint32_t stage, int half) {
        const uint32_t l = stage + (at.left ^ half << 6);
        const uint32_t r = stage + (RIGHT_ROWS ? at.right + half * 8 * LINE_BYTES : at.right ^ half << 6);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int term = i % 2;
            if (RIGHT_ROWS) { /* the next line, whose pairs are swapped */
                read_pair((r ^ term << 4) + term * LINE_BYTES + i / 2 * BOX, right[i / 2][term]);
            } else {
                right[i / 2][term][0] = read_number(r + term * 8 + i / 2 * 16 * LINE_BYTES);
                right[i / 2][term][1] = read_number(r + term * 8 + (i / 2 * 16 + 8) * LINE_BYTES);
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) read_pair(l + i * 8 * LINE_BYTES, left[i]);
    }
};

EG_DEVICE void multiply(double (&acc)[2][8][4], const fragments &f) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
        double(&to)[4] = acc[i % 2][i / 2];
        const double(&r)[2][2] = f.right[i % 2], (&l)[2] = f.left[i / 2];
        asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+d"(to[0]), "+d"(to[1]), "+d"(to[2]), "+d"(to[3])
            : "d"(r[0][0]), "d"(r[0][1]), "d"(r[1][0]), "d"(r[1][1]), "d"(l[0]), "d"(l[1]));
    }
}

/* By one lane of each warp, which loads its share of the TMA boxes. */
template <bool RIGHT_ROWS>
EG_DEVICE void load_stage(const eg_cuda_hopper &p, const eg_tile &at, next_k_block &next,
                          const stage_ring &ring, uint32_t stage) {
    const uint32_t to = ring.address(stage), full = ring.full(stage);
    const int warp = threadIdx.x / 32, col = (int)at.col, item = next.item_of(p.gemm.right);
    if (warp == 0) {
        eg_barrier_expect(full, STAGE);
        eg_load_box(to, p.left, full, next.term, (int)at.row, next.item_of(p.gemm.left));
    }
    if (RIGHT_ROWS) {
        eg_load_box(to + LEFT + warp * BOX, p.right, full, col + warp * 16, next.term, item);
    } else if (warp == 1) {
        eg_load_box(to + LEFT, p.right, full, next.term, col, item);
    }
    next.advance();
}

template <bool RIGHT_ROWS>
EG_DEVICE void multiply_tile(const eg_cuda_hopper &p, const eg_tile &at, const warp_tile<RIGHT_ROWS> &mine,
                             double (&acc)[2][8][4], stage_ring &ring) {
    next_k_block next(p.gemm, at);
    const int steps = next.left;
    for (int i = 0; i < STAGES && next.left > 0 && mine.lane == 0; i++)
        load_stage<RIGHT_ROWS>(p, at, next, ring, i);
    fragments f[2];
    ring.wait();
    f[0].read(mine, ring.now(), 0);
#pragma unroll 1
    for (int step = 1; step <= steps; step++) {
        f[1].read(mine, ring.now(), 1);
        if (mine.lane == 0 && step > 1 && next.left > 0) {
            ring.wait_released();
            load_stage<RIGHT_ROWS>(p, at, next, ring, ring.before());
        }
        __syncwarp();
        multiply(acc, f[0]);
        ring.advance();
        if (step < steps) {
            ring.wait();
            f[0].read(mine, ring.now(), 0);
        }
        multiply(acc, f[1]);
        ring.release();
    }
    __syncthreads();
}

template <bool RIGHT_ROWS> EG_DEVICE void run(const eg_cuda_hopper &p) {
    extern __shared__ __align__(1024) uint8_t memory[];
    const warp_tile<RIGHT_ROWS> mine;
    stage_ring ring(memory, THREADS / 32);
    eg_wait_for_predecessor();
    __syncthreads();
    const eg_tile at = eg_tile_at<ROWS, COLS>(p.gemm, blockIdx.x);
    if (at.rows == 0) return;
    double acc[2][8][4] = {};
    multiply_tile(p, at, mine, acc, ring);
    double *tile = (double *)memory;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        const int e = i % 4, row = mine.row_of(i / 4 % 8, e), col = mine.col_of(i / 32, e);
        tile[row * WIDE + col] = acc[i / 32][i / 4 % 8][e];
    }
    __syncthreads();
    eg_finish_tile<double, ROWS, COLS, WIDE, THREADS>(p.gemm, at, tile);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    eg_hopper_f64_nn_128x64(const __grid_constant__ eg_cuda_hopper p) {
    run<true>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    eg_hopper_f64_nt_128x64(const __grid_constant__ eg_cuda_hopper p) {
    run<false>(p);
}
