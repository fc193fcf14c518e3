/* SPDX-License-Identifier: Apache-2.0 */
/* The bf16 kernels of hopper_cluster.cuh, of clusters of several tiles. */
#include "hopper_cluster.cuh"

EG_CLUSTER_MULTICAST_KERNELS(bf16, true)
