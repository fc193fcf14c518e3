/* SPDX-License-Identifier: Apache-2.0 */
/* What threads cost: one fork-join, and whole calls of builds of the library, in turn.
 *
 *     fork_join THREADS BUSY [LIBRARY...]
 *
 * BUSY processes compute beside it; where there are none, the threads are bound one to a core of those that
 * the process may use (taskset). The three thread pools are the library's own, OpenMP's, and pthreadpool's
 * where it was there to build with. A LIBRARY is the path of a libepigrad.so: eg_backward at 64 and 256 cubed
 * in f32 by each. Times are in microseconds, median and least of the rounds; in each round everything has its
 * turn. */
#define _GNU_SOURCE /* sched_setaffinity */
#include <dirent.h>
#include <dlfcn.h>
#include <omp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cpu/pool.h"
#include "epigrad/epigrad.h"

#if defined(EG_HAVE_PTHREADPOOL)
#include <pthreadpool.h>
#endif

enum { MOST_ROWS = 64, ROUNDS = 101, MOST_BUSY = 1024 };

static int threads;

static double microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

/* ---- One fork-join: it ends when every thread has been there ------------------------------------------ */

static int arrived; /* of the threads beside the caller */

static void arrive(void *arg, int index) {
    (void)arg;
    if (index > 0) {
        __atomic_fetch_add(&arrived, 1, __ATOMIC_RELEASE);
        return;
    }
    while (__atomic_load_n(&arrived, __ATOMIC_ACQUIRE) <
           threads - 1) { /* or the own thread pool would not wait */
    }
}

static void arrive_by_openmp(void) {
#pragma omp parallel num_threads(threads)
    if (omp_get_thread_num() > 0) arrive(NULL, omp_get_thread_num());
}

static void *own_alloc(size_t bytes, void *user) {
    (void)user;
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void own_free(void *memory, void *user) {
    (void)user;
    free(memory);
}

static eg_pool *own_pool;
static void arrive_by_own(void) { eg_pool_run(own_pool, threads, arrive, NULL); }

#if defined(EG_HAVE_PTHREADPOOL)
static pthreadpool_t other_pool;
static void arrive_at(void *arg, size_t index) {
    if (index > 0) arrive(arg, (int)index);
}
static void arrive_by_pthreadpool(void) {
    pthreadpool_parallelize_1d(other_pool, arrive_at, NULL, (size_t)threads, 0);
}
#endif

/* ---- A whole call ----------------------------------------------------------------------------------------
 */

typedef struct library {
    eg_status (*backward)(eg_context *, const eg_layer *, const eg_backward_args *);
    eg_context *context;
    eg_layer layer;
    eg_backward_args args;
} library;

static void *must(void *pointer, const char *what) {
    if (pointer != NULL) return pointer;
    fprintf(stderr, "fork_join: %s\n", what);
    exit(1);
}

static library open_library(const char *path, int64_t size) {
    void *handle = must(dlopen(path, RTLD_NOW | RTLD_LOCAL), path);
    eg_status (*open)(const eg_open_info *, eg_context **);
    library x = {.layer = {.size = sizeof x.layer, .m = size, .k = size, .n = size, .batch = 1}};
    *(void **)&open = must(dlsym(handle, "eg_open"), "no eg_open");
    *(void **)&x.backward = must(dlsym(handle, "eg_backward"), "no eg_backward");
    open(&(eg_open_info){.size = sizeof(eg_open_info), .threads = threads}, &x.context);
    must(x.context, "no context");
    x.layer.activation = EG_ACT_GELU;
    const size_t numbers = (size_t)(size * size);
    float *memory = must(calloc(6 * numbers, sizeof *memory), "no memory");
    x.args = (eg_backward_args){.size = sizeof x.args,
                                .a.data = memory,
                                .b.data = memory + numbers,
                                .grad.data = memory + 2 * numbers,
                                .d_a.data = memory + 3 * numbers,
                                .d_b.data = memory + 4 * numbers,
                                .d_bias.data = memory + 5 * numbers};
    return x;
}

/* ---- The table -------------------------------------------------------------------------------------------
 */

typedef struct row {
    char name[256];
    void (*fork_join)(void); /* or a call of `library` */
    library library;
    int repeats, pause; /* times in a sample; microseconds asleep before each */
    double samples[ROUNDS];
} row;

static row rows[MOST_ROWS];
static int row_count;

static row *add_row(const char *name, int repeats, int pause) {
    if (row_count == MOST_ROWS) exit(2);
    row *r = &rows[row_count++];
    snprintf(r->name, sizeof r->name, "%s", name);
    r->repeats = repeats;
    r->pause = pause;
    return r;
}

static void run_once(row *r) {
    if (r->fork_join != NULL) {
        arrived = 0;
        r->fork_join();
    } else if (r->library.backward(r->library.context, &r->library.layer, &r->library.args) != EG_OK) {
        exit(1);
    }
}

static void take_sample(row *r, int round) {
    double time = 0;
    run_once(r); /* its threads come from where others have left them */
    for (int i = 0; i < r->repeats; i++) {
        if (r->pause > 0) usleep((useconds_t)r->pause);
        const double begin = microseconds();
        run_once(r);
        time += microseconds() - begin;
    }
    r->samples[round] = time / r->repeats;
    usleep(5000); /* until they have stopped to wait in a loop, as far as they ever do */
}

static int compare(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void add_fork_join(const char *name, void (*fork_join)(void)) {
    char text[128];
    add_row(name, 20, 0)->fork_join = fork_join;
    snprintf(text, sizeof text, "%s, after 1 ms", name);
    add_row(text, 3, 1000)->fork_join = fork_join;
}

static void add_library(const char *path) {
    static const int sizes[] = {64, 256};
    for (int i = 0; i < 2; i++) {
        char text[256];
        snprintf(text, sizeof text, "%d cubed, %s", sizes[i], path);
        add_row(text, i == 0 ? 20 : 3, 0)->library = open_library(path, sizes[i]);
    }
}

static pid_t busy[MOST_BUSY];

static void make_busy(int count) {
    for (int i = 0; i < count; i++) {
        busy[i] = fork();
        if (busy[i] == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile unsigned turns = 0; busy[i] == 0;) turns = turns + 1;
    }
}

/* The core of that number, of those that the process may use. */
static size_t core_of(const cpu_set_t *usable, int number) {
    size_t core = 0;
    for (int left = number % CPU_COUNT(usable);; core++) {
        if (CPU_ISSET(core, usable) && left-- == 0) return core;
    }
}

/* The main thread to the first core, the others of each thread pool, in the order they were made, to the next
 * ones.
 */
static void bind_threads(void) {
    cpu_set_t usable;
    if (sched_getaffinity(0, sizeof usable, &usable) != 0) return;
    DIR *tasks = must(opendir("/proc/self/task"), "no /proc");
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        const int id = atoi(task->d_name);
        int before = 0; /* threads made before this one */
        DIR *others = must(opendir("/proc/self/task"), "no /proc");
        for (struct dirent *other; (other = readdir(others)) != NULL;)
            before += atoi(other->d_name) > 0 && atoi(other->d_name) < id;
        closedir(others);
        cpu_set_t core;
        CPU_ZERO(&core);
        CPU_SET(core_of(&usable, before == 0 ? 0 : 1 + (before - 1) % (threads - 1)), &core);
        if (id > 0) sched_setaffinity(id, sizeof core, &core);
    }
    closedir(tasks);
}

int main(int count, char **arguments) {
    threads = count > 2 ? atoi(arguments[1]) : 0;
    const int others = count > 2 ? atoi(arguments[2]) : -1;
    if (threads < 2 || others < 0 || others > MOST_BUSY) {
        fprintf(stderr, "usage: fork_join THREADS BUSY [LIBRARY...]: 2 threads or more, 0 to %d busy\n",
                MOST_BUSY);
        return 2;
    }
    make_busy(others); /* before there are threads */
    own_pool = eg_pool_make(threads, &(eg_allocator){own_alloc, own_free, NULL});
    must(own_pool, "no pool");
    add_fork_join("own", arrive_by_own);
    add_fork_join("OpenMP", arrive_by_openmp);
#if defined(EG_HAVE_PTHREADPOOL)
    other_pool = pthreadpool_create((size_t)threads);
    add_fork_join("pthreadpool", arrive_by_pthreadpool);
#endif
    for (int i = 3; i < count; i++) add_library(arguments[i]);
    for (int round = -1; round < ROUNDS; round++) {
        if (round == 0 && others == 0) bind_threads(); /* all of them are there after the first round */
        for (int i = 0; i < row_count; i++) take_sample(&rows[i], round < 0 ? 0 : round);
    }
    printf("%d threads, %d busy processes; us\n%10s %10s\n", threads, others, "median", "least");
    for (int i = 0; i < row_count; i++) {
        qsort(rows[i].samples, ROUNDS, sizeof(double), compare);
        printf("%10.2f %10.2f  %s\n", rows[i].samples[ROUNDS / 2], rows[i].samples[0], rows[i].name);
    }
    for (int i = 0; i < others; i++) kill(busy[i], SIGKILL);
    return 0;
}
