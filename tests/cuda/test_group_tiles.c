/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped layers of many tiles: a block makes several, one after the other, full ones and others, of groups of
 * any number of rows. Sums of small whole numbers are exact in any order, so they have the bits of a kernel
 * whose blocks make one tile each. */
#include "needs_device.h"

enum { GROUPS = 24, K = 264, N = 1032, MOST_ROWS = GROUPS * 300, VALUES = 3 };
enum { A, B, BIAS, GRAD, PRE, OUT, SECOND, SUMS, OPERANDS };

typedef struct grouped_case {
    int64_t rows;
    int32_t ends[GROUPS];
} grouped_case;

typedef enum call { FORWARD, CHAIN, PRODUCT, OF_GROUP } call;

static uint32_t draw(uint32_t *seed, uint32_t below) {
    *seed = *seed * 1664525U + 1013904223U;
    return (*seed >> 8) % below;
}

/* Of every six groups one is empty, one has few rows, one whole tiles of 128, and one most of the rows. */
static grouped_case case_of(uint32_t seed) {
    grouped_case c = {0};
    for (int i = 0; i < GROUPS; i++) {
        const uint32_t kind = draw(&seed, 6);
        c.rows += kind == 0   ? 0
                  : kind == 1 ? draw(&seed, 64)
                  : kind == 2 ? 128 * draw(&seed, 4)
                  : kind == 3 ? 200 + draw(&seed, 400)
                              : draw(&seed, 200);
        c.ends[i] = (int32_t)c.rows;
    }
    assert_true(c.rows <= MOST_ROWS);
    return c;
}

static size_t count_of(int operand) {
    switch (operand) {
    case B:
        return (size_t)GROUPS * K * N;
    case BIAS:
    case SUMS:
        return (size_t)GROUPS * N;
    case A:
        return (size_t)MOST_ROWS * K;
    default:
        return (size_t)MOST_ROWS * N;
    }
}

/* -1, 0 and 1 in bf16 or f16; outputs are NaN. */
static void upload(eg_context *context, void *memory, int operand, eg_dtype dtype) {
    const uint16_t one = dtype == EG_BF16 ? 0x3f80 : 0x3c00, of[VALUES] = {one | 0x8000, 0, one};
    const size_t count = count_of(operand);
    uint16_t *host = need_memory(count * sizeof *host);
    uint32_t seed = (uint32_t)operand;
    for (size_t i = 0; i < count; i++) host[i] = operand < OUT ? of[draw(&seed, VALUES)] : 0x7fff;
    assert_ok(eg_upload(context, memory, 0, host, count * sizeof *host));
    free(host);
}

static void run(eg_context *context, const grouped_case *c, call what, eg_layout layout, eg_dtype dtype,
                void *const *memory, void *ends) {
    const eg_layer layer = {.size = sizeof layer,
                            .m = c->rows,
                            .k = what == CHAIN || what == PRODUCT ? N : K,
                            .n = what == CHAIN || what == PRODUCT ? K : N,
                            .groups = GROUPS,
                            .dtype = dtype,
                            .activation = what == FORWARD ? EG_ACT_RELU : EG_ACT_NONE};
    const eg_matrix b = {.data = memory[B], .layout = layout, .batch_stride = (int64_t)K * N};
    if (what == FORWARD) {
        const eg_forward_args args = {.size = sizeof args,
                                      .a = {.data = memory[A]},
                                      .b = b,
                                      .bias = {.data = memory[BIAS]},
                                      .offsets = {.data = ends},
                                      .y = {.data = memory[OUT]},
                                      .pre = {.data = memory[SECOND]}};
        assert_ok(eg_forward(context, &layer, &args));
        return;
    }
    eg_backward_args args = {.size = sizeof args,
                             .a = {.data = memory[A]},
                             .b = b,
                             .grad = {.data = memory[GRAD]},
                             .offsets = {.data = ends}};
    if (what == OF_GROUP) {
        args.d_b = (eg_matrix){.data = memory[OUT], .batch_stride = (int64_t)K * N};
    } else {
        args.d_a.data = memory[OUT];
    }
    if (what == CHAIN)
        args.chain = (eg_chain){.saved = {.data = memory[PRE]},
                                .source = EG_SOURCE_PRE,
                                .activation = EG_ACT_RELU,
                                .d_bias = {.data = memory[SUMS]}};
    assert_ok(eg_backward(context, &layer, &args));
}

/* What the row named writes: the three outputs, one after another. */
static uint16_t *outputs_of(const grouped_case *c, call what, eg_layout layout, eg_dtype dtype,
                            const char *kernel, size_t *bytes) {
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = kernel};
    eg_context *context = NULL;
    void *memory[OPERANDS], *ends;
    assert_ok(eg_open(&info, &context));
    for (int i = 0; i < OPERANDS; i++) {
        assert_ok(eg_alloc(context, count_of(i) * sizeof(uint16_t), &memory[i]));
        upload(context, memory[i], i, dtype);
    }
    assert_ok(eg_alloc(context, sizeof c->ends, &ends));
    assert_ok(eg_upload(context, ends, 0, c->ends, sizeof c->ends));
    run(context, c, what, layout, dtype, memory, ends);
    size_t count = 0;
    uint16_t *outputs = need_memory((count_of(OUT) + count_of(SECOND) + count_of(SUMS)) * sizeof(uint16_t));
    for (int i = OUT; i < OPERANDS; i++) {
        assert_ok(eg_download(context, outputs + count, memory[i], 0, count_of(i) * sizeof(uint16_t)));
        count += count_of(i);
        eg_free(context, memory[i]);
    }
    for (int i = 0; i < OUT; i++) eg_free(context, memory[i]);
    eg_free(context, ends);
    eg_close(context);
    *bytes = count * sizeof(uint16_t);
    return outputs;
}

/* The rows for both types that make a call where B is of a layout. */
static void check(call what, eg_layout layout, const char *const *names) {
    for (int i = 0; i < 8; i++) {
        const grouped_case c = case_of((uint32_t)i / 2 + 1);
        const eg_dtype dtype = i % 2 == 0 ? EG_BF16 : EG_F16;
        const char *type = i % 2 == 0 ? "bf16" : "f16";
        char plain[64], kernel[64];
        size_t bytes;
        snprintf(plain, sizeof plain, "mma_%s_128x128", type);
        uint16_t *wanted = outputs_of(&c, what, layout, dtype, plain, &bytes);
        for (int name = 0; names[name] != NULL; name++) {
            snprintf(kernel, sizeof kernel, "hopper_%s_grouped_%s", type, names[name]);
            uint16_t *got = outputs_of(&c, what, layout, dtype, kernel, &bytes);
            if (memcmp(got, wanted, bytes) != 0) fail_msg("call %d by %s, case %d", (int)what, kernel, i / 2);
            free(got);
        }
        free(wanted);
    }
}

static void rows_of_groups(void **state) {
    static const char *const nn[] = {"nn_128x128", NULL}, *const nt[] = {"nt_128x128", NULL};
    (void)state;
    check(FORWARD, EG_ROW_MAJOR, nn);
    check(FORWARD, EG_COL_MAJOR, nt);
    check(CHAIN, EG_COL_MAJOR, nn); /* B transposed is the right operand */
    check(CHAIN, EG_ROW_MAJOR, nt);
}

static void products_alone(void **state) {
    static const char *const nn[] = {"nn_128x128", "nn_128x256", NULL},
                             *const nt[] = {"nt_128x128", "nt_128x256", NULL},
                             *const tn[] = {"tn_128x128", "tn_128x256", NULL};
    (void)state;
    check(PRODUCT, EG_COL_MAJOR, nn);
    check(PRODUCT, EG_ROW_MAJOR, nt);
    check(OF_GROUP, EG_ROW_MAJOR, tn);
}

int main(void) {
    const int status = status_without("hopper_bf16_grouped_nn_128x128");
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_groups), cmocka_unit_test(products_alone)};
    return status != 0 ? status : cmocka_run_group_tests(tests, NULL, NULL);
}
