/* SPDX-License-Identifier: Apache-2.0 */
/* The f16 kernels of hopper_cluster.cuh, of 64 rows. */
#include "hopper_cluster.cuh"

EG_CLUSTER_NARROW_KERNELS(f16, false)
