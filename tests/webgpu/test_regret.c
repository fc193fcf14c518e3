/* SPDX-License-Identifier: Apache-2.0 */
/* How good the choice of kernel rows is, judged by recorded times of all of them, on adapters that need not
 * be here: the regret of an operation is how much longer what is chosen takes than the best. On a processor a
 * row's time includes a call's share of making its pipeline, which takes seconds there. */
#include "support.h"

#include "recording.h"

enum { MOST_OPERATIONS = 1024, WORST = 6 };
static const double share = 1e-3; /* as in tools/calibrate_webgpu.py */

/* Limits in percent: the mean, and how many operations may be above 5% and 25%. */
static const struct {
    const char *recording;
    double mean, above_5, above_25;
} limits[] = {
    {"webgpu-h200.txt", 2, 12, 2.1},
    {"webgpu-lavapipe.txt", 0.4, 1.8, 0.1},
};

typedef struct judged {
    double regret;
    char text[160];
} judged;

static double cost_of(const recorded_file *x, int row) {
    return x->time[row] + (x->device.cpu ? share * x->first[row] : 0);
}

static judged judge(const recorded_file *x) {
    static eg_program program;
    int best = -1, chosen = -1;
    assert_true(recorded_compile(x, NULL, &program));
    const eg_webgpu_pass *pass = recorded_product(&program);
    assert_non_null(pass);
    for (int i = 0; i < EG_WEBGPU_ROWS; i++) {
        if (!(x->time[i] > 0)) continue;
        if (best < 0 || cost_of(x, i) < cost_of(x, best)) best = i;
        if (eg_webgpu_kernel_row(i) == pass->kernel) chosen = i;
    }
    assert_in_range(chosen, 0, EG_WEBGPU_ROWS - 1);
    judged result = {.regret = cost_of(x, chosen) / cost_of(x, best) - 1};
    snprintf(result.text, sizeof result.text, "%6.1f%%  %lldx%lldx%lld %s: %s %.4g us, %s %.4g us",
             100 * result.regret, (long long)x->operation.m, (long long)x->operation.k,
             (long long)x->operation.n, x->operation.name, pass->kernel->name, x->time[chosen],
             eg_webgpu_kernel_row(best)->name, x->time[best]);
    return result;
}

static int by_regret(const void *a, const void *b) {
    const double x = ((const judged *)a)->regret, y = ((const judged *)b)->regret;
    return (x < y) - (x > y);
}

static void the_choice_is_nearly_the_best(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(limits); i++) {
        static judged all[MOST_OPERATIONS];
        static recorded_file x;
        char path[512];
        int count = 0, above_5 = 0, above_25 = 0;
        double sum = 0;
        snprintf(path, sizeof path, "%s/%s", RECORDINGS, limits[i].recording);
        assert_true(recorded_open(&x, path));
        while (recorded_next(&x)) {
            assert_in_range(count, 0, MOST_OPERATIONS - 1);
            all[count] = judge(&x);
            sum += all[count].regret;
            above_5 += all[count].regret > 0.05;
            above_25 += all[count].regret > 0.25;
            count++;
        }
        assert_true(count >= 160); /* 40 layers */
        qsort(all, (size_t)count, sizeof *all, by_regret);
        printf("%s, %d operations: mean regret %.2f%%; within 5%%: %.1f%%; above 25%%: %.1f%%. The worst:\n",
               limits[i].recording, count, 100 * sum / count, 100.0 * (count - above_5) / count,
               100.0 * above_25 / count);
        for (int j = 0; j < WORST; j++) printf("%s\n", all[j].text);
        assert_true(100 * sum <= limits[i].mean * count);
        assert_true(100 * above_5 <= limits[i].above_5 * count);
        assert_true(100 * above_25 <= limits[i].above_25 * count);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_choice_is_nearly_the_best)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
