/* Threads, by OpenMP where the build has it. */
#if defined(__linux__)
#define _GNU_SOURCE
#include <sched.h>
#endif

#include "cpu.h"

#ifdef _OPENMP
#include <omp.h>
#endif

int eg_cpu_cores(void) {
#if !defined(_OPENMP)
    return 1;
#elif defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return omp_get_num_procs();
#else
    return omp_get_num_procs();
#endif
}

void eg_cpu_parallel(int threads, int64_t count, void (*body)(void *arg, int64_t index, int thread),
                     void *arg) {
    if (threads > count) threads = (int)count;
    if (threads <= 1) {
        for (int64_t i = 0; i < count; i++) body(arg, i, 0);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < count; i++) body(arg, i, omp_get_thread_num());
#else
    for (int64_t i = 0; i < count; i++) body(arg, i, 0);
#endif
}
