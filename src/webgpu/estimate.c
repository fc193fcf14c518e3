/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a kernel and of its split by estimated time. What the estimate knows of an adapter are
 * constants, kept here: two machines of one kind choose alike, and so get the same bits. */
#include <string.h>

#include "core/sizes.h"
#include "pass.h"
#include "webgpu_abi.h"

/* Of a kernel row on an adapter. */
typedef struct rate {
    double term; /* microseconds of one term of a workgroup's tile while as many run as there is room for; 0:
                    not measured, and taken only where nothing else runs */
    double groups; /* workgroups that there is room for */
    double begin;  /* microseconds of a group beside its terms */
    double alone;  /* the part of a round's time that a round of few groups takes */
    double once;   /* microseconds: a call's share of making the pipeline */
} rate;

struct eg_webgpu_adapter {
    const char *device; /* what its name contains; "": anything */
    uint32_t type;      /* WGPUAdapterType; 0: any */
    double launch;      /* microseconds of a dispatch */
    double bytes;       /* that move in a microsecond */
    rate rate[EG_WEBGPU_ROWS];
};

/* The first that fits. */
static const eg_webgpu_adapter adapters[] = {
#define ADAPTER(device, type, launch, bytes, ...)   {device, type, launch, bytes, {__VA_ARGS__}},
#define RATE(row, term, groups, begin, alone, once) [EG_ROW_##row] = {term, groups, begin, alone, once}
#include "calibration.def"
#undef ADAPTER
#undef RATE
};

const eg_webgpu_adapter *eg_webgpu_adapter_of(const char *name, uint32_t type) {
    const eg_webgpu_adapter *x = adapters;
    while (strstr(name, x->device) == NULL || (x->type != 0 && x->type != type)) x++;
    return x;
}

/* ---- Estimates ---------------------------------------------------------------------------------- */

static const rate *rate_of(const eg_webgpu_caps *device, const eg_webgpu_kernel *kernel) {
    return &device->adapter->rate[kernel - eg_webgpu_kernel_row(0)];
}

static double tiles_of(const eg_webgpu_kernel *kernel, int64_t rows, int64_t cols) {
    return (double)eg_ceil_div(rows, kernel->rows) * (double)eg_ceil_div(cols, kernel->cols);
}

/* Rounds of as many workgroups as there is room for; the last is seldom full, and not as much shorter. */
static double product_time(const eg_webgpu_caps *device, const eg_webgpu_pass *pass) {
    const rate *rate = rate_of(device, pass->kernel);
    if (!(rate->term > 0)) return 0;
    const double groups =
        (double)pass->items * (double)pass->splits * tiles_of(pass->kernel, pass->rows, pass->cols);
    const double terms = (double)(pass->splits > 1 ? pass->chunk : pass->depth);
    double rounds = groups / rate->groups;
    const double part = rounds < 1e9 ? rounds - (double)(int64_t)rounds : 0;
    if (part > 0 && part < rate->alone) rounds += rate->alone - part;
    return rate->once + rounds * (rate->begin + terms * rate->term);
}

/* Elements that a pass moves: its output's, and as many for whatever else it reads. */
static double bytes_of(const eg_webgpu_pass *pass) {
    const double results = (double)pass->items * (double)pass->rows * (double)pass->cols;
    const double terms = results * (double)pass->depth;
    const bool extra = eg_webgpu_is_present(&pass->at[EG_EXTRA]);
    return terms * (double)eg_size_of((eg_dtype)pass->at[EG_LEFT].dtype) +
           results * (double)eg_size_of((eg_dtype)pass->at[EG_OUT].dtype) +
           (extra ? results * (double)eg_size_of((eg_dtype)pass->at[EG_EXTRA].dtype) : 0);
}

double eg_webgpu_estimate(const eg_webgpu_caps *device, const eg_webgpu_pass *pass, int64_t launches) {
    const eg_webgpu_adapter *adapter = device->adapter;
    const double launch = (double)launches * adapter->launch;
    if (pass->kernel->shape == EG_SHAPE_PRODUCT) {
        const double time = product_time(device, pass);
        return time > 0 ? launch + time : 0;
    }
    return launch + bytes_of(pass) / adapter->bytes;
}

/* ---- The choice --------------------------------------------------------------------------------- */

static bool is_usable(const eg_caps *caps, const eg_webgpu_kernel *kernel) {
    const eg_webgpu_caps *device = caps->detail;
    return kernel->invocations <= device->invocations && kernel->memory <= device->memory &&
           (caps->only_kernel == NULL || strcmp(caps->only_kernel, kernel->name) == 0);
}

/* Enough parts to fill the device four times over, so that its last groups do not run alone for long, if they
 * fit in the scratch that can be bound. */
static int64_t chunk_of(const eg_webgpu_caps *device, const eg_webgpu_kernel *kernel, const eg_op *op) {
    const int64_t most = eg_least((int64_t)1 << 28, (int64_t)(device->binding - device->align));
    const double threads =
        (double)op->items * tiles_of(kernel, op->rows, op->cols) * (double)kernel->invocations;
    int64_t parts = 1;
    if (threads > 0 && threads < (double)device->fill)
        parts = eg_least((int64_t)(4.0 * (double)device->fill / threads), op->depth / device->part);
    const double each = 4.0 * (double)op->items * (double)op->rows * (double)op->cols;
    if (each * (double)parts > (double)most) parts = (int64_t)((double)most / each);
    const int64_t chunk = parts > 1 ? eg_ceil_div(eg_ceil_div(op->depth, parts), 16) * 16 : op->depth;
    return chunk > 0 ? chunk : 1;
}

/* With the pass that adds up its parts. Not measured: more than any time. */
static double time_of(const eg_webgpu_caps *device, const eg_webgpu_kernel *kernel, const eg_op *op,
                      int64_t chunk) {
    const double never = 1e300;
    eg_webgpu_pass pass = {.kernel = kernel,
                           .items = op->items * op->summed,
                           .rows = op->rows,
                           .cols = op->cols,
                           .depth = op->depth,
                           .chunk = chunk,
                           .splits = op->depth > 0 ? (int32_t)eg_ceil_div(op->depth, chunk) : 1};
    const double product = eg_webgpu_estimate(device, &pass, 1);
    if (!(product > 0)) return never;
    if (pass.splits == 1) return product;
    pass.kernel = &eg_webgpu_elementwise;
    pass.items = op->items;
    pass.depth = pass.splits;
    pass.at[EG_LEFT].dtype = pass.at[EG_OUT].dtype = EG_F32;
    return product + eg_webgpu_estimate(device, &pass, 1);
}

/* Of equals the first, which is the better row. */
eg_webgpu_choice eg_webgpu_choose(const eg_caps *caps, const eg_op *gemm) {
    const eg_webgpu_caps *device = caps->detail;
    eg_webgpu_choice best = {NULL, 0};
    double least = 0;
    const eg_webgpu_kernel *row;
    for (int i = 0; (row = eg_webgpu_kernel_row(i)) != NULL; i++) {
        if (!is_usable(caps, row)) continue;
        const int64_t chunk = chunk_of(device, row, gemm);
        const double time = time_of(device, row, gemm, chunk);
        if (best.kernel != NULL && time >= least) continue;
        best = (eg_webgpu_choice){row, chunk};
        least = time;
    }
    return best;
}
