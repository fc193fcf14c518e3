/* SPDX-License-Identifier: Apache-2.0 */
/* An open device: the library's entry points, the WGPUDevice, its buffers and pipelines. */
#ifndef EG_WEBGPU_DEVICE_H
#define EG_WEBGPU_DEVICE_H

#include "core/backend.h"
#include "loader.h"
#include "pass.h"

typedef struct eg_webgpu_pipeline eg_webgpu_pipeline;
typedef struct eg_webgpu_module eg_webgpu_module;

/* A buffer that only grows; what is enqueued keeps the old one alive. */
typedef struct eg_webgpu_growing {
    WGPUBuffer buffer;
    uint64_t bytes;
} eg_webgpu_growing;

/* What a callback answers. */
typedef struct eg_webgpu_reply {
    struct eg_webgpu *gpu;
    bool done;
    WGPUEnum status;
    void *object;
} eg_webgpu_reply;

enum { EG_WEBGPU_SCOPES = 2 }; /* of errors, that are open at once */

typedef struct eg_webgpu {
    eg_webgpu_api api;
    const eg_context *context;
    eg_webgpu_caps caps;
    WGPUInstance instance;
    WGPUDevice device;
    WGPUQueue queue;
    bool owns_device, owns_queue;
    WGPUEnum mode;        /* of callbacks */
    uint64_t most_buffer; /* bytes of a buffer */
    bool lost;
    int in_flight; /* dispatches submitted since the last wait */
    uint64_t submissions;
    WGPUEnum failure; /* the first error since it was last reported, and its message */
    char message[384];
    eg_webgpu_growing staging; /* downloads and waits */
    eg_webgpu_growing params, scratch, mirror;
    WGPUBuffer dummy; /* bound where an operand is absent */
    eg_webgpu_module *modules;
    eg_webgpu_pipeline *pipelines;
    struct eg_webgpu_recording *recording;
    /* Not on the stack of who waits: one that is given up may still come. */
    eg_webgpu_reply reply, scope[EG_WEBGPU_SCOPES];
} eg_webgpu;

eg_status eg_webgpu_open_device(eg_context *context, const eg_open_info *info, eg_webgpu *gpu);
void eg_webgpu_close_device(eg_webgpu *gpu);

/* Errors of the calls between the two are caught and become a status that says what was being done. */
void eg_webgpu_guard(eg_webgpu *gpu);
eg_status eg_webgpu_check(eg_webgpu *gpu, const char *doing);

/* Fails once the device is known to be lost. */
eg_status eg_webgpu_ready(eg_webgpu *gpu);

eg_status eg_webgpu_make_buffer(eg_webgpu *gpu, uint64_t bytes, WGPUFlags usage, WGPUBuffer *buffer);
eg_status eg_webgpu_grow(eg_webgpu *gpu, eg_webgpu_growing *growing, uint64_t bytes, WGPUFlags usage);
/* Waits for all that was submitted, by mapping what is copied last. */
eg_status eg_webgpu_wait(eg_webgpu *gpu);
/* 4-aligned copies. A read waits. */
eg_status eg_webgpu_read(eg_webgpu *gpu, void *host, WGPUBuffer buffer, uint64_t offset, uint64_t bytes);
eg_status eg_webgpu_write(eg_webgpu *gpu, WGPUBuffer buffer, uint64_t offset, const void *host,
                          uint64_t bytes);

/* The pipeline of a pass, made on first use. */
typedef struct eg_webgpu_variant {
    const eg_webgpu_kernel *kernel;
    bool vec4, sums, sums_by_row;
    bool left_along_depth, right_along_depth;
    bool of_y;
    uint8_t epilogue;
    uint8_t activation;
    eg_dtype dtype[EG_BINDINGS];
} eg_webgpu_variant;

eg_status eg_webgpu_pipeline_of(eg_webgpu *gpu, const eg_webgpu_variant *variant,
                                WGPUComputePipeline *pipeline, WGPUBindGroupLayout *layout);
/* A pipeline of a text alone, for the peak: to be released. */
eg_status eg_webgpu_make_pipeline(eg_webgpu *gpu, const char *prefix, const char *text,
                                  const WGPUConstantEntry *constants, size_t count,
                                  WGPUComputePipeline *pipeline);
void eg_webgpu_free_pipelines(eg_webgpu *gpu);

/* Enqueues a program: its dispatches are submitted together, or in parts if they are long. An error says what
 * was being done. */
eg_status eg_webgpu_run(eg_webgpu *gpu, const eg_program *program, const eg_call *call, const char *doing);
void eg_webgpu_free_recording(eg_webgpu *gpu);

eg_status eg_webgpu_measure_peak(eg_context *context, eg_dtype dtype, double *gflops);

static inline WGPUStringView eg_webgpu_text(const char *text) { return (WGPUStringView){text, SIZE_MAX}; }

#endif
