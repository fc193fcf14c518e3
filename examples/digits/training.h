/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DIGITS_TRAINING_H
#define DIGITS_TRAINING_H

#include "data.h"
#include "network.h"

#include <epigrad/comm.h>

enum { BATCH = 64 };

typedef struct training_plan {
    int epochs;
    uint64_t seed; /* of the first weights and of the order of the examples */
    eg_dtype dtype;
    hidden_units hidden;
    const eg_comm *comm;     /* of processes that share every batch; NULL: one process */
    double (*sum)(double x); /* over those processes */
} training_plan;

typedef struct training_result {
    double *loss; /* mean loss of every step; the caller frees it */
    int steps;
    double seconds;
} training_result;

/* Trains a network that train() opens and the caller closes, on `count` digits in `order` (shuffled anew for
 * each epoch), and shows its progress under `title`. */
training_result train(network *net, eg_context *context, const training_plan *plan, const digits *d,
                      int *order, int count, const char *title);

typedef struct guess {
    int index; /* into the digits */
    int said;
    double probability;
} guess;

/* How many of the digits in `order` the network reads rightly; the wrong ones are listed in `wrong` if it is
 * not NULL (room for count). */
int evaluate(network *net, const digits *d, const int *order, int count, guess *wrong);

#endif
