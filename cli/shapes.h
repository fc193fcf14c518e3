/* SPDX-License-Identifier: Apache-2.0 */
/* The shapes of a call: M, K, N and the batch from a and b, and what every other operand must be. */
#ifndef CLI_SHAPES_H
#define CLI_SHAPES_H

#include "call.h"

/* Fills the sizes of c->layer from the inputs that are present, and checks each of them. */
int shapes_of_inputs(call *c);

/* Gives an input the shape that the sizes of c->layer imply; a weight is one matrix, shared by a batch. */
void shapes_set_planned(call *c, operand op);

/* Gives an output its shape: a gradient has that of its input, where the call has the input. One that would
 * be summed over one of two levels is refused. */
int shapes_set_output(call *c, operand op);

/* Checks a gradient that is accumulated into. */
int shapes_check_accumulated(const call *c, operand op, const tensor *found);

/* The operand as the library takes it, without data: layout, strides, type. */
eg_matrix shapes_matrix(const call *c, operand op);
int64_t shapes_outer_stride(const call *c, operand op);

#endif
