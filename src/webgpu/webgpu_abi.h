/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the standard webgpu.h ABI that this backend uses, so that the library builds where no WebGPU
 * implementation is installed. Names, field order and values are the standard's. */
#ifndef EG_WEBGPU_ABI_H
#define EG_WEBGPU_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef struct WGPUAdapterImpl *WGPUAdapter;
typedef struct WGPUBindGroupImpl *WGPUBindGroup;
typedef struct WGPUBindGroupLayoutImpl *WGPUBindGroupLayout;
typedef struct WGPUBufferImpl *WGPUBuffer;
typedef struct WGPUCommandBufferImpl *WGPUCommandBuffer;
typedef struct WGPUCommandEncoderImpl *WGPUCommandEncoder;
typedef struct WGPUComputePassEncoderImpl *WGPUComputePassEncoder;
typedef struct WGPUComputePipelineImpl *WGPUComputePipeline;
typedef struct WGPUDeviceImpl *WGPUDevice;
typedef struct WGPUInstanceImpl *WGPUInstance;
typedef struct WGPUPipelineLayoutImpl *WGPUPipelineLayout;
typedef struct WGPUQueueImpl *WGPUQueue;
typedef struct WGPUShaderModuleImpl *WGPUShaderModule;

typedef uint64_t WGPUFlags;
typedef uint32_t WGPUBool;
typedef uint32_t WGPUEnum;

typedef struct WGPUStringView {
    const char *data;
    size_t length; /* SIZE_MAX: NUL-terminated */
} WGPUStringView;

typedef struct WGPUFuture {
    uint64_t id;
} WGPUFuture;

typedef struct WGPUChainedStruct {
    struct WGPUChainedStruct *next;
    WGPUEnum sType;
} WGPUChainedStruct;

enum {
    WGPUSType_ShaderSourceWGSL = 2,
    WGPUCallbackMode_AllowProcessEvents = 2,
    WGPUCallbackMode_AllowSpontaneous = 3,
    WGPURequestStatus_Success = 1,
    WGPUMapAsyncStatus_Success = 1,
    WGPUMapMode_Read = 1,
    WGPUPowerPreference_HighPerformance = 2,
    WGPUBackendType_Vulkan = 6,
    WGPUAdapterType_DiscreteGPU = 1,
    WGPUAdapterType_IntegratedGPU = 2,
    WGPUAdapterType_CPU = 3,
    WGPUErrorFilter_Validation = 1,
    WGPUErrorFilter_OutOfMemory = 2,
    WGPUErrorType_NoError = 1,
    WGPUErrorType_Validation = 2,
    WGPUErrorType_OutOfMemory = 3,
    WGPUDeviceLostReason_Destroyed = 2,
    WGPUFeatureName_ShaderF16 = 0x0B,
    WGPUBufferUsage_MapRead = 0x01,
    WGPUBufferUsage_CopySrc = 0x04,
    WGPUBufferUsage_CopyDst = 0x08,
    WGPUBufferUsage_Storage = 0x80,
};

/* ---- Callbacks ---------------------------------------------------------------------------------- */

typedef void (*WGPURequestAdapterCallback)(WGPUEnum status, WGPUAdapter adapter, WGPUStringView message,
                                           void *userdata1, void *userdata2);
typedef void (*WGPURequestDeviceCallback)(WGPUEnum status, WGPUDevice device, WGPUStringView message,
                                          void *userdata1, void *userdata2);
typedef void (*WGPUBufferMapCallback)(WGPUEnum status, WGPUStringView message, void *userdata1,
                                      void *userdata2);
typedef void (*WGPUDeviceLostCallback)(const WGPUDevice *device, WGPUEnum reason, WGPUStringView message,
                                       void *userdata1, void *userdata2);
typedef void (*WGPUUncapturedErrorCallback)(const WGPUDevice *device, WGPUEnum type, WGPUStringView message,
                                            void *userdata1, void *userdata2);
typedef void (*WGPUPopErrorScopeCallback)(WGPUEnum status, WGPUEnum type, WGPUStringView message,
                                          void *userdata1, void *userdata2);

/* Every callback of one kind comes in the same wrapping. */
#define EG_WGPU_CALLBACK_INFO(kind)                                                                          \
    typedef struct WGPU##kind##CallbackInfo {                                                                \
        WGPUChainedStruct *nextInChain;                                                                      \
        WGPUEnum mode;                                                                                       \
        WGPU##kind##Callback callback;                                                                       \
        void *userdata1, *userdata2;                                                                         \
    } WGPU##kind##CallbackInfo
EG_WGPU_CALLBACK_INFO(RequestAdapter);
EG_WGPU_CALLBACK_INFO(RequestDevice);
EG_WGPU_CALLBACK_INFO(BufferMap);
EG_WGPU_CALLBACK_INFO(DeviceLost);
EG_WGPU_CALLBACK_INFO(PopErrorScope);
#undef EG_WGPU_CALLBACK_INFO

typedef struct WGPUUncapturedErrorCallbackInfo {
    WGPUChainedStruct *nextInChain;
    WGPUUncapturedErrorCallback callback;
    void *userdata1, *userdata2;
} WGPUUncapturedErrorCallbackInfo;

/* ---- Descriptors -------------------------------------------------------------------------------- */

typedef struct WGPURequestAdapterOptions {
    WGPUChainedStruct *nextInChain;
    WGPUEnum featureLevel, powerPreference;
    WGPUBool forceFallbackAdapter;
    WGPUEnum backendType;
    void *compatibleSurface;
} WGPURequestAdapterOptions;

typedef struct WGPUAdapterInfo {
    WGPUChainedStruct *nextInChain;
    WGPUStringView vendor, architecture, device, description;
    WGPUEnum backendType, adapterType;
    uint32_t vendorID, deviceID, subgroupMinSize, subgroupMaxSize;
} WGPUAdapterInfo;

typedef struct WGPULimits {
    WGPUChainedStruct *nextInChain;
    uint32_t maxTextureDimension1D, maxTextureDimension2D, maxTextureDimension3D, maxTextureArrayLayers;
    uint32_t maxBindGroups, maxBindGroupsPlusVertexBuffers, maxBindingsPerBindGroup;
    uint32_t maxDynamicUniformBuffersPerPipelineLayout, maxDynamicStorageBuffersPerPipelineLayout;
    uint32_t maxSampledTexturesPerShaderStage, maxSamplersPerShaderStage, maxStorageBuffersPerShaderStage;
    uint32_t maxStorageTexturesPerShaderStage, maxUniformBuffersPerShaderStage;
    uint64_t maxUniformBufferBindingSize, maxStorageBufferBindingSize;
    uint32_t minUniformBufferOffsetAlignment, minStorageBufferOffsetAlignment, maxVertexBuffers;
    uint64_t maxBufferSize;
    uint32_t maxVertexAttributes, maxVertexBufferArrayStride, maxInterStageShaderVariables;
    uint32_t maxColorAttachments, maxColorAttachmentBytesPerSample, maxComputeWorkgroupStorageSize;
    uint32_t maxComputeInvocationsPerWorkgroup, maxComputeWorkgroupSizeX, maxComputeWorkgroupSizeY;
    uint32_t maxComputeWorkgroupSizeZ, maxComputeWorkgroupsPerDimension, maxImmediateSize;
} WGPULimits;

typedef struct WGPUQueueDescriptor {
    WGPUChainedStruct *nextInChain;
    WGPUStringView label;
} WGPUQueueDescriptor;

typedef struct WGPUDeviceDescriptor {
    WGPUChainedStruct *nextInChain;
    WGPUStringView label;
    size_t requiredFeatureCount;
    const WGPUEnum *requiredFeatures;
    const WGPULimits *requiredLimits;
    WGPUQueueDescriptor defaultQueue;
    WGPUDeviceLostCallbackInfo deviceLostCallbackInfo;
    WGPUUncapturedErrorCallbackInfo uncapturedErrorCallbackInfo;
} WGPUDeviceDescriptor;

typedef struct WGPUBufferDescriptor {
    WGPUChainedStruct *nextInChain;
    WGPUStringView label;
    WGPUFlags usage;
    uint64_t size;
    WGPUBool mappedAtCreation;
} WGPUBufferDescriptor;

typedef struct WGPUShaderModuleDescriptor {
    WGPUChainedStruct *nextInChain;
    WGPUStringView label;
} WGPUShaderModuleDescriptor;

typedef struct WGPUShaderSourceWGSL {
    WGPUChainedStruct chain;
    WGPUStringView code;
} WGPUShaderSourceWGSL;

typedef struct WGPUConstantEntry {
    WGPUChainedStruct *nextInChain;
    WGPUStringView key;
    double value;
} WGPUConstantEntry;

typedef struct WGPUComputePipelineDescriptor {
    WGPUChainedStruct *nextInChain;
    WGPUStringView label;
    WGPUPipelineLayout layout;
    struct {
        WGPUChainedStruct *nextInChain;
        WGPUShaderModule module;
        WGPUStringView entryPoint;
        size_t constantCount;
        const WGPUConstantEntry *constants;
    } compute;
} WGPUComputePipelineDescriptor;

typedef struct WGPUBindGroupEntry {
    WGPUChainedStruct *nextInChain;
    uint32_t binding;
    WGPUBuffer buffer;
    uint64_t offset, size;
    void *sampler, *textureView;
} WGPUBindGroupEntry;

typedef struct WGPUBindGroupDescriptor {
    WGPUChainedStruct *nextInChain;
    WGPUStringView label;
    WGPUBindGroupLayout layout;
    size_t entryCount;
    const WGPUBindGroupEntry *entries;
} WGPUBindGroupDescriptor;

#endif
