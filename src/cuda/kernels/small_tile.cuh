/* SPDX-License-Identifier: Apache-2.0 */
/* Small tiles of operands of any strides, for results that have few rows, few columns or few tiles. A cluster
 * of blocks makes a tile: each sums a part of the depth, so that the multiprocessors are busy, and memory is
 * read at its rate, where the result alone is too small for that.
 *
 *     depth           part 0    part 1    part 2    part 3
 *                       |         |         |         |      partial tiles, in shared memory
 *     tile            block 0   block 1   block 2   block 3
 *
 * They become one in split_tile.cuh.
 *
 * cp.async loads k-blocks into a ring of stages. They lie there in the direction in which they are contiguous
 * in memory, [line][term] or [term][line], where lines are the rows of left or the columns of right. Lines
 * and terms are padded by 16 bytes: eight of them, as a warp reads them, lie in different banks. */
#ifndef EG_CUDA_SMALL_TILE_CUH
#define EG_CUDA_SMALL_TILE_CUH

#include "order.cuh"
#include "split_tile.cuh"

/* ---- K-blocks ------------------------------------------------------------------------------------------ */

/* Copies `bytes` of BYTES, and writes zeros for the others. */
template <int BYTES> EG_DEVICE void eg_copy_async(uint32_t to, const void *from, int bytes) {
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES),
                     "r"(bytes));
    }
}
EG_DEVICE void eg_copy_async(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}

/* LINES lines of an operand of storage type S, as a thread loads them: vectors of 16 bytes where neighbours
 * in memory are that, else number by number. What it copies of a k-block lies DISTANCE apart across the
 * direction in which the operand is contiguous. */
template <typename S, int LINES, int K_BYTES> struct eg_small_operand {
    static constexpr int SIZE = (int)sizeof(S), EACH = 16 / SIZE; /* EACH: numbers of a vector */
    static constexpr int TERMS = K_BYTES / SIZE;
    static constexpr int TERM_PITCH = TERMS + EACH; /* of [line][term] */
    static constexpr int LINE_PITCH = LINES + EACH; /* of [term][line] */
    static constexpr int STAGE = EG_SMALL_OPERAND(K_BYTES, LINES, SIZE) / SIZE;
    static constexpr int NUMBERS = LINES * TERMS / EG_SMALL_THREADS, VECTORS = NUMBERS / EACH;

    const S *first, *nothing; /* the thread's first number; a valid address, for numbers outside */
    const S *at;              /* of the k-block that is loaded next */
    int64_t term_stride, hop; /* hop: from copy to copy */
    int lines;                /* that there are, of LINES */
    int along, across;        /* of the first number, in either direction */
    int distance;
    int to, to_hop; /* the place of the first number in a stage, and from copy to copy: in numbers */
    bool by_term;   /* a stage is [line][term], else [term][line] */
    bool vectors;
    bool whole; /* vectors, and no line is missing */

    /* `base`: of the first term of line 0; lines begin to end - 1. */
    __device__ eg_small_operand(const eg_cuda_matrix &x, int64_t base, int64_t line_stride, int64_t to_term,
                                int64_t begin, int64_t end)
        : nothing((const S *)x.data), term_stride(to_term) {
        const S *const corner = nothing + base + begin * line_stride;
        lines = end - begin < LINES ? (int)(end - begin) : LINES;
        by_term = term_stride == 1;
        const int64_t near = by_term ? term_stride : line_stride, far = by_term ? line_stride : term_stride;
        vectors = near == 1 && far % EACH == 0 && x.item_stride % EACH == 0 && (uint64_t)corner % 16 == 0;
        whole = vectors && lines == LINES;
        const int each = vectors ? EACH : 1, copies = (by_term ? TERMS : LINES) / each;
        const int pitch = by_term ? TERM_PITCH : LINE_PITCH;
        along = (int)threadIdx.x % copies * each, across = (int)threadIdx.x / copies;
        distance = EG_SMALL_THREADS / copies;
        first = corner + along * near + across * far;
        hop = distance * far;
        to = across * pitch + along, to_hop = distance * pitch;
    }

    /* Goes to a term of an item, or to the next k-block. */
    __device__ void seek(int64_t item_at, int64_t term) { at = first + item_at + term * term_stride; }
    __device__ void advance() { at += TERMS * term_stride; }

    /* Of a k-block with `terms` terms: numbers across the copies that are inside, and those of each copy. */
    __device__ int inside_across(int terms) const { return (by_term ? lines : terms) - across; }
    __device__ int inside_along(int terms, int each) const {
        return max(0, min(each, (by_term ? terms : lines) - along));
    }

    /* Copies a k-block with nothing outside. */
    __device__ void load_whole(S *stage) const {
        const char *from = (const char *)at;
        uint32_t place = eg_shared_address(stage + to);
#pragma unroll
        for (int i = 0; i < VECTORS; i++, from += hop * SIZE, place += to_hop * SIZE)
            eg_copy_async(place, from);
    }
    /* Numbers outside are written as 0. */
    template <int COPIES> __device__ void load(int terms, S *stage) const {
        constexpr int COUNT = NUMBERS / COPIES;
        const int inside = inside_across(terms), bytes = inside_along(terms, COUNT) * SIZE;
        const S *from = at;
        uint32_t place = eg_shared_address(stage + to);
#pragma unroll
        for (int i = 0; i < COPIES; i++, from += hop, place += to_hop * SIZE) {
            const int some = i * distance < inside ? bytes : 0;
            eg_copy_async<COUNT * SIZE>(place, some > 0 ? from : nothing, some);
        }
    }

    /* cp.async moves no 2 bytes: such numbers wait in registers. */
    __device__ void fetch(int terms, S (&held)[NUMBERS]) const {
        const int inside = inside_along(terms, 1) > 0 ? inside_across(terms) : 0;
        const S *from = at;
#pragma unroll
        for (int i = 0; i < NUMBERS; i++, from += hop) held[i] = i * distance < inside ? *from : (S)0;
    }
    __device__ void deposit(const S (&held)[NUMBERS], S *stage) const {
        S *place = stage + to;
#pragma unroll
        for (int i = 0; i < NUMBERS; i++, place += to_hop) *place = held[i];
    }
};

/* ---- The products of a part ---------------------------------------------------------------------------- */

/* K has the types of its operands, the tile, its accumulators and multiply_stage. */
template <class K> struct eg_small_loop {
    using S = typename K::storage;
    using left_type = typename K::left_type;
    using right_type = typename K::right_type;
    static constexpr int TERMS = left_type::TERMS, STAGE = left_type::STAGE + right_type::STAGE;
    static constexpr int STAGES = EG_SMALL_STAGES(K::ROWS, K::COLS, (int)sizeof(S));
    static constexpr bool HOLDS = sizeof(S) == 2;

    const eg_cuda_gemm &p;
    left_type left;
    right_type right;
    S *ring;
    int64_t item, remaining; /* of the k-block that is loaded next, some steps ahead of the products */
    int64_t steps, to_load;
    S held_left[HOLDS ? left_type::NUMBERS : 1], held_right[HOLDS ? right_type::NUMBERS : 1];

    /* Part `part` of the k-blocks, summand after summand. */
    template <class TILE>
    __device__ eg_small_loop(const eg_cuda_gemm &gemm, const TILE &at, int part, S *memory)
        : p(gemm), left(p.left, eg_left_at(p, at), p.left.row_stride, p.left.col_stride, at.row, at.end()),
          right(p.right, eg_right_at(p, at), p.right.col_stride, p.right.row_stride, at.col, p.cols),
          ring(memory), item(at.item) {
        const int64_t each = (at.depth + TERMS - 1) / TERMS, all = each * p.summed;
        int64_t term = 0;
        steps = all;
        if (p.summed > 1) item = 0;
        if (p.splits > 1) {
            const int64_t first = all * part / p.splits;
            steps = all * (part + 1) / p.splits - first;
            if (p.summed > 1) item = first / each;
            term = (p.summed > 1 ? first - item * each : first) * TERMS;
        }
        to_load = steps;
        seek(term, at.depth);
    }
    __device__ void seek(int64_t term, int64_t depth) {
        remaining = depth - term;
        left.seek(item * p.left.item_stride, term);
        right.seek(item * p.right.item_stride, term);
    }

    template <class O> __device__ void load(const O &operand, S *stage, S *held) const {
        if (operand.whole && remaining >= TERMS) return operand.load_whole(stage);
        const int terms = remaining < TERMS ? (int)remaining : TERMS;
        if (operand.vectors) return operand.template load<O::VECTORS>(terms, stage);
        if constexpr (HOLDS) {
            operand.fetch(terms, *(S(*)[O::NUMBERS])held);
        } else {
            operand.template load<O::NUMBERS>(terms, stage);
        }
    }
    __device__ S *stage_of(int index) const { return ring + index * STAGE; }

    /* Begins to load a k-block; returns whether there is one. */
    __device__ bool begin_load(int stage) {
        const bool there = to_load > 0;
        if (there) {
            load(left, stage_of(stage), held_left);
            load(right, stage_of(stage) + left_type::STAGE, held_right);
            to_load--;
            remaining -= TERMS;
            left.advance();
            right.advance();
            if (remaining <= 0) {
                item++;
                seek(0, p.depth);
            }
        }
        asm volatile("cp.async.commit_group;");
        return there;
    }
    __device__ void end_load(bool there, int stage) const {
        if constexpr (HOLDS) {
            if (there && !left.vectors) left.deposit(held_left, stage_of(stage));
            if (there && !right.vectors) right.deposit(held_right, stage_of(stage) + left_type::STAGE);
        }
    }

    __device__ void run(K &k) {
        for (int i = 0; i < STAGES - 1; i++) end_load(begin_load(i), i);
        int stage = 0;
        for (int64_t step = 0; step < steps; step++, stage = stage + 1 == STAGES ? 0 : stage + 1) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
            __syncthreads();
            const int ahead = stage == 0 ? STAGES - 1 : stage - 1;
            const bool there = begin_load(ahead);
            k.multiply_stage(left.by_term, right.by_term, stage_of(stage),
                             stage_of(stage) + left_type::STAGE);
            end_load(there, ahead);
        }
        asm volatile("cp.async.wait_group 0;");
        __syncthreads();
    }
};

/* Adds the tiles of warps that shared the terms, which lie behind each other. */
template <typename T, int ROWS, int COLS, int LD, int LAYERS> EG_DEVICE void eg_small_add_layers(T *tile) {
    if constexpr (LAYERS > 1) {
        __syncthreads();
        for (int i = (int)threadIdx.x; i < ROWS * COLS; i += EG_SMALL_THREADS) {
            T *total = tile + i / COLS * LD + i % COLS;
#pragma unroll
            for (int other = 1; other < LAYERS; other++) *total += total[other * ROWS * LD];
        }
    }
}

/* ---- A kernel -------------------------------------------------------------------------------------------
 */

/* TILE: eg_dense_tile, or eg_tile of groups. */
template <class K, class TILE> EG_DEVICE void eg_small_run(const eg_cuda_gemm &p) {
    extern __shared__ __align__(128) unsigned char memory[];
    typedef typename K::compute T;
    constexpr int LD = K::COLS + 4;
    T *const tile = (T *)memory;
    const uint32_t splits = (uint32_t)p.splits;
    const int rank = splits > 1 ? (int)(blockIdx.x % splits) : 0;
    eg_let_successor_start();
    if (TILE::GROUPS) eg_wait_for_predecessor(); /* it may write the ends */
    for (int64_t index = splits > 1 ? blockIdx.x / splits : blockIdx.x; index < p.tiles;
         index += gridDim.x / splits) {
        const TILE from = eg_tile_at<K::ROWS, K::COLS, TILE>(p, index);
        if (TILE::GROUPS && from.rows == 0) continue; /* nor have the other blocks of the cluster any */
        K k(p, from);
        eg_small_loop<K> loop(p, from, rank, (typename K::storage *)memory);
        eg_wait_for_predecessor();
        loop.run(k);
        k.template put<LD>(tile);
        /* Of groups it is found again: the loop has no registers for it. */
        const TILE at = TILE::GROUPS ? eg_tile_at<K::ROWS, K::COLS, TILE>(p, index) : from;
        eg_finish_parts<T, K::ROWS, K::COLS, LD, EG_SMALL_THREADS>(
            p, at, rank, tile, [&](const eg_share &share) {
                eg_finish_groups<T, K::ROWS, K::COLS, LD, EG_SMALL_THREADS>(p, at, tile, share.first,
                                                                            share.end);
            });
    }
}

#define EG_SMALL_ENTRY_OF(tile, name, ...)                                                                   \
    extern "C" __global__ void __launch_bounds__(EG_SMALL_THREADS, 3)                                        \
        eg_##name(const __grid_constant__ eg_cuda_gemm p) {                                                  \
        eg_small_run<__VA_ARGS__, tile>(p);                                                                  \
    }
#define EG_SMALL_ENTRY(name, ...)         EG_SMALL_ENTRY_OF(eg_dense_tile, name, __VA_ARGS__)
#define EG_SMALL_GROUPED_ENTRY(name, ...) EG_SMALL_ENTRY_OF(eg_tile, name, __VA_ARGS__)

#endif
