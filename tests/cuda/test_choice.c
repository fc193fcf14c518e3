/* SPDX-License-Identifier: Apache-2.0 */
/* What CUDA chooses for a layer, over a driver that runs nothing: the room it takes, the kernels, how they
 * are cut, and how many are enqueued. */
#define _DEFAULT_SOURCE
#include "host.h"

/* ---- The workspace ------------------------------------------------------------------------------ */

/* A layer too large for any memory here: addresses that nobody reads. */
static eg_backward_args far_away(void) {
    enum { STEP = 1 << 28 };
    void *place[8];
    for (size_t i = 0; i < LENGTH(place); i++) place[i] = (void *)((uintptr_t)(i + 1) * STEP << 12);
    return (eg_backward_args){.size = sizeof(eg_backward_args),
                              .a = {.data = place[0]},
                              .b = {.data = place[1]},
                              .grad = {.data = place[2]},
                              .d_a = {.data = place[3]},
                              .d_b = {.data = place[4]},
                              .d_bias = {.data = place[5]},
                              .workspace = {.data = place[6], .bytes = (size_t)1 << 46}};
}

/* One buffer of M x N in the layer's type and 64 MiB; the sums of columns are made in portions for that. */
static void the_workspace_is_bounded(void **state) {
    static const eg_dtype dtypes[] = {EG_BF16, EG_F32, EG_F64};
    static const size_t sizes[] = {2, 4, 8};
    (void)state;
    session s;
    open_session(&s);
    for (int i = 0; i < 3 * 24; i++) {
        size_t bytes = 0;
        const int64_t m = (int64_t)1 << (8 + i / 3), n = m > 1 << 20 ? 4096 : 16384;
        const eg_layer layer = {.size = sizeof layer,
                                .m = m,
                                .k = 1024,
                                .n = n,
                                .batch = 1,
                                .dtype = dtypes[i % 3],
                                .activation = EG_ACT_GELU};
        const eg_backward_args args = far_away();
        assert_ok(eg_backward_workspace(s.context, &layer, &args, &bytes));
        assert_in_range(bytes, 0, (size_t)m * (size_t)n * sizes[i % 3] + (64U << 20));
    }
    close_session(&s);
}

/* 2^23 rows in sums of 32 rows each, 256 wide, are 256 MiB: nine portions in 30, each with its sum of
 * columns. Their sum, d_a, and d_b in chunks of so many rows follow. */
static void sums_are_made_in_portions(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.layer.m = 1 << 23;
    s.layer.n = 256;
    const eg_backward_args args = far_away();
    driver->kernels = 0;
    assert_ok(eg_backward(s.context, &s.layer, &args));
    assert_int_equal(driver->kernels, 9 * 2 + 1 + 1 + 2);
    close_session(&s);
}

static bool has_chunks(session *s, int64_t ld) {
    char text[2048];
    const eg_backward_args args = {.size = sizeof args,
                                   .a = {.data = s->memory[0]},
                                   .grad = {.data = s->memory[3]},
                                   .d_b = {.data = s->memory[6], .ld = ld},
                                   .workspace = {s->memory[9], 0, 1 << 20}};
    assert_ok(eg_backward_plan(s->context, &s->layer, &args, text, sizeof text));
    return strstr(text, "products of chunks") != NULL;
}

/* A small d_b of many rows; not where they have no common length, nor where d_b has gaps. */
static void a_long_depth_is_cut_into_chunks(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.layer.activation = EG_ACT_NONE;
    s.layer.m = 1 << 15, s.layer.k = 30, s.layer.n = 50;
    assert_true(has_chunks(&s, 0));
    assert_false(has_chunks(&s, 64));
    s.layer.m = 32749; /* a prime */
    assert_false(has_chunks(&s, 0));
    s.layer.m = 100;
    assert_false(has_chunks(&s, 0));
    s.layer.m = s.layer.k = s.layer.n = 4096;
    assert_false(has_chunks(&s, 0));
    close_session(&s);
}

/* ---- The kernel of a product -------------------------------------------------------------------- */

/* An operand that the copy engine does not take goes to a kernel that takes anything, as does a product of no
 * terms. */
static void the_copy_engine_takes_what_lies_on_16_bytes(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.layer.m = s.layer.k = s.layer.n = 4096; /* small ones a simpler kernel makes as fast */
    s.forward.a.data = (void *)((uintptr_t)1 << 40), s.forward.b.data = (void *)((uintptr_t)2 << 40);
    s.forward.y.data = (void *)((uintptr_t)3 << 40);
    s.layer.dtype = EG_F32;
    assert_forward_by(&s, "hopper_f32_nn_128x128");
    s.forward.b.layout = EG_COL_MAJOR;
    assert_forward_by(&s, "hopper_f32_nt_128x128");
    s.forward.a.offset = 4;
    assert_forward_by(&s, "fma_f32_");
    s.layer.dtype = EG_F64;
    s.forward.a.offset = 16;
    assert_forward_by(&s, "hopper_f64_nt_128x64");
    s.forward.b = (eg_matrix){.data = s.forward.b.data, .ld = 4097};
    assert_forward_by(&s, "mma_f64_128x128");
    s.forward.b.ld = 4098;
    assert_forward_by(&s, "hopper_f64_nn_128x64");
    s.layer.k = 0;
    assert_forward_by(&s, "ref_f64");
    close_session(&s);
}

/* Devices of 8.6 and 8.9 have 99 KiB of shared memory a block. */
static void a_row_fits_the_shared_memory_of_the_device(void **state) {
    (void)state;
    setenv("FAKE_CUDA_MAJOR", "8", 1);
    setenv("FAKE_CUDA_SHARED", "101376", 1);
    session s;
    open_session(&s);
    unsetenv("FAKE_CUDA_MAJOR");
    unsetenv("FAKE_CUDA_SHARED");
    s.layer.m = s.layer.k = s.layer.n = 4096;
    s.layer.dtype = EG_F32;
    assert_forward_by(&s, "fma_f32_");
    s.layer.dtype = EG_F64; /* the tiles of mma_f64 take 132 KiB */
    assert_forward_by(&s, "ref_f64");
    close_session(&s);
}

/* What chunks move and round their sums by: a residual and nothing else. Anything beside it needs a product's
 * epilogue. */
static void a_result_without_a_product_is_a_copy(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.layer.dtype = EG_BF16;
    s.layer.activation = EG_ACT_NONE;
    s.layer.k = 0;
    s.forward.bias.data = NULL;
    assert_forward_by(&s, "ref_f32");
    s.forward.residual = (eg_matrix){.data = s.memory[8]};
    assert_forward_by(&s, "copy_f32");
    s.forward.y.layout = EG_COL_MAJOR;
    s.forward.residual.offset = 2;
    assert_forward_by(&s, "copy_f32");
    s.forward.pre = (eg_matrix){.data = s.memory[7]};
    assert_forward_by(&s, "ref_f32");
    s.forward.pre.data = NULL;
    s.forward.bias.data = s.memory[5];
    assert_forward_by(&s, "ref_f32");
    s.forward.bias.data = NULL;
    s.layer.k = 1;
    char text[1024];
    assert_ok(eg_forward_plan(s.context, &s.layer, &s.forward, text, sizeof text));
    assert_null(strstr(text, "copy_f32"));
    close_session(&s);
}

/* No unit that splits or rounds operands, for any product of any type. */
static void strict_takes_no_matrix_unit(void **state) {
    static const eg_dtype dtypes[] = {EG_F32, EG_F16, EG_BF16};
    (void)state;
    session s;
    open_session(&s);
    s.layer.math = EG_MATH_STRICT;
    for (size_t i = 0; i < LENGTH(dtypes); i++) {
        char text[2][2048];
        s.layer.dtype = dtypes[i];
        s.backward.source = EG_SOURCE_RECOMPUTE;
        s.backward.pre.data = NULL;
        assert_ok(eg_forward_plan(s.context, &s.layer, &s.forward, text[0], sizeof text[0]));
        assert_ok(eg_backward_plan(s.context, &s.layer, &s.backward, text[1], sizeof text[1]));
        for (int j = 0; j < 2; j++) {
            const bool named = strstr(text[j], "mma_") != NULL || strstr(text[j], "hopper_bf16") != NULL ||
                               strstr(text[j], "few_bf16") != NULL || strstr(text[j], "hopper_f16") != NULL;
            if (named) fail_msg("%s", text[j]);
        }
    }
    close_session(&s);
}

/* grad_pre that the caller keeps, and that of no activation, take no room of the workspace. */
static void grad_pre_is_there_once(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.layer.m = s.layer.k = s.layer.n = 4096;
    eg_backward_args args = far_away();
    size_t own = 0, given = 0, none = 0;
    assert_ok(eg_backward_workspace(s.context, &s.layer, &args, &own));
    args.grad_pre.data = (void *)((uintptr_t)100 << 40);
    assert_ok(eg_backward_workspace(s.context, &s.layer, &args, &given));
    args.grad_pre.data = NULL;
    s.layer.activation = EG_ACT_NONE;
    assert_ok(eg_backward_workspace(s.context, &s.layer, &args, &none));
    const size_t bytes = (size_t)4096 * 4096 * 2;
    assert_true(own - given == bytes && given < bytes && none < bytes);
    close_session(&s);
}

/* ---- Maps, rows that begin anywhere ------------------------------------------------------------- */

/* Maps of rows that begin anywhere have kernels of their own, and a product that waits has rows of whole
 * vectors, whatever its columns are: split tiles make it. */
static void rows_that_begin_anywhere_are_shifted(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.backward = (eg_backward_args){.size = sizeof s.backward,
                                    .b.data = (void *)((uintptr_t)1 << 40),
                                    .grad.data = (void *)((uintptr_t)2 << 40),
                                    .d_a = {.data = (void *)((uintptr_t)3 << 40)},
                                    .d_bias = {.data = (void *)((uintptr_t)6 << 40)},
                                    .source = EG_SOURCE_PRE,
                                    .pre.data = (void *)((uintptr_t)4 << 40),
                                    .workspace = {(void *)((uintptr_t)5 << 40), 0, 1U << 30}};
    s.layer.m = 256, s.layer.k = 513, s.layer.n = 1025;
    assert_true(is_backward_by(&s, "act_grad_odd_bf16"));
    s.backward.grad.layout = EG_COL_MAJOR;
    assert_false(is_backward_by(&s, "act_grad_odd_bf16"));
    s.backward.grad.layout = EG_ROW_MAJOR, s.layer.m = 64, s.layer.n = 4096;
    assert_true(is_backward_by(&s, "hopper_act_grad_bf16"));
    assert_true(is_backward_by(&s, "hopper_bf16_split_"));
    assert_true(is_backward_by(&s, "product alone"));
    assert_true(is_backward_by(&s, "map_odd_f32"));
    s.backward.d_a.ld = 520; /* what is behind a row of the caller's stays as it is */
    assert_true(is_backward_by(&s, "product alone") || !is_backward_by(&s, "hopper_bf16_split_"));
    s.layer.k = 512;
    assert_false(is_backward_by(&s, "product alone"));
    close_session(&s);
}

/* d_b of [N, K] weights is made as the product of the transposes: rows of the workspace are padded there. */
static void a_product_of_transposes_has_room(void **state) {
    (void)state;
    session s;
    char text[2048];
    open_session(&s);
    s.backward = (eg_backward_args){.size = sizeof s.backward,
                                    .a.data = (void *)((uintptr_t)1 << 40),
                                    .grad.data = (void *)((uintptr_t)2 << 40),
                                    .d_b = {.data = (void *)((uintptr_t)3 << 40), .layout = EG_COL_MAJOR},
                                    .workspace = {(void *)((uintptr_t)4 << 40), 0, 1U << 30}};
    s.layer.activation = EG_ACT_NONE;
    s.layer.m = 2048, s.layer.k = 513, s.layer.n = 1025;
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = "map_any_f32"};
    eg_context *by_map = NULL;
    assert_ok(eg_open(&info, &by_map)); /* so that a map finishes the product */
    assert_ok(eg_backward_plan(by_map, &s.layer, &s.backward, text, sizeof text));
    eg_close(by_map);
    assert_non_null(strstr(text, "product alone"));
    const char *const region = strstr(text, "unfinished product");
    assert_non_null(region);
    const int64_t bytes = strtoll(region + strlen("unfinished product"), NULL, 10);
    assert_true(bytes >= 1025 * 520 * 4);
    close_session(&s);
}

/* Rows that follow each other are one span, which begins on 16 bytes. Results may have gaps. */
static void short_rows_are_copied_as_spans(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.layer.m = 3000, s.layer.k = 30, s.layer.n = 50;
    s.forward.a.data = (void *)((uintptr_t)1 << 40), s.forward.b.data = (void *)((uintptr_t)2 << 40);
    s.forward.y.data = (void *)((uintptr_t)3 << 40);
    s.forward.workspace = (eg_workspace){.data = (void *)((uintptr_t)4 << 40), .bytes = 1U << 30};
    assert_true(is_forward_by(&s, "tall_bf16"));
    s.forward.b.layout = EG_COL_MAJOR, s.forward.a.ld = 32;
    assert_true(is_forward_by(&s, "tall_bf16"));
    s.forward.y.ld = 53;
    assert_true(is_forward_by(&s, "tall_bf16"));
    s.forward.y.offset = 4;
    assert_false(is_forward_by(&s, "tall_"));
    s.forward.y.ld = 0, s.forward.y.offset = 0, s.forward.a.offset = 4;
    assert_false(is_forward_by(&s, "tall_"));
    s.forward.a.offset = 0, s.forward.a.ld = 129;
    assert_false(is_forward_by(&s, "tall_"));
    s.forward.a.ld = 0, s.layer.n = 65;
    assert_false(is_forward_by(&s, "tall_"));
    close_session(&s);
}

/* ---- Stream-K tails ------------------------------------------------------------------------------- */

/* What is left for the last wave of 66 clusters. */
static int last_tiles(int64_t rows, int64_t cols) {
    return (int)((rows + 255) / 256 * ((cols + 255) / 256) % 66);
}

/* Kernels that split say how many tiles, and those are the last of their product. The first product's
 * counters are cleared before it, those of others by a kernel. Returns how many products are split. */
static int count_tails(session *s, const eg_backward_args *args) {
    const eg_layer *l = &s->layer;
    const int last[] = {last_tiles(l->m, l->n), last_tiles(l->m, l->k), last_tiles(l->k, l->n)};
    char text[4096], *line = text;
    int tails = 0, clears = 0;
    assert_ok(eg_backward_plan(s->context, l, args, text, sizeof text));
    for (int i = 0; i < 3; i++) {
        char step[256];
        line = strstr(line, "  gemm ");
        assert_non_null(line);
        snprintf(step, sizeof step, "%.*s", (int)strcspn(line, "\n"), line);
        const char *tail = strstr(step, "stream-K tail of ");
        assert_int_equal(tail != NULL, strstr(step, "_stream_k_") != NULL);
        if (tail != NULL) {
            assert_int_equal(atoi(tail + sizeof "stream-K tail of " - 1), last[i]);
            tails++;
            if (i == 0) clears = 1;
        }
        line += sizeof "  gemm ";
    }
    assert_int_equal(strstr(text, "clear counters") != NULL, clears);
    driver->clears = 0;
    assert_ok(eg_backward(s->context, l, args));
    assert_int_equal(driver->clears, clears);
    return tails;
}

/* 64 of 66 clusters make the tiles of 2048^3. */
static void the_last_tiles_are_split_where_they_leave_clusters_idle(void **state) {
    (void)state;
    session s;
    open_session(&s);
    const eg_backward_args args = far_away();
    s.layer.m = 8192, s.layer.k = 4096, s.layer.n = 14336;
    assert_true(count_tails(&s, &args) > 0);
    s.layer.k = 768, s.layer.n = 3072;
    assert_true(count_tails(&s, &args) > 0);
    s.layer.m = s.layer.k = s.layer.n = 2048;
    assert_int_equal(count_tails(&s, &args), 0);
    close_session(&s);
}

/* ---- Tiles finished beside the next one's products ---------------------------------------------- */

static bool takes_kernel(const session *s, const eg_layer *layer, const eg_backward_args *args,
                         const char *kernel) {
    char text[4096];
    assert_ok(eg_backward_plan(s->context, layer, args, text, sizeof text));
    return strstr(text, kernel) != NULL;
}

/* Where there is a next one. */
static void epilogues_run_beside_products(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.layer.m = s.layer.k = s.layer.n = 4096;
    eg_backward_args args = far_away();
    assert_true(takes_kernel(&s, &s.layer, &args, "hopper_bf16_pingpong_nn_128x128"));
    args.b.layout = EG_COL_MAJOR;
    assert_true(takes_kernel(&s, &s.layer, &args, "hopper_bf16_pingpong_nt_128x128"));
    close_session(&s);
}

/* ---- What column sums take ---------------------------------------------------------------------- */

/* d_a of a layer with a weight [N, K], times act' of the layer below, and that layer's d_bias. */
static bool chain_takes(const session *s, const eg_layer *layer, bool sums, const char *kernel) {
    eg_backward_args args = far_away();
    args.b.layout = EG_COL_MAJOR;
    args.chain = (eg_chain){.saved = args.a, .source = EG_SOURCE_PRE, .activation = EG_ACT_GELU};
    if (sums) args.chain.d_bias = args.d_bias;
    args.a = args.d_b = (eg_matrix){.data = NULL};
    args.d_bias = (eg_vector){.data = NULL};
    return takes_kernel(s, layer, &args, kernel);
}

/* Split tiles take longer for them than kernels that stream rows. */
static void sums_of_few_rows_are_not_made_by_split_tiles(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.layer.m = 16, s.layer.k = 192, s.layer.n = 768, s.layer.activation = EG_ACT_NONE;
    assert_true(chain_takes(&s, &s.layer, false, "hopper_bf16_split_16x64"));
    assert_true(chain_takes(&s, &s.layer, true, "few_bf16_nn_16x64"));
    close_session(&s);
}

/* ---- What the copy engine stores ---------------------------------------------------------------- */

/* Results leave in boxes of 16 rows; operands of a product come in larger ones. */
static int maps_of_result(const void *memory, uint64_t row_bytes) {
    int count = 0;
    for (int i = 0; i < driver->maps && i < FAKE_MAPS; i++) {
        const fake_map *map = &driver->map[i];
        if (map->address != (uint64_t)(uintptr_t)memory || map->box_rows != 16) continue;
        if (map->row_bytes != row_bytes / 16 * 16)
            fail_msg("%llu bytes of each row of %llu", (unsigned long long)map->row_bytes,
                     (unsigned long long)row_bytes);
        count++;
    }
    return count;
}

/* Rows `bytes` long that begin on 16. */
static eg_matrix in_rows(void *memory, int64_t elements, size_t bytes, eg_dtype dtype) {
    const int64_t each = 16 / (int64_t)bytes;
    return (eg_matrix){.data = memory, .ld = (elements + each - 1) / each * each, .dtype = dtype};
}

static eg_context *open_row(const char *kernel) {
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = kernel};
    eg_context *context = NULL;
    assert_ok(eg_open(&info, &context));
    return context;
}

/* TMA stores whole vectors of 16 bytes, and would store zeros where a row ends inside one: it gets none of
 * that piece, in any result of any mode. */
static void the_copy_engine_stores_no_end_of_a_row(void **state) {
    (void)state;
    session s;
    open_session(&s);
    eg_context *forward = open_row("hopper_bf16_nn_128x128"), *d_a = open_row("hopper_bf16_nt_128x128"),
               *d_b = open_row("hopper_bf16_stream_k_tn_128x256");
    for (int64_t n = 1; n <= 64; n++) {
        const uint64_t bytes = (uint64_t)n * 2;
        const int there = n >= 8; /* else threads store all of it */
        eg_layer layer = s.layer;
        layer.n = n;
        eg_forward_args up = s.forward;
        up.workspace.data = NULL;
        up.b = in_rows(s.memory[1], n, 2, EG_BF16);
        up.y = in_rows(s.memory[2], n, 2, EG_BF16);
        up.pre = in_rows(s.memory[8], n, 2, EG_BF16);
        driver->maps = 0;
        assert_ok(eg_forward(forward, &layer, &up));
        assert_int_equal(maps_of_result(up.y.data, bytes), there);
        assert_int_equal(maps_of_result(up.pre.data, bytes), there);

        eg_backward_args down = {.size = sizeof down,
                                 .a = s.backward.a,
                                 .grad = in_rows(s.memory[3], n, 2, EG_BF16),
                                 .source = EG_SOURCE_PRE,
                                 .pre = in_rows(s.memory[4], n, 2, EG_BF16),
                                 .d_b = in_rows(s.memory[6], n, 2, EG_BF16)};
        driver->maps = 0;
        assert_ok(eg_backward(d_b, &layer, &down));
        assert_int_equal(maps_of_result(down.d_b.data, bytes), there);
        down.d_b = in_rows(s.memory[6], n, 4, EG_F32);
        driver->maps = 0;
        assert_ok(eg_backward(d_b, &layer, &down));
        assert_int_equal(maps_of_result(down.d_b.data, 2 * bytes), n >= 4);

        layer = s.layer, layer.k = n;
        down = s.backward;
        down.d_b.data = down.d_bias.data = down.workspace.data = NULL;
        down.d_a = in_rows(s.memory[5], n, 2, EG_BF16);
        down.chain.saved = in_rows(s.memory[8], n, 2, EG_BF16);
        down.chain.source = EG_SOURCE_PRE, down.chain.activation = EG_ACT_GELU;
        driver->maps = 0;
        assert_ok(eg_backward(d_a, &layer, &down));
        assert_int_equal(maps_of_result(down.d_a.data, bytes), there);
    }
    eg_close(forward);
    eg_close(d_a);
    eg_close(d_b);
    close_session(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_workspace_is_bounded),
        cmocka_unit_test(sums_are_made_in_portions),
        cmocka_unit_test(a_long_depth_is_cut_into_chunks),
        cmocka_unit_test(the_copy_engine_takes_what_lies_on_16_bytes),
        cmocka_unit_test(a_row_fits_the_shared_memory_of_the_device),
        cmocka_unit_test(a_result_without_a_product_is_a_copy),
        cmocka_unit_test(strict_takes_no_matrix_unit),
        cmocka_unit_test(grad_pre_is_there_once),
        cmocka_unit_test(rows_that_begin_anywhere_are_shifted),
        cmocka_unit_test(a_product_of_transposes_has_room),
        cmocka_unit_test(short_rows_are_copied_as_spans),
        cmocka_unit_test(the_last_tiles_are_split_where_they_leave_clusters_idle),
        cmocka_unit_test(epilogues_run_beside_products),
        cmocka_unit_test(sums_of_few_rows_are_not_made_by_split_tiles),
        cmocka_unit_test(the_copy_engine_stores_no_end_of_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
