/* SPDX-License-Identifier: Apache-2.0 */
#include "experts.h"

#include <math.h>
#include <string.h>

static int largest(const real *p, int count) {
    int best = 0;
    for (int i = 1; i < count; i++) best = p[i] > p[best] ? i : best;
    return best;
}

static void softmax(real *p, int count) {
    const double most = (double)p[largest(p, count)];
    double sum = 0;
    for (int i = 0; i < count; i++) sum += exp((double)p[i] - most);
    for (int i = 0; i < count; i++) p[i] = (real)(exp((double)p[i] - most) / sum);
}

static int expert_of(const routing *r, int row) {
    return largest(r->p + (size_t)row * (size_t)r->experts, r->experts);
}

/* Rows keep their order within an expert. */
void route(const routing *r) {
    memset(r->ends, 0, (size_t)r->experts * sizeof *r->ends);
    for (int row = 0; row < r->rows; row++) {
        softmax(r->p + (size_t)row * (size_t)r->experts, r->experts);
        r->ends[expert_of(r, row)]++;
    }
    for (int i = 1; i < r->experts; i++) r->ends[i] += r->ends[i - 1];
    for (int row = r->rows - 1; row >= 0; row--) r->order[--r->ends[expert_of(r, row)]] = row;
    for (int i = 0; i + 1 < r->experts; i++) r->ends[i] = r->ends[i + 1]; /* from begins to ends */
    r->ends[r->experts - 1] = r->rows;
}

void sort_rows(const routing *r, const real *from, real *sorted, int width) {
    const size_t w = (size_t)width;
    for (int i = 0; i < r->rows; i++)
        memcpy(sorted + (size_t)i * w, from + (size_t)r->order[i] * w, w * sizeof(real));
}

void unsort_rows(const routing *r, const real *sorted, real *to, int width) {
    const size_t w = (size_t)width;
    for (int i = 0; i < r->rows; i++)
        memcpy(to + (size_t)r->order[i] * w, sorted + (size_t)i * w, w * sizeof(real));
}

void add_results(const routing *r, const real *result, const real *stream, real *to, int width) {
    for (int i = 0; i < r->rows; i++) {
        const size_t row = (size_t)r->order[i], at = row * (size_t)width;
        const real p = r->p[row * (size_t)r->experts + (size_t)expert_of(r, (int)row)];
        for (int c = 0; c < width; c++)
            to[at + (size_t)c] = stream[at + (size_t)c] + p * result[(size_t)i * (size_t)width + (size_t)c];
    }
}

/* With p = softmax(logits) and the expert e: d_logit[j] = d_p[e]·p[e]·((j = e) - p[j]). */
void add_results_backward(const routing *r, const real *result, const real *d_to, real *d_result, int width) {
    for (int i = 0; i < r->rows; i++) {
        const int row = r->order[i], expert = expert_of(r, row);
        real *p = r->p + (size_t)row * (size_t)r->experts;
        const real chosen = p[expert], *d = d_to + (size_t)row * (size_t)width,
                   *z = result + (size_t)i * (size_t)width;
        double d_p = 0;
        for (int c = 0; c < width; c++) {
            d_p += (double)d[c] * (double)z[c];
            d_result[(size_t)i * (size_t)width + (size_t)c] = chosen * d[c];
        }
        for (int j = 0; j < r->experts; j++)
            p[j] = (real)(d_p * (double)chosen * ((j == expert) - (double)p[j]));
    }
}
