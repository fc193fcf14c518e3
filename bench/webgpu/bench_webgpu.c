/* SPDX-License-Identifier: Apache-2.0 */
/* The backward pass against a straightforward one (reference.wgsl), in one run, turn about, on one adapter:
 *
 *     bench_webgpu [--kernel ROW] [--gated] [MxKxN ...]
 *
 * f32, GELU, recompute, d_a, d_b and d_bias; or a gated unit (SwiGLU), recompute, d_a, d_b and d_b_up. Each
 * time is the median of runs of about a tenth of a second; GFLOP/s count 6 M K N, gated 12 M K N. The results
 * of both are compared before anything is timed. Where the adapter is a processor the time that it spent is
 * told as well, which other programs disturb less. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "webgpu/device.h"

enum { ROUNDS = 7, PASSES = 6, ENTRIES = 7 };

extern const char eg_wgsl_reference_1[], eg_wgsl_reference_2[], eg_wgsl_reference_3[], eg_wgsl_reference_4[],
    eg_wgsl_reference_5[], eg_wgsl_reference_6[];

typedef struct bench {
    eg_context *context;
    eg_webgpu *gpu;
    bool gated;
    int64_t m, k, n;
    void *a, *b, *bias, *grad, *sizes;
    void *grad_pre, *d_a, *d_b, *d_bias;     /* of the reference */
    void *own_d_a, *own_d_b, *own_d_bias;    /* of the library */
    void *b_up, *d_up, *d_b_up, *own_d_b_up; /* of a gated unit */
    WGPUComputePipeline pipelines[PASSES];
} bench;

static void need(eg_status status) {
    if (status == EG_OK) return;
    printf("%s: %s\n", eg_status_name(status), eg_last_error());
    exit(EXIT_FAILURE);
}

static double seconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- Operands ----------------------------------------------------------------------------------- */

static void *filled(bench *x, int64_t count, float scale, uint32_t seed) {
    void *memory;
    float *host = malloc((size_t)count * sizeof *host);
    if (host == NULL) exit(EXIT_FAILURE);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        host[i] = scale * ((float)(seed >> 8) / 8388608.0F - 1.0F);
    }
    need(eg_alloc(x->context, (size_t)count * sizeof *host, &memory));
    need(eg_upload(x->context, memory, 0, host, (size_t)count * sizeof *host));
    free(host);
    return memory;
}

static void *empty(bench *x, int64_t count) {
    void *memory;
    need(eg_alloc(x->context, (size_t)count * sizeof(float), &memory));
    return memory;
}

static void make_operands(bench *x) {
    const uint32_t sizes[4] = {(uint32_t)x->m, (uint32_t)x->k, (uint32_t)x->n, 0};
    x->a = filled(x, x->m * x->k, 1, 1);
    x->b = filled(x, x->k * x->n, 1 / sqrtf((float)x->k), 2);
    x->bias = filled(x, x->n, 1, 3);
    x->grad = filled(x, x->m * x->n, 1, 4);
    need(eg_alloc(x->context, sizeof sizes, &x->sizes));
    need(eg_upload(x->context, x->sizes, 0, sizes, sizeof sizes));
    x->grad_pre = empty(x, x->m * x->n);
    x->d_a = empty(x, x->m * x->k), x->own_d_a = empty(x, x->m * x->k);
    x->d_b = empty(x, x->k * x->n), x->own_d_b = empty(x, x->k * x->n);
    x->d_bias = empty(x, x->n), x->own_d_bias = empty(x, x->n);
    if (!x->gated) return;
    x->b_up = filled(x, x->k * x->n, 1 / sqrtf((float)x->k), 5);
    x->d_up = empty(x, x->m * x->n);
    x->d_b_up = empty(x, x->k * x->n), x->own_d_b_up = empty(x, x->k * x->n);
}

static void free_operands(bench *x) {
    void *all[] = {x->a,    x->b,    x->bias,   x->grad,      x->sizes,   x->grad_pre,
                   x->d_a,  x->d_b,  x->d_bias, x->own_d_a,   x->own_d_b, x->own_d_bias,
                   x->b_up, x->d_up, x->d_b_up, x->own_d_b_up};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) eg_free(x->context, all[i]);
}

/* ---- The two ------------------------------------------------------------------------------------ */

/* Pass `pass` of reference.wgsl, with what is bound. */
static void run_pass(const bench *x, WGPUCommandEncoder encoder, int pass, int64_t across, int64_t down,
                     void *const bound[ENTRIES]) {
    eg_webgpu *gpu = x->gpu;
    WGPUBindGroupEntry entries[ENTRIES];
    size_t count = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        if (bound[i] == NULL) continue;
        entries[count++] =
            (WGPUBindGroupEntry){.binding = i, .buffer = bound[i], .size = gpu->api.BufferGetSize(bound[i])};
    }
    WGPUBindGroupLayout layout = gpu->api.ComputePipelineGetBindGroupLayout(x->pipelines[pass - 1], 0);
    WGPUBindGroup group = gpu->api.DeviceCreateBindGroup(
        gpu->device, &(WGPUBindGroupDescriptor){.layout = layout, .entryCount = count, .entries = entries});
    WGPUComputePassEncoder encoded = gpu->api.CommandEncoderBeginComputePass(encoder, NULL);
    gpu->api.ComputePassEncoderSetPipeline(encoded, x->pipelines[pass - 1]);
    gpu->api.ComputePassEncoderSetBindGroup(encoded, 0, group, 0, NULL);
    gpu->api.ComputePassEncoderDispatchWorkgroups(encoded, (uint32_t)across, (uint32_t)down, 1);
    gpu->api.ComputePassEncoderEnd(encoded);
    gpu->api.ComputePassEncoderRelease(encoded);
    gpu->api.BindGroupRelease(group);
    gpu->api.BindGroupLayoutRelease(layout);
}

#define BOUND(...)                                                                                           \
    (void *const[ENTRIES]) { x->sizes, __VA_ARGS__ }

static void run_plain(const bench *x, WGPUCommandEncoder encoder, int64_t m, int64_t k, int64_t n) {
    run_pass(x, encoder, 1, n, m, BOUND(x->a, x->b, x->bias, x->grad, x->grad_pre));
    run_pass(x, encoder, 2, k, m, BOUND(x->grad_pre, x->b, NULL, NULL, x->d_a));
    run_pass(x, encoder, 3, n, k, BOUND(x->a, x->grad_pre, NULL, NULL, x->d_b));
    run_pass(x, encoder, 4, (x->n + 255) / 256, 1, BOUND(x->grad_pre, NULL, NULL, NULL, x->d_bias));
}

static void run_gated(const bench *x, WGPUCommandEncoder encoder, int64_t m, int64_t k, int64_t n) {
    run_pass(x, encoder, 5, n, m, BOUND(x->a, x->b, x->b_up, x->grad, x->grad_pre, x->d_up));
    run_pass(x, encoder, 6, k, m, BOUND(x->grad_pre, x->b, x->d_up, x->b_up, x->d_a));
    run_pass(x, encoder, 3, n, k, BOUND(x->a, x->grad_pre, NULL, NULL, x->d_b));
    run_pass(x, encoder, 3, n, k, BOUND(x->a, x->d_up, NULL, NULL, x->d_b_up));
}

static void run_reference(bench *x) {
    eg_webgpu *gpu = x->gpu;
    const int64_t m = (x->m + 15) / 16, k = (x->k + 15) / 16, n = (x->n + 15) / 16;
    WGPUCommandEncoder encoder = gpu->api.DeviceCreateCommandEncoder(gpu->device, NULL);
    (x->gated ? run_gated : run_plain)(x, encoder, m, k, n);
    WGPUCommandBuffer commands = gpu->api.CommandEncoderFinish(encoder, NULL);
    gpu->api.CommandEncoderRelease(encoder);
    gpu->api.QueueSubmit(gpu->queue, 1, &commands);
    gpu->api.CommandBufferRelease(commands);
}

static eg_layer layer_of(const bench *x) {
    return eg_layer_of(x->m, x->k, x->n, x->gated ? EG_ACT_SILU : EG_ACT_GELU);
}

static eg_backward_args args_of(const bench *x) {
    eg_backward_args args = eg_backward_of(eg_row_major(x->a), eg_row_major(x->b),
                                           eg_elements(x->gated ? NULL : x->bias), eg_row_major(x->grad));
    args.d_a = eg_row_major(x->own_d_a);
    args.d_b = eg_row_major(x->own_d_b);
    if (x->gated) {
        args.b_up = eg_row_major(x->b_up);
        args.d_b_up = eg_row_major(x->own_d_b_up);
    } else {
        args.d_bias = eg_elements(x->own_d_bias);
    }
    return args;
}

static void run_own(bench *x) {
    const eg_layer layer = layer_of(x);
    const eg_backward_args args = args_of(x);
    need(eg_backward(x->context, &layer, &args));
}

/* ---- Comparing and timing ----------------------------------------------------------------------- */

/* The largest difference, as a part of the largest element. */
static double difference(bench *x, void *one, void *other, int64_t count) {
    const size_t bytes = (size_t)count * sizeof(float);
    float *p = malloc(bytes), *q = malloc(bytes);
    double worst = 0, largest = 0;
    if (p == NULL || q == NULL) exit(EXIT_FAILURE);
    need(eg_download(x->context, p, one, 0, bytes));
    need(eg_download(x->context, q, other, 0, bytes));
    for (int64_t i = 0; i < count; i++) {
        const double d = fabs((double)p[i] - (double)q[i]);
        if (!(d <= worst)) worst = d;
        largest = fmax(largest, fabs((double)p[i]));
    }
    free(p);
    free(q);
    return worst / largest;
}

typedef struct taken {
    double seconds, work; /* by the clock, and of this process's processors */
} taken;

static int ascending(const void *a, const void *b) {
    const double x = ((const taken *)a)->seconds, y = ((const taken *)b)->seconds;
    return (x > y) - (x < y);
}

static taken timed(bench *x, void (*run)(bench *), int times) {
    const double begin = seconds(), work = (double)clock();
    for (int i = 0; i < times; i++) run(x);
    need(eg_sync(x->context));
    return (taken){(seconds() - begin) / times, ((double)clock() - work) / CLOCKS_PER_SEC / times};
}

static int times_for(bench *x, void (*run)(bench *)) {
    timed(x, run, 1);
    const double once = timed(x, run, 1).seconds;
    return once > 0.1 ? 1 : (int)(0.1 / once) + 1;
}

static void measure(bench *x) {
    taken theirs[ROUNDS], ours[ROUNDS];
    make_operands(x);
    const int their_times = times_for(x, run_reference), our_times = times_for(x, run_own);
    const double off = fmax(difference(x, x->d_a, x->own_d_a, x->m * x->k),
                            fmax(difference(x, x->d_b, x->own_d_b, x->k * x->n),
                                 x->gated ? difference(x, x->d_b_up, x->own_d_b_up, x->k * x->n)
                                          : difference(x, x->d_bias, x->own_d_bias, x->n)));
    for (int i = 0; i < ROUNDS; i++) {
        theirs[i] = timed(x, run_reference, their_times);
        ours[i] = timed(x, run_own, our_times);
    }
    qsort(theirs, ROUNDS, sizeof *theirs, ascending);
    qsort(ours, ROUNDS, sizeof *ours, ascending);
    const double work = (x->gated ? 12e-9 : 6e-9) * (double)x->m * (double)x->k * (double)x->n;
    const taken t = theirs[ROUNDS / 2], o = ours[ROUNDS / 2];
    printf("M=%-6lld K=%-5lld N=%-5lld  reference %9.3f ms %9.1f GFLOP/s  epigrad %9.3f ms %9.1f GFLOP/s  "
           "%5.1f x  difference %.1e\n",
           (long long)x->m, (long long)x->k, (long long)x->n, 1e3 * t.seconds, work / t.seconds,
           1e3 * o.seconds, work / o.seconds, t.seconds / o.seconds, off);
    if (x->gpu->caps.cpu) {
        printf("    in processor time: reference %.0f ms, epigrad %.0f ms, %.1f x\n", 1e3 * t.work,
               1e3 * o.work, t.work / o.work);
    }
    fflush(stdout);
    free_operands(x);
}

static void print_plan(const bench *x) {
    char text[2048];
    const eg_layer layer = layer_of(x);
    bench marks = *x;
    void *mark = x->context; /* anything that is not NULL */
    marks.a = marks.b = marks.bias = marks.grad = marks.own_d_a = marks.own_d_b = marks.own_d_bias = mark;
    marks.b_up = marks.own_d_b_up = mark;
    const eg_backward_args args = args_of(&marks);
    need(eg_backward_plan(x->context, &layer, &args, text, sizeof text));
    printf("%s", text);
}

int main(int argc, char **argv) {
    static const char *const texts[PASSES] = {eg_wgsl_reference_1, eg_wgsl_reference_2, eg_wgsl_reference_3,
                                              eg_wgsl_reference_4, eg_wgsl_reference_5, eg_wgsl_reference_6};
    eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_WEBGPU};
    eg_device_info device = {.size = sizeof device};
    bench x = {0};
    int first = 1;
    if (argc > 2 && strcmp(argv[1], "--kernel") == 0) info.kernel = argv[2], first = 3;
    if (argc > first && strcmp(argv[first], "--gated") == 0) x.gated = true, first++;
    need(eg_open(&info, &x.context));
    need(eg_get_device_info(x.context, &device));
    printf("%s (%s)\n", device.name, device.features);
    x.gpu = x.context->device;
    for (int i = 0; i < PASSES; i++)
        need(eg_webgpu_make_pipeline(x.gpu, "", texts[i], NULL, 0, &x.pipelines[i]));
    for (int i = first; i < argc; i++) {
        long long m, k, n;
        if (sscanf(argv[i], "%lldx%lldx%lld", &m, &k, &n) != 3) {
            printf("%s is no MxKxN\n", argv[i]);
            return EXIT_FAILURE;
        }
        x.m = m, x.k = k, x.n = n;
        print_plan(&x);
        measure(&x);
    }
    for (int i = 0; i < PASSES; i++) x.gpu->api.ComputePipelineRelease(x.pipelines[i]);
    eg_close(x.context);
    return EXIT_SUCCESS;
}
