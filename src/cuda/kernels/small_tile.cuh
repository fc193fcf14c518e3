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
 * and terms are padded by 16 bytes: eight of them, as a warp reads them, lie in different banks.
 *
 * cp.async moves no 2 bytes. Where lines of 16-bit numbers do not begin on 16 bytes, the vectors that they
 * lie in are copied, one more than a line has, into the padding; once they are there, their numbers move to
 * where they belong. */
#ifndef EG_CUDA_SMALL_TILE_CUH
#define EG_CUDA_SMALL_TILE_CUH

#include "async_copy.cuh"
#include "order.cuh"
#include "split_tile.cuh"

/* ---- K-blocks ------------------------------------------------------------------------------------------ */

/* LINES lines of an operand of storage type S, as a thread loads them: vectors of 16 bytes where neighbours
 * in memory are that; else number by number, or of 16 bits, which have neighbours in one direction, the
 * vectors around them. What it copies of a k-block lies DISTANCE apart across that direction. */
template <typename S, int LINES, int K_BYTES> struct eg_small_operand {
    static constexpr int SIZE = (int)sizeof(S), EACH = 16 / SIZE; /* EACH: numbers of a vector */
    static constexpr int TERMS = K_BYTES / SIZE;
    static constexpr int TERM_PITCH = TERMS + EACH; /* of [line][term] */
    static constexpr int LINE_PITCH = LINES + EACH; /* of [term][line] */
    static constexpr int STAGE = EG_SMALL_OPERAND(K_BYTES, LINES, SIZE) / SIZE;
    static constexpr int NUMBERS = LINES * TERMS / EG_SMALL_THREADS, VECTORS = NUMBERS / EACH;
    static constexpr bool SHIFTS = SIZE == 2; /* lines that do not begin on 16 bytes */
    static constexpr int WORDS = SHIFTS ? NUMBERS / 2 : 1;

    const S *first, *nothing; /* the thread's first number; a valid address, for numbers outside */
    const S *at;              /* of the k-block that is loaded next */
    int64_t term_stride, hop; /* hop: from copy to copy */
    int lines;                /* that there are, of LINES */
    int along, across;        /* of the first number, in either direction */
    int distance;
    uint32_t line_bytes; /* from line to line, modulo 2^32 */
    int to, to_hop;      /* the place of the first number in a stage, and from copy to copy: in numbers */
    bool by_term;        /* a stage is [line][term], else [term][line] */
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
        const int each = vectors || SHIFTS ? EACH : 1, copies = (by_term ? TERMS : LINES) / each;
        const int pitch = by_term ? TERM_PITCH : LINE_PITCH;
        along = (int)threadIdx.x % copies * each, across = (int)threadIdx.x / copies;
        distance = EG_SMALL_THREADS / copies;
        first = corner + along * near + across * far;
        hop = distance * far;
        line_bytes = (uint32_t)far * SIZE;
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

    /* The vectors that lines lie in. A thread's copies are a multiple of eight lines apart: what lies before
     * its numbers in their vector is as much in each. The first thread of a line also copies the last vector.
     * Nothing is read past the end of a line. */
    __device__ void load_around(int terms, S *stage) const {
        const int inside = inside_across(terms), before = (int)((uint64_t)at % 16),
                  bytes = ((by_term ? terms : lines) - along) * SIZE + before;
        const int across_line = (by_term ? TERMS : LINES) * SIZE;
        const char *const none = (const char *)nothing - (uint64_t)nothing % 16; /* read by no byte */
        const char *from = (const char *)at - before;
        uint32_t place = eg_shared_address(stage + to);
#pragma unroll
        for (int i = 0; i < VECTORS; i++, from += hop * SIZE, place += to_hop * SIZE) {
            const int some = i * distance < inside ? max(0, min(16, bytes)) : 0,
                      last = i * distance < inside ? max(0, min(16, bytes - across_line)) : 0;
            eg_copy_async<16>(place, some > 0 ? from : none, some);
            if (along == 0)
                eg_copy_async<16>(place + across_line, last > 0 ? from + across_line : none, last);
        }
    }
    /* A thread's words of what load_around has copied, as they belong: word `word()` of the lines from line()
     * on. `begins`: the address of the k-block's first number, which tells where in its vector each line
     * does. */
    __device__ int words() const { return (by_term ? TERMS : LINES) / 2; }
    __device__ int word() const { return (int)threadIdx.x % words(); }
    __device__ int line() const { return (int)threadIdx.x / words(); }
    __device__ int line_step() const { return EG_SMALL_THREADS / words(); }
    __device__ int word_pitch() const { return (by_term ? TERM_PITCH : LINE_PITCH) / 2; }
    __device__ void shift(uint32_t begins, const S *stage, uint32_t (&held)[WORDS]) const {
        const uint32_t step = (uint32_t)line_step() * line_bytes;
        const uint32_t *from = (const uint32_t *)stage + line() * word_pitch() + word();
        begins += (uint32_t)line() * line_bytes;
#pragma unroll
        for (int i = 0; i < WORDS; i++, from += line_step() * word_pitch(), begins += step) {
            const uint32_t *const x = from + begins % 16 / 4;
            held[i] = __funnelshift_r(x[0], x[1], begins % 4 * 8);
        }
    }
    __device__ void deposit(const uint32_t (&held)[WORDS], S *stage) const {
        uint32_t *to_word = (uint32_t *)stage + line() * word_pitch() + word();
#pragma unroll
        for (int i = 0; i < WORDS; i++, to_word += line_step() * word_pitch()) *to_word = held[i];
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

    const eg_cuda_gemm &p;
    left_type left;
    right_type right;
    S *ring;
    uint2 *begins;           /* addresses of the first number of left and right in each stage, modulo 2^32 */
    int64_t item, remaining; /* of the k-block that is loaded next, some steps ahead of the products */
    int64_t steps, to_load;

    /* Part `part` of the k-blocks, summand after summand. */
    template <class TILE>
    __device__ eg_small_loop(const eg_cuda_gemm &gemm, const TILE &at, int part, S *memory, uint2 *addresses)
        : p(gemm), left(p.left, eg_left_at(p, at), p.left.row_stride, p.left.col_stride, at.row, at.end()),
          right(p.right, eg_right_at(p, at), p.right.col_stride, p.right.row_stride, at.col, p.cols),
          ring(memory), begins(addresses), item(at.item) {
        const int64_t each = (at.depth + TERMS - 1) / TERMS, all = each * p.summed;
        int64_t term = 0;
        steps = all;
        if (p.summed > 1) item = 0;
        if (p.splits > 1) {
            const int shift = __ffs(p.splits) - 1; /* a power of two */
            const int64_t first = all * part >> shift;
            steps = (all * (part + 1) >> shift) - first;
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

    template <class O> __device__ void load(const O &operand, S *stage) const {
        if (operand.whole && remaining >= TERMS) return operand.load_whole(stage);
        const int terms = remaining < TERMS ? (int)remaining : TERMS;
        if (operand.vectors) return operand.template load<O::VECTORS>(terms, stage);
        if constexpr (O::SHIFTS) {
            operand.load_around(terms, stage);
        } else {
            operand.template load<O::NUMBERS>(terms, stage);
        }
    }
    __device__ S *stage_of(int index) const { return ring + index * STAGE; }

    /* Begins to load a k-block, if there is one. */
    __device__ void begin_load(int stage) {
        if (to_load > 0) {
            load(left, stage_of(stage));
            load(right, stage_of(stage) + left_type::STAGE);
            if (left_type::SHIFTS && threadIdx.x == 0)
                begins[stage] = make_uint2((uint32_t)(uint64_t)left.at, (uint32_t)(uint64_t)right.at);
            to_load--;
            remaining -= TERMS;
            left.advance();
            right.advance();
            if (remaining <= 0) {
                item++;
                seek(0, p.depth);
            }
        }
        eg_commit_copies();
    }
    /* Moves the numbers of lines that do not begin on 16 bytes to where they belong. By all threads. */
    __device__ void shift(int index) const {
        if constexpr (left_type::SHIFTS) {
            S *const of_left = stage_of(index), *const of_right = of_left + left_type::STAGE;
            uint32_t l[left_type::WORDS], r[right_type::WORDS];
            if (left.vectors && right.vectors) return;
            if (!left.vectors) left.shift(begins[index].x, of_left, l);
            if (!right.vectors) right.shift(begins[index].y, of_right, r);
            __syncthreads();
            if (!left.vectors) left.deposit(l, of_left);
            if (!right.vectors) right.deposit(r, of_right);
            __syncthreads();
        }
    }

    __device__ void run(K &k) {
        for (int i = 0; i < STAGES - 1; i++) begin_load(i);
        int stage = 0;
        for (int64_t step = 0; step < steps; step++, stage = stage + 1 == STAGES ? 0 : stage + 1) {
            eg_wait_for_copies<STAGES - 2>();
            __syncthreads();
            begin_load(stage == 0 ? STAGES - 1 : stage - 1);
            shift(stage);
            k.multiply_stage(left.by_term, right.by_term, stage_of(stage),
                             stage_of(stage) + left_type::STAGE);
        }
        eg_wait_for_copies<0>();
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
    __shared__ uint2 begins[eg_small_loop<K>::STAGES];
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
        eg_small_loop<K> loop(p, from, rank, (typename K::storage *)memory, begins);
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
