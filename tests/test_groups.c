/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped layers: a group is a layer of its own, whatever the routing. Numbers are small integers, of which
 * every sum is exact: so a grouped call and a call for each group have the same bits. The table of cases has
 * the rest: other data, layouts and types, against the oracle. */
#include <math.h>

#include "check.h"
#include "comm_threads.h"
#include "number.h"
#include "support.h"

enum { MOST_GROUPS = 300 };

typedef struct sample {
    eg_dtype dtype;
    int64_t m, k, n;
    int groups;
} sample;

/* A layer with all of its operands, a group after the other; what a call writes is in `outputs`. */
typedef struct grouped {
    eg_layer layer;
    eg_forward_args forward;
    eg_backward_args backward;
    int32_t ends[MOST_GROUPS];
    unsigned char *memory, *outputs;
    size_t bytes, output_bytes;
} grouped;

/* ---- Operands ----------------------------------------------------------------------------------- */

static void *take(unsigned char *memory, size_t *used, int64_t count, eg_dtype dtype) {
    void *at = memory != NULL ? memory + *used : NULL;
    *used += ((size_t)count * eg_dtype_size(dtype) + 63) / 64 * 64;
    return at;
}

static void *input(unsigned char *memory, size_t *used, int64_t count, eg_dtype dtype) {
    oracle_random random = {*used};
    void *at = take(memory, used, count, dtype);
    for (int64_t i = 0; at != NULL && i < count; i++)
        oracle_put(at, (size_t)i, dtype, (double)(oracle_random_below(&random, 5) - 2));
    return at;
}

static eg_matrix of_groups(void *data, int64_t stride) {
    return (eg_matrix){.data = data, .batch_stride = stride};
}

static size_t place(grouped *g, unsigned char *memory) {
    const int64_t m = g->layer.m, k = g->layer.k, n = g->layer.n, groups = g->layer.groups;
    const eg_dtype dtype = g->layer.dtype;
    size_t used = 0;
    g->forward.a.data = input(memory, &used, m * k, dtype);
    g->forward.b = of_groups(input(memory, &used, groups * k * n, dtype), k * n);
    g->forward.bias.data = input(memory, &used, groups * n, dtype);
    g->backward.grad.data = input(memory, &used, m * n, dtype);
    g->backward.a = g->forward.a, g->backward.b = g->forward.b, g->backward.bias = g->forward.bias;
    g->outputs = memory + used;
    const size_t inputs = used;
    g->forward.y.data = take(memory, &used, m * n, dtype);
    g->backward.d_a.data = take(memory, &used, m * k, dtype);
    g->backward.d_b = of_groups(take(memory, &used, groups * k * n, dtype), k * n);
    g->backward.d_bias.data = take(memory, &used, groups * n, dtype);
    g->output_bytes = used - inputs;
    return used;
}

static grouped *make(const sample *s) {
    grouped *g = need_memory(sizeof *g);
    memset(g, 0, sizeof *g);
    g->layer = (eg_layer){.size = sizeof g->layer,
                          .m = s->m,
                          .k = s->k,
                          .n = s->n,
                          .dtype = s->dtype,
                          .activation = EG_ACT_RELU,
                          .groups = s->groups};
    g->forward.size = sizeof g->forward;
    g->backward.size = sizeof g->backward;
    g->forward.offsets.data = g->backward.offsets.data = g->ends;
    g->bytes = place(g, NULL);
    g->memory = aligned_alloc(64, g->bytes + 64);
    assert_non_null(g->memory);
    place(g, g->memory);
    memset(g->outputs, 0, g->output_bytes);
    return g;
}

static void discard(grouped *g) {
    free(g->memory);
    free(g);
}

/* Some groups have no rows, one has many. */
static void route(grouped *g, uint64_t seed) {
    oracle_random random = {seed};
    int64_t end = 0;
    for (int i = 0; i < g->layer.groups; i++) {
        const int64_t left = g->layer.m - end, even = g->layer.m / g->layer.groups;
        int64_t rows = oracle_random_below(&random, 4) == 0 ? 0 : oracle_random_below(&random, 2 * even + 2);
        if (oracle_random_below(&random, g->layer.groups) == 0) rows = left / 2;
        end += rows < left ? rows : left;
        g->ends[i] = (int32_t)end;
    }
}

static void call(eg_context *context, const grouped *g) {
    assert_ok(eg_forward(context, &g->layer, &g->forward));
    assert_ok(eg_backward(context, &g->layer, &g->backward));
}

/* ---- Beside a call for each group ---------------------------------------------------------------- */

static void *behind(void *data, int64_t elements, const grouped *g) {
    return (char *)data + (size_t)elements * eg_dtype_size(g->layer.dtype);
}

static void call_group(eg_context *context, const grouped *g, int group) {
    const int64_t first = group > 0 ? g->ends[group - 1] : 0, k = g->layer.k, n = g->layer.n;
    eg_layer layer = g->layer;
    eg_forward_args forward = g->forward;
    eg_backward_args backward = g->backward;
    layer.groups = 0;
    layer.m = g->ends[group] - first;
    forward.offsets.data = backward.offsets.data = NULL;
    forward.a.data = backward.a.data = behind(g->forward.a.data, first * k, g);
    forward.b.data = backward.b.data = behind(g->forward.b.data, group * k * n, g);
    forward.bias.data = backward.bias.data = behind(g->forward.bias.data, group * n, g);
    forward.y.data = behind(g->forward.y.data, first * n, g);
    backward.grad.data = behind(g->backward.grad.data, first * n, g);
    backward.d_a.data = behind(g->backward.d_a.data, first * k, g);
    backward.d_b.data = behind(g->backward.d_b.data, group * k * n, g);
    backward.d_bias.data = behind(g->backward.d_bias.data, group * n, g);
    assert_ok(eg_forward(context, &layer, &forward));
    assert_ok(eg_backward(context, &layer, &backward));
}

static const sample samples[] = {
    {EG_F32, 7000, 24, 40, 3},  {EG_F32, 300, 70, 33, 8},   {EG_F32, 900, 17, 130, 300},
    {EG_F32, 64, 260, 96, 64},  {EG_F64, 500, 40, 24, 9},   {EG_F32, 1200, 130, 150, 2},
    {EG_BF16, 400, 64, 96, 12}, {EG_F32, 40, 300, 20, 200}, {EG_BF16, 9, 2048, 96, 3},
    {EG_BF16, 70, 96, 2048, 3}, {EG_F32, 70, 1024, 96, 3},  {EG_F32, 300, 1040, 33, 4},
};

/* `accumulate`: the outputs begin with what a first call left. */
static void a_group_is_a_layer(void **state) {
    eg_context *context = open_cpu(2);
    (void)state;
    for (size_t i = 0; i < LENGTH(samples) * 4; i++) {
        grouped *g = make(&samples[i / 4]);
        unsigned char *whole = need_memory(g->output_bytes);
        g->backward.accumulate = (int)(i % 2);
        route(g, i);
        call(context, g);
        memcpy(whole, g->outputs, g->output_bytes);
        memset(g->outputs, 0, g->output_bytes);
        for (int group = 0; group < g->layer.groups; group++) call_group(context, g, group);
        for (size_t at = 0; at < g->output_bytes; at++) {
            if (whole[at] != g->outputs[at]) fail_msg("sample %zu: byte %zu of the outputs", i, at);
        }
        free(whole);
        discard(g);
    }
    eg_close(context);
}

/* Numbers of which sums are not exact. */
static void any_threads_have_the_same_bits(void **state) {
    const sample s = {EG_F32, 500, 70, 90, 11};
    eg_context *one = open_cpu(1), *more = open_cpu(5);
    grouped *g = make(&s);
    unsigned char *of_one = need_memory(g->output_bytes);
    (void)state;
    oracle_random random = {3};
    for (int64_t i = 0; i < s.m * s.k; i++)
        oracle_put(g->forward.a.data, (size_t)i, EG_F32, oracle_random_unit(&random));
    for (uint64_t seed = 0; seed < 20; seed++) {
        route(g, seed);
        memset(g->outputs, 0xff, g->output_bytes);
        call(one, g);
        memcpy(of_one, g->outputs, g->output_bytes);
        memset(g->outputs, 0xff, g->output_bytes);
        call(more, g);
        assert_memory_equal(of_one, g->outputs, g->output_bytes);
    }
    free(of_one);
    discard(g);
    eg_close(one);
    eg_close(more);
}

/* The columns of a column-major result, so large that it is written by non-temporal stores, begin with a line
 * of memory; those of the second group do not. */
static void large_results_may_begin_anywhere(void **state) {
    static const eg_dtype dtypes[] = {EG_F32, EG_BF16};
    eg_context *context = open_cpu(2);
    (void)state;
    for (size_t i = 0; i < LENGTH(dtypes); i++) {
        const sample s = {dtypes[i], 4096, 32, 1024, 2};
        const size_t size = eg_dtype_size(s.dtype);
        grouped *g = make(&s);
        char *turned = aligned_alloc(64, (size_t)(s.m * s.n) * size), *y = g->forward.y.data;
        assert_non_null(turned);
        g->layer.activation = EG_ACT_NONE;
        g->forward.bias.data = NULL;
        g->ends[0] = 2001, g->ends[1] = 4096;
        assert_ok(eg_forward(context, &g->layer, &g->forward));
        g->forward.y = (eg_matrix){.data = turned, .layout = EG_COL_MAJOR};
        assert_ok(eg_forward(context, &g->layer, &g->forward));
        for (int64_t at = 0; at < s.m * s.n; at++) {
            const size_t there = (size_t)(at % s.n * s.m + at / s.n) * size;
            assert_memory_equal(y + (size_t)at * size, turned + there, size);
        }
        free(turned);
        discard(g);
    }
    eg_close(context);
}

/* The rows of a group are columns where both a and y are column-major, and those of the last group end with
 * a page that cannot be touched. */
static void nothing_is_read_past_the_last_group(void **state) {
    const unsigned column_major[] = {0, CHECK_BIT(CHECK_A), CHECK_BIT(CHECK_Y),
                                     CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_Y)};
    eg_context *context = open_cpu(2);
    (void)state;
    for (size_t i = 0; i < LENGTH(column_major); i++) {
        check_report report;
        const check_case c = {.dtype = EG_F32,
                              .m = 300,
                              .k = 40,
                              .n = 48,
                              .batch = 1,
                              .groups = 5,
                              .routing = CHECK_ROUTING_EVEN,
                              .present = CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_Y),
                              .col_major = column_major[i]};
        if (check_run(context, &c, &report) != CHECK_PASSED) fail_msg("%s", report.message);
    }
    eg_close(context);
}

/* Groups of some hundred KB each, and more threads than the machine has: only the room ends a wave. */
static void a_wave_stays_in_its_workspace(void **state) {
    enum { BEHIND = 16 << 20, UNTOUCHED = 0x5a };
    const sample s = {EG_F32, 2048, 8, 1024, 32};
    eg_context *context = open_cpu(64);
    grouped *g = make(&s);
    size_t bytes;
    (void)state;
    for (int i = 0; i < s.groups; i++) g->ends[i] = (i + 1) * 64;
    assert_ok(eg_backward_workspace(context, &g->layer, &g->backward, &bytes));
    unsigned char *workspace = need_memory(bytes + BEHIND + 64), *begin = workspace;
    begin += (64 - (uintptr_t)workspace % 64) % 64;
    memset(workspace, UNTOUCHED, bytes + BEHIND + 64);
    g->backward.workspace = (eg_workspace){.data = begin, .bytes = bytes};
    assert_ok(eg_backward(context, &g->layer, &g->backward));
    for (size_t i = bytes; i < bytes + BEHIND; i++) assert_int_equal(begin[i], UNTOUCHED);
    free(workspace);
    discard(g);
    eg_close(context);
}

/* ---- What a call may be given ---------------------------------------------------------------------- */

/* Numbers that a kernel refuses concern their group alone, and what others have added is not added twice. */
static void a_group_that_is_refused_runs_again(void **state) {
    const sample s = {EG_F32, 512, 256, 256, 4};
    eg_context *context = open_cpu(2);
    grouped *g = make(&s), *like = make(&s);
    (void)state;
    for (int i = 0; i < s.groups; i++) g->ends[i] = like->ends[i] = (i + 1) * 128;
    call(context, like);
    oracle_put(g->forward.a.data, (size_t)(200 * s.k), EG_F32, 0x1p30); /* of the second group */
    g->backward.accumulate = 1;
    call(context, g);
    const float *y = g->forward.y.data, *y_like = like->forward.y.data;
    for (int64_t i = 0; i < s.m * s.n; i++) {
        if (i / s.n != 200) assert_true(y[i] == y_like[i]);
    }
    const float *d_b = g->backward.d_b.data, *d_b_like = like->backward.d_b.data;
    for (int64_t i = 0; i < s.groups * s.k * s.n; i++) {
        if (i / (s.k * s.n) != 1) assert_true(d_b[i] == d_b_like[i]);
    }
    discard(g);
    discard(like);
    eg_close(context);
}

typedef struct bad_ends {
    int32_t ends[3];
    const char *message;
} bad_ends;

static void bad_ends_are_refused_before_anything_is_written(void **state) {
    static const bad_ends all[] = {
        {{4, 3, 10}, "offsets[1] is 3; expected the end of that group, 4 to 10"},
        {{-1, 3, 10}, "offsets[0] is -1; expected the end of that group, 0 to 10"},
        {{4, 8, 11}, "offsets[2] is 11; expected the end of that group, 8 to 10"},
        {{INT32_MAX, 8, 10}, "offsets[0] is 2147483647; expected the end of that group, 0 to 10"},
        {{4, INT32_MIN, 10}, "offsets[1] is -2147483648; expected the end of that group, 4 to 10"},
    };
    eg_context *context = open_cpu(2);
    grouped *g = make(&(sample){EG_F32, 10, 5, 6, 3});
    (void)state;
    memset(g->outputs, 0xff, g->output_bytes);
    for (size_t i = 0; i < LENGTH(all); i++) {
        memcpy(g->ends, all[i].ends, sizeof all[i].ends);
        assert_status(eg_forward(context, &g->layer, &g->forward), EG_ERR_ARGUMENT);
        assert_string_equal(eg_last_error(), all[i].message);
        assert_status(eg_backward(context, &g->layer, &g->backward), EG_ERR_ARGUMENT);
        assert_string_equal(eg_last_error(), all[i].message);
        for (size_t at = 0; at < g->output_bytes; at++) assert_int_equal(g->outputs[at], 0xff);
    }
    discard(g);
    eg_close(context);
}

static void what_groups_do_not_go_with_is_refused(void **state) {
    eg_context *context = open_cpu(1);
    grouped *g = make(&(sample){EG_F32, 10, 5, 6, 3});
    (void)state;
    g->ends[0] = g->ends[1] = g->ends[2] = 10;
    eg_forward_args limited = g->forward, over_y = g->forward;
    eg_backward_args one_d_b = g->backward, limited_too = g->backward;
    limited.workspace_limit = limited_too.workspace_limit = 1000;
    assert_status(eg_forward(context, &g->layer, &limited), EG_ERR_UNSUPPORTED);
    assert_string_equal(eg_last_error(), "workspace_limit is 1000 with layer.groups 3; expected no limit");
    assert_status(eg_backward(context, &g->layer, &limited_too), EG_ERR_UNSUPPORTED);
    over_y.offsets.data = (char *)g->forward.y.data + 10 * 6 * sizeof(float) - 4;
    assert_status(eg_forward(context, &g->layer, &over_y), EG_ERR_ARGUMENT);
    assert_non_null(strstr(eg_last_error(), "overlaps offsets"));
    one_d_b.d_b.batch_stride = 0;
    assert_status(eg_backward(context, &g->layer, &one_d_b), EG_ERR_ARGUMENT);
    assert_non_null(strstr(eg_last_error(), "d_b.batch_stride is 0, so its 3 matrices overlap"));
    discard(g);
    eg_close(context);
}

static void call_of_a_rank(void *arg, const eg_comm *comm) {
    grouped *g = arg;
    eg_context *context = open_cpu(1);
    eg_forward_args forward = g->forward;
    eg_backward_args args = g->backward, divided = g->backward;
    args.data_parallel.comm = comm;
    assert_status(eg_backward(context, &g->layer, &args), EG_ERR_UNSUPPORTED);
    assert_non_null(strstr(eg_last_error(), "data_parallel.comm is given with layer.groups 3"));
    forward.tensor_parallel.comm = divided.tensor_parallel.comm = comm;
    assert_status(eg_forward(context, &g->layer, &forward), EG_ERR_UNSUPPORTED);
    assert_non_null(strstr(eg_last_error(), "tensor_parallel.comm is given with layer.groups 3"));
    assert_status(eg_backward(context, &g->layer, &divided), EG_ERR_UNSUPPORTED);
    assert_non_null(strstr(eg_last_error(), "tensor_parallel.comm is given with layer.groups 3"));
    eg_close(context);
}

/* Their sums over processes would be those of this one. */
static void groups_are_of_one_process(void **state) {
    grouped *g = make(&(sample){EG_F32, 10, 5, 6, 3});
    team *t = team_make(2, 0, 0);
    (void)state;
    team_run(t, call_of_a_rank, g);
    team_free(t);
    discard(g);
}

/* What empty groups leave: 0 in their sums, or what was there where they are added to. */
static void empty_groups_leave_zeros_or_what_was(void **state) {
    eg_context *context = open_cpu(1);
    grouped *g = make(&(sample){EG_F32, 10, 5, 6, 3});
    const float *d_b = g->backward.d_b.data, *d_bias = g->backward.d_bias.data;
    (void)state;
    g->ends[0] = 4, g->ends[1] = 4, g->ends[2] = 10;
    for (int i = 30; i < 60; i++) ((float *)g->backward.d_b.data)[i] = -0.0F; /* -0 + 0 is 0 */
    g->backward.accumulate = 1;
    assert_ok(eg_backward(context, &g->layer, &g->backward));
    for (int i = 30; i < 60; i++) assert_true(signbit(d_b[i]));
    for (int accumulate = 1; accumulate >= 0; accumulate--) {
        memset(g->outputs, 0xff, g->output_bytes);
        g->backward.accumulate = accumulate;
        assert_ok(eg_backward(context, &g->layer, &g->backward));
        for (int i = 30; i < 60; i++) assert_true(accumulate != 0 ? isnan(d_b[i]) : d_b[i] == 0);
        for (int i = 6; i < 12; i++) assert_true(accumulate != 0 ? isnan(d_bias[i]) : d_bias[i] == 0);
        for (int i = 0; i < 30; i++) assert_true(isnan(d_b[i]) == (accumulate != 0));
    }
    discard(g);
    eg_close(context);
}

/* ---- Programs ------------------------------------------------------------------------------------ */

static int requests, live;

static void *counting_alloc(size_t bytes, void *user) {
    (void)user;
    requests++, live++;
    return aligned_alloc(64, (bytes / 64 + 1) * 64);
}

static void counting_free(void *memory, void *user) {
    (void)user;
    live--;
    free(memory);
}

/* Another routing is the same layer: no program is made, and no workspace, after the first call. */
static void programs_are_made_once_for_all_offsets(void **state) {
    const eg_open_info info = {
        .size = sizeof info, .threads = 2, .allocator = {counting_alloc, counting_free, NULL}};
    eg_context *context = NULL;
    grouped *g = make(&samples[1]);
    (void)state;
    assert_ok(eg_open(&info, &context));
    route(g, 0);
    call(context, g);
    const int before = requests;
    for (uint64_t seed = 1; seed < 30; seed++) {
        route(g, seed);
        call(context, g);
    }
    assert_int_equal(requests, before);
    discard(g);
    eg_close(context);
    assert_int_equal(live, 0);
}

static void a_plan_says_what_groups_run(void **state) {
    static char text[1 << 16];
    eg_context *context = open_cpu(2);
    grouped *g = make(&(sample){EG_F32, 100, 64, 64, 8});
    size_t bytes = 0;
    (void)state;
    g->ends[0] = -1; /* not read */
    assert_ok(eg_forward_plan(context, &g->layer, &g->forward, text, sizeof text));
    assert_ok(eg_forward_workspace(context, &g->layer, &g->forward, &bytes));
    assert_non_null(strstr(text, "8 groups of 100 rows in all  workspace "));
    assert_int_equal(strtoull(strstr(text, "workspace ") + 10, NULL, 10), bytes);
    assert_non_null(strstr(text, "a group of up to 1 rows: "));
    assert_non_null(strstr(text, "few rows"));
    assert_non_null(strstr(text, "a group of up to 100 rows: "));
    discard(g);
    eg_close(context);
}

/* A pack of all matrices serves grouped calls, and those of a batch. */
static void packs_are_read_by_group(void **state) {
    eg_context *context = open_cpu(2);
    (void)state;
    for (size_t i = 0; i < LENGTH(samples); i++) {
        grouped *g = make(&samples[i]);
        unsigned char *unpacked = need_memory(g->output_bytes);
        eg_layer batch = g->layer;
        batch.groups = 0, batch.batch = g->layer.groups, batch.m = 1;
        route(g, i);
        call(context, g);
        memcpy(unpacked, g->outputs, g->output_bytes);
        for (int of_batch = 0; of_batch < 2; of_batch++) {
            eg_packed *packed = NULL;
            assert_ok(eg_pack_b(context, of_batch ? &batch : &g->layer, &g->forward.b, &packed));
            g->forward.packed_b = g->backward.packed_b = packed;
            call(context, g);
            assert_memory_equal(unpacked, g->outputs, g->output_bytes);
            eg_packed_free(context, packed);
        }
        free(unpacked);
        discard(g);
    }
    eg_close(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_is_a_layer),
        cmocka_unit_test(any_threads_have_the_same_bits),
        cmocka_unit_test(large_results_may_begin_anywhere),
        cmocka_unit_test(nothing_is_read_past_the_last_group),
        cmocka_unit_test(a_wave_stays_in_its_workspace),
        cmocka_unit_test(a_group_that_is_refused_runs_again),
        cmocka_unit_test(bad_ends_are_refused_before_anything_is_written),
        cmocka_unit_test(what_groups_do_not_go_with_is_refused),
        cmocka_unit_test(groups_are_of_one_process),
        cmocka_unit_test(empty_groups_leave_zeros_or_what_was),
        cmocka_unit_test(programs_are_made_once_for_all_offsets),
        cmocka_unit_test(a_plan_says_what_groups_run),
        cmocka_unit_test(packs_are_read_by_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
