/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool on POSIX threads. The calling thread opens a job, works on it itself, closes it, and waits
 * only for the workers that have begun: one that got no processor in time is not missed. A worker waits for a
 * short while in a loop, which is the quickest way to begin, and then asleep, which leaves its processor to
 * others. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* sched_getaffinity, sched_getcpu, syscall */
#endif
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

/* How long a thread waits in a loop: longer than it takes to wake one. For a worker it is the time since the
 * last job, of whichever threads, so that one which works in one step of a call is not woken in each call,
 * however long the others take; but no longer than OWN_NANOSECONDS since a job of its own. */
enum { SPIN_NANOSECONDS = 300000, OWN_NANOSECONDS = 5000000 };
/* Bytes of a worker's stack. Kernels need some KiB, sanitizers several times that. */
enum { STACK = 1 << 20 };
/* Where the system has refused a thread, it is asked again after as many jobs. */
enum { JOBS_BEFORE_RETRY = 1000 };

/* eg_pool.job: the number of the job, and in the low bits its threads; none once it is closed. */
enum { THREADS_BITS = 16, THREADS_MASK = (1 << THREADS_BITS) - 1, QUIT = THREADS_MASK };

typedef struct worker {
    _Alignas(64) int busy; /* may be inside of a job */
    int asleep;            /* or about to be: has to be woken */
    int processor;         /* where it took up the job; -1: it has had none since it was moved */
    int avoids;            /* the processor that it may not run on; -1: none */
    int id;                /* the system's; 0: it has none, or has not begun */
    int index;
    uint64_t last; /* the job it had last */
    eg_pool *pool;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
} worker;

struct eg_pool {
    _Alignas(64) uint64_t job;
    eg_task task;
    void *arg;
    int processor; /* of the caller, when it opened the job */
    int waits;     /* the caller is asleep until no worker is busy */
    pthread_mutex_t mutex;
    pthread_cond_t done;
    eg_allocator allocator;
    int most;     /* workers[1] to workers[most - 1] may be used; the caller is the thread of index 0 */
    int made;     /* of them, this many are there; 1: none but the caller */
    int patience; /* jobs before the system is asked again for a thread */
    bool spins;
    unsigned forks; /* of this process, when the threads were made */
    worker workers[];
};

/* Threads do not come along into a child process: thread pools see by this count that theirs are gone. */
static unsigned forks;
static void count_fork(void) { __atomic_fetch_add(&forks, 1, __ATOMIC_RELAXED); }
static bool counts_forks;
static void begin_to_count_forks(void) { counts_forks = pthread_atfork(NULL, NULL, count_fork) == 0; }

/* ---- Waiting ---------------------------------------------------------------------------------------- */

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The one that this thread runs on, or has just run on; -1: the system does not say. */
static int processor(void) {
#if defined(__linux__)
    return sched_getcpu();
#else
    return -1;
#endif
}

/* Where the system has put two threads on one processor, one of them waits in a loop and the other has the
 * work that it waits for. */
static bool is_here(const int *of) {
    const int here = processor();
    return here >= 0 && __atomic_load_n(of, __ATOMIC_RELAXED) == here;
}

/* The wait in a loop: `while (!condition && may_spin(&spin, job))`. Another job is a new beginning. */
typedef struct spin {
    int turns;
    int64_t end, last;
    uint64_t job;
} spin;

/* Of some turns, the one that looks at the clock. */
static bool is_at_clock(const spin *s) { return s->turns % 32 == 0; }

static bool may_spin(spin *s, uint64_t job) {
    if (is_at_clock(s)) {
        const int64_t now = nanoseconds();
        if (s->last == 0) s->last = now + OWN_NANOSECONDS;
        if (s->end == 0 || s->job != job) s->end = now + SPIN_NANOSECONDS;
        s->job = job;
        if (now >= s->end || now >= s->last) return false;
    }
    s->turns++;
    pause_briefly();
    return true;
}

static bool has_job(const worker *w, uint64_t *job) {
    *job = __atomic_load_n(&w->pool->job, __ATOMIC_SEQ_CST);
    return *job != w->last && (int)(*job & THREADS_MASK) > w->index;
}

static uint64_t wait_for_job(worker *w) {
    uint64_t job = w->last;
    spin s = {0};
    while (w->pool->spins && may_spin(&s, job)) {
        if (has_job(w, &job)) return job;
        if (is_at_clock(&s) && is_here(&w->pool->processor)) break; /* the caller's: it needs that */
    }
    pthread_mutex_lock(&w->mutex);
    __atomic_store_n(&w->asleep, 1, __ATOMIC_SEQ_CST); /* before the last look at the job */
    while (!has_job(w, &job)) pthread_cond_wait(&w->wake, &w->mutex);
    __atomic_store_n(&w->asleep, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&w->mutex);
    return job;
}

static bool is_asleep(const worker *w) { return __atomic_load_n(&w->asleep, __ATOMIC_SEQ_CST) != 0; }

static void wake(worker *w) {
    pthread_mutex_lock(&w->mutex); /* it waits by then, or sees the job */
    pthread_mutex_unlock(&w->mutex);
    pthread_cond_signal(&w->wake); /* now: it would only wait for the mutex */
}

/* The first worker from `first` on, below `threads`, that is busy; or `threads`. */
static int next_busy(const eg_pool *pool, int first, int threads) {
    while (first < threads && __atomic_load_n(&pool->workers[first].busy, __ATOMIC_SEQ_CST) == 0) first++;
    return first;
}

static void wait_until_done(eg_pool *pool, int threads) {
    int busy = next_busy(pool, 1, threads);
    spin s = {0};
    while (busy < threads && pool->spins && may_spin(&s, 0)) {
        if (is_at_clock(&s) && is_here(&pool->workers[busy].processor)) sched_yield();
        busy = next_busy(pool, busy, threads);
    }
    if (busy == threads) return;
    pthread_mutex_lock(&pool->mutex);
    __atomic_store_n(&pool->waits, 1, __ATOMIC_SEQ_CST); /* before the last look at the workers */
    while ((busy = next_busy(pool, busy, threads)) < threads) pthread_cond_wait(&pool->done, &pool->mutex);
    __atomic_store_n(&pool->waits, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&pool->mutex);
}

static void tell_done(eg_pool *pool) {
    if (__atomic_load_n(&pool->waits, __ATOMIC_SEQ_CST) == 0) return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_signal(&pool->done);
    pthread_mutex_unlock(&pool->mutex);
}

/* ---- Affinity --------------------------------------------------------------------------------------- */

/* In a virtual machine Linux was seen to wake a worker on the caller's processor while another was idle. There
 * the worker gets nothing until a tick of the clock balances the load, for up to 10 ms. (An idle processor is
 * halted; it may pass for one that the host has given to others.) So who wakes a worker says where not to run.
 */
#if defined(__linux__)
/* Where the caller may run, without the processors of the caller and of the job's other workers. */
static bool free_processors(const eg_pool *pool, int threads, const worker *w, cpu_set_t *set) {
    if (pool->processor >= CPU_SETSIZE || sched_getaffinity(0, sizeof *set, set) != 0) return false;
    CPU_CLR(pool->processor, set);
    const cpu_set_t without_caller = *set;
    for (int i = 1; i < threads; i++) {
        const int taken = __atomic_load_n(&pool->workers[i].processor, __ATOMIC_RELAXED);
        if (i != w->index && taken >= 0 && taken < CPU_SETSIZE) CPU_CLR(taken, set);
    }
    if (CPU_COUNT(set) == 0) *set = without_caller;
    return CPU_COUNT(set) > 0;
}

static bool has_company(const eg_pool *pool, const worker *w) {
    const int here = __atomic_load_n(&w->processor, __ATOMIC_RELAXED);
    for (int i = 1; i < w->index && here >= 0; i++) {
        if (__atomic_load_n(&pool->workers[i].processor, __ATOMIC_RELAXED) == here) return true;
    }
    return false;
}

static void tell_id(worker *w) { __atomic_store_n(&w->id, (int)syscall(SYS_gettid), __ATOMIC_RELAXED); }

/* Before a worker that sleeps is woken. Workers share processors where there are more of them (!spins). */
static void keep_apart(eg_pool *pool, int threads, worker *w) {
    if (pool->processor < 0) return;
    if (w->avoids == pool->processor && !(pool->spins && has_company(pool, w))) return;
    const int id = __atomic_load_n(&w->id, __ATOMIC_RELAXED);
    cpu_set_t set;
    if (id == 0 || !free_processors(pool, threads, w, &set)) return;
    if (sched_setaffinity(id, sizeof set, &set) != 0) return;
    w->avoids = pool->processor;
    __atomic_store_n(&w->processor, -1, __ATOMIC_RELAXED);
}
#else
static void tell_id(worker *w) { (void)w; }
static void keep_apart(eg_pool *pool, int threads, worker *w) { (void)pool, (void)threads, (void)w; }
#endif

/* ---- Workers ---------------------------------------------------------------------------------------- */

/* A worker says that it is busy before it looks whether the job is still open, the caller closes the job
 * before it looks who is busy: one of the two sees the other. */
static void *work(void *arg) {
    worker *w = arg;
    eg_pool *pool = w->pool;
    tell_id(w);
    for (;;) {
        wait_for_job(w);
        __atomic_store_n(&w->busy, 1, __ATOMIC_SEQ_CST);
        uint64_t job;
        const bool open = has_job(w, &job);
        const bool quits = open && (job & THREADS_MASK) == QUIT;
        __atomic_store_n(&w->processor, processor(), __ATOMIC_RELAXED);
        if (open && !quits) pool->task(pool->arg, w->index);
        if (open) w->last = job;
        __atomic_store_n(&w->busy, 0, __ATOMIC_SEQ_CST);
        if (quits) return NULL;
        tell_done(pool);
    }
}

static bool start(worker *w) {
    pthread_attr_t small;
    if (pthread_attr_init(&small) != 0) return false;
    bool started =
        pthread_attr_setstacksize(&small, STACK) == 0 && pthread_create(&w->thread, &small, work, w) == 0;
    pthread_attr_destroy(&small);
    /* A program with much thread-local storage has no room for it on a small stack. */
    return started || pthread_create(&w->thread, NULL, work, w) == 0;
}

static bool init_waiting(pthread_mutex_t *mutex, pthread_cond_t *cond) {
    if (pthread_mutex_init(mutex, NULL) != 0) return false;
    if (pthread_cond_init(cond, NULL) == 0) return true;
    pthread_mutex_destroy(mutex);
    return false;
}

static bool make_worker(eg_pool *pool, int index) {
    worker *w = &pool->workers[index];
    *w = (worker){.index = index, .pool = pool, .last = pool->job, .processor = -1, .avoids = -1};
    if (!init_waiting(&w->mutex, &w->wake)) return false;
    if (start(w)) return true;
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->mutex);
    return false;
}

/* Workers take no signal but those of their own instructions, and a profiler's: others are for the program's
 * threads. */
static bool block_signals(sigset_t *before) {
    static const int own[] = {SIGBUS, SIGFPE, SIGILL, SIGPROF, SIGSEGV, SIGTRAP};
    sigset_t most;
    sigfillset(&most);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&most, own[i]);
    return pthread_sigmask(SIG_SETMASK, &most, before) == 0;
}

/* As many as there can be: the work of those that the system refuses is done by the others. */
static void make_workers(eg_pool *pool, int threads) {
    if (pool->made >= threads || --pool->patience > 0) return;
    sigset_t before;
    if (!block_signals(&before)) return;
    while (pool->made < threads && make_worker(pool, pool->made)) pool->made++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pool->patience = pool->made < threads ? JOBS_BEFORE_RETRY : 0;
}

/* ---- The thread pool
 * --------------------------------------------------------------------------------------- */

int eg_pool_processors(void) {
#if defined(__linux__)
    for (size_t count = 1024; count <= 1 << 20; count *= 2) { /* EINVAL: the system has more processors */
        cpu_set_t *set = CPU_ALLOC(count);
        if (set == NULL) break;
        const size_t bytes = CPU_ALLOC_SIZE(count);
        const int processors = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (processors > 0) return processors;
    }
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* As it is without any worker, also where a child process finds the locks as threads of its parent had them.
 */
static bool reset(eg_pool *pool) {
    if (!init_waiting(&pool->mutex, &pool->done)) return false;
    pool->job = 0;
    pool->waits = 0;
    pool->made = 1;
    pool->patience = 0;
    pool->forks = __atomic_load_n(&forks, __ATOMIC_RELAXED);
    return true;
}

eg_pool *eg_pool_make(int most, const eg_allocator *allocator) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin_to_count_forks);
    if (!counts_forks) return NULL;
    if (most >= QUIT) most = QUIT - 1;
    eg_pool *pool = allocator->alloc(sizeof *pool + (size_t)most * sizeof(worker), allocator->user);
    if (pool == NULL) return NULL;
    *pool = (eg_pool){.allocator = *allocator, .most = most, .spins = most <= eg_pool_processors()};
    if (reset(pool)) return pool;
    allocator->free(pool, allocator->user);
    return NULL;
}

static void open_job(eg_pool *pool, int threads) {
    const uint64_t number = (pool->job >> THREADS_BITS) + 1;
    __atomic_store_n(&pool->job, number << THREADS_BITS | (uint64_t)threads, __ATOMIC_SEQ_CST);
}

static bool is_forked(const eg_pool *pool) {
    return pool->forks != __atomic_load_n(&forks, __ATOMIC_RELAXED);
}

void eg_pool_run(eg_pool *pool, int threads, eg_task task, void *arg) {
    if (is_forked(pool) && !reset(pool)) threads = 1;
    if (threads > pool->most) threads = pool->most;
    make_workers(pool, threads);
    if (threads > pool->made) threads = pool->made;
    if (threads > 1) {
        pool->task = task;
        pool->arg = arg;
        __atomic_store_n(&pool->processor, processor(), __ATOMIC_RELAXED);
        open_job(pool, threads);
        for (int i = 1; i < threads; i++) {
            worker *w = &pool->workers[i];
            if (!is_asleep(w)) continue;
            keep_apart(pool, threads, w);
            wake(w);
        }
    }
    task(arg, 0);
    if (threads > 1) {
        __atomic_store_n(&pool->job, pool->job & ~(uint64_t)THREADS_MASK, __ATOMIC_SEQ_CST);
        wait_until_done(pool, threads);
    }
}

static void join_workers(eg_pool *pool) {
    open_job(pool, QUIT);
    for (int i = 1; i < pool->made; i++) {
        if (is_asleep(&pool->workers[i])) wake(&pool->workers[i]);
    }
    for (int i = 1; i < pool->made; i++) {
        worker *w = &pool->workers[i];
        pthread_join(w->thread, NULL);
        pthread_cond_destroy(&w->wake);
        pthread_mutex_destroy(&w->mutex);
    }
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->mutex);
}

void eg_pool_free(eg_pool *pool) {
    if (pool == NULL) return;
    if (!is_forked(pool)) join_workers(pool);
    const eg_allocator allocator = pool->allocator;
    allocator.free(pool, allocator.user);
}
