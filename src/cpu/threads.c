/* Threads, by OpenMP where the build has it. */
#include "cpu.h"

#ifdef _OPENMP
#include <omp.h>
#endif

/* OpenMP's own count: it is of the processors the process began with, while OMP_PROC_BIND may since have
 * bound this thread to one. */
int eg_cpu_cores(void) {
#ifdef _OPENMP
    return omp_get_num_procs();
#else
    return 1;
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
