/* Programmatic dependent launch: a kernel's blocks may be set up while the one before it drains. Every entry
 * point waits before it touches memory, so the order of results is the stream's. */
#ifndef EG_CUDA_ORDER_CUH
#define EG_CUDA_ORDER_CUH

/* Until the kernels before this one have finished and their writes can be seen. */
static __device__ __forceinline__ void eg_wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next kernel's blocks may take the places that this one's leave free. */
static __device__ __forceinline__ void eg_let_successor_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* By some of a block's threads; seen by the kernels that follow. */
static __device__ __forceinline__ void eg_clear(const eg_cuda_counts &counts, int thread, int threads) {
    for (int64_t i = thread; i < counts.count; i += threads) ((uint32_t *)counts.data)[i] = 0;
}

#endif
