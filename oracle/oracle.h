/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle: forward and backward of the layer in plain double precision, written from the mathematics
 * and sharing no code with the library. Every result comes with the bound that a correct library keeps.
 *
 * The bound follows from the data type and the length of the sums alone (docs/reference/testing.md):
 *     a sum of L terms t    ORACLE_SUM * sqrt(L) * u * Σ|t|      u: unit roundoff of the accumulator
 *     act and act'          4e-7 (f32), 1e-15 (f64) of max(1, |value|), and what an error of pre moves it by
 *     a product             u of its value
 * and errors of what is summed are summed. The final rounding is exact: a result with value v and bound e
 * may be any number between round(v - e) and round(v + e); where v is infinite or NaN and e is infinite, any
 * infinity or NaN.
 *
 * All arrays are dense and row-major doubles. Prefix oracle_; nothing here is part of the public API. */
#ifndef ORACLE_ORACLE_H
#define ORACLE_ORACLE_H

#include <stdbool.h>

#include "number.h"

/* For L <= 9 the bound is rigorous (3 sqrt(L) >= L); beyond, rounding errors of either sign add up like a
 * random walk, and three times its deviation covers every element tested. */
#define ORACLE_SUM 3.0

/* What it computes in. ORACLE_IN_DOUBLE is for emulators of processors that have long double in software: a
 * hundred times faster, and still closer to the truth than the bounds. */
#ifdef ORACLE_IN_DOUBLE
typedef double oracle_real;
#else
typedef long double oracle_real;
#endif

/* ---- Activations -------------------------------------------------------------------------------- */

oracle_real oracle_act(eg_activation activation, oracle_real x);
oracle_real oracle_act_grad(eg_activation activation, oracle_real x);
/* Of y; NaN where it is no function of y. */
oracle_real oracle_act_grad_of_y(eg_activation activation, oracle_real y);
double oracle_act_bound(eg_activation activation, eg_dtype compute, double result);

/* ---- The layer ---------------------------------------------------------------------------------- */

typedef struct oracle_layer {
    int64_t m, k, n, batch;
    eg_activation activation;
    eg_nonfinite nonfinite;
    double scale; /* of the products */
    /* What decides the bounds and not the values: */
    eg_dtype dtype;             /* storage type; sums are accumulated in oracle_compute_dtype of it */
    bool reduced_products;      /* EG_MATH_FAST: products of f32 operands rounded to 8 bits */
    bool rounds_grad_pre;       /* the backend rounds grad_pre to `dtype` where it feeds a product */
    bool reads_subnormals_as_0; /* and writes none: sums of less than 2^-126 */
    bool exact_pre;             /* the data are small integers: A·B + bias is exact in any order */
} oracle_layer;

/* [batch, rows, cols], or [rows, cols] shared by the whole batch. */
typedef struct oracle_matrix {
    const double *data;
    bool shared;
} oracle_matrix;

typedef struct oracle_result {
    double value, bound;
} oracle_result;

typedef struct oracle_forward_args {
    oracle_matrix a, b;
    const double *bias;     /* or NULL */
    oracle_matrix residual; /* data may be NULL */
    oracle_result *pre, *y; /* [batch, m, n]; pre may not be NULL */
    oracle_matrix b_up;     /* data is NULL but for a gated unit, y = act(pre) * pre_up */
    const double *bias_up;  /* or NULL */
    oracle_result *pre_up;  /* may not be NULL then */
} oracle_forward_args;

/* False if memory ran out. */
bool oracle_forward(const oracle_layer *layer, const oracle_forward_args *args);

/* Outputs that are NULL are not computed, but for grad_pre, which the others are made from. `shared` sums:
 * d_a and d_b are [rows, cols] then. `before` is what an accumulated output held, or NULL. */
typedef struct oracle_backward_args {
    oracle_matrix a, b, grad;
    const double *bias;
    eg_source source;
    oracle_matrix saved; /* pre or y, as source says */

    oracle_matrix below; /* the chain; data may be NULL */
    eg_source below_source;
    eg_activation below_activation;

    bool d_a_shared, d_b_shared;
    oracle_matrix d_a_before; /* or the residual; data may be NULL */
    const double *d_b_before, *d_bias_before, *d_bias_below_before;
    oracle_result *d_a, *d_b, *d_bias, *grad_pre, *d_bias_below;

    /* A gated unit: grad_pre = grad * pre_up * act'(pre), grad_pre_up = grad * act(pre). */
    bool gated, made; /* made: grad and grad_up are these two */
    oracle_matrix b_up, saved_up, grad_up;
    const double *bias_up;
    bool d_b_up_shared;
    const double *d_b_up_before, *d_bias_up_before;
    oracle_result *d_b_up, *d_bias_up, *grad_pre_up;

    /* And one below: its y is made again, d_a is the gradient of its gate, d_up_below that of its other half.
     */
    oracle_matrix below_up; /* data may be NULL */
    const double *d_bias_up_below_before;
    oracle_result *d_up_below, *y_below, *d_bias_up_below;
} oracle_backward_args;

/* False if memory ran out. */
bool oracle_backward(const oracle_layer *layer, const oracle_backward_args *args);

/* ---- Comparison --------------------------------------------------------------------------------- */

/* Whether a stored number is one that a correct library may have stored. NaN matches NaN only. */
bool oracle_accepts(oracle_result expected, double got, eg_dtype dtype);

/* How much of the bound was used up: 0 where the final rounding explains the error, 1 at the limit, infinity
 * where oracle_accepts says no. */
double oracle_ratio(oracle_result expected, double got, eg_dtype dtype);

#endif
