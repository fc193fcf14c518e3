/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels and the library are given: the operands of single calls, over a driver and a library that run
 * nothing. */
#define _DEFAULT_SOURCE
#include "cuda/depth_groups.h"
#include "cuda/kernels.h"
#include "host.h"

/* With a row of the kernel table for all that it can do. */
static eg_context *open_named(const char *kernel) {
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = kernel};
    eg_context *context = NULL;
    assert_ok(eg_open(&info, &context));
    return context;
}

/* How many products of a backward call the plan gives to the library. */
static int by_library(session *s, const eg_layer *layer, const eg_backward_args *args) {
    char text[8192];
    int count = 0;
    assert_ok(eg_backward_plan(s->context, layer, args, text, sizeof text));
    char *end = strstr(text, "where a number or the library refuses");
    if (end != NULL) *end = '\0';
    for (const char *at = text; (at = strstr(at, "  cublaslt")) != NULL; at++) count++;
    return count;
}

/* It rounds some sums of 16 bits before it adds them to what is there, and knows no lines that overlap. */
static void the_library_is_given_what_it_does_right(void **state) {
    (void)state;
    session s;
    open_session(&s);
    eg_layer layer = {.size = sizeof layer, .m = 64, .k = 64, .n = 64, .batch = 1, .dtype = EG_BF16};
    eg_backward_args args = {.size = sizeof args, .a = dense(0), .grad = dense(1), .d_b = dense(2)};
    assert_int_equal(by_library(&s, &layer, &args), 1);
    args.accumulate = 1;
    assert_int_equal(by_library(&s, &layer, &args), 0);
    args.d_b.dtype = EG_F32;
    assert_int_equal(by_library(&s, &layer, &args), 1);
    args.accumulate = 0, args.d_b.dtype = EG_DTYPE_DEFAULT;
    layer.dtype = EG_F64, layer.m = 1, layer.batch = 5; /* a[i, j] at i + j */
    args.a = (eg_matrix){.data = place(0), .ld = 1, .batch_stride = 1, .layout = EG_COL_MAJOR};
    args.grad = (eg_matrix){.data = place(1), .ld = 64, .batch_stride = 64};
    assert_int_equal(by_library(&s, &layer, &args), 0);
    layer.m = 33, layer.batch = 1; /* more than outer products are made of */
    args.a = dense(0);
    assert_int_equal(by_library(&s, &layer, &args), 1);
    close_session(&s);
}

/* It reads a bias as numbers of the result's type: f32 is what a gated unit keeps its pre in. */
static void the_library_adds_no_bias_of_another_type(void **state) {
    (void)state;
    session s;
    open_session(&s);
    eg_context *named = open_named("cublaslt_bf16");
    const eg_layer layer = {.size = sizeof layer, .m = 64, .k = 64, .n = 64, .batch = 1, .dtype = EG_BF16};
    const eg_backward_args args = {.size = sizeof args,
                                   .a = dense(0),
                                   .b = dense(1),
                                   .b_up = dense(2),
                                   .bias = {.data = place(3)},
                                   .grad = dense(4),
                                   .grad_pre = dense(5)};
    char text[8192];
    assert_ok(eg_backward_plan(named, &layer, &args, text, sizeof text));
    char *pre = strstr(text, "pre = a.b + bias");
    assert_non_null(pre);
    pre[strcspn(pre, "\n")] = '\0';
    assert_null(strstr(pre, "cublaslt"));
    eg_close(named);
    close_session(&s);
}

/* With a bias it may not split a depth. Where it would, it is told of no workspace, which that takes. */
static void the_library_splits_no_depth_before_a_bias(void **state) {
    (void)state;
    session s;
    open_session(&s);
    eg_context *named = open_named("cublaslt_bf16");
    const eg_layer layer = {.size = sizeof layer, .m = 512, .k = 512, .n = 512, .batch = 1, .dtype = EG_BF16};
    eg_forward_args args = {.size = sizeof args,
                            .a = dense(0),
                            .b = dense(1),
                            .y = dense(2),
                            .workspace = {place(3), 0, (size_t)1 << 30}};
    driver->library_splits = true;
    assert_ok(eg_forward(named, &layer, &args));
    assert_int_equal(driver->library_parts, 2);
    args.bias.data = place(4);
    assert_ok(eg_forward(named, &layer, &args));
    assert_int_equal(driver->library_parts, 1);
    driver->library_splits = false;
    eg_close(named);
    close_session(&s);
}

/* Of f32 it adds the bias, and stores pre: what makes y reads it there, and stores nothing else. Of f64 it
 * adds none. */
static void a_product_of_f32_is_stored_as_pre(void **state) {
    static const struct {
        eg_dtype dtype;
        const char *kernel;
        bool is_pre;
    } cases[] = {{EG_F32, "cublaslt_f32", true}, {EG_F64, "cublaslt_f64", false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        session s;
        char text[8192];
        open_session(&s);
        eg_context *named = open_named(cases[i].kernel);
        const eg_layer layer = {.size = sizeof layer,
                                .m = 512,
                                .k = 512,
                                .n = 512,
                                .batch = 1,
                                .dtype = cases[i].dtype,
                                .activation = EG_ACT_GELU};
        const eg_forward_args args = {.size = sizeof args,
                                      .a = dense(0),
                                      .b = dense(1),
                                      .bias = {.data = place(2)},
                                      .y = dense(3),
                                      .pre = dense(4),
                                      .workspace = {place(5), 0, (size_t)1 << 30}};
        assert_ok(eg_forward_plan(named, &layer, &args, text, sizeof text));
        assert_true((strstr(text, "product alone + bias") != NULL) == cases[i].is_pre);
        assert_ok(eg_forward(named, &layer, &args));
        const eg_cuda_gemm *map = (const eg_cuda_gemm *)driver->parameter;
        assert_true(map->left.data == (uintptr_t)place(4) && map->out.data == (uintptr_t)place(3));
        assert_true((map->second.data == 0) == cases[i].is_pre && (map->bias.data == 0) == cases[i].is_pre);
        eg_close(named);
        close_session(&s);
    }
}

/* In a chain: the product, in f32, is the gradient, and what is saved below is read where it is. Of some rows
 * a cluster has all, and leaves d_bias; of many the sums of chunks are added up. */
static void a_chain_is_finished_from_its_product(void **state) {
    enum { CASES = 3 };
    static const struct {
        int64_t rows, cols;
        const char *kernel; /* of the map */
        int cols_of_cluster;
    } cases[CASES] = {{512, 256, "eg_hopper_act_grad_product_bf16", 64},
                      {512, 250, "eg_hopper_act_grad_odd_product_bf16", 32},
                      {16384, 256, "eg_column_sum_f32", 0}};
    (void)state;
    session s;
    open_session(&s);
    eg_context *named = open_named("cublaslt_bf16");
    eg_layer layer = {.size = sizeof layer, .n = 1024, .batch = 1, .dtype = EG_BF16};
    eg_backward_args args = {.size = sizeof args,
                             .b = dense(1),
                             .grad = dense(2),
                             .d_a = dense(3),
                             .chain = {.saved = dense(4),
                                       .source = EG_SOURCE_PRE,
                                       .activation = EG_ACT_GELU,
                                       .d_bias = {.data = place(6)}},
                             .workspace = {place(5), 0, (size_t)1 << 30}};
    for (int i = 0; i < CASES; i++) {
        const bool whole_sums = cases[i].cols_of_cluster > 0;
        layer.m = cases[i].rows, layer.k = cases[i].cols;
        assert_ok(eg_backward(named, &layer, &args));
        assert_string_equal(driver->last_kernel, cases[i].kernel);
        const eg_cuda_act_grad *map = (const eg_cuda_act_grad *)driver->parameter;
        assert_true(map->grad.dtype == EG_F32 && map->grad.data >= (uintptr_t)place(5));
        assert_true(map->saved.data == (uintptr_t)place(4) && map->saved.dtype == EG_BF16);
        assert_true(map->out.data == (uintptr_t)place(3) && map->sums != 0);
        assert_true(map->rows == layer.m && map->cols == layer.k && map->chunks > 1);
        assert_true(map->total.data == (whole_sums ? (uintptr_t)place(6) : 0));
        if (!whole_sums) continue;
        assert_int_equal(driver->last_cluster, 8);
        assert_int_equal(driver->last_blocks, 8 * ((layer.k - 1) / cases[i].cols_of_cluster + 1));
    }
    eg_close(named);
    close_session(&s);
}

/* q·kᵀ of a packed [B, T, 3, H, d]: a launch for each sequence. A d_a that is summed over both levels is
 * added to by each, in f32, and rounded at the end. */
static void two_levels_are_launched_one_by_one(void **state) {
    enum { B = 4, H = 2, T = 64, D = 64, ROW = 3 * H * D };
    (void)state;
    session s;
    open_session(&s);
    const eg_layer layer = {
        .size = sizeof layer, .m = T, .k = D, .n = T, .batch = H, .dtype = EG_BF16, .outer_batch = B};
    const eg_forward_args args = {
        .size = sizeof args,
        .a = {.data = place(0), .ld = ROW, .batch_stride = D},
        .b = {.data = place(1), .ld = ROW, .batch_stride = D, .layout = EG_COL_MAJOR},
        .y = {.data = place(2), .batch_stride = T * T},
        .outer = {.a = T * ROW, .b = T * ROW, .y = H * T * T}};
    driver->launches = 0;
    assert_ok(eg_forward(s.context, &layer, &args));
    assert_int_equal(driver->launches, B);
    const eg_backward_args sums = {.size = sizeof sums,
                                   .a = args.a,
                                   .b = args.b,
                                   .grad = args.y,
                                   .d_a = {.data = place(3)},
                                   .outer = {.a = T * ROW, .b = T * ROW, .grad = H * T * T}};
    driver->launches = 0;
    assert_ok(eg_backward(s.context, &layer, &sums));
    assert_int_equal(driver->launches, B + 1);
    for (int i = 0; i < B; i++) assert_string_not_equal(driver->launch[i], "copy_f32");
    assert_string_equal(driver->launch[B], "copy_f32");
    close_session(&s);
}

/* An outer item's matrices of a pack begin where those of the one before end. */
static void each_launch_reads_its_part_of_a_pack(void **state) {
    enum { B = 4, H = 2, T = 256, D = 256, ROW = H * D };
    (void)state;
    session s;
    open_session(&s);
    eg_context *named = open_named("hopper_bf16_pingpong_nn_128x128");
    eg_layer layer = {.size = sizeof layer, .m = T, .k = D, .n = D, .batch = B * H, .dtype = EG_BF16};
    const eg_matrix b = {.data = place(1), .batch_stride = D * D};
    eg_packed *packed = NULL;
    assert_ok(eg_pack_b(named, &layer, &b, &packed));
    layer.batch = H, layer.outer_batch = B;
    const eg_forward_args args = {.size = sizeof args,
                                  .a = {.data = place(0), .ld = ROW, .batch_stride = D},
                                  .packed_b = packed,
                                  .y = {.data = place(2), .ld = ROW, .batch_stride = D},
                                  .outer = {.a = T * ROW, .y = T * ROW}};
    driver->maps = 0;
    assert_ok(eg_forward(named, &layer, &args));
    uint64_t first = 0;
    int found = 0;
    for (int i = 0; i < driver->maps && i < FAKE_MAPS; i++) {
        const uint64_t at = driver->map[i].address;
        if (at >= (uintptr_t)place(0) && at < (uintptr_t)place(3)) continue; /* of a, or of y */
        if (found == 0) first = at;
        assert_int_equal(at, first + (uint64_t)found * H * D * D * sizeof(uint16_t));
        found++;
    }
    assert_int_equal(found, B);
    eg_packed_free(named, packed);
    eg_close(named);
    close_session(&s);
}

/* The sums of a gradient are made on the side stream, and read the copy that its product reads: they wait for
 * it, and not for the product. */
static void sums_beside_a_product_wait_for_the_padded_copy(void **state) {
    enum { M = 64, K = 128, N = 100 };
    (void)state;
    session s;
    open_session(&s);
    eg_context *named = open_named("hopper_bf16_pingpong_nn_128x128");
    const eg_layer layer = {.size = sizeof layer, .m = M, .k = K, .n = N, .batch = 1, .dtype = EG_BF16};
    const eg_backward_args args = {.size = sizeof args,
                                   .a = {.data = place(0), .layout = EG_COL_MAJOR},
                                   .b = {.data = place(1)},
                                   .grad = {.data = place(2), .ld = N + 1},
                                   .d_b = {.data = place(3)},
                                   .d_bias = {.data = place(4)}};
    driver->launches = driver->waits = 0;
    assert_ok(eg_backward(named, &layer, &args));
    assert_true(driver->waits > 0);
    assert_string_equal(driver->launch[0], "pad_16");
    assert_string_equal(driver->launch[1], "hopper_bf16_pingpong_nn_128x128");
    assert_int_equal(driver->launches_before_wait, 1);
    eg_close(named);
    close_session(&s);
}

/* TMA reads from 16 bytes on, and so each outer item has to begin there, not only the first. */
static void every_outer_item_has_to_be_aligned(void **state) {
    enum { B = 2, H = 2, T = 256, D = 256, ROW = H * D };
    (void)state;
    session s;
    open_session(&s);
    eg_context *named = open_named("hopper_bf16_pingpong_nn_128x128");
    const eg_layer layer = {
        .size = sizeof layer, .m = T, .k = D, .n = D, .batch = H, .dtype = EG_BF16, .outer_batch = B};
    eg_forward_args args = {.size = sizeof args,
                            .a = {.data = place(0), .ld = ROW, .batch_stride = D},
                            .b = {.data = place(1)},
                            .y = {.data = place(2), .ld = ROW, .batch_stride = D},
                            .outer = {.a = T * ROW, .y = T * ROW}};
    assert_ok(eg_forward(named, &layer, &args));
    args.outer.a += 4; /* 8 bytes */
    assert_int_equal(eg_forward(named, &layer, &args), EG_ERR_UNSUPPORTED);
    eg_close(named);
    close_session(&s);
}

/* So has each item of a batch whose chunks have one: the second chunk begins with the second item. */
static void every_item_of_a_chunk_has_to_be_aligned(void **state) {
    enum { M = 64, K = 32, N = 32 };
    (void)state;
    session s;
    open_session(&s);
    eg_context *named = open_named("tall_bf16_32x64");
    eg_layer layer = eg_layer_of(M, K, N, EG_ACT_SILU);
    layer.dtype = EG_BF16, layer.batch = 2;
    eg_forward_args args = {.size = sizeof args,
                            .a = {.data = place(0), .batch_stride = M * K},
                            .b = {.data = place(1)},
                            .b_up = {.data = place(2)},
                            .y = {.data = place(3), .batch_stride = M * N}};
    size_t bytes;
    assert_ok(eg_forward_workspace(named, &layer, &args, &bytes));
    args.workspace_limit = bytes - 1;
    assert_ok(eg_forward(named, &layer, &args));
    args.a.batch_stride += 4; /* 8 bytes */
    assert_int_equal(eg_forward(named, &layer, &args), EG_ERR_UNSUPPORTED);
    eg_close(named);
    close_session(&s);
}

static const fake_map *map_at(uintptr_t address) {
    for (int i = 0; i < driver->maps && i < FAKE_MAPS; i++) {
        if (driver->map[i].address == address) return &driver->map[i];
    }
    return NULL;
}

/* Rows of a k-block that TMA reads, each of which is one of the group's, once: a box has what is inside of
 * its tensor, and zeros. */
static void read_k_block(const fake_map *map, uint32_t first, uint32_t end, uint32_t k_block,
                         uint8_t *reads) {
    const eg_cuda_rows_of_k_block rows = eg_cuda_k_block_of_group(first, end, 64, k_block);
    assert_true(rows.row < map->items);
    for (int32_t row = rows.before; row < rows.before + 64; row++) {
        if (row < 0 || row >= (int32_t)map->rows) continue;
        const uint64_t at = ((uint64_t)rows.row * map->item_pitch + (uint64_t)row * map->pitch) / map->pitch;
        assert_in_range(at, first, end - 1);
        reads[at]++;
    }
}

/* d_b of groups: boxes of A and of grad, whatever the ends, hold each row of the group and none of another.
 */
static void k_blocks_have_the_rows_of_their_group(void **state) {
    enum { M = 1000, K = 512, N = 768, GROUPS = 8 };
    static const uint32_t ends[GROUPS] = {1, 1, 64, 127, 255, 300, 940, M - 3};
    (void)state;
    session s;
    open_session(&s);
    eg_context *named = open_named("hopper_bf16_grouped_tn_128x128");
    const eg_layer layer = {.size = sizeof layer, .m = M, .k = K, .n = N, .dtype = EG_BF16, .groups = GROUPS};
    for (int turned = 0; turned < 2; turned++) {
        const eg_backward_args args = {
            .size = sizeof args,
            .a = {.data = place(0), .ld = K + 8},
            .grad = {.data = place(1), .ld = N},
            .d_b = {.data = place(2), .layout = turned ? EG_COL_MAJOR : EG_ROW_MAJOR, .batch_stride = K * N},
            .offsets = {.data = place(21)}};
        driver->maps = driver->launches = 0;
        assert_ok(eg_backward(named, &layer, &args));
        assert_string_equal(driver->launch[0], "hopper_bf16_grouped_tn_128x128");
        for (int i = 0; i < 2; i++) {
            const fake_map *map = map_at((uintptr_t)place(i));
            assert_non_null(map);
            assert_int_equal(map->row_bytes, 2 * (i == 0 ? K : N));
            assert_int_equal(map->pitch, 2 * (i == 0 ? K + 8 : N));
            uint8_t reads[M] = {0};
            for (int group = 0; group < GROUPS; group++) {
                const uint32_t first = group > 0 ? ends[group - 1] : 0, end = ends[group];
                for (uint32_t j = 0; j < eg_cuda_k_blocks_of_rows(end - first, 64); j++)
                    read_k_block(map, first, end, j, reads);
            }
            for (uint32_t row = 0; row < M; row++) assert_int_equal(reads[row], row < ends[GROUPS - 1]);
        }
        assert_int_equal(map_at((uintptr_t)place(2))->items, GROUPS);
    }
    eg_close(named);
    close_session(&s);
}

/* The blocks of a cluster share an operand, each loading half of its box: right, and the cluster's tile has
 * twice a block's rows; or left, and it has twice its columns, so that a group's last tile loses less. */
static void a_cluster_shares_left_or_right(void **state) {
    enum { M = 1000, K = 512, N = 768, GROUPS = 8 };
    static const struct {
        const char *kernel;
        uint32_t left, right; /* lines of a box */
        unsigned clusters;
    } rows[] = {{"hopper_bf16_grouped_nt_128x128", 64, 128, (M / 128 + GROUPS) * 3},
                {"hopper_bf16_grouped_nt_128x256", 128, 128, (M / 256 + GROUPS) * 3}};
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        session s;
        open_session(&s);
        eg_context *named = open_named(rows[i].kernel);
        const eg_layer layer = {
            .size = sizeof layer, .m = M, .k = K, .n = N, .dtype = EG_BF16, .groups = GROUPS};
        const eg_forward_args args = {.size = sizeof args,
                                      .a = {.data = place(0)},
                                      .b = {.data = place(1), .layout = EG_COL_MAJOR, .batch_stride = K * N},
                                      .y = {.data = place(2)},
                                      .offsets = {.data = place(21)}};
        driver->maps = driver->launches = 0;
        assert_ok(eg_forward(named, &layer, &args));
        assert_string_equal(driver->launch[0], rows[i].kernel);
        assert_int_equal(driver->last_blocks, 2 * rows[i].clusters);
        assert_int_equal(map_at((uintptr_t)place(0))->box_rows, rows[i].left);
        assert_int_equal(map_at((uintptr_t)place(1))->box_rows, rows[i].right);
        eg_close(named);
        close_session(&s);
    }
}

/* Tiles of a cluster share left and right: of a shared operand each loads its part of a box. Clusters cover
 * the result, also where its last tiles are fewer than theirs, and a cluster has all of them for each part of
 * the depth, eight blocks at most. */
static void tiles_of_a_cluster_load_for_each_other(void **state) {
    enum { M = 300, K = 8192, N = 1088 };
    static const struct {
        const char *kernel;
        unsigned tiles, clusters;
        uint32_t left, right[2]; /* lines of a box; right in columns, in rows */
    } rows[] = {{"hopper_bf16_cluster_128x128", 1, 3 * 9, 128, {128, 64}},
                {"hopper_bf16_cluster_1x4_128x64", 4, 3 * 5, 32, {64, 64}},
                {"hopper_f16_cluster_2x2_128x128", 4, 2 * 5, 64, {64, 32}},
                {"hopper_bf16_cluster_2x1_128x192", 2, 2 * 6, 128, {96, 32}},
                /* turned: two tiles of 152 rows, not 200 and 100 */
                {"hopper_bf16_turned_200x64", 1, 2 * 17, 152, {64, 64}},
                {"hopper_f16_turned_1x2_200x128", 2, 2 * 5, 76, {128, 64}},
                {"hopper_bf16_turned_1x2_152x128", 2, 2 * 5, 76, {128, 64}}};
    (void)state;
    for (size_t i = 0; i < 2 * LENGTH(rows); i++) {
        const bool by_rows = i % 2 != 0;
        session s;
        open_session(&s);
        eg_context *named = open_named(rows[i / 2].kernel);
        const eg_layer layer = {.size = sizeof layer,
                                .m = M,
                                .k = K,
                                .n = N,
                                .dtype = strstr(rows[i / 2].kernel, "bf16") != NULL ? EG_BF16 : EG_F16};
        const eg_forward_args args = {
            .size = sizeof args,
            .a = {.data = place(0)},
            .b = {.data = place(1), .layout = by_rows ? EG_ROW_MAJOR : EG_COL_MAJOR},
            .y = {.data = place(2)}};
        driver->maps = driver->launches = 0;
        assert_ok(eg_forward(named, &layer, &args));
        assert_string_equal(driver->launch[0], rows[i / 2].kernel);
        assert_int_equal(driver->last_blocks, rows[i / 2].clusters * driver->last_cluster);
        assert_int_equal(driver->last_cluster % rows[i / 2].tiles, 0);
        assert_in_range(driver->last_cluster, rows[i / 2].tiles + 1, 8);
        assert_int_equal(map_at((uintptr_t)place(0))->box_rows, rows[i / 2].left);
        assert_int_equal(map_at((uintptr_t)place(1))->box_rows, rows[i / 2].right[by_rows]);
        eg_close(named);
        close_session(&s);
    }
}

/* Without groups they share left where tiles of two blocks' rows would be more. */
static void a_cluster_lies_as_takes_fewer_tiles(void **state) {
    enum { K = 512, N = 1024 };
    static const struct {
        const char *kernel;
        int m;
        uint32_t left, right; /* lines of a box */
        unsigned clusters;
    } cases[] = {{"hopper_bf16_nt_128x128", 300, 64, 128, 3 * 4},
                 {"hopper_bf16_nt_128x256", 300, 64, 256, 3 * 2},
                 {"hopper_bf16_nt_128x256", 400, 128, 128, 2 * 4},
                 {"hopper_bf16_pingpong_nt_128x128", 300, 64, 128, 3 * 4},
                 {"hopper_bf16_pingpong_nt_128x128", 129, 128, 64, 1 * 8},
                 {"hopper_bf16_pingpong_nt_128x192", 300, 64, 192, 3 * 3},
                 {"hopper_bf16_pingpong_nt_128x192", 400, 128, 96, 2 * 6},
                 {"hopper_bf16_stream_k_nt_128x256", 300, 128, 128, 2 * 4}};
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        session s;
        open_session(&s);
        eg_context *named = open_named(cases[i].kernel);
        const eg_layer layer = {.size = sizeof layer,
                                .m = cases[i].m,
                                .k = K,
                                .n = N,
                                .dtype = EG_BF16,
                                .activation = EG_ACT_GELU};
        const eg_forward_args args = {.size = sizeof args,
                                      .a = {.data = place(0)},
                                      .b = {.data = place(1), .layout = EG_COL_MAJOR},
                                      .y = {.data = place(2)}};
        driver->maps = driver->launches = 0;
        assert_ok(eg_forward(named, &layer, &args));
        if (strstr(cases[i].kernel, "stream_k") == NULL)
            assert_int_equal(driver->last_blocks, 2 * cases[i].clusters);
        assert_int_equal(map_at((uintptr_t)place(0))->box_rows, cases[i].left);
        assert_int_equal(map_at((uintptr_t)place(1))->box_rows, cases[i].right);
        eg_close(named);
        close_session(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_library_is_given_what_it_does_right),
                                       cmocka_unit_test(the_library_adds_no_bias_of_another_type),
                                       cmocka_unit_test(tiles_of_a_cluster_load_for_each_other),
                                       cmocka_unit_test(the_library_splits_no_depth_before_a_bias),
                                       cmocka_unit_test(a_product_of_f32_is_stored_as_pre),
                                       cmocka_unit_test(a_chain_is_finished_from_its_product),
                                       cmocka_unit_test(two_levels_are_launched_one_by_one),
                                       cmocka_unit_test(each_launch_reads_its_part_of_a_pack),
                                       cmocka_unit_test(sums_beside_a_product_wait_for_the_padded_copy),
                                       cmocka_unit_test(every_outer_item_has_to_be_aligned),
                                       cmocka_unit_test(every_item_of_a_chunk_has_to_be_aligned),
                                       cmocka_unit_test(k_blocks_have_the_rows_of_their_group),
                                       cmocka_unit_test(a_cluster_shares_left_or_right),
                                       cmocka_unit_test(a_cluster_lies_as_takes_fewer_tiles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
