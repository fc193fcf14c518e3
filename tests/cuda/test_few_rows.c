/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels take few rows, few columns and few outer products, and how their depth is shared, over a
 * driver that runs nothing. */
#define _DEFAULT_SOURCE
#include "host.h"

/* By a row, what the plan says is launched: so many parts of the depth, each a block of a cluster. Returns
 * how many. */
static int parts_of_forward(session *s, const char *kernel, int64_t tiles) {
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = kernel};
    eg_context *context = NULL;
    char text[1024];
    assert_ok(eg_open(&info, &context));
    assert_ok(eg_forward_plan(context, &s->layer, &s->forward, text, sizeof text));
    const char *said = strstr(text, "split-K ");
    const int parts = said != NULL ? atoi(said + sizeof "split-K " - 1) : 1;
    assert_ok(eg_forward(context, &s->layer, &s->forward));
    assert_string_equal(driver->last_kernel + sizeof "eg_" - 1, kernel);
    assert_int_equal(driver->last_cluster, parts);
    assert_int_equal(driver->last_blocks, tiles * parts);
    eg_close(context);
    return parts;
}

/* Parts are for what leaves multiprocessors idle; devices without clusters have none. */
static void few_rows_or_columns_share_the_depth(void **state) {
    static const struct {
        eg_dtype dtype;
        const char *few_rows[2], *few_cols; /* few_rows: with clusters, and without */
        int cols;                           /* of their tiles */
    } rows[] = {{EG_BF16, {"hopper_bf16_split_16x64", "mma_bf16_16x64"}, "mma_bf16_64x16", 64},
                {EG_F16, {"hopper_f16_split_16x64", "mma_f16_16x64"}, "mma_f16_64x16", 64},
                {EG_F32, {"few_f32_nn_8x32", "few_f32_nn_8x32"}, "fma_f32_64x16", 32},
                {EG_F64, {"few_f64_nn_8x16", "few_f64_nn_8x16"}, "fma_f64_64x16", 16}};
    (void)state;
    for (int major = 9; major >= 8; major--) {
        session s;
        setenv("FAKE_CUDA_MAJOR", major == 9 ? "9" : "8", 1);
        open_session(&s);
        s.forward.a.data = (void *)((uintptr_t)1 << 40), s.forward.b.data = (void *)((uintptr_t)2 << 40);
        s.forward.y.data = (void *)((uintptr_t)3 << 40);
        s.forward.workspace = (eg_workspace){.data = (void *)((uintptr_t)4 << 40), .bytes = 1U << 30};
        for (size_t i = 0; i < LENGTH(rows); i++) {
            s.layer.dtype = rows[i].dtype;
            s.layer.m = 8, s.layer.k = 1024, s.layer.n = 1024;
            const char *few_rows = rows[i].few_rows[major == 8];
            assert_forward_by(&s, few_rows);
            const int parts = parts_of_forward(&s, few_rows, 1024 / rows[i].cols);
            assert_true(major == 9 ? parts > 1 : parts == 1);
            s.layer.n = 1 << 18;
            assert_int_equal(parts_of_forward(&s, few_rows, (1 << 18) / rows[i].cols), 1);
            s.layer.m = 1024, s.layer.n = 10;
            parts_of_forward(&s, rows[i].few_cols, 16);
        }
        unsetenv("FAKE_CUDA_MAJOR");
        close_session(&s);
    }
}

/* A tile of 128 rows loads and multiplies as much for 64: up to there are those of 64 better. */
static void up_to_64_rows_have_tiles_of_64(void **state) {
    static const int64_t rows[] = {17, 43, 64};
    static const char *const high[] = {"cluster_128x", "cluster_192x", "cluster_1x4_", "cluster_2x",
                                       "turned_"};
    (void)state;
    session s;
    open_session(&s);
    s.forward.a.data = place(0), s.forward.b.data = place(1), s.forward.y.data = place(2);
    s.forward.workspace = (eg_workspace){.data = place(3), .bytes = 1U << 30};
    s.layer.k = s.layer.n = 4096;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        s.layer.m = rows[i];
        assert_forward_by(&s, "cluster_64x");
        for (s.layer.n = 1024; s.layer.n <= 16384; s.layer.n *= 2) {
            for (size_t j = 0; j < LENGTH(high); j++) assert_false(is_forward_by(&s, high[j]));
        }
        s.layer.n = 4096;
    }
    close_session(&s);
}

/* Few rows are streamed past lines of whole vectors, by loads of 16 bytes that do not go past the end of B;
 * past others by kernels that shift what they load. */
static void lines_of_whole_vectors_are_streamed(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.layer.m = 4, s.layer.k = 4096, s.layer.n = 6144;
    s.forward.a.data = (void *)((uintptr_t)1 << 40), s.forward.b.data = (void *)((uintptr_t)2 << 40);
    s.forward.y.data = (void *)((uintptr_t)3 << 40);
    s.forward.workspace = (eg_workspace){.data = (void *)((uintptr_t)4 << 40), .bytes = 1U << 30};
    assert_true(is_forward_by(&s, "few_bf16_nn"));
    s.layer.n = 6140, s.forward.b.ld = 6144;
    assert_false(is_forward_by(&s, "few_bf16_nn"));
    s.layer.k = 4095, s.layer.n = s.forward.b.ld = 4097;
    assert_true(is_forward_by(&s, "few_bf16_odd_nn"));
    s.layer.k = 1024;
    s.layer.n = 997, s.forward.b.layout = EG_COL_MAJOR, s.forward.b.ld = 1024; /* any number of columns */
    assert_true(is_forward_by(&s, "few_bf16_nt"));
    s.layer.k = 4095, s.forward.b.ld = 4095;
    assert_true(is_forward_by(&s, "few_bf16_odd_nt"));
    s.forward.b.ld = (1 << 24) + 1; /* distances of lines are 32-bit numbers of bytes there */
    assert_false(is_forward_by(&s, "few_"));
    s.layer.k = s.forward.b.ld = 1024;
    s.forward.a.ld = 1025; /* rows of A that begin anywhere are shifted, or copied, but not a single one */
    assert_true(is_forward_by(&s, "few_bf16_odd_nt"));
    s.layer.m = 1, s.layer.k = 1021, s.layer.n = 1000;
    s.forward.a.ld = s.forward.b.ld = 0, s.forward.b.layout = EG_ROW_MAJOR;
    assert_true(is_forward_by(&s, "few_bf16_nn"));
    assert_false(is_forward_by(&s, "pad a"));
    close_session(&s);
}

/* The same of f32 and f64, whose vectors are shorter, by rows for as many rows as there are. */
static void few_rows_of_f32_and_f64_are_streamed(void **state) {
    static const struct {
        int64_t m, k, n;
        eg_layout layout; /* of B */
        eg_dtype dtype;
        const char *kernel; /* a part of its name */
        bool taken;
    } cases[] = {{1, 1024, 1024, EG_ROW_MAJOR, EG_F32, "few_f32_nn_1x", true},
                 {1, 1024, 1024, EG_COL_MAJOR, EG_F32, "few_f32_nt_1x", true},
                 {3, 63, 1020, EG_ROW_MAJOR, EG_F32, "few_f32", false}, /* lines of A */
                 {3, 1024, 1020, EG_ROW_MAJOR, EG_F32, "few_f32_nn_4x", true},
                 {3, 1024, 1023, EG_COL_MAJOR, EG_F32, "few_f32_nt_4x", true},
                 {1, 1023, 1020, EG_ROW_MAJOR, EG_F32, "few_f32_nn_1x", true},
                 {3, 1024, 1022, EG_ROW_MAJOR, EG_F32, "few_f32", false},
                 {3, 1022, 1024, EG_COL_MAJOR, EG_F32, "few_f32", false},
                 {16, 4096, 4096, EG_ROW_MAJOR, EG_F32, "few_f32_nn_16x", true},
                 {17, 4096, 4096, EG_ROW_MAJOR, EG_F32, "few_f32", false},
                 {4, 1024, 1022, EG_ROW_MAJOR, EG_F64, "few_f64_nn_4x", true},
                 {1, 1022, 1024, EG_COL_MAJOR, EG_F64, "few_f64_nt_1x", true},
                 {4, 1024, 1023, EG_ROW_MAJOR, EG_F64, "few_f64", false},
                 {9, 4096, 4096, EG_ROW_MAJOR, EG_F64, "few_f64", false}};
    (void)state;
    session s;
    open_session(&s);
    s.forward.a.data = (void *)((uintptr_t)1 << 40), s.forward.b.data = (void *)((uintptr_t)2 << 40);
    s.forward.y.data = (void *)((uintptr_t)3 << 40);
    s.forward.workspace = (eg_workspace){.data = (void *)((uintptr_t)4 << 40), .bytes = 1U << 30};
    for (size_t i = 0; i < LENGTH(cases); i++) {
        s.layer.dtype = cases[i].dtype;
        s.layer.m = cases[i].m, s.layer.k = cases[i].k, s.layer.n = cases[i].n;
        s.forward.b.layout = cases[i].layout;
        const bool as_they_lie = is_forward_by(&s, cases[i].kernel) && !is_forward_by(&s, "pad ");
        assert_int_equal(as_they_lie, cases[i].taken);
    }
    close_session(&s);
}

/* Sums of up to 16 outer products are memory's work, of any types and strides. */
static void few_outer_products_are_streamed(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.backward = (eg_backward_args){.size = sizeof s.backward,
                                    .a.data = (void *)((uintptr_t)1 << 40),
                                    .grad.data = (void *)((uintptr_t)2 << 40),
                                    .d_b = {.data = (void *)((uintptr_t)3 << 40), .dtype = EG_F32},
                                    .accumulate = 1,
                                    .workspace = {(void *)((uintptr_t)4 << 40), 0, 1U << 30}};
    s.layer.activation = EG_ACT_NONE;
    s.layer.m = 1, s.layer.k = 4096, s.layer.n = 14336;
    assert_true(is_backward_by(&s, "outer_add_f32"));
    s.layer.m = 16, s.layer.n = 14337;
    assert_true(is_backward_by(&s, "outer_add_f32"));
    assert_false(is_backward_by(&s, "pad"));
    s.layer.m = 17;
    assert_false(is_backward_by(&s, "outer_"));
    s.layer.dtype = EG_F64, s.layer.m = 2, s.backward.d_b.dtype = EG_F64;
    assert_true(is_backward_by(&s, "outer_add_f64"));
    close_session(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(few_rows_or_columns_share_the_depth),
                                       cmocka_unit_test(up_to_64_rows_have_tiles_of_64),
                                       cmocka_unit_test(lines_of_whole_vectors_are_streamed),
                                       cmocka_unit_test(few_rows_of_f32_and_f64_are_streamed),
                                       cmocka_unit_test(few_outer_products_are_streamed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
