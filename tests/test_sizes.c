/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes at the ends: empty ones, and operands whose elements lie further apart than 32 bits can count. */
#define _DEFAULT_SOURCE
#include <sys/mman.h>

#include "check.h"
#include "fixture.h"
#include "number.h"

#include <math.h>

/* ---- Nothing ------------------------------------------------------------------------------------ */

static void fill_ones(void *memory, int count) {
    for (int i = 0; i < count; i++) ((float *)memory)[i] = 1;
}

static void assert_all(const void *memory, int count, float value) {
    for (int i = 0; i < count; i++) assert_true(((const float *)memory)[i] == value);
}

/* With m or n 0 there is nothing to do, no operand without elements is needed, and what is summed
 * over nothing is 0; added to, it stays. */
static void check_empty(eg_layer layer, bool accumulate) {
    float d_b[3 * 3], d_bias[3], a[3 * 3], b[3 * 3], bias[3];
    fill_ones(d_b, 9);
    fill_ones(d_bias, 3);
    fill_ones(a, 9);
    fill_ones(b, 9);
    fill_ones(bias, 3);
    eg_context *context = open_cpu(0);
    const eg_forward_args forward = {
        .size = sizeof forward, .a = {.data = a}, .b = {.data = b}, .bias = {.data = bias}};
    assert_ok(eg_forward(context, &layer, &forward));
    const eg_backward_args backward = {.size = sizeof backward,
                                       .a = {.data = a},
                                       .b = {.data = b},
                                       .d_b = {.data = d_b},
                                       .d_bias = {.data = d_bias},
                                       .accumulate = accumulate};
    assert_ok(eg_backward(context, &layer, &backward));
    assert_all(d_b, (int)(layer.k * layer.n), accumulate ? 1 : 0);
    assert_all(d_bias, (int)layer.n, accumulate ? 1 : 0);
    assert_all(d_b + layer.k * layer.n, 9 - (int)(layer.k * layer.n), 1); /* and nothing past them */
    assert_all(d_bias + layer.n, 3 - (int)layer.n, 1);
    eg_close(context);
}

static void sums_over_nothing_are_0(void **state) {
    (void)state;
    static const eg_activation activations[] = {EG_ACT_NONE, EG_ACT_GELU};
    for (int i = 0; i < 4; i++) {
        eg_layer layer = {
            .size = sizeof layer, .m = 3, .k = 3, .n = 3, .batch = 1, .activation = activations[i % 2]};
        layer.m = 0;
        check_empty(layer, i >= 2);
        layer.m = 3;
        layer.n = 0;
        check_empty(layer, i >= 2);
        layer.m = layer.k = layer.batch = 0;
        check_empty(layer, i >= 2);
    }
}

/* n = 0: d_a is a sum over nothing, too. */
static void d_a_over_nothing_is_0(void **state) {
    (void)state;
    float a[2 * 3], d_a[2 * 3];
    fill_ones(a, 6);
    fill_ones(d_a, 6);
    eg_context *context = open_cpu(0);
    const eg_layer layer = {
        .size = sizeof layer, .m = 2, .k = 3, .n = 0, .batch = 1, .activation = EG_ACT_TANH};
    const eg_backward_args args = {.size = sizeof args, .a = {.data = a}, .d_a = {.data = d_a}};
    assert_ok(eg_backward(context, &layer, &args));
    assert_all(d_a, 6, 0);
    eg_close(context);
}

/* A batch of 0 is one layer, in forward, backward and packs, with any strides. */
static void a_batch_of_0_is_1(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    fixture f;
    fixture_make(&f, (eg_layer){.m = 5, .k = 7, .n = 6, .batch = 1, .activation = EG_ACT_GELU});
    unsigned char *expected = need_memory(f.output_bytes);
    for (int64_t batch = 1; batch >= 0; batch--) {
        eg_packed *packed = NULL;
        f.layer.batch = batch;
        fixture_poison(&f);
        assert_ok(eg_forward(context, &f.layer, &f.forward));
        assert_ok(eg_backward(context, &f.layer, &f.backward));
        if (batch == 1) memcpy(expected, f.outputs, f.output_bytes);
        assert_memory_equal(f.outputs, expected, f.output_bytes);
        assert_ok(eg_pack_b(context, &f.layer, &f.forward.b, &packed));
        assert_ok(eg_packed_update(context, packed, &f.forward.b));
        f.layer.batch = 1 - batch;
        f.forward.packed_b = packed;
        assert_ok(eg_forward(context, &f.layer, &f.forward));
        assert_memory_equal(f.outputs, expected, f.output_bytes);
        f.forward.packed_b = NULL;
        eg_packed_free(context, packed);
    }
    free(expected);
    fixture_free(&f);
    eg_close(context);
}

/* k = 0: y = act(bias), d_bias is real, and a and b are not needed. */
static void no_depth_leaves_the_bias(void **state) {
    (void)state;
    float bias[3] = {-1, 0, 2}, grad[2 * 3] = {1, 2, 3, 10, 20, 30}, y[2 * 3], d_bias[3], nothing[1] = {7};
    eg_context *context = open_cpu(0);
    const eg_layer layer = {
        .size = sizeof layer, .m = 2, .k = 0, .n = 3, .batch = 1, .activation = EG_ACT_RELU};
    const eg_forward_args forward = {.size = sizeof forward, .bias = {.data = bias}, .y = {.data = y}};
    assert_ok(eg_forward(context, &layer, &forward));
    const float expected_y[] = {0, 0, 2, 0, 0, 2};
    assert_memory_equal(y, expected_y, sizeof y);
    const eg_backward_args backward = {.size = sizeof backward,
                                       .bias = {.data = bias},
                                       .grad = {.data = grad},
                                       .d_a = {.data = nothing},
                                       .d_bias = {.data = d_bias}};
    assert_ok(eg_backward(context, &layer, &backward));
    const float expected_d_bias[] = {0, 0, 33};
    assert_memory_equal(d_bias, expected_d_bias, sizeof d_bias);
    assert_true(nothing[0] == 7);
    eg_close(context);
}

/* ---- Small -------------------------------------------------------------------------------------- */

/* Forward, or all of backward, on operands that end at a page that cannot be touched. */
static check_case small_case(eg_dtype dtype, int64_t m, int64_t k, int64_t n, unsigned col_major,
                             bool backward) {
    const unsigned outputs = CHECK_BIT(CHECK_D_A) | CHECK_BIT(CHECK_D_B) | CHECK_BIT(CHECK_GRAD);
    return (check_case){.dtype = dtype,
                        .activation = EG_ACT_SILU,
                        .backward = backward,
                        .m = m,
                        .k = k,
                        .n = n,
                        .batch = 1,
                        .present = CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_B) |
                                   (backward ? outputs : CHECK_BIT(CHECK_Y)),
                        .col_major = col_major,
                        .seed = 1};
}

/* Whole vectors in one dimension and not in the other: what is read where it is, and what has to be copied,
 * as kernels read past the end of what is not whole. */
static void check_small(eg_context *context, eg_dtype dtype) {
    static const int64_t sizes[] = {4, 8, 12, 13, 16, 24, 48};
    enum { SIZES = LENGTH(sizes) };
    for (int i = 0; i < SIZES * SIZES * 16; i++) {
        const unsigned col_major = (i & 1 ? CHECK_BIT(CHECK_A) : 0) | (i & 2 ? CHECK_BIT(CHECK_B) : 0);
        const int64_t m = i & 4 ? 8 : 5, k = sizes[i / 16 % SIZES], n = sizes[i / 16 / SIZES];
        const check_case c = small_case(dtype, m, k, n, col_major, (i & 8) != 0);
        check_report report;
        if (check_run(context, &c, &report) != CHECK_PASSED) fail_msg("%s", report.message);
    }
}

/* Micro-panels with stride padding, of several passes and in the last one narrow; and a B
 * too large to be copied for so few rows. */
static void check_padded(eg_context *context, eg_dtype dtype) {
    static const int64_t sizes[][3] = {{1400, 400, 9}, {1400, 9, 100}, {33, 900, 150}, {130, 140, 500}};
    enum { SIZES = LENGTH(sizes) };
    for (int i = 0; i < SIZES * 4; i++) {
        const unsigned col_major = i & 1 ? CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_B) : 0;
        const int64_t *size = sizes[i / 4];
        const check_case c = small_case(dtype, size[0], size[1], size[2], col_major, (i & 2) != 0);
        check_report report;
        if (check_run(context, &c, &report) != CHECK_PASSED) fail_msg("%s", report.message);
    }
}

/* Results of little depth that are wider than the right operand that fits in L1, with a bias and pre. */
static void check_wide(eg_context *context, eg_dtype dtype) {
    static const int64_t sizes[][3] = {{9, 10, 1300}, {40, 64, 230}, {33, 33, 500}};
    int passed = 0;
    for (size_t i = 0; i < 4 * LENGTH(sizes); i++) {
        const int64_t *size = sizes[i / 4];
        const bool narrow = i % 2 != 0 && dtype == EG_F32, has_pre = i / 2 % 2 != 0;
        check_case c = small_case(narrow ? EG_BF16 : dtype, size[0], size[1], size[2], 0, false);
        c.present |= CHECK_BIT(CHECK_BIAS) | (has_pre ? CHECK_BIT(CHECK_PRE) : 0);
        c.activation = has_pre ? EG_ACT_RELU : EG_ACT_NONE;
        check_report report;
        const check_result result = check_run(context, &c, &report);
        if (result == CHECK_FAILED) fail_msg("%s", report.message);
        passed += result == CHECK_PASSED;
    }
    assert_true(passed > 0);
}

/* tiled: also those of tile blocks, which copy everything. */
static void check_every_row(void (*check)(eg_context *context, eg_dtype dtype), bool tiled) {
    eg_context *table = open_cpu(1);
    eg_kernel_info row = {.size = sizeof row};
    for (int i = 0; eg_get_kernel_info(table, i, &row) == EG_OK; i++) {
        if (!row.usable || (strstr(row.name, "32x32") != NULL && !tiled)) continue;
        eg_context *context = NULL;
        assert_ok(eg_open(&(eg_open_info){.size = sizeof(eg_open_info), .kernel = row.name}, &context));
        check(context, row.compute);
        eg_close(context);
    }
    eg_close(table);
}

static void small_sizes_on_every_row(void **state) {
    (void)state;
    check_every_row(check_small, false);
}

static void padded_sizes_on_every_row(void **state) {
    (void)state;
    check_every_row(check_padded, false);
}

static void wide_results_of_little_depth_on_every_row(void **state) {
    (void)state;
    check_every_row(check_wide, true);
}

/* ---- Long --------------------------------------------------------------------------------------- */

/* 65,536 chunks of rows: one after the other, the last of them would lose most of their digits. */
static void long_column_sums_are_made_in_pairs(void **state) {
    (void)state;
    enum { ROWS = 1 << 22 };
    float *grad = need_memory(ROWS * sizeof *grad), d_bias = 0;
    for (int i = 0; i < ROWS; i++) grad[i] = 0.1F;
    eg_context *context = open_cpu(2);
    const eg_layer layer = {.size = sizeof layer, .m = ROWS, .k = 1, .n = 1, .batch = 1};
    const eg_backward_args args = {.size = sizeof args, .grad = {.data = grad}, .d_bias = {.data = &d_bias}};
    assert_ok(eg_backward(context, &layer, &args));
    const double expected = ROWS * (double)0.1F;
    assert_true(fabs((double)d_bias - expected) <= 64 * 0x1p-24 * expected);
    eg_close(context);
    free(grad);
}

/* ---- Far apart ---------------------------------------------------------------------------------- */

/* Address space in which only the touched pages are memory. NULL where the system gives none. */
static float *open_space(size_t bytes) {
    void *space =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return space == MAP_FAILED ? NULL : space;
}

typedef struct far_matrix {
    eg_matrix matrix;
    int64_t rows, cols;
} far_matrix;

static float *at(const far_matrix *x, int64_t item, int64_t row, int64_t col) {
    const bool row_major = x->matrix.layout == EG_ROW_MAJOR;
    const int64_t inside = row_major ? row * x->matrix.ld + col : row + col * x->matrix.ld;
    return (float *)((char *)x->matrix.data + x->matrix.offset) + item * x->matrix.batch_stride + inside;
}

enum { M = 5, K = 6, N = 7, BATCH = 2 };

/* The element (row, col) of an input: small integers, so that every sum is exact. */
static float number(int which, int64_t item, int64_t row, int64_t col) {
    return (float)((which * 5 + item * 3 + row * 7 + col * 2) % 5 - 2);
}

static void fill(const far_matrix *x, int which) {
    for (int64_t item = 0; item < BATCH; item++) {
        for (int64_t i = 0; i < x->rows; i++) {
            for (int64_t j = 0; j < x->cols; j++) *at(x, item, i, j) = number(which, item, i, j);
        }
    }
}

enum { A, B, GRAD, D_A, D_B, Y, MATRICES };

/* A slice of the space for each matrix; rows (columns) are `stride` elements apart. */
static void place(far_matrix *x, float *space, size_t offset, int64_t stride, eg_layout layout) {
    static const int64_t rows[MATRICES] = {M, K, M, M, K, M}, cols[MATRICES] = {K, N, N, K, N, N};
    for (int i = 0; i < MATRICES; i++) {
        const int64_t lines = layout == EG_ROW_MAJOR ? rows[i] : cols[i];
        x[i] = (far_matrix){.rows = rows[i],
                            .cols = cols[i],
                            .matrix = {.data = space + (int64_t)i * 64,
                                       .offset = offset,
                                       .ld = stride,
                                       .batch_stride = lines * stride,
                                       .layout = layout}};
    }
}

static void check_results(const far_matrix *x) {
    for (int64_t item = 0; item < BATCH; item++) {
        for (int64_t i = 0; i < M; i++) {
            for (int64_t j = 0; j < N; j++) {
                float y = 0;
                for (int64_t k = 0; k < K; k++) y += number(A, item, i, k) * number(B, item, k, j);
                assert_true(*at(&x[Y], item, i, j) == y);
            }
            for (int64_t k = 0; k < K; k++) {
                float d_a = 0;
                for (int64_t j = 0; j < N; j++) d_a += number(GRAD, item, i, j) * number(B, item, k, j);
                assert_true(*at(&x[D_A], item, i, k) == d_a);
            }
        }
        for (int64_t k = 0; k < K; k++) {
            for (int64_t j = 0; j < N; j++) {
                float d_b = 0;
                for (int64_t i = 0; i < M; i++) d_b += number(A, item, i, k) * number(GRAD, item, i, j);
                assert_true(*at(&x[D_B], item, k, j) == d_b);
            }
        }
    }
}

/* Rows 2^30 elements (4 GiB) apart: row 2 is past 2^31 elements, row 1 past 2^32 bytes, and every offset
 * is past 2^32 bytes. Six matrices interleave, so the space is that of one: some 64 GiB, hardly touched. */
static void check_far_apart(eg_context *context, eg_layout layout) {
    const int64_t stride = (int64_t)1 << 30;
    const size_t offset = ((size_t)1 << 32) + 64,
                 bytes = offset + (size_t)stride * BATCH * (N + 1) * sizeof(float);
    float *space = open_space(bytes);
    if (space == NULL) {
        print_message("no %zu bytes of address space: skipped\n", bytes);
        skip();
    }
    far_matrix x[MATRICES];
    place(x, space, offset, stride, layout);
    for (int i = A; i <= GRAD; i++) fill(&x[i], i);

    const eg_layer layer = {.size = sizeof layer, .m = M, .k = K, .n = N, .batch = BATCH};
    const eg_forward_args forward = {
        .size = sizeof forward, .a = x[A].matrix, .b = x[B].matrix, .y = x[Y].matrix};
    assert_ok(eg_forward(context, &layer, &forward));
    const eg_backward_args backward = {.size = sizeof backward,
                                       .a = x[A].matrix,
                                       .b = x[B].matrix,
                                       .grad = x[GRAD].matrix,
                                       .d_a = x[D_A].matrix,
                                       .d_b = x[D_B].matrix};
    assert_ok(eg_backward(context, &layer, &backward));
    check_results(x);
    munmap(space, bytes);
}

static void elements_far_apart(void **state) {
    (void)state;
    eg_context *context = open_cpu(0);
    check_far_apart(context, EG_ROW_MAJOR);
    check_far_apart(context, EG_COL_MAJOR);
    eg_close(context);
}

/* Sizes past 2^31 that no memory is there for: planned or refused, never a crash or a wrapped size. */
static void sizes_past_32_bits_are_counted_right(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    char mark;
    const eg_matrix there = {.data = &mark};
    const eg_backward_args args = {
        .size = sizeof args, .a = there, .b = there, .grad = there, .d_a = there, .d_b = there};
    size_t before = 0;
    for (int bits = 10; bits <= 62; bits++) {
        const eg_layer layer = {.size = sizeof layer,
                                .m = (int64_t)1 << bits,
                                .k = 8,
                                .n = 8,
                                .batch = 1,
                                .activation = EG_ACT_GELU};
        size_t bytes = 0;
        const eg_status status = eg_backward_workspace(context, &layer, &args, &bytes);
        if (status != EG_OK) {
            assert_true(bits > 40); /* 2^40 rows of 32 bytes can be counted */
            assert_true(strlen(eg_last_error()) > 0);
            continue;
        }
        assert_true(bytes >= before); /* it grows with the layer and does not wrap around */
        before = bytes;
    }
    assert_true(before > (size_t)1 << 32);
    eg_close(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_over_nothing_are_0),
        cmocka_unit_test(a_batch_of_0_is_1),
        cmocka_unit_test(d_a_over_nothing_is_0),
        cmocka_unit_test(no_depth_leaves_the_bias),
        cmocka_unit_test(small_sizes_on_every_row),
        cmocka_unit_test(padded_sizes_on_every_row),
        cmocka_unit_test(wide_results_of_little_depth_on_every_row),
        cmocka_unit_test(long_column_sums_are_made_in_pairs),
        cmocka_unit_test(elements_far_apart),
        cmocka_unit_test(sizes_past_32_bits_are_counted_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
