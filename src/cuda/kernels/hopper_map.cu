/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of hopper_gemm.cuh with a fused map (hopper_map.cuh). */
#include "hopper_gemm.cuh"

EG_HOPPER_MAP_KERNELS(bf16, true)
EG_HOPPER_MAP_KERNELS(f16, false)
