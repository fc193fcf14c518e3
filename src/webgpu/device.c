/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a device, waiting for it, and what its errors become.
 *
 * Only what every implementation has is used: callbacks in the mode that ProcessEvents serves, and waiting by
 * mapping a buffer. (WaitAny is missing in some, and QueueOnSubmittedWorkDone's callback has changed.) */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/error.h"

/* ---- Callbacks ---------------------------------------------------------------------------------- */

static void keep_message(eg_webgpu *gpu, WGPUEnum type, WGPUStringView text) {
    if (gpu->failure != 0) return; /* the first one is the cause */
    gpu->failure = type;
    const size_t length = text.data == NULL ? 0 : text.length == SIZE_MAX ? strlen(text.data) : text.length;
    snprintf(gpu->message, sizeof gpu->message, "%.*s", length < 380 ? (int)length : 380,
             text.data != NULL ? text.data : "");
    for (char *at = gpu->message; *at != '\0'; at++) { /* one line */
        if (*at == '\n' || *at == '\r' || *at == '\t') *at = ' ';
    }
}

static void on_error(const WGPUDevice *device, WGPUEnum type, WGPUStringView message, void *gpu,
                     void *unused) {
    (void)device, (void)unused;
    keep_message(gpu, type, message);
}

static void on_lost(const WGPUDevice *device, WGPUEnum reason, WGPUStringView message, void *arg,
                    void *unused) {
    eg_webgpu *gpu = arg;
    (void)device, (void)reason, (void)unused;
    gpu->lost = true;
    keep_message(gpu, WGPUErrorType_NoError, message);
}

static void on_adapter(WGPUEnum status, WGPUAdapter adapter, WGPUStringView message, void *arg,
                       void *unused) {
    (void)message, (void)unused;
    *(eg_webgpu_reply *)arg = (eg_webgpu_reply){.done = true, .status = status, .object = adapter};
}

static void on_device(WGPUEnum status, WGPUDevice device, WGPUStringView message, void *arg, void *unused) {
    eg_webgpu_reply *answer = arg;
    (void)unused;
    if (status != WGPURequestStatus_Success) keep_message(answer->gpu, WGPUErrorType_Validation, message);
    answer->done = true, answer->status = status, answer->object = device;
}

static void on_map(WGPUEnum status, WGPUStringView message, void *arg, void *unused) {
    eg_webgpu_reply *answer = arg;
    (void)unused;
    if (status != WGPUMapAsyncStatus_Success) keep_message(answer->gpu, WGPUErrorType_Validation, message);
    answer->done = true, answer->status = status;
}

static void on_scope(WGPUEnum status, WGPUEnum type, WGPUStringView message, void *arg, void *unused) {
    eg_webgpu_reply *answer = arg;
    (void)status, (void)unused;
    if (type > WGPUErrorType_NoError) keep_message(answer->gpu, type, message);
    answer->done = true;
}

/* Serves callbacks until this one came: false if it does not within a minute, or when work that took longer
 * is through. */
static bool await(eg_webgpu *gpu, const eg_webgpu_reply *answer) {
    const struct timespec pause = {.tv_nsec = 20000};
    const double patience = 60, begin = eg_seconds();
    while (!answer->done) {
        const bool is_late = eg_seconds() - begin > patience;
        gpu->api.InstanceProcessEvents(gpu->instance);
        if (answer->done) break;
        if (is_late) return false;
        if (gpu->device != NULL && gpu->api.DevicePoll != NULL && !gpu->lost) {
            gpu->api.DevicePoll(gpu->device, 1, NULL);
        } else {
            if (gpu->mode == WGPUCallbackMode_AllowSpontaneous) gpu->api.DeviceTick(gpu->device);
            if (!answer->done) nanosleep(&pause, NULL);
        }
    }
    return true;
}

/* ---- Errors ------------------------------------------------------------------------------------- */

/* wgpu-native aborts on the third filter, Internal; such errors arrive as uncaptured ones. */
static const WGPUEnum filters[] = {WGPUErrorFilter_Validation, WGPUErrorFilter_OutOfMemory};
_Static_assert(sizeof filters / sizeof *filters == EG_WEBGPU_SCOPES, "a reply for each");

void eg_webgpu_guard(eg_webgpu *gpu) {
    for (int i = 0; i < EG_WEBGPU_SCOPES; i++) gpu->api.DevicePushErrorScope(gpu->device, filters[i]);
}

static eg_status report(eg_webgpu *gpu, const char *doing) {
    const WGPUEnum failure = gpu->failure;
    gpu->failure = 0;
    if (gpu->lost || strstr(gpu->message, "lost") != NULL) {
        gpu->lost = true;
        return eg_fail(EG_ERR_DEVICE, "the WebGPU device was lost (%s); close the context and open another",
                       gpu->message);
    }
    return eg_fail(failure == WGPUErrorType_OutOfMemory ? EG_ERR_OUT_OF_MEMORY : EG_ERR_DEVICE,
                   "the WebGPU device failed while %s: %s", doing, gpu->message);
}

eg_status eg_webgpu_check(eg_webgpu *gpu, const char *doing) {
    for (int i = 0; i < EG_WEBGPU_SCOPES; i++) {
        gpu->scope[i] = (eg_webgpu_reply){.gpu = gpu};
        gpu->api.DevicePopErrorScope(
            gpu->device, (WGPUPopErrorScopeCallbackInfo){
                             .mode = gpu->mode, .callback = on_scope, .userdata1 = &gpu->scope[i]});
    }
    for (int i = 0; i < EG_WEBGPU_SCOPES; i++) {
        if (!await(gpu, &gpu->scope[i])) gpu->lost = true;
    }
    return gpu->lost || gpu->failure != 0 ? report(gpu, doing) : EG_OK;
}

/* ---- Opening ------------------------------------------------------------------------------------ */

/* Room behind the structs for fields of newer headers, which the library may write. */
typedef struct roomy_limits {
    WGPULimits limits;
    char newer[256];
} roomy_limits;

static WGPUAdapter request_adapter(eg_webgpu *gpu, WGPUEnum backend) {
    eg_webgpu_reply *answer = &gpu->reply;
    *answer = (eg_webgpu_reply){.gpu = gpu};
    const WGPURequestAdapterOptions options = {.powerPreference = WGPUPowerPreference_HighPerformance,
                                               .backendType = backend};
    gpu->api.InstanceRequestAdapter(
        gpu->instance, &options,
        (WGPURequestAdapterCallbackInfo){
            .mode = WGPUCallbackMode_AllowProcessEvents, .callback = on_adapter, .userdata1 = answer});
    return await(gpu, answer) && answer->status == WGPURequestStatus_Success ? answer->object : NULL;
}

/* Adapter number `ordinal` of the implementation's list; 0 is the one it would pick itself. */
static WGPUAdapter find_adapter(eg_webgpu *gpu, int ordinal) {
    enum { MOST = 16 };
    WGPUAdapter all[MOST], found = NULL;
    if (ordinal == 0) {
        found = request_adapter(gpu, WGPUBackendType_Vulkan);
        return found != NULL ? found : request_adapter(gpu, 0);
    }
    if (gpu->api.InstanceEnumerateAdapters == NULL) return NULL;
    const size_t count = gpu->api.InstanceEnumerateAdapters(gpu->instance, NULL, NULL);
    if (count > MOST) return NULL;
    gpu->api.InstanceEnumerateAdapters(gpu->instance, NULL, all);
    for (size_t i = 0; i < count; i++) {
        if (i == (size_t)ordinal) {
            found = all[i];
        } else {
            gpu->api.AdapterRelease(all[i]);
        }
    }
    return found;
}

static WGPUDevice request_device(eg_webgpu *gpu, WGPUAdapter adapter, const WGPULimits *limits) {
    const WGPUEnum f16 = WGPUFeatureName_ShaderF16;
    eg_webgpu_reply *answer = &gpu->reply;
    *answer = (eg_webgpu_reply){.gpu = gpu};
    const WGPUDeviceDescriptor wanted = {
        .requiredFeatureCount = gpu->api.AdapterHasFeature(adapter, f16) ? 1 : 0,
        .requiredFeatures = &f16,
        .requiredLimits = limits,
        .deviceLostCallbackInfo = {.mode = WGPUCallbackMode_AllowProcessEvents,
                                   .callback = on_lost,
                                   .userdata1 = gpu},
        .uncapturedErrorCallbackInfo = {.callback = on_error, .userdata1 = gpu},
    };
    gpu->api.AdapterRequestDevice(adapter, &wanted,
                                  (WGPURequestDeviceCallbackInfo){.mode = WGPUCallbackMode_AllowProcessEvents,
                                                                  .callback = on_device,
                                                                  .userdata1 = answer});
    return await(gpu, answer) && answer->status == WGPURequestStatus_Success ? answer->object : NULL;
}

/* Left to itself, wgpu-native tries OpenGL too, which prints where there is no display. The chained struct is
 * its own, so it goes to no other implementation. */
static WGPUInstance create_instance(eg_webgpu *gpu) {
    enum { INSTANCE_EXTRAS = 0x00030004, VULKAN_METAL_D3D12 = 1 | 4 | 8 };
    const struct {
        WGPUChainedStruct chain;
        WGPUFlags backends;
        char rest[256];
    } extras = {.chain.sType = INSTANCE_EXTRAS, .backends = VULKAN_METAL_D3D12};
    const struct {
        const void *chain;
        char rest[64];
    } wanted = {.chain = &extras};
    return gpu->api.CreateInstance(gpu->api.DevicePoll != NULL ? &wanted : NULL);
}

static eg_status open_own(eg_webgpu *gpu, int ordinal, WGPUAdapterInfo *info) {
    roomy_limits limits = {0};
    WGPUAdapter adapter = find_adapter(gpu, ordinal);
    if (adapter == NULL) {
        return eg_fail(EG_ERR_UNAVAILABLE,
                       "WebGPU adapter %d was not found; expected a GPU with a Vulkan, Metal or D3D12 driver "
                       "(a software one is Debian's mesa-vulkan-drivers)",
                       ordinal);
    }
    gpu->api.AdapterGetInfo(adapter, info);
    gpu->api.AdapterGetLimits(adapter, &limits.limits);
    limits.limits.nextInChain = NULL;
    gpu->device = request_device(gpu, adapter, &limits.limits);
    gpu->api.AdapterRelease(adapter);
    gpu->owns_device = true;
    if (gpu->device != NULL) return EG_OK;
    return eg_fail(EG_ERR_UNAVAILABLE, "WebGPU adapter %d gave no device: %s", ordinal, gpu->message);
}

static void append(char *text, size_t capacity, const char *prefix, WGPUStringView view) {
    const size_t used = strlen(text);
    const size_t length = view.data == NULL ? 0 : view.length == SIZE_MAX ? strlen(view.data) : view.length;
    if (length > 0) snprintf(text + used, capacity - used, "%s%.*s", prefix, (int)length, view.data);
}

/* `name` as users see it. */
static void take_limits(eg_webgpu *gpu, const char *name, const WGPUAdapterInfo *adapter) {
    roomy_limits held = {0};
    const uint64_t most = (uint64_t)1 << 40;
    gpu->api.DeviceGetLimits(gpu->device, &held.limits);
    const WGPULimits *limits = &held.limits;
    const bool cpu = adapter->adapterType == WGPUAdapterType_CPU;
    const bool discrete = adapter->adapterType == WGPUAdapterType_DiscreteGPU;
    gpu->most_buffer = limits->maxBufferSize;
    gpu->caps = (eg_webgpu_caps){
        .binding =
            limits->maxStorageBufferBindingSize < most ? limits->maxStorageBufferBindingSize / 4 * 4 : most,
        .align =
            limits->minStorageBufferOffsetAlignment > 256 ? limits->minStorageBufferOffsetAlignment : 256,
        .groups = limits->maxComputeWorkgroupsPerDimension,
        .invocations = limits->maxComputeInvocationsPerWorkgroup,
        .memory = limits->maxComputeWorkgroupStorageSize,
        .f16 = gpu->api.DeviceHasFeature(gpu->device, WGPUFeatureName_ShaderF16) != 0,
        .cpu = cpu,
        /* Display drivers give up after about 2 s. A GPU does at least 0.5 (integrated: 0.1) T/s. */
        .budget = cpu        ? 4e9
                  : discrete ? 2.5e11
                             : 2.5e10,
        .fill = cpu        ? 1
                : discrete ? 20480
                           : 4096,
        .part = 512,
        .adapter = eg_webgpu_adapter_of(name, adapter->adapterType),
    };
    const char *forced = getenv("EPIGRAD_WEBGPU_LIMITS");
    if (forced == NULL || strcmp(forced, "tiny") != 0) return;
    gpu->caps.binding = 4096;
    gpu->caps.groups = 3;
    gpu->caps.budget = 20000;
    gpu->caps.fill = 2048;
    gpu->caps.part = 32;
}

static void name_of(const WGPUAdapterInfo *info, char *name, size_t capacity) {
    name[0] = '\0';
    append(name, capacity, "", info->device);
    append(name, capacity, name[0] ? ", " : "", info->description);
    if (name[0] == '\0') append(name, capacity, "", eg_webgpu_text("a WebGPU device of the caller's"));
}

static eg_status describe(eg_context *context, const eg_webgpu *gpu, const char *name) {
    char features[128];
    snprintf(features, sizeof features, "%s%s", gpu->caps.cpu ? "software" : "gpu",
             gpu->caps.f16 ? " f16" : "");
    return eg_describe(context, name, features);
}

eg_status eg_webgpu_open_device(eg_context *context, const eg_open_info *info, eg_webgpu *gpu) {
    struct {
        WGPUAdapterInfo info;
        char newer[256];
    } adapter = {0};
    char name[256];
    EG_TRY(eg_webgpu_load(&gpu->api));
    eg_webgpu_silence_wayland();
    gpu->instance = create_instance(gpu);
    if (gpu->instance == NULL) return eg_fail(EG_ERR_UNAVAILABLE, "the WebGPU library made no instance");
    gpu->mode = WGPUCallbackMode_AllowProcessEvents;
    if (info->native_device != NULL) {
        gpu->device = info->native_device;
        /* Its events belong to the instance that it was made by: Dawn serves them by the device, too. */
        if (gpu->api.DeviceTick != NULL) gpu->mode = WGPUCallbackMode_AllowSpontaneous;
        /* wgpu-native, known by DevicePoll, has this entry point and aborts in it. */
        if (gpu->api.DeviceGetAdapterInfo != NULL && gpu->api.DevicePoll == NULL)
            gpu->api.DeviceGetAdapterInfo(gpu->device, &adapter.info);
    } else {
        EG_TRY(open_own(gpu, info->device, &adapter.info));
    }
    gpu->queue = info->native_queue;
    gpu->owns_queue = gpu->queue == NULL;
    if (gpu->owns_queue) gpu->queue = gpu->api.DeviceGetQueue(gpu->device);
    name_of(&adapter.info, name, sizeof name);
    take_limits(gpu, name, &adapter.info);
    eg_status status = describe(context, gpu, name);
    if (gpu->api.AdapterInfoFreeMembers != NULL) gpu->api.AdapterInfoFreeMembers(adapter.info);
    if (status == EG_OK) {
        status = eg_webgpu_make_buffer(
            gpu, 256, WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst,
            &gpu->dummy);
    }
    return status;
}

static void free_growing(eg_webgpu *gpu, eg_webgpu_growing *growing) {
    if (growing->buffer != NULL) gpu->api.BufferRelease(growing->buffer);
    *growing = (eg_webgpu_growing){0};
}

void eg_webgpu_close_device(eg_webgpu *gpu) {
    free_growing(gpu, &gpu->staging);
    free_growing(gpu, &gpu->params);
    free_growing(gpu, &gpu->scratch);
    free_growing(gpu, &gpu->mirror);
    if (gpu->dummy != NULL) gpu->api.BufferRelease(gpu->dummy);
    if (gpu->queue != NULL && gpu->owns_queue) gpu->api.QueueRelease(gpu->queue);
    if (gpu->device != NULL && gpu->owns_device) gpu->api.DeviceRelease(gpu->device);
    if (gpu->instance != NULL) gpu->api.InstanceRelease(gpu->instance);
    eg_webgpu_unload(&gpu->api);
}

/* ---- Buffers ------------------------------------------------------------------------------------ */

eg_status eg_webgpu_make_buffer(eg_webgpu *gpu, uint64_t bytes, WGPUFlags usage, WGPUBuffer *buffer) {
    *buffer = NULL;
    if (bytes > gpu->most_buffer) {
        return eg_fail(EG_ERR_OUT_OF_MEMORY, "a buffer of %llu bytes is more than this device allows, %llu",
                       (unsigned long long)bytes, (unsigned long long)gpu->most_buffer);
    }
    eg_webgpu_guard(gpu);
    WGPUBuffer made =
        gpu->api.DeviceCreateBuffer(gpu->device, &(WGPUBufferDescriptor){.usage = usage, .size = bytes});
    const eg_status status = eg_webgpu_check(gpu, "making a buffer");
    if (status == EG_OK && made != NULL) {
        *buffer = made;
        return EG_OK;
    }
    if (made != NULL) gpu->api.BufferRelease(made);
    if (status != EG_OK) return status;
    return eg_fail(EG_ERR_OUT_OF_MEMORY, "no device memory for %llu bytes", (unsigned long long)bytes);
}

eg_status eg_webgpu_grow(eg_webgpu *gpu, eg_webgpu_growing *growing, uint64_t bytes, WGPUFlags usage) {
    if (bytes <= growing->bytes) return EG_OK;
    free_growing(gpu, growing);
    EG_TRY(eg_webgpu_make_buffer(gpu, bytes, usage, &growing->buffer));
    growing->bytes = bytes;
    return EG_OK;
}

/* Copies to the staging buffer, waits until it can be mapped, and takes it from there. */
static eg_status read_part(eg_webgpu *gpu, void *host, WGPUBuffer buffer, uint64_t offset, uint64_t bytes) {
    eg_webgpu_reply *answer = &gpu->reply;
    *answer = (eg_webgpu_reply){.gpu = gpu};
    EG_TRY(eg_webgpu_grow(gpu, &gpu->staging, bytes, WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst));
    eg_webgpu_guard(gpu);
    WGPUCommandEncoder encoder = gpu->api.DeviceCreateCommandEncoder(gpu->device, NULL);
    gpu->api.CommandEncoderCopyBufferToBuffer(encoder, buffer, offset, gpu->staging.buffer, 0, bytes);
    WGPUCommandBuffer commands = gpu->api.CommandEncoderFinish(encoder, NULL);
    gpu->api.CommandEncoderRelease(encoder);
    const eg_status encoded = eg_webgpu_check(gpu, "copying from a buffer");
    if (encoded == EG_OK) gpu->api.QueueSubmit(gpu->queue, 1, &commands);
    gpu->api.CommandBufferRelease(commands);
    if (encoded != EG_OK) return encoded;
    gpu->api.BufferMapAsync(
        gpu->staging.buffer, WGPUMapMode_Read, 0, (size_t)bytes,
        (WGPUBufferMapCallbackInfo){.mode = gpu->mode, .callback = on_map, .userdata1 = answer});
    if (!await(gpu, answer)) gpu->lost = true;
    if (gpu->lost || gpu->failure != 0) return report(gpu, "running what was enqueued");
    if (answer->status != WGPUMapAsyncStatus_Success)
        return eg_fail(EG_ERR_DEVICE, "the WebGPU device did not finish what was enqueued");
    gpu->in_flight = 0;
    const void *mapped = gpu->api.BufferGetConstMappedRange(gpu->staging.buffer, 0, (size_t)bytes);
    if (mapped != NULL) memcpy(host, mapped, (size_t)bytes);
    gpu->api.BufferUnmap(gpu->staging.buffer);
    return mapped != NULL ? EG_OK : eg_fail(EG_ERR_DEVICE, "the WebGPU device gave no mapped memory");
}

eg_status eg_webgpu_read(eg_webgpu *gpu, void *host, WGPUBuffer buffer, uint64_t offset, uint64_t bytes) {
    const uint64_t most = (uint64_t)16 << 20;
    while (bytes > 0) {
        const uint64_t part = bytes < most ? bytes : most;
        EG_TRY(read_part(gpu, host, buffer, offset, part));
        host = (char *)host + part;
        offset += part, bytes -= part;
    }
    return EG_OK;
}

eg_status eg_webgpu_wait(eg_webgpu *gpu) {
    uint32_t word;
    return read_part(gpu, &word, gpu->dummy, 0, sizeof word);
}

eg_status eg_webgpu_ready(eg_webgpu *gpu) {
    if (!gpu->lost) gpu->api.InstanceProcessEvents(gpu->instance);
    return gpu->lost ? report(gpu, "idle") : EG_OK;
}

/* wgpu-native aborts on a write to a device that is lost; making something is what tells, of a device of the
 * caller's too. */
static eg_status probe(eg_webgpu *gpu) {
    eg_webgpu_guard(gpu);
    WGPUCommandEncoder encoder = gpu->api.DeviceCreateCommandEncoder(gpu->device, NULL);
    WGPUCommandBuffer commands = gpu->api.CommandEncoderFinish(encoder, NULL);
    gpu->api.CommandEncoderRelease(encoder);
    gpu->api.CommandBufferRelease(commands);
    return eg_webgpu_check(gpu, "starting a copy");
}

/* An empty submission lets the implementation give back what it staged. */
eg_status eg_webgpu_write(eg_webgpu *gpu, WGPUBuffer buffer, uint64_t offset, const void *host,
                          uint64_t bytes) {
    const uint64_t most = (uint64_t)64 << 20;
    if ((gpu->api.BufferGetUsage(buffer) & WGPUBufferUsage_CopyDst) == 0)
        return eg_fail(EG_ERR_ARGUMENT,
                       "the buffer was made without the usage CopyDst; expected it for an upload");
    EG_TRY(probe(gpu));
    eg_webgpu_guard(gpu);
    while (bytes > 0) {
        const uint64_t part = bytes < most ? bytes : most;
        gpu->api.QueueWriteBuffer(gpu->queue, buffer, offset, host, (size_t)part);
        if (part == most) gpu->api.QueueSubmit(gpu->queue, 0, NULL);
        host = (const char *)host + part;
        offset += part, bytes -= part;
    }
    return eg_webgpu_check(gpu, "copying to a buffer");
}
