/* SPDX-License-Identifier: Apache-2.0 */
/* What lies between the rows and the items of a result, and around it, stays as it is (check.h): by every row
 * of the kernel table, on results whose rows begin on 16 bytes and end anywhere. A kernel that stores whole
 * vectors writes past the end of such a row, if it writes past any.
 *
 *     test_gaps [BACKEND [ROW]]
 *
 * EPIGRAD_TEST_SEED: the first case of the sweep, which the message of a failure names; 1 where it is not
 * set. */
#include "check.h"
#include "number.h"
#include "open.h"
#include "support.h"

static eg_backend backend = EG_BACKEND_CPU;
static const char *only; /* the row to run; NULL: every one, and the context's choice */

/* ---- Every row ---------------------------------------------------------------------------------- */

typedef struct visit {
    eg_context *context;
    const char *name; /* of the row; NULL: the context's choice */
    eg_dtype compute;
} visit;

static void visit_rows(void (*each)(const visit *v)) {
    eg_context *table = open_or_skip((eg_open_info){.backend = backend});
    eg_kernel_info row = {.size = sizeof row};
    int visited = 0;
    const int types = only != NULL ? 0 : backend == EG_BACKEND_WEBGPU ? 1 : 2;
    for (int i = 0; i < types; i++) each(&(visit){table, NULL, i == 0 ? EG_F32 : EG_F64});
    for (int i = 0; eg_get_kernel_info(table, i, &row) == EG_OK; i++) {
        if (!row.usable || (only != NULL && strcmp(only, row.name) != 0)) continue;
        const visit v = {open_or_skip((eg_open_info){.backend = backend, .kernel = row.name}), row.name,
                         row.compute};
        each(&v);
        eg_close(v.context);
        visited++;
    }
    eg_close(table);
    if (only != NULL && visited == 0) fail_msg("no row %s that this device can run", only);
}

/* Whether the row took the case. */
static bool took(const visit *v, const check_case *c, uint64_t seed) {
    check_report report;
    check_case here = *c;
    if (backend == EG_BACKEND_WEBGPU && c->dtype == EG_BF16) here.dtype = EG_F16; /* which it has */
    const check_result result = check_run(v->context, &here, &report);
    if (result == CHECK_FAILED)
        fail_msg("%s, EPIGRAD_TEST_SEED=%llu: %s", v->name != NULL ? v->name : "the context's own choice",
                 (unsigned long long)seed, report.message);
    return result == CHECK_PASSED;
}

/* ---- Layers that showed it ---------------------------------------------------------------------- */

enum {
    BACKWARD = CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_GRAD) | CHECK_BIT(CHECK_SAVED),
    BELOW = CHECK_BIT(CHECK_BELOW) | CHECK_BIT(CHECK_D_BIAS_BELOW)
};

/* Three that wrote past the rows of a result on Hopper: of d_b in f32 [512, 65] 68 apart, of d_b [200, 7] 8
 * apart, of d_a [72, 31] 32 apart. */
static const check_case known[] = {
    {.dtype = EG_BF16,
     .m = 16,
     .k = 512,
     .n = 65,
     .batch = 5,
     .activation = EG_ACT_SILU,
     .present = BACKWARD | CHECK_BIT(CHECK_D_B),
     .shared = CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_D_B),
     .wide = true},
    {.dtype = EG_F16,
     .m = 16,
     .k = 200,
     .n = 7,
     .batch = 3,
     .activation = EG_ACT_GELU,
     .present = BACKWARD | CHECK_BIT(CHECK_D_B)},
    {.dtype = EG_BF16,
     .m = 72,
     .k = 31,
     .n = 16,
     .batch = 5,
     .activation = EG_ACT_SILU,
     .below_source = EG_SOURCE_PRE,
     .below_activation = EG_ACT_GELU,
     .present = BACKWARD | BELOW | CHECK_BIT(CHECK_D_A)},
};

/* The layouts of a and b say which rows may take a product. */
static void run_known(const visit *v) {
    enum { B_BY_COLUMNS = 1, A_BY_COLUMNS = 2, ADDED = 4, WAYS = 8 };
    for (size_t i = 0; i < LENGTH(known) * WAYS; i += short_run() ? 5 : 1) {
        check_case c = known[i / WAYS];
        c.backward = c.aligned = true;
        c.source = EG_SOURCE_PRE;
        c.seed = i + 1;
        c.col_major =
            (i & B_BY_COLUMNS ? CHECK_BIT(CHECK_B) : 0) | (i & A_BY_COLUMNS ? CHECK_BIT(CHECK_A) : 0);
        c.accumulate = (i & ADDED) != 0;
        if (!took(v, &c, 0) && v->name == NULL && v->compute == EG_F32) fail_msg("layer %zu is refused", i);
    }
}

static void layers_that_showed_it(void **state) {
    (void)state;
    visit_rows(run_known);
}

/* ---- The sweep ---------------------------------------------------------------------------------- */

/* A call by name is one product's, or those of one kernel: these outputs, from what is saved or not. */
static void want(check_case *c, eg_source source, unsigned outputs) {
    const unsigned chain = CHECK_BIT(CHECK_BELOW) | CHECK_BIT(CHECK_D_BIAS_BELOW);
    const bool keeps_chain = (outputs & CHECK_BIT(CHECK_D_A)) != 0 && (outputs & CHECK_BIT(CHECK_D_B)) == 0;
    c->backward = true;
    c->source = source;
    c->present &= CHECK_BIT(CHECK_BIAS) | (keeps_chain ? chain : 0);
    c->present |= CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_GRAD) | outputs;
    if (source == EG_SOURCE_PRE) c->present |= CHECK_BIT(CHECK_SAVED);
    if (keeps_chain) c->shared &= ~((c->present & CHECK_BIT(CHECK_BELOW)) != 0 ? CHECK_BIT(CHECK_D_A) : 0U);
    c->in_place = false;
    c->pack = CHECK_PACK_NONE;
}

/* The residual and nothing else, which rows may have that multiply nothing. */
static void want_copy(check_case *c) {
    c->backward = c->in_place = false;
    c->k = 0;
    c->activation = EG_ACT_NONE;
    c->present = CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_RESIDUAL) | CHECK_BIT(CHECK_Y);
    c->wide = c->accumulate = false;
    c->pack = CHECK_PACK_NONE;
    c->limit = CHECK_LIMIT_NONE;
}

/* A case of the table, with other sizes, and rows that begin on 16 bytes. Results are mostly by rows: those
 * kernels that store vectors take no others. */
static check_case case_of(eg_dtype compute, uint64_t seed) {
    oracle_random random = {seed};
    check_case c;
    check_make(compute, (int)(seed % (1U << 20)), &c);
    const bool large = oracle_random_below(&random, 4) == 0;
    int64_t *sizes[] = {&c.m, &c.k, &c.n};
    for (int i = 0; i < 3; i++) *sizes[i] = 1 + oracle_random_below(&random, large ? 290 : 70);
    if (c.limit != CHECK_LIMIT_NONE) c.m += 152;
    if (c.batch == 0) c.batch = 1;
    const int kind = (int)oracle_random_below(&random, 32);
    if (kind < 8) want(&c, EG_SOURCE_PRE, CHECK_BIT(CHECK_D_A));
    if (kind >= 8 && kind < 14) want(&c, EG_SOURCE_PRE, CHECK_BIT(CHECK_D_B));
    if (kind >= 14 && kind < 20)
        want(&c, EG_SOURCE_RECOMPUTE, CHECK_BIT(CHECK_GRAD_PRE) | CHECK_BIT(CHECK_D_BIAS));
    if (kind >= 14 && kind < 17) c.n = (c.n + 7) / 8 * 8;
    if (kind == 20) want_copy(&c);
    if (oracle_random_below(&random, 4) != 0) c.col_major &= CHECK_BIT(CHECK_B); /* it chooses the row */
    c.interleaved &= (unsigned)oracle_random_bits(&random);
    c.aligned = true;
    c.seed = seed;
    return c;
}

/* As many as the row takes; those of one data type, mode and layout take few of the table's cases. */
static void run_sweep(const visit *v) {
    const char *text = getenv("EPIGRAD_TEST_SEED");
    const uint64_t first = text != NULL ? strtoull(text, NULL, 10) : 1;
    const int most = 3000, enough = short_run() ? 4 : 40;
    int done = 0;
    for (int i = 0; i < most && done < enough; i++) {
        const check_case c = case_of(v->compute, first + (uint64_t)i);
        done += took(v, &c, first + (uint64_t)i);
    }
    printf("%-32s %3d layers\n", v->name != NULL ? v->name : "the context's own choice", done);
    if (done == 0) fail_msg("%s takes none of %d layers", v->name, most);
}

static void rows_that_end_anywhere(void **state) {
    (void)state;
    visit_rows(run_sweep);
}

int main(int argc, char **argv) {
    for (int i = EG_BACKEND_CPU; i <= EG_BACKEND_WEBGPU && argc > 1; i++) {
        if (strcmp(argv[1], eg_backend_name((eg_backend)i)) == 0) backend = (eg_backend)i;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(layers_that_showed_it),
                                       cmocka_unit_test(rows_that_end_anywhere)};
    if (argc > 2) only = argv[2];
    eg_close(open_or_skip((eg_open_info){.backend = backend}));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
