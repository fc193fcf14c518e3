/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver, loaded at run time: the library itself links to nothing of CUDA and loads anywhere. */
#ifndef EG_CUDA_DRIVER_H
#define EG_CUDA_DRIVER_H

#include <cuda.h>

#include "epigrad/epigrad.h"

#if CUDA_VERSION < 13000 /* the version that later headers mean by this name */
#undef cuStreamGetCaptureInfo
#define cuStreamGetCaptureInfo cuStreamGetCaptureInfo_v3
#endif

/* The entry points. <cuda.h> makes each name a macro for the symbol whose signature it declares. */
#define EG_CUDA_SYMBOLS(X)                                                                                   \
    X(cuInit)                                                                                                \
    X(cuGetErrorName)                                                                                        \
    X(cuGetErrorString)                                                                                      \
    X(cuDeviceGetCount)                                                                                      \
    X(cuDeviceGet)                                                                                           \
    X(cuDeviceGetName)                                                                                       \
    X(cuDeviceGetAttribute)                                                                                  \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuDevicePrimaryCtxRelease)                                                                             \
    X(cuCtxPushCurrent)                                                                                      \
    X(cuCtxPopCurrent)                                                                                       \
    X(cuCtxGetDevice)                                                                                        \
    X(cuStreamCreate)                                                                                        \
    X(cuStreamDestroy)                                                                                       \
    X(cuStreamWaitEvent)                                                                                     \
    X(cuStreamQuery)                                                                                         \
    X(cuStreamSynchronize)                                                                                   \
    X(cuStreamIsCapturing)                                                                                   \
    X(cuThreadExchangeStreamCaptureMode)                                                                     \
    X(cuStreamBeginCapture)                                                                                  \
    X(cuStreamEndCapture)                                                                                    \
    X(cuStreamGetCaptureInfo)                                                                                \
    X(cuGraphInstantiate)                                                                                    \
    X(cuGraphLaunch)                                                                                         \
    X(cuGraphExecKernelNodeSetParams)                                                                        \
    X(cuGraphExecUpdate)                                                                                     \
    X(cuGraphExecDestroy)                                                                                    \
    X(cuGraphDestroy)                                                                                        \
    X(cuMemAlloc)                                                                                            \
    X(cuMemFree)                                                                                             \
    X(cuMemHostAlloc)                                                                                        \
    X(cuMemHostGetDevicePointer)                                                                             \
    X(cuMemFreeHost)                                                                                         \
    X(cuMemsetD32Async)                                                                                      \
    X(cuMemcpyDtoDAsync)                                                                                     \
    X(cuMemcpyHtoDAsync)                                                                                     \
    X(cuMemcpyDtoHAsync)                                                                                     \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleUnload)                                                                                        \
    X(cuModuleGetFunction)                                                                                   \
    X(cuFuncSetAttribute)                                                                                    \
    X(cuLaunchKernelEx)                                                                                      \
    X(cuEventCreate)                                                                                         \
    X(cuEventRecord)                                                                                         \
    X(cuEventSynchronize)                                                                                    \
    X(cuEventElapsedTime)                                                                                    \
    X(cuEventDestroy)                                                                                        \
    X(cuTensorMapEncodeTiled)

typedef struct eg_cuda_driver {
#define EG_SYMBOL(name) __typeof__(&name) name;
    EG_CUDA_SYMBOLS(EG_SYMBOL)
#undef EG_SYMBOL
} eg_cuda_driver;

/* The driver, loaded and initialised once a process; EG_ERR_UNAVAILABLE in words where it cannot be. */
eg_status eg_cuda_driver_get(const eg_cuda_driver **driver);

/* The status of a driver call that failed while doing `what`. */
eg_status eg_cuda_fail(const eg_cuda_driver *driver, CUresult result, const char *what);

#endif
