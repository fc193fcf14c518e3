/* SPDX-License-Identifier: Apache-2.0 */
/* Packs: what they refuse, and which layers they fit. */
#include "refused.h"

static void packs_refuse(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    fixture f;
    fixture_make(&f, small_layer());
    const eg_matrix b = f.forward.b, absent = {.data = NULL};
    eg_packed *packed = (eg_packed *)(void *)&f; /* whoever is refused a pack is not left with another */
    assert_refused(eg_pack_b(NULL, &f.layer, &b, &packed), "context", "NULL", "expected");
    assert_refused(eg_pack_b(context, NULL, &b, &packed), "layer", "NULL", "expected");
    assert_refused(eg_pack_b(context, &f.layer, NULL, &packed), "b", "NULL", "expected");
    assert_refused(eg_pack_b(context, &f.layer, &b, NULL), "packed", "NULL", "expected");
    assert_refused(eg_pack_b(context, &f.layer, &absent, &packed), "b is absent", "NULL", "7 x 6");
    eg_matrix narrow = b;
    narrow.ld = 5;
    assert_refused(eg_pack_b(context, &f.layer, &narrow, &packed), "b.ld", "5", "expected at least 6");
    assert_null(packed);

    assert_ok(eg_pack_b(context, &f.layer, &b, &packed));
    assert_refused(eg_packed_update(NULL, packed, &b), "context", "NULL", "expected");
    assert_refused(eg_packed_update(context, NULL, &b), "packed", "NULL", "expected");
    assert_refused(eg_packed_update(context, packed, NULL), "b", "NULL", "expected");
    assert_refused(eg_packed_update(context, packed, &narrow), "b.ld", "5", "expected at least 6");
    eg_matrix shared = b;
    shared.batch_stride = 0;
    assert_refused(eg_packed_update(context, packed, &shared), "b.batch_stride", "0", "expected a batch");
    eg_context *other = open_cpu(1);
    assert_refused(eg_packed_update(other, packed, &b), "packed belongs to another context", "", "expected");
    eg_close(other);
    eg_packed_free(context, packed);
    fixture_free(&f);
    eg_close(context);
}

/* The message says what the pack is of, and what the call expected. */
static void check_misfit(eg_context *context, const fixture *f, const eg_packed *packed, eg_layer layer,
                         const char *is, const char *expected) {
    eg_forward_args args = f->forward;
    args.packed_b = packed;
    args.b.data = NULL;
    assert_refused(eg_forward(context, &layer, &args), "packed_b", is, expected);
    assert_true(fixture_untouched(f));
}

/* A pack serves layers that agree in k, n, batch, dtype and math; m is free. */
static void packs_fit_their_layer(void **state) {
    (void)state;
    eg_context *context = open_cpu(1), *other = open_cpu(1);
    fixture f;
    fixture_make(&f, small_layer());
    fixture_poison(&f);
    eg_packed *packed = NULL;
    assert_ok(eg_pack_b(context, &f.layer, &f.forward.b, &packed));
    check_misfit(other, &f, packed, f.layer, "another context", "expected one");
    eg_layer layer = f.layer;
    layer.k = 6;
    check_misfit(context, &f, packed, layer, "a 7 x 6", "expected 6 x 6");
    layer = f.layer;
    layer.n = 5;
    check_misfit(context, &f, packed, layer, "a 7 x 6", "expected 7 x 5");
    layer = f.layer;
    layer.batch = 1;
    check_misfit(context, &f, packed, layer, "batch 2", "f32, batch 1");
    layer = f.layer;
    layer.dtype = EG_F16;
    check_misfit(context, &f, packed, layer, "f32 b", "7 x 6 f16");
    layer = f.layer;
    layer.math = EG_MATH_STRICT;
    check_misfit(context, &f, packed, layer, "math default", "math strict");
    layer = f.layer;
    layer.m = 3;
    f.forward.packed_b = packed;
    assert_ok(eg_forward(context, &layer, &f.forward));
    eg_packed_free(context, packed);
    fixture_free(&f);
    eg_close(other);
    eg_close(context);
}

/* A b without a batch stride is one matrix for any batch; one with a stride fits the batch it was packed for.
 */
static void packs_fit_their_batch(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    fixture f;
    fixture_make(&f, small_layer());
    f.forward.pre.data = NULL;
    for (int64_t batch = 0; batch < 3; batch++) {
        eg_layer layer = f.layer;
        layer.batch = batch;
        eg_matrix b = f.forward.b;
        eg_packed *packed = NULL;
        assert_ok(eg_pack_b(context, &layer, &b, &packed));
        layer.batch = batch < 2 ? 2 : 1; /* 0 means 1 */
        fixture_poison(&f);
        check_misfit(context, &f, packed, layer, "batch", "expected");
        eg_packed_free(context, packed);

        b.batch_stride = 0;
        layer.batch = batch;
        assert_ok(eg_pack_b(context, &layer, &b, &packed));
        eg_forward_args args = f.forward;
        args.b = b;
        fixture_poison(&f);
        assert_ok(eg_forward(context, &f.layer, &args));
        unsigned char *expected = need_memory(f.output_bytes);
        memcpy(expected, f.outputs, f.output_bytes);
        args.b.data = NULL;
        args.packed_b = packed;
        fixture_poison(&f);
        assert_ok(eg_forward(context, &f.layer, &args));
        assert_memory_equal(f.outputs, expected, f.output_bytes);
        free(expected);
        eg_packed_free(context, packed);
    }
    fixture_free(&f);
    eg_close(context);
}

/* A b beside its pack is not read, but it says the same of the batch. */
static void a_b_beside_its_pack_agrees_with_it(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    fixture f;
    fixture_make(&f, small_layer());
    fixture_poison(&f);
    for (int shared = 0; shared < 2; shared++) {
        const int64_t each = f.layer.k * f.layer.n, is = shared ? 0 : each, other = shared ? each : 0;
        eg_matrix b = f.forward.b;
        b.batch_stride = is;
        eg_packed *packed = NULL;
        assert_ok(eg_pack_b(context, &f.layer, &b, &packed));
        eg_forward_args forward = f.forward;
        eg_backward_args backward = f.backward;
        forward.packed_b = backward.packed_b = packed;
        forward.b.batch_stride = backward.b.batch_stride = other;
        const char *expected = shared ? "expected 0" : "expected a batch";
        char value[32];
        snprintf(value, sizeof value, "%lld", (long long)other);
        fixture_poison(&f);
        assert_refused(eg_forward(context, &f.layer, &forward), "b.batch_stride", value, expected);
        assert_refused(eg_backward(context, &f.layer, &backward), "b.batch_stride", value, expected);
        assert_true(fixture_untouched(&f));
        forward.b.batch_stride = backward.b.batch_stride = is;
        assert_ok(eg_forward(context, &f.layer, &forward));
        assert_ok(eg_backward(context, &f.layer, &backward));
        eg_packed_free(context, packed);
    }
    /* Of one item, either is the same. */
    eg_layer one = f.layer;
    one.batch = 1;
    eg_packed *packed = NULL;
    assert_ok(eg_pack_b(context, &one, &f.forward.b, &packed));
    f.forward.packed_b = packed;
    f.forward.b.batch_stride = 0;
    assert_ok(eg_forward(context, &one, &f.forward));
    eg_packed_free(context, packed);
    fixture_free(&f);
    eg_close(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packs_refuse),
        cmocka_unit_test(packs_fit_their_layer),
        cmocka_unit_test(packs_fit_their_batch),
        cmocka_unit_test(a_b_beside_its_pack_agrees_with_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
