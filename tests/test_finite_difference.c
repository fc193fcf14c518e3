/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle itself: its gradients against finite differences of its forward pass, and its three sources of
 * act' against each other. What the library is held against must not be taken on trust. */
#include "oracle.h"
#include "support.h"

#include <math.h>

enum { M = 3, K = 4, N = 5, BATCH = 2, MOST = BATCH * 4 * 5 };

/* Two layers, x·w + c -> act_below -> ·b + bias -> act, and a loss that weighs every y by `grad`. */
typedef struct net {
    eg_activation below, activation;
    bool a_shared, b_shared;
    double pre_below[MOST], b[MOST], bias[N], grad[MOST];
} net;

static oracle_layer layer_of(const net *n) {
    return (oracle_layer){
        .m = M, .k = K, .n = N, .batch = BATCH, .activation = n->activation, .scale = -0.75, .dtype = EG_F64};
}

static void make_a(const net *n, double *a) {
    for (int i = 0; i < MOST; i++) a[i] = (double)oracle_act(n->below, (long double)n->pre_below[i]);
}

static void forward(const net *n, oracle_result *pre, oracle_result *y) {
    double a[MOST];
    make_a(n, a);
    const oracle_layer layer = layer_of(n);
    const oracle_forward_args args = {.a = {a, n->a_shared},
                                      .b = {n->b, n->b_shared},
                                      .bias = n->bias,
                                      .residual = {NULL, false},
                                      .pre = pre,
                                      .y = y};
    assert_true(oracle_forward(&layer, &args));
}

static double loss(const net *n) {
    oracle_result pre[MOST], y[MOST];
    forward(n, pre, y);
    double total = 0;
    for (int i = 0; i < BATCH * M * N; i++) total += n->grad[i] * y[i].value;
    return total;
}

static double derivative_of_loss(net *n, double *parameter) {
    const double step = 1e-5, at = *parameter;
    *parameter = at + step;
    const double above = loss(n);
    *parameter = at - step;
    const double below = loss(n);
    *parameter = at;
    return (above - below) / (2 * step);
}

static void compare(net *n, const char *what, double *parameters, const oracle_result *gradient, int count) {
    for (int i = 0; i < count; i++) {
        const double expected = derivative_of_loss(n, &parameters[i]);
        const double error = fabs(gradient[i].value - expected);
        if (error > 1e-8 * fmax(1, fabs(expected))) {
            fail_msg("%s on %s: d loss / d %s[%d] is %.12g; finite difference %.12g",
                     eg_activation_name(n->activation), eg_activation_name(n->below), what, i,
                     gradient[i].value, expected);
        }
    }
}

static void make_net(net *n, uint64_t seed) {
    oracle_random random = {seed};
    for (int i = 0; i < MOST; i++) {
        n->pre_below[i] = 3.5 * oracle_random_unit(&random);
        n->b[i] = 1.5 * oracle_random_unit(&random);
        n->grad[i] = oracle_random_unit(&random);
    }
    for (int i = 0; i < N; i++) n->bias[i] = oracle_random_unit(&random);
}

/* d_a with the chain is the gradient of pre_below; d_bias_below sums it over the rows. */
static void check_gradients(net *n) {
    double a[MOST];
    make_a(n, a);
    oracle_result d_a[MOST], d_b[MOST], d_bias[N], d_bias_below[K];
    const oracle_layer layer = layer_of(n);
    const bool chained = !n->a_shared; /* a summed d_a has no chain */
    oracle_backward_args args = {.a = {a, n->a_shared},
                                 .b = {n->b, n->b_shared},
                                 .grad = {n->grad, false},
                                 .bias = n->bias,
                                 .source = EG_SOURCE_RECOMPUTE,
                                 .below = {chained ? n->pre_below : NULL, false},
                                 .below_source = EG_SOURCE_PRE,
                                 .below_activation = n->below,
                                 .d_a_shared = n->a_shared,
                                 .d_b_shared = n->b_shared,
                                 .d_a = d_a,
                                 .d_b = d_b,
                                 .d_bias = d_bias,
                                 .d_bias_below = chained ? d_bias_below : NULL};
    assert_true(oracle_backward(&layer, &args));
    compare(n, "b", n->b, d_b, (n->b_shared ? 1 : BATCH) * K * N);
    compare(n, "bias", n->bias, d_bias, N);
    if (!chained) {
        n->below = EG_ACT_NONE; /* a itself is the parameter then */
        memcpy(n->pre_below, a, sizeof a);
    }
    compare(n, "a or pre below", n->pre_below, d_a, (n->a_shared ? 1 : BATCH) * M * K);
    for (int k = 0; chained && k < K; k++) {
        double sum = 0;
        for (int i = k; i < BATCH * M * K; i += K) sum += d_a[i].value;
        assert_true(fabs(sum - d_bias_below[k].value) < 1e-12);
    }
}

static void gradients_are_derivatives_of_the_loss(void **state) {
    (void)state;
    for (int i = 0; i < ACTIVATIONS; i++) {
        for (int shared = 0; shared < 4; shared++) {
            net n = {.activation = (eg_activation)i,
                     .below = (eg_activation)((i + 5 * shared + 1) % ACTIVATIONS)};
            n.a_shared = (shared & 1) != 0;
            n.b_shared = (shared & 2) != 0;
            make_net(&n, 4 * (uint64_t)i + (uint64_t)shared);
            check_gradients(&n);
        }
    }
}

static void derivative_of_each_activation(void **state) {
    (void)state;
    static const double kinks[] = {-3, 0, 3};
    for (int i = 0; i < ACTIVATIONS; i++) {
        for (int j = 0; j < 384; j++) {
            const double x = -12.03 + 0.0625 * j;
            bool at_kink = false;
            for (size_t k = 0; k < LENGTH(kinks); k++) at_kink = at_kink || fabs(x - kinks[k]) < 1e-3;
            if (at_kink) continue;
            const long double step = 1e-6L, at = (long double)x;
            const long double rise =
                oracle_act((eg_activation)i, at + step) - oracle_act((eg_activation)i, at - step);
            const double error = (double)fabsl(oracle_act_grad((eg_activation)i, at) - rise / (2 * step));
            if (error > 1e-10)
                fail_msg("%s'(%g) is off by %g", eg_activation_name((eg_activation)i), x, error);
        }
    }
}

static void sources_agree(void **state) {
    (void)state;
    for (int i = 0; i < ACTIVATIONS; i++) {
        for (int j = -72; j <= 72; j++) {
            if (!eg_activation_from_y((eg_activation)i)) continue;
            const long double x = 0.125L * j, y = oracle_act((eg_activation)i, x);
            const long double of_pre = oracle_act_grad((eg_activation)i, x);
            assert_true(fabsl(oracle_act_grad_of_y((eg_activation)i, y) - of_pre) < 1e-15L);
        }
    }
}

/* The conventions where there is no derivative, and the limits where arithmetic tends to fail. */
static void conventions_and_limits(void **state) {
    (void)state;
    assert_true(oracle_act_grad(EG_ACT_RELU, 0) == 0);
    assert_true(oracle_act_grad(EG_ACT_RELU2, 0) == 0);
    assert_true(oracle_act_grad(EG_ACT_HARDSWISH, -3) == 0);
    assert_true(oracle_act_grad(EG_ACT_HARDSWISH, 3) == 1);
    static const long double far[] = {13, 88, 750, 1e20L, 1e30L, 1e300L, (long double)INFINITY};
    for (int i = 0; i < ACTIVATIONS; i++) {
        const eg_activation activation = (eg_activation)i;
        for (size_t j = 0; j < LENGTH(far); j++) {
            const long double above = oracle_act_grad(activation, far[j]);
            const long double below = oracle_act_grad(activation, -far[j]);
            const bool bounded = activation == EG_ACT_SIGMOID || activation == EG_ACT_TANH;
            const long double limit = activation == EG_ACT_RELU2 ? 2 * far[j] : bounded ? 0 : 1;
            assert_true(above == limit || fabsl(above - limit) < 1e-4L);
            assert_true(fabsl(below - (activation == EG_ACT_NONE ? 1 : 0)) < 1e-4L);
            assert_false(isnan(oracle_act(activation, far[j])));
            assert_false(isnan(oracle_act(activation, -far[j])));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(derivative_of_each_activation),
        cmocka_unit_test(sources_agree),
        cmocka_unit_test(conventions_and_limits),
        cmocka_unit_test(gradients_are_derivatives_of_the_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
