/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DIGITS_OPTIONS_H
#define DIGITS_OPTIONS_H

#include "training.h"

typedef struct options {
    eg_backend backend;
    int threads; /* 0: all */
    training_plan plan;
    const char *data;
} options;

/* The defaults; the promise of 97% holds for them. */
options options_default(void);

/* Reads the command line; prints the usage and leaves the program if it is wrong or asks for help. */
options options_parse(int argc, char **argv);

#endif
