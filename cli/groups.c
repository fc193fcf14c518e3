/* SPDX-License-Identifier: Apache-2.0 */
#include "groups.h"

#include <stdlib.h>

/* What part of the rows a group has, beside those of others. Zipf: the n-th in a scattered order has 1/n. */
static double weight_of(const eg_layer *layer, routing how, int64_t group, uint64_t *state) {
    enum { STEP = 7919 }; /* a prime: no two groups have one place, unless it divides their number */
    switch (how) {
    case ROUTING_EVEN:
        break;
    case ROUTING_RANDOM:
        *state = *state * 6364136223846793005U + 1442695040888963407U;
        return (double)(*state >> 40);
    case ROUTING_ZIPF:
        return 1.0 / (double)(1 + group * STEP % layer->groups);
    }
    return 1;
}

static void fill(const eg_layer *layer, routing how, double *sums, int32_t *ends) {
    const int64_t groups = layer->groups;
    uint64_t state = 1;
    for (int64_t i = 0; i < groups; i++)
        sums[i] = weight_of(layer, how, i, &state) + (i > 0 ? sums[i - 1] : 0);
    const double all = sums[groups - 1] > 0 ? sums[groups - 1] : 1;
    for (int64_t i = 0; i < groups; i++) ends[i] = (int32_t)((double)layer->m * sums[i] / all);
    ends[groups - 1] = (int32_t)layer->m;
}

int32_t *groups_ends(const eg_layer *layer, routing how) {
    double *sums = calloc((size_t)layer->groups, sizeof *sums);
    int32_t *ends = calloc((size_t)layer->groups, sizeof *ends);
    if (sums != NULL && ends != NULL) {
        fill(layer, how, sums, ends);
    } else {
        free(ends);
        ends = NULL;
    }
    free(sums);
    return ends;
}
