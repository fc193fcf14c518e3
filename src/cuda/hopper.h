/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of the Hopper kernels: their tensor maps and their grid. */
#ifndef EG_CUDA_HOPPER_H
#define EG_CUDA_HOPPER_H

#include "device.h"

/* Columns of a product's results that TMA stores. */
int32_t eg_cuda_tma_cols(const eg_cuda_kernel *row, const eg_cuda_gemm *x);

/* Whether what the epilogue reads and writes is in vectors of 16 bytes along the rows. */
bool eg_cuda_has_vectors(const eg_cuda_kernel *row, const eg_cuda_gemm *x);

/* hopper->gemm, ->tma_cols and ->tail are filled. Encodes the tensor maps, and says how many blocks to
 * launch. */
eg_status eg_cuda_hopper_prepare(const eg_cuda_device *device, const eg_cuda_kernel *row,
                                 eg_cuda_hopper *hopper, int64_t *blocks);

#endif
