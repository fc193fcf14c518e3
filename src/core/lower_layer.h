/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a layer: part of the lowering. */
#ifndef EG_LOWER_LAYER_H
#define EG_LOWER_LAYER_H

#include "lower_exchange.h"

/* What the products of the backward pass read: of a gated unit there are two. */
typedef struct eg_gradients {
    eg_view gate, up; /* `up` is absent but for a gated unit */
} eg_gradients;

/* The column sums of a gradient: on the way of the operation that makes it, then from chunk to chunk. */
typedef struct eg_bias_gradient {
    eg_view sums; /* absent where none is wanted */
    eg_op reduce;
    eg_gradient gradient;
} eg_bias_gradient;

void eg_lower_forward(const eg_problem *p, eg_op_list *list);
void eg_lower_gated_forward(const eg_problem *p, eg_op_list *list);
eg_bias_gradient eg_bias_gradient_of(const eg_problem *p, eg_op_list *list, eg_operand_id out,
                                     const char *name, int64_t cols);
eg_gradients eg_lower_gradients(const eg_problem *p, eg_op_list *list, const eg_view *sums,
                                const eg_view *sums_up);
void eg_lower_any_d_a(const eg_problem *p, eg_op_list *list, const eg_gradients *x, const eg_view *sums,
                      const eg_view *sums_up);
void eg_lower_d_b(const eg_problem *p, eg_op_list *list, eg_view grad_pre, eg_operand_id id, eg_view out);

/* All of a backward call, but of one that is tensor-parallel. */
void eg_lower_backward(const eg_problem *p, eg_op_list *list);

#endif
