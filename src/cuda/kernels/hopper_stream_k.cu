/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of hopper_gemm.cuh with a stream-K tail. */
#include "hopper_gemm.cuh"

EG_HOPPER_STREAM_K_KERNELS(bf16, true)
EG_HOPPER_STREAM_K_KERNELS(f16, false)
