/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels as code: fatbins embedded as bytes, loaded as modules, entry points found by name. */
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

static const struct {
    const char *name;
    const unsigned char *bytes;
} fatbins[] = {
#define EG_FATBIN(name) {#name, eg_fatbin_##name},
    EG_CUDA_FATBINS(EG_FATBIN)
#undef EG_FATBIN
};
enum { FATBINS = sizeof fatbins / sizeof *fatbins };
_Static_assert((int)FATBINS <= (int)EG_CUDA_MAX_MODULES, "a module for each fatbin");

/* Files for one architecture alone, hopper_*, have no code for the others. */
static eg_status load_modules(eg_cuda_device *device, uint32_t features) {
    for (int i = 0; i < FATBINS; i++) {
        const bool hopper = strncmp(fatbins[i].name, "hopper", 6) == 0;
        if (hopper && (features & EG_CUDA_SM90A) == 0) continue;
        EG_TRY(eg_cuda_check(device, device->driver->cuModuleLoadData(&device->modules[i], fatbins[i].bytes),
                             fatbins[i].name));
    }
    return EG_OK;
}

eg_status eg_cuda_find_function(eg_cuda_device *device, const char *kernel, CUfunction *function) {
    char name[96];
    snprintf(name, sizeof name, "eg_%s", kernel);
    CUresult result = CUDA_ERROR_NOT_FOUND;
    for (int i = 0; i < FATBINS && result == CUDA_ERROR_NOT_FOUND; i++) {
        if (device->modules[i] == NULL) continue;
        result = device->driver->cuModuleGetFunction(function, device->modules[i], name);
    }
    return eg_cuda_check(device, result, kernel);
}

static eg_status find_row(eg_cuda_device *device, const eg_cuda_kernel *row, CUfunction *function) {
    EG_TRY(eg_cuda_find_function(device, row->name, function));
    if (row->shared <= 48 * 1024) return EG_OK;
    return eg_cuda_check(device,
                         device->driver->cuFuncSetAttribute(
                             *function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, row->shared),
                         row->name);
}

eg_status eg_cuda_load_kernels(eg_cuda_device *device, uint32_t features) {
    const eg_cuda_kernel *row;
    EG_TRY(load_modules(device, features));
    for (int i = 0; (row = eg_cuda_kernel_row(i)) != NULL; i++) {
        if (i >= EG_CUDA_MAX_KERNELS)
            return eg_fail(EG_ERR_UNSUPPORTED, "the kernel table has more than %d rows",
                           (int)EG_CUDA_MAX_KERNELS);
        if (row->family == EG_CUDA_LIBRARY || (row->needs & features) != row->needs) continue;
        EG_TRY(find_row(device, row, &device->functions[i]));
    }
    return EG_OK;
}

void eg_cuda_unload_kernels(eg_cuda_device *device) {
    for (int i = 0; i < FATBINS; i++) {
        if (device->modules[i] != NULL) device->driver->cuModuleUnload(device->modules[i]);
    }
}
