/* SPDX-License-Identifier: Apache-2.0 */
#include "adamw.h"

#include "../common/must.h"

#include <tgmath.h>

static const double keep_mean = 0.9, keep_square = 0.99, weight_decay = 0.1, longest_gradient = 1;

adamw adamw_new(size_t count) {
    return (adamw){
        .count = count, .mean = must_alloc(count, sizeof(real)), .square = must_alloc(count, sizeof(real))};
}

void adamw_free(adamw *optimizer) {
    free(optimizer->mean);
    free(optimizer->square);
    *optimizer = (adamw){0};
}

/* What gradients are multiplied by so that all of them together are no longer than they may be. */
static real clip(const real *gradients, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (double)gradients[i] * (double)gradients[i];
    return (real)fmin(1.0, longest_gradient / (sqrt(sum) + 1e-12));
}

void adamw_step(adamw *o, real *parameters, const real *gradients, size_t decayed, double rate) {
    o->step++;
    const real scale = clip(gradients, o->count), tiny = (real)1e-8;
    const real new_mean = (real)(1 - keep_mean), new_square = (real)(1 - keep_square);
    /* The moments began at 0: the corrections are in the rate. */
    const real step_size = (real)(rate * sqrt(1 - pow(keep_square, o->step)) / (1 - pow(keep_mean, o->step)));
    const real keep = (real)(1 - rate * weight_decay);
    for (size_t i = 0; i < o->count; i++) {
        const real g = scale * gradients[i];
        o->mean[i] += new_mean * (g - o->mean[i]);
        o->square[i] += new_square * (g * g - o->square[i]);
        parameters[i] =
            (i < decayed ? keep : 1) * parameters[i] - step_size * o->mean[i] / (sqrt(o->square[i]) + tiny);
    }
}
