/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of the campaign: each a pure function of a seed and its index. */
#ifndef CAMPAIGN_GENERATE_H
#define CAMPAIGN_GENERATE_H

#include "check.h"
#include "number.h"

enum { CAMPAIGN_THREADS = 4 }; /* thread counts that a case may draw from */

typedef struct campaign_case {
    check_case call; /* its `places` are those below: do not copy this struct */
    check_place places[CHECK_OPERANDS];
    int threads[2]; /* of the two runs: which of the thread counts */
    int row;        /* 0: the context's own choice; else which of the usable kernel rows, wrapping around */
    bool windows;   /* several operands are windows of one memory, */
    bool by_item;   /* and their batches interleave in it, [T, 3, H, d] for one */
} campaign_case;

/* `addresses`: data is an address that can be added to, as on the CPU and CUDA. */
void campaign_make(uint64_t seed, uint64_t index, bool addresses, campaign_case *out);

/* Gives every operand of out->call its place. `random` is the case's. */
void campaign_lay_out(oracle_random *random, bool addresses, campaign_case *out);

/* Where each operand lies, as one line. */
void campaign_describe_places(const campaign_case *c, char *text, size_t capacity);

/* Small words for drawing. */
static inline bool campaign_chance(oracle_random *random, int percent) {
    return oracle_random_below(random, 100) < percent;
}

static inline bool campaign_has(const check_case *c, check_operand which) {
    return (c->present & CHECK_BIT(which)) != 0;
}

#endif
