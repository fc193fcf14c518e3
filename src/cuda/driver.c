/* SPDX-License-Identifier: Apache-2.0 */
/* dlopen of libcuda. */
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static eg_cuda_driver table;
static char failure[200]; /* why there is no driver; empty: there is */

static void *find(void *library, const char *symbol) {
    void *address = dlsym(library, symbol);
    if (address == NULL) {
        snprintf(failure, sizeof failure, "libcuda.so.1 has no %s: its driver is too old (12.8 is needed)",
                 symbol);
    }
    return address;
}

/* A data pointer from dlsym becomes a function pointer by its bytes: ISO C has no cast for it. */
static void fill(void *library) {
    void *address;
#define EG_TEXT(name) #name
#define EG_SYMBOL(name)                                                                                      \
    address = find(library, EG_TEXT(name));                                                                  \
    if (address == NULL) return;                                                                             \
    memcpy(&table.name, &address, sizeof address);
    EG_CUDA_SYMBOLS(EG_SYMBOL)
#undef EG_SYMBOL
#undef EG_TEXT
}

static void load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(failure, sizeof failure, "the CUDA driver could not be loaded: %s", dlerror());
        return;
    }
    fill(library);
    if (failure[0] != '\0') return;
    const CUresult result = table.cuInit(0);
    if (result == CUDA_SUCCESS) return;
    const char *text = NULL;
    table.cuGetErrorString(result, &text);
    snprintf(failure, sizeof failure, "the CUDA driver could not be started: %s",
             text != NULL ? text : "unknown error");
}

eg_status eg_cuda_driver_get(const eg_cuda_driver **driver) {
    pthread_once(&once, load);
    if (failure[0] != '\0') return eg_fail(EG_ERR_UNAVAILABLE, "%s", failure);
    *driver = &table;
    return EG_OK;
}

eg_status eg_cuda_fail(const eg_cuda_driver *driver, CUresult result, const char *what) {
    const char *name = NULL, *text = NULL;
    driver->cuGetErrorName(result, &name);
    driver->cuGetErrorString(result, &text);
    return eg_fail(result == CUDA_ERROR_OUT_OF_MEMORY ? EG_ERR_OUT_OF_MEMORY : EG_ERR_DEVICE, "%s: %s (%s)",
                   what, text != NULL ? text : "unknown error", name != NULL ? name : "?");
}
