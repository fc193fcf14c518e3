/* SPDX-License-Identifier: Apache-2.0 */
/* The bf16 kernels of hopper_gemm.cuh with narrower tiles, for where the widest leave multiprocessors idle.
 */
#include "hopper_gemm.cuh"

EG_HOPPER_KERNELS(bf16, true, 192, false)
EG_HOPPER_KERNELS(bf16, true, 128, true)
