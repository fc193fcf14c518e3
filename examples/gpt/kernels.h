/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of kernels.cu: their names, and what each is given, for the GPU and for the host. */
#ifndef GPT_KERNELS_H
#define GPT_KERNELS_H

#include "real.h"

#include <stdint.h>

#define GPT_KERNELS(X)                                                                                       \
    X(clear)                                                                                                 \
    X(embed)                                                                                                 \
    X(embed_parts)                                                                                           \
    X(add_parts)                                                                                             \
    X(norm_forward)                                                                                          \
    X(norm_backward)                                                                                         \
    X(norm_parts)                                                                                            \
    X(rotate)                                                                                                \
    X(causal_softmax)                                                                                        \
    X(softmax_backward)                                                                                      \
    X(experts_softmax)                                                                                       \
    X(experts_order)                                                                                         \
    X(sort_rows)                                                                                             \
    X(unsort_rows)                                                                                           \
    X(add_results)                                                                                           \
    X(add_results_backward)                                                                                  \
    X(cross_entropy)                                                                                         \
    X(squares)                                                                                               \
    X(sum)                                                                                                   \
    X(adamw_update)

typedef enum kernel {
#define GPT_KERNEL(name) KERNEL_##name,
    GPT_KERNELS(GPT_KERNEL)
#undef GPT_KERNEL
        KERNELS
} kernel;

/* Of a block; a warp's are neighbours. */
enum { THREADS = 256, LANES = 32, WARPS = THREADS / LANES };

typedef struct clear_args {
    real *x;
    size_t count;
} clear_args;

typedef struct embed_args {
    const real *table;
    const unsigned char *letter;
    real *x;
    int rows, width;
} embed_args;

typedef struct embed_parts_args {
    const real *d_x;
    const unsigned char *letter;
    real *parts; /* [chunks, letters, width] */
    int rows, width, letters, chunk;
} embed_parts_args;

typedef struct add_parts_args {
    const real *parts; /* [chunks, count] */
    real *to;
    int chunks, count, add; /* 1: to what is there */
} add_parts_args;

typedef struct norm_forward_args {
    const real *x, *gain;
    real *y;
    int rows, width;
} norm_forward_args;

typedef struct norm_backward_args {
    const real *x, *gain, *d_y;
    real *d_x, *inverse; /* [rows]: 1 / rms(x) */
    int rows, width;
} norm_backward_args;

typedef struct norm_parts_args {
    const real *x, *d_y, *inverse;
    real *parts; /* [chunks, width] */
    int rows, width, chunk;
} norm_parts_args;

typedef struct rotate_args {
    real *qkv;
    int time, heads, depth, direction;
} rotate_args;

typedef struct causal_softmax_args {
    real *p;
    int rows, time;
} causal_softmax_args;

typedef struct softmax_backward_args {
    const real *p;
    real *d_p;
    int rows, time;
} softmax_backward_args;

typedef struct experts_softmax_args {
    real *p;
    int rows, experts;
} experts_softmax_args;

typedef struct experts_order_args {
    const real *p;
    int32_t *order, *ends;
    int rows, experts;
} experts_order_args;

typedef struct sort_rows_args {
    const int32_t *order;
    const real *from;
    real *to;
    int rows, width;
} sort_rows_args;
typedef sort_rows_args unsort_rows_args;

typedef struct add_results_args {
    const real *p;
    const int32_t *order;
    const real *result, *stream;
    real *to;
    int rows, width, experts;
} add_results_args;

typedef struct add_results_backward_args {
    real *p;
    const int32_t *order;
    const real *result, *d_to;
    real *d_result;
    int rows, width, experts;
} add_results_backward_args;

typedef struct cross_entropy_args {
    const real *logits;
    const unsigned char *target;
    real *d_logits; /* or NULL */
    double *loss;   /* [rows] */
    int rows, letters;
} cross_entropy_args;

typedef struct squares_args {
    const real *x;
    double *parts; /* one of each block */
    size_t count;
} squares_args;

typedef struct sum_args {
    const double *x;
    double *sum;
    int count;
} sum_args;

typedef struct adamw_update_args {
    real *parameter, *mean, *square;
    const real *gradient;
    const double *squares; /* of all gradients, their sum */
    size_t count, decayed;
    double longest;
    real new_mean, new_square, step_size, keep;
} adamw_update_args;

#endif
