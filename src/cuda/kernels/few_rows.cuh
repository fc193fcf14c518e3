/* SPDX-License-Identifier: Apache-2.0 */
/* Products of few rows of 16-bit numbers, which are memory's work: right is read once, straight into
 * registers, by loads of 16 bytes that are all on their way at once. Nothing waits in shared memory, and no
 * warp waits for another before its sums are complete.
 *
 * A column of right is a row of mma.sync's left operand, so that its 16 rows are columns of the result and
 * its 8 columns are rows of it: few rows of the result cost no more than there are. The order of the terms in
 * such a product is free as long as both operands agree on it. So a thread takes terms that lie beside each
 * other:
 *
 *     right by depth   [N, K] weights     right by columns   [K, N] weights
 *     32 terms x 16 columns               16 terms x 64 columns
 *     a thread: 8 terms of 2 columns      a thread: 8 columns of 4 terms, whose pairs it interleaves
 *
 * The warps of a block share its columns and the steps of its depth, step by step, so that together they read
 * whole lines; a cluster's blocks share the depth in parts. Partial sums meet in shared memory, in the order
 * of warps and blocks: a block sends its sum of a column to the block that finishes the column.
 *
 *     block 0   warp 0 .. 7  -> sum ---> block 0: columns of the first share, bias, activation, sums
 *     block 1   warp 0 .. 7  -> sum ---> block 1: those of the second share */
#ifndef EG_CUDA_FEW_ROWS_CUH
#define EG_CUDA_FEW_ROWS_CUH

#include "../few_rows.h"
#include "order.cuh"
#include "split_tile.cuh"
#include "vector_epilogue.cuh"

/* ---- Loads and products -------------------------------------------------------------------------------- */

/* Read once: it stays in no cache that others use. */
EG_DEVICE uint4 eg_stream_16(const char *from) {
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}
/* Every warp of the block reads it. */
EG_DEVICE uint4 eg_read_16(const char *from) {
    uint4 x;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}
EG_DEVICE uint2 eg_read_8(const char *from) {
    uint2 x;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from) : "memory");
    return x;
}

/* sums (16 x 8) += left (16 x 16) . right (16 x 8). */
template <bool BF16>
EG_DEVICE void eg_few_multiply(float (&sums)[4], uint32_t l0, uint32_t l1, uint32_t l2, uint32_t l3,
                               uint32_t low, uint32_t high) {
    if (BF16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(l0), "r"(l1), "r"(l2), "r"(l3), "r"(low), "r"(high));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(l0), "r"(l1), "r"(l2), "r"(l3), "r"(low), "r"(high));
    }
}

/* The same with four terms of eight columns that a thread has of right: column 2 i of all threads' eight is
 * row g of the unit's product i, and column 2 i + 1 its row g + 8. */
template <bool BF16, int HIGH>
EG_DEVICE void eg_few_multiply_columns(float (&acc)[4][HIGH][4], const uint4 (&right)[4],
                                       const uint2 (&left)[HIGH]) {
    const uint32_t a[4] = {right[0].x, right[0].y, right[0].z, right[0].w};
    const uint32_t b[4] = {right[1].x, right[1].y, right[1].z, right[1].w};
    const uint32_t c[4] = {right[2].x, right[2].y, right[2].z, right[2].w};
    const uint32_t d[4] = {right[3].x, right[3].y, right[3].z, right[3].w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t l0 = __byte_perm(a[i], b[i], 0x5410), l1 = __byte_perm(a[i], b[i], 0x7632);
        const uint32_t l2 = __byte_perm(c[i], d[i], 0x5410), l3 = __byte_perm(c[i], d[i], 0x7632);
#pragma unroll
        for (int j = 0; j < HIGH; j++) eg_few_multiply<BF16>(acc[i][j], l0, l1, l2, l3, left[j].x, left[j].y);
    }
}

/* The accumulators of a warp's columns of 16, and of eight columns a thread. */
template <int LD, int WIDE, int HIGH>
EG_DEVICE void eg_few_put_by_depth(const float (&acc)[WIDE][HIGH][4], float *tile) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < WIDE * HIGH * 4; i++) {
        const int wide = i / (HIGH * 4), high = i / 4 % HIGH, part = i % 4;
        tile[(high * 8 + t * 2 + part % 2) * LD + wide * 16 + part / 2 * 8 + g] = acc[wide][high][part];
    }
}
template <int LD, int HIGH>
EG_DEVICE void eg_few_put_by_columns(const float (&acc)[4][HIGH][4], float *tile) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < HIGH * 4; i++) {
        const int high = i / 4, odd = i / 2 % 2, half = i % 2;
        float *to = tile + (high * 8 + t * 2 + odd) * LD + g * 8 + half * 4;
        *(float4 *)to = make_float4(acc[half * 2][high][odd], acc[half * 2][high][odd + 2],
                                    acc[half * 2 + 1][high][odd], acc[half * 2 + 1][high][odd + 2]);
    }
}

/* ROWS rows by WIDE times 16 columns; STAGES steps on their way, each of LONG times 32 terms. */
template <bool BF16, int ROWS, int WIDE, int STAGES, int LONG> struct eg_few_by_depth {
    using real = float;
    static constexpr int STEP = 32 * LONG, COLS = 16 * WIDE, HIGH = ROWS / 8;
    static constexpr bool FOLLOW = false; /* a warp's steps do not follow each other */
    static constexpr bool COUNTS = false; /* nor does it wait for loads by their number */
    uint4 right[STAGES][LONG][WIDE][2], left[STAGES][LONG][HIGH];
    float acc[WIDE][HIGH][4] = {};
    const char *from, *with; /* the thread's numbers of the step that is loaded next */
    int64_t line[WIDE * 2];  /* bytes from its first column to the others */
    int64_t row[HIGH];
    int64_t hop;
    int left_terms; /* from there to the end of the depth */
    int between;

    /* Columns and rows outside are those of the last one inside: they are multiplied for nothing. */
    __device__ eg_few_by_depth(const eg_cuda_gemm &p, int64_t item, int64_t col, int64_t term, int stride) {
        const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const int64_t at = term + t * 8, last = p.cols - 1;
        from = (const char *)p.right.data + (item * p.right.item_stride + at) * 2;
        with = (const char *)p.left.data + (item * p.left.item_stride + at) * 2;
#pragma unroll
        for (int i = 0; i < WIDE * 2; i++) line[i] = min(col + i * 8 + g, last) * p.right.col_stride * 2;
        from += line[0];
#pragma unroll
        for (int i = WIDE * 2 - 1; i >= 0; i--) line[i] -= line[0];
#pragma unroll
        for (int i = 0; i < HIGH; i++) row[i] = min((int64_t)i * 8 + g, p.rows - 1) * p.left.row_stride * 2;
        with += row[0];
#pragma unroll
        for (int i = HIGH - 1; i >= 0; i--) row[i] -= row[0];
        left_terms = (int)(p.depth - at);
        between = stride * STEP;
        hop = between * 2;
    }
    template <bool GUARDED> __device__ void load(int stage) {
#pragma unroll
        for (int n = 0; n < LONG; n++) {
            if (!GUARDED || left_terms > n * 32) {
#pragma unroll
                for (int i = 0; i < WIDE * 2; i++)
                    right[stage][n][i / 2][i % 2] = eg_stream_16(from + line[i] + n * 64);
#pragma unroll
                for (int i = 0; i < HIGH; i++) left[stage][n][i] = eg_read_16(with + row[i] + n * 64);
            } else {
#pragma unroll
                for (int i = 0; i < WIDE * 2; i++) right[stage][n][i / 2][i % 2] = make_uint4(0, 0, 0, 0);
#pragma unroll
                for (int i = 0; i < HIGH; i++) left[stage][n][i] = make_uint4(0, 0, 0, 0);
            }
        }
        from += hop, with += hop;
        left_terms -= between;
    }
    template <bool GUARDED> __device__ void multiply(int stage) {
#pragma unroll
        for (int n = 0; n < LONG; n++) {
#pragma unroll
            for (int i = 0; i < WIDE; i++) {
                const uint4 a = right[stage][n][i][0], b = right[stage][n][i][1];
#pragma unroll
                for (int j = 0; j < HIGH; j++) {
                    const uint4 l = left[stage][n][j];
                    eg_few_multiply<BF16>(acc[i][j], a.x, b.x, a.y, b.y, l.x, l.y);
                    eg_few_multiply<BF16>(acc[i][j], a.z, b.z, a.w, b.w, l.z, l.w);
                }
            }
        }
    }
    template <int LD> __device__ void put(float *tile) const { eg_few_put_by_depth<LD>(acc, tile); }
};

/* ROWS rows by 64 columns. */
template <bool BF16, int ROWS, int STAGES> struct eg_few_by_columns {
    using real = float;
    static constexpr int STEP = 16, COLS = 64, HIGH = ROWS / 8;
    static constexpr bool FOLLOW = false, COUNTS = false;
    uint4 right[STAGES][4];
    uint2 left[STAGES][HIGH];
    float acc[4][HIGH][4] = {};
    const char *from, *with;
    int64_t line, row[HIGH]; /* bytes from term to term of right; to the rows of left */
    int64_t hop;
    int left_terms, between;

    __device__ eg_few_by_columns(const eg_cuda_gemm &p, int64_t item, int64_t col, int64_t term, int stride) {
        const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const int64_t at = term + t * 4, column = min(col + g * 8, p.cols - 8);
        line = p.right.row_stride * 2;
        from = (const char *)p.right.data + (item * p.right.item_stride + column) * 2 + at * line;
        with = (const char *)p.left.data + (item * p.left.item_stride + at) * 2;
#pragma unroll
        for (int i = 0; i < HIGH; i++) row[i] = min((int64_t)i * 8 + g, p.rows - 1) * p.left.row_stride * 2;
        with += row[0];
#pragma unroll
        for (int i = HIGH - 1; i >= 0; i--) row[i] -= row[0];
        left_terms = (int)(p.depth - at);
        between = stride * STEP;
        hop = between * line;
    }
    template <bool GUARDED> __device__ void load(int stage) {
        const char *at = from;
#pragma unroll
        for (int i = 0; i < 4; i++, at += line)
            right[stage][i] = !GUARDED || i < left_terms ? eg_stream_16(at) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < HIGH; i++) {
            if (!GUARDED || left_terms >= 4) {
                left[stage][i] = eg_read_8(with + row[i]);
            } else {
                const uint16_t *some = (const uint16_t *)(with + row[i]);
                const uint32_t a = left_terms > 0 ? some[0] : 0, b = left_terms > 1 ? some[1] : 0,
                               c = left_terms > 2 ? some[2] : 0;
                left[stage][i] = make_uint2(a | b << 16, c);
            }
        }
        from += hop, with += between * 2;
        left_terms -= between;
    }
    template <bool GUARDED> __device__ void multiply(int stage) {
        eg_few_multiply_columns<BF16>(acc, right[stage], left[stage]);
    }
    template <int LD> __device__ void put(float *tile) const { eg_few_put_by_columns<LD>(acc, tile); }
};

/* Loads step `index` of `steps`, if there is one: of those that follow each other, a neighbour after the
 * last. Operands that wait for the loads of a step count those of all steps, also of none. */
template <class O> EG_DEVICE void eg_few_load(O &operands, int stage, int index, int steps) {
    if (index < steps) operands.template load<true>(stage);
    if constexpr (O::COUNTS) {
        if (index >= steps) operands.load_none();
    }
    if constexpr (O::FOLLOW) {
        if (index == steps) operands.load_neighbour(stage);
    }
}

/* Sums `steps` steps: STAGES of them are always on their way. Only the last may have terms outside. */
template <class O, int STAGES, typename F>
EG_DEVICE void eg_few_sum(O &operands, int steps, const F &meanwhile) {
#pragma unroll
    for (int i = 0; i < STAGES; i++) eg_few_load(operands, i, i, steps);
    meanwhile();
    int at = 0;
    for (; at + 2 * STAGES < steps; at += STAGES) {
#pragma unroll
        for (int i = 0; i < STAGES; i++) {
            operands.template multiply<false>(i);
            operands.template load<false>(i);
        }
    }
    for (; at < steps; at += STAGES) {
#pragma unroll
        for (int i = 0; i < STAGES; i++) {
            if (at + i < steps) operands.template multiply<true>(i);
            eg_few_load(operands, i, at + i + STAGES, steps);
        }
    }
}

/* ---- The epilogue -------------------------------------------------------------------------------------- */

template <typename T> struct eg_four {
    typedef T real;
    enum { COUNT = 4 };
};

/* Four sums in shared memory. */
template <typename T> struct __align__(16) eg_few_sums { T x[4]; };
template <typename T> EG_DEVICE void eg_few_add_to(eg_few_sums<T> &total, const eg_few_sums<T> &part) {
#pragma unroll
    for (int i = 0; i < 4; i++) total.x[i] += part.x[i];
}

/* Stores them in the shared memory of a block of the cluster. */
EG_DEVICE void eg_few_store(uint32_t there, const eg_few_sums<float> &v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(v.x[0]), "f"(v.x[1]),
                 "f"(v.x[2]), "f"(v.x[3])
                 : "memory");
#endif
}
EG_DEVICE void eg_few_store(uint32_t there, const eg_few_sums<double> &v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.v2.f64 [%0], {%1, %2};\n"
                 "st.shared::cluster.v2.f64 [%0 + 16], {%3, %4};" ::"r"(there),
                 "d"(v.x[0]), "d"(v.x[1]), "d"(v.x[2]), "d"(v.x[3])
                 : "memory");
#endif
}

/* What the epilogue reads of four columns of a row, before the products are done. */
template <typename T> struct eg_few_ahead { T bias[4], in[4]; };

/* Where a thread's groups of four columns are: those of the block's share, rows first. */
template <int ROWS> struct eg_few_group {
    int row, four;
    __device__ eg_few_group(int group, const eg_share &share)
        : row(group % ROWS), four(share.first + group / ROWS) {}
};

/* What the epilogue reads of a group, before its sums are complete. */
template <class K>
EG_DEVICE eg_few_ahead<typename K::real> eg_few_look_ahead(const eg_cuda_gemm &p, const eg_tile &at,
                                                           const eg_few_group<K::ROWS> &group, int count) {
    eg_few_ahead<typename K::real> ahead = {};
    if (count == 0) return ahead;
    const int64_t col = at.col + group.four * 4;
    eg_load_bias(p, at.item, col, count, ahead.bias);
    if (p.in.data != 0) eg_take(p.in, eg_lane_of(p.in, at, false), group.row, col, count, ahead.in);
    return ahead;
}

/* Columns of a group that are inside the result. */
template <class K>
EG_DEVICE int eg_few_inside(const eg_cuda_gemm &p, const eg_tile &at, const eg_few_group<K::ROWS> &group) {
    const int64_t left = p.cols - at.col - group.four * 4;
    return group.row < at.rows && left > 0 && group.four < K::FOURS ? (left < 4 ? (int)left : 4) : 0;
}

/* v: the product. Only what an activation changes is in the code of each. */
template <class K>
EG_DEVICE void eg_few_finish(const eg_cuda_gemm &p, const eg_tile &at, const eg_few_group<K::ROWS> &group,
                             int count, const eg_few_ahead<typename K::real> &ahead,
                             typename K::real (&v)[4]) {
    const int64_t col = at.col + group.four * 4;
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] += ahead.bias[i];
    if (p.second.data != 0) eg_put(p.second, eg_lane_of(p.second, at, false), group.row, col, count, v);
    eg_with_terms<eg_four<typename K::real>>(p, [&](const auto &terms) EG_INLINE { terms(v, ahead.in); });
    if (p.out.data != 0) eg_put(p.out, eg_lane_of(p.out, at, false), group.row, col, count, v);
}

/* The sum of all warps' parts, in their order. */
template <class K>
EG_DEVICE eg_few_sums<typename K::real> eg_few_add(const typename K::real *tile, int row, int four) {
    using sums = eg_few_sums<typename K::real>;
    const typename K::real *from = tile + row * K::LD + four * 4;
    sums total = *(const sums *)from;
#pragma unroll
    for (int i = 1; i < K::DEEP; i++) eg_few_add_to(total, *(const sums *)(from + i * K::ROWS * K::LD));
    return total;
}

/* Sends this block's sums to the blocks that finish them. */
template <class K>
EG_DEVICE void eg_few_send(const typename K::real *tile, eg_few_sums<typename K::real> *received, int rank,
                           int splits) {
    for (int i = (int)threadIdx.x; i < K::FOURS * K::ROWS; i += K::THREADS) {
        const int row = i % K::ROWS, four = i / K::ROWS;
        int to = four * splits / K::FOURS; /* whose share it is in, or the one before */
        while (eg_share_of<K::FOURS>(to, splits).end <= four) to++;
        const eg_share share = eg_share_of<K::FOURS>(to, splits);
        const int place = (rank * (share.end - share.first) + four - share.first) * K::ROWS + row;
        eg_few_store(eg_cluster_address(received + place, to), eg_few_add<K>(tile, row, four));
    }
}

/* The sum of all blocks' parts, in their order. */
template <typename T>
EG_DEVICE eg_few_sums<T> eg_few_receive(const eg_few_sums<T> *parts, int step, int splits) {
    eg_few_sums<T> total = parts[0];
    for (int i = 1; i < splits; i++) eg_few_add_to(total, parts[i * step]);
    return total;
}

template <class K> EG_DEVICE void eg_few_run(const eg_cuda_gemm &p) {
    extern __shared__ __align__(128) unsigned char memory[];
    using T = typename K::real;
    T *const tile = (T *)memory;
    eg_few_sums<T> *const received = (eg_few_sums<T> *)(memory + K::RECEIVED);
    const int splits = p.splits, rank = splits > 1 ? (int)(blockIdx.x % (unsigned)splits) : 0;
    const int warp = (int)threadIdx.x / 32, deep = warp % K::DEEP, side = warp / K::DEEP;
    const uint32_t across = (uint32_t)((p.cols + K::COLS - 1) / K::COLS);
    const uint32_t index = blockIdx.x / (unsigned)splits, item = index / across;
    const eg_tile at = {(int64_t)item,   0, (int64_t)(index - item * across) * K::COLS,
                        (int32_t)p.rows, 0, p.depth};
    using operands_type = typename K::operands;
#if __CUDA_ARCH__ >= 900
    if (splits > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
    const int all = (int)((p.depth + operands_type::STEP - 1) / operands_type::STEP);
    const int begin = (int)((int64_t)all * rank / splits), end = (int)((int64_t)all * (rank + 1) / splits);
    int first = begin + deep, steps = end > first ? (end - first + K::DEEP - 1) / K::DEEP : 0;
    if constexpr (operands_type::FOLLOW) {
        first = begin + (end - begin) * deep / K::DEEP;
        steps = begin + (end - begin) * (deep + 1) / K::DEEP - first;
    }
    const eg_share share = eg_share_of<K::FOURS>(rank, splits);
    const int groups = (share.end - share.first) * K::ROWS;
    eg_few_group<K::ROWS> group((int)threadIdx.x, share);
    int count = (int)threadIdx.x < groups ? eg_few_inside<K>(p, at, group) : 0;
    eg_few_ahead<T> ahead;
    {
        operands_type operands(p, at.item, at.col + side * operands_type::COLS,
                               (int64_t)first * operands_type::STEP, K::DEEP);
        eg_let_successor_start();
        eg_wait_for_predecessor();
        eg_few_sum<operands_type, K::STAGES>(
            operands, steps, [&]() EG_INLINE { ahead = eg_few_look_ahead<K>(p, at, group, count); });
        operands.template put<K::LD>(tile + deep * K::ROWS * K::LD + side * operands_type::COLS);
    }
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    if (splits > 1) { /* the other blocks have begun */
        asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
        eg_few_send<K>(tile, received, rank, splits);
        eg_cluster_meet(splits);
    }
#endif
    const T scale = (T)p.scale;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < groups; i += K::THREADS) {
        if (i >= K::THREADS) {
            group = eg_few_group<K::ROWS>(i, share);
            count = eg_few_inside<K>(p, at, group);
            ahead = eg_few_look_ahead<K>(p, at, group, count);
        }
        eg_few_sums<T> sum = splits == 1 ? eg_few_add<K>(tile, group.row, group.four)
                                         : eg_few_receive(received + i, groups, splits);
#pragma unroll
        for (int j = 0; j < 4; j++) sum.x[j] *= scale;
        if (count > 0) eg_few_finish<K>(p, at, group, count, ahead, sum.x);
        if (p.sums != 0) received[i] = sum;
    }
    if (p.sums == 0) return;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < (share.end - share.first) * 4; i += K::THREADS) {
        const int64_t col = at.col + share.first * 4 + i;
        const T *from = received[i / 4 * K::ROWS].x + i % 4;
        T total = 0;
        for (int row = 0; row < at.rows; row++) total += from[row * 4];
        if (col < p.cols) eg_put_column_sum(p, at.item, col, total);
    }
}

/* O: the operands of a warp; BESIDE warps beside each other. */
template <class O, int ROWS_, int STAGES_, int BESIDE> struct eg_few_traits {
    using operands = O;
    using real = typename O::real;
    static constexpr int ROWS = ROWS_, STAGES = STAGES_, THREADS = EG_FEW_THREADS;
    static constexpr int DEEP = THREADS / 32 / BESIDE; /* warps that share the depth */
    static constexpr int COLS = O::COLS * BESIDE, FOURS = COLS / 4, LD = COLS + EG_FEW_PADDING;
    static constexpr int RECEIVED = EG_FEW_RECEIVED_AT(ROWS, COLS, DEEP, (int)sizeof(real));
};

#define EG_FEW_KERNEL(name, ...)                                                                             \
    extern "C" __global__ void __launch_bounds__(EG_FEW_THREADS, EG_FEW_BLOCKS)                              \
        eg_few_##name(const __grid_constant__ eg_cuda_gemm p) {                                              \
        eg_few_run<eg_few_traits<__VA_ARGS__>>(p);                                                           \
    }
#define EG_FEW_BY_COLUMNS(type, bf16, rows, stages)                                                          \
    EG_FEW_KERNEL(type##_nn_##rows##x64, eg_few_by_columns<bf16, rows, stages>, rows, stages, 1)
#define EG_FEW_BY_DEPTH(type, bf16, rows, cols, wide, stages, step, across)                                  \
    EG_FEW_KERNEL(type##_nt_##rows##x##cols, eg_few_by_depth<bf16, rows, wide, stages, step / 32>, rows,     \
                  stages, across)

/* As many loads on their way as registers hold: what is best was measured. */
#define EG_FEW_KERNELS(type, bf16)                                                                           \
    EG_FEW_BY_COLUMNS(type, bf16, 16, 2)                                                                     \
    EG_FEW_BY_DEPTH(type, bf16, 8, 16, 1, 3, 64, 1)                                                          \
    EG_FEW_BY_DEPTH(type, bf16, 16, 16, 1, 2, 64, 1)                                                         \
    EG_FEW_BY_DEPTH(type, bf16, 8, 128, 2, 4, 32, 4)                                                         \
    EG_FEW_BY_DEPTH(type, bf16, 16, 128, 2, 2, 32, 4)

#endif
