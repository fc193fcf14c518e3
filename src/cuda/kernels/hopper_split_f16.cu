/* SPDX-License-Identifier: Apache-2.0 */
/* The f16 kernels of hopper_split.cuh. */
#include "hopper_split.cuh"

EG_SPLIT_KERNELS(f16, false)
