/* SPDX-License-Identifier: Apache-2.0 */
/* d_b of groups: a product for each group, as deep as the group has rows, with its result alone
 * (eg_cuda_gemm: STORE). By tiles of hopper_pingpong.cuh, whose stores cost nothing where groups have few
 * rows, or by wide ones of hopper_gemm.cuh, which read less.
 *
 *   left    M-major   [rows, depth]      A of all groups; `depth` is that of all their rows
 *   right   N-major   [depth, cols]      grad_pre of all groups
 *   out     an item for each group       0 where it has no rows, or as it was where it is added to
 *
 * A k-block must have no row of another group: what is there may be infinite. Nothing has to be cleared for
 * that. The tensor maps have an item for each row, of 64 rows from there on (../hopper.c), and k-blocks end
 * where the group ends. So only the first one has fewer rows than 64. Its box begins before its item, where
 * TMA reads zeros. Whole steps of zeros are not multiplied.
 *
 *     rows      | group 0 ......... | group 1 ................................ |
 *     k-blocks               [ zeros ..... | k-block 0 ][ k-block 1 ][ k-block 2 ] */
#ifndef EG_CUDA_HOPPER_DEPTH_GROUPS_CUH
#define EG_CUDA_HOPPER_DEPTH_GROUPS_CUH

#include "../depth_groups.h"
#include "hopper_pingpong.cuh"

template <class K_> struct eg_depth_groups : K_ {
    /* No epilogue here has a bias or column sums. In their place is the order of the groups, of so many. */
    enum { ORDERED = 512 };
    static constexpr int ORDER = K_::EXCHANGE;
    static_assert(ORDERED * 2 <= EG_HOPPER_EXCHANGE_BYTES(K_::COLS), "the order of the groups");
};

EG_DEVICE eg_cuda_ends eg_depth_ends(const eg_cuda_gemm &p) {
    return {(const int32_t *)p.ends, (uint32_t)p.depth, (uint32_t)p.items};
}

/* By all threads of the block. More groups are taken as they come. */
template <class K> EG_DEVICE void eg_order_groups(const eg_cuda_gemm &p, uint16_t *order) {
    const eg_cuda_ends ends = eg_depth_ends(p);
    if (ends.count > K::ORDERED) return;
    for (uint32_t group = threadIdx.x; group < ends.count; group += EG_HOPPER_THREADS)
        order[eg_cuda_rank_of_group(ends, group)] = (uint16_t)group;
}

/* ---- The tiles of a cluster, in order ----------------------------------------------------------------- */

template <class K> struct eg_depth_tiles {
    const eg_cuda_hopper &p;
    const uint16_t *order;
    const uint32_t rank, down, across, total;
    uint32_t turn = 0;
    uint32_t first = 0, end = 0; /* rows of the present tile's group */
    int k_blocks = 0;
    eg_hopper_tile tile = {0, 0, 0};

    __device__ eg_depth_tiles(const eg_cuda_hopper &hopper, const uint8_t *memory, uint32_t rank_)
        : p(hopper), order((const uint16_t *)(memory + K::ORDER)), rank(rank_),
          down(((uint32_t)p.gemm.rows + 2 * K::ROWS - 1) / (2 * K::ROWS)),
          across(((uint32_t)p.gemm.cols + K::COLS - 1) / K::COLS),
          total(down * across * (uint32_t)p.gemm.items) {}
    __device__ uint32_t next_index() const {
        return eg_cuda_tile_of_turn(turn, blockIdx.x / 2, gridDim.x / 2);
    }
    __device__ bool is_last() const { return next_index() >= total; }
    /* False: there is no more. */
    __device__ bool next() {
        const uint32_t index = next_index();
        if (index >= total) return false;
        turn++;
        const uint32_t group = index / (down * across), in_group = index % (down * across);
        const eg_raster_place place = eg_raster(in_group, down, across, (uint32_t)p.raster);
        const eg_cuda_ends ends = eg_depth_ends(p.gemm);
        const eg_cuda_group_rows rows =
            eg_cuda_rows_of_group(ends, ends.count > K::ORDERED ? group : order[group]);
        first = rows.first, end = rows.end;
        k_blocks = (int)eg_cuda_k_blocks_of_rows(end - first, K::DEPTH);
        tile = {(int)rows.group, (int)((2 * place.row + rank) * K::ROWS), (int)(place.col * K::COLS)};
        return true;
    }
    /* Rows of zeros at the beginning of the first k-block. */
    __device__ int zeros() const { return k_blocks * K::DEPTH - (int)(end - first); }
};

/* ---- The producer ------------------------------------------------------------------------------------- */

template <class K>
EG_DEVICE void eg_produce_depth_groups(const eg_cuda_hopper &p, const uint8_t *memory, uint32_t shared,
                                       uint32_t rank) {
    eg_ring_of<K> ring(shared, rank);
    for (eg_depth_tiles<K> work(p, memory, rank); work.next();) {
        for (int i = 0; i < work.k_blocks; i++, ring.advance()) {
            const eg_cuda_rows_of_k_block rows =
                eg_cuda_k_block_of_group(work.first, work.end, K::DEPTH, (uint32_t)i);
            eg_barrier_wait(ring.empty(), ring.parity ^ 1);
            if (eg_elect()) eg_load_k_block<K>(p, ring, work.tile, rows.before, (int)rows.row, rank);
        }
    }
}

/* ---- The consumers ------------------------------------------------------------------------------------ */

/* The products of a stage whose first `skipped` steps of 16 are zeros. In a loop: of a jump into unrolled
 * steps, the compiler waits for the products at its end. */
template <class K>
EG_DEVICE void eg_multiply_first(eg_accumulators<K> &acc, uint32_t stage, int from, int skipped) {
    constexpr uint64_t STEP = 16 * 128 >> 4;
    const uint64_t left = eg_operand_at(stage + from * 128, 64 * 128),
                   right = eg_operand_at(stage + K::LEFT_BYTES, 64 * 128);
    int step = skipped;
    int add = 0;
#pragma unroll 1
    do {
        eg_products_begin();
#pragma unroll
        for (int product = 0; product < K::PRODUCTS; product++)
            eg_multiply<K::BF16, true, true>(acc[product], left + product * (64 * 128 >> 4) + step * STEP,
                                             right + step * STEP, add);
        eg_products_commit();
        add = 1;
    } while (++step < 4);
}

/* acc = the consumer's part of a tile, its rows from row `from` on, over a k-block or more. `under` runs
 * while products do, with the number of the k-block. */
template <class K, class F>
EG_DEVICE void eg_multiply_group(eg_accumulators<K> &acc, eg_ring_of<K> &ring, const eg_depth_tiles<K> &work,
                                 int from, const F &under) {
    eg_barrier_wait(ring.full(), ring.parity);
    eg_multiply_first<K>(acc, ring.address(), from, work.zeros() / 16);
    under(0);
    ring.advance();
    for (int i = 1; i < work.k_blocks; i++, ring.advance()) {
        eg_barrier_wait(ring.full(), ring.parity);
        eg_multiply_stage<K>(acc, ring.address(), from, true);
        under(i);
        eg_products_wait<1>();
        ring.release_last();
    }
    eg_products_wait<0>();
    ring.release_last();
}

/* After a tile's products. Without rows it is 0, or stays as it is where it is added to. */
template <class K>
EG_DEVICE void eg_finish_group(const eg_cuda_hopper &p, const eg_depth_tiles<K> &work,
                               eg_accumulators<K> &acc, eg_epilogue<K, EG_CUDA_STORE> &epilogue) {
    if (work.k_blocks > 0) {
        eg_scale_tile<K>(p.gemm, acc);
    } else if (p.gemm.accumulate) {
        return;
    } else {
#pragma unroll
        for (int i = 0; i < K::PRODUCTS * K::COLS / 2; i++) acc[i / (K::COLS / 2)][i % (K::COLS / 2)] = 0;
    }
    epilogue.finish_tile(acc);
}

/* Two consumers share a tile. */
template <class K>
EG_DEVICE void eg_consume_depth_groups(const eg_cuda_hopper &p, const uint8_t *memory, uint32_t shared,
                                       uint32_t rank, int warp) {
    eg_ring_of<K> ring(shared, rank);
    eg_epilogue<K, EG_CUDA_STORE> epilogue(p, nullptr, shared, warp);
    eg_accumulators<K> acc;
    for (eg_depth_tiles<K> work(p, memory, rank); work.next();) {
        epilogue.boxes.start_tile(work.tile);
        if (work.k_blocks > 0) {
            eg_multiply_group<K>(acc, ring, work, warp / 4 * 64, [&](int k_block) {
                if (k_block == min(2, work.k_blocks - 1)) epilogue.fetch({0, eg_boxes<K>::PARTS});
            });
        }
        eg_finish_group<K>(p, work, acc, epilogue);
    }
    if (eg_boxes<K>::elected()) eg_stores_have_read<0>(); /* boxes go with the block */
}

/* Or they work in turn, as in hopper_pingpong.cuh. */
template <class K>
EG_DEVICE void eg_consume_depth_groups_in_turn(const eg_cuda_hopper &p, const uint8_t *memory,
                                               uint32_t shared, uint32_t rank, int warp) {
    const int consumer = warp / 4;
    eg_ring_of<K> ring(shared, rank);
    eg_epilogue<K, EG_CUDA_STORE> epilogue(p, nullptr, shared, warp);
    eg_depth_tiles<K> work(p, memory, rank);
    eg_accumulators<K> acc;
    bool waits = consumer == 1; /* but for the first tile of all */
    if (consumer == 1 && work.next()) ring.skip(work.k_blocks);
    while (work.next()) {
        const bool passes = !work.is_last();
        if (waits) eg_sync_threads<256>(EG_PINGPONG_TURN + consumer);
        waits = true;
        epilogue.boxes.start_tile(work.tile);
        if (work.k_blocks > 0) {
            eg_multiply_group<K>(acc, ring, work, 0, [&](int k_block) {
                if (k_block == min(2, work.k_blocks - 1)) epilogue.fetch({0, eg_boxes<K>::PARTS});
                if (k_block == work.k_blocks - 1 && passes)
                    eg_arrive_threads<256>(EG_PINGPONG_TURN + 1 - consumer);
            });
        } else if (passes) {
            eg_arrive_threads<256>(EG_PINGPONG_TURN + 1 - consumer);
        }
        eg_finish_group<K>(p, work, acc, epilogue);
        if (work.next()) ring.skip(work.k_blocks);
    }
    if (eg_boxes<K>::elected()) eg_stores_have_read<0>(); /* boxes go with the block */
}

/* ---- The kernel --------------------------------------------------------------------------------------- */

/* By a warp that has nothing else to do. */
EG_DEVICE void eg_depth_check_ends(const eg_cuda_gemm &p) {
    const eg_cuda_ends ends = eg_depth_ends(p);
    for (uint32_t group = threadIdx.x % 32; group < ends.count; group += 32) {
        if (eg_cuda_end_is_wrong(ends, group)) *(volatile uint32_t *)p.wrong = 1;
    }
}

template <class K> EG_DEVICE void eg_hopper_depth_groups(const eg_cuda_hopper &p) {
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t shared = eg_shared_address(memory), rank = eg_cluster_rank();
    if (threadIdx.x == 0) {
        eg_hopper_barriers<K>(shared);
        eg_barrier_init_fence();
        eg_prefetch_tensor_map(p.left);
        eg_prefetch_tensor_map(p.right);
    }
    eg_sync_cluster();
    eg_let_successor_start();
    eg_wait_for_predecessor();
    eg_order_groups<K>(p.gemm, (uint16_t *)(memory + K::ORDER));
    __syncthreads();
    const int warp = eg_warp();
    if (warp >= 8) {
        eg_fewer_registers<K::PRODUCER_REGISTERS>();
        if (warp == 8) eg_produce_depth_groups<K>(p, memory, shared, rank);
        if (blockIdx.x == 0 && warp == 9) eg_clear(p.counts, threadIdx.x % 32, 32);
        if (blockIdx.x == 0 && warp == 10) eg_depth_check_ends(p.gemm);
    } else {
        eg_more_registers<K::CONSUMER_REGISTERS>();
        if constexpr (K::CONSUMERS == 1) {
            eg_consume_depth_groups_in_turn<K>(p, memory, shared, rank, warp);
        } else {
            eg_consume_depth_groups<K>(p, memory, shared, rank, warp);
        }
    }
    eg_sync_cluster(); /* a block must not leave while its neighbour still writes to it */
}

#define EG_HOPPER_DEPTH_GROUPS_KERNEL(name, ...)                                                             \
    extern "C" __global__ void __cluster_dims__(EG_CUDA_CLUSTER, 1, 1)                                       \
        __launch_bounds__(EG_HOPPER_THREADS, 1) eg_##name(const __grid_constant__ eg_cuda_hopper p) {        \
        eg_hopper_depth_groups<eg_depth_groups<__VA_ARGS__>>(p);                                             \
    }
#define EG_HOPPER_DEPTH_GROUPS_KERNELS(type, bf16)                                                           \
    EG_HOPPER_DEPTH_GROUPS_KERNEL(hopper_##type##_grouped_tn_128x128,                                        \
                                  eg_pingpong<bf16, true, true, 128, false>)                                 \
    EG_HOPPER_DEPTH_GROUPS_KERNEL(hopper_##type##_grouped_tn_128x256, eg_hopper<bf16, true, true, 256, false>)

#endif
