/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DIGITS_LOSS_H
#define DIGITS_LOSS_H

/* Softmax cross-entropy over rows of logits [rows, 10]: the SUM of the rows' losses; the caller divides by
 * the number of rows at the very end, so that a batch's small gradients do not underflow in f16 on their way.
 * d_logits: the gradient of that sum, or NULL. */
double softmax_cross_entropy(const double *logits, const unsigned char *label, int rows, double *d_logits);

/* The class with the largest logit, and its probability. */
int most_likely(const double *logits, double *probability);

#endif
