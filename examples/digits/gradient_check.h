/* SPDX-License-Identifier: Apache-2.0 */
/* Are the gradients those of the loss? Asked before the first step. */
#ifndef DIGITS_GRADIENT_CHECK_H
#define DIGITS_GRADIENT_CHECK_H

#include "data.h"
#include "network.h"

typedef struct gradient_report {
    eg_dtype dtype;      /* of the check: f64 where the backend has it, else f32 */
    int checked;         /* parameters whose gradient was compared with finite differences */
    double worst, limit; /* error relative to the largest gradient of the same tensor, and what is allowed */
    eg_dtype other;      /* the dtype of the training, where it is another one: */
    double other_worst,
        other_limit; /* all its gradients against those of `dtype`, relative in the same way */
} gradient_report;

/* Checks a fresh network on the first digits of `order`. `training` is the dtype it will be trained in. */
gradient_report gradient_check(eg_context *context, eg_dtype training, hidden_units hidden, uint64_t seed,
                               const digits *d, const int *order);

#endif
