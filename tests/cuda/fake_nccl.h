/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_NCCL_H
#define TESTS_FAKE_NCCL_H

#include <stddef.h>

typedef struct fake_nccl {
    int rank, ranks;
    int calls, aborts;
    const void *send; /* of the last collective */
    void *receive, *stream;
    size_t count;
    int type, op;
    void *first; /* where the last broadcast of rank 0 went to */
    int root;
    /* What to pretend: ncclResult_t of calls, and of what is under way. */
    int result, error;
    int gathers,
        differs; /* the next all-gather is of words, the second of which the last rank has so much larger */
} fake_nccl;

#endif
