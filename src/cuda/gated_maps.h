/* SPDX-License-Identifier: Apache-2.0 */
/* Both gradients of a gated unit, which the lowering makes by three maps, by one kernel. */
#ifndef EG_CUDA_GATED_MAPS_H
#define EG_CUDA_GATED_MAPS_H

#include "estimate.h"
#include "gated.h"
#include "parameters.h"

/* The three operations, in the order of the list but for the first two. */
typedef struct eg_cuda_gated_ops {
    int product; /* d_y * up, which the last one reads */
    int up;      /* d_up = act(gate) * d_y */
    int gate;    /* d_gate = d_y * up * act'(gate) */
} eg_cuda_gated_ops;

/* Whether operation `first` and the two after it are such maps. */
bool eg_cuda_find_gated(const eg_op_list *list, int first, eg_cuda_gated_ops *ops);

/* Their parameter; `chunks` and `wrong` are not set. */
eg_cuda_gated eg_cuda_gated_of(const eg_cuda_binding *binding, const eg_cuda_gated_ops *ops);

/* Whether a row of EG_CUDA_GATED takes them. */
bool eg_cuda_takes_gated(const eg_cuda_kernel *row, const eg_cuda_gated *x);

/* Microseconds. */
double eg_cuda_estimate_gated(const eg_cuda_machine *machine, const eg_cuda_kernel *row,
                              const eg_cuda_gated *x);

#endif
