/* SPDX-License-Identifier: Apache-2.0 */
/* hopper_turned.cuh. */
#include "hopper_turned.cuh"

EG_TURNED_KERNELS(f16, false)
