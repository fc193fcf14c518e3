/* SPDX-License-Identifier: Apache-2.0 */
#include "loader.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static const char how[] = "set EPIGRAD_WEBGPU_LIBRARY to a webgpu.h library such as wgpu-native's "
                          "libwgpu_native.so (tools/fetch-webgpu.sh gets one)";

static void *open_library(const char **name) {
    static const char *const usual[] = {"libwgpu_native.so", "libwebgpu_dawn.so",
#ifdef EG_WEBGPU_DEFAULT_LIBRARY
                                        EG_WEBGPU_DEFAULT_LIBRARY,
#endif
                                        "libwgpu_native.dylib", "libwebgpu_dawn.dylib"};
    *name = getenv("EPIGRAD_WEBGPU_LIBRARY");
    if (*name != NULL && **name != '\0') return dlopen(*name, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        *name = usual[i];
        void *library = dlopen(usual[i], RTLD_NOW | RTLD_LOCAL);
        if (library != NULL) return library;
    }
    *name = NULL;
    return NULL;
}

/* ISO C has no conversion from dlsym's result to a function. */
static int find(void *library, const char *name, void *function) {
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

eg_status eg_webgpu_load(eg_webgpu_api *api) {
    const char *name, *missing = NULL;
    *api = (eg_webgpu_api){.library = open_library(&name)};
    if (api->library == NULL) {
        if (name == NULL) return eg_fail(EG_ERR_UNAVAILABLE, "no WebGPU library was found; %s", how);
        return eg_fail(EG_ERR_UNAVAILABLE, "EPIGRAD_WEBGPU_LIBRARY is \"%s\", which did not load: %s", name,
                       dlerror());
    }
#define EG_FIND(result, function, parameters)                                                                \
    if (!find(api->library, "wgpu" #function, &api->function)) missing = "wgpu" #function;
    EG_WEBGPU_EXTRAS(EG_FIND)
    missing = NULL;
    EG_WEBGPU_FUNCTIONS(EG_FIND)
#undef EG_FIND
    if (missing == NULL) return EG_OK;
    eg_webgpu_unload(api);
    return eg_fail(EG_ERR_UNAVAILABLE, "the WebGPU library %s has no %s: it is older than webgpu.h 1.0; %s",
                   name, missing, how);
}

/* The library stays in the process: implementations keep threads that outlive their last object. */
void eg_webgpu_unload(eg_webgpu_api *api) { *api = (eg_webgpu_api){0}; }
