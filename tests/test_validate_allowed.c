/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that look odd and are allowed, and how far: structs of other headers, memory that is shared. */
#include "fixture.h"

/* The structs of the first release end before gated units. What is behind them is not the caller's. */
static void a_shorter_struct_of_an_older_header_is_this_one(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    fixture f;
    fixture_make(&f, small_layer());
    f.forward.size = offsetof(eg_forward_args, b_up);
    f.backward.size = offsetof(eg_backward_args, data_parallel);
    f.layer.size = offsetof(eg_layer, scale);
    memset((char *)&f.layer + f.layer.size, 0xff, sizeof f.layer - f.layer.size);
    memset((char *)&f.forward + f.forward.size, 0xff, sizeof f.forward - f.forward.size);
    memset((char *)&f.backward + f.backward.size, 0xff, sizeof f.backward - f.backward.size);
    assert_ok(eg_forward(context, &f.layer, &f.forward));
    assert_ok(eg_backward(context, &f.layer, &f.backward));
    eg_packed *packed;
    assert_ok(eg_pack_b(context, &f.layer, &f.forward.b, &packed));
    eg_packed_free(context, packed);
    f.forward.size--, f.backward.size--;
    assert_status(eg_forward(context, &f.layer, &f.forward), EG_ERR_ARGUMENT);
    assert_status(eg_backward(context, &f.layer, &f.backward), EG_ERR_ARGUMENT);
    f.forward.size++, f.layer.size--;
    assert_status(eg_forward(context, &f.layer, &f.forward), EG_ERR_ARGUMENT);
    fixture_free(&f);
    eg_close(context);
}

static void a_longer_struct_of_zeros_is_this_one(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    fixture f;
    fixture_make(&f, small_layer());
    struct {
        eg_layer layer;
        int64_t newer;
    } later = {.layer = f.layer};
    later.layer.size = sizeof later;
    assert_ok(eg_forward(context, &later.layer, &f.forward));
    static const int64_t newer[] = {1, INT64_MIN}; /* the first byte, and the last */
    for (size_t i = 0; i < LENGTH(newer); i++) {
        later.newer = newer[i];
        fixture_poison(&f);
        assert_status(eg_forward(context, &later.layer, &f.forward), EG_ERR_UNSUPPORTED);
        assert_non_null(strstr(eg_last_error(), "layer.size"));
        assert_true(fixture_untouched(&f));
    }
    fixture_free(&f);
    eg_close(context);
}

/* f32 gradients of a 16-bit layer are the only mixture of types. */
static void mixtures_of_types(void **state) {
    (void)state;
    static const eg_dtype layers[] = {EG_F32, EG_F64, EG_F16, EG_BF16};
    eg_context *context = open_cpu(1);
    for (size_t i = 0; i < LENGTH(layers) * 4; i++) {
        const eg_dtype of_layer = layers[i / 4], of_d_b = layers[i % 4];
        const bool wide = of_d_b == EG_F32 && (of_layer == EG_F16 || of_layer == EG_BF16);
        char mark;
        const eg_matrix there = {.data = &mark}, d_b = {.data = &mark, .dtype = of_d_b};
        const eg_layer layer = {.size = sizeof layer, .m = 2, .k = 2, .n = 2, .batch = 1, .dtype = of_layer};
        const eg_backward_args args = {.size = sizeof args, .a = there, .grad = there, .d_b = d_b};
        size_t bytes;
        const eg_status expected = wide || of_layer == of_d_b ? EG_OK : EG_ERR_ARGUMENT;
        assert_status(eg_backward_workspace(context, &layer, &args, &bytes), expected);
    }
    eg_close(context);
}

/* Windows of one larger matrix, and matrices of a batch that interleave, do not overlap. */
static void memory_may_be_shared_without_overlap(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    static float left[4 * 10], right[3 * 5]; /* a and y are columns 0..2 and 3..7 of rows of 10 */
    const eg_layer layer = {.size = sizeof layer, .m = 4, .k = 3, .n = 5, .batch = 1};
    const eg_forward_args side_by_side = {.size = sizeof side_by_side,
                                          .a = {.data = left, .ld = 10},
                                          .b = {.data = right},
                                          .y = {.data = left, .offset = 3 * sizeof(float), .ld = 10}};
    assert_ok(eg_forward(context, &layer, &side_by_side));
    eg_forward_args touching = side_by_side;
    touching.y.offset = 2 * sizeof(float);
    assert_status(eg_forward(context, &layer, &touching), EG_ERR_ARGUMENT);
    eg_layer pair = layer;
    pair.batch = 2;
    static float a[4 * 3], y[4 * 10];
    const eg_forward_args interleaved = {.size = sizeof interleaved,
                                         .a = {.data = a},
                                         .b = {.data = right},
                                         .y = {.data = y, .ld = 10, .batch_stride = 5}};
    assert_ok(eg_forward(context, &pair, &interleaved));
    eg_forward_args colliding = interleaved;
    colliding.y.batch_stride = 4;
    assert_status(eg_forward(context, &pair, &colliding), EG_ERR_ARGUMENT);
    eg_layer none = layer;
    none.k = 0;
    eg_forward_args within = side_by_side;
    within.a.data = left + 4; /* without elements, and so nowhere */
    assert_ok(eg_forward(context, &none, &within));
    eg_close(context);
}

/* A buffer of [T, WINDOWS, H, D], as a fused projection leaves it, and both parts of one [batch, 2N] with M =
 * 1: results are those in memory of their own, and each window keeps to itself. */
static void interleaved_windows_are_separate(void **state) {
    (void)state;
    enum { T = 5, WINDOWS = 3, H = 4, D = 6, BATCH = 5 };
    eg_context *context = open_cpu(1);
    static float fused[T * WINDOWS * H * D], apart[WINDOWS][T * H * D], b[BATCH * D * D];
    for (int i = 0; i < T * H * D; i++) {
        for (int w = 0; w < WINDOWS; w++) {
            fused[(i / (H * D) * WINDOWS + w) * H * D + i % (H * D)] = apart[w][i] = (float)(i % 7 - w);
        }
    }
    for (int i = 0; i < BATCH * D * D; i++) b[i] = (float)(i % 5 - 2);
    eg_matrix in_fused[WINDOWS], alone[WINDOWS];
    for (int w = 0; w < WINDOWS; w++) {
        in_fused[w] = (eg_matrix){.data = fused + w * H * D, .ld = WINDOWS * H * D, .batch_stride = D};
        alone[w] = (eg_matrix){.data = apart[w], .ld = H * D, .batch_stride = D};
    }
    const eg_layer layer = {.size = sizeof layer, .m = T, .k = D, .n = D, .batch = H};
    const eg_matrix weights = {.data = b, .batch_stride = D * D};
    for (int i = 0; i < 2; i++) { /* a, y; then, of y as grad, grad_pre in a's place, and d_a */
        const eg_matrix *w = i == 0 ? in_fused : alone;
        const eg_forward_args forward = {.size = sizeof forward, .a = w[0], .b = weights, .y = w[1]};
        assert_ok(eg_forward(context, &layer, &forward));
        const eg_backward_args backward = {
            .size = sizeof backward, .b = weights, .grad = w[1], .d_a = w[2], .grad_pre = w[0]};
        assert_ok(eg_backward(context, &layer, &backward));
    }
    for (int i = 0; i < T * H * D; i++) {
        for (int w = 0; w < WINDOWS; w++) {
            assert_true(fused[(i / (H * D) * WINDOWS + w) * H * D + i % (H * D)] == apart[w][i]);
        }
    }

    static float both[BATCH * 2 * D];
    const eg_layer rows = {.size = sizeof rows, .m = 1, .k = D, .n = D, .batch = BATCH};
    const eg_matrix left = {.data = both, .batch_stride = 2 * D},
                    right = {.data = both + D, .batch_stride = 2 * D};
    eg_forward_args forward = {.size = sizeof forward, .a = left, .b = weights, .y = right};
    assert_ok(eg_forward(context, &rows, &forward));
    forward.y.data = both + D - 1;
    assert_status(eg_forward(context, &rows, &forward), EG_ERR_ARGUMENT);
    eg_close(context);
}

/* Whether two items of the batch share an element. */
static bool items_meet(int64_t rows, int64_t cols, int64_t batch, const eg_matrix *x) {
    bool seen[512] = {false};
    for (int64_t i = 0; i < batch * rows * cols; i++) {
        const int64_t item = i / (rows * cols), row = i / cols % rows, col = i % cols;
        const int64_t inside = x->layout == EG_ROW_MAJOR ? row * x->ld + col : row + col * x->ld;
        bool *at = &seen[item * x->batch_stride + inside];
        if (*at) return true;
        *at = true;
    }
    return false;
}

/* An output whose items would meet is refused, and no other. */
static void no_output_meets_itself(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    char mark;
    for (int i = 0; i < 4 * 5 * 3 * 12 * 40 * 2; i++) {
        const int64_t m = 1 + i % 4, n = 1 + i / 4 % 5, batch = 1 + i / 20 % 3;
        const eg_layout layout = i / 28800 == 0 ? EG_ROW_MAJOR : EG_COL_MAJOR;
        const int64_t length = layout == EG_ROW_MAJOR ? n : m;
        const eg_matrix y = {
            .data = &mark, .ld = length + i / 60 % 12, .batch_stride = i / 720 % 40, .layout = layout};
        const eg_layer layer = {.size = sizeof layer, .m = m, .k = 0, .n = n, .batch = batch};
        const eg_forward_args args = {.size = sizeof args, .y = y};
        size_t bytes;
        const bool refused = eg_forward_workspace(context, &layer, &args, &bytes) != EG_OK;
        assert_true(refused == items_meet(m, n, batch, &y));
    }
    eg_close(context);
}

static void sizes_end_at_2_to_the_60(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    const eg_forward_args args = {.size = sizeof args};
    for (int i = 0; i < 4; i++) {
        eg_layer layer = {.size = sizeof layer};
        int64_t *const sizes[] = {&layer.m, &layer.k, &layer.n, &layer.batch};
        size_t bytes;
        *sizes[i] = INT64_C(1) << 60;
        assert_ok(eg_forward_workspace(context, &layer, &args, &bytes));
        *sizes[i] += 1;
        assert_status(eg_forward_workspace(context, &layer, &args, &bytes), EG_ERR_ARGUMENT);
    }
    eg_close(context);
}

/* y over residual, and grad_pre over grad, however the place is put into words: an address and an offset, and
 * strides of what there is one of. */
static void in_place_in_other_words(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    float numbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    const eg_layer layer = {.size = sizeof layer, .m = 1, .k = 0, .n = 4, .batch = 1};
    const eg_matrix whole = {.data = numbers, .offset = 2 * sizeof(float), .ld = 99},
                    part = {.data = numbers + 2, .batch_stride = 4},
                    beside = {.data = numbers + 1, .batch_stride = 4};
    eg_forward_args forward = {.size = sizeof forward, .residual = whole, .y = part};
    assert_ok(eg_forward(context, &layer, &forward));
    forward.y = beside;
    assert_status(eg_forward(context, &layer, &forward), EG_ERR_ARGUMENT);
    eg_backward_args backward = {.size = sizeof backward, .grad = part, .grad_pre = whole};
    assert_ok(eg_backward(context, &layer, &backward));
    backward.grad = beside;
    assert_status(eg_backward(context, &layer, &backward), EG_ERR_ARGUMENT);
    for (int i = 0; i < 8; i++) assert_true(numbers[i] == (float)i);
    eg_close(context);
}

/* Values that an option has are allowed where the call does not use it; what is absent may hold anything. */
static void what_is_not_used_may_be_set(void **state) {
    (void)state;
    eg_context *context = open_cpu(1);
    fixture f;
    fixture_make(&f, small_layer());
    const eg_matrix absent = {
        .offset = 3, .ld = -5, .batch_stride = -1, .layout = (eg_layout)9, .dtype = (eg_dtype)9};
    f.forward.tensor_parallel =
        (eg_tensor_parallel){.split = EG_SPLIT_ROWS, .sums = EG_F64, .gathered = absent};
    f.backward.tensor_parallel = f.forward.tensor_parallel;
    f.backward.data_parallel =
        (eg_data_parallel){.reduction = EG_REDUCTION_MEAN, .sharding = EG_SHARDING_LINES, .sums = EG_F64};
    f.backward.chain = (eg_chain){.saved = absent, .source = EG_SOURCE_Y, .activation = EG_ACT_MISH};
    f.forward.residual = f.backward.residual = f.backward.chain_up.y = absent;
    f.forward.workspace = f.backward.workspace = (eg_workspace){.offset = 1, .bytes = 1};
    assert_ok(eg_forward(context, &f.layer, &f.forward));
    assert_ok(eg_backward(context, &f.layer, &f.backward));
    fixture_free(&f);
    eg_close(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shorter_struct_of_an_older_header_is_this_one),
        cmocka_unit_test(a_longer_struct_of_zeros_is_this_one),
        cmocka_unit_test(mixtures_of_types),
        cmocka_unit_test(memory_may_be_shared_without_overlap),
        cmocka_unit_test(interleaved_windows_are_separate),
        cmocka_unit_test(no_output_meets_itself),
        cmocka_unit_test(sizes_end_at_2_to_the_60),
        cmocka_unit_test(in_place_in_other_words),
        cmocka_unit_test(what_is_not_used_may_be_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
