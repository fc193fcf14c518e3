/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels chosen by trials. Over a driver and a library that run nothing, and say that one kernel is quick.
 */
#define _DEFAULT_SOURCE
#include "host.h"
#include "refused.h"

static void open_measured(session *s) {
    assert_int_equal(setenv("EPIGRAD_TUNING", "measured", 1), 0);
    open_session(s);
    assert_int_equal(unsetenv("EPIGRAD_TUNING"), 0);
    driver->quick[0] = '\0';
    driver->quick_algorithm = driver->algorithms = 0;
    s->forward.workspace = s->backward.workspace = (eg_workspace){0};
}

static void pretend(const char *kernel) { snprintf(driver->quick, sizeof driver->quick, "%s", kernel); }

/* What a call takes that is made anew: none of a kind seen before. */
static void forget(session *s) { s->layer.m--; }

/* Memory for a workspace of just what the session's context asks for. */
static eg_workspace workspace_of(session *s, size_t bytes) {
    eg_workspace workspace = {.bytes = bytes};
    assert_ok(eg_alloc(s->context, bytes, &workspace.data));
    return workspace;
}

/* The next row for the type of the session's layer; false: there are no more. */
static bool next_row(session *s, int *index, eg_kernel_info *row) {
    row->size = sizeof *row;
    while (eg_get_kernel_info(s->context, (*index)++, row) == EG_OK) {
        if (strstr(row->name, "bf16") != NULL) return true;
    }
    return false;
}

/* ---- What is chosen ------------------------------------------------------------------------------- */

static void test_the_quick_one_is_taken(void **state) {
    (void)state;
    int taken = 0, index = 0;
    session s;
    eg_kernel_info row;
    open_measured(&s);
    while (next_row(&s, &index, &row)) {
        forget(&s);
        pretend(row.name);
        is_forward_by(&s, row.name); /* what the estimates choose, until the call has been made */
        assert_ok(eg_forward(s.context, &s.layer, &s.forward));
        taken += is_forward_by(&s, row.name);
        driver->launches = 0;
        assert_ok(eg_forward(s.context, &s.layer, &s.forward));
        assert_true(driver->launches > 0); /* recorded: what the plan says is what runs */
        if (is_forward_by(&s, row.name)) assert_string_equal(driver->launch[driver->launches - 1], row.name);
    }
    assert_in_range(taken, 4, 40);
    close_session(&s);
}

static void test_each_operation_has_its_own(void **state) {
    (void)state;
    int taken = 0, index = 0;
    session s;
    eg_kernel_info row;
    open_measured(&s);
    while (next_row(&s, &index, &row)) {
        forget(&s);
        pretend(row.name);
        assert_ok(eg_backward(s.context, &s.layer, &s.backward));
        taken += is_backward_by(&s, row.name);
    }
    assert_in_range(taken, 8, 60);
    close_session(&s);
}

static void test_estimates_try_nothing(void **state) {
    (void)state;
    session s;
    open_session(&s);
    pretend("cublaslt_bf16");
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_ok(eg_sync(s.context));
    assert_int_equal(driver->recordings, 0);
    close_session(&s);
}

static void algorithm_is_found(int quick) {
    enum { ALGORITHMS = 5 };
    session s;
    open_measured(&s);
    driver->algorithms = ALGORITHMS;
    driver->quick_algorithm = quick;
    pretend("cublaslt_bf16");
    s.layer.activation = EG_ACT_NONE;
    s.layer.m = 1000, s.layer.k = 512;
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_forward_by(&s, "cublaslt_bf16");
    driver->library_algorithm = 0;
    forget(&s);
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_int_equal(driver->library_algorithm, quick);
    close_session(&s);
}

/* Also of those that the library names where it may use little memory. */
static void test_algorithms_of_the_library(void **state) {
    (void)state;
    algorithm_is_found(3);
    algorithm_is_found(FAKE_LITTLE_MEMORY + 5);
}

/* A library that refuses every product is no candidate. */
static void test_the_library_refuses(void **state) {
    (void)state;
    session s;
    open_measured(&s);
    driver->library_refuses = 1;
    pretend("cublaslt_bf16");
    assert_ok(eg_backward(s.context, &s.layer, &s.backward));
    assert_ok(eg_backward(s.context, &s.layer, &s.backward));
    driver->library_refuses = 0;
    close_session(&s);
}

/* ---- What trials leave ---------------------------------------------------------------------------- */

static void test_a_call_is_tried_once(void **state) {
    (void)state;
    enum { LAYERS = 100, LEAST = 3 }; /* more than the programs that are kept */
    session s;
    open_measured(&s);
    for (int turn = 0; turn < 2; turn++) {
        s.layer.m = ROWS;
        for (int i = 0; i < LAYERS; i++) {
            const int before = driver->recordings, waited = driver->synchronisations;
            forget(&s);
            assert_ok(eg_forward(s.context, &s.layer, &s.forward));
            if (turn == 0) assert_true(driver->recordings - before >= LEAST);
            if (turn == 0) continue;
            assert_true(driver->recordings - before <= 1); /* the graph of a call made again */
            assert_int_equal(driver->synchronisations, waited);
        }
    }
    close_session(&s);
}

static void test_memory_is_given_back(void **state) {
    (void)state;
    session s;
    open_measured(&s);
    size_t bytes;
    assert_ok(eg_backward_workspace(s.context, &s.layer, &s.backward, &bytes));
    s.backward.workspace = workspace_of(&s, bytes);
    const int pieces = driver->pieces, events = driver->events, streams = driver->streams;
    assert_ok(eg_backward(s.context, &s.layer, &s.backward));
    assert_true(driver->recordings > 0);
    assert_int_equal(driver->pieces, pieces);
    assert_int_equal(driver->events, events);
    assert_int_equal(driver->streams, streams);
    assert_int_equal(driver->graphs, 0);
    assert_int_equal(driver->captures, 0);
    eg_free(s.context, s.backward.workspace.data);
    close_session(&s);
}

/* A trial writes to memory of its own, and reads there what the call has in an output's place. */
static void test_nothing_is_written(void **state) {
    (void)state;
    session s;
    open_measured(&s);
    for (int in_place = 0; in_place < 2; in_place++) {
        forget(&s);
        s.backward.grad_pre = in_place ? s.backward.grad : (eg_matrix){.data = s.memory[8]};
        driver->watched = (uint64_t)(uintptr_t)s.backward.grad_pre.data;
        driver->watched_captured = 0;
        assert_ok(eg_backward(s.context, &s.layer, &s.backward));
        assert_true(driver->recordings > 0);
        assert_int_equal(driver->watched_captured, 0);
        forget(&s);
        driver->watched = (uint64_t)(uintptr_t)s.backward.pre.data; /* an input, which is read where it is */
        assert_ok(eg_backward(s.context, &s.layer, &s.backward));
        assert_true(driver->watched_captured > 0);
    }
    close_session(&s);
}

/* Whoever has asked for the workspace before has room for what is chosen after. */
static void test_room_for_every_candidate(void **state) {
    (void)state;
    int index = 0;
    session s;
    eg_kernel_info row;
    eg_context *estimated = NULL;
    open_measured(&s);
    assert_ok(eg_open(&(eg_open_info){.size = sizeof(eg_open_info), .backend = EG_BACKEND_CUDA}, &estimated));
    while (next_row(&s, &index, &row)) {
        size_t bytes, after, least;
        forget(&s);
        pretend(row.name);
        assert_ok(eg_backward_workspace(estimated, &s.layer, &s.backward, &least));
        assert_ok(eg_backward_workspace(s.context, &s.layer, &s.backward, &bytes));
        assert_true(bytes >= least);
        s.backward.workspace = workspace_of(&s, bytes);
        assert_ok(eg_backward(s.context, &s.layer, &s.backward));
        assert_ok(eg_backward_workspace(s.context, &s.layer, &s.backward, &after));
        assert_int_equal(after, bytes);
        eg_free(s.context, s.backward.workspace.data);
    }
    eg_close(estimated);
    close_session(&s);
}

/* ---- Where nothing can be tried -------------------------------------------------------------------- */

static void test_no_memory(void **state) {
    (void)state;
    session s;
    open_measured(&s);
    size_t bytes;
    assert_ok(eg_forward_workspace(s.context, &s.layer, &s.forward, &bytes));
    s.forward.workspace = workspace_of(&s, bytes);
    char before[256];
    snprintf(before, sizeof before, "%s", eg_last_error());
    driver->memory_result = 2; /* CUDA_ERROR_OUT_OF_MEMORY */
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    driver->memory_result = 0;
    eg_free(s.context, s.forward.workspace.data);
    assert_string_equal(eg_last_error(), before); /* of this call nothing failed */
    assert_int_equal(driver->recordings, 0);
    close_session(&s);
}

/* As where what lies between the elements of an operand is no memory. */
static void test_no_copies(void **state) {
    (void)state;
    session s;
    open_measured(&s);
    char before[256];
    snprintf(before, sizeof before, "%s", eg_last_error());
    driver->copy_result = 1; /* CUDA_ERROR_INVALID_VALUE */
    s.layer.m = 64;
    pretend("cublaslt_bf16");
    s.layer.activation = EG_ACT_NONE;
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_true(driver->recordings > 0);
    assert_string_equal(eg_last_error(), before);
    driver->copy_result = 0;
    close_session(&s);
}

/* As where there is no memory for them. */
static void test_no_graphs(void **state) {
    (void)state;
    session s;
    open_measured(&s);
    driver->record_result = 2; /* CUDA_ERROR_OUT_OF_MEMORY */
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    driver->record_result = 0;
    close_session(&s);
}

static void test_a_captured_stream(void **state) {
    (void)state;
    session s;
    open_measured(&s);
    driver->caller_captures = true;
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_int_equal(driver->recordings, 0);
    driver->caller_captures = false;
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_true(driver->recordings > 0);
    close_session(&s);
}

static void test_a_name_leaves_no_choice(void **state) {
    (void)state;
    const eg_open_info info = {.size = sizeof info,
                               .backend = EG_BACKEND_CUDA,
                               .kernel = "cublaslt_bf16",
                               .tuning = EG_TUNING_MEASURED};
    session s;
    open_measured(&s);
    eg_context *named = NULL;
    assert_ok(eg_open(&info, &named));
    driver->algorithms = 5;
    assert_ok(eg_forward(named, &s.layer, &s.forward));
    assert_int_equal(driver->recordings, 0);
    eg_close(named);
    close_session(&s);
}

/* ---- Opening --------------------------------------------------------------------------------------- */

static void test_who_asks_for_it(void **state) {
    (void)state;
    eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .tuning = EG_TUNING_MEASURED};
    session s;
    eg_context *context = NULL;
    open_measured(&s);
    assert_ok(eg_open(&info, &context));
    assert_ok(eg_forward(context, &s.layer, &s.forward));
    assert_true(driver->recordings > 0);
    eg_close(context);
    info.tuning = (eg_tuning)(EG_TUNING_MEASURED + 1);
    assert_refused(eg_open(&info, &context), "info.tuning", "2", "EG_TUNING_MEASURED");
    info.tuning = EG_TUNING_ESTIMATED;
    assert_int_equal(setenv("EPIGRAD_TUNING", "quickest", 1), 0);
    assert_refused(eg_open(&info, &context), "EPIGRAD_TUNING", "quickest", "measured or estimated");
    assert_int_equal(unsetenv("EPIGRAD_TUNING"), 0);
    info = (eg_open_info){.size = offsetof(eg_open_info, tuning), .backend = EG_BACKEND_CUDA};
    info.tuning = (eg_tuning)7; /* past what an older header has */
    assert_ok(eg_open(&info, &context));
    eg_close(context);
    info = (eg_open_info){.size = sizeof info, .tuning = EG_TUNING_MEASURED};
    assert_ok(eg_open(&info, &context)); /* the CPU, which has nothing to try */
    eg_close(context);
    close_session(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_graphs),
        cmocka_unit_test(test_no_copies),
        cmocka_unit_test(test_the_quick_one_is_taken),
        cmocka_unit_test(test_each_operation_has_its_own),
        cmocka_unit_test(test_estimates_try_nothing),
        cmocka_unit_test(test_algorithms_of_the_library),
        cmocka_unit_test(test_the_library_refuses),
        cmocka_unit_test(test_a_call_is_tried_once),
        cmocka_unit_test(test_memory_is_given_back),
        cmocka_unit_test(test_room_for_every_candidate),
        cmocka_unit_test(test_nothing_is_written),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_a_captured_stream),
        cmocka_unit_test(test_a_name_leaves_no_choice),
        cmocka_unit_test(test_who_asks_for_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
