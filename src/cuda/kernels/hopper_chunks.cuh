/* SPDX-License-Identifier: Apache-2.0 */
/* Sixteen by sixteen numbers of a result, as a warp has them in its accumulators, eight a thread: what the
 * epilogue of hopper_cluster.cuh does with them.
 *
 *     upright   the unit's rows are the result's: a thread has two neighbouring columns of a row
 *     turned    the unit's rows are the result's columns (hopper_turned.cuh): two neighbouring rows of one
 *
 * K: BF16, and PITCH: bytes of a row of the warp's box, which has rows of the result in either case. */
#ifndef EG_CUDA_HOPPER_CHUNKS_CUH
#define EG_CUDA_HOPPER_CHUNKS_CUH

#include "hopper_ptx.cuh"

#include "hopper_boxes.cuh"

template <class K, bool TURNED> struct eg_chunk;

template <class K> struct eg_chunk<K, false> {
    /* What ldmatrix and stmatrix are given, from the box on: the line of a block that the lane names. */
    __device__ static uint32_t line() { return threadIdx.x % 16 * K::PITCH + threadIdx.x % 32 / 16 * 16; }
    /* `bias` of the first column, in shared memory. */
    __device__ static void add_bias(uint32_t bias, float *v) {
        const uint32_t at = bias + threadIdx.x % 4 * 4;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float low, high;
            eg_widen_pair<K::BF16>(eg_load_number(at + i * 16), low, high);
            v[i * 4] += low, v[i * 4 + 1] += high, v[i * 4 + 2] += low, v[i * 4 + 3] += high;
        }
    }
    __device__ static void store(uint32_t to, const uint32_t (&pairs)[4]) { eg_store_blocks(to, pairs); }
    __device__ static void load(uint32_t from, uint32_t (&pairs)[4]) { eg_load_blocks(from, pairs); }
    /* Sums of each column over `rows` rows, in a fixed order, to shared memory. */
    __device__ static void add_up(uint32_t to, int rows, float *v) {
        const int lane = threadIdx.x % 32;
        if (lane / 4 >= rows) v[0] = v[1] = v[4] = v[5] = 0;
        if (lane / 4 + 8 >= rows) v[2] = v[3] = v[6] = v[7] = 0;
        const float s[4] = {v[0] + v[2], v[1] + v[3], v[4] + v[6], v[5] + v[7]};
        const bool right = lane & 16, odd = lane & 8;
        float t[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            t[i] = (right ? s[i + 2] : s[i]) + __shfl_xor_sync(0xffffffffU, right ? s[i] : s[i + 2], 16);
        float sum = (odd ? t[1] : t[0]) + __shfl_xor_sync(0xffffffffU, odd ? t[0] : t[1], 8);
        sum += __shfl_xor_sync(0xffffffffU, sum, 4);
        if ((lane & 4) == 0) eg_store_number(to + (right * 8 + lane % 4 * 2 + odd) * 4, sum);
    }
};

template <class K> struct eg_chunk<K, true> {
    __device__ static uint32_t line() {
        const uint32_t lane = threadIdx.x % 32;
        return (lane / 16 * 8 + lane % 8) * K::PITCH + lane / 8 % 2 * 16;
    }
    __device__ static void add_bias(uint32_t bias, float *v) {
        const uint32_t at = bias + threadIdx.x % 32 / 4 * 2;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint16_t bits;
            eg_load_shared(at + i * 16, bits);
            const float b = K::BF16 ? eg_widen_bf16(bits) : eg_widen_f16(bits);
            v[i * 2] += b, v[i * 2 + 1] += b, v[i * 2 + 4] += b, v[i * 2 + 5] += b;
        }
    }
    __device__ static void store(uint32_t to, const uint32_t (&pairs)[4]) {
        eg_store_blocks_turned(to, pairs);
    }
    __device__ static void load(uint32_t from, uint32_t (&pairs)[4]) { eg_load_blocks_turned(from, pairs); }
    __device__ static void add_up(uint32_t to, int rows, float *v) {
        const int lane = threadIdx.x % 32, first = lane % 4 * 2;
        float s[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (first + i / 2 * 8 + i % 2 >= rows) continue;
            s[0] += v[i / 2 * 4 + i % 2], s[1] += v[i / 2 * 4 + 2 + i % 2];
        }
        const bool lower = lane & 1;
        float sum = (lower ? s[1] : s[0]) + __shfl_xor_sync(0xffffffffU, lower ? s[0] : s[1], 1);
        sum += __shfl_xor_sync(0xffffffffU, sum, 2);
        if ((lane & 2) == 0) eg_store_number(to + (lower * 8 + lane / 4) * 4, sum);
    }
};

#endif
