/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* A thread draws, since one step may be a long call of the library. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t stop;
    pthread_t thread;
    bool running, stopping, visible;
    const char *command;
    char label[48];
    int total, begun;
    struct timespec start;
} bar = {.lock = PTHREAD_MUTEX_INITIALIZER};

static double seconds_since(const struct timespec *start) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + (double)(now.tv_nsec - start->tv_nsec) * 1e-9;
}

/* The functions from here to draw_until_stopped hold the lock. */
static void erase(void) {
    if (bar.visible) fputs("\r\033[K", stderr);
    bar.visible = false;
}

static void draw(void) {
    enum { WIDTH = 30 };
    char cells[WIDTH + 1];
    const int done = bar.begun > 0 ? bar.begun - 1 : 0;
    for (int i = 0; i < WIDTH; i++) cells[i] = i < done * WIDTH / bar.total ? '#' : '.';
    cells[WIDTH] = '\0';
    fprintf(stderr, "\r\033[K%s [%s] %d/%d  %.1f s  %s", bar.command, cells, done, bar.total,
            seconds_since(&bar.start), bar.label);
    fflush(stderr);
    bar.visible = true;
}

static void *draw_until_stopped(void *unused) {
    pthread_mutex_lock(&bar.lock);
    while (!bar.stopping) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 100000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&bar.stop, &bar.lock, &until);
        if (!bar.stopping && seconds_since(&bar.start) > 1.0) draw();
    }
    erase();
    pthread_mutex_unlock(&bar.lock);
    return unused;
}

void progress_begin(const char *command, int total) {
    if (bar.running || !isatty(STDERR_FILENO)) return;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&bar.stop, &monotonic);
    pthread_condattr_destroy(&monotonic);
    bar.command = command;
    bar.total = total > 0 ? total : 1;
    bar.begun = 0;
    bar.stopping = false;
    clock_gettime(CLOCK_MONOTONIC, &bar.start);
    bar.running = pthread_create(&bar.thread, NULL, draw_until_stopped, NULL) == 0;
}

void progress_step(const char *label) {
    pthread_mutex_lock(&bar.lock);
    if (bar.begun < bar.total) bar.begun++;
    snprintf(bar.label, sizeof bar.label, "%s", label);
    pthread_mutex_unlock(&bar.lock);
}

void progress_end(void) {
    if (!bar.running) return;
    pthread_mutex_lock(&bar.lock);
    bar.stopping = true;
    pthread_cond_signal(&bar.stop);
    pthread_mutex_unlock(&bar.lock);
    pthread_join(bar.thread, NULL);
    pthread_cond_destroy(&bar.stop);
    bar.running = false;
}

void progress_print(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&bar.lock);
    erase();
    fflush(stderr);
    vprintf(format, arguments);
    fflush(stdout);
    pthread_mutex_unlock(&bar.lock);
    va_end(arguments);
}
