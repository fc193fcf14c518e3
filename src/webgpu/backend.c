/* WebGPU behind the backend interface. Calls are enqueued; eg_sync and eg_download wait. */
#include <string.h>

#include "../error.h"
#include "device.h"

static const WGPUFlags usable = WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst;

static void webgpu_close(eg_context *context) {
    eg_webgpu *gpu = context->device;
    if (gpu == NULL) return;
    eg_webgpu_close_device(gpu);
    eg_host_free(context, gpu);
    context->device = NULL;
}

static eg_status webgpu_open(eg_context *context, const eg_open_info *info) {
    eg_webgpu *gpu = eg_host_alloc(context, sizeof *gpu);
    if (gpu == NULL) return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for a context");
    *gpu = (eg_webgpu){.context = context};
    context->device = gpu;
    const eg_status status = eg_webgpu_open_device(context, info, gpu);
    if (status != EG_OK) {
        webgpu_close(context);
        return status;
    }
    context->caps.addressing = EG_HANDLES;
    context->caps.features = gpu->caps.f16 ? 1 : 0;
    context->caps.detail = &gpu->caps;
    /* Of a device of the caller's we may not know what it is: a tile that does well everywhere. */
    gpu->caps.shallow = gpu->caps.deep = EG_ROW_shared_64x64;
    if (info->native_device == NULL && !gpu->caps.cpu && info->kernel == NULL) eg_webgpu_tune(context);
    return EG_OK;
}

static eg_status webgpu_sync(eg_context *context) {
    eg_webgpu *gpu = context->device;
    EG_TRY(eg_webgpu_ready(gpu));
    return eg_webgpu_wait(gpu);
}

/* ---- Memory ------------------------------------------------------------------------------------- */

static uint64_t whole_words(uint64_t bytes) { return (bytes + 15) / 16 * 16; }

static eg_status webgpu_alloc(eg_context *context, size_t bytes, void **memory) {
    eg_webgpu *gpu = context->device;
    WGPUBuffer buffer;
    EG_TRY(eg_webgpu_ready(gpu));
    if (bytes > SIZE_MAX - 16) return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for %zu bytes", bytes);
    EG_TRY(eg_webgpu_make_buffer(gpu, bytes > 0 ? whole_words(bytes) : 16, usable, &buffer));
    *memory = buffer;
    return EG_OK;
}

static void webgpu_free(eg_context *context, void *memory) {
    eg_webgpu *gpu = context->device;
    gpu->api.BufferRelease(memory);
}

static eg_status check_range(eg_webgpu *gpu, const void *memory, size_t offset, size_t bytes) {
    const uint64_t size = gpu->api.BufferGetSize((WGPUBuffer)memory);
    if (offset <= size && bytes <= size - offset) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT, "%zu bytes at offset %zu do not lie in the buffer of %llu bytes", bytes,
                   offset, (unsigned long long)size);
}

/* WebGPU copies whole words: the ends of an odd range are read, changed and written back. */
static eg_status write_partial(eg_webgpu *gpu, WGPUBuffer buffer, size_t offset, const void *host,
                               size_t bytes) {
    unsigned char word[4];
    const size_t in = offset % 4;
    EG_TRY(eg_webgpu_read(gpu, word, buffer, offset - in, sizeof word));
    memcpy(word + in, host, bytes);
    return eg_webgpu_write(gpu, buffer, offset - in, word, sizeof word);
}

static eg_status webgpu_upload(eg_context *context, void *memory, size_t offset, const void *host,
                               size_t bytes) {
    eg_webgpu *gpu = context->device;
    EG_TRY(eg_webgpu_ready(gpu));
    EG_TRY(check_range(gpu, memory, offset, bytes));
    if (offset % 4 != 0) {
        const size_t head = 4 - offset % 4 < bytes ? 4 - offset % 4 : bytes;
        EG_TRY(write_partial(gpu, memory, offset, host, head));
        host = (const char *)host + head;
        offset += head, bytes -= head;
    }
    const size_t whole = bytes / 4 * 4;
    if (whole > 0) EG_TRY(eg_webgpu_write(gpu, memory, offset, host, whole));
    if (bytes == whole) return EG_OK;
    return write_partial(gpu, memory, offset + whole, (const char *)host + whole, bytes - whole);
}

static eg_status webgpu_download(eg_context *context, void *host, const void *memory, size_t offset,
                                 size_t bytes) {
    eg_webgpu *gpu = context->device;
    WGPUBuffer buffer = (WGPUBuffer)memory;
    unsigned char word[4];
    EG_TRY(eg_webgpu_ready(gpu));
    EG_TRY(check_range(gpu, memory, offset, bytes));
    while (bytes > 0) {
        const size_t in = offset % 4, whole = in == 0 ? bytes / 4 * 4 : 0;
        const size_t part = whole > 0 ? whole : 4 - in < bytes ? 4 - in : bytes;
        if (whole > 0) {
            EG_TRY(eg_webgpu_read(gpu, host, buffer, offset, whole));
        } else {
            EG_TRY(eg_webgpu_read(gpu, word, buffer, offset - in, sizeof word));
            memcpy(host, word + in, part);
        }
        host = (char *)host + part;
        offset += part, bytes -= part;
    }
    return EG_OK;
}

/* ---- Running ------------------------------------------------------------------------------------ */

static eg_status run_plan(eg_webgpu *gpu, const eg_plan *plan, WGPUBuffer workspace, size_t offset) {
    EG_TRY(eg_webgpu_grow(gpu, &gpu->scratch, plan->region[EG_BUFFER_SCRATCH].bytes, usable));
    for (int i = 0; i < plan->steps; i++) {
        eg_webgpu_passes passes;
        EG_TRY(eg_webgpu_lower(&gpu->caps, plan, &plan->step[i], &passes));
        for (int j = 0; j < passes.count; j++) EG_TRY(eg_webgpu_run(gpu, &passes.pass[j], workspace, offset));
    }
    return eg_webgpu_flush(gpu);
}

static eg_status webgpu_launch(eg_context *context, const eg_plan *plan, void *workspace, size_t offset) {
    eg_webgpu *gpu = context->device;
    EG_TRY(eg_webgpu_ready(gpu));
    eg_webgpu_guard(gpu);
    const eg_status status = run_plan(gpu, plan, workspace, offset);
    if (status != EG_OK) eg_webgpu_free_recording(gpu);
    const eg_status device = eg_webgpu_check(gpu, "enqueuing a call");
    return status != EG_OK ? status : device;
}

/* A dense copy: every kernel reads any layout, and dense rows are what they read best. */
static eg_status webgpu_pack(eg_context *context, const eg_problem *problem, eg_packed *packed) {
    eg_webgpu *gpu = context->device;
    const size_t items = packed->batched ? (size_t)problem->batch : 1;
    const size_t bytes = items * (size_t)problem->k * (size_t)problem->n * eg_dtype_size(problem->dtype);
    eg_plan nothing = {.problem = *problem};
    EG_TRY(eg_webgpu_ready(gpu));
    EG_TRY(eg_webgpu_select(&context->caps, &nothing));
    if (packed->data == NULL) EG_TRY(webgpu_alloc(context, bytes, &packed->data));
    packed->forward = packed->transposed = (eg_region){0, bytes};
    const eg_webgpu_pass pass = eg_webgpu_lower_pack(problem, packed->data);
    eg_webgpu_guard(gpu);
    eg_status status = eg_webgpu_run(gpu, &pass, NULL, 0);
    if (status == EG_OK) status = eg_webgpu_flush(gpu);
    const eg_status device = eg_webgpu_check(gpu, "packing b");
    return status != EG_OK ? status : device;
}

static eg_status webgpu_kernel_info(const eg_caps *caps, int index, eg_kernel_info *info) {
    const eg_webgpu_caps *device = caps->detail;
    const eg_webgpu_kernel *row = eg_webgpu_kernel_row(index);
    if (row == NULL)
        return eg_fail(EG_ERR_ARGUMENT, "index is %d; expected a row of the kernel table", index);
    const char *tile = strrchr(row->name, '_');
    *info =
        (eg_kernel_info){.name = row->name,
                         .compute = EG_F32,
                         .usable = row->invocations <= device->invocations && row->memory <= device->memory,
                         .needs = row->memory > 0 ? "workgroup memory" : "nothing",
                         .tile = tile != NULL ? tile + 1 : "8x8"};
    return EG_OK;
}

const eg_backend_ops *eg_webgpu_ops(void) {
    static const eg_backend_ops ops = {
        .open = webgpu_open,
        .close = webgpu_close,
        .sync = webgpu_sync,
        .alloc = webgpu_alloc,
        .free = webgpu_free,
        .upload = webgpu_upload,
        .download = webgpu_download,
        .select = eg_webgpu_select,
        .launch = webgpu_launch,
        .pack = webgpu_pack,
        .kernel_info = webgpu_kernel_info,
        .measure_peak = eg_webgpu_measure_peak,
    };
    return &ops;
}
