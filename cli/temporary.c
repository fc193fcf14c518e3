/* SPDX-License-Identifier: Apache-2.0 */
#include "temporary.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "folder.h"

static const int SIGNALS[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU};
enum { SIGNAL_COUNT = sizeof SIGNALS / sizeof SIGNALS[0] };

/* Changed only while the thread that makes it holds the signals back. */
static struct {
    enum { NOTHING, A_FILE, A_FOLDER } kind;
    char path[PATH_MAX + 8];
    pthread_t thread;
    sigset_t others; /* the mask to go back to */
} making;

/* Only functions that POSIX calls async-signal-safe. Any thread may be interrupted, but only the one that
 * makes the files can be trusted to make no more of them while they are removed. */
static void remove_and_die(int number) {
    const int saved = errno;
    if (!pthread_equal(pthread_self(), making.thread)) {
        pthread_kill(making.thread, number);
        errno = saved;
        return;
    }
    if (making.kind == A_FILE) unlink(making.path);
    if (making.kind == A_FOLDER) folder_remove(making.path);
    signal(number, SIG_DFL);
    raise(number); /* blocked until this handler returns */
    errno = saved;
}

static sigset_t all_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < SIGNAL_COUNT; i++) sigaddset(&set, SIGNALS[i]);
    return set;
}

/* What the caller ignores, as nohup does, stays ignored. */
static void catch_signals(void) {
    const struct sigaction action = {
        .sa_handler = remove_and_die, .sa_mask = all_signals(), .sa_flags = SA_RESTART};
    making.thread = pthread_self();
    for (int i = 0; i < SIGNAL_COUNT; i++) {
        struct sigaction before;
        if (sigaction(SIGNALS[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(SIGNALS[i], &action, NULL);
    }
}

void temporary_hold_signals(void) {
    const sigset_t all = all_signals();
    pthread_sigmask(SIG_BLOCK, &all, &making.others);
}

static void let_signals_in(void) { pthread_sigmask(SIG_SETMASK, &making.others, NULL); }

int temporary_make_file(char *path) {
    temporary_hold_signals();
    catch_signals();
    const int file = mkstemp(path), why = errno;
    if (file >= 0) making.kind = A_FILE;
    snprintf(making.path, sizeof making.path, "%s", path);
    let_signals_in();
    errno = why;
    return file;
}

bool temporary_make_folder(char *path) {
    temporary_hold_signals();
    catch_signals();
    const bool made = mkdtemp(path) != NULL;
    const int why = errno;
    if (made) making.kind = A_FOLDER;
    snprintf(making.path, sizeof making.path, "%s", path);
    let_signals_in();
    errno = why;
    return made;
}

void temporary_end(void) {
    making.kind = NOTHING;
    let_signals_in();
}
