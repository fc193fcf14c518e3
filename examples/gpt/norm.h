/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm: y = gain ⊙ x / rms(x), row by row. */
#ifndef GPT_NORM_H
#define GPT_NORM_H

#include "real.h"

/* x, y [rows, width]; gain [width]. */
void norm_forward(const real *x, const real *gain, real *y, int rows, int width);

/* Of the same x and gain: writes d_gain, and ADDS to d_x, which already holds the gradient that goes past the
 * norm in the residual stream. */
void norm_backward(const real *x, const real *gain, const real *d_y, real *d_x, real *d_gain, int rows,
                   int width);

#endif
