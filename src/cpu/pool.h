/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of threads that wait for work. A build has one of pool_pthread.c, pool_openmp.c (EPIGRAD_OPENMP) and
 * pool_none.c (where a C library has no threads). */
#ifndef EG_POOL_H
#define EG_POOL_H

#include "epigrad/epigrad.h"

typedef struct eg_pool eg_pool;

/* Processors that the calling thread may run on, by its affinity mask. */
int eg_pool_processors(void);

/* A thread pool of at most `most` threads, of which the caller of eg_pool_run is one. Threads are made when
 * they are first wanted. NULL: no memory. Used by one thread at a time. */
eg_pool *eg_pool_make(int most, const eg_allocator *allocator);

/* Calls task(arg, 0) on this thread, and task(arg, i) for those 0 < i < threads whose thread comes in time.
 * So the tasks that run have to do the work of those that do not. Returns when every call has returned. */
void eg_pool_run(eg_pool *pool, int threads, eg_task task, void *arg);

/* Joins the threads. NULL is allowed. */
void eg_pool_free(eg_pool *pool);

#endif
