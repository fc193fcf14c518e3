/* SPDX-License-Identifier: Apache-2.0 */
/* Programmatic dependent launch: a kernel's blocks may be set up while the one before it drains. Every entry
 * point waits before it touches memory, so the order of results is the stream's. */
#ifndef EG_CUDA_ORDER_CUH
#define EG_CUDA_ORDER_CUH

#include "../kernels.h"

/* Waits until the kernels before this one have finished and their writes are visible. */
static __device__ __forceinline__ void eg_wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Blocks of the next kernel may start where blocks of this one have left room. */
static __device__ __forceinline__ void eg_let_successor_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Sets counters to 0, by some of a block's threads. The kernels that follow see it. */
static __device__ __forceinline__ void eg_clear(const eg_cuda_counts &counts, int thread, int threads) {
    for (int64_t i = thread; i < counts.count; i += threads) ((uint32_t *)counts.data)[i] = 0;
}

#endif
