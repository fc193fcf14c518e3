/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of hopper_pingpong.cuh for the rows of groups: they have entry points of their own, so that
 * those of a plain layer keep their registers. */
#include "hopper_pingpong.cuh"

EG_HOPPER_GROUPED_KERNELS(bf16, true, 128)
EG_HOPPER_GROUPED_KERNELS(f16, false, 128)
