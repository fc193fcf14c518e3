/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts are used by one thread at a time: a call takes a free one, or opens another, and gives it back. */
#ifndef EG_PYTHON_CONTEXTS_H
#define EG_PYTHON_CONTEXTS_H

#include <stdbool.h>

#include <epigrad/epigrad.h>

typedef struct eg_py_device {
    eg_backend backend;
    int ordinal, threads;
    bool openmp;  /* the CPU: by the threads of openmp.h */
    void *stream; /* CUDA: calls are enqueued there; NULL is the default stream */
} eg_py_device;

/* The CPU, with the threads that calls of this thread take. */
eg_py_device eg_py_contexts_cpu(void);

eg_status eg_py_contexts_take(const eg_py_device *device, eg_context **context);
void eg_py_contexts_give(const eg_py_device *device, eg_context *context);

/* The number of threads of contexts to come; 0: as many as OpenMP's where those are used, else the library's
 * choice. Free ones of another number are closed. */
void eg_py_contexts_set_threads(int threads);

#endif
