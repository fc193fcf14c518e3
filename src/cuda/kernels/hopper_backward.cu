/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of hopper_backward.cuh. */
#include "hopper_backward.cuh"

EG_HOPPER_BACKWARD_KERNELS(bf16, true)
EG_HOPPER_BACKWARD_KERNELS(f16, false)
