/* SPDX-License-Identifier: Apache-2.0 */
/* What of the model is not a product: one table of functions for each backend. Products are epigrad's on all
 * of them, and so is the memory: a pointer here is to memory of the context. The files of the functions say
 * what they compute. */
#ifndef GPT_OPERATIONS_H
#define GPT_OPERATIONS_H

#include "real.h"

struct attention;
struct routing;
struct adamw;
struct adamw_rates;

typedef struct operations {
    void (*clear)(real *x, size_t count);
    /* embedding.c */
    void (*embed)(const real *table, const unsigned char *letter, real *x, int rows, int width);
    void (*embed_backward)(const real *d_x, const unsigned char *letter, real *d_table, int rows, int width,
                           int letters);
    /* norm.c */
    void (*norm_forward)(const real *x, const real *gain, real *y, int rows, int width);
    void (*norm_backward)(const real *x, const real *gain, const real *d_y, real *d_x, real *d_gain, int rows,
                          int width);
    /* attention.c */
    void (*rotate)(const struct attention *a, real *qkv, int direction);
    void (*causal_softmax)(const struct attention *a, real *p);
    void (*softmax_backward)(const struct attention *a, const real *p, real *d_p);
    /* experts.c */
    void (*route)(const struct routing *r);
    void (*sort_rows)(const struct routing *r, const real *from, real *sorted, int width);
    void (*unsort_rows)(const struct routing *r, const real *sorted, real *to, int width);
    void (*add_results)(const struct routing *r, const real *result, const real *stream, real *to, int width);
    void (*add_results_backward)(const struct routing *r, const real *result, const real *d_to,
                                 real *d_result, int width);
    /* loss.c: the loss comes back to the host */
    double (*cross_entropy)(const real *logits, const unsigned char *target, int rows, int letters,
                            real *d_logits);
    /* adamw.c */
    void (*adamw_update)(const struct adamw *optimizer, const struct adamw_rates *rates, real *parameters,
                         const real *gradients);
} operations;

/* Where a model is. */
typedef struct device {
    eg_context *context;
    const operations *run;
} device;

extern const operations cpu_operations; /* operations.c */

/* cuda.c: those of the GPU that the context is on. One at a time. */
const operations *cuda_open(eg_context *context);
void cuda_close(void);

#endif
