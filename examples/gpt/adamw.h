/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW over one flat array of parameters, with clipped gradients. */
#ifndef GPT_ADAMW_H
#define GPT_ADAMW_H

#include "real.h"

typedef struct adamw {
    size_t count;
    int step;
    real *mean;   /* running mean of the gradient */
    real *square; /* running mean of its square */
} adamw;

adamw adamw_new(size_t count);
void adamw_free(adamw *optimizer);

/* One step. The first `decayed` parameters are pulled towards 0 as well. */
void adamw_step(adamw *optimizer, real *parameters, const real *gradients, size_t decayed, double rate);

#endif
