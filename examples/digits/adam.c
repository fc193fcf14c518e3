/* SPDX-License-Identifier: Apache-2.0 */
#include "adam.h"

#include "../common/must.h"

#include <math.h>

adam adam_new(eg_dtype dtype, size_t count) {
    size_t size = eg_dtype_size(dtype);
    return (adam){
        .dtype = dtype, .count = count, .mean = must_alloc(count, size), .square = must_alloc(count, size)};
}

void adam_free(adam *optimiser) {
    free(optimiser->mean);
    free(optimiser->square);
    *optimiser = (adam){0};
}

/* One text for both types. `rate` has the corrections for the moments' start at 0 in it already. */
#define ADAM_UPDATE(name, real, root)                                                                        \
    static void name(real *parameter, const real *gradient, real *mean, real *square, size_t count,          \
                     real scale, real rate) {                                                                \
        const real keep_mean = (real)0.9, keep_square = (real)0.999, tiny = (real)1e-8;                      \
        for (size_t i = 0; i < count; i++) {                                                                 \
            real g = scale * gradient[i];                                                                    \
            mean[i] += (1 - keep_mean) * (g - mean[i]);                                                      \
            square[i] += (1 - keep_square) * (g * g - square[i]);                                            \
            parameter[i] -= rate * mean[i] / (root(square[i]) + tiny);                                       \
        }                                                                                                    \
    }

ADAM_UPDATE(update_f32, float, sqrtf)
ADAM_UPDATE(update_f64, double, sqrt)

void adam_step(adam *o, void *parameters, const void *gradients, double scale, double rate) {
    o->step++;
    rate *= sqrt(1 - pow(0.999, o->step)) / (1 - pow(0.9, o->step));
    if (o->dtype == EG_F64)
        update_f64(parameters, gradients, o->mean, o->square, o->count, scale, rate);
    else
        update_f32(parameters, gradients, o->mean, o->square, o->count, (float)scale, (float)rate);
}
