/* SPDX-License-Identifier: Apache-2.0 */
/* Different contexts are independent and may run at once; eg_last_error is per thread. Most telling under
 * the thread sanitizer. cmocka's assertions are for the main thread: workers count what went wrong. */
#include <pthread.h>

#include "check.h"
#include "fixture.h"

enum { WORKERS = 4 };

typedef struct worker {
    int index, failures;
    char message[sizeof((check_report *)0)->message];
} worker;

static void run_workers(void *(*body)(void *)) {
    pthread_t threads[WORKERS];
    worker workers[WORKERS] = {0};
    for (int i = 0; i < WORKERS; i++) {
        workers[i].index = i;
        assert_int_equal(pthread_create(&threads[i], NULL, body, &workers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < WORKERS; i++) {
        if (workers[i].failures > 0)
            fail_msg("worker %d failed %d times: %s", i, workers[i].failures, workers[i].message);
    }
}

static eg_context *open_quietly(int threads) {
    eg_context *context = NULL;
    eg_open(&(eg_open_info){.size = sizeof(eg_open_info), .threads = threads}, &context);
    return context;
}

/* Every worker runs its share of the table, on contexts that it opens and closes. */
static void *check_cases(void *arg) {
    worker *w = arg;
    for (int round = 0; round < 3; round++) {
        eg_context *context = open_quietly(1 + w->index % 3);
        if (context == NULL) w->failures++;
        for (int i = w->index; context != NULL && i < 60; i += WORKERS) {
            check_case c;
            check_report report;
            check_make(i % 4 == 3 ? EG_F64 : EG_F32, i + 60 * round, &c);
            if (check_run(context, &c, &report) == CHECK_PASSED) continue;
            w->failures++;
            memcpy(w->message, report.message, sizeof w->message);
        }
        eg_close(context);
    }
    return NULL;
}

static void contexts_run_at_once(void **state) {
    (void)state;
    run_workers(check_cases);
}

/* Workers that read the same inputs, and fail with errors of their own. */
static fixture shared_inputs;

static void *read_together(void *arg) {
    worker *w = arg;
    eg_context *context = open_quietly(2);
    fixture own;
    fixture_make(&own, shared_inputs.layer); /* aborts the process if memory runs out */
    for (int run = 0; context != NULL && run < 20; run++) {
        eg_layer bad = own.layer;
        bad.m = -1 - w->index;
        char expected[32];
        snprintf(expected, sizeof expected, "layer.m is %d;", -1 - w->index);
        const bool refused = eg_backward(context, &bad, &own.backward) == EG_ERR_ARGUMENT;
        eg_backward_args args = shared_inputs.backward;
        args.d_a = own.backward.d_a;
        args.d_b = own.backward.d_b;
        args.d_bias = own.backward.d_bias;
        args.grad_pre = own.backward.grad_pre;
        if (!refused || strstr(eg_last_error(), expected) == NULL) w->failures++;
        if (eg_backward(context, &own.layer, &args) != EG_OK) w->failures++;
        snprintf(w->message, sizeof w->message, "%s", eg_last_error());
    }
    if (context == NULL) w->failures++;
    eg_close(context);
    fixture_free(&own);
    return NULL;
}

static void inputs_are_shared_and_errors_are_not(void **state) {
    (void)state;
    fixture_make(&shared_inputs,
                 (eg_layer){.m = 150, .k = 140, .n = 130, .batch = 1, .activation = EG_ACT_GELU});
    run_workers(read_together);
    fixture_free(&shared_inputs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contexts_run_at_once),
        cmocka_unit_test(inputs_are_shared_and_errors_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
