/* SPDX-License-Identifier: Apache-2.0 */
/* One result, several ways to it: the same bits, whichever the sizes or the memory make the library take. */
#include "fixture.h"

#include "core/backend.h"
#include "cpu/estimate.h"

static const eg_dtype dtypes[] = {EG_F64, EG_F32, EG_BF16, EG_F16};

/* ---- Non-temporal stores ------------------------------------------------------------------------- */

/* A result with gaps between its rows, whose lines are those of the memory unless it begins between them. */
typedef struct result {
    unsigned char *memory;
    eg_matrix at;
    size_t row, pitch, rows, bytes; /* the first two in bytes */
} result;

enum { LINE = 64, POISON = 0xff };

static result make_result(int64_t rows, int64_t cols, eg_dtype dtype, bool whole_lines) {
    const size_t size = eg_dtype_size(dtype), row = (size_t)cols * size, pitch = (row / LINE + 1) * LINE;
    result r = {.row = row, .pitch = pitch, .rows = (size_t)rows, .bytes = (size_t)(rows + 1) * pitch};
    r.memory = aligned_alloc(LINE, r.bytes);
    assert_non_null(r.memory);
    memset(r.memory, POISON, r.bytes);
    r.at = (eg_matrix){.data = r.memory, .offset = whole_lines ? 0 : size, .ld = (int64_t)(pitch / size)};
    return r;
}

static void assert_same(const result *x, const result *y) {
    for (size_t i = 0; i < x->rows; i++) {
        const unsigned char *line = x->memory + x->at.offset + i * x->pitch;
        assert_memory_equal(line, y->memory + y->at.offset + i * y->pitch, x->row);
        for (size_t j = x->row; j < x->pitch; j++) assert_int_equal(line[j], POISON);
    }
}

/* Of few terms, so that multiply-adds are stored without caches too; of more than the caches keep. */
static void check_results(eg_context *context, eg_layer layer) {
    fixture f;
    fixture_make(&f, layer);
    result d_a[2], d_b[2];
    for (int i = 0; i < 2; i++) {
        eg_backward_args args = f.backward;
        d_a[i] = make_result(layer.m, layer.k, layer.dtype, i == 0);
        d_b[i] = make_result(layer.k, layer.n, layer.dtype, i == 0);
        args.d_a = d_a[i].at, args.d_b = d_b[i].at;
        assert_ok(eg_backward(context, &layer, &args));
    }
    assert_same(&d_a[0], &d_a[1]);
    assert_same(&d_b[0], &d_b[1]);
    for (int i = 0; i < 2; i++) free(d_a[i].memory), free(d_b[i].memory);
    fixture_free(&f);
}

static void large_results_have_the_same_bits_on_whole_lines(void **state) {
    (void)state;
    eg_context *contexts[] = {open_cpu(1), open_cpu(2)};
    for (size_t i = 0; i < 2 * LENGTH(dtypes); i++) {
        if (short_run() && i % 2 != i / 2 % 2) continue; /* each type once, by turns alone and in a batch */
        eg_layer layer = small_layer();
        layer.dtype = dtypes[i / 2], layer.batch = 1 + (int64_t)i % 2;
        layer.m = 50, layer.k = 1203, layer.n = 1010;
        if (!short_run() || i / 2 % 2 == 0) check_results(contexts[i % 2], layer);
        layer.m = 1203, layer.k = 1010, layer.n = 50;
        if (!short_run() || i / 2 % 2 == 1) check_results(contexts[i % 2], layer);
    }
    for (int i = 0; i < 2; i++) eg_close(contexts[i]);
}

/* y, and pre or none, on whole lines, where large results take non-temporal stores, and between them. False
 * where the context's one kernel does not compute such a layer. */
static bool check_activation(eg_context *context, eg_layer layer, bool saves_pre) {
    fixture f;
    fixture_make(&f, layer);
    result y[2], pre[2];
    bool computes = true;
    for (int i = 0; i < 2; i++) {
        eg_forward_args args = f.forward;
        y[i] = make_result(layer.m, layer.n, layer.dtype, i == 0);
        pre[i] = make_result(layer.m, layer.n, layer.dtype, i == 0);
        args.y = y[i].at;
        args.pre = saves_pre ? pre[i].at : (eg_matrix){0};
        computes = computes && eg_forward(context, &layer, &args) == EG_OK;
    }
    if (computes) assert_same(&y[0], &y[1]);
    if (computes) assert_same(&pre[0], &pre[1]);
    for (int i = 0; i < 2; i++) free(y[i].memory), free(pre[i].memory);
    fixture_free(&f);
    return computes;
}

enum { SOME_TYPES = 2 }; /* that a row computes, in a short run: others by each row */

/* By every kernel row; by the tile loop and as outer products. */
static void large_activations_have_the_same_bits_on_whole_lines(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{613, 100, 1010}, {1203, 33, 1010}, {4300, 3, 1010}};
    eg_context *all = open_cpu(1);
    eg_kernel_info row = {.size = sizeof row};
    for (int i = 0; eg_get_kernel_info(all, i, &row) == EG_OK; i++) {
        if (!row.usable) continue;
        const eg_open_info info = {.size = sizeof info, .kernel = row.name, .threads = 1 + i % 2};
        eg_context *context;
        int computed = 0;
        assert_ok(eg_open(&info, &context));
        for (size_t j = 0; j < LENGTH(sizes) * LENGTH(dtypes); j++) {
            const size_t type = (j / LENGTH(sizes) + (size_t)i) % LENGTH(dtypes);
            const int64_t *size = sizes[j % LENGTH(sizes)];
            if (short_run() && computed == SOME_TYPES) break;
            if (short_run() && j % LENGTH(sizes) != ((size_t)i + type) % LENGTH(sizes)) continue;
            eg_layer layer = small_layer();
            layer.dtype = dtypes[type], layer.math = EG_MATH_FAST, layer.batch = 1;
            const bool is_flat = size[1] < 8; /* so little depth that lines go by way of L1: with pre, too */
            layer.activation = is_flat ? EG_ACT_RELU : j % 2 == 0 ? EG_ACT_GELU : EG_ACT_NONE;
            layer.m = size[0], layer.k = size[1], layer.n = size[2];
            computed += check_activation(context, layer, is_flat || j / 2 % 2 == 0);
        }
        assert_int_not_equal(computed, 0);
        eg_close(context);
    }
    eg_close(all);
}

/* ---- Column-major results ------------------------------------------------------------------------ */

static void assert_transposed(const result *x, const result *y, size_t size) {
    for (size_t i = 0; i < x->rows; i++) {
        const unsigned char *row = x->memory + x->at.offset + i * x->pitch;
        for (size_t j = 0; j < y->rows; j++) {
            const unsigned char *column = y->memory + y->at.offset + j * y->pitch;
            assert_memory_equal(row + j * size, column + i * size, size);
        }
    }
}

/* False where the context's one kernel does not compute such a layer. */
static bool check_layouts(eg_context *context, eg_layer layer, bool whole_lines, bool turned_a) {
    fixture f;
    fixture_make(&f, layer);
    eg_backward_args rows = f.backward, columns = f.backward;
    result d_a = make_result(layer.m, layer.k, layer.dtype, whole_lines),
           d_a_t = make_result(layer.k, layer.m, layer.dtype, whole_lines),
           d_b = make_result(layer.k, layer.n, layer.dtype, whole_lines),
           d_b_t = make_result(layer.n, layer.k, layer.dtype, whole_lines);
    d_a_t.at.layout = d_b_t.at.layout = EG_COL_MAJOR;
    if (turned_a) rows.a.layout = columns.a.layout = EG_COL_MAJOR, rows.a.ld = columns.a.ld = layer.m;
    rows.d_a = d_a.at, rows.d_b = d_b.at;
    columns.d_a = d_a_t.at, columns.d_b = d_b_t.at;
    const bool computes = eg_backward(context, &layer, &rows) == EG_OK;
    if (computes) {
        assert_ok(eg_backward(context, &layer, &columns));
        assert_transposed(&d_a, &d_a_t, eg_dtype_size(layer.dtype));
        assert_transposed(&d_b, &d_b_t, eg_dtype_size(layer.dtype));
    }
    free(d_a.memory), free(d_a_t.memory), free(d_b.memory), free(d_b_t.memory);
    fixture_free(&f);
    return computes;
}

/* By every kernel row: which of them a call takes may depend on the layout. Two passes, and one; and of tile
 * blocks of bf16, whose sums always have one order, columns so few that their transpose, of an a that lies
 * so, is one of few rows. */
static void column_major_results_have_the_same_bits(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{50, 810, 703}, {613, 810, 45}, {244, 202, 13}};
    eg_context *all = open_cpu(1);
    eg_kernel_info row = {.size = sizeof row};
    for (int i = 0; eg_get_kernel_info(all, i, &row) == EG_OK; i++) {
        if (!row.usable) continue;
        const eg_open_info info = {.size = sizeof info, .kernel = row.name, .threads = 1 + i % 2};
        eg_context *context;
        int computed = 0;
        assert_ok(eg_open(&info, &context));
        for (size_t j = 0; j < LENGTH(sizes) * LENGTH(dtypes); j++) {
            const size_t type = (j / LENGTH(sizes) + (size_t)i) % LENGTH(dtypes);
            const int64_t *size = sizes[j % LENGTH(sizes)];
            const bool narrow = j % LENGTH(sizes) == 2;
            if (short_run() && computed == SOME_TYPES) break;
            if (narrow ? strstr(row.name, "_bf16x1_") == NULL
                       : short_run() && j % LENGTH(sizes) == (size_t)i % 2)
                continue;
            eg_layer layer = small_layer();
            layer.dtype = dtypes[type], layer.math = EG_MATH_FAST, layer.batch = 1;
            layer.m = size[0], layer.k = size[1], layer.n = size[2];
            computed += check_layouts(context, layer, j % LENGTH(sizes) == 0, narrow);
        }
        assert_int_not_equal(computed, 0);
        eg_close(context);
    }
    eg_close(all);
}

/* ---- Fused packing ------------------------------------------------------------------------------ */

/* A call that is given a pack of B lays none out. */
static void check_pack(eg_context *context, eg_layer layer) {
    fixture f, packed;
    fixture_make(&f, layer);
    fixture_make(&packed, layer);
    fixture_poison(&f), fixture_poison(&packed);
    assert_ok(eg_forward(context, &layer, &f.forward));
    assert_ok(eg_backward(context, &layer, &f.backward));
    eg_packed *b;
    assert_ok(eg_pack_b(context, &layer, &packed.forward.b, &b));
    packed.forward.packed_b = packed.backward.packed_b = b;
    assert_ok(eg_forward(context, &layer, &packed.forward));
    assert_ok(eg_backward(context, &layer, &packed.backward));
    assert_memory_equal(f.outputs, packed.outputs, f.output_bytes);
    eg_packed_free(context, b);
    fixture_free(&packed);
    fixture_free(&f);
}

static void a_pack_of_b_changes_no_bit(void **state) {
    (void)state;
    static const int64_t rows[] = {31, 192, 250, 384, 385};
    eg_context *context = open_cpu(2);
    for (size_t i = 0; i < LENGTH(rows) * LENGTH(dtypes); i += (size_t)short_step(3)) {
        eg_layer layer = small_layer();
        layer.dtype = dtypes[i % LENGTH(dtypes)];
        layer.m = rows[i / LENGTH(dtypes)], layer.k = 300, layer.n = 333;
        check_pack(context, layer);
        layer.k = 500, layer.n = 520; /* one pass, or two */
        if (i < LENGTH(dtypes)) check_pack(context, layer);
    }
    eg_close(context);
}

/* Also where each of several bands of blocks packs B for itself, by sixteen threads. */
static void so_it_is_with_many_threads(void **state) {
    (void)state;
    eg_context *context = open_cpu(16);
    eg_cpu_calibration fuses = *eg_cpu_calibration_of(&context->caps);
    fuses.right = EG_CPU_FUSES;
    context->caps.detail = &fuses;
    for (size_t i = 0; i < LENGTH(dtypes); i++) {
        if (short_run() && dtypes[i] != EG_F32 && dtypes[i] != EG_BF16) continue; /* six terms, and one */
        eg_layer layer = small_layer();
        layer.dtype = dtypes[i], layer.m = 512, layer.k = layer.n = 500;
        check_pack(context, layer);
    }
    eg_close(context);
    context = open_cpu(16); /* the left operand as before, where a block might pack both */
    fuses.left = EG_CPU_PACKED;
    context->caps.detail = &fuses;
    char plan[2048];
    fixture f;
    eg_layer layer = small_layer();
    layer.dtype = EG_BF16, layer.m = 512, layer.k = layer.n = 500;
    fixture_make(&f, layer);
    assert_ok(eg_forward_plan(context, &layer, &f.forward, plan, sizeof plan));
    assert_non_null(strstr(plan, "fused packing"));
    assert_non_null(strstr(plan, "threads"));
    fixture_free(&f);
    eg_close(context);
}

/* ---- Block fusion ------------------------------------------------------------------------------- */

/* A gated backward call whose two weights are one; the gradient of the other goes to `d_b_up`. */
static eg_backward_args gated_call(const fixture *f, result *d_b_up) {
    eg_backward_args args = f->backward;
    *d_b_up = make_result(f->layer.k, f->layer.n, f->layer.dtype, true);
    args.b_up = args.b, args.bias_up = args.bias, args.d_b_up = d_b_up->at;
    return args;
}

/* Products and the maps after them, block by block; and as one group, whose steps are run one after the
 * other. All matrices are alike, so that any could be taken for another. */
static void check_fused(eg_context *context, eg_layer layer) {
    fixture x, y;
    char plan[4096];
    result d_b_up[2];
    const int32_t end = (int32_t)layer.m;
    fixture_make(&x, layer), fixture_make(&y, layer);
    eg_backward_args blocks = gated_call(&x, &d_b_up[0]), group = gated_call(&y, &d_b_up[1]);
    eg_layer one_group = layer;
    one_group.groups = 1, group.offsets.data = (void *)(uintptr_t)&end;
    fixture_poison(&x), fixture_poison(&y);
    assert_ok(eg_backward_plan(context, &layer, &blocks, plan, sizeof plan));
    assert_non_null(strstr(plan, "in the same blocks"));
    assert_ok(eg_backward(context, &layer, &blocks));
    assert_ok(eg_backward(context, &one_group, &group));
    assert_memory_equal(x.outputs, y.outputs, x.output_bytes);
    assert_same(&d_b_up[0], &d_b_up[1]);
    for (int i = 0; i < 2; i++) free(d_b_up[i].memory);
    fixture_free(&x), fixture_free(&y);
}

static void block_fusion_changes_no_bit(void **state) {
    (void)state;
    eg_context *contexts[] = {open_cpu(1), open_cpu(3)};
    for (size_t i = 0; i < 2 * LENGTH(dtypes); i += (size_t)short_step(3)) {
        eg_layer layer = small_layer();
        layer.dtype = dtypes[i % LENGTH(dtypes)], layer.activation = EG_ACT_SILU, layer.batch = 1;
        layer.m = layer.k = layer.n = 600;
        check_fused(contexts[i / LENGTH(dtypes)], layer);
    }
    for (int i = 0; i < 2; i++) eg_close(contexts[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_results_have_the_same_bits_on_whole_lines),
        cmocka_unit_test(large_activations_have_the_same_bits_on_whole_lines),
        cmocka_unit_test(column_major_results_have_the_same_bits),
        cmocka_unit_test(a_pack_of_b_changes_no_bit),
        cmocka_unit_test(so_it_is_with_many_threads),
        cmocka_unit_test(block_fusion_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
