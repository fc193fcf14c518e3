/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic peak, by a kernel that does nothing else. */
#include "core/clock.h"
#include "core/error.h"
#include "device.h"

extern const char eg_wgsl_peak[];

/* `groups` workgroups of independent multiply-adds in registers; returns the seconds it took. */
static eg_status spin(eg_webgpu *gpu, WGPUComputePipeline pipeline, WGPUBuffer out, uint32_t groups,
                      double *taken) {
    WGPUBindGroupLayout layout = gpu->api.ComputePipelineGetBindGroupLayout(pipeline, 0);
    const WGPUBindGroupEntry entry = {.buffer = out, .size = 256};
    WGPUBindGroup group = gpu->api.DeviceCreateBindGroup(
        gpu->device, &(WGPUBindGroupDescriptor){.layout = layout, .entryCount = 1, .entries = &entry});
    WGPUCommandEncoder encoder = gpu->api.DeviceCreateCommandEncoder(gpu->device, NULL);
    WGPUComputePassEncoder pass = gpu->api.CommandEncoderBeginComputePass(encoder, NULL);
    gpu->api.ComputePassEncoderSetPipeline(pass, pipeline);
    gpu->api.ComputePassEncoderSetBindGroup(pass, 0, group, 0, NULL);
    gpu->api.ComputePassEncoderDispatchWorkgroups(pass, groups, 1, 1);
    gpu->api.ComputePassEncoderEnd(pass);
    gpu->api.ComputePassEncoderRelease(pass);
    WGPUCommandBuffer commands = gpu->api.CommandEncoderFinish(encoder, NULL);
    gpu->api.CommandEncoderRelease(encoder);
    const double begin = eg_seconds();
    gpu->api.QueueSubmit(gpu->queue, 1, &commands);
    const eg_status status = eg_webgpu_wait(gpu);
    *taken = eg_seconds() - begin;
    gpu->api.CommandBufferRelease(commands);
    gpu->api.BindGroupRelease(group);
    gpu->api.BindGroupLayoutRelease(layout);
    return status;
}

eg_status eg_webgpu_measure_peak(eg_context *context, eg_dtype dtype, double *gflops) {
    enum { RUNS = 4 };
    const double each = 2.0 * 64 * 32 * 2048; /* operations of a workgroup, as kernels/peak.wgsl does them */
    eg_webgpu *gpu = context->device;
    WGPUComputePipeline pipeline;
    uint32_t groups = 64;
    double taken = 0;
    if (dtype == EG_F64 || dtype == EG_BF16)
        return eg_fail(EG_ERR_UNSUPPORTED, "no kernel computes in %s", eg_dtype_name(dtype));
    EG_TRY(eg_webgpu_make_pipeline(gpu, "", eg_wgsl_peak, NULL, 0, &pipeline));
    eg_status status = spin(gpu, pipeline, gpu->dummy, groups, &taken);
    while (status == EG_OK && taken < 0.03 && groups < 32768) {
        groups *= 2;
        status = spin(gpu, pipeline, gpu->dummy, groups, &taken);
    }
    *gflops = 0;
    for (int run = 0; run < RUNS && status == EG_OK; run++) {
        status = spin(gpu, pipeline, gpu->dummy, groups, &taken);
        if (each * groups * 1e-9 / taken > *gflops) *gflops = each * groups * 1e-9 / taken;
    }
    gpu->api.ComputePipelineRelease(pipeline);
    return status;
}
