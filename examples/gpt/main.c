/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a small language model with epigrad, and lets it write. Start reading at model.c. */
#include "gradient_check.h"
#include "model.h"
#include "options.h"
#include "sample.h"
#include "text.h"
#include "training.h"

#include "../common/curve.h"
#include "../common/must.h"

static eg_context *open_cpu(const options *o) {
    const eg_open_info info = {.size = sizeof info, .threads = o->threads};
    eg_device_info device = {.size = sizeof device};
    eg_context *context;
    must(eg_open(&info, &context));
    must(eg_get_device_info(context, &device));
    printf("epigrad %s on %s, %d thread%s\n", eg_version(), device.name, device.threads,
           device.threads == 1 ? "" : "s");
    return context;
}

static int check(eg_context *cpu, const options *o) {
    if (gradient_check(cpu, o->seed, o->experts)) return EXIT_SUCCESS;
    fprintf(stderr, EXAMPLE ": the model is wrong\n");
    return EXIT_FAILURE;
}

/* A model that has learnt nothing at all is a fault. */
static int verdict(double first, double test) {
    if (test < first) return EXIT_SUCCESS;
    fprintf(stderr, EXAMPLE ": the loss was %.3f at first and is %.3f now, expected less\n", first, test);
    return EXIT_FAILURE;
}

static int train_and_write(eg_context *cpu, const options *o) {
    model_size size = {
        .blocks = 4, .width = 128, .heads = 4, .hidden = 352, .experts = o->experts, .time = 64, .batch = 16};
    text t = text_load(o->text, (size_t)size.time + 1);
    size.letters = t.letters;
    model m;
    rng random = {o->seed};
    model_open(&m, cpu, size);
    weights_initialise(&m.parameter, &size, &random);
    printf("a model of %d blocks, width %d, %d heads, %s: %zu parameters\n", size.blocks, size.width,
           size.heads, eg_dtype_name(REAL_DTYPE), m.parameter.count);
    if (size.experts > 0) printf("a letter goes through one of %d experts in each block\n", size.experts);
    printf("%zu letters of text, %d different ones; %zu to learn from\n\n", t.count, t.letters, t.train);

    const double first = test_loss(&m, &t);
    training_result result = train(&m, &t, o->steps, &random);
    const double last = test_loss(&m, &t);
    draw_loss(result.loss, o->steps);
    printf(
        "on text it has not seen: loss %.3f, %.3f before the first step; %.0f tokens per second, %.1f s\n\n",
        last, first, (double)o->steps * size.time * size.batch / result.seconds, result.seconds);
    write_sample(&m, &t, o->letters, &random);

    free(result.loss);
    model_close(&m);
    text_free(&t);
    return verdict(first, last);
}

int main(int argc, char **argv) {
    const options o = options_parse(argc, argv);
    eg_context *cpu = open_cpu(&o);
    const int status = o.check ? check(cpu, &o) : train_and_write(cpu, &o);
    eg_close(cpu);
    return status;
}
