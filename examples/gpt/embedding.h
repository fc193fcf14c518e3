/* SPDX-License-Identifier: Apache-2.0 */
/* The first layer: a row of a table for each letter. */
#ifndef GPT_EMBEDDING_H
#define GPT_EMBEDDING_H

#include "real.h"

/* x[r] = table[letter[r]]; x [rows, width], table [letters, width]. */
void embed(const real *table, const unsigned char *letter, real *x, int rows, int width);

/* ADDS each row of d_x to the row of d_table that was read for it, in the order of the rows. */
void embed_backward(const real *d_x, const unsigned char *letter, real *d_table, int rows, int width,
                    int letters);

#endif
