/* SPDX-License-Identifier: Apache-2.0 */
/* Tall and skinny products of 16-bit numbers: few terms and few columns, of which all of right is in shared
 * memory. Such a product is a wait for memory and a launch, whatever the length of its rows: those of left
 * and of what the epilogue reads have no gap, or a small one, so that 32 of them are one span that begins on
 * 16 bytes. Spans are copied as they lie, all at once; only reading them in shared memory
 * knows rows.
 *
 *     left     32 rows, pitch and all    raw bytes -> fragments of mma.sync, word by word
 *     right    all of it                 raw bytes -> fragments, once for the block -> registers
 *     in       32 rows                   raw bytes -> the epilogue
 *
 * A warp makes 16 rows of 16 columns: warps are many, for each waits for itself most of the time. So
 * instructions are what it costs: the epilogue is made of the accumulators as they are, pairs of neighbours.
 */
#ifndef EG_CUDA_TALL_CUH
#define EG_CUDA_TALL_CUH

#include "tall_tile.cuh"

enum {
    EG_TALL_STEPS = EG_TALL_PITCH / 16,
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
    uint16_t in[EG_TALL_ROWS * EG_TALL_COLS + 8];
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

/* To the four sums from FROM on. */
template <bool BF16, int FROM>
EG_DEVICE void eg_tall_multiply(float (&sums)[8], const uint32_t (&l)[4], uint32_t low, uint32_t high) {
    if (BF16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[FROM]), "+f"(sums[FROM + 1]), "+f"(sums[FROM + 2]), "+f"(sums[FROM + 3])
            : "r"(l[0]), "r"(l[1]), "r"(l[2]), "r"(l[3]), "r"(low), "r"(high));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[FROM]), "+f"(sums[FROM + 1]), "+f"(sums[FROM + 2]), "+f"(sums[FROM + 3])
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
                                float (&v)[8]) {
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
        eg_tall_multiply<BF16, 0>(v, l, first.x, first.y);
        if (!both) continue;
        const uint2 second = memory.right[step][col / 8 + 1][lane];
        eg_tall_multiply<BF16, 4>(v, l, second.x, second.y);
    }
}

/* As the accumulators lie: columns `col` and the next, and eight further; rows `row` and eight below. */
struct eg_tall_place {
    int row, col;
    __device__ int row_of(int pair) const { return row + pair % 2 * 8; }
    __device__ int col_of(int pair) const { return col + pair / 2 * 8; }
};

template <bool BF16>
EG_DEVICE void eg_tall_read(const unsigned char *from, int pitch, const eg_tall_place &at, float (&in)[8]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t two = eg_tall_pair(from, at.row_of(i) * pitch + at.col_of(i));
        in[i * 2] = BF16 ? eg_widen_bf16(two & 0xffffU) : eg_widen_f16((uint16_t)two);
        in[i * 2 + 1] = BF16 ? __uint_as_float(two & 0xffff0000U) : eg_widen_f16((uint16_t)(two >> 16));
    }
}

template <bool BF16> EG_DEVICE void eg_tall_run(const eg_cuda_gemm &p) {
    __shared__ __align__(16) eg_tall_memory memory;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int warp_row = warp / (EG_TALL_COLS / 16) * 16, warp_col = warp % (EG_TALL_COLS / 16) * 16;
    const eg_tall_place place = {warp_row + lane / 4, warp_col + lane % 4 * 2};
    static_assert(EG_TALL_THREADS / 32 == EG_TALL_ROWS / 16 * (EG_TALL_COLS / 16), "a warp for 16 x 16");
    const int lines = (int)(p.right.row_stride == 1 ? p.cols : p.depth),
              line = (int)(p.right.row_stride == 1 ? p.depth : p.cols),
              pitch = (int)(p.right.row_stride == 1 ? p.right.col_stride : p.right.row_stride);
    eg_let_successor_start();
    eg_wait_for_predecessor();
    for (int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
        const eg_dense_tile at = eg_tall_tile(p, index);
        eg_tall_copy(memory.operands.left,
                     p.left.data + (at.item * p.left.item_stride + at.row * p.left.row_stride) * 2,
                     (int)((at.rows - 1) * p.left.row_stride + p.depth) * 2);
        eg_tall_copy(memory.operands.right, p.right.data + at.item * p.right.item_stride * 2,
                     ((lines - 1) * pitch + line) * 2);
        if (p.in.data != 0)
            eg_tall_copy(memory.in, p.in.data + (at.item * p.in.item_stride + at.row * p.in.row_stride) * 2,
                         (int)((at.rows - 1) * p.in.row_stride + p.cols) * 2);
        eg_tall_load_bias(p, at, memory.bias);
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        eg_tall_arrange(p, memory);
        __syncthreads();
        float v[8] = {}, in[8] = {};
        if (warp_col < p.cols) {
            eg_tall_products<BF16>(p, memory, warp_row, warp_col, v);
            if (p.in.data != 0)
                eg_tall_read<BF16>((const unsigned char *)memory.in, (int)p.in.row_stride, place, in);
            eg_tall_finish(p, at, memory.bias, place, in, v);
        }
        if (p.sums != 0) eg_tall_sum(p, at, memory.tile, place, v);
        __syncthreads();
    }
}

#endif
