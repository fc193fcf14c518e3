/* SPDX-License-Identifier: Apache-2.0 */
/* Is the machine quiet? A hardware thread shares its core with another, which on a rented machine may be
 * anyone's, invisible from here. While it works, this one issues about half as many instructions a cycle, but
 * a chain of dependent multiplications takes as many cycles as ever. So a loop of nops is timed against such
 * a chain: their ratio, nops in the time of one multiplication, is free of the clock and falls when somebody
 * else is there.
 *
 *     gate        reads lines "CORE CORE ..." and answers each with a ratio for each core, measured at once
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_CORES = 1024, BURSTS = 25, NOPS = 64, CHAIN = 32 };

#if defined(__x86_64__)
#define NOP_LOOP   ".rept 64\n nop\n .endr"
#define CHAIN_LOOP ".rept 32\n imul %0, %0\n .endr"
#elif defined(__aarch64__)
#define NOP_LOOP   ".rept 64\n nop\n .endr"
#define CHAIN_LOOP ".rept 32\n mul %0, %0, %0\n .endr"
#else
#error "no gate for this processor"
#endif

typedef struct probe {
    pthread_t thread;
    pthread_barrier_t *start;
    int core;
    double ratio; /* 0: this core is not to be had */
} probe;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Some ten microseconds each: long against reading the clock, short against the scheduler's turns. */
static double burst(void) {
    enum { NOP_TURNS = 1000, CHAIN_TURNS = 330 };
    unsigned long x = 3;
    const double begin = now();
    for (int i = 0; i < NOP_TURNS; i++) __asm__ volatile(NOP_LOOP);
    const double middle = now();
    for (int i = 0; i < CHAIN_TURNS; i++) __asm__ volatile(CHAIN_LOOP : "+r"(x));
    const double end = now();
    const double nop = (middle - begin) / ((double)NOP_TURNS * NOPS);
    const double step = (end - middle) / ((double)CHAIN_TURNS * CHAIN);
    return step / nop;
}

static int by_value(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void *measure(void *argument) {
    probe *p = argument;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(p->core, &set);
    const int bound = pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
    double ratios[BURSTS];
    pthread_barrier_wait(p->start);
    for (int i = 0; i < BURSTS; i++) ratios[i] = burst();
    qsort(ratios, BURSTS, sizeof *ratios, by_value);
    p->ratio = bound ? ratios[BURSTS / 2] : 0;
    return NULL;
}

static int read_cores(char *line, probe *probes) {
    int count = 0;
    for (char *word = strtok(line, " \n"); word != NULL && count < MOST_CORES; word = strtok(NULL, " \n"))
        probes[count++].core = atoi(word);
    return count;
}

static int answer(probe *probes, int count) {
    pthread_barrier_t start;
    if (pthread_barrier_init(&start, NULL, (unsigned)count) != 0) return 1;
    for (int i = 0; i < count; i++) {
        probes[i].start = &start;
        if (pthread_create(&probes[i].thread, NULL, measure, &probes[i]) != 0) return 1;
    }
    printf("ok");
    for (int i = 0; i < count; i++) {
        pthread_join(probes[i].thread, NULL);
        printf(" %.4f", probes[i].ratio);
    }
    printf("\n");
    pthread_barrier_destroy(&start);
    return fflush(stdout);
}

int main(void) {
    static char line[MOST_CORES * 8];
    static probe probes[MOST_CORES];
    while (fgets(line, sizeof line, stdin) != NULL) {
        const int count = read_cores(line, probes);
        if (count == 0 || answer(probes, count) != 0) return 1;
    }
    return 0;
}
