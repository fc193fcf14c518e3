/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW over one flat array of parameters, with clipped gradients. */
#ifndef GPT_ADAMW_H
#define GPT_ADAMW_H

#include "operations.h"

typedef struct adamw {
    device device;
    size_t count;
    size_t decayed; /* parameters, the first ones, that are pulled towards 0 as well */
    int step;
    real *mean;   /* running mean of the gradient */
    real *square; /* running mean of its square */
} adamw;

/* Of one step. */
typedef struct adamw_rates {
    double longest;            /* all gradients together are made no longer than that */
    real new_mean, new_square; /* how far a running mean goes towards the new value */
    real step_size, keep;      /* of a parameter that is pulled towards 0 so much is left */
} adamw_rates;

adamw adamw_new(device on, size_t count, size_t decayed);
void adamw_free(adamw *optimizer);

void adamw_step(adamw *optimizer, real *parameters, const real *gradients, double rate);

/* The operation of a step, on the CPU. */
void adamw_update(const adamw *optimizer, const adamw_rates *rates, real *parameters, const real *gradients);

#endif
