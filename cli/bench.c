/* SPDX-License-Identifier: Apache-2.0 */
/* epigrad bench: times of the backward pass on random data. */
#include "bench.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "commands.h"
#include "failure.h"
#include "progress.h"

/* ---- Timing ------------------------------------------------------------------------------------- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Until a tenth of the time is spent, for clocks and caches to become steady; at least once. */
static int warm_up(const bench_sets *sets, double seconds) {
    const double start = now();
    int i = 0;
    do CLI_TRY(call_run(&sets->calls[i++ % sets->count]));
    while (now() - start < 0.1 * seconds);
    return CLI_OK;
}

static int time_calls(const bench_sets *sets, double seconds, bench_row *row) {
    enum { LEAST = 5, MOST = 100000 };
    double *times = malloc(MOST * sizeof *times);
    if (times == NULL) return cli_out_of_memory();
    const double start = now();
    int count = 0, code = CLI_OK;
    while (code == CLI_OK && count < MOST && (count < LEAST || now() - start < seconds)) {
        const double begin = now();
        code = call_run(&sets->calls[count % sets->count]);
        times[count++] = now() - begin;
    }
    qsort(times, (size_t)count, sizeof *times, by_value);
    row->min_ms = times[0] * 1e3;
    row->median_ms = (times[(count - 1) / 2] + times[count / 2]) * 0.5e3;
    free(times);
    return code;
}

/* Two products for d_a and d_b, and one for pre where it is computed again: act' of none needs no pre. A gated
 * unit has twice as many, and needs pre and pre_up with none too. */
static double flops(const call *c) {
    const bool needs_pre = c->gated || c->layer.activation != EG_ACT_NONE;
    const bool recompute = c->mode == EG_SOURCE_RECOMPUTE && needs_pre;
    const eg_layer *layer = &c->layer;
    const double items = (double)layer->batch * (double)(layer->outer_batch > 0 ? layer->outer_batch : 1);
    return (c->gated ? 2.0 : 1.0) * (recompute ? 6.0 : 4.0) * items * (double)layer->m * (double)layer->k *
           (double)layer->n;
}

/* ---- Names -------------------------------------------------------------------------------------- */

static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

static bool has_word(const char *text, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word)) {
        if ((at == text || !is_word(at[-1])) && !is_word(at[length])) return true;
    }
    return false;
}

/* The rows of the kernel table that the plan names. */
static int name_kernels(const call *c, bench_row *row) {
    char *plan = NULL;
    CLI_TRY(call_plan(c, c->context, &plan));
    row->kernels[0] = '\0';
    eg_kernel_info kernel = {.size = sizeof kernel};
    for (int i = 0; eg_get_kernel_info(c->context, i, &kernel) == EG_OK; i++) {
        const size_t used = strlen(row->kernels);
        if (!has_word(plan, kernel.name) || has_word(row->kernels, kernel.name)) continue;
        snprintf(row->kernels + used, sizeof row->kernels - used, "%s%s", used > 0 ? "," : "", kernel.name);
    }
    free(plan);
    return CLI_OK;
}

/* ---- Rows --------------------------------------------------------------------------------------- */

static int bench_sets_run(const options *o, const bench_sets *sets, bench_row *row) {
    row->call = &sets->calls[0];
    CLI_TRY(name_kernels(row->call, row));
    CLI_TRY(warm_up(sets, o->seconds));
    CLI_TRY(time_calls(sets, o->seconds, row));
    row->gflops = row->median_ms > 0 ? flops(row->call) / row->median_ms * 1e-6 : 0;
    if (o->json) return bench_print_json(row);
    bench_print(row);
    return CLI_OK;
}

static int bench_shape(const options *o, eg_context *context, const shape *sizes, bench_row *row) {
    char label[80];
    snprintf(label, sizeof label, "%lldx%lldx%lld", (long long)sizes->m, (long long)sizes->k,
             (long long)sizes->n);
    progress_step(label);
    bench_sets sets;
    int code = bench_sets_make(&sets, o, sizes, context);
    if (code == CLI_OK) code = bench_sets_run(o, &sets, row);
    bench_sets_free(&sets);
    return code;
}

static int bench_all(const options *o, eg_context *context) {
    eg_device_info device = {.size = sizeof device};
    CLI_TRY(call_status(eg_get_device_info(context, &device)));
    bench_row row = {.options = o, .device = device.name, .threads = device.threads};
    progress_step("measuring the peak");
    if (eg_measure_peak(context, o->dtype, &row.peak) != EG_OK) row.peak = 0;
    if (!o->json) bench_print_header();
    for (int i = 0; i < o->shape_count; i++) CLI_TRY(bench_shape(o, context, &o->shapes[i], &row));
    return CLI_OK;
}

static options with_defaults(const options *given) {
    static const shape sizes[] = {{128, 128, 128}, {512, 512, 512}, {1024, 1024, 1024}, {256, 768, 3072}};
    options o = *given;
    if (o.dtype == EG_DTYPE_DEFAULT) o.dtype = EG_F32;
    if (!o.activation_given) o.activation = o.mode == EG_SOURCE_Y ? EG_ACT_RELU : EG_ACT_GELU;
    if (o.shape_count == 0) {
        memcpy(o.shapes, sizes, sizeof sizes);
        o.shape_count = sizeof sizes / sizeof sizes[0];
    }
    return o;
}

int command_bench(const options *given) {
    const options o = with_defaults(given);
    eg_context *context = NULL;
    CLI_TRY(call_open(&o, &context));
    progress_begin("bench", o.shape_count + 1);
    const int code = bench_all(&o, context);
    progress_end();
    eg_close(context);
    return code;
}
