/* SPDX-License-Identifier: Apache-2.0 */
/* The fused product of 16-bit matrices on Hopper, for results of few tiles: small tiles by the matrix unit,
 * of k-blocks that TMA loads, whose depth a cluster of blocks may share (split_tile.cuh).
 *
 * Contract: eg_cuda_hopper in ../kernels.h, with tensor maps of left and right; out, second, in and bias are
 * in vectors of 16 bytes along the rows.
 *
 * Such a product is short: what counts is how soon the first k-block is there, and how much of memory is on
 * its way at once. So a tile's loads all begin before its first product, as far as the stages go; two blocks
 * share a multiprocessor; and there is no producer warp to start and to wait for. A thread loads a stage
 * again when the products of the next one have begun.
 *
 * Blocks that share the depth do not wait for each other's partial tiles and then read them: each sends its
 * part of a share to the block that finishes the share, whose barrier counts the bytes. That is one way
 * through the cluster for three, and no fence.
 *
 * The matrix unit multiplies 64 rows by 16 columns and more. A tile of 16 rows is made as its transpose: its
 * 64 columns are the unit's rows, so that few rows of the result cost no more than there are.
 *
 *                  left    [ROWS, 64]          unit:  64 x COLS
 *     16 x 64      left    [16, 64]            unit:  64 (columns of the result) x 16 (rows) */
#ifndef EG_CUDA_HOPPER_SPLIT_CUH
#define EG_CUDA_HOPPER_SPLIT_CUH

#include "hopper_ptx.cuh"
#include "order.cuh"
#include "split_tile.cuh"
#include "vector_epilogue.cuh"

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
    static constexpr int THREADS = EG_TMA_SPLIT_THREADS, ACCUMULATORS = ROWS * COLS / (128 * CONSUMERS);
    static constexpr int STAGES = EG_TMA_SPLIT_STAGES(ROWS, COLS), STAGE = EG_TMA_SPLIT_STAGE(ROWS, COLS);
    static constexpr int LEFT = ROWS * DEPTH * 2;  /* bytes; right follows */
    static constexpr int ARRIVED = 2 * STAGES * 8; /* the barrier of what the others send */
    static constexpr int TILE_AT = EG_TMA_SPLIT_FRONT,
                         LD = EG_TMA_SPLIT_PITCH(COLS); /* of the partial tile */
    static constexpr int RECEIVED = EG_TMA_SPLIT_RECEIVED_AT(ROWS, COLS);
    static_assert(ARRIVED + 8 <= TILE_AT && TILE_AT + ROWS * LD * 4 <= RECEIVED,
                  "the tile lies where the stages were, behind the barriers");
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

/* By one thread. */
template <class K> EG_DEVICE void eg_split_barriers(uint32_t shared) {
    for (int i = 0; i < K::STAGES; i++) {
        eg_barrier_init(shared + i * 8, 1);
        eg_barrier_init(shared + (K::STAGES + i) * 8, K::CONSUMERS * 4);
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
        const int each = (int)((at.depth + K::DEPTH - 1) / K::DEPTH);
        if (p.gemm.summed > 1) item = first / each;
        if (count > 0) depth += first % each * K::DEPTH;
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
        ring.advance();
        left--;
        depth += K::DEPTH;
        if (depth >= end) depth = begin, item++;
    }
};

/* ---- What a block finishes of a tile ------------------------------------------------------------------- */

/* Whole rows of the tile are finished by one block: rows [rank * each, (rank + 1) * each). */
template <class K> struct eg_split_share {
    int rank, splits, each;
    __device__ eg_split_share(int rank_, int splits_, int shift)
        : rank(rank_), splits(splits_), each(K::ROWS >> shift) {}
    __device__ int bytes() const { return each * K::COLS * 4; }
};

/* The vectors of a share that a thread finishes, one after the other, in the same columns. They are so few
 * that all warps of the block have some, also those that multiplied nothing. What the epilogue reads of
 * memory is on its way before the products are there: the bias, and `in` of the next vector, where it is of
 * the layer's type. */
template <class K> struct eg_split_vectors {
    static constexpr int EACH_ROW = K::COLS / 8;
    static_assert(K::THREADS % EACH_ROW == 0, "a thread's columns are always the same");
    const eg_cuda_gemm &p;
    const typename K::tile &at;
    int index, end;
    bool ahead; /* whether `in` is read before its vector's turn */
    uint4 bias, in;

    __device__ eg_split_vectors(const eg_cuda_gemm &gemm, const typename K::tile &tile,
                                const eg_split_share<K> &share)
        : p(gemm), at(tile), index(share.rank * share.each * EACH_ROW + (int)threadIdx.x),
          end((share.rank + 1) * share.each * EACH_ROW), bias{0, 0, 0, 0}, in{0, 0, 0, 0} {
        ahead = p.in.data != 0 && p.in.dtype != EG_F32;
    }
    __device__ void begin() {
        if (p.bias.data != 0 && at.col + col() < p.cols)
            bias = *eg_vector_at<typename K::vector>(p.bias, at.item, 0, at.col + col());
        fetch();
    }
    __device__ int row() const { return index / EACH_ROW; }
    __device__ int col() const { return index % EACH_ROW * 8; }
    __device__ bool inside() const { return row() < at.rows && at.col + col() < p.cols; }
    __device__ void fetch() {
        if (ahead && index < end && inside())
            in = *eg_vector_at<typename K::vector>(p.in, at.item, at.row + row(), at.col + col());
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
                            int first, int count, eg_split_vectors<K> &vectors,
                            float (&acc)[K::ACCUMULATORS]) {
    eg_split_loads<K, L> loads(p, ring, at, first, count);
    const bool loading = threadIdx.x == 0;
    const int all = (int)((at.depth + K::DEPTH - 1) / K::DEPTH), partial = (int)at.depth % K::DEPTH;
    const bool ragged = K::tile::GROUPS && p.gemm.ragged == EG_CUDA_RAGGED_DEPTH;
    const int to_clear = ragged && partial != 0 ? all - 1 - first : -1;
    if (loading) {
        for (int i = 0; i < K::STAGES && loads.left > 0; i++) loads.begin_next();
    }
    __syncwarp();
    vectors.begin();
    eg_split_ring<K> last = ring;
    for (int i = 0; i < count; i++, last = ring, ring.advance()) {
        eg_barrier_wait(ring.full(), ring.parity);
        if (K::tile::GROUPS && i == to_clear) eg_split_clear_stage<K, L>(ring.address(), partial);
        eg_split_multiply<K, L>(acc, ring.address(), i > 0);
        eg_products_wait<1>();
        if (i == 0) continue;
        if (threadIdx.x % 32 == 0) eg_barrier_arrive(last.empty());
        if (loading && loads.left > 0) {
            eg_barrier_wait(last.empty(), last.parity);
            loads.begin_next();
        }
        __syncwarp();
    }
    if (count > 0 && threadIdx.x % 32 == 0)
        eg_barrier_arrive(last.empty()); /* of every phase, for the next tile */
    eg_products_wait<0>();
}

/* Left that is MN-major has 64 rows a line: tiles of fewer have none (../table.c). */
template <class K>
EG_DEVICE void eg_split_sum_any(const eg_cuda_hopper &p, eg_split_ring<K> &ring, const typename K::tile &at,
                                int first, int count, eg_split_vectors<K> &vectors,
                                float (&acc)[K::ACCUMULATORS]) {
    const bool left = p.gemm.left.col_stride != 1, right = p.gemm.right.col_stride == 1;
    if constexpr (!K::TURNED) {
        if (left && right)
            return eg_split_sum<K, eg_split_layout<true, true>>(p, ring, at, first, count, vectors, acc);
        if (left)
            return eg_split_sum<K, eg_split_layout<true, false>>(p, ring, at, first, count, vectors, acc);
    }
    if (right) return eg_split_sum<K, eg_split_layout<false, true>>(p, ring, at, first, count, vectors, acc);
    eg_split_sum<K, eg_split_layout<false, false>>(p, ring, at, first, count, vectors, acc);
}

/* ---- The parts of a tile become one ------------------------------------------------------------------- */

/* Numbers of this block's partial tile that lie beside each other in a row: to the tile, where this block
 * finishes the row, else to the block that does. What a block receives of others lies in their order, without
 * its own. */
template <class K, int COUNT>
EG_DEVICE void eg_split_send(const eg_split_share<K> &share, uint32_t shared, int row, int col,
                             const float (&x)[COUNT]) {
    const int to = row / share.each;
    if (to == share.rank) {
        const uint32_t here = shared + K::TILE_AT + (row * K::LD + col) * 4;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(here + i * 4), "f"(x[i]) : "memory");
        return;
    }
    const int place = share.rank - (share.rank > to);
    const uint32_t at =
        shared + K::RECEIVED + ((place * share.each + row - to * share.each) * K::COLS + col) * 4;
    if constexpr (COUNT == 2) {
        asm volatile(
            "{\n.reg .b32 there, barrier;\n"
            "mapa.shared::cluster.u32 there, %0, %2;\n"
            "mapa.shared::cluster.u32 barrier, %1, %2;\n"
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%3, %4}, [barrier];\n}" ::
                "r"(at),
            "r"(shared + K::ARRIVED), "r"(to), "f"(x[0]), "f"(x[1])
            : "memory");
    } else {
        asm volatile(
            "{\n.reg .b32 there, barrier;\n"
            "mapa.shared::cluster.u32 there, %0, %2;\n"
            "mapa.shared::cluster.u32 barrier, %1, %2;\n"
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %3, [barrier];\n}" ::"r"(at),
            "r"(shared + K::ARRIVED), "r"(to), "f"(x[0])
            : "memory");
    }
}

/* Each warp has 16 rows of the unit's, in pairs of columns. */
template <class K>
EG_DEVICE void eg_split_put(const float (&acc)[K::ACCUMULATORS], const eg_split_share<K> &share,
                            uint32_t shared) {
    const int lane = (int)threadIdx.x % 32,
              first = (int)threadIdx.x / 32 * 16 + lane / 4; /* 64 rows a warp group */
#pragma unroll
    for (int i = 0; i < K::ACCUMULATORS; i += 2) {
        const int row = first + i / 2 % 2 * 8, col = i / 4 * 8 + lane % 4 * 2;
        if constexpr (K::TURNED) {
            eg_split_send<K, 1>(share, shared, col, row, {acc[i]});
            eg_split_send<K, 1>(share, shared, col + 1, row, {acc[i + 1]});
        } else {
            eg_split_send<K, 2>(share, shared, row, col, {acc[i], acc[i + 1]});
        }
    }
}

/* ---- The epilogue ------------------------------------------------------------------------------------- */

/* Eight columns of a row of the share: the sum of all blocks' parts, in their order. */
template <class K>
EG_DEVICE void eg_split_take(const eg_split_share<K> &share, const uint8_t *memory, int row, int col,
                             float (&v)[8]) {
    const float *own = (const float *)(memory + K::TILE_AT) + row * K::LD + col,
                *others =
                    (const float *)(memory + K::RECEIVED) + (row - share.rank * share.each) * K::COLS + col;
    for (int rank = 0; rank < share.splits; rank++) {
        const float *from = rank == share.rank ? own : others;
        if (rank != share.rank) others += share.each * K::COLS;
        const float4 low = *(const float4 *)from, high = *(const float4 *)(from + 4);
        const float part[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = rank == 0 ? part[i] : v[i] + part[i];
    }
}

/* What is summed over the columns is left in the tile. */
template <class K, typename F>
EG_DEVICE void eg_split_finish_vectors(const eg_cuda_gemm &p, const typename K::tile &at, uint8_t *memory,
                                       const eg_split_share<K> &share, eg_split_vectors<K> &vectors,
                                       const F &finish) {
    typedef typename K::vector vector;
#pragma unroll 1
    while (vectors.index < vectors.end) {
        const int row = vectors.row(), col = vectors.col();
        const bool inside = vectors.inside();
        const uint4 in = vectors.in;
        float v[8];
        vectors.index += K::THREADS;
        vectors.fetch();
        eg_split_take<K>(share, memory, row, col, v);
        if (p.scale != 1) {
#pragma unroll
            for (int j = 0; j < 8; j++) v[j] *= (float)p.scale;
        }
        if (inside) {
            float bias[8], read[8];
            vector::widen(vectors.bias, bias);
            vector::widen(in, read);
            if (p.in.data != 0 && !vectors.ahead)
                eg_load_values<vector>(p.in, at.item, at.row + row, at.col + col, read);
#pragma unroll
            for (int j = 0; j < 8; j++) v[j] += bias[j];
            if (p.second.data != 0)
                *eg_vector_at<vector>(p.second, at.item, at.row + row, at.col + col) = vector::round(v);
            finish(v, read);
            if (p.out.data != 0) eg_store_values<vector>(p.out, at.item, at.row + row, at.col + col, v);
        }
        if (p.sums == 0) continue;
        float *const to = (float *)(memory + K::TILE_AT) + row * K::LD + col;
#pragma unroll
        for (int j = 0; j < 8; j++) to[j] = inside ? v[j] : 0;
    }
}

/* The first block of the cluster adds up the columns of the whole tile. */
template <class K>
EG_DEVICE void eg_split_sum_columns(const eg_cuda_gemm &p, const typename K::tile &at, float *tile,
                                    const eg_split_share<K> &share) {
    eg_cluster_meet(share.splits);
    if (share.rank != 0) return;
    eg_collect_shares<float, K::ROWS, K::COLS, K::LD, K::THREADS>(p, tile);
    __syncthreads();
    eg_sum_columns<float, K::ROWS, K::COLS, K::LD, K::THREADS>(p, at, tile);
}

/* ---- The kernel --------------------------------------------------------------------------------------- */

template <class K> EG_DEVICE void eg_split_run(const eg_cuda_hopper &p) {
    extern __shared__ __align__(1024) uint8_t memory[];
    const int splits = p.gemm.splits, shift = __ffs(splits) - 1; /* a power of two */
    const int rank = (int)blockIdx.x & (splits - 1);
    const eg_split_share<K> share(rank, splits, shift);
    eg_split_ring<K> ring(eg_shared_address(memory));
    if (threadIdx.x == 0) {
        eg_prefetch_tensor_map(p.left);
        eg_prefetch_tensor_map(p.right);
        eg_split_barriers<K>(ring.shared);
    }
    __syncthreads();
    if (splits > 1) eg_cluster_arrive(); /* others may send: they wait for that when they do */
    uint32_t parity = 0;
    eg_let_successor_start();
    eg_wait_for_predecessor();
    for (int64_t index = blockIdx.x >> shift; index < p.gemm.tiles; index += gridDim.x >> shift) {
        const auto at = eg_tile_at<K::ROWS, K::COLS, typename K::tile>(p.gemm, index);
        if (K::tile::GROUPS && at.rows == 0) continue; /* nor have the other blocks of the cluster any */
        const int64_t all = (at.depth + K::DEPTH - 1) / K::DEPTH * p.gemm.summed;
        const int first = (int)(all * rank >> shift), count = (int)(all * (rank + 1) >> shift) - first;
        eg_split_vectors<K> vectors(p.gemm, at, share);
        float acc[K::ACCUMULATORS] = {};
        const bool multiplies = threadIdx.x < 128 * K::CONSUMERS;
        if (multiplies) {
            eg_split_sum_any<K>(p, ring, at, first, count, vectors, acc);
        } else {
            vectors.begin();
        }
        __syncthreads(); /* all products have read their stages */
        if (splits > 1) {
            if (threadIdx.x == 0) eg_barrier_expect(ring.shared + K::ARRIVED, (splits - 1) * share.bytes());
            eg_cluster_wait();
        }
        if (multiplies) eg_split_put<K>(acc, share, ring.shared);
        __syncthreads();
        if (splits > 1) eg_barrier_wait(ring.shared + K::ARRIVED, parity);
        eg_with_terms<typename K::vector>(p.gemm, [&](const auto &finish) EG_INLINE {
            eg_split_finish_vectors<K>(p.gemm, at, memory, share, vectors, finish);
        });
        if (p.gemm.sums != 0) eg_split_sum_columns<K>(p.gemm, at, (float *)(memory + K::TILE_AT), share);
        eg_fence_async(); /* the next tile's stages lie there too */
        parity ^= 1;
        if (splits > 1) eg_cluster_arrive();
        __syncthreads();
    }
    if (splits > 1) eg_cluster_wait(); /* a block must not leave while others read or send */
}

#define EG_SPLIT_KERNEL(label, bf16, rows, cols, tile, blocks)                                               \
    extern "C" __global__ void __launch_bounds__(EG_TMA_SPLIT_THREADS, blocks)                               \
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
