/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a call, by the names that files and messages know them by. */
#ifndef CLI_OPERANDS_H
#define CLI_OPERANDS_H

#include <stdbool.h>

typedef enum operand {
    OP_A,
    OP_B,
    OP_BIAS,
    OP_RESIDUAL,     /* forward: added to y */
    OP_D_A_RESIDUAL, /* backward: added to d_a */
    OP_B_UP,
    OP_BIAS_UP,
    OP_GRAD,
    OP_PRE,    /* forward: an output; backward: an input */
    OP_PRE_UP, /* likewise */
    OP_Y,      /* likewise */
    OP_D_A,
    OP_D_B,
    OP_D_BIAS,
    OP_GRAD_PRE,
    OP_D_B_UP,
    OP_D_BIAS_UP,
    OP_GRAD_PRE_UP,
    OPERANDS
} operand;

/* Those that --accumulate adds to. */
enum { MAIN_GRADIENTS = 1U << OP_D_B | 1U << OP_D_BIAS | 1U << OP_D_B_UP | 1U << OP_D_BIAS_UP };

/* A gradient that can be f32 for a layer of 16 bits. */
static inline bool operand_is_main_gradient(operand op) { return (MAIN_GRADIENTS & 1U << op) != 0; }

/* Of a forward or of a backward pass. */
static inline bool operand_may_be_result(operand op) {
    return op >= OP_D_A || op == OP_Y || op == OP_PRE || op == OP_PRE_UP;
}

/* "d_a" */
const char *cli_operand_name(operand op);

#endif
