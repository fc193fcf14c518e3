/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of hopper_gated.cuh in f16. */
#include "hopper_gated.cuh"

EG_GATED_KERNELS(f16, false, nn, true)
EG_GATED_KERNELS(f16, false, nt, false)
