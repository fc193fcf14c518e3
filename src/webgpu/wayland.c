/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* dladdr */
#include "loader.h"

#ifdef __wasm__ /* a page has no Wayland, and its C library no threads */

void eg_webgpu_silence_wayland(void) {}

#else

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Mesa's Vulkan layer for choosing a device asks the Wayland display which one it is on. Where
 * XDG_RUNTIME_DIR is not set, as in a container, libwayland-client prints an error, though a missing display
 * is none to us. Only variables of the environment could turn the layer or its question off, and setenv races
 * with the getenv of other threads. So the log function of libwayland-client is replaced: by one that does as
 * the default does, that one message left out. */
static void log_other_messages(const char *format, va_list arguments) {
    if (strstr(format, "XDG_RUNTIME_DIR") == NULL) vfprintf(stderr, format, arguments);
}

typedef void log_function(const char *format, va_list arguments);

static void replace_log(void) {
    static const char name[] = "libwayland-client.so.0";
    const char *folder = getenv("XDG_RUNTIME_DIR");
    if (folder != NULL && folder[0] == '/') return;
    /* A process that has loaded it already may have a log function of its own there. */
    void *wayland = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (wayland != NULL) {
        dlclose(wayland);
        return;
    }
    wayland = dlopen(name, RTLD_LAZY | RTLD_LOCAL); /* not closed: the function is to stay in place */
    if (wayland == NULL) return;
    void (*set_log)(log_function *);
    void *symbol = dlsym(wayland, "wl_log_set_handler_client");
    memcpy(&set_log, &symbol, sizeof set_log);
    if (set_log == NULL) return;
    /* Neither may this library be unloaded from then on. An executable, which does not open so, never is. */
    Dl_info self;
    if (dladdr(name, &self) != 0) (void)dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    set_log(log_other_messages);
}

void eg_webgpu_silence_wayland(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, replace_log);
}

#endif
