/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool of OpenMP, for programs that want its threads to be the only ones. What the runtime does
 * where it gets no threads, after fork, or when it waits, is then the program's choice: docs/lab/cpu.md. */
#include <omp.h>

#include "pool.h"

struct eg_pool {
    eg_allocator allocator;
    int most, last; /* `last`: threads of the team before */
};

/* OpenMP's own count: it is of the processors the process began with, while OMP_PROC_BIND may since have
 * bound this thread to one. */
int eg_pool_processors(void) { return omp_get_num_procs(); }

eg_pool *eg_pool_make(int most, const eg_allocator *allocator) {
    eg_pool *pool = allocator->alloc(sizeof *pool, allocator->user);
    if (pool != NULL) *pool = (eg_pool){.allocator = *allocator, .most = most};
    return pool;
}

/* GNU's OpenMP ends the threads that a team has less than the one before, and makes new ones for the next
 * larger team: some 50 us each. So a team is as large as the one before, and those that are too many do
 * nothing. */
void eg_pool_run(eg_pool *pool, int threads, eg_task task, void *arg) {
    if (threads > pool->most) threads = pool->most;
    if (pool->last < threads) pool->last = threads;
#pragma omp parallel num_threads(pool->last)
    if (omp_get_thread_num() < threads) task(arg, omp_get_thread_num());
}

void eg_pool_free(eg_pool *pool) {
    if (pool == NULL) return;
    const eg_allocator allocator = pool->allocator;
    allocator.free(pool, allocator.user);
}
