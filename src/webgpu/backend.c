/* SPDX-License-Identifier: Apache-2.0 */
/* WebGPU behind the backend interface. Calls are enqueued; eg_sync and eg_download wait. */
#include <string.h>

#include "core/error.h"
#include "device.h"

static const WGPUFlags usable = WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst;

static void webgpu_close(eg_context *context) {
    eg_webgpu *gpu = context->device;
    if (gpu == NULL) return;
    eg_webgpu_free_recording(gpu);
    eg_webgpu_free_pipelines(gpu);
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
    context->caps.one_level = true;
    context->caps.addressing = EG_HANDLES;
    context->caps.features = gpu->caps.f16 ? 1 : 0;
    context->caps.detail = &gpu->caps;
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

/* WebGPU copies whole words: those before the first one and after the last are taken for themselves. */
static size_t next_part(size_t offset, size_t bytes) {
    const size_t in = offset % 4, left = 4 - in;
    if (in == 0 && bytes >= 4) return bytes / 4 * 4;
    return left < bytes ? left : bytes;
}

static eg_status webgpu_upload(eg_context *context, void *memory, size_t offset, const void *host,
                               size_t bytes) {
    eg_webgpu *gpu = context->device;
    unsigned char word[4];
    EG_TRY(eg_webgpu_ready(gpu));
    EG_TRY(check_range(gpu, memory, offset, bytes));
    for (size_t part; bytes > 0; bytes -= part, offset += part, host = (const char *)host + part) {
        part = next_part(offset, bytes);
        if (part % 4 == 0) {
            EG_TRY(eg_webgpu_write(gpu, memory, offset, host, part));
            continue;
        }
        EG_TRY(eg_webgpu_read(gpu, word, memory, offset - offset % 4, sizeof word));
        memcpy(word + offset % 4, host, part);
        EG_TRY(eg_webgpu_write(gpu, memory, offset - offset % 4, word, sizeof word));
    }
    return EG_OK;
}

static eg_status webgpu_download(eg_context *context, void *host, const void *memory, size_t offset,
                                 size_t bytes) {
    eg_webgpu *gpu = context->device;
    WGPUBuffer buffer = (WGPUBuffer)memory;
    unsigned char word[4];
    EG_TRY(eg_webgpu_ready(gpu));
    EG_TRY(check_range(gpu, memory, offset, bytes));
    for (size_t part; bytes > 0; bytes -= part, offset += part, host = (char *)host + part) {
        part = next_part(offset, bytes);
        if (part % 4 == 0) {
            EG_TRY(eg_webgpu_read(gpu, host, buffer, offset, part));
            continue;
        }
        EG_TRY(eg_webgpu_read(gpu, word, buffer, offset - offset % 4, sizeof word));
        memcpy(host, word + offset % 4, part);
    }
    return EG_OK;
}

/* ---- Running ------------------------------------------------------------------------------------ */

static eg_status webgpu_run(eg_context *context, const eg_program *program, const eg_call *call,
                            bool *refused) {
    (void)refused; /* every kernel takes any numbers */
    return eg_webgpu_run(context->device, program, call, "enqueuing a call");
}

/* eg_packed.holds: a dense copy. Every kernel reads any layout, and dense rows are what they read best. */
enum { DENSE = 1 };

static eg_status webgpu_pack(eg_context *context, const eg_problem *problem, eg_packed *packed) {
    eg_program program;
    eg_call call = {.packed_b = packed};
    size_t bytes = packed->batched ? (size_t)problem->batch : 1;
    if (__builtin_mul_overflow(bytes, (size_t)problem->k, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)problem->n, &bytes) ||
        __builtin_mul_overflow(bytes, eg_dtype_size(problem->dtype), &bytes))
        return eg_fail(EG_ERR_OUT_OF_MEMORY, "a pack of this b is larger than memory can be");
    eg_lower_pack(problem, packed->batched, &program.list);
    EG_TRY(eg_compile(&context->caps, &program));
    if (packed->data == NULL) EG_TRY(webgpu_alloc(context, bytes, &packed->data));
    packed->holds = DENSE;
    call.operand[EG_OP_B] = (eg_address){problem->operands[EG_OP_B].data, problem->operands[EG_OP_B].offset};
    return eg_webgpu_run(context->device, &program, &call, "packing b");
}

static bool webgpu_kernel_info(const eg_caps *caps, int index, eg_kernel_info *info) {
    const eg_webgpu_caps *device = caps->detail;
    const eg_webgpu_kernel *row = eg_webgpu_kernel_row(index);
    if (row == NULL) return false;
    const char *tile = strrchr(row->name, '_');
    *info =
        (eg_kernel_info){.name = row->name,
                         .compute = EG_F32,
                         .usable = row->invocations <= device->invocations && row->memory <= device->memory,
                         .needs = row->memory > 0 ? "workgroup memory" : "nothing",
                         .tile = tile != NULL ? tile + 1 : "8x8"};
    return true;
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
        .compile = eg_webgpu_compile,
        .run = webgpu_run,
        .pack = webgpu_pack,
        .kernel_info = webgpu_kernel_info,
        .measure_peak = eg_webgpu_measure_peak,
    };
    return &ops;
}
