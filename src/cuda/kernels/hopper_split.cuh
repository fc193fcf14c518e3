/* SPDX-License-Identifier: Apache-2.0 */
/* The fused product of 16-bit matrices on Hopper, for results of few tiles: small tiles by the matrix unit,
 * of k-blocks that TMA loads, whose depth a cluster of blocks may share (split_tile.cuh).
 *
 * Contract: eg_cuda_hopper in ../kernels.h, with tensor maps of left and right; out, second, in and bias are
 * in vectors of 16 bytes along the rows.
 *
 * Such a product is short: what counts is how soon the first k-block is there, and how much of memory is on
 * its way at once. So a tile's loads all begin before its first product, as far as the stages go, and two or
 * three blocks of low tiles share a multiprocessor.
 *
 * A warp beside those that multiply loads: a stage again when its products have been made. It has part in the
 * epilogue like all others.
 *
 * Blocks that share the depth do not wait for each other's partial tiles and then read them: TMA copies a
 * block's part of a share to the block that finishes the share, whose barrier counts the bytes.
 *
 * Where there is little to multiply, the epilogue takes as long as the products: its addresses are made once,
 * and eight numbers go through each step of an activation side by side (many.cuh).
 *
 * The matrix unit multiplies 64 rows by 16 columns and more. A tile of 16 rows is made as its transpose: its
 * 64 columns are the unit's rows, so that few rows of the result cost no more than there are.
 *
 *                  left    [ROWS, 64]          unit:  64 x COLS
 *     16 x 64      left    [16, 64]            unit:  64 (columns of the result) x 16 (rows) */
#ifndef EG_CUDA_HOPPER_SPLIT_CUH
#define EG_CUDA_HOPPER_SPLIT_CUH

#include "hopper_ptx.cuh"
#include "many.cuh"
#include "order.cuh"
#include "split_tile.cuh"
#include "vectors.cuh"

template <bool BF16> struct eg_vector_of { using type = bf16x8; };
template <> struct eg_vector_of<false> { using type = f16x8; };

/* The type of the operands, and the tile; and what it is of: eg_dense_tile, or eg_tile of groups. */
template <bool BF16_, int ROWS_, int COLS_, class TILE> struct eg_split_traits {
    using tile = TILE;
    static constexpr bool BF16 = BF16_;
    using vector = typename eg_vector_of<BF16>::type;
    static constexpr int ROWS = ROWS_, COLS = COLS_, DEPTH = EG_HOPPER_DEPTH;
    static constexpr bool TURNED = ROWS < 64;
    static constexpr int CONSUMERS = ROWS > 64 ? 2 : 1; /* warp groups that multiply */
    static constexpr int THREADS = EG_TMA_SPLIT_THREADS + (ROWS > 64 ? 32 : 0),
                         ACCUMULATORS = ROWS * COLS / (128 * CONSUMERS);
    static constexpr int PRODUCER = 4 * CONSUMERS; /* the warp that loads, after those that multiply */
    static constexpr int STAGES = EG_TMA_SPLIT_STAGES(ROWS, COLS), STAGE = EG_TMA_SPLIT_STAGE(ROWS, COLS);
    static constexpr int LEFT = ROWS * DEPTH * 2;  /* bytes; right follows */
    static constexpr int ARRIVED = 2 * STAGES * 8; /* the barrier of what the others send */
    static constexpr int TILE_AT = EG_TMA_SPLIT_FRONT,
                         LD = EG_TMA_SPLIT_PITCH(COLS); /* of the partial tile */
    static constexpr int RECEIVED = EG_TMA_SPLIT_RECEIVED_AT(ROWS, COLS);
    static_assert(ARRIVED + 8 <= TILE_AT && TILE_AT + ROWS * LD * 4 <= RECEIVED && PRODUCER * 32 < THREADS,
                  "the tile lies where the stages were, behind the barriers; a warp loads");
    static_assert(RECEIVED + ROWS * LD * 4 / EG_MOST_SPLITS * (EG_MOST_SPLITS - 1) <=
                      EG_TMA_SPLIT_SHARED(ROWS, COLS),
                  "what other blocks send has room, with the padding of the rows");
};
/* And how they lie: an operand is MN-major where the depth is not contiguous in memory (hopper_mainloop.cuh).
 */
template <bool LEFT_MN_MAJOR_, bool RIGHT_MN_MAJOR_> struct eg_split_layout {
    static constexpr bool LEFT_MN_MAJOR = LEFT_MN_MAJOR_, RIGHT_MN_MAJOR = RIGHT_MN_MAJOR_;
};

/* ---- The ring of stages ------------------------------------------------------------------------------- */

template <class K> struct eg_split_ring {
    uint32_t shared;
    int stage = 0;
    uint32_t parity = 0; /* of the phase in which the stage is filled */

    __device__ explicit eg_split_ring(uint32_t base) : shared(base) {}
    __device__ uint32_t address() const { return shared + K::TILE_AT + stage * K::STAGE; }
    __device__ uint32_t full() const { return shared + stage * 8; }
    __device__ uint32_t empty() const { return full() + K::STAGES * 8; }
    __device__ void advance() {
        if (++stage == K::STAGES) stage = 0, parity ^= 1;
    }
};

/* By one thread. A stage is empty when every warp that multiplies has read it, of so many blocks. */
template <class K> EG_DEVICE void eg_split_barriers(uint32_t shared, int blocks = 1) {
    for (int i = 0; i < K::STAGES; i++) {
        eg_barrier_init(shared + i * 8, 1);
        eg_barrier_init(shared + (K::STAGES + i) * 8, K::CONSUMERS * 4 * blocks);
    }
    eg_barrier_init(shared + K::ARRIVED, 1);
    eg_barrier_init_fence();
}

/* ---- Loads, by one thread ----------------------------------------------------------------------------- */

/* A block's part of a tile's k-blocks, summand after summand, of which it loads the next. */
template <class K, class L> struct eg_split_loads {
    const eg_cuda_hopper &p;
    eg_split_ring<K> ring;
    int row, col, item, depth; /* depth: where the k-block begins */
    const int begin, end;      /* of the tile's depth */
    int left;                  /* k-blocks to load */

    __device__ eg_split_loads(const eg_cuda_hopper &hopper, const eg_split_ring<K> &from,
                              const typename K::tile &at, int first, int count)
        : p(hopper), ring(from), row((int)at.row), col((int)at.col), item((int)at.item), depth((int)at.term),
          begin((int)at.term), end((int)(at.term + at.depth)), left(count) {
        if (p.gemm.summed > 1 && count > 0) {
            const int each = (int)((at.depth + K::DEPTH - 1) / K::DEPTH);
            item = first / each, first -= item * each;
        }
        depth += first * K::DEPTH;
    }
    __device__ void begin_next() {
        const uint32_t to = ring.address(), full = ring.full();
        const int left_item = p.gemm.left.item_stride == 0 ? 0 : item,
                  right_item = p.gemm.right.item_stride == 0 ? 0 : item;
        eg_barrier_expect(full, K::STAGE);
        if (L::LEFT_MN_MAJOR) {
#pragma unroll
            for (int i = 0; i < K::ROWS / 64; i++)
                eg_load_box(to + i * 64 * 128, p.left, full, row + i * 64, depth, left_item);
        } else {
            eg_load_box(to, p.left, full, depth, row, left_item);
        }
        if (L::RIGHT_MN_MAJOR) {
#pragma unroll
            for (int i = 0; i < K::COLS / 64; i++)
                eg_load_box(to + K::LEFT + i * 64 * 128, p.right, full, col + i * 64, depth, right_item);
        } else {
            eg_load_box(to + K::LEFT, p.right, full, depth, col, right_item);
        }
        advance();
    }
    __device__ void advance() {
        ring.advance();
        left--;
        depth += K::DEPTH;
        if (depth >= end) depth = begin, item++;
    }
};

/* ---- What a block finishes of a tile ------------------------------------------------------------------- */

/* Whole rows of the tile are finished by one block. */
template <class K> struct eg_split_share {
    static constexpr int LINE = K::LD * 4; /* bytes */
    int rank, splits, each, first;
    __device__ eg_split_share(int rank_, int splits_, int shift)
        : rank(rank_), splits(splits_), each(K::ROWS >> shift), first(rank_ * each) {}
    __device__ int end() const { return first + each; }
    __device__ uint32_t bytes() const { return (uint32_t)(each * LINE); }
};

/* Of an address that is a number the compiler does not know that it is of global memory. */
EG_DEVICE uint4 eg_load_global(uint64_t from) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}
EG_DEVICE void eg_store_global(uint64_t to, const uint4 &v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* Vectors of a matrix of the epilogue, one below the other. */
struct eg_split_column {
    uint64_t at; /* 0: absent */
    int64_t step;
    bool wide; /* of f32: two vectors of 16 bytes */

    template <class TILE>
    __device__ eg_split_column(const eg_cuda_matrix &x, const TILE &tile, int row, int col, int rows)
        : at(x.data), step(0), wide(x.dtype == EG_F32) {
        if (at == 0) return;
        const int shift = wide ? 2 : 1;
        at += (uint64_t)(tile.item * x.item_stride + (tile.row + row) * x.row_stride + tile.col + col)
              << shift;
        step = (x.row_stride * rows) << shift;
    }
    template <class V> __device__ void load(float (&v)[8]) const {
        if (!wide) return V::widen(eg_load_global(at), v);
        float low[4], high[4];
        f32x4::widen(eg_load_global(at), low);
        f32x4::widen(eg_load_global(at + 16), high);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = i < 4 ? low[i % 4] : high[i % 4];
    }
    template <class V> __device__ void store(const float (&v)[8]) const {
        if (!wide) {
            eg_store_global(at, V::round(v));
            return;
        }
        eg_store_global(at, f32x4::round({v[0], v[1], v[2], v[3]}));
        eg_store_global(at + 16, f32x4::round({v[4], v[5], v[6], v[7]}));
    }
};

/* The vectors of a share that a thread finishes, one below the other. They are so few that all warps of the
 * block have some, also those that multiplied nothing. What the epilogue reads of memory is on its way before
 * the products are there: the bias, and `in` of the next vector, where it is of the layer's type. */
template <class K> struct eg_split_vectors {
    static constexpr int EACH_ROW = K::COLS / 8, STEP = K::THREADS / EACH_ROW;
    static_assert(K::THREADS % EACH_ROW == 0, "a thread's columns are always the same");
    const eg_cuda_gemm &p;
    int row, inside, end; /* rows up to `inside` are of the result, up to `end` of the share */
    const int col;
    eg_split_column from; /* of `in` */
    uint4 bias, in;

    __device__ eg_split_vectors(const eg_cuda_gemm &gemm, const typename K::tile &at,
                                const eg_split_share<K> &share)
        : p(gemm), row(share.first + (int)threadIdx.x / EACH_ROW), col((int)threadIdx.x % EACH_ROW * 8),
          from(gemm.in, at, row, col, STEP), bias{0, 0, 0, 0}, in{0, 0, 0, 0} {
        inside = at.col + col >= p.cols ? 0 : at.rows < share.end() ? at.rows : share.end();
        end = p.sums != 0 ? share.end() : inside;
    }
    __device__ void begin(const typename K::tile &at) {
        const int64_t first = at.item * p.bias.item_stride + at.col + col;
        if (p.bias.data != 0 && inside > 0) bias = eg_load_global(p.bias.data + first * 2);
        fetch();
    }
    __device__ void fetch() {
        if (from.at != 0 && !from.wide && row < inside) in = eg_load_global(from.at);
    }
};

/* ---- Products ----------------------------------------------------------------------------------------- */

/* Of a stage: four steps of 16 in depth, by a warp group that has 64 of the rows. */
template <class K, class L>
EG_DEVICE void eg_split_multiply(float (&acc)[K::ACCUMULATORS], uint32_t stage, bool add) {
    constexpr uint64_t LEFT_STEP = (L::LEFT_MN_MAJOR ? 16 * 128 : 32) >> 4;
    constexpr uint64_t RIGHT_STEP = (L::RIGHT_MN_MAJOR ? 16 * 128 : 32) >> 4;
    const uint64_t left = eg_operand_at(stage + threadIdx.x / 128 * (64 * 128), 64 * 128),
                   right = eg_operand_at(stage + K::LEFT, 64 * 128);
    eg_products_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint64_t l = left + i * LEFT_STEP, r = right + i * RIGHT_STEP;
        if constexpr (K::TURNED) {
            eg_multiply<K::BF16, L::RIGHT_MN_MAJOR, L::LEFT_MN_MAJOR>(acc, r, l, add || i > 0);
        } else {
            eg_multiply<K::BF16, L::LEFT_MN_MAJOR, L::RIGHT_MN_MAJOR>(acc, l, r, add || i > 0);
        }
    }
    eg_products_commit();
}

/* A k-block ends with the first terms of the next group, or with rows of no group: from term `end` on both
 * operands are cleared, for what is there may be infinite. */
template <bool MN_MAJOR>
EG_DEVICE void eg_split_clear(uint32_t operand, int lines, int end, int thread, int threads) {
    const int terms = EG_HOPPER_DEPTH - end;
    for (int i = thread; i < lines * terms; i += threads) {
        const int term = end + i % terms, line = i / terms;
        const uint32_t box = operand + (MN_MAJOR ? line / 64 * (64 * 128) : 0);
        const int down = MN_MAJOR ? term : line, along = MN_MAJOR ? line % 64 : term;
        const uint32_t to = box + down * 128 + ((along / 8 ^ (down & 7)) << 4) + along % 8 * 2;
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"((uint16_t)0) : "memory");
    }
}
template <class K, class L> EG_DEVICE void eg_split_clear_stage(uint32_t stage, int end) {
    enum { THREADS = 128 * K::CONSUMERS, SYNC = 1 };
    eg_split_clear<L::LEFT_MN_MAJOR>(stage, K::ROWS, end, (int)threadIdx.x, THREADS);
    eg_split_clear<L::RIGHT_MN_MAJOR>(stage + K::LEFT, K::COLS, end, (int)threadIdx.x, THREADS);
    eg_fence_async();
    eg_sync_threads<THREADS>(SYNC);
}

/* acc = the sum over `count` k-blocks from `first` on. A stage's products are issued before those of the
 * stage before have finished; only then can that one be loaded again. */
template <class K, class L>
EG_DEVICE void eg_split_sum(const eg_cuda_hopper &p, eg_split_ring<K> &ring, const typename K::tile &at,
                            int first, int count, float (&acc)[K::ACCUMULATORS]) {
    const int all = (int)((at.depth + K::DEPTH - 1) / K::DEPTH), partial = (int)at.depth % K::DEPTH;
    const bool ragged = K::tile::GROUPS && p.gemm.ragged == EG_CUDA_RAGGED_DEPTH;
    const int to_clear = ragged && partial != 0 ? all - 1 - first : -1;
    eg_split_ring<K> last = ring;
#pragma unroll 1
    for (int i = 0; i < count; i++, last = ring, ring.advance()) {
        eg_barrier_wait(ring.full(), ring.parity);
        if (K::tile::GROUPS && i == to_clear) eg_split_clear_stage<K, L>(ring.address(), partial);
        eg_split_multiply<K, L>(acc, ring.address(), i > 0);
        eg_products_wait<1>();
        if (i > 0 && threadIdx.x % 32 == 0) eg_barrier_arrive(last.empty());
    }
    if (count > 0 && threadIdx.x % 32 == 0)
        eg_barrier_arrive(last.empty()); /* of every phase, for the next tile */
    eg_products_wait<0>();
}

/* A block's part of a tile: by the warps that multiply, and by a thread of the one that loads. */
template <class K, class L>
EG_DEVICE void eg_split_part(const eg_cuda_hopper &p, eg_split_ring<K> &ring, const typename K::tile &at,
                             int first, int count, float (&acc)[K::ACCUMULATORS]) {
    if (threadIdx.x < 128 * K::CONSUMERS) return eg_split_sum<K, L>(p, ring, at, first, count, acc);
    eg_split_loads<K, L> loads(p, ring, at, first, count);
#pragma unroll 1
    while (loads.left > 0) {
        eg_barrier_wait(loads.ring.empty(), loads.ring.parity ^ 1);
        loads.begin_next();
    }
    ring = loads.ring;
}

/* Left that is MN-major has 64 rows a line: tiles of fewer have none (../table.c). */
template <class K>
EG_DEVICE void eg_split_part_any(const eg_cuda_hopper &p, eg_split_ring<K> &ring, const typename K::tile &at,
                                 int first, int count, float (&acc)[K::ACCUMULATORS]) {
    const bool left = p.gemm.left.col_stride != 1, right = p.gemm.right.col_stride == 1;
    if constexpr (!K::TURNED) {
        if (left && right)
            return eg_split_part<K, eg_split_layout<true, true>>(p, ring, at, first, count, acc);
        if (left) return eg_split_part<K, eg_split_layout<true, false>>(p, ring, at, first, count, acc);
    }
    if (right) return eg_split_part<K, eg_split_layout<false, true>>(p, ring, at, first, count, acc);
    eg_split_part<K, eg_split_layout<false, false>>(p, ring, at, first, count, acc);
}

/* ---- The parts of a tile become one ------------------------------------------------------------------- */

/* A block's partial tile, by the warps that multiplied: each has 16 rows of the unit's, in pairs of columns.
 */
template <class K> EG_DEVICE void eg_split_put(const float (&acc)[K::ACCUMULATORS], uint32_t shared) {
    const int lane = (int)threadIdx.x % 32,
              first = (int)threadIdx.x / 32 * 16 + lane / 4; /* 64 rows a warp group */
    const uint32_t tile = shared + K::TILE_AT;
#pragma unroll
    for (int i = 0; i < K::ACCUMULATORS; i += 2) {
        const int row = first + i / 2 % 2 * 8, col = i / 4 * 8 + lane % 4 * 2;
        if constexpr (K::TURNED) {
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(tile + (col * K::LD + row) * 4), "f"(acc[i])
                         : "memory");
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(tile + ((col + 1) * K::LD + row) * 4),
                         "f"(acc[i + 1])
                         : "memory");
        } else {
            eg_store_pair(tile + (row * K::LD + col) * 4, acc[i], acc[i + 1]);
        }
    }
}

/* Bytes of this block's shared memory, to the same address range and barrier of block `rank` of the cluster.
 */
EG_DEVICE void eg_copy_to_block(uint32_t to, uint32_t barrier, int rank, uint32_t from, uint32_t bytes) {
    asm volatile("{\n.reg .b32 there, count;\n"
                 "mapa.shared::cluster.u32 there, %0, %2;\n"
                 "mapa.shared::cluster.u32 count, %1, %2;\n"
                 "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
                 " [there], [%3], %4, [count];\n}" ::"r"(to),
                 "r"(barrier), "r"(rank), "r"(from), "r"(bytes)
                 : "memory");
}

/* To each other block of the cluster the rows that it finishes, by one thread. What a block receives lies in
 * the order of the blocks, without its own. */
template <class K> EG_DEVICE void eg_split_send(const eg_split_share<K> &share, uint32_t shared) {
    for (int i = 1; i < share.splits; i++) {
        const int to = (share.rank + i) & (share.splits - 1), place = share.rank - (share.rank > to);
        eg_copy_to_block(shared + K::RECEIVED + place * share.bytes(), shared + K::ARRIVED, to,
                         shared + K::TILE_AT + to * share.bytes(), share.bytes());
    }
}

/* Eight neighbours. Of eight lanes, the last four read their second half first, so that no two meet in a
 * bank.
 */
EG_DEVICE void eg_split_load(const float *from, float (&v)[8]) {
    const bool second = (threadIdx.x & 4) != 0;
    const float4 one = *(const float4 *)(from + (second ? 4 : 0)),
                 other = *(const float4 *)(from + (second ? 0 : 4));
    const float4 low = second ? other : one, high = second ? one : other;
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

/* Eight columns of a row of the share: the sum of all blocks' parts, in their order. */
template <class K>
EG_DEVICE void eg_split_take(const eg_split_share<K> &share, const uint8_t *memory, int row, int col,
                             float (&v)[8]) {
    const float *own = (const float *)(memory + K::TILE_AT) + row * K::LD + col,
                *others = (const float *)(memory + K::RECEIVED) + (row - share.first) * K::LD + col;
    eg_split_load(share.rank == 0 ? own : others, v);
#pragma unroll 1
    for (int rank = 1; rank < share.splits; rank++) {
        float part[8];
        eg_split_load(rank == share.rank ? own : others + (rank - (rank > share.rank)) * share.each * K::LD,
                      part);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] += part[i];
    }
}

/* ---- The epilogue ------------------------------------------------------------------------------------- */

/* Values, to which the bias is added, become results; `read` is what the epilogue reads, or 0. */
EG_DEVICE void eg_split_terms(const eg_cuda_gemm &p, const float (&read)[8], float (&v)[8]) {
    if (p.epilogue == EG_CUDA_ACT_GRAD || p.epilogue == EG_CUDA_CHAIN) {
        const bool of_value = p.epilogue == EG_CUDA_ACT_GRAD; /* act' is taken at the value, else at `in` */
        float d_act[8], grad[8];
#pragma unroll
        for (int i = 0; i < 8; i++) d_act[i] = of_value ? v[i] : read[i], grad[i] = of_value ? read[i] : v[i];
        eg_act_derivatives_many(p.activation, p.source == EG_SOURCE_Y, p.propagate != 0, eg_maybe_nan(d_act),
                                d_act);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = grad[i] * d_act[i];
        return;
    }
    if (p.epilogue != EG_CUDA_STORE && p.activation != EG_ACT_NONE) eg_act_many(p.activation, v);
    if (p.in.data == 0) return;
    const bool times = p.epilogue == EG_CUDA_TIMES;
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = times ? v[i] * read[i] : v[i] + read[i];
}

/* What is summed over the columns is left in the tile. */
template <class K>
EG_DEVICE void eg_split_finish(const eg_cuda_gemm &p, const typename K::tile &at, uint8_t *memory,
                               const eg_split_share<K> &share, eg_split_vectors<K> &vectors) {
    typedef typename K::vector vector;
    constexpr int STEP = eg_split_vectors<K>::STEP;
    const uint2 scale = *(const uint2 *)&p.scale; /* a comparison of f64 waits for the matrix unit */
    const bool scaled = scale.x != 0 || scale.y != 0x3ff00000U;
    const int col = vectors.col;
    eg_split_column out(p.out, at, vectors.row, col, STEP), second(p.second, at, vectors.row, col, STEP);
    float bias[8];
    vector::widen(vectors.bias, bias);
#pragma unroll 1
    while (vectors.row < vectors.end) {
        const int row = vectors.row;
        float v[8], read[8];
        eg_split_take<K>(share, memory, row, col, v);
        if (scaled) {
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] *= (float)p.scale;
        }
        const bool inside = row < vectors.inside;
        vector::widen(vectors.in, read);
        if (inside && vectors.from.at != 0 && vectors.from.wide) vectors.from.template load<vector>(read);
        vectors.row += STEP, vectors.from.at += vectors.from.step;
        vectors.fetch();
        if (inside) {
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] += bias[i];
            if (second.at != 0) second.template store<vector>(v);
            eg_split_terms(p, read, v);
            if (out.at != 0) out.template store<vector>(v);
        }
        out.at += out.step, second.at += second.step;
        if (p.sums == 0) continue;
        float *const to = (float *)(memory + K::TILE_AT) + row * K::LD + col;
#pragma unroll
        for (int i = 0; i < 8; i++) to[i] = inside ? v[i] : 0;
    }
}

/* The columns of a tile: each thread adds one over its share of the rows, then the shares are added. */
template <class K>
EG_DEVICE void eg_split_add_columns(const eg_cuda_gemm &p, const typename K::tile &at, float *tile) {
    constexpr int SHARES = K::THREADS / K::COLS, EACH = K::ROWS / SHARES;
    static_assert(SHARES > 0 && K::ROWS % (2 * SHARES) == 0, "a share is of pairs of rows");
    const int col = (int)threadIdx.x % K::COLS, share = (int)threadIdx.x / K::COLS;
    float *column = tile + share * EACH * K::LD + col;
    float even = 0, odd = 0;
    if (share < SHARES) {
#pragma unroll 8
        for (int i = 0; i < EACH; i += 2) {
            even += column[i * K::LD];
            odd += column[(i + 1) * K::LD];
        }
        column[0] = even + odd;
    }
    __syncthreads();
    if (share != 0 || at.col + col >= p.cols) return;
    float total = column[0];
    for (int i = 1; i < SHARES; i++) total += column[i * EACH * K::LD];
    eg_put_column_sum(p, eg_row_of_sums<K::ROWS>(p, at), at.col + col, total);
}

/* The first block of the cluster adds up the columns of the whole tile. */
template <class K>
EG_DEVICE void eg_split_sum_columns(const eg_cuda_gemm &p, const typename K::tile &at, float *tile,
                                    const eg_split_share<K> &share) {
    eg_cluster_meet(share.splits);
    if (share.rank == 0) {
        eg_collect_shares<float, K::ROWS, K::COLS, K::LD, K::THREADS>(p, tile);
        __syncthreads();
        eg_split_add_columns<K>(p, at, tile);
    }
    eg_cluster_leave(share.splits);
}

/* ---- The kernel --------------------------------------------------------------------------------------- */

template <class K> EG_DEVICE void eg_split_run(const eg_cuda_hopper &p) {
    extern __shared__ __align__(1024) uint8_t memory[];
    const int splits = p.gemm.splits, shift = __ffs(splits) - 1; /* a power of two */
    const int rank = (int)blockIdx.x & (splits - 1);
    const bool multiplies = eg_warp() < K::PRODUCER, loads = threadIdx.x == K::PRODUCER * 32;
    const eg_split_share<K> share(rank, splits, shift);
    eg_split_ring<K> ring(eg_shared_address(memory));
    eg_let_successor_start();
    if (loads) {
        eg_prefetch_tensor_map(p.left);
        eg_prefetch_tensor_map(p.right);
        eg_split_barriers<K>(ring.shared);
    }
    __syncthreads();
    uint32_t parity = 0;
    int64_t index = blockIdx.x >> shift;
    if (K::tile::GROUPS) eg_wait_for_predecessor(); /* the ends of groups are data */
    auto at = eg_tile_at<K::ROWS, K::COLS, typename K::tile>(p.gemm, index);
    while (index < p.gemm.tiles) {
        if (!K::tile::GROUPS || at.rows > 0) { /* else the other blocks of the cluster have none either */
            const int64_t all = (at.depth + K::DEPTH - 1) / K::DEPTH * p.gemm.summed;
            const int first = (int)(all * rank >> shift), count = (int)(all * (rank + 1) >> shift) - first;
            eg_split_vectors<K> vectors(p.gemm, at, share);
            float acc[K::ACCUMULATORS] = {};
            eg_wait_for_predecessor();
            if (!loads) vectors.begin(at);
            if (multiplies || loads) eg_split_part_any<K>(p, ring, at, first, count, acc);
            if (loads) {
                vectors.begin(at);
                if (splits > 1) eg_barrier_expect(ring.shared + K::ARRIVED, (splits - 1) * share.bytes());
            }
            __syncwarp();
            eg_cluster_meet(splits); /* all products have read their stages, in all blocks */
            if (multiplies) eg_split_put<K>(acc, ring.shared);
            if (splits > 1) eg_fence_async();
            __syncthreads();
            if (splits > 1) {
                if (loads) eg_split_send<K>(share, ring.shared);
                eg_barrier_wait(ring.shared + K::ARRIVED, parity);
                __syncwarp();
                eg_cluster_arrive();
            }
            eg_split_finish<K>(p.gemm, at, memory, share, vectors);
            __syncwarp();
            if (splits > 1) eg_cluster_wait(); /* a block must not leave while TMA reads its tile */
            if (p.gemm.sums != 0) eg_split_sum_columns<K>(p.gemm, at, (float *)(memory + K::TILE_AT), share);
            parity ^= 1;
        }
        index += gridDim.x >> shift;
        if (index >= p.gemm.tiles) return;
        eg_fence_async(); /* the next tile's stages lie there too */
        __syncthreads();
        at = eg_tile_at<K::ROWS, K::COLS, typename K::tile>(p.gemm, index);
    }
}

#define EG_SPLIT_KERNEL(label, bf16, rows, cols, tile, blocks)                                               \
    extern "C" __global__ void __launch_bounds__(EG_TMA_SPLIT_THREADS + ((rows) > 64 ? 32 : 0), blocks)      \
        eg_hopper_##label##_##rows##x##cols(const __grid_constant__ eg_cuda_hopper p) {                      \
        eg_split_run<eg_split_traits<bf16, rows, cols, tile>>(p);                                            \
    }
#define EG_SPLIT_KERNELS(type, bf16)                                                                         \
    EG_SPLIT_KERNEL(type##_split, bf16, 16, 64, eg_dense_tile, EG_TMA_SPLIT_MOST_BLOCKS(16))                 \
    EG_SPLIT_KERNEL(type##_split, bf16, 64, 64, eg_dense_tile, EG_TMA_SPLIT_MOST_BLOCKS(64))                 \
    EG_SPLIT_KERNEL(type##_split, bf16, 128, 128, eg_dense_tile, EG_TMA_SPLIT_MOST_BLOCKS(128))              \
    EG_SPLIT_KERNEL(type##_grouped, bf16, 16, 64, eg_tile, EG_TMA_SPLIT_BLOCKS(16))                          \
    EG_SPLIT_KERNEL(type##_grouped, bf16, 64, 64, eg_tile, EG_TMA_SPLIT_BLOCKS(64))

#endif
