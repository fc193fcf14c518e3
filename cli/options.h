/* SPDX-License-Identifier: Apache-2.0 */
/* The options of every command, parsed and checked. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "epigrad/epigrad.h"
#include "operands.h"

/* Bits, for "which commands take this option". */
typedef enum command {
    COMMAND_FORWARD = 1,
    COMMAND_BACKWARD = 2,
    COMMAND_PLAN = 4,
    COMMAND_INFO = 8,
    COMMAND_CHECK = 16,
    COMMAND_BENCH = 32
} command;

typedef struct shape {
    int64_t m, k, n;
} shape;

/* How the rows of a grouped layer are shared out. */
typedef enum routing { ROUTING_EVEN, ROUTING_RANDOM, ROUTING_ZIPF } routing;

enum { MAX_SHAPES = 64 };

typedef struct options {
    command command;
    uint64_t given; /* options, a bit each: see options.c */
    bool help;
    const char *input, *output; /* NULL where not given */
    eg_backend backend;
    bool backend_given;
    eg_activation activation;
    bool activation_given;
    eg_dtype dtype, out_dtype; /* EG_DTYPE_DEFAULT where not given */
    bool b_is_nk, gated;
    eg_source mode;
    unsigned want; /* bits 1 << operand; 0 where not given */
    bool accumulate, save_pre, mpi, mean, split_given;
    eg_split split; /* of B over the processes */
    unsigned into;  /* outputs that --accumulate-into names, a bit each */
    eg_nonfinite nonfinite;
    double scale;           /* of the products; 0 where not given */
    size_t workspace_limit; /* bytes; 0: none */
    int threads;
    shape shapes[MAX_SHAPES];
    int shape_count;
    int64_t batch, outer_batch; /* of two levels; outer_batch is 0 where one was given */
    int64_t groups;             /* 0: a plain layer */
    routing routing;
    bool plan_forward, plan_backward, json;
    double seconds; /* bench: spent on each row */
} options;

/* Parses the arguments after the command's name, which is argv[0]. */
int options_parse(command which, int argc, char **argv, options *o);

/* The name of a given option that only this pass reads, of a plan; NULL where there is none. */
const char *options_of_pass(const options *o, command pass);

/* The outputs that are added to what is found in IN, a bit each. */
unsigned options_sums(const options *o);

/* What a shell offers: the options of a command, one a line; and the words that may follow one of them, none
 * where it takes a number, a size or a path. One that takes no value is refused. */
void options_print(command which);
int options_print_values(command which, const char *name, const char *option);

#endif
