/* SPDX-License-Identifier: Apache-2.0 */
/* Work of a step shared out: each thread has a range of the indices, and when it is through takes on what is
 * left of the others'. So a thread packs the rows that it will multiply, and finds grad_pre of its rows in
 * its own cache; and a thread that is held up, or never comes, holds up no one. Of several steps a thread has
 * a range each, and goes from one to the next without waiting for the others. */
#include "threads.h"

#include "pool.h"

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
    range *ranges; /* of each step `most`, one step after the other */
    int most;      /* ranges of a step that there is room for */
    int threads, count;
    const eg_cpu_work *work;
    int first[EG_CPU_WORKS]; /* the thread that has the first range of a step */
} shared_work;

eg_threads *eg_threads_make(int most, const eg_open_info *info, const eg_allocator *allocator) {
    const size_t bytes = sizeof(eg_threads) + (size_t)(EG_CPU_WORKS * most) * sizeof(range);
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

static inline void run_body(const eg_cpu_work *work, int64_t index, int thread) {
    work->body(work->arg, index, thread);
    if (between.call != NULL) between.call(between.arg);
}

static void run_range(const eg_cpu_work *work, range *of, int thread) {
    for (;;) {
        const int64_t index = __atomic_fetch_add(&of->next, 1, __ATOMIC_RELAXED);
        if (index >= of->end) return;
        run_body(work, index, thread);
    }
}

/* The index of the thread's range of a step; from the step's number of ranges on: it has none. */
static int own_range(const shared_work *all, int step, int thread) {
    return (thread - all->first[step] + all->threads) % all->threads;
}

/* The own ranges of all steps come before what is left of any other thread's. */
static void run_ranges(void *arg, int thread) {
    const shared_work *all = arg;
    for (int i = 0; i < all->count; i++) {
        const int own = own_range(all, i, thread);
        if (own < all->work[i].threads) run_range(&all->work[i], &all->ranges[i * all->most + own], thread);
    }
    for (int i = 0; i < all->count; i++) {
        const int own = own_range(all, i, thread), ranges = all->work[i].threads;
        for (int j = 1; j <= ranges; j++)
            run_range(&all->work[i], &all->ranges[i * all->most + (own + j) % ranges], thread);
    }
}

static void run_alone(const eg_cpu_work *work) {
    for (int64_t i = 0; i < work->count; i++) run_body(work, i, 0);
}

static void divide(const eg_cpu_work *work, range *ranges) {
    const int64_t count = work->count, parts = work->threads;
    for (int64_t i = 0; i < parts; i++) {
        ranges[i].next = count / parts * i + (count % parts * i) / parts;
        ranges[i].end = count / parts * (i + 1) + (count % parts * (i + 1)) / parts;
    }
}

/* No more threads than there are, or than there is work for. */
static int limited(const eg_threads *threads, int most, int64_t count) {
    if (most > threads->most) most = threads->most;
    return most > count ? (int)count : most;
}

void eg_cpu_parallel_all(eg_threads *threads, int most, eg_cpu_work *work, int count) {
    shared_work all = {.ranges = threads->ranges, .most = threads->most, .count = count, .work = work};
    int64_t indices = 0;
    for (int i = 0; i < count; i++) {
        work[i].threads = limited(threads, work[i].threads < most ? work[i].threads : most, work[i].count);
        indices += work[i].count;
    }
    all.threads = limited(threads, most, indices);
    if (all.threads <= 1) {
        for (int i = 0; i < count; i++) run_alone(&work[i]);
        return;
    }
    for (int i = 0, next = 0; i < count; i++) {
        all.first[i] = next;
        next = (next + work[i].threads) % all.threads;
        divide(&work[i], threads->ranges + i * threads->most);
    }
    if (threads->pool != NULL) {
        eg_pool_run(threads->pool, all.threads, run_ranges, &all);
    } else {
        threads->parallel_for(threads->parallel_user, all.threads, run_ranges, &all);
        run_ranges(&all, 0); /* what a thread pool that ran no task would leave undone */
    }
}

void eg_cpu_parallel(eg_threads *threads, int most, int64_t count,
                     void (*body)(void *arg, int64_t index, int thread), void *arg) {
    eg_cpu_work work = {.body = body, .arg = arg, .count = count, .threads = most};
    if (limited(threads, most, count) <= 1) {
        run_alone(&work);
    } else {
        eg_cpu_parallel_all(threads, most, &work, 1);
    }
}
