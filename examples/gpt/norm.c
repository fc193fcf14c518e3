/* SPDX-License-Identifier: Apache-2.0 */
#include "norm.h"

#include <string.h>
#include <tgmath.h>

/* 1 / rms(x). A row of zeros stays one. */
static real inverse_rms(const real *x, int width) {
    real sum = 0;
    for (int i = 0; i < width; i++) sum += x[i] * x[i];
    return 1 / sqrt(sum / (real)width + (real)1e-6);
}

void norm_forward(const real *x, const real *gain, real *y, int rows, int width) {
    for (int r = 0; r < rows; r++, x += width, y += width) {
        const real inverse = inverse_rms(x, width);
        for (int i = 0; i < width; i++) y[i] = gain[i] * x[i] * inverse;
    }
}

/* With s = 1 / rms(x) and g = gain ⊙ d_y:  d_x = s·g − s³·x·(g·x) / width. */
void norm_backward(const real *x, const real *gain, const real *d_y, real *d_x, real *d_gain, int rows,
                   int width) {
    memset(d_gain, 0, (size_t)width * sizeof *d_gain);
    for (int r = 0; r < rows; r++, x += width, d_y += width, d_x += width) {
        const real inverse = inverse_rms(x, width);
        real dot = 0;
        for (int i = 0; i < width; i++) {
            dot += gain[i] * d_y[i] * x[i];
            d_gain[i] += d_y[i] * x[i] * inverse;
        }
        const real pull = dot * inverse * inverse * inverse / (real)width;
        for (int i = 0; i < width; i++) d_x[i] += inverse * gain[i] * d_y[i] - pull * x[i];
    }
}
