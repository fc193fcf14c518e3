/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of hopper_pingpong.cuh. */
#include "hopper_pingpong.cuh"

EG_HOPPER_PINGPONG_KERNELS(bf16, true, 128)
EG_HOPPER_PINGPONG_KERNELS(f16, false, 128)
