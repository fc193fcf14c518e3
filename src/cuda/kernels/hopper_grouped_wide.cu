/* SPDX-License-Identifier: Apache-2.0 */
/* The products of hopper_gemm.cuh for the rows of groups, without an epilogue. */
#include "hopper_gemm.cuh"

#define EG_GROUPED_WIDE_KERNELS(type, bf16)                                                                  \
    EG_HOPPER_KERNEL(hopper_##type##_grouped_nn_128x256, bf16, false, true, 256, false, false, true)         \
    EG_HOPPER_KERNEL(hopper_##type##_grouped_nt_128x256, bf16, false, false, 256, false, false, true)

EG_GROUPED_WIDE_KERNELS(bf16, true)
EG_GROUPED_WIDE_KERNELS(f16, false)
