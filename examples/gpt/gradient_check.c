/* SPDX-License-Identifier: Apache-2.0 */
#include "gradient_check.h"

#include "loss.h"
#include "model.h"

#include "../common/must.h"

#include <math.h>
#include <string.h>

enum { TIME = 8, BATCH = 3, ROWS = TIME * BATCH, LETTERS = 11, SAMPLES = 24 /* of each tensor */ };

/* The step balances what differences lose to rounding (~ roundoff / step) and to curvature (~ step²). */
static const double step = sizeof(real) == 8 ? 0x1p-17 : 0x1p-7, limit = sizeof(real) == 8 ? 1e-7 : 2e-3;

typedef struct probe {
    model model;
    unsigned char input[ROWS], target[ROWS];
} probe;

static void probe_open(probe *p, eg_context *context, rng *random, int experts) {
    const model_size tiny = {.blocks = 2,
                             .width = 16,
                             .heads = 2,
                             .hidden = 24,
                             .experts = experts,
                             .time = TIME,
                             .batch = BATCH,
                             .letters = LETTERS};
    model_open(&p->model, context, tiny);
    weights_initialise(&p->model.parameter, &tiny, random);
    /* Gains of 1 would hide a factor that is missing. */
    weights *w = &p->model.parameter;
    for (size_t i = w->matrices; i < w->count; i++) w->all[i] = (real)(0.5 + rng_uniform(random));
    for (int i = 0; i < ROWS; i++) {
        p->input[i] = (unsigned char)rng_below(random, LETTERS);
        p->target[i] = (unsigned char)rng_below(random, LETTERS);
    }
}

static double loss_of(probe *p, real *d_logits) {
    model_forward(&p->model, p->input, BATCH);
    return cross_entropy(p->model.logits, p->target, ROWS, LETTERS, d_logits);
}

/* dLoss/dparameter by central differences. */
static double finite_difference(probe *p, size_t index) {
    real *parameter = p->model.parameter.all + index;
    const real kept = *parameter;
    *parameter = kept + (real)step;
    const double above = loss_of(p, NULL);
    *parameter = kept - (real)step;
    const double below = loss_of(p, NULL);
    *parameter = kept;
    return (above - below) / (2 * step);
}

/* The worst error of a tensor's gradient, relative to its largest element. A NaN is the worst of all. */
static double worst_of(probe *p, const tensor *t, rng *random) {
    double largest = 0, worst = 0;
    for (size_t i = t->begin; i < t->end; i++)
        largest = fmax(largest, fabs((double)p->model.gradient.all[i]));
    for (int s = 0; s < SAMPLES; s++) {
        const size_t index = t->begin + (size_t)rng_below(random, (int)(t->end - t->begin));
        const double error =
            fabs(finite_difference(p, index) - (double)p->model.gradient.all[index]) / largest;
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
    real before[ROWS * LETTERS];
    loss_of(p, NULL);
    memcpy(before, p->model.logits, sizeof before);
    p->input[CHANGED] = (unsigned char)((p->input[CHANGED] + 1) % LETTERS);
    loss_of(p, NULL);
    for (int r = 0; r < ROWS; r++) {
        bool same = true;
        for (int i = r * LETTERS; i < (r + 1) * LETTERS; i++)
            same = same && fabs((double)before[i] - (double)p->model.logits[i]) <= rounding;
        good = good && same == (r < CHANGED || r / TIME != SEQUENCE);
    }
    printf("a letter changes what comes after it in its sequence, and nothing else%s\n",
           good ? "" : ": WRONG");
    return good;
}

bool gradient_check(eg_context *context, uint64_t seed, int experts) {
    rng random = {seed};
    probe p;
    bool good = true;
    probe_open(&p, context, &random, experts);
    loss_of(&p, p.model.logits);
    model_backward(&p.model, p.input, BATCH);
    printf("%-16s worst relative error (limit %.0e)\n", "tensor", limit);
    for (int i = 0; i < p.model.parameter.tensors; i++) {
        const tensor *t = &p.model.parameter.list[i];
        const double worst = worst_of(&p, t, &random);
        const bool right = worst <= limit;
        printf("%-16s %.1e%s\n", t->name, worst, right ? "" : "  WRONG");
        good = good && right;
    }
    good = sees_only_its_past(&p) && good;
    model_close(&p.model);
    return good;
}
