/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of hopper_depth_groups.cuh. */
#include "hopper_depth_groups.cuh"

EG_HOPPER_DEPTH_GROUPS_KERNELS(bf16, true)
EG_HOPPER_DEPTH_GROUPS_KERNELS(f16, false)
