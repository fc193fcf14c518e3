/* SPDX-License-Identifier: Apache-2.0 */
/* The parameter of gated_grad.cu: both gradients of a gated unit, made at once. */
#ifndef EG_CUDA_GATED_H
#define EG_CUDA_GATED_H

#include "kernels.h"

/* d_up = d_y * act(gate), d_gate = d_y * up * act'(gate), element by element, with the column sums of
 * `chunks` chunks of an item's rows each, as in eg_cuda_act_grad. Rows are vectors of 16 bytes, of d_y two
 * where it is of the compute type and the others are not. */
typedef struct eg_cuda_gated {
    eg_cuda_matrix d_y, gate, up;
    eg_cuda_matrix d_up, d_gate; /* absent: only the sums are wanted */
    uint64_t sums_up, sums_gate; /* 0: not wanted */
    uint64_t ends, wrong;        /* as in eg_cuda_gemm: rows up to the last end */
    int64_t rows, cols, items;
    int64_t chunks, groups;
    int32_t activation, propagate;
} eg_cuda_gated;

#endif
