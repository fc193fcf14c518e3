/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of two levels on a backend that has one, and does an outer item after the other: on the CPU, which
 * is told that it is one. What it cannot do is refused by name. */
#include "check.h"
#include "support.h"

#include "core/backend.h"

static eg_context *open_of_one_level(void) {
    eg_context *context = open_cpu(2);
    context->caps.one_level = true;
    return context;
}

enum {
    A = CHECK_BIT(CHECK_A),
    B = CHECK_BIT(CHECK_B),
    GRAD = CHECK_BIT(CHECK_GRAD),
    D_A = CHECK_BIT(CHECK_D_A),
    D_B = CHECK_BIT(CHECK_D_B),
    RESIDUAL = CHECK_BIT(CHECK_D_A_RESIDUAL),
    ALL = A | B | GRAD | D_A | D_B | CHECK_BIT(CHECK_D_BIAS),
    B_UP = CHECK_BIT(CHECK_B_UP),
    D_B_UP = CHECK_BIT(CHECK_D_B_UP)
};

/* Three outer items of two. The items of A, B and grad lie as those of attention do: no level is rows. */
static check_case two_levels(eg_dtype dtype, unsigned present) {
    return (check_case){.backward = true,
                        .dtype = dtype,
                        .activation = EG_ACT_GELU,
                        .m = 150, /* of which a chunk could have fewer */
                        .k = 20,
                        .n = 30,
                        .batch = 6,
                        .outer = 3,
                        .present = present,
                        .interleaved = A | GRAD,
                        .gapped = B,
                        .own_workspace = true,
                        .seed = 1};
}

static void passes(eg_context *context, const check_case *c) {
    check_report report;
    if (check_run(context, c, &report) != CHECK_PASSED) fail_msg("%s", report.message);
    assert_true(report.chunks);
}

static const eg_dtype dtypes[] = {EG_F32, EG_F64, EG_F16, EG_BF16};

/* The first outer item writes it, with what it is added to; the others add. */
static void outer_items_add_to_one_d_a(void **state) {
    (void)state;
    eg_context *context = open_of_one_level();
    for (size_t d = 0; d < LENGTH(dtypes); d++) {
        for (int i = 0; i < 16; i++) {
            check_case c = two_levels(dtypes[d], ALL | (i % 2 != 0 ? RESIDUAL : 0));
            c.shared = D_A | (i % 2 != 0 ? RESIDUAL : 0);
            c.d_a_in_place = i % 4 == 3;
            c.limit = (i & 4) != 0 ? CHECK_LIMIT_LEAST : CHECK_LIMIT_NONE;
            c.scale = (i & 8) != 0 ? 0.5 : 0;
            passes(context, &c);
        }
    }
    eg_close(context);
}

/* 2048 + 1 + 1 in f16, where 2049 is rounded to 2048. */
static void the_sum_is_rounded_once(void **state) {
    enum { OUTER = 3, STRIDE = 4 /* of outer items: two levels that no one stride describes */ };
    (void)state;
    eg_context *context = open_of_one_level();
    const float grads[OUTER * STRIDE] = {2048, 0, 0, 0, 1, 0, 0, 0, 1}, one = 1;
    uint16_t grad[OUTER * STRIDE], b, d_a;
    assert_ok(eg_convert(grad, EG_F16, grads, EG_F32, LENGTH(grads)));
    assert_ok(eg_convert(&b, EG_F16, &one, EG_F32, 1));
    eg_layer layer = eg_layer_of(1, 1, 1, EG_ACT_NONE);
    layer.dtype = EG_F16, layer.batch = 2, layer.outer_batch = OUTER;
    eg_backward_args args =
        eg_backward_of(eg_row_major(NULL), eg_row_major(&b), eg_elements(NULL), eg_row_major(grad));
    args.grad.batch_stride = 1, args.outer.grad = STRIDE;
    args.d_a = eg_row_major(&d_a);
    assert_ok(eg_backward(context, &layer, &args));
    float sum = 0;
    assert_ok(eg_convert(&sum, EG_F32, &d_a, EG_F16, 1));
    assert_true(sum == 2050);
    eg_close(context);
}

/* Where the sum can be made in d_a itself. */
static void so_do_both_halves_of_a_gated_unit(void **state) {
    (void)state;
    eg_context *context = open_of_one_level();
    for (int i = 0; i < 4; i++) {
        check_case c = two_levels(i < 2 ? EG_F32 : EG_F64, ALL | B_UP | D_B_UP | (i % 2 != 0 ? RESIDUAL : 0));
        c.gated = true;
        c.shared = D_A | RESIDUAL;
        passes(context, &c);
    }
    eg_close(context);
}

/* An outer item reads its part of the pack: forward, for d_a, and for pre. */
static void packs_are_read_item_by_item(void **state) {
    (void)state;
    eg_context *context = open_of_one_level();
    for (size_t d = 0; d < LENGTH(dtypes); d++) {
        for (int i = 0; i < 16; i++) {
            const bool backward = i % 2 != 0, gated = (i & 2) != 0;
            const unsigned inputs = A | B | (gated ? B_UP : 0);
            check_case c = two_levels(dtypes[d], inputs | (backward ? ALL : CHECK_BIT(CHECK_Y)));
            c.backward = backward;
            c.gated = gated;
            c.gapped = 0; /* a pack is of one level */
            c.pack = (i & 4) != 0 ? CHECK_PACK_ALONE : CHECK_PACK_UPDATED;
            c.limit = (i & 8) != 0 ? CHECK_LIMIT_LEAST : CHECK_LIMIT_NONE;
            passes(context, &c);
        }
    }
    eg_close(context);
}

/* In 16 bits one of its two sums waits for the other one. */
static void that_of_a_gated_unit_in_16_bits_is_refused(void **state) {
    (void)state;
    eg_context *context = open_of_one_level();
    for (size_t d = 0; d < LENGTH(dtypes); d++) {
        check_case c = two_levels(dtypes[d], ALL | B_UP | D_B_UP);
        check_report report;
        if (eg_dtype_size(dtypes[d]) > 2) continue;
        c.gated = true;
        c.shared = D_A;
        assert_int_equal(check_run(context, &c, &report), CHECK_UNSUPPORTED);
        assert_non_null(
            strstr(report.message, "layer.outer_batch is 3 with a d_a of a gated unit in f16 or bf16"));
    }
    eg_close(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outer_items_add_to_one_d_a), cmocka_unit_test(the_sum_is_rounded_once),
        cmocka_unit_test(so_do_both_halves_of_a_gated_unit), cmocka_unit_test(packs_are_read_item_by_item),
        cmocka_unit_test(that_of_a_gated_unit_in_16_bits_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
