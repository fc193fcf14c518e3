/* SPDX-License-Identifier: Apache-2.0 */
/* The lowering: which operations a call is, and that they say the mathematics without a role. */
#include "support.h"

#include "core/op.h"
#include "core/validate.h"

enum { M = 30, K = 20, N = 10 };

static void *mark(int i) { return (void *)(uintptr_t)(4096 * (i + 1)); }

static eg_layer layer_of(int64_t batch, eg_activation activation) {
    return (eg_layer){
        .size = sizeof(eg_layer), .m = M, .k = K, .n = N, .batch = batch, .activation = activation};
}

static eg_matrix matrix(int i, int64_t batch_stride) {
    return (eg_matrix){.data = mark(i), .batch_stride = batch_stride};
}

static eg_op_list lower_backward(const eg_layer *layer, const eg_backward_args *args) {
    eg_problem problem;
    eg_op_list list;
    assert_ok(eg_validate_backward(EG_PRESENCE, layer, args, &problem));
    eg_lower(&problem, &list);
    return list;
}

static eg_backward_args everything(int64_t batch) {
    const bool many = batch > 1;
    return (eg_backward_args){.size = sizeof(eg_backward_args),
                              .a = matrix(0, many ? M * K : 0),
                              .b = matrix(1, many ? K * N : 0),
                              .bias.data = mark(2),
                              .grad = matrix(3, many ? M * N : 0),
                              .d_a = matrix(4, many ? M * K : 0),
                              .d_b = matrix(5, 0),
                              .d_bias.data = mark(6)};
}

static void assert_shape(const eg_op *op, eg_op_kind kind, int64_t rows, int64_t cols, int64_t depth) {
    assert_int_equal(op->kind, kind);
    assert_true(op->rows == rows && op->cols == cols && op->depth == depth);
}

static void forward_is_a_gemm_with_terms(void **state) {
    (void)state;
    const eg_layer layer = layer_of(1, EG_ACT_GELU);
    const eg_forward_args args = {.size = sizeof args,
                                  .a = matrix(0, 0),
                                  .b = matrix(1, 0),
                                  .bias.data = mark(2),
                                  .y = matrix(3, 0),
                                  .pre = matrix(4, 0)};
    eg_problem problem;
    eg_op_list list;
    assert_ok(eg_validate_forward(EG_PRESENCE, &layer, &args, &problem));
    eg_lower(&problem, &list);
    assert_int_equal(list.ops, 1);
    assert_shape(&list.op[0], EG_GEMM, M, N, K);
    assert_int_equal(list.op[0].terms, 3);
    assert_int_equal(list.op[0].term[0].kind, EG_TERM_BIAS);
    assert_int_equal(list.op[0].term[1].kind, EG_TERM_STORE);
    assert_int_equal(list.op[0].term[2].kind, EG_TERM_ACT);
    assert_int_equal(list.op[0].out.id, EG_OP_Y);
}

/* The gradient is a temporary of one operation, which both products read; its column sums end in d_bias. */
static void backward_is_three_products_and_a_reduction(void **state) {
    (void)state;
    const eg_layer layer = layer_of(1, EG_ACT_SILU);
    const eg_backward_args args = everything(1);
    const eg_op_list list = lower_backward(&layer, &args);
    assert_int_equal(list.ops, 4);
    assert_shape(&list.op[0], EG_GEMM, M, N, K);
    assert_shape(&list.op[1], EG_GEMM, M, K, N);
    assert_shape(&list.op[2], EG_GEMM, K, N, M);
    assert_shape(&list.op[3], EG_REDUCE, 1, N, M);
    const eg_term *grad = eg_term_of(&list.op[0], EG_TERM_GRAD_AT_VALUE),
                  *sums = eg_term_of(&list.op[0], EG_TERM_COLUMN_SUMS);
    assert_true(grad != NULL && grad->view.id == EG_OP_GRAD && grad->activation == EG_ACT_SILU);
    assert_true(sums != NULL && sums->view.space == EG_TEMPORARY && sums->view.id == list.op[3].left.id);
    const eg_view *made = &list.op[0].out;
    assert_int_equal(made->space, EG_TEMPORARY);
    assert_true(list.op[1].left.space == EG_TEMPORARY && list.op[1].left.id == made->id);
    assert_true(list.op[2].right.space == EG_TEMPORARY && list.op[2].right.id == made->id);
    assert_true(list.op[1].right.transposed && list.op[2].left.transposed);
}

/* Without an activation the products read grad itself. */
static void without_an_activation_there_is_no_temporary(void **state) {
    (void)state;
    const eg_layer layer = layer_of(1, EG_ACT_NONE);
    eg_backward_args args = everything(1);
    args.d_bias.data = NULL;
    const eg_op_list list = lower_backward(&layer, &args);
    assert_int_equal(list.ops, 2);
    assert_int_equal(list.temporaries, 0);
    assert_true(list.op[0].left.space == EG_OPERAND && list.op[0].left.id == EG_OP_GRAD);
    assert_true(list.op[1].right.space == EG_OPERAND && list.op[1].right.id == EG_OP_GRAD);
}

static void a_saved_pre_is_a_map(void **state) {
    (void)state;
    const eg_layer layer = layer_of(1, EG_ACT_GELU);
    eg_backward_args args = everything(1);
    args.source = EG_SOURCE_PRE, args.pre = matrix(7, 0);
    const eg_op_list list = lower_backward(&layer, &args);
    assert_shape(&list.op[0], EG_MAP, M, N, 0);
    assert_int_equal(list.op[0].left.id, EG_OP_SAVED);
}

/* Items that follow each other are rows, where they share B and d_b is summed over them; otherwise d_b is a
 * sum of a product an item. */
static void a_batch_is_rows_or_summed(void **state) {
    (void)state;
    const eg_layer layer = layer_of(3, EG_ACT_GELU);
    eg_backward_args args = everything(3);
    eg_op_list list = lower_backward(&layer, &args);
    assert_true(list.op[0].items == 3 && list.op[2].items == 1 && list.op[2].summed == 3);
    args.b.batch_stride = 0;
    list = lower_backward(&layer, &args);
    assert_shape(&list.op[0], EG_GEMM, 3 * M, N, K);
    assert_true(list.op[2].items == 1 && list.op[2].summed == 1 && list.op[2].depth == 3 * M);
}

/* y and A [OUTER, M, INNER, ...], heads within sequences. */
static void levels_fold_where_they_can(void **state) {
    (void)state;
    enum { INNER = 3, OUTER = 2 };
    eg_layer layer = layer_of(INNER, EG_ACT_NONE);
    layer.outer_batch = OUTER;
    eg_forward_args args = {.size = sizeof args,
                            .a = {.data = mark(0), .ld = INNER * K, .batch_stride = K},
                            .b = {.data = mark(300), .batch_stride = K * N},
                            .y = {.data = mark(600), .ld = INNER * N, .batch_stride = N},
                            .outer = {.a = M * INNER * K, .y = M * INNER * N}};
    eg_problem problem;
    eg_op_list list;
    assert_ok(eg_validate_forward(EG_PRESENCE, &layer, &args, &problem));
    eg_lower(&problem, &list); /* b is the head's: sequences are rows */
    assert_shape(&list.op[0], EG_GEMM, OUTER * M, N, K);
    assert_true(list.op[0].items == INNER && list.op[0].out.outer.inner == 0);
    args.outer.b = INNER * K * N; /* every item has its own */
    assert_ok(eg_validate_forward(EG_PRESENCE, &layer, &args, &problem));
    eg_lower(&problem, &list);
    assert_shape(&list.op[0], EG_GEMM, M, N, K);
    assert_true(list.op[0].items == OUTER * INNER);
    assert_true(list.op[0].right.outer.inner == 0 && list.op[0].right.batch_stride == K * N);
    assert_true(list.op[0].left.outer.inner == INNER && list.op[0].left.outer.stride == M * INNER * K);
    args.outer.y = N; /* in the middle of another one */
    assert_int_equal(eg_validate_forward(EG_PRESENCE, &layer, &args, &problem), EG_ERR_ARGUMENT);
    args.outer.y = INNER * N; /* on the next row of another one */
    assert_int_equal(eg_validate_forward(EG_PRESENCE, &layer, &args, &problem), EG_ERR_ARGUMENT);
    args.outer.y = -1;
    assert_int_equal(eg_validate_forward(EG_PRESENCE, &layer, &args, &problem), EG_ERR_ARGUMENT);
}

/* d_q and d_k are windows of one packed [B, T, 3, HEADS, D], element by element between each other's. */
static void windows_of_packed_heads_are_apart(void **state) {
    (void)state;
    enum { B = 4, HEADS = 3, T = 7, D = 5, ROW = 3 * HEADS * D, K_AT = HEADS * D * sizeof(float) };
    const eg_layer layer = {.size = sizeof layer, .m = T, .k = D, .n = T, .batch = HEADS, .outer_batch = B};
    const eg_matrix q = {.data = mark(0), .ld = ROW, .batch_stride = D}, k = {.data = mark(0),
                                                                              .offset = K_AT,
                                                                              .ld = ROW,
                                                                              .batch_stride = D,
                                                                              .layout = EG_COL_MAJOR};
    eg_backward_args args = {.size = sizeof args,
                             .a = q,
                             .b = k,
                             .grad = matrix(10, T * T),
                             .d_a = q,
                             .d_b = k,
                             .outer = {.a = T * ROW, .b = T * ROW, .grad = HEADS * T * T}};
    args.d_a.data = args.d_b.data = mark(20);
    args.outer.d_a = args.outer.d_b = T * ROW;
    eg_problem problem;
    assert_ok(eg_validate_backward(EG_ADDRESSES, &layer, &args, &problem));
    args.d_b.offset = D * sizeof(float); /* the next head of q */
    assert_int_equal(eg_validate_backward(EG_ADDRESSES, &layer, &args, &problem), EG_ERR_ARGUMENT);
    args.d_b.offset = K_AT, args.outer.d_b = 0;
    assert_int_equal(eg_validate_backward(EG_ADDRESSES, &layer, &args, &problem), EG_ERR_ARGUMENT);
    assert_non_null(strstr(eg_last_error(), "or neither"));
}

/* Of a gated unit both weights are shared, or the items stay apart. */
static void a_gated_batch_is_rows_where_both_weights_are_shared(void **state) {
    (void)state;
    const eg_layer layer = layer_of(3, EG_ACT_SILU);
    for (int own = 0; own < 4; own++) { /* bits: b, b_up */
        const eg_forward_args args = {.size = sizeof args,
                                      .a = matrix(0, M * K),
                                      .b = matrix(1, own & 1 ? K * N : 0),
                                      .y = matrix(2, M * N),
                                      .b_up = matrix(3, own & 2 ? K * N : 0)};
        eg_problem problem;
        eg_op_list list;
        assert_ok(eg_validate_forward(EG_PRESENCE, &layer, &args, &problem));
        eg_lower(&problem, &list);
        assert_true(list.op[0].items == (own == 0 ? 1 : 3) && list.op[0].rows == (own == 0 ? 3 * M : M));
    }
}

/* No operation has an empty result; one that sums nothing reads nothing. */
static void what_is_empty_is_left_out(void **state) {
    (void)state;
    eg_layer layer = layer_of(1, EG_ACT_GELU);
    const eg_backward_args args = everything(1);
    layer.m = 0;
    eg_op_list list = lower_backward(&layer, &args);
    assert_int_equal(list.ops, 2); /* d_b = 0, d_bias = 0 */
    assert_true(list.op[0].depth == 0 && !eg_is_present(&list.op[0].left));
    assert_true(list.op[1].kind == EG_REDUCE && list.op[1].depth == 0);
    layer.m = M, layer.n = 0;
    list = lower_backward(&layer, &args);
    assert_int_equal(list.ops, 1); /* d_a = 0 */
    assert_shape(&list.op[0], EG_GEMM, M, K, 0);
}

/* What is added to d_a is a term of its product: of the call's residual, or of d_a itself. Where a chain
 * needs the sum, it waits in d_a, or in a buffer of the compute type. The other sums are added to one by one.
 */
static void what_is_added_to_d_a_is_a_term(void **state) {
    (void)state;
    eg_layer layer = layer_of(1, EG_ACT_NONE);
    eg_backward_args args = everything(1);
    args.accumulate_into = EG_INTO_D_A | EG_INTO_D_BIAS;
    eg_op_list list = lower_backward(&layer, &args);
    assert_int_equal(list.ops, 4);
    const eg_op *d_a = list.op[1].out.id == EG_OP_D_A ? &list.op[1] : &list.op[0];
    assert_true(!d_a->accumulate && d_a->out.id == EG_OP_D_A);
    assert_int_equal(eg_term_of(d_a, EG_TERM_ADD)->view.id, EG_OP_D_A_RESIDUAL);
    for (int i = 0; i < list.ops; i++)
        assert_int_equal(list.op[i].accumulate, list.op[i].out.id == EG_OP_D_BIAS);
    args.accumulate_into = 0, args.residual = matrix(7, 0);
    args.chain = (eg_chain){.saved = matrix(8, 0), .source = EG_SOURCE_PRE, .activation = EG_ACT_GELU};
    args.d_b.data = args.d_bias.data = NULL;
    for (int narrow = 0; narrow < 2; narrow++) {
        layer.dtype = narrow ? EG_F16 : EG_F32;
        list = lower_backward(&layer, &args);
        assert_true(list.ops == 2 && list.buffers == narrow);
        assert_shape(&list.op[0], EG_GEMM, M, K, N);
        assert_shape(&list.op[1], EG_MAP, M, K, 0);
        assert_int_equal(eg_term_of(&list.op[0], EG_TERM_ADD)->view.id, EG_OP_D_A_RESIDUAL);
        assert_int_equal(list.op[1].left.id, narrow ? EG_BUFFER : EG_OP_D_A);
    }
}

/* Of every product, and of nothing else; it is the first term. */
static void a_scale_is_a_term_of_products(void **state) {
    (void)state;
    eg_layer layer = layer_of(1, EG_ACT_GELU);
    eg_backward_args args = everything(1);
    layer.scale = 0.125;
    const eg_op_list list = lower_backward(&layer, &args);
    int products = 0;
    for (int i = 0; i < list.ops; i++) {
        const eg_op *op = &list.op[i];
        assert_true(eg_scale_of(op) == (op->kind == EG_GEMM ? 0.125 : 1));
        for (int j = 1; j < op->terms; j++) assert_int_not_equal(op->term[j].kind, EG_TERM_SCALE);
        products += op->kind == EG_GEMM;
        if (op->out.id == EG_OP_D_A && op->kind == EG_GEMM) assert_true(eg_is_bare(op));
    }
    assert_int_equal(products, 3);
}

/* Both gradients are temporaries; d_a is the sum of two products, rounded once: in place where it
 * is of the compute type. */
static void a_gated_unit_is_generic_operations(void **state) {
    (void)state;
    eg_layer layer = layer_of(1, EG_ACT_SILU);
    eg_backward_args args = everything(1);
    args.b_up = matrix(7, 0), args.d_b_up = matrix(8, 0);
    args.d_bias.data = NULL;
    eg_op_list list = lower_backward(&layer, &args);
    assert_int_equal(list.ops, 8);
    assert_int_equal(list.buffers, 2);
    for (int i = 0; i < 2; i++) assert_shape(&list.op[i], EG_GEMM, M, N, K);
    for (int i = 2; i < 4; i++) assert_shape(&list.op[i], EG_MAP, M, N, 0);
    for (int i = 4; i < 6; i++) assert_shape(&list.op[i], EG_GEMM, M, K, N);
    for (int i = 6; i < 8; i++) assert_shape(&list.op[i], EG_GEMM, K, N, M);
    assert_true(eg_term_of(&list.op[1], EG_TERM_TIMES)->view.id == EG_OP_GRAD);
    assert_true(list.op[4].out.id == EG_OP_D_A && list.op[5].out.id == EG_OP_D_A && list.op[5].accumulate);
    assert_true(list.op[6].right.id == list.op[3].out.id && list.op[7].right.id == list.op[2].out.id);
    args.grad_pre = matrix(10, 0); /* which may be in the memory of grad, and is written last */
    list = lower_backward(&layer, &args);
    for (int i = 1; i < 3; i++) assert_int_equal(eg_term_of(&list.op[i], EG_TERM_TIMES)->view.id, EG_OP_GRAD);
    args.grad_pre.data = NULL;
    layer.dtype = EG_BF16;
    list = lower_backward(&layer, &args);
    assert_int_equal(list.buffers, 3);
    assert_true(list.op[4].out.id == EG_BUFFER + 2 && !list.op[5].accumulate);
    assert_int_equal(eg_term_of(&list.op[5], EG_TERM_ADD)->view.id, EG_BUFFER + 2);
    args.grad_up = matrix(9, 0), layer.activation = EG_ACT_NONE;
    list = lower_backward(&layer, &args);
    assert_int_equal(list.ops, 4);
    assert_int_equal(list.op[1].left.id, EG_OP_GRAD_UP);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_is_a_gemm_with_terms),
        cmocka_unit_test(backward_is_three_products_and_a_reduction),
        cmocka_unit_test(without_an_activation_there_is_no_temporary),
        cmocka_unit_test(a_saved_pre_is_a_map),
        cmocka_unit_test(a_batch_is_rows_or_summed),
        cmocka_unit_test(a_gated_batch_is_rows_where_both_weights_are_shared),
        cmocka_unit_test(what_is_empty_is_left_out),
        cmocka_unit_test(what_is_added_to_d_a_is_a_term),
        cmocka_unit_test(levels_fold_where_they_can),
        cmocka_unit_test(windows_of_packed_heads_are_apart),
        cmocka_unit_test(a_scale_is_a_term_of_products),
        cmocka_unit_test(a_gated_unit_is_generic_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
