/* SPDX-License-Identifier: Apache-2.0 */
/* The epilogue of the kernels that leave a finished tile in shared memory.
 *
 * Accumulators lie in an order that suits the matrix unit. Read again from shared memory, neighbouring
 * threads have neighbouring elements of `out` and `in`, whatever their layout. Each thread takes four
 * neighbours at a time:
 *
 *     out row-major: ---- four columns ---->       out column-major: | four rows
 *                                                                    v
 */
#ifndef EG_CUDA_EPILOGUE_CUH
#define EG_CUDA_EPILOGUE_CUH

#include "../groups.h"
#include "matrix.cuh"

/* Where a tile begins, and what it is of: all rows and terms, or those of a group, if p.ragged says so. */
struct eg_tile {
    static constexpr bool GROUPS = true;
    int64_t item, row, col; /* of its first element */
    int32_t rows;           /* that there are; a tile of a group may have none */
    int64_t term, depth;    /* the first term, and how many there are */

    __device__ int64_t end() const { return row + rows; }
};
/* The same in a kernel that takes no groups: their branches take registers that small tiles do not have. */
struct eg_dense_tile {
    static constexpr bool GROUPS = false;
    static constexpr int64_t term = 0;
    int64_t item, row, col;
    int32_t rows;
    int64_t depth;

    __device__ int64_t end() const { return row + rows; }
};

/* ---- Groups ---------------------------------------------------------------------------------------- */

template <typename P> EG_DEVICE eg_cuda_ends eg_ends_of(const P &p, int64_t rows, int64_t groups) {
    return {(const int32_t *)p.ends, (uint32_t)rows, (uint32_t)groups};
}

/* By the threads of one block: the host learns of wrong ends when it waits for the stream. */
EG_DEVICE void eg_check_ends(const eg_cuda_ends &ends, uint64_t wrong) {
    for (uint32_t group = threadIdx.x; group < ends.count; group += blockDim.x) {
        if (eg_cuda_end_is_wrong(ends, group)) *(volatile uint32_t *)wrong = 1;
    }
}

/* From a row tile, in whose place the tile is, or from the number of a group, to its rows. By all threads of
 * a block. */
template <int ROWS> EG_DEVICE void eg_find_group(const eg_cuda_gemm &p, eg_tile &at, bool first) {
    const bool by_rows = p.ragged == EG_CUDA_RAGGED_ROWS;
    const eg_cuda_ends ends = eg_ends_of(p, by_rows ? p.rows : p.depth, p.items);
    if (first) eg_check_ends(ends, p.wrong);
    if (by_rows) {
        const eg_cuda_group_rows rows = eg_cuda_rows_of_row_tile(ends, ROWS, (uint32_t)(at.row / ROWS));
        at.item = rows.group, at.row = rows.first, at.rows = (int32_t)(rows.end - rows.first);
    } else {
        const eg_cuda_group_rows rows = eg_cuda_rows_of_group(ends, (uint32_t)at.item);
        at.term = rows.first, at.depth = rows.end - rows.first;
    }
}

/* ---- Tiles ----------------------------------------------------------------------------------------- */

/* Tiles are numbered down bands of 8 rows of tiles, so that blocks that run at once share operands in L2. */
template <int ROWS, int COLS, class TILE, typename I>
EG_DEVICE TILE eg_tile_by(const eg_cuda_gemm &p, I index) {
    const bool by_group = TILE::GROUPS && p.ragged == EG_CUDA_RAGGED_ROWS; /* of all groups */
    const I down = (I)(by_group ? eg_cuda_row_tiles(p.rows, p.items, ROWS) : (p.rows + ROWS - 1) / ROWS),
            across = (I)((p.cols + COLS - 1) / COLS), each = down * across;
    const I item = index / each, in_item = index - item * each;
    const I band = in_item / (8 * across), in_band = in_item - band * 8 * across;
    const I left = down - band * 8, height = left < 8 ? left : 8;
    const I across_band = in_band / height, chunk = band * 8 + in_band - across_band * height;
    TILE at{};
    at.item = (int64_t)item, at.row = (int64_t)chunk * ROWS, at.col = (int64_t)across_band * COLS;
    at.rows = p.rows - at.row < ROWS ? (int32_t)(p.rows - at.row) : ROWS;
    at.depth = p.depth;
    return at;
}
/* A division of 64-bit numbers is a loop of some 100 instructions, and small products wait for it. */
template <int ROWS, int COLS, class TILE = eg_tile>
EG_DEVICE TILE eg_tile_at(const eg_cuda_gemm &p, int64_t index) {
    TILE at = p.tiles < 1LL << 31 ? eg_tile_by<ROWS, COLS, TILE>(p, (uint32_t)index)
                                  : eg_tile_by<ROWS, COLS, TILE>(p, index);
    if constexpr (TILE::GROUPS) {
        if (p.ragged != EG_CUDA_DENSE) eg_find_group<ROWS>(p, at, index == 0);
    }
    return at;
}

/* A tile's row of `sums`. Of groups it is that of its row tile, which is begin / ROWS + group and one more
 * for each ROWS rows from there. */
template <int ROWS, class TILE> EG_DEVICE int64_t eg_row_of_sums(const eg_cuda_gemm &p, const TILE &at) {
    return at.row / ROWS + at.item * (!TILE::GROUPS || p.ragged == EG_CUDA_DENSE ? p.chunks : 1);
}

/* Where a tile's terms of left and right begin, from the first line of their item on. */
template <class TILE> EG_DEVICE int64_t eg_left_at(const eg_cuda_gemm &p, const TILE &at) {
    return at.term * p.left.col_stride;
}
template <class TILE> EG_DEVICE int64_t eg_right_at(const eg_cuda_gemm &p, const TILE &at) {
    return at.term * p.right.row_stride;
}

/* A matrix of the epilogue, as a thread with four neighbours reads and writes it. */
struct eg_lane {
    bool there, vector;
    int64_t base, row_stride, col_stride, step;
};

/* Rows of a group may begin anywhere: vectors down the rows may not. */
template <class TILE> EG_DEVICE eg_lane eg_lane_of(const eg_cuda_matrix &x, const TILE &at, bool down) {
    const int64_t step = down ? x.row_stride : x.col_stride, other = down ? x.col_stride : x.row_stride;
    return {x.data != 0,
            (!TILE::GROUPS || !down || at.row % 4 == 0) && eg_vectors(x, step, other),
            at.item * x.item_stride,
            x.row_stride,
            x.col_stride,
            step};
}

template <typename T>
EG_DEVICE void eg_take(const eg_cuda_matrix &x, const eg_lane &lane, int64_t row, int64_t col, int count,
                       T (&v)[4]) {
    const int64_t at = lane.base + row * lane.row_stride + col * lane.col_stride;
    if (lane.vector && count == 4) return eg_load4(x, at, v);
    eg_load_some(x, at, lane.step, count, v);
}

template <typename T>
EG_DEVICE void eg_put(const eg_cuda_matrix &x, const eg_lane &lane, int64_t row, int64_t col, int count,
                      const T (&v)[4]) {
    const int64_t at = lane.base + row * lane.row_stride + col * lane.col_stride;
    if (lane.vector && count == 4) return eg_store4(x, at, v);
    eg_store_some(x, at, lane.step, count, v);
}

/* Of four columns, of which `count` are there; 0 where there is none. */
template <typename T>
EG_DEVICE void eg_load_bias(const eg_cuda_gemm &p, int64_t item, int64_t col, int count, T (&bias)[4]) {
    eg_load_some(p.bias, item * p.bias.item_stride + col * p.bias.col_stride, p.bias.col_stride,
                 p.bias.data != 0 ? count : 0, bias);
}

/* Four values, to which the bias is added, become four results. v returns the numbers that are summed over
 * the columns. */
template <typename T>
EG_DEVICE void eg_finish(const eg_cuda_gemm &p, const eg_lane &out, const eg_lane &second, const eg_lane &in,
                         bool down, int64_t row, int64_t col, int count, T (&v)[4]) {
    T other[4];
    switch (p.epilogue) {
    case EG_CUDA_STORE:
        if (p.accumulate) {
            eg_take(p.out, out, row, col, count, other);
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] += other[i];
        }
        break;
    case EG_CUDA_TIMES:
        if (second.there) eg_put(p.second, second, row, col, count, v);
        eg_act(p.activation, v);
        eg_take(p.in, in, row, col, count, other);
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] *= other[i];
        break;
    case EG_CUDA_FORWARD:
        if (second.there) eg_put(p.second, second, row, col, count, v);
        eg_act(p.activation, v);
        if (in.there) {
            eg_take(p.in, in, row, col, count, other);
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] += other[i];
        }
        break;
    case EG_CUDA_ACT_GRAD:
        eg_take(p.in, in, row, col, count, other);
        eg_act_grad(p.activation, p.source == EG_SOURCE_Y, p.propagate != 0, other, v);
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = other[i];
        break;
    case EG_CUDA_CHAIN:
        if (p.activation != EG_ACT_NONE) eg_take(p.in, in, row, col, count, other);
        eg_act_grad(p.activation, p.source == EG_SOURCE_Y, p.propagate != 0, v, other);
        break;
    }
    if (out.there) eg_put(p.out, out, row, col, count, v);
}

/* Column sums of the tile: each thread adds a column over its share of the rows, then the shares are added.
 */
template <typename T, int ROWS, int COLS, int LD, int THREADS, class TILE>
EG_DEVICE void eg_sum_columns(const eg_cuda_gemm &p, const TILE &at, T *tile) {
    constexpr int SHARES = THREADS / COLS, EACH = ROWS / SHARES;
    static_assert(THREADS % COLS == 0 && ROWS % SHARES == 0, "whole columns a thread");
    const int col = threadIdx.x % COLS, share = threadIdx.x / COLS;
    T *column = tile + share * EACH * LD + col;
    T even = 0, odd = 0;
    for (int i = 0; i < EACH; i += 2) {
        even += column[i * LD];
        odd += column[(i + 1) * LD];
    }
    column[0] = even + odd;
    __syncthreads();
    if (share != 0 || at.col + col >= p.cols) return;
    T total = column[0];
    for (int i = 1; i < SHARES; i++) total += column[i * EACH * LD];
    eg_put_column_sum(p, eg_row_of_sums<ROWS>(p, at), at.col + col, total);
}

/* The groups of four neighbours of a tile in shared memory. */
template <int ROWS, int COLS, int LD> struct eg_groups {
    static constexpr int COUNT = ROWS * COLS / 4;
    bool down;

    __device__ explicit eg_groups(const eg_cuda_gemm &p) {
        const eg_cuda_matrix &lead = p.out.data != 0 ? p.out : p.in;
        down = lead.row_stride == 1 && lead.col_stride != 1;
    }
    __device__ int row(int group) const { return down ? group % (ROWS / 4) * 4 : group / (COLS / 4); }
    __device__ int col(int group) const { return down ? group / (ROWS / 4) : group % (COLS / 4) * 4; }
    __device__ int at(int group) const { return row(group) * LD + col(group); }
    __device__ int step() const { return down ? LD : 1; }
};

/* The epilogue of the groups from `first` to `end`. Of what is summed over the columns the tile then has the
 * numbers. */
template <typename T, int ROWS, int COLS, int LD, int THREADS, class TILE>
EG_DEVICE void eg_finish_groups(const eg_cuda_gemm &p, const TILE &at, T *tile, int first, int end) {
    const eg_groups<ROWS, COLS, LD> groups(p);
    const bool down = groups.down;
    const eg_lane out = eg_lane_of(p.out, at, down), second = eg_lane_of(p.second, at, down),
                  in = eg_lane_of(p.in, at, down);
    if (p.scale != 1) { /* by the thread that reads them */
        for (int group = first + (int)threadIdx.x; group < end; group += THREADS)
            for (int i = 0; i < 4; i++) tile[groups.at(group) + i * groups.step()] *= (T)p.scale;
    }
    for (int group = first + (int)threadIdx.x; group < end; group += THREADS) {
        const int64_t row = at.row + groups.row(group), col = at.col + groups.col(group);
        const int64_t left = down ? at.end() - row : p.cols - col;
        const int count = groups.row(group) >= at.rows || col >= p.cols ? 0 : (left < 4 ? (int)left : 4);
        T *from = tile + groups.at(group);
        T v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = from[i * groups.step()];
        if (count > 0) {
            T bias[4];
            eg_load_bias(p, at.item, col, down ? 1 : count, bias);
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] += bias[down ? 0 : i];
            eg_finish(p, out, second, in, down, row, col, count, v);
        }
        if (p.sums != 0) {
#pragma unroll
            for (int i = 0; i < 4; i++) from[i * groups.step()] = i < count ? v[i] : (T)0;
        }
    }
}

/* `tile`: ROWS rows of LD numbers in shared memory, which all threads may read. */
template <typename T, int ROWS, int COLS, int LD, int THREADS, class TILE>
EG_DEVICE void eg_finish_tile(const eg_cuda_gemm &p, const TILE &at, T *tile) {
    eg_finish_groups<T, ROWS, COLS, LD, THREADS>(p, at, tile, 0, ROWS * COLS / 4);
    __syncthreads();
    if (p.sums == 0) return;
    eg_sum_columns<T, ROWS, COLS, LD, THREADS>(p, at, tile);
    __syncthreads();
}

#endif
