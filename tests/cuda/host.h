/* SPDX-License-Identifier: Apache-2.0 */
/* A context over the driver that runs nothing (fake_driver.c), with a small layer's operands: for tests of
 * the host's side, which define _DEFAULT_SOURCE. */
#ifndef TESTS_CUDA_HOST_H
#define TESTS_CUDA_HOST_H

#include <dlfcn.h>

#include "fake_driver.h"
#include "support.h"

static fake_cuda *driver; /* the counts; since the last open */

enum { KERNELS = 3, ROWS = 4096, ELEMENTS = ROWS * 64 };

/* Addresses that nobody reads, far from each other. */
static inline void *place(int index) { return (void *)((uintptr_t)(index + 1) << 44); }
static inline eg_matrix dense(int index) { return (eg_matrix){.data = place(index)}; }

typedef struct session {
    eg_context *context;
    eg_layer layer;
    eg_forward_args forward;
    eg_backward_args backward;
    void *memory[10];
} session;

/* A layer whose forward call is one kernel and whose backward call is KERNELS and the sum of d_bias. */
static inline void open_session(session *s) {
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA};
    *s = (session){.layer = {.size = sizeof s->layer, .m = ROWS, .k = 64, .n = 64, .batch = 1}};
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
                                   .workspace = {s->memory[9], 0, 4 << 20}};
    s->backward = (eg_backward_args){.size = sizeof s->backward,
                                     .a = {.data = s->memory[0]},
                                     .b = {.data = s->memory[1]},
                                     .grad = {.data = s->memory[3]},
                                     .source = EG_SOURCE_PRE,
                                     .pre = {.data = s->memory[4]},
                                     .d_a = {.data = s->memory[5]},
                                     .d_b = {.data = s->memory[6]},
                                     .d_bias = {.data = s->memory[7]},
                                     .workspace = {s->memory[9], 0, 4 << 20}};
    driver->kernels = driver->replays = driver->recordings = 0;
}

static inline void close_session(session *s) {
    for (size_t i = 0; i < LENGTH(s->memory); i++) eg_free(s->context, s->memory[i]);
    eg_close(s->context);
    assert_int_equal(driver->graphs, 0);
    assert_int_equal(driver->streams, 0);
    assert_int_equal(driver->events, 0);
}

/* ---- Plans ---- */

static inline void assert_forward_by(session *s, const char *kernel) {
    char text[1024];
    assert_ok(eg_forward_plan(s->context, &s->layer, &s->forward, text, sizeof text));
    if (strstr(text, kernel) == NULL) fail_msg("%s is not in\n%s", kernel, text);
}

static inline bool is_backward_by(session *s, const char *kernel) {
    char text[2048];
    assert_ok(eg_backward_plan(s->context, &s->layer, &s->backward, text, sizeof text));
    return strstr(text, kernel) != NULL;
}

static inline bool is_forward_by(session *s, const char *kernel) {
    char text[1024];
    assert_ok(eg_forward_plan(s->context, &s->layer, &s->forward, text, sizeof text));
    return strstr(text, kernel) != NULL;
}

#endif
