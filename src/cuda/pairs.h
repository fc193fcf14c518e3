/* SPDX-License-Identifier: Apache-2.0 */
/* Two products of a gated unit, with all that is done with them, by one kernel (pair.h). */
#ifndef EG_CUDA_PAIRS_H
#define EG_CUDA_PAIRS_H

#include "gated_maps.h"
#include "pair.h"

typedef enum eg_cuda_pair_kind {
    EG_CUDA_PAIR_FORWARD, /* y = act(A·B + bias) * (A·B_up + bias_up), and both pre */
    EG_CUDA_PAIR_CHAIN,   /* one product, of which both gradients of the unit below are made */
    EG_CUDA_PAIR_SUM      /* d_a = d_gate · Bᵀ + d_up · B_upᵀ */
} eg_cuda_pair_kind;

/* Operations of a list that one kernel makes. */
typedef struct eg_cuda_pair_ops {
    eg_cuda_pair_kind kind;
    uint32_t ops;           /* a bit for each */
    int gate, up;           /* the products; of CHAIN there is one */
    eg_cuda_gated_ops maps; /* CHAIN */
} eg_cuda_pair_ops;

/* Whether operation `first` is the first of such. */
bool eg_cuda_find_pair(const eg_op_list *list, int first, eg_cuda_pair_ops *ops);

/* Their products as the kernel takes them: `gate` stands for both, as pair.h says. */
typedef struct eg_cuda_pair {
    eg_cuda_gemm gate, up;
} eg_cuda_pair;
eg_cuda_pair eg_cuda_pair_of(const eg_cuda_binding *binding, const eg_cuda_pair_ops *ops);

/* Whether the first operation is sums of the columns of what the second one multiplies on its left, and a row
 * that makes the second one makes them, too (kernels/hopper_left_sums.cuh). */
bool eg_cuda_makes_left_sums(const eg_op_list *list, const eg_cuda_kernel *row);

bool eg_cuda_takes_pair(const eg_cuda_kernel *row, const eg_cuda_pair_ops *ops, const eg_cuda_pair *x);

/* A product that takes as long. */
eg_cuda_gemm eg_cuda_like_pair(const eg_cuda_pair *x);

#endif
