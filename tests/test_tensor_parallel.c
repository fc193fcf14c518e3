/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor-parallel calls of ranks that are threads: results, orders, groups and faults. */
#include <math.h>

#include "comm_threads.h"
#include "fixture.h"
#include "tensor_parallel.h"

/* ---- Results ------------------------------------------------------------------------------------ */

typedef struct table {
    tensor_case c;
    atomic_int wrong;
    char text[8][300];
} table;

static void check_rank(void *arg, const eg_comm *comm) {
    table *t = arg;
    if (!tensor_check(&t->c, comm, t->text[comm->rank], sizeof t->text[0])) t->wrong++;
}

static void parts_are_those_of_the_whole_layer(void **state) {
    (void)state;
    const uint64_t cases = short_run() ? 200 : 2000;
    for (uint64_t i = 0; i < cases; i++) {
        const int ranks = 1 + (int)(i % 5);
        table t = {.c = tensor_case_of(i, ranks)};
        /* Costs by which rows go in groups, or not. */
        team *team = team_make(ranks, i % 3 == 0 ? 0.01 : 100, i % 2 == 0 ? 20 : 1e5);
        team_run(team, check_rank, &t);
        team_free(team);
        for (int rank = 0; rank < ranks && t.wrong > 0; rank++)
            print_message("case %d, rank %d of %d: %s\n", (int)i, rank, ranks, t.text[rank]);
        assert_int_equal(t.wrong, 0);
    }
}

/* ---- One layer ---------------------------------------------------------------------------------- */

enum { RANKS = 3, EACH = 256, M = RANKS * EACH, K = 192, N = 128 };

typedef struct layer_run {
    team *team;
    eg_split split;
    bool backward, finishes; /* finishes: a bias and GELU, of what the ranks have summed */
    eg_comm_order order;
    double busy, timeout;
    int64_t m[8];     /* of each rank; 0: M */
    int64_t other[8]; /* of each rank: K of EG_SPLIT_COLUMNS, N of EG_SPLIT_ROWS; 0: as above */
    eg_dtype sums[8];
    bool spoiled[8], absent[8], backwards[8];
    int infinite; /* a row of a, or of grad, has an infinity; 0: none */
    eg_status status[8];
    char text[8][400], plan[8][6000];
    float out[8][M * K];
    int begun[8];
} layer_run;

static void fill(float *x, size_t count, uint32_t seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        x[i] = (float)(int32_t)seed * 0x1p-31F;
    }
}

/* Outputs of a call: y, or d_a. */
static void make_call(layer_run *r, int rank, const eg_comm *comm, float *memory, eg_forward_args *forward,
                      eg_backward_args *backward) {
    const bool by_rows = r->split == EG_SPLIT_ROWS;
    float *a = memory, *b = a + M * K, *grad = b + K * N, *d_b = grad + M * N;
    fill(a, M * K + K * N + M * N, (uint32_t)rank + 1);
    const bool mine = r->infinite / EACH == rank; /* of the rows that are divided, this rank's */
    const int row = r->infinite % EACH;
    if (r->infinite > 0 && mine && !by_rows) a[row * K] = INFINITY;
    if (r->infinite > 0 && by_rows && !r->backward && rank == 0) a[r->infinite * K] = INFINITY;
    if (r->infinite > 0 && mine && by_rows && r->backward) grad[row * N] = INFINITY;
    *forward = eg_forward_of(eg_row_major(a), eg_row_major(b), eg_elements(NULL), eg_row_major(r->out[rank]));
    *backward = eg_backward_of(eg_row_major(a), eg_row_major(b), eg_elements(NULL), eg_row_major(grad));
    backward->d_a = eg_row_major(r->out[rank]), backward->d_b = eg_row_major(d_b);
    forward->tensor_parallel = backward->tensor_parallel =
        (eg_tensor_parallel){.comm = comm, .split = r->split, .sums = r->sums[rank]};
    if (r->finishes) forward->bias = eg_elements(memset(d_b, 0, N * sizeof *d_b));
    if (r->spoiled[rank]) forward->y.ld = backward->d_a.ld = 1;
}

static void run_layer(void *arg, const eg_comm *given) {
    layer_run *r = arg;
    eg_comm comm = *given;
    const int rank = comm.rank;
    const int64_t m = r->m[rank] > 0 ? r->m[rank] : M, other = r->other[rank];
    const bool by_rows = r->split == EG_SPLIT_ROWS;
    float *memory = need_memory((size_t)(M * K + 2 * K * N + M * N) * sizeof *memory);
    eg_forward_args forward;
    eg_backward_args backward;
    eg_context *context = open_cpu(1);
    const eg_layer layer = eg_layer_of(m, other > 0 && !by_rows ? other : K, other > 0 && by_rows ? other : N,
                                       r->finishes ? EG_ACT_GELU : EG_ACT_NONE);
    comm.order = r->order, comm.busy = r->busy;
    if (r->timeout > 0) comm.timeout = r->timeout;
    make_call(r, rank, &comm, memory, &forward, &backward);
    if (!r->absent[rank]) {
        const bool back = r->backward != r->backwards[rank];
        if (back) eg_backward_plan(context, &layer, &backward, r->plan[rank], sizeof r->plan[0]);
        if (!back) eg_forward_plan(context, &layer, &forward, r->plan[rank], sizeof r->plan[0]);
        r->status[rank] =
            back ? eg_backward(context, &layer, &backward) : eg_forward(context, &layer, &forward);
        if (r->status[rank] != EG_OK) snprintf(r->text[rank], sizeof r->text[0], "%s", eg_last_error());
    }
    r->begun[rank] = team_begun(r->team, rank);
    eg_close(context);
    free(memory);
}

static layer_run *new_run(eg_split split, bool backward) {
    layer_run *r = need_memory(sizeof *r);
    memset(r, 0, sizeof *r);
    r->split = split, r->backward = backward;
    return r;
}

static void run(layer_run *r, double latency, double rate) {
    if (r->team == NULL) r->team = team_make(RANKS, latency, rate);
    team_run(r->team, run_layer, r);
    team_free(r->team);
    r->team = NULL;
}

static void expect_all(const layer_run *r, eg_status status, const char *text) {
    for (int rank = 0; rank < RANKS; rank++) {
        if (r->status[rank] != status || strstr(r->text[rank], text) == NULL)
            fail_msg("rank %d: %s: %s; expected \"%s\"", rank, eg_status_name(r->status[rank]), r->text[rank],
                     text);
    }
}

static const struct {
    eg_split split;
    bool backward;
    int groups, plain; /* collectives: with the agreement; in plain order, before which ranks may meet */
} calls[] = {{EG_SPLIT_COLUMNS, false, 1 + 4, 1 + 1},
             {EG_SPLIT_ROWS, false, 1 + 4, 1 + 2},
             {EG_SPLIT_COLUMNS, true, 1 + 2, 1 + 3},
             {EG_SPLIT_ROWS, true, 1 + 4, 1 + 1}};
enum { CALLS = sizeof calls / sizeof *calls };

/* Where a collective takes this thread for all of its time, there is nothing to be gained by beginning it
 * early; where it does not, products hide it. */
static void rows_go_in_groups_where_that_pays(void **state) {
    (void)state;
    for (int i = 0; i < CALLS; i++) {
        layer_run *r = new_run(calls[i].split, calls[i].backward);
        run(r, 0.001, 1000);
        expect_all(r, EG_OK, "");
        assert_int_equal(r->begun[0], calls[i].groups);
        r->busy = 1;
        run(r, 0.001, 1000);
        expect_all(r, EG_OK, "");
        assert_int_equal(r->begun[0], calls[i].plain);
        r->order = EG_COMM_ORDER_OVERLAPPED;
        run(r, 0.001, 1000);
        assert_int_equal(r->begun[0], calls[i].groups);
        r->busy = 0, r->order = EG_COMM_ORDER_PLAIN;
        run(r, 0.001, 1000);
        assert_int_equal(r->begun[0], calls[i].plain);
        free(r);
    }
}

static void a_plan_shows_groups(void **state) {
    (void)state;
    layer_run *r = new_run(EG_SPLIT_COLUMNS, false);
    r->order = EG_COMM_ORDER_OVERLAPPED;
    run(r, 0.001, 1000);
    int gathers = 0;
    for (const char *at = r->plan[0]; (at = strstr(at, "gathered = a of 3 ranks")) != NULL; at++) gathers++;
    assert_int_equal(gathers % 4, 0); /* for a second program, too */
    assert_true(gathers > 0);
    assert_non_null(strstr(r->plan[0], "y = gathered.b"));
    r->split = EG_SPLIT_ROWS;
    run(r, 0.001, 1000);
    assert_non_null(strstr(r->plan[0], "reduce_scatter"));
    free(r);
}

static void a_plan_names_the_bias_of_a_sum(void **state) {
    (void)state;
    layer_run *r = new_run(EG_SPLIT_ROWS, false);
    r->finishes = true;
    run(r, 0.001, 1000);
    expect_all(r, EG_OK, "");
    assert_non_null(strstr(r->plan[0], "y = gelu(sums + bias)"));
    free(r);
}

static void orders_and_runs_have_the_same_bits(void **state) {
    (void)state;
    for (int i = 0; i < CALLS; i++) {
        layer_run *first = new_run(calls[i].split, calls[i].backward),
                  *again = new_run(calls[i].split, calls[i].backward);
        first->order = EG_COMM_ORDER_PLAIN;
        run(first, 0.001, 1000);
        for (int order = EG_COMM_ORDER_PLAIN; order <= EG_COMM_ORDER_OVERLAPPED; order++) {
            again->order = (eg_comm_order)order;
            for (int turn = 0; turn < 2; turn++) {
                run(again, 0.001, 1000);
                expect_all(again, EG_OK, "");
                assert_memory_equal(first->out, again->out, sizeof first->out);
            }
        }
        free(first);
        free(again);
    }
}

/* One context, calls that differ in what is divided. */
static void run_both_splits(void *arg, const eg_comm *comm) {
    atomic_int *wrong = arg;
    enum { ROWS = 8, SIDE = 4 };
    float a[ROWS * SIDE], b[SIDE * SIDE], y[ROWS * SIDE];
    for (int i = 0; i < ROWS * SIDE; i++) a[i] = 1;
    for (int i = 0; i < SIDE * SIDE; i++) b[i] = 1;
    eg_context *context = open_cpu(1);
    const eg_layer layer = eg_layer_of(ROWS, SIDE, SIDE, EG_ACT_NONE);
    eg_forward_args args =
        eg_forward_of(eg_row_major(a), eg_row_major(b), eg_elements(NULL), eg_row_major(y));
    args.tensor_parallel.comm = comm;
    for (int i = 0; i < 4; i++) {
        args.tensor_parallel.split = i % 2 ? EG_SPLIT_ROWS : EG_SPLIT_COLUMNS;
        *wrong +=
            eg_forward(context, &layer, &args) != EG_OK || y[0] != (float)(i % 2 ? SIDE * comm->ranks : SIDE);
    }
    eg_close(context);
}

static void a_program_is_of_one_split(void **state) {
    (void)state;
    atomic_int wrong = 0;
    team *team = team_make(2, 0, 0);
    team_run(team, run_both_splits, &wrong);
    team_free(team);
    assert_int_equal(wrong, 0);
}

/* A kernel for the matrix unit refuses a number that is in the last group: the call begins again, with those
 * that were exchanged. */
static void a_rank_may_take_another_program(void **state) {
    (void)state;
    for (int i = 0; i < CALLS; i++) {
        for (int order = EG_COMM_ORDER_PLAIN; order <= EG_COMM_ORDER_OVERLAPPED; order++) {
            layer_run *r = new_run(calls[i].split, calls[i].backward),
                      *finite = new_run(r->split, r->backward);
            r->infinite = EACH + 250, r->order = finite->order = (eg_comm_order)order;
            run(r, 0.001, 1000);
            run(finite, 0.001, 1000);
            expect_all(r, EG_OK, "");
            int bad = 0, others = 0;
            for (int rank = 0; rank < RANKS; rank++) {
                for (int at = 0; at < M * K; at++) {
                    const float x = r->out[rank][at], y = finite->out[rank][at];
                    bad += !isfinite(x);
                    others += isfinite(x) && fabsf(x - y) > 1e-4F * (1 + fabsf(y));
                }
            }
            assert_true(calls[i].backward && calls[i].split == EG_SPLIT_COLUMNS ? bad == 0 : bad > 0);
            assert_true(bad <= RANKS * K);
            assert_int_equal(others, 0);
            free(r);
            free(finite);
        }
    }
}

/* ---- Faults ------------------------------------------------------------------------------------- */

static void ranks_that_disagree_are_told_who_and_what(void **state) {
    (void)state;
    layer_run *r = new_run(EG_SPLIT_COLUMNS, false);
    r->m[2] = M - RANKS;
    run(r, 0, 0);
    expect_all(r, EG_ERR_DEVICE, "rank 2 has layer.m 765, and rank 0 768; expected the same on all 3 ranks");
    r->m[2] = 0, r->other[1] = K - 1;
    run(r, 0, 0);
    expect_all(r, EG_ERR_DEVICE, "rank 1 has layer.k 191, and rank 0 192");
    r->split = EG_SPLIT_ROWS, r->other[1] = N - 1;
    run(r, 0, 0);
    expect_all(r, EG_ERR_DEVICE, "rank 1 has layer.n 127, and rank 0 128");
    r->other[1] = 0, r->backwards[2] = true;
    run(r, 0, 0);
    expect_all(r, EG_ERR_DEVICE, "rank 2 has collectives");
    free(r);
}

static void a_rank_that_cannot_call_tells_the_others(void **state) {
    (void)state;
    for (int i = 0; i < CALLS; i++) {
        layer_run *r = new_run(calls[i].split, calls[i].backward);
        r->spoiled[1] = true;
        run(r, 0, 0);
        assert_int_equal(r->status[1], EG_ERR_ARGUMENT);
        assert_int_equal(r->status[0], EG_ERR_DEVICE);
        assert_non_null(strstr(r->text[0], "rank 1 could not make its call"));
        free(r);
    }
}

static void a_rank_that_never_comes_is_waited_for_so_long(void **state) {
    (void)state;
    layer_run *r = new_run(EG_SPLIT_COLUMNS, false);
    r->absent[0] = true, r->timeout = 0.2;
    run(r, 0, 0);
    for (int rank = 1; rank < RANKS; rank++) {
        assert_int_equal(r->status[rank], EG_ERR_DEVICE);
        assert_non_null(strstr(r->text[rank], "waited 0.2 s for the other ranks of 3"));
    }
    free(r);
}

/* Wherever one rank's engine breaks, every rank comes back with a status. */
static void an_engine_may_fail_at_any_point(void **state) {
    (void)state;
    for (int i = 0; i < 2 * CALLS; i++) {
        const bool plain = i % 2 == 0;
        for (int at = 0; at < (plain ? calls[i / 2].plain : calls[i / 2].groups); at++) {
            layer_run *r = new_run(calls[i / 2].split, calls[i / 2].backward);
            r->order = plain ? EG_COMM_ORDER_PLAIN : EG_COMM_ORDER_OVERLAPPED, r->timeout = 0.3;
            r->team = team_make(RANKS, 0.001, 1000);
            team_fail(r->team, 1, at);
            run(r, 0, 0);
            for (int rank = 0; rank < RANKS; rank++) assert_int_equal(r->status[rank], EG_ERR_DEVICE);
            free(r);
        }
    }
}

/* ---- Arguments ---------------------------------------------------------------------------------- */

static void refuses(fixture *f, const eg_tensor_parallel *how, bool backward, eg_status expected,
                    const char *text) {
    eg_context *context = open_cpu(1);
    f->forward.tensor_parallel = f->backward.tensor_parallel = *how;
    assert_status(backward ? eg_backward(context, &f->layer, &f->backward)
                           : eg_forward(context, &f->layer, &f->forward),
                  expected);
    if (strstr(eg_last_error(), text) == NULL) fail_msg("\"%s\" does not say \"%s\"", eg_last_error(), text);
    assert_true(fixture_untouched(f));
    eg_close(context);
}

static void wrong_arguments_are_named(void **state) {
    (void)state;
    fixture f;
    team *team = team_make(1, 0, 0);
    eg_comm comm = team_comm(team, 0);
    const eg_comm good = comm;
    float memory[4096];
    eg_tensor_parallel how = {.comm = &comm};
    fixture_make(&f, small_layer());
    fixture_poison(&f);
    f.layer.batch = 0;
    const fixture whole = f;
    comm.rank = 1;
    refuses(&f, &how, false, EG_ERR_ARGUMENT, "tensor_parallel.comm is of rank 1 of 1 ranks");
    comm = good, comm.reduce_scatter = NULL;
    refuses(&f, &how, true, EG_ERR_ARGUMENT, "tensor_parallel.comm.reduce_scatter is NULL");
    comm = good, how.split = (eg_split)2;
    refuses(&f, &how, false, EG_ERR_ARGUMENT, "tensor_parallel.split is 2");
    how.split = EG_SPLIT_ROWS, how.gathered = eg_row_major(memory);
    refuses(&f, &how, false, EG_ERR_ARGUMENT, "tensor_parallel.gathered is given with EG_SPLIT_ROWS");
    how.split = EG_SPLIT_COLUMNS, how.comm = NULL;
    refuses(&f, &how, true, EG_ERR_ARGUMENT,
            "tensor_parallel.gathered is given without tensor_parallel.comm");
    how.comm = &comm;
    refuses(&f, &how, true, EG_ERR_ARGUMENT, "a is given with tensor_parallel.gathered");
    how.gathered.ld = f.layer.k + 1;
    refuses(&f, &how, false, EG_ERR_ARGUMENT, "tensor_parallel.gathered is not dense");
    how.gathered = eg_row_major(NULL), comm.ranks = 2;
    f.layer.m = 7;
    refuses(&f, &how, false, EG_ERR_ARGUMENT,
            "layer.m is 7 with tensor_parallel.comm; expected a multiple of its 2");
    f.layer.m = 8, f.layer.batch = 2;
    refuses(&f, &how, false, EG_ERR_UNSUPPORTED, "layer.batch is 2 with tensor_parallel.comm");
    f.layer.batch = 0, f.layer.outer_batch = 2;
    refuses(&f, &how, false, EG_ERR_UNSUPPORTED, "layer.outer_batch is 2 with tensor_parallel.comm");
    f.layer.outer_batch = 0, f.forward.workspace_limit = 64;
    refuses(&f, &how, false, EG_ERR_UNSUPPORTED, "workspace_limit is 64 with tensor_parallel.comm");
    f.backward.data_parallel.comm = &comm;
    refuses(&f, &how, true, EG_ERR_UNSUPPORTED, "data_parallel.comm is given with tensor_parallel.comm");
    f.backward = whole.backward, how.sums = EG_F64;
    refuses(&f, &how, true, EG_ERR_ARGUMENT, "tensor_parallel.sums is f64; expected f32");
    how.sums = EG_DTYPE_DEFAULT, how.split = EG_SPLIT_ROWS;
    refuses(&f, &how, true, EG_ERR_UNSUPPORTED, "source is EG_SOURCE_RECOMPUTE with EG_SPLIT_ROWS");
    comm.progress = NULL;
    refuses(&f, &how, true, EG_ERR_UNSUPPORTED, "source is EG_SOURCE_RECOMPUTE");
    f.layer.activation = EG_ACT_NONE;
    refuses(&f, &how, true, EG_ERR_ARGUMENT, "tensor_parallel.comm.progress is NULL on cpu");
    fixture_free(&f);
    team_free(team);
}

/* What no memory could hold is told, and nothing overflows. */
static void sizes_that_no_memory_holds_are_refused(void **state) {
    (void)state;
    fixture f;
    team *team = team_make(8, 0, 0);
    eg_comm comm = team_comm(team, 0);
    eg_context *context = open_cpu(1);
    size_t bytes;
    fixture_make(&f, small_layer());
    f.layer.batch = 0;
    for (int i = 0; i < 4; i++) {
        const eg_tensor_parallel how = {.comm = &comm, .split = i % 2 ? EG_SPLIT_ROWS : EG_SPLIT_COLUMNS};
        f.layer.activation = EG_ACT_NONE;
        f.forward.tensor_parallel = f.backward.tensor_parallel = how;
        f.layer.m = (int64_t)1 << 59;
        const eg_status status = i < 2 ? eg_forward_workspace(context, &f.layer, &f.forward, &bytes)
                                       : eg_backward_workspace(context, &f.layer, &f.backward, &bytes);
        assert_true(status == EG_ERR_OUT_OF_MEMORY || status == EG_ERR_ARGUMENT);
    }
    fixture_free(&f);
    eg_close(context);
    team_free(team);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_those_of_the_whole_layer),
        cmocka_unit_test(rows_go_in_groups_where_that_pays),
        cmocka_unit_test(a_plan_shows_groups),
        cmocka_unit_test(a_plan_names_the_bias_of_a_sum),
        cmocka_unit_test(orders_and_runs_have_the_same_bits),
        cmocka_unit_test(a_program_is_of_one_split),
        cmocka_unit_test(a_rank_may_take_another_program),
        cmocka_unit_test(ranks_that_disagree_are_told_who_and_what),
        cmocka_unit_test(a_rank_that_cannot_call_tells_the_others),
        cmocka_unit_test(a_rank_that_never_comes_is_waited_for_so_long),
        cmocka_unit_test(an_engine_may_fail_at_any_point),
        cmocka_unit_test(wrong_arguments_are_named),
        cmocka_unit_test(sizes_that_no_memory_holds_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
