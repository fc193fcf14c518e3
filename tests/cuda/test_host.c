/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of CUDA over a driver that runs nothing: what a call asks of the driver, which calls are
 * recorded and replayed, and what is said when something fails. What is chosen for a layer is for
 * test_choice.c, results for test_device.c. */
#define _DEFAULT_SOURCE
#include "core/backend.h"
#include "cuda/device.h"
#include "host.h"

static void backward(session *s, int times) {
    for (int i = 0; i < times; i++) assert_ok(eg_backward(s->context, &s->layer, &s->backward));
}

/* A call that differs from the others by its addresses. */
static void backward_at(session *s, int place) {
    eg_backward_args args = s->backward;
    args.grad.offset = (size_t)place * 2;
    assert_ok(eg_backward(s->context, &s->layer, &args));
}

/* The same, and its operands are aligned like those of the others: the program is theirs. */
static void backward_from(session *s, int place) {
    eg_backward_args args = s->backward;
    args.grad.offset = (size_t)place * 256;
    assert_ok(eg_backward(s->context, &s->layer, &args));
}

/* ---- Recorded calls ----------------------------------------------------------------------------- */

static void a_call_made_before_is_one_launch(void **state) {
    (void)state;
    session s;
    open_session(&s);
    backward(&s, 1);
    assert_int_equal(driver->kernels, KERNELS + 1);
    assert_int_equal(driver->replays, 0);
    backward(&s, 9);
    assert_int_equal(driver->kernels, KERNELS + 1);
    assert_int_equal(driver->replays, 9);
    assert_int_equal(driver->recordings, 1);
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    const int kernels = driver->kernels;
    assert_true(kernels > KERNELS + 1);
    for (int i = 0; i < 2; i++) assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_int_equal(driver->kernels, kernels);
    assert_int_equal(driver->recordings, 2);
    close_session(&s);
}

/* Anything about a call that is new makes it another call: nothing stale is ever replayed. */
static void what_is_new_is_not_replayed(void **state) {
    (void)state;
    session s;
    open_session(&s);
    backward(&s, 3);
    s.backward.workspace.offset += 64;
    s.backward.workspace.bytes -= 64;
    const int recordings = driver->recordings;
    backward(&s, 1); /* the program's graph for any addresses is made with these */
    assert_int_equal(driver->recordings, recordings + 1);
    const int replays = driver->replays, changed = driver->changed;
    s.backward.d_a.data = s.memory[8];
    backward(&s, 1);
    assert_int_equal(driver->changed, changed + 1);
    s.backward.accumulate = 1;
    backward(&s, 1);
    s.backward.pre.ld = 65;
    backward(&s, 1);
    s.layer.nonfinite = EG_NONFINITE_PROPAGATE;
    backward(&s, 1);
    s.layer.activation = EG_ACT_SILU;
    backward(&s, 1);
    s.layer.m = 63;
    backward(&s, 1);
    s.layer.scale = 0.5;
    backward(&s, 1);
    s.layer.scale = 0.25;
    backward(&s, 1);
    assert_int_equal(driver->replays, replays);
    close_session(&s);
}

static bool is_given(uint64_t address) {
    for (size_t i = 0; i < LENGTH(driver->parameter); i++) {
        if (driver->parameter[i] == address) return true;
    }
    return false;
}

/* A program's graph for calls with any addresses. */
static void a_call_with_other_addresses_changes_a_graph(void **state) {
    (void)state;
    session s;
    open_session(&s);
    const int changed = driver->changed;
    for (int place = 1; place <= 2; place++) backward_from(&s, place);
    assert_int_equal(driver->kernels, KERNELS + 1);
    assert_int_equal(driver->recordings, 1);
    assert_int_equal(driver->replays, 1);
    for (int place = 3; place <= 9; place++) {
        memset(driver->parameter, 0, sizeof driver->parameter);
        backward_from(&s, place);
        assert_true(is_given((uint64_t)(uintptr_t)s.memory[3] + (uint64_t)place * 256));
        assert_int_equal(driver->changed, changed + place - 2);
    }
    assert_int_equal(driver->recordings, 1);
    /* One that is made again has a graph of its own, which the next change leaves as it is. */
    backward_from(&s, 9);
    assert_int_equal(driver->recordings, 2);
    backward_from(&s, 10);
    const int replays = driver->replays;
    backward_from(&s, 9);
    assert_int_equal(driver->replays, replays + 1);
    assert_int_equal(driver->changed, changed + 8);
    close_session(&s);
    assert_int_equal(driver->captures, 0);
}

static void a_graph_that_cannot_be_changed_is_given_up(void **state) {
    (void)state;
    session s;
    open_session(&s);
    const int changed = driver->changed;
    for (int place = 1; place <= 2; place++) backward_from(&s, place);
    driver->change_result = 1;
    const int kernels = driver->kernels;
    for (int place = 3; place <= 4; place++) backward_from(&s, place);
    driver->change_result = 0;
    backward_from(&s, 5);
    assert_int_equal(driver->kernels, kernels + 3 * (KERNELS + 1));
    assert_int_equal(driver->changed, changed);
    assert_int_equal(driver->graphs, 0);
    close_session(&s);
}

/* Two packs at one address, one after the other, are not one pack. */
static void packs_are_known_by_what_they_hold(void **state) {
    (void)state;
    session s;
    open_session(&s);
    eg_packed *first = NULL, *second = NULL;
    const eg_matrix b = {.data = s.memory[1]};
    assert_ok(eg_pack_b(s.context, &s.layer, &b, &first));
    assert_ok(eg_pack_b(s.context, &s.layer, &b, &second));
    s.backward.packed_b = first;
    backward(&s, 3);
    const int recordings = driver->recordings;
    s.backward.packed_b = second;
    backward(&s, 1);
    assert_int_equal(driver->recordings, recordings + 1);
    eg_packed_free(s.context, first);
    eg_packed_free(s.context, second);
    close_session(&s);
}

static void a_captured_stream_gets_the_kernels(void **state) {
    (void)state;
    session s;
    open_session(&s);
    backward(&s, 3);
    const int replays = driver->replays, kernels = driver->kernels;
    driver->caller_captures = true;
    backward(&s, 2);
    driver->caller_captures = false;
    assert_int_equal(driver->replays, replays);
    assert_int_equal(driver->kernels, kernels + 2 * (KERNELS + 1));
    close_session(&s);
}

/* More calls in turn than there is room for: those that are kept stay, and no other is recorded in vain. */
static void recordings_are_bounded(void **state) {
    (void)state;
    enum { CALLS = 500, ROUNDS = 6 };
    session s;
    open_session(&s);
    for (int i = 0; i < CALLS * ROUNDS; i++) backward_at(&s, i % CALLS);
    assert_in_range(driver->graphs, 100, 128 + 32);
    assert_int_equal(driver->recordings, driver->graphs);
    assert_true(driver->replays >= (ROUNDS - 2) * 100);
    /* Once the old ones have rested for long, new ones take their places. */
    for (int i = 0; i < 5000; i++) backward_at(&s, 100000 + i);
    const int before = driver->recordings;
    for (int i = 0; i < 3 * 20; i++) backward_at(&s, 200000 + i % 20);
    assert_true(driver->recordings >= before + 15);
    assert_in_range(driver->graphs, 100, 128 + 32);
    close_session(&s);
}

/* What cannot be recorded goes kernel by kernel, and is not tried again and again. */
static void what_cannot_be_recorded_is_launched(void **state) {
    (void)state;
    session s;
    open_session(&s);
    driver->record_result = 2; /* out of memory */
    backward(&s, 10);
    driver->record_result = 0;
    assert_int_equal(driver->recordings, 1);
    assert_int_equal(driver->replays, 0);
    assert_int_equal(driver->kernels, 10 * (KERNELS + 1));
    close_session(&s);
}

static void recording_can_be_switched_off(void **state) {
    (void)state;
    session s;
    setenv("EPIGRAD_CUDA_GRAPHS", "off", 1);
    open_session(&s);
    unsetenv("EPIGRAD_CUDA_GRAPHS");
    backward(&s, 5);
    assert_int_equal(driver->recordings, 0);
    assert_int_equal(driver->kernels, 5 * (KERNELS + 1));
    close_session(&s);
}

/* A call that is made again and again stays, whatever else comes and goes. */
static void a_call_in_use_is_not_displaced(void **state) {
    (void)state;
    session s;
    open_session(&s);
    backward(&s, 2);
    for (int i = 0; i < 12000; i++) {
        backward_at(&s, 1 + i / 2); /* twice each: seen, and recorded where there is room */
        const int replays = driver->replays;
        backward(&s, 1);
        assert_int_equal(driver->replays, replays + 1);
    }
    close_session(&s);
}

/* Its own, not those of the call that went kernel by kernel before it. */
static void a_replayed_call_is_known_by_its_kernels(void **state) {
    (void)state;
    session s;
    open_session(&s);
    backward(&s, 3);
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    backward(&s, 1);
    driver->sync_result = 700; /* an illegal address */
    assert_status(eg_sync(s.context), EG_ERR_DEVICE);
    assert_non_null(strstr(eg_last_error(), "act_grad_bf16, "));
    driver->sync_result = 0;
    close_session(&s);
}

static void nothing_is_left_behind(void **state) {
    (void)state;
    session s;
    open_session(&s);
    close_session(&s);
    const int pieces = driver->pieces, captures = driver->captures;
    open_session(&s);
    eg_packed *packed = NULL;
    assert_ok(eg_pack_b(s.context, &s.layer, &(eg_matrix){.data = s.memory[1]}, &packed));
    s.backward.workspace = (eg_workspace){.data = NULL}; /* the context's own */
    backward(&s, 5);
    eg_packed_free(s.context, packed);
    close_session(&s);
    assert_int_equal(driver->pieces, pieces);
    assert_int_equal(driver->captures, captures);
}

/* ---- Beside the products ------------------------------------------------------------------------ */

/* The sum of d_bias begins after the pass that makes its summands, is enqueued behind the product that it
 * runs beside, and the call ends after it; where nothing comes between them, they stand in one line. */
static void a_sum_beside_the_products_is_waited_for(void **state) {
    (void)state;
    session s;
    setenv("EPIGRAD_CUDA_GRAPHS", "off", 1);
    open_session(&s);
    unsetenv("EPIGRAD_CUDA_GRAPHS");
    driver->waits = driver->launches = driver->recorded = 0;
    backward(&s, 3);
    assert_int_equal(driver->waits, 3 * 2);
    assert_int_equal(driver->launches_before_record, 1); /* the pass */
    assert_int_equal(driver->launches_before_wait, 2);   /* a product, too */
    s.backward.d_a.data = s.backward.d_b.data = NULL;
    backward(&s, 3);
    assert_int_equal(driver->waits, 3 * 2);
    close_session(&s);
}

/* Without an activation no product waits for the sums: they come behind the first one, on a stream that has
 * waited for what was before the call. */
static void sums_of_a_gradient_as_it_is_come_aside(void **state) {
    (void)state;
    session s;
    setenv("EPIGRAD_CUDA_GRAPHS", "off", 1);
    open_session(&s);
    unsetenv("EPIGRAD_CUDA_GRAPHS");
    s.layer.activation = EG_ACT_NONE;
    driver->waits = driver->launches = 0;
    backward(&s, 1);
    assert_int_equal(driver->waits, 2);
    assert_null(strstr(driver->launch[0], "act_grad"));
    close_session(&s);
}

/* Of few rows, and up to some thousand, the pass itself leaves the sums where they belong. */
static void sums_of_few_rows_take_no_kernel(void **state) {
    (void)state;
    char plan[4096];
    session s;
    open_session(&s);
    backward(&s, 1);
    assert_int_equal(driver->kernels, KERNELS + 1);
    s.layer.m = 512;
    backward(&s, 1);
    assert_int_equal(driver->kernels, KERNELS + 1 + KERNELS);
    assert_true(is_backward_by(&s, "hopper_act_grad_bf16"));
    s.layer.batch = 2; /* all items have one d_bias */
    assert_false(is_backward_by(&s, "hopper_act_grad_bf16"));
    s.layer.batch = 1, s.layer.m = 64;
    backward(&s, 1);
    assert_int_equal(driver->kernels, KERNELS + 1 + 2 * KERNELS);
    assert_ok(eg_backward_plan(s.context, &s.layer, &s.backward, plan, sizeof plan));
    assert_non_null(strstr(plan, "grad_pre = grad * gelu'(pre), d_bias"));
    s.layer.activation = EG_ACT_NONE; /* aside, too */
    assert_ok(eg_backward_plan(s.context, &s.layer, &s.backward, plan, sizeof plan));
    assert_non_null(strstr(plan, "beside the next"));
    assert_null(strstr(plan, "column_sum"));
    close_session(&s);
}

/* ---- What a call may not do --------------------------------------------------------------------- */

static void a_call_neither_allocates_nor_waits(void **state) {
    (void)state;
    session s;
    open_session(&s);
    const int allocations = driver->allocations, waits = driver->synchronisations;
    for (int i = 0; i < 3; i++) {
        backward(&s, 1);
        assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    }
    assert_int_equal(driver->allocations, allocations);
    assert_int_equal(driver->synchronisations, waits);
    close_session(&s);
}

/* ---- The peak ----------------------------------------------------------------------------------- */

/* A module takes milliseconds. */
static void modules_are_loaded_when_they_are_needed(void **state) {
    (void)state;
    session s;
    open_session(&s);
    driver->modules = 0;
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_int_equal(driver->modules, 1);
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_int_equal(driver->modules, 1);
    driver->module_result = CUDA_ERROR_OUT_OF_MEMORY;
    driver->launches = 0;
    assert_int_equal(eg_backward(s.context, &s.layer, &s.backward), EG_ERR_OUT_OF_MEMORY);
    assert_int_equal(driver->launches, 0); /* nothing is half written */
    driver->module_result = CUDA_SUCCESS;
    assert_ok(eg_backward(s.context, &s.layer, &s.backward));
    close_session(&s);
}

static void every_row_has_a_kernel(void **state) {
    (void)state;
    const eg_cuda_kernel *row;
    session s;
    open_session(&s);
    for (int i = 0; (row = eg_cuda_kernel_row(i)) != NULL; i++)
        assert_ok(eg_cuda_load_row(s.context->device, row));
    close_session(&s);
}

static void the_peak_is_of_what_a_device_has(void **state) {
    static const char *const kernels[] = {[EG_F32] = "eg_peak_f32",
                                          [EG_F64] = "eg_peak_f64",
                                          [EG_F16] = "eg_peak_wgmma_f16",
                                          [EG_BF16] = "eg_peak_wgmma_bf16"};
    (void)state;
    session s;
    open_session(&s);
    for (eg_dtype dtype = EG_F32; dtype <= EG_BF16; dtype++) {
        double gflops = 0;
        assert_ok(eg_measure_peak(s.context, dtype, &gflops));
        assert_true(gflops > 0);
        assert_string_equal(driver->last_kernel, kernels[dtype]);
    }
    close_session(&s);
}

/* ---- Failures
 * ------------------------------------------------------------------------------------------------ */

enum { ILLEGAL_ADDRESS = 700, NO_DEVICE = 100 };

static void a_lost_context_refuses_politely(void **state) {
    (void)state;
    session s;
    open_session(&s);
    backward(&s, 3);
    driver->sync_result = ILLEGAL_ADDRESS;
    assert_status(eg_sync(s.context), EG_ERR_DEVICE);
    assert_non_null(strstr(eg_last_error(), "act_grad_bf16, "));
    assert_non_null(strstr(eg_last_error(), ", column_sum_f32, "));
    assert_non_null(strstr(eg_last_error(), "CUDA_ERROR_ILLEGAL_ADDRESS"));
    const int kernels = driver->kernels, replays = driver->replays, allocations = driver->allocations;
    void *memory;
    assert_status(eg_backward(s.context, &s.layer, &s.backward), EG_ERR_DEVICE);
    assert_non_null(strstr(eg_last_error(), "the CUDA context is lost since act_grad_bf16, "));
    assert_status(eg_forward(s.context, &s.layer, &s.forward), EG_ERR_DEVICE);
    assert_status(eg_sync(s.context), EG_ERR_DEVICE);
    assert_status(eg_alloc(s.context, 100, &memory), EG_ERR_DEVICE);
    assert_status(eg_upload(s.context, s.memory[0], 0, &s, sizeof s), EG_ERR_DEVICE);
    assert_int_equal(driver->kernels, kernels);
    assert_int_equal(driver->replays, replays);
    assert_int_equal(driver->allocations, allocations);
    driver->sync_result = 0;
    close_session(&s);
}

/* EPIGRAD_CUDA_CHECK waits for every kernel, so the call itself fails and names the one. */
static void a_checked_call_names_the_kernel(void **state) {
    (void)state;
    session s;
    setenv("EPIGRAD_CUDA_CHECK", "1", 1);
    open_session(&s);
    unsetenv("EPIGRAD_CUDA_CHECK");
    backward(&s, 3);
    assert_int_equal(driver->recordings, 0);
    driver->sync_result = ILLEGAL_ADDRESS;
    assert_status(eg_backward(s.context, &s.layer, &s.backward), EG_ERR_DEVICE);
    assert_int_equal(strncmp(eg_last_error(), "act_grad_bf16: ", 15), 0);
    driver->sync_result = 0;
    close_session(&s);
}

static void a_device_too_old_is_named(void **state) {
    (void)state;
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA};
    eg_context *context = NULL;
    setenv("FAKE_CUDA_MAJOR", "7", 1);
    assert_status(eg_open(&info, &context), EG_ERR_UNAVAILABLE);
    unsetenv("FAKE_CUDA_MAJOR");
    assert_null(context);
    assert_string_equal(eg_last_error(), "no device 0 has compute capability 7.0; expected 8.0 or more");
}

static void a_device_that_is_not_there_is_named(void **state) {
    (void)state;
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .device = 3};
    eg_context *context = NULL;
    assert_status(eg_open(&info, &context), EG_ERR_UNAVAILABLE);
    assert_string_equal(eg_last_error(), "info.device is 3; this machine has 1 CUDA devices");
}

/* A call is one with its ends' address: what is there may change under its graph. */
static void a_grouped_call_is_known_by_where_its_ends_are(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.layer.groups = 2, s.layer.batch = 0;
    s.forward.offsets.data = s.memory[3];
    for (int i = 0; i < 3; i++) assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_int_equal(driver->replays, 2);
    assert_int_equal(driver->recordings, 1);
    s.forward.offsets.data = s.memory[4];
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_int_equal(driver->recordings, 2);
    close_session(&s);
}

/* Kernels write to a word of the host's memory, which is looked at wherever the stream is waited for. */
static void wrong_ends_are_said_once(void **state) {
    (void)state;
    session s;
    char byte = 0;
    open_session(&s);
    assert_ok(eg_sync(s.context));
    *driver->word = 1;
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_status(eg_sync(s.context), EG_ERR_ARGUMENT);
    assert_non_null(strstr(eg_last_error(), "offsets of a grouped call"));
    assert_ok(eg_sync(s.context));
    *driver->word = 1;
    assert_status(eg_download(s.context, &byte, s.memory[2], 0, 1), EG_ERR_ARGUMENT);
    assert_ok(eg_download(s.context, &byte, s.memory[2], 0, 1));
    close_session(&s);
}

/* `test_host unavailable WORDS`: in a process of its own, as a driver is started once. */
static int unavailable(const char *words) {
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA};
    eg_context *context = NULL;
    const eg_status status = eg_open(&info, &context);
    printf("%s: %s\n", eg_status_name(status), eg_last_error());
    return status == EG_ERR_UNAVAILABLE && strstr(eg_last_error(), words) != NULL ? 0 : 1;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_made_before_is_one_launch),
        cmocka_unit_test(what_is_new_is_not_replayed),
        cmocka_unit_test(a_call_with_other_addresses_changes_a_graph),
        cmocka_unit_test(a_graph_that_cannot_be_changed_is_given_up),
        cmocka_unit_test(packs_are_known_by_what_they_hold),
        cmocka_unit_test(a_captured_stream_gets_the_kernels),
        cmocka_unit_test(recordings_are_bounded),
        cmocka_unit_test(what_cannot_be_recorded_is_launched),
        cmocka_unit_test(recording_can_be_switched_off),
        cmocka_unit_test(a_call_in_use_is_not_displaced),
        cmocka_unit_test(a_replayed_call_is_known_by_its_kernels),
        cmocka_unit_test(nothing_is_left_behind),
        cmocka_unit_test(a_sum_beside_the_products_is_waited_for),
        cmocka_unit_test(sums_of_a_gradient_as_it_is_come_aside),
        cmocka_unit_test(sums_of_few_rows_take_no_kernel),
        cmocka_unit_test(modules_are_loaded_when_they_are_needed),
        cmocka_unit_test(every_row_has_a_kernel),
        cmocka_unit_test(the_peak_is_of_what_a_device_has),
        cmocka_unit_test(a_call_neither_allocates_nor_waits),
        cmocka_unit_test(a_lost_context_refuses_politely),
        cmocka_unit_test(a_grouped_call_is_known_by_where_its_ends_are),
        cmocka_unit_test(wrong_ends_are_said_once),
        cmocka_unit_test(a_checked_call_names_the_kernel),
        cmocka_unit_test(a_device_too_old_is_named),
        cmocka_unit_test(a_device_that_is_not_there_is_named),
    };
    if (argc == 3 && strcmp(argv[1], "unavailable") == 0) return unavailable(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
