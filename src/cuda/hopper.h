/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of the Hopper kernels: their tensor maps and their grid. */
#ifndef EG_CUDA_HOPPER_H
#define EG_CUDA_HOPPER_H

#include "device.h"
#include "pair.h"

/* hopper->gemm, ->tma_cols and ->tail are filled. Encodes the tensor maps, and says how many blocks to
 * launch. */
eg_status eg_cuda_hopper_prepare(const eg_cuda_device *device, const eg_cuda_kernel *row,
                                 eg_cuda_hopper *hopper, int64_t *blocks);

/* The same of two products; those of `up` are as many as there are, where `gate` stands for both. */
eg_status eg_cuda_hopper_prepare_pair(const eg_cuda_device *device, const eg_cuda_kernel *row,
                                      eg_cuda_hopper_pair *both, int64_t *blocks);

#endif
