/* SPDX-License-Identifier: Apache-2.0 */
/* Data-parallel calls on CUDA over NCCL, by a driver and an NCCL that run nothing: what is enqueued, in what
 * order and on which stream, and what is said when something fails. */
#define _DEFAULT_SOURCE
#include "host.h"

#include "epigrad/comm.h"
#include "fake_nccl.h"

enum { NCCL_F32 = 7, NCCL_BF16 = 9, NCCL_SUM = 0, NCCL_AVG = 4 };

static fake_nccl nccl;
static eg_comm comm;
static session s;
static bool is_open; /* the communicator and the session */

static void open_ranks(int rank, int ranks) {
    nccl = (fake_nccl){.rank = rank, .ranks = ranks};
    assert_ok(eg_comm_nccl((struct ncclComm *)&nccl, &comm));
    assert_int_equal(comm.rank, rank);
    assert_int_equal(comm.ranks, ranks);
    open_session(&s);
    is_open = true;
    s.backward.data_parallel.comm = &comm;
    driver->launches = driver->waits = 0;
}

static void close_ranks(void) {
    is_open = false;
    close_session(&s);
    eg_comm_nccl_free(&comm);
}

/* A test that has failed has left what it was in the middle of, for which the next one would wait. */
static int end_what_failed(void **state) {
    (void)state;
    unsetenv("EPIGRAD_CUDA_CHECK");
    if (driver != NULL) driver->stream_hangs = false;
    if (is_open) close_ranks();
    return 0;
}

static int place_of(const char *name) {
    for (int i = 0; i < driver->launches && i < FAKE_LAUNCHES; i++) {
        if (strcmp(driver->launch[i], name) == 0) return i;
    }
    fail_msg("no launch of %s", name);
    return -1;
}

static void backward(void) { assert_ok(eg_backward(s.context, &s.layer, &s.backward)); }

/* d_b in bf16 is summed in f32, in the workspace: grad_pre, d_bias, its sum, d_b, its sum, d_a; then both are
 * rounded to where they belong. */
static void sums_go_beside_d_a_on_a_stream_of_their_own(void **state) {
    (void)state;
    open_ranks(1, 4);
    backward();
    assert_int_equal(nccl.calls, 2);
    assert_int_equal(nccl.type, NCCL_F32);
    assert_int_equal(nccl.op, NCCL_SUM);
    assert_int_equal(nccl.count, 64 * 64);
    assert_ptr_equal(nccl.send, nccl.receive);
    assert_non_null(nccl.stream);       /* not the caller's, which is the default one */
    assert_int_equal(driver->waits, 3); /* for what each sends, and for their end */
    assert_int_equal(place_of("all_reduce"), 2);
    assert_int_equal(driver->launches, 8);
    assert_string_equal(driver->launch[4], "all_reduce");
    close_ranks();
}

/* Never captured by us, however often they are made. */
static void calls_are_not_recorded(void **state) {
    (void)state;
    open_ranks(0, 2);
    for (int i = 0; i < 4; i++) backward();
    assert_int_equal(driver->recordings, 0);
    assert_int_equal(nccl.calls, 8);
    close_ranks();
}

static void plain_order_sends_at_the_end_on_the_callers_stream(void **state) {
    (void)state;
    open_ranks(0, 2);
    comm.order = EG_COMM_ORDER_PLAIN;
    backward();
    assert_null(nccl.stream);
    assert_int_equal(driver->waits, 0);
    assert_int_equal(place_of("all_reduce"), driver->launches - 4);
    close_ranks();
}

static void what_is_ready_is_sent_from_where_it_is(void **state) {
    (void)state;
    open_ranks(0, 2);
    s.backward.data_parallel.sums = EG_BF16;
    s.backward.data_parallel.reduction = EG_REDUCTION_MEAN;
    s.backward.d_bias.data = NULL;
    backward();
    assert_ptr_equal(nccl.send, s.backward.d_b.data);
    assert_int_equal(nccl.type, NCCL_BF16);
    assert_int_equal(nccl.op, NCCL_AVG);
    s.backward.data_parallel.sharding = EG_SHARDING_LINES;
    backward();
    assert_ptr_equal(nccl.receive, s.backward.d_b.data);
    assert_int_equal(nccl.count, 32 * 64);
    place_of("reduce_scatter");
    close_ranks();
}

/* What is added is a copy that adds. */
static void sums_are_added_to_what_is_there(void **state) {
    (void)state;
    open_ranks(0, 2);
    s.backward.accumulate = 1;
    s.backward.d_b.dtype = EG_F32;
    backward();
    assert_ptr_not_equal(nccl.send, s.backward.d_b.data);
    assert_int_equal(driver->launches, 8);
    close_ranks();
}

/* ---- Tensor parallel ---------------------------------------------------------------------------- */

/* 64 x 64 bf16 on each of two ranks: too few rows for groups. */
static void open_parts(eg_split split, int64_t m) {
    open_ranks(1, 2);
    s.backward.data_parallel.comm = NULL;
    s.layer.m = m;
    s.forward.workspace.data = s.backward.workspace.data = NULL; /* the context's own */
    s.forward.tensor_parallel = s.backward.tensor_parallel =
        (eg_tensor_parallel){.comm = &comm, .split = split};
}

static int count_of(const char *name) {
    int count = 0;
    for (int i = 0; i < driver->launches && i < FAKE_LAUNCHES; i++)
        count += strcmp(driver->launch[i], name) == 0;
    return count;
}

static void rows_are_gathered_before_a_product(void **state) {
    (void)state;
    open_parts(EG_SPLIT_COLUMNS, 64);
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_int_equal(nccl.calls, 1);
    assert_int_equal(nccl.count, 32 * 64 * 2); /* bytes */
    assert_int_equal(place_of("all_gather"), 0);
    assert_ptr_equal(nccl.send, s.forward.a.data);
    assert_non_null(nccl.stream);
    assert_int_equal(driver->waits, 2); /* of the other stream for this one, and back */
    close_ranks();
}

static void products_are_summed_in_f32_and_finished(void **state) {
    (void)state;
    open_parts(EG_SPLIT_ROWS, 64);
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_int_equal(nccl.calls, 1);
    assert_int_equal(nccl.type, NCCL_F32);
    assert_int_equal(nccl.count, 32 * 64);
    assert_true(place_of("reduce_scatter") > 0);
    assert_true(place_of("reduce_scatter") < driver->launches - 1); /* bias and activation follow */
    close_ranks();
}

/* Groups of 512 rows of each rank, where the caller asks for them. What is gathered is not dense then: each
 * rank broadcasts. */
static void rows_go_in_groups(void **state) {
    (void)state;
    open_parts(EG_SPLIT_COLUMNS, 4096);
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_int_equal(count_of("all_gather"), 1); /* costs are not known */
    close_ranks();
    open_parts(EG_SPLIT_COLUMNS, 4096);
    comm.order = EG_COMM_ORDER_OVERLAPPED;
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_int_equal(count_of("broadcast"), 2 * 4);
    assert_int_equal(nccl.count, 512 * 64 * 2);
    assert_int_equal((char *)nccl.receive - (char *)nccl.first, 2048 * 64 * 2);
    assert_int_equal(driver->launches, 4 * 3);
    close_ranks();
    open_parts(EG_SPLIT_ROWS, 4096);
    comm.order = EG_COMM_ORDER_OVERLAPPED;
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_int_equal(count_of("reduce_scatter"), 4);
    close_ranks();
    open_parts(EG_SPLIT_COLUMNS, 4096);
    comm.order = EG_COMM_ORDER_PLAIN;
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_int_equal(count_of("all_gather"), 1);
    assert_null(nccl.stream);
    close_ranks();
}

static void backward_exchanges_beside_products(void **state) {
    (void)state;
    open_parts(EG_SPLIT_COLUMNS, 64);
    backward();
    assert_int_equal(count_of("all_gather"), 1);
    assert_int_equal(count_of("reduce_scatter"), 1);
    assert_int_equal(place_of("all_gather"), 0);
    assert_true(place_of("reduce_scatter") < driver->launches - 1); /* d_b is made under it */
    close_ranks();
    open_parts(EG_SPLIT_ROWS, 64);
    backward();
    assert_int_equal(count_of("all_gather"), 1);
    assert_int_equal(count_of("all_reduce"), 1); /* d_bias */
    close_ranks();
}

static void one_rank_sends_nothing(void **state) {
    (void)state;
    open_ranks(0, 1);
    backward();
    assert_int_equal(nccl.calls, 0);
    close_ranks();
}

static void failures_are_told(void **state) {
    (void)state;
    open_ranks(1, 4);
    nccl.result = 6;
    assert_status(eg_backward(s.context, &s.layer, &s.backward), EG_ERR_DEVICE);
    assert_string_equal(eg_last_error(),
                        "an all-reduce over 4 ranks failed on rank 1: remote process exited");
    assert_int_equal(nccl.aborts, 1);
    nccl.result = 0;
    assert_status(eg_backward(s.context, &s.layer, &s.backward), EG_ERR_DEVICE);
    assert_int_equal(nccl.aborts, 1);
    close_ranks();
}

/* A stream that never ends because another rank is gone. */
static void eg_sync_asks_the_engine_while_it_waits(void **state) {
    (void)state;
    open_ranks(0, 2);
    backward();
    assert_ok(eg_sync(s.context));
    backward();
    driver->stream_hangs = true, nccl.error = 6;
    assert_status(eg_sync(s.context), EG_ERR_DEVICE);
    assert_non_null(strstr(eg_last_error(), "remote process exited"));
    assert_int_equal(nccl.aborts, 1);
    close_ranks();
    open_ranks(0, 2);
    comm.timeout = 0.05;
    backward();
    assert_status(eg_sync(s.context), EG_ERR_DEVICE);
    assert_non_null(strstr(eg_last_error(), "rank 0 waited 0.05 s"));
    assert_int_equal(nccl.aborts, 1);
    driver->stream_hangs = false;
    close_ranks();
}

/* With EPIGRAD_CUDA_CHECK, before anything else is sent. */
static void ranks_that_disagree_are_told_who_and_what(void **state) {
    (void)state;
    setenv("EPIGRAD_CUDA_CHECK", "1", 1);
    open_ranks(0, 2);
    nccl.gathers = 1;
    backward();
    assert_int_equal(nccl.calls, 3);
    nccl.gathers = 1, nccl.differs = 1;
    assert_status(eg_backward(s.context, &s.layer, &s.backward), EG_ERR_DEVICE);
    assert_non_null(strstr(eg_last_error(), "rank 1 has layer.k 65, and rank 0 64"));
    assert_int_equal(nccl.calls, 4);
    close_ranks();
    open_parts(EG_SPLIT_ROWS, 64);
    nccl.gathers = 1, nccl.differs = 2;
    assert_status(eg_forward(s.context, &s.layer, &s.forward), EG_ERR_DEVICE);
    assert_non_null(strstr(eg_last_error(), "rank 1 has layer.m 66, and rank 0 64"));
    close_ranks();
    unsetenv("EPIGRAD_CUDA_CHECK");
}

static void wrong_arguments_are_named(void **state) {
    (void)state;
    assert_status(eg_comm_nccl(NULL, &comm), EG_ERR_ARGUMENT);
    assert_status(eg_comm_nccl((struct ncclComm *)&nccl, NULL), EG_ERR_ARGUMENT);
    nccl = (fake_nccl){.ranks = 1, .result = 4};
    assert_status(eg_comm_nccl((struct ncclComm *)&nccl, &comm), EG_ERR_DEVICE);
}

static void without_nccl_there_is_none(void **state) {
    (void)state;
    if (dlopen("libnccl.so.2", RTLD_LAZY) != NULL) skip(); /* a real one, which would read the communicator */
    assert_status(eg_comm_nccl((struct ncclComm *)&nccl, &comm), EG_ERR_UNAVAILABLE);
    assert_non_null(strstr(eg_last_error(), "NCCL could not be loaded"));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(sums_go_beside_d_a_on_a_stream_of_their_own, end_what_failed),
        cmocka_unit_test_teardown(calls_are_not_recorded, end_what_failed),
        cmocka_unit_test_teardown(plain_order_sends_at_the_end_on_the_callers_stream, end_what_failed),
        cmocka_unit_test_teardown(what_is_ready_is_sent_from_where_it_is, end_what_failed),
        cmocka_unit_test_teardown(sums_are_added_to_what_is_there, end_what_failed),
        cmocka_unit_test_teardown(rows_are_gathered_before_a_product, end_what_failed),
        cmocka_unit_test_teardown(products_are_summed_in_f32_and_finished, end_what_failed),
        cmocka_unit_test_teardown(rows_go_in_groups, end_what_failed),
        cmocka_unit_test_teardown(backward_exchanges_beside_products, end_what_failed),
        cmocka_unit_test_teardown(one_rank_sends_nothing, end_what_failed),
        cmocka_unit_test_teardown(failures_are_told, end_what_failed),
        cmocka_unit_test_teardown(eg_sync_asks_the_engine_while_it_waits, end_what_failed),
        cmocka_unit_test_teardown(ranks_that_disagree_are_told_who_and_what, end_what_failed),
        cmocka_unit_test_teardown(wrong_arguments_are_named, end_what_failed),
    };
    const struct CMUnitTest none[] = {cmocka_unit_test(without_nccl_there_is_none)};
    if (argc > 1 && strcmp(argv[1], "none") == 0) return cmocka_run_group_tests(none, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
