/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPT_TRAINING_H
#define GPT_TRAINING_H

#include "model.h"
#include "text.h"

typedef struct training_result {
    double *loss; /* of each step, mean a letter, in nats; the caller frees it */
    double seconds;
} training_result;

/* Trains an initialised model on the first part of the text, and shows how it goes. */
training_result train(model *m, const text *t, int steps, rng *random);

/* The mean loss over the part of the text that is kept for the test. */
double test_loss(model *m, const text *t);

#endif
