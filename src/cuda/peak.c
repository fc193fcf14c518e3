/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic peak, by kernels that do nothing else: kernels/peak.cu, kernels/hopper_peak.cu. */
#include "core/error.h"
#include "device.h"
#include "layout.h"

/* A kernel that measures the peak: operations of a block in a turn of its loop, and blocks a multiprocessor.
 * The first row is taken that serves the type and the device. */
typedef struct peak_kernel {
    const char *name;
    eg_dtype dtype;
    uint32_t needs;
    int blocks, shared;
    double operations;
} peak_kernel;

static const peak_kernel kernels[] = {
    {"peak_f32", EG_F32, EG_CUDA_SM80, 8, 0, 256 * 16 * 2},
    {"peak_f64", EG_F64, EG_CUDA_SM80, 4, 0, 8 * 4 * (16 * 8 * 4 * 2)},
    {"peak_wgmma_bf16", EG_BF16, EG_CUDA_SM90A, 1, EG_PEAK_SHARED, 2.0 * 64 * 256 * 64 * 2},
    {"peak_wgmma_f16", EG_F16, EG_CUDA_SM90A, 1, EG_PEAK_SHARED, 2.0 * 64 * 256 * 64 * 2},
    {"peak_bf16", EG_BF16, EG_CUDA_SM80, 4, 0, 8 * 4 * (16 * 8 * 16 * 2)},
    {"peak_f16", EG_F16, EG_CUDA_SM80, 4, 0, 8 * 4 * (16 * 8 * 16 * 2)},
};

typedef struct run {
    eg_cuda_device *device;
    const peak_kernel *kernel;
    CUfunction function;
    CUevent begin, end;
    eg_cuda_peak parameter;
} run;

static const peak_kernel *find_kernel(eg_dtype dtype, uint32_t features) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (kernels[i].dtype == dtype && (kernels[i].needs & features) == kernels[i].needs)
            return &kernels[i];
    }
    return NULL;
}

static eg_status time_turns(run *r, float *ms) {
    eg_cuda_device *device = r->device;
    const eg_cuda_driver *driver = device->driver;
    void *parameters[] = {&r->parameter};
    const CUlaunchConfig config = {.gridDimX = (unsigned)(r->kernel->blocks * device->caps.multiprocessors),
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 256,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .sharedMemBytes = (unsigned)r->kernel->shared,
                                   .hStream = device->stream};
    EG_TRY(eg_cuda_check(device, driver->cuEventRecord(r->begin, device->stream), "cuEventRecord"));
    EG_TRY(eg_cuda_check(device, driver->cuLaunchKernelEx(&config, r->function, parameters, NULL),
                         r->kernel->name));
    EG_TRY(eg_cuda_check(device, driver->cuEventRecord(r->end, device->stream), "cuEventRecord"));
    EG_TRY(eg_cuda_check(device, driver->cuEventSynchronize(r->end), r->kernel->name));
    return eg_cuda_check(device, driver->cuEventElapsedTime(ms, r->begin, r->end), "cuEventElapsedTime");
}

/* The best of several runs of about ten milliseconds: the clock falls under the load of the matrix units. */
static eg_status measure(run *r, double *gflops) {
    enum { RUNS = 6, MOST_TURNS = 1 << 24 };
    const float least_ms = 8;
    const double each = r->kernel->operations * r->kernel->blocks * r->device->caps.multiprocessors;
    float ms = 0;
    r->parameter.turns = 512;
    EG_TRY(time_turns(r, &ms));
    while (ms < least_ms && r->parameter.turns < MOST_TURNS) {
        r->parameter.turns *= 2;
        EG_TRY(time_turns(r, &ms));
    }
    *gflops = 0;
    for (int i = 0; i < RUNS; i++) {
        EG_TRY(time_turns(r, &ms));
        const double rate = each * (double)r->parameter.turns / ((double)ms * 1e6);
        if (rate > *gflops) *gflops = rate;
    }
    return EG_OK;
}

eg_status eg_cuda_measure_peak(eg_cuda_device *device, uint32_t features, eg_dtype dtype, uint64_t out,
                               double *gflops) {
    run r = {.device = device, .kernel = find_kernel(dtype, features), .parameter = {.out = out}};
    if (r.kernel == NULL)
        return eg_fail(EG_ERR_UNSUPPORTED, "no kernel measures the peak of %s", eg_dtype_name(dtype));
    EG_TRY(eg_cuda_find_function(device, r.kernel->name, &r.function));
    EG_TRY(eg_cuda_check(device, device->driver->cuEventCreate(&r.begin, 0), "cuEventCreate"));
    eg_status status = eg_cuda_check(device, device->driver->cuEventCreate(&r.end, 0), "cuEventCreate");
    if (status == EG_OK) status = measure(&r, gflops);
    device->driver->cuEventDestroy(r.begin);
    if (r.end != NULL) device->driver->cuEventDestroy(r.end);
    return status;
}
