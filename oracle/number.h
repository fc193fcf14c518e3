/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of each storage type, one at a time, by arithmetic rather than by bits, f32 by C's own conversion:
 * slow, plain, and sharing no code with the library's. */
#ifndef ORACLE_NUMBER_H
#define ORACLE_NUMBER_H

#include <stddef.h>

#include "epigrad/epigrad.h"

/* The nearest number of `dtype`, ties to even; past the largest, infinity. */
double oracle_round(double x, eg_dtype dtype);

/* The distance between numbers of `dtype` near x. */
double oracle_spacing(double x, eg_dtype dtype);

/* Element `index` of an array of `dtype`. What is put is rounded first. */
double oracle_get(const void *array, size_t index, eg_dtype dtype);
void oracle_put(void *array, size_t index, eg_dtype dtype, double x);

/* Half the distance from 1 to the next number: the relative error of one rounding. */
double oracle_unit_roundoff(eg_dtype dtype);

/* The type sums of a `dtype` layer are accumulated in: f64 for f64, else f32. */
eg_dtype oracle_compute_dtype(eg_dtype dtype);

/* A reproducible stream of numbers (splitmix64). */
typedef struct oracle_random {
    uint64_t state;
} oracle_random;

uint64_t oracle_random_bits(oracle_random *random);
int64_t oracle_random_below(oracle_random *random, int64_t count); /* 0 .. count - 1 */
double oracle_random_unit(oracle_random *random);                  /* [-1, 1) */

#endif
