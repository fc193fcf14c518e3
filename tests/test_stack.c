/* SPDX-License-Identifier: Apache-2.0 */
/* Every kind of call on a thread whose stack is as small as the header allows. Below the stack lie pages that
 * may not be touched: a call that needs more crashes here. */
#include <pthread.h>
#include <sys/mman.h>

#include "check.h"
#include "fixture.h"

enum { STACK = 96 * 1024, GUARD = 4 << 20, ROOM = 8192 };

/* What is promised is the need of a library that is optimised, and whose accesses no sanitizer checks. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
enum { IS_AS_RELEASED = false };
#else
enum { IS_AS_RELEASED = true };
#endif

/* ---- A thread with a small stack ------------------------------------------------------------------ */

/* The stack is filled with this. The first other byte from below says how deep the calls went. */
enum { UNTOUCHED = 0xa5 };

static size_t depth_of(const unsigned char *stack) {
    size_t at = 0;
    while (at < STACK && stack[at] == UNTOUCHED) at++;
    return STACK - at;
}

/* Returns how deep the stack was in use. */
static size_t run(void *(*calls)(void *), void *arg) {
    pthread_attr_t attributes;
    pthread_t thread;
    unsigned char *memory =
        mmap(NULL, GUARD + STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(memory != MAP_FAILED);
    assert_int_equal(mprotect(memory + GUARD, STACK, PROT_READ | PROT_WRITE), 0);
    memset(memory + GUARD, UNTOUCHED, STACK);
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstack(&attributes, memory + GUARD, STACK), 0);
    assert_int_equal(pthread_create(&thread, &attributes, calls, arg), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(pthread_attr_destroy(&attributes), 0);
    const size_t depth = depth_of(memory + GUARD);
    assert_int_equal(munmap(memory, GUARD + STACK), 0);
    return depth;
}

/* ---- A layer in every way: plans, calls, calls in chunks ------------------------------------------ */

static void call_forward(eg_context *context, const fixture *f) {
    char text[ROOM];
    size_t bytes;
    assert_ok(eg_forward_workspace(context, &f->layer, &f->forward, &bytes));
    assert_ok(eg_forward_plan(context, &f->layer, &f->forward, text, sizeof text));
    assert_ok(eg_forward(context, &f->layer, &f->forward));
}

static void call_backward(eg_context *context, const fixture *f, const eg_backward_args *args) {
    char text[ROOM];
    size_t bytes;
    assert_ok(eg_backward_workspace(context, &f->layer, args, &bytes));
    assert_ok(eg_backward_plan(context, &f->layer, args, text, sizeof text));
    assert_ok(eg_backward(context, &f->layer, args));
}

/* A limit below what the call can do with is refused, which takes stack, too. */
static void call_in_chunks(eg_context *context, const fixture *f) {
    for (size_t limit = 1; limit <= 1 << 16; limit *= 4) {
        eg_backward_args args = f->backward;
        size_t bytes;
        args.workspace_limit = limit;
        if (eg_backward_workspace(context, &f->layer, &args, &bytes) == EG_OK)
            call_backward(context, f, &args);
    }
}

static void *call_fixture(void *arg) {
    const fixture *f = arg;
    eg_context *context = NULL;
    assert_ok(eg_open(&(eg_open_info){.size = sizeof(eg_open_info), .threads = 2}, &context));
    call_forward(context, f);
    call_backward(context, f, &f->backward);
    call_in_chunks(context, f);
    eg_close(context);
    return NULL;
}

static void test_layers(void **state) {
    (void)state;
    static const eg_dtype dtypes[] = {EG_F32, EG_F64, EG_F16, EG_BF16};
    size_t most = 0;
    if (!IS_AS_RELEASED) skip();
    for (int i = 0; i < 8; i++) {
        fixture f;
        eg_layer layer = small_layer();
        layer.dtype = dtypes[i % 4];
        if (i >= 4) layer.m = 130, layer.k = 300, layer.n = 70;
        fixture_make(&f, layer);
        for (int source = 0; source < EG_SOURCE_Y; source++) {
            fixture_set_source(&f, (eg_source)source);
            const size_t depth = run(call_fixture, &f);
            if (depth > most) most = depth;
        }
        fixture_free(&f);
    }
    print_message("%zu of %d bytes of stack in use\n", most, STACK);
}

/* ---- Every kind of call, by every kernel ---------------------------------------------------------- */

enum { EVERY = 3 }; /* of the cases */

typedef struct some_cases {
    const char *kernel; /* NULL: the context's own choice */
    int count;
    check_case *of; /* made outside of the thread: that takes stack of its own */
} some_cases;

static void *call_cases(void *arg) {
    const some_cases *cases = arg;
    eg_context *context = NULL;
    const eg_open_info info = {.size = sizeof info, .threads = 2, .kernel = cases->kernel};
    assert_ok(eg_open(&info, &context));
    for (int i = 0; i < cases->count; i++) {
        check_report report;
        assert_int_not_equal(check_run(context, &cases->of[i], &report), CHECK_FAILED);
    }
    eg_close(context);
    return NULL;
}

static void run_cases(const char *kernel, eg_dtype compute, size_t *most) {
    some_cases cases = {kernel, check_round(compute) / EVERY, NULL};
    cases.of = malloc((size_t)cases.count * sizeof *cases.of);
    assert_non_null(cases.of);
    for (int i = 0; i < cases.count; i++) check_make(compute, EVERY * i, &cases.of[i]);
    const size_t depth = run(call_cases, &cases);
    if (depth > *most) *most = depth;
    free(cases.of);
}

static void test_kernels(void **state) {
    (void)state;
    eg_context *table = NULL;
    eg_kernel_info info = {.size = sizeof info};
    size_t most = 0;
    if (!IS_AS_RELEASED) skip();
    run_cases(NULL, EG_F32, &most);
    run_cases(NULL, EG_F64, &most);
    assert_ok(eg_open(&(eg_open_info){.size = sizeof(eg_open_info)}, &table));
    for (int i = 0; eg_get_kernel_info(table, i, &info) == EG_OK; i++) {
        if (info.usable) run_cases(info.name, info.compute, &most);
    }
    eg_close(table);
    print_message("%zu of %d bytes of stack in use\n", most, STACK);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers), cmocka_unit_test(test_kernels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
