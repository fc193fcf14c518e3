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

#ifdef _OPENMP

/* Each thread has a range of the indices, and when it is through takes on what is left of the others'. So a
 * thread packs the rows that it will multiply, and finds grad_pre of its rows in its own cache; and a thread
 * that is held up holds up no one. */
enum { MOST_THREADS = 256 };

typedef struct range {
    _Alignas(64) int64_t next;
    int64_t end;
} range;

static void run_ranges(range *ranges, int count, int thread, void (*body)(void *, int64_t, int), void *arg) {
    for (int i = 0; i < count; i++) {
        range *own = &ranges[(thread + i) % count];
        for (;;) {
            const int64_t index = __atomic_fetch_add(&own->next, 1, __ATOMIC_RELAXED);
            if (index >= own->end) break;
            body(arg, index, thread);
        }
    }
}

/* GNU's OpenMP ends the threads that a team has less than the one before, and makes new ones for the next
 * larger team: some 50 us each. So a team is as large as the one before, if no larger than `most`, and those
 * that are too many do nothing. */
static int team_of(int most, int threads) {
    static _Thread_local int last;
    if (last > most) last = most;
    if (last < threads) last = threads;
    return last;
}

static void run_threads(int team, int threads, int64_t count, void (*body)(void *, int64_t, int), void *arg) {
    range ranges[MOST_THREADS];
    for (int i = 0; i < threads; i++) {
        ranges[i].next = count / threads * i + (count % threads * i) / threads;
        ranges[i].end = count / threads * (i + 1) + (count % threads * (i + 1)) / threads;
    }
#pragma omp parallel num_threads(team)
    if (omp_get_thread_num() < threads) run_ranges(ranges, threads, omp_get_thread_num(), body, arg);
}

#endif

void eg_cpu_parallel(int most, int threads, int64_t count, void (*body)(void *arg, int64_t index, int thread),
                     void *arg) {
    if (threads > count) threads = (int)count;
#ifdef _OPENMP
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads > 1) {
        run_threads(team_of(most, threads), threads, count, body, arg);
        return;
    }
#endif
    (void)most;
    for (int64_t i = 0; i < count; i++) body(arg, i, 0);
}
