/* SPDX-License-Identifier: Apache-2.0 */
/* What is chosen for the layers of bench/cpu/sweep.py, on this processor or under its emulator: by the
 * estimates alone, so that large layers cost nothing; and for small ones, that the plan is what runs and that
 * the oracle has the same results. Needs nothing but the library: another processor's has no cmocka. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend.h"
#include "cpu/compile.h"
#include "cpu/cpu.h"

#include "check.h"
#include "number.h"
#include "open.h"
#include "recording.h"
#include "short.h"

enum { LAYERS = 1500, LAYERS_SHORT = 250, RUNS = 120, RUNS_SHORT = 40, MANY_THREADS = 16, MOST_STEPS = 64 };

/* K, N of a layer, or N, K: as the sweep's. */
static const struct {
    int64_t k, n;
} sizes[] = {
    {768, 2304},  {768, 768},   {768, 3072},  {1024, 4096}, {1280, 5120}, {768, 50257}, /* GPT-2 */
    {2048, 5632}, {2048, 2048}, {4096, 4096}, {896, 4864},  {312, 1200},                /* Llama, BERT */
    {384, 1536},  {192, 768},   {768, 1000},  {320, 1280},  {1152, 4304},               /* ViT */
    {13, 512},    {512, 256},   {256, 64},    {479, 1024},  {1024, 1024}, {512, 1},     /* recommenders */
    {4, 64},      {17, 256},    {64, 64},     {256, 256},   {256, 6},     {30, 50},     /* control */
    {513, 1025},  {1000, 10},   {100, 100},   {257, 129},   {33, 4095},   {1023, 1023}, /* odd */
};
static const int64_t rows_of[] = {1,  2,  3,   4,   7,   8,   12,  16,  24,   32,   50,
                                  64, 77, 100, 128, 197, 256, 384, 512, 1024, 2048, 4096};
static const eg_dtype dtypes[] = {EG_F32, EG_F32, EG_BF16, EG_F16, EG_F64};
static const eg_activation activations[] = {EG_ACT_GELU, EG_ACT_RELU, EG_ACT_SILU, EG_ACT_TANH, EG_ACT_NONE};

#define LENGTH(array)         (sizeof(array) / sizeof *(array))
#define ANY_OF(random, array) ((array)[oracle_random_below(random, (int64_t)LENGTH(array))])

static int failures;

/* Says what is wrong with a layer; the rest is as for printf. */
#define EXPECT(holds, x, ...)                                                                                \
    do {                                                                                                     \
        if (!(holds) && ++failures <= 20) say(x), printf(__VA_ARGS__), printf("\n");                         \
    } while (0)

static void say(const recorded_operation *x) {
    printf("FAILED: %s %lldx%lldx%lld %s %s %s: ", eg_dtype_name(x->dtype), (long long)x->m, (long long)x->k,
           (long long)x->n, x->nk ? "nk" : "kn", eg_activation_name(x->activation), x->name);
}

static recorded_operation draw(oracle_random *random) {
    const int64_t size = oracle_random_below(random, (int64_t)LENGTH(sizes));
    const bool turned = oracle_random_below(random, 5) < 2;
    return (recorded_operation){.m = ANY_OF(random, rows_of),
                                .k = turned ? sizes[size].n : sizes[size].k,
                                .n = turned ? sizes[size].k : sizes[size].n,
                                .dtype = ANY_OF(random, dtypes),
                                .activation = ANY_OF(random, activations),
                                .nk = oracle_random_below(random, 5) > 0};
}

/* ---- The choice --------------------------------------------------------------------------------- */

static void *nowhere(void *user, int place, int64_t elements) {
    (void)user, (void)elements;
    return (void *)((uintptr_t)(place + 1) << 40);
}

static eg_program program; /* the last one that was compiled */

static bool compile(const eg_caps *caps, const recorded_operation *x) {
    recorded_call call;
    eg_problem problem;
    recorded_call_of(x, nowhere, NULL, &call);
    const bool is_made =
        recorded_problem(&call, &problem) && eg_program_make(caps, &problem, &program) == EG_OK;
    EXPECT(is_made, x, "%s", eg_last_error());
    return is_made;
}

static double estimated(void) {
    double sum = 0;
    for (int i = 0; i < program.steps; i++) sum += program.step[i].microseconds;
    return sum;
}

static void check_estimates(const recorded_operation *x, int threads) {
    for (int i = 0; i < program.steps; i++) {
        const eg_step *step = &program.step[i];
        EXPECT(isfinite(step->microseconds) && step->microseconds > 0, x, "a step of %g us",
               step->microseconds);
        EXPECT(step->threads >= 1 && step->threads <= threads, x, "a step on %d threads of %d", step->threads,
               threads);
    }
}

/* Threads are taken where they are worth their fork, and work that is shorter than one stays on one. What
 * they are worth is asked before their blocks are known, which may be smaller. */
static void check_threads(const eg_caps *caps, const recorded_operation *x) {
    eg_caps one = *caps, many = *caps;
    one.threads = 1, many.threads = MANY_THREADS;
    if (!compile(&one, x)) return;
    check_estimates(x, 1);
    const double alone = estimated();
    if (!compile(&many, x)) return;
    check_estimates(x, MANY_THREADS);
    EXPECT(estimated() <= 1.15 * alone, x, "%g us on threads, %g us on one", estimated(), alone);
    if (alone > eg_cpu_calibration_of(caps)->fork) return;
    for (int i = 0; i < program.steps; i++)
        EXPECT(program.step[i].threads == 1, x, "%d threads for %g us", program.step[i].threads, alone);
}

static bool makes(const eg_step *step, const eg_view *view) {
    if (step->op == EG_NO_OP || view->space != EG_TEMPORARY) return false;
    const eg_op *op = &program.list.op[step->op];
    const eg_term *sums = eg_term_of(op, EG_TERM_COLUMN_SUMS);
    return (op->out.space == EG_TEMPORARY && op->out.id == view->id) ||
           (sums != NULL && sums->view.id == view->id);
}

static bool is_product_to(const eg_step *step, int id) {
    return step->op != EG_NO_OP && step->kind == EG_GEMM && program.list.op[step->op].out.id == id &&
           program.list.op[step->op].out.space == EG_OPERAND;
}

/* Steps of one fork read nothing that the others make. d_a and d_b, which follow each other, are such steps;
 * without an activation d_a may need nothing of the map before it either, while d_b reads what that packs. */
static void check_forks(const eg_caps *caps, const recorded_operation *x) {
    eg_caps many = *caps;
    many.threads = MANY_THREADS;
    if (!compile(&many, x)) return;
    for (int i = 1, first = 0; i < program.steps; i++) {
        const eg_step *step = &program.step[i], *before = step - 1;
        const bool joins = eg_cpu_detail(step)->same_fork;
        if (!joins) first = i;
        for (int j = first; j < i && step->op != EG_NO_OP; j++) {
            const eg_op *op = &program.list.op[step->op];
            EXPECT(!makes(&program.step[j], &op->left) && !makes(&program.step[j], &op->right), x,
                   "step %d begins before step %d has made what it reads", i + 1, j + 1);
        }
        EXPECT(!joins || eg_cpu_detail(&program.step[first])->fork_threads <= MANY_THREADS, x, "threads");
        if (x->activation != EG_ACT_NONE && is_product_to(before, EG_OP_D_A) &&
            is_product_to(step, EG_OP_D_B) && before->threads + step->threads > 2)
            EXPECT(joins, x, "d_b has a fork of its own");
    }
}

/* To pack B costs as much as to multiply it by a few rows. */
static void check_packing(const eg_caps *caps, const recorded_operation *x) {
    enum { FEW = 4 };
    const bool reads_b = x->name[0] == 'y' || strcmp(x->name, "d_a") == 0 || strcmp(x->name, "chain") == 0;
    if (x->m > FEW || !reads_b || !compile(caps, x)) return;
    for (int i = 0; i < program.steps; i++) {
        const char *what = program.step[i].what;
        EXPECT(what == NULL || strcmp(what, "pack b") != 0, x, "b is packed for %lld rows", (long long)x->m);
    }
}

/* How much longer the chosen way takes than the best one, by the constants. */
static double regret_of(const eg_caps *caps, const recorded_operation *x) {
    static const char *const ways[] = {"pp", "pi", "pf", "ip", "ii", "if", "is", "sf", "oo"};
    const eg_cpu_calibration *calibration = eg_cpu_calibration_of(caps);
    if (!compile(caps, x)) return 0;
    const double chosen = estimated();
    eg_caps only = *caps;
    only.only_kernel = program.step[program.steps - 1].kernel;
    double best = chosen;
    for (size_t i = 0; i < LENGTH(ways); i++) {
        const eg_cpu_calibration by_way = recorded_calibration(calibration, ways[i]);
        char way[3];
        only.detail = &by_way;
        if (!compile(&only, x)) continue;
        recorded_way(&program, way);
        if (strcmp(way, ways[i]) == 0 && estimated() < best) best = estimated();
    }
    return chosen / best - 1;
}

static void check_choices(const eg_context *context) {
    oracle_random random = {3};
    eg_caps caps = context->caps;
    const int layers = short_run() ? LAYERS_SHORT : LAYERS;
    double sum = 0, worst = 0;
    int products = 0;
    caps.threads = 1;
    for (int i = 0; i < layers; i++) {
        recorded_operation x = draw(&random);
        for (const char *const *name = recorded_operations; *name != NULL; name++) {
            snprintf(x.name, sizeof x.name, "%s", *name);
            check_threads(&caps, &x);
            check_packing(&caps, &x);
            check_forks(&caps, &x);
            const bool is_product =
                strcmp(*name, "y") == 0 || strcmp(*name, "d_a") == 0 || strcmp(*name, "d_b") == 0;
            if (!is_product) continue;
            const double regret = regret_of(&caps, &x);
            EXPECT(regret < 0.01, &x, "%.0f%% more than the best way", 100 * regret);
            sum += regret, products++;
            if (regret > worst) worst = regret;
        }
    }
    printf("%d layers, %d products: estimated regret between ways %.3f%%, at most %.1f%%\n", layers, products,
           100 * sum / products, 100 * worst);
}

/* ---- Narrow micro-panels ------------------------------------------------------------------------ */

static double time_of_columns(const eg_caps *caps, int64_t cols) {
    recorded_operation x = {.dtype = EG_F32, .m = 512, .k = 512, .n = cols, .nk = true, .name = "y"};
    eg_caps only = *caps;
    const eg_cpu_calibration packed = recorded_calibration(eg_cpu_calibration_of(caps), "pp");
    only.detail = &packed, only.threads = 1;
    return compile(&only, &x) ? estimated() : HUGE_VAL;
}

/* Ten columns take the vectors that they have numbers for, not all of a micro-panel. */
static void check_narrow(const eg_context *context) {
    enum { COLS = 10, DEPTH = 5, MOST = 64 * 64 };
    static float left[MOST], right[MOST], tile[MOST];
    const eg_cpu_kernel *row;
    recorded_operation x = {.dtype = EG_F32, .m = 1, .k = DEPTH, .n = COLS, .name = "tile"};
    for (int i = 0; (row = eg_cpu_kernel_row(i)) != NULL; i++) {
        const bool is_usable = (row->needs & context->caps.features) == row->needs;
        if (!is_usable || row->compute != EG_F32 || eg_cpu_is_amx(row)) continue;
        const int64_t mr = row->micro.mr, nr = row->micro.nr, lanes = row->micro.lanes;
        if (nr <= COLS) continue;
        const int64_t taken = (COLS + lanes - 1) / lanes * lanes;
        for (int j = 0; j < MOST; j++) left[j] = right[j] = 1, tile[j] = -1;
        const eg_micro_operand a = {.at = left, .index_stride = nr, .k_stride = 1, .group_stride = mr * nr},
                               b = {.at = right, .index_stride = 1, .k_stride = nr, .group_stride = nr * nr};
        const eg_micro_tile to = {.out = tile, .out_stride = nr, .rows = mr};
        row->micro.multiply(&a, &b, DEPTH, COLS, &to, &(eg_prefetch_plan){0});
        for (int64_t j = 0; j < mr * nr; j++)
            EXPECT(tile[j] == (j % nr < taken ? DEPTH : -1), &x, "%s: column %lld is %g", row->name,
                   (long long)(j % nr), tile[j]);
        printf("%s: %d columns take %lld of %lld\n", row->name, COLS, (long long)taken, (long long)nr);
    }
    EXPECT(time_of_columns(&context->caps, COLS) < time_of_columns(&context->caps, 16), &x,
           "no faster than 16 columns");
}

/* ---- What runs ---------------------------------------------------------------------------------- */

static eg_step ran[MOST_STEPS];
static int count;

#define WRAP(function)                                                                                       \
    void __real_##function(const eg_cpu_run *run, const eg_step *step);                                      \
    void __wrap_##function(const eg_cpu_run *run, const eg_step *step);                                      \
    void __wrap_##function(const eg_cpu_run *run, const eg_step *step) {                                     \
        if (count < MOST_STEPS) ran[count++] = *step;                                                        \
        __real_##function(run, step);                                                                        \
    }
WRAP(eg_cpu_pack)
WRAP(eg_cpu_gemm)
WRAP(eg_cpu_few_rows)
WRAP(eg_cpu_outer_product)
WRAP(eg_cpu_map)
WRAP(eg_cpu_reduce)

static void *zeros(void *user, int place, int64_t elements) {
    void **memory = user;
    memory[place] = aligned_alloc(64, ((size_t)elements * sizeof(double) + 63) / 64 * 64);
    if (memory[place] == NULL) abort();
    return memset(memory[place], 0, (size_t)elements * sizeof(double));
}

static void check_steps(eg_context *context, const recorded_operation *x) {
    recorded_call call;
    eg_problem problem;
    void *memory[RECORDED_PLACES] = {NULL};
    recorded_call_of(x, zeros, memory, &call);
    if (recorded_problem(&call, &problem) && eg_program_make(&context->caps, &problem, &program) == EG_OK) {
        count = 0;
        const eg_status status = call.backward ? eg_backward(context, &call.layer, &call.backward_args)
                                               : eg_forward(context, &call.layer, &call.forward_args);
        EXPECT(status == EG_OK, x, "%s", eg_last_error());
        EXPECT(count == program.steps, x, "%d steps ran of %d", count, program.steps);
        for (int i = 0; i < count && i < program.steps; i++) {
            const eg_step *step = &program.step[i];
            EXPECT(ran[i].kind == step->kind && strcmp(ran[i].kernel, step->kernel) == 0 &&
                       ran[i].threads == step->threads && ran[i].tile_rows == step->tile_rows &&
                       ran[i].tile_cols == step->tile_cols && ran[i].k_block == step->k_block,
                   x, "step %d is another one", i + 1);
        }
    }
    for (int i = 0; i < RECORDED_PLACES; i++) free(memory[i]);
}

static void check_result_of(eg_context *const contexts[2], const recorded_operation *x, bool backward,
                            uint64_t seed) {
    enum {
        FORWARD = CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_BIAS) | CHECK_BIT(CHECK_Y),
        BACKWARD = CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_GRAD) | CHECK_BIT(CHECK_SAVED) |
                   CHECK_BIT(CHECK_D_A) | CHECK_BIT(CHECK_D_B) | CHECK_BIT(CHECK_D_BIAS)
    };
    const check_case c = {.dtype = x->dtype,
                          .activation = x->activation,
                          .source = EG_SOURCE_PRE,
                          .m = x->m,
                          .k = x->k,
                          .n = x->n,
                          .batch = 1,
                          .present = backward ? BACKWARD : FORWARD,
                          .col_major = x->nk ? CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_D_B) : 0,
                          .backward = backward,
                          .repeated = true,
                          .seed = seed};
    check_report report;
    EXPECT(check_run_on(contexts, &c, &report) == CHECK_PASSED, x, "%s", report.message);
}

static void check_runs(eg_context *const contexts[2]) {
    const double most = short_run() ? 3e5 : 2e6; /* multiply-adds */
    oracle_random random = {7};
    int runs = short_run() ? RUNS_SHORT : RUNS;
    while (runs > 0) {
        recorded_operation x = draw(&random);
        if ((double)x.m * (double)x.k * (double)x.n > most) continue;
        for (const char *const *name = recorded_operations; *name != NULL; name++) {
            snprintf(x.name, sizeof x.name, "%s", *name);
            check_steps(contexts[1], &x);
        }
        snprintf(x.name, sizeof x.name, "results");
        check_result_of(contexts, &x, false, oracle_random_bits(&random));
        check_result_of(contexts, &x, true, oracle_random_bits(&random));
        runs--;
    }
}

int main(void) {
    eg_context *contexts[2];
    for (int i = 0; i < 2; i++) contexts[i] = open_or_skip((eg_open_info){.threads = 1 + 2 * i});
    check_choices(contexts[0]);
    check_narrow(contexts[0]);
    check_runs(contexts);
    for (int i = 0; i < 2; i++) eg_close(contexts[i]);
    if (failures > 0) printf("%d failures\n", failures);
    return failures > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
