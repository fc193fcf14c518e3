/* SPDX-License-Identifier: Apache-2.0 */
#include "gradient_check.h"

#include "loss.h"
#include "../common/must.h"

#include <math.h>

enum { ROWS = 32, SAMPLES = 24 /* of each tensor */, TENSORS = 4 * LAYERS };

/* A network, its input and its parameters, for evaluating loss and gradients at will. */
typedef struct probe {
    network net;
    image_set images;
    double *parameters;
    void *master; /* the same, rounded to net.master_dtype */
    double logits[ROWS * CLASSES], d_logits[ROWS * CLASSES];
} probe;

static void probe_open(probe *p, eg_context *context, eg_dtype dtype, hidden_units hidden, uint64_t seed,
                       const digits *d, const int *order) {
    rng random = {seed};
    network_open(&p->net, context, dtype, hidden, ROWS);
    p->parameters = must_alloc(p->net.parameter_count, sizeof(double));
    p->master = must_alloc(p->net.parameter_count, eg_dtype_size(p->net.master_dtype));
    network_initialise(&p->net, &random, p->parameters);
    p->images = image_set_new(context, dtype, ROWS);
    image_set_fill(&p->images, d, order);
}

static void probe_close(probe *p) {
    image_set_free(&p->images);
    free(p->parameters);
    free(p->master);
    network_close(&p->net);
}

static double probe_loss(probe *p, bool training) {
    network *net = &p->net;
    must(eg_convert(p->master, net->master_dtype, p->parameters, EG_F64, net->parameter_count));
    network_set(net, p->master);
    network_forward(net, image_set_from(&p->images, 0), ROWS, training, p->logits);
    return softmax_cross_entropy(p->logits, p->images.label, ROWS, p->d_logits);
}

/* All gradients, in double precision; the caller frees them. */
static double *probe_gradients(probe *p) {
    network *net = &p->net;
    double *gradients = must_alloc(net->parameter_count, sizeof(double));
    void *raw = must_alloc(net->parameter_count, eg_dtype_size(net->master_dtype));
    probe_loss(p, true);
    network_backward(net, image_set_from(&p->images, 0), ROWS, p->d_logits, raw);
    must(eg_convert(gradients, EG_F64, raw, net->master_dtype, net->parameter_count));
    free(raw);
    return gradients;
}

/* dLoss/dparameter by central differences. */
static double finite_difference(probe *p, size_t index, double step) {
    double kept = p->parameters[index];
    p->parameters[index] = kept + step;
    double above = probe_loss(p, false);
    p->parameters[index] = kept - step;
    double below = probe_loss(p, false);
    p->parameters[index] = kept;
    return (above - below) / (2 * step);
}

/* Each layer has four tensors, weight, bias, weight_up and bias_up. Returns whether this one is there: the
 * last two are of gated units. */
static bool tensor_range(const network *net, int tensor, size_t *begin, size_t *end) {
    const dense *layer = &net->layer[tensor / 4];
    const size_t at[] = {layer->weight_at, layer->bias_at, layer->weight_up_at, layer->bias_up_at};
    const int64_t rows = tensor % 2 ? 1 : layer->in;
    *begin = at[tensor % 4];
    *end = *begin + (size_t)(rows * layer->out);
    return tensor % 4 < 2 || layer->units.gated;
}

/* The larger error; a NaN is the worst of all, and stays. */
static double worse(double a, double b) { return isnan(a) || a > b ? a : b; }

static double largest_in(const double *value, size_t begin, size_t end) {
    double largest = 0;
    for (size_t i = begin; i < end; i++) largest = fmax(largest, fabs(value[i]));
    return largest;
}

static void check_against_differences(probe *p, const double *gradients, double step, rng *random,
                                      gradient_report *report) {
    for (int tensor = 0; tensor < TENSORS; tensor++) {
        size_t begin, end;
        if (!tensor_range(&p->net, tensor, &begin, &end)) continue;
        double largest = largest_in(gradients, begin, end);
        for (int s = 0; s < SAMPLES; s++) {
            size_t index = begin + (size_t)rng_below(random, (int)(end - begin));
            double error = fabs(finite_difference(p, index, step) - gradients[index]) / largest;
            report->worst = worse(error, report->worst);
            report->checked++;
        }
    }
}

static double worst_between(const network *net, const double *a, const double *b) {
    double worst = 0;
    for (int tensor = 0; tensor < TENSORS; tensor++) {
        size_t begin, end;
        if (!tensor_range(net, tensor, &begin, &end)) continue;
        double largest = largest_in(a, begin, end);
        for (size_t i = begin; i < end; i++) {
            double error = fabs(a[i] - b[i]) / largest;
            worst = worse(error, worst);
        }
    }
    return worst;
}

/* Whether the backend computes in f64: asked without computing anything. */
static bool has_f64(eg_context *context) {
    double memory[3]; /* stands for the operands: a query only looks at which of them are there */
    size_t bytes;
    eg_layer layer = {.size = sizeof layer, .m = 1, .k = 1, .n = 1, .dtype = EG_F64};
    eg_forward_args args = {
        .size = sizeof args, .a.data = &memory[0], .b.data = &memory[1], .y.data = &memory[2]};
    eg_status status = eg_forward_workspace(context, &layer, &args, &bytes);
    if (status != EG_ERR_UNSUPPORTED) must(status);
    return status == EG_OK;
}

/* Unit roundoff of a storage type. */
static double roundoff(eg_dtype dtype) {
    switch (dtype) {
    case EG_F64:
        return 0x1p-53;
    case EG_F16:
        return 0x1p-11;
    case EG_BF16:
        return 0x1p-8;
    default:
        return 0x1p-24;
    }
}

gradient_report gradient_check(eg_context *context, eg_dtype training, hidden_units hidden, uint64_t seed,
                               const digits *d, const int *order) {
    /* The step balances what differences lose to rounding (~ roundoff / step) and to curvature (~ step^2). */
    bool f64 = has_f64(context);
    gradient_report report = {.dtype = f64 ? EG_F64 : EG_F32, .limit = f64 ? 1e-7 : 1e-3, .other = training};
    double step = f64 ? 0x1p-17 : 0x1p-7;
    rng random = {seed};
    probe exact, rounded;
    probe_open(&exact, context, report.dtype, hidden, seed, d, order);
    double *gradients = probe_gradients(&exact);
    check_against_differences(&exact, gradients, step, &random, &report);

    if (training != report.dtype) {
        probe_open(&rounded, context, training, hidden, seed, d, order);
        double *others = probe_gradients(&rounded);
        report.other_worst = worst_between(&exact.net, gradients, others);
        /* Every value passes through six roundings, forward and back, and through their sums. */
        report.other_limit = 16 * roundoff(training);
        free(others);
        probe_close(&rounded);
    }
    free(gradients);
    probe_close(&exact);
    return report;
}
