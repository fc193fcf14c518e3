/* SPDX-License-Identifier: Apache-2.0 */
/* A piece of a test in a child process, which may lower its limits, hang or die. */
#ifndef TESTS_CHILD_H
#define TESTS_CHILD_H

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support.h"

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZED true
#endif
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZED true
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZED true
#endif
#ifndef ADDRESS_SANITIZED
#define ADDRESS_SANITIZED false
#endif
#ifndef THREAD_SANITIZED
#define THREAD_SANITIZED false
#endif

enum { CHILD_SKIPS = 77, CHILD_SECONDS = 60 };

/* Runs body(arg), whose value is 0 for success, CHILD_SKIPS, or another for failure; what the child prints on
 * either stream is a failure, too. False: it skips. */
static inline bool passes_in_child(int (*body)(void *arg), void *arg) {
    char printed[512];
    size_t length = 0;
    int out[2], status = 0;
    assert_int_equal(pipe(out), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(out[1], STDOUT_FILENO);
        dup2(out[1], STDERR_FILENO);
        close(out[0]);
        close(out[1]);
        signal(SIGALRM, SIG_DFL);
        alarm(CHILD_SECONDS);
        _exit(body(arg));
    }
    close(out[1]);
    for (ssize_t got; (got = read(out[0], printed + length, sizeof printed - 1 - length)) > 0;)
        length += (size_t)got;
    close(out[0]);
    printed[length] = '\0';
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) fail_msg("hangs");
    if (WIFSIGNALED(status)) fail_msg("ends by signal %d: %s", WTERMSIG(status), printed);
    if (WEXITSTATUS(status) == CHILD_SKIPS) return false;
    if (WEXITSTATUS(status) != 0) fail_msg("ends with status %d: %s", WEXITSTATUS(status), printed);
    if (length > 0) fail_msg("prints: %s", printed);
    return true;
}

/* Threads of this process; 0 where nobody says, or a sanitizer has one of its own among them. */
static inline int threads_alive(void) {
    DIR *tasks = THREAD_SANITIZED ? NULL : opendir("/proc/self/task");
    int count = 0;
    for (struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;)
        count += task->d_name[0] != '.';
    if (tasks != NULL) closedir(tasks);
    return count;
}

/* Whether there are as many, or soon will be: the system lists a thread for a moment after it was joined. */
static inline bool threads_become(int count) {
    for (int i = 0; i < 500 && threads_alive() != count; i++)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    return threads_alive() == count;
}

#endif
