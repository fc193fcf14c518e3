/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of hopper_staged.cuh. */
#include "hopper_staged.cuh"

EG_HOPPER_STAGED_KERNELS(bf16, true)
EG_HOPPER_STAGED_KERNELS(f16, false)
