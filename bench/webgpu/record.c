/* SPDX-License-Identifier: Apache-2.0 */
/* Records how long every kernel row takes for the operations of a seeded list of layers:
 *
 *     webgpu_record OUT [LAYERS [MULTIPLY_ADDS [SEED]]]
 *
 * f32, layers of at most so many multiply-adds. Rows take turns, and the least of the turns counts. Where the
 * adapter is a processor it is the processor time of the process, since others may be at work on the machine.
 * A line is written as soon as it is measured: recording.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "recording.h"
#include "webgpu/device.h"
#include "webgpu/webgpu_abi.h"

enum { TURNS = 3 };
static const double turn[] = {0.005, 0.02}; /* seconds, or one call; on a GPU, on a processor */
static const double slow = 20;              /* times the best: such a row is not timed again */

static uint64_t state;
static double uniform(void) { /* xorshift64* */
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return (double)(state * 0x2545f4914f6cdd1dULL >> 33) / 2147483648.0;
}

static void need(eg_status status) {
    if (status == EG_OK) return;
    fprintf(stderr, "%s: %s\n", eg_status_name(status), eg_last_error());
    exit(EXIT_FAILURE);
}

/* ---- Layers ------------------------------------------------------------------------------------- */

/* Three of four are multiples of four, which aligned loads want. */
static int64_t size(double most) {
    const double x = exp2(3 + (log2(most) - 3) * uniform());
    return uniform() < 0.75 ? (int64_t)(x / 4) * 4 : (int64_t)x | 1;
}

/* Small ones cost little but the launch: half of the draws are within a factor of 64 of the most. */
static recorded_operation draw(double most) {
    const double side = fmin(16384, cbrt(most) * 16), area = 1 << 25;
    for (;;) {
        const recorded_operation x = {size(side), size(side), size(side), NULL};
        const double m = (double)x.m, k = (double)x.k, n = (double)x.n, work = m * k * n;
        if (work > most || m * k > area || k * n > area || m * n > area) continue;
        if (work * 64 > most || uniform() < 0.05) return x;
    }
}

/* ---- Timing ------------------------------------------------------------------------------------- */

typedef struct row {
    eg_context *context;
    void *memory[RECORDED_PLACES];
    recorded_call call;
} row;

static row rows[EG_WEBGPU_ROWS]; /* without a context: not for this adapter */
static bool processor;

static double seconds(void) {
    struct timespec now;
    if (processor) return (double)clock() / CLOCKS_PER_SEC;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *allocate(void *user, int place, int64_t elements) {
    row *x = user;
    need(eg_alloc(x->context, (size_t)elements * sizeof(float), &x->memory[place]));
    return x->memory[place];
}

static double timed(const row *x, int times) {
    const double begin = seconds();
    for (int i = 0; i < times; i++)
        need(x->call.backward ? eg_backward(x->context, &x->call.layer, &x->call.backward_args)
                              : eg_forward(x->context, &x->call.layer, &x->call.forward_args));
    need(eg_sync(x->context));
    return (seconds() - begin) / times;
}

static void forget(row *x) {
    for (int i = 0; i < RECORDED_PLACES; i++) {
        eg_free(x->context, x->memory[i]);
        x->memory[i] = NULL;
    }
}

/* A GPU's clock rises with its work. */
static void warm_up(row *x) {
    const recorded_operation large = {2048, 2048, 2048, recorded_operations[0]};
    recorded_call_of(&large, allocate, x, &x->call);
    for (const double end = seconds() + 2; seconds() < end;) timed(x, 10);
    forget(x);
}

/* Seconds of a small call that makes the pipeline of its product. */
static double first_call(row *x) {
    const recorded_operation small = {64, 64, 64, recorded_operations[0]};
    if (x->context == NULL) return 0;
    recorded_call_of(&small, allocate, x, &x->call);
    const double time = timed(x, 1);
    forget(x);
    return time;
}

static void record(FILE *out, const recorded_operation *x) {
    double least[EG_WEBGPU_ROWS] = {0}, best = INFINITY;
    for (int i = EG_WEBGPU_ROWS - 1; i >= 0; i--) { /* the first call makes pipelines */
        if (rows[i].context == NULL) continue;
        recorded_call_of(x, allocate, &rows[i], &rows[i].call);
        timed(&rows[i], 1);
        least[i] = timed(&rows[i], 1);
        best = fmin(best, least[i]);
    }
    for (int t = 0; t < TURNS; t++) {
        for (int i = 0; i < EG_WEBGPU_ROWS; i++) {
            if (rows[i].context == NULL || least[i] > slow * best) continue;
            least[i] = fmin(least[i], timed(&rows[i], (int)(turn[processor] / least[i]) + 1));
            best = fmin(best, least[i]);
        }
    }
    fprintf(out, "%lldx%lldx%lld %s", (long long)x->m, (long long)x->k, (long long)x->n, x->name);
    for (int i = 0; i < EG_WEBGPU_ROWS; i++) {
        if (rows[i].context == NULL) continue;
        fprintf(out, " %d:%.4g", i, 1e6 * least[i]);
        forget(&rows[i]);
    }
    fprintf(out, "\n");
    fflush(out);
}

/* ---- The adapter -------------------------------------------------------------------------------- */

static void open_rows(void) {
    const eg_webgpu_kernel *kernel;
    for (int i = 0; (kernel = eg_webgpu_kernel_row(i)) != NULL; i++) {
        const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_WEBGPU, .kernel = kernel->name};
        need(eg_open(&info, &rows[i].context));
        const eg_webgpu *gpu = rows[i].context->device;
        processor = gpu->caps.cpu;
        if (kernel->invocations <= gpu->caps.invocations && kernel->memory <= gpu->caps.memory) continue;
        eg_close(rows[i].context);
        rows[i].context = NULL;
    }
}

/* As the constants' table asks for it. */
static void write_header(FILE *out) {
    const row *any = rows;
    while (any->context == NULL) any++;
    const eg_webgpu_caps *caps = &((const eg_webgpu *)any->context->device)->caps;
    const eg_webgpu_kernel *kernel;
    const int type = caps->cpu ? WGPUAdapterType_CPU
                     : caps->fill == recorded_fill(WGPUAdapterType_DiscreteGPU)
                         ? WGPUAdapterType_DiscreteGPU
                         : WGPUAdapterType_IntegratedGPU;
    fprintf(out, "# adapter: %d %s\n# rows:", type, any->context->name);
    for (int i = 0; (kernel = eg_webgpu_kernel_row(i)) != NULL; i++) fprintf(out, " %s", kernel->name);
    fprintf(out, "\n# first:");
    for (int i = 0; i < EG_WEBGPU_ROWS; i++) fprintf(out, " %.4g", 1e6 * first_call(&rows[i]));
    fprintf(out, "\n");
}

int main(int argc, char **argv) {
    const int layers = argc > 2 ? atoi(argv[2]) : 48;
    const double most = argc > 3 ? atof(argv[3]) : 3e7;
    FILE *out = argc > 1 ? fopen(argv[1], "w") : NULL;
    if (out == NULL || layers < 1 || most < 1e4) {
        fprintf(stderr, "usage: webgpu_record OUT [LAYERS [MULTIPLY_ADDS [SEED]]]\n");
        return 2;
    }
    state = argc > 4 ? strtoull(argv[4], NULL, 0) | 1 : 1;
    open_rows();
    write_header(out);
    if (!processor) warm_up(&rows[EG_ROW_shared_32x32]); /* whose tile every device has room for */
    for (int layer = 0; layer < layers; layer++) {
        recorded_operation x = draw(most);
        for (int i = 0; i < RECORDED_OPERATIONS; i++) {
            x.name = recorded_operations[i];
            record(out, &x);
        }
    }
    fclose(out);
    for (int i = 0; i < EG_WEBGPU_ROWS; i++) eg_close(rows[i].context);
    return EXIT_SUCCESS;
}
