/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of hopper_gated.cuh in bf16. */
#include "hopper_gated.cuh"

EG_GATED_KERNELS(bf16, true, nn, true)
EG_GATED_KERNELS(bf16, true, nt, false)
