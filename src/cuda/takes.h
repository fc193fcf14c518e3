/* SPDX-License-Identifier: Apache-2.0 */
/* Which products and maps a kernel row takes. */
#ifndef EG_CUDA_TAKES_H
#define EG_CUDA_TAKES_H

#include "step.h"

/* Whether results are read before they are added to, by TMA. */
static inline bool eg_cuda_reads_out(const eg_cuda_gemm *x) {
    return x->epilogue == EG_CUDA_STORE && x->accumulate && x->out.dtype != EG_F32;
}

/* Columns of a product's results that TMA stores. */
int32_t eg_cuda_tma_cols(const eg_cuda_kernel *row, const eg_cuda_gemm *x);

/* Whether what the epilogue reads and writes is in vectors of 16 bytes along the rows. */
bool eg_cuda_has_vectors(const eg_cuda_kernel *row, const eg_cuda_gemm *x);

/* A part of an operation as a row makes it: with columns past the last one where that makes rows of whole
 * vectors. */
eg_cuda_gemm eg_cuda_in_vectors(const eg_cuda_kernel *row, eg_cuda_part part, const eg_cuda_gemm *x);

/* Whether a row takes a part of an operation, as far as its operands decide. */
bool eg_cuda_takes(const eg_cuda_kernel *row, eg_cuda_part part, const eg_cuda_gemm *x);

#endif
