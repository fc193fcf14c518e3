/* Which kernel rows are fastest on a GPU: once in the life of a device and its driver the candidates compute
 * the backward pass of two layers turn about, a shallow and a deep one, and the best time of each counts; the
 * winners' names are kept in
 *
 *     $XDG_CACHE_HOME/epigrad/webgpu-kernels    (~/.cache where that is not set)
 *
 * one line a device: library version, shallow row, deep row, device. EPIGRAD_WEBGPU_TUNE=0 neither measures
 * nor reads it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../clock.h"
#include "../error.h"
#include "device.h"

enum { MOST_PATH = 1024, MOST_LINE = 512 };

static int row_named(const char *name) {
    for (int i = 0;; i++) {
        const eg_webgpu_kernel *row = eg_webgpu_kernel_row(i);
        if (row == NULL) return -1;
        if (strcmp(row->name, name) == 0) return i;
    }
}

/* ---- The file ----------------------------------------------------------------------------------- */

/* False where there is no place for it. */
static bool cache_path(char *path, bool make) {
    char folder[MOST_PATH - 32];
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = -1;
    if (cache != NULL && *cache == '/') {
        length = snprintf(folder, sizeof folder, "%s/epigrad", cache);
    } else if (home != NULL && *home == '/') {
        length = snprintf(folder, sizeof folder, "%s/.cache/epigrad", home);
    }
    if (length < 0 || (size_t)length >= sizeof folder) return false;
    if (make) {
        char *last = strrchr(folder, '/'); /* the folder above it may be missing too */
        *last = '\0';
        mkdir(folder, 0700);
        *last = '/';
        mkdir(folder, 0700);
    }
    snprintf(path, MOST_PATH, "%s/webgpu-kernels", folder);
    return true;
}

static bool remembered(eg_webgpu_caps *caps, const char *device_name) {
    char path[MOST_PATH], line[MOST_LINE], shallow[64], deep[64];
    int name;
    bool found = false;
    FILE *file = cache_path(path, false) ? fopen(path, "r") : NULL;
    if (file == NULL) return false;
    while (fgets(line, sizeof line, file) != NULL) {
        const size_t version = strlen(eg_version());
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, eg_version(), version) != 0) continue;
        if (sscanf(line + version, " %63s %63s %n", shallow, deep, &name) != 2) continue;
        if (strcmp(line + version + name, device_name) != 0) continue;
        if (row_named(shallow) < 0 || row_named(deep) < 0) continue;
        caps->shallow = row_named(shallow), caps->deep = row_named(deep);
        found = true;
    }
    fclose(file);
    return found;
}

static void remember(const eg_webgpu_caps *caps, const char *device_name) {
    char path[MOST_PATH];
    FILE *file = cache_path(path, true) ? fopen(path, "a") : NULL;
    if (file == NULL) return;
    fprintf(file, "%s %s %s %s\n", eg_version(), eg_webgpu_kernel_row(caps->shallow)->name,
            eg_webgpu_kernel_row(caps->deep)->name, device_name);
    fclose(file);
}

/* ---- The measurement ---------------------------------------------------------------------------- */

enum { EACH = 2, ROUNDS = 8 };

typedef struct trial {
    eg_context *context;
    eg_layer layer;
    eg_backward_args args;
    void *in, *out, *workspace;
} trial;

static eg_matrix dense(void *memory, size_t element) {
    return (eg_matrix){.data = memory, .offset = element * sizeof(float)};
}

/* A layer of K = N = `width`: every pass as users run it, the three layouts, the epilogue, the sums. */
static eg_status prepare(trial *t, eg_context *context, int64_t rows, int64_t width) {
    const size_t b = (size_t)(width * width), a = (size_t)(rows * width), bias = (size_t)width,
                 element = sizeof(float);
    *t = (trial){.context = context};
    EG_TRY(eg_alloc(context, (2 * a + b + bias) * element, &t->in));
    EG_TRY(eg_alloc(context, (a + b + bias) * element, &t->out));
    t->layer = (eg_layer){
        .size = sizeof t->layer, .m = rows, .k = width, .n = width, .batch = 1, .activation = EG_ACT_GELU};
    t->args = (eg_backward_args){.size = sizeof t->args,
                                 .a = dense(t->in, 0),
                                 .b = dense(t->in, a),
                                 .grad = dense(t->in, a + b),
                                 .bias = {.data = t->in, .offset = (2 * a + b) * element},
                                 .d_a = dense(t->out, 0),
                                 .d_b = dense(t->out, a),
                                 .d_bias = {.data = t->out, .offset = (a + b) * element}};
    size_t bytes;
    EG_TRY(eg_backward_workspace(context, &t->layer, &t->args, &bytes));
    EG_TRY(eg_alloc(context, bytes, &t->workspace));
    t->args.workspace = (eg_workspace){.data = t->workspace, .bytes = bytes};
    return EG_OK;
}

/* Seconds; negative if it failed. */
static double time_row(eg_webgpu *gpu, const trial *t, int row) {
    gpu->caps.shallow = gpu->caps.deep = row;
    const double begin = eg_seconds();
    for (int i = 0; i < EACH; i++) {
        if (eg_backward(t->context, &t->layer, &t->args) != EG_OK) return -1;
    }
    return eg_sync(t->context) == EG_OK ? eg_seconds() - begin : -1;
}

/* Turn about, so that what else the machine does disturbs all alike. The first round compiles and warms up; a
 * slow device has fewer of them. */
static int fastest(eg_webgpu *gpu, const trial *t, int otherwise) {
    static const int candidates[] = {EG_ROW_shared_128x128, EG_ROW_shared_64x64};
    enum { COUNT = sizeof candidates / sizeof *candidates, FEWEST = 3 };
    const double patience = 0.5;
    double begin = 0, best = 1e30;
    int winner = otherwise;
    for (int round = 0; round < ROUNDS && (round < FEWEST || eg_seconds() - begin < patience); round++) {
        for (int i = 0; i < COUNT; i++) {
            const eg_webgpu_kernel *kernel = eg_webgpu_kernel_row(candidates[i]);
            if (kernel->invocations > gpu->caps.invocations || kernel->memory > gpu->caps.memory) continue;
            const double taken = time_row(gpu, t, candidates[i]);
            if (round > 0 && taken > 0 && taken < best) best = taken, winner = candidates[i];
        }
        if (round == 0) begin = eg_seconds();
    }
    return winner;
}

static int measured(eg_webgpu *gpu, eg_context *context, int64_t rows, int64_t width, int otherwise) {
    trial t;
    const bool ready = prepare(&t, context, rows, width) == EG_OK;
    const int winner = ready ? fastest(gpu, &t, otherwise) : otherwise;
    eg_free(context, t.in);
    eg_free(context, t.out);
    eg_free(context, t.workspace);
    return winner;
}

void eg_webgpu_tune(eg_context *context) {
    eg_webgpu *gpu = context->device;
    const char *wanted = getenv("EPIGRAD_WEBGPU_TUNE"), *limits = getenv("EPIGRAD_WEBGPU_LIMITS");
    const int usual = gpu->caps.shallow;
    if ((wanted != NULL && strcmp(wanted, "0") == 0) || (limits != NULL && *limits != '\0')) return;
    if (remembered(&gpu->caps, context->name)) return;
    /* Tiles enough for the largest devices, few enough for integrated ones. */
    const int shallow = measured(gpu, context, 8192, 512, usual);
    const int deep = measured(gpu, context, 2048, 2048, usual);
    gpu->caps.shallow = shallow, gpu->caps.deep = deep;
    if (!gpu->lost) remember(&gpu->caps, context->name);
}
