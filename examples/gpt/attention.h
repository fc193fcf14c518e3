/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention of several heads with rotary positions.
 *
 * Rows are letters, time first: row t·batch + b is letter t of sequence b. So in a matrix [time·batch,
 * heads·depth] the heads of all sequences lie one stride apart (depth), and one call of epigrad's takes them
 * all as its batch. */
#ifndef GPT_ATTENTION_H
#define GPT_ATTENTION_H

#include "real.h"

typedef struct attention {
    eg_context *context;
    int time, batch, heads, depth;
} attention;

/* Turns each pair of numbers of q or k, in place, by an angle that grows with time: q·k then depends on how
 * far apart two letters are. `direction` is 1; -1 turns back, and takes the gradient of what was turned to
 * that of x. */
void rotate(const attention *a, real *x, int direction);

/* out = p·v with p = softmax(q·kᵀ / √depth) over the letters up to each one's own; p [batch·heads, time,
 * time] is kept for the backward pass. q, k, v and out are [time·batch, heads·depth]. */
void attention_forward(const attention *a, const real *q, const real *k, const real *v, real *p, real *out);

/* From d_out to d_q, d_k and d_v; d_p is scratch of the size of p. */
void attention_backward(const attention *a, const real *q, const real *k, const real *v, const real *p,
                        const real *d_out, real *d_p, real *d_q, real *d_k, real *d_v);

#endif
