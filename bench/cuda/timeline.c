/* SPDX-License-Identifier: Apache-2.0 */
/* What one multiprocessor does in a forward call with GELU and saved pre-activation, bf16, weights [N, K]:
 * when its producer loads, its consumers multiply and are in their epilogues, tile by tile.
 *
 *     timeline ROW MxKxN     ROW: the name of one of Hopper's persistent kernels
 *
 * The library has to be built with -DEPIGRAD_CUDA_FLAGS=-DEG_STAMPS. Prints a line of JSON for each span,
 * microseconds from the first on: by the multiprocessor's clock, whose rate is what the device's timer says.
 * tools/plot_timeline.py draws it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device.h"
#include "cuda/stamps.h"
#include "epigrad/epigrad.h"

enum { WARM_UP = 20 };

typedef struct driver {
    CUresult (*get_global)(CUdeviceptr *at, size_t *bytes, CUmodule module, const char *name);
    CUresult (*set)(CUdeviceptr at, unsigned char value, size_t bytes);
    CUresult (*download)(void *to, CUdeviceptr from, size_t bytes);
} driver;

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(EXIT_FAILURE);
}

static void need(eg_status status) {
    if (status != EG_OK) fail(eg_last_error());
}

static void find_driver(driver *d) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) fail("no libcuda.so.1");
    *(void **)&d->get_global = dlsym(library, "cuModuleGetGlobal_v2");
    *(void **)&d->set = dlsym(library, "cuMemsetD8_v2");
    *(void **)&d->download = dlsym(library, "cuMemcpyDtoH_v2");
    if (d->get_global == NULL || d->set == NULL || d->download == NULL) fail("the driver lacks a function");
}

/* Random numbers about as large as trained layers have: zeros would be multiplied with less power. */
static void *filled(eg_context *context, int64_t count, float scale, uint32_t seed) {
    void *memory;
    uint16_t *host = malloc((size_t)count * sizeof *host);
    if (host == NULL) fail("no memory");
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        const float x = scale * ((float)(seed >> 8) / 8388608.0F - 1.0F);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        host[i] = (uint16_t)(bits >> 16);
    }
    need(eg_alloc(context, (size_t)count * sizeof *host, &memory));
    need(eg_upload(context, memory, 0, host, (size_t)count * sizeof *host));
    free(host);
    return memory;
}

/* Runs the call until the clocks have risen, then once more with the stamps cleared. */
static void run(eg_context *context, const driver *d, const eg_layer *layer, const eg_forward_args *args,
                eg_stamps_of_block stamps) {
    eg_cuda_device *device = context->device;
    CUdeviceptr at;
    size_t bytes;
    bool found = false;
    for (int i = 0; i < WARM_UP; i++) need(eg_forward(context, layer, args));
    need(eg_sync(context));
    need(eg_cuda_enter(device));
    for (int i = 0; i < EG_CUDA_MAX_MODULES; i++) {
        if (device->modules[i] != NULL &&
            d->get_global(&at, &bytes, device->modules[i], "eg_stamps") == CUDA_SUCCESS)
            d->set(at, 0, bytes);
    }
    need(eg_forward(context, layer, args));
    need(eg_sync(context));
    for (int i = 0; i < EG_CUDA_MAX_MODULES && !found; i++) {
        if (device->modules[i] == NULL ||
            d->get_global(&at, &bytes, device->modules[i], "eg_stamps") != CUDA_SUCCESS ||
            bytes != sizeof(eg_stamps_of_block))
            continue;
        if (d->download(stamps, at, bytes) != CUDA_SUCCESS) fail("the stamps could not be read");
        found = stamps[0][0][EG_STAMP_PRODUCTS][0].clock != 0;
    }
    need(eg_cuda_leave(device, EG_OK));
    if (!found)
        fail("no kernel has left stamps: is the library built with -DEPIGRAD_CUDA_FLAGS=-DEG_STAMPS?");
}

typedef struct range {
    eg_stamp first, last;
} range;

static range range_of(const eg_stamps_of_block stamps) {
    const eg_stamp *all = (const eg_stamp *)stamps;
    range r = {{UINT64_MAX, UINT64_MAX}, {0, 0}};
    for (size_t i = 0; i < sizeof(eg_stamps_of_block) / sizeof *all; i++) {
        if (all[i].clock == 0) continue;
        if (all[i].clock < r.first.clock) r.first = all[i];
        if (all[i].clock > r.last.clock) r.last = all[i];
    }
    return r;
}

static void print(const eg_stamps_of_block stamps, const char *row, const char *shape) {
    static const char *const lanes[] = {"consumer 0", "consumer 1", "producer"};
    static const char *const spans[] = {"loads", "products", "epilogue"};
    const range r = range_of(stamps);
    const double rate =
        (double)(r.last.clock - r.first.clock) / (double)(r.last.nanoseconds - r.first.nanoseconds);
    printf("{\"row\": \"%s\", \"shape\": \"%s\", \"clocks_a_nanosecond\": %.4f}\n", row, shape, rate);
    for (int lane = 0; lane < EG_STAMP_LANES; lane++) {
        for (int tile = 0; tile < EG_STAMP_TILES; tile++) {
            for (int span = 0; span < EG_STAMP_SPANS; span++) {
                const eg_stamp *at = stamps[lane][tile][span];
                if (at[0].clock == 0 || at[1].clock == 0) continue;
                printf("{\"lane\": \"%s\", \"tile\": %d, \"span\": \"%s\", \"begin\": %.3f, \"end\": %.3f}\n",
                       lanes[lane], tile, spans[span], (double)(at[0].clock - r.first.clock) / rate * 1e-3,
                       (double)(at[1].clock - r.first.clock) / rate * 1e-3);
            }
        }
    }
}

int main(int argc, char **argv) {
    static eg_stamps_of_block stamps;
    long long m, k, n;
    driver d;
    if (argc != 3 || sscanf(argv[2], "%lldx%lldx%lld", &m, &k, &n) != 3) fail("usage: timeline ROW MxKxN");
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = argv[1]};
    eg_context *context;
    find_driver(&d);
    need(eg_open(&info, &context));
    eg_layer layer = eg_layer_of(m, k, n, EG_ACT_GELU);
    layer.dtype = EG_BF16;
    eg_forward_args args = {.size = sizeof args};
    args.a.data = filled(context, m * k, 1, 1);
    args.b = (eg_matrix){.data = filled(context, n * k, 0.05F, 2), .layout = EG_COL_MAJOR};
    args.bias.data = filled(context, n, 1, 3);
    args.y.data = filled(context, m * n, 1, 4);
    args.pre.data = filled(context, m * n, 1, 5);
    run(context, &d, &layer, &args, stamps);
    print((const eg_stamp(*)[EG_STAMP_TILES][EG_STAMP_SPANS][2])stamps, argv[1], argv[2]);
    eg_close(context);
    return EXIT_SUCCESS;
}
