/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of two products, which is only stored (hopper_pair.cuh): with a tile for each consumer, and with a
 * stream-K tail. */
#include "hopper_pair.cuh"

template <class K>
EG_DEVICE void eg_consume_sum(const eg_cuda_hopper &p, uint8_t *memory, uint32_t shared, uint32_t rank,
                              int warp) {
    if constexpr (K::CONSUMERS == 1) {
        eg_consume_in_turn<K, eg_turn_epilogue<K, EG_CUDA_STORE>>(p, p, memory, shared, rank, warp);
    } else {
        eg_consume<K, EG_CUDA_STORE>(p, memory, shared, rank, warp);
    }
}

#define KERNEL(name, ...)                                                                                    \
    EG_HOPPER_PAIR_ENTRY(name) {                                                                             \
        using K = __VA_ARGS__;                                                                               \
        eg_hopper_pair<K>(                                                                                   \
            both, [&](uint32_t shared, uint32_t rank) { eg_produce_sum<K>(both, shared, rank); },            \
            [&](uint8_t *memory, uint32_t shared, uint32_t rank, int warp) {                                 \
                eg_consume_sum<K>(both.gate, memory, shared, rank, warp);                                    \
            });                                                                                              \
    }

#define KERNELS(type, bf16, layout, right)                                                                   \
    KERNEL(hopper_##type##_pair_##layout##_128x128, eg_pingpong<bf16, false, right, 128, false>)             \
    KERNEL(hopper_##type##_pair_stream_k_##layout##_128x256, eg_hopper<bf16, false, right, 256, false, true>)
#define LAYOUTS(type, bf16)                                                                                  \
    KERNELS(type, bf16, nn, true)                                                                            \
    KERNELS(type, bf16, nt, false)

LAYOUTS(bf16, true)
LAYOUTS(f16, false)
