/* SPDX-License-Identifier: Apache-2.0 */
#include "attention.h"

#include "../common/must.h"

#include <tgmath.h>

enum { Q, K, V, PARTS }; /* of qkv */

/* ---- Positions ---------------------------------------------------------------------------------- */

void rotate(const attention *a, real *qkv, int direction) {
    const int pairs = a->depth / 2, width = a->heads * a->depth;
    const size_t row = (size_t)PARTS * (size_t)width;
    for (int t = 0; t < a->time; t++) {
        real c[MOST_DEPTH / 2], s[MOST_DEPTH / 2];
        for (int i = 0; i < pairs; i++) {
            const double angle = t * pow(1e4, -(double)i / pairs);
            c[i] = (real)cos(angle);
            s[i] = (real)(direction * sin(angle));
        }
        for (int b = 0; b < a->batch; b++) {
            real *x = qkv + (size_t)(b * a->time + t) * row; /* the heads of q, and behind them those of k */
            for (int head = 0; head < V * a->heads; head++, x += a->depth) {
                for (int i = 0; i < pairs; i++) {
                    const real x0 = x[2 * i], x1 = x[2 * i + 1];
                    x[2 * i] = x0 * c[i] - x1 * s[i];
                    x[2 * i + 1] = x0 * s[i] + x1 * c[i];
                }
            }
        }
    }
}

/* ---- Softmax ------------------------------------------------------------------------------------ */

void causal_softmax(const attention *a, real *p) {
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

void softmax_backward(const attention *a, const real *p, real *d_p) {
    for (int r = 0; r < a->batch * a->heads * a->time; r++, p += a->time, d_p += a->time) {
        real dot = 0;
        for (int i = 0; i < a->time; i++) dot += p[i] * d_p[i];
        for (int i = 0; i < a->time; i++) d_p[i] = p[i] * (d_p[i] - dot);
    }
}

/* ---- The products ------------------------------------------------------------------------------- */

/* A matrix of each head of each sequence: its batch_stride leads from sequence to sequence, `outer` from head
 * to head. Devices that have one level go over the outer one in turn, which is better short. */
typedef struct operand {
    eg_matrix matrix;
    int64_t outer;
} operand;

/* [time, depth], windows of [batch, time, parts, heads, depth]: `ld` leads from letter to letter. */
static operand window(const attention *a, const real *x, int part, int parts, eg_layout layout) {
    const int64_t width = (int64_t)a->heads * a->depth;
    eg_matrix m = layout == EG_COL_MAJOR ? eg_const_col_major(x) : eg_const_row_major(x);
    m.offset = (size_t)(part * width) * sizeof *x;
    m.ld = parts * width;
    m.batch_stride = a->time * m.ld;
    return (operand){m, a->depth};
}

static operand part_of(const attention *a, const real *qkv, int part, eg_layout layout) {
    return window(a, qkv, part, PARTS, layout);
}

static operand result(const attention *a, const real *out) { return window(a, out, 0, 1, EG_ROW_MAJOR); }

/* [time, time], one after the other. */
static operand weights(const attention *a, const real *p) {
    eg_matrix m = eg_const_row_major(p);
    const int64_t square = (int64_t)a->time * a->time;
    m.batch_stride = a->heads * square;
    return (operand){m, square};
}

static eg_layer product(const attention *a, int k, int n) {
    eg_layer layer = eg_layer_of(a->time, k, n, EG_ACT_NONE);
    layer.batch = a->batch;
    layer.outer_batch = a->heads;
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

/* y = x·b */
static void forward(const attention *a, const eg_layer *layer, operand x, operand b, operand y) {
    eg_forward_args args = eg_forward_of(x.matrix, b.matrix, eg_elements(NULL), y.matrix);
    args.outer.a = x.outer;
    args.outer.b = b.outer;
    args.outer.y = y.outer;
    must(eg_forward(a->device.context, layer, &args));
}

static void backward(const attention *a, const eg_layer *layer, operand x, operand b, operand d_y,
                     operand d_x, operand d_b) {
    eg_backward_args args = eg_backward_of(x.matrix, b.matrix, eg_elements(NULL), d_y.matrix);
    args.d_a = d_x.matrix;
    args.d_b = d_b.matrix;
    args.outer.a = x.outer;
    args.outer.b = b.outer;
    args.outer.grad = d_y.outer;
    args.outer.d_a = d_x.outer;
    args.outer.d_b = d_b.outer;
    must(eg_backward(a->device.context, layer, &args));
}

void attention_forward(const attention *a, const real *qkv, real *p, real *out) {
    const eg_layer score = product_of_q_and_k(a), mix = product_of_p_and_v(a);
    const operand q = part_of(a, qkv, Q, EG_ROW_MAJOR), k = part_of(a, qkv, K, EG_COL_MAJOR),
                  v = part_of(a, qkv, V, EG_ROW_MAJOR);

    forward(a, &score, q, k, weights(a, p));
    a->device.run->causal_softmax(a, p);
    forward(a, &mix, weights(a, p), v, result(a, out));
}

void attention_backward(const attention *a, const real *qkv, const real *p, const real *d_out, real *d_p,
                        real *d_qkv) {
    const eg_layer score = product_of_q_and_k(a), mix = product_of_p_and_v(a);
    const operand q = part_of(a, qkv, Q, EG_ROW_MAJOR), d_q = part_of(a, d_qkv, Q, EG_ROW_MAJOR);
    const operand k = part_of(a, qkv, K, EG_COL_MAJOR), d_k = part_of(a, d_qkv, K, EG_COL_MAJOR);
    const operand v = part_of(a, qkv, V, EG_ROW_MAJOR), d_v = part_of(a, d_qkv, V, EG_ROW_MAJOR);

    backward(a, &mix, weights(a, p), v, result(a, d_out), weights(a, d_p), d_v);
    a->device.run->softmax_backward(a, p, d_p);
    backward(a, &score, q, k, weights(a, d_p), d_q, d_k);
}
