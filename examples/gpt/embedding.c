/* SPDX-License-Identifier: Apache-2.0 */
#include "embedding.h"

#include <string.h>

void embed(const real *table, const unsigned char *letter, real *x, int rows, int width) {
    const size_t w = (size_t)width;
    for (int r = 0; r < rows; r++) memcpy(x + (size_t)r * w, table + letter[r] * w, w * sizeof *x);
}

void embed_backward(const real *d_x, const unsigned char *letter, real *d_table, int rows, int width,
                    int letters) {
    const size_t w = (size_t)width;
    (void)letters; /* for those who go over the table, not over the rows */
    for (int r = 0; r < rows; r++)
        for (size_t c = 0; c < w; c++) d_table[letter[r] * w + c] += d_x[(size_t)r * w + c];
}
