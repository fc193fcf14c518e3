/* SPDX-License-Identifier: Apache-2.0 */
/* What is WebGPU's own: finding a library, a device of the caller's, operands in one buffer, odd byte ranges,
 * and what failures become. The arithmetic is tested by the table. */
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "webgpu/device.h"

enum { SKIPPED = 77, M = 37, K = 29, N = 43 };

static eg_status open_on(void *device, void *queue, eg_context **context) {
    const eg_open_info info = {
        .size = sizeof info, .backend = EG_BACKEND_WEBGPU, .native_device = device, .native_queue = queue};
    return eg_open(&info, context);
}

static eg_context *open_one(void) {
    eg_context *context = NULL;
    assert_int_equal(open_on(NULL, NULL, &context), EG_OK);
    return context;
}

static eg_webgpu *gpu_of(eg_context *context) { return context->device; }

/* ---- A small layer ------------------------------------------------------------------------------ */

static void fill(float *x, int count, unsigned seed) {
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        x[i] = (float)(seed >> 8) / 8388608.0F - 1.0F;
    }
}

typedef struct layer {
    float a[M * K], b[K * N], bias[N], y[M * N];
} layer;

static layer *make_layer(void) {
    layer *x = test_calloc(1, sizeof *x);
    fill(x->a, M * K, 1);
    fill(x->b, K * N, 2);
    fill(x->bias, N, 3);
    return x;
}

static const eg_layer description = {
    .size = sizeof description, .m = M, .k = K, .n = N, .batch = 1, .activation = EG_ACT_RELU};

/* relu(A·B + bias), with the four operands `apart` bytes behind each other in one buffer. */
static eg_status run_in(eg_context *context, void *memory, size_t apart, layer *x) {
    const eg_forward_args args = {.size = sizeof args,
                                  .a = {.data = memory},
                                  .b = {.data = memory, .offset = apart},
                                  .bias = {.data = memory, .offset = 2 * apart},
                                  .y = {.data = memory, .offset = 3 * apart}};
    eg_status status = eg_upload(context, memory, 0, x->a, sizeof x->a);
    if (status == EG_OK) status = eg_upload(context, memory, apart, x->b, sizeof x->b);
    if (status == EG_OK) status = eg_upload(context, memory, 2 * apart, x->bias, sizeof x->bias);
    if (status == EG_OK) status = eg_forward(context, &description, &args);
    if (status == EG_OK) status = eg_download(context, x->y, memory, 3 * apart, sizeof x->y);
    return status;
}

static void assert_right(const layer *x) {
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            double sum = x->bias[j];
            for (int k = 0; k < K; k++) sum += (double)x->a[i * K + k] * x->b[k * N + j];
            assert_float_equal(x->y[i * N + j], sum > 0 ? sum : 0, 1e-5);
        }
    }
}

static void assert_works(eg_context *context) {
    enum { APART = 8192 };
    layer *x = make_layer();
    void *memory = NULL;
    assert_int_equal(eg_alloc(context, 4 * APART, &memory), EG_OK);
    assert_int_equal(run_in(context, memory, APART, x), EG_OK);
    assert_right(x);
    eg_free(context, memory);
    test_free(x);
}

/* ---- Finding a library -------------------------------------------------------------------------- */

static void a_missing_library_is_said_in_words(void **state) {
    (void)state;
    eg_context *context = NULL;
    const char *before = getenv("EPIGRAD_WEBGPU_LIBRARY");
    char *kept = before != NULL ? strdup(before) : NULL;
    setenv("EPIGRAD_WEBGPU_LIBRARY", "/nowhere/libwebgpu.so", 1);
    assert_int_equal(open_on(NULL, NULL, &context), EG_ERR_UNAVAILABLE);
    assert_null(context);
    assert_non_null(strstr(eg_last_error(), "/nowhere/libwebgpu.so"));
    setenv("EPIGRAD_WEBGPU_LIBRARY", "libm.so.6", 1);
    assert_int_equal(open_on(NULL, NULL, &context), EG_ERR_UNAVAILABLE);
    assert_non_null(strstr(eg_last_error(), "fetch-webgpu.sh"));
    unsetenv("EPIGRAD_WEBGPU_LIBRARY");
    if (kept != NULL) setenv("EPIGRAD_WEBGPU_LIBRARY", kept, 1);
    free(kept);
}

static void an_adapter_that_is_not_there_is_unavailable(void **state) {
    (void)state;
    eg_context *context = NULL;
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_WEBGPU, .device = 12};
    assert_int_equal(eg_open(&info, &context), EG_ERR_UNAVAILABLE);
    assert_non_null(strstr(eg_last_error(), "adapter 12"));
}

/* ---- Memory ------------------------------------------------------------------------------------- */

static void any_byte_range_can_be_copied(void **state) {
    (void)state;
    eg_context *context = open_one();
    unsigned char host[64], back[64];
    void *memory = NULL;
    assert_int_equal(eg_alloc(context, sizeof host, &memory), EG_OK);
    for (size_t i = 0; i < sizeof host; i++) host[i] = (unsigned char)(7 * i + 1);
    for (size_t offset = 0; offset < 6; offset++) {
        for (size_t bytes = 1; bytes < 12; bytes++) {
            memset(back, 0, sizeof back);
            assert_int_equal(eg_upload(context, memory, 0, back, sizeof back), EG_OK);
            assert_int_equal(eg_upload(context, memory, offset, host, bytes), EG_OK);
            assert_int_equal(eg_download(context, back, memory, 0, sizeof back), EG_OK);
            for (size_t i = 0; i < sizeof back; i++) {
                const bool inside = i >= offset && i < offset + bytes;
                assert_int_equal(back[i], inside ? host[i - offset] : 0);
            }
            assert_int_equal(eg_download(context, back, memory, offset, bytes), EG_OK);
            assert_memory_equal(back, host, bytes);
        }
    }
    assert_int_equal(eg_upload(context, memory, 60, host, 5), EG_ERR_ARGUMENT);
    assert_int_equal(eg_download(context, host, memory, 65, 1), EG_ERR_ARGUMENT);
    eg_free(context, memory);
    eg_close(context);
}

static void too_large_a_buffer_is_out_of_memory(void **state) {
    (void)state;
    eg_context *context = open_one();
    void *memory = NULL;
    assert_int_equal(eg_alloc(context, (size_t)1 << 60, &memory), EG_ERR_OUT_OF_MEMORY);
    assert_null(memory);
    assert_works(context);
    eg_close(context);
}

static void operands_may_share_a_buffer_at_any_offset(void **state) {
    (void)state;
    eg_context *context = open_one();
    layer *x = make_layer();
    for (size_t apart = sizeof x->y; apart < sizeof x->y + 300; apart += 60) {
        void *memory = NULL;
        assert_int_equal(eg_alloc(context, 4 * apart, &memory), EG_OK);
        assert_int_equal(run_in(context, memory, apart, x), EG_OK);
        assert_right(x);
        eg_free(context, memory);
    }
    test_free(x);
    eg_close(context);
}

/* ---- Devices ------------------------------------------------------------------------------------ */

static void a_device_of_the_callers_is_used_and_left_open(void **state) {
    (void)state;
    eg_context *owner = open_one(), *guest = NULL;
    assert_int_equal(open_on(gpu_of(owner)->device, gpu_of(owner)->queue, &guest), EG_OK);
    assert_works(guest);
    eg_close(guest);
    assert_int_equal(open_on(gpu_of(owner)->device, NULL, &guest), EG_OK);
    assert_works(guest);
    eg_close(guest);
    assert_works(owner);
    eg_close(owner);
}

static void misuse_of_a_buffer_is_a_status(void **state) {
    (void)state;
    eg_context *context = open_one();
    layer *x = make_layer();
    WGPUBuffer wrong = NULL;
    const WGPUFlags no_storage = WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst;
    assert_int_equal(eg_webgpu_make_buffer(gpu_of(context), 32768, no_storage, &wrong), EG_OK);
    assert_int_equal(run_in(context, wrong, 8192, x), EG_ERR_DEVICE);
    assert_true(strlen(eg_last_error()) > 40);
    gpu_of(context)->api.BufferRelease(wrong);
    assert_works(context); /* nothing is left of it */
    test_free(x);
    eg_close(context);
}

/* wgpuDeviceDestroy is what a driver's reset looks like to everyone who holds the device. */
static void destroy(eg_context *context) {
    void (*destroy_device)(WGPUDevice) = NULL;
    void *symbol = dlsym(gpu_of(context)->api.library, "wgpuDeviceDestroy");
    assert_non_null(symbol);
    memcpy(&destroy_device, &symbol, sizeof symbol);
    destroy_device(gpu_of(context)->device);
}

static void a_lost_device_is_a_status_and_another_can_be_opened(void **state) {
    (void)state;
    eg_context *context = open_one(), *guest = NULL;
    layer *x = make_layer();
    void *memory = NULL;
    assert_int_equal(open_on(gpu_of(context)->device, NULL, &guest), EG_OK);
    assert_int_equal(eg_alloc(context, 32768, &memory), EG_OK);
    assert_int_equal(run_in(context, memory, 8192, x), EG_OK);
    destroy(context);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(run_in(context, memory, 8192, x), EG_ERR_DEVICE);
        assert_int_equal(run_in(guest, memory, 8192, x), EG_ERR_DEVICE);
        assert_int_equal(eg_sync(context), EG_ERR_DEVICE);
        assert_non_null(strstr(eg_last_error(), "lost"));
    }
    eg_free(context, memory);
    eg_close(guest);
    eg_close(context);
    context = open_one();
    assert_works(context);
    eg_close(context);
    test_free(x);
}

/* Large enough for the kernels that small products do not get, in rows that are no multiple of a tile. */
static void a_large_product_is_what_the_definition_says(void **state) {
    enum { ROWS = 250, DEPTH = 264, COLS = 260, COUNT = ROWS * DEPTH + DEPTH * COLS, BYTES = 4 * COUNT };
    const eg_layer large = {.size = sizeof large, .m = ROWS, .k = DEPTH, .n = COLS, .batch = 1};
    const float bound = 16.3F * (float)DEPTH / 16777216; /* sqrt(K) K u: no element is above 1 */
    float *in = test_calloc(COUNT, sizeof *in), *y[2];
    (void)state;
    fill(in, COUNT, 7);
    for (int i = 0; i < 2; i++) {
        const eg_open_info info = {
            .size = sizeof info, .backend = EG_BACKEND_WEBGPU, .kernel = i == 0 ? NULL : "ref"};
        eg_context *context = NULL;
        void *a = NULL, *out = NULL;
        y[i] = test_calloc(ROWS * COLS, sizeof(float));
        assert_int_equal(eg_open(&info, &context), EG_OK);
        assert_int_equal(eg_alloc(context, BYTES, &a), EG_OK);
        assert_int_equal(eg_alloc(context, ROWS * COLS * sizeof(float), &out), EG_OK);
        assert_int_equal(eg_upload(context, a, 0, in, BYTES), EG_OK);
        const eg_forward_args args = {.size = sizeof args,
                                      .a = {.data = a},
                                      .b = {.data = a, .offset = ROWS * DEPTH * sizeof(float)},
                                      .y = {.data = out}};
        assert_int_equal(eg_forward(context, &large, &args), EG_OK);
        assert_int_equal(eg_download(context, y[i], out, 0, ROWS * COLS * sizeof(float)), EG_OK);
        eg_free(context, a);
        eg_free(context, out);
        eg_close(context);
    }
    for (int i = 0; i < ROWS * COLS; i++) assert_float_equal(y[0][i], y[1][i], bound);
    test_free(in);
    test_free(y[0]);
    test_free(y[1]);
}

/* d_bias of a call that also wants d_b: the product sums what it reads on the way. */
static void check_sums(const char *limits, eg_layout layout, bool accumulate) {
    enum { BATCH = 2, A = BATCH * M * K, GRAD = BATCH * M * N, D_B = K * N };
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_WEBGPU, .kernel = "shared_32x32"};
    const eg_layer batched = {.size = sizeof batched, .m = M, .k = K, .n = N, .batch = BATCH};
    float *in = test_calloc(A + GRAD, sizeof *in), d_bias[N];
    void *from = NULL, *to = NULL;
    eg_context *context = NULL;
    setenv("EPIGRAD_WEBGPU_LIMITS", limits, 1);
    assert_int_equal(eg_open(&info, &context), EG_OK);
    unsetenv("EPIGRAD_WEBGPU_LIMITS");
    fill(in, A + GRAD, 11);
    assert_int_equal(eg_alloc(context, (A + GRAD) * sizeof *in, &from), EG_OK);
    assert_int_equal(eg_alloc(context, (D_B + N) * sizeof *in, &to), EG_OK);
    assert_int_equal(eg_upload(context, from, 0, in, (A + GRAD) * sizeof *in), EG_OK);
    assert_int_equal(eg_upload(context, to, D_B * sizeof *in, in, sizeof d_bias), EG_OK);
    const eg_backward_args args = {.size = sizeof args,
                                   .accumulate = accumulate,
                                   .a = {.data = from, .batch_stride = M * K},
                                   .grad = {.data = from, .offset = A * sizeof *in, .batch_stride = M * N},
                                   .d_b = {.data = to, .layout = layout},
                                   .d_bias = {.data = to, .offset = D_B * sizeof *in}};
    assert_int_equal(eg_backward(context, &batched, &args), EG_OK);
    assert_int_equal(eg_download(context, d_bias, to, D_B * sizeof *in, sizeof d_bias), EG_OK);
    for (int n = 0; n < N; n++) {
        double sum = accumulate ? in[n] : 0;
        for (int i = 0; i < BATCH * M; i++) sum += in[A + i * N + n];
        assert_float_equal(d_bias[n], sum, BATCH * M * sqrt(BATCH * M) / 16777216);
    }
    eg_free(context, from);
    eg_free(context, to);
    eg_close(context);
    test_free(in);
}

static void sums_on_the_way_are_the_sums(void **state) {
    (void)state;
    check_sums("", EG_ROW_MAJOR, false);
    check_sums("", EG_COL_MAJOR, true);
    check_sums("tiny", EG_ROW_MAJOR, true);
    check_sums("tiny", EG_COL_MAJOR, false);
}

static void the_same_call_gives_the_same_bits(void **state) {
    (void)state;
    eg_context *context = open_one();
    layer *x = make_layer(), *again = make_layer();
    void *memory = NULL;
    assert_int_equal(eg_alloc(context, 32768, &memory), EG_OK);
    assert_int_equal(run_in(context, memory, 8192, x), EG_OK);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(run_in(context, memory, 8192, again), EG_OK);
        assert_memory_equal(x->y, again->y, sizeof x->y);
    }
    eg_free(context, memory);
    test_free(x);
    test_free(again);
    eg_close(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_library_is_said_in_words),
        cmocka_unit_test(an_adapter_that_is_not_there_is_unavailable),
        cmocka_unit_test(any_byte_range_can_be_copied),
        cmocka_unit_test(too_large_a_buffer_is_out_of_memory),
        cmocka_unit_test(operands_may_share_a_buffer_at_any_offset),
        cmocka_unit_test(a_device_of_the_callers_is_used_and_left_open),
        cmocka_unit_test(misuse_of_a_buffer_is_a_status),
        cmocka_unit_test(a_lost_device_is_a_status_and_another_can_be_opened),
        cmocka_unit_test(a_large_product_is_what_the_definition_says),
        cmocka_unit_test(sums_on_the_way_are_the_sums),
        cmocka_unit_test(the_same_call_gives_the_same_bits),
    };
    eg_context *context = NULL;
    if (open_on(NULL, NULL, &context) == EG_ERR_UNAVAILABLE) {
        printf("skipped: %s\n", eg_last_error());
        return SKIPPED;
    }
    eg_close(context);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
