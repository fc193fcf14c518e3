/* SPDX-License-Identifier: Apache-2.0 */
#include "gradient_check.h"

#include "adamw.h"
#include "model.h"

#include "../common/must.h"

#include <math.h>

enum { TIME = 8, BATCH = 3, ROWS = TIME * BATCH, LETTERS = 11, SAMPLES = 24 /* of each tensor */ };

/* The step balances what differences lose to rounding (~ roundoff / step) and to curvature (~ step²). */
static const double step = sizeof(real) == 8 ? 0x1p-17 : 0x1p-7, limit = sizeof(real) == 8 ? 1e-7 : 2e-3;

typedef struct probe {
    model model;
    real *parameter, *gradient; /* copies on the host */
    unsigned char input[ROWS], target[ROWS];
} probe;

static void probe_open(probe *p, device on, rng *random, int experts) {
    const model_size tiny = {.blocks = 2,
                             .width = 16,
                             .heads = 2,
                             .hidden = 24,
                             .experts = experts,
                             .time = TIME,
                             .batch = BATCH,
                             .letters = LETTERS};
    model_open(&p->model, on, tiny);
    const size_t count = p->model.parameter.count;
    p->parameter = must_alloc(count, sizeof(real));
    p->gradient = must_alloc(count, sizeof(real));
    const weights w = weights_place(&tiny, p->parameter);
    weights_initialise(&w, &tiny, random);
    /* Gains of 1 would hide a factor that is missing. */
    for (size_t i = w.matrices; i < w.count; i++) w.all[i] = (real)(0.5 + rng_uniform(random));
    model_write(&p->model, p->model.parameter.all, p->parameter, count);
    for (int i = 0; i < ROWS; i++) {
        p->input[i] = (unsigned char)rng_below(random, LETTERS);
        p->target[i] = (unsigned char)rng_below(random, LETTERS);
    }
}

static void probe_close(probe *p) {
    model_close(&p->model);
    free(p->parameter);
    free(p->gradient);
}

static double loss_of(probe *p) {
    model_forward(&p->model, p->input, BATCH);
    return model_loss(&p->model, p->target, BATCH, false);
}

static void find_gradient(probe *p) {
    model_forward(&p->model, p->input, BATCH);
    model_loss(&p->model, p->target, BATCH, true);
    model_backward(&p->model, BATCH);
    model_read(&p->model, p->gradient, p->model.gradient.all, p->model.gradient.count);
}

static double loss_with(probe *p, size_t index, real value) {
    model_write(&p->model, p->model.parameter.all + index, &value, 1);
    return loss_of(p);
}

/* dLoss/dparameter by central differences. */
static double finite_difference(probe *p, size_t index) {
    const real *kept = p->parameter + index;
    const double above = loss_with(p, index, *kept + (real)step);
    const double below = loss_with(p, index, *kept - (real)step);
    model_write(&p->model, p->model.parameter.all + index, kept, 1);
    return (above - below) / (2 * step);
}

/* The worst error of a tensor's gradient, relative to its largest element. A NaN is the worst of all. */
static double worst_of(probe *p, const tensor *t, rng *random) {
    double largest = 0, worst = 0;
    for (size_t i = t->begin; i < t->end; i++) largest = fmax(largest, fabs((double)p->gradient[i]));
    for (int s = 0; s < SAMPLES; s++) {
        const size_t index = t->begin + (size_t)rng_below(random, (int)(t->end - t->begin));
        const double error = fabs(finite_difference(p, index) - (double)p->gradient[index]) / largest;
        if (isnan(error)) return error;
        worst = fmax(worst, error);
    }
    return worst;
}

/* Gradients would be right in a model that looks ahead, or into another sequence, too. So one letter is
 * changed: all that it may change is what comes after it in its own sequence. But where it goes to another
 * expert, others have more company there, or less, and may be rounded otherwise. */
static bool sees_only_its_past(probe *p) {
    enum { SEQUENCE = 1, CHANGED = SEQUENCE * TIME + TIME / 2 };
    const double rounding = p->model.size.experts > 0 ? 100 * step * step : 0;
    bool good = true;
    real before[ROWS * LETTERS], after[ROWS * LETTERS];
    loss_of(p);
    model_read(&p->model, before, p->model.logits, ROWS * LETTERS);
    p->input[CHANGED] = (unsigned char)((p->input[CHANGED] + 1) % LETTERS);
    loss_of(p);
    model_read(&p->model, after, p->model.logits, ROWS * LETTERS);
    for (int r = 0; r < ROWS; r++) {
        bool same = true;
        for (int i = r * LETTERS; i < (r + 1) * LETTERS; i++)
            same = same && fabs((double)before[i] - (double)after[i]) <= rounding;
        good = good && same == (r < CHANGED || r / TIME != SEQUENCE);
    }
    printf("a letter changes what comes after it in its sequence, and nothing else%s\n",
           good ? "" : ": WRONG");
    return good;
}

bool gradient_check(device on, uint64_t seed, int experts) {
    rng random = {seed};
    probe p;
    bool good = true;
    probe_open(&p, on, &random, experts);
    find_gradient(&p);
    printf("%-16s worst relative error (limit %.0e)\n", "tensor", limit);
    for (int i = 0; i < p.model.parameter.tensors; i++) {
        const tensor *t = &p.model.parameter.list[i];
        const double worst = worst_of(&p, t, &random);
        const bool right = worst <= limit;
        printf("%-16s %.1e%s\n", t->name, worst, right ? "" : "  WRONG");
        good = good && right;
    }
    good = sees_only_its_past(&p) && good;
    probe_close(&p);
    return good;
}

/* ---- Two devices --------------------------------------------------------------------------------- */

/* The largest difference of two tensors, relative to the largest element. */
static double difference(const real *one, const real *other, size_t begin, size_t end) {
    double largest = 0, worst = 0;
    for (size_t i = begin; i < end; i++) {
        const double error = fabs((double)one[i] - (double)other[i]);
        if (isnan(error)) return error;
        largest = fmax(largest, fabs((double)one[i]));
        worst = fmax(worst, error);
    }
    return largest > 0 ? worst / largest : worst;
}

/* Two steps from the same gradients; p->parameter is then what they made. */
static void take_steps(probe *p, const real *gradient) {
    model *m = &p->model;
    adamw optimizer = adamw_new(m->device, m->parameter.count, m->parameter.matrices);
    model_write(m, m->gradient.all, gradient, m->gradient.count);
    for (int i = 0; i < 2; i++) adamw_step(&optimizer, m->parameter.all, m->gradient.all, 0.125);
    model_read(m, p->parameter, m->parameter.all, m->parameter.count);
    adamw_free(&optimizer);
}

static bool report(const char *what, double worst, double allowed) {
    const bool right = worst <= allowed;
    printf("%-16s %.1e%s\n", what, worst, right ? "" : "  WRONG");
    return right;
}

bool compare_devices(device one, device other, uint64_t seed, int experts) {
    /* Sums are rounded in another order; a step rounds a handful of times. */
    const double rounding = sizeof(real) == 8 ? 0x1p-52 : 0x1p-23, allowed = 256 * rounding;
    probe p, q;
    rng random = {seed}, again = {seed};
    bool good = true;
    probe_open(&p, one, &random, experts);
    probe_open(&q, other, &again, experts);
    find_gradient(&p);
    find_gradient(&q);
    printf("%-16s largest difference between the devices (limit %.0e)\n", "tensor", allowed);
    for (int i = 0; i < p.model.parameter.tensors; i++) {
        const tensor *t = &p.model.parameter.list[i];
        good = report(t->name, difference(p.gradient, q.gradient, t->begin, t->end), allowed) && good;
    }
    take_steps(&p, p.gradient);
    take_steps(&q, p.gradient);
    const size_t count = p.model.parameter.count;
    good = report("two steps", difference(p.parameter, q.parameter, 0, count), 8 * rounding) && good;
    probe_close(&p);
    probe_close(&q);
    return good;
}
