/* SPDX-License-Identifier: Apache-2.0 */
/* The results of `epigrad bench`, for people and for programs. */
#include <stdio.h>
#include <stdlib.h>

#include <cjson/cJSON.h>

#include "bench.h"
#include "failure.h"
#include "progress.h"

static const char *mode_name(eg_source mode) {
    return mode == EG_SOURCE_RECOMPUTE ? "recompute" : mode == EG_SOURCE_PRE ? "pre" : "y";
}

static double percent(const bench_row *row) { return row->peak > 0 ? 100.0 * row->gflops / row->peak : 0; }

void bench_print_header(void) {
    progress_print("%-7s %-5s %-18s %5s  %-16s %-9s %7s %11s %11s %9s %7s  %s\n", "backend", "dtype", "MxKxN",
                   "batch", "activation", "mode", "threads", "median ms", "min ms", "GFLOP/s", "% peak",
                   "kernels");
}

void bench_print(const bench_row *row) {
    const eg_layer *layer = &row->call->layer;
    char sizes[64], batch[48], activation[32], share[16] = "?";
    snprintf(sizes, sizeof sizes, "%lldx%lldx%lld", (long long)layer->m, (long long)layer->k,
             (long long)layer->n);
    if (layer->groups > 0)
        snprintf(sizes, sizeof sizes, "%lldx%lldx%lld/%lld", (long long)layer->m, (long long)layer->k,
                 (long long)layer->n, (long long)layer->groups);
    snprintf(batch, sizeof batch, "%lld", (long long)layer->batch);
    if (layer->outer_batch > 0)
        snprintf(batch, sizeof batch, "%lldx%lld", (long long)layer->outer_batch, (long long)layer->batch);
    snprintf(activation, sizeof activation, "%s%s", eg_activation_name(layer->activation),
             row->call->gated ? " gated" : "");
    if (row->peak > 0) snprintf(share, sizeof share, "%.1f", percent(row));
    progress_print("%-7s %-5s %-18s %5s  %-16s %-9s %7d %11.4f %11.4f %9.1f %7s  %s\n",
                   eg_backend_name(row->options->backend), eg_dtype_name(layer->dtype), sizes, batch,
                   activation, mode_name(row->call->mode), row->threads, row->median_ms, row->min_ms,
                   row->gflops, share, row->kernels);
}

/* Six digits: a double in full would suggest a precision that no timing has. */
static void add_figure(cJSON *object, const char *name, double value) {
    char text[32];
    snprintf(text, sizeof text, "%.6g", value);
    cJSON_AddNumberToObject(object, name, strtod(text, NULL));
}

int bench_print_json(const bench_row *row) {
    const eg_layer *layer = &row->call->layer;
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "backend", eg_backend_name(row->options->backend));
    cJSON_AddStringToObject(object, "device", row->device);
    cJSON_AddStringToObject(object, "dtype", eg_dtype_name(layer->dtype));
    cJSON_AddNumberToObject(object, "m", (double)layer->m);
    cJSON_AddNumberToObject(object, "k", (double)layer->k);
    cJSON_AddNumberToObject(object, "n", (double)layer->n);
    cJSON_AddNumberToObject(object, "batch", (double)layer->batch);
    if (layer->outer_batch > 0) cJSON_AddNumberToObject(object, "outer_batch", (double)layer->outer_batch);
    if (layer->groups > 0) cJSON_AddNumberToObject(object, "groups", (double)layer->groups);
    if (row->call->gated) cJSON_AddBoolToObject(object, "gated", true);
    cJSON_AddStringToObject(object, "activation", eg_activation_name(layer->activation));
    cJSON_AddStringToObject(object, "mode", mode_name(row->call->mode));
    cJSON_AddNumberToObject(object, "threads", row->threads);
    add_figure(object, "median_ms", row->median_ms);
    add_figure(object, "min_ms", row->min_ms);
    add_figure(object, "gflops", row->gflops);
    if (row->peak > 0)
        add_figure(object, "peak_pct", percent(row));
    else
        cJSON_AddNullToObject(object, "peak_pct");
    cJSON_AddStringToObject(object, "kernels", row->kernels);
    char *text = cJSON_PrintUnformatted(object);
    cJSON_Delete(object);
    if (text == NULL) return cli_out_of_memory();
    progress_print("%s\n", text);
    cJSON_free(text);
    return CLI_OK;
}
