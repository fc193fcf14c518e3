/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks: a pure function of the device, the problem and the limit, for any number of rows; that they add up
 * to the call is what the table sees to. */
#include "low_memory.h"

#include "check.h"
#include "core/cache.h"
#include "core/low_memory_chunk.h"
#include "cpu/kernel.h"
#include "fixture.h"
#include "oracle.h"

static const sizes samples[] = {
    {5000, 70, 130, 1, EG_F32, false, false, false}, {5000, 70, 130, 1, EG_BF16, false, false, false},
    {700, 300, 90, 7, EG_F32, true, false, false},   {700, 300, 90, 7, EG_F16, false, false, false},
    {400, 64, 64, 50, EG_F64, false, false, false},  {3000, 33, 200, 3, EG_F32, false, true, false},
    {900, 120, 120, 4, EG_BF16, false, false, true}, {65, 500, 500, 1, EG_F16, false, false, false},
    {100000, 16, 16, 2, EG_F32, true, false, false}, {5000, 500, 60, 1, EG_BF16, false, false, false},
    {2000, 30, 700, 3, EG_F16, true, false, false},
};

/* Bytes that the sums of an operand take. */
static size_t kept(const eg_low_memory *call, eg_operand_id id) {
    for (int i = 0; i < call->whole.ops; i++) {
        const eg_view *out = &call->whole.op[i].out;
        if (out->space == EG_OPERAND && out->id == (int)id) return call->sum[i].bytes;
    }
    return 0;
}

/* ---- On the CPU --------------------------------------------------------------------------------- */

static void no_limit_is_one_chunk(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(samples); i++) {
        const eg_problem problem = problem_of(&samples[i]);
        const eg_caps caps = cpu(3);
        eg_program plan;
        eg_low_memory chunks;
        assert_ok(eg_program_make(&caps, &problem, &plan));
        assert_ok(eg_low_memory_make(&caps, &problem, 0, &chunks));
        assert_true(chunks.workspace == plan.workspace && chunks.threads == 3);
        assert_true(chunks.rows == plan.list.m && chunks.items == plan.list.batch);
        size_t most = plan.workspace; /* nor is one that no number of threads reaches */
        for (int threads = 1; threads <= 64; threads++) {
            const eg_caps some = cpu(threads);
            assert_ok(eg_program_make(&some, &problem, &plan));
            if (plan.workspace > most) most = plan.workspace;
        }
        assert_ok(eg_low_memory_make(&caps, &problem, most, &chunks));
        assert_true(chunks.rows == plan.list.m && chunks.items == plan.list.batch);
    }
}

/* From the least limit there is up: within it, of rows that a kernel likes, and the same for any threads. */
static void every_limit_is_kept(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 5, 64, 1000};
    for (size_t i = 0; i < LENGTH(samples); i++) {
        const eg_problem problem = problem_of(&samples[i]);
        const eg_caps alone = cpu(1);
        eg_low_memory first, chunks;
        assert_ok(eg_low_memory_make(&alone, &problem, 0, &chunks));
        const size_t whole = chunks.workspace, least = least_limit(&alone, &problem);
        assert_true(least <= whole); /* equal where 64 rows and sums in f32 take more than 65 rows */
        assert_status(eg_low_memory_make(&alone, &problem, least - 1, &chunks), EG_ERR_ARGUMENT);
        for (size_t limit = least; limit < whole; limit += limit / 5) {
            assert_ok(eg_low_memory_make(&alone, &problem, limit, &first));
            const bool cut = first.rows < first.problem.m;
            assert_true(first.rows % 64 == 0 || !cut);
            assert_true(first.rows % 256 == 0 || first.rows < 256 || !cut);
            assert_true(first.items == 1 || !cut || samples[i].summed_d_a);
            /* Shorter chunks would be more, so that the last is not much shorter than the others. */
            const int64_t m = first.problem.m, unit = first.rows % 256 == 0 ? 256 : 64;
            assert_true(!cut || (first.rows - unit) * ((m + first.rows - 1) / first.rows) < m);
            for (size_t j = 0; j < LENGTH(threads); j++) {
                const eg_caps caps = cpu(threads[j]);
                assert_ok(eg_low_memory_make(&caps, &problem, limit, &chunks));
                assert_true(chunks.workspace <= limit && chunks.threads <= threads[j] && chunks.threads > 0);
                assert_true(chunks.rows == first.rows && chunks.items == first.items);
                assert_true(chunks.in_result == first.in_result);
            }
        }
    }
}

/* As many threads as find room: of 64, twice as many as a call takes would not. */
static void no_thread_is_left_out(void **state) {
    (void)state;
    const eg_problem problem = problem_of(&(sizes){2000, 600, 700, 1, EG_F32, false, false, false});
    const eg_caps crowd = cpu(64);
    eg_low_memory chunks;
    int seen = 0;
    assert_ok(eg_low_memory_make(&crowd, &problem, 0, &chunks));
    const size_t whole = chunks.workspace;
    for (size_t limit = least_limit(&crowd, &problem); limit < whole; limit += limit / 40) {
        assert_ok(eg_low_memory_make(&crowd, &problem, limit, &chunks));
        const int threads = chunks.threads;
        if (threads == 64) continue;
        const eg_caps twice = cpu(2 * threads);
        assert_ok(eg_low_memory_make(&twice, &problem, limit, &chunks));
        assert_int_equal(chunks.threads, threads);
        seen += threads > 1;
    }
    assert_true(seen > 0);
}

/* The more room, the more rows: by 64 up to 256, and then by 256. */
static void chunks_grow_step_by_step(void **state) {
    (void)state;
    const eg_problem problem = problem_of(&samples[0]);
    const eg_caps caps = cpu(1);
    eg_low_memory chunks;
    int64_t rows = 0;
    for (size_t limit = least_limit(&caps, &problem); rows < 1024; limit += 1024) {
        assert_ok(eg_low_memory_make(&caps, &problem, limit, &chunks));
        if (chunks.rows == rows) continue;
        assert_int_equal(chunks.rows, rows + (rows < 256 ? 64 : 256));
        rows = chunks.rows;
    }
}

/* 17 rows are no whole AMX tile, and blocks have to copy them where 64 are read as they are. */
static void the_last_chunk_finds_room(void **state) {
    (void)state;
    const eg_layer layer = {
        .size = sizeof layer, .m = 64 * 50 + 17, .k = 256, .n = 32, .batch = 1, .dtype = EG_BF16};
    const eg_forward_args args = {.size = sizeof args,
                                  .a = mark(layer.m, layer.k, false),
                                  .b = mark(layer.k, layer.n, false),
                                  .y = mark(layer.m, layer.n, false)};
    eg_caps caps = cpu(1);
    eg_problem problem;
    eg_low_memory chunks;
    eg_program plan;
    caps.features = EG_CPU_AVX2 | EG_CPU_AVX512 | EG_CPU_AMX;
    assert_ok(eg_validate_forward(EG_PRESENCE, &layer, &args, &problem));
    assert_ok(eg_low_memory_make(&caps, &problem, least_limit(&caps, &problem), &chunks));
    assert_int_equal(chunks.rows, 64); /* with more, blocks are larger */
    problem.m = problem.operands[EG_OP_A].rows = problem.operands[EG_OP_Y].rows = 17;
    problem.packed_b = &chunks.packed;
    assert_ok(eg_program_make(&caps, &problem, &plan));
    assert_true(plan.workspace > chunks.program.workspace && plan.workspace <= chunks.chunk.bytes);
}

/* The programs of its chunks: the first overwrites the sums that later ones add to, and the choice of kernels
 * may see that. */
static void check_chunks_find_room(eg_caps caps, eg_low_memory *chunks) {
    caps.threads = chunks->threads;
    for (int64_t item = 0; item < chunks->problem.batch; item += chunks->items) {
        for (int64_t row = 0; row < chunks->problem.m; row += chunks->rows) {
            const eg_chunk chunk = eg_chunk_at(chunks, item, row);
            eg_program program;
            eg_chunk_ops(chunks, &chunk,
                         row > 0    ? EG_BEGUN_ITEM
                         : item > 0 ? EG_BEGUN_SHARED
                                    : EG_BEGUN_NOTHING,
                         &program.list);
            assert_ok(eg_compile(&caps, &program));
            assert_true(program.workspace <= chunks->chunk.bytes);
        }
    }
}

/* d_b is summed over a batch whose items have a b each, so that no item's rows follow another's. */
static void every_chunk_finds_room(void **state) {
    (void)state;
    static const uint64_t levels[] = {0, EG_CPU_AVX2, EG_CPU_AVX2 | EG_CPU_AVX512,
                                      EG_CPU_AVX2 | EG_CPU_AVX512 | EG_CPU_AMX};
    oracle_random random = {61};
    int with_chunks = 0;
    for (int i = 0; i < 10000; i++) {
        const int64_t m = 65 + oracle_random_below(&random, 200), k = 1 + oracle_random_below(&random, 300),
                      n = 1 + oracle_random_below(&random, 40);
        const eg_layer layer = {.size = sizeof layer,
                                .m = m,
                                .k = k,
                                .n = n,
                                .batch = 1 + i / 4 % 2,
                                .dtype = (eg_dtype)(EG_F32 + (int)oracle_random_below(&random, 4)),
                                .activation = EG_ACT_SILU};
        const eg_backward_args args = {.size = sizeof args,
                                       .source = EG_SOURCE_PRE,
                                       .a = mark(m, k, false),
                                       .b = mark(k, n, false),
                                       .pre = mark(m, n, false),
                                       .grad = mark(m, n, false),
                                       .d_a = mark(m, k, i / 8 % 2 != 0),
                                       .d_b = mark(k, n, true)};
        eg_caps caps = cpu(1 + (int)oracle_random_below(&random, 4));
        eg_problem problem;
        eg_low_memory chunks;
        caps.features = levels[i % LENGTH(levels)];
        assert_ok(eg_validate_backward(EG_PRESENCE, &layer, &args, &problem));
        const size_t quarters = 4 + (size_t)oracle_random_below(&random, 8);
        assert_ok(eg_low_memory_make(&caps, &problem, least_limit(&caps, &problem) * quarters / 4, &chunks));
        if (!eg_has_chunks(&chunks)) continue; /* the call is run as it is */
        check_chunks_find_room(caps, &chunks);
        with_chunks++;
    }
    assert_true(with_chunks > 4000);
}

/* d_a that is summed over the batch takes the rows of every item at once. */
static void a_summed_d_a_keeps_the_batch_together(void **state) {
    (void)state;
    const eg_problem problem = problem_of(&samples[5]);
    const eg_caps caps = cpu(2);
    eg_low_memory chunks;
    assert_true(samples[5].summed_d_a);
    assert_ok(eg_low_memory_make(&caps, &problem, least_limit(&caps, &problem), &chunks));
    assert_true(chunks.items == 3 && chunks.rows == 64);
}

/* What is packed, and what is added up in f32, is what has to be. */
static void regions_are_what_is_kept(void **state) {
    (void)state;
    const eg_caps caps = cpu(2);
    for (int narrow = 0; narrow < 2; narrow++) {
        sizes s = {10000, 100, 200, 1, EG_BF16, false, false, !narrow};
        eg_problem problem = problem_of(&s);
        eg_low_memory chunks;
        assert_ok(eg_low_memory_make(&caps, &problem, 2 * MIB, &chunks));
        assert_true(chunks.rows < s.m && chunks.pack.bytes >= 2 * 100 * 200 * sizeof(uint16_t));
        assert_true(kept(&chunks, EG_OP_D_B) == (narrow ? 100 * 200 * sizeof(float) : 0));
        assert_true(kept(&chunks, EG_OP_D_BIAS) == (narrow ? 200 * sizeof(float) : 0));
        assert_true(kept(&chunks, EG_OP_D_BIAS_BELOW) == 0);
        problem.operands[EG_OP_D_A].data = NULL;
        problem.source = EG_SOURCE_PRE; /* and nothing reads b */
        assert_ok(eg_low_memory_make(&caps, &problem, 2 * MIB, &chunks));
        assert_true(chunks.rows < s.m && chunks.pack.bytes == 0);
    }
}

/* ---- Sums in d_b ------------------------------------------------------------------------------- */

static const sizes narrow_d_b = {9000, 500, 60, 1, EG_BF16, false, false, false};

/* The same call with gaps in d_b, which is never so. */
static eg_problem gapped(const eg_problem *problem) {
    eg_problem p = *problem;
    p.operands[EG_OP_D_B].row_stride++;
    return p;
}

/* They are taken where a chunk has twice the rows, or where there is none else; and by the tight limits. */
static void sums_in_d_b_double_the_rows(void **state) {
    (void)state;
    const eg_caps caps = cpu(1);
    const eg_problem problem = problem_of(&narrow_d_b), other = gapped(&problem);
    eg_low_memory chunks, unsplit;
    int alone = 0, taller = 0, neither = 0;
    for (size_t limit = least_limit(&caps, &problem); limit < 8 * MIB; limit += limit / 64) {
        assert_ok(eg_low_memory_make(&caps, &problem, limit, &chunks));
        assert_true(chunks.workspace <= limit);
        const bool fits = eg_low_memory_make(&caps, &other, limit, &unsplit) == EG_OK;
        assert_true(unsplit.in_result == EG_NO_OP && (fits || chunks.in_result != EG_NO_OP));
        alone += !fits;
        taller += fits && chunks.in_result != EG_NO_OP;
        neither += chunks.in_result == EG_NO_OP;
        if (fits && chunks.in_result != EG_NO_OP) assert_true(chunks.rows >= 2 * unsplit.rows);
        if (chunks.in_result == EG_NO_OP)
            assert_true(chunks.rows == unsplit.rows && chunks.workspace == unsplit.workspace);
    }
    assert_true(alone > 0 && taller > 0 && neither > 0);
    assert_true(least_limit(&caps, &problem) < least_limit(&caps, &other));
}

/* A query does not know where d_b begins: the workspace is the same anywhere, and the half in its memory lies
 * in it. Both parts of an operand are aligned as it is. */
static void its_sums_are_the_same_wherever_d_b_begins(void **state) {
    (void)state;
    const eg_caps caps = cpu(2);
    for (int64_t k = 496; k <= 513; k++) {
        const sizes s = {9000, k, 61, 1, EG_BF16, false, false, false};
        eg_problem problem = problem_of(&s);
        const size_t limit = least_limit(&caps, &problem) + 5000;
        eg_low_memory even, odd;
        assert_ok(eg_low_memory_make(&caps, &problem, limit, &even));
        problem.operands[EG_OP_D_B].offset = 2;
        assert_ok(eg_low_memory_make(&caps, &problem, limit, &odd));
        assert_true(even.in_result != EG_NO_OP && odd.in_result != EG_NO_OP && even.rows == odd.rows &&
                    even.workspace == odd.workspace);
        assert_true(even.workspace_lines % 8 == 0 && odd.workspace_lines % 8 == 0 &&
                    even.workspace_lines <= k / 2 + 8);
        assert_true((k - even.workspace_lines) * 61 * 4 <= k * 61 * 2 &&
                    (k - odd.workspace_lines) * 61 * 4 + 2 <= k * 61 * 2);
        assert_true(odd.workspace_lines * 61 * 4 <= (int64_t)kept(&even, EG_OP_D_B));
    }
}

/* The text has the half, and the products that make it. */
static void the_text_says_where_sums_are(void **state) {
    (void)state;
    const eg_caps caps = cpu(1);
    const eg_problem problem = problem_of(&narrow_d_b);
    eg_low_memory chunks;
    char text[4096];
    assert_ok(eg_low_memory_make(&caps, &problem, least_limit(&caps, &problem), &chunks));
    print(&chunks, text, sizeof text);
    assert_non_null(
        strstr(text, "\n    256 of 500 lines of d_b are added up there, the others in its own memory\n"));
    const char *half = strstr(text, "\nbackward bf16 none recompute  M=64 K=256 N=60 ");
    assert_true(half != NULL && strstr(half, "sums += aT.grad_pre") != NULL);
    assert_true(half > strstr(text, "d_a = grad_pre.bT"));
}

/* ---- On the CPU, once more ---------------------------------------------------------------------- */

/* A call in chunks may have room for few threads; the calls after it have all of them again. */
static void other_calls_keep_their_threads(void **state) {
    (void)state;
    enum { THREADS = 16 };
    eg_context *context = open_cpu(THREADS);
    fixture f;
    fixture_make(&f, (eg_layer){.m = 200, .k = 600, .n = 600, .batch = 1});
    eg_forward_args limited = f.forward;
    size_t bytes;
    limited.workspace_limit = TOO_LITTLE;
    assert_status(eg_forward_workspace(context, &f.layer, &limited, &bytes), EG_ERR_ARGUMENT);
    limited.workspace_limit = limit_named();
    char before[4096], after[4096];
    assert_ok(eg_forward_plan(context, &f.layer, &f.forward, before, sizeof before));
    assert_ok(eg_forward(context, &f.layer, &limited));
    assert_ok(eg_forward_plan(context, &f.layer, &f.forward, after, sizeof after));
    assert_string_equal(before, after);
    eg_device_info info = {.size = sizeof info};
    assert_ok(eg_get_device_info(context, &info));
    assert_int_equal(info.threads, THREADS);
    fixture_free(&f);
    eg_close(context);
}

/* Where the batch stays together, a d_b for each item of it is added up at once: for a d_a that is summed
 * over the batch. A pack of all of it is read item by item. */
static void sums_of_a_batch_that_stays_together(void **state) {
    (void)state;
    eg_context *context = open_cpu(2);
    for (int i = 0; i < 4; i++) {
        const check_case c = {.backward = true,
                              .dtype = EG_BF16,
                              .m = 300,
                              .k = 20,
                              .n = 30,
                              .batch = 3,
                              .present = CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_GRAD) |
                                         CHECK_BIT(CHECK_D_A) | CHECK_BIT(CHECK_D_B),
                              .shared = i < 2 ? CHECK_BIT(CHECK_D_A) : 0,
                              .accumulate = i % 2 == 1,
                              .own_workspace = true,
                              .limit = CHECK_LIMIT_LEAST,
                              .pack = i < 2 ? CHECK_PACK_NONE : CHECK_PACK_ALONE,
                              .seed = 1};
        check_report report;
        if (check_run(context, &c, &report) != CHECK_PASSED) fail_msg("%s", report.message);
        assert_true(report.chunks);
    }
    eg_close(context);
}

/* Rows that the chunks of a text have room for, but for those that the last of each item has too many. */
static int rows_in_text(const char *text, int batch) {
    int rows = 0, chunks = 0, m = 0, items = 0, workspace = 0;
    assert_int_equal(sscanf(text, "chunks of %d rows x %d  M=%d batch=%d  workspace %d bytes", &rows, &chunks,
                            &m, &items, &workspace),
                     5);
    assert_true(rows > 0 && items == batch && workspace > 0);
    assert_int_equal(chunks, items * ((m + rows - 1) / rows));
    return m * items;
}

static void the_text_says_how_many(void **state) {
    (void)state;
    eg_context *context = open_cpu(2);
    fixture f;
    fixture_make(&f, (eg_layer){.m = 1000, .k = 30, .n = 20, .batch = 1, .activation = EG_ACT_GELU});
    char text[4096], line[64];
    f.backward.workspace_limit = 1;
    assert_status(eg_backward_plan(context, &f.layer, &f.backward, text, sizeof text), EG_ERR_ARGUMENT);
    f.backward.workspace_limit = f.forward.workspace_limit = limit_named();
    assert_ok(eg_backward_plan(context, &f.layer, &f.backward, text, sizeof text));
    assert_int_equal(rows_in_text(text, 1), 1000);
    snprintf(line, sizeof line, "\nbackward f32 gelu recompute  M=%d ", atoi(text + strlen("chunks of ")));
    assert_non_null(strstr(text, line));
    assert_ok(eg_backward_plan(context, &f.layer, &f.backward, line, sizeof line));
    assert_memory_equal(text, line, sizeof line - 1);
    assert_ok(eg_forward_plan(context, &f.layer, &f.forward, text, sizeof text));
    f.layer.batch = 3;
    f.backward.workspace_limit = 1;
    assert_status(eg_backward_plan(context, &f.layer, &f.backward, text, sizeof text), EG_ERR_ARGUMENT);
    f.backward.workspace_limit = limit_named();
    assert_ok(eg_backward_plan(context, &f.layer, &f.backward, text, sizeof text));
    assert_int_equal(rows_in_text(text, 3), 3000);
    fixture_free(&f);
    eg_close(context);
}

/* ---- Calls seen before -------------------------------------------------------------------------- */

static void assert_same_chunks(const eg_low_memory *x, const eg_low_memory *y) {
    assert_true(x->items == y->items && x->rows == y->rows && x->in_result == y->in_result);
    assert_true(x->workspace == y->workspace && x->threads == y->threads);
}

/* More calls than are kept, again and again, with limits of their own; wherever their operands are. */
static void a_call_seen_before_has_its_chunks(void **state) {
    (void)state;
    eg_context *context = open_cpu(3);
    for (int i = 0; i < 100; i++) {
        eg_problem problem = problem_of(&samples[i % (int)LENGTH(samples)]);
        const size_t least = least_limit(&context->caps, &problem);
        eg_low_memory made, recalled, elsewhere;
        for (int j = 0; j < 3; j++) {
            const size_t limit = least * (size_t)(1 + (i + j) % 3);
            assert_ok(eg_low_memory_make(&context->caps, &problem, limit, &made));
            assert_ok(eg_low_memory_find(context, &problem, limit, &recalled));
            assert_same_chunks(&made, &recalled);
        }
        problem.operands[EG_OP_GRAD].data = (char *)problem.operands[EG_OP_GRAD].data + 256;
        assert_ok(eg_low_memory_find(context, &problem, least * (size_t)(1 + (i + 2) % 3), &elsewhere));
        assert_same_chunks(&made, &elsewhere);
        assert_ok(eg_low_memory_find(context, &problem, 0, &elsewhere));
        assert_true(elsewhere.rows == elsewhere.problem.m && elsewhere.items == elsewhere.problem.batch);
    }
    eg_close(context);
}

static void a_refused_limit_is_refused_again(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    const eg_problem problem = problem_of(&samples[0]);
    const size_t least = least_limit(&context->caps, &problem);
    eg_low_memory chunks;
    for (int i = 0; i < 3; i++) {
        assert_status(eg_low_memory_find(context, &problem, least - 1, &chunks), EG_ERR_ARGUMENT);
        assert_ok(eg_low_memory_find(context, &problem, least, &chunks));
    }
    eg_close(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_limit_is_one_chunk),
        cmocka_unit_test(every_limit_is_kept),
        cmocka_unit_test(no_thread_is_left_out),
        cmocka_unit_test(chunks_grow_step_by_step),
        cmocka_unit_test(the_last_chunk_finds_room),
        cmocka_unit_test(every_chunk_finds_room),
        cmocka_unit_test(a_summed_d_a_keeps_the_batch_together),
        cmocka_unit_test(regions_are_what_is_kept),
        cmocka_unit_test(sums_in_d_b_double_the_rows),
        cmocka_unit_test(its_sums_are_the_same_wherever_d_b_begins),
        cmocka_unit_test(the_text_says_where_sums_are),
        cmocka_unit_test(other_calls_keep_their_threads),
        cmocka_unit_test(sums_of_a_batch_that_stays_together),
        cmocka_unit_test(the_text_says_how_many),
        cmocka_unit_test(a_call_seen_before_has_its_chunks),
        cmocka_unit_test(a_refused_limit_is_refused_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
