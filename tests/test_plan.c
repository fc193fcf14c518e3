/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: a pure function of the device and the call, with a step for what is asked and none for the rest. */
#include "fixture.h"

#include "cpu/compile.h"
#include "cpu/cpu.h"
#include "cpu/estimate.h"
#include "cpu/kernels.h"

enum { ROOM = 4096 };

enum { WANT_D_A = 1, WANT_D_B = 2, WANT_D_BIAS = 4, WANT_GRAD_PRE = 8, SUBSETS = 16 };

static eg_backward_args subset(const fixture *f, unsigned wanted, eg_source source) {
    fixture g = *f;
    fixture_set_source(&g, source);
    eg_backward_args args = g.backward;
    if ((wanted & WANT_D_A) == 0) args.d_a.data = NULL;
    if ((wanted & WANT_D_B) == 0) args.d_b.data = NULL;
    if ((wanted & WANT_D_BIAS) == 0) args.d_bias.data = NULL;
    if ((wanted & WANT_GRAD_PRE) == 0) args.grad_pre.data = NULL;
    return args;
}

/* Removes every input that the call has no need of. */
static void leave_out(eg_backward_args *args, unsigned wanted, bool recompute) {
    if (!recompute && (wanted & WANT_D_B) == 0) args->a.data = NULL;
    if (!recompute && (wanted & WANT_D_A) == 0) args->b.data = NULL;
    if (!recompute) args->bias.data = NULL;
}

/* How many lines of a plan have `words` in a step of kind `kind`. What runs instead where a number refuses is
 * a program of its own, and not counted. */
static int steps(const char *text, const char *kind, const char *words) {
    int count = 0;
    char line[256];
    for (const char *at = text; *at != '\0';) {
        const size_t length = strcspn(at, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, at);
        if (strncmp(line, "where a number", strlen("where a number")) == 0) break;
        if (strstr(line, kind) != NULL && strstr(line, words) != NULL) count++;
        at += length + (at[length] != '\0' ? 1 : 0);
    }
    return count;
}

/* Without an activation the products read grad: a map is for the other outputs alone. */
static bool has_map(unsigned wanted, bool recompute, eg_activation activation) {
    if (activation == EG_ACT_NONE) return (wanted & (WANT_D_BIAS | WANT_GRAD_PRE)) != 0;
    return wanted != 0 && !recompute;
}

static void check_steps(const char *text, unsigned wanted, bool recompute, const eg_layer *layer,
                        eg_source source) {
    const bool any = wanted != 0;
    assert_int_equal(steps(text, "gemm", "d_a = "), (wanted & WANT_D_A) != 0);
    assert_int_equal(steps(text, "gemm", "d_b = "), (wanted & WANT_D_B) != 0);
    assert_int_equal(steps(text, "reduce", "d_bias = "), (wanted & WANT_D_BIAS) != 0);
    assert_int_equal(steps(text, "gemm", "(a.b"), any && recompute);
    assert_int_equal(steps(text, "map", "grad_pre = "), has_map(wanted, recompute, layer->activation));
    assert_non_null(strstr(text, source == EG_SOURCE_Y     ? " y"
                                 : source == EG_SOURCE_PRE ? " pre"
                                                           : " recompute"));
}

static void every_subset_has_its_steps(void **state) {
    (void)state;
    static const eg_activation activations[] = {EG_ACT_TANH, EG_ACT_NONE};
    eg_context *context = open_cpu(2);
    for (unsigned i = 0; i < 3 * 2 * SUBSETS; i++) {
        const unsigned wanted = i % SUBSETS;
        const eg_source source = (eg_source)(i / SUBSETS % 3);
        eg_layer layer = small_layer();
        layer.activation = activations[i / SUBSETS / 3];
        const bool recompute = source == EG_SOURCE_RECOMPUTE && layer.activation != EG_ACT_NONE;
        fixture f;
        fixture_make(&f, layer);
        eg_backward_args args = subset(&f, wanted, source);
        leave_out(&args, wanted, recompute && wanted != 0);
        char text[ROOM];
        assert_ok(eg_backward_plan(context, &f.layer, &args, text, sizeof text));
        check_steps(text, wanted, recompute, &f.layer, source);
        assert_ok(eg_backward(context, &f.layer, &args)); /* and the call runs without the rest */
        fixture_free(&f);
    }
    eg_close(context);
}

static void forward_is_one_product(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    fixture f;
    fixture_make(&f, small_layer());
    char text[ROOM];
    assert_ok(eg_forward_plan(context, &f.layer, &f.forward, text, sizeof text));
    assert_int_equal(steps(text, "gemm", ""), 1);
    assert_int_equal(steps(text, "map", ""), 0);
    assert_int_equal(steps(text, "reduce", ""), 0);
    assert_non_null(strstr(text, "gelu"));
    fixture_free(&f);
    eg_close(context);
}

/* A batch that shares b, and sums d_b, is one layer of all of its rows; unless they lie apart. */
static void a_batch_of_one_b_is_rows(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    fixture f;
    fixture_make(&f, small_layer());
    char text[ROOM];
    assert_ok(eg_backward_plan(context, &f.layer, &f.backward, text, sizeof text));
    assert_int_equal(steps(text, "M=5 K=7 N=6 batch=2", ""), 1);
    f.backward.b.batch_stride = f.backward.d_b.batch_stride = 0;
    assert_ok(eg_backward_plan(context, &f.layer, &f.backward, text, sizeof text));
    assert_int_equal(steps(text, "M=10 K=7 N=6 batch=1", ""), 1);
    f.backward.grad.batch_stride += 1;
    assert_ok(eg_backward_plan(context, &f.layer, &f.backward, text, sizeof text));
    assert_int_equal(steps(text, "M=5 K=7 N=6 batch=2", ""), 1);
    fixture_free(&f);
    eg_close(context);
}

/* Packing steps of a layer's backward call that it has no more with a pack of b. */
static int steps_saved(eg_context *context, int m, int k, int n) {
    fixture f;
    eg_layer layer = small_layer();
    layer.m = m, layer.k = k, layer.n = n;
    fixture_make(&f, layer);
    char plain[ROOM], packed_text[ROOM];
    assert_ok(eg_backward_plan(context, &f.layer, &f.backward, plain, sizeof plain));
    eg_packed *packed = NULL;
    assert_ok(eg_pack_b(context, &f.layer, &f.backward.b, &packed));
    f.backward.packed_b = packed;
    assert_ok(eg_backward_plan(context, &f.layer, &f.backward, packed_text, sizeof packed_text));
    assert_int_equal(steps(packed_text, "gemm", ""), steps(plain, "gemm", ""));
    eg_packed_free(context, packed);
    fixture_free(&f);
    return steps(plain, "pack", "") - steps(packed_text, "pack", "");
}

/* A pack of b takes the place of packing it. On which layers b is packed depends on the processor. */
static void a_pack_saves_its_step(void **state) {
    (void)state;
    static const int sizes[][3] = {{17, 100, 90}, {500, 300, 290}, {600, 500, 490}};
    eg_context *context = open_cpu(1);
    int saved = 0;
    for (size_t i = 0; i < LENGTH(sizes); i++) {
        const int some = steps_saved(context, sizes[i][0], sizes[i][1], sizes[i][2]);
        assert_true(some >= 0);
        saved += some;
    }
    assert_true(saved > 0);
    eg_close(context);
}

/* Vector units make the transpose of a column-major result, whose rows they can store. */
static void a_column_major_result_is_turned(void **state) {
    (void)state;
    char text[ROOM];
    fixture f;
    const eg_open_info info = {.size = sizeof info, .threads = 1, .kernel = "portable_f32_4x8"};
    eg_context *context;
    assert_ok(eg_open(&info, &context));
    fixture_make(&f, small_layer());
    eg_backward_args args = subset(&f, WANT_D_A | WANT_D_B, EG_SOURCE_RECOMPUTE);
    args.d_b.layout = EG_COL_MAJOR, args.d_b.ld = 0;
    assert_ok(eg_backward_plan(context, &f.layer, &args, text, sizeof text));
    assert_int_equal(steps(text, "gemm", "d_bT = grad_preT.a"), 1);
    assert_int_equal(steps(text, "gemm", "d_a = grad_pre.bT"), 1);
    fixture_free(&f);
    eg_layer column = small_layer();
    column.n = 1; /* a column without gaps is as well a row */
    fixture_make(&f, column);
    args = subset(&f, WANT_D_A | WANT_D_B, EG_SOURCE_RECOMPUTE);
    assert_ok(eg_backward_plan(context, &f.layer, &args, text, sizeof text));
    assert_int_equal(steps(text, "gemm", "d_bT = grad_preT.a"), 1);
    args.d_b.ld = 2;
    assert_ok(eg_backward_plan(context, &f.layer, &args, text, sizeof text));
    assert_int_equal(steps(text, "gemm", "d_b = aT.grad_pre"), 1);
    eg_close(context);
    fixture_free(&f);
}

/* The kernel for up to 16 rows reads b where it is, in either layout and whatever its type, on every row of
 * vectors; where columns are neighbours, of up to 32 rows. */
static void few_rows_copy_no_b(void **state) {
    (void)state;
    static const eg_dtype dtypes[] = {EG_F32, EG_F64, EG_F16, EG_BF16};
    eg_context *context = open_cpu(1);
    eg_cpu_calibration only = *eg_cpu_calibration_of(&context->caps);
    only.right = EG_CPU_STREAMS;
    context->caps.detail = &only;
    for (int i = 0; i < 4 * 2 * 4; i++) {
        char text[ROOM];
        fixture f;
        static const int64_t rows[] = {16, 17, 24, 25};
        const bool few = i / 8 == 0, in_columns = i / 4 % 2 == 1, some = rows[i / 8] <= 24;
        fixture_make(&f, (eg_layer){.dtype = dtypes[i % 4],
                                    .math = EG_MATH_STRICT,
                                    .activation = EG_ACT_GELU,
                                    .m = rows[i / 8],
                                    .k = 300,
                                    .n = 201,
                                    .batch = 1});
        if (in_columns) f.forward.b.layout = f.backward.b.layout = EG_COL_MAJOR;
        if (in_columns) f.forward.b.ld = f.backward.b.ld = 300;
        assert_ok(eg_forward_plan(context, &f.layer, &f.forward, text, sizeof text));
        assert_int_equal(steps(text, "gemm", "few rows"), few || (some && !in_columns));
        assert_true(!few || steps(text, "pack b", "") == 0);
        assert_ok(eg_backward_plan(context, &f.layer, &f.backward, text, sizeof text));
        assert_int_equal(steps(text, "gemm", "few rows"), few ? 2 : some ? 1 : 0);
        assert_true(!few || steps(text, "pack b", "") == 0);
        fixture_free(&f);
    }
    eg_close(context);
}

/* d_b of up to 64 rows, of 48 where it is small, in either layout; what is not a temporary is not packed for
 * it. */
static void little_depth_packs_nothing(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    eg_cpu_calibration only = *eg_cpu_calibration_of(&context->caps);
    only.left = EG_CPU_OUTER;
    context->caps.detail = &only;
    for (int i = 0; i < 2 * 2 * 2 * 2; i++) {
        char text[ROOM];
        fixture f;
        eg_layer layer = small_layer();
        const bool large = i / 8 == 1;
        const int64_t most = large ? 64 : 48;
        layer.m = i % 2 == 0 ? most : most + 1, layer.k = 300, layer.n = large ? 301 : 201, layer.batch = 1;
        layer.activation = i / 4 % 2 == 0 ? EG_ACT_NONE : EG_ACT_GELU, layer.math = EG_MATH_STRICT;
        fixture_make(&f, layer);
        eg_backward_args args = subset(&f, WANT_D_B, EG_SOURCE_PRE);
        if (i / 2 % 2 == 1) args.d_b.layout = EG_COL_MAJOR, args.d_b.ld = 0;
        assert_ok(eg_backward_plan(context, &f.layer, &args, text, sizeof text));
        assert_int_equal(steps(text, "gemm", "outer products"), layer.m == most);
        assert_true(layer.m > most || steps(text, "pack", "") == 0);
        fixture_free(&f);
    }
    eg_close(context);
}

/* A small layer's operands are read where they are, but for the transpose of b. */
static void small_operands_need_no_copy(void **state) {
    (void)state;
    eg_context *context = open_cpu(2);
    fixture f;
    eg_layer layer = small_layer();
    layer.m = layer.k = layer.n = 64, layer.batch = 1;
    layer.math = EG_MATH_STRICT;
    fixture_make(&f, layer);
    char text[ROOM];
    assert_ok(eg_backward_plan(context, &f.layer, &f.backward, text, sizeof text));
    assert_int_equal(steps(text, "pack a", ""), 0);
    assert_int_equal(steps(text, "  b  ", " bytes"), 0);
    fixture_free(&f);
    eg_close(context);
}

/* Where a row's blocks may pack both operands, the way of that name is the one that runs. */
static void check_packs_both(eg_context *context, const fixture *f, const eg_cpu_kernel *kernel,
                             const eg_cpu_calibration *only) {
    char text[ROOM];
    const bool is_large = f->layer.m > EG_CPU_CHUNK && f->layer.k > EG_CPU_CHUNK;
    assert_ok(eg_forward_plan(context, &f->layer, &f->forward, text, sizeof text));
    const bool packs_both = only->left == EG_CPU_FUSES && kernel->micro.multiply_packed != NULL && is_large;
    assert_int_equal(strstr(text, "packs both operands") != NULL, packs_both);
}

/* By each way of a row, forward and backward. */
static void check_ways(fixture *f, const eg_cpu_kernel *kernel) {
    static const eg_cpu_way left[] = {EG_CPU_PACKED, EG_CPU_PLACED, EG_CPU_FUSES},
                            right[] = {EG_CPU_PACKED, EG_CPU_PLACED, EG_CPU_FUSES};
    unsigned char *const expected = malloc(f->output_bytes);
    assert_non_null(expected);
    for (size_t way = 0; way < LENGTH(left) * LENGTH(right); way++) {
        eg_context *context;
        assert_ok(eg_open(&(eg_open_info){.size = sizeof(eg_open_info), .threads = 2, .kernel = kernel->name},
                          &context));
        eg_cpu_calibration only = *eg_cpu_calibration_of(&context->caps);
        only.left = left[way / LENGTH(right)], only.right = right[way % LENGTH(right)];
        context->caps.detail = &only;
        check_packs_both(context, f, kernel, &only);
        fixture_poison(f);
        assert_ok(eg_forward(context, &f->layer, &f->forward));
        assert_ok(eg_backward(context, &f->layer, &f->backward));
        if (way == 0) memcpy(expected, f->outputs, f->output_bytes);
        assert_memory_equal(expected, f->outputs, f->output_bytes);
        eg_close(context);
    }
    free(expected);
}

/* Packed, read in place or packed by each block: an operand is the same numbers, and a sum has the same
 * order.
 */
static void no_way_changes_a_bit(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {
        {64, 64, 64}, {96, 640, 192}, {320, 704, 64}, {100, 300, 70}, {800, 500, 90}};
    static const eg_dtype dtypes[] = {EG_F32, EG_BF16, EG_F16};
    eg_context *table = open_cpu(1);
    for (size_t i = 0; i < LENGTH(dtypes) * LENGTH(sizes); i++) {
        fixture f;
        eg_layer layer = small_layer();
        const int64_t *size = sizes[i % LENGTH(sizes)];
        layer.dtype = dtypes[i / LENGTH(sizes)];
        layer.m = size[0], layer.k = size[1], layer.n = size[2], layer.batch = 1;
        fixture_make(&f, layer);
        eg_kernel_info row = {.size = sizeof row};
        for (int j = 0; eg_get_kernel_info(table, j, &row) == EG_OK; j++) {
            const eg_cpu_kernel *kernel = eg_cpu_kernel_row(j);
            const bool is_default = (kernel->maths & EG_CPU_MATH(EG_MATH_DEFAULT)) != 0,
                       is_for_it = kernel->dtype == layer.dtype || (kernel->dtype == EG_DTYPE_DEFAULT &&
                                                                    (layer.dtype == EG_F32 || !short_run()));
            if (row.usable && row.compute == EG_F32 && is_default && is_for_it) check_ways(&f, kernel);
        }
        fixture_free(&f);
    }
    eg_close(table);
}

/* The same question has the same answer, on every context, whatever was run; and asking touches nothing. */
static void plans_are_pure(void **state) {
    (void)state;
    fixture f;
    fixture_make(&f, small_layer());
    fixture_poison(&f);
    eg_context *first = open_cpu(2), *second = open_cpu(2);
    char text[2][ROOM];
    size_t bytes[2];
    assert_ok(eg_backward_plan(first, &f.layer, &f.backward, text[0], ROOM));
    assert_ok(eg_backward_workspace(first, &f.layer, &f.backward, &bytes[0]));
    assert_true(fixture_untouched(&f));
    assert_ok(eg_forward(first, &f.layer, &f.forward));
    assert_ok(eg_backward(first, &f.layer, &f.backward));
    eg_context *const contexts[] = {first, second};
    for (int i = 0; i < 2; i++) {
        assert_ok(eg_backward_plan(contexts[i], &f.layer, &f.backward, text[1], ROOM));
        assert_ok(eg_backward_workspace(contexts[i], &f.layer, &f.backward, &bytes[1]));
        assert_string_equal(text[0], text[1]);
        assert_true(bytes[0] == bytes[1]);
    }
    eg_close(first);
    eg_close(second);
    fixture_free(&f);
}

/* A mark in place of memory, the same one everywhere, is enough to ask. */
static void marks_are_enough(void **state) {
    (void)state;
    fixture f;
    fixture_make(&f, small_layer());
    eg_context *context = open_cpu(2);
    size_t expected = 0, bytes = 1;
    assert_ok(eg_backward_workspace(context, &f.layer, &f.backward, &expected));
    eg_backward_args args = f.backward;
    void **const data[] = {&args.a.data,   &args.b.data,   &args.bias.data,   &args.grad.data,
                           &args.d_a.data, &args.d_b.data, &args.d_bias.data, &args.grad_pre.data};
    for (size_t i = 0; i < LENGTH(data); i++) *data[i] = (void *)1;
    assert_ok(eg_backward_workspace(context, &f.layer, &args, &bytes));
    assert_true(bytes == expected);
    char text[ROOM];
    assert_ok(eg_backward_plan(context, &f.layer, &args, text, sizeof text));
    eg_close(context);
    fixture_free(&f);
}

/* What is not asked for takes no workspace. */
static void workspace_follows_what_is_wanted(void **state) {
    (void)state;
    fixture f;
    eg_layer layer = small_layer();
    layer.m = layer.k = layer.n = 200;
    fixture_make(&f, layer);
    eg_context *context = open_cpu(2);
    size_t all = 0, some = 0, none = 0;
    const eg_backward_args d_bias_only = subset(&f, WANT_D_BIAS, EG_SOURCE_PRE),
                           nothing = subset(&f, 0, EG_SOURCE_PRE);
    assert_ok(eg_backward_workspace(context, &f.layer, &f.backward, &all));
    assert_ok(eg_backward_workspace(context, &f.layer, &d_bias_only, &some));
    assert_ok(eg_backward_workspace(context, &f.layer, &nothing, &none));
    assert_true(some < all / 10);
    assert_true(none <= some);
    eg_close(context);
    fixture_free(&f);
}

static void text_is_cut_to_its_room(void **state) {
    (void)state;
    fixture f;
    fixture_make(&f, small_layer());
    eg_context *context = open_cpu(1);
    char whole[ROOM], cut[ROOM];
    assert_ok(eg_backward_plan(context, &f.layer, &f.backward, whole, sizeof whole));
    const size_t length = strlen(whole);
    assert_in_range(length, 100, ROOM - 2);
    for (size_t room = 1; room <= length + 1; room++) {
        memset(cut, '#', sizeof cut);
        assert_ok(eg_backward_plan(context, &f.layer, &f.backward, cut, room));
        assert_int_equal(strlen(cut), room - 1);
        assert_memory_equal(cut, whole, room - 1);
        assert_int_equal(cut[room], '#');
    }
    eg_close(context);
    fixture_free(&f);
}

/* A plan names the kernel rows it runs, and info.kernel allows that one only. A row may be for another type
 * or for another layer.math than this call's. */
static void a_named_row_is_the_one_that_runs(void **state) {
    (void)state;
    fixture f;
    fixture_make(&f, small_layer());
    eg_context *table = open_cpu(1);
    eg_kernel_info row = {.size = sizeof row};
    int ran = 0, refused = 0;
    for (int i = 0; eg_get_kernel_info(table, i, &row) == EG_OK; i++) {
        if (!row.usable) continue;
        eg_context *context = NULL;
        assert_ok(eg_open(&(eg_open_info){.size = sizeof(eg_open_info), .kernel = row.name}, &context));
        char text[ROOM];
        const eg_status status = eg_backward_plan(context, &f.layer, &f.backward, text, sizeof text);
        if (status == EG_OK) {
            assert_int_equal(row.compute, EG_F32);
            assert_int_equal(steps(text, "gemm", row.name), steps(text, "gemm", ""));
            ran++;
        } else {
            assert_int_equal(status, EG_ERR_UNSUPPORTED);
            assert_non_null(strstr(eg_last_error(), row.name));
            assert_true(row.compute != EG_F32 || strstr(row.name, "32x32") != NULL);
            refused++;
        }
        eg_close(context);
    }
    assert_true(ran > 0 && refused > 0);
    eg_close(table);
    fixture_free(&f);
}

/* ---- Which row: a pure function of the sizes and of what a processor has ------------------------ */

#if defined(__x86_64__)

typedef struct choice {
    uint32_t features;
    eg_dtype dtype;
    eg_math math;
    bool shared_b;
    int64_t m, k, n, batch;
    const char *row;
} choice;

enum {
    AVX2 = EG_CPU_AVX2,
    AVX512 = AVX2 | EG_CPU_AVX512,
    BF16 = AVX512 | EG_CPU_BF16,
    AMX = BF16 | EG_CPU_AMX
};

static const choice choices[] = {
    {AVX512, EG_F32, EG_MATH_DEFAULT, false, 64, 64, 64, 1, "avx512_f32_8x48"},
    {AVX512, EG_F16, EG_MATH_DEFAULT, false, 999, 64, 64, 1, "avx512_f32_4x64"},
    {AVX512, EG_F32, EG_MATH_DEFAULT, false, 64, 64, 128, 1, "avx512_f32_8x48"},
    {AVX512, EG_F32, EG_MATH_DEFAULT, false, 64, 63, 64, 1, "avx512_f32_8x48"},
    {AVX512, EG_F64, EG_MATH_DEFAULT, false, 64, 64, 64, 1, "avx512_f64_8x24"},
    {AVX2, EG_F32, EG_MATH_DEFAULT, false, 64, 64, 64, 1, "avx2_f32_4x24"},
    {0, EG_F32, EG_MATH_DEFAULT, false, 64, 64, 64, 1, "portable_f32_4x8"},
    /* The matrix unit gains by multiplying what it loses by splitting numbers into bf16 terms. */
    {AMX, EG_F32, EG_MATH_DEFAULT, false, 1024, 1024, 1024, 1, "amx_f32x6_32x32"},
    /* Here it would gain on one thread, but lose more on sixteen. */
    {AMX, EG_F32, EG_MATH_DEFAULT, false, 512, 512, 512, 1, "avx512_f32_8x48"},
    {AMX, EG_F32, EG_MATH_STRICT, false, 512, 512, 512, 1, "avx512_f32_8x48"},
    {AMX, EG_F32, EG_MATH_DEFAULT, false, 16, 512, 512, 1, "avx512_f32_8x48"},
    {AMX, EG_F32, EG_MATH_DEFAULT, false, 2, 4096, 4096, 1, "avx512_f32_8x48"},
    {AMX, EG_F32, EG_MATH_DEFAULT, false, 16, 16, 16, 99, "avx512_f32_8x48"},
    {AMX, EG_F32, EG_MATH_DEFAULT, false, 0, 0, 0, 1, "avx512_f32_8x48"},
    {AMX, EG_F32, EG_MATH_FAST, false, 256, 256, 256, 1, "amx_f32x3_32x32"},
    {AMX, EG_BF16, EG_MATH_DEFAULT, false, 128, 128, 128, 1, "amx_bf16x1_32x32"},
    {AMX, EG_BF16, EG_MATH_DEFAULT, false, 1, 10, 10, 1, "avx512_f32_8x48"},
    {AMX, EG_F16, EG_MATH_DEFAULT, false, 512, 512, 512, 1, "amx_f16x4_32x32"},
    /* A Xeon's vector units lose by dots of bf16, which take longer than multiply-adds of what they widen. */
    {BF16, EG_BF16, EG_MATH_DEFAULT, false, 512, 512, 512, 1, "avx512_f32_8x48"},
    {BF16, EG_BF16, EG_MATH_STRICT, false, 512, 512, 512, 1, "avx512_f32_8x48"},
    {BF16, EG_BF16, EG_MATH_DEFAULT, false, 1, 10, 10, 1, "avx512_f32_8x48"},
    {BF16, EG_F16, EG_MATH_DEFAULT, false, 512, 512, 512, 1, "avx512_f32_8x48"},
    {AVX512, EG_BF16, EG_MATH_DEFAULT, false, 512, 512, 512, 1, "avx512_f32_8x48"},
};

/* A list of one product. */
static eg_op_list product_of(eg_dtype dtype, eg_math math, int64_t m, int64_t k, int64_t n, int64_t batch,
                             bool shared_b) {
    const bool batched = batch > 1;
    eg_op_list list = {.ops = 1, .dtype = dtype, .compute = dtype == EG_F64 ? EG_F64 : EG_F32, .math = math};
    list.op[0] = (eg_op){.kind = EG_GEMM,
                         .items = batch,
                         .rows = m,
                         .cols = n,
                         .depth = k,
                         .summed = 1,
                         .left = {.space = EG_OPERAND,
                                  .id = EG_OP_A,
                                  .dtype = dtype,
                                  .rows = m,
                                  .cols = k,
                                  .row_stride = k,
                                  .col_stride = 1,
                                  .batch_stride = batched ? m * k : 0},
                         .right = {.space = EG_OPERAND,
                                   .id = EG_OP_B,
                                   .dtype = dtype,
                                   .rows = k,
                                   .cols = n,
                                   .row_stride = n,
                                   .col_stride = 1,
                                   .batch_stride = batched && !shared_b ? k * n : 0}};
    return list;
}

static void sizes_choose_the_row(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(choices); i++) {
        const choice *c = &choices[i];
        const eg_caps caps = {.backend = EG_BACKEND_CPU, .features = c->features, .threads = 1};
        const eg_op_list list = product_of(c->dtype, c->math, c->m, c->k, c->n, c->batch, c->shared_b);
        assert_string_equal(eg_cpu_choose(&caps, &list)->name, c->row);
    }
}

/* Nor does the layout of b, but for rows of one instruction set, which sum alike: either would make the bits
 * depend on it. */
static void threads_do_not_choose_the_row(void **state) {
    (void)state;
    for (int64_t m = 1; m <= 1024; m += 1 + m / 2) {
        for (int64_t n = 8; n <= 1024; n *= 2) {
            const eg_caps one = {.backend = EG_BACKEND_CPU, .features = AMX, .threads = 1},
                          many = {.backend = EG_BACKEND_CPU, .features = AMX, .threads = 64};
            eg_op_list list = product_of(EG_F32, EG_MATH_DEFAULT, m, 200, n, 1, false);
            const eg_cpu_kernel *row = eg_cpu_choose(&one, &list);
            assert_ptr_equal(eg_cpu_choose(&many, &list), row);
            list.op[0].right.row_stride = 1, list.op[0].right.col_stride = 200;
            assert_int_equal(eg_cpu_choose(&one, &list)->needs, row->needs);
        }
    }
}

static void a_name_chooses_it_whatever_the_size(void **state) {
    (void)state;
    for (int i = 0; eg_cpu_kernel_row(i) != NULL; i++) {
        const eg_cpu_kernel *row = eg_cpu_kernel_row(i);
        const eg_caps caps = {
            .backend = EG_BACKEND_CPU, .features = AMX, .threads = 1, .only_kernel = row->name};
        const eg_dtype dtype = row->dtype != EG_DTYPE_DEFAULT ? row->dtype : row->compute;
        const bool exact = row->maths & EG_CPU_MATH(EG_MATH_DEFAULT);
        const eg_op_list list = product_of(dtype, exact ? EG_MATH_DEFAULT : EG_MATH_FAST, 3, 5, 7, 1, false);
        assert_ptr_equal(eg_cpu_choose(&caps, &list), row);
    }
}

#else

static void sizes_choose_the_row(void **state) {
    (void)state;
    skip();
}
static void threads_do_not_choose_the_row(void **state) {
    (void)state;
    skip();
}
static void a_name_chooses_it_whatever_the_size(void **state) {
    (void)state;
    skip();
}

#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_subset_has_its_steps),
        cmocka_unit_test(forward_is_one_product),
        cmocka_unit_test(a_batch_of_one_b_is_rows),
        cmocka_unit_test(a_pack_saves_its_step),
        cmocka_unit_test(plans_are_pure),
        cmocka_unit_test(marks_are_enough),
        cmocka_unit_test(workspace_follows_what_is_wanted),
        cmocka_unit_test(text_is_cut_to_its_room),
        cmocka_unit_test(a_named_row_is_the_one_that_runs),
        cmocka_unit_test(sizes_choose_the_row),
        cmocka_unit_test(a_name_chooses_it_whatever_the_size),
        cmocka_unit_test(a_column_major_result_is_turned),
        cmocka_unit_test(few_rows_copy_no_b),
        cmocka_unit_test(little_depth_packs_nothing),
        cmocka_unit_test(small_operands_need_no_copy),
        cmocka_unit_test(no_way_changes_a_bit),
        cmocka_unit_test(threads_do_not_choose_the_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
