/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of hopper_pingpong.cuh with tiles of 192 columns. */
#include "hopper_widths.cuh"

#include "hopper_pingpong.cuh"

EG_HOPPER_PINGPONG_192_KERNELS(bf16, true)
EG_HOPPER_PINGPONG_192_KERNELS(f16, false)
