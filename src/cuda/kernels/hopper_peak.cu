/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic peak of Hopper's matrix units (peak.cu): a block of two warp groups, each with a product of
 * 64 x 256 in flight, as in hopper_mainloop.cuh. The operands lie in shared memory, as wgmma takes them.
 * Their numbers have many bits set: on zeros the units take less power and run faster. */
#include "../layout.h"
#include "hopper_ptx.cuh"

template <bool BF16> EG_DEVICE void run(const eg_cuda_peak &p) {
    extern __shared__ __align__(1024) uint32_t memory[];
    constexpr int LEFT = EG_PEAK_LEFT_BYTES;
    float acc[128], sum = 0;
    for (int i = threadIdx.x; i < EG_PEAK_SHARED / 4; i += 256) /* below 2, of either sign */
        memory[i] = ((uint32_t)i * 2654435761U & 0x83ff83ffU) | (BF16 ? 0x3c003c00U : 0x24002400U);
    eg_fence_async();
    __syncthreads();
    const uint32_t shared = eg_shared_address(memory);
    const uint64_t left = eg_operand_at(shared + threadIdx.x / 128 * LEFT, LEFT),
                   right = eg_operand_at(shared + 2 * LEFT, LEFT);
    for (int64_t turn = 0; turn < p.turns; turn++) {
        eg_products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++)
            eg_multiply<BF16, false, false>(acc, left + i * 2, right + i * 2, turn + i > 0);
        eg_products_commit();
        eg_products_wait<0>();
    }
#pragma unroll
    for (int i = 0; i < 128; i++) sum += acc[i];
    ((double *)p.out)[(int64_t)blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(256, 1)
    eg_peak_wgmma_bf16(const __grid_constant__ eg_cuda_peak p) {
    run<true>(p);
}
extern "C" __global__ void __launch_bounds__(256, 1)
    eg_peak_wgmma_f16(const __grid_constant__ eg_cuda_peak p) {
    run<false>(p);
}
