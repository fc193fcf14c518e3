/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA context of a device, and what its failures mean. */
#include "device.h"

#include <stdio.h>

#include "core/error.h"
#include "core/text.h"

/* After these the driver refuses all further work in the CUDA context. */
static bool is_sticky(CUresult result) {
    switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        return true;
    default:
        return false;
    }
}

/* A failure comes to light some time after the kernel: these are the ones it may have been. */
static const char *last_kernels(const eg_cuda_device *device, char *text, size_t capacity) {
    eg_text out = {text, capacity};
    if (device->names == 0) eg_put(&out, "no kernel");
    for (int i = 0; i < device->names; i++) eg_put(&out, "%s%s", i > 0 ? ", " : "", device->name[i]);
    return text;
}

/* Where kernels are not waited for one by one, the call that fails need not be the one that did it. */
eg_status eg_cuda_check(eg_cuda_device *device, CUresult result, const char *what) {
    char names[256];
    if (result == CUDA_SUCCESS) return EG_OK;
    if (!is_sticky(result)) return eg_cuda_fail(device->driver, result, what);
    device->broken = result;
    if (!device->checked && device->names > 0) what = last_kernels(device, names, sizeof names);
    return eg_cuda_fail(device->driver, result, what);
}

CUstreamCaptureMode eg_cuda_set_capture_mode(const eg_cuda_device *device, CUstreamCaptureMode mode) {
    device->driver->cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

eg_status eg_cuda_enter(eg_cuda_device *device) {
    if (device->broken != CUDA_SUCCESS) {
        char names[256], what[320];
        snprintf(what, sizeof what, "the CUDA context is lost since %s",
                 last_kernels(device, names, sizeof names));
        return eg_cuda_fail(device->driver, device->broken, what);
    }
    return eg_cuda_check(device, device->driver->cuCtxPushCurrent(device->context), "cuCtxPushCurrent");
}

eg_status eg_cuda_leave(eg_cuda_device *device, eg_status status) {
    CUcontext popped;
    device->driver->cuCtxPopCurrent(&popped);
    return status;
}
