/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA behind the backend interface. Calls enqueue on the caller's stream. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compile.h"
#include "core/clock.h"
#include "core/collectives.h"
#include "core/error.h"
#include "device.h"
#include "parameters.h"

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
        EG_TRY(eg_cuda_enter(device));
        return eg_cuda_leave(
            device, eg_cuda_check(device, driver->cuCtxGetDevice(&device->ordinal), "cuCtxGetDevice"));
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
    int major = 0, minor = 0, caches = 0;
    EG_TRY(eg_cuda_check(device, device->driver->cuDeviceGetName(name, (int)sizeof name - 1, device->ordinal),
                         "cuDeviceGetName"));
    EG_TRY(attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major));
    EG_TRY(attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor));
    EG_TRY(attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &device->caps.multiprocessors));
    EG_TRY(attribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &device->caps.shared));
    EG_TRY(attribute(device, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &caches));
    if (major < 8) {
        return eg_fail(EG_ERR_UNAVAILABLE, "%s has compute capability %d.%d; expected 8.0 or more", name,
                       major, minor);
    }
    context->caps.caches = (size_t)caches;
    context->caps.one_level = true;
    context->caps.reads_ends = true;
    context->caps.rounds_grad_pre = true;
    context->caps.features = EG_CUDA_SM80;
    if (major == 9 && minor == 0) context->caps.features |= EG_CUDA_SM90A;
    device->lt = eg_cuda_lt_open(context);
    if (device->lt != NULL) context->caps.features |= EG_CUDA_LT;
    device->caps.calibration = eg_cuda_calibration_of(name);
    context->caps.detail = &device->caps;
    snprintf(features, sizeof features, "sm_%d%d%s", major, minor, device->lt != NULL ? " cublaslt" : "");
    return eg_describe(context, name, features);
}

static void dispose(eg_context *context, eg_cuda_device *device) {
    if (device->context != NULL && device->driver->cuCtxPushCurrent(device->context) == CUDA_SUCCESS) {
        if (device->fork != NULL) device->driver->cuEventDestroy(device->fork);
        if (device->join != NULL) device->driver->cuEventDestroy(device->join);
        if (device->side != NULL) device->driver->cuStreamDestroy(device->side);
        eg_cuda_graphs_close(context, device);
        eg_cuda_unload_kernels(device);
        eg_cuda_lt_close(context, device->lt);
        if (device->wrong != NULL) device->driver->cuMemFreeHost((void *)(uintptr_t)device->wrong);
        eg_cuda_leave(device, EG_OK);
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

/* The host is to learn of wrong ends without a copy: of a word that it reads where it waits anyway. */
static eg_status make_word(eg_cuda_device *device) {
    void *word = NULL;
    EG_TRY(eg_cuda_check(
        device, device->driver->cuMemHostAlloc(&word, sizeof *device->wrong, CU_MEMHOSTALLOC_DEVICEMAP),
        "cuMemHostAlloc"));
    device->wrong = word;
    *device->wrong = 0;
    return eg_cuda_check(device, device->driver->cuMemHostGetDevicePointer(&device->wrong_at, word, 0),
                         "cuMemHostGetDevicePointer");
}

static eg_status start(eg_context *context, eg_cuda_device *device, const eg_open_info *info) {
    EG_TRY(find_device(device, info));
    EG_TRY(eg_cuda_enter(device));
    const CUstreamCaptureMode before = eg_cuda_set_capture_mode(device, CU_STREAM_CAPTURE_MODE_RELAXED);
    eg_status status = detect(context, device);
    if (status == EG_OK) status = make_side_stream(device);
    if (status == EG_OK) status = make_word(device);
    if (status == EG_OK) status = eg_cuda_graphs_open(context, device);
    eg_cuda_set_capture_mode(device, before);
    return eg_cuda_leave(device, status);
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

/* A collective whose other ranks are gone never ends: its engine is asked while the stream is waited for. */
static eg_status wait_for_comm(eg_cuda_device *device) {
    const eg_comm *comm = device->comm;
    const double begin = eg_seconds(), timeout = comm->timeout > 0 ? comm->timeout : 600;
    char text[8];
    while (device->driver->cuStreamQuery(device->stream) == CUDA_ERROR_NOT_READY) {
        eg_status status = EG_OK;
        if (comm->failure(comm->user, text, sizeof text) != EG_OK)
            status = eg_collectives_fail(comm, "a collective");
        else if (eg_seconds() - begin > timeout)
            status = eg_fail(EG_ERR_DEVICE, "eg_sync: rank %d waited %g s for collectives of %d ranks",
                             comm->rank, timeout, comm->ranks);
        if (status == EG_OK) {
            sched_yield();
            continue;
        }
        device->comm = NULL;
        comm->abort(comm->user);
        return status;
    }
    device->comm = NULL;
    return EG_OK;
}

/* Said once, by the first call that waits. */
static eg_status check_ends(eg_cuda_device *device) {
    if (*device->wrong == 0) return EG_OK;
    *device->wrong = 0;
    return eg_fail(
        EG_ERR_ARGUMENT,
        "the offsets of a grouped call before this were wrong; expected ends of groups that do not "
        "decrease, up to layer.m");
}

static eg_status synchronise(eg_cuda_device *device) {
    if (device->comm != NULL) EG_TRY(wait_for_comm(device));
    EG_TRY(eg_cuda_check(device, device->driver->cuStreamSynchronize(device->stream), "eg_sync"));
    return check_ends(device);
}

static eg_status cuda_sync(eg_context *context) {
    eg_cuda_device *device = context->device;
    EG_TRY(eg_cuda_enter(device));
    return eg_cuda_leave(device, synchronise(device));
}

static eg_status cuda_alloc(eg_context *context, size_t bytes, void **memory) {
    eg_cuda_device *device = context->device;
    CUdeviceptr address = 0;
    EG_TRY(eg_cuda_enter(device));
    const CUstreamCaptureMode before = eg_cuda_set_capture_mode(device, CU_STREAM_CAPTURE_MODE_RELAXED);
    const CUresult result = device->driver->cuMemAlloc(&address, bytes > 0 ? bytes : 1);
    eg_cuda_set_capture_mode(device, before);
    *memory = (void *)(uintptr_t)address;
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return eg_cuda_leave(device, eg_fail(EG_ERR_OUT_OF_MEMORY, "no device memory for %zu bytes", bytes));
    return eg_cuda_leave(device, eg_cuda_check(device, result, "cuMemAlloc"));
}

static void cuda_free(eg_context *context, void *memory) {
    eg_cuda_device *device = context->device;
    if (device->driver->cuCtxPushCurrent(device->context) != CUDA_SUCCESS) return;
    device->driver->cuMemFree((CUdeviceptr)(uintptr_t)memory);
    eg_cuda_leave(device, EG_OK);
}

static eg_status finish_copy(eg_cuda_device *device, CUresult result, const char *what) {
    eg_status status = eg_cuda_check(device, result, what);
    if (status == EG_OK) status = synchronise(device);
    return eg_cuda_leave(device, status);
}

static eg_status cuda_upload(eg_context *context, void *memory, size_t offset, const void *host,
                             size_t bytes) {
    eg_cuda_device *device = context->device;
    EG_TRY(eg_cuda_enter(device));
    const CUdeviceptr to = (CUdeviceptr)(uintptr_t)memory + offset;
    return finish_copy(device, device->driver->cuMemcpyHtoDAsync(to, host, bytes, device->stream),
                       "eg_upload");
}

static eg_status cuda_download(eg_context *context, void *host, const void *memory, size_t offset,
                               size_t bytes) {
    eg_cuda_device *device = context->device;
    EG_TRY(eg_cuda_enter(device));
    const CUdeviceptr from = (CUdeviceptr)(uintptr_t)memory + offset;
    return finish_copy(device, device->driver->cuMemcpyDtoHAsync(host, from, bytes, device->stream),
                       "eg_download");
}

/* ---- Calls ------------------------------------------------------------------------------------------- */

/* By the words that each rank has for a call, before any other of its collectives. Waits for the device. */
static eg_status gather_words(eg_context *context, const eg_program *program, const eg_call *call,
                              int64_t *words) {
    eg_cuda_device *device = context->device;
    const eg_comm *comm = call->collectives->comm;
    const eg_address *at = &call->operand[EG_EXCHANGED];
    const size_t mine = EG_AGREED_WORDS * sizeof *words, all = (size_t)comm->ranks * mine;
    char *place = (char *)at->data + at->offset;
    eg_collectives_say(program, words);
    EG_TRY(cuda_upload(context, at->data, at->offset, words, mine));
    if (comm->all_gather(comm->user, place, place + mine, mine, mine, EG_COMM_NOW, device->stream) != EG_OK)
        return eg_collectives_fail(comm, "the comparison of calls");
    device->comm = comm; /* who is waited for no longer than a limit */
    EG_TRY(cuda_download(context, words + EG_AGREED_WORDS, at->data, at->offset + mine, all));
    return eg_collectives_compare(call->collectives, words + EG_AGREED_WORDS);
}

static eg_status compare_ranks(eg_context *context, const eg_program *program, const eg_call *call) {
    int64_t *words = eg_host_alloc(context, (size_t)eg_agreement_bytes(call->collectives->comm->ranks));
    if (words == NULL) return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for what ranks say of a call");
    const eg_status status = gather_words(context, program, call, words);
    eg_host_free(context, words);
    return status;
}

/* A call made before is one launch; otherwise the library is asked for its algorithms before anything is
 * enqueued. */
static eg_status cuda_run(eg_context *context, const eg_program *program, const eg_call *call,
                          bool *refused) {
    eg_cuda_device *device = context->device;
    bool done = false;
    if (device->checked && call->collectives != NULL) EG_TRY(compare_ranks(context, program, call));
    EG_TRY(eg_cuda_enter(device));
    if (call->collectives != NULL) device->comm = call->collectives->comm;
    eg_status status = eg_cuda_replay(device, program, call, &done, refused);
    if (status == EG_OK && !done && !*refused)
        status = eg_cuda_enqueue(device, program, call, device->stream, NULL);
    return eg_cuda_leave(device, status);
}

/* ---- Trials ------------------------------------------------------------------------------------------ */

/* Where the stream's state cannot be told, the call itself will say why. */
static bool cuda_may_time(const eg_context *context) {
    eg_cuda_device *device = context->device;
    if (device->driver->cuCtxPushCurrent(device->context) != CUDA_SUCCESS) return false;
    const bool may = eg_cuda_may_time(device);
    eg_cuda_leave(device, EG_OK);
    return may;
}

static eg_status cuda_copy(eg_context *context, void *to, const void *from, size_t bytes) {
    eg_cuda_device *device = context->device;
    EG_TRY(eg_cuda_enter(device));
    return eg_cuda_leave(device, eg_cuda_check(device,
                                               device->driver->cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)to,
                                                                                 (CUdeviceptr)(uintptr_t)from,
                                                                                 bytes, device->stream),
                                               "cuMemcpyDtoDAsync"));
}

static eg_status cuda_record(eg_context *context, const eg_program *program, const eg_call *calls, int count,
                             void **recording) {
    eg_cuda_device *device = context->device;
    EG_TRY(eg_cuda_enter(device));
    const CUstreamCaptureMode before = eg_cuda_set_capture_mode(device, CU_STREAM_CAPTURE_MODE_RELAXED);
    const eg_status status = eg_cuda_record(context, device, program, calls, count, recording);
    eg_cuda_set_capture_mode(device, before);
    return eg_cuda_leave(device, status);
}

static eg_status cuda_replay(eg_context *context, void *recording, double *microseconds) {
    eg_cuda_device *device = context->device;
    EG_TRY(eg_cuda_enter(device));
    const CUstreamCaptureMode before = eg_cuda_set_capture_mode(device, CU_STREAM_CAPTURE_MODE_RELAXED);
    const eg_status status = eg_cuda_replay_recording(device, recording, microseconds);
    eg_cuda_set_capture_mode(device, before);
    return eg_cuda_leave(device, status);
}

static void cuda_forget(eg_context *context, void *recording) {
    eg_cuda_device *device = context->device;
    if (device->driver->cuCtxPushCurrent(device->context) != CUDA_SUCCESS) return;
    eg_cuda_forget_recording(context, device, recording);
    eg_cuda_leave(device, EG_OK);
}

/* ---- Packs ------------------------------------------------------------------------------------------- */

/* The kernels read B as it is, row- or column-major: a pack is a copy in rows of 16-byte vectors. */
static eg_status plan_pack(const eg_problem *problem, eg_packed *packed, size_t *bytes) {
    const int64_t ld = eg_cuda_pitch_of(problem->n, problem->dtype),
                  items = packed->batched ? problem->batch : 1;
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
    EG_TRY(eg_cuda_enter(device));
    return eg_cuda_leave(device, eg_cuda_enqueue(device, &program, &call, device->stream, NULL));
}

static bool cuda_kernel_info(const eg_caps *caps, int index, eg_kernel_info *info) {
    static const char *const needs[] = {"", "sm_80", "sm_90a", "sm_80 sm_90a", "cublaslt"};
    const eg_cuda_kernel *row = eg_cuda_kernel_row(index);
    if (row == NULL) return false;
    const char *tile = strrchr(row->name, '_') + 1;
    *info = (eg_kernel_info){.name = row->name,
                             .compute = row->compute,
                             .usable = (row->needs & caps->features) == row->needs,
                             .needs = row->needs < 5 ? needs[row->needs] : "",
                             .tile = strchr(tile, 'x') != NULL ? tile : "64x64"};
    return true;
}

/* ---- The peak ---------------------------------------------------------------------------------------- */

static eg_status cuda_measure_peak(eg_context *context, eg_dtype dtype, double *gflops) {
    eg_cuda_device *device = context->device;
    void *out = NULL;
    EG_TRY(cuda_alloc(context, EG_CUDA_PEAK_BYTES, &out));
    EG_TRY(eg_cuda_enter(device));
    const eg_status status = eg_cuda_leave(device, eg_cuda_measure_peak(device, context->caps.features, dtype,
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
        .may_time = cuda_may_time,
        .copy = cuda_copy,
        .record = cuda_record,
        .replay = cuda_replay,
        .forget = cuda_forget,
        .pack = cuda_pack,
        .kernel_info = cuda_kernel_info,
        .measure_peak = cuda_measure_peak,
    };
    return &ops;
}
