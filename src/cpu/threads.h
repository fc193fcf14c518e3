/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of a context, and how the work of a step is shared out among them. */
#ifndef EG_CPU_THREADS_H
#define EG_CPU_THREADS_H

#include "epigrad/epigrad.h"

typedef struct eg_threads eg_threads;

/* At most `most` threads: of the caller's thread pool where info has one, else of an own. NULL: no memory. */
eg_threads *eg_threads_make(int most, const eg_open_info *info, const eg_allocator *allocator);
void eg_threads_free(eg_threads *threads); /* NULL is allowed */

/* Runs body(arg, index, thread) for every index below count, on at most `most` threads. Which thread gets
 * which index is not fixed; what a body writes must depend on the index alone. `thread` is below `most`, and
 * no two bodies that run at once have the same. */
void eg_cpu_parallel(eg_threads *threads, int most, int64_t count,
                     void (*body)(void *arg, int64_t index, int thread), void *arg);

/* The work of a step, shared out among `threads` at most. */
typedef struct eg_cpu_work {
    void (*body)(void *arg, int64_t index, int thread);
    void *arg;
    int64_t count; /* indices */
    int threads;
} eg_cpu_work;

/* The same for steps that need nothing of each other, EG_CPU_WORKS of them at most, with one fork and join:
 * no thread waits for the others between them. On at most `most` threads together. */
enum { EG_CPU_WORKS = 6 };
void eg_cpu_parallel_all(eg_threads *threads, int most, eg_cpu_work *work, int count);

/* Calls between(arg) on the calling thread, after each body that it runs; NULL: no more. For what has to be
 * advanced while the threads are busy. */
void eg_cpu_call_between(void (*between)(void *arg), void *arg);

/* ---- How many (cores.c) --------------------------------------------------------------------------- */

/* Processors' worth of time that this thread's affinity and the process's control groups allow; at least 1.
 */
int eg_cores_available(void);
/* Threads of a context that names no number: what OMP_NUM_THREADS says, else the cores available. */
int eg_cores_default(void);

/* Pure, and for the tests. 0: no number, or no limit. */
int eg_cores_of_omp(const char *num_threads); /* OMP_NUM_THREADS: "4", or "4,2", of which the first counts */
int eg_cores_of_quota(const char *cpu_max);   /* a cpu.max: "150000 100000", or "max 100000"; rounded up */
/* `groups`: the text of /proc/self/cgroup. `root`: where the control groups are, /sys/fs/cgroup. The least of
 * the process's group and those that it lies in. */
int eg_cores_of_groups(const char *groups, const char *root);

#endif
