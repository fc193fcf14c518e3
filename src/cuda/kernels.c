/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels as code: fatbins embedded as bytes, of which a device loads those whose kernels it runs. All of
 * them take some 60 ms. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "device.h"
#include "fatbins.h" /* made by CMake: EG_CUDA_FATBINS(X), a row for each file of kernels/ */

#define EG_FATBIN(name)                                                                                      \
    extern const unsigned char eg_fatbin_##name[] __attribute__((visibility("hidden")));                     \
    __asm__(".pushsection .rodata\n"                                                                         \
            ".balign 64\n"                                                                                   \
            ".hidden eg_fatbin_" #name "\n"                                                                  \
            ".globl eg_fatbin_" #name "\n"                                                                   \
            "eg_fatbin_" #name ":\n"                                                                         \
            ".incbin \"" EG_CUDA_FATBIN_DIR "/" #name ".fatbin\"\n"                                          \
            ".popsection\n");
EG_CUDA_FATBINS(EG_FATBIN)
#undef EG_FATBIN

enum {
#define EG_FATBIN(name) FATBIN_##name,
    EG_CUDA_FATBINS(EG_FATBIN)
#undef EG_FATBIN
        FATBINS
};
_Static_assert((int)FATBINS <= (int)EG_CUDA_MAX_MODULES, "a module for each fatbin");

static const struct {
    const char *name;
    const unsigned char *bytes;
} fatbins[] = {
#define EG_FATBIN(name) {#name, eg_fatbin_##name},
    EG_CUDA_FATBINS(EG_FATBIN)
#undef EG_FATBIN
};

/* Which fatbin has a kernel. */
static const struct {
    const char *kernel;
    int fatbin;
} entries[] = {
#define EG_ENTRY(fatbin, kernel) {#kernel, FATBIN_##fatbin},
#include "entries.h" /* made by CMake of what nvcc compiled */
#undef EG_ENTRY
};

static eg_status load_module(eg_cuda_device *device, int fatbin) {
    if (device->modules[fatbin] != NULL) return EG_OK;
    const CUstreamCaptureMode before = eg_cuda_set_capture_mode(device, CU_STREAM_CAPTURE_MODE_RELAXED);
    const CUresult result = device->driver->cuModuleLoadData(&device->modules[fatbin], fatbins[fatbin].bytes);
    eg_cuda_set_capture_mode(device, before);
    return eg_cuda_check(device, result, fatbins[fatbin].name);
}

eg_status eg_cuda_find_function(eg_cuda_device *device, const char *kernel, CUfunction *function) {
    char name[96];
    size_t i = 0;
    while (i < sizeof entries / sizeof *entries && strcmp(entries[i].kernel, kernel) != 0) i++;
    if (i == sizeof entries / sizeof *entries) return eg_cuda_check(device, CUDA_ERROR_NOT_FOUND, kernel);
    EG_TRY(load_module(device, entries[i].fatbin));
    snprintf(name, sizeof name, "eg_%s", kernel);
    return eg_cuda_check(
        device, device->driver->cuModuleGetFunction(function, device->modules[entries[i].fatbin], name),
        kernel);
}

eg_status eg_cuda_load_row(eg_cuda_device *device, const eg_cuda_kernel *row) {
    CUfunction *function = &device->functions[row - eg_cuda_kernel_row(0)], found;
    if (row->family == EG_CUDA_LIBRARY || *function != NULL) return EG_OK;
    EG_TRY(eg_cuda_find_function(device, row->name, &found));
    if (row->shared > 48 * 1024)
        EG_TRY(eg_cuda_check(device,
                             device->driver->cuFuncSetAttribute(
                                 found, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, row->shared),
                             row->name));
    *function = found;
    return EG_OK;
}

void eg_cuda_unload_kernels(eg_cuda_device *device) {
    for (int i = 0; i < FATBINS; i++) {
        if (device->modules[i] != NULL) device->driver->cuModuleUnload(device->modules[i]);
    }
}
