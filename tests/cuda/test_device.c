/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend on a device: recorded and captured calls give the bits of the first one, on memory and
 * streams of the caller's own, from several threads; the ends of groups, right and wrong; and a kernel that
 * fails.
 *
 *     test_device [lost | PATTERN]     `lost`: in a process of its own, whose CUDA context does not outlive
 * it; a pattern of names: those alone */
#define _DEFAULT_SOURCE /* setenv */
#include <pthread.h>

#include "cuda/driver.h"
#include "support.h"

enum { M = 700, K = 136, N = 264, OPERANDS = 8, WORKERS = 4, ROOM = 4 * M * N, WORKSPACE = 64 << 20 };

static const eg_cuda_driver *cuda;

/* A backward call with all of its operands in device memory of the driver's. */
typedef struct session {
    eg_context *context;
    CUstream stream;
    eg_layer layer;
    eg_backward_args args;
    CUdeviceptr memory[OPERANDS], workspace;
    unsigned char *bits; /* d_a, d_b, d_bias */
} session;

static void *address(CUdeviceptr memory) { return (void *)(uintptr_t)memory; }

/* 0 where it went well: threads cannot use cmocka. */
static int fill(session *s, int operand, unsigned seed) {
    static const int poison = 0x7f;
    const bool output = operand >= 5;
    unsigned char *bytes = need_memory(ROOM);
    memset(bytes, poison, ROOM);
    for (int i = 0; !output && i < ROOM / 2; i++) {
        seed = seed * 1664525U + 1013904223U;
        /* bf16, from -1 to 1 */
        const float x = (float)(int)(seed >> 8 & 0xffff) / 32768.0F - 1.0F;
        eg_convert(bytes + (size_t)i * 2, EG_BF16, &x, EG_F32, 1);
    }
    const eg_status status = eg_upload(s->context, address(s->memory[operand]), 0, bytes, ROOM);
    free(bytes);
    return status != EG_OK;
}

static int take_memory(session *s) {
    int failures = 0;
    for (int i = 0; i < OPERANDS; i++) {
        failures += cuda->cuMemAlloc(&s->memory[i], ROOM) != CUDA_SUCCESS;
        failures += fill(s, i, (unsigned)i + 1);
    }
    return failures + (cuda->cuMemAlloc(&s->workspace, WORKSPACE) != CUDA_SUCCESS);
}

/* `kernel`: the row of the kernel table to take, or NULL. */
static int open_session_on(session *s, CUstream stream, const char *kernel) {
    const eg_open_info info = {
        .size = sizeof info, .backend = EG_BACKEND_CUDA, .native_queue = stream, .kernel = kernel};
    *s = (session){.stream = stream, .layer = {.size = sizeof s->layer, .m = M, .k = K, .n = N, .batch = 1}};
    s->layer.dtype = EG_BF16;
    s->layer.activation = EG_ACT_GELU;
    s->bits = need_memory((size_t)3 * ROOM);
    if (eg_open(&info, &s->context) != EG_OK || take_memory(s) != 0) return 1;
    s->args = (eg_backward_args){.size = sizeof s->args,
                                 .a = {.data = address(s->memory[0])},
                                 .b = {.data = address(s->memory[1])},
                                 .bias = {.data = address(s->memory[2])},
                                 .grad = {.data = address(s->memory[3])},
                                 .d_a = {.data = address(s->memory[5])},
                                 .d_b = {.data = address(s->memory[6])},
                                 .d_bias = {.data = address(s->memory[7])},
                                 .workspace = {address(s->workspace), 0, WORKSPACE}};
    return 0;
}

static int open_session(session *s, CUstream stream) { return open_session_on(s, stream, NULL); }

static void close_session(session *s) {
    eg_sync(s->context);
    for (int i = 0; i < OPERANDS; i++) cuda->cuMemFree(s->memory[i]);
    cuda->cuMemFree(s->workspace);
    eg_close(s->context);
    free(s->bits);
}

static void set_source(session *s, eg_source source) {
    s->args.source = source;
    s->args.pre.data = source == EG_SOURCE_PRE ? address(s->memory[4]) : NULL;
}

/* Poisons the outputs, so that what is compared was written by the call. */
static int poison_outputs(session *s) { return fill(s, 5, 0) + fill(s, 6, 0) + fill(s, 7, 0); }

static int read_outputs(session *s, unsigned char *bits) {
    int failures = 0;
    for (int i = 0; i < 3; i++)
        failures +=
            eg_download(s->context, bits + (size_t)i * ROOM, address(s->memory[5 + i]), 0, ROOM) != EG_OK;
    return failures;
}

/* The first call goes kernel by kernel, the second is recorded, the others replay it. */
static int calls_that_differ(session *s, eg_source source) {
    unsigned char *bits = need_memory((size_t)3 * ROOM);
    int failures = 0;
    set_source(s, source);
    for (int call = 0; call < 5; call++) {
        failures += poison_outputs(s) + (eg_backward(s->context, &s->layer, &s->args) != EG_OK);
        failures += read_outputs(s, call == 0 ? s->bits : bits);
        if (call > 0) failures += memcmp(s->bits, bits, (size_t)3 * ROOM) != 0;
    }
    free(bits);
    return failures;
}

/* Each call has its results and its workspace elsewhere: the second makes a graph, whose nodes the others
 * change. cublasLt's cannot be: cuda_device_alone has none. */
static int moved_calls_that_differ(session *s, eg_source source) {
    enum { CALLS = 6, STEP = 256, COMPARED = ROOM - CALLS * STEP };
    unsigned char *bits = need_memory((size_t)3 * ROOM);
    const eg_backward_args args = s->args;
    int failures = 0;
    set_source(s, source);
    for (int call = 0; call < CALLS; call++) {
        const size_t moved = (size_t)call * STEP;
        s->args.d_a.offset = s->args.d_b.offset = s->args.d_bias.offset = moved;
        s->args.workspace.offset = moved, s->args.workspace.bytes = WORKSPACE - moved;
        failures += poison_outputs(s) + (eg_backward(s->context, &s->layer, &s->args) != EG_OK);
        failures += read_outputs(s, call == 0 ? s->bits : bits);
        for (size_t i = 0; i < 3 && call > 0; i++)
            failures += memcmp(s->bits + i * ROOM, bits + i * ROOM + moved, COMPARED) != 0;
    }
    s->args = args;
    free(bits);
    return failures;
}

static void changed_graphs_give_the_same_bits(void **state) {
    (void)state;
    static const int64_t rows[] = {M, 64, 7};
    session s;
    assert_int_equal(open_session(&s, NULL), 0);
    for (size_t i = 0; i < LENGTH(rows); i++) {
        s.layer.m = rows[i];
        assert_int_equal(moved_calls_that_differ(&s, EG_SOURCE_PRE), 0);
        assert_int_equal(moved_calls_that_differ(&s, EG_SOURCE_RECOMPUTE), 0);
    }
    close_session(&s);
}

static void replays_give_the_same_bits(void **state) {
    (void)state;
    session s;
    assert_int_equal(open_session(&s, NULL), 0);
    assert_int_equal(calls_that_differ(&s, EG_SOURCE_PRE), 0);
    assert_int_equal(calls_that_differ(&s, EG_SOURCE_RECOMPUTE), 0);
    close_session(&s);
}

/* Capture in the global mode fails on any allocation and on any wait. */
static void a_caller_captures(void **state) {
    (void)state;
    session s;
    CUstream stream;
    CUgraph graph;
    CUgraphExec made;
    assert_int_equal(cuda->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    assert_int_equal(open_session(&s, stream), 0);
    assert_int_equal(calls_that_differ(&s, EG_SOURCE_RECOMPUTE), 0);
    assert_int_equal(cuda->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    for (int i = 0; i < 2; i++) assert_ok(eg_backward(s.context, &s.layer, &s.args));
    assert_int_equal(cuda->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    assert_int_equal(cuda->cuGraphInstantiate(&made, graph, 0), CUDA_SUCCESS);
    unsigned char *bits = need_memory((size_t)3 * ROOM);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(poison_outputs(&s), 0);
        assert_int_equal(cuda->cuGraphLaunch(made, stream), CUDA_SUCCESS);
        assert_int_equal(read_outputs(&s, bits), 0);
        assert_memory_equal(bits, s.bits, (size_t)3 * ROOM);
    }
    free(bits);
    cuda->cuGraphExecDestroy(made);
    cuda->cuGraphDestroy(graph);
    close_session(&s);
    cuda->cuStreamDestroy(stream);
}

/* ---- The ends of groups ---------------------------------------------------------------------------------
 */

enum { GROUPS = 5 };

static void make_grouped(session *s, void **ends) {
    s->layer.groups = GROUPS, s->layer.batch = 0;
    s->args.b.batch_stride = s->args.d_b.batch_stride = K * N;
    assert_ok(eg_alloc(s->context, GROUPS * sizeof(int32_t), ends));
    s->args.offsets.data = *ends;
}

static void set_ends(session *s, const int32_t *ends) {
    assert_ok(eg_upload(s->context, s->args.offsets.data, 0, ends, GROUPS * sizeof *ends));
}

/* The plan and the graph of a call are those of its addresses: what is there is read when it runs. */
static void ends_may_change_under_a_graph(void **state) {
    static const int32_t routed[][GROUPS] = {{100, 100, 350, 612, M},
                                             {0, 300, 301, 640, 690},
                                             {M, M, M, M, M},
                                             {0, 0, 0, 0, 0},
                                             {128, 256, 384, 512, 640}};
    (void)state;
    session s, other;
    void *ends, *others;
    unsigned char *bits = need_memory((size_t)3 * ROOM);
    assert_int_equal(open_session(&s, NULL), 0);
    setenv("EPIGRAD_CUDA_GRAPHS", "off", 1);
    assert_int_equal(open_session(&other, NULL), 0);
    unsetenv("EPIGRAD_CUDA_GRAPHS");
    make_grouped(&s, &ends), make_grouped(&other, &others);
    for (size_t i = 0; i < 3 * LENGTH(routed); i++) {
        set_ends(&s, routed[i % LENGTH(routed)]), set_ends(&other, routed[i % LENGTH(routed)]);
        assert_int_equal(poison_outputs(&s) + poison_outputs(&other), 0);
        assert_ok(eg_backward(s.context, &s.layer, &s.args));
        assert_ok(eg_backward(other.context, &other.layer, &other.args));
        assert_int_equal(read_outputs(&s, s.bits) + read_outputs(&other, bits), 0);
        assert_memory_equal(s.bits, bits, (size_t)3 * ROOM);
    }
    eg_free(s.context, ends), eg_free(other.context, others);
    close_session(&s), close_session(&other);
    free(bits);
}

static void assert_poison(const unsigned char *bits, size_t from) {
    for (size_t i = from; i < ROOM; i++) assert_int_equal(bits[i], 0x7f);
}

/* They are said once, by the first call that waits; nothing is written outside, and the next call is right.
 */
static void wrong_ends_are_reported(void **state) {
    static const int32_t right[GROUPS] = {100, 100, 350, 612, M};
    static const int32_t wrong[][GROUPS] = {{100, 99, 350, 612, M},
                                            {100, 200, 300, 400, M + 1},
                                            {-1, 200, 300, 400, M},
                                            {INT32_MAX, INT32_MIN, 0, INT32_MAX, INT32_MAX},
                                            {INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN}};
    (void)state;
    session s;
    void *ends;
    unsigned char *bits = need_memory((size_t)3 * ROOM);
    assert_int_equal(open_session(&s, NULL), 0);
    make_grouped(&s, &ends);
    set_ends(&s, right);
    assert_int_equal(poison_outputs(&s), 0);
    assert_ok(eg_backward(s.context, &s.layer, &s.args));
    assert_int_equal(read_outputs(&s, s.bits), 0);
    for (size_t i = 0; i < 2 * LENGTH(wrong); i++) {
        set_ends(&s, wrong[i % LENGTH(wrong)]);
        assert_int_equal(poison_outputs(&s), 0);
        assert_ok(eg_backward(s.context, &s.layer, &s.args));
        assert_status(eg_sync(s.context), EG_ERR_ARGUMENT);
        assert_non_null(strstr(eg_last_error(), "offsets"));
        assert_ok(eg_sync(s.context));
        assert_int_equal(read_outputs(&s, bits), 0);
        assert_poison(bits, (size_t)M * K * 2);
        assert_poison(bits + ROOM, (size_t)GROUPS * K * N * 2);
        assert_poison(bits + (size_t)2 * ROOM, (size_t)GROUPS * N * 2);
        set_ends(&s, right);
        assert_int_equal(poison_outputs(&s), 0);
        assert_ok(eg_backward(s.context, &s.layer, &s.args));
        assert_int_equal(read_outputs(&s, bits), 0);
        assert_memory_equal(bits, s.bits, (size_t)3 * ROOM);
    }
    eg_free(s.context, ends);
    close_session(&s);
    free(bits);
}

typedef struct worker {
    CUcontext context;
    session session;
    int failures;
} worker;

static void *work(void *arg) {
    worker *w = arg;
    w->failures = cuda->cuCtxPushCurrent(w->context) != CUDA_SUCCESS || open_session(&w->session, NULL) != 0;
    for (int i = 0; i < 5 && w->failures == 0; i++)
        w->failures = calls_that_differ(&w->session, EG_SOURCE_PRE);
    return NULL;
}

static void a_context_for_each_thread(void **state) {
    worker workers[WORKERS] = {0};
    pthread_t threads[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        workers[i].context = *state;
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(workers[i].failures, 0);
        assert_memory_equal(workers[i].session.bits, workers[0].session.bits, (size_t)3 * ROOM);
    }
    for (int i = 0; i < WORKERS; i++) close_session(&workers[i].session);
}

/* An operand that is no memory. */
static void a_kernel_fails(void **state) {
    (void)state;
    session s;
    assert_int_equal(open_session(&s, NULL), 0);
    set_source(&s, EG_SOURCE_PRE);
    s.args.grad.data = (void *)0x1000;
    /* The kernel may fail while its successors are being enqueued, or after. */
    const eg_status status = eg_backward(s.context, &s.layer, &s.args);
    if (status == EG_OK) {
        assert_status(eg_sync(s.context), EG_ERR_DEVICE);
    } else {
        assert_int_equal(status, EG_ERR_DEVICE);
    }
    assert_non_null(strstr(eg_last_error(), "act_grad_bf16"));
    assert_status(eg_backward(s.context, &s.layer, &s.args), EG_ERR_DEVICE);
    assert_non_null(strstr(eg_last_error(), "the CUDA context is lost since"));
    assert_status(eg_sync(s.context), EG_ERR_DEVICE);
    eg_close(s.context);
    free(s.bits);
}

/* The primary context, as the CUDA runtime and the frameworks use it; 77: there is no driver. */
static int start(CUcontext *context) {
    CUdevice device = 0;
    if (eg_cuda_driver_get(&cuda) != EG_OK) {
        printf("%s\n", eg_last_error());
        return 77;
    }
    return cuda->cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
           cuda->cuDevicePrimaryCtxRetain(context, device) != CUDA_SUCCESS ||
           cuda->cuCtxPushCurrent(*context) != CUDA_SUCCESS;
}

int main(int argc, char **argv) {
    CUcontext context = NULL;
    const int status = start(&context);
    if (status != 0) return status;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replays_give_the_same_bits),
        cmocka_unit_test(changed_graphs_give_the_same_bits),
        cmocka_unit_test(a_caller_captures),
        cmocka_unit_test(ends_may_change_under_a_graph),
        cmocka_unit_test(wrong_ends_are_reported),
        cmocka_unit_test_prestate(a_context_for_each_thread, context),
    };
    const struct CMUnitTest lost[] = {cmocka_unit_test(a_kernel_fails)};
    if (argc == 2 && strcmp(argv[1], "lost") == 0) return cmocka_run_group_tests(lost, NULL, NULL);
    if (argc == 2) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
