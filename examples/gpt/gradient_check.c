/* SPDX-License-Identifier: Apache-2.0 */
#include "gradient_check.h"

#include "adamw.h"
#include "model.h"

#include "../common/must.h"

#include <math.h>
#include <string.h>

enum { TIME = 8, BATCH = 3, ROWS = TIME * BATCH, LETTERS = 11, BLOCKS = 2 };

/* Of each tensor so many numbers are checked, out of at most so many that are drawn. */
enum { SAMPLES = 24, DRAWS = 8 * SAMPLES };

/* A difference loses to curvature (~ step⁴) and to rounding (~ roundoff / step). The steps are so short that
 * curvature does not count: the embedding, whose numbers are small, would be the first to show it. */
static const double roundoff = sizeof(real) == 8 ? 0x1p-53 : 0x1p-24;
static const double step = sizeof(real) == 8 ? 0x1p-14 : 0x1p-8;

/* What is left is the rounding of the loss, as large for a parameter of a small gradient as for any other. So
 * the limit is not relative: 16 roundoffs in f32, and 128 in f64, where the loss is summed in its own type,
 * divided by the step. The worst of 60 seeds was a quarter of it. A gradient has to stand out from it. */
static const double limit = sizeof(real) == 8 ? 0x1p-32 : 0x1p-12;
static const double least = sizeof(real) == 8 ? 0x1p-28 : 0x1p-8;

typedef struct probe {
    model model;
    real *parameter, *gradient; /* copies on the host */
    real *chance;               /* [ROWS, experts]: of a block's router, likewise */
    unsigned char input[ROWS], target[ROWS];
} probe;

/* The expert that each letter goes to. */
typedef struct choice {
    int expert[BLOCKS * ROWS];
} choice;

static void draw_letters(probe *p, rng *random) {
    for (int i = 0; i < ROWS; i++) {
        p->input[i] = (unsigned char)rng_below(random, LETTERS);
        p->target[i] = (unsigned char)rng_below(random, LETTERS);
    }
}

static void probe_open(probe *p, device on, rng *random, int experts) {
    const model_size tiny = {.blocks = BLOCKS,
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
    p->chance = must_alloc((size_t)ROWS * (size_t)experts, sizeof(real));
    const weights w = weights_place(&tiny, p->parameter);
    weights_initialise(&w, &tiny, random);
    /* Gains of 1 would hide a factor that is missing. */
    for (size_t i = w.matrices; i < w.count; i++) w.all[i] = (real)(0.5 + rng_uniform(random));
    model_write(&p->model, p->model.parameter.all, p->parameter, count);
    draw_letters(p, random);
}

static void probe_close(probe *p) {
    model_close(&p->model);
    free(p->parameter);
    free(p->gradient);
    free(p->chance);
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

/* The place of the largest chance, and the lead that it has over the next one, relative to itself. */
static int favourite(const real *chance, int experts, double *lead) {
    int first = 0;
    double second = 0;
    for (int i = 1; i < experts; i++) first = chance[i] > chance[first] ? i : first;
    for (int i = 0; i < experts; i++) second = i != first ? fmax(second, (double)chance[i]) : second;
    *lead = 1 - second / (double)chance[first];
    return first;
}

/* The choice of the last forward pass; returns the least lead of an expert. */
static double read_choice(const probe *p, choice *made) {
    const int experts = p->model.size.experts;
    double smallest = 1, lead;
    for (int i = 0; i < BLOCKS * ROWS && experts > 0; i++) {
        if (i % ROWS == 0)
            model_read(&p->model, p->chance, p->model.block[i / ROWS].routing.p,
                       (size_t)ROWS * (size_t)experts);
        made->expert[i] = favourite(p->chance + (size_t)(i % ROWS * experts), experts, &lead);
        smallest = fmin(smallest, lead);
    }
    return smallest;
}

/* Where a letter goes to another expert the loss has a jump, and no quotient across it. So letters are drawn
 * that prefer their experts clearly, if that is possible. */
static void draw_clear_letters(probe *p, rng *random) {
    choice unused;
    for (int i = 0; i < 100; i++) {
        loss_of(p);
        if (read_choice(p, &unused) >= 8 * step) return;
        draw_letters(p, random);
    }
}

/* dLoss/dparameter by central differences of two widths, whose errors in step² cancel. False: a letter goes
 * to another expert. */
static bool finite_difference(probe *p, const choice *at_gradient, size_t index, double *quotient) {
    static const double weight[] = {1, -8, 8, -1}, distance[] = {-2, -1, 1, 2};
    const real *kept = p->parameter + index;
    choice there = *at_gradient; /* without experts it stays this one */
    bool same = true;
    *quotient = 0;
    for (int i = 0; i < 4 && same; i++) {
        const real moved = *kept + (real)(distance[i] * step);
        model_write(&p->model, p->model.parameter.all + index, &moved, 1);
        *quotient += weight[i] * loss_of(p) / (12 * step);
        read_choice(p, &there);
        same = memcmp(&there, at_gradient, sizeof there) == 0;
    }
    model_write(&p->model, p->model.parameter.all + index, kept, 1);
    return same;
}

typedef struct verdict {
    double largest, worst; /* of the gradient; error of it, and a NaN is the worst of all */
    int checked, left_out;
} verdict;

/* A number that has no quotient is left out, and another one drawn. */
static verdict check_tensor(probe *p, const choice *at_gradient, const tensor *t, rng *random) {
    verdict v = {0};
    for (size_t i = t->begin; i < t->end; i++) v.largest = fmax(v.largest, fabs((double)p->gradient[i]));
    while (v.checked < SAMPLES && v.checked + v.left_out < DRAWS) {
        const size_t index = t->begin + (size_t)rng_below(random, (int)(t->end - t->begin));
        double quotient;
        if (!finite_difference(p, at_gradient, index, &quotient)) {
            v.left_out++;
            continue;
        }
        const double error = fabs(quotient - (double)p->gradient[index]);
        v.worst = isnan(v.worst) || error <= v.worst ? v.worst : error;
        v.checked++;
    }
    return v;
}

static bool print_verdict(const char *name, verdict v) {
    const bool right = v.worst <= limit, enough = v.checked == SAMPLES, large = v.largest >= least;
    printf("%-16s %.1e  %.1e", name, v.largest, v.worst);
    if (v.left_out > 0) printf("  %d left out", v.left_out);
    puts(!right ? "  WRONG" : !enough ? ", TOO MANY" : !large ? "  TOO SMALL to be seen" : "");
    return right && enough && large;
}

static bool check_tensors(probe *p, rng *random) {
    choice at_gradient = {0};
    bool good = true;
    draw_clear_letters(p, random);
    find_gradient(p);
    loss_of(p);
    read_choice(p, &at_gradient);
    printf("%-16s largest  worst error (limit %.0e)\n", "tensor", limit);
    for (int i = 0; i < p->model.parameter.tensors; i++) {
        const tensor *t = &p->model.parameter.list[i];
        good = print_verdict(t->name, check_tensor(p, &at_gradient, t, random)) && good;
    }
    return good;
}

/* Gradients would be right in a model that looks ahead, or into another sequence, too. So one letter is
 * changed: all that it may change is what comes after it in its own sequence. But where it goes to another
 * expert, others have more company there, or less, and may be rounded otherwise. */
static bool sees_only_its_past(probe *p) {
    enum { SEQUENCE = 1, CHANGED = SEQUENCE * TIME + TIME / 2 };
    const double rounding = p->model.size.experts > 0 ? 256 * roundoff : 0;
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
    probe_open(&p, on, &random, experts);
    bool good = check_tensors(&p, &random);
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
