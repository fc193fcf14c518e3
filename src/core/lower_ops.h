/* SPDX-License-Identifier: Apache-2.0 */
/* What lists of operations are made of: views and operations. Part of the lowering. */
#ifndef EG_LOWER_OPS_H
#define EG_LOWER_OPS_H

#include "op.h"

/* ---- Views -------------------------------------------------------------------------------------- */

/* An operand, absent where the caller gave none. */
eg_view eg_operand_view(const eg_problem *p, eg_operand_id id);

/* B, or the pack that stands for it: EG_OP_B or EG_OP_B_UP. */
eg_view eg_view_of_b(const eg_problem *p, eg_operand_id id);

/* A new temporary, or buffer, of the list: `items` matrices [rows, cols]. */
eg_view eg_temporary_view(eg_op_list *list, const char *name, int64_t items, int64_t rows, int64_t cols);
eg_view eg_buffer_view(eg_op_list *list, const char *name, int64_t items, int64_t rows, int64_t cols);

/* ---- Operations --------------------------------------------------------------------------------- */

void eg_add_term(eg_op *op, eg_term term);
void eg_add_view_term(eg_op *op, eg_term_kind kind, eg_view view); /* none where the view is absent */

/* Adds an operation to the end of the list, unless there is nothing for it to do. */
void eg_add_op(eg_op_list *list, const eg_op *op);

#endif
