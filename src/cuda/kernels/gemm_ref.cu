/* SPDX-License-Identifier: Apache-2.0 */
/* The product that takes anything: any storage types, strides and alignment. The last rows of the table, and
 * the reference for all other kernels.
 *
 *     a block makes 32 x 128 results, which its threads hold as map_tile.cuh finishes them:
 *
 *         left  32 terms of 32 rows      -> registers -> shared memory, term by term
 *         right 32 terms of 128 columns
 *
 * Numbers of any pitch are loaded one by one, all of a k-block at once, during the products of the last: a
 * short product is a wait for memory and little more. */
#include "map_tile.cuh"
#include "order.cuh"

/* LINES lines of an operand, TERMS terms of each. A thread loads numbers that lie DISTANCE apart across the
 * direction in which the operand is contiguous. */
template <typename T, int LINES, int TERMS, int PADDING> struct operand {
    enum { COUNT = LINES * TERMS / EG_MAP_THREADS, PITCH = LINES + PADDING };
    uint64_t at; /* address of the thread's first number in the k-block that is loaded next */
    int64_t k_block_step, hop;
    int32_t dtype;
    int along, across, distance, lines;
    bool by_term;
    T held[COUNT];

    __device__ __forceinline__ operand(const eg_cuda_matrix &x, int64_t base, int64_t line_stride,
                                       int64_t term_stride, int64_t begin, int64_t end)
        : dtype(x.dtype) {
        const int64_t size = x.dtype == EG_F64 ? 8 : x.dtype == EG_F32 ? 4 : 2;
        by_term = term_stride == 1;
        lines = end - begin < LINES ? (int)(end - begin) : LINES;
        const int wide = by_term ? TERMS : LINES;
        along = threadIdx.x % wide, across = threadIdx.x / wide, distance = EG_MAP_THREADS / wide;
        const int64_t near = by_term ? term_stride : line_stride, far = by_term ? line_stride : term_stride;
        at = x.data + (base + begin * line_stride + along * near + across * far) * size;
        hop = distance * far * size, k_block_step = TERMS * term_stride * size;
    }

    template <typename S> __device__ __forceinline__ void fetch(int limit, S (&bits)[COUNT]) const {
        uint64_t from = at;
#pragma unroll
        for (int i = 0; i < COUNT; i++, from += hop)
            bits[i] = across + i * distance < limit ? *(const S *)from : (S)0;
    }
    /* Begins to load a k-block of `terms` terms; 0 outside of it. */
    __device__ __forceinline__ void load(int64_t terms) {
        const int there = terms < TERMS ? (int)terms : TERMS;
        const int limit = by_term ? (along < there ? lines : 0) : (along < lines ? there : 0);
        if (sizeof(T) == 8 || dtype == EG_F32) {
            fetch<T>(limit, held);
        } else {
            uint16_t bits[COUNT];
            fetch<uint16_t>(limit, bits);
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                held[i] = (T)(dtype == EG_BF16 ? eg_widen_bf16(bits[i]) : eg_widen_f16(bits[i]));
        }
        at += k_block_step;
    }
    /* `fold`: lines that are 8 apart, which one warp has, follow each other. */
    __device__ __forceinline__ void deposit(bool fold, T (*k_block)[PITCH]) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int far = across + i * distance, line = by_term ? far : along;
            k_block[by_term ? along : far][fold ? line % 8 * 4 + line / 8 : line] = held[i];
        }
    }
};

template <typename T> struct alignas(16) four { T x[4]; };

/* acc[turn][i]: the thread's results, as map_tile.cuh numbers them. PARTS: groups of 32 columns. */
template <bool DOWN, int PARTS, typename T, int TERMS, int LEFT, int RIGHT>
EG_DEVICE void multiply_parts(const T (&left)[TERMS][LEFT], const T (&right)[TERMS][RIGHT], T (&acc)[4][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 8
    for (int t = 0; t < TERMS; t++) {
        if (DOWN) {
            const T l = left[t][lane];
#pragma unroll
            for (int i = 0; i < PARTS * 4; i++)
                acc[i / 4][i % 4] = eg_fma(l, right[t][i / 4 * 32 + warp * 4 + i % 4], acc[i / 4][i % 4]);
        } else {
            const four<T> l = *(const four<T> *)&left[t][warp * 4];
#pragma unroll
            for (int i = 0; i < PARTS * 4; i++)
                acc[i % 4][i / 4] = eg_fma(l.x[i % 4], right[t][i / 4 * 32 + lane], acc[i % 4][i / 4]);
        }
    }
}
template <bool DOWN, typename T, int TERMS, int LEFT, int RIGHT>
EG_DEVICE void multiply(int64_t cols, const T (&left)[TERMS][LEFT], const T (&right)[TERMS][RIGHT],
                        T (&acc)[4][4]) {
    if (cols <= 32) return multiply_parts<DOWN, 1>(left, right, acc);
    if (cols <= 64) return multiply_parts<DOWN, 2>(left, right, acc);
    multiply_parts<DOWN, 4>(left, right, acc);
}

template <typename T, int TERMS> struct product {
    typedef operand<T, EG_MAP_ROWS, TERMS, 4> left_type; /* vectors of four stay aligned */
    typedef operand<T, EG_MAP_COLS, TERMS, 1> right_type;
    /* The results wait where the k-blocks were. */
    union memory {
        struct {
            T left[TERMS][left_type::PITCH], right[TERMS][right_type::PITCH];
        } k_block;
        T numbers[EG_MAP_ROWS][EG_MAP_LD];
    };

    static __device__ __forceinline__ void multiply_all(const eg_cuda_gemm &p, const eg_tile &at,
                                                        memory &shared) {
        auto &k_block = shared.k_block;
        const eg_map_lane own(p, at);
        T acc[4][4] = {};
        for (int64_t s = 0; s < p.summed; s++) {
            const int64_t item = p.summed > 1 ? s : at.item;
            left_type left(p.left, item * p.left.item_stride + eg_left_at(p, at), p.left.row_stride,
                           p.left.col_stride, at.row, at.end());
            right_type right(p.right, item * p.right.item_stride + eg_right_at(p, at), p.right.col_stride,
                             p.right.row_stride, at.col, p.cols);
            left.load(at.depth), right.load(at.depth);
            for (int64_t next = TERMS; next < at.depth + TERMS; next += TERMS) {
                left.deposit(!own.down, k_block.left), right.deposit(false, k_block.right);
                __syncthreads();
                if (next < at.depth) left.load(at.depth - next), right.load(at.depth - next);
                if (own.down) {
                    multiply<true>(own.cols, k_block.left, k_block.right, acc);
                } else if (own.row < own.rows) {
                    multiply<false>(own.cols, k_block.left, k_block.right, acc);
                }
                __syncthreads();
            }
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int row = own.row + (own.down ? 0 : i / 4 * 8), col = own.col + (own.down ? i / 4 * 32 : 0);
            shared.numbers[row][col + i % 4 * own.across()] = acc[i / 4][i % 4] * (T)p.scale;
        }
    }

    static __device__ __forceinline__ void run(const eg_cuda_gemm &p) {
        __shared__ __align__(16) memory shared;
        eg_let_successor_start();
        eg_wait_for_predecessor();
        for (int64_t index = blockIdx.x; index < p.tiles; index += gridDim.x) {
            const eg_tile at = eg_tile_at<EG_MAP_ROWS, EG_MAP_COLS>(p, index);
            if (at.rows == 0) continue;
            T bias[4];
            eg_map_load_bias(p, at, bias);
            multiply_all(p, at, shared);
            eg_map_tile<true>(p, at, bias, shared.numbers);
            __syncthreads();
        }
    }
};

extern "C" __global__ void __launch_bounds__(EG_MAP_THREADS, 2)
    eg_ref_f32(const __grid_constant__ eg_cuda_gemm p) {
    product<float, 32>::run(p);
}
extern "C" __global__ void __launch_bounds__(EG_MAP_THREADS, 2)
    eg_ref_f64(const __grid_constant__ eg_cuda_gemm p) {
    product<double, 16>::run(p);
}
