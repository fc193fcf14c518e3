/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include "../common/must.h"

#include <cuda.h>
#include <dlfcn.h>
#include <string.h>

/* The code: a fatbin that nvcc made of kernels.cu. */
extern const unsigned char gpt_fatbin[] __attribute__((visibility("hidden")));
__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".hidden gpt_fatbin\n"
        ".globl gpt_fatbin\n"
        "gpt_fatbin:\n"
        ".incbin \"" GPT_FATBIN "\"\n"
        ".popsection\n");

static const char *const names[] = {
#define GPT_KERNEL(name) #name,
    GPT_KERNELS(GPT_KERNEL)
#undef GPT_KERNEL
};

/* <cuda.h> makes each name a macro for the symbol whose signature it declares. */
#define GPT_DRIVER(X)                                                                                        \
    X(cuInit)                                                                                                \
    X(cuGetErrorString)                                                                                      \
    X(cuDeviceGet)                                                                                           \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuDevicePrimaryCtxRelease)                                                                             \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleUnload)                                                                                        \
    X(cuModuleGetFunction)                                                                                   \
    X(cuLaunchKernel)

static struct {
#define GPT_SYMBOL(name) __typeof__(&name) name;
    GPT_DRIVER(GPT_SYMBOL)
#undef GPT_SYMBOL
    CUdevice device;
    CUmodule module;
    CUfunction function[KERNELS];
} gpu;

static _Noreturn void fail(const char *what, const char *why) {
    fprintf(stderr, EXAMPLE ": %s: %s\n", what, why);
    exit(EXIT_UNAVAILABLE);
}

static void check(CUresult result, const char *what) {
    const char *why = "unknown error";
    if (result == CUDA_SUCCESS) return;
    gpu.cuGetErrorString(result, &why);
    fail(what, why);
}

static void load_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *address;
    if (!library) fail("the CUDA driver", dlerror());
        /* A data pointer becomes a function pointer by its bytes: ISO C has no cast for it. */
#define TEXT_OF(name) #name
#define GPT_SYMBOL(name)                                                                                     \
    address = dlsym(library, TEXT_OF(name));                                                                 \
    if (!address) fail("the CUDA driver has no", TEXT_OF(name));                                             \
    memcpy(&gpu.name, &address, sizeof address);
    GPT_DRIVER(GPT_SYMBOL)
#undef GPT_SYMBOL
#undef TEXT_OF
}

void gpu_open(void) {
    CUcontext context;
    load_driver();
    check(gpu.cuInit(0), "cuInit");
    check(gpu.cuDeviceGet(&gpu.device, 0), "cuDeviceGet");
    check(gpu.cuDevicePrimaryCtxRetain(&context, gpu.device), "cuDevicePrimaryCtxRetain");
    check(gpu.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(gpu.cuModuleLoadData(&gpu.module, gpt_fatbin), "the kernels");
    for (int i = 0; i < KERNELS; i++)
        check(gpu.cuModuleGetFunction(&gpu.function[i], gpu.module, names[i]), names[i]);
}

void gpu_close(void) {
    gpu.cuModuleUnload(gpu.module);
    gpu.cuDevicePrimaryCtxRelease(gpu.device);
}

void gpu_launch(kernel kernel, int blocks_x, int blocks_y, void *args) {
    void *parameters[] = {args};
    check(gpu.cuLaunchKernel(gpu.function[kernel], (unsigned)blocks_x, (unsigned)blocks_y, 1, THREADS, 1, 1,
                             0, NULL, parameters, NULL),
          names[kernel]);
}
