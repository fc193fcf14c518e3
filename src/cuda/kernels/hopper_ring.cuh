/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of stages in shared memory, which TMA fills and the warps of a block read: what the f32 and f64
 * products on Hopper have in common.
 *
 * There is no producer warp. A lane loads a stage again some time after every warp has read it, so it hardly
 * ever waits. The loop has no barrier of the whole block: warps drift apart, and one's products hide
 * another's loads. */
#ifndef EG_CUDA_HOPPER_RING_CUH
#define EG_CUDA_HOPPER_RING_CUH

#include "epilogue.cuh"
#include "hopper_ptx.cuh"
#include "order.cuh"

template <int STAGES, int BYTES> struct eg_ring {
    uint32_t memory;                /* address of the stages, then of their barriers: full, empty */
    uint32_t stage = 0, parity = 0; /* what a warp reads now, and the phase in which it was filled */

    __device__ __forceinline__ eg_ring(void *shared, int warps) : memory(eg_shared_address(shared)) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) {
                eg_barrier_init(full(i), 1);
                eg_barrier_init(empty(i), warps);
            }
            eg_barrier_init_fence();
        }
    }
    __device__ __forceinline__ uint32_t full(uint32_t i) const { return memory + STAGES * BYTES + 8 * i; }
    __device__ __forceinline__ uint32_t empty(uint32_t i) const { return full(STAGES + i); }
    __device__ __forceinline__ uint32_t address(uint32_t i) const { return memory + i * BYTES; }
    __device__ __forceinline__ uint32_t now() const { return address(stage); }
    __device__ __forceinline__ uint32_t before() const { return stage == 0 ? STAGES - 1 : stage - 1; }
    __device__ __forceinline__ void wait() const { eg_barrier_wait(full(stage), parity); }
    __device__ __forceinline__ void advance() {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
    /* The warp has read the stage before this one; then: wait until all warps have. */
    __device__ __forceinline__ void release() const {
        if (threadIdx.x % 32 == 0) eg_barrier_arrive(empty(before()));
    }
    __device__ __forceinline__ void wait_released() const {
        eg_barrier_wait(empty(before()), stage == 0 ? parity ^ 1 : parity);
    }
};

/* The k-block that is loaded next: TERMS of the depth, summand after summand. */
template <int TERMS> struct eg_next_k_block {
    int term = 0, item, depth, left; /* k-blocks left */

    __device__ __forceinline__ eg_next_k_block(const eg_cuda_gemm &p, const eg_tile &at)
        : item(p.summed > 1 ? 0 : (int)at.item), depth((int)p.depth),
          left((int)((p.depth + TERMS - 1) / TERMS * p.summed)) {}
    /* Its item of an operand, which may be the same for all. */
    __device__ __forceinline__ int item_of(const eg_cuda_matrix &x) const {
        return x.item_stride > 0 ? item : 0;
    }
    __device__ __forceinline__ void advance() {
        term += TERMS;
        if (term >= depth) term = 0, item++;
        left--;
    }
};

#endif
