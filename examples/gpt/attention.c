/* SPDX-License-Identifier: Apache-2.0 */
#include "attention.h"

#include "../common/must.h"

#include <tgmath.h>

/* ---- Positions ---------------------------------------------------------------------------------- */

void rotate(const attention *a, real *x, int direction) {
    const int row = a->heads * a->depth;
    for (int t = 0; t < a->time; t++) {
        for (int i = 0; i < a->depth; i += 2) {
            const double angle = t * pow(1e4, -(double)i / a->depth);
            const real c = (real)cos(angle), s = (real)(direction * sin(angle));
            real *pair = x + (size_t)t * (size_t)(a->batch * row) + i;
            for (int item = 0; item < a->batch * a->heads; item++, pair += a->depth) {
                const real p0 = pair[0], p1 = pair[1];
                pair[0] = p0 * c - p1 * s;
                pair[1] = p0 * s + p1 * c;
            }
        }
    }
}

/* ---- Softmax ------------------------------------------------------------------------------------ */

/* Of each row over the letters 0 .. t; later ones get 0. */
static void causal_softmax(const attention *a, real *p) {
    for (int item = 0; item < a->batch * a->heads; item++) {
        for (int t = 0; t < a->time; t++, p += a->time) {
            real largest = p[0], sum = 0;
            for (int i = 1; i <= t; i++) largest = p[i] > largest ? p[i] : largest;
            for (int i = 0; i <= t; i++) sum += p[i] = exp(p[i] - largest);
            for (int i = 0; i <= t; i++) p[i] /= sum;
            for (int i = t + 1; i < a->time; i++) p[i] = 0;
        }
    }
}

/* d_p becomes the gradient of the scores: p ⊙ (d_p − p·d_p). Where p is 0 so is it. */
static void softmax_backward(const attention *a, const real *p, real *d_p) {
    for (int r = 0; r < a->batch * a->heads * a->time; r++, p += a->time, d_p += a->time) {
        real dot = 0;
        for (int i = 0; i < a->time; i++) dot += p[i] * d_p[i];
        for (int i = 0; i < a->time; i++) d_p[i] = p[i] * (d_p[i] - dot);
    }
}

/* ---- The products ------------------------------------------------------------------------------- */

/* The matrix [time, depth] of each head: `ld` from letter to letter, `batch_stride` from head to head. */
static eg_matrix heads(const attention *a, const real *x, eg_layout layout) {
    eg_matrix m = layout == EG_COL_MAJOR ? eg_const_col_major(x) : eg_const_row_major(x);
    m.ld = (int64_t)a->batch * a->heads * a->depth;
    m.batch_stride = a->depth;
    return m;
}

/* The matrix [time, time] of each head, one after the other. */
static eg_matrix weights(const attention *a, const real *p) {
    eg_matrix m = eg_const_row_major(p);
    m.batch_stride = (int64_t)a->time * a->time;
    return m;
}

static eg_layer product(const attention *a, int k, int n) {
    eg_layer layer = eg_layer_of(a->time, k, n, EG_ACT_NONE);
    layer.batch = (int64_t)a->batch * a->heads;
    layer.dtype = REAL_DTYPE;
    return layer;
}

/* scores = q·kᵀ / √depth: the scale is the layer's, in both passes. */
static eg_layer product_of_q_and_k(const attention *a) {
    eg_layer layer = product(a, a->depth, a->time);
    layer.scale = 1 / sqrt((double)a->depth);
    return layer;
}

static eg_layer product_of_p_and_v(const attention *a) { return product(a, a->time, a->depth); }

void attention_forward(const attention *a, const real *q, const real *k, const real *v, real *p, real *out) {
    const eg_layer score = product_of_q_and_k(a), mix = product_of_p_and_v(a);
    const eg_vector no_bias = eg_elements(NULL);

    eg_forward_args args =
        eg_forward_of(heads(a, q, EG_ROW_MAJOR), heads(a, k, EG_COL_MAJOR), no_bias, weights(a, p));
    must(eg_forward(a->context, &score, &args));
    causal_softmax(a, p);
    args = eg_forward_of(weights(a, p), heads(a, v, EG_ROW_MAJOR), no_bias, heads(a, out, EG_ROW_MAJOR));
    must(eg_forward(a->context, &mix, &args));
}

void attention_backward(const attention *a, const real *q, const real *k, const real *v, const real *p,
                        const real *d_out, real *d_p, real *d_q, real *d_k, real *d_v) {
    const eg_layer score = product_of_q_and_k(a), mix = product_of_p_and_v(a);
    const eg_vector no_bias = eg_elements(NULL);

    eg_backward_args args =
        eg_backward_of(weights(a, p), heads(a, v, EG_ROW_MAJOR), no_bias, heads(a, d_out, EG_ROW_MAJOR));
    args.d_a = weights(a, d_p);
    args.d_b = heads(a, d_v, EG_ROW_MAJOR);
    must(eg_backward(a->context, &mix, &args));
    softmax_backward(a, p, d_p);
    args = eg_backward_of(heads(a, q, EG_ROW_MAJOR), heads(a, k, EG_COL_MAJOR), no_bias, weights(a, d_p));
    args.d_a = heads(a, d_q, EG_ROW_MAJOR);
    args.d_b = heads(a, d_k, EG_COL_MAJOR); /* of the view that the call read: kᵀ */
    must(eg_backward(a->context, &score, &args));
}
