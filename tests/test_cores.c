/* SPDX-License-Identifier: Apache-2.0 */
/* How many threads a context has where its caller names no number. */
#include <sys/stat.h>
#include <unistd.h>

#include "cpu/threads.h"
#include "support.h"

static void omp_num_threads_is_read(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int cores;
    } cases[] = {
        {"4", 4},       {" 16 ", 16}, {"3,2,1", 3}, {"8 ,2", 8}, {"1", 1},  {"99999999999999999999", 4096},
        {"5000", 4096}, {NULL, 0},    {"", 0},      {"0", 0},    {"-2", 0}, {"four", 0},
        {"4x", 0},      {",4", 0},    {" ", 0}};
    for (size_t i = 0; i < LENGTH(cases); i++) {
        if (eg_cores_of_omp(cases[i].text) != cases[i].cores)
            fail_msg("\"%s\": %d; expected %d", cases[i].text, eg_cores_of_omp(cases[i].text),
                     cases[i].cores);
    }
}

static void quotas_are_read(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int cores;
    } cases[] = {{"max 100000\n", 0},
                 {"200000 100000\n", 2},
                 {"150000 100000\n", 2},
                 {"1000 100000\n", 1},
                 {"100000 100000\n", 1},
                 {"100001 100000\n", 2},
                 {"400000 50000", 8},
                 {"-1\n 100000\n", 0},
                 {"", 0},
                 {"max", 0},
                 {"100000", 0},
                 {"100000 0", 0},
                 {"0 100000", 0},
                 {"x y", 0},
                 {"9223372036854775807 1", 4096}};
    for (size_t i = 0; i < LENGTH(cases); i++) {
        if (eg_cores_of_quota(cases[i].text) != cases[i].cores)
            fail_msg("\"%s\": %d; expected %d", cases[i].text, eg_cores_of_quota(cases[i].text),
                     cases[i].cores);
    }
}

/* A tree of control groups in a folder of its own. */
static char root[] = "/tmp/epigrad_cores_XXXXXX";

static void make_folder(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static void make_file(const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int make_tree(void **state) {
    (void)state;
    assert_non_null(mkdtemp(root));
    static const char *const folders[] = {"a", "a/b", "a/free", "cpu", "cpu/docker"};
    for (size_t i = 0; i < LENGTH(folders); i++) make_folder(folders[i]);
    make_file("a/cpu.max", "300000 100000\n");
    make_file("a/b/cpu.max", "500000 100000\n");
    make_file("a/free/cpu.max", "max 100000\n");
    make_file("cpu/cpu.cfs_quota_us", "700000\n");
    make_file("cpu/cpu.cfs_period_us", "100000\n");
    make_file("cpu/docker/cpu.cfs_quota_us", "-1\n");
    make_file("cpu/docker/cpu.cfs_period_us", "100000\n");
    return 0;
}

static int remove_tree(void **state) {
    (void)state;
    static const char *const names[] = {"a/cpu.max",
                                        "a/b/cpu.max",
                                        "a/free/cpu.max",
                                        "cpu/cpu.cfs_quota_us",
                                        "cpu/cpu.cfs_period_us",
                                        "cpu/docker/cpu.cfs_quota_us",
                                        "cpu/docker/cpu.cfs_period_us",
                                        "a/b",
                                        "a/free",
                                        "a",
                                        "cpu/docker",
                                        "cpu",
                                        ""};
    for (size_t i = 0; i < LENGTH(names); i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", root, names[i]);
        assert_int_equal(remove(path), 0);
    }
    return 0;
}

static void the_least_of_a_group_and_those_around_it_counts(void **state) {
    (void)state;
    static const struct {
        const char *groups;
        int cores;
    } cases[] = {
        {"0::/a/b\n", 3}, /* the group may have 5, that around it 3 */
        {"0::/a/free\n", 3},
        {"0::/a\n", 3},
        {"0::/\n", 0},
        {"0::/gone/from/here\n", 0},
        {"0::/a/gone\n", 3},
        {"12:cpuset:/a\n4:cpu,cpuacct:/docker\n", 7},
        {"4:cpuacct,cpu:/seen/from/outside\n", 7},
        {"12:cpuset:/\n5:cpuacct:/\n", 0},
        {"4:cpu,cpuacct:/docker\n0::/a/b\n", 3},
        {"", 0},
        {"junk\n0:\n::\n", 0},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        const int cores = eg_cores_of_groups(cases[i].groups, root);
        if (cores != cases[i].cores) fail_msg("%s: %d; expected %d", cases[i].groups, cores, cases[i].cores);
    }
}

static int threads_of_default_context(void) {
    eg_device_info info = {.size = sizeof info};
    eg_context *context = open_cpu(0);
    assert_ok(eg_get_device_info(context, &info));
    eg_close(context);
    return info.threads;
}

static void a_context_takes_what_the_environment_says(void **state) {
    (void)state;
    unsetenv("OMP_NUM_THREADS");
    const int own = threads_of_default_context();
    assert_in_range(own, 1, sysconf(_SC_NPROCESSORS_ONLN));
    setenv("OMP_NUM_THREADS", "7", 1);
    assert_int_equal(threads_of_default_context(), 7);
    setenv("OMP_NUM_THREADS", "1,8", 1);
    assert_int_equal(threads_of_default_context(), 1);
    setenv("OMP_NUM_THREADS", "many", 1);
    assert_int_equal(threads_of_default_context(), own);
    unsetenv("OMP_NUM_THREADS");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(omp_num_threads_is_read),
        cmocka_unit_test(quotas_are_read),
        cmocka_unit_test(the_least_of_a_group_and_those_around_it_counts),
        cmocka_unit_test(a_context_takes_what_the_environment_says),
    };
    return cmocka_run_group_tests(tests, make_tree, remove_tree);
}
