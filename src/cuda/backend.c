/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA behind the backend interface. Calls enqueue on the caller's stream. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "device.h"

/* ---- Errors ---------------------------------------------------------------------------------------- */

/* After these the driver refuses all further work in the CUDA context. */
static bool is_sticky(CUresult result) {
    switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        return true;
    default:
        return false;
    }
}

/* A failure comes to light some time after the kernel: these are the ones it may have been. */
static const char *last_kernels(const eg_cuda_device *device, char *text, size_t capacity) {
    size_t used = 0;
    snprintf(text, capacity, "no kernel");
    for (int i = 0; i < device->names && used < capacity; i++) {
        const int length = snprintf(text + used, capacity - used, "%s%s", i > 0 ? ", " : "", device->name[i]);
        used += length > 0 ? (size_t)length : 0;
    }
    return text;
}

/* Where kernels are not waited for one by one, the call that fails need not be the one that did it. */
eg_status eg_cuda_check(eg_cuda_device *device, CUresult result, const char *what) {
    char names[256];
    if (result == CUDA_SUCCESS) return EG_OK;
    if (!is_sticky(result)) return eg_cuda_fail(device->driver, result, what);
    device->broken = result;
    if (!device->checked && device->names > 0) what = last_kernels(device, names, sizeof names);
    return eg_cuda_fail(device->driver, result, what);
}

/* Makes the CUDA context current, unless it has failed for good. Each enter has its leave. */
static eg_status enter(eg_cuda_device *device) {
    if (device->broken != CUDA_SUCCESS) {
        char names[256], what[320];
        snprintf(what, sizeof what, "the CUDA context is lost since %s",
                 last_kernels(device, names, sizeof names));
        return eg_cuda_fail(device->driver, device->broken, what);
    }
    return eg_cuda_check(device, device->driver->cuCtxPushCurrent(device->context), "cuCtxPushCurrent");
}

static eg_status leave(eg_cuda_device *device, eg_status status) {
    CUcontext popped;
    device->driver->cuCtxPopCurrent(&popped);
    return status;
}

/* ---- Opening ---------------------------------------------------------------------------------------- */

static eg_status attribute(eg_cuda_device *device, CUdevice_attribute which, int *value) {
    return eg_cuda_check(device, device->driver->cuDeviceGetAttribute(value, which, device->ordinal),
                         "cuDeviceGetAttribute");
}

static eg_status find_device(eg_cuda_device *device, const eg_open_info *info) {
    const eg_cuda_driver *driver = device->driver;
    int count = 0;
    if (info->native_device != NULL) {
        device->context = info->native_device;
        EG_TRY(enter(device));
        return leave(device,
                     eg_cuda_check(device, driver->cuCtxGetDevice(&device->ordinal), "cuCtxGetDevice"));
    }
    if (driver->cuDeviceGetCount(&count) != CUDA_SUCCESS || info->device < 0 || info->device >= count) {
        return eg_fail(EG_ERR_UNAVAILABLE, "info.device is %d; this machine has %d CUDA devices",
                       info->device, count);
    }
    EG_TRY(eg_cuda_check(device, driver->cuDeviceGet(&device->ordinal, info->device), "cuDeviceGet"));
    EG_TRY(eg_cuda_check(device, driver->cuDevicePrimaryCtxRetain(&device->context, device->ordinal),
                         "cuDevicePrimaryCtxRetain"));
    device->primary = true;
    return EG_OK;
}

static eg_status detect(eg_context *context, eg_cuda_device *device) {
    char name[128] = "", features[64];
    int major = 0, minor = 0;
    EG_TRY(eg_cuda_check(device, device->driver->cuDeviceGetName(name, (int)sizeof name - 1, device->ordinal),
                         "cuDeviceGetName"));
    EG_TRY(attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major));
    EG_TRY(attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor));
    EG_TRY(attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &device->caps.multiprocessors));
    EG_TRY(attribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &device->caps.shared));
    if (major < 8) {
        return eg_fail(EG_ERR_UNAVAILABLE, "%s has compute capability %d.%d; expected 8.0 or more", name,
                       major, minor);
    }
    context->caps.rounds_grad_pre = true;
    context->caps.features = EG_CUDA_SM80;
    if (major == 9 && minor == 0) context->caps.features |= EG_CUDA_SM90A;
    device->lt = eg_cuda_lt_open(context);
    if (device->lt != NULL) context->caps.features |= EG_CUDA_LT;
    device->caps.calibration = eg_cuda_calibration_of(name);
    context->caps.detail = &device->caps;
    snprintf(features, sizeof features, "sm_%d%d%s", major, minor, device->lt != NULL ? " cublaslt" : "");
    context->name = eg_host_text(context, name);
    context->features = eg_host_text(context, features);
    if (context->name == NULL || context->features == NULL)
        return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for a context");
    return EG_OK;
}

static void dispose(eg_context *context, eg_cuda_device *device) {
    if (device->context != NULL && device->driver->cuCtxPushCurrent(device->context) == CUDA_SUCCESS) {
        if (device->fork != NULL) device->driver->cuEventDestroy(device->fork);
        if (device->join != NULL) device->driver->cuEventDestroy(device->join);
        if (device->side != NULL) device->driver->cuStreamDestroy(device->side);
        eg_cuda_graphs_close(context, device);
        eg_cuda_unload_kernels(device);
        eg_cuda_lt_close(context, device->lt);
        leave(device, EG_OK);
    }
    if (device->primary) device->driver->cuDevicePrimaryCtxRelease(device->ordinal);
    eg_host_free(context, device);
}

static eg_status make_side_stream(eg_cuda_device *device) {
    const eg_cuda_driver *driver = device->driver;
    EG_TRY(eg_cuda_check(device, driver->cuStreamCreate(&device->side, CU_STREAM_NON_BLOCKING),
                         "cuStreamCreate"));
    EG_TRY(eg_cuda_check(device, driver->cuEventCreate(&device->fork, CU_EVENT_DISABLE_TIMING),
                         "cuEventCreate"));
    return eg_cuda_check(device, driver->cuEventCreate(&device->join, CU_EVENT_DISABLE_TIMING),
                         "cuEventCreate");
}

static eg_status start(eg_context *context, eg_cuda_device *device, const eg_open_info *info) {
    EG_TRY(find_device(device, info));
    EG_TRY(enter(device));
    eg_status status = detect(context, device);
    if (status == EG_OK) status = make_side_stream(device);
    if (status == EG_OK) status = eg_cuda_load_kernels(device, context->caps.features);
    if (status == EG_OK) status = eg_cuda_graphs_open(context, device);
    return leave(device, status);
}

static eg_status cuda_open(eg_context *context, const eg_open_info *info) {
    const eg_cuda_driver *driver;
    EG_TRY(eg_cuda_driver_get(&driver));
    eg_cuda_device *device = eg_host_alloc(context, sizeof *device);
    if (device == NULL)
        return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for a device of %zu bytes", sizeof *device);
    const char *check = getenv("EPIGRAD_CUDA_CHECK");
    *device = (eg_cuda_device){
        .driver = driver, .stream = info->native_queue, .checked = check != NULL && *check != '\0'};
    context->device = device;
    const eg_status status = start(context, device, info);
    if (status != EG_OK) dispose(context, device);
    return status;
}

static void cuda_close(eg_context *context) { dispose(context, context->device); }

/* ---- Memory ------------------------------------------------------------------------------------------ */

static eg_status synchronise(eg_cuda_device *device) {
    return eg_cuda_check(device, device->driver->cuStreamSynchronize(device->stream), "eg_sync");
}

static eg_status cuda_sync(eg_context *context) {
    eg_cuda_device *device = context->device;
    EG_TRY(enter(device));
    return leave(device, synchronise(device));
}

static eg_status cuda_alloc(eg_context *context, size_t bytes, void **memory) {
    eg_cuda_device *device = context->device;
    CUdeviceptr address = 0;
    EG_TRY(enter(device));
    const CUresult result = device->driver->cuMemAlloc(&address, bytes > 0 ? bytes : 1);
    *memory = (void *)(uintptr_t)address;
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return leave(device, eg_fail(EG_ERR_OUT_OF_MEMORY, "no device memory for %zu bytes", bytes));
    return leave(device, eg_cuda_check(device, result, "cuMemAlloc"));
}

static void cuda_free(eg_context *context, void *memory) {
    eg_cuda_device *device = context->device;
    if (device->driver->cuCtxPushCurrent(device->context) != CUDA_SUCCESS) return;
    device->driver->cuMemFree((CUdeviceptr)(uintptr_t)memory);
    leave(device, EG_OK);
}

static eg_status cuda_upload(eg_context *context, void *memory, size_t offset, const void *host,
                             size_t bytes) {
    eg_cuda_device *device = context->device;
    EG_TRY(enter(device));
    const CUdeviceptr to = (CUdeviceptr)(uintptr_t)memory + offset;
    eg_status status = eg_cuda_check(
        device, device->driver->cuMemcpyHtoDAsync(to, host, bytes, device->stream), "eg_upload");
    if (status == EG_OK) status = synchronise(device);
    return leave(device, status);
}

static eg_status cuda_download(eg_context *context, void *host, const void *memory, size_t offset,
                               size_t bytes) {
    eg_cuda_device *device = context->device;
    EG_TRY(enter(device));
    const CUdeviceptr from = (CUdeviceptr)(uintptr_t)memory + offset;
    eg_status status = eg_cuda_check(
        device, device->driver->cuMemcpyDtoHAsync(host, from, bytes, device->stream), "eg_download");
    if (status == EG_OK) status = synchronise(device);
    return leave(device, status);
}

/* ---- Calls ------------------------------------------------------------------------------------------- */

/* A call made before is one launch; otherwise the library is asked for its algorithms before anything is
 * enqueued. */
static eg_status cuda_run(eg_context *context, const eg_program *program, const eg_call *call,
                          bool *refused) {
    eg_cuda_device *device = context->device;
    bool done = false;
    EG_TRY(enter(device));
    eg_status status = eg_cuda_replay(device, program, call, &done, refused);
    if (status == EG_OK && !done && !*refused)
        status = eg_cuda_enqueue(device, program, call, device->stream);
    return leave(device, status);
}

/* The kernels read B as it is, row- or column-major: a pack is a copy in rows of 16-byte vectors. */
static eg_status plan_pack(const eg_problem *problem, eg_packed *packed, size_t *bytes) {
    const int64_t each = 16 / (int64_t)eg_dtype_size(problem->dtype);
    const int64_t ld = eg_ceil_div(problem->n, each) * each, items = packed->batched ? problem->batch : 1;
    const eg_cuda_pack pack = {.ld = ld, .item_stride = packed->batched ? problem->k * ld : 0};
    if (__builtin_mul_overflow(problem->k, ld, bytes) || __builtin_mul_overflow(*bytes, items, bytes) ||
        __builtin_mul_overflow(*bytes, eg_dtype_size(problem->dtype), bytes))
        return eg_fail(EG_ERR_OUT_OF_MEMORY, "a pack of this b is larger than memory can be");
    memcpy(packed->detail, &pack, sizeof pack);
    packed->holds = (uint64_t)ld;
    return EG_OK;
}

static eg_status cuda_pack(eg_context *context, const eg_problem *problem, eg_packed *packed) {
    eg_call call = {.operand[EG_OP_B] = {problem->operands[EG_OP_B].data, problem->operands[EG_OP_B].offset},
                    .packed_b = packed};
    eg_program program;
    if (packed->data == NULL) {
        size_t bytes;
        EG_TRY(plan_pack(problem, packed, &bytes));
        EG_TRY(cuda_alloc(context, bytes, &packed->data));
    }
    eg_lower_pack(problem, packed->batched, &program.list);
    program.list.packed_b = packed;
    EG_TRY(eg_compile(&context->caps, &program));
    eg_cuda_device *device = context->device;
    EG_TRY(enter(device));
    return leave(device, eg_cuda_enqueue(device, &program, &call, device->stream));
}

static eg_status cuda_kernel_info(const eg_caps *caps, int index, eg_kernel_info *info) {
    static const char *const needs[] = {"", "sm_80", "sm_90a", "sm_80 sm_90a", "cublaslt"};
    const eg_cuda_kernel *row = eg_cuda_kernel_row(index);
    if (row == NULL)
        return eg_fail(EG_ERR_ARGUMENT, "index is %d; expected a row of the kernel table", index);
    const char *tile = strrchr(row->name, '_') + 1;
    *info = (eg_kernel_info){.name = row->name,
                             .compute = row->compute,
                             .usable = (row->needs & caps->features) == row->needs,
                             .needs = row->needs < 5 ? needs[row->needs] : "",
                             .tile = strchr(tile, 'x') != NULL ? tile : "64x64"};
    return EG_OK;
}

/* ---- The peak ---------------------------------------------------------------------------------------- */

static eg_status cuda_measure_peak(eg_context *context, eg_dtype dtype, double *gflops) {
    eg_cuda_device *device = context->device;
    void *out = NULL;
    EG_TRY(cuda_alloc(context, EG_CUDA_PEAK_BYTES, &out));
    EG_TRY(enter(device));
    const eg_status status = leave(device, eg_cuda_measure_peak(device, context->caps.features, dtype,
                                                                (uint64_t)(uintptr_t)out, gflops));
    cuda_free(context, out);
    return status;
}

const eg_backend_ops *eg_cuda_ops(void) {
    static const eg_backend_ops ops = {
        .open = cuda_open,
        .close = cuda_close,
        .sync = cuda_sync,
        .alloc = cuda_alloc,
        .free = cuda_free,
        .upload = cuda_upload,
        .download = cuda_download,
        .compile = eg_cuda_compile,
        .run = cuda_run,
        .pack = cuda_pack,
        .kernel_info = cuda_kernel_info,
        .measure_peak = cuda_measure_peak,
    };
    return &ops;
}
