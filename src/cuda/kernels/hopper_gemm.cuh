/* The product of 16-bit matrices on Hopper: acc = left · right in f32, and its epilogue (eg_cuda_gemm).
 *
 * Contract: eg_cuda_hopper in ../kernels.h. out, in and second are row-major; every address, row pitch and
 * item stride is a multiple of 16 bytes; sizes are below 2^31. Any rows, cols and depth: the copy engine
 * reads zeros outside a matrix and does not write there.
 *
 * One block a multiprocessor lives for the whole launch; two neighbours form a cluster. Its 256 x COLS tile:
 *
 *              <--- COLS --->
 *            +---------------+        a slot of the ring, of each block:
 *   block 0  |  consumer 0   | 64      left   128 x 64   its own rows
 *            |  consumer 1   | 64      right   64 x COLS shared: each block loads half for both, so that
 *            +---------------+                           the L2 is asked for a third less
 *   block 1  |  consumer 0   | 64
 *            |  consumer 1   | 64     64 deep, for the 128-byte swizzle: no bank conflicts anywhere
 *            +---------------+
 *
 *   producer    one warp: waits for a free slot; a lane asks the copy engine for the next strips. The group's
 *               other three may make the last rows of left meanwhile (hopper_pass.cuh)
 *   consumers   two warp groups: multiply full slots (wgmma m64nCOLSk16), then finish their 64 rows alone
 *
 * What overlaps what. The ring holds STAGES slots, so the copy engine is that far ahead, also of the next
 * tile. What an epilogue reads (`in`: grad, saved, residual) arrives in boxes of its own while the products
 * run; its results are written over it and stored from there, under the next tile's products. The epilogue's
 * arithmetic is not overlapped: shared memory, read at 80 bytes a clock by the products and filled at 48, has
 * no room for two consumers on different tiles, nor registers for two tiles' accumulators (docs/cuda.md has
 * what was tried); where products take long enough, other warps do it (hopper_relay.cuh). Tiles of the last
 * wave may be cut, so that no cluster is left without work (hopper_cut.cuh).
 */
#ifndef EG_CUDA_HOPPER_GEMM_CUH
#define EG_CUDA_HOPPER_GEMM_CUH

#include "hopper_ptx.cuh"
#include "order.cuh"

/* What a block's shared memory is, by the width of its tile and whether three warps of the producer's group make
 * rows of left (hopper_pass.cuh). */
template <int COLS_, bool MAKES_REST_> struct eg_hopper_shape {
    static constexpr bool MAKES_REST = MAKES_REST_;
    /* Registers of the producer's group and of the two consumers': what three groups of 168 have. */
    static constexpr int FEW = MAKES_REST ? 104 : 40, MANY = MAKES_REST ? 200 : 232;
    static_assert(FEW + 2 * MANY == 3 * 168, "what a block has");
    static constexpr int COLS = COLS_, ROWS = 128, DEPTH = 64;
    static constexpr int LEFT_BYTES = ROWS * DEPTH * 2, RIGHT_BYTES = DEPTH * COLS * 2;
    static constexpr int SLOT_BYTES = LEFT_BYTES + RIGHT_BYTES;
    static constexpr int STAGES = COLS == 256 ? 3 : COLS == 192 ? 4 : 5; /* what the boxes leave room for */
    static constexpr int BOX_BYTES =
        16 * 128;                           /* 16 rows of 128 bytes: what a warp reads and stores at once */
    static constexpr int BOXES = COLS / 64; /* of each warp */
    /* Shared memory: the ring, then */
    static constexpr int STAGING = STAGES * SLOT_BYTES;
    static constexpr int SUMS = STAGING + 8 * BOXES * BOX_BYTES; /* of the columns, for each warp */
    static constexpr int BIAS = SUMS + 8 * COLS * 4;             /* for each consumer */
    /* Neither, but the rings of hopper_pass.cuh, where left is made. Then: slots full, empty, read; boxes
     * full. */
    static constexpr int BARRIERS = MAKES_REST ? SUMS + EG_CUDA_REST_BYTES : BIAS + 2 * COLS * 4;
    static constexpr int IN_FULL = BARRIERS + 3 * STAGES * 8;
    static constexpr int SHARED_BYTES = IN_FULL + 8 * BOXES * 8;
    static_assert(SHARED_BYTES + EG_CUDA_POOL_MAIL <= 227 * 1024, "what a block can have");
};

/* A product: the type and layouts of its operands, the shape of its blocks, whether it has the epilogues with
 * an activation (d_b needs none, and they are most of the code), and whether it cuts its last tiles
 * (hopper_cut.cuh). */
template <bool BF16_, bool LEFT_ACROSS_, bool RIGHT_ACROSS_, int COLS_, bool ACTIVATES_, bool CUTS_ = false,
          bool MAKES_REST_ = false>
struct eg_hopper : eg_hopper_shape<COLS_, MAKES_REST_> {
    using shape = eg_hopper_shape<COLS_, MAKES_REST_>;
    static constexpr bool BF16 = BF16_;                 /* else f16 */
    static constexpr bool LEFT_ACROSS = LEFT_ACROSS_;   /* left is column-major */
    static constexpr bool RIGHT_ACROSS = RIGHT_ACROSS_; /* right is row-major */
    static constexpr bool ACTIVATES = ACTIVATES_;
    static constexpr bool CUTS = CUTS_;
};

enum {
    EG_HOPPER_THREADS = 384, /* two consumers, the producer's warp group */
    EG_HOPPER_SYNC = 1 /* named barriers: one for each consumer */
};

/* ---- The ring --------------------------------------------------------------------------------------- */

/* A position in the ring; `parity` is that of the phase in which the slot is filled. */
template <class S> struct eg_ring {
    uint32_t shared, neighbour; /* and the other block of the cluster */
    int slot = 0;
    uint32_t parity = 0;

    __device__ eg_ring(uint32_t base, uint32_t rank) : shared(base), neighbour(rank ^ 1) {}
    __device__ uint32_t address() const { return shared + slot * S::SLOT_BYTES; }
    __device__ uint32_t full() const { return shared + S::BARRIERS + slot * 8; }
    __device__ uint32_t empty() const { return full() + S::STAGES * 8; }
    __device__ uint32_t read() const { return empty() + S::STAGES * 8; } /* of pieces: by every thread */
    __device__ void advance() {
        if (++slot == S::STAGES) slot = 0, parity ^= 1;
    }
    /* The slot before this one is free. Both blocks write to it, so both producers must hear of it. */
    __device__ void release_last() const {
        if (threadIdx.x % 128 == 0) {
            const uint32_t last = empty() + (slot == 0 ? S::STAGES - 1 : -1) * 8;
            eg_barrier_arrive(last);
            eg_barrier_arrive(last, neighbour);
        }
    }
};
template <class K> using eg_ring_of = eg_ring<typename K::shape>;

/* ---- The tiles ---------------------------------------------------------------------------------------- */

struct eg_hopper_tile {
    int item, row, col; /* of this block's part */
};

/* All blocks of a wave walk the depth together; their tiles form a compact block, `high` rows of them. */
template <class K> struct eg_hopper_tiles {
    uint32_t down, across, most_high, total;

    __device__ explicit eg_hopper_tiles(const eg_cuda_hopper &p)
        : down(((uint32_t)p.gemm.rows + 2 * K::ROWS - 1) / (2 * K::ROWS)),
          across(((uint32_t)p.gemm.cols + K::COLS - 1) / K::COLS), most_high((uint32_t)p.high),
          total(down * across * (uint32_t)p.gemm.items) {}

    __device__ eg_hopper_tile at(uint32_t index, uint32_t rank) const {
        const uint32_t item = index / (down * across), in_item = index % (down * across);
        const uint32_t band = in_item / (most_high * across), in_band = in_item % (most_high * across);
        const uint32_t high = min(down - band * most_high, most_high);
        const uint32_t row = band * most_high + in_band % high;
        return {(int)item, (int)((2 * row + rank) * K::ROWS), (int)(in_band / high * K::COLS)};
    }
};

/* Strips of the depth in a tile, item after item where they are summed. */
template <class K> EG_DEVICE int eg_hopper_strips(const eg_cuda_gemm &p) {
    return (int)((p.depth + K::DEPTH - 1) / K::DEPTH);
}

#include "hopper_cut.cuh"
#include "hopper_epilogue.cuh"
#include "hopper_pass.cuh"

/* ---- The producer ------------------------------------------------------------------------------------- */

/* The block's strip of left, and for both blocks its half of the strip of right. */
template <class K>
EG_DEVICE void eg_load_strips(const eg_cuda_hopper &p, const eg_ring_of<K> &ring, const eg_hopper_tile &tile,
                              int depth, int item, uint32_t rank) {
    const uint32_t left = ring.address(), right = left + K::LEFT_BYTES;
    const int left_item = p.gemm.left.item_stride == 0 ? 0 : item;
    const int right_item = p.gemm.right.item_stride == 0 ? 0 : item;
    eg_barrier_expect(ring.full(), K::SLOT_BYTES);
    if (K::LEFT_ACROSS) {
        eg_load_box(left, p.left, ring.full(), tile.row, depth, left_item);
        eg_load_box(left + K::LEFT_BYTES / 2, p.left, ring.full(), tile.row + 64, depth, left_item);
    } else {
        eg_load_box(left, p.left, ring.full(), depth, tile.row, left_item);
    }
    if (K::RIGHT_ACROSS) {
#pragma unroll
        for (int i = 0; i < K::COLS / 64; i++) {
            eg_load_box_all(right + (2 * i + rank) * 32 * 128, p.right, ring.full(), tile.col + i * 64,
                            depth + rank * 32, right_item, 3);
        }
    } else {
        eg_load_box_all(right + rank * K::RIGHT_BYTES / 2, p.right, ring.full(), depth,
                        tile.col + rank * K::COLS / 2, right_item, 3);
    }
}

template <class K> EG_DEVICE void eg_produce(const eg_cuda_hopper &p, uint32_t shared, uint32_t rank) {
    const eg_hopper_tiles<K> tiles(p);
    const int strips = eg_hopper_strips<K>(p.gemm), summed = (int)p.gemm.summed;
    eg_ring_of<K> ring(shared, rank);
    for (eg_hopper_work<K> work(p, tiles.total); work.next();) {
        const eg_hopper_tile tile = tiles.at(work.tile, rank);
        if (K::MAKES_REST) eg_wait_for_rest(p, tile.row);
        int s = work.first / strips, strip = work.first % strips; /* 0, but in a piece */
        for (int i = work.first; i < work.last; i++, ring.advance()) {
            eg_barrier_wait(ring.empty(), ring.parity ^ 1);
            if (eg_elect()) eg_load_strips<K>(p, ring, tile, strip * K::DEPTH, summed > 1 ? s : tile.item, rank);
            if (++strip == strips) strip = 0, s++;
        }
        if constexpr (K::CUTS) {
            if (work.gathers()) eg_load_pieces(work, ring, rank);
        }
    }
}

/* ---- The consumers ------------------------------------------------------------------------------------ */

/* The products of one slot: four steps of 16 in depth. */
template <class K>
EG_DEVICE void eg_multiply_slot(float (&acc)[K::COLS / 2], uint32_t slot, int consumer, bool add) {
    const uint32_t left = slot + consumer * 64 * 128, right = slot + K::LEFT_BYTES;
    /* 16 further in depth: 32 bytes along a line, or 16 lines. */
    constexpr uint64_t LEFT_STEP = (K::LEFT_ACROSS ? 16 * 128 : 32) >> 4;
    constexpr uint64_t RIGHT_STEP = (K::RIGHT_ACROSS ? 16 * 128 : 32) >> 4;
    const uint64_t left_at = eg_operand_at(left, 64 * 128), right_at = eg_operand_at(right, 64 * 128);
    eg_products_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        eg_multiply<K::BF16, K::LEFT_ACROSS, K::RIGHT_ACROSS>(acc, left_at + i * LEFT_STEP,
                                                              right_at + i * RIGHT_STEP, add || i > 0);
    }
    eg_products_commit();
}

/* acc = the consumer's part of the tile, or of a piece of it. A slot is free once the products after it have
 * been asked for and its own are done. `under` is done meanwhile, when the last tile's results have surely been
 * read. */
template <class K, class F>
EG_DEVICE void eg_multiply_tile(float (&acc)[K::COLS / 2], eg_ring_of<K> &ring, int slots, int consumer,
                                const F &under) {
    for (int i = 0; i < slots; i++, ring.advance()) {
        eg_barrier_wait(ring.full(), ring.parity);
        eg_multiply_slot<K>(acc, ring.address(), consumer, i > 0);
        if (i == min(2, slots - 1)) under();
        eg_products_wait<1>();
        if (i > 0) ring.release_last();
    }
    eg_products_wait<0>();
    ring.release_last();
}

template <class K, int EPILOGUE>
EG_DEVICE void eg_consume(const eg_cuda_hopper &p, uint8_t *memory, uint32_t shared, uint32_t rank,
                          int warp) {
    const eg_hopper_tiles<K> tiles(p);
    const int consumer = warp / 4;
    eg_ring_of<K> ring(shared, rank);
    eg_finisher<K, EPILOGUE> finisher(p, memory, shared, warp);
    float acc[K::COLS / 2];
    for (eg_hopper_work<K> work(p, tiles.total); work.next();) {
        const bool owned = work.first == 0;
        if (owned) finisher.boxes.turn_to(tiles.at(work.tile, rank));
        const eg_bias<K> bias(p.gemm, finisher.boxes.col);
        eg_multiply_tile<K>(acc, ring, work.last - work.first, consumer, [&] {
            if (owned) finisher.boxes.fetch(p); /* what the epilogue reads */
        });
        if constexpr (K::CUTS) {
            if (!owned) eg_leave_piece(work, rank, acc);
            if (work.gathers()) eg_add_pieces(work, ring, acc);
        }
        if (owned) finisher.finish_tile(acc, bias);
    }
    if (eg_boxes<K>::elected()) eg_stores_have_written();
}

template <class K>
EG_DEVICE void eg_consume_any(const eg_cuda_hopper &p, uint8_t *memory, uint32_t shared, uint32_t rank,
                              int warp) {
    if constexpr (K::ACTIVATES) {
        switch (p.gemm.epilogue) {
        case EG_EPILOGUE_FORWARD:
            return eg_consume<K, EG_EPILOGUE_FORWARD>(p, memory, shared, rank, warp);
        case EG_EPILOGUE_ACT_GRAD:
            return eg_consume<K, EG_EPILOGUE_ACT_GRAD>(p, memory, shared, rank, warp);
        case EG_EPILOGUE_CHAIN:
            return eg_consume<K, EG_EPILOGUE_CHAIN>(p, memory, shared, rank, warp);
        }
    }
    eg_consume<K, EG_EPILOGUE_STORE>(p, memory, shared, rank, warp);
}

/* ---- The kernel --------------------------------------------------------------------------------------- */

/* By one thread. */
template <class S> EG_DEVICE void eg_ring_barriers(uint32_t shared) {
    for (int i = 0; i < S::STAGES; i++) {
        eg_barrier_init(shared + S::BARRIERS + i * 8, 1);
        eg_barrier_init(shared + S::BARRIERS + (S::STAGES + i) * 8, 2 * EG_CUDA_CLUSTER);
        eg_barrier_init(shared + S::BARRIERS + (2 * S::STAGES + i) * 8, 256);
    }
}
template <class S> EG_DEVICE void eg_hopper_barriers(uint32_t shared) {
    eg_ring_barriers<S>(shared);
    for (int i = 0; i < 8 * S::BOXES; i++) eg_barrier_init(shared + S::IN_FULL + i * 8, 1);
}

template <class K> EG_DEVICE void eg_hopper_gemm(const eg_cuda_hopper &p) {
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t shared = eg_shared_address(memory), rank = eg_cluster_rank();
    if (threadIdx.x == 0) {
        eg_hopper_barriers<K>(shared);
        eg_barrier_init_fence();
        eg_prefetch_map(p.left);
        eg_prefetch_map(p.right);
    }
    eg_sync_cluster();
    eg_let_successor_start();
    eg_wait_for_predecessor();
    const int warp = eg_warp();
    if (warp >= 8) {
        eg_fewer_registers<K::FEW>();
        if (warp == 8) eg_produce<K>(p, shared, rank);
        if (blockIdx.x == 0 && warp == 9) eg_clear(p.counts, threadIdx.x % 32, 32);
        if (K::MAKES_REST && warp > 8) eg_make_rest<K>(p.rest, shared, warp - 9);
    } else {
        eg_more_registers<K::MANY>();
        eg_consume_any<K>(p, memory, shared, rank, warp);
    }
    eg_sync_cluster(); /* a block must not leave while its neighbour still writes to it */
}

#define EG_HOPPER_KERNEL(name, ...)                                                                          \
    extern "C" __global__ void __cluster_dims__(EG_CUDA_CLUSTER, 1, 1)                                       \
        __launch_bounds__(EG_HOPPER_THREADS, 1) eg_##name(const __grid_constant__ eg_cuda_hopper p) {        \
        eg_hopper_gemm<eg_hopper<__VA_ARGS__>>(p);                                                           \
    }

/* d_a with the rest of grad_pre. */
#define EG_HOPPER_PASS_KERNELS(type, bf16)                                                                   \
    EG_HOPPER_KERNEL(hopper_##type##_pass_rr_128x256, bf16, false, true, 256, false, true, true)             \
    EG_HOPPER_KERNEL(hopper_##type##_pass_rc_128x256, bf16, false, false, 256, false, true, true)

/* The layouts of the products of a layer: A·B with B [K, N] (rr) or [N, K] (rc), grad_pre·Bᵀ (the other of
 * the two), Aᵀ·grad_pre (cr). */
#define EG_HOPPER_LAYOUTS(type, bf16, cols, activates, cuts)                                                 \
    EG_HOPPER_KERNEL(hopper_##type##_rr_128x##cols, bf16, false, true, cols, activates, cuts)                \
    EG_HOPPER_KERNEL(hopper_##type##_rc_128x##cols, bf16, false, false, cols, activates, cuts)               \
    EG_HOPPER_KERNEL(hopper_##type##_cr_128x##cols, bf16, true, true, cols, false, cuts)
#define EG_HOPPER_KERNELS(type, bf16, cols, activates) EG_HOPPER_LAYOUTS(type, bf16, cols, activates, false)
#define EG_HOPPER_CUT_KERNELS(type, bf16)              EG_HOPPER_LAYOUTS(type##_cut, bf16, 256, true, true)

#endif
