/* SPDX-License-Identifier: Apache-2.0 */
#include "adamw.h"

#include "../common/must.h"

#include <tgmath.h>

static const double keep_mean = 0.9, keep_square = 0.99, weight_decay = 0.1, longest_gradient = 1;

static real *zeros(device on, size_t count) {
    void *memory;
    must(eg_alloc(on.context, count * sizeof(real), &memory));
    on.run->clear(memory, count);
    return memory;
}

adamw adamw_new(device on, size_t count, size_t decayed) {
    return (adamw){.device = on,
                   .count = count,
                   .decayed = decayed,
                   .mean = zeros(on, count),
                   .square = zeros(on, count)};
}

void adamw_free(adamw *optimizer) {
    eg_free(optimizer->device.context, optimizer->mean);
    eg_free(optimizer->device.context, optimizer->square);
    *optimizer = (adamw){0};
}

void adamw_step(adamw *o, real *parameters, const real *gradients, double rate) {
    o->step++;
    /* The moments began at 0: the corrections are in the rate. */
    const double correction = sqrt(1 - pow(keep_square, o->step)) / (1 - pow(keep_mean, o->step));
    const adamw_rates rates = {.longest = longest_gradient,
                               .new_mean = (real)(1 - keep_mean),
                               .new_square = (real)(1 - keep_square),
                               .step_size = (real)(rate * correction),
                               .keep = (real)(1 - rate * weight_decay)};
    o->device.run->adamw_update(o, &rates, parameters, gradients);
}

/* What gradients are multiplied by so that all of them together are no longer than they may be. */
static real clip(const real *gradients, size_t count, double longest) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (double)gradients[i] * (double)gradients[i];
    return (real)fmin(1.0, longest / (sqrt(sum) + 1e-12));
}

void adamw_update(const adamw *o, const adamw_rates *rates, real *parameters, const real *gradients) {
    const real scale = clip(gradients, o->count, rates->longest), tiny = (real)1e-8;
    for (size_t i = 0; i < o->count; i++) {
        const real g = scale * gradients[i];
        o->mean[i] += rates->new_mean * (g - o->mean[i]);
        o->square[i] += rates->new_square * (g * g - o->square[i]);
        parameters[i] = (i < o->decayed ? rates->keep : 1) * parameters[i] -
                        rates->step_size * o->mean[i] / (sqrt(o->square[i]) + tiny);
    }
}
