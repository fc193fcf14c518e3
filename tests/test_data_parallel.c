/* SPDX-License-Identifier: Apache-2.0 */
/* Data-parallel calls of ranks that are threads: results, orders, groups and faults. */
#include <math.h>

#include "comm_threads.h"
#include "data_parallel.h"
#include "fixture.h"

/* ---- Results ------------------------------------------------------------------------------------ */

typedef struct table {
    uint64_t index;
    parallel_case c;
    atomic_int wrong;
    char text[8][300];
} table;

static void check_rank(void *arg, const eg_comm *comm) {
    table *t = arg;
    if (!parallel_check(&t->c, comm, t->text[comm->rank], sizeof t->text[0])) t->wrong++;
}

static void sums_are_those_of_one_process(void **state) {
    (void)state;
    const uint64_t cases = short_run() ? 100 : 600;
    for (uint64_t i = 0; i < cases; i++) {
        const int ranks = 1 + (int)(i % 5);
        table t = {.index = i, .c = parallel_case_of(i, ranks)};
        /* Costs by which a large d_b goes in groups, or not. */
        team *team = team_make(ranks, i % 3 == 0 ? 0.01 : 100, i % 2 == 0 ? 20 : 1e5);
        team_run(team, check_rank, &t);
        team_free(team);
        for (int rank = 0; rank < ranks && t.wrong > 0; rank++)
            print_message("case %d, rank %d of %d: %s\n", (int)i, rank, ranks, t.text[rank]);
        assert_int_equal(t.wrong, 0);
    }
}

/* ---- One layer ---------------------------------------------------------------------------------- */

enum { M = 256, K = 512, N = 256 };

typedef struct layer_run {
    team *team;
    eg_data_parallel how;
    eg_comm_order order;
    double busy, timeout;
    int64_t k[8];     /* of each rank; 0: K */
    bool spoiled[8];  /* the rank's arguments are wrong */
    bool infinite[8]; /* the rank has a number that kernels may refuse */
    bool absent[8];   /* the rank makes no call */
    eg_status status[8];
    char text[8][400], plan[8][4000];
    float d_b[8][K * N];
    int begun[8];
    double seconds[8];
} layer_run;

static void fill(float *x, size_t count, uint32_t seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        x[i] = (float)(int32_t)seed * 0x1p-31F;
    }
}

static void run_layer(void *arg, const eg_comm *given) {
    layer_run *r = arg;
    eg_comm comm = *given;
    const int rank = comm.rank;
    const int64_t k = r->k[rank] > 0 ? r->k[rank] : K;
    float *memory = need_memory((size_t)(M * K + K * N + M * N + M * K) * sizeof *memory);
    float *a = memory, *b = a + M * K, *grad = b + K * N, *d_a = grad + M * N;
    fill(a, M * K + K * N + M * N, (uint32_t)rank + 1);
    eg_context *context = open_cpu(1);
    const eg_layer layer = eg_layer_of(M, k, N, EG_ACT_GELU);
    eg_backward_args args =
        eg_backward_of(eg_row_major(a), eg_row_major(b), eg_elements(NULL), eg_row_major(grad));
    comm.order = r->order, comm.busy = r->busy;
    if (r->timeout > 0) comm.timeout = r->timeout;
    args.d_a = eg_row_major(d_a), args.d_b = eg_row_major(r->d_b[rank]);
    args.data_parallel = r->how;
    args.data_parallel.comm = &comm;
    if (r->infinite[rank]) a[7] = INFINITY;
    if (r->spoiled[rank]) args.d_b.ld = 1;
    if (!r->absent[rank]) {
        eg_backward_plan(context, &layer, &args, r->plan[rank], sizeof r->plan[0]);
        r->status[rank] = eg_backward(context, &layer, &args);
        if (r->status[rank] != EG_OK) snprintf(r->text[rank], sizeof r->text[0], "%s", eg_last_error());
    }
    r->begun[rank] = team_begun(r->team, rank);
    eg_close(context);
    free(memory);
}

static layer_run *new_run(void) {
    layer_run *r = need_memory(sizeof *r);
    memset(r, 0, sizeof *r);
    return r;
}

static void run(layer_run *r, int ranks, double latency, double rate) {
    if (r->team == NULL) r->team = team_make(ranks, latency, rate);
    team_run(r->team, run_layer, r);
    team_free(r->team);
    r->team = NULL;
}

static void same_bits_on_every_rank_and_in_every_run(void **state) {
    (void)state;
    layer_run *first = new_run(), *again = new_run();
    for (int order = EG_COMM_ORDER_PLAIN; order <= EG_COMM_ORDER_OVERLAPPED; order++) {
        first->order = again->order = (eg_comm_order)order;
        run(first, 4, 1, 100);
        for (int i = 0; i < 3; i++) {
            run(again, 4, 1, 100);
            for (int rank = 0; rank < 4; rank++) {
                assert_int_equal(again->status[rank], EG_OK);
                assert_memory_equal(first->d_b[0], again->d_b[rank], sizeof first->d_b[0]);
            }
        }
    }
    free(first);
    free(again);
}

/* An agreement and four groups under d_a; or the agreement, and another one and an all-reduce at the end. */
static void groups_go_one_by_one_or_all_at_once(void **state) {
    (void)state;
    layer_run *r = new_run();
    r->order = EG_COMM_ORDER_OVERLAPPED;
    run(r, 3, 0.001, 10);
    assert_int_equal(r->begun[0], 5);
    assert_non_null(strstr(r->plan[0], "all_reduce"));
    assert_non_null(strstr(r->plan[0], "rows 384..511"));
    r->order = EG_COMM_ORDER_PLAIN;
    run(r, 3, 0.001, 10);
    assert_int_equal(r->begun[0], 3);
    r->order = EG_COMM_ORDER_OVERLAPPED; /* at a latency that groups do not pay for */
    run(r, 3, 1000, 1e6);
    assert_int_equal(r->begun[0], 2);
    free(r);
}

/* Where a collective takes this thread for all of its time, there is nothing to be gained by beginning it
 * early, and a little to lose; where it does not, d_a hides it. */
static void order_is_by_the_estimate(void **state) {
    (void)state;
    layer_run *r = new_run();
    r->busy = 0;
    run(r, 2, 0.001, 10);
    assert_int_equal(r->begun[0], 5);
    r->busy = 1;
    run(r, 2, 0.001, 10);
    assert_int_equal(r->begun[0], 3);
    free(r);
}

/* One context, calls that differ in what is done with the sum. */
static void run_sum_and_mean(void *arg, const eg_comm *comm) {
    atomic_int *wrong = arg;
    float a[4] = {1, 2, 3, 4}, grad[4] = {1, 1, 1, 1}, d_b[4];
    eg_context *context = open_cpu(1);
    const eg_layer layer = eg_layer_of(2, 2, 2, EG_ACT_NONE);
    eg_backward_args args =
        eg_backward_of(eg_row_major(a), eg_row_major(NULL), eg_elements(NULL), eg_row_major(grad));
    args.d_b = eg_row_major(d_b);
    args.data_parallel.comm = comm;
    for (int i = 0; i < 4; i++) {
        args.data_parallel.reduction = i % 2 ? EG_REDUCTION_MEAN : EG_REDUCTION_SUM;
        *wrong += eg_backward(context, &layer, &args) != EG_OK || d_b[0] != (i % 2 ? 4 : 4 * comm->ranks);
    }
    eg_close(context);
}

static void a_program_is_of_one_reduction(void **state) {
    (void)state;
    atomic_int wrong = 0;
    team *team = team_make(2, 0, 0);
    team_run(team, run_sum_and_mean, &wrong);
    team_free(team);
    assert_int_equal(wrong, 0);
}

/* A kernel for the matrix unit refuses a number of one rank, which then takes another program; the others do
 * not. */
static void a_rank_may_take_another_program(void **state) {
    (void)state;
    layer_run *r = new_run();
    for (int order = EG_COMM_ORDER_PLAIN; order <= EG_COMM_ORDER_OVERLAPPED; order++) {
        r->infinite[1] = true, r->order = (eg_comm_order)order;
        run(r, 3, 0.001, 10);
        for (int rank = 0; rank < 3; rank++) {
            assert_int_equal(r->status[rank], EG_OK);
            assert_false(isfinite(r->d_b[rank][7 * N])); /* of column 7 of a */
            assert_true(isfinite(r->d_b[rank][8 * N]));
            assert_memory_equal(r->d_b[0] + 8 * N, r->d_b[rank] + 8 * N, (K - 8) * N * sizeof(float));
        }
    }
    free(r);
}

/* ---- Faults ------------------------------------------------------------------------------------- */

static void ranks_that_disagree_are_told_who_and_what(void **state) {
    (void)state;
    char text[80];
    for (int wrong = 2; wrong < 4; wrong++) {
        layer_run *r = new_run();
        r->k[wrong] = K - 1;
        run(r, 4, 0, 0);
        snprintf(text, sizeof text, "rank %d has layer.k 511, and rank 0 512", wrong);
        for (int rank = 0; rank < 4; rank++) {
            assert_int_equal(r->status[rank], EG_ERR_DEVICE);
            assert_non_null(strstr(r->text[rank], text));
        }
        free(r);
    }
}

static void a_rank_that_cannot_call_tells_the_others(void **state) {
    (void)state;
    layer_run *r = new_run();
    r->spoiled[1] = true;
    run(r, 3, 0, 0);
    assert_int_equal(r->status[1], EG_ERR_ARGUMENT);
    assert_non_null(strstr(r->text[1], "d_b.ld is 1"));
    for (int rank = 0; rank < 3; rank += 2) {
        assert_int_equal(r->status[rank], EG_ERR_DEVICE);
        assert_non_null(strstr(r->text[rank], "rank 1 could not make its call"));
    }
    free(r);
}

static void a_rank_that_never_comes_is_waited_for_so_long(void **state) {
    (void)state;
    layer_run *r = new_run();
    r->absent[0] = true, r->timeout = 0.2;
    run(r, 3, 0, 0);
    for (int rank = 1; rank < 3; rank++) {
        assert_int_equal(r->status[rank], EG_ERR_DEVICE);
        assert_non_null(strstr(r->text[rank], "waited 0.2 s for the other ranks of 3"));
    }
    free(r);
}

/* Wherever one rank's engine breaks, every rank comes back with a status. */
static void an_engine_may_fail_at_any_point(void **state) {
    (void)state;
    layer_run *r = new_run();
    for (int order = EG_COMM_ORDER_PLAIN; order <= EG_COMM_ORDER_OVERLAPPED; order++) {
        for (int at = 0; at < (order == EG_COMM_ORDER_PLAIN ? 3 : 5); at++) {
            r->order = (eg_comm_order)order, r->timeout = 1;
            r->team = team_make(3, 0.001, 10);
            team_fail(r->team, 1, at);
            run(r, 3, 0, 0);
            for (int rank = 0; rank < 3; rank++) assert_int_equal(r->status[rank], EG_ERR_DEVICE);
            assert_non_null(strstr(r->text[1], "failed on rank 1: the engine of the tests does not match"));
        }
    }
    free(r);
}

/* ---- Arguments ---------------------------------------------------------------------------------- */

static void refuses(fixture *f, const eg_comm *comm, eg_status expected, const char *text) {
    eg_context *context = open_cpu(1);
    f->backward.data_parallel.comm = comm;
    assert_status(eg_backward(context, &f->layer, &f->backward), expected);
    if (strstr(eg_last_error(), text) == NULL) fail_msg("\"%s\" does not say \"%s\"", eg_last_error(), text);
    assert_true(fixture_untouched(f));
    eg_close(context);
}

static void wrong_arguments_are_named(void **state) {
    (void)state;
    fixture f;
    team *team = team_make(1, 0, 0);
    const eg_comm good = team_comm(team, 0);
    fixture_make(&f, small_layer());
    fixture_poison(&f);
    eg_comm comm = good;
    comm.rank = 1;
    refuses(&f, &comm, EG_ERR_ARGUMENT, "data_parallel.comm is of rank 1 of 1 ranks");
    comm = good, comm.all_gather = NULL;
    refuses(&f, &comm, EG_ERR_ARGUMENT, "data_parallel.comm.all_gather is NULL");
    comm = good, comm.size = 8;
    refuses(&f, &comm, EG_ERR_ARGUMENT, "data_parallel.comm.size is 8");
    comm = good, comm.timeout = -1;
    refuses(&f, &comm, EG_ERR_ARGUMENT, "data_parallel.comm.timeout is -1");
    comm = good, comm.order = (eg_comm_order)3;
    refuses(&f, &comm, EG_ERR_ARGUMENT, "data_parallel.comm.order is 3");
    comm = good, comm.ranks = 2, comm.progress = NULL;
    refuses(&f, &comm, EG_ERR_ARGUMENT, "data_parallel.comm.progress is NULL on cpu");
    f.backward.data_parallel.sums = EG_F64;
    refuses(&f, &good, EG_ERR_ARGUMENT, "data_parallel.sums is f64; expected f32");
    f.backward.data_parallel.sums = EG_DTYPE_DEFAULT, f.backward.data_parallel.reduction = (eg_reduction)2;
    refuses(&f, &good, EG_ERR_ARGUMENT, "data_parallel.reduction is 2");
    f.backward.data_parallel.reduction = EG_REDUCTION_SUM,
    f.backward.data_parallel.sharding = (eg_sharding)-1;
    refuses(&f, &good, EG_ERR_ARGUMENT, "data_parallel.sharding is -1");
    f.backward.data_parallel.sharding = EG_SHARDING_NONE, f.backward.workspace_limit = 1 << 20;
    refuses(&f, &good, EG_ERR_UNSUPPORTED, "workspace_limit is 1048576 with data_parallel.comm");
    fixture_free(&f);
    team_free(team);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_one_process),
        cmocka_unit_test(same_bits_on_every_rank_and_in_every_run),
        cmocka_unit_test(groups_go_one_by_one_or_all_at_once),
        cmocka_unit_test(order_is_by_the_estimate),
        cmocka_unit_test(a_program_is_of_one_reduction),
        cmocka_unit_test(a_rank_may_take_another_program),
        cmocka_unit_test(ranks_that_disagree_are_told_who_and_what),
        cmocka_unit_test(a_rank_that_cannot_call_tells_the_others),
        cmocka_unit_test(a_rank_that_never_comes_is_waited_for_so_long),
        cmocka_unit_test(an_engine_may_fail_at_any_point),
        cmocka_unit_test(wrong_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
