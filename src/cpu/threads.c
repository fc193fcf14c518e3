/* SPDX-License-Identifier: Apache-2.0 */
/* Work of a step shared out: each thread has a range of the indices, and when it is through takes on what is
 * left of the others'. So a thread packs the rows that it will multiply, and finds grad_pre of its rows in
 * its own cache; and a thread that is held up, or never comes, holds up no one. */
#include "threads.h"

#include "pool.h"

enum { MOST_THREADS = 256 };

typedef struct range {
    _Alignas(64) int64_t next;
    int64_t end;
} range;

struct eg_threads {
    eg_pool *pool; /* NULL: the caller's are used */
    eg_parallel_for parallel_for;
    void *parallel_user;
    eg_allocator allocator;
    int most;
    range ranges[];
};

typedef struct shared_work {
    range *ranges;
    int count; /* of ranges */
    void (*body)(void *, int64_t, int);
    void *arg;
} shared_work;

eg_threads *eg_threads_make(int most, const eg_open_info *info, const eg_allocator *allocator) {
    if (most > MOST_THREADS) most = MOST_THREADS;
    const size_t bytes = sizeof(eg_threads) + (size_t)most * sizeof(range);
    eg_threads *threads = allocator->alloc(bytes, allocator->user);
    if (threads == NULL) return NULL;
    *threads = (eg_threads){.allocator = *allocator,
                            .parallel_for = info->parallel_for,
                            .parallel_user = info->parallel_user,
                            .most = most};
    if (threads->parallel_for != NULL) return threads;
    threads->pool = eg_pool_make(most, allocator);
    if (threads->pool != NULL) return threads;
    allocator->free(threads, allocator->user);
    return NULL;
}

void eg_threads_free(eg_threads *threads) {
    if (threads == NULL) return;
    eg_pool_free(threads->pool);
    const eg_allocator allocator = threads->allocator;
    allocator.free(threads, allocator.user);
}

static _Thread_local struct {
    void (*call)(void *);
    void *arg;
} between;

void eg_cpu_call_between(void (*call)(void *), void *arg) {
    between.call = call;
    between.arg = arg;
}

static inline void run_body(const shared_work *work, int64_t index, int thread) {
    work->body(work->arg, index, thread);
    if (between.call != NULL) between.call(between.arg);
}

static void run_ranges(void *arg, int thread) {
    const shared_work *work = arg;
    for (int i = 0; i < work->count; i++) {
        range *own = &work->ranges[(thread + i) % work->count];
        for (;;) {
            const int64_t index = __atomic_fetch_add(&own->next, 1, __ATOMIC_RELAXED);
            if (index >= own->end) break;
            run_body(work, index, thread);
        }
    }
}

void eg_cpu_parallel(eg_threads *threads, int most, int64_t count,
                     void (*body)(void *arg, int64_t index, int thread), void *arg) {
    if (most > threads->most) most = threads->most;
    if (most > count) most = (int)count;
    shared_work work = {.ranges = threads->ranges, .count = most, .body = body, .arg = arg};
    if (most <= 1) {
        for (int64_t i = 0; i < count; i++) run_body(&work, i, 0);
        return;
    }
    for (int i = 0; i < most; i++) {
        work.ranges[i].next = count / most * i + (count % most * i) / most;
        work.ranges[i].end = count / most * (i + 1) + (count % most * (i + 1)) / most;
    }
    if (threads->pool != NULL) {
        eg_pool_run(threads->pool, most, run_ranges, &work);
    } else {
        threads->parallel_for(threads->parallel_user, most, run_ranges, &work);
        run_ranges(&work, 0); /* what a thread pool that ran no task would leave undone */
    }
}
