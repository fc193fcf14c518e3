/* SPDX-License-Identifier: Apache-2.0 */
/* The host's time for a call on CUDA: from eg_forward or eg_backward being called to its return, the
 * workspace given.
 *
 *     host_time [MxKxN ...]
 *
 * With EPIGRAD_CUDA_GRAPHS=off no call is recorded, and every one goes kernel by kernel. Medians in
 * microseconds, bf16 and GELU:
 *
 *   plan        validation and plan alone (eg_backward_workspace, eg_forward_workspace)
 *   idle        the same call again, the stream empty
 *   backlogged  the same, behind others that wait
 *   new         operands at addresses never seen before
 *
 * A new call changes the nodes of a graph, or all of it, where cublasLt makes a product: EPIGRAD_CUBLASLT=off
 * for none. `fwd` is the forward call, with pre. */
#define _DEFAULT_SOURCE
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "epigrad/epigrad.h"

enum { CALLS = 400, STEP = 256, BUFFERS = 8 };

typedef struct bench {
    eg_context *context;
    eg_layer layer;
    eg_backward_args args;
    eg_forward_args forward;
    void *memory[BUFFERS + 1]; /* the workspace last */
} bench;

static void need(eg_status status) {
    if (status == EG_OK) return;
    fprintf(stderr, "%s: %s\n", eg_status_name(status), eg_last_error());
    exit(EXIT_FAILURE);
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_value(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void open_bench(bench *b, int64_t m, int64_t k, int64_t n, eg_source source) {
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA};
    *b = (bench){.layer = {.size = sizeof b->layer, .m = m, .k = k, .n = n, .batch = 1}};
    b->layer.dtype = EG_BF16;
    b->layer.activation = EG_ACT_GELU;
    need(eg_open(&info, &b->context));
    const int64_t counts[BUFFERS] = {m * k, k * n, n, m * n, m * n, m * k, k * n, n};
    for (int i = 0; i < BUFFERS; i++) /* with room to move in */
        need(eg_alloc(b->context, 2 * (size_t)counts[i] + CALLS * STEP, &b->memory[i]));
    b->args = (eg_backward_args){.size = sizeof b->args,
                                 .a = {.data = b->memory[0]},
                                 .b = {.data = b->memory[1]},
                                 .bias = {.data = b->memory[2]},
                                 .grad = {.data = b->memory[3]},
                                 .source = source,
                                 .d_a = {.data = b->memory[5]},
                                 .d_b = {.data = b->memory[6]},
                                 .d_bias = {.data = b->memory[7]}};
    if (source == EG_SOURCE_PRE) b->args.pre.data = b->memory[4];
    b->forward = (eg_forward_args){.size = sizeof b->forward,
                                   .a = b->args.a,
                                   .b = b->args.b,
                                   .bias = b->args.bias,
                                   .y = {.data = b->memory[3]},
                                   .pre = {.data = b->memory[4]}};
    size_t bytes = 0, forward_bytes = 0;
    need(eg_backward_workspace(b->context, &b->layer, &b->args, &bytes));
    need(eg_forward_workspace(b->context, &b->layer, &b->forward, &forward_bytes));
    if (forward_bytes > bytes) bytes = forward_bytes;
    need(eg_alloc(b->context, bytes, &b->memory[BUFFERS]));
    b->args.workspace = b->forward.workspace = (eg_workspace){.data = b->memory[BUFFERS], .bytes = bytes};
}

static void close_bench(bench *b) {
    for (int i = 0; i <= BUFFERS; i++) eg_free(b->context, b->memory[i]);
    eg_close(b->context);
}

static void plan_only(bench *b, int index) {
    size_t bytes;
    (void)index;
    need(eg_backward_workspace(b->context, &b->layer, &b->args, &bytes));
}

static void again(bench *b, int index) {
    (void)index;
    need(eg_backward(b->context, &b->layer, &b->args));
}

static void elsewhere(bench *b, int index) {
    eg_backward_args args = b->args;
    args.grad.offset = (size_t)index * STEP;
    need(eg_backward(b->context, &b->layer, &args));
}

static void plan_forward(bench *b, int index) {
    size_t bytes;
    (void)index;
    need(eg_forward_workspace(b->context, &b->layer, &b->forward, &bytes));
}

static void forward_again(bench *b, int index) {
    (void)index;
    need(eg_forward(b->context, &b->layer, &b->forward));
}

static void forward_elsewhere(bench *b, int index) {
    eg_forward_args args = b->forward;
    args.y.offset = (size_t)index * STEP;
    need(eg_forward(b->context, &b->layer, &args));
}

static double time_of(bench *b, void (*call)(bench *b, int index), bool idle) {
    static double times[CALLS];
    for (int i = 0; i < CALLS; i++) {
        const double begin = now_us();
        call(b, i);
        times[i] = now_us() - begin;
        if (idle) need(eg_sync(b->context));
    }
    need(eg_sync(b->context));
    qsort(times, CALLS, sizeof *times, by_value);
    return times[CALLS / 2];
}

static void print(const char *shape, const char *what, double plan, double idle, double backlogged,
                  double other) {
    printf("| %-14s | %-9s | %5.2f | %5.2f | %10.2f | %5.2f |\n", shape, what, plan, idle, backlogged, other);
    fflush(stdout);
}

static void measure(const char *shape, eg_source source) {
    long long m, k, n;
    bench b;
    if (sscanf(shape, "%lldx%lldx%lld", &m, &k, &n) != 3 || m < 1 || k < 1 || n < 1) {
        fprintf(stderr, "\"%s\" is no shape; expected MxKxN\n", shape);
        exit(EXIT_FAILURE);
    }
    open_bench(&b, m, k, n, source);
    const double plan = time_of(&b, plan_only, false), idle = time_of(&b, again, true);
    print(shape, source == EG_SOURCE_PRE ? "pre" : "recompute", plan, idle, time_of(&b, again, false),
          time_of(&b, elsewhere, true));
    if (source == EG_SOURCE_PRE) {
        const double fwd_plan = time_of(&b, plan_forward, false), fwd_idle = time_of(&b, forward_again, true);
        print(shape, "fwd", fwd_plan, fwd_idle, time_of(&b, forward_again, false),
              time_of(&b, forward_elsewhere, true));
    }
    close_bench(&b);
}

int main(int argc, char **argv) {
    static char *usual[] = {"16x768x3072", "256x256x512", "2048x768x3072", "2048x2048x2048",
                            "4096x4096x4096"};
    char **shapes = argc > 1 ? argv + 1 : usual;
    const int count = argc > 1 ? argc - 1 : (int)(sizeof usual / sizeof *usual);
    printf("| M x K x N      | act' from | plan  | idle  | backlogged | new   |\n"
           "|----------------|-----------|-------|-------|------------|-------|\n");
    for (int i = 0; i < count; i++) {
        measure(shapes[i], EG_SOURCE_PRE);
        measure(shapes[i], EG_SOURCE_RECOMPUTE);
    }
    return EXIT_SUCCESS;
}
