/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the check can fail: calls that are wrong in one thing, by way of the linker, which puts these
 * functions in front of the library's (tests/CMakeLists.txt). */
#include "check.h"
#include "support.h"

/* ---- A library with a fault --------------------------------------------------------------------- */

typedef struct call {
    eg_layer layer;
    eg_forward_args forward;
    eg_backward_args backward;
} call;

/* What is done to a call before it is made, and to the memory after. */
typedef struct fault {
    const char *name, *message; /* what the report has to say */
    void (*before)(call *c), (*after)(const call *c);
    bool no_update;     /* eg_packed_update does nothing */
    bool ignores_limit; /* eg_*_workspace says more */
    int only;           /* 1 or 2: the case's first or second call alone; 0: both */
    eg_status status;   /* instead of a call */
} fault;

static const fault *current;
static int calls;

static bool is_faulty(void) {
    calls++;
    return current != NULL && (current->only == 0 || current->only == calls);
}

#define REAL(name) __real_##name
#define FAKE(name) __wrap_##name
#define IN_FRONT(name, ...)                                                                                  \
    eg_status REAL(name)(__VA_ARGS__);                                                                       \
    eg_status FAKE(name)(__VA_ARGS__);                                                                       \
    eg_status FAKE(name)(__VA_ARGS__)

IN_FRONT(eg_forward, eg_context *context, const eg_layer *layer, const eg_forward_args *args) {
    call c = {.layer = *layer, .forward = *args};
    const bool faulty = is_faulty();
    if (faulty && current->status != EG_OK) return current->status;
    if (faulty && current->before != NULL) current->before(&c);
    const eg_status status = REAL(eg_forward)(context, &c.layer, &c.forward);
    if (faulty && current->after != NULL) current->after(&c);
    return status;
}

IN_FRONT(eg_backward, eg_context *context, const eg_layer *layer, const eg_backward_args *args) {
    call c = {.layer = *layer, .backward = *args};
    const bool faulty = is_faulty();
    if (faulty && current->before != NULL) current->before(&c);
    const eg_status status = REAL(eg_backward)(context, &c.layer, &c.backward);
    if (faulty && current->after != NULL) current->after(&c);
    return status;
}

IN_FRONT(eg_packed_update, eg_context *context, eg_packed *packed, const eg_matrix *b) {
    if (current != NULL && current->no_update) return EG_OK;
    return REAL(eg_packed_update)(context, packed, b);
}

IN_FRONT(eg_forward_workspace, eg_context *context, const eg_layer *layer, const eg_forward_args *args,
         size_t *bytes) {
    const eg_status status = REAL(eg_forward_workspace)(context, layer, args, bytes);
    if (current != NULL && current->ignores_limit && args->workspace_limit > 0)
        *bytes = args->workspace_limit + 1;
    return status;
}

static bool is_device; /* memory comes from eg_alloc, and has no pages around it */

IN_FRONT(eg_get_device_info, const eg_context *context, eg_device_info *info) {
    const eg_status status = REAL(eg_get_device_info)(context, info);
    if (is_device) info->backend = EG_BACKEND_CUDA;
    return status;
}

/* ---- Faults ------------------------------------------------------------------------------------- */

static float *number(const eg_matrix *x, int64_t index) {
    return (float *)(void *)((char *)x->data + x->offset) + index;
}

static float *last_of(const eg_matrix *x, int64_t rows, int64_t cols, int64_t batch) {
    const int64_t ld = x->ld != 0 ? x->ld : cols;
    return number(x, (batch - 1) * x->batch_stride + (rows - 1) * ld + cols - 1);
}

static float *last_y(const call *c) { return last_of(&c->forward.y, c->layer.m, c->layer.n, c->layer.batch); }

static float *last_of_vector(const eg_vector *x, int64_t count) {
    return (float *)(void *)((char *)x->data + x->offset) + count - 1;
}

#define AFTER(name, what)                                                                                    \
    static void name(const call *c) { what; }
#define BEFORE(name, what)                                                                                   \
    static void name(call *c) { what; }

AFTER(y_is_off, *last_y(c) += *last_y(c) != 0 ? *last_y(c) * 0x1p-23F : 0x1p-149F)
AFTER(y_is_nan, memset(last_y(c), 0xff, sizeof(float)))
AFTER(pre_is_off, *last_of(&c->forward.pre, c->layer.m, c->layer.n, c->layer.batch) += 1)
AFTER(y_runs_over, *number(&c->forward.y, c->layer.n) = 0)
AFTER(y_runs_past_its_end, last_y(c)[1] = 0)
AFTER(y_runs_before_its_start, *number(&c->forward.y, -1) = 0)
AFTER(d_bias_runs_past_its_end, last_of_vector(&c->backward.d_bias, c->layer.n)[1] = 0)
AFTER(a_runs_past_its_end, *(last_of(&c->forward.a, c->layer.m, c->layer.k, c->layer.batch) + 1) = 0)
AFTER(y_fills_gaps, *number(&c->forward.y, c->forward.y.batch_stride - 1) = 0)
AFTER(a_is_written, *number(&c->forward.a, 0) = 7)
AFTER(bias_is_written, *last_of_vector(&c->forward.bias, c->layer.n) = 7)
AFTER(workspace_runs_over,
      ((char *)c->forward.workspace.data)[c->forward.workspace.offset + c->forward.workspace.bytes] = 0)
AFTER(workspace_runs_under, ((char *)c->forward.workspace.data)[c->forward.workspace.offset - 1] = 0)
AFTER(d_a_is_off, *last_of(&c->backward.d_a, c->layer.m, c->layer.k, c->layer.batch) += 1)
AFTER(d_b_is_off, *last_of(&c->backward.d_b, c->layer.k, c->layer.n, c->layer.batch) += 1)
AFTER(d_bias_is_off, *last_of_vector(&c->backward.d_bias, c->layer.n) += 1)
AFTER(grad_pre_is_off, *last_of(&c->backward.grad_pre, c->layer.m, c->layer.n, c->layer.batch) += 1)
AFTER(below_is_off, *last_of_vector(&c->backward.chain.d_bias, c->layer.k) += 1)
BEFORE(does_nothing, c->layer.m = 0)
BEFORE(reads_b_not_the_pack, (c->forward.packed_b = NULL, c->forward.workspace.data = NULL))
BEFORE(forgets_to_add, c->backward.accumulate = 0)
BEFORE(forgets_the_bias, c->forward.bias.data = NULL)
BEFORE(forgets_nonfinite, c->layer.nonfinite = EG_NONFINITE_ZERO)
BEFORE(forgets_the_chain, c->backward.chain = (eg_chain){.source = EG_SOURCE_RECOMPUTE})

/* ---- The cases ---------------------------------------------------------------------------------- */

enum { INPUTS = CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_BIAS) };

/* Of small integers, so that pre is known exactly. */
static check_case forward_case(void) {
    return (check_case){.dtype = EG_F32,
                        .m = 5,
                        .k = 7,
                        .n = 6,
                        .batch = 2,
                        .present = INPUTS | CHECK_BIT(CHECK_Y) | CHECK_BIT(CHECK_PRE),
                        .padded = CHECK_BIT(CHECK_Y),
                        .gapped = CHECK_BIT(CHECK_Y),
                        .own_workspace = true,
                        .data = CHECK_DATA_INTEGERS,
                        .seed = 3};
}

static check_case backward_case(void) {
    check_case c = forward_case();
    c.backward = true;
    c.activation = EG_ACT_RELU;
    c.below_activation = EG_ACT_RELU;
    c.below_source = EG_SOURCE_PRE;
    c.accumulate = true;
    c.present = INPUTS | CHECK_BIT(CHECK_GRAD) | CHECK_BIT(CHECK_BELOW) | CHECK_BIT(CHECK_D_A) |
                CHECK_BIT(CHECK_D_B) | CHECK_BIT(CHECK_D_BIAS) | CHECK_BIT(CHECK_GRAD_PRE) |
                CHECK_BIT(CHECK_D_BIAS_BELOW);
    return c;
}

static check_result run(const check_case *c, const fault *wrong, check_report *report) {
    eg_context *context = open_cpu(1);
    current = wrong;
    calls = 0;
    const check_result result = check_run(context, c, report);
    current = NULL;
    eg_close(context);
    return result;
}

static void assert_caught(const check_case *c, const fault *wrong) {
    check_report report;
    if (run(c, NULL, &report) != CHECK_PASSED) fail_msg("without a fault: %s", report.message);
    if (run(c, wrong, &report) != CHECK_FAILED) fail_msg("%s: not noticed", wrong->name);
    if (strstr(report.message, wrong->message) == NULL) fail_msg("%s: %s", wrong->name, report.message);
}

static void wrong_forward_calls_are_caught(void **state) {
    (void)state;
    static const fault faults[] = {
        {.name = "y is off", .message = "y[1,4,5] is", .after = y_is_off},
        {.name = "y is off, in the first place", .message = "y[1,4,5] is", .after = y_is_off, .only = 1},
        {.name = "y is off, in the second place", .message = "y[1,4,5] is", .after = y_is_off, .only = 2},
        {.name = "y is NaN", .message = "y[1,4,5] is", .after = y_is_nan},
        {.name = "pre is off", .message = "pre[1,4,5] is", .after = pre_is_off},
        {.name = "y runs over a row", .message = "y: byte", .after = y_runs_over},
        {.name = "y fills what lies between items", .message = "y: byte", .after = y_fills_gaps},
        {.name = "a is written", .message = "a: byte", .after = a_is_written},
        {.name = "bias is written", .message = "bias: byte", .after = bias_is_written},
        {.name = "past the workspace", .message = "around the workspace", .after = workspace_runs_over},
        {.name = "before it", .message = "around the workspace", .after = workspace_runs_under, .only = 1},
        {.name = "nothing is done", .message = "y[0,0,0] is", .before = does_nothing},
        {.name = "the bias is forgotten", .message = "y[0,0,", .before = forgets_the_bias},
        {.name = "a call fails", .message = "EG_ERR_DEVICE", .status = EG_ERR_DEVICE},
    };
    const check_case c = forward_case();
    for (size_t i = 0; i < LENGTH(faults); i++) assert_caught(&c, &faults[i]);
}

static void wrong_backward_calls_are_caught(void **state) {
    (void)state;
    static const fault faults[] = {
        {.name = "d_a is off", .message = "d_a[1,4,6] is", .after = d_a_is_off},
        {.name = "d_b is off", .message = "d_b[1,6,5] is", .after = d_b_is_off},
        {.name = "d_bias is off", .message = "d_bias[0,0,5] is", .after = d_bias_is_off},
        {.name = "grad_pre is off", .message = "grad_pre[1,4,5] is", .after = grad_pre_is_off},
        {.name = "chain.d_bias is off", .message = "chain.d_bias[0,0,6] is", .after = below_is_off},
        {.name = "nothing is added to", .message = "d_b[0,0,", .before = forgets_to_add},
        {.name = "the chain is forgotten", .message = "d_a[0,", .before = forgets_the_chain},
    };
    const check_case c = backward_case();
    for (size_t i = 0; i < LENGTH(faults); i++) assert_caught(&c, &faults[i]);
}

/* Where no page around an operand ends the program. */
static void what_lies_around_a_result_on_a_device_is_watched(void **state) {
    (void)state;
    static const fault forward[] = {
        {.name = "y runs over a row", .message = "y: byte", .after = y_runs_over},
        {.name = "y fills what lies between items", .message = "y: byte", .after = y_fills_gaps},
        {.name = "y runs past its end", .message = "y: byte", .after = y_runs_past_its_end},
        {.name = "y runs before its start", .message = "y: byte", .after = y_runs_before_its_start},
        {.name = "a runs past its end", .message = "a: byte", .after = a_runs_past_its_end}};
    static const fault backward = {
        .name = "d_bias runs past its end", .message = "d_bias: byte", .after = d_bias_runs_past_its_end};
    check_case c = forward_case();
    c.offset = CHECK_BIT(CHECK_Y);
    is_device = true;
    for (size_t i = 0; i < LENGTH(forward); i++) assert_caught(&c, &forward[i]);
    c = backward_case();
    assert_caught(&c, &backward);
    is_device = false;
}

static void wrong_packs_and_limits_are_caught(void **state) {
    (void)state;
    static const fault stale = {.name = "no update", .message = "y[0,", .no_update = true},
                       other = {.name = "b, not the pack", .message = "y[0,", .before = reads_b_not_the_pack},
                       large = {.name = "past the limit", .message = "workspace of", .ignores_limit = true};
    check_case c = forward_case();
    c.pack = CHECK_PACK_UPDATED;
    assert_caught(&c, &stale);
    c.pack = CHECK_PACK_COPY;
    assert_caught(&c, &other);
    c.pack = CHECK_PACK_NONE;
    c.limit = CHECK_LIMIT_LEAST;
    assert_caught(&c, &large);
}

/* act'(NaN) that is 0 where it has to be NaN. */
static void a_hidden_nan_is_caught(void **state) {
    (void)state;
    static const fault hides = {.name = "hides NaN", .message = "expected ", .before = forgets_nonfinite};
    check_case c = backward_case();
    c.data = CHECK_DATA_NONFINITE;
    c.nonfinite = EG_NONFINITE_PROPAGATE;
    int caught = 0;
    for (c.seed = 1; c.seed < 9; c.seed++) {
        check_report report;
        if (run(&c, NULL, &report) != CHECK_PASSED) fail_msg("without a fault: %s", report.message);
        caught += run(&c, &hides, &report) == CHECK_FAILED;
    }
    assert_true(caught > 0);
}

static void what_is_unsupported_is_neither(void **state) {
    (void)state;
    static const fault refuses = {.status = EG_ERR_UNSUPPORTED};
    const check_case c = forward_case();
    check_report report;
    assert_int_equal(run(&c, &refuses, &report), CHECK_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_forward_calls_are_caught),
        cmocka_unit_test(wrong_backward_calls_are_caught),
        cmocka_unit_test(what_lies_around_a_result_on_a_device_is_watched),
        cmocka_unit_test(wrong_packs_and_limits_are_caught),
        cmocka_unit_test(a_hidden_nan_is_caught),
        cmocka_unit_test(what_is_unsupported_is_neither),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
