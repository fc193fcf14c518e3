/* Which kernel row is fastest on a device: each candidate multiplies two matrices a few times, once in the
 * life of a device and its driver; the winner's name is kept in
 *
 *     $XDG_CACHE_HOME/epigrad/webgpu-kernels    (~/.cache where that is not set)
 *
 * one line a device: library version, row, device. EPIGRAD_WEBGPU_TUNE=0 neither measures nor reads it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

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

/* Seconds of a product of `size` cubed, the best of three after one to warm up; negative if it failed. */
static double time_row(eg_webgpu *gpu, int row, WGPUBuffer in, WGPUBuffer out, int64_t size) {
    const size_t second = (size_t)(size * size) * 4; /* right lies behind left */
    const eg_webgpu_pass pass = {
        .kernel = eg_webgpu_kernel_row(row),
        .epilogue = EG_EPILOGUE_STORE,
        .items = 1,
        .rows = size,
        .cols = size,
        .depth = size,
        .splits = 1,
        .chunk = size,
        .at = {[EG_LEFT] = {EG_PLACE_USER, in, 0, EG_F32, .row = size, .depth = 1},
               [EG_RIGHT] = {EG_PLACE_USER, in, second, EG_F32, .depth = size, .col = 1},
               [EG_OUT] = {EG_PLACE_USER, out, 0, EG_F32, .row = size, .col = 1}}};
    double best = -1;
    for (int run = 0; run < 4; run++) {
        const double begin = seconds();
        if (eg_webgpu_run(gpu, &pass, NULL, 0) != EG_OK || eg_webgpu_flush(gpu) != EG_OK ||
            eg_webgpu_wait(gpu) != EG_OK)
            return -1;
        const double taken = seconds() - begin;
        if (run > 0 && (best < 0 || taken < best)) best = taken;
    }
    return best;
}

static int fastest(eg_webgpu *gpu, WGPUBuffer in, WGPUBuffer out, int64_t size, int otherwise) {
    static const char *const gpus[] = {"shared_128x128", "shared_64x64", NULL}, *const cpus[] = {
                                                                                    "direct_16x32",
                                                                                    "direct_8x64", NULL};
    double best = 1e30;
    int winner = otherwise;
    for (const char *const *name = gpu->caps.cpu ? cpus : gpus; *name != NULL; name++) {
        const int row = row_named(*name);
        const eg_webgpu_kernel *kernel = eg_webgpu_kernel_row(row);
        if (kernel->invocations > gpu->caps.invocations || kernel->memory > gpu->caps.memory) continue;
        const double taken = time_row(gpu, row, in, out, size);
        if (taken > 0 && taken < best) best = taken, winner = row;
    }
    return winner;
}

static int measured(eg_webgpu *gpu, int otherwise) {
    const int64_t size = gpu->caps.cpu ? 128 : 2048;
    const uint64_t bytes = (uint64_t)size * (uint64_t)size * 4;
    const WGPUFlags usage = WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc;
    WGPUBuffer in = NULL, out = NULL;
    int winner = otherwise;
    if (eg_webgpu_make_buffer(gpu, 2 * bytes, usage, &in) == EG_OK &&
        eg_webgpu_make_buffer(gpu, bytes, usage, &out) == EG_OK)
        winner = fastest(gpu, in, out, size, otherwise);
    if (in != NULL) gpu->api.BufferRelease(in);
    if (out != NULL) gpu->api.BufferRelease(out);
    return winner;
}

int eg_webgpu_tune(eg_webgpu *gpu, const char *device_name, int otherwise) {
    const char *wanted = getenv("EPIGRAD_WEBGPU_TUNE"), *limits = getenv("EPIGRAD_WEBGPU_LIMITS");
    if ((wanted != NULL && strcmp(wanted, "0") == 0) || (limits != NULL && *limits != '\0')) return otherwise;
    const int known = remembered(device_name);
    if (known >= 0) return known;
    const int winner = measured(gpu, otherwise);
    if (!gpu->lost) remember(device_name, winner);
    return winner;
}
