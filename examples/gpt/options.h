/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPT_OPTIONS_H
#define GPT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include <epigrad/epigrad.h>

typedef struct options {
    eg_backend backend;
    int steps;
    int threads; /* 0: all */
    int letters; /* to write at the end */
    int experts;
    uint64_t seed;
    const char *text;
    bool check; /* only the gradients */
} options;

/* Reads the command line; prints the usage and leaves the program if it is wrong or asks for help. */
options options_parse(int argc, char **argv);

#endif
