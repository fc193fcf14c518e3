/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory: the caller's allocator, or our own. */
#if defined(__linux__)
#include <sys/mman.h>
#endif
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "error.h"

enum { LINE = 64, HUGE_PAGE = 2 << 20 };

/* Large blocks ask for pages of 2 MiB: packing writes to many places in turn, and finding 4 KiB pages was
 * over a quarter of its time. */
static void *default_alloc(size_t bytes, void *user) {
    (void)user;
    const size_t align = bytes >= 2 * (size_t)HUGE_PAGE ? HUGE_PAGE : LINE;
    if (bytes > PTRDIFF_MAX - (align - 1)) return NULL; /* no object is larger */
    bytes = (bytes + align - 1) / align * align;
    void *memory = aligned_alloc(align, bytes);
#if defined(__linux__)
    if (memory != NULL && align == HUGE_PAGE) madvise(memory, bytes, MADV_HUGEPAGE); /* advice only */
#endif
    return memory;
}

static void default_free(void *memory, void *user) {
    (void)user;
    free(memory);
}

eg_allocator eg_host_allocator(void) { return (eg_allocator){default_alloc, default_free, NULL}; }

void *eg_host_alloc(const eg_context *context, size_t bytes) {
    return context->allocator.alloc(bytes > 0 ? bytes : 1, context->allocator.user);
}

void eg_host_free(const eg_context *context, void *memory) {
    if (memory != NULL) context->allocator.free(memory, context->allocator.user);
}

char *eg_host_text(const eg_context *context, const char *text) {
    char *copy = eg_host_alloc(context, strlen(text) + 1);
    if (copy != NULL) memcpy(copy, text, strlen(text) + 1);
    return copy;
}

eg_status eg_describe(eg_context *context, const char *name, const char *features) {
    context->name = eg_host_text(context, name);
    context->features = eg_host_text(context, features);
    if (context->name != NULL && context->features != NULL) return EG_OK;
    return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for a context");
}
