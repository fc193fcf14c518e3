/* SPDX-License-Identifier: Apache-2.0 */
/* How good the choice of kernel rows, and of ways to read operands, is on the CPU, judged by recorded times
 * of all of them: the regret of an operation is how much longer what is chosen takes than the best. At each
 * level of instruction sets, on processors that need not be there. */
#include "short.h"
#include "support.h"

#include "recording.h"

#include <string.h>

enum { MOST_OPERATIONS = 8192, WORST = 8 };

/* Limits in percent: the mean, and how many operations may be above 5% and 25%. */
typedef struct level {
    const char *recording, *name;
    uint32_t features;
    double mean, above_5, above_25;
} level;

#define XEON         "cpu-xeon-amx.txt" /* with other cores at work */
#define CASCADE_LAKE "cpu-xeon-avx512.txt"
#define BOTH         "cpu-xeon-avx2.txt" /* with blocks that pack both operands */
#define ZEN3         "cpu-epyc-zen3.txt"
#define ZEN4         "cpu-epyc-zen4.txt"
#define ZEN5         "cpu-epyc-zen5.txt"
#if defined(__x86_64__)
enum {
    AVX2 = EG_CPU_AVX2,
    AVX512 = AVX2 | EG_CPU_AVX512,
    BF16 = AVX512 | EG_CPU_BF16,
    AMX = BF16 | EG_CPU_AMX
};
static const level levels[] = {
    {XEON, "portable", 0, 1.4, 7, 1.2},
    {XEON, "avx2", AVX2, 1.5, 9, 0.9},
    {XEON, "avx512", AVX512, 3.6, 20.3, 2.7},
    {XEON, "avx512_bf16", BF16, 3.8, 21, 3.1},
    {XEON, "amx", AMX, 5.7, 29, 6.3},
    {CASCADE_LAKE, "portable", 0, 2.9, 14, 3.3},
    {CASCADE_LAKE, "avx2", AVX2, 1.6, 9.5, 1.4},
    {CASCADE_LAKE, "avx512", AVX512, 3.7, 19.5, 3.4},
    {BOTH, "avx2", AVX2, 1.7, 9.8, 1.4},
    {ZEN4, "portable", 0, 1.6, 7, 1.4},
    {ZEN4, "avx2", AVX2, 1.1, 6.2, 0.7},
    {ZEN4, "avx512", AVX512, 3, 15.2, 2},
    {ZEN4, "avx512_bf16", BF16, 2.9, 15, 1.8},
    {ZEN3, "portable", 0, 2.4, 10.5, 2.6},
    {ZEN3, "avx2", AVX2, 1.8, 10.2, 1.6},
    {ZEN5, "portable", 0, 2.1, 8.1, 3.2},
    {ZEN5, "avx2", AVX2, 1.1, 5.6, 0.6},
    {ZEN5, "avx512", AVX512, 2.7, 15, 1.8},
    {ZEN5, "avx512_bf16", BF16, 2.9, 15.6, 2.3},
};
#else
static const level levels[] = {{XEON, "portable", 0, 1.4, 7, 1.2}, {ZEN4, "portable", 0, 1.6, 7, 1.4}};
#endif

typedef struct judged {
    double regret;
    char text[160];
} judged;

typedef struct judgement {
    int operations;
    judged operation[MOST_OPERATIONS];
} judgement;

static const char *row_name[RECORDED_ROWS];
static int rows;
static char device[RECORDED_LINE];

/* ---- One operation ------------------------------------------------------------------------------ */

static void *nowhere(void *user, int place, int64_t elements) {
    (void)user, (void)elements;
    return (void *)((uintptr_t)(place + 1) << 40);
}

static void compile(const recorded_operation *x, uint32_t features, eg_program *program) {
    const eg_caps caps = {.features = features, .threads = 1, .detail = eg_cpu_calibration_by_name(device)};
    recorded_call call;
    eg_problem problem;
    recorded_call_of(x, nowhere, NULL, &call);
    assert_true(recorded_problem(&call, &problem));
    assert_ok(eg_program_make(&caps, &problem, program));
}

/* The row of that number if the level has it, and layer.math allows it by default. */
static const eg_cpu_kernel *usable(int number, uint32_t features) {
    assert_in_range(number, 0, rows - 1);
    const eg_cpu_kernel *row = NULL;
    for (int i = 0; (row = eg_cpu_kernel_row(i)) != NULL; i++) {
        if (strcmp(row->name, row_name[number]) == 0) break;
    }
    const bool is_default = row != NULL && (row->maths & EG_CPU_MATH(EG_MATH_DEFAULT)) != 0;
    return is_default && (row->needs & features) == row->needs ? row : NULL;
}

/* Of a call of several products, whose ways may differ, the row is judged where its ways were not recorded.
 */
static void judge(judgement *all, const recorded_operation *x, const char *times, uint32_t features) {
    static eg_program program;
    char chosen_way[3], way[3], best_name[48] = "";
    double best = 0, chosen = 0, by_row = 0, time;
    int number;
    compile(x, features, &program);
    if (recorded_lacks(device, &program)) return;
    recorded_way(&program, chosen_way);
    const char *const kernel = program.step[program.steps - 1].kernel;
    while (recorded_next(&times, &number, way, &time)) {
        const eg_cpu_kernel *row = usable(number, features);
        if (row == NULL || recorded_is_outdated(device, &program, row, way)) continue;
        const bool is_row = strcmp(row->name, kernel) == 0;
        if (is_row && (chosen_way[0] == '\0' || strcmp(way, chosen_way) == 0)) chosen = time;
        if (is_row && (by_row == 0 || time < by_row)) by_row = time;
        if (best == 0 || time < best) {
            best = time;
            snprintf(best_name, sizeof best_name, "%s %s", row->name, way);
        }
    }
    if (chosen == 0) chosen = by_row;
    if (chosen == 0) return; /* a slow row that was not timed */
    assert_in_range(all->operations, 0, MOST_OPERATIONS - 1);
    judged *to = &all->operation[all->operations++];
    to->regret = chosen / best - 1;
    snprintf(to->text, sizeof to->text, "%6.1f%%  %s %lldx%lldx%lld %s %s: %s %s %.4g us, %s %.4g us",
             100 * to->regret, eg_dtype_name(x->dtype), (long long)x->m, (long long)x->k, (long long)x->n,
             x->nk ? "nk" : "kn", x->name, kernel, chosen_way, chosen, best_name, best);
}

/* ---- All of them -------------------------------------------------------------------------------- */

static void judge_recording(judgement *all, const char *path, uint32_t features) {
    static char line[RECORDED_LINE], names[RECORDED_LINE];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        recorded_operation x;
        const char *times;
        if (strncmp(line, "# ", 2) == 0 && strncmp(line, "# rows:", 7) != 0)
            memcpy(device, line, sizeof device);
        if (strncmp(line, "# rows:", 7) == 0)
            rows = recorded_rows(memcpy(names, line, sizeof names), row_name);
        if (recorded_parse(line, &x, &times)) judge(all, &x, times, features);
    }
    fclose(file);
}

static int by_regret(const void *a, const void *b) {
    const double x = ((const judged *)a)->regret, y = ((const judged *)b)->regret;
    return (x < y) - (x > y);
}

static int count_above(const judgement *all, double regret) {
    int count = 0;
    while (count < all->operations && all->operation[count].regret > regret) count++;
    return count;
}

static void the_choice_is_nearly_the_best(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(levels); i++) {
        static judgement all;
        double sum = 0;
        all.operations = 0;
        char path[512];
        snprintf(path, sizeof path, "%s/%s", RECORDINGS, levels[i].recording);
        judge_recording(&all, path, levels[i].features);
        assert_true(all.operations > 1000);
        qsort(all.operation, (size_t)all.operations, sizeof all.operation[0], by_regret);
        for (int j = 0; j < all.operations; j++) sum += all.operation[j].regret;
        const int above_5 = count_above(&all, 0.05), above_25 = count_above(&all, 0.25);
        printf("%s, %s, %d operations: mean regret %.2f%%; within 5%%: %.1f%%; above 25%%: %d. The worst:\n",
               levels[i].recording, levels[i].name, all.operations, 100 * sum / all.operations,
               100.0 * (all.operations - above_5) / all.operations, above_25);
        for (int j = 0; j < WORST; j++) printf("%s\n", all.operation[j].text);
        assert_true(100 * sum <= levels[i].mean * all.operations);
        assert_true(100 * above_5 <= levels[i].above_5 * all.operations);
        assert_true(100 * above_25 <= levels[i].above_25 * all.operations);
    }
}

/* ---- The constants ------------------------------------------------------------------------------ */

/* Others take those of the first processor. */
static void the_first_processor_has_every_row(void **state) {
    (void)state;
    const eg_cpu_calibration *first = eg_cpu_calibration_by_name("");
    const eg_cpu_kernel *row;
    for (int i = 0; (row = eg_cpu_kernel_row(i)) != NULL; i++) {
        const eg_cpu_costs *costs = eg_cpu_costs_of(first, row);
        assert_string_equal(costs->row, row->name);
        assert_true(costs->of[EG_CPU_COST_K] > 0);
    }
}

/* A part of a name may be in several names: the last calibration that fits counts. */
static void a_name_finds_its_processor(void **state) {
    (void)state;
    static const char *const names[][2] = {
        {"Intel(R) Xeon(R) Processor @ 2.50GHz, family 6, model 85", "family 6, model 85"},
        {"Intel(R) Xeon(R) Processor, family 6, model 143", "Xeon"},
        {"AMD EPYC, family 25, model 1", "family 25, model 1"},
        {"AMD EPYC, family 25, model 17", "EPYC"},
        {"AMD EPYC, family 26, model 2", "family 26"},
        {"cpu", "Xeon"},
    };
    for (size_t i = 0; i < LENGTH(names); i++)
        assert_string_equal(eg_cpu_calibration_by_name(names[i][0])->device, names[i][1]);
}

#if defined(__x86_64__)
/* What was measured of a processor's stores counts for it alone: d_b of few rows, which is large. */
static void stores_bypass_the_caches_where_that_is_faster(void **state) {
    static const struct {
        const char *device;
        uint32_t features;
        eg_dtype dtype;
        int64_t rows;
        bool bypasses;
    } cases[] = {{"family 6, model 85", AVX2, EG_F32, 4, false},
                 {"family 6, model 85", AVX512, EG_F32, 4, false},
                 {"family 6, model 85", AVX512, EG_F32, 23, false},
                 {"family 6, model 85", AVX512, EG_F32, 24, true},
                 {"family 6, model 85", AVX512, EG_F64, 4, true},
                 {"family 25, model 1", AVX2, EG_F32, 4, false},
                 {"EPYC", AVX2, EG_F32, 4, true},
                 {"EPYC", AVX512, EG_F32, 4, true},
                 {"family 26", AVX512, EG_F32, 4, true}};
    static eg_program program;
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        const recorded_operation d_b = {
            .name = "d_b", .dtype = cases[i].dtype, .m = cases[i].rows, .k = 2048, .n = 5632, .nk = true};
        snprintf(device, sizeof device, "%s", cases[i].device);
        compile(&d_b, cases[i].features, &program);
        const eg_cpu_step *detail = eg_cpu_detail(&program.step[program.steps - 1]);
        assert_int_equal(detail->streams, EG_CPU_STREAMS_RESULT);
        assert_int_equal(detail->non_temporal, cases[i].bypasses);
    }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_finds_its_processor),
#if defined(__x86_64__)
        cmocka_unit_test(stores_bypass_the_caches_where_that_is_faster),
#endif
        cmocka_unit_test(the_first_processor_has_every_row),
        cmocka_unit_test(the_choice_is_nearly_the_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
