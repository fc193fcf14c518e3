/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `epigrad bench`. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "call.h"

/* Copies of one call, each with data and memory of its own, to go through in turn: together larger than
 * the cache, so that every run finds its inputs where a training loop would. */
typedef struct bench_sets {
    call *calls;
    int count;
} bench_sets;

int bench_sets_make(bench_sets *sets, const options *o, const shape *sizes, eg_context *context);
void bench_sets_free(bench_sets *sets);

/* One line of results. */
typedef struct bench_row {
    const options *options;
    const call *call;
    const char *device;
    int threads;
    double median_ms, min_ms;
    double gflops;     /* by the median */
    double peak;       /* GFLOP/s; 0: not known */
    char kernels[256]; /* names, separated by commas */
} bench_row;

void bench_print_header(void);
void bench_print(const bench_row *row);
int bench_print_json(const bench_row *row);

#endif
