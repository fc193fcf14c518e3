/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EXAMPLES_CURVE_H
#define EXAMPLES_CURVE_H

/* Draws the loss over the steps on the terminal, on a logarithmic scale. */
void draw_loss(const double *loss, int steps);

#endif
