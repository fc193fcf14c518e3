/* Which kernel row is fastest on a GPU: once in the life of a device and its driver the candidates compute
 * the backward pass of a layer turn about, and the best time of each counts; the winner's name is kept in
 *
 *     $XDG_CACHE_HOME/epigrad/webgpu-kernels    (~/.cache where that is not set)
 *
 * one line a device: library version, row, device. EPIGRAD_WEBGPU_TUNE=0 neither measures nor reads it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

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

static int remembered(const char *device_name) {
    char path[MOST_PATH], line[MOST_LINE], row[64];
    int found = -1, name;
    FILE *file = cache_path(path, false) ? fopen(path, "r") : NULL;
    if (file == NULL) return -1;
    while (fgets(line, sizeof line, file) != NULL) {
        const size_t version = strlen(eg_version());
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, eg_version(), version) != 0) continue;
        if (sscanf(line + version, " %63s %n", row, &name) == 1 &&
            strcmp(line + version + name, device_name) == 0)
            found = row_named(row);
    }
    fclose(file);
    return found;
}

static void remember(const char *device_name, int row) {
    char path[MOST_PATH];
    FILE *file = cache_path(path, true) ? fopen(path, "a") : NULL;
    if (file == NULL) return;
    fprintf(file, "%s %s %s\n", eg_version(), eg_webgpu_kernel_row(row)->name, device_name);
    fclose(file);
}

/* ---- The measurement ---------------------------------------------------------------------------- */

static double seconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Every pass as users run it: the three layouts, the epilogue, a split sum. Tiles enough for some rounds of
 * the largest device, and small enough for an integrated one. */
enum { M = 4096, K = 1024, N = 1024, EACH = 2, ROUNDS = 8 };

typedef struct trial {
    eg_context *context;
    eg_layer layer;
    eg_backward_args args;
    void *in, *out, *workspace;
} trial;

static eg_matrix dense(void *memory, size_t element) {
    return (eg_matrix){.data = memory, .offset = element * sizeof(float)};
}

static eg_status prepare(trial *t, eg_context *context) {
    const size_t a = (size_t)M * K, b = (size_t)K * N, grad = (size_t)M * N, element = sizeof(float);
    *t = (trial){.context = context};
    EG_TRY(eg_alloc(context, (a + b + grad + N) * element, &t->in));
    EG_TRY(eg_alloc(context, (a + b + N) * element, &t->out));
    t->layer =
        (eg_layer){.size = sizeof t->layer, .m = M, .k = K, .n = N, .batch = 1, .activation = EG_ACT_GELU};
    t->args = (eg_backward_args){.size = sizeof t->args,
                                 .a = dense(t->in, 0),
                                 .b = dense(t->in, a),
                                 .grad = dense(t->in, a + b),
                                 .bias = {.data = t->in, .offset = (a + b + grad) * element},
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
    gpu->caps.preferred = row;
    const double begin = seconds();
    for (int i = 0; i < EACH; i++) {
        if (eg_backward(t->context, &t->layer, &t->args) != EG_OK) return -1;
    }
    return eg_sync(t->context) == EG_OK ? seconds() - begin : -1;
}

/* Turn about, so that what else the machine does disturbs all alike. The first round warms up; a slow device
 * has fewer of them. */
static int fastest(eg_webgpu *gpu, const trial *t, int otherwise) {
    static const int candidates[] = {EG_ROW_shared_128x128, EG_ROW_shared_64x64};
    enum { COUNT = sizeof candidates / sizeof *candidates, FEWEST = 3 };
    const double begin = seconds(), patience = 0.5;
    double best = 1e30;
    int winner = otherwise;
    for (int round = 0; round < ROUNDS && (round < FEWEST || seconds() - begin < patience); round++) {
        for (int i = 0; i < COUNT; i++) {
            const eg_webgpu_kernel *kernel = eg_webgpu_kernel_row(candidates[i]);
            if (kernel->invocations > gpu->caps.invocations || kernel->memory > gpu->caps.memory) continue;
            const double taken = time_row(gpu, t, candidates[i]);
            if (round > 0 && taken > 0 && taken < best) best = taken, winner = candidates[i];
        }
    }
    return winner;
}

static int measured(eg_webgpu *gpu, eg_context *context, int otherwise) {
    trial t;
    const int winner = prepare(&t, context) == EG_OK ? fastest(gpu, &t, otherwise) : otherwise;
    eg_free(context, t.in);
    eg_free(context, t.out);
    eg_free(context, t.workspace);
    return winner;
}

int eg_webgpu_tune(eg_context *context, int otherwise) {
    eg_webgpu *gpu = context->device;
    const char *wanted = getenv("EPIGRAD_WEBGPU_TUNE"), *limits = getenv("EPIGRAD_WEBGPU_LIMITS");
    if ((wanted != NULL && strcmp(wanted, "0") == 0) || (limits != NULL && *limits != '\0')) return otherwise;
    const int known = remembered(context->name);
    if (known >= 0) return known;
    const int winner = measured(gpu, context, otherwise);
    if (!gpu->lost) remember(context->name, winner);
    return winner;
}
