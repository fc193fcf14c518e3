/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of any number of rows: the workspace does not grow with them. */
#include "low_memory.h"

#ifdef EG_HAVE_CUDA
#include "cuda/step.h"
#endif

static void check_any_rows(const eg_caps *caps, bool wide, size_t limit, int64_t least_rows) {
    size_t workspace = 0;
    int64_t rows = 256;
    for (int power = 22; power <= 32; power++) { /* whole chunks, but for the first time */
        const sizes s = {rows << power, 4096, 14336, 1, EG_BF16, false, false, wide};
        const eg_problem problem = problem_of(&s);
        eg_low_memory chunks;
        assert_ok(eg_low_memory_make(caps, &problem, limit, &chunks));
        assert_true(chunks.workspace <= limit && chunks.rows >= least_rows);
        if (power > 23) assert_true(chunks.workspace == workspace && chunks.rows == rows);
        workspace = chunks.workspace;
        rows = chunks.rows;
    }
}

static void workspace_is_the_same_for_any_rows(void **state) {
    (void)state;
    const eg_caps caps = cpu(2);
    check_any_rows(&caps, true, 1024 * MIB, 256);
    check_any_rows(&caps, false, 1024 * MIB, 256);
}

/* A workspace that no memory could hold (operands of 16 bits are packed as f32) is no obstacle, and leaves no
 * message behind. */
static void even_more_rows_than_memory_could_hold(void **state) {
    (void)state;
    const sizes s = {(int64_t)1 << 51, 512, 512, 1, EG_BF16, false, false, false};
    const eg_problem problem = problem_of(&s);
    const eg_caps caps = cpu(2);
    eg_low_memory chunks;
    assert_status(eg_low_memory_make(&caps, &problem, 0, &chunks), EG_ERR_OUT_OF_MEMORY);
    assert_status(eg_convert(NULL, EG_F32, NULL, (eg_dtype)9, 1), EG_ERR_ARGUMENT);
    char before[512];
    snprintf(before, sizeof before, "%s", eg_last_error());
    assert_ok(eg_low_memory_make(&caps, &problem, 64 * MIB, &chunks));
    assert_true(chunks.workspace <= 64 * MIB && chunks.rows >= 1024);
    assert_string_equal(before, eg_last_error());
}

/* More chunks than 64 bits can count, on one row of grad that is everywhere the same; and operands without
 * elements, whose strides may be anything. */
static void more_chunks_than_can_be_counted(void **state) {
    (void)state;
    const eg_caps caps = cpu(2);
    eg_problem problem;
    eg_low_memory chunks;
    for (int64_t n = 0; n < 2; n++) {
        const eg_layer layer = {
            .size = sizeof layer, .m = INT64_C(1) << 50, .n = n, .batch = INT64_C(1) << 40};
        const int64_t stride = n == 0 ? INT64_MAX : 0;
        const eg_backward_args args = {.size = sizeof args,
                                       .grad = {.data = (void *)(uintptr_t)64, .batch_stride = stride},
                                       .d_bias.data = (void *)(uintptr_t)64};
        assert_ok(eg_validate_backward(EG_PRESENCE, &layer, &args, &problem));
        assert_ok(eg_low_memory_make(&caps, &problem, MIB, &chunks));
        char text[1024];
        print(&chunks, text, sizeof text);
        if (n == 0) continue;
        assert_non_null(strstr(text, " rows x "));
        assert_true(strtod(strstr(text, " rows x ") + 8, NULL) > 0x1p64);
    }
}

#ifdef EG_HAVE_CUDA
/* An H200, of which only the figures are needed. d_b in bf16 is added up in 112 MiB of f32, and its own
 * memory. */
static void workspace_is_the_same_for_any_rows_on_cuda(void **state) {
    (void)state;
    const eg_cuda_caps detail = {
        .multiprocessors = 132, .shared = 227 << 10, .calibration = eg_cuda_calibration_of("NVIDIA H200")};
    const eg_caps caps = {.backend = EG_BACKEND_CUDA,
                          .rounds_grad_pre = true,
                          .features = EG_CUDA_SM80 | EG_CUDA_SM90A | EG_CUDA_LT,
                          .detail = &detail};
    check_any_rows(&caps, true, 256 * MIB, 8192);
    check_any_rows(&caps, false, 256 * MIB, 4096);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workspace_is_the_same_for_any_rows),
        cmocka_unit_test(even_more_rows_than_memory_could_hold),
        cmocka_unit_test(more_chunks_than_can_be_counted),
#ifdef EG_HAVE_CUDA
        cmocka_unit_test(workspace_is_the_same_for_any_rows_on_cuda),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
