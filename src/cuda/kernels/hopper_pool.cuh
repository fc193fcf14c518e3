/* d_b, d_a and d_bias in one launch, with all but the first rows of grad_pre = grad * act'(saved).
 *
 *                  time ->
 *   cluster 0    |  grad_pre, row after row   | a tile of d_a | another ...
 *           ..   |                            |
 *           P    |  a tile of d_b: along its depth, row after row   | a tile of d_a | ...
 *           ..   |
 *
 * d_b is summed over the rows of grad_pre, so its tiles need not wait for all of it, but follow it. Where the
 * weights are small d_b has few tiles, and leaves many clusters idle: those make grad_pre, and run ahead. The
 * tiles of d_a come last, to whoever is free. Three warps of each block, which have no part in the products,
 * make parts of grad_pre as long as there are some, and then add up d_bias.
 *
 * Tiles are handed out by a count. The first block's producer takes the next, some strips before the last of
 * this one, and tells all of the cluster by a message to either block; there are two mailboxes in turn. By
 * then all have read the message of this tile, for its first strips have been multiplied, and the mailbox
 * before it is free: so a tile is EG_CUDA_POOL_STRIPS deep at least, more than the ring.
 *
 * Nobody waits for ever: who waits does so for rows, rows are made by whoever asks for some, and nobody who
 * makes them waits. */
#ifndef EG_CUDA_HOPPER_POOL_CUH
#define EG_CUDA_HOPPER_POOL_CUH

#include "column_sum.cuh"
#include "hopper_gemm.cuh"

/* Both products have the same shape, and so use one ring. */
template <bool BF16, bool RIGHT_ACROSS> struct eg_pool {
    using d_b = eg_hopper<BF16, true, true, 256, false, false, true>;
    using d_a = eg_hopper<BF16, false, RIGHT_ACROSS, 256, false, false, true>;
    using shape = typename d_b::shape;
    static constexpr int WARPS = EG_HOPPER_THREADS / 32; /* that make grad_pre, in the ring's memory */
    static constexpr int PASS_SLOTS = shape::STAGING / EG_PASS_SLOT / WARPS;
};

/* ---- Who multiplies what --------------------------------------------------------------------------- */

/* The messages to a block: two barriers, two numbers. */
struct eg_pool_mail {
    uint32_t shared, turn = 0;

    __device__ explicit eg_pool_mail(uint32_t at) : shared(at) {}
    __device__ uint32_t barrier() const { return shared + turn % 2 * 8; }
    __device__ uint32_t number() const { return shared + 16 + turn % 2 * 4; }

    /* By a producer: there will be a message. */
    __device__ void expect() const {
        if (eg_elect()) eg_barrier_expect(barrier(), 4);
    }
    /* By the first block's producer: the next message, to both. */
    __device__ void tell_next(const eg_cuda_pool &p) const {
        if (!eg_elect()) return;
        const uint32_t tile = atomicAdd((uint32_t *)p.next_tile, 1U);
        for (uint32_t rank = 0; rank < EG_CUDA_CLUSTER; rank++)
            eg_send(number(), barrier(), rank, tile);
    }
    /* By all that take part in a tile. */
    __device__ uint32_t take() {
        eg_barrier_wait(barrier(), turn / 2 & 1);
        const uint32_t tile = eg_load_number(number());
        turn++;
        return tile;
    }
};

/* ---- The producer ---------------------------------------------------------------------------------- */

/* Along d_b's depth bands of grad_pre come to be needed one after another; a tile of d_a needs one. */
template <class K, bool FOLLOWS>
EG_DEVICE void eg_pool_load(const eg_cuda_pool &p, const eg_cuda_hopper &x, eg_ring_of<K> &ring,
                            const eg_hopper_tile &tile, const eg_pool_mail &mail, uint32_t rank) {
    constexpr int STRIPS = EG_CUDA_REST_BAND / K::DEPTH;
    const int strips = eg_hopper_strips<K>(x.gemm);
    if (!FOLLOWS) eg_wait_for_rest(p.d_a, tile.row);
    for (int i = 0; i < strips; i++, ring.advance()) {
        if (rank == 0 && i == strips - EG_CUDA_POOL_STRIPS / 2) mail.tell_next(p);
        if (FOLLOWS && i % STRIPS == 0) eg_wait_for_rest(p.d_a, i * K::DEPTH);
        eg_barrier_wait(ring.empty(), ring.parity ^ 1);
        if (eg_elect()) eg_load_strips<K>(x, ring, tile, i * K::DEPTH, 0, rank);
    }
}

template <class P> EG_DEVICE void eg_pool_produce(const eg_cuda_pool &p, uint32_t shared, uint32_t rank) {
    const eg_hopper_tiles<typename P::d_b> d_b(p.d_b);
    const eg_hopper_tiles<typename P::d_a> d_a(p.d_a);
    eg_ring<typename P::shape> ring(shared, rank);
    eg_pool_mail mail(shared + P::shape::SHARED_BYTES);
    mail.expect();
    if (rank == 0) mail.tell_next(p);
    for (uint32_t tile = mail.take(); tile < d_b.total + d_a.total; tile = mail.take()) {
        mail.expect();
        if (tile < d_b.total) {
            eg_pool_load<typename P::d_b, true>(p, p.d_b, ring, d_b.at(tile, rank), mail, rank);
        } else {
            eg_pool_load<typename P::d_a, false>(p, p.d_a, ring, d_a.at(tile - d_b.total, rank), mail, rank);
        }
    }
}

/* ---- The consumers --------------------------------------------------------------------------------- */

template <class K>
EG_DEVICE void eg_pool_multiply(eg_ring_of<K> &ring, eg_finisher<K, EG_EPILOGUE_STORE> &finisher,
                                const eg_hopper_tile &tile, int consumer) {
    float acc[K::COLS / 2];
    finisher.boxes.turn_to(tile);
    eg_multiply_tile<K>(acc, ring, eg_hopper_strips<K>(finisher.p.gemm), consumer,
                        [&] { finisher.boxes.fetch(finisher.p); });
    finisher.finish_tile(acc, eg_bias<K>(finisher.p.gemm, tile.col));
}

template <class P>
EG_DEVICE void eg_pool_consume(const eg_cuda_pool &p, uint8_t *memory, uint32_t shared, uint32_t rank,
                               int warp) {
    const eg_hopper_tiles<typename P::d_b> d_b(p.d_b);
    const eg_hopper_tiles<typename P::d_a> d_a(p.d_a);
    eg_finisher<typename P::d_b, EG_EPILOGUE_STORE> finish_d_b(p.d_b, memory, shared, warp);
    eg_finisher<typename P::d_a, EG_EPILOGUE_STORE> finish_d_a(p.d_a, memory, shared, warp);
    eg_ring<typename P::shape> ring(shared, rank);
    eg_pool_mail mail(shared + P::shape::SHARED_BYTES);
    for (uint32_t tile = mail.take(); tile < d_b.total + d_a.total; tile = mail.take()) {
        if (tile < d_b.total) {
            eg_pool_multiply(ring, finish_d_b, d_b.at(tile, rank), warp / 4);
        } else {
            eg_pool_multiply(ring, finish_d_a, d_a.at(tile - d_b.total, rank), warp / 4);
        }
    }
    if (eg_elect()) eg_stores_have_written();
}

/* ---- d_bias ---------------------------------------------------------------------------------------- */

/* By the warps beside the products: each takes 32 columns. */
EG_DEVICE void eg_pool_sum(const eg_cuda_pool &p, int warp) {
    const eg_cuda_act_grad &rest = p.d_a.rest;
    const int64_t step = 32 * EG_PASS_WARPS * (int64_t)gridDim.x;
    const int64_t first = 32 * (EG_PASS_WARPS * (int64_t)blockIdx.x + warp);
    if (p.sum.sums == 0 || first >= p.sum.cols) return;
    const uint32_t bands = (uint32_t)((rest.rows + EG_CUDA_REST_BAND - 1) / EG_CUDA_REST_BAND);
    for (uint32_t band = 0; band < bands; band++) eg_wait_for_band(rest, band);
    for (int64_t col = first + threadIdx.x % 32; col < p.sum.cols; col += step)
        eg_put_sum(p.sum, col, eg_sum_column<float>(p.sum, col, 0, 1));
}

/* ---- The kernel ------------------------------------------------------------------------------------ */

template <class P> EG_DEVICE void eg_hopper_pool(const eg_cuda_pool &p) {
    using S = typename P::shape;
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t shared = eg_shared_address(memory), rank = eg_cluster_rank();
    const int warp = eg_warp();
    if (threadIdx.x == 0) {
        eg_hopper_barriers<S>(shared);
        for (int i = 0; i < 2; i++) eg_barrier_init(shared + S::SHARED_BYTES + i * 8, 1);
        eg_barrier_init_fence();
    }
    eg_sync_cluster();
    eg_let_successor_start();
    eg_wait_for_predecessor();
    if (blockIdx.x / EG_CUDA_CLUSTER < (uint32_t)p.passers) {
        eg_make_parts<P::d_b::BF16, P::PASS_SLOTS>(p.d_a.rest, shared + warp * P::PASS_SLOTS * EG_PASS_SLOT);
        eg_fence_async();
        eg_sync_cluster(); /* the ring is the copy engine's from now on, of either block */
    }
    if (warp >= 8) {
        eg_fewer_registers<S::FEW>();
        if (warp == 8) {
            eg_pool_produce<P>(p, shared, rank);
        } else {
            eg_make_rest<typename P::d_b>(p.d_a.rest, shared, warp - 9);
            eg_pool_sum(p, warp - 9);
        }
    } else {
        eg_more_registers<S::MANY>();
        eg_pool_consume<P>(p, memory, shared, rank, warp);
    }
    eg_sync_cluster(); /* a block must not leave while its neighbour still writes to it */
}

/* The letter: the layout of d_a's right, Bᵀ. */
#define EG_HOPPER_POOL_KERNEL(type, bf16, letter, right_across)                                              \
    extern "C" __global__ void __cluster_dims__(EG_CUDA_CLUSTER, 1, 1)                                     \
        __launch_bounds__(EG_HOPPER_THREADS, 1)                                                              \
            eg_hopper_##type##_pool_##letter##_128x256(const __grid_constant__ eg_cuda_pool p) {             \
        eg_hopper_pool<eg_pool<bf16, right_across>>(p);                                                      \
    }
#define EG_HOPPER_POOL_KERNELS(type, bf16)                                                                   \
    EG_HOPPER_POOL_KERNEL(type, bf16, r, true)                                                               \
    EG_HOPPER_POOL_KERNEL(type, bf16, c, false)

#endif
