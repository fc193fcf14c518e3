/* SPDX-License-Identifier: Apache-2.0 */
/* What goes over processes, and what it shares with the rest: part of the lowering. */
#ifndef EG_LOWER_EXCHANGE_H
#define EG_LOWER_EXCHANGE_H

#include "op.h"

/* A gradient, which may be summed over processes: products then write to `sent`. That is the caller's memory
 * where it is dense and holds nothing to add to. Else it is in the workspace, as is a shard to be converted
 * or added. */
typedef struct eg_gradient {
    eg_view result; /* the caller's; absent where it is not wanted */
    eg_view sent, received;
    int64_t items;
    bool by_rows; /* its lines are rows */
    bool copies;  /* from `received` to the result */
} eg_gradient;

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

/* [rows, cols] over all ranks. */
eg_gradient eg_gradient_of(const eg_problem *p, eg_op_list *list, eg_operand_id id, int64_t rows,
                           int64_t cols);

/* The collective that sums what was sent; nothing where the call is of one process. */
void eg_lower_sum(const eg_problem *p, eg_op_list *list, const eg_gradient *x);

/* The copy from what was received to the caller's memory, where that is another place. */
void eg_lower_delivery(const eg_problem *p, eg_op_list *list, const eg_gradient *x);

/* Whether a gradient is summed over processes. */
bool eg_is_summed(const eg_problem *p, eg_operand_id id);

/* All collectives before have finished. */
void eg_lower_finish(eg_op_list *list);

/* An all-reduce sends everything twice, an all-gather or a reduce-scatter once. */
#define EG_HALF_OF_ALL_REDUCE 0.5

/* Room for rows x cols numbers in EG_EXCHANGED: where it begins, in elements. */
int64_t eg_exchanged_room(eg_op_list *list, eg_dtype dtype, int64_t rows, int64_t cols);

/* lower_tensor.c: all of a tensor-parallel call. */
void eg_lower_tensor_parallel(const eg_problem *p, eg_op_list *list);

/* From lower.c: an operand as a view, absent where the caller gave none; and an operation at the end of the
 * list, unless it has no result element. */
eg_view eg_operand_view(const eg_problem *p, eg_operand_id id);
void eg_add_op(eg_op_list *list, const eg_op *op);

/* From lower.c too: parts of a layer. */
void eg_lower_forward(const eg_problem *p, eg_op_list *list);
void eg_lower_gated_forward(const eg_problem *p, eg_op_list *list);
eg_bias_gradient eg_bias_gradient_of(const eg_problem *p, eg_op_list *list, eg_operand_id out,
                                     const char *name, int64_t cols);
eg_gradients eg_lower_gradients(const eg_problem *p, eg_op_list *list, const eg_view *sums,
                                const eg_view *sums_up);
void eg_lower_any_d_a(const eg_problem *p, eg_op_list *list, const eg_gradients *x, const eg_view *sums,
                      const eg_view *sums_up);
void eg_lower_d_b(const eg_problem *p, eg_op_list *list, eg_view grad_pre, eg_operand_id id, eg_view out);

#endif
