/* SPDX-License-Identifier: Apache-2.0 */
#include "openmp.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

static void (*parallel)(void (*body)(void *), void *arg, unsigned threads, unsigned flags);
static int (*thread_num)(void), (*max_threads)(void);
static atomic_bool known, forked;

static void note_fork(void) { atomic_store(&forked, true); }

void eg_py_openmp_use(void *of_parallel, void *of_thread_num, void *of_max_threads) {
    if (atomic_load(&known) || pthread_atfork(NULL, NULL, note_fork) != 0) return;
    *(void **)&parallel = of_parallel;
    *(void **)&thread_num = of_thread_num;
    *(void **)&max_threads = of_max_threads;
    atomic_store(&known, true);
}

bool eg_py_openmp_is_used(void) { return atomic_load(&known) && !atomic_load(&forked); }

int eg_py_openmp_threads(void) { return atomic_load(&known) ? max_threads() : 0; }

typedef struct region {
    int tasks;
    eg_task task;
    void *arg;
} region;

static void run_task(void *arg) {
    const region *r = arg;
    const int index = thread_num();
    if (index < r->tasks) r->task(r->arg, index);
}

/* A team is no smaller than torch's: GNU's runtime ends the threads that a team has less than the one before,
 * and makes new ones for the next larger team. Those that are too many do nothing. */
void eg_py_openmp_run(void *user, int tasks, eg_task task, void *arg) {
    (void)user;
    region r = {tasks, task, arg};
    if (!eg_py_openmp_is_used()) return; /* the library does on its own what no task did */
    const int most = max_threads();
    parallel(run_task, &r, (unsigned)(tasks > most ? tasks : most), 0);
}
