/* Which kernel row is fastest on a GPU: the candidates multiply two matrices turn about, once in the life of
 * a device and its driver, and the best time of each counts; the winner's name is kept in
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

enum { MOST_PATH = 1024, MOST_LINE = 512, SIZE = 2048, BYTES = SIZE * SIZE * 4 };

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

/* Seconds of a product of SIZE cubed; negative if it failed. */
static double time_row(eg_webgpu *gpu, int row, WGPUBuffer in, WGPUBuffer out) {
    const eg_webgpu_pass pass = {
        .kernel = eg_webgpu_kernel_row(row),
        .epilogue = EG_EPILOGUE_STORE,
        .items = 1,
        .rows = SIZE,
        .cols = SIZE,
        .depth = SIZE,
        .splits = 1,
        .chunk = SIZE,
        .at = {[EG_LEFT] = {EG_PLACE_USER, in, 0, EG_F32, .row = SIZE, .depth = 1},
               [EG_RIGHT] = {EG_PLACE_USER, in, BYTES, EG_F32, .depth = SIZE, .col = 1}, /* behind left */
               [EG_OUT] = {EG_PLACE_USER, out, 0, EG_F32, .row = SIZE, .col = 1}}};
    const double begin = seconds();
    if (eg_webgpu_run(gpu, &pass, NULL, 0) != EG_OK || eg_webgpu_flush(gpu) != EG_OK ||
        eg_webgpu_wait(gpu) != EG_OK)
        return -1;
    return seconds() - begin;
}

/* Turn about, so that what else the machine does disturbs all alike; the first round warms up. */
static int fastest(eg_webgpu *gpu, WGPUBuffer in, WGPUBuffer out, int otherwise) {
    static const int candidates[] = {EG_ROW_shared_128x128, EG_ROW_shared_64x64};
    enum { COUNT = sizeof candidates / sizeof *candidates, ROUNDS = 6 };
    double best = 1e30;
    int winner = otherwise;
    for (int turn = 0; turn < ROUNDS * COUNT; turn++) {
        const int row = candidates[turn % COUNT];
        const eg_webgpu_kernel *kernel = eg_webgpu_kernel_row(row);
        if (kernel->invocations > gpu->caps.invocations || kernel->memory > gpu->caps.memory) continue;
        const double taken = time_row(gpu, row, in, out);
        if (turn >= COUNT && taken > 0 && taken < best) best = taken, winner = row;
    }
    return winner;
}

static int measured(eg_webgpu *gpu, int otherwise) {
    const WGPUFlags usage = WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc;
    WGPUBuffer in = NULL, out = NULL;
    int winner = otherwise;
    if (eg_webgpu_make_buffer(gpu, 2 * BYTES, usage, &in) == EG_OK &&
        eg_webgpu_make_buffer(gpu, BYTES, usage, &out) == EG_OK)
        winner = fastest(gpu, in, out, otherwise);
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
