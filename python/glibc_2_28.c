/* SPDX-License-Identifier: Apache-2.0 */
/* A wheel has to load where glibc is 2.28, and is built where it is newer. A function that newer versions
 * moved or changed gets a newer symbol version there, which older systems lack; the older symbol is still
 * exported. So the linker is told to --wrap each of them (CMakeLists.txt lists them), and what it wraps them
 * with is here. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

/* The versions that the functions began with: 64-bit ARM came later than x86-64. */
#ifdef __aarch64__
#define FIRST "2.17"
#define CLOCK "2.17"
#define AT    "2.17"
enum { STAT_VERSION = 0 };
#else
#define FIRST "2.2.5"
#define CLOCK "2.3.3"
#define AT    "2.4"
enum { STAT_VERSION = 1 };
#endif

#define OLD(name, version, result, ...)                                                                      \
    __asm__(".symver eg_old_" #name "," #name "@GLIBC_" version);                                            \
    result eg_old_##name(__VA_ARGS__) __attribute__((visibility("default")));                                \
    result __wrap_##name(__VA_ARGS__);                                                                       \
    result __wrap_##name(__VA_ARGS__)

OLD(dladdr, FIRST, int, const void *address, Dl_info *info) { return eg_old_dladdr(address, info); }
OLD(dlclose, FIRST, int, void *handle) { return eg_old_dlclose(handle); }
OLD(dlerror, FIRST, char *, void) { return eg_old_dlerror(); }
OLD(dlopen, FIRST, void *, const char *file, int mode) { return eg_old_dlopen(file, mode); }
OLD(dlsym, FIRST, void *, void *handle, const char *name) { return eg_old_dlsym(handle, name); }

OLD(pthread_attr_setstacksize, FIRST, int, pthread_attr_t *attributes, size_t bytes) {
    return eg_old_pthread_attr_setstacksize(attributes, bytes);
}
OLD(pthread_condattr_setclock, CLOCK, int, pthread_condattr_t *attributes, clockid_t clock) {
    return eg_old_pthread_condattr_setclock(attributes, clock);
}
OLD(pthread_create, FIRST, int, pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
    void *argument) {
    return eg_old_pthread_create(thread, attributes, start, argument);
}
OLD(pthread_join, FIRST, int, pthread_t thread, void **result) { return eg_old_pthread_join(thread, result); }
OLD(pthread_kill, FIRST, int, pthread_t thread, int number) { return eg_old_pthread_kill(thread, number); }
OLD(pthread_once, FIRST, int, pthread_once_t *once, void (*function)(void)) {
    return eg_old_pthread_once(once, function);
}
OLD(pthread_sigmask, FIRST, int, int how, const sigset_t *set, sigset_t *old) {
    return eg_old_pthread_sigmask(how, set, old);
}

/* Before 2.33 these were inline calls of others, with the version of the struct in front. */
OLD(__xstat, FIRST, int, int version, const char *path, struct stat *buffer) {
    return eg_old___xstat(version, path, buffer);
}
OLD(__lxstat, FIRST, int, int version, const char *path, struct stat *buffer) {
    return eg_old___lxstat(version, path, buffer);
}
OLD(__fxstat, FIRST, int, int version, int file, struct stat *buffer) {
    return eg_old___fxstat(version, file, buffer);
}
OLD(__fxstatat, AT, int, int version, int folder, const char *path, struct stat *buffer, int flags) {
    return eg_old___fxstatat(version, folder, path, buffer, flags);
}
int __wrap_stat(const char *path, struct stat *buffer);
int __wrap_stat(const char *path, struct stat *buffer) { return eg_old___xstat(STAT_VERSION, path, buffer); }
int __wrap_lstat(const char *path, struct stat *buffer);
int __wrap_lstat(const char *path, struct stat *buffer) {
    return eg_old___lxstat(STAT_VERSION, path, buffer);
}
int __wrap_fstat(int file, struct stat *buffer);
int __wrap_fstat(int file, struct stat *buffer) { return eg_old___fxstat(STAT_VERSION, file, buffer); }
int __wrap_fstatat(int folder, const char *path, struct stat *buffer, int flags);
int __wrap_fstatat(int folder, const char *path, struct stat *buffer, int flags) {
    return eg_old___fxstatat(STAT_VERSION, folder, path, buffer, flags);
}

#ifdef EG_PROGRAM
OLD(exp, FIRST, double, double x) { return eg_old_exp(x); } /* of the oracle */

/* Programs alone reach this; neither ours nor their libraries' constructors need what it takes. */
OLD(__libc_start_main, FIRST, int, int (*start)(int, char **, char **), int count, char **values,
    void (*init)(void), void (*fini)(void), void (*rtld_fini)(void), void *stack_end) {
    return eg_old___libc_start_main(start, count, values, init, fini, rtld_fini, stack_end);
}
#endif
