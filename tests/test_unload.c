/* SPDX-License-Identifier: Apache-2.0 */
/* The library leaves memory, or stays: no thread of its own runs code that is gone.
 *
 *     test_unload MODULE LIBRARY
 *
 * MODULE is unload_module.c with the static library in it, LIBRARY the shared one. */
#include <dlfcn.h>
#include <time.h>

#include "child.h"

static const char *module_path, *library_path;

static void *symbol(void *handle, const char *name) {
    void *address = dlsym(handle, name);
    if (address == NULL) fail_msg("no %s: %s", name, dlerror());
    return address;
}

static void *load(const char *path) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        fail_msg("%s", dlerror());
        abort();
    }
    return handle;
}

static void wait_a_moment(void) { nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL); }

static int nothing(void *arg) {
    (void)arg;
    return 0;
}

static void a_module_is_gone_and_so_are_its_threads(void **state) {
    (void)state;
    const int before = threads_alive();
    for (int i = 0; i < 3; i++) {
        void *module = load(module_path);
        int (*call)(void);
        *(void **)&call = symbol(module, "call_with_two_threads");
        assert_int_equal(call(), 0);
        assert_int_equal(dlclose(module), 0);
        assert_null(dlopen(module_path, RTLD_NOW | RTLD_NOLOAD));
        wait_a_moment();
        assert_true(threads_become(before));
        passes_in_child(nothing, NULL); /* and fork calls nothing of it */
    }
}

/* Its memory is held here, where a leak sanitizer finds it. */
static eg_context *left_open;
static float memory[3][256 * 256];

static void the_shared_library_stays(void **state) {
    (void)state;
    void *library = load(library_path);
    eg_status (*open)(const eg_open_info *, eg_context **);
    eg_status (*forward)(eg_context *, const eg_layer *, const eg_forward_args *);
    *(void **)&open = symbol(library, "eg_open");
    *(void **)&forward = symbol(library, "eg_forward");
    assert_int_equal(open(&(eg_open_info){.size = sizeof(eg_open_info), .threads = 2}, &left_open), EG_OK);
    const eg_layer layer = {.size = sizeof layer, .m = 256, .k = 256, .n = 256, .batch = 1};
    const eg_forward_args args = {
        .size = sizeof args, .a.data = memory[0], .b.data = memory[1], .y.data = memory[2]};
    assert_int_equal(forward(left_open, &layer, &args), EG_OK);
    assert_int_equal(dlclose(library), 0);
    wait_a_moment(); /* its threads are asleep in code that has to be there */
    assert_int_equal(forward(left_open, &layer, &args), EG_OK);
}

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_module_is_gone_and_so_are_its_threads),
        cmocka_unit_test(the_shared_library_stays),
    };
    if (count != 3) return 2;
    module_path = arguments[1];
    library_path = arguments[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
