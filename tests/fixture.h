/* SPDX-License-Identifier: Apache-2.0 */
/* A whole layer in host memory, every operand present and dense, for tests that bend one thing about it. */
#ifndef TESTS_FIXTURE_H
#define TESTS_FIXTURE_H

#include "support.h"

typedef struct fixture {
    eg_layer layer;
    eg_forward_args forward;
    eg_backward_args backward; /* recompute; every output wanted, no chain */
    eg_matrix saved;           /* [M, N], for the other sources */
    eg_matrix below;           /* [M, K], for a chain */
    eg_vector d_bias_below;    /* [K] */

    unsigned char *memory;  /* everything above lies in here, the outputs last */
    unsigned char *outputs; /* the first byte of the outputs */
    size_t bytes, output_bytes;
} fixture;

/* Fills the inputs with numbers of a few units and the outputs with poison. */
void fixture_make(fixture *f, eg_layer layer);
void fixture_free(fixture *f);

void fixture_set_source(fixture *f, eg_source source); /* and with it what the source reads */

void fixture_poison(fixture *f); /* the outputs, with a pattern that is NaN in every data type */
bool fixture_untouched(const fixture *f);

/* A small f32 gelu layer. */
eg_layer small_layer(void);

#endif
