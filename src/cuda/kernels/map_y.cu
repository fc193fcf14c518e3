/* SPDX-License-Identifier: Apache-2.0 */
/* y = act(v + bias) + residual, and v + bias as a second result, of values that a product left in memory:
 * what finishes most products of the library. Values and results follow each other without a gap, so that
 * each matrix is one long row of vectors of 16 bytes (map_y_gaps.cu takes the others, map.cu every other
 * epilogue).
 *
 *     thread i        vector i, and of f32 the one that lies half of all rows further on, in the same columns
 *
 * Instructions are the limit here, not memory: a thread that looks up strides, types and items spends half of
 * its instructions on that. So this kernel has none of it. With at most 40 registers a thread, six blocks fit
 * on a multiprocessor, and hide each other's waits for memory. Values may lie in the memory of a result: the
 * thread that writes there has read them before. */
#include "../map_y.h"
#include "order.cuh"
#include "vectors.cuh"

enum { THREADS = EG_MAP_Y_THREADS, RESIDENT = 6 };

/* Vectors of a thread. */
template <typename V> constexpr int vectors_each = V::BYTES == 4 ? EG_MAP_Y_F32_VECTORS : 1;

/* The numbers of a vector of V, which are of its type, or wait in f32 (WIDE). */
template <typename V, bool WIDE> struct numbers {
    uint4 part[1 + WIDE];

    __device__ void load(uint64_t data, uint32_t index) {
        const uint4 *from = (const uint4 *)data + (1 + WIDE) * (uint64_t)index;
#pragma unroll
        for (int i = 0; i <= WIDE; i++) part[i] = from[i];
    }
    __device__ void add_to(typename V::real (&v)[V::COUNT]) const {
        constexpr int EACH = V::COUNT / (1 + WIDE);
#pragma unroll
        for (int i = 0; i <= WIDE; i++) {
            typename V::real some[EACH];
            if constexpr (WIDE) {
                f32x4::widen(part[i], some);
            } else {
                V::widen(part[i], some);
            }
#pragma unroll
            for (int j = 0; j < EACH; j++) v[i * EACH + j] += some[j];
        }
    }
};

template <typename V>
EG_DEVICE void store(uint64_t data, uint32_t index, const typename V::real (&v)[V::COUNT]) {
    ((uint4 *)data)[index] = V::round(v);
}

template <typename V, bool WIDE> EG_DEVICE void map(const eg_cuda_gemm &p) {
    constexpr int EACH = vectors_each<V>;
    const uint32_t across = (uint32_t)p.cols / V::COUNT, all = (uint32_t)p.rows * across;
    const uint32_t apart = ((uint32_t)p.rows + EACH - 1) / EACH * across;
    const uint32_t first = blockIdx.x * THREADS + threadIdx.x;
    if (first >= apart) return;
    numbers<V, WIDE> left[EACH];
    numbers<V, false> in[EACH], bias;
    typename V::real v[EACH][V::COUNT] = {};
    bool there[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        there[i] = first + i * apart < all;
        if (there[i]) left[i].load(p.left.data, first + i * apart);
        if (there[i] && p.in.data != 0) in[i].load(p.in.data, first + i * apart);
    }
    if (p.bias.data != 0) bias.load(p.bias.data, first % across);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (there[i]) left[i].add_to(v[i]);
        if (p.bias.data != 0) bias.add_to(v[i]);
        if (there[i] && p.second.data != 0) store<V>(p.second.data, first + i * apart, v[i]);
    }
    eg_act(p.activation, (typename V::real(&)[EACH * V::COUNT]) v);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (there[i] && p.in.data != 0) in[i].add_to(v[i]);
        if (there[i]) store<V>(p.out.data, first + i * apart, v[i]);
    }
}

template <typename V> EG_DEVICE void run(const eg_cuda_gemm &p) {
    eg_let_successor_start();
    eg_wait_for_predecessor();
    if constexpr (V::COUNT == 8) {
        if (p.left.dtype == EG_F32) return map<V, true>(p);
    }
    map<V, false>(p);
}

#define EG_ENTRY(name, vector)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)                                          \
        eg_map_y_##name(const __grid_constant__ eg_cuda_gemm p) {                                            \
        run<vector>(p);                                                                                      \
    }
EG_ENTRY(bf16, bf16x8)
EG_ENTRY(f16, f16x8)
EG_ENTRY(f32, f32x4)
EG_ENTRY(f64, f64x2)
