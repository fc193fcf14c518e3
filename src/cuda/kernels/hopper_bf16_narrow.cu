/* SPDX-License-Identifier: Apache-2.0 */
/* The bf16 kernels of hopper_gemm.cuh with a narrower tile, for products of few wide ones. */
#include "hopper_gemm.cuh"

EG_HOPPER_KERNELS(bf16, true, 128)
