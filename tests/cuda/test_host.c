/* The host's side of CUDA over a driver that runs nothing (fake_driver.c): what a call asks of the driver,
 * which calls are recorded and replayed, and what is said when something fails. Results are for
 * test_device.c. */
#define _DEFAULT_SOURCE
#include <dlfcn.h>

#include "fake_driver.h"
#include "support.h"

static fake_cuda *driver; /* the counts; since the last open */

enum { KERNELS = 3, ELEMENTS = 64 * 64 };

typedef struct session {
    eg_context *context;
    eg_layer layer;
    eg_forward_args forward;
    eg_backward_args backward;
    void *memory[10];
} session;

/* A layer whose forward call is one kernel and whose backward call is KERNELS and the sum of d_bias. */
static void open_session(session *s) {
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA};
    *s = (session){.layer = {.size = sizeof s->layer, .m = 64, .k = 64, .n = 64, .batch = 1}};
    s->layer.dtype = EG_BF16;
    s->layer.activation = EG_ACT_GELU;
    assert_ok(eg_open(&info, &s->context));
    if (driver == NULL) driver = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "eg_fake_cuda");
    assert_non_null(driver); /* else this is a real driver */
    for (size_t i = 0; i < LENGTH(s->memory); i++)
        assert_ok(eg_alloc(s->context, 4 * ELEMENTS + (1 << 20), &s->memory[i]));
    s->forward = (eg_forward_args){.size = sizeof s->forward,
                                   .a = {.data = s->memory[0]},
                                   .b = {.data = s->memory[1]},
                                   .y = {.data = s->memory[2]},
                                   .workspace = {s->memory[9], 0, 1 << 20}};
    s->backward = (eg_backward_args){.size = sizeof s->backward,
                                     .a = {.data = s->memory[0]},
                                     .b = {.data = s->memory[1]},
                                     .grad = {.data = s->memory[3]},
                                     .source = EG_SOURCE_PRE,
                                     .pre = {.data = s->memory[4]},
                                     .d_a = {.data = s->memory[5]},
                                     .d_b = {.data = s->memory[6]},
                                     .d_bias = {.data = s->memory[7]},
                                     .workspace = {s->memory[9], 0, 1 << 20}};
    driver->kernels = driver->replays = driver->recordings = 0;
}

static void close_session(session *s) {
    for (size_t i = 0; i < LENGTH(s->memory); i++) eg_free(s->context, s->memory[i]);
    eg_close(s->context);
    assert_int_equal(driver->graphs, 0);
    assert_int_equal(driver->streams, 0);
    assert_int_equal(driver->events, 0);
}

static void backward(session *s, int times) {
    for (int i = 0; i < times; i++) assert_ok(eg_backward(s->context, &s->layer, &s->backward));
}

/* A call that differs from the others by its addresses. */
static void backward_at(session *s, int place) {
    eg_backward_args args = s->backward;
    args.grad.offset = (size_t)place * 2;
    assert_ok(eg_backward(s->context, &s->layer, &args));
}

/* ---- Recorded calls ----------------------------------------------------------------------------- */

static void a_call_made_before_is_one_launch(void **state) {
    (void)state;
    session s;
    open_session(&s);
    backward(&s, 1);
    assert_int_equal(driver->kernels, KERNELS + 1);
    assert_int_equal(driver->replays, 0);
    backward(&s, 9);
    assert_int_equal(driver->kernels, KERNELS + 1);
    assert_int_equal(driver->replays, 9);
    assert_int_equal(driver->recordings, 1);
    for (int i = 0; i < 3; i++) assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    assert_int_equal(driver->kernels, KERNELS + 2);
    assert_int_equal(driver->recordings, 2);
    close_session(&s);
}

/* Anything about a call that is new makes it another call: nothing stale is ever replayed. */
static void what_is_new_is_not_replayed(void **state) {
    (void)state;
    session s;
    open_session(&s);
    backward(&s, 3);
    const int replays = driver->replays;
    s.backward.workspace.offset += 64;
    s.backward.workspace.bytes -= 64;
    backward(&s, 1);
    s.backward.d_a.data = s.memory[8];
    backward(&s, 1);
    s.backward.accumulate = 1;
    backward(&s, 1);
    s.backward.pre.ld = 65;
    backward(&s, 1);
    s.layer.nonfinite = EG_NONFINITE_PROPAGATE;
    backward(&s, 1);
    s.layer.activation = EG_ACT_SILU;
    backward(&s, 1);
    s.layer.m = 63;
    backward(&s, 1);
    assert_int_equal(driver->replays, replays);
    close_session(&s);
}

/* Two packs at one address, one after the other, are not one pack. */
static void packs_are_known_by_what_they_hold(void **state) {
    (void)state;
    session s;
    open_session(&s);
    eg_packed *first = NULL, *second = NULL;
    const eg_matrix b = {.data = s.memory[1]};
    assert_ok(eg_pack_b(s.context, &s.layer, &b, &first));
    assert_ok(eg_pack_b(s.context, &s.layer, &b, &second));
    s.backward.packed_b = first;
    backward(&s, 3);
    const int replays = driver->replays;
    s.backward.packed_b = second;
    backward(&s, 1);
    assert_int_equal(driver->replays, replays);
    eg_packed_free(s.context, first);
    eg_packed_free(s.context, second);
    close_session(&s);
}

static void a_captured_stream_gets_the_kernels(void **state) {
    (void)state;
    session s;
    open_session(&s);
    backward(&s, 3);
    const int replays = driver->replays, kernels = driver->kernels;
    driver->caller_captures = true;
    backward(&s, 2);
    driver->caller_captures = false;
    assert_int_equal(driver->replays, replays);
    assert_int_equal(driver->kernels, kernels + 2 * (KERNELS + 1));
    close_session(&s);
}

/* More calls in turn than there is room for: those that are kept stay, and no other is recorded in vain. */
static void recordings_are_bounded(void **state) {
    (void)state;
    enum { CALLS = 500, ROUNDS = 6 };
    session s;
    open_session(&s);
    for (int i = 0; i < CALLS * ROUNDS; i++) backward_at(&s, i % CALLS);
    assert_in_range(driver->graphs, 100, 128);
    assert_int_equal(driver->recordings, driver->graphs);
    assert_true(driver->replays >= (ROUNDS - 2) * 100);
    /* Once the old ones have rested for long, new ones take their places. */
    for (int i = 0; i < 5000; i++) backward_at(&s, 100000 + i);
    const int before = driver->recordings;
    for (int i = 0; i < 3 * 20; i++) backward_at(&s, 200000 + i % 20);
    assert_true(driver->recordings >= before + 15);
    assert_in_range(driver->graphs, 100, 128);
    close_session(&s);
}

/* What cannot be recorded goes kernel by kernel, and is not tried again and again. */
static void what_cannot_be_recorded_is_launched(void **state) {
    (void)state;
    session s;
    open_session(&s);
    driver->record_result = 2; /* out of memory */
    backward(&s, 10);
    driver->record_result = 0;
    assert_int_equal(driver->recordings, 1);
    assert_int_equal(driver->replays, 0);
    assert_int_equal(driver->kernels, 10 * (KERNELS + 1));
    close_session(&s);
}

static void recording_can_be_switched_off(void **state) {
    (void)state;
    session s;
    setenv("EPIGRAD_CUDA_GRAPHS", "off", 1);
    open_session(&s);
    unsetenv("EPIGRAD_CUDA_GRAPHS");
    backward(&s, 5);
    assert_int_equal(driver->recordings, 0);
    assert_int_equal(driver->kernels, 5 * (KERNELS + 1));
    close_session(&s);
}

/* A call that is made again and again stays, whatever else comes and goes. */
static void a_call_in_use_is_not_displaced(void **state) {
    (void)state;
    session s;
    open_session(&s);
    backward(&s, 2);
    for (int i = 0; i < 12000; i++) {
        backward_at(&s, 1 + i / 2); /* twice each: seen, and recorded where there is room */
        const int replays = driver->replays;
        backward(&s, 1);
        assert_int_equal(driver->replays, replays + 1);
    }
    close_session(&s);
}

/* Its own, not those of the call that went kernel by kernel before it. */
static void a_replayed_call_is_known_by_its_kernels(void **state) {
    (void)state;
    session s;
    open_session(&s);
    backward(&s, 3);
    assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    backward(&s, 1);
    driver->sync_result = 700; /* an illegal address */
    assert_status(eg_sync(s.context), EG_ERR_DEVICE);
    assert_non_null(strstr(eg_last_error(), "act_grad_bf16, "));
    driver->sync_result = 0;
    close_session(&s);
}

static void nothing_is_left_behind(void **state) {
    (void)state;
    session s;
    open_session(&s);
    close_session(&s);
    const int pieces = driver->pieces, captures = driver->captures;
    open_session(&s);
    eg_packed *packed = NULL;
    assert_ok(eg_pack_b(s.context, &s.layer, &(eg_matrix){.data = s.memory[1]}, &packed));
    s.backward.workspace = (eg_workspace){.data = NULL}; /* the context's own */
    backward(&s, 5);
    eg_packed_free(s.context, packed);
    close_session(&s);
    assert_int_equal(driver->pieces, pieces);
    assert_int_equal(driver->captures, captures);
}

/* ---- Beside the products ------------------------------------------------------------------------ */

/* The sum of d_bias begins after the pass that makes its summands, and the call ends after it; where nothing
 * comes between them, they stand in one line. */
static void a_sum_beside_the_products_is_waited_for(void **state) {
    (void)state;
    session s;
    setenv("EPIGRAD_CUDA_GRAPHS", "off", 1);
    open_session(&s);
    unsetenv("EPIGRAD_CUDA_GRAPHS");
    driver->waits = 0;
    backward(&s, 3);
    assert_int_equal(driver->waits, 3 * 2);
    s.backward.d_a.data = s.backward.d_b.data = NULL;
    backward(&s, 3);
    assert_int_equal(driver->waits, 3 * 2);
    close_session(&s);
}

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
 * too many to gain from. The first product's counts are cleared before it, those of others by it. */
static void the_last_tiles_are_cut_where_they_leave_clusters_idle(void **state) {
    (void)state;
    session s;
    open_session(&s);
    const eg_backward_args args = far_away();
    s.layer.m = 8192, s.layer.k = 4096, s.layer.n = 14336;
    assert_cuts(&s, &args, (const int[]){10, 50, 38}, 1);
    s.layer.m = s.layer.k = s.layer.n = 4096;
    assert_cuts(&s, &args, (const int[]){0, 0, 0}, 0);
    s.layer.m = 8192, s.layer.k = 768, s.layer.n = 3072;
    assert_cuts(&s, &args, (const int[]){0, 0, 36}, 0);
    s.layer.m = 2048;
    assert_cuts(&s, &args, (const int[]){0, 0, 0}, 0);
    close_session(&s);
}

/* ---- The pass in two kernels -------------------------------------------------------------------- */

/* Whether d_a's kernel makes the last rows of grad_pre itself. */
static bool shares_the_pass(const session *s, const eg_layer *layer, const eg_backward_args *args) {
    char text[4096];
    assert_ok(eg_backward_plan(s->context, layer, args, text, sizeof text));
    return strstr(text, "hopper_bf16_pass_rc_128x256") != NULL;
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

/* ---- What a call may not do --------------------------------------------------------------------- */

static void a_call_neither_allocates_nor_waits(void **state) {
    (void)state;
    session s;
    open_session(&s);
    const int allocations = driver->allocations, waits = driver->synchronisations;
    for (int i = 0; i < 3; i++) {
        backward(&s, 1);
        assert_ok(eg_forward(s.context, &s.layer, &s.forward));
    }
    assert_int_equal(driver->allocations, allocations);
    assert_int_equal(driver->synchronisations, waits);
    close_session(&s);
}

/* ---- The peak ----------------------------------------------------------------------------------- */

static void the_peak_is_of_what_a_device_has(void **state) {
    static const char *const kernels[] = {[EG_F32] = "eg_peak_f32",
                                          [EG_F64] = "eg_peak_f64",
                                          [EG_F16] = "eg_peak_wgmma_f16",
                                          [EG_BF16] = "eg_peak_wgmma_bf16"};
    (void)state;
    session s;
    open_session(&s);
    for (eg_dtype dtype = EG_F32; dtype <= EG_BF16; dtype++) {
        double gflops = 0;
        assert_ok(eg_measure_peak(s.context, dtype, &gflops));
        assert_true(gflops > 0);
        assert_string_equal(driver->last_kernel, kernels[dtype]);
    }
    close_session(&s);
}

/* ---- Failures
 * ------------------------------------------------------------------------------------------------ */

enum { ILLEGAL_ADDRESS = 700, NO_DEVICE = 100 };

static void a_lost_context_refuses_politely(void **state) {
    (void)state;
    session s;
    open_session(&s);
    backward(&s, 3);
    driver->sync_result = ILLEGAL_ADDRESS;
    assert_status(eg_sync(s.context), EG_ERR_DEVICE);
    assert_non_null(strstr(eg_last_error(), "act_grad_bf16, "));
    assert_non_null(strstr(eg_last_error(), "column_sum_f32: "));
    assert_non_null(strstr(eg_last_error(), "CUDA_ERROR_ILLEGAL_ADDRESS"));
    const int kernels = driver->kernels, replays = driver->replays, allocations = driver->allocations;
    void *memory;
    assert_status(eg_backward(s.context, &s.layer, &s.backward), EG_ERR_DEVICE);
    assert_non_null(strstr(eg_last_error(), "the CUDA context is lost since act_grad_bf16, "));
    assert_status(eg_forward(s.context, &s.layer, &s.forward), EG_ERR_DEVICE);
    assert_status(eg_sync(s.context), EG_ERR_DEVICE);
    assert_status(eg_alloc(s.context, 100, &memory), EG_ERR_DEVICE);
    assert_status(eg_upload(s.context, s.memory[0], 0, &s, sizeof s), EG_ERR_DEVICE);
    assert_int_equal(driver->kernels, kernels);
    assert_int_equal(driver->replays, replays);
    assert_int_equal(driver->allocations, allocations);
    driver->sync_result = 0;
    close_session(&s);
}

/* EPIGRAD_CUDA_CHECK waits for every kernel, so the call itself fails and names the one. */
static void a_checked_call_names_the_kernel(void **state) {
    (void)state;
    session s;
    setenv("EPIGRAD_CUDA_CHECK", "1", 1);
    open_session(&s);
    unsetenv("EPIGRAD_CUDA_CHECK");
    backward(&s, 3);
    assert_int_equal(driver->recordings, 0);
    driver->sync_result = ILLEGAL_ADDRESS;
    assert_status(eg_backward(s.context, &s.layer, &s.backward), EG_ERR_DEVICE);
    assert_int_equal(strncmp(eg_last_error(), "act_grad_bf16: ", 15), 0);
    driver->sync_result = 0;
    close_session(&s);
}

static void a_device_too_old_is_named(void **state) {
    (void)state;
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA};
    eg_context *context = NULL;
    setenv("FAKE_CUDA_MAJOR", "7", 1);
    assert_status(eg_open(&info, &context), EG_ERR_UNAVAILABLE);
    unsetenv("FAKE_CUDA_MAJOR");
    assert_null(context);
    assert_string_equal(eg_last_error(), "no device 0 has compute capability 7.0; expected 8.0 or more");
}

static void a_device_that_is_not_there_is_named(void **state) {
    (void)state;
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .device = 3};
    eg_context *context = NULL;
    assert_status(eg_open(&info, &context), EG_ERR_UNAVAILABLE);
    assert_string_equal(eg_last_error(), "info.device is 3; this machine has 1 CUDA devices");
}

/* `test_host unavailable WORDS`: in a process of its own, as a driver is started once. */
static int unavailable(const char *words) {
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA};
    eg_context *context = NULL;
    const eg_status status = eg_open(&info, &context);
    printf("%s: %s\n", eg_status_name(status), eg_last_error());
    return status == EG_ERR_UNAVAILABLE && strstr(eg_last_error(), words) != NULL ? 0 : 1;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_made_before_is_one_launch),
        cmocka_unit_test(what_is_new_is_not_replayed),
        cmocka_unit_test(packs_are_known_by_what_they_hold),
        cmocka_unit_test(a_captured_stream_gets_the_kernels),
        cmocka_unit_test(recordings_are_bounded),
        cmocka_unit_test(what_cannot_be_recorded_is_launched),
        cmocka_unit_test(recording_can_be_switched_off),
        cmocka_unit_test(a_call_in_use_is_not_displaced),
        cmocka_unit_test(a_replayed_call_is_known_by_its_kernels),
        cmocka_unit_test(nothing_is_left_behind),
        cmocka_unit_test(a_sum_beside_the_products_is_waited_for),
        cmocka_unit_test(the_workspace_is_bounded),
        cmocka_unit_test(sums_are_made_in_portions),
        cmocka_unit_test(the_copy_engine_takes_what_lies_on_16_bytes),
        cmocka_unit_test(strict_takes_no_matrix_unit),
        cmocka_unit_test(grad_pre_is_there_once),
        cmocka_unit_test(the_last_tiles_are_cut_where_they_leave_clusters_idle),
        cmocka_unit_test(large_layers_share_the_pass),
        cmocka_unit_test(empty_layers_share_no_pass),
        cmocka_unit_test(the_peak_is_of_what_a_device_has),
        cmocka_unit_test(a_call_neither_allocates_nor_waits),
        cmocka_unit_test(a_lost_context_refuses_politely),
        cmocka_unit_test(a_checked_call_names_the_kernel),
        cmocka_unit_test(a_device_too_old_is_named),
        cmocka_unit_test(a_device_that_is_not_there_is_named),
    };
    if (argc == 3 && strcmp(argv[1], "unavailable") == 0) return unavailable(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
