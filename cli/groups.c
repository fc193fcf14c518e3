/* SPDX-License-Identifier: Apache-2.0 */
#include "groups.h"

#include <stdlib.h>

#include "failure.h"

/* What part of the rows a group has, beside those of others. Zipf: the n-th in a scattered order has 1/n. */
static double weight_of(const call *c, int64_t group, uint64_t *state) {
    enum { STEP = 7919 }; /* a prime: no two groups have one place, unless it divides their number */
    switch (c->routing) {
    case ROUTING_EVEN:
        break;
    case ROUTING_RANDOM:
        *state = *state * 6364136223846793005U + 1442695040888963407U;
        return (double)(*state >> 40);
    case ROUTING_ZIPF:
        return 1.0 / (double)(1 + group * STEP % c->layer.groups);
    }
    return 1;
}

static void fill(const call *c, double *sums, int32_t *ends) {
    const int64_t groups = c->layer.groups;
    uint64_t state = 1;
    for (int64_t i = 0; i < groups; i++) sums[i] = weight_of(c, i, &state) + (i > 0 ? sums[i - 1] : 0);
    const double all = sums[groups - 1] > 0 ? sums[groups - 1] : 1;
    for (int64_t i = 0; i < groups; i++) ends[i] = (int32_t)((double)c->layer.m * sums[i] / all);
    ends[groups - 1] = (int32_t)c->layer.m;
}

static int upload(call *c, eg_context *context, const int32_t *ends) {
    const size_t bytes = (size_t)c->layer.groups * sizeof *ends;
    CLI_TRY(call_status(eg_alloc(context, bytes, &c->ends)));
    return call_status(eg_upload(context, c->ends, 0, ends, bytes));
}

int groups_upload(call *c, eg_context *context) {
    double *sums = calloc((size_t)c->layer.groups, sizeof *sums);
    int32_t *ends = calloc((size_t)c->layer.groups, sizeof *ends);
    int code = CLI_OK;
    if (sums == NULL || ends == NULL) {
        code = cli_out_of_memory();
    } else {
        fill(c, sums, ends);
        code = upload(c, context, ends);
    }
    free(sums);
    free(ends);
    return code;
}
