/* SPDX-License-Identifier: Apache-2.0 */
/* How well the letters that come next were guessed. */
#ifndef GPT_LOSS_H
#define GPT_LOSS_H

#include "real.h"

/* The mean cross-entropy of softmax(logits), [rows, letters], where letter target[r] was right, in nats. With
 * d_logits, which may be the same memory, its gradient is written. */
double cross_entropy(const real *logits, const unsigned char *target, int rows, int letters, real *d_logits);

#endif
