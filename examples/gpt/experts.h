/* SPDX-License-Identifier: Apache-2.0 */
/* Which expert each letter goes to: the one of the largest probability, which its result is multiplied with.
 */
#ifndef GPT_EXPERTS_H
#define GPT_EXPERTS_H

#include "real.h"

#include <stdint.h>

typedef struct routing {
    int rows, experts;
    real *p;        /* [rows, experts]: logits, then their softmax; on the way back the logits' gradient */
    int32_t *order; /* [rows]: the rows, sorted by expert */
    int32_t *ends;  /* [experts]: where the rows of each end, as epigrad's offsets */
} routing;

/* From the logits in p. */
void route(const routing *r);

/* sorted[i] = from[order[i]], rows of `width`; and back. */
void sort_rows(const routing *r, const real *from, real *sorted, int width);
void unsort_rows(const routing *r, const real *sorted, real *to, int width);

/* to[order[i]] = stream[order[i]] + p·result[i], with the p of its expert. */
void add_results(const routing *r, const real *result, const real *stream, real *to, int width);

/* From the gradient of `to`: that of the results, sorted, and in place of p that of the logits. */
void add_results_backward(const routing *r, const real *result, const real *d_to, real *d_result, int width);

#endif
