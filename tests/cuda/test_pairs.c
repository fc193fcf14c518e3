/* SPDX-License-Identifier: Apache-2.0 */
/* The products of gated units that one kernel makes: what is launched, and which matrices the kernel is told
 * of. Over a driver that runs nothing. */
#define _DEFAULT_SOURCE
#include "cuda/gated.h"
#include "cuda/pair.h"
#include "host.h"

enum { M = 2048, K = 512, N = 1024 };

/* Past every operand, so that none overlap. */
static const eg_workspace workspace = {(void *)((uintptr_t)62 << 44), 0, (size_t)1 << 40};

static eg_layer layer_of(int64_t k, int64_t n, eg_activation activation) {
    return (eg_layer){
        .size = sizeof(eg_layer), .m = M, .k = k, .n = n, .dtype = EG_BF16, .activation = activation};
}

static eg_forward_args unit(void) {
    return (eg_forward_args){.size = sizeof(eg_forward_args),
                             .a = dense(0),
                             .b = {.data = place(1), .layout = EG_COL_MAJOR},
                             .bias = {.data = place(2)},
                             .y = dense(3),
                             .pre = dense(4),
                             .b_up = {.data = place(5), .layout = EG_COL_MAJOR},
                             .bias_up = {.data = place(6)},
                             .pre_up = dense(7),
                             .workspace = workspace};
}

/* Of a layer N to K above the unit. */
static eg_backward_args above(void) {
    eg_backward_args args = {
        .size = sizeof args,
        .b = dense(1),
        .grad = dense(2),
        .d_a = dense(5),
        .chain = {.saved = dense(9), .d_bias = {.data = place(10)}},
        .chain_up = {.saved = dense(17), .d_up = dense(18), .d_bias = {.data = place(20)}},
        .workspace = workspace};
    args.chain.source = EG_SOURCE_PRE, args.chain.activation = EG_ACT_SILU;
    return args;
}

static bool begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

static int launches_of(const char *with) {
    int count = 0;
    for (int i = 0; i < driver->launches && i < FAKE_LAUNCHES; i++) count += begins(driver->launch[i], with);
    return count;
}

/* Map `index` of the last call: its matrix, and what is moved of it at once. */
static void expect_map(int index, int matrix, int64_t inner, int64_t outer, int lines) {
    const fake_map *map = &driver->map[index];
    assert_int_equal(map->address, (uintptr_t)place(matrix));
    assert_int_equal(map->row_bytes, inner * 2);
    assert_int_equal(map->rows, outer);
    assert_int_equal(map->box_rows, lines);
}

static void forward_is_one_product(void **state) {
    (void)state;
    session s;
    open_session(&s);
    const eg_layer layer = layer_of(K, N, EG_ACT_SILU);
    eg_forward_args args = unit();
    driver->launches = driver->maps = 0;
    assert_ok(eg_forward(s.context, &layer, &args));
    assert_int_equal(driver->launches, 1);
    assert_string_equal(driver->launch[0], "hopper_bf16_gated_nt_128x128");
    assert_int_equal(driver->maps, 7);
    expect_map(0, 0, K, M, 128);
    expect_map(1, 1, K, N, 64); /* half a tile of columns, for both blocks */
    expect_map(2, 4, N, M, 16);
    expect_map(3, 0, K, M, 128);
    expect_map(4, 5, K, N, 64);
    expect_map(5, 3, N, M, 16);
    expect_map(6, 7, N, M, 16);
    args.b.layout = args.b_up.layout = EG_ROW_MAJOR;
    args.pre = args.pre_up = (eg_matrix){0};
    driver->launches = driver->maps = 0;
    assert_ok(eg_forward(s.context, &layer, &args));
    assert_string_equal(driver->launch[0], "hopper_bf16_gated_nn_128x128");
    assert_int_equal(driver->maps, 5);
    expect_map(1, 1, N, K, 32);
    close_session(&s);
}

/* d_bias of a gradient as it is: the kernel that multiplies it sums its columns, too, unless it would end
 * before they are summed, or cannot read vectors. */
static void d_bias_comes_beside_a_chain(void **state) {
    static const struct {
        int64_t m, k, n;
        bool beside;
    } cases[] = {
        {M, 3072, 768, true}, {16384, 256, 4096, false}, {M, 3072, 772, false}, {16384, 2048, 768, false}};
    (void)state;
    session s;
    open_session(&s);
    for (size_t i = 0; i < 2 * LENGTH(cases); i++) {
        const bool adds = i >= LENGTH(cases);
        const int64_t k = cases[i % LENGTH(cases)].k, n = cases[i % LENGTH(cases)].n;
        const bool beside = cases[i % LENGTH(cases)].beside;
        eg_layer layer = layer_of(k, n, EG_ACT_NONE);
        eg_backward_args args = above();
        layer.m = cases[i % LENGTH(cases)].m;
        args.chain_up = (eg_chain_up){0}, args.chain.d_bias = (eg_vector){0};
        args.d_bias.data = place(11);
        args.accumulate_into = adds ? EG_INTO_D_BIAS : 0;
        driver->launches = 0;
        assert_ok(eg_backward(s.context, &layer, &args));
        assert_int_equal(launches_of("act_grad") + launches_of("hopper_act_grad") == 0, beside);
        if (!beside) continue;
        const eg_cuda_hopper *x = (const eg_cuda_hopper *)driver->parameter;
        assert_int_equal(driver->launches, 1);
        assert_true(begins(driver->launch[0], "hopper_bf16_pingpong_"));
        assert_int_equal(x->left_sums.data, (uintptr_t)place(11));
        assert_int_equal(x->add_to_left_sums, adds);
    }
    eg_backward_args args = above();
    const eg_layer unit_below = layer_of(N, K, EG_ACT_NONE);
    args.d_bias.data = place(11);
    driver->launches = 0;
    assert_ok(eg_backward(s.context, &unit_below, &args));
    assert_int_equal(launches_of("act_grad"), 0);
    assert_int_equal(launches_of("column_sum"), 2);
    close_session(&s);
}

static void chain_is_one_product(void **state) {
    (void)state;
    session s;
    open_session(&s);
    const eg_layer layer = layer_of(N, K, EG_ACT_NONE);
    for (int y = 0; y < 2; y++) {
        eg_backward_args args = above();
        if (y) args.chain_up.y = dense(19);
        driver->launches = driver->maps = 0;
        assert_ok(eg_backward(s.context, &layer, &args));
        assert_int_equal(launches_of("hopper_bf16_gated_chain_nt_128x128"), 1);
        assert_int_equal(launches_of("column_sum"), 2);
        assert_int_equal(driver->launches, y ? 4 : 3); /* y is a map */
        expect_map(2, 9, N, M, 64);
        expect_map(3, 5, N, M, 64);
        expect_map(6, 17, N, M, 64);
        expect_map(7, 18, N, M, 64);
        const eg_cuda_hopper_pair *x = (const eg_cuda_hopper_pair *)driver->parameter;
        assert_true(x->gate.gemm.sums != 0 && x->up.gemm.sums != 0);
        assert_int_not_equal(x->gate.gemm.sums, x->up.gemm.sums);
        assert_int_equal(x->gate.gemm.activation, EG_ACT_SILU);
    }
    close_session(&s);
}

static void d_a_is_one_product(void **state) {
    (void)state;
    session s;
    open_session(&s);
    const eg_layer layer = layer_of(K, N, EG_ACT_NONE);
    const eg_backward_args args = {.size = sizeof args,
                                   .b = {.data = place(1), .layout = EG_COL_MAJOR},
                                   .b_up = {.data = place(2), .layout = EG_COL_MAJOR},
                                   .grad = dense(3),
                                   .grad_up = dense(4),
                                   .d_a = dense(5),
                                   .workspace = workspace};
    driver->launches = driver->maps = 0;
    assert_ok(eg_backward(s.context, &layer, &args));
    assert_int_equal(driver->launches, 1);
    assert_string_equal(driver->launch[0], "hopper_bf16_pair_nn_128x128");
    expect_map(0, 3, N, M, 128);
    expect_map(1, 1, K, N, 32);
    expect_map(2, 5, K, M, 16);
    expect_map(3, 4, N, M, 128);
    expect_map(4, 2, K, N, 32);
    close_session(&s);
}

/* Rows that do not begin on 16 bytes, or that end inside of them; one pre; a residual, which comes before the
 * sum. */
static void what_has_no_vectors_is_made_apart(void **state) {
    (void)state;
    session s;
    open_session(&s);
    const eg_layer layer = layer_of(K, N, EG_ACT_SILU), odd = layer_of(K, N + 4, EG_ACT_SILU),
                   up = layer_of(N, K, EG_ACT_NONE), down = layer_of(K, N, EG_ACT_NONE);
    for (int i = 0; i < 6; i++) {
        eg_forward_args args = unit();
        if (i == 0) args.pre_up.ld = N + 1;
        if (i == 1) args.pre.offset = 8;
        if (i == 2) args.b_up.layout = EG_ROW_MAJOR;
        if (i == 3) args.y.offset = 2;
        if (i == 5) args.y.ld = args.pre.ld = args.pre_up.ld = N + 8;
        driver->launches = 0;
        assert_ok(eg_forward(s.context, i >= 4 ? &odd : &layer, &args));
        assert_int_equal(launches_of("hopper_bf16_gated"), 0);
    }
    eg_backward_args args = above();
    args.chain_up.saved.ld = N + 1;
    driver->launches = 0;
    assert_ok(eg_backward(s.context, &up, &args));
    assert_int_equal(launches_of("hopper_bf16_gated"), 0);
    args = (eg_backward_args){.size = sizeof args, .b = dense(1), .b_up = dense(2), .workspace = workspace};
    args.grad = dense(3), args.grad_up = dense(4), args.d_a = dense(5), args.residual = dense(6);
    driver->launches = 0;
    assert_ok(eg_backward(s.context, &down, &args));
    assert_int_equal(launches_of("hopper_bf16_pair"), 0);
    close_session(&s);
}

/* By its name, the maps' kernel makes both gradients in one launch, whose numbers are the operands'; where a
 * row does not begin on 16 bytes they are three. */
static void both_gradients_are_one_map(void **state) {
    (void)state;
    session s;
    open_session(&s);
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = "gated_grad_bf16"};
    const eg_layer layer = layer_of(N, K, EG_ACT_NONE);
    eg_context *named;
    assert_ok(eg_open(&info, &named));
    eg_backward_args args = above();
    driver->launches = 0;
    assert_ok(eg_backward(named, &layer, &args));
    assert_int_equal(launches_of("gated_grad_bf16"), 1);
    assert_int_equal(launches_of("map_"), 0);
    assert_int_equal(launches_of("column_sum"), 2);
    const eg_cuda_gated *x = (const eg_cuda_gated *)driver->parameter;
    assert_int_equal(x->gate.data, (uintptr_t)place(9));
    assert_int_equal(x->up.data, (uintptr_t)place(17));
    assert_int_equal(x->d_gate.data, (uintptr_t)place(5));
    assert_int_equal(x->d_up.data, (uintptr_t)place(18));
    assert_int_equal(x->d_y.dtype, EG_F32);
    assert_true(x->sums_up != 0 && x->sums_gate != 0 && x->sums_up != x->sums_gate);
    assert_int_equal(x->rows, M);
    assert_int_equal(x->activation, EG_ACT_SILU);
    eg_close(named);
    args.chain_up.d_up.ld = N + 1;
    driver->launches = 0;
    assert_ok(eg_backward(s.context, &layer, &args));
    assert_int_equal(launches_of("gated_grad_bf16"), 0);
    assert_int_equal(launches_of("map_"), 3);
    close_session(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(forward_is_one_product),
                                       cmocka_unit_test(chain_is_one_product),
                                       cmocka_unit_test(d_bias_comes_beside_a_chain),
                                       cmocka_unit_test(d_a_is_one_product),
                                       cmocka_unit_test(what_has_no_vectors_is_made_apart),
                                       cmocka_unit_test(both_gradients_are_one_map)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
