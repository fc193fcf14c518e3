/* SPDX-License-Identifier: Apache-2.0 */
/* The bf16 kernels of hopper_cluster.cuh, of more rows than 64. */
#include "hopper_cluster.cuh"

EG_CLUSTER_WIDE_KERNELS(bf16, true)
