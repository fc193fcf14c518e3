/* SPDX-License-Identifier: Apache-2.0 */
/* cp.async: copies from memory to shared memory that a thread does not wait for. */
#ifndef EG_CUDA_ASYNC_COPY_CUH
#define EG_CUDA_ASYNC_COPY_CUH

#include "matrix.cuh"

/* Copies `bytes` of BYTES, and writes zeros for the others. */
template <int BYTES> EG_DEVICE void eg_copy_async(uint32_t to, const void *from, int bytes) {
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES),
                     "r"(bytes));
    }
}
EG_DEVICE void eg_copy_async(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}

/* Makes a group of a thread's copies since the last one. */
EG_DEVICE void eg_commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Until all groups but the last LEFT are there. */
template <int LEFT> EG_DEVICE void eg_wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

#endif
