/* SPDX-License-Identifier: Apache-2.0 */
/* A data-parallel backward call with numbers so small that all sums are exact in every type, against sums in
 * plain double precision. Whatever carries the communicator: threads, or processes. */
#ifndef TESTS_DATA_PARALLEL_H
#define TESTS_DATA_PARALLEL_H

#include <stdbool.h>
#include <stdint.h>

#include "epigrad/comm.h"

typedef struct parallel_case {
    uint64_t seed; /* of all numbers */
    int64_t k, n, batch;
    int64_t m[8]; /* rows of each rank */
    eg_dtype dtype, d_b_dtype, sums;
    eg_activation activation; /* none or relu, so that numbers stay whole */
    eg_source source;
    eg_reduction reduction;
    eg_sharding sharding;
    eg_comm_order order;
    uint64_t into;                /* eg_into bits of the sums that are added to */
    bool by_columns, gaps, items; /* items: d_b is one for each of the batch */
    bool d_a, d_b, d_bias, chain;
    int threads;
} parallel_case;

/* A case of a number, for so many ranks. */
parallel_case parallel_case_of(uint64_t index, int ranks);

/* This rank's call, and whether its results are right: else a line in `text`. */
bool parallel_check(const parallel_case *c, const eg_comm *comm, char *text, size_t capacity);

#endif
