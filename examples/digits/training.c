/* SPDX-License-Identifier: Apache-2.0 */
#include "training.h"

#include "adam.h"
#include "display.h"
#include "loss.h"

#include "../common/clock.h"
#include "../common/must.h"

#include <math.h>

/* What a step works with, on the host. */
typedef struct trainer {
    network *net;
    adam optimiser;
    void *master;    /* parameters, net->master_dtype */
    void *gradients; /* the same */
    double logits[BATCH * CLASSES], d_logits[BATCH * CLASSES];
    double (*sum)(double x); /* over the processes of net->comm */
} trainer;

static void trainer_open(trainer *t, network *net, rng *random) {
    *t = (trainer){.net = net, .optimiser = adam_new(net->master_dtype, net->parameter_count)};
    double *first = must_alloc(net->parameter_count, sizeof(double));
    t->master = must_alloc(net->parameter_count, eg_dtype_size(net->master_dtype));
    t->gradients = must_alloc(net->parameter_count, eg_dtype_size(net->master_dtype));
    network_initialise(net, random, first);
    must(eg_convert(t->master, net->master_dtype, first, EG_F64, net->parameter_count));
    network_set(net, t->master);
    free(first);
}

static void trainer_close(trainer *t) {
    adam_free(&t->optimiser);
    free(t->master);
    free(t->gradients);
}

/* One step on the images first .. first + rows - 1; returns their mean loss. Of several processes each takes
 * its part of the images, and all get the gradients of the whole. */
static double train_step(trainer *t, const image_set *images, int first, int rows, double rate) {
    const eg_comm *comm = t->net->comm;
    int mine = comm ? rows * comm->rank / comm->ranks : 0;
    int count = (comm ? rows * (comm->rank + 1) / comm->ranks : rows) - mine;
    eg_matrix input = image_set_from(images, first + mine);
    network_forward(t->net, input, count, true, t->logits);
    double loss = softmax_cross_entropy(t->logits, images->label + first + mine, count, t->d_logits);
    if (comm) loss = t->sum(loss);
    network_backward(t->net, input, count, t->d_logits, t->gradients);
    adam_step(&t->optimiser, t->master, t->gradients, 1.0 / rows, rate);
    network_set(t->net, t->master);
    return loss / rows;
}

/* The rate falls from 2e-3 to 0 along half a cosine: the last steps converge instead of wandering. */
static double learning_rate(int step, int steps) {
    return 2e-3 * 0.5 * (1 + cos(3.141592653589793 * step / steps));
}

training_result train(network *net, eg_context *context, const training_plan *plan, const digits *d,
                      int *order, int count, const char *title) {
    rng random = {plan->seed};
    trainer t;
    network_open(net, context, plan->dtype, plan->hidden, BATCH);
    net->comm = plan->comm;
    trainer_open(&t, net, &random);
    t.sum = plan->sum;
    image_set images = image_set_new(context, plan->dtype, count);

    int step = 0, steps = plan->epochs * ((count + BATCH - 1) / BATCH);
    training_result result = {.loss = must_alloc((size_t)steps, sizeof(double)), .steps = steps};
    progress bar = progress_begin(title, plan->epochs);
    double start = now();
    for (int epoch = 0; epoch < plan->epochs; epoch++) {
        double sum = 0;
        rng_shuffle(&random, order, count);
        image_set_fill(&images, d, order);
        for (int first = 0; first < count; first += BATCH, step++) {
            int rows = count - first < BATCH ? count - first : BATCH; /* the last batch may be smaller */
            result.loss[step] = train_step(&t, &images, first, rows, learning_rate(step, steps));
            sum += result.loss[step] * rows;
        }
        progress_update(&bar, epoch + 1, sum / count);
    }
    result.seconds = now() - start;
    progress_end(&bar);

    image_set_free(&images);
    trainer_close(&t);
    return result;
}

int evaluate(network *net, const digits *d, const int *order, int count, guess *wrong) {
    image_set images = image_set_new(net->context, net->dtype, count);
    double logits[BATCH * CLASSES];
    int right = 0;
    image_set_fill(&images, d, order);
    network_pack(net);
    for (int first = 0; first < count; first += BATCH) {
        int rows = count - first < BATCH ? count - first : BATCH;
        network_forward(net, image_set_from(&images, first), rows, false, logits);
        for (int r = 0; r < rows; r++) {
            guess g = {.index = order[first + r]};
            g.said = most_likely(logits + (size_t)r * CLASSES, &g.probability);
            if (g.said == d->label[g.index])
                right++;
            else if (wrong)
                *wrong++ = g;
        }
    }
    image_set_free(&images);
    return right;
}
