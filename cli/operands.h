/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a call, by the names that files and messages know them by. */
#ifndef CLI_OPERANDS_H
#define CLI_OPERANDS_H

typedef enum operand {
    OP_A,
    OP_B,
    OP_BIAS,
    OP_RESIDUAL,
    OP_GRAD,
    OP_PRE, /* forward: an output; backward: an input */
    OP_Y,   /* likewise */
    OP_D_A,
    OP_D_B,
    OP_D_BIAS,
    OP_GRAD_PRE,
    OPERANDS
} operand;

/* "d_a" */
const char *cli_operand_name(operand op);

#endif
