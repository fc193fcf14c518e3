/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* isatty */
#include "training.h"

#include "adamw.h"

#include "../common/clock.h"
#include "../common/must.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/* ---- Progress ------------------------------------------------------------------------------------ */

/* A bar on a terminal, ten lines elsewhere. */
static void show(int step, int steps, double loss, double tokens_per_second) {
    enum { WIDTH = 30 };
    const int every = steps < 10 ? 1 : steps / 10;
    const bool on_terminal = isatty(STDOUT_FILENO);
    if (!on_terminal && step % every != 0 && step != 1 && step != steps) return;
    if (on_terminal) {
        char cells[WIDTH + 1] = {0};
        const int filled = (int)((long)WIDTH * step / steps);
        memset(cells, '#', (size_t)filled);
        memset(cells + filled, '.', (size_t)(WIDTH - filled));
        printf("\r[%s] ", cells);
    }
    printf("step %d of %d, loss %.3f, %.0f tokens per second", step, steps, loss, tokens_per_second);
    fputs(on_terminal && step < steps ? "  " : "\n", stdout);
    fflush(stdout);
}

/* ---- Steps --------------------------------------------------------------------------------------- */

/* The rate rises over the first steps, when the moments are still poor, and falls to 0 along half a cosine.
 * The wider the model is, the less a weight may move. */
static double learning_rate(int width, int step, int steps) {
    const double highest = 3e-3 * 128 / width, rise = fmin(1, (step + 1) / 30.0);
    return highest * rise * 0.5 * (1 + cos(3.141592653589793 * step / steps));
}

/* Windows of the text, and what follows each letter. */
typedef struct batch {
    unsigned char *input, *target; /* [batch, time] */
    int rows;
} batch;

static batch batch_new(const model *m) {
    const int rows = m->size.time * m->size.batch;
    return (batch){must_alloc((size_t)rows, 1), must_alloc((size_t)rows, 1), rows};
}

static void batch_free(batch *b) {
    free(b->input);
    free(b->target);
}

training_result train(model *m, const text *t, int steps, rng *random) {
    training_result result = {.loss = must_alloc((size_t)steps, sizeof(double))};
    adamw optimizer = adamw_new(m->device, m->parameter.count, m->parameter.matrices);
    batch b = batch_new(m);
    const double start = now();
    for (int step = 0; step < steps; step++) {
        text_draw(t, 0, t->train, m->size.time, m->size.batch, random, b.input, b.target);
        model_forward(m, b.input, m->size.batch);
        result.loss[step] = model_loss(m, b.target, m->size.batch, true);
        model_backward(m, m->size.batch);
        adamw_step(&optimizer, m->parameter.all, m->gradient.all, learning_rate(m->size.width, step, steps));
        result.seconds = now() - start;
        show(step + 1, steps, result.loss[step], (step + 1.0) * b.rows / result.seconds);
    }
    must(eg_sync(m->device.context));
    result.seconds = now() - start;
    batch_free(&b);
    adamw_free(&optimizer);
    return result;
}

double test_loss(model *m, const text *t) {
    enum { BATCHES = 20 };
    rng random = {0};
    batch b = batch_new(m);
    double sum = 0;
    for (int i = 0; i < BATCHES; i++) {
        text_draw(t, t->train, t->count, m->size.time, m->size.batch, &random, b.input, b.target);
        model_forward(m, b.input, m->size.batch);
        sum += model_loss(m, b.target, m->size.batch, false);
    }
    batch_free(&b);
    return sum / BATCHES;
}
