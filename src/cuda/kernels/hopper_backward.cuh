/* SPDX-License-Identifier: Apache-2.0 */
/* The persistent backward: d_b, d_a and d_bias in one launch, with all but the first rows of the map
 * grad_pre = grad * act'(saved).
 *
 *                  time ->
 *   cluster 0    |  grad_pre, row after row   | a tile of d_a | another ...
 *           ..   |                            |
 *           P    |  a tile of d_b: along its depth, row after row   | a tile of d_a | ...
 *           ..   |
 *
 * The depth of d_b is the rows of grad_pre. So its tiles need not wait for all of it: they follow the rows
 * that are finished. Where the weights are small, d_b has few tiles and leaves many clusters idle. Those make
 * rows of grad_pre first, ahead of the tiles of d_b. Tiles of d_a come last and go to whichever cluster is
 * free, by the tile scheduler. In each block three warps have no part in the products. They make rows of
 * grad_pre as long as there are some, and then add up d_bias.
 *
 * There is no deadlock. Warps wait for rows only. Rows are handed out in order, to warps that run, and a warp
 * that makes rows does not wait. */
#ifndef EG_CUDA_HOPPER_BACKWARD_CUH
#define EG_CUDA_HOPPER_BACKWARD_CUH

#include "column_sum.cuh"
#include "hopper_gemm.cuh"

/* Both products have the same shape, and so use one ring. */
template <bool BF16, bool RIGHT_MN_MAJOR> struct eg_backward_gemms {
    using d_b = eg_hopper<BF16, true, true, 256, false, false, true>;
    using d_a = eg_hopper<BF16, false, RIGHT_MN_MAJOR, 256, false, false, true>;
    using shape = typename d_b::shape;
    static constexpr int WARPS = EG_HOPPER_THREADS / 32; /* that make grad_pre first, in the ring's memory */
    static constexpr int MAP_STAGES = shape::STAGING / EG_MAP_STAGE / WARPS;
};

/* ---- The producer ---------------------------------------------------------------------------------- */

/* A tile of d_b reads one band of grad_pre after another along its depth; a tile of d_a reads one. */
template <class K, bool FOLLOWS_MAP>
EG_DEVICE void eg_backward_load(const eg_cuda_backward &p, const eg_cuda_hopper &x, eg_ring_of<K> &ring,
                                const eg_hopper_tile &tile, const eg_tile_scheduler &scheduler,
                                uint32_t rank) {
    constexpr int K_BLOCKS = EG_CUDA_MAP_BAND / K::DEPTH;
    const int k_blocks = eg_hopper_k_blocks<K>(x.gemm);
    if (!FOLLOWS_MAP) eg_wait_for_rows(p.d_a, tile.row);
    for (int i = 0; i < k_blocks; i++, ring.advance()) {
        if (rank == 0 && i == k_blocks - EG_CUDA_BACKWARD_K_BLOCKS / 2) scheduler.publish_next(p.next_tile);
        if (FOLLOWS_MAP && i % K_BLOCKS == 0) eg_wait_for_rows(p.d_a, i * K::DEPTH);
        eg_barrier_wait(ring.empty(), ring.parity ^ 1);
        if (eg_elect()) eg_load_k_block<K>(x, ring, tile, i * K::DEPTH, 0, rank);
    }
}

template <class P>
EG_DEVICE void eg_backward_produce(const eg_cuda_backward &p, uint32_t shared, uint32_t rank) {
    const eg_hopper_tiles<typename P::d_b> d_b(p.d_b);
    const eg_hopper_tiles<typename P::d_a> d_a(p.d_a);
    eg_ring<typename P::shape> ring(shared, rank);
    eg_tile_scheduler scheduler(shared + P::shape::SHARED_BYTES);
    scheduler.expect();
    if (rank == 0) scheduler.publish_next(p.next_tile);
    for (uint32_t tile = scheduler.take(); tile < d_b.total + d_a.total; tile = scheduler.take()) {
        scheduler.expect();
        if (tile < d_b.total) {
            eg_backward_load<typename P::d_b, true>(p, p.d_b, ring, d_b.at(tile, rank), scheduler, rank);
        } else {
            eg_backward_load<typename P::d_a, false>(p, p.d_a, ring, d_a.at(tile - d_b.total, rank),
                                                     scheduler, rank);
        }
    }
}

/* ---- The consumers --------------------------------------------------------------------------------- */

template <class K>
EG_DEVICE void eg_backward_multiply(eg_ring_of<K> &ring, eg_epilogue<K, EG_CUDA_STORE> &epilogue,
                                    const eg_hopper_tile &tile, int consumer) {
    float acc[K::COLS / 2];
    epilogue.boxes.start_tile(tile);
    eg_multiply_tile<K>(acc, ring, eg_hopper_k_blocks<K>(epilogue.p.gemm), consumer,
                        [&] { epilogue.boxes.fetch(epilogue.p); });
    epilogue.finish_tile(acc, eg_bias<K>(epilogue.p.gemm, tile.col));
}

template <class P>
EG_DEVICE void eg_backward_consume(const eg_cuda_backward &p, uint8_t *memory, uint32_t shared, uint32_t rank,
                                   int warp) {
    const eg_hopper_tiles<typename P::d_b> d_b(p.d_b);
    const eg_hopper_tiles<typename P::d_a> d_a(p.d_a);
    eg_epilogue<typename P::d_b, EG_CUDA_STORE> d_b_epilogue(p.d_b, memory, shared, warp);
    eg_epilogue<typename P::d_a, EG_CUDA_STORE> d_a_epilogue(p.d_a, memory, shared, warp);
    eg_ring<typename P::shape> ring(shared, rank);
    eg_tile_scheduler scheduler(shared + P::shape::SHARED_BYTES);
    for (uint32_t tile = scheduler.take(); tile < d_b.total + d_a.total; tile = scheduler.take()) {
        if (tile < d_b.total) {
            eg_backward_multiply(ring, d_b_epilogue, d_b.at(tile, rank), warp / 4);
        } else {
            eg_backward_multiply(ring, d_a_epilogue, d_a.at(tile - d_b.total, rank), warp / 4);
        }
    }
    if (eg_elect()) eg_stores_have_written();
}

/* ---- d_bias ---------------------------------------------------------------------------------------- */

/* By the warps without a part in the products: each takes 32 columns. */
EG_DEVICE void eg_backward_d_bias(const eg_cuda_backward &p, int warp) {
    const eg_cuda_act_grad &map = p.d_a.map;
    const int64_t step = 32 * EG_MAP_WARPS * (int64_t)gridDim.x;
    const int64_t first = 32 * (EG_MAP_WARPS * (int64_t)blockIdx.x + warp);
    if (p.sum.sums == 0 || first >= p.sum.cols) return;
    const uint32_t bands = (uint32_t)((map.rows + EG_CUDA_MAP_BAND - 1) / EG_CUDA_MAP_BAND);
    for (uint32_t band = 0; band < bands; band++) eg_wait_for_band(map, band);
    for (int64_t col = first + threadIdx.x % 32; col < p.sum.cols; col += step)
        eg_put_sum(p.sum, col, eg_sum_column<float>(p.sum, col, 0, 1));
}

/* ---- The kernel ------------------------------------------------------------------------------------ */

template <class P> EG_DEVICE void eg_hopper_backward(const eg_cuda_backward &p) {
    using S = typename P::shape;
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t shared = eg_shared_address(memory), rank = eg_cluster_rank();
    const int warp = eg_warp();
    if (threadIdx.x == 0) {
        eg_hopper_barriers<S>(shared);
        eg_tile_scheduler(shared + S::SHARED_BYTES).init();
        eg_barrier_init_fence();
    }
    eg_sync_cluster();
    eg_let_successor_start();
    eg_wait_for_predecessor();
    if (blockIdx.x / EG_CUDA_CLUSTER < (uint32_t)p.map_clusters) {
        eg_make_map_tiles<P::d_b::BF16, P::MAP_STAGES>(p.d_a.map,
                                                       shared + warp * P::MAP_STAGES * EG_MAP_STAGE);
        eg_fence_async();
        eg_sync_cluster(); /* from now on TMA of either block writes to the ring */
    }
    if (warp >= 8) {
        eg_fewer_registers<S::PRODUCER_REGISTERS>();
        if (warp == 8) {
            eg_backward_produce<P>(p, shared, rank);
        } else {
            eg_make_fused_rows<typename P::d_b>(p.d_a.map, shared, warp - 9);
            eg_backward_d_bias(p, warp - 9);
        }
    } else {
        eg_more_registers<S::CONSUMER_REGISTERS>();
        eg_backward_consume<P>(p, memory, shared, rank, warp);
    }
    eg_sync_cluster(); /* a block must not leave while its neighbour still writes to it */
}

/* The letter: the layout of d_a's right, Bᵀ, as in the other kernels' names. */
#define EG_HOPPER_BACKWARD_KERNEL(type, bf16, letter, right_mn_major)                                        \
    extern "C" __global__ void __cluster_dims__(EG_CUDA_CLUSTER, 1, 1)                                       \
        __launch_bounds__(EG_HOPPER_THREADS, 1)                                                              \
            eg_hopper_##type##_backward_n##letter##_128x256(const __grid_constant__ eg_cuda_backward p) {    \
        eg_hopper_backward<eg_backward_gemms<bf16, right_mn_major>>(p);                                      \
    }
#define EG_HOPPER_BACKWARD_KERNELS(type, bf16)                                                               \
    EG_HOPPER_BACKWARD_KERNEL(type, bf16, n, true)                                                           \
    EG_HOPPER_BACKWARD_KERNEL(type, bf16, t, false)

#endif
