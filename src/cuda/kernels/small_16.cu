/* SPDX-License-Identifier: Apache-2.0 */
/* Small tiles of 16-bit matrices by mma.sync: each warp makes 16 x 16 or 32 x 32 of the tile. ldmatrix, which
 * can transpose, makes the same fragments of k-blocks that lie in either direction. */
#include "small_tile.cuh"

/* WARP_ROWS x WARP_COLS warps beside each other, and as many layers of them as there are warps: those
 * share the terms of a k-block, and their partial tiles are added in their order. */
template <bool BF16, int TILE_ROWS, int TILE_COLS, int WARP_ROWS, int WARP_COLS> struct small_mma {
    using storage = uint16_t;
    using compute = float;
    static constexpr int ROWS = TILE_ROWS, COLS = TILE_COLS;
    static constexpr int K_BYTES = EG_SMALL_K_BYTES(ROWS, COLS), TERMS = K_BYTES / 2;
    using left_type = eg_small_operand<uint16_t, ROWS, K_BYTES>;
    using right_type = eg_small_operand<uint16_t, COLS, K_BYTES>;
    static constexpr int DEEP = ROWS / WARP_ROWS / 16,
                         WIDE = COLS / WARP_COLS / 16; /* blocks of 16 of a warp */
    static constexpr int LAYERS = EG_SMALL_THREADS / 32 / (WARP_ROWS * WARP_COLS);
    static_assert(TERMS % (16 * LAYERS) == 0, "every warp has terms");
    float acc[DEEP][WIDE * 2][4] = {};

    template <class TILE> __device__ small_mma(const eg_cuda_gemm &, const TILE &) {}
    static __device__ int layer() { return (int)threadIdx.x / 32 / (WARP_ROWS * WARP_COLS); }
    static __device__ int row() { return (int)threadIdx.x / 32 / WARP_COLS % WARP_ROWS * (ROWS / WARP_ROWS); }
    static __device__ int col() { return (int)threadIdx.x / 32 % WARP_COLS * (COLS / WARP_COLS); }

    /* Four blocks of 8 lines by 8 terms, from (line, term) on: first along the lines, then along the terms.
     */
    template <bool BY_TERM, class O>
    static __device__ void read_blocks(const uint16_t *from, int line, int term, uint32_t (&r)[4]) {
        const int lane = (int)threadIdx.x % 32;
        const int at = BY_TERM ? (line + lane % 16) * O::TERM_PITCH + term + lane / 16 * 8
                               : (term + lane / 16 * 8 + lane % 8) * O::LINE_PITCH + line + lane / 8 % 2 * 8;
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

    /* sums (16 x 8) += left (16 x 16) · right (16 x 8). */
    static __device__ void multiply(float (&sums)[4], const uint32_t (&left)[4], uint32_t low,
                                    uint32_t high) {
        if (BF16) {
            asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                "{%8, %9}, {%0, %1, %2, %3};"
                : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(low), "r"(high));
        } else {
            asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                "{%8, %9}, {%0, %1, %2, %3};"
                : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(low), "r"(high));
        }
    }

    template <bool LEFT_BY_TERM, bool RIGHT_BY_TERM>
    __device__ void multiply_as(const uint16_t *left, const uint16_t *right) {
#pragma unroll
        for (int at = 0; at < TERMS; at += 16 * LAYERS) {
            const int term = at + layer() * 16;
            uint32_t l[DEEP][4],
                r[WIDE][4]; /* r: two tiles of columns; the first terms of both, then the others */
#pragma unroll
            for (int i = 0; i < DEEP; i++)
                read_blocks<LEFT_BY_TERM, left_type>(left, row() + i * 16, term, l[i]);
#pragma unroll
            for (int i = 0; i < WIDE; i++)
                read_blocks<RIGHT_BY_TERM, right_type>(right, col() + i * 16, term, r[i]);
#pragma unroll
            for (int i = 0; i < DEEP * WIDE * 2; i++) {
                const int down = i / (WIDE * 2), across = i % (WIDE * 2);
                multiply(acc[down][across], l[down], r[across / 2][across % 2],
                         r[across / 2][across % 2 + 2]);
            }
        }
    }
    __device__ void multiply_stage(bool left_by_term, bool right_by_term, const uint16_t *left,
                                   const uint16_t *right) {
        switch (left_by_term * 2 + right_by_term) {
        case 0:
            return multiply_as<false, false>(left, right);
        case 1:
            return multiply_as<false, true>(left, right);
        case 2:
            return multiply_as<true, false>(left, right);
        case 3:
            return multiply_as<true, true>(left, right);
        }
    }

    /* Two neighbours at once. */
    template <int LD> __device__ void put(float *tile) const {
        const int lane = (int)threadIdx.x % 32;
        float *to = tile + layer() * ROWS * LD;
#pragma unroll
        for (int i = 0; i < DEEP * WIDE * 4; i++) {
            const int down = i / (WIDE * 4), across = i / 2 % (WIDE * 2), half = i % 2;
            const int to_row = row() + down * 16 + half * 8 + lane / 4,
                      to_col = col() + across * 8 + lane % 4 * 2;
            const float *from = acc[down][across] + half * 2;
            *(float2 *)(to + to_row * LD + to_col) = make_float2(from[0], from[1]);
        }
        eg_small_add_layers<float, ROWS, COLS, LD, LAYERS>(tile);
    }
};

EG_SMALL_ENTRY(mma_bf16_16x64, small_mma<true, 16, 64, 1, 1>)
EG_SMALL_ENTRY(mma_bf16_64x16, small_mma<true, 64, 16, 1, 1>)
EG_SMALL_ENTRY(mma_bf16_64x64, small_mma<true, 64, 64, 2, 2>)
EG_SMALL_ENTRY(mma_f16_16x64, small_mma<false, 16, 64, 1, 1>)
EG_SMALL_ENTRY(mma_f16_64x16, small_mma<false, 64, 16, 1, 1>)
EG_SMALL_ENTRY(mma_f16_64x64, small_mma<false, 64, 64, 2, 2>)
EG_SMALL_GROUPED_ENTRY(mma_bf16_grouped_16x64, small_mma<true, 16, 64, 1, 1>)
EG_SMALL_GROUPED_ENTRY(mma_bf16_grouped_64x64, small_mma<true, 64, 64, 2, 2>)
EG_SMALL_GROUPED_ENTRY(mma_f16_grouped_16x64, small_mma<false, 16, 64, 1, 1>)
EG_SMALL_GROUPED_ENTRY(mma_f16_grouped_64x64, small_mma<false, 64, 64, 2, 2>)
