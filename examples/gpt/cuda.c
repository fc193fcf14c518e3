/* SPDX-License-Identifier: Apache-2.0 */
/* The operations on a GPU: each launches its kernels, and comes back before they have run. */
#include "operations.h"

#include "adamw.h"
#include "attention.h"
#include "experts.h"
#include "gpu.h"

#include "../common/must.h"

static struct {
    eg_context *context;
    void *scratch;
    size_t bytes;
} gpu;

/* Memory for what is between two kernels. What was in it is lost. */
static void *scratch(size_t bytes) {
    if (bytes > gpu.bytes) {
        must(eg_sync(gpu.context));
        eg_free(gpu.context, gpu.scratch);
        must(eg_alloc(gpu.context, bytes, &gpu.scratch));
        gpu.bytes = bytes;
    }
    return gpu.scratch;
}

static int divided(size_t count, size_t by) { return (int)((count + by - 1) / by); }

/* launch(kernel, blocks, blocks, fields of its arguments ...) */
#define launch(name, x, y, ...) gpu_launch(KERNEL_##name, x, y, &(name##_args){__VA_ARGS__})

/* Blocks for a thread each element, and for a warp each row. */
static int of_elements(size_t count) { return divided(count, THREADS); }
static int of_rows(int rows) { return divided((size_t)rows, WARPS); }
static size_t area(int rows, int width) { return (size_t)rows * (size_t)width; }

static void cuda_clear(real *x, size_t count) {
    launch(clear, of_elements(count), 1, .x = x, .count = count);
}

/* ---- Embedding and norm -------------------------------------------------------------------------- */

static void cuda_embed(const real *table, const unsigned char *letter, real *x, int rows, int width) {
    launch(embed, of_elements(area(rows, width)), 1, .table = table, .letter = letter, .x = x, .rows = rows,
           .width = width);
}

static void cuda_embed_backward(const real *d_x, const unsigned char *letter, real *d_table, int rows,
                                int width, int letters) {
    enum { CHUNK = 512 };
    const int chunks = divided((size_t)rows, CHUNK), count = letters * width;
    real *parts = scratch(area(chunks, count) * sizeof *parts);
    launch(embed_parts, letters, chunks, .d_x = d_x, .letter = letter, .parts = parts, .rows = rows,
           .width = width, .letters = letters, .chunk = CHUNK);
    launch(add_parts, of_elements((size_t)count), 1, .parts = parts, .to = d_table, .chunks = chunks,
           .count = count, .add = 1);
}

static void cuda_norm_forward(const real *x, const real *gain, real *y, int rows, int width) {
    launch(norm_forward, of_rows(rows), 1, .x = x, .gain = gain, .y = y, .rows = rows, .width = width);
}

static void cuda_norm_backward(const real *x, const real *gain, const real *d_y, real *d_x, real *d_gain,
                               int rows, int width) {
    enum { CHUNK = 64 };
    const int chunks = divided((size_t)rows, CHUNK);
    real *inverse = scratch(((size_t)rows + area(chunks, width)) * sizeof *inverse);
    real *parts = inverse + rows;
    launch(norm_backward, of_rows(rows), 1, .x = x, .gain = gain, .d_y = d_y, .d_x = d_x, .inverse = inverse,
           .rows = rows, .width = width);
    launch(norm_parts, of_elements((size_t)width), chunks, .x = x, .d_y = d_y, .inverse = inverse,
           .parts = parts, .rows = rows, .width = width, .chunk = CHUNK);
    launch(add_parts, of_elements((size_t)width), 1, .parts = parts, .to = d_gain, .chunks = chunks,
           .count = width);
}

/* ---- Attention ----------------------------------------------------------------------------------- */

static void cuda_rotate(const attention *a, real *qkv, int direction) {
    launch(rotate, of_elements(area(a->time, a->depth / 2)), a->batch, .qkv = qkv, .time = a->time,
           .heads = a->heads, .depth = a->depth, .direction = direction);
}

static void cuda_causal_softmax(const attention *a, real *p) {
    const int rows = a->batch * a->heads * a->time;
    launch(causal_softmax, of_rows(rows), 1, .p = p, .rows = rows, .time = a->time);
}

static void cuda_softmax_backward(const attention *a, const real *p, real *d_p) {
    const int rows = a->batch * a->heads * a->time;
    launch(softmax_backward, of_rows(rows), 1, .p = p, .d_p = d_p, .rows = rows, .time = a->time);
}

/* ---- Experts ------------------------------------------------------------------------------------- */

static void cuda_route(const routing *r) {
    launch(experts_softmax, of_elements((size_t)r->rows), 1, .p = r->p, .rows = r->rows,
           .experts = r->experts);
    launch(experts_order, r->experts, 1, .p = r->p, .order = r->order, .ends = r->ends, .rows = r->rows,
           .experts = r->experts);
}

static void cuda_sort_rows(const routing *r, const real *from, real *sorted, int width) {
    launch(sort_rows, of_elements(area(r->rows, width)), 1, .order = r->order, .from = from, .to = sorted,
           .rows = r->rows, .width = width);
}

static void cuda_unsort_rows(const routing *r, const real *sorted, real *to, int width) {
    launch(unsort_rows, of_elements(area(r->rows, width)), 1, .order = r->order, .from = sorted, .to = to,
           .rows = r->rows, .width = width);
}

static void cuda_add_results(const routing *r, const real *result, const real *stream, real *to, int width) {
    launch(add_results, of_elements(area(r->rows, width)), 1, .p = r->p, .order = r->order, .result = result,
           .stream = stream, .to = to, .rows = r->rows, .width = width, .experts = r->experts);
}

static void cuda_add_results_backward(const routing *r, const real *result, const real *d_to, real *d_result,
                                      int width) {
    launch(add_results_backward, of_rows(r->rows), 1, .p = r->p, .order = r->order, .result = result,
           .d_to = d_to, .d_result = d_result, .rows = r->rows, .width = width, .experts = r->experts);
}

/* ---- Loss and step ------------------------------------------------------------------------------- */

static double cuda_cross_entropy(const real *logits, const unsigned char *target, int rows, int letters,
                                 real *d_logits) {
    double *sum = scratch((1 + (size_t)rows) * sizeof *sum), loss;
    launch(cross_entropy, of_rows(rows), 1, .logits = logits, .target = target, .d_logits = d_logits,
           .loss = sum + 1, .rows = rows, .letters = letters);
    launch(sum, 1, 1, .x = sum + 1, .sum = sum, .count = rows);
    must(eg_download(gpu.context, &loss, sum, 0, sizeof loss));
    return loss / rows;
}

static void cuda_adamw_update(const adamw *o, const adamw_rates *rates, real *parameters,
                              const real *gradients) {
    enum { PARTS = 512 };
    double *sum = scratch((1 + PARTS) * sizeof *sum);
    launch(squares, PARTS, 1, .x = gradients, .parts = sum + 1, .count = o->count);
    launch(sum, 1, 1, .x = sum + 1, .sum = sum, .count = PARTS);
    launch(adamw_update, of_elements(o->count), 1, .parameter = parameters, .mean = o->mean,
           .square = o->square, .gradient = gradients, .squares = sum, .count = o->count,
           .decayed = o->decayed, .longest = rates->longest, .new_mean = rates->new_mean,
           .new_square = rates->new_square, .step_size = rates->step_size, .keep = rates->keep);
}

/* ---- The table ----------------------------------------------------------------------------------- */

static const operations cuda_operations = {
    .clear = cuda_clear,
    .embed = cuda_embed,
    .embed_backward = cuda_embed_backward,
    .norm_forward = cuda_norm_forward,
    .norm_backward = cuda_norm_backward,
    .rotate = cuda_rotate,
    .causal_softmax = cuda_causal_softmax,
    .softmax_backward = cuda_softmax_backward,
    .route = cuda_route,
    .sort_rows = cuda_sort_rows,
    .unsort_rows = cuda_unsort_rows,
    .add_results = cuda_add_results,
    .add_results_backward = cuda_add_results_backward,
    .cross_entropy = cuda_cross_entropy,
    .adamw_update = cuda_adamw_update,
};

const operations *cuda_open(eg_context *context) {
    gpu_open();
    gpu.context = context;
    return &cuda_operations;
}

void cuda_close(void) {
    must(eg_sync(gpu.context));
    eg_free(gpu.context, gpu.scratch);
    gpu_close();
    gpu.context = NULL, gpu.scratch = NULL, gpu.bytes = 0;
}
