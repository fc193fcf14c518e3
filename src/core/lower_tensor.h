/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EG_LOWER_TENSOR_H
#define EG_LOWER_TENSOR_H

#include "op.h"

/* All of a tensor-parallel call: part of the lowering. */
void eg_lower_tensor_parallel(const eg_problem *p, eg_op_list *list);

#endif
