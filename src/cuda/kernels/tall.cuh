/* SPDX-License-Identifier: Apache-2.0 */
/* Tall and skinny products of 16-bit numbers: few terms and few columns, of which all of right is in shared
 * memory. Such a product is a wait for memory and a launch, whatever the length of its rows: those of left,
 * of the result and of what the epilogue reads have no gap, or a small one, so that 32 of them are one span
 * that begins on 16 bytes. Spans are copied as they lie, all at once; only reading them in shared memory
 * knows rows.
 *
 *     left     32 rows, pitch and all    raw bytes -> fragments of mma.sync, word by word
 *     right    all of it                 raw bytes -> fragments, once for the block -> registers
 *     in       32 rows                   raw bytes -> the epilogue
 *
 * A warp makes 16 rows of 16 columns: warps are many, for each waits for itself most of the time. The
 * epilogue takes four numbers of the span of the result at a time, which may be of two rows. */
#ifndef EG_CUDA_TALL_CUH
#define EG_CUDA_TALL_CUH

#include "../skinny.h"
#include "epilogue.cuh"
#include "order.cuh"
#include "vector_epilogue.cuh"

enum {
    EG_TALL_STEPS = EG_TALL_PITCH / 16,
    EG_TALL_LD = EG_TALL_COLS + 8, /* of the finished tile */
    EG_TALL_LEFT = EG_TALL_ROWS * EG_TALL_PITCH * 2 + 16,
    EG_TALL_RIGHT = EG_TALL_PITCH * EG_TALL_COLS * 2 + 16
};

struct eg_tall_memory {
    union {
        struct {
            unsigned char left[EG_TALL_LEFT], right[EG_TALL_RIGHT];
        } operands;
        float tile[EG_TALL_ROWS * EG_TALL_LD];
    };
    uint2 right[EG_TALL_STEPS][EG_TALL_COLS / 8][32]; /* fragments of 16 terms and 8 columns, by lane */
    uint16_t in[EG_TALL_ROWS * EG_TALL_COLS];
    float bias[EG_TALL_COLS];
};

/* Copies a span that begins on 16 bytes; zeros up to the end of its last vector. */
EG_DEVICE void eg_tall_copy(void *to, uint64_t from, int bytes) {
    const uint32_t place = eg_shared_address(to);
#pragma unroll 1
    for (int at = (int)threadIdx.x * 16; at < bytes; at += EG_TALL_THREADS * 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place + at), "l"(from + at),
                     "r"(min(16, bytes - at)));
    }
}

/* The numbers `index` and the one after it. */
EG_DEVICE uint32_t eg_tall_pair(const unsigned char *from, int index) {
    const uint32_t *word = (const uint32_t *)from + index / 2;
    return __funnelshift_r(word[0], word[1], index % 2 * 16);
}
/* The same of two lines. */
EG_DEVICE uint32_t eg_tall_across(const unsigned char *from, int index, int pitch) {
    const uint16_t *x = (const uint16_t *)from + index;
    return x[0] | (uint32_t)x[pitch] << 16;
}
/* Which of two terms from `term` on are there. */
EG_DEVICE uint32_t eg_tall_mask(int term, int depth) {
    return term + 1 < depth ? 0xffffffffU : term < depth ? 0xffffU : 0;
}

template <bool BF16>
EG_DEVICE void eg_tall_multiply(float (&sums)[4], const uint32_t (&l)[4], uint32_t low, uint32_t high) {
    if (BF16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(l[0]), "r"(l[1]), "r"(l[2]), "r"(l[3]), "r"(low), "r"(high));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(l[0]), "r"(l[1]), "r"(l[2]), "r"(l[3]), "r"(low), "r"(high));
    }
}

/* Terms past the depth are 0 in both operands: what lies there may be NaN. Each warp makes the fragments of
 * eight columns. */
EG_DEVICE void eg_tall_arrange(const eg_cuda_gemm &p, eg_tall_memory &memory) {
    const int lane = (int)threadIdx.x % 32, eight = (int)threadIdx.x / 32, depth = (int)p.depth;
    const unsigned char *const right = memory.operands.right;
    const bool by_term = p.right.row_stride == 1;
    const int pitch = (int)(by_term ? p.right.col_stride : p.right.row_stride), col = eight * 8 + lane / 4;
    static_assert(EG_TALL_THREADS / 32 == EG_TALL_COLS / 8, "a warp for eight columns");
    if (eight * 8 >= p.cols) return;
#pragma unroll 1
    for (int step = 0; step * 16 < depth; step++) {
        const int term = step * 16 + lane % 4 * 2;
        uint2 r;
        if (by_term) {
            r = make_uint2(eg_tall_pair(right, col * pitch + term),
                           eg_tall_pair(right, col * pitch + term + 8));
        } else {
            r = make_uint2(eg_tall_across(right, term * pitch + col, pitch),
                           eg_tall_across(right, (term + 8) * pitch + col, pitch));
        }
        memory.right[step][eight][lane] =
            make_uint2(r.x & eg_tall_mask(term, depth), r.y & eg_tall_mask(term + 8, depth));
    }
}

/* The warp's 16 rows of 16 columns. */
template <bool BF16>
EG_DEVICE void eg_tall_products(const eg_cuda_gemm &p, const eg_tall_memory &memory, int row, int col,
                                float (&acc)[2][4]) {
    const int lane = (int)threadIdx.x % 32, depth = (int)p.depth, pitch = (int)p.left.row_stride;
    const unsigned char *const left = memory.operands.left;
    const int line = (row + lane / 4) * pitch;
    const bool both = col + 8 < p.cols;
#pragma unroll 1
    for (int step = 0; step * 16 < depth; step++) {
        const int term = step * 16 + lane % 4 * 2, at = line + term, below = at + 8 * pitch;
        const uint32_t low = eg_tall_mask(term, depth), high = eg_tall_mask(term + 8, depth);
        const uint32_t l[4] = {eg_tall_pair(left, at) & low, eg_tall_pair(left, below) & low,
                               eg_tall_pair(left, at + 8) & high, eg_tall_pair(left, below + 8) & high};
        const uint2 first = memory.right[step][col / 8][lane];
        eg_tall_multiply<BF16>(acc[0], l, first.x, first.y);
        if (!both) continue;
        const uint2 second = memory.right[step][col / 8 + 1][lane];
        eg_tall_multiply<BF16>(acc[1], l, second.x, second.y);
    }
}

struct eg_tall_four {
    typedef float real;
    enum { COUNT = 4 };
};

/* Numbers of a span: four, or what is left of it. */
EG_DEVICE void eg_tall_put(const eg_cuda_matrix &x, int64_t index, int count, const float (&v)[4]) {
    if (count == 4) return eg_store4(x, index, v);
    eg_store_some(x, index, 1, count, v);
}

template <bool BF16>
EG_DEVICE void eg_tall_finish(const eg_cuda_gemm &p, const eg_dense_tile &at, eg_tall_memory &memory) {
    const int cols = (int)p.cols, all = at.rows * cols;
    const float scale = (float)p.scale;
    const int64_t begin = at.row * cols;
#pragma unroll 1
    for (int first = (int)threadIdx.x * 4; first < all; first += EG_TALL_THREADS * 4) {
        const int count = min(4, all - first);
        int row = first / cols, col = first - row * cols, place[4];
        float v[4], in[4] = {};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            place[i] = row * EG_TALL_LD + col;
            v[i] = i < count ? memory.tile[place[i]] * scale + memory.bias[col] : 0;
            if (++col == cols) col = 0, row++;
        }
        if (p.in.data != 0) {
            const uint2 q = *(const uint2 *)&memory.in[first];
            const uint32_t bits[2] = {q.x, q.y};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t number = bits[i / 2] >> i % 2 * 16 & 0xffffU;
                in[i] = BF16 ? eg_widen_bf16(number) : eg_widen_f16((uint16_t)number);
            }
        }
        if (p.second.data != 0)
            eg_tall_put(p.second, at.item * p.second.item_stride + begin + first, count, v);
        eg_with_terms<eg_tall_four>(p, [&](const auto &terms) EG_INLINE { terms(v, in); });
        if (p.out.data != 0) eg_tall_put(p.out, at.item * p.out.item_stride + begin + first, count, v);
        if (p.sums == 0) continue;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i < count) memory.tile[place[i]] = v[i];
        }
    }
}

template <bool BF16> EG_DEVICE void eg_tall_run(const eg_cuda_gemm &p) {
    __shared__ __align__(16) eg_tall_memory memory;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int warp_row = warp / (EG_TALL_COLS / 16) * 16, warp_col = warp % (EG_TALL_COLS / 16) * 16;
    static_assert(EG_TALL_THREADS / 32 == EG_TALL_ROWS / 16 * (EG_TALL_COLS / 16), "a warp for 16 x 16");
    const int lines = (int)(p.right.row_stride == 1 ? p.cols : p.depth),
              line = (int)(p.right.row_stride == 1 ? p.depth : p.cols),
              pitch = (int)(p.right.row_stride == 1 ? p.right.col_stride : p.right.row_stride);
    eg_let_successor_start();
    eg_wait_for_predecessor();
    for (int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
        const auto at = eg_tile_at<EG_TALL_ROWS, EG_TALL_COLS, eg_dense_tile>(p, index);
        eg_tall_copy(memory.operands.left,
                     p.left.data + (at.item * p.left.item_stride + at.row * p.left.row_stride) * 2,
                     (int)((at.rows - 1) * p.left.row_stride + p.depth) * 2);
        eg_tall_copy(memory.operands.right, p.right.data + at.item * p.right.item_stride * 2,
                     ((lines - 1) * pitch + line) * 2);
        if (p.in.data != 0)
            eg_tall_copy(memory.in, p.in.data + (at.item * p.in.item_stride + at.row * p.cols) * 2,
                         at.rows * (int)p.cols * 2);
        if ((int)threadIdx.x < EG_TALL_COLS) {
            float bias = 0;
            if (p.bias.data != 0 && (int)threadIdx.x < p.cols)
                eg_load(p.bias, eg_index(p.bias, at.item, 0, (int)threadIdx.x), bias);
            memory.bias[threadIdx.x] = bias;
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        eg_tall_arrange(p, memory);
        __syncthreads();
        float acc[2][4] = {};
        if (warp_col < p.cols) eg_tall_products<BF16>(p, memory, warp_row, warp_col, acc);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = warp_row + i % 2 * 8 + lane / 4, col = warp_col + i / 2 * 8 + lane % 4 * 2;
            const float *const from = acc[i / 2] + i % 2 * 2;
            const bool there = row < at.rows; /* rows outside are added to the sums */
            *(float2 *)&memory.tile[row * EG_TALL_LD + col] =
                make_float2(there ? from[0] : 0, there ? from[1] : 0);
        }
        __syncthreads();
        eg_tall_finish<BF16>(p, at, memory);
        __syncthreads();
        if (p.sums == 0) continue;
        eg_sum_columns<float, EG_TALL_ROWS, EG_TALL_COLS, EG_TALL_LD, EG_TALL_THREADS>(p, at, memory.tile);
        __syncthreads();
    }
}

#endif
