/* SPDX-License-Identifier: Apache-2.0 */
/* The f16 kernels of hopper_gemm.cuh with the widest tile, for large products. */
#include "hopper_gemm.cuh"

EG_HOPPER_KERNELS(f16, false, 256)
