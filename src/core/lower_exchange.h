/* SPDX-License-Identifier: Apache-2.0 */
/* What goes over processes: part of the lowering. */
#ifndef EG_LOWER_EXCHANGE_H
#define EG_LOWER_EXCHANGE_H

#include "lower_ops.h"

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

/* The most groups of at least so many rows that a collective of so many bytes may be sent in: their latencies
 * have to be little beside the time of the bytes. Where costs are not known, the rows alone decide. Ranks have
 * to agree on the groups, so this depends on nothing that is a rank's own. */
int eg_most_row_groups(const eg_comm_cost *cost, double bytes, int64_t rows, int64_t least_rows);

/* Room for rows x cols numbers in EG_EXCHANGED: where it begins, in elements. */
int64_t eg_exchanged_room(eg_op_list *list, eg_dtype dtype, int64_t rows, int64_t cols);

#endif
