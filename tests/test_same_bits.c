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
        char plan[4096];
        fixture_make(&x, layer), fixture_make(&y, layer);
        unsigned char *const memory = turned(&layer, &x.forward.b);
        y.forward.b = x.backward.b = y.backward.b = x.forward.b;
        eg_packed *pack = NULL;
        if (i % 2 == 1) assert_ok(eg_pack_b(few, &layer, &x.forward.b, &pack));
        x.forward.packed_b = x.backward.packed_b = pack;
        assert_ok(eg_forward_plan(few, &layer, &x.forward, plan, sizeof plan));
        assert_non_null(strstr(plan, "few rows"));
        assert_ok(eg_forward(few, &layer, &x.forward));
        assert_ok(eg_backward(few, &layer, &x.backward));
        assert_ok(eg_forward(tiles, &layer, &y.forward));
        assert_ok(eg_backward(tiles, &layer, &y.backward));
        assert_memory_equal(x.outputs, y.outputs, x.output_bytes);
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
        char plan[4096];
        fixture_make(&x, layer), fixture_make(&y, layer);
        unsigned char *const memory = i % 2 == 0 ? turned(&layer, &x.forward.b) : NULL;
        y.forward.b = x.backward.b = y.backward.b = x.forward.b;
        eg_packed *pack = NULL;
        if (i % 4 >= 2) assert_ok(eg_pack_b(few, &layer, &x.forward.b, &pack));
        x.forward.packed_b = x.backward.packed_b = pack;
        fixture_poison(&x), fixture_poison(&y);
        assert_ok(eg_forward_plan(few, &layer, &x.forward, plan, sizeof plan));
        assert_non_null(strstr(plan, "few columns"));
        assert_ok(eg_forward(few, &layer, &x.forward));
        assert_ok(eg_backward(few, &layer, &x.backward));
        assert_ok(eg_forward(tiles, &layer, &y.forward));
        assert_ok(eg_backward(tiles, &layer, &y.backward));
        assert_memory_equal(x.outputs, y.outputs, x.output_bytes);
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
        cmocka_unit_test(few_rows_have_the_same_bits),
        cmocka_unit_test(rows_of_a_tile_block_have_the_same_bits),
        cmocka_unit_test(chains_have_the_bits_of_tiles),
        cmocka_unit_test(columns_of_tile_blocks_have_the_same_bits),
        cmocka_unit_test(few_columns_have_the_same_bits),
        cmocka_unit_test(rows_in_place_have_the_same_bits),
        cmocka_unit_test(outer_products_have_the_same_bits),
        cmocka_unit_test(block_fusion_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
