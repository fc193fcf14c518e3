/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention of several heads with rotary positions.
 *
 * Rows are letters, sequence by sequence: row b·time + t is letter t of sequence b. q, k and v are the result
 * of one layer, qkv [batch, time, 3, heads, depth]. Nothing is copied out of it: a product of all heads of
 * all sequences is one call of epigrad's, whose batch has two levels. */
#ifndef GPT_ATTENTION_H
#define GPT_ATTENTION_H

#include "operations.h"

typedef struct attention {
    device device;
    int time, batch, heads, depth;
} attention;

enum { MOST_DEPTH = 128 };

/* Turns each pair of numbers of q and k, in place, by an angle that grows with time: q·k then depends on how
 * far apart two letters are. `direction` is 1; -1 turns back, and takes the gradients of what was turned to
 * those of q and k. */
void rotate(const attention *a, real *qkv, int direction);

/* Of each row over the letters 0 .. t, in place; later ones get 0. */
void causal_softmax(const attention *a, real *p);

/* d_p becomes the gradient of the scores: p ⊙ (d_p − p·d_p). Where p is 0 so is it. */
void softmax_backward(const attention *a, const real *p, real *d_p);

/* out = p·v with p = softmax(q·kᵀ / √depth) over the letters up to each one's own; p [batch, heads, time,
 * time] is kept for the backward pass. out is [batch, time, heads, depth]. */
void attention_forward(const attention *a, const real *qkv, real *p, real *out);

/* From d_out to d_qkv; d_p is scratch of the size of p. */
void attention_backward(const attention *a, const real *qkv, const real *p, const real *d_out, real *d_p,
                        real *d_qkv);

#endif
