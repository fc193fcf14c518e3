/* SPDX-License-Identifier: Apache-2.0 */
/* One result by several ways to read its operands: the same bits. */
#include "fixture.h"

#include "core/backend.h"
#include "cpu/estimate.h"
#include "cpu/kernels.h"

static const eg_dtype dtypes[] = {EG_F64, EG_F32, EG_BF16, EG_F16};

enum { POISON = 0xff };

/* ---- Few rows ----------------------------------------------------------------------------------- */

/* B as a PyTorch weight with a gap after each of its rows, which begin at any number. NaN are in the gaps. */
static unsigned char *turned(const eg_layer *layer, eg_matrix *b) {
    enum { GAP = 3 };
    const size_t size = eg_dtype_size(layer->dtype), k = (size_t)layer->k, n = (size_t)layer->n, ld = k + GAP;
    const size_t items = b->batch_stride != 0 ? (size_t)layer->batch : 1, bytes = (items * n * ld + 1) * size;
    unsigned char *memory = malloc(bytes);
    assert_non_null(memory);
    memset(memory, POISON, bytes);
    for (size_t i = 0; i < items * k * n; i++) {
        const size_t item = i / (k * n), row = i / n % k, col = i % n;
        memcpy(memory + (1 + (item * n + col) * ld + row) * size, (unsigned char *)b->data + i * size, size);
    }
    *b = (eg_matrix){.data = memory,
                     .offset = size,
                     .ld = (int64_t)ld,
                     .batch_stride = b->batch_stride != 0 ? (int64_t)(n * ld) : 0,
                     .layout = EG_COL_MAJOR};
    return memory;
}

/* The call, and the same for fewer outputs by other threads. */
static void check_few_rows(eg_context *one, eg_context *some, fixture *f, fixture *other) {
    fixture_poison(f), fixture_poison(other);
    assert_ok(eg_forward(one, &f->layer, &f->forward));
    assert_ok(eg_backward(one, &f->layer, &f->backward));
    assert_ok(eg_forward(some, &f->layer, &other->forward));
    eg_backward_args d_a = other->backward, others = d_a;
    others.d_a = (eg_matrix){0};
    d_a.d_b = d_a.grad_pre = (eg_matrix){0}, d_a.d_bias = (eg_vector){0};
    assert_ok(eg_backward(some, &f->layer, &d_a));
    assert_ok(eg_backward(some, &f->layer, &others));
    assert_memory_equal(f->outputs, other->outputs, f->output_bytes);
}

/* In either layout by any number of threads, whatever else is wanted; whole vectors or not, one pass or
 * several. */
static void few_rows_have_the_same_bits(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 3, 8, 16, 17, 32},
                         sizes[][2] = {{300, 333}, {1, 10}, {10, 1}, {641, 64}};
    eg_context *one = open_cpu(1), *some = open_cpu(3);
    for (size_t i = 0; i < LENGTH(rows) * LENGTH(sizes) * LENGTH(dtypes); i += (size_t)short_step(3)) {
        eg_layer layer = small_layer();
        layer.dtype = dtypes[i % LENGTH(dtypes)];
        layer.m = rows[i / LENGTH(dtypes) % LENGTH(rows)];
        layer.k = sizes[i / LENGTH(dtypes) / LENGTH(rows)][0];
        layer.n = sizes[i / LENGTH(dtypes) / LENGTH(rows)][1];
        layer.math = EG_MATH_STRICT;
        fixture f, other;
        fixture_make(&f, layer), fixture_make(&other, layer);
        check_few_rows(one, some, &f, &other);
        unsigned char *const memory = turned(&layer, &f.forward.b);
        f.backward.b = other.forward.b = other.backward.b = f.forward.b;
        check_few_rows(one, some, &f, &other);
        free(memory);
        fixture_free(&other), fixture_free(&f);
    }
    eg_close(one), eg_close(some);
}

/* A context whose products read their operands so, where they can. */
static eg_context *open_only(int threads, eg_cpu_calibration *only, eg_cpu_way left, eg_cpu_way right) {
    eg_context *context = open_cpu(threads);
    *only = *eg_cpu_calibration_of(&context->caps);
    only->left = left, only->right = right;
    context->caps.detail = only;
    return context;
}

/* Forward and backward by `few`, whose plan says so, and by the tile loop: the same call. */
static void check_streamed(eg_context *few, eg_context *tiles, fixture *x, fixture *y, const char *note) {
    char plan[4096];
    fixture_poison(x), fixture_poison(y);
    assert_ok(eg_forward_plan(few, &x->layer, &x->forward, plan, sizeof plan));
    assert_non_null(strstr(plan, note));
    assert_ok(eg_forward(few, &x->layer, &x->forward));
    assert_ok(eg_backward(few, &x->layer, &x->backward));
    assert_ok(eg_forward(tiles, &y->layer, &y->forward));
    assert_ok(eg_backward(tiles, &y->layer, &y->backward));
    assert_memory_equal(x->outputs, y->outputs, x->output_bytes);
}

/* A row with tile blocks takes one of rows, by which the sums are those of its tile loop. */
static void check_rows_of_a_tile_block(const char *row, uint32_t needs) {
    static const int64_t rows[] = {17, 20, 24}, sizes[][2] = {{300, 333}, {1100, 64}, {32, 31}, {1056, 544}};
    static eg_cpu_calibration streams, packs;
    eg_context *few = open_only(3, &streams, EG_CPU_STREAMS, EG_CPU_ANY_WAY),
               *tiles = open_only(1, &packs, EG_CPU_PACKED, EG_CPU_PACKED);
    few->caps.only_kernel = tiles->caps.only_kernel = row;
    const size_t calls = (few->caps.features & needs) != 0 ? 2 * LENGTH(rows) * LENGTH(sizes) : 0;
    for (size_t i = 0; i < calls; i++) {
        eg_layer layer = small_layer();
        layer.dtype = EG_BF16, layer.m = rows[i / 2 % LENGTH(rows)];
        layer.k = sizes[i / 2 / LENGTH(rows)][0], layer.n = sizes[i / 2 / LENGTH(rows)][1];
        fixture x, y;
        fixture_make(&x, layer), fixture_make(&y, layer);
        unsigned char *const memory = turned(&layer, &x.forward.b);
        y.forward.b = x.backward.b = y.backward.b = x.forward.b;
        eg_packed *pack = NULL;
        if (i % 2 == 1) assert_ok(eg_pack_b(few, &layer, &x.forward.b, &pack));
        x.forward.packed_b = x.backward.packed_b = pack;
        check_streamed(few, tiles, &x, &y, "few rows");
        eg_packed_free(few, pack);
        free(memory);
        fixture_free(&x), fixture_free(&y);
    }
    eg_close(few), eg_close(tiles);
}

static void rows_of_a_tile_block_have_the_same_bits(void **state) {
    (void)state;
    check_rows_of_a_tile_block("amx_bf16x1_32x32", EG_CPU_AMX);
    check_rows_of_a_tile_block("avx512_bf16x1_32x32", EG_CPU_BF16);
}

/* Of more than 16 rows sums are chains of multiply-adds, as those of tiles are: b in rows, or packed. */
static void chains_have_the_bits_of_tiles(void **state) {
    (void)state;
    static const int64_t rows[] = {17, 20, 24}, sizes[][2] = {{300, 333}, {1100, 64}, {32, 31}, {641, 544}};
    static eg_cpu_calibration streams, packs;
    eg_context *few = open_only(3, &streams, EG_CPU_STREAMS, EG_CPU_ANY_WAY),
               *tiles = open_only(1, &packs, EG_CPU_PACKED, EG_CPU_PACKED);
    for (size_t i = 0; i < 2 * LENGTH(rows) * LENGTH(sizes) * LENGTH(dtypes); i += (size_t)short_step(5)) {
        eg_layer layer = small_layer();
        layer.dtype = dtypes[i / 2 % LENGTH(dtypes)], layer.math = EG_MATH_STRICT;
        layer.m = rows[i / 2 / LENGTH(dtypes) % LENGTH(rows)];
        layer.k = sizes[i / 2 / LENGTH(dtypes) / LENGTH(rows)][0];
        layer.n = sizes[i / 2 / LENGTH(dtypes) / LENGTH(rows)][1];
        fixture x, y;
        char plan[4096];
        fixture_make(&x, layer), fixture_make(&y, layer);
        eg_packed *pack = NULL;
        if (i % 2 == 1) assert_ok(eg_pack_b(few, &layer, &x.forward.b, &pack));
        x.forward.packed_b = pack;
        assert_ok(eg_forward_plan(few, &layer, &x.forward, plan, sizeof plan));
        assert_non_null(strstr(plan, "few rows"));
        assert_ok(eg_forward(few, &layer, &x.forward));
        assert_ok(eg_forward(tiles, &layer, &y.forward));
        assert_memory_equal(x.outputs, y.outputs, x.output_bytes);
        eg_packed_free(few, pack);
        fixture_free(&x), fixture_free(&y);
    }
    eg_close(few), eg_close(tiles);
}

/* And columns, of which there may be some tile blocks, packed by the call, beforehand, or not at all. */
static void columns_of_tile_blocks_have_the_same_bits(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{33, 75, 17},    {200, 333, 33}, {449, 64, 128},
                                       {193, 1030, 64}, {60, 301, 100}, {576, 32, 32}};
    static eg_cpu_calibration streams, packs;
    eg_context *few = open_only(3, &streams, EG_CPU_STREAMS, EG_CPU_ANY_WAY),
               *tiles = open_only(1, &packs, EG_CPU_PACKED, EG_CPU_PACKED);
    few->caps.only_kernel = tiles->caps.only_kernel = "amx_bf16x1_32x32";
    const size_t calls = (few->caps.features & EG_CPU_AMX) != 0 ? 4 * LENGTH(sizes) : 0;
    for (size_t i = 0; i < calls; i++) {
        eg_layer layer = small_layer();
        layer.dtype = EG_BF16, layer.batch = 1 + (int64_t)i % 3 / 2;
        layer.m = sizes[i / 4][0], layer.k = sizes[i / 4][1], layer.n = sizes[i / 4][2];
        fixture x, y;
        fixture_make(&x, layer), fixture_make(&y, layer);
        unsigned char *const memory = i % 2 == 0 ? turned(&layer, &x.forward.b) : NULL;
        y.forward.b = x.backward.b = y.backward.b = x.forward.b;
        eg_packed *pack = NULL;
        if (i % 4 >= 2) assert_ok(eg_pack_b(few, &layer, &x.forward.b, &pack));
        x.forward.packed_b = x.backward.packed_b = pack;
        check_streamed(few, tiles, &x, &y, "few columns");
        eg_packed_free(few, pack);
        free(memory);
        fixture_free(&x), fixture_free(&y);
    }
    eg_close(few), eg_close(tiles);
}

/* Whole blocks of rows and parts of one; vectors and parts; items of a batch; one pass and several. */
static void few_columns_have_the_same_bits(void **state) {
    (void)state;
    static const int64_t rows[] = {17, 200, 577},
                         sizes[][2] = {{300, 1}, {64, 10}, {641, 7}, {13, 16}, {9, 300}};
    static eg_cpu_calibration streams, also, packs;
    eg_context *few = open_only(3, &streams, EG_CPU_STREAMS, EG_CPU_ANY_WAY),
               *one = open_only(1, &also, EG_CPU_STREAMS, EG_CPU_ANY_WAY),
               *many = open_only(1, &packs, EG_CPU_PACKED, EG_CPU_PACKED);
    for (size_t i = 0; i < LENGTH(rows) * LENGTH(sizes) * LENGTH(dtypes); i += (size_t)short_step(5)) {
        eg_layer layer = small_layer();
        layer.dtype = dtypes[i % LENGTH(dtypes)], layer.math = EG_MATH_STRICT;
        layer.m = rows[i / LENGTH(dtypes) % LENGTH(rows)], layer.batch = 1 + (int64_t)i % 3;
        layer.k = sizes[i / LENGTH(dtypes) / LENGTH(rows)][0];
        layer.n = sizes[i / LENGTH(dtypes) / LENGTH(rows)][1];
        fixture x, y;
        fixture_make(&x, layer), fixture_make(&y, layer);
        check_few_rows(few, one, &x, &y);
        fixture_free(&x), fixture_free(&y);
    }
    char plan[4096];
    fixture f;
    eg_layer layer = small_layer();
    layer.m = 200, layer.k = 300, layer.n = 7, layer.math = EG_MATH_STRICT;
    fixture_make(&f, layer);
    assert_ok(eg_forward_plan(few, &layer, &f.forward, plan, sizeof plan));
    assert_non_null(strstr(plan, "few columns"));
    assert_ok(eg_forward_plan(many, &layer, &f.forward, plan, sizeof plan));
    assert_null(strstr(plan, "few"));
    fixture_free(&f);
    eg_close(few), eg_close(one), eg_close(many);
}

/* ---- Rows in place ------------------------------------------------------------------------------ */

/* As `turned`, but of A: rows of k with NaN between them. The numbers of A are in another order then. */
static unsigned char *set_apart(const eg_layer *layer, eg_matrix *a) {
    eg_layer turn = *layer;
    turn.n = layer->m;
    unsigned char *const memory = turned(&turn, a);
    a->layout = EG_ROW_MAJOR;
    return memory;
}

/* Tiles read rows of A where they are, whole cache lines apart, whose last block of k is not whole: also where
 * it is all of the last pass, and where the last tile has few rows. A pack of A has zeros there. */
static void check_rows_in_place(const char *row, uint32_t needs) {
    static const int64_t sizes[][3] = {{75, 349, 33}, {64, 1053, 40}, {33, 8221, 7}};
    static eg_cpu_calibration in_place, packs;
    eg_context *reads = open_only(2, &in_place, EG_CPU_PLACED, EG_CPU_PACKED),
               *copies = open_only(1, &packs, EG_CPU_PACKED, EG_CPU_PACKED);
    reads->caps.only_kernel = copies->caps.only_kernel = row;
    const size_t calls = (reads->caps.features & needs) != 0 ? LENGTH(sizes) : 0;
    for (size_t i = 0; i < calls; i++) {
        eg_layer layer = small_layer();
        layer.dtype = EG_BF16, layer.batch = 1;
        layer.m = sizes[i][0], layer.k = sizes[i][1], layer.n = sizes[i][2];
        fixture x, y;
        char plan[4096];
        fixture_make(&x, layer), fixture_make(&y, layer);
        unsigned char *const memory = set_apart(&layer, &x.forward.a);
        y.forward.a = x.forward.a;
        fixture_poison(&x), fixture_poison(&y);
        assert_ok(eg_forward_plan(reads, &layer, &x.forward, plan, sizeof plan));
        assert_null(strstr(plan, "pack a")), assert_null(strstr(plan, "fused")),
            assert_null(strstr(plan, "few"));
        assert_ok(eg_forward_plan(copies, &layer, &y.forward, plan, sizeof plan));
        assert_non_null(strstr(plan, "pack a"));
        assert_ok(eg_forward(reads, &layer, &x.forward));
        assert_ok(eg_forward(copies, &layer, &y.forward));
        assert_memory_equal(x.outputs, y.outputs, x.output_bytes);
        free(memory);
        fixture_free(&x), fixture_free(&y);
    }
    eg_close(reads), eg_close(copies);
}

static void rows_in_place_have_the_same_bits(void **state) {
    (void)state;
    check_rows_in_place("amx_bf16x1_32x32", EG_CPU_AMX);
    check_rows_in_place("avx512_bf16x1_32x32", EG_CPU_BF16);
}

/* ---- Little depth ------------------------------------------------------------------------------- */

/* The call with results in rows and in columns. */
static void check_little_depth(eg_context *outer, eg_context *tiles, eg_layer layer, bool columns) {
    fixture x, y;
    fixture_make(&x, layer), fixture_make(&y, layer);
    if (columns) {
        x.backward.d_b.layout = EG_COL_MAJOR, x.backward.d_b.ld = layer.k;
        y.backward.d_b.layout = EG_COL_MAJOR, y.backward.d_b.ld = layer.k;
    }
    fixture_poison(&x), fixture_poison(&y);
    assert_ok(eg_forward(outer, &layer, &x.forward));
    assert_ok(eg_backward(outer, &layer, &x.backward));
    assert_ok(eg_forward(tiles, &layer, &y.forward));
    assert_ok(eg_backward(tiles, &layer, &y.backward));
    assert_memory_equal(x.outputs, y.outputs, x.output_bytes);
    x.backward.accumulate = y.backward.accumulate = 1;
    assert_ok(eg_backward(outer, &layer, &x.backward));
    assert_ok(eg_backward(tiles, &layer, &y.backward));
    assert_memory_equal(x.outputs, y.outputs, x.output_bytes);
    fixture_free(&x), fixture_free(&y);
}

/* Every product of little depth as outer products, and by the tile loop: whole tiles and vectors or not,
 * whole lines or not, results that stay in the caches or are stored past them, with and without grad_pre. */
static void outer_products_have_the_same_bits(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{1, 65, 99},    {48, 64, 33},    {7, 300, 40},     {130, 13, 200},
                                       {200, 100, 10}, {9, 1200, 1184}, {16, 1203, 1010}, {61, 271, 260}};
    static eg_cpu_calibration outer, packs;
    eg_context *contexts[] = {open_only(3, &outer, EG_CPU_OUTER, EG_CPU_ANY_WAY),
                              open_only(1, &packs, EG_CPU_PACKED, EG_CPU_PACKED)};
    for (size_t i = 0; i < LENGTH(sizes) * LENGTH(dtypes) * 4; i += (size_t)short_step(3)) {
        eg_layer layer = small_layer();
        layer.dtype = dtypes[i / 4 % LENGTH(dtypes)], layer.math = EG_MATH_STRICT;
        layer.activation = i / 2 % 2 == 0 ? EG_ACT_GELU : i / 4 % 2 == 0 ? EG_ACT_NONE : EG_ACT_RELU;
        layer.m = sizes[i / 4 / LENGTH(dtypes)][0], layer.k = sizes[i / 4 / LENGTH(dtypes)][1];
        layer.n = sizes[i / 4 / LENGTH(dtypes)][2];
        layer.batch = i % 3 == 0 && layer.k < 1000 ? 2 : 1;
        check_little_depth(contexts[0], contexts[1], layer, i % 2 == 1);
    }
    eg_close(contexts[0]), eg_close(contexts[1]);
}

/* What a forward call writes, from a line of memory on, with gaps between rows, those of `pre` twice as long. */
typedef struct written {
    unsigned char *y, *pre;
    size_t y_bytes, pre_bytes;
} written;

static void *lines(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(memory);
    return memset(memory, POISON, (bytes + 63) / 64 * 64);
}

static written write_lines(eg_context *context, const fixture *f, int64_t gap, bool pre) {
    const eg_layer *l = &f->layer;
    const size_t size = eg_dtype_size(l->dtype);
    written to = {.y_bytes = (size_t)(l->m * (l->n + gap)) * size,
                  .pre_bytes = (size_t)(l->m * (l->n + 2 * gap)) * size};
    eg_forward_args args = f->forward;
    to.y = lines(to.y_bytes), to.pre = lines(to.pre_bytes);
    args.y = eg_row_major(to.y), args.pre = pre ? eg_row_major(to.pre) : (eg_matrix){0};
    args.y.ld = l->n + gap, args.pre.ld = pre ? l->n + 2 * gap : 0;
    assert_ok(eg_forward(context, l, &args));
    return to;
}

/* Where no caller wants grad_pre, which is made as later products read it. */
static void check_rows_of_derivative(eg_context *outer, eg_context *tiles, fixture *f) {
    unsigned char *by_rows = need_memory(f->output_bytes);
    f->backward.grad_pre = (eg_matrix){0};
    fixture_poison(f);
    assert_ok(eg_backward(outer, &f->layer, &f->backward));
    memcpy(by_rows, f->outputs, f->output_bytes);
    fixture_poison(f);
    assert_ok(eg_backward(tiles, &f->layer, &f->backward));
    assert_memory_equal(by_rows, f->outputs, f->output_bytes);
    free(by_rows);
}

static bool check_rows_of_activation(eg_context *outer, eg_context *tiles, const eg_layer *layer, int64_t gap,
                                     bool pre) {
    char plan[4096];
    fixture f;
    fixture_make(&f, *layer);
    const bool computes = eg_forward_plan(tiles, &f.layer, &f.forward, plan, sizeof plan) == EG_OK;
    bool is_outer = false;
    if (computes) {
        const written x = write_lines(outer, &f, gap, pre), y = write_lines(tiles, &f, gap, pre);
        assert_memory_equal(x.y, y.y, x.y_bytes);
        assert_memory_equal(x.pre, y.pre, x.pre_bytes);
        free(x.y), free(x.pre), free(y.y), free(y.pre);
        assert_ok(eg_forward_plan(outer, &f.layer, &f.forward, plan, sizeof plan));
        is_outer = strstr(plan, "outer products") != NULL;
        check_rows_of_derivative(outer, tiles, &f);
    }
    fixture_free(&f);
    return is_outer;
}

/* Activations and residuals of outer products, by every row: of several pieces or one, whole vectors and lines or
 * not, through the caches and past them. */
static void activations_by_rows_have_the_same_bits(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {
        {13, 7, 72}, {70, 5, 1000}, {33, 20, 533}, {1110, 3, 1000}, {700, 2, 1608}};
    static const eg_activation activations[] = {EG_ACT_GELU, EG_ACT_NONE, EG_ACT_SILU, EG_ACT_TANH,
                                                EG_ACT_RELU2};
    static eg_cpu_calibration only, packs;
    int outers = 0, rows = 0;
    for (int i = 0; eg_cpu_kernel_row(i) != NULL; i++) {
        const eg_cpu_kernel *row = eg_cpu_kernel_row(i);
        eg_context *outer = open_only(1, &only, EG_CPU_OUTER, EG_CPU_ANY_WAY),
                   *tiles = open_only(1, &packs, EG_CPU_PACKED, EG_CPU_PACKED);
        outer->caps.only_kernel = tiles->caps.only_kernel = row->name;
        const bool usable = row->micro.outer != NULL && !eg_cpu_has_dots(row) &&
                            (outer->caps.features & row->needs) == row->needs;
        const size_t calls = 2 * LENGTH(sizes);
        rows += usable;
        for (size_t j = 0; usable && j < calls * LENGTH(dtypes); j += (size_t)short_step(3)) {
            eg_layer layer = small_layer();
            layer.dtype = dtypes[j / calls], layer.math = EG_MATH_FAST;
            layer.activation = activations[(j + j / 2) % LENGTH(activations)];
            layer.m = sizes[j / 2 % LENGTH(sizes)][0], layer.k = sizes[j / 2 % LENGTH(sizes)][1];
            layer.n = sizes[j / 2 % LENGTH(sizes)][2], layer.batch = 1;
            outers += check_rows_of_activation(outer, tiles, &layer, j % 2 == 0 ? 24 : 0, j % 3 != 0);
        }
        eg_close(outer), eg_close(tiles);
    }
    assert_true(outers >= rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_rows_have_the_same_bits),
        cmocka_unit_test(rows_of_a_tile_block_have_the_same_bits),
        cmocka_unit_test(chains_have_the_bits_of_tiles),
        cmocka_unit_test(columns_of_tile_blocks_have_the_same_bits),
        cmocka_unit_test(few_columns_have_the_same_bits),
        cmocka_unit_test(rows_in_place_have_the_same_bits),
        cmocka_unit_test(outer_products_have_the_same_bits),
        cmocka_unit_test(activations_by_rows_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
