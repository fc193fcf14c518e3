/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points of a webgpu.h library, found at run time: nothing is linked. */
#ifndef EG_WEBGPU_LOADER_H
#define EG_WEBGPU_LOADER_H

#include "epigrad/epigrad.h"
#include "webgpu_abi.h"

/* X(result, name, parameters): all that the backend calls. */
#define EG_WEBGPU_FUNCTIONS(X)                                                                               \
    X(WGPUInstance, CreateInstance, (const void *))                                                          \
    X(void, InstanceProcessEvents, (WGPUInstance))                                                           \
    X(void, InstanceRelease, (WGPUInstance))                                                                 \
    X(WGPUFuture, InstanceRequestAdapter,                                                                    \
      (WGPUInstance, const WGPURequestAdapterOptions *, WGPURequestAdapterCallbackInfo))                     \
    X(WGPUEnum, AdapterGetInfo, (WGPUAdapter, WGPUAdapterInfo *))                                            \
    X(WGPUEnum, AdapterGetLimits, (WGPUAdapter, WGPULimits *))                                               \
    X(WGPUBool, AdapterHasFeature, (WGPUAdapter, WGPUEnum))                                                  \
    X(WGPUFuture, AdapterRequestDevice,                                                                      \
      (WGPUAdapter, const WGPUDeviceDescriptor *, WGPURequestDeviceCallbackInfo))                            \
    X(void, AdapterRelease, (WGPUAdapter))                                                                   \
    X(WGPUQueue, DeviceGetQueue, (WGPUDevice))                                                               \
    X(WGPUEnum, DeviceGetLimits, (WGPUDevice, WGPULimits *))                                                 \
    X(WGPUBool, DeviceHasFeature, (WGPUDevice, WGPUEnum))                                                    \
    X(void, DevicePushErrorScope, (WGPUDevice, WGPUEnum))                                                    \
    X(WGPUFuture, DevicePopErrorScope, (WGPUDevice, WGPUPopErrorScopeCallbackInfo))                          \
    X(WGPUBuffer, DeviceCreateBuffer, (WGPUDevice, const WGPUBufferDescriptor *))                            \
    X(WGPUShaderModule, DeviceCreateShaderModule, (WGPUDevice, const WGPUShaderModuleDescriptor *))          \
    X(WGPUComputePipeline, DeviceCreateComputePipeline, (WGPUDevice, const WGPUComputePipelineDescriptor *)) \
    X(WGPUBindGroup, DeviceCreateBindGroup, (WGPUDevice, const WGPUBindGroupDescriptor *))                   \
    X(WGPUCommandEncoder, DeviceCreateCommandEncoder, (WGPUDevice, const void *))                            \
    X(void, DeviceRelease, (WGPUDevice))                                                                     \
    X(WGPUBindGroupLayout, ComputePipelineGetBindGroupLayout, (WGPUComputePipeline, uint32_t))               \
    X(WGPUComputePassEncoder, CommandEncoderBeginComputePass, (WGPUCommandEncoder, const void *))            \
    X(void, CommandEncoderCopyBufferToBuffer,                                                                \
      (WGPUCommandEncoder, WGPUBuffer, uint64_t, WGPUBuffer, uint64_t, uint64_t))                            \
    X(WGPUCommandBuffer, CommandEncoderFinish, (WGPUCommandEncoder, const void *))                           \
    X(void, CommandEncoderRelease, (WGPUCommandEncoder))                                                     \
    X(void, CommandBufferRelease, (WGPUCommandBuffer))                                                       \
    X(void, ComputePassEncoderSetPipeline, (WGPUComputePassEncoder, WGPUComputePipeline))                    \
    X(void, ComputePassEncoderSetBindGroup,                                                                  \
      (WGPUComputePassEncoder, uint32_t, WGPUBindGroup, size_t, const uint32_t *))                           \
    X(void, ComputePassEncoderDispatchWorkgroups, (WGPUComputePassEncoder, uint32_t, uint32_t, uint32_t))    \
    X(void, ComputePassEncoderEnd, (WGPUComputePassEncoder))                                                 \
    X(void, ComputePassEncoderRelease, (WGPUComputePassEncoder))                                             \
    X(void, QueueSubmit, (WGPUQueue, size_t, const WGPUCommandBuffer *))                                     \
    X(void, QueueWriteBuffer, (WGPUQueue, WGPUBuffer, uint64_t, const void *, size_t))                       \
    X(void, QueueRelease, (WGPUQueue))                                                                       \
    X(uint64_t, BufferGetSize, (WGPUBuffer))                                                                 \
    X(WGPUFlags, BufferGetUsage, (WGPUBuffer))                                                               \
    X(WGPUFuture, BufferMapAsync, (WGPUBuffer, WGPUFlags, size_t, size_t, WGPUBufferMapCallbackInfo))        \
    X(const void *, BufferGetConstMappedRange, (WGPUBuffer, size_t, size_t))                                 \
    X(void, BufferUnmap, (WGPUBuffer))                                                                       \
    X(void, BufferRelease, (WGPUBuffer))                                                                     \
    X(void, BindGroupRelease, (WGPUBindGroup))                                                               \
    X(void, BindGroupLayoutRelease, (WGPUBindGroupLayout))                                                   \
    X(void, ComputePipelineRelease, (WGPUComputePipeline))                                                   \
    X(void, ShaderModuleRelease, (WGPUShaderModule))

/* Some implementations have these: DevicePoll is wgpu-native's, DeviceTick is Dawn's. NULL where missing. */
#define EG_WEBGPU_EXTRAS(X)                                                                                  \
    X(void, DeviceTick, (WGPUDevice))                                                                        \
    X(WGPUBool, DevicePoll, (WGPUDevice, WGPUBool, const uint64_t *))                                        \
    X(WGPUEnum, DeviceGetAdapterInfo, (WGPUDevice, WGPUAdapterInfo *))                                       \
    X(void, AdapterInfoFreeMembers, (WGPUAdapterInfo))                                                       \
    X(size_t, InstanceEnumerateAdapters, (WGPUInstance, const void *, WGPUAdapter *))                        \
    X(WGPUShaderModule, DeviceCreateShaderModuleTrusted,                                                     \
      (WGPUDevice, const WGPUShaderModuleDescriptor *, WGPUFlags))

typedef struct eg_webgpu_api {
    void *library;
#define EG_FUNCTION(result, name, parameters) result(*name) parameters;
    EG_WEBGPU_FUNCTIONS(EG_FUNCTION)
    EG_WEBGPU_EXTRAS(EG_FUNCTION)
#undef EG_FUNCTION
} eg_webgpu_api;

/* Loads the library: the one that EPIGRAD_WEBGPU_LIBRARY names, else the first that is found of the usual
 * names. Each success is to be given back with eg_webgpu_unload. */
eg_status eg_webgpu_load(eg_webgpu_api *api);
void eg_webgpu_unload(eg_webgpu_api *api);

/* Before an instance is made: keeps libwayland-client from printing where XDG_RUNTIME_DIR is not set. Once a
 * process, from any thread; the environment is left alone. */
void eg_webgpu_silence_wayland(void);

#endif
