/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows of f32 and f64 on the FMA units. few_rows.cuh for them: right comes straight into registers, in
 * vectors of 16 bytes, and is multiplied there by each row of left.
 *
 * A lane would need as many registers for left as for right. So left goes through shared memory: each warp
 * has a ring of its own, which cp.async fills as far ahead as right, and which no other warp waits for. A
 * vector of it is multiplied by all columns of a lane.
 *
 *     right by depth   [N, K] weights               right by columns   [K, N] weights
 *     lanes beside each other along the depth,      eight lanes beside each other along the columns, four
 *     and groups of them beside each other          groups of them along the depth
 *     a lane: a vector of terms of 4 columns        a lane: a vector of columns of 4 terms
 *
 * At the end the lanes that share columns add up what they have: each sends half of its sums and keeps the
 * other half, until each lane has other sums. */
#ifndef EG_CUDA_FEW_ROWS_FMA_CUH
#define EG_CUDA_FEW_ROWS_FMA_CUH

#include "async_copy.cuh"
#include "few_rows.cuh"
#include "vectors.cuh"

template <typename T> struct eg_vector_of;
template <> struct eg_vector_of<float> { using type = f32x4; };
template <> struct eg_vector_of<double> { using type = f64x2; };

/* ---- Rows of left ---------------------------------------------------------------------------------------
 */

/* TERMS terms of ROWS rows in each of STAGES stages, of a warp. What is past the rows or the depth is 0. */
template <typename T, int ROWS, int TERMS, int STAGES> struct eg_few_ring {
    using V = typename eg_vector_of<T>::type;
    static constexpr int EACH = V::COUNT, ALONG = TERMS / EACH, COUNT = ROWS * ALONG; /* vectors */
    static constexpr int COPIES = (COUNT + 31) / 32, DOWN = 32 / ALONG; /* rows from copy to copy of a lane */
    static_assert(32 % ALONG == 0 && (COUNT < 32 || COUNT % 32 == 0), "whole rows a copy");

    uint4 *ring;
    const char *from; /* the lane's first vector of the step that is loaded next */
    const char *nothing;
    int64_t down; /* bytes from copy to copy */
    int rows;     /* that there are, from the lane's first one on */

    __device__ eg_few_ring(const eg_cuda_matrix &left, int64_t of_rows, int64_t item, int64_t term) {
        __shared__ uint4 rings[EG_FEW_THREADS / 32][STAGES * COUNT];
        const int lane = (int)threadIdx.x % 32, row = lane / ALONG;
        ring = rings[threadIdx.x / 32];
        nothing = (const char *)left.data;
        from = nothing + (item * left.item_stride + row * left.row_stride + term + lane % ALONG * EACH) *
                             (int)sizeof(T);
        down = DOWN * left.row_stride * (int)sizeof(T);
        rows = lane < COUNT ? (int)of_rows - row : 0;
    }
    /* `terms`: from the step's first one to the end of the depth. Other lanes may still read what was in this
     * stage before. */
    template <bool GUARDED> __device__ void load(int stage, int terms, int hop) {
        const int lane = (int)threadIdx.x % 32;
        int bytes = 16;
        if (GUARDED) bytes = max(0, min(16, (terms - lane % ALONG * EACH) * (int)sizeof(T)));
        __syncwarp();
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const int some = i * DOWN < rows ? bytes : 0;
            if (COUNT >= 32 || lane < COUNT)
                eg_copy_async<16>(eg_shared_address(ring + stage * COUNT + i * 32 + lane),
                                  some > 0 ? from + i * down : nothing, some);
        }
        from += hop;
        eg_commit_copies();
    }
    /* Until the oldest stage is there. */
    __device__ void wait() const {
        eg_wait_for_copies<STAGES - 1>();
        __syncwarp();
    }
    __device__ void read(int stage, int row, int vector, T (&x)[EACH]) const {
        V::widen(ring[stage * COUNT + row * ALONG + vector], x);
    }
};

/* ---- Sums of lanes --------------------------------------------------------------------------------------
 */

/* Adds up the COUNT sums that each of LANES lanes has, STRIDE lanes apart. Afterwards the first ones of v are
 * sums of all: COUNT / LANES of them, or one, from the number that is returned on. */
template <int LANES, int STRIDE, int COUNT, typename T, int ALL> EG_DEVICE int eg_few_add_lanes(T (&v)[ALL]) {
    if constexpr (LANES == 1) {
        return 0;
    } else if constexpr (COUNT == 1) {
        v[0] += __shfl_xor_sync(~0U, v[0], LANES / 2 * STRIDE);
        return eg_few_add_lanes<LANES / 2, STRIDE, 1>(v);
    } else {
        constexpr int HALF = COUNT / 2, OTHER = LANES / 2 * STRIDE;
        const bool upper = (threadIdx.x & OTHER) != 0;
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            const T keep = upper ? v[i + HALF] : v[i], give = upper ? v[i] : v[i + HALF];
            v[i] = keep + __shfl_xor_sync(~0U, give, OTHER);
        }
        return (upper ? HALF : 0) + eg_few_add_lanes<LANES / 2, STRIDE, HALF>(v);
    }
}

/* Of ROWS x COLS sums, which LANES lanes have parts of: calls put(row, col, sum) for each, by one lane. */
template <int ROWS, int COLS, int LANES, int STRIDE, typename T, typename F>
EG_DEVICE void eg_few_put_sums(const T (&acc)[ROWS][COLS], const F &put) {
    constexpr int COUNT = ROWS * COLS, LEFT = COUNT > LANES ? COUNT / LANES : 1,
                  SAME = LANES > COUNT ? LANES / COUNT : 1; /* lanes with the same sum */
    T v[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) v[i] = acc[i / COLS][i % COLS];
    const int first = eg_few_add_lanes<LANES, STRIDE, COUNT>(v);
    if ((int)threadIdx.x / STRIDE % SAME != 0) return;
#pragma unroll
    for (int i = 0; i < LEFT; i++) put((first + i) / COLS, (first + i) % COLS, v[i]);
}

/* ---- Operands of a warp ---------------------------------------------------------------------------------
 */

/* ROWS rows by 4 columns of each group of ALONG lanes; STAGES steps on their way, each a vector of terms a
 * lane. */
template <typename T, int ROWS, int ALONG, int STAGES> struct eg_few_fma_by_depth {
    using real = T;
    using V = typename eg_vector_of<T>::type;
    static constexpr int EACH = V::COUNT, WIDE = 4, STEP = ALONG * EACH, BESIDE = 32 / ALONG;
    static constexpr int COLS = BESIDE * WIDE;
    static constexpr bool FOLLOW = false, COUNTS = true;
    uint4 right[STAGES][WIDE];
    eg_few_ring<T, ROWS, STEP, STAGES> left;
    T acc[ROWS][WIDE] = {};
    const char *from;       /* the lane's vector of its first column, of the step that is loaded next */
    int64_t line[WIDE - 1]; /* bytes from its first column to the others */
    int terms;              /* from that step's first one to the end of the depth */
    int between;

    /* Columns outside are the last one inside: they are multiplied for nothing. */
    __device__ eg_few_fma_by_depth(const eg_cuda_gemm &p, int64_t item, int64_t col, int64_t term, int stride)
        : left(p.left, p.rows, item, term), terms((int)(p.depth - term)), between(stride * STEP) {
        const int lane = (int)threadIdx.x % 32;
        const int64_t last = p.cols - 1, first = min(col + lane / ALONG, last);
        from = (const char *)p.right.data +
               (item * p.right.item_stride + first * p.right.col_stride + term + lane % ALONG * EACH) *
                   (int)sizeof(T);
#pragma unroll
        for (int i = 1; i < WIDE; i++)
            line[i - 1] =
                (min(col + i * BESIDE + lane / ALONG, last) - first) * p.right.col_stride * (int)sizeof(T);
    }
    template <bool GUARDED> __device__ void load(int stage) {
        const bool inside = !GUARDED || (int)threadIdx.x % ALONG * EACH < terms;
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            right[stage][i] =
                inside ? eg_stream_16(i > 0 ? from + line[i - 1] : from) : make_uint4(0, 0, 0, 0);
        left.template load<GUARDED>(stage, terms, between * (int)sizeof(T));
        from += between * (int)sizeof(T);
        terms -= between;
    }
    __device__ void load_none() { eg_commit_copies(); }
    template <bool GUARDED> __device__ void multiply(int stage) {
        T r[WIDE][EACH], l[EACH];
        left.wait();
#pragma unroll
        for (int i = 0; i < WIDE; i++) V::widen(right[stage][i], r[i]);
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            left.read(stage, row, (int)threadIdx.x % ALONG, l);
#pragma unroll
            for (int i = 0; i < WIDE * EACH; i++)
                acc[row][i % WIDE] = eg_fma(l[i / WIDE], r[i % WIDE][i / WIDE], acc[row][i % WIDE]);
        }
    }
    template <int LD> __device__ void put(T *tile) const {
        T *const to = tile + (int)threadIdx.x % 32 / ALONG;
        eg_few_put_sums<ROWS, WIDE, ALONG, 1>(acc, [&](int row, int col, T sum)
                                                       EG_INLINE { to[row * LD + col * BESIDE] = sum; });
    }
};

/* ROWS rows by a vector of columns of each of eight lanes; a step is 4 terms of each of four groups. */
template <typename T, int ROWS, int STAGES> struct eg_few_fma_by_columns {
    using real = T;
    using V = typename eg_vector_of<T>::type;
    static constexpr int EACH = V::COUNT, DEEP = 4, STEP = 4 * DEEP, COLS = 8 * EACH;
    static constexpr bool FOLLOW = false, COUNTS = true;
    uint4 right[STAGES][DEEP];
    eg_few_ring<T, ROWS, STEP, STAGES> left;
    T acc[ROWS][EACH] = {};
    const char *from; /* the lane's vector of its first term, of the step that is loaded next */
    int64_t line;     /* bytes from term to term */
    int terms, between;

    __device__ eg_few_fma_by_columns(const eg_cuda_gemm &p, int64_t item, int64_t col, int64_t term,
                                     int stride)
        : left(p.left, p.rows, item, term), terms((int)(p.depth - term)), between(stride * STEP) {
        const int lane = (int)threadIdx.x % 32;
        line = p.right.row_stride * (int)sizeof(T);
        from = (const char *)p.right.data +
               (item * p.right.item_stride + min(col + lane % 8 * EACH, p.cols - EACH)) * (int)sizeof(T) +
               (term + lane / 8 * DEEP) * line;
    }
    template <bool GUARDED> __device__ void load(int stage) {
        const int there = terms - (int)threadIdx.x % 32 / 8 * DEEP;
        const char *at = from;
#pragma unroll
        for (int i = 0; i < DEEP; i++, at += line)
            right[stage][i] = !GUARDED || i < there ? eg_stream_16(at) : make_uint4(0, 0, 0, 0);
        left.template load<GUARDED>(stage, terms, between * (int)sizeof(T));
        from += between * line;
        terms -= between;
    }
    __device__ void load_none() { eg_commit_copies(); }
    template <bool GUARDED> __device__ void multiply(int stage) {
        T r[DEEP][EACH], l[EACH];
        left.wait();
#pragma unroll
        for (int i = 0; i < DEEP; i++) V::widen(right[stage][i], r[i]);
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
#pragma unroll
            for (int term = 0; term < DEEP; term++) {
                if (term % EACH == 0)
                    left.read(stage, row, ((int)threadIdx.x % 32 / 8 * DEEP + term) / EACH, l);
#pragma unroll
                for (int i = 0; i < EACH; i++) acc[row][i] = eg_fma(l[term % EACH], r[term][i], acc[row][i]);
            }
        }
    }
    template <int LD> __device__ void put(T *tile) const {
        T *const to = tile + (int)threadIdx.x % 8 * EACH;
        eg_few_put_sums<ROWS, EACH, 4, 8>(acc, [&](int row, int col, T sum)
                                                   EG_INLINE { to[row * LD + col] = sum; });
    }
};

/* `cols`: of `beside` warps; `along`: lanes of a column. */
#define EG_FEW_FMA_BY_COLUMNS(name, type, rows, cols, stages, beside)                                        \
    EG_FEW_KERNEL(name##_nn_##rows##x##cols, eg_few_fma_by_columns<type, rows, stages>, rows, stages, beside)
#define EG_FEW_FMA_BY_DEPTH(name, type, rows, cols, along, stages, beside)                                   \
    EG_FEW_KERNEL(name##_nt_##rows##x##cols, eg_few_fma_by_depth<type, rows, along, stages>, rows, stages,   \
                  beside)

#endif
