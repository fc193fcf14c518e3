/* SPDX-License-Identifier: Apache-2.0 */
/* A d_b of 16 bits half of whose sums over chunks are in d_b's own memory: it is what it is
 * elsewhere, in every mode of the call, and a call that cannot be so takes its chunks as ever. Memory ends at
 * pages that cannot be touched, d_b and the workspace begin as NaN (check.h).
 *
 *     test_sums_in_result [BACKEND] */
#include "check.h"
#include "fixture.h"
#include "open.h"

static eg_backend backend = EG_BACKEND_CPU;
static int candidates, in_result; /* calls that may be, and that were */

static eg_context *open_backend(void) {
    return open_or_skip((eg_open_info){.backend = backend, .threads = 2});
}

/* ---- Cases -------------------------------------------------------------------------------------- */

static const struct {
    eg_activation activation;
    eg_source source;
} modes[] = {{EG_ACT_NONE, EG_SOURCE_RECOMPUTE},
             {EG_ACT_GELU, EG_SOURCE_RECOMPUTE},
             {EG_ACT_SILU, EG_SOURCE_PRE},
             {EG_ACT_TANH, EG_SOURCE_Y}};

static const unsigned outputs[] = {
    CHECK_BIT(CHECK_D_B),
    CHECK_BIT(CHECK_D_B) | CHECK_BIT(CHECK_D_BIAS),
    CHECK_BIT(CHECK_D_B) | CHECK_BIT(CHECK_D_A),
    CHECK_BIT(CHECK_D_B) | CHECK_BIT(CHECK_D_A) | CHECK_BIT(CHECK_D_BIAS) | CHECK_BIT(CHECK_BELOW) |
        CHECK_BIT(CHECK_D_BIAS_BELOW),
};

/* One matrix; a batch that is folded into rows; one that is not; and one that stays together. */
typedef enum batch_kind { SINGLE, FOLDED, APART, TOGETHER, BATCH_KINDS } batch_kind;

static void set_batch(batch_kind kind, check_case *c) {
    c->batch = kind == SINGLE ? 1 : 2;
    c->shared = CHECK_BIT(CHECK_D_B) | (kind == FOLDED ? CHECK_BIT(CHECK_B) : 0);
    if (kind == APART) c->gapped = CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_GRAD);
    const bool chained = (c->present & CHECK_BIT(CHECK_BELOW)) != 0;
    if (kind == TOGETHER && !chained) c->shared |= CHECK_BIT(CHECK_D_A);
    if (kind == TOGETHER) c->k *= 2; /* beside the grad_pre of two items */
}

/* Three chunks an item at the least limit, the last of few rows. K is large beside a chunk, so that half of
 * d_b is more than the grad_pre of one; and where operands are not packed M beside K, so that grad_pre is
 * more than that half. */
static check_case case_of(int mode, int wanted, batch_kind kind, unsigned flags) {
    const bool odd = (flags & 8) != 0, by_columns = (flags & 4) != 0;
    check_case c = {.backward = true,
                    .dtype = (flags & 1) != 0 && backend != EG_BACKEND_WEBGPU ? EG_BF16 : EG_F16,
                    .activation = modes[mode].activation,
                    .source = modes[mode].source,
                    .m = backend == EG_BACKEND_CPU ? 130 : 700,
                    .k = 290 + odd,
                    .n = (by_columns ? 26 : 10) + odd,
                    .present = CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_GRAD) |
                               CHECK_BIT(CHECK_BIAS) | outputs[wanted],
                    .below_activation = EG_ACT_SIGMOID,
                    .below_source = EG_SOURCE_Y,
                    .own_workspace = true,
                    .limit = CHECK_LIMIT_LEAST,
                    .data = (check_data)((unsigned)(mode + wanted) % CHECK_DATAS),
                    .seed = 1 + flags};
    if (c.source != EG_SOURCE_RECOMPUTE) c.present |= CHECK_BIT(CHECK_SAVED);
    if ((flags & 2) != 0) c.offset = CHECK_BIT(CHECK_D_B);
    if (by_columns) c.col_major = CHECK_BIT(CHECK_D_B) | CHECK_BIT(CHECK_B);
    c.accumulate = (flags & 16) != 0;
    set_batch(kind, &c);
    return c;
}

static bool runs(eg_context *context, const check_case *c, check_report *report) {
    const check_result result = check_run(context, c, report);
    if (result == CHECK_FAILED) fail_msg("%s", report->message);
    return result == CHECK_PASSED;
}

/* Whether a call that may be so is depends on what its kernels need beside. */
static void check_sums(eg_context *context, const check_case *c, bool may_be) {
    char text[512];
    check_report report;
    if (!runs(context, c, &report)) return;
    check_describe(c, text, sizeof text);
    candidates += may_be;
    in_result += report.in_result;
    if (report.in_result && !may_be) fail_msg("sums in d_b: %s", text);
}

/* ---- Tests -------------------------------------------------------------------------------------- */

/* Data types, where d_b begins, layouts, odd sizes and whether it is added to: by the bits of `flags`. */
enum { FLAGS = 32 };

/* By steps of 5 each flag is set and not, and any two meet in all four ways, or in three. */
static unsigned next_flags(void) { return short_run() ? 5 : 1; }

static void every_mode(void **state) {
    (void)state;
    eg_context *context = open_backend();
    const int step = short_run() ? 61 : 11; /* odd, as all else is powers of two */
    const int count = (int)(LENGTH(modes) * LENGTH(outputs) * BATCH_KINDS * FLAGS);
    for (int i = 0; i < count; i += step) {
        const int flags = i % FLAGS, kind = i / FLAGS % BATCH_KINDS, rest = i / FLAGS / BATCH_KINDS;
        const check_case c =
            case_of(rest % (int)LENGTH(modes), rest / (int)LENGTH(modes), (batch_kind)kind, (unsigned)flags);
        check_sums(context, &c, true);
    }
    eg_close(context);
}

/* The caller's own pack, grad_pre without an activation (apart from grad, and in its memory), and a workspace
 * of the context's. */
static void every_option(void **state) {
    (void)state;
    eg_context *context = open_backend();
    for (unsigned flags = 0; flags < FLAGS; flags += next_flags()) {
        check_case c = case_of(1, 3, SINGLE, flags);
        c.pack = CHECK_PACK_ALONE;
        c.own_workspace = false;
        check_sums(context, &c, true);
        c = case_of(0, 2, SINGLE, flags);
        c.present |= CHECK_BIT(CHECK_GRAD_PRE);
        check_sums(context, &c, true);
        c.in_place = true;
        check_sums(context, &c, true);
    }
    eg_close(context);
}

/* Products of the CPU read grad_pre in f32, so one that the caller has in 16 bits does not serve them. */
static void grad_pre_of_the_caller(void **state) {
    (void)state;
    eg_context *context = open_backend();
    for (unsigned flags = 0; flags < FLAGS; flags += next_flags()) {
        check_case c = case_of(1, 2, SINGLE, flags);
        c.present |= CHECK_BIT(CHECK_GRAD_PRE);
        check_sums(context, &c, backend == EG_BACKEND_CUDA);
    }
    eg_close(context);
}

/* A d_b that has gaps, is of each item, is in f32 anyway, or too small. */
static void as_ever_where_it_cannot_be(void **state) {
    (void)state;
    eg_context *context = open_backend();
    for (unsigned flags = 0; flags < FLAGS; flags += next_flags()) {
        check_case c = case_of(1, 3, SINGLE, flags);
        c.padded = CHECK_BIT(CHECK_D_B);
        check_sums(context, &c, false);
        c = case_of(1, 3, APART, flags);
        c.shared &= ~CHECK_BIT(CHECK_D_B);
        check_sums(context, &c, false);
        c = case_of(1, 3, SINGLE, flags);
        c.wide = true;
        check_sums(context, &c, false);
        c = case_of(0, 0, SINGLE, flags);
        c.k = c.n = 8;
        check_sums(context, &c, false);
    }
    eg_close(context);
}

/* Half of d_b is more than a chunk needs: it leaves its memory in pieces, the last of fewer lines. */
static void in_pieces(void **state) {
    (void)state;
    eg_context *context = open_backend();
    for (unsigned flags = 0; flags < FLAGS; flags += short_run() ? 31 : 5) {
        check_case c = case_of(0, 0, SINGLE, flags);
        c.m += 150;
        c.k += 180;
        c.n += 420;
        check_sums(context, &c, true);
    }
    eg_close(context);
}

/* Run twice, and with other threads. */
static void same_bits(void **state) {
    (void)state;
    if (backend != EG_BACKEND_CPU) return;
    static const int threads[] = {1, 1, 2, 5, 64};
    unsigned char *first = NULL;
    fixture f;
    fixture_make(
        &f, (eg_layer){.m = 700, .k = 400, .n = 60, .batch = 1, .dtype = EG_BF16, .activation = EG_ACT_GELU});
    f.backward.grad_pre.data = NULL;
    for (size_t i = 0; i < LENGTH(threads); i++) {
        eg_context *context = open_cpu(threads[i]);
        char text[1024];
        f.backward.workspace_limit = 1;
        assert_status(eg_backward_plan(context, &f.layer, &f.backward, text, sizeof text), EG_ERR_ARGUMENT);
        f.backward.workspace_limit = (size_t)strtoull(strstr(eg_last_error(), "at least ") + 9, NULL, 10);
        assert_ok(eg_backward_plan(context, &f.layer, &f.backward, text, sizeof text));
        assert_non_null(strstr(text, "in its own memory"));
        fixture_poison(&f);
        assert_ok(eg_backward(context, &f.layer, &f.backward));
        if (first == NULL) first = memcpy(need_memory(f.output_bytes), f.outputs, f.output_bytes);
        assert_memory_equal(f.outputs, first, f.output_bytes);
        eg_close(context);
    }
    free(first);
    fixture_free(&f);
}

/* How many depends on the ways that the processor's estimates choose. */
static void many_were(void **state) {
    (void)state;
    printf("%d of %d calls with sums in d_b\n", in_result, candidates);
    assert_true(4 * in_result > candidates);
}

int main(int argc, char **argv) {
    for (int i = EG_BACKEND_CPU; i <= EG_BACKEND_WEBGPU && argc > 1; i++) {
        if (strcmp(argv[1], eg_backend_name((eg_backend)i)) == 0) backend = (eg_backend)i;
    }
    eg_close(open_backend());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mode),
        cmocka_unit_test(every_option),
        cmocka_unit_test(grad_pre_of_the_caller),
        cmocka_unit_test(as_ever_where_it_cannot_be),
        cmocka_unit_test(in_pieces),
        cmocka_unit_test(same_bits),
        cmocka_unit_test(many_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
