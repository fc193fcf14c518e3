/* SPDX-License-Identifier: Apache-2.0 */
/* Two products of a gated unit in one launch (../pair.h): their sum, or one after the other. They are those
 * of hopper_gemm.cuh and hopper_pingpong.cuh, but for the producer, which reads the operands of the one or of
 * the other. */
#ifndef EG_CUDA_HOPPER_PAIR_CUH
#define EG_CUDA_HOPPER_PAIR_CUH

#include "../pair.h"
#include "hopper_pingpong.cuh"

/* As eg_produce, with its own way to load a k-block: load(ring, tile, depth, s) of summand s. One template
 * for both makes other, longer code of eg_produce. */
template <class K, class F>
EG_DEVICE void eg_produce_by(const eg_cuda_hopper &p, uint32_t shared, uint32_t rank, const F &load) {
    eg_hopper_tiles<K> tiles(p);
    const int k_blocks = eg_hopper_k_blocks<K>(p.gemm);
    eg_ring_of<K> ring(shared, rank);
    for (eg_scheduler<K> work(p, tiles.total); work.next();) {
        const eg_hopper_tile tile = tiles.at(work.tile, rank);
        int s = work.first / k_blocks, k_block = work.first % k_blocks; /* 0, but in a partial tile */
        for (int i = work.first; i < work.last; i++, ring.advance()) {
            eg_barrier_wait(ring.empty(), ring.parity ^ 1);
            if (eg_elect()) load(ring, tile, k_block * K::DEPTH, s);
            if (++k_block == k_blocks) k_block = 0, s++;
        }
        if constexpr (K::STREAM_K) {
            if (work.reduces()) eg_load_partial_tiles(work, ring, rank);
        }
    }
}

template <class K>
EG_DEVICE void eg_produce_sum(const eg_cuda_hopper_pair &both, uint32_t shared, uint32_t rank) {
    eg_produce_by<K>(both.gate, shared, rank,
                     [&](const eg_ring_of<K> &ring, const eg_hopper_tile &tile, int depth, int s) {
                         eg_load_k_block<K>(s != 0 ? both.up : both.gate, ring, tile, depth, 0, rank);
                     });
}

template <class K, class P, class C>
EG_DEVICE void eg_hopper_pair(const eg_cuda_hopper_pair &both, const P &produce, const C &consume) {
    eg_hopper_frame<K, true>(
        both.gate, produce,
        [&](uint8_t *memory, uint32_t shared, uint32_t rank, int warp) EG_INLINE {
            if (K::CONSUMERS != 1) eg_wait_for_predecessor(); /* consumers in turn do so themselves */
            consume(memory, shared, rank, warp);
        },
        [&]() EG_INLINE {
            eg_prefetch_tensor_map(both.gate.left);
            eg_prefetch_tensor_map(both.gate.right);
            eg_prefetch_tensor_map(both.up.left);
            eg_prefetch_tensor_map(both.up.right);
        });
}

#define EG_HOPPER_PAIR_ENTRY(name)                                                                           \
    extern "C" __global__ void __cluster_dims__(EG_CUDA_CLUSTER, 1, 1)                                       \
        __launch_bounds__(EG_HOPPER_THREADS, 1) eg_##name(const __grid_constant__ eg_cuda_hopper_pair both)

#endif
