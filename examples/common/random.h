/* SPDX-License-Identifier: Apache-2.0 */
/* A small random generator (splitmix64), so that one seed gives one run on every machine. */
#ifndef EXAMPLES_RANDOM_H
#define EXAMPLES_RANDOM_H

#include <math.h>
#include <stdint.h>

typedef struct rng {
    uint64_t state;
} rng;

static inline uint64_t rng_next(rng *r) {
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in (0, 1): never 0, so that its logarithm is finite. */
static inline double rng_uniform(rng *r) { return ((double)(rng_next(r) >> 11) + 0.5) * 0x1p-53; }

/* Uniform in 0 .. n-1. */
static inline int rng_below(rng *r, int n) { return (int)(rng_next(r) % (uint64_t)n); }

/* Normal with mean 0 and deviation 1 (Box and Muller). */
static inline double rng_normal(rng *r) {
    double radius = sqrt(-2 * log(rng_uniform(r)));
    return radius * cos(6.283185307179586 * rng_uniform(r));
}

static inline void rng_shuffle(rng *r, int *item, int count) {
    for (int i = count - 1; i > 0; i--) {
        int j = rng_below(r, i + 1);
        int swapped = item[i];
        item[i] = item[j];
        item[j] = swapped;
    }
}

#endif
