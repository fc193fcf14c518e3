/* SPDX-License-Identifier: Apache-2.0 */
/* epigrad check: every kernel that this machine can run against the double-precision oracle. */
#include "check.h" /* of the oracle */

#include <stdio.h>
#include <string.h>

#include "call.h"
#include "commands.h"
#include "failure.h"
#include "progress.h"

typedef struct totals {
    int kernels, cases, failed;
} totals;

typedef struct outcome {
    int passed, failed, unsupported;
    double worst;       /* error, as a part of the bound */
    char message[1024]; /* of the first failure */
} outcome;

/* ---- How much ----------------------------------------------------------------------------------- */

/* A GPU that is a program on the CPU takes minutes for what a real one does in seconds. */
static bool is_software(eg_context *context) {
    eg_device_info info = {.size = sizeof info};
    return eg_get_device_info(context, &info) == EG_OK && strstr(info.features, "software") != NULL;
}

/* Most of that is spent on compiling shaders for it, which each case has others of. */
static int case_count(eg_dtype compute, bool software) {
    return software ? check_count(compute) / 20 : check_count(compute);
}

/* ---- One kernel --------------------------------------------------------------------------------- */

static void run_cases(eg_context *context, const eg_kernel_info *kernel, outcome *result) {
    const int count = case_count(kernel->compute, is_software(context));
    for (int i = 0; i < count; i++) {
        progress_step(kernel->name);
        check_case c;
        check_report report = {0};
        check_make(kernel->compute, i, &c);
        const check_result found = check_run(context, &c, &report);
        if (found == CHECK_UNSUPPORTED) result->unsupported++;
        if (found == CHECK_PASSED) result->passed++;
        if (found != CHECK_UNSUPPORTED && report.worst > result->worst) result->worst = report.worst;
        if (found != CHECK_FAILED) continue;
        if (result->failed++ == 0) memcpy(result->message, report.message, sizeof result->message);
    }
}

static void print_outcome(eg_backend backend, const eg_kernel_info *kernel, const outcome *result) {
    const int ran = result->passed + result->failed;
    progress_print("%-7s %-24s %-4s %5d cases  worst error %4.2f of its bound  %s\n",
                   eg_backend_name(backend), kernel->name, eg_dtype_name(kernel->compute), ran, result->worst,
                   result->failed > 0 ? "FAILED" : "ok");
    if (result->unsupported > 0)
        progress_print("        %d cases are not supported by it\n", result->unsupported);
    if (result->failed > 0)
        progress_print("        %d failed; the first: %s\n", result->failed, result->message);
}

static int check_kernel(const options *o, eg_backend backend, const eg_kernel_info *kernel, totals *sum) {
    const eg_open_info info = {
        .size = sizeof info, .backend = backend, .threads = o->threads, .kernel = kernel->name};
    eg_context *context = NULL;
    CLI_TRY(call_status(eg_open(&info, &context)));
    outcome result = {0};
    run_cases(context, kernel, &result);
    print_outcome(backend, kernel, &result);
    sum->kernels++;
    sum->cases += result.passed + result.failed;
    sum->failed += result.failed;
    eg_close(context);
    return CLI_OK;
}

/* ---- All of them -------------------------------------------------------------------------------- */

static bool next_kernel(eg_context *context, int index, eg_kernel_info *kernel) {
    *kernel = (eg_kernel_info){.size = sizeof *kernel};
    return eg_get_kernel_info(context, index, kernel) == EG_OK;
}

static int check_backend(const options *o, eg_backend backend, eg_context *context, totals *sum) {
    const bool software = is_software(context);
    int cases = 0, code = CLI_OK;
    eg_kernel_info kernel;
    for (int i = 0; next_kernel(context, i, &kernel); i++)
        cases += kernel.usable ? case_count(kernel.compute, software) : 0;
    progress_begin("check", cases);
    if (software)
        progress_print("%-7s runs in software here: a twentieth of the cases\n", eg_backend_name(backend));
    for (int i = 0; code == CLI_OK && next_kernel(context, i, &kernel); i++) {
        if (kernel.usable) {
            code = check_kernel(o, backend, &kernel, sum);
        } else {
            progress_print("%-7s %-24s %-4s skipped: needs %s\n", eg_backend_name(backend), kernel.name,
                           eg_dtype_name(kernel.compute), kernel.needs);
        }
    }
    progress_end();
    return code;
}

/* A backend that nobody asked for by name may be missing. */
static int open_and_check(const options *o, eg_backend backend, totals *sum) {
    options one = *o;
    one.backend = backend;
    eg_context *context = NULL;
    int code = call_open(&one, &context);
    if (code == CLI_UNAVAILABLE && !o->backend_given) {
        progress_print("%-7s not available: %s\n", eg_backend_name(backend), cli_failure());
        return CLI_OK;
    }
    if (code == CLI_OK) code = check_backend(o, backend, context, sum);
    eg_close(context);
    return code;
}

int command_check(const options *o) {
    totals sum = {0};
    for (int i = 0; strcmp(eg_backend_name((eg_backend)i), "unknown") != 0; i++) {
        if (!o->backend_given || o->backend == (eg_backend)i) CLI_TRY(open_and_check(o, (eg_backend)i, &sum));
    }
    if (sum.failed > 0) return cli_fail(CLI_FAILED, "check: %d of %d cases failed", sum.failed, sum.cases);
    printf("%d kernels, %d cases: all within their bounds\n", sum.kernels, sum.cases);
    return CLI_OK;
}
