#if defined(__linux__)
#define _DEFAULT_SOURCE
#endif

#include "memory.h"

#include <stdlib.h>
#include <string.h>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

/* A page that cannot be touched, the bytes, another such page; the bytes lie against one of them. */
static bool open_guarded(memory *m) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (m->bytes + page - 1) / page * page;
    m->map_bytes = inner + 2 * page;
    m->map = mmap(NULL, m->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->map == MAP_FAILED) return false;
    char *first = (char *)m->map + page;
    m->data = m->place == MEMORY_GUARD_BEHIND ? first + inner - m->bytes : first;
    return mprotect(m->map, page, PROT_NONE) == 0 && mprotect(first + inner, page, PROT_NONE) == 0;
}

static void close_guarded(memory *m) { munmap(m->map, m->map_bytes); }
#else
static bool open_guarded(memory *m) {
    m->data = malloc(m->bytes + 1);
    return m->data != NULL;
}

static void close_guarded(memory *m) { free(m->data); }
#endif

bool memory_open(memory *m, eg_context *context, memory_place place, size_t bytes) {
    *m = (memory){.bytes = bytes, .place = place};
    if (place != MEMORY_DEVICE) return open_guarded(m);
    return eg_alloc(context, bytes, &m->data) == EG_OK;
}

void memory_close(memory *m, eg_context *context) {
    if (m->data == NULL) return;
    if (m->place != MEMORY_DEVICE) {
        close_guarded(m);
    } else {
        eg_free(context, m->data);
    }
    m->data = NULL;
}

eg_status memory_write(const memory *m, eg_context *context, const void *bytes) {
    if (m->place == MEMORY_DEVICE) return eg_upload(context, m->data, 0, bytes, m->bytes);
    if (m->bytes > 0) memcpy(m->data, bytes, m->bytes);
    return EG_OK;
}

eg_status memory_read(const memory *m, eg_context *context, void *bytes) {
    if (m->place == MEMORY_DEVICE) return eg_download(context, bytes, m->data, 0, m->bytes);
    if (m->bytes > 0) memcpy(bytes, m->data, m->bytes);
    return EG_OK;
}
