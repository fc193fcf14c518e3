/* SPDX-License-Identifier: Apache-2.0 */
/* The bf16 kernels of hopper_split.cuh. */
#include "hopper_split.cuh"

EG_SPLIT_KERNELS(bf16, true)
