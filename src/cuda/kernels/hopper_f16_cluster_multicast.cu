/* SPDX-License-Identifier: Apache-2.0 */
/* The f16 kernels of hopper_cluster.cuh, of clusters of several tiles. */
#include "hopper_cluster.cuh"

EG_CLUSTER_MULTICAST_KERNELS(f16, false)
