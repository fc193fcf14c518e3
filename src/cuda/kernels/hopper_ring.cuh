/* A ring of slots in shared memory that the copy engine fills and the warps of a block empty: what the
 * products of f32 and f64 on Hopper have in common.
 *
 * There is no producer: a lane asks for a slot's next filling some time after every warp has read the last,
 * so that it hardly ever waits. No barrier of the whole block stands in the loop: warps drift apart and fill
 * each other's gaps. */
#ifndef EG_CUDA_HOPPER_RING_CUH
#define EG_CUDA_HOPPER_RING_CUH

#include "epilogue.cuh"
#include "hopper_ptx.cuh"
#include "order.cuh"

template <int SLOTS, int BYTES> struct eg_ring {
    uint32_t memory;             /* address of the slots, then of their barriers: full, empty */
    uint32_t slot = 0, turn = 0; /* what a warp reads now, and the parity of its filling */

    __device__ __forceinline__ eg_ring(void *shared, int warps) : memory(eg_shared_address(shared)) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < SLOTS; i++) {
                eg_barrier_init(full(i), 1);
                eg_barrier_init(empty(i), warps);
            }
            eg_barrier_init_fence();
        }
    }
    __device__ __forceinline__ uint32_t full(uint32_t i) const { return memory + SLOTS * BYTES + 8 * i; }
    __device__ __forceinline__ uint32_t empty(uint32_t i) const { return full(SLOTS + i); }
    __device__ __forceinline__ uint32_t address(uint32_t i) const { return memory + i * BYTES; }
    __device__ __forceinline__ uint32_t now() const { return address(slot); }
    __device__ __forceinline__ uint32_t before() const { return slot == 0 ? SLOTS - 1 : slot - 1; }
    __device__ __forceinline__ void wait() const { eg_barrier_wait(full(slot), turn); }
    __device__ __forceinline__ void advance() {
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        turn ^= slot == 0;
    }
    /* The warp has read the slot before; all warps have. */
    __device__ __forceinline__ void release() const {
        if (threadIdx.x % 32 == 0) eg_barrier_arrive(empty(before()));
    }
    __device__ __forceinline__ void wait_released() const {
        eg_barrier_wait(empty(before()), slot == 0 ? turn ^ 1 : turn);
    }
};

/* What is to be loaded next: strips of TERMS of the depth, summand after summand. */
template <int TERMS> struct eg_course {
    int term = 0, item, depth, left; /* strips left */

    __device__ __forceinline__ eg_course(const eg_cuda_gemm &p, const eg_tile &at)
        : item(p.summed > 1 ? 0 : (int)at.item), depth((int)p.depth),
          left((int)((p.depth + TERMS - 1) / TERMS * p.summed)) {}
    /* Its item of an operand, which may be one for all. */
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
