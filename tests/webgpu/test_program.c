/* SPDX-License-Identifier: Apache-2.0 */
/* What `epigrad plan` prints is what is enqueued: the kernels of the dispatches that the library records,
 * read from its calls of WebGPU, against the lines of the program's text. */
#include "check.h"
#include "support.h"

#include "webgpu/device.h"

enum { SKIPPED = 77, MOST = 1 << 18, ROOM = 1 << 14 };

/* ---- What is recorded --------------------------------------------------------------------------- */

/* Names of kernels are those of the library's table, compared by address. */
typedef struct sequence {
    int count;
    const char *kernel[MOST];
} sequence;

static eg_webgpu_api real;
static sequence recorded;
static struct {
    WGPUComputePipeline pipeline;
    const char *kernel;
} labels[1024];
static int label_count;
static const char *bound_kernel;

static const eg_webgpu_kernel *kernel_row(int index) {
    if (index < EG_WEBGPU_ROWS) return eg_webgpu_kernel_row(index);
    switch (index - EG_WEBGPU_ROWS) {
    case 0:
        return &eg_webgpu_elementwise;
    case 1:
        return &eg_webgpu_column_sum;
    case 2:
        return &eg_webgpu_column_alone;
    default:
        return NULL;
    }
}

static const char *kernel_named(const char *name, size_t length) {
    const eg_webgpu_kernel *kernel;
    for (int i = 0; (kernel = kernel_row(i)) != NULL; i++) {
        if (strlen(kernel->name) == length && strncmp(kernel->name, name, length) == 0) return kernel->name;
    }
    return NULL;
}

static void add(sequence *to, const char *kernel) {
    if (to->count == MOST) fail_msg("more than %d dispatches", MOST);
    to->kernel[to->count++] = kernel;
}

static WGPUComputePipeline create_pipeline(WGPUDevice device, const WGPUComputePipelineDescriptor *wanted) {
    WGPUComputePipeline made = real.DeviceCreateComputePipeline(device, wanted);
    assert_true(label_count < (int)LENGTH(labels));
    labels[label_count].pipeline = made;
    labels[label_count++].kernel = kernel_named(wanted->label.data, strlen(wanted->label.data));
    return made;
}

static void set_pipeline(WGPUComputePassEncoder pass, WGPUComputePipeline pipeline) {
    bound_kernel = NULL;
    for (int i = 0; i < label_count; i++) {
        if (labels[i].pipeline == pipeline) bound_kernel = labels[i].kernel;
    }
    assert_non_null(bound_kernel);
    real.ComputePassEncoderSetPipeline(pass, pipeline);
}

static void dispatch(WGPUComputePassEncoder pass, uint32_t x, uint32_t y, uint32_t z) {
    add(&recorded, bound_kernel);
    real.ComputePassEncoderDispatchWorkgroups(pass, x, y, z);
}

/* ---- What is printed ---------------------------------------------------------------------------- */

/* The word that names a kernel: two spaces before it, two or the end of the line behind. */
static const char *kernel_in(const char *line, size_t length) {
    const char *found = NULL;
    for (const char *at = line; at + 2 < line + length; at++) {
        if (strncmp(at, "  ", 2) != 0 || at[2] == ' ') continue;
        const char *kernel = kernel_named(at + 2, strcspn(at + 2, " \n"));
        if (kernel != NULL) found = kernel;
    }
    return found;
}

/* A kernel for each launch of each step. Steps are the lines that begin with a number. */
static void read_text(const char *text, sequence *printed) {
    printed->count = 0;
    for (const char *at = text; *at != '\0';) {
        const size_t length = strcspn(at, "\n");
        int number, launches = 1;
        if (length > 3 && at[2] == ' ' && at[3] == ' ' && sscanf(at, "%2d  ", &number) == 1) {
            const char *kernel = kernel_in(at, length);
            if (kernel == NULL) fail_msg("no kernel in \"%.*s\"", (int)length, at);
            for (const char *x = at; x < at + length; x++) {
                if (strncmp(x, "  x ", 4) == 0) sscanf(x + 4, "%d", &launches);
            }
            for (int i = 0; i < launches; i++) add(printed, kernel);
        }
        at += length + (at[length] != '\0' ? 1 : 0);
    }
}

static void assert_recorded(const char *text) {
    static sequence printed;
    read_text(text, &printed);
    if (recorded.count != printed.count)
        fail_msg("%d dispatches were recorded, and %d printed:\n%s", recorded.count, printed.count, text);
    for (int i = 0; i < printed.count; i++) {
        if (recorded.kernel[i] != printed.kernel[i])
            fail_msg("dispatch %d is of %s; %s is printed:\n%s", i, recorded.kernel[i], printed.kernel[i],
                     text);
    }
}

/* ---- Programs as they run ----------------------------------------------------------------------- */

static const eg_backend_ops *real_ops;
static int64_t programs, launches, longest;

static eg_status run(eg_context *context, const eg_program *program, const eg_call *call, bool *refused) {
    static char text[ROOM];
    eg_text out = {text, sizeof text};
    eg_program_print(program, &out);
    recorded.count = 0;
    const eg_status status = real_ops->run(context, program, call, refused);
    if (status != EG_OK) return status;
    assert_recorded(text);
    programs++;
    launches += recorded.count;
    if (program->steps > 0 && recorded.count > longest) longest = recorded.count;
    return EG_OK;
}

static eg_context *open_watched(const char *limits, const char *kernel) {
    static eg_backend_ops watched;
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_WEBGPU, .kernel = kernel};
    eg_context *context = NULL;
    setenv("EPIGRAD_WEBGPU_LIMITS", limits, 1);
    const eg_status status = eg_open(&info, &context);
    unsetenv("EPIGRAD_WEBGPU_LIMITS");
    if (status == EG_ERR_UNAVAILABLE) return NULL;
    assert_ok(status);
    eg_webgpu_api *api = &((eg_webgpu *)context->device)->api;
    real = *api;
    api->DeviceCreateComputePipeline = create_pipeline;
    api->ComputePassEncoderSetPipeline = set_pipeline;
    api->ComputePassEncoderDispatchWorkgroups = dispatch;
    label_count = 0;
    real_ops = context->ops;
    watched = *real_ops;
    watched.run = run;
    context->ops = &watched;
    return context;
}

/* Calls of the table: every layout, epilogue, output, pack and limit. Their numbers are checked as well. */
static void run_table(const char *limits, const char *kernel, int first, int count) {
    eg_context *context = open_watched(limits, kernel);
    programs = launches = longest = 0;
    for (int i = first; i < first + count; i++) {
        check_case c;
        check_report report;
        check_make(EG_F32, i, &c);
        if (check_run(context, &c, &report) == CHECK_FAILED) fail_msg("case %d: %s", i, report.message);
    }
    printf("%s %s: %lld programs of %lld dispatches, the longest of %lld\n",
           kernel != NULL ? kernel : "own choice", limits, (long long)programs, (long long)launches,
           (long long)longest);
    assert_true(programs >= count / 2);
    eg_close(context);
}

static void what_runs_is_what_a_program_says(void **state) {
    (void)state;
    run_table("", NULL, 0, short_run() ? 30 : 120);
    run_table("", "ref", 30, short_run() ? 10 : 60);
}

static void so_it_is_under_tiny_limits(void **state) {
    (void)state;
    run_table("tiny", NULL, 0, short_run() ? 20 : 60);
    assert_true(longest > EG_MAX_STEPS); /* which takes steps of several launches */
}

/* ---- The text that users get -------------------------------------------------------------------- */

enum { M = 50, K = 20, N = 36, BATCH = 2 };

/* The bits of `seed` say what is wanted, from what, and over which memory. */
static void check_printed_plan(eg_context *context, void *memory, unsigned seed) {
    static char text[ROOM];
    enum { APART = BATCH * M * N * 4 };
    const eg_layer layer = {.size = sizeof layer,
                            .m = M,
                            .k = K,
                            .n = N,
                            .batch = BATCH,
                            .activation = seed & 1 ? EG_ACT_TANH : EG_ACT_NONE};
    const eg_matrix a = {.data = memory, .batch_stride = M * K},
                    b = {.data = memory, .offset = APART, .batch_stride = seed & 2 ? K * N : 0},
                    grad = {.data = memory, .offset = 2 * APART, .batch_stride = M * N};
    eg_matrix out[4];
    for (size_t i = 0; i < 4; i++)
        out[i] = (eg_matrix){.data = memory, .offset = (3 + i) * APART, .batch_stride = M * N};
    eg_forward_args forward = {.size = sizeof forward, .a = a, .b = b, .y = out[0]};
    if (seed & 4) forward.pre = out[1];
    recorded.count = 0;
    assert_ok(eg_forward(context, &layer, &forward));
    assert_ok(eg_forward_plan(context, &layer, &forward, text, sizeof text));
    assert_recorded(text);

    eg_backward_args backward = {.size = sizeof backward, .a = a, .b = b, .grad = grad, .d_a = out[0]};
    out[1].batch_stride = b.batch_stride;
    out[0].batch_stride = M * K;
    if (seed & 4) backward.d_b = out[1];
    if (seed & 8) backward.d_bias = (eg_vector){.data = memory, .offset = 7 * APART};
    if (seed & 16) backward.grad_pre = out[2];
    backward.d_a = out[0];
    recorded.count = 0;
    assert_ok(eg_backward(context, &layer, &backward));
    assert_ok(eg_backward_plan(context, &layer, &backward, text, sizeof text));
    assert_recorded(text);
}

static void a_plan_prints_what_is_enqueued(void **state) {
    (void)state;
    static const char *const kernels[] = {NULL, "shared_32x32"};
    static const char *const limits[] = {"", "tiny"};
    for (int i = 0; i < 4; i++) {
        eg_context *context = open_watched(limits[i / 2], kernels[i % 2]);
        void *memory = NULL;
        context->ops = real_ops;
        assert_ok(eg_alloc(context, (size_t)8 * BATCH * M * N * 4, &memory));
        for (unsigned seed = 0; seed < 32; seed += short_run() ? 3 : 1)
            check_printed_plan(context, memory, seed);
        eg_free(context, memory);
        eg_close(context);
    }
}

/* ---- Operations that no call makes alone -------------------------------------------------------- */

enum { ROWS = 6, COLS = 9, ITEMS = 2, FIRST = 5, PITCH = 11 };

static eg_view view_of(eg_operand_id id, eg_dtype dtype, bool by_columns) {
    return (eg_view){.space = EG_OPERAND,
                     .id = (int)id,
                     .dtype = dtype,
                     .rows = ROWS,
                     .cols = COLS,
                     .row_stride = by_columns ? 1 : PITCH,
                     .col_stride = by_columns ? PITCH : 1,
                     .batch_stride = (int64_t)PITCH * PITCH,
                     .offset = FIRST,
                     .align = 4};
}

static float element_of(const void *memory, eg_dtype dtype, size_t at) {
    float value;
    if (dtype == EG_F32) return ((const float *)memory)[at];
    eg_convert(&value, EG_F32, (const uint16_t *)memory + at, dtype, 1);
    return value;
}

/* a to y by way of a temporary, from any layout to any, an offset before both. What lies between stays. */
static void check_copy(eg_context *context, eg_dtype from, eg_dtype to, unsigned layouts) {
    enum { COUNT = FIRST + ITEMS * PITCH * PITCH };
    float in[COUNT], poison[COUNT];
    unsigned char source[COUNT * 4] = {0}, back[COUNT * 4] = {0};
    eg_program program = {.list = {.dtype = to, .compute = EG_F32, .ops = 2, .temporaries = 1}};
    eg_call call = {.packed_b = NULL};
    const eg_view a = view_of(EG_OP_A, from, layouts & 1), y = view_of(EG_OP_Y, to, layouts & 2),
                  way = {.space = EG_TEMPORARY, .rows = ROWS, .cols = COLS, .batch_stride = 1};
    eg_op op = {.kind = EG_COPY, .items = ITEMS, .rows = ROWS, .cols = COLS, .summed = 1};
    bool refused = false;
    program.list.temporary[0] = (eg_temporary){.name = "way", .items = ITEMS, .rows = ROWS, .cols = COLS};
    op.left = a, op.out = way;
    program.list.op[0] = op;
    op.left = way, op.out = y;
    program.list.op[1] = op;
    for (int i = 0; i < COUNT; i++) in[i] = (float)i, poison[i] = -1;
    eg_convert(source, from, in, EG_F32, COUNT);
    eg_convert(back, to, poison, EG_F32, COUNT);
    assert_ok(eg_compile(&context->caps, &program));
    const eg_operand_id ids[] = {EG_OP_A, EG_OP_Y};
    for (int i = 0; i < 2; i++) {
        assert_ok(eg_alloc(context, sizeof source, &call.operand[ids[i]].data));
        assert_ok(eg_upload(context, call.operand[ids[i]].data, 0, i == 0 ? source : back, sizeof source));
    }
    assert_ok(eg_alloc(context, program.workspace, &call.workspace.data));
    assert_ok(context->ops->run(context, &program, &call, &refused));
    assert_ok(eg_download(context, back, call.operand[EG_OP_Y].data, 0, sizeof back));
    for (int64_t item = 0; item < ITEMS; item++) {
        for (int64_t row = 0; row < ROWS; row++) {
            for (int64_t col = 0; col < COLS; col++) {
                const int64_t base = FIRST + item * PITCH * PITCH,
                              to_at = base + row * y.row_stride + col * y.col_stride;
                const float expected = in[base + row * a.row_stride + col * a.col_stride];
                assert_float_equal(element_of(back, to, (size_t)to_at), expected, 0);
                poison[to_at] = expected;
            }
        }
    }
    for (size_t i = 0; i < COUNT; i++) assert_float_equal(element_of(back, to, i), poison[i], 0);
    eg_free(context, call.operand[EG_OP_A].data);
    eg_free(context, call.operand[EG_OP_Y].data);
    eg_free(context, call.workspace.data);
}

static void any_view_is_copied_to_any(void **state) {
    (void)state;
    static const char *const limits[] = {"", "tiny"};
    for (int i = 0; i < 2; i++) {
        eg_context *context = open_watched(limits[i], NULL);
        const bool f16 = context->caps.features != 0;
        for (unsigned layouts = 0; layouts < 4; layouts++) {
            check_copy(context, EG_F32, EG_F32, layouts);
            if (f16) check_copy(context, EG_F32, EG_F16, layouts);
            if (f16) check_copy(context, EG_F16, EG_F32, layouts);
        }
        eg_close(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_runs_is_what_a_program_says),
        cmocka_unit_test(so_it_is_under_tiny_limits),
        cmocka_unit_test(a_plan_prints_what_is_enqueued),
        cmocka_unit_test(any_view_is_copied_to_any),
    };
    eg_context *context = open_watched("", NULL);
    if (context == NULL) {
        printf("skipped: %s\n", eg_last_error());
        return SKIPPED;
    }
    eg_close(context);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
