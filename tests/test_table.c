/* SPDX-License-Identifier: Apache-2.0 */
/* The table of cases against the oracle.
 *
 *     test_table [--backend NAME] [--kernel ROW | --rows | --one-level] [--groups]
 *
 * runs it on the kernels the context chooses by itself, on one row by name, or on every usable row in turn;
 * with
 * --one-level its cases of two levels, as on a backend that does outer items one after the other; with
 * --groups its grouped layers. EPIGRAD_CPU_ISA caps the instruction set; a level this processor lacks, or a
 * row by name that needs more than there is, exits with 77, "skipped". EPIGRAD_TEST_CASE=INDEX runs one case
 * only, EPIGRAD_TEST_FEW=COUNT so many that pass: for tools that make every instruction slow. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend.h"

#include "check.h"
#include "open.h"
#include "short.h"

typedef struct totals {
    int passed, failed, unsupported, chunks, in_result;
    double worst;
} totals;

static bool only_groups;

static int cases_for(eg_dtype compute) {
    if (only_groups) return check_count(compute);
    return short_run() ? check_round(compute) : check_count(compute);
}

/* The CPU has both levels, unless it is told otherwise. */
static bool is_told(const eg_context *context) {
    return context->caps.one_level && context->caps.backend == EG_BACKEND_CPU;
}

static void run_case(eg_context *context, eg_dtype compute, int index, totals *sum) {
    check_case c;
    check_report report;
    check_make(compute, index, &c);
    if (is_told(context) && c.outer == 0) return;
    if (only_groups && c.groups == 0) return;
    switch (check_run(context, &c, &report)) {
    case CHECK_PASSED:
        sum->passed++;
        break;
    case CHECK_UNSUPPORTED:
        sum->unsupported++;
        if (!is_told(context) ||
            strstr(report.message, "that is summed over the batch; expected one level") != NULL)
            break;
        printf("    FAILED: case %d: %s\n", index, report.message);
        sum->failed++;
        break;
    case CHECK_FAILED:
        sum->failed++;
        if (sum->failed <= 10) printf("    FAILED: case %d: %s\n", index, report.message);
        break;
    }
    if (report.worst > sum->worst) sum->worst = report.worst;
    sum->chunks += report.chunks;
    sum->in_result += report.in_result;
}

/* A number of the environment; `otherwise` where it is not set. */
static int setting(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value != NULL ? atoi(value) : otherwise;
}

static void run_all(eg_context *context, const char *label, eg_dtype compute, totals *sum) {
    const int only = setting("EPIGRAD_TEST_CASE", -1), few = setting("EPIGRAD_TEST_FEW", INT_MAX),
              every = setting("EPIGRAD_TEST_EVERY", 1), step = every > 0 ? every : 1;
    totals here = {0};
    const int cases = cases_for(compute);
    /* A row that serves one type and mode is given further cases, until it has done as much. */
    for (int i = 0; i < cases || (here.passed + here.failed < cases / step / 2 && i < 8 * cases); i++) {
        if (i % step != 0 && i != only) continue;
        if (here.passed < few && (only < 0 || only == i)) run_case(context, compute, i, &here);
    }
    printf("%-24s %s  %4d passed (%d in chunks, %d with sums in d_b)  %d failed  %d unsupported  worst error "
           "%.2f of "
           "its bound\n",
           label, eg_dtype_name(compute), here.passed, here.chunks, here.in_result, here.failed,
           here.unsupported, here.worst);
    fflush(stdout);
    sum->passed += here.passed;
    sum->failed += here.failed;
    sum->unsupported += here.unsupported;
    sum->chunks += here.chunks;
    sum->in_result += here.in_result;
}

/* Row `index` of the kernel table: false past the last. */
static bool row_of(eg_context *context, int index, eg_kernel_info *row) {
    *row = (eg_kernel_info){.size = sizeof *row};
    return eg_get_kernel_info(context, index, row) == EG_OK;
}

/* False: this processor or device cannot run it. */
static bool run_row(eg_backend backend, const eg_kernel_info *row, totals *sum) {
    if (!row->usable) {
        printf("%-24s %s  skipped: needs %s\n", row->name, eg_dtype_name(row->compute), row->needs);
        return false;
    }
    eg_context *context = open_or_skip((eg_open_info){.backend = backend, .kernel = row->name});
    run_all(context, row->name, row->compute, sum);
    eg_close(context);
    return true;
}

static void run_rows(eg_backend backend, const char *only, totals *sum) {
    eg_context *table = open_or_skip((eg_open_info){.backend = backend});
    eg_kernel_info row;
    for (int i = 0; row_of(table, i, &row); i++) {
        if (only != NULL && strcmp(only, row.name) != 0) continue;
        if (!run_row(backend, &row, sum) && only != NULL) exit(SKIPPED);
    }
    eg_close(table);
}

static void run_chosen(eg_backend backend, bool one_level, totals *sum) {
    eg_context *context = open_or_skip((eg_open_info){.backend = backend});
    if (one_level) context->caps.one_level = true;
    run_all(context, "the context's own choice", EG_F32, sum);
    run_all(context, "the context's own choice", EG_F64, sum);
    eg_close(context);
}

/* A capped run means something only where the processor has the level it is capped to. */
static bool level_is_there(eg_backend backend) {
    const char *level = getenv("EPIGRAD_CPU_ISA");
    if (backend != EG_BACKEND_CPU || level == NULL || *level == '\0') return true;
    eg_context *context = open_or_skip((eg_open_info){.backend = backend});
    eg_device_info info = {.size = sizeof info};
    const bool there = eg_get_device_info(context, &info) == EG_OK && strstr(info.features, level) != NULL;
    if (!there) printf("skipped: this processor has \"%s\", not %s\n", info.features, level);
    eg_close(context);
    return there;
}

static eg_backend backend_named(const char *name) {
    for (int i = EG_BACKEND_CPU; i <= EG_BACKEND_WEBGPU; i++) {
        if (strcmp(name, eg_backend_name((eg_backend)i)) == 0) return (eg_backend)i;
    }
    printf("no backend \"%s\"\n", name);
    exit(EXIT_FAILURE);
}

int main(int argc, char **argv) {
    eg_backend backend = EG_BACKEND_CPU;
    const char *kernel = NULL;
    bool rows = false, one_level = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--rows") == 0) {
            rows = true;
        } else if (strcmp(argv[i], "--groups") == 0) {
            only_groups = true;
        } else if (strcmp(argv[i], "--one-level") == 0) {
            one_level = true;
        } else if (strcmp(argv[i], "--backend") == 0 && i + 1 < argc) {
            backend = backend_named(argv[++i]);
        } else if (strcmp(argv[i], "--kernel") == 0 && i + 1 < argc) {
            kernel = argv[++i];
        } else {
            printf("unknown argument %s\n", argv[i]);
            return EXIT_FAILURE;
        }
    }
    if (!level_is_there(backend)) return SKIPPED;
    totals sum = {0};
    if (rows || kernel != NULL) {
        run_rows(backend, kernel, &sum);
    } else {
        run_chosen(backend, one_level, &sum);
    }
    if (sum.passed == 0) printf("no case passed\n");
    const bool some = getenv("EPIGRAD_TEST_CASE") != NULL || getenv("EPIGRAD_TEST_FEW") != NULL;
    const bool chunks = sum.chunks > 0 || only_groups || some;
    if (!chunks) printf("no case was cut into chunks\n");
    return sum.failed > 0 || sum.passed == 0 || !chunks ? EXIT_FAILURE : EXIT_SUCCESS;
}
