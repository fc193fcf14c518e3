/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the error of every act and act' through the public API, as CSV for docs/reference/numerics.md:
 *
 *     activation_error [f32|f64] [SAMPLES]
 *
 * The error is |got - exact| / max(1, |exact|), exact in long double. First come lines
 *     curve,DTYPE,ACTIVATION,act|act_grad,X,ERROR     the largest error in each of 400 bins of [-20, 20]
 * with SAMPLES (2000) random points each, then a line
 *     worst,DTYPE,ACTIVATION,act|act_grad,X,ERROR     the largest over these and over all exponents of x. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

enum { BINS = 400, RANGE = 20, EXPONENT_SAMPLES = 2000000 };

typedef struct batch {
    eg_dtype dtype;
    int64_t count;
    void *x, *ones, *result;
} batch;

typedef struct worst {
    double error, x;
} worst;

static void stop(const char *what) {
    fprintf(stderr, "activation_error: %s\n", what);
    exit(EXIT_FAILURE);
}

static batch open_batch(eg_dtype dtype, int64_t count) {
    const size_t bytes = (size_t)count * eg_dtype_size(dtype);
    batch b = {dtype, count, malloc(bytes), malloc(bytes), malloc(bytes)};
    if (b.x == NULL || b.ones == NULL || b.result == NULL) stop("out of memory");
    for (int64_t i = 0; i < count; i++) oracle_put(b.ones, (size_t)i, dtype, 1);
    return b;
}

static void close_batch(batch *b) {
    free(b->x);
    free(b->ones);
    free(b->result);
}

static void evaluate(eg_context *context, batch *b, eg_activation activation, bool grad) {
    const eg_layer layer = {
        .size = sizeof layer, .m = 1, .n = b->count, .batch = 1, .dtype = b->dtype, .activation = activation};
    const eg_forward_args forward = {
        .size = sizeof forward, .bias = {.data = b->x}, .y = {.data = b->result}};
    const eg_backward_args backward = {.size = sizeof backward,
                                       .grad = {.data = b->ones},
                                       .bias = {.data = b->x},
                                       .grad_pre = {.data = b->result}};
    const eg_status status =
        grad ? eg_backward(context, &layer, &backward) : eg_forward(context, &layer, &forward);
    if (status != EG_OK) stop(eg_last_error());
}

/* The largest error of the batch, kept in `most` if it is larger. Results that overflow have no error. */
static void find_worst(const batch *b, eg_activation activation, bool grad, worst *most) {
    for (int64_t i = 0; i < b->count; i++) {
        const double x = oracle_get(b->x, (size_t)i, b->dtype),
                     got = oracle_get(b->result, (size_t)i, b->dtype);
        const long double exact =
            grad ? oracle_act_grad(activation, (long double)x) : oracle_act(activation, (long double)x);
        if (!isfinite(oracle_round((double)exact, b->dtype))) continue;
        const double error = (double)(fabsl((long double)got - exact) / fmaxl(1, fabsl(exact)));
        if (!(error <= most->error)) *most = (worst){error, x};
    }
}

static void fill_bin(batch *b, int bin, oracle_random *random) {
    const double width = 2.0 * RANGE / BINS, left = bin * width - RANGE;
    for (int64_t i = 0; i < b->count; i++) {
        oracle_put(b->x, (size_t)i, b->dtype, left + width * (oracle_random_unit(random) + 1) / 2);
    }
}

/* Finite numbers of every exponent and sign. */
static void fill_exponents(batch *b, oracle_random *random) {
    const size_t size = eg_dtype_size(b->dtype);
    for (int64_t i = 0; i < b->count; i++) {
        const uint64_t bits = oracle_random_bits(random) >> (64 - 8 * size); /* little-endian */
        memcpy((char *)b->x + (size_t)i * size, &bits, size);
        if (!isfinite(oracle_get(b->x, (size_t)i, b->dtype))) oracle_put(b->x, (size_t)i, b->dtype, 0);
    }
}

static void measure(eg_context *context, eg_dtype dtype, eg_activation activation, bool grad, int samples) {
    const char *what = grad ? "act_grad" : "act", *name = eg_activation_name(activation);
    oracle_random random = {(uint64_t)activation};
    worst overall = {-1, 0};
    batch b = open_batch(dtype, samples);
    for (int bin = 0; bin < BINS; bin++) {
        worst here = {-1, 0};
        fill_bin(&b, bin, &random);
        evaluate(context, &b, activation, grad);
        find_worst(&b, activation, grad, &here);
        const double middle = (bin + 0.5) * 2.0 * RANGE / BINS - RANGE;
        printf("curve,%s,%s,%s,%g,%.3g\n", eg_dtype_name(dtype), name, what, middle, here.error);
        if (here.error > overall.error) overall = here;
    }
    close_batch(&b);
    b = open_batch(dtype, EXPONENT_SAMPLES);
    fill_exponents(&b, &random);
    evaluate(context, &b, activation, grad);
    find_worst(&b, activation, grad, &overall);
    close_batch(&b);
    printf("worst,%s,%s,%s,%.17g,%.3g\n", eg_dtype_name(dtype), name, what, overall.x, overall.error);
}

int main(int argc, char **argv) {
    static const eg_dtype dtypes[] = {EG_F32, EG_F64};
    const int samples = argc > 2 ? atoi(argv[2]) : 2000;
    if (samples < 1) stop("SAMPLES is to be 1 or more");
    eg_context *context = NULL;
    if (eg_open(NULL, &context) != EG_OK) stop(eg_last_error());
    printf("kind,dtype,activation,function,x,error\n");
    for (int d = 0; d < 2; d++) {
        if (argc > 1 && strcmp(argv[1], eg_dtype_name(dtypes[d])) != 0) continue;
        for (int a = 0; eg_activation_name((eg_activation)a) != NULL; a++) {
            measure(context, dtypes[d], (eg_activation)a, false, samples);
            measure(context, dtypes[d], (eg_activation)a, true, samples);
        }
    }
    eg_close(context);
    return EXIT_SUCCESS;
}
