/* SPDX-License-Identifier: Apache-2.0 */
/* One training session of the digits example, a few steps at a time: what the page calls. The network, the
 * loss, the optimiser and the gradient check are the example's own. Errors leave through the example's
 * must(): the message goes to stderr and exit() ends the instance; the page shows it. */
#include <stdlib.h>
#include <string.h>

#include "adam.h"
#include "data.h"
#include "gradient_check.h"
#include "loss.h"
#include "network.h"
#include "page.h"
#include "training.h"

#include "../../examples/common/must.h"

enum { TEST = 360 };

static struct session {
    eg_context *context;
    digits data;
    int *order; /* the digits shuffled: the first train_count to learn from, then TEST */
    int train_count;
    uint64_t seed;
    hidden_units hidden;

    bool open; /* what follows is there: */
    rng random;
    network net;
    adam optimiser;
    float *master, *gradients;
    image_set images; /* the digits to learn from, in this epoch's order */
    int step, steps, first;
    double logits[BATCH * CLASSES], d_logits[BATCH * CLASSES];
} s;

static double reply[64]; /* what several numbers are handed to the page in */
static guess wrong[TEST];
static char text[4096];

/* ---- Opening ------------------------------------------------------------------------------------ */

/* The shuffled split of the example: the same digits are held out for every activation. */
static void shuffle_digits(void) {
    rng random = {s.seed};
    for (int i = 0; i < s.data.count; i++) s.order[i] = i;
    rng_shuffle(&random, s.order, s.data.count);
}

WEB_EXPORT(web_open) void web_open(int backend) {
    eg_open_info info = {.size = sizeof info, .backend = (eg_backend)backend, .threads = 1};
    s.data = digits_load("the digits");
    s.order = must_alloc((size_t)s.data.count, sizeof *s.order);
    s.train_count = s.data.count - TEST;
    must(eg_open(&info, &s.context));
}

static void stop(void) {
    if (!s.open) return;
    image_set_free(&s.images);
    adam_free(&s.optimiser);
    free(s.master);
    free(s.gradients);
    network_close(&s.net);
    s.open = false;
}

/* Begins anew: fresh weights, step 0 of epochs * steps an epoch, which it returns. */
WEB_EXPORT(web_begin) int web_begin(int activation, int seed, int epochs) {
    stop();
    s.seed = (uint64_t)seed;
    s.hidden.activation = (eg_activation)activation;
    shuffle_digits();
    s.random = (rng){s.seed};
    network_open(&s.net, s.context, EG_F32, s.hidden, BATCH);
    const size_t count = s.net.parameter_count;
    double *initial = must_alloc(count, sizeof(double));
    s.master = must_alloc(count, sizeof(float));
    s.gradients = must_alloc(count, sizeof(float));
    network_initialise(&s.net, &s.random, initial);
    must(eg_convert(s.master, EG_F32, initial, EG_F64, count));
    free(initial);
    network_set(&s.net, s.master);
    s.optimiser = adam_new(EG_F32, count);
    s.images = image_set_new(s.context, EG_F32, s.train_count);
    s.step = s.first = 0;
    s.steps = epochs * ((s.train_count + BATCH - 1) / BATCH);
    s.open = true;
    return s.steps;
}

/* ---- Training ----------------------------------------------------------------------------------- */

/* As in the example: half a cosine from 2e-3 to 0. */
static double learning_rate(int step, int steps) {
    return 2e-3 * 0.5 * (1 + cos(3.141592653589793 * step / steps));
}

static double one_step(void) {
    if (s.first == 0) {
        rng_shuffle(&s.random, s.order, s.train_count);
        image_set_fill(&s.images, &s.data, s.order);
    }
    const int left = s.train_count - s.first, rows = left < BATCH ? left : BATCH;
    const eg_matrix input = image_set_from(&s.images, s.first);
    network_forward(&s.net, input, rows, true, s.logits);
    const double loss = softmax_cross_entropy(s.logits, s.images.label + s.first, rows, s.d_logits);
    network_backward(&s.net, input, rows, s.d_logits, s.gradients);
    adam_step(&s.optimiser, s.master, s.gradients, 1.0 / rows, learning_rate(s.step, s.steps));
    network_set(&s.net, s.master);
    s.first = left > BATCH ? s.first + BATCH : 0;
    s.step++;
    return loss / rows;
}

/* Takes up to `count` steps (64 at most) and returns how many; web_reply then holds the loss of each. */
WEB_EXPORT(web_train) int web_train(int count) {
    int taken = 0;
    while (taken < count && taken < 64 && s.step < s.steps) reply[taken++] = one_step();
    return taken;
}

WEB_EXPORT(web_reply) const double *web_reply(void) { return reply; }

/* The master copy of the first layer's weights, [64, 256]. */
WEB_EXPORT(web_weights) const float *web_weights(void) { return s.master; }

/* ---- Asking the network ------------------------------------------------------------------------- */

/* How many of the TEST digits it reads rightly. Those it does not are listed in web_wrong. */
WEB_EXPORT(web_evaluate) int web_evaluate(void) {
    return evaluate(&s.net, &s.data, s.order + s.train_count, TEST, wrong);
}

/* Number `i` of the misread digits: its pixels; web_reply holds label, what was read, its probability. */
WEB_EXPORT(web_wrong) const float *web_wrong(int i) {
    reply[0] = s.data.label[wrong[i].index];
    reply[1] = wrong[i].said;
    reply[2] = wrong[i].probability;
    return s.data.pixel[wrong[i].index];
}

/* The page writes the 64 pixels of a drawing here, 0..1. */
static float drawing[1][PIXELS];
WEB_EXPORT(web_drawing) float *web_drawing(void) { return drawing[0]; }

/* Reads the drawing: returns the digit; web_reply holds the probability of each. */
WEB_EXPORT(web_read) int web_read(void) {
    unsigned char label[1] = {0};
    const int order[1] = {0};
    const digits one = {.count = 1, .pixel = drawing, .label = label};
    image_set image = image_set_new(s.context, EG_F32, 1);
    double logits[CLASSES], sum = 0, top;
    image_set_fill(&image, &one, order);
    network_forward(&s.net, image_set_from(&image, 0), 1, false, logits);
    image_set_free(&image);
    const int best = most_likely(logits, &top);
    for (int c = 0; c < CLASSES; c++) sum += reply[c] = exp(logits[c] - logits[best]);
    for (int c = 0; c < CLASSES; c++) reply[c] /= sum;
    return best;
}

/* ---- Looking at the library --------------------------------------------------------------------- */

/* Compares gradients with finite differences on fresh weights: returns whether all is within its limit;
 * web_reply holds count, worst error and limit, then the same in the training's f32 (0 if it is the same). */
WEB_EXPORT(web_check) int web_check(void) {
    const gradient_report r = gradient_check(s.context, EG_F32, s.hidden, s.seed, &s.data, s.order);
    const double values[] = {r.checked, r.worst, r.limit, r.other_worst, r.other_limit};
    memcpy(reply, values, sizeof values);
    reply[5] = (double)eg_dtype_size(r.dtype) * 8;
    return r.worst <= r.limit && (r.other == r.dtype || r.other_worst <= r.other_limit);
}

WEB_EXPORT(web_device) const char *web_device(void) {
    eg_device_info info = {.size = sizeof info};
    must(eg_get_device_info(s.context, &info));
    snprintf(text, sizeof text, "%s", info.name);
    return text;
}

/* What the library would run for the backward pass of the middle layer, 256 to 128. */
WEB_EXPORT(web_plan) const char *web_plan(void) {
    const dense *layer = &s.net.layer[1], *below = &s.net.layer[0];
    const bool from_y = below->pre == NULL;
    const eg_layer description = {.size = sizeof description, .m = BATCH, .k = layer->in, .n = layer->out};
    const eg_backward_args args = {.size = sizeof args,
                                   .a.data = below->y,
                                   .b.data = s.net.parameters,
                                   .grad.data = layer->grad_pre,
                                   .d_a.data = below->grad_pre,
                                   .d_b.data = s.net.gradients,
                                   .chain = {.saved.data = from_y ? below->y : below->pre,
                                             .source = from_y ? EG_SOURCE_Y : EG_SOURCE_PRE,
                                             .activation = below->units.activation,
                                             .d_bias.data = s.net.gradients}};
    must(eg_backward_plan(s.context, &description, &args, text, sizeof text));
    return text;
}

/* The name of activation `i`, NULL past the last. */
WEB_EXPORT(web_activation) const char *web_activation(int i) { return eg_activation_name((eg_activation)i); }
WEB_EXPORT(web_version) const char *web_version(void) { return eg_version(); }
