/* SPDX-License-Identifier: Apache-2.0 */
/* The fused product of 16-bit matrices on Hopper: acc = left · right in f32, and its epilogue (eg_cuda_gemm).
 *
 * Contract: eg_cuda_hopper in ../kernels.h. out, in and second are row-major; every address, row pitch and
 * item stride is a multiple of 16 bytes; sizes are below 2^31. Any rows, cols and depth: TMA reads zeros
 * outside a matrix and does not write there.
 *
 * The kernel is persistent: one block a multiprocessor runs for the whole launch, and two neighbours form a
 * cluster, which makes a tile of 256 x COLS, or of 128 x 2 COLS where the result has fewer of those. It is
 * put together from
 *
 *   hopper_mainloop.cuh     the ring of stages, what the producer loads and the consumers multiply
 *   hopper_scheduler.cuh    which tile comes next: static, or with a stream-K tail
 *   hopper_stream_k.cuh     the partial tiles of a tail
 *   hopper_epilogue.cuh     the epilogue: each warp of a consumer finishes its 16 rows of the tile alone
 *   hopper_boxes.cuh        the TMA boxes through which it reads and stores
 *   hopper_left_sums.cuh    column sums of left, by the warps that have nothing else to do
 *   many.cuh                the activations, for eight numbers at once
 *
 * What overlaps. TMA loads k-blocks ahead, also those of the next tile. What an epilogue reads (`in`: grad,
 * saved, residual) arrives in TMA boxes of its own during the products. Results are written over it and
 * stored from there, during the next tile's products. The epilogue's arithmetic is not overlapped: there
 * are no registers for the accumulators of two tiles. With narrower ones the two consumers work in turn
 * (hopper_pingpong.cuh).
 */
#ifndef EG_CUDA_HOPPER_GEMM_CUH
#define EG_CUDA_HOPPER_GEMM_CUH

#include "hopper_mainloop.cuh"
#include "hopper_scheduler.cuh"
#include "many.cuh"

enum { EG_HOPPER_SYNC = 1 /* named barriers: one for each consumer */ };

#include "hopper_stream_k.cuh"
#include "hopper_epilogue.cuh"
#include "hopper_left_sums.cuh"

/* ---- The producer ------------------------------------------------------------------------------------- */

template <class K> EG_DEVICE void eg_produce(const eg_cuda_hopper &p, uint32_t shared, uint32_t rank) {
    eg_hopper_tiles<K> tiles(p);
    const int k_blocks = eg_hopper_k_blocks<K>(p.gemm), summed = (int)p.gemm.summed;
    eg_ring_of<K> ring(shared, rank);
    for (eg_scheduler<K> work(p, tiles.total); work.next();) {
        const eg_hopper_tile tile = tiles.at(work.tile, rank);
        int s = work.first / k_blocks, k_block = work.first % k_blocks; /* 0, but in a partial tile */
        EG_STAMP(EG_STAMP_PRODUCER, work.tile, EG_STAMP_LOADS, 0);
        for (int i = work.first; i < work.last; i++, ring.advance()) {
            eg_barrier_wait(ring.empty(), ring.parity ^ 1);
            if (eg_elect())
                eg_load_k_block<K>(p, ring, tile, k_block * K::DEPTH, summed > 1 ? s : tile.item, rank);
            if (++k_block == k_blocks) k_block = 0, s++;
        }
        EG_STAMP(EG_STAMP_PRODUCER, work.tile, EG_STAMP_LOADS, 1);
        if constexpr (K::STREAM_K) {
            if (work.reduces()) eg_load_partial_tiles(work, ring, rank);
        }
    }
}

/* ---- The consumers ------------------------------------------------------------------------------------ */

template <class K, int EPILOGUE>
EG_DEVICE void eg_consume(const eg_cuda_hopper &p, uint8_t *memory, uint32_t shared, uint32_t rank,
                          int warp) {
    eg_hopper_tiles<K> tiles(p);
    const int consumer = warp / 4;
    eg_ring_of<K> ring(shared, rank);
    eg_epilogue<K, EPILOGUE> epilogue(p, memory, shared, warp);
    eg_accumulators<K> acc;
    for (eg_scheduler<K> work(p, tiles.total); work.next();) {
        const bool owned = work.first == 0;
        if (owned) epilogue.boxes.start_tile(tiles.at(work.tile, rank));
        eg_bias<K> bias;
        bias.load(p.gemm, epilogue.boxes.group(), epilogue.boxes.col);
        EG_STAMP(consumer, work.tile, EG_STAMP_PRODUCTS, 0);
        eg_multiply_tile<K>(acc, ring, work.last - work.first, consumer * 64, [&](int i) {
            /* What the epilogue reads, late enough that the last tile's results have been stored. */
            if (owned && i == min(2, work.last - work.first - 1))
                epilogue.boxes.fetch(p, {0, eg_boxes<K>::PARTS});
        });
        EG_STAMP(consumer, work.tile, EG_STAMP_PRODUCTS, 1);
        if constexpr (K::STREAM_K) {
            if (!owned) eg_store_partial_tile(work, rank, acc);
            if (work.reduces()) eg_add_partial_tiles(work, ring, acc);
        }
        if (!owned) continue;
        eg_scale_tile<K>(p.gemm, acc);
        if (K::ACTIVATES) eg_sync_threads<128>(EG_HOPPER_SYNC + consumer); /* the last bias has been read */
        epilogue.put(bias);
        EG_STAMP(consumer, work.tile, EG_STAMP_EPILOGUE, 0);
        epilogue.finish_tile(acc);
        EG_STAMP(consumer, work.tile, EG_STAMP_EPILOGUE, 1);
    }
    if (eg_boxes<K>::elected()) eg_stores_have_read<0>(); /* boxes go with the block */
}

template <class K>
EG_DEVICE void eg_consume_any(const eg_cuda_hopper &p, uint8_t *memory, uint32_t shared, uint32_t rank,
                              int warp) {
    if constexpr (K::ACTIVATES) {
        switch (p.gemm.epilogue) {
        case EG_CUDA_FORWARD:
            return eg_consume<K, EG_CUDA_FORWARD>(p, memory, shared, rank, warp);
        case EG_CUDA_ACT_GRAD:
            return eg_consume<K, EG_CUDA_ACT_GRAD>(p, memory, shared, rank, warp);
        case EG_CUDA_CHAIN:
            return eg_consume<K, EG_CUDA_CHAIN>(p, memory, shared, rank, warp);
        }
    }
    eg_consume<K, EG_CUDA_STORE>(p, memory, shared, rank, warp);
}

/* ---- The kernel --------------------------------------------------------------------------------------- */

/* By one thread. */
template <class S> EG_DEVICE void eg_hopper_barriers(uint32_t shared) {
    eg_ring_barriers<S>(shared);
    for (int i = 0; i < EG_HOPPER_CONSUMER_WARPS * S::BOX_BARRIERS; i++)
        eg_barrier_init(shared + S::IN_FULL + i * 8, 1);
}

/* By a warp that has nothing else to do. */
template <class K> EG_DEVICE void eg_hopper_check_ends(const eg_cuda_hopper &p) {
    if constexpr (K::GROUPED) {
        const eg_cuda_ends ends = {(const int32_t *)p.gemm.ends, (uint32_t)p.gemm.rows,
                                   (uint32_t)p.gemm.items};
        for (uint32_t group = threadIdx.x % 32; group < ends.count; group += 32) {
            if (eg_cuda_end_is_wrong(ends, group)) *(volatile uint32_t *)p.gemm.wrong = 1;
        }
    }
}

/* What all warps do before and after their own work. prefetch() is of the tensor maps that the producer
 * reads. WAIT_LATE: consume(memory, shared, rank, warp) waits for the predecessor itself, when it has done
 * what it can without it. */
template <class K, bool WAIT_LATE, class P, class C, class M>
EG_DEVICE void eg_hopper_frame(const eg_cuda_hopper &p, const P &produce, const C &consume,
                               const M &prefetch) {
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t shared = eg_shared_address(memory), rank = eg_cluster_rank();
    if (threadIdx.x == 0) {
        eg_hopper_barriers<K>(shared);
        eg_barrier_init_fence();
        prefetch();
    }
    eg_cluster_arrive(); /* the fence has released the barriers */
    eg_cluster_wait();
    eg_let_successor_start();
    if (!WAIT_LATE) eg_wait_for_predecessor();
    const int warp = eg_warp();
    if (warp >= 8) {
        eg_fewer_registers<K::PRODUCER_REGISTERS>();
        if (WAIT_LATE) eg_wait_for_predecessor();
        if (warp == 8) produce(shared, rank);
        if (blockIdx.x == 0 && warp == 9) eg_clear(p.counts, threadIdx.x % 32, 32);
        if (blockIdx.x == 0 && warp == 10) eg_hopper_check_ends<K>(p);
        if constexpr (!K::LEFT_MN_MAJOR && !K::GROUPED) {
            if (warp > 8) eg_sum_left<K::BF16>(p, shared + K::LEFT_SUMS, warp - 9);
        }
    } else {
        eg_more_registers<K::CONSUMER_REGISTERS>();
        consume(memory, shared, rank, warp);
    }
    eg_sync_cluster(); /* a block must not leave while its neighbour still writes to it */
}

template <class K> EG_DEVICE void eg_hopper_gemm(const eg_cuda_hopper &p) {
    eg_hopper_frame<K, false>(
        p, [&](uint32_t shared, uint32_t rank) EG_INLINE { eg_produce<K>(p, shared, rank); },
        [&](uint8_t *memory, uint32_t shared, uint32_t rank, int warp)
            EG_INLINE { eg_consume_any<K>(p, memory, shared, rank, warp); },
        [&]() EG_INLINE {
            eg_prefetch_tensor_map(p.left);
            eg_prefetch_tensor_map(p.right);
        });
}

#define EG_HOPPER_KERNEL(name, ...)                                                                          \
    extern "C" __global__ void __cluster_dims__(EG_CUDA_CLUSTER, 1, 1)                                       \
        __launch_bounds__(EG_HOPPER_THREADS, 1) eg_##name(const __grid_constant__ eg_cuda_hopper p) {        \
        eg_hopper_gemm<eg_hopper<__VA_ARGS__>>(p);                                                           \
    }

/* The layouts of a layer's products (../table.c has the letters): A·B with B [K, N] (nn) or [N, K] (nt),
 * grad_pre·Bᵀ (the other of the two), Aᵀ·grad_pre (tn). */
#define EG_HOPPER_LAYOUTS(type, bf16, cols, stream_k)                                                        \
    EG_HOPPER_KERNEL(hopper_##type##_nn_128x##cols, bf16, false, true, cols, true, stream_k)                 \
    EG_HOPPER_KERNEL(hopper_##type##_nt_128x##cols, bf16, false, false, cols, true, stream_k)                \
    EG_HOPPER_KERNEL(hopper_##type##_tn_128x##cols, bf16, true, true, cols, false, stream_k)
#define EG_HOPPER_KERNELS(type, bf16, cols)    EG_HOPPER_LAYOUTS(type, bf16, cols, false)
#define EG_HOPPER_STREAM_K_KERNELS(type, bf16) EG_HOPPER_LAYOUTS(type##_stream_k, bf16, 256, true)

#endif
