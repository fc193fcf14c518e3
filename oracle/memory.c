/* SPDX-License-Identifier: Apache-2.0 */
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

/* Mappings are kept for the next operand: making one takes longer than most calls. */
enum { KEPT = 32, KEPT_BYTES = 1 << 16 };

static _Thread_local void *kept[KEPT];
static _Thread_local int kept_count;

/* `inner` bytes between two pages that cannot be touched. */
static void *map_guarded(size_t inner, size_t page) {
    if (inner == KEPT_BYTES && kept_count > 0) return kept[--kept_count];
    void *map = mmap(NULL, inner + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return NULL;
    char *first = (char *)map + page;
    if (mprotect(map, page, PROT_NONE) == 0 && mprotect(first + inner, page, PROT_NONE) == 0) return map;
    munmap(map, inner + 2 * page);
    return NULL;
}

/* A page that cannot be touched, the bytes, another such page; the bytes lie against one of them. */
static bool open_guarded(memory *m) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t least = m->bytes < KEPT_BYTES ? KEPT_BYTES : m->bytes;
    const size_t inner = (least + page - 1) / page * page;
    m->map_bytes = inner + 2 * page;
    m->map = map_guarded(inner, page);
    if (m->map == NULL) return false;
    char *first = (char *)m->map + page;
    m->data = m->place == MEMORY_GUARD_BEHIND ? first + inner - m->bytes : first;
    return true;
}

static void close_guarded(memory *m) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (m->map_bytes == KEPT_BYTES + 2 * page && kept_count < KEPT) {
        kept[kept_count++] = m->map;
    } else {
        munmap(m->map, m->map_bytes);
    }
}
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
