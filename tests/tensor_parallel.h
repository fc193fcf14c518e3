/* SPDX-License-Identifier: Apache-2.0 */
/* Random tensor-parallel calls, by every engine that tests have: their numbers are small whole ones, so that
 * sums are exact in any order and any type. */
#ifndef TESTS_TENSOR_PARALLEL_H
#define TESTS_TENSOR_PARALLEL_H

#include <stdbool.h>

#include "epigrad/comm.h"

typedef struct tensor_case {
    uint64_t seed;
    eg_split split;
    bool backward, gated;
    int64_t each;     /* rows of a rank */
    int64_t whole;    /* of the side that is not divided: k (EG_SPLIT_COLUMNS) or n */
    int64_t parts[8]; /* of the other one, for each rank */
    eg_dtype dtype, sums;
    eg_activation activation;
    eg_source source;
    eg_comm_order order;
    double scale;
    bool turned, gaps, packed, gathered, bias, residual, pre, chain, sums_below, into, into_d_a;
    bool d_a, d_b, d_bias, grad_pre;
    int threads;
} tensor_case;

/* The one of that index, the same on all ranks. */
tensor_case tensor_case_of(uint64_t index, int ranks);

/* Makes the rank's call, and compares its results with those of the whole layer; "" in `text` where right. */
bool tensor_check(const tensor_case *c, const eg_comm *comm, char *text, size_t capacity);

#endif
