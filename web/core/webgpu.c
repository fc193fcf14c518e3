/* SPDX-License-Identifier: Apache-2.0 */
/* webgpu.h in a page: each function takes its descriptor apart here, where the compiler knows its layout, and
 * calls a function of numbers that webgpu.js provides. An object of WebGPU is a number too, its handle.
 *
 * What takes its time in a page is a promise. The functions marked SUSPENDS wait for theirs: the browser sets
 * this whole stack aside and resumes it with the result (JavaScript Promise Integration), so that the library
 * may block here as elsewhere, and a callback has been called when the function that took it returns. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "page.h"
#include "webgpu/loader.h"

typedef const void *handle;

#define SUSPENDS /* listed in webgpu.js as well */
WEB_IMPORT(request_adapter) SUSPENDS handle page_request_adapter(void);
WEB_IMPORT(request_device) SUSPENDS handle page_request_device(handle adapter);
WEB_IMPORT(map) SUSPENDS int page_map(handle buffer, size_t offset, size_t bytes);

WEB_IMPORT(take_error) WGPUEnum page_take_error(char *message, size_t capacity);
WEB_IMPORT(describe) void page_describe(handle adapter, char *text, size_t capacity);
WEB_IMPORT(is_software) int page_is_software(handle adapter);
WEB_IMPORT(has_f16) int page_has_f16(handle adapter_or_device);
WEB_IMPORT(limit) double page_limit(handle adapter_or_device, const char *name, size_t length);
WEB_IMPORT(queue) handle page_queue(handle device);
WEB_IMPORT(release) void page_release(handle object);

WEB_IMPORT(create_buffer) handle page_create_buffer(handle device, uint32_t usage, double bytes);
WEB_IMPORT(buffer_size) double page_buffer_size(handle buffer);
WEB_IMPORT(buffer_usage) uint32_t page_buffer_usage(handle buffer);
WEB_IMPORT(write_buffer)
void page_write_buffer(handle queue, handle buffer, double offset, const void *data, size_t bytes);
WEB_IMPORT(read_mapped) void page_read_mapped(handle buffer, size_t offset, size_t bytes, void *to);
WEB_IMPORT(unmap) void page_unmap(handle buffer);

WEB_IMPORT(create_module) handle page_create_module(handle device, const char *text, size_t length);
WEB_IMPORT(add_constant) void page_add_constant(const char *name, size_t length, double value);
WEB_IMPORT(create_pipeline) handle page_create_pipeline(handle device, handle module);
WEB_IMPORT(pipeline_layout) handle page_pipeline_layout(handle pipeline, uint32_t group);
WEB_IMPORT(add_binding) void page_add_binding(uint32_t binding, handle buffer, double offset, double bytes);
WEB_IMPORT(create_group) handle page_create_group(handle device, handle layout);

WEB_IMPORT(create_encoder) handle page_create_encoder(handle device);
WEB_IMPORT(copy)
void page_copy(handle encoder, handle from, double at, handle to, double to_at, double bytes);
WEB_IMPORT(begin_pass) handle page_begin_pass(handle encoder);
WEB_IMPORT(set_pipeline) void page_set_pipeline(handle pass, handle pipeline);
WEB_IMPORT(set_group) void page_set_group(handle pass, uint32_t index, handle group);
WEB_IMPORT(dispatch) void page_dispatch(handle pass, uint32_t x, uint32_t y, uint32_t z);
WEB_IMPORT(end_pass) void page_end_pass(handle pass);
WEB_IMPORT(finish) handle page_finish(handle encoder);
WEB_IMPORT(submit) void page_submit(handle queue, handle commands);

/* An object is an opaque pointer of its own type to the library. */
#define OBJECT(handle) ((void *)(uintptr_t)(handle))

static const WGPUFuture done = {0};

static size_t length_of(WGPUStringView text) {
    return text.length == SIZE_MAX ? strlen(text.data) : text.length;
}

static WGPUStringView view(const char *text) { return (WGPUStringView){text, strlen(text)}; }

/* ---- Errors: the page collects them; they are handed on where the library looks for them -------- */

enum { DEVICE_LOST = 100 }; /* what take_error says of a lost device */

static struct {
    WGPUDevice device;
    WGPUUncapturedErrorCallbackInfo on_error;
    WGPUDeviceLostCallbackInfo on_lost;
} watched;

static void hand_on_errors(void) {
    char message[384];
    for (WGPUEnum type; (type = page_take_error(message, sizeof message)) != 0;) {
        if (type == DEVICE_LOST) {
            watched.on_lost.callback(&watched.device, WGPUDeviceLostReason_Destroyed, view(message),
                                     watched.on_lost.userdata1, watched.on_lost.userdata2);
        } else {
            watched.on_error.callback(&watched.device, type, view(message), watched.on_error.userdata1,
                                      watched.on_error.userdata2);
        }
    }
}

/* ---- Instance, adapter, device ------------------------------------------------------------------ */

static char instance; /* there is one; its address is its name */

static WGPUInstance wgpuCreateInstance(const void *descriptor) {
    (void)descriptor;
    return OBJECT(&instance);
}
static void wgpuInstanceProcessEvents(WGPUInstance i) {
    (void)i;
    hand_on_errors();
}
static void wgpuInstanceRelease(WGPUInstance i) { (void)i; }

static WGPUFuture wgpuInstanceRequestAdapter(WGPUInstance i, const WGPURequestAdapterOptions *options,
                                             WGPURequestAdapterCallbackInfo answer) {
    (void)i, (void)options;
    const handle adapter = page_request_adapter();
    answer.callback(adapter != NULL ? WGPURequestStatus_Success : 0, OBJECT(adapter), view(""),
                    answer.userdata1, answer.userdata2);
    return done;
}

static WGPUEnum wgpuAdapterGetInfo(WGPUAdapter adapter, WGPUAdapterInfo *info) {
    static char description[128];
    page_describe(adapter, description, sizeof description);
    *info = (WGPUAdapterInfo){.description = view(description)};
    if (page_is_software(adapter)) info->adapterType = WGPUAdapterType_CPU;
    return 1;
}

#define LIMIT(name) limits->name = (__typeof__(limits->name))page_limit(from, #name, sizeof #name - 1)
static WGPUEnum limits_of(handle from, WGPULimits *limits) {
    LIMIT(maxStorageBuffersPerShaderStage);
    LIMIT(maxStorageBufferBindingSize);
    LIMIT(minStorageBufferOffsetAlignment);
    LIMIT(maxBufferSize);
    LIMIT(maxComputeWorkgroupStorageSize);
    LIMIT(maxComputeInvocationsPerWorkgroup);
    LIMIT(maxComputeWorkgroupSizeX);
    LIMIT(maxComputeWorkgroupsPerDimension);
    return 1;
}
static WGPUEnum wgpuAdapterGetLimits(WGPUAdapter a, WGPULimits *limits) { return limits_of(a, limits); }
static WGPUEnum wgpuDeviceGetLimits(WGPUDevice d, WGPULimits *limits) { return limits_of(d, limits); }

static WGPUBool has_feature(handle of, WGPUEnum feature) {
    return feature == WGPUFeatureName_ShaderF16 && page_has_f16(of);
}
static WGPUBool wgpuAdapterHasFeature(WGPUAdapter a, WGPUEnum feature) { return has_feature(a, feature); }
static WGPUBool wgpuDeviceHasFeature(WGPUDevice d, WGPUEnum feature) { return has_feature(d, feature); }

/* The page asks for the adapter's own limits and f16, which is what the library asks for. */
static WGPUFuture wgpuAdapterRequestDevice(WGPUAdapter adapter, const WGPUDeviceDescriptor *wanted,
                                           WGPURequestDeviceCallbackInfo answer) {
    char message[384] = "";
    watched.device = OBJECT(page_request_device(adapter));
    watched.on_error = wanted->uncapturedErrorCallbackInfo;
    watched.on_lost = wanted->deviceLostCallbackInfo;
    if (watched.device == NULL) page_take_error(message, sizeof message);
    answer.callback(watched.device != NULL ? WGPURequestStatus_Success : 0, watched.device, view(message),
                    answer.userdata1, answer.userdata2);
    return done;
}

static WGPUQueue wgpuDeviceGetQueue(WGPUDevice device) { return OBJECT(page_queue(device)); }

/* Popping a scope of the browser's costs a journey to its GPU process, three times a call. So there are none:
 * every error reaches the device's handler instead, and is seen at the next map at the latest. */
static void wgpuDevicePushErrorScope(WGPUDevice device, WGPUEnum filter) { (void)device, (void)filter; }

static WGPUFuture wgpuDevicePopErrorScope(WGPUDevice device, WGPUPopErrorScopeCallbackInfo answer) {
    (void)device;
    hand_on_errors();
    answer.callback(1, WGPUErrorType_NoError, view(""), answer.userdata1, answer.userdata2);
    return done;
}

/* ---- Buffers ------------------------------------------------------------------------------------ */

static WGPUBuffer wgpuDeviceCreateBuffer(WGPUDevice device, const WGPUBufferDescriptor *wanted) {
    return OBJECT(page_create_buffer(device, (uint32_t)wanted->usage, (double)wanted->size));
}
static uint64_t wgpuBufferGetSize(WGPUBuffer buffer) { return (uint64_t)page_buffer_size(buffer); }
static WGPUFlags wgpuBufferGetUsage(WGPUBuffer buffer) { return page_buffer_usage(buffer); }

static void wgpuQueueWriteBuffer(WGPUQueue queue, WGPUBuffer buffer, uint64_t offset, const void *data,
                                 size_t bytes) {
    page_write_buffer(queue, buffer, (double)offset, data, bytes);
}

static WGPUFuture wgpuBufferMapAsync(WGPUBuffer buffer, WGPUFlags mode, size_t offset, size_t bytes,
                                     WGPUBufferMapCallbackInfo answer) {
    (void)mode; /* to read */
    const int mapped = page_map(buffer, offset, bytes);
    hand_on_errors();
    answer.callback(mapped ? WGPUMapAsyncStatus_Success : 0, view("the buffer was not mapped"),
                    answer.userdata1, answer.userdata2);
    return done;
}

static void *mapped; /* a copy: what is mapped in the page is not in wasm's memory */

static const void *wgpuBufferGetConstMappedRange(WGPUBuffer buffer, size_t offset, size_t bytes) {
    free(mapped);
    mapped = malloc(bytes);
    if (mapped != NULL) page_read_mapped(buffer, offset, bytes, mapped);
    return mapped;
}

static void wgpuBufferUnmap(WGPUBuffer buffer) {
    page_unmap(buffer);
    free(mapped);
    mapped = NULL;
}

/* ---- Pipelines ---------------------------------------------------------------------------------- */

static WGPUShaderModule wgpuDeviceCreateShaderModule(WGPUDevice device,
                                                     const WGPUShaderModuleDescriptor *wanted) {
    const WGPUShaderSourceWGSL *source = (const void *)wanted->nextInChain;
    return OBJECT(page_create_module(device, source->code.data, length_of(source->code)));
}

static WGPUComputePipeline wgpuDeviceCreateComputePipeline(WGPUDevice device,
                                                           const WGPUComputePipelineDescriptor *wanted) {
    for (size_t i = 0; i < wanted->compute.constantCount; i++) {
        const WGPUConstantEntry *c = &wanted->compute.constants[i];
        page_add_constant(c->key.data, length_of(c->key), c->value);
    }
    return OBJECT(page_create_pipeline(device, wanted->compute.module));
}

static WGPUBindGroupLayout wgpuComputePipelineGetBindGroupLayout(WGPUComputePipeline pipeline,
                                                                 uint32_t group) {
    return OBJECT(page_pipeline_layout(pipeline, group));
}

static WGPUBindGroup wgpuDeviceCreateBindGroup(WGPUDevice device, const WGPUBindGroupDescriptor *wanted) {
    for (size_t i = 0; i < wanted->entryCount; i++) {
        const WGPUBindGroupEntry *e = &wanted->entries[i];
        page_add_binding(e->binding, e->buffer, (double)e->offset, (double)e->size);
    }
    return OBJECT(page_create_group(device, wanted->layout));
}

/* ---- Commands ----------------------------------------------------------------------------------- */

static WGPUCommandEncoder wgpuDeviceCreateCommandEncoder(WGPUDevice device, const void *descriptor) {
    (void)descriptor;
    return OBJECT(page_create_encoder(device));
}
static void wgpuCommandEncoderCopyBufferToBuffer(WGPUCommandEncoder encoder, WGPUBuffer from, uint64_t at,
                                                 WGPUBuffer to, uint64_t to_at, uint64_t bytes) {
    page_copy(encoder, from, (double)at, to, (double)to_at, (double)bytes);
}
static WGPUComputePassEncoder wgpuCommandEncoderBeginComputePass(WGPUCommandEncoder encoder,
                                                                 const void *descriptor) {
    (void)descriptor;
    return OBJECT(page_begin_pass(encoder));
}
static void wgpuComputePassEncoderSetPipeline(WGPUComputePassEncoder pass, WGPUComputePipeline pipeline) {
    page_set_pipeline(pass, pipeline);
}
static void wgpuComputePassEncoderSetBindGroup(WGPUComputePassEncoder pass, uint32_t index,
                                               WGPUBindGroup group, size_t offset_count,
                                               const uint32_t *offsets) {
    (void)offset_count, (void)offsets; /* the library has no dynamic ones */
    page_set_group(pass, index, group);
}
static void wgpuComputePassEncoderDispatchWorkgroups(WGPUComputePassEncoder pass, uint32_t x, uint32_t y,
                                                     uint32_t z) {
    page_dispatch(pass, x, y, z);
}
static void wgpuComputePassEncoderEnd(WGPUComputePassEncoder pass) { page_end_pass(pass); }
static WGPUCommandBuffer wgpuCommandEncoderFinish(WGPUCommandEncoder encoder, const void *descriptor) {
    (void)descriptor;
    return OBJECT(page_finish(encoder));
}
static void wgpuQueueSubmit(WGPUQueue queue, size_t count, const WGPUCommandBuffer *commands) {
    for (size_t i = 0; i < count; i++) page_submit(queue, commands[i]);
}

#define RELEASE(Kind)                                                                                        \
    static void wgpu##Kind##Release(WGPU##Kind object) { page_release(object); }
RELEASE(Adapter)
RELEASE(Device)
RELEASE(Queue)
RELEASE(Buffer)
RELEASE(ShaderModule)
RELEASE(ComputePipeline)
RELEASE(BindGroupLayout)
RELEASE(BindGroup)
RELEASE(CommandEncoder)
RELEASE(CommandBuffer)
RELEASE(ComputePassEncoder)

/* ---- The "library" ------------------------------------------------------------------------------ */

typedef void (*function)(void);

static const struct entry {
    const char *name;
    function address;
} entries[] = {
#define ENTRY(result, name, parameters) {"wgpu" #name, (function)wgpu##name},
    EG_WEBGPU_FUNCTIONS(ENTRY)
#undef ENTRY
};

void *dlopen(const char *name, int mode) {
    (void)name, (void)mode;
    return OBJECT(entries);
}

void *dlsym(void *library, const char *name) {
    (void)library;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (strcmp(entries[i].name, name) == 0) return OBJECT(entries[i].address);
    return NULL;
}

const char *dlerror(void) { return ""; }

void eg_webgpu_silence_wayland(void) {} /* no display is asked here */
