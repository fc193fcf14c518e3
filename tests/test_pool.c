/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own threads where a system gives none, in a child process, and when they end. */
#define _GNU_SOURCE /* sched_setaffinity */
#include <dirent.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>

#include "child.h"
#include "fixture.h"

enum { THREADS = 8 };

/* A call that is worth several threads, on memory that is all there before, and its result by one thread. */
static fixture f;
static unsigned char *expected;

static eg_context *open_quietly(int threads) {
    eg_context *context = NULL;
    eg_open(&(eg_open_info){.size = sizeof(eg_open_info), .threads = threads}, &context);
    return context;
}

static bool right(eg_context *context) {
    fixture_poison(&f);
    return eg_forward(context, &f.layer, &f.forward) == EG_OK &&
           eg_backward(context, &f.layer, &f.backward) == EG_OK &&
           memcmp(f.outputs, expected, f.output_bytes) == 0;
}

/* For any number of threads: more of them may need less. */
static size_t enough_workspace(void) {
    size_t most = 0;
    for (int threads = 1; threads <= THREADS; threads++) {
        eg_context *context = open_cpu(threads);
        size_t bytes[2];
        assert_ok(eg_forward_workspace(context, &f.layer, &f.forward, &bytes[0]));
        assert_ok(eg_backward_workspace(context, &f.layer, &f.backward, &bytes[1]));
        for (int i = 0; i < 2; i++) most = bytes[i] > most ? bytes[i] : most;
        eg_close(context);
    }
    return most / 64 * 64 + 64;
}

static int set_up(void **state) {
    (void)state;
    fixture_make(&f, (eg_layer){.m = 512, .k = 512, .n = 320, .batch = 1, .math = EG_MATH_STRICT});
    eg_context *alone = open_cpu(1);
    const size_t most = enough_workspace();
    f.forward.workspace = f.backward.workspace = (eg_workspace){aligned_alloc(64, most), 0, most};
    assert_non_null(f.forward.workspace.data);
    memset(f.forward.workspace.data, 0, most);
    assert_ok(eg_forward(alone, &f.layer, &f.forward));
    assert_ok(eg_backward(alone, &f.layer, &f.backward));
    expected = need_memory(f.output_bytes);
    memcpy(expected, f.outputs, f.output_bytes);
    eg_close(alone);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    free(f.forward.workspace.data);
    free(expected);
    fixture_free(&f);
    return 0;
}

static void *nothing(void *arg) { return arg; }

static bool gets_a_thread(void) {
    pthread_t thread;
    return pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0;
}

/* Root is exempt from the limit, so it becomes somebody else. */
static int call_without_threads(void *arg) {
    (void)arg;
    const uid_t other = 64999;
    const struct rlimit none = {1, 1};
    if (geteuid() == 0 && (setgroups(0, NULL) != 0 || setgid(other) != 0 || setuid(other) != 0))
        return CHILD_SKIPS;
    if (setrlimit(RLIMIT_NPROC, &none) != 0 || gets_a_thread()) return CHILD_SKIPS;
    eg_context *context = open_quietly(THREADS);
    if (context == NULL) return 1;
    for (int i = 0; i < 3; i++) {
        if (!right(context)) return 2;
    }
    eg_close(context);
    return 0;
}

static void goes_on_where_no_thread_may_be_made(void **state) {
    (void)state;
    if (!passes_in_child(call_without_threads, NULL)) skip();
}

/* The thousandth job after it was refused a thread, the thread pool asks again. */
static int call_without_threads_first(void *arg) {
    (void)arg;
    struct rlimit limit;
    const uid_t other = 64998;
    if (geteuid() == 0 && (setgroups(0, NULL) != 0 || setgid(other) != 0 || setuid(other) != 0))
        return CHILD_SKIPS;
    if (getrlimit(RLIMIT_NPROC, &limit) != 0) return CHILD_SKIPS;
    const struct rlimit none = {1, limit.rlim_max};
    if (setrlimit(RLIMIT_NPROC, &none) != 0 || gets_a_thread()) return CHILD_SKIPS;
    eg_context *context = open_quietly(2);
    if (context == NULL || !right(context) || threads_alive() != 1) return 1;
    if (setrlimit(RLIMIT_NPROC, &limit) != 0 || !gets_a_thread() || !threads_become(1)) return CHILD_SKIPS;
    eg_layer few = f.layer; /* a thousand calls of all rows take minutes with a sanitizer */
    few.m = 64;
    for (int i = 0; i < 1000 && threads_alive() < 2; i++) {
        if (eg_forward(context, &few, &f.forward) != EG_OK) return 2;
    }
    const bool alone = threads_alive() < 2;
    if (!right(context)) return 2;
    eg_close(context);
    return alone ? 3 : 0;
}

static void asks_again_for_threads(void **state) {
    (void)state;
    if (!threads_become(1)) skip();
    if (!passes_in_child(call_without_threads_first, NULL)) skip();
}

/* `arg`: bytes of address space beyond what the process has. */
static int call_without_memory(void *arg) {
    eg_context *context = open_quietly(THREADS);
    if (context == NULL) return 1;
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%lu", &pages) != 1) return CHILD_SKIPS;
    fclose(file);
    const rlim_t bytes = pages * (rlim_t)sysconf(_SC_PAGESIZE) + *(const rlim_t *)arg;
    if (setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes}) != 0) return CHILD_SKIPS;
    for (int i = 0; i < 3; i++) {
        if (!right(context)) return 2;
    }
    if (threads_alive() >= THREADS) return 3; /* the limit was none */
    eg_close(context);
    return 0;
}

static void goes_on_where_stacks_find_no_memory(void **state) {
    (void)state;
    static const rlim_t rooms[] = {0, 3 << 20};
    if (ADDRESS_SANITIZED || THREAD_SANITIZED) skip(); /* which want address space of their own */
    for (size_t i = 0; i < LENGTH(rooms); i++) {
        rlim_t room = rooms[i];
        if (!passes_in_child(call_without_memory, &room)) skip();
    }
}

/* On the context of the parent, and on one of its own. */
static int call_after_fork(void *arg) {
    eg_context *context = arg, *own = open_quietly(3);
    if (threads_alive() > 1) return 1;
    if (!right(context)) return 2;
    if (threads_alive() == 1) return 3; /* has made none */
    if (own == NULL || !right(own)) return 4;
    eg_close(own);
    eg_close(context);
    return threads_become(1) ? 0 : 5;
}

static int fork_again(void *arg) {
    int status = 0;
    if (!right(arg)) return 10;
    const pid_t child = fork();
    if (child == 0) _exit(call_after_fork(arg));
    if (child < 0 || waitpid(child, &status, 0) != child) return 11;
    return status == 0 && right(arg) ? 0 : 12;
}

static int close_after_fork(void *arg) {
    eg_close(arg);
    return 0;
}

static void a_child_makes_its_own_threads(void **state) {
    (void)state;
    if (THREAD_SANITIZED || !threads_become(1)) skip(); /* the thread sanitizer bears no threads after fork */
    eg_context *context = open_cpu(2);
    assert_true(right(context));
    assert_int_equal(threads_alive(), 2);
    for (int i = 0; i < 10; i++) { /* asleep, or on their way there */
        passes_in_child(call_after_fork, context);
        passes_in_child(fork_again, context);
        passes_in_child(close_after_fork, context);
        assert_true(right(context));
    }
    eg_close(context);
}

static void closing_ends_threads(void **state) {
    (void)state;
    if (threads_alive() == 0) skip();
    const int before = threads_alive();
    for (int i = 0; i < 20; i++) {
        eg_context *one = open_cpu(THREADS), *other = open_cpu(2);
        assert_int_equal(threads_alive(), before); /* none before it is wanted */
        assert_true(right(one) && right(other));
        assert_true(threads_alive() > before);
        eg_close(one);
        eg_close(other);
        assert_true(threads_become(before));
    }
}

/* Threads wait in a loop for microseconds only. */
static void idle_threads_sleep(void **state) {
    (void)state;
    eg_context *context = open_cpu(2);
    assert_true(right(context));
    struct timespec before, after;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    eg_close(context);
    const long used = (long)(after.tv_sec - before.tv_sec) * 1000000000 + (after.tv_nsec - before.tv_nsec);
    assert_in_range(used, 0, 30000000);
}

/* Signals of the program are for its own threads. */
static volatile sig_atomic_t taken;
static void take(int number) { taken = number; }

static void threads_take_no_signals(void **state) {
    (void)state;
    sigset_t usr1;
    signal(SIGUSR1, take);
    eg_context *context = open_cpu(2);
    assert_true(right(context));
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL); /* so that only another thread could take it */
    kill(getpid(), SIGUSR1);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    eg_close(context);
    assert_int_equal(taken, 0);
    pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
    signal(SIGUSR1, SIG_DFL);
}

#if defined(__linux__)
static int count_on_one_processor(void *arg) {
    (void)arg;
    cpu_set_t set, one;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return CHILD_SKIPS;
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++) {
        if (CPU_ISSET(i, &set)) CPU_SET(i, &one);
    }
    if (sched_setaffinity(0, sizeof one, &one) != 0) return CHILD_SKIPS;
    eg_context *context = NULL;
    eg_device_info info = {.size = sizeof info};
    if (eg_open(NULL, &context) != EG_OK || eg_get_device_info(context, &info) != EG_OK) return 1;
    return info.threads == 1 ? 0 : 2;
}

/* Whether another thread may run where this one may, but for one processor. A sanitizer has threads, too. */
static bool another_is_kept_off(const cpu_set_t *own) {
    DIR *tasks = opendir("/proc/self/task");
    bool found = false;
    for (struct dirent *entry; tasks != NULL && !found && (entry = readdir(tasks)) != NULL;) {
        const pid_t id = (pid_t)strtol(entry->d_name, NULL, 10);
        cpu_set_t set, both;
        if (id <= 0 || id == getpid() || sched_getaffinity(id, sizeof set, &set) != 0) continue;
        CPU_AND(&both, own, &set);
        found = CPU_EQUAL(&both, &set) && CPU_COUNT(&set) == CPU_COUNT(own) - 1;
    }
    if (tasks != NULL) closedir(tasks);
    return found;
}

/* A worker that was asleep runs on another processor than the caller, which need not be where it is now. */
static int call_from_sleep(void *arg) {
    (void)arg;
    cpu_set_t own;
    if (sched_getaffinity(0, sizeof own, &own) != 0 || CPU_COUNT(&own) < 2) return CHILD_SKIPS;
    eg_context *context = open_quietly(2);
    for (int i = 0; i < 3; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        if (context == NULL || !right(context)) return 1;
    }
    return another_is_kept_off(&own) ? 0 : 2;
}

static void threads_are_kept_off_the_callers_processor(void **state) {
    (void)state;
    if (!passes_in_child(call_from_sleep, NULL)) skip();
}

static void threads_are_as_many_as_the_affinity_allows(void **state) {
    (void)state;
    unsetenv("OMP_NUM_THREADS");
    if (!passes_in_child(count_on_one_processor, NULL)) skip();
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goes_on_where_no_thread_may_be_made),
        cmocka_unit_test(asks_again_for_threads),
        cmocka_unit_test(goes_on_where_stacks_find_no_memory),
        cmocka_unit_test(a_child_makes_its_own_threads),
        cmocka_unit_test(closing_ends_threads),
        cmocka_unit_test(idle_threads_sleep),
        cmocka_unit_test(threads_take_no_signals),
#if defined(__linux__)
        cmocka_unit_test(threads_are_kept_off_the_callers_processor),
        cmocka_unit_test(threads_are_as_many_as_the_affinity_allows),
#endif
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
