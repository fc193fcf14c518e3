/* SPDX-License-Identifier: Apache-2.0 */
/* A thread pool that the caller brings: in any order, on fewer threads, on its own; the same bits. */
#include <pthread.h>
#include <time.h>

#include "child.h"
#include "fixture.h"

typedef struct brought {
    int calls, most; /* of the thread pool; tasks of the largest */
} brought;

static void count(brought *pool, int tasks) {
    pool->calls++;
    if (tasks > pool->most) pool->most = tasks;
}

static void serial(void *user, int tasks, eg_task task, void *arg) {
    count(user, tasks);
    for (int i = 0; i < tasks; i++) task(arg, i);
}

static void reversed(void *user, int tasks, eg_task task, void *arg) {
    count(user, tasks);
    for (int i = tasks - 1; i >= 0; i--) task(arg, i);
}

static void last_alone(void *user, int tasks, eg_task task, void *arg) {
    count(user, tasks);
    task(arg, tasks - 1);
}

static void none(void *user, int tasks, eg_task task, void *arg) {
    (void)task;
    (void)arg;
    count(user, tasks);
}

typedef struct piece {
    eg_task task;
    void *arg;
    int index;
} piece;

static void *run_piece(void *arg) {
    const piece *p = arg;
    p->task(p->arg, p->index);
    return NULL;
}

/* A thread for each task, and none on the calling one. */
static void on_threads(void *user, int tasks, eg_task task, void *arg) {
    enum { MOST = 16 };
    pthread_t threads[MOST];
    piece pieces[MOST];
    count(user, tasks);
    for (int first = 0; first < tasks; first += MOST) {
        const int several = tasks - first < MOST ? tasks - first : MOST;
        for (int i = 0; i < several; i++) {
            pieces[i] = (piece){task, arg, first + i};
            if (pthread_create(&threads[i], NULL, run_piece, &pieces[i]) != 0) abort();
        }
        for (int i = 0; i < several; i++) pthread_join(threads[i], NULL);
    }
}

static const eg_parallel_for pools[] = {serial, reversed, last_alone, none, on_threads};

static eg_context *open_with(eg_parallel_for parallel_for, brought *pool, int threads) {
    eg_context *context = NULL;
    eg_open(&(eg_open_info){.size = sizeof(eg_open_info),
                            .threads = threads,
                            .parallel_for = parallel_for,
                            .parallel_user = pool},
            &context);
    return context;
}

static bool same(eg_context *context, fixture *f, const unsigned char *expected) {
    fixture_poison(f);
    return eg_forward(context, &f->layer, &f->forward) == EG_OK &&
           eg_backward(context, &f->layer, &f->backward) == EG_OK &&
           memcmp(f->outputs, expected, f->output_bytes) == 0;
}

static unsigned char *by_one_thread(fixture *f) {
    eg_context *context = open_cpu(1);
    unsigned char *expected = need_memory(f->output_bytes);
    assert_ok(eg_forward(context, &f->layer, &f->forward));
    assert_ok(eg_backward(context, &f->layer, &f->backward));
    memcpy(expected, f->outputs, f->output_bytes);
    eg_close(context);
    return expected;
}

/* f16, of which AMX has a kernel of its own, and a batch. */
static const eg_layer layers[] = {
    {.m = 301, .k = 257, .n = 293, .batch = 1, .activation = EG_ACT_GELU},
    {.m = 180, .k = 190, .n = 210, .batch = 3, .activation = EG_ACT_TANH, .dtype = EG_F64},
    {.m = 200, .k = 300, .n = 260, .batch = 2, .activation = EG_ACT_SOFTPLUS, .dtype = EG_F16},
};

static void same_bits_from_any_pool(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(layers); i++) {
        fixture f;
        fixture_make(&f, layers[i]);
        unsigned char *expected = by_one_thread(&f);
        for (size_t j = 0; j < LENGTH(pools); j++) {
            for (int threads = 2; threads <= 32; threads *= 4) {
                brought pool = {0};
                const int before = threads_alive();
                eg_context *context = open_with(pools[j], &pool, threads);
                assert_non_null(context);
                if (!same(context, &f, expected))
                    fail_msg("layer %zu, pool %zu, %d threads: other bits", i, j, threads);
                assert_true(pool.calls > 0);
                assert_in_range(pool.most, 2, threads);
                assert_true(threads_become(before)); /* and none but the caller's */
                eg_close(context);
            }
        }
        free(expected);
        fixture_free(&f);
    }
}

/* As many as the header says. */
static void thousands_of_tasks(void **state) {
    (void)state;
    fixture f;
    fixture_make(&f, (eg_layer){.m = 128, .k = 128, .n = 128, .batch = 2000});
    unsigned char *expected = by_one_thread(&f);
    brought pool = {0};
    eg_context *context = open_with(serial, &pool, 4096);
    assert_true(same(context, &f, expected));
    assert_in_range(pool.most, 257, 4096);
    eg_close(context);
    free(expected);
    fixture_free(&f);
}

static void one_thread_needs_no_pool(void **state) {
    (void)state;
    fixture f;
    fixture_make(&f, layers[0]);
    unsigned char *expected = by_one_thread(&f);
    brought pool = {0};
    eg_context *context = open_with(none, &pool, 1);
    assert_true(same(context, &f, expected));
    assert_int_equal(pool.calls, 0);
    eg_close(context);
    free(expected);
    fixture_free(&f);
}

/* The call is itself a task of the thread pool: several contexts at once, by threads that it made. */
typedef struct inner {
    const fixture *f;
    const unsigned char *expected;
    int failures;
} inner;

static void call_inside(void *arg, int index) {
    inner *x = &((inner *)arg)[index];
    brought pool = {0};
    fixture own;
    fixture_make(&own, x->f->layer);
    eg_context *context = open_with(on_threads, &pool, 3);
    if (context == NULL || !same(context, &own, x->expected) || pool.calls == 0) x->failures++;
    eg_close(context);
    fixture_free(&own);
}

static void calls_may_be_tasks(void **state) {
    (void)state;
    enum { CALLS = 4 };
    fixture f;
    fixture_make(&f, layers[0]);
    unsigned char *expected = by_one_thread(&f);
    inner calls[CALLS];
    brought pool = {0};
    for (int i = 0; i < CALLS; i++) calls[i] = (inner){&f, expected, 0};
    on_threads(&pool, CALLS, call_inside, calls);
    for (int i = 0; i < CALLS; i++) assert_int_equal(calls[i].failures, 0);
    free(expected);
    fixture_free(&f);
}

static void check_peak(eg_parallel_for parallel_for, int threads) {
    brought pool = {0};
    double gflops = 0;
    struct timespec before, after;
    eg_context *context = open_with(parallel_for, parallel_for != NULL ? &pool : NULL, threads);
    assert_non_null(context);
    timespec_get(&before, TIME_UTC);
    assert_ok(eg_measure_peak(context, EG_F32, &gflops));
    timespec_get(&after, TIME_UTC);
    const double seconds =
        (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    if (!(seconds < 1)) fail_msg("the peak of %d threads took %g s; expected some 0.03", threads, seconds);
    assert_true(gflops > 0);
    eg_close(context);
}

static void a_peak_takes_milliseconds(void **state) {
    (void)state;
    check_peak(NULL, 1);
    check_peak(NULL, 512);
    check_peak(NULL, 4096);
    check_peak(serial, 512);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_from_any_pool),   cmocka_unit_test(thousands_of_tasks),
        cmocka_unit_test(one_thread_needs_no_pool),  cmocka_unit_test(calls_may_be_tasks),
        cmocka_unit_test(a_peak_takes_milliseconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
