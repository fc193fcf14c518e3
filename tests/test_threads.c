/* SPDX-License-Identifier: Apache-2.0 */
/* The same call gives the same bits: for any number of threads, run after run, whatever ran before. */
#include <time.h>

#include "child.h"
#include "fixture.h"

typedef struct sample {
    eg_dtype dtype;
    eg_activation activation;
    int64_t m, k, n, batch;
    bool shared_b, chained;
} sample;

/* Large enough that the products are worth several threads, with ragged edges; and long sums. */
static const sample samples[] = {
    {EG_F32, EG_ACT_GELU, 301, 257, 293, 1, false, false},
    {EG_F32, EG_ACT_SILU, 250, 270, 230, 3, false, true},
    {EG_F32, EG_ACT_TANH, 180, 190, 210, 3, true, true},
    {EG_F64, EG_ACT_MISH, 303, 211, 250, 1, false, true},
    {EG_F64, EG_ACT_RELU, 165, 129, 197, 5, true, false},
    {EG_F16, EG_ACT_SOFTPLUS, 200, 300, 160, 2, false, true},
    {EG_BF16, EG_ACT_GELU_ERF, 5500, 97, 129, 1, false, false},
    {EG_F32, EG_ACT_NONE, 6000, 60, 50, 1, false, true},
    {EG_F32, EG_ACT_SIGMOID, 17, 4500, 230, 1, false, false},
    {EG_BF16, EG_ACT_RELU2, 29, 300, 3900, 2, true, true},
};

static void make(const sample *s, fixture *f) {
    fixture_make(f, (eg_layer){.dtype = s->dtype,
                               .activation = s->activation,
                               .m = s->m,
                               .k = s->k,
                               .n = s->n,
                               .batch = s->batch});
    if (s->shared_b) {
        f->forward.b.batch_stride = f->backward.b.batch_stride = 0;
        f->backward.d_b.batch_stride = 0;
    }
    if (s->chained) {
        f->backward.chain = (eg_chain){
            .saved = f->below, .source = EG_SOURCE_PRE, .activation = EG_ACT_GELU, .d_bias = f->d_bias_below};
    }
}

/* Forward and backward from each source, on a context of its own; the outputs of all of them, one after
 * another. */
static unsigned char *outputs(const fixture *f, int threads, eg_source source) {
    fixture g = *f;
    eg_context *context = open_cpu(threads);
    fixture_poison(&g);
    fixture_set_source(&g, source);
    assert_ok(eg_forward(context, &g.layer, &g.forward));
    assert_ok(eg_backward(context, &g.layer, &g.backward));
    eg_close(context);
    unsigned char *copy = malloc(f->output_bytes);
    assert_non_null(copy);
    memcpy(copy, f->outputs, f->output_bytes);
    return copy;
}

static void check_same(const fixture *f, const unsigned char *expected, const sample *s, int threads,
                       eg_source source) {
    unsigned char *got = outputs(f, threads, source);
    for (size_t i = 0; i < f->output_bytes; i++) {
        if (got[i] == expected[i]) continue;
        fail_msg("%s %s %lldx%lldx%lld batch %lld source %d: byte %zu of the outputs differs with %d threads",
                 eg_dtype_name(s->dtype), eg_activation_name(s->activation), (long long)s->m, (long long)s->k,
                 (long long)s->n, (long long)s->batch, (int)source, i, threads);
    }
    free(got);
}

/* The least limit, and half as much again: the chunks are of 64 rows, and of more. */
static void set_limits(fixture *f, bool more) {
    eg_context *context = open_cpu(1);
    size_t bytes;
    f->forward.workspace_limit = f->backward.workspace_limit = 1;
    assert_status(eg_forward_workspace(context, &f->layer, &f->forward, &bytes), EG_ERR_ARGUMENT);
    f->forward.workspace_limit = (size_t)strtoull(strstr(eg_last_error(), "at least ") + 9, NULL, 10);
    assert_status(eg_backward_workspace(context, &f->layer, &f->backward, &bytes), EG_ERR_ARGUMENT);
    f->backward.workspace_limit = (size_t)strtoull(strstr(eg_last_error(), "at least ") + 9, NULL, 10);
    if (more) f->forward.workspace_limit += f->forward.workspace_limit / 2;
    if (more) f->backward.workspace_limit += f->backward.workspace_limit / 2;
    eg_close(context);
}

/* A test of threads on a call that one thread makes would prove nothing. */
static void check_worth_threads(const fixture *f) {
    char text[4096];
    eg_context *context = open_cpu(3);
    assert_ok(eg_backward_plan(context, &f->layer, &f->backward, text, sizeof text));
    assert_non_null(strstr(text, "threads"));
    eg_close(context);
}

/* limit 0: none; 1 and 2: chunks. A short run takes f32 and f16, of which AMX has kernels of several terms.
 */
static void check_threads(int limit) {
    static const int counts[] = {2, 5, 1, 3, 16, 0};
    const size_t most = short_run() ? 2 : LENGTH(counts);
    for (size_t i = 0; i < LENGTH(samples); i += short_run() ? 5 : 1) {
        const eg_source source = (eg_source)(i % 2); /* recompute and pre by turns */
        fixture f;
        make(&samples[i], &f);
        if (limit == 0) check_worth_threads(&f);
        if (limit > 0) set_limits(&f, limit == 2);
        unsigned char *expected = outputs(&f, 1, source);
        for (size_t j = 0; j < most; j++) check_same(&f, expected, &samples[i], counts[j], source);
        free(expected);
        fixture_free(&f);
    }
}

static void same_bits_for_any_threads(void **state) {
    (void)state;
    check_threads(0);
}

static void same_bits_for_any_threads_in_chunks(void **state) {
    (void)state;
    check_threads(1);
    check_threads(2);
}

/* Of a plan's step. */
static long most_threads(const char *plan) {
    long most = 1;
    for (const char *at = plan; (at = strstr(at, "threads ")) != NULL;) {
        const long threads = strtol(at += strlen("threads "), NULL, 10);
        if (threads > most) most = threads;
    }
    return most;
}

/* A layer that half of `many` threads are enough for: how small that is, is the kernels' affair. */
static void make_for_half(eg_context *context, int many, fixture *f) {
    char text[2048];
    for (int64_t size = 192;; size -= 16) {
        assert_true(size > 0);
        fixture_make(f, (eg_layer){.m = size, .k = size, .n = size, .batch = 1, .math = EG_MATH_STRICT});
        assert_ok(eg_backward_plan(context, &f->layer, &f->backward, text, sizeof text));
        if (most_threads(text) <= many / 2) break;
        fixture_free(f);
    }
    assert_true(most_threads(text) > 1);
}

/* The threads that the second layer does not need are kept for the next that is large. */
static void a_small_layer_ends_no_thread(void **state) {
    (void)state;
    enum { MANY = 16 };
    eg_context *context = open_cpu(MANY);
    fixture large, small;
    fixture_make(&large, (eg_layer){.m = 1024, .k = 512, .n = 512, .batch = 1, .math = EG_MATH_STRICT});
    make_for_half(context, MANY, &small);
    assert_ok(eg_backward(context, &large.layer, &large.backward));
    const int before = threads_alive();
    assert_ok(eg_backward(context, &small.layer, &small.backward));
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* the time to end */
    const int after = threads_alive();
    fixture_free(&large);
    fixture_free(&small);
    eg_close(context);
    if (before < MANY) skip(); /* the system gives no more, or does not say */
    assert_int_equal(after, before);
}

/* A layer that is worth hundreds of threads. How deep that is, is the kernels' affair. */
static void make_for_hundreds(eg_context *crowd, fixture *f) {
    for (int64_t k = 1000;; k += 1000) {
        char text[2048];
        fixture_make(f, (eg_layer){.m = 3000, .k = k, .n = 700, .batch = 1});
        assert_ok(eg_forward_plan(crowd, &f->layer, &f->forward, text, sizeof text));
        if (most_threads(text) > 300) return;
        assert_true(k < 8000);
        fixture_free(f);
    }
}

/* More threads than a call will ever take. */
static void same_bits_for_hundreds_of_threads(void **state) {
    (void)state;
    fixture f;
    eg_context *alone = open_cpu(1), *crowd = open_cpu(1000);
    make_for_hundreds(crowd, &f);
    assert_ok(eg_forward(alone, &f.layer, &f.forward));
    unsigned char *expected = need_memory(f.output_bytes);
    memcpy(expected, f.outputs, f.output_bytes);
    fixture_poison(&f);
    assert_ok(eg_forward(crowd, &f.layer, &f.forward));
    const size_t bytes = 2 * (size_t)(f.layer.m * f.layer.n) * sizeof(float); /* y, and pre after it */
    assert_memory_equal(f.outputs, expected, bytes);
    free(expected);
    eg_close(alone);
    eg_close(crowd);
    fixture_free(&f);
}

/* On one context, with other calls in between that leave their numbers in its workspace. */
static void same_bits_run_after_run(void **state) {
    (void)state;
    eg_context *context = open_cpu(0);
    fixture f, other;
    make(&samples[1], &f);
    make(&samples[0], &other);
    unsigned char *expected = outputs(&f, 1, EG_SOURCE_RECOMPUTE);
    for (int run = 0; run < 5; run++) {
        fixture_poison(&f);
        assert_ok(eg_backward(context, &other.layer, &other.backward));
        assert_ok(eg_forward(context, &f.layer, &f.forward));
        assert_ok(eg_backward(context, &f.layer, &f.backward));
        assert_memory_equal(f.outputs, expected, f.output_bytes);
    }
    free(expected);
    fixture_free(&f);
    fixture_free(&other);
    eg_close(context);
}

/* What is wanted beside an output does not change its bits. */
static void same_bits_for_any_subset(void **state) {
    (void)state;
    eg_context *context = open_cpu(0);
    fixture f;
    make(&samples[0], &f);
    const size_t m = (size_t)f.layer.m, k = (size_t)f.layer.k, n = (size_t)f.layer.n;
    assert_ok(eg_backward(context, &f.layer, &f.backward));
    unsigned char *expected = malloc(f.bytes);
    assert_non_null(expected);
    memcpy(expected, f.memory, f.bytes);
    const eg_backward_args all = f.backward;
    for (unsigned wanted = 1; wanted < 16; wanted += short_run() ? 3 : 1) {
        fixture_poison(&f);
        f.backward = all;
        if ((wanted & 1) == 0) f.backward.d_a.data = NULL;
        if ((wanted & 2) == 0) f.backward.d_b.data = NULL;
        if ((wanted & 4) == 0) f.backward.d_bias.data = NULL;
        if ((wanted & 8) == 0) f.backward.grad_pre.data = NULL;
        assert_ok(eg_backward(context, &f.layer, &f.backward));
        for (size_t i = 0; i < f.bytes; i++) {
            if (f.memory[i] != expected[i]) assert_int_equal(f.memory[i], 0xff); /* not wanted, not written */
        }
        const unsigned char *d_a = all.d_a.data, *d_b = all.d_b.data, *d_bias = all.d_bias.data;
        const unsigned char *grad_pre = all.grad_pre.data;
        if ((wanted & 1) != 0) assert_memory_equal(d_a, expected + (d_a - f.memory), m * k * 4);
        if ((wanted & 2) != 0) assert_memory_equal(d_b, expected + (d_b - f.memory), k * n * 4);
        if ((wanted & 4) != 0) assert_memory_equal(d_bias, expected + (d_bias - f.memory), n * 4);
        if ((wanted & 8) != 0) assert_memory_equal(grad_pre, expected + (grad_pre - f.memory), m * n * 4);
    }
    free(expected);
    fixture_free(&f);
    eg_close(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_layer_ends_no_thread), /* first: others leave threads that end by and by */
        cmocka_unit_test(same_bits_for_any_threads),
        cmocka_unit_test(same_bits_for_any_threads_in_chunks),
        cmocka_unit_test(same_bits_for_hundreds_of_threads),
        cmocka_unit_test(same_bits_run_after_run),
        cmocka_unit_test(same_bits_for_any_subset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
