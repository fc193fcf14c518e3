/* SPDX-License-Identifier: Apache-2.0 */
/* The mainloop of the 16-bit kernels on Hopper: acc = left · right in f32, k-block by k-block.
 *
 *              <--- COLS --->
 *            +---------------+        a stage of the ring, of each block:
 *   block 0  |  consumer 0   | 64      left   128 x 64   its own rows
 *            |  consumer 1   | 64      right   64 x COLS shared: each block loads half for both, so that
 *            +---------------+                           L2 is read a third less
 *   block 1  |  consumer 0   | 64
 *            |  consumer 1   | 64     64 deep, for the 128-byte swizzle: no bank conflicts anywhere
 *            +---------------+
 *
 * Blocks that lie side by side share left instead.
 *
 * One warp, the producer, waits for a free stage and has TMA fill it. Two warp groups, the consumers,
 * multiply what is in a full stage (wgmma m64nCOLSk16), each 64 rows of the block's tile. The ring has STAGES
 * stages, so TMA is that far ahead, also of the next tile. */
#ifndef EG_CUDA_HOPPER_MAINLOOP_CUH
#define EG_CUDA_HOPPER_MAINLOOP_CUH

#include "../layout.h"
#include "hopper_ptx.cuh"
#include "order.cuh"
#include "stamps.cuh"

/* ---- What differs from kernel to kernel --------------------------------------------------------------- */

/* A block's tile, and the ring at the beginning of its shared memory. */
template <int COLS_> struct eg_ring_shape {
    static constexpr int COLS = COLS_, ROWS = EG_HOPPER_ROWS, DEPTH = EG_HOPPER_DEPTH;
    static constexpr int LEFT_BYTES = EG_HOPPER_LEFT_BYTES, RIGHT_BYTES = EG_HOPPER_RIGHT_BYTES(COLS);
    static constexpr int STAGE_BYTES = EG_HOPPER_STAGE_BYTES(COLS), STAGES = EG_HOPPER_STAGES(COLS);
};

/* Accumulators of a thread: those of PRODUCTS products of 64 rows. */
template <class K> using eg_accumulators = float[K::PRODUCTS][K::COLS / 2];

/* And the rest of it (../layout.h), by the width of the tile. */
template <int COLS_> struct eg_hopper_shape : eg_ring_shape<COLS_> {
    static constexpr int CONSUMERS = 2, PRODUCTS = 1; /* consumers that share a tile; of 64 rows, for each */
    /* The three warp groups have 168 registers a thread, and divide them. */
    static constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
    static_assert(PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS == 3 * 168, "the registers of a block");
    static constexpr int BOX_BYTES = EG_HOPPER_BOX_BYTES, BOXES = EG_HOPPER_BOXES(COLS_),
                         BOX_BARRIERS = 1; /* of a warp */
    static constexpr int STAGING = EG_HOPPER_BOXES_AT(COLS_);
    static constexpr int EXCHANGE = EG_HOPPER_EXCHANGE_AT(COLS_), EXCHANGE_ROWS = 2;
    static constexpr int NUMBERS = 32; /* that a thread finishes at once */
    static constexpr int BARRIERS = EG_HOPPER_BARRIERS_AT(COLS_);
    static constexpr int IN_FULL = EG_HOPPER_BOX_BARRIERS_AT(COLS_);
    static constexpr int LEFT_SUMS = EG_HOPPER_LEFT_SUMS_AT(COLS_);
    static constexpr int SHARED_BYTES = EG_HOPPER_SHARED(COLS_);
    static_assert(SHARED_BYTES <= 227 * 1024, "the shared memory of a block");
};

/* A kernel: the type and layouts of its operands, the width of its tile, whether it has the epilogues with an
 * activation (d_b needs none, and they are most of the code), and its scheduler (hopper_scheduler.cuh):
 * whether there is a stream-K tail, and whether the rows are those of groups. An operand is K-major where the
 * depth is contiguous in memory, else MN-major: M-major left is column-major, N-major right is row-major. */
template <bool BF16_, bool LEFT_MN_MAJOR_, bool RIGHT_MN_MAJOR_, int COLS_, bool ACTIVATES_,
          bool STREAM_K_ = false, bool GROUPED_ = false>
struct eg_hopper : eg_hopper_shape<COLS_> {
    using shape = eg_hopper_shape<COLS_>;
    static constexpr bool BF16 = BF16_; /* else f16 */
    static constexpr bool LEFT_MN_MAJOR = LEFT_MN_MAJOR_;
    static constexpr bool RIGHT_MN_MAJOR = RIGHT_MN_MAJOR_;
    static constexpr bool ACTIVATES = ACTIVATES_;
    static constexpr bool STREAM_K = STREAM_K_;
    static constexpr bool GROUPED = GROUPED_;    /* the rows of groups */
    static constexpr bool SHARES_LEFT = false;   /* blocks of a cluster always lie side by side */
    static constexpr bool SUMS_OF_WARPS = false; /* column sums are stored by each warp */
    static constexpr bool READS_F32 = false;     /* f32 results are read before they are added to */
};

/* k-blocks in the depth of a tile, for each item that is summed. */
template <class K> EG_DEVICE int eg_hopper_k_blocks(const eg_cuda_gemm &p) {
    return (int)((p.depth + K::DEPTH - 1) / K::DEPTH);
}

/* Where a block's tile begins; and where the rows of its group end, which is its item. */
struct eg_hopper_tile {
    int item, row, col;
    int end = 0; /* K::GROUPED: else the tensor maps know */
};

/* ---- The ring of stages ------------------------------------------------------------------------------- */

/* A position in the ring; `parity` is that of the phase in which the stage is filled. */
template <class S> struct eg_ring {
    uint32_t shared, neighbour; /* and the other block of the cluster */
    int stage = 0;
    uint32_t parity = 0;

    __device__ eg_ring(uint32_t base, uint32_t rank) : shared(base), neighbour(rank ^ 1) {}
    __device__ uint32_t address() const { return shared + stage * S::STAGE_BYTES; }
    __device__ uint32_t full() const { return shared + S::BARRIERS + stage * 8; }
    __device__ uint32_t empty() const { return full() + S::STAGES * 8; }
    __device__ uint32_t read() const {
        return empty() + S::STAGES * 8;
    } /* of partial tiles: by every thread */
    __device__ void advance() {
        if (++stage == S::STAGES) stage = 0, parity ^= 1;
    }
    /* Past `count` stages that others read. */
    __device__ void skip(int count) {
        const uint32_t to = (uint32_t)(stage + count);
        stage = (int)(to % S::STAGES), parity ^= to / S::STAGES & 1;
    }
    /* The stage before this one is free. Both blocks write to it, so both producers must be told. */
    __device__ void release_last() const {
        if (threadIdx.x % 128 == 0) {
            const uint32_t last = empty() + (stage == 0 ? S::STAGES - 1 : -1) * 8;
            eg_barrier_arrive(last);
            eg_barrier_arrive(last, neighbour);
        }
    }
};
template <class K> using eg_ring_of = eg_ring<typename K::shape>;

/* By one thread. */
template <class S> EG_DEVICE void eg_ring_barriers(uint32_t shared) {
    for (int i = 0; i < S::STAGES; i++) {
        eg_barrier_init(shared + S::BARRIERS + i * 8, 1);
        eg_barrier_init(shared + S::BARRIERS + (S::STAGES + i) * 8, S::CONSUMERS * EG_CUDA_CLUSTER);
        eg_barrier_init(shared + S::BARRIERS + (2 * S::STAGES + i) * 8, 256);
    }
}

/* ---- The producer: a stage -------------------------------------------------------------------------- */

/* Whether the blocks of a cluster lie side by side: else one below the other. */
template <class K> EG_DEVICE bool eg_shares_left(const eg_cuda_hopper &p) {
    return K::SHARES_LEFT || (!K::GROUPED && !K::STREAM_K && p.shares_left != 0);
}

/* LINES rows of left, or columns of right, from `at` on. */
template <bool MN_MAJOR, int LINES>
EG_DEVICE void eg_load_side(uint32_t to, const eg_cuda_tensor_map &from, uint32_t full, int at, int depth,
                            int item) {
#pragma unroll
    for (int i = 0; i < (MN_MAJOR ? LINES / 64 : 1); i++) {
        const int line = at + i * 64;
        eg_load_box(to + i * 64 * 128, from, full, MN_MAJOR ? line : depth, MN_MAJOR ? depth : line, item);
    }
}

/* One half of them in each block, for both blocks. */
template <bool MN_MAJOR, int LINES>
EG_DEVICE void eg_load_half_for_both(uint32_t to, const eg_cuda_tensor_map &from, uint32_t full, int at,
                                     int depth, int item, uint32_t rank) {
    if (MN_MAJOR) {
#pragma unroll
        for (int i = 0; i < LINES / 64; i++)
            eg_load_box_all(to + (2 * i + rank) * 32 * 128, from, full, at + i * 64, depth + rank * 32, item,
                            3);
    } else {
        eg_load_box_all(to + rank * (LINES / 2) * 128, from, full, depth, at + rank * (LINES / 2), item, 3);
    }
}

/* The block's rows of left, and for both blocks its half of right; or the other way round. */
template <class K>
EG_DEVICE void eg_load_k_block(const eg_cuda_hopper &p, const eg_ring_of<K> &ring, const eg_hopper_tile &tile,
                               int depth, int item, uint32_t rank) {
    const uint32_t left = ring.address(), right = left + K::LEFT_BYTES;
    const int left_item = p.gemm.left.item_stride == 0 ? 0 : item;
    const int right_item = p.gemm.right.item_stride == 0 ? 0 : item;
    eg_barrier_expect(ring.full(), K::STAGE_BYTES);
    if (eg_shares_left<K>(p)) {
        eg_load_half_for_both<K::LEFT_MN_MAJOR, K::ROWS>(left, p.left, ring.full(), tile.row, depth,
                                                         left_item, rank);
        eg_load_side<K::RIGHT_MN_MAJOR, K::COLS>(right, p.right, ring.full(), tile.col, depth, right_item);
    } else {
        eg_load_side<K::LEFT_MN_MAJOR, K::ROWS>(left, p.left, ring.full(), tile.row, depth, left_item);
        eg_load_half_for_both<K::RIGHT_MN_MAJOR, K::COLS>(right, p.right, ring.full(), tile.col, depth,
                                                          right_item, rank);
    }
}

/* ---- The consumers: a stage, a tile ------------------------------------------------------------------- */

/* The products of one stage: four steps of 16 in depth. `from`: the consumer's first row in the tile. */
template <class K>
EG_DEVICE void eg_multiply_stage(eg_accumulators<K> &acc, uint32_t stage, int from, bool add) {
    const uint32_t left = stage + from * 128, right = stage + K::LEFT_BYTES;
    /* 16 further in depth: 32 bytes along a line, or 16 lines. */
    constexpr uint64_t LEFT_STEP = (K::LEFT_MN_MAJOR ? 16 * 128 : 32) >> 4;
    constexpr uint64_t RIGHT_STEP = (K::RIGHT_MN_MAJOR ? 16 * 128 : 32) >> 4;
    const uint64_t left_at = eg_operand_at(left, 64 * 128), right_at = eg_operand_at(right, 64 * 128);
    eg_products_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int product = 0; product < K::PRODUCTS; product++)
            eg_multiply<K::BF16, K::LEFT_MN_MAJOR, K::RIGHT_MN_MAJOR>(
                acc[product], left_at + product * (64 * 128 >> 4) + i * LEFT_STEP, right_at + i * RIGHT_STEP,
                add || i > 0);
    }
    eg_products_commit();
}

/* acc = the consumer's part of a tile, over `k_blocks` of its depth. One stage's products are issued before
 * those of the stage before have finished, and only then is that stage free. `under` runs while products do,
 * with the number of the k-block. */
template <class K, class F>
EG_DEVICE void eg_multiply_tile(eg_accumulators<K> &acc, eg_ring_of<K> &ring, int k_blocks, int from,
                                const F &under) {
    for (int i = 0; i < k_blocks; i++, ring.advance()) {
        eg_barrier_wait(ring.full(), ring.parity);
        eg_multiply_stage<K>(acc, ring.address(), from, i > 0);
        under(i);
        eg_products_wait<1>();
        if (i > 0) ring.release_last();
    }
    eg_products_wait<0>();
    ring.release_last();
}

#endif
