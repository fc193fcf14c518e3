/* SPDX-License-Identifier: Apache-2.0 */
/* The Adam optimiser over one flat array of parameters. */
#ifndef DIGITS_ADAM_H
#define DIGITS_ADAM_H

#include <epigrad/epigrad.h>

typedef struct adam {
    eg_dtype dtype; /* EG_F32 or EG_F64: of the parameters, the gradients and the moments */
    size_t count;
    int step;
    void *mean;   /* running mean of the gradient */
    void *square; /* running mean of its square */
} adam;

adam adam_new(eg_dtype dtype, size_t count);
void adam_free(adam *optimiser);

/* Takes one step of the given rate against `scale` times the gradients. */
void adam_step(adam *optimiser, void *parameters, const void *gradients, double scale, double rate);

#endif
