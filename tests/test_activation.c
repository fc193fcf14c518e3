/* SPDX-License-Identifier: Apache-2.0 */
/* Every act and act' through the public API, alone: with K = 0, pre is the bias and nothing else.
 *     forward                          y = act(bias)
 *     backward, recompute, grad = 1    grad_pre = act'(bias)
 * against the oracle's long double over the whole range of inputs, on every kernel row and storage type. */
#include "check.h"
#include "oracle.h"
#include "support.h"

#include <float.h>
#include <math.h>

typedef struct points {
    eg_dtype dtype;
    int64_t count;
    void *x, *ones, *result; /* count numbers of dtype */
} points;

/* ---- The points --------------------------------------------------------------------------------- */

static const double notable[] = {
    0.0,    -0.0,   1e-40, -1e-40,   1e-310,  -1e-310,  1e-20,   -1e-20,    1e-8,      -1e-8, 0.5,
    -0.5,   1,      -1,    2.999999, 3,       3.000001, -3,      -2.999999, -3.000001, 10,    -10,
    11,     -11,    13,    -13,      13.0625, -13.0625, 24,      -24,       40,        -40,   87.3,
    -87.3,  88,     -88,   88.8,     -88.8,   89,       -89,     103.9,     -103.9,    104,   -104,
    708.3,  -708.3, 709.8, -709.8,   745.2,   -745.2,   750,     -750,      1e4,       -1e4,  65504,
    -65504, 1e20,   -1e20, 1e30,     -1e30,   3.4e38,   -3.4e38, INFINITY,  -INFINITY, NAN};

static void open_points(points *p, eg_dtype dtype, int64_t count) {
    const size_t bytes = (size_t)count * eg_dtype_size(dtype);
    *p = (points){dtype, count, need_memory(bytes), need_memory(bytes), need_memory(bytes)};
    for (int64_t i = 0; i < count; i++) oracle_put(p->ones, (size_t)i, dtype, 1);
}

static void close_points(points *p) {
    free(p->x);
    free(p->ones);
    free(p->result);
}

/* All numbers of a 16-bit type. */
static void every_half(points *p, eg_dtype dtype) {
    open_points(p, dtype, 65536);
    for (int64_t i = 0; i < p->count; i++) ((uint16_t *)p->x)[i] = (uint16_t)i;
}

/* Notable numbers, a line through the interesting range, and bit patterns evenly over all exponents. */
static void spread(points *p, eg_dtype dtype) {
    enum { NOTABLE = LENGTH(notable) };
    const int64_t line = short_run() ? 5000 : 40000, patterns = line;
    open_points(p, dtype, NOTABLE + line + patterns);
    const size_t bits = 8 * eg_dtype_size(dtype);
    for (int64_t i = 0; i < p->count; i++) {
        double x = 0;
        if (i < NOTABLE) {
            x = notable[i];
        } else if (i < NOTABLE + line) {
            x = ((double)(i - NOTABLE) / (double)line - 0.5) * 60;
        } else {
            const uint64_t pattern =
                (uint64_t)(i - NOTABLE - line) * (UINT64_MAX / (uint64_t)patterns) >> (64 - bits);
            memcpy((char *)p->x + (size_t)i * (bits / 8), &pattern, bits / 8); /* little-endian */
            continue;
        }
        oracle_put(p->x, (size_t)i, dtype, x);
    }
}

/* ---- The calls ---------------------------------------------------------------------------------- */

static eg_layer layer_of(const points *p, eg_activation activation, eg_nonfinite nonfinite) {
    return (eg_layer){.size = sizeof(eg_layer),
                      .m = 1,
                      .n = p->count,
                      .batch = 1,
                      .dtype = p->dtype,
                      .activation = activation,
                      .nonfinite = nonfinite};
}

static void forward(eg_context *context, points *p, eg_activation activation) {
    const eg_layer layer = layer_of(p, activation, EG_NONFINITE_ZERO);
    const eg_forward_args args = {.size = sizeof args, .bias = {.data = p->x}, .y = {.data = p->result}};
    assert_ok(eg_forward(context, &layer, &args));
}

static void backward(eg_context *context, points *p, eg_activation activation, eg_source source,
                     eg_nonfinite nonfinite) {
    const eg_layer layer = layer_of(p, activation, nonfinite);
    eg_backward_args args = {
        .size = sizeof args, .grad = {.data = p->ones}, .source = source, .grad_pre = {.data = p->result}};
    if (source == EG_SOURCE_RECOMPUTE) args.bias.data = p->x;
    if (source == EG_SOURCE_PRE) args.pre.data = p->x;
    if (source == EG_SOURCE_Y) args.y.data = p->x;
    assert_ok(eg_backward(context, &layer, &args));
}

/* Whether subnormal numbers are 0, read and written: by the conversions to bf16 of rows for the tile unit. */
static bool flushes;

static void compare(const points *p, const char *row, const char *what, eg_activation activation, int64_t i,
                    long double exact, double got) {
    const double value = (double)exact;
    const oracle_result expected = {value,
                                    oracle_act_bound(activation, oracle_compute_dtype(p->dtype), value)};
    if (oracle_accepts(expected, got, p->dtype)) return;
    if (flushes && got == 0 && fabs(value) < FLT_MIN) return;
    fail_msg("%s %s %s%s(%.17g) is %.17g; expected %.17g +- %.2g", row, eg_dtype_name(p->dtype),
             eg_activation_name(activation), what, oracle_get(p->x, (size_t)i, p->dtype), got, value,
             expected.bound);
}

/* act and act' at every point. Expected values are the same for every kernel row, so they come in. */
typedef struct expectation {
    long double *act, *derivative; /* [ACTIVATIONS][count] */
} expectation;

static void expect(const points *p, expectation *e) {
    const size_t count = (size_t)p->count * ACTIVATIONS;
    e->act = need_memory(count * sizeof *e->act);
    e->derivative = need_memory(count * sizeof *e->derivative);
    for (size_t i = 0; i < count; i++) {
        const long double x = (long double)oracle_get(p->x, i % (size_t)p->count, p->dtype);
        const eg_activation activation = (eg_activation)(i / (size_t)p->count);
        e->act[i] = oracle_act(activation, x);
        e->derivative[i] = oracle_act_grad(activation, x);
    }
}

static void check_values(eg_context *context, const char *row, points *p, const expectation *e) {
    for (int a = 0; a < ACTIVATIONS; a++) {
        const long double *act = e->act + a * p->count;
        forward(context, p, (eg_activation)a);
        for (int64_t i = 0; i < p->count; i++)
            compare(p, row, "", (eg_activation)a, i, act[i], oracle_get(p->result, (size_t)i, p->dtype));
    }
}

/* act'(NaN) is 0 or NaN as `nonfinite` says, but 1 where there is no activation. */
static void check_derivatives(eg_context *context, const char *row, points *p, const expectation *e) {
    static const eg_source sources[] = {EG_SOURCE_RECOMPUTE, EG_SOURCE_PRE};
    for (int j = 0; j < 2 * ACTIVATIONS; j++) {
        const int a = j / 2;
        const eg_nonfinite nonfinite = j % 2 != 0 ? EG_NONFINITE_PROPAGATE : EG_NONFINITE_ZERO;
        backward(context, p, (eg_activation)a, sources[(a + j) % 2], nonfinite);
        for (int64_t i = 0; i < p->count; i++) {
            long double derivative = e->derivative[a * p->count + i];
            if (isnan(derivative) && nonfinite == EG_NONFINITE_ZERO) derivative = 0;
            if (a == EG_ACT_NONE) derivative = 1;
            compare(p, row, "'", (eg_activation)a, i, derivative, oracle_get(p->result, (size_t)i, p->dtype));
        }
    }
}

/* The same where nothing but a product reads grad_pre: rows of zeros follow the points, so that d_b is act'. */
static void check_derivatives_in_a_product(eg_context *context, const char *row, const points *p,
                                           const expectation *e) {
    enum { ROWS = 40 };
    const size_t size = eg_dtype_size(p->dtype), bytes = (size_t)p->count * size;
    char *pre = need_memory(ROWS * bytes), *grad = need_memory(ROWS * bytes), *a = need_memory(ROWS * size);
    memset(pre, 0, ROWS * bytes);
    memset(grad, 0, ROWS * bytes);
    memcpy(pre, p->x, bytes);
    memcpy(grad, p->ones, bytes);
    memcpy(a, p->ones, ROWS * size);
    for (int j = 0; j < 2; j++) {
        const eg_activation activation = j == 0 ? EG_ACT_RELU : EG_ACT_GELU;
        eg_layer layer = layer_of(p, activation, j == 0 ? EG_NONFINITE_ZERO : EG_NONFINITE_PROPAGATE);
        layer.m = ROWS, layer.k = 1;
        const eg_backward_args args = {.size = sizeof args,
                                       .a = {.data = a},
                                       .grad = {.data = grad},
                                       .source = EG_SOURCE_PRE,
                                       .pre = {.data = pre},
                                       .d_b = {.data = p->result}};
        assert_ok(eg_backward(context, &layer, &args));
        for (int64_t i = 0; i < p->count; i++) {
            long double derivative = e->derivative[activation * p->count + i];
            if (isnan(derivative) && j == 0) derivative = 0;
            compare(p, row, "' in d_b", activation, i, derivative,
                    oracle_get(p->result, (size_t)i, p->dtype));
        }
    }
    free(pre);
    free(grad);
    free(a);
}

/* From y, over the range that the activation has. */
static void check_derivatives_of_y(eg_context *context, const char *row, points *p) {
    for (int a = 0; a < ACTIVATIONS; a++) {
        if (!eg_activation_from_y((eg_activation)a)) continue;
        backward(context, p, (eg_activation)a, EG_SOURCE_Y, EG_NONFINITE_PROPAGATE);
        for (int64_t i = 0; i < p->count; i++) {
            const double y = oracle_get(p->x, (size_t)i, p->dtype);
            if (fabs(y) > 1 && (a == EG_ACT_SIGMOID || a == EG_ACT_TANH)) continue;
            const long double derivative = oracle_act_grad_of_y((eg_activation)a, (long double)y);
            compare(p, row, "' of y", (eg_activation)a, i, derivative,
                    oracle_get(p->result, (size_t)i, p->dtype));
        }
    }
}

/* Whether a row computes this type, with layer.math as it is by default. */
static bool computes(eg_context *context, const points *p) {
    const eg_layer layer = layer_of(p, EG_ACT_NONE, EG_NONFINITE_ZERO);
    const eg_forward_args args = {.size = sizeof args, .bias = {.data = p->x}, .y = {.data = p->result}};
    char text[512];
    const eg_status status = eg_forward_plan(context, &layer, &args, text, sizeof text);
    if (status != EG_ERR_UNSUPPORTED) assert_ok(status);
    return status == EG_OK;
}

/* On every usable kernel row that computes this type. */
static void check_points(points *p) {
    expectation e;
    expect(p, &e);
    eg_context *table = open_cpu(0);
    int checked = 0;
    eg_kernel_info row = {.size = sizeof row};
    for (int i = 0; eg_get_kernel_info(table, i, &row) == EG_OK; i++) {
        if (!row.usable || row.compute != oracle_compute_dtype(p->dtype)) continue;
        eg_context *context = NULL;
        assert_ok(eg_open(&(eg_open_info){.size = sizeof(eg_open_info), .kernel = row.name}, &context));
        if (computes(context, p)) {
            flushes = strstr(row.name, "bf16") != NULL;
            check_values(context, row.name, p, &e);
            check_derivatives(context, row.name, p, &e);
            check_derivatives_in_a_product(context, row.name, p, &e);
            check_derivatives_of_y(context, row.name, p);
            checked++;
        }
        eg_close(context);
    }
    assert_true(checked > 0);
    eg_close(table);
    free(e.act);
    free(e.derivative);
    close_points(p);
}

static void f32_over_its_range(void **state) {
    (void)state;
    points p;
    spread(&p, EG_F32);
    check_points(&p);
}

static void f64_over_its_range(void **state) {
    (void)state;
    points p;
    spread(&p, EG_F64);
    check_points(&p);
}

static void every_f16(void **state) {
    (void)state;
    points p;
    every_half(&p, EG_F16);
    check_points(&p);
}

static void every_bf16(void **state) {
    (void)state;
    points p;
    every_half(&p, EG_BF16);
    check_points(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_over_its_range),
        cmocka_unit_test(f64_over_its_range),
        cmocka_unit_test(every_f16),
        cmocka_unit_test(every_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
