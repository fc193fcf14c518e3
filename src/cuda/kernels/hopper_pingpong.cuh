/* SPDX-License-Identifier: Apache-2.0 */
/* The fused product of hopper_gemm.cuh with a tile for each consumer: ping-pong.
 *
 *   consumer 0   | products of tile 0 | epilogue ....  | products of tile 2 | epilogue ....
 *   consumer 1                        | products of tile 1 | epilogue ....  | products of tile 3
 *
 * While one consumer is in its epilogue, the other multiplies, so that an epilogue costs nothing where it is
 * shorter than a tile's products. Only that of a block's last tile is left, when the other consumer has
 * nothing to do. So it is lent the accumulators of the tile's last 64 columns, through shared memory, where
 * the ring's stages are free by then, and finishes those. A consumer holds the accumulators of 128 rows, two
 * products of 64. A tile has 128 columns, and its products move 160 bytes a clock through shared memory,
 * which gives 128. With 192 columns they move 135. That leaves few registers for an epilogue, which takes
 * so long that only long products hide it.
 *
 * There is one ring of stages and one producer, which loads one tile after another. Each consumer skips the
 * stages of the other's tiles. A consumer begins a tile when the other has asked for the last products of the
 * tile before: by then each stage is in the phase before the one that the consumer waits for, or in that, as
 * a wait by parity needs.
 *
 * Consumer 1 has nothing to do during the first tile's products. So it rehearses: it runs half of an epilogue
 * on numbers that mean nothing, and stores none. In a training step other kernels and their data have driven
 * this one's instructions out of the caches, and an epilogue of some 20 KB would wait for device memory line
 * by line, 5 to 7 us on an H200. */
#ifndef EG_CUDA_HOPPER_PINGPONG_CUH
#define EG_CUDA_HOPPER_PINGPONG_CUH

#include "hopper_gemm.cuh"

enum {
    EG_PINGPONG_TURN = EG_HOPPER_SYNC + 2, /* named barriers: one for each consumer */
    EG_PINGPONG_LENT = EG_PINGPONG_TURN + 2
};

template <int COLS_> struct eg_pingpong_shape {
    static constexpr int COLS = COLS_, ROWS = EG_HOPPER_ROWS, DEPTH = EG_HOPPER_DEPTH;
    static constexpr int CONSUMERS = 1, PRODUCTS = 2;
    static constexpr int LEFT_BYTES = EG_HOPPER_LEFT_BYTES, RIGHT_BYTES = EG_HOPPER_RIGHT_BYTES(COLS);
    static constexpr int STAGE_BYTES = EG_HOPPER_STAGE_BYTES(COLS), STAGES = EG_PINGPONG_STAGES(COLS);
    static constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
    static constexpr int BOX_BYTES = EG_HOPPER_BOX_BYTES, BOXES = EG_PINGPONG_BOXES, BOX_BARRIERS = BOXES;
    static constexpr int STAGING = EG_PINGPONG_BOXES_AT(COLS);
    static constexpr int EXCHANGE = EG_PINGPONG_EXCHANGE_AT(COLS);
    static constexpr int EXCHANGE_ROWS = EG_PINGPONG_EXCHANGE_ROWS(COLS);
    static constexpr int NUMBERS = COLS == 128 ? 32 : 16;
    static constexpr int BARRIERS = EG_PINGPONG_BARRIERS_AT(COLS);
    static constexpr int IN_FULL = EG_PINGPONG_BOX_BARRIERS_AT(COLS);
    static constexpr int LEFT_SUMS = EG_PINGPONG_LEFT_SUMS_AT(COLS);
    static_assert(EG_PINGPONG_SHARED(COLS) <= 227 * 1024, "the shared memory of a block");
};

template <bool BF16_, bool LEFT_MN_MAJOR_, bool RIGHT_MN_MAJOR_, int COLS_, bool ACTIVATES_,
          bool GROUPED_ = false>
struct eg_pingpong : eg_pingpong_shape<COLS_> {
    using shape = eg_pingpong_shape<COLS_>;
    static constexpr bool BF16 = BF16_; /* else f16 */
    static constexpr bool LEFT_MN_MAJOR = LEFT_MN_MAJOR_;
    static constexpr bool RIGHT_MN_MAJOR = RIGHT_MN_MAJOR_;
    static constexpr bool ACTIVATES = ACTIVATES_;
    static constexpr bool STREAM_K = false, GROUPED = GROUPED_;
    static constexpr bool STORES = COLS_ == 128;     /* a product alone, too */
    static constexpr bool SHARES_LEFT = GROUPED;     /* a group's last tile loses fewer rows */
    static constexpr bool READS_F32 = LEFT_MN_MAJOR; /* d_b in f32 is read before it is added to */
    static constexpr bool SUMS_OF_WARPS = !GROUPED;
};

/* What a consumer of tiles in turn asks of an epilogue: its parameter P, and
 *
 *   PARTS, KEPT     parts of a tile, and those of the first that are kept where the others are lent
 *   LENDS, lend     whether it takes accumulators that have been lent, and how they are
 *   bias            that of a tile, which is loaded before the tile is begun
 *   prefetch, start_tile, put, sync, finish_tile   as hopper_epilogue.cuh has them */
template <class K, int EPILOGUE> struct eg_turn_epilogue : eg_epilogue<K, EPILOGUE> {
    static constexpr uint32_t PARTS = eg_boxes<K>::PARTS, KEPT = PARTS - 2; /* 64 columns are lent */

    struct bias : eg_bias<K> {
        __device__ void load(const eg_cuda_hopper &p, const eg_hopper_tile &tile) {
            if (EPILOGUE == EG_CUDA_FORWARD || EPILOGUE == EG_CUDA_ACT_GRAD)
                eg_bias<K>::load(p.gemm, K::GROUPED ? tile.item : 0, tile.col);
        }
    };

    __device__ eg_turn_epilogue(const eg_cuda_hopper &p, uint8_t *memory, uint32_t shared, int warp)
        : eg_epilogue<K, EPILOGUE>(p, memory, shared, warp) {}
    __device__ void prefetch() const { this->boxes.prefetch(this->p); }
    __device__ static void lend(uint8_t *memory, const eg_accumulators<K> &acc) {
        eg_lend_accumulators((float4 *)memory, acc);
    }
};

/* `of`: the parameter of the epilogue E, `p`: of the products. */
template <class K, class E, class P>
EG_DEVICE void eg_consume_in_turn(const P &of, const eg_cuda_hopper &p, uint8_t *memory, uint32_t shared,
                                  uint32_t rank, int warp) {
    constexpr uint32_t PARTS = E::PARTS, KEPT = E::KEPT;
    const int consumer = warp / 4;
    bool rehearsal = consumer == 1 && !K::GROUPED; /* the ends of groups may be the predecessor's */
    if (!rehearsal) eg_wait_for_predecessor();
    eg_hopper_tiles<K> tiles(p);
    eg_ring_of<K> ring(shared, rank);
    E epilogue(of, memory, shared, warp);
    epilogue.prefetch();
    eg_scheduler<K> work(p, tiles.total);
    eg_accumulators<K> acc;
    eg_hopper_tile tile; /* the next one, and its bias */
    typename E::bias bias;
    bool placed = false;
    const auto place = [&](uint32_t index) {
        tile = tiles.at(index, rank);
        bias.load(of, tile);
    };
    bool waits = consumer == 1, helps = false; /* waits: but for the first tile of all */
    uint32_t other = 0;                        /* the other consumer's tile */
    if (consumer == 1) helps = work.next(), other = work.tile, ring.skip(work.last);
    for (;;) {
        const bool lent = !rehearsal && !work.next();
        eg_parts parts = {0, rehearsal ? KEPT : PARTS};
        if (lent) {
            if (!E::LENDS || !helps) break;
            helps = false, parts.begin = KEPT;
            place(other);
            epilogue.start_tile(tile, parts);
            epilogue.sync(); /* the last bias has been read */
            epilogue.put(bias);
            eg_sync_threads<256>(EG_PINGPONG_LENT);
        } else if (!rehearsal) {
            const bool last = work.is_last();
            if (E::LENDS && last) parts.end = KEPT;
            /* Before the turn: in a launch's first tile instructions and tensor maps come from far away, and
             * would keep the products waiting. Later, a tile is placed under the products of the one before.
             */
            if (!placed) place(work.tile);
            epilogue.start_tile(tile, parts);
            if (waits) eg_sync_threads<256>(EG_PINGPONG_TURN + consumer);
            waits = true;
            EG_STAMP(consumer, work.tile, EG_STAMP_PRODUCTS, 0);
            eg_multiply_tile<K>(acc, ring, work.last, 0, [&](int k_block) {
                if (k_block == min(1, work.last - 1)) {
                    epilogue.put(bias);
                    placed = work.after_next() < tiles.total;
                    if (placed) place(work.after_next());
                }
                if (k_block == work.last - 1 && !last)
                    eg_arrive_threads<256>(EG_PINGPONG_TURN + 1 - consumer);
            });
            EG_STAMP(consumer, work.tile, EG_STAMP_PRODUCTS, 1);
            eg_scale_tile<K>(p.gemm, acc);
            if (E::LENDS && last) {
                E::lend(memory, acc);
                eg_arrive_threads<256>(EG_PINGPONG_LENT);
            }
        }
        EG_STAMP(consumer, lent ? other : work.tile, EG_STAMP_EPILOGUE, 0);
        epilogue.finish_tile(acc, parts, lent, rehearsal);
        EG_STAMP(consumer, lent ? other : work.tile, EG_STAMP_EPILOGUE, 1);
        if (rehearsal) {
            rehearsal = false;
            eg_wait_for_predecessor();
        } else if (!lent) {
            helps = work.next(), other = work.tile, ring.skip(work.last);
        }
    }
    if (eg_boxes<K>::elected()) eg_stores_have_read<0>(); /* boxes go with the block */
}

template <class K>
EG_DEVICE void eg_consume_any_in_turn(const eg_cuda_hopper &p, uint8_t *memory, uint32_t shared,
                                      uint32_t rank, int warp) {
    if constexpr (K::ACTIVATES) {
        switch (p.gemm.epilogue) {
        case EG_CUDA_FORWARD:
            return eg_consume_in_turn<K, eg_turn_epilogue<K, EG_CUDA_FORWARD>>(p, p, memory, shared, rank,
                                                                               warp);
        case EG_CUDA_ACT_GRAD:
            return eg_consume_in_turn<K, eg_turn_epilogue<K, EG_CUDA_ACT_GRAD>>(p, p, memory, shared, rank,
                                                                                warp);
        case EG_CUDA_CHAIN:
            return eg_consume_in_turn<K, eg_turn_epilogue<K, EG_CUDA_CHAIN>>(p, p, memory, shared, rank,
                                                                             warp);
        }
    }
    if constexpr (K::STORES)
        eg_consume_in_turn<K, eg_turn_epilogue<K, EG_CUDA_STORE>>(p, p, memory, shared, rank, warp);
}

template <class K> EG_DEVICE void eg_hopper_pingpong(const eg_cuda_hopper &p) {
    eg_hopper_frame<K, true>(
        p, [&](uint32_t shared, uint32_t rank) EG_INLINE { eg_produce<K>(p, shared, rank); },
        [&](uint8_t *memory, uint32_t shared, uint32_t rank, int warp)
            EG_INLINE { eg_consume_any_in_turn<K>(p, memory, shared, rank, warp); },
        [&]() EG_INLINE {
            eg_prefetch_tensor_map(p.left);
            eg_prefetch_tensor_map(p.right);
        });
}

#define EG_HOPPER_PINGPONG_KERNEL(name, ...)                                                                 \
    extern "C" __global__ void __cluster_dims__(EG_CUDA_CLUSTER, 1, 1)                                       \
        __launch_bounds__(EG_HOPPER_THREADS, 1) eg_##name(const __grid_constant__ eg_cuda_hopper p) {        \
        eg_hopper_pingpong<eg_pingpong<__VA_ARGS__>>(p);                                                     \
    }

#define EG_HOPPER_PINGPONG_KERNELS(type, bf16, cols)                                                         \
    EG_HOPPER_PINGPONG_KERNEL(hopper_##type##_pingpong_nn_128x##cols, bf16, false, true, cols, true)         \
    EG_HOPPER_PINGPONG_KERNEL(hopper_##type##_pingpong_nt_128x##cols, bf16, false, false, cols, true)        \
    EG_HOPPER_PINGPONG_KERNEL(hopper_##type##_pingpong_tn_128x##cols, bf16, true, true, cols, false)
#define EG_HOPPER_PINGPONG_192_KERNELS(type, bf16)                                                           \
    EG_HOPPER_PINGPONG_KERNEL(hopper_##type##_pingpong_nn_128x192, bf16, false, true, 192, true)             \
    EG_HOPPER_PINGPONG_KERNEL(hopper_##type##_pingpong_nt_128x192, bf16, false, false, 192, true)
#define EG_HOPPER_GROUPED_KERNELS(type, bf16, cols)                                                          \
    EG_HOPPER_PINGPONG_KERNEL(hopper_##type##_grouped_nn_128x##cols, bf16, false, true, cols, true, true)    \
    EG_HOPPER_PINGPONG_KERNEL(hopper_##type##_grouped_nt_128x##cols, bf16, false, false, cols, true, true)

#endif
