/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool where there are no threads: the caller does all the work. */
#include "pool.h"

struct eg_pool {
    eg_allocator allocator;
};

int eg_pool_processors(void) { return 1; }

eg_pool *eg_pool_make(int most, const eg_allocator *allocator) {
    (void)most;
    eg_pool *pool = allocator->alloc(sizeof *pool, allocator->user);
    if (pool != NULL) pool->allocator = *allocator;
    return pool;
}

void eg_pool_run(eg_pool *pool, int threads, eg_task task, void *arg) {
    (void)pool;
    (void)threads;
    task(arg, 0);
}

void eg_pool_free(eg_pool *pool) {
    if (pool == NULL) return;
    const eg_allocator allocator = pool->allocator;
    allocator.free(pool, allocator.user);
}
