/* SPDX-License-Identifier: Apache-2.0 */
/* Small tiles in f32 or f64 on the FMA units.
 *
 *     a warp is LANE_ROWS x LANE_COLS threads, and a thread has DEEP x WIDE results
 *
 * Terms are read from shared memory in vectors of 16 bytes: of one line, or of neighbouring lines in one
 * term. Where that leaves warps, they share the terms of a k-block, and their partial tiles are added in
 * their order. */
#ifndef EG_CUDA_SMALL_FMA_CUH
#define EG_CUDA_SMALL_FMA_CUH

#include "small_tile.cuh"

/* A vector of 16 bytes. */
EG_DEVICE void eg_read_vector(const float *from, float (&v)[4]) {
    const float4 x = *(const float4 *)from;
    v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
}
EG_DEVICE void eg_read_vector(const double *from, double (&v)[2]) {
    const double2 x = *(const double2 *)from;
    v[0] = x.x, v[1] = x.y;
}

/* The lines of a thread, of LANES threads beside each other: neighbours where they are read as vectors. */
template <int LANES, int VECTOR> EG_DEVICE int eg_small_line(bool by_term, int lane, int i) {
    return by_term ? lane + LANES * i : (lane + LANES * (i / VECTOR)) * VECTOR + i % VECTOR;
}

/* WARP_ROWS x WARP_COLS warps beside each other, and as many layers of them as there are warps. */
template <typename T, int TILE_ROWS, int TILE_COLS, int LANE_ROWS, int LANE_COLS, int WARP_ROWS,
          int WARP_COLS>
struct small_fma {
    using storage = T;
    using compute = T;
    static constexpr int ROWS = TILE_ROWS, COLS = TILE_COLS, VECTOR = 16 / (int)sizeof(T);
    static constexpr int K_BYTES = EG_SMALL_K_BYTES(ROWS, COLS), TERMS = K_BYTES / (int)sizeof(T);
    using left_type = eg_small_operand<T, ROWS, K_BYTES>;
    using right_type = eg_small_operand<T, COLS, K_BYTES>;
    static constexpr int DEEP = ROWS / WARP_ROWS / LANE_ROWS, WIDE = COLS / WARP_COLS / LANE_COLS;
    static constexpr int LAYERS = EG_SMALL_THREADS / 32 / (WARP_ROWS * WARP_COLS);
    static_assert(LANE_ROWS * LANE_COLS == 32 && DEEP % VECTOR == 0 && WIDE % VECTOR == 0,
                  "whole vectors a thread");
    /* Of a tile with few rows or columns half of its threads' results may be outside. */
    static constexpr bool HALVES_ROWS = LAYERS > 1 && DEEP > WIDE, HALVES_COLS = LAYERS > 1 && WIDE > DEEP;

    T acc[DEEP][WIDE] = {};
    bool left_by_term = false, right_by_term = false;
    const bool half;

    template <class TILE>
    __device__ small_fma(const eg_cuda_gemm &p, const TILE &at)
        : half((HALVES_ROWS && at.rows <= ROWS / 2) || (HALVES_COLS && p.cols - at.col <= COLS / 2)) {}
    static __device__ int warp() { return (int)threadIdx.x / 32 % (WARP_ROWS * WARP_COLS); }
    static __device__ int layer() { return (int)threadIdx.x / 32 / (WARP_ROWS * WARP_COLS); }
    static __device__ int first_row() { return warp() / WARP_COLS * (ROWS / WARP_ROWS); }
    static __device__ int first_col() { return warp() % WARP_COLS * (COLS / WARP_COLS); }
    static __device__ int down() { return (int)threadIdx.x % 32 / LANE_COLS; }
    static __device__ int across() { return (int)threadIdx.x % LANE_COLS; }

    /* VECTOR terms of COUNT lines. */
    template <bool BY_TERM, class O, int LANES, int COUNT>
    static __device__ void read(const T *from, int first, int lane, int term, T (&x)[COUNT][VECTOR]) {
        if constexpr (BY_TERM) {
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                eg_read_vector(from + (first + lane + LANES * i) * O::TERM_PITCH + term, x[i]);
        } else {
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const int group = i / VECTOR, t = i % VECTOR;
                T v[VECTOR];
                eg_read_vector(from + (term + t) * O::LINE_PITCH + first + (lane + LANES * group) * VECTOR,
                               v);
#pragma unroll
                for (int k = 0; k < VECTOR; k++) x[group * VECTOR + k][t] = v[k];
            }
        }
    }

    template <bool LEFT_BY_TERM, bool RIGHT_BY_TERM, int HIGH, int BROAD>
    __device__ void multiply_as(const T *left, const T *right) {
#pragma unroll
        for (int term = 0; term < TERMS; term += VECTOR * LAYERS) {
            T l[HIGH][VECTOR], r[BROAD][VECTOR];
            read<LEFT_BY_TERM, left_type, LANE_ROWS>(left, first_row(), down(), term + layer() * VECTOR, l);
            read<RIGHT_BY_TERM, right_type, LANE_COLS>(right, first_col(), across(), term + layer() * VECTOR,
                                                       r);
#pragma unroll
            for (int t = 0; t < VECTOR; t++) {
#pragma unroll
                for (int i = 0; i < HIGH * BROAD; i++) {
                    const int row = i / BROAD, col = i % BROAD;
                    acc[row][col] = eg_fma(l[row][t], r[col][t], acc[row][col]);
                }
            }
        }
    }
    template <int HIGH, int BROAD> __device__ void multiply_some(const T *left, const T *right) {
        switch (left_by_term * 2 + right_by_term) {
        case 0:
            return multiply_as<false, false, HIGH, BROAD>(left, right);
        case 1:
            return multiply_as<false, true, HIGH, BROAD>(left, right);
        case 2:
            return multiply_as<true, false, HIGH, BROAD>(left, right);
        case 3:
            return multiply_as<true, true, HIGH, BROAD>(left, right);
        }
    }
    __device__ void multiply_stage(bool left_lies_by_term, bool right_lies_by_term, const T *left,
                                   const T *right) {
        left_by_term = left_lies_by_term, right_by_term = right_lies_by_term;
        if ((HALVES_ROWS || HALVES_COLS) && half)
            return multiply_some < HALVES_ROWS ? DEEP / 2 : DEEP,
                   HALVES_COLS ? WIDE / 2 : WIDE > (left, right);
        multiply_some<DEEP, WIDE>(left, right);
    }

    template <int LD> __device__ void put(T *tile) const {
        T *to = tile + layer() * ROWS * LD;
#pragma unroll
        for (int i = 0; i < DEEP * WIDE; i++) {
            const int row = eg_small_line<LANE_ROWS, VECTOR>(left_by_term, down(), i / WIDE),
                      col = eg_small_line<LANE_COLS, VECTOR>(right_by_term, across(), i % WIDE);
            to[(first_row() + row) * LD + first_col() + col] = acc[i / WIDE][i % WIDE];
        }
        eg_small_add_layers<T, ROWS, COLS, LD, LAYERS>(tile);
    }
};

#endif
