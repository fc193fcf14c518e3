/* SPDX-License-Identifier: Apache-2.0 */
#include "contexts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "openmp.h"

/* What is free. More than MOST on the CPU are needed only by as many threads at once: the others are closed
 * when they are given back. Those of CUDA stay, one for each stream: graphs that captured a call hold its
 * kernels, and a stream that is being captured must not be waited for. */
enum { MOST = 64 };
typedef struct free_context {
    eg_py_device device;
    eg_context *context;
} free_context;
static free_context *free_contexts;
static int count, capacity;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int threads;

static bool same_device(const eg_py_device *a, const eg_py_device *b) {
    return a->backend == b->backend && a->ordinal == b->ordinal && a->threads == b->threads &&
           a->openmp == b->openmp && a->stream == b->stream;
}

eg_status eg_py_contexts_take(const eg_py_device *device, eg_context **context) {
    *context = NULL;
    pthread_mutex_lock(&lock);
    for (int i = count - 1; i >= 0 && *context == NULL;
         i--) { /* the last one given back has the warmest caches */
        if (!same_device(&free_contexts[i].device, device)) continue;
        *context = free_contexts[i].context;
        for (int j = i + 1; j < count; j++) free_contexts[j - 1] = free_contexts[j];
        count--;
    }
    pthread_mutex_unlock(&lock);
    if (*context != NULL) return EG_OK;
    const eg_open_info info = {.size = sizeof info,
                               .backend = device->backend,
                               .device = device->ordinal,
                               .threads = device->threads,
                               .native_queue = device->stream,
                               .parallel_for = device->openmp ? eg_py_openmp_run : NULL};
    return eg_open(&info, context);
}

static bool has_room(void) {
    if (count < capacity) return true;
    const int wanted = capacity > 0 ? 2 * capacity : MOST;
    free_context *larger = realloc(free_contexts, (size_t)wanted * sizeof *larger);
    if (larger == NULL) return false;
    free_contexts = larger;
    capacity = wanted;
    return true;
}

void eg_py_contexts_give(const eg_py_device *device, eg_context *context) {
    pthread_mutex_lock(&lock);
    const eg_py_device now = eg_py_contexts_cpu();
    const bool wanted = device->backend != EG_BACKEND_CPU || (same_device(device, &now) && count < MOST);
    const bool keep = wanted && has_room();
    if (keep) {
        free_contexts[count].device = *device;
        free_contexts[count++].context = context;
    }
    pthread_mutex_unlock(&lock);
    if (!keep) eg_close(context);
}

eg_py_device eg_py_contexts_cpu(void) {
    eg_py_device device = {.threads = atomic_load(&threads), .openmp = eg_py_openmp_is_used()};
    if (device.threads == 0) device.threads = eg_py_openmp_threads();
    return device;
}

void eg_py_contexts_set_threads(int number) {
    eg_context *closed[MOST];
    int closing = 0, kept = 0;
    atomic_store(&threads, number);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++) {
        const eg_py_device *device = &free_contexts[i].device;
        if (device->backend == EG_BACKEND_CPU && device->threads != number)
            closed[closing++] = free_contexts[i].context;
        else
            free_contexts[kept++] = free_contexts[i];
    }
    count = kept;
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < closing; i++) eg_close(closed[i]);
}
