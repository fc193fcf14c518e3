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
                              .workspace = {.data = place[6], .bytes = SIZE_MAX / 2}};
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

/* 2^22 rows of sums of 64 rows each, 256 wide, are 64 MiB: three portions in 30, each with its sum of
 * columns. */
static void sums_are_made_in_portions(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.layer.m = 1 << 22;
    s.layer.n = 256;
    const eg_backward_args args = far_away();
    driver->kernels = 0;
    assert_ok(eg_backward(s.context, &s.layer, &args));
    assert_int_equal(driver->kernels, 3 * 2 + 2 + 1);
    close_session(&s);
}

/* ---- The kernel of a product -------------------------------------------------------------------- */

static void assert_forward_by(session *s, const char *kernel) {
    char text[1024];
    assert_ok(eg_forward_plan(s->context, &s->layer, &s->forward, text, sizeof text));
    if (strstr(text, kernel) == NULL) fail_msg("%s is not in\n%s", kernel, text);
}

/* An operand that the copy engine does not take goes to a kernel that takes anything, as does a product of no
 * terms. */
static void the_copy_engine_takes_what_lies_on_16_bytes(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.layer.dtype = EG_F32;
    assert_forward_by(&s, "hopper_f32_rr_128x128");
    s.forward.b.layout = EG_COL_MAJOR;
    assert_forward_by(&s, "hopper_f32_rc_128x128");
    s.forward.a.offset = 4;
    assert_forward_by(&s, "fma_f32_128x128");
    s.layer.dtype = EG_F64;
    s.forward.a.offset = 16;
    assert_forward_by(&s, "hopper_f64_rc_128x64");
    s.forward.b = (eg_matrix){.data = s.memory[1], .ld = 65};
    assert_forward_by(&s, "mma_f64_128x128");
    s.forward.b.ld = 66;
    assert_forward_by(&s, "hopper_f64_rr_128x64");
    s.layer.k = 0;
    assert_forward_by(&s, "mma_f64_128x128");
    close_session(&s);
}

/* What slabs move and round their sums by: a residual and nothing else. Anything beside it needs a product's
 * epilogue. */
static void a_result_without_a_product_is_a_copy(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.layer.dtype = EG_BF16;
    s.layer.activation = EG_ACT_NONE;
    s.layer.k = 0;
    s.forward.bias.data = NULL;
    assert_forward_by(&s, "mma_bf16_128x128");
    s.forward.residual = (eg_matrix){.data = s.memory[8]};
    assert_forward_by(&s, "copy_f32");
    s.forward.y.layout = EG_COL_MAJOR;
    s.forward.residual.offset = 2;
    assert_forward_by(&s, "copy_f32");
    s.forward.pre = (eg_matrix){.data = s.memory[7]};
    assert_forward_by(&s, "mma_bf16_128x128");
    s.forward.pre.data = NULL;
    s.forward.bias.data = s.memory[5];
    assert_forward_by(&s, "mma_bf16_128x128");
    s.forward.bias.data = NULL;
    s.layer.k = 1;
    assert_forward_by(&s, "mma_bf16_128x128");
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
        assert_ok(eg_forward_plan(s.context, &s.layer, &s.forward, text[0], sizeof text[0]));
        assert_ok(eg_backward_plan(s.context, &s.layer, &s.backward, text[1], sizeof text[1]));
        for (int j = 0; j < 2; j++) {
            const bool named = strstr(text[j], "mma_") != NULL || strstr(text[j], "hopper_bf16") != NULL ||
                               strstr(text[j], "hopper_f16") != NULL;
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

/* ---- Cut tiles ---------------------------------------------------------------------------------- */

/* How many tiles of each product are cut, as the plan says; and the memory that is cleared for a call. */
static void assert_cuts(session *s, const eg_backward_args *args, const int cut[3], int clears) {
    char text[4096], *line = text;
    assert_ok(eg_backward_plan(s->context, &s->layer, args, text, sizeof text));
    for (int i = 0; i < 3; i++) {
        int got = 0;
        line = strstr(line, "  block ");
        assert_non_null(line);
        sscanf(line, "  block %*dx%*dx%*d  last %d cut", &got);
        assert_int_equal(got, cut[i]);
        line += sizeof "  block ";
    }
    driver->clears = 0;
    assert_ok(eg_backward(s->context, &s->layer, args));
    assert_int_equal(driver->clears, clears);
}

/* What is left for the last wave of 66 clusters: 1792, 512 and 896 tiles leave 10, 50 and 38; 256 leave 58,
 * too many to gain from. The first product's counts are cleared before it, those of others by it. A deep A.B
 * is finished beside its products, by a kernel that cuts none. */
static void the_last_tiles_are_cut_where_they_leave_clusters_idle(void **state) {
    (void)state;
    session s;
    open_session(&s);
    const eg_backward_args args = far_away();
    s.layer.m = 8192, s.layer.k = 4096, s.layer.n = 14336;
    assert_cuts(&s, &args, (const int[]){0, 50, 38}, 0);
    s.layer.k = 1984;
    assert_cuts(&s, &args, (const int[]){10, 58, 52}, 1);
    s.layer.m = s.layer.k = s.layer.n = 4096;
    assert_cuts(&s, &args, (const int[]){0, 0, 0}, 0);
    s.layer.m = 8192, s.layer.k = 768, s.layer.n = 3072;
    assert_cuts(&s, &args, (const int[]){0, 0, 36}, 0);
    s.layer.m = 2048;
    assert_cuts(&s, &args, (const int[]){0, 0, 0}, 0);
    close_session(&s);
}

/* ---- Tiles finished beside the next one's products ---------------------------------------------- */

static bool takes_kernel(const session *s, const eg_layer *layer, const eg_backward_args *args,
                         const char *kernel) {
    char text[4096];
    assert_ok(eg_backward_plan(s->context, layer, args, text, sizeof text));
    return strstr(text, kernel) != NULL;
}

static bool relays(const session *s, const eg_layer *layer, const eg_backward_args *args) {
    return takes_kernel(s, layer, args, "hopper_bf16_relay_rr_128x256");
}

/* Where there is a next one, and time for it; act' of A.B only. */
static void tiles_of_deep_layers_are_finished_beside_the_next(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.layer.m = s.layer.k = s.layer.n = 4096;
    eg_backward_args args = far_away();
    assert_true(relays(&s, &s.layer, &args));
    eg_layer shallow = s.layer, small = s.layer, odd = s.layer;
    shallow.k = 1024, small.m = small.n = 2048, odd.n = 4092;
    assert_false(relays(&s, &shallow, &args));
    assert_false(relays(&s, &small, &args));
    assert_false(relays(&s, &odd, &args));
    args.b.layout = EG_COL_MAJOR;
    assert_true(takes_kernel(&s, &s.layer, &args, "hopper_bf16_relay_rc_128x256"));
    args.source = EG_SOURCE_PRE;
    args.pre.data = (void *)((uintptr_t)100 << 40);
    assert_false(takes_kernel(&s, &s.layer, &args, "_relay_"));
    close_session(&s);
}

/* ---- The pass in two kernels -------------------------------------------------------------------- */

/* Whether d_a's kernel makes the last rows of grad_pre itself. */
static bool shares_the_pass(const session *s, const eg_layer *layer, const eg_backward_args *args) {
    return takes_kernel(s, layer, args, "hopper_bf16_pass_rc_128x256");
}

static void large_layers_share_the_pass(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.layer.m = s.layer.k = s.layer.n = 4096;
    eg_backward_args args = far_away();
    args.source = EG_SOURCE_PRE;
    args.pre.data = (void *)((uintptr_t)100 << 40);
    assert_true(shares_the_pass(&s, &s.layer, &args));
    driver->kernels = 0;
    assert_ok(eg_backward(s.context, &s.layer, &args));
    assert_int_equal(driver->kernels, KERNELS + 1);

    eg_layer narrow = s.layer, short_one = s.layer, linear = s.layer, many = s.layer;
    narrow.k = 1024, short_one.m = 1024, linear.activation = EG_ACT_NONE, many.batch = 2;
    assert_false(shares_the_pass(&s, &narrow, &args));
    assert_false(shares_the_pass(&s, &short_one, &args));
    assert_false(shares_the_pass(&s, &linear, &args));
    args.a.batch_stride = args.grad.batch_stride = args.pre.batch_stride = args.d_a.batch_stride =
        4096 * 4096;
    assert_true(shares_the_pass(&s, &many, &args)); /* one b: a layer of twice the rows */
    args.b.batch_stride = args.d_b.batch_stride = 4096 * 4096;
    assert_false(shares_the_pass(&s, &many, &args));
    args.pre.offset = 2; /* not of whole vectors */
    assert_false(shares_the_pass(&s, &s.layer, &args));
    args.source = EG_SOURCE_RECOMPUTE;
    args.pre = (eg_matrix){.data = NULL};
    assert_false(shares_the_pass(&s, &s.layer, &args));
    close_session(&s);
}

/* ---- All in one launch -------------------------------------------------------------------------- */

static bool pools(const session *s, const eg_layer *layer, const eg_backward_args *args) {
    return takes_kernel(s, layer, args, "hopper_bf16_pool_c_128x256");
}

/* Small weights and many rows; one kernel for the first rows of grad_pre, one for all else. */
static void small_weights_are_pooled(void **state) {
    (void)state;
    session s;
    open_session(&s);
    s.layer.m = 8192, s.layer.k = 768, s.layer.n = 3072;
    eg_backward_args args = far_away();
    args.source = EG_SOURCE_PRE;
    args.pre.data = (void *)((uintptr_t)100 << 40);
    assert_true(pools(&s, &s.layer, &args));
    driver->kernels = 0;
    assert_ok(eg_backward(s.context, &s.layer, &args));
    assert_int_equal(driver->kernels, 2);
    args.accumulate = true;
    assert_true(pools(&s, &s.layer, &args));

    eg_layer few = s.layer, wide = s.layer, narrow = s.layer, linear = s.layer, many = s.layer,
             tiny = s.layer;
    few.m = 2048, wide.k = wide.n = 4096, narrow.k = 256, linear.activation = EG_ACT_NONE, many.batch = 2;
    tiny.m = 511, tiny.n = 511;
    assert_false(pools(&s, &few, &args));
    assert_false(pools(&s, &wide, &args));
    assert_false(pools(&s, &narrow, &args)); /* 12 tiles of d_b would take as long as all the rest */
    assert_false(pools(&s, &linear, &args));
    assert_false(pools(&s, &tiny, &args));
    args.b.batch_stride = args.d_b.batch_stride = 768 * 3072;
    args.a.batch_stride = args.d_a.batch_stride = 8192 * 768;
    args.grad.batch_stride = args.pre.batch_stride = 8192 * 3072;
    assert_false(pools(&s, &many, &args));
    args.d_a.data = NULL;
    assert_false(pools(&s, &s.layer, &args));
    close_session(&s);
}

/* Not even by name: there is nothing to share. */
static void empty_layers_share_no_pass(void **state) {
    (void)state;
    session s;
    open_session(&s);
    const eg_open_info info = {
        .size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = "hopper_bf16_pass_rc_128x256"};
    eg_context *named;
    assert_ok(eg_open(&info, &named));
    s.backward.d_b.data = s.backward.d_bias.data = NULL;
    for (int empty = 0; empty < 3; empty++) {
        int64_t *sizes[] = {&s.layer.m, &s.layer.k, &s.layer.n};
        *sizes[empty] = 0;
        assert_int_equal(eg_backward(named, &s.layer, &s.backward), EG_ERR_UNSUPPORTED);
        *sizes[empty] = 64;
    }
    eg_close(named);
    close_session(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_workspace_is_bounded),
        cmocka_unit_test(sums_are_made_in_portions),
        cmocka_unit_test(the_copy_engine_takes_what_lies_on_16_bytes),
        cmocka_unit_test(a_result_without_a_product_is_a_copy),
        cmocka_unit_test(strict_takes_no_matrix_unit),
        cmocka_unit_test(grad_pre_is_there_once),
        cmocka_unit_test(the_last_tiles_are_cut_where_they_leave_clusters_idle),
        cmocka_unit_test(tiles_of_deep_layers_are_finished_beside_the_next),
        cmocka_unit_test(large_layers_share_the_pass),
        cmocka_unit_test(empty_layers_share_no_pass),
        cmocka_unit_test(small_weights_are_pooled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
