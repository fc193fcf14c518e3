/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows whose lines begin anywhere: rows of 4095, 4097, 50257 numbers. few_rows.cuh for them: a thread
 * loads the vectors of 16 bytes around its numbers, aligned as memory has them, and shifts the numbers into
 * their place in registers.
 *
 *     memory    |  vector 0  |  vector 1  |  vector 2  |   lanes 0, 1, 2 load these
 *     line           a b c d e f g h i j k l m n o p       begins at a
 *     operands       lane 0: a..h  lane 1: i..p            each with what its neighbour has loaded
 *
 * How far a line is shifted is the same for all of its vectors. By depth, the neighbour of a warp's last lane
 * is the first one in its next step: so a warp has steps that follow each other, and loads one vector more at
 * the end. By columns, eight lanes make 56 columns, the last of them only helps the one before.
 *
 * A vector is loaded if it has a number of the line. Where the matrix ends inside of it, what is there is
 * loaded one by one. Terms past the depth are 0 in both operands: there is the next line, which may be NaN.
 */
#ifndef EG_CUDA_FEW_ROWS_ODD_CUH
#define EG_CUDA_FEW_ROWS_ODD_CUH

#include "few_rows.cuh"
#include "odd_vectors.cuh"

/* ---- Vectors and their numbers --------------------------------------------------------------------------
 */

EG_DEVICE uint32_t eg_read_4(const char *from) {
    uint32_t x;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

/* The address after an operand's last number. */
EG_DEVICE const char *eg_odd_end(const eg_cuda_matrix &x, int64_t item, int64_t rows, int64_t cols) {
    return (const char *)x.data + (eg_index(x, item, rows - 1, cols - 1) + 1) * 2;
}

EG_DEVICE uint4 eg_odd_some(const char *from, const char *end) {
    uint4 x = make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (const char *at = end - 2; at >= from; at -= 2) {
        x.w = x.w << 16 | x.z >> 16, x.z = x.z << 16 | x.y >> 16, x.y = x.y << 16 | x.x >> 16;
        x.x = x.x << 16 | *(const uint16_t *)at;
    }
    return x;
}
template <bool STREAM> EG_DEVICE uint4 eg_odd_load(const char *from, bool there, const char *end) {
    if (!there) return make_uint4(0, 0, 0, 0);
    if (from + 16 > end) return eg_odd_some(from, end);
    return STREAM ? eg_stream_16(from) : eg_read_16(from);
}

EG_DEVICE uint4 eg_odd_from_lane(const uint4 &x, int lane) {
    return make_uint4(__shfl_sync(~0U, x.x, lane), __shfl_sync(~0U, x.y, lane), __shfl_sync(~0U, x.z, lane),
                      __shfl_sync(~0U, x.w, lane));
}

/* Of two numbers in a word, those before `count`. */
EG_DEVICE uint32_t eg_odd_keep(uint32_t word, int count) {
    return count > 1 ? word : count == 1 ? word & 0xffffU : 0;
}
EG_DEVICE void eg_odd_cut(uint4 &x, int count) {
    x.x = eg_odd_keep(x.x, count), x.y = eg_odd_keep(x.y, count - 2), x.z = eg_odd_keep(x.z, count - 4),
    x.w = eg_odd_keep(x.w, count - 6);
}

/* ---- Lines along the depth ------------------------------------------------------------------------------
 */

/* Lines of either operand, of a thread: in each step LONG vectors of COUNT of them. */
template <int COUNT, int STAGES, int LONG, bool STREAM> struct eg_odd_lines {
    uint4 x[STAGES][LONG][COUNT];
    const char *at, *end; /* the vector of the first line that is loaded next; where the matrix ends */
    int line[COUNT];      /* from its vectors to those of the others */
    int skew[COUNT];

    __device__ void begin(const eg_cuda_matrix &matrix, int64_t item, int64_t stride, int64_t term,
                          const int64_t (&lines)[COUNT], const char *matrix_end) {
        const char *const first = (const char *)matrix.data + item * matrix.item_stride * 2;
        int64_t begins[COUNT];
        end = matrix_end;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const char *const begin = first + lines[i] * stride * 2;
            skew[i] = (int)((uint64_t)begin % 16);
            begins[i] = begin - skew[i] - first;
        }
        at = first + begins[0] + term * 2 + threadIdx.x % 4 * 16;
#pragma unroll
        for (int i = 0; i < COUNT; i++) line[i] = (int)(begins[i] - begins[0]);
    }
    /* `bytes`: from the thread's first vector to the end of a line that is not shifted. */
    template <bool GUARDED> __device__ void load(int stage, int bytes) {
#pragma unroll
        for (int n = 0; n < LONG; n++) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const char *const from = at + line[i] + n * 64;
                if (GUARDED) {
                    x[stage][n][i] = eg_odd_load<STREAM>(from, bytes + skew[i] > n * 64, end);
                } else {
                    x[stage][n][i] = STREAM ? eg_stream_16(from) : eg_read_16(from);
                }
            }
        }
        at += LONG * 64;
    }
    /* Eight terms of a line, from vector n of a step on, of which `count` are there. */
    template <bool GUARDED> __device__ uint4 take(int stage, int next, int n, int i, int count) const {
        const int lane = (int)threadIdx.x % 32, t = lane % 4;
        const uint4 own = x[stage][n][i], after = n + 1 < LONG ? x[stage][(n + 1) % LONG][i] : x[next][0][i];
        const uint4 give = t == 0 ? after : own;
        uint4 result = eg_odd_shift(own, eg_odd_from_lane(give, lane - t + (t + 1) % 4), skew[i]);
        if (GUARDED) eg_odd_cut(result, count);
        return result;
    }
};

template <bool BF16, int ROWS, int WIDE, int STAGES, int LONG> struct eg_few_odd_by_depth {
    using real = float;
    static constexpr int STEP = 32 * LONG, COLS = 16 * WIDE, HIGH = ROWS / 8;
    static constexpr bool FOLLOW = true; /* a warp's steps follow each other */
    static constexpr bool COUNTS = false;
    static_assert(STAGES > 1, "a product takes a vector of the next step");
    eg_odd_lines<WIDE * 2, STAGES, LONG, true> right;
    eg_odd_lines<HIGH, STAGES, LONG, false> left;
    float acc[WIDE][HIGH][4] = {};
    int bytes, terms; /* to the end of a line: of the step that is loaded next, of the one multiplied next */

    __device__ eg_few_odd_by_depth(const eg_cuda_gemm &p, int64_t item, int64_t col, int64_t term, int) {
        const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
        int64_t cols[WIDE * 2], rows[HIGH];
#pragma unroll
        for (int i = 0; i < WIDE * 2; i++) cols[i] = min(col + i * 8 + g, p.cols - 1);
#pragma unroll
        for (int i = 0; i < HIGH; i++) rows[i] = min((int64_t)i * 8 + g, p.rows - 1);
        right.begin(p.right, item, p.right.col_stride, term, cols,
                    eg_odd_end(p.right, item, p.depth, p.cols));
        left.begin(p.left, item, p.left.row_stride, term, rows, eg_odd_end(p.left, item, p.rows, p.depth));
        terms = (int)(p.depth - term) - t * 8;
        bytes = terms * 2;
    }
    template <bool GUARDED> __device__ void load(int stage) {
        right.template load<GUARDED>(stage, bytes);
        left.template load<GUARDED>(stage, bytes);
        bytes -= STEP * 2;
    }
    /* After the last step: the vector that its last lane asks for. */
    __device__ void load_neighbour(int stage) {
        bytes = threadIdx.x % 4 == 0 ? min(bytes, 48) : -64;
        load<true>(stage);
    }
    template <bool GUARDED> __device__ void multiply(int stage) {
        const int next = (stage + 1) % STAGES;
#pragma unroll
        for (int n = 0; n < LONG; n++) {
            const int count = terms - n * 32;
            uint4 l[HIGH];
#pragma unroll
            for (int j = 0; j < HIGH; j++) l[j] = left.template take<GUARDED>(stage, next, n, j, count);
#pragma unroll
            for (int i = 0; i < WIDE; i++) {
                const uint4 a = right.template take<GUARDED>(stage, next, n, i * 2, count),
                            b = right.template take<GUARDED>(stage, next, n, i * 2 + 1, count);
#pragma unroll
                for (int j = 0; j < HIGH; j++) {
                    eg_few_multiply<BF16>(acc[i][j], a.x, b.x, a.y, b.y, l[j].x, l[j].y);
                    eg_few_multiply<BF16>(acc[i][j], a.z, b.z, a.w, b.w, l[j].z, l[j].w);
                }
            }
        }
        terms -= STEP;
    }
    template <int LD> __device__ void put(float *tile) const { eg_few_put_by_depth<LD>(acc, tile); }
};

/* ---- Lines along the columns ----------------------------------------------------------------------------
 */

template <bool BF16, int ROWS, int STAGES> struct eg_few_odd_by_columns {
    using real = float;
    static constexpr int STEP = 16, COLS = 56, HIGH = ROWS / 8;
    static constexpr bool FOLLOW = false, COUNTS = false;
    uint4 right[STAGES][4];
    uint32_t left[STAGES][HIGH][3];
    float acc[4][HIGH][4] = {};
    const eg_cuda_gemm &p;
    const char *from, *with;
    int term_at[4]; /* the thread's vectors of four terms, from the first term's numbers on */
    int row[HIGH];
    int skew;      /* of the first term: the next ones follow by their pitch */
    int left_skew; /* in a word: of all rows, which are eight apart */
    int64_t hop;
    int item, between;
    int terms, left_terms; /* that there are: of the step multiplied next, of the one loaded next */

    __device__ eg_few_odd_by_columns(const eg_cuda_gemm &gemm, int64_t of_item, int64_t col, int64_t term,
                                     int stride)
        : p(gemm), item((int)of_item) {
        const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const int64_t at = term + t * 4, line = p.right.row_stride * 2;
        from = (const char *)p.right.data + (item * p.right.item_stride + col) * 2 + at * line;
        /* Past the end of a line a lane loads the line's last vector, for nothing. */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const char *const begin = from + i * line, *const last = begin + (p.cols - col) * 2 - 2;
            term_at[i] = min((int)(begin - from) - (int)((uint64_t)begin % 16) + g * 16,
                             (int)(last - from) - (int)((uint64_t)last % 16));
        }
        with = (const char *)p.left.data + (item * p.left.item_stride + at) * 2;
#pragma unroll
        for (int i = 0; i < HIGH; i++) {
            const int there = (int)(min((int64_t)i * 8 + g, p.rows - 1) * p.left.row_stride) * 2;
            row[i] = there - (int)((uint64_t)(with + there) % 4);
        }
        skew = (int)((uint64_t)from % 16);
        left_skew = (int)((uint64_t)(with + g * p.left.row_stride * 2) % 4);
        terms = left_terms = (int)(p.depth - at);
        between = stride * STEP;
        hop = between * line;
    }
    /* Two numbers of left, if one is of the matrix. */
    __device__ uint32_t some_of_left(const char *at, bool asked) const {
        const char *const end = eg_odd_end(p.left, item, p.rows, p.depth);
        if (!asked || at >= end) return 0;
        return at + 4 <= end ? eg_read_4(at) : *(const uint16_t *)at;
    }
    template <bool GUARDED> __device__ void load(int stage) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const char *const at = from + term_at[i];
            right[stage][i] =
                GUARDED ? eg_odd_load<true>(at, i < left_terms, eg_odd_end(p.right, item, p.depth, p.cols))
                        : eg_stream_16(at);
        }
#pragma unroll
        for (int i = 0; i < HIGH; i++) {
            const char *const at = with + row[i];
#pragma unroll
            for (int j = 0; j < 3; j++) {
                const bool asked = j < 2 || left_skew != 0;
                left[stage][i][j] =
                    GUARDED ? some_of_left(at + j * 4, asked && left_terms * 2 + left_skew > j * 4)
                    : asked ? eg_read_4(at + j * 4)
                            : 0;
            }
        }
        from += hop, with += between * 2;
        left_terms -= between;
    }
    /* Four terms of a row of left. */
    template <bool GUARDED> __device__ uint2 take_left(int stage, int i) const {
        const uint32_t *const from_left = left[stage][i];
        uint2 x = make_uint2(eg_odd_word(from_left[0], from_left[1], left_skew),
                             eg_odd_word(from_left[1], from_left[2], left_skew));
        if (GUARDED) x.x = eg_odd_keep(x.x, terms), x.y = eg_odd_keep(x.y, terms - 2);
        return x;
    }
    template <bool GUARDED> __device__ void multiply(int stage) {
        const int lane = (int)threadIdx.x % 32;
        uint4 x[4];
        uint2 l[HIGH];
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = eg_odd_shift(right[stage][i], eg_odd_from_lane(right[stage][i], (lane + 4) % 32),
                                (skew + i * (int)p.right.row_stride * 2) % 16);
#pragma unroll
        for (int i = 0; i < HIGH; i++) l[i] = take_left<GUARDED>(stage, i);
        eg_few_multiply_columns<BF16>(acc, x, l);
        terms -= between;
    }
    /* The last eighth of the columns is another tile's. */
    template <int LD> __device__ void put(float *tile) const {
        if (threadIdx.x % 32 / 4 < COLS / 8) eg_few_put_by_columns<LD>(acc, tile);
    }
};

#define EG_FEW_ODD_KERNELS(type, bf16)                                                                       \
    EG_FEW_KERNEL(type##_odd_nn_8x112, eg_few_odd_by_columns<bf16, 8, 3>, 8, 3, 2)                           \
    EG_FEW_KERNEL(type##_odd_nn_16x56, eg_few_odd_by_columns<bf16, 16, 2>, 16, 2, 1)                         \
    EG_FEW_KERNEL(type##_odd_nt_8x16, eg_few_odd_by_depth<bf16, 8, 1, 4, 1>, 8, 4, 1)                        \
    EG_FEW_KERNEL(type##_odd_nt_16x16, eg_few_odd_by_depth<bf16, 16, 1, 3, 1>, 16, 3, 1)

#endif
