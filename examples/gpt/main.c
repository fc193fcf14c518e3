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

#ifndef GPT_CUDA /* the build found no nvcc */
const operations *cuda_open(eg_context *context) {
    eg_close(context);
    fprintf(stderr, EXAMPLE ": built without nvcc, which --backend cuda needs\n");
    exit(EXIT_UNAVAILABLE);
}
void cuda_close(void) {}
#endif

static device open_device(eg_backend backend, int threads) {
    const eg_open_info info = {.size = sizeof info, .backend = backend, .threads = threads};
    device on = {.run = &cpu_operations};
    must(eg_open(&info, &on.context));
    if (backend == EG_BACKEND_CUDA) on.run = cuda_open(on.context);
    return on;
}

static void close_device(device on) {
    if (on.run != &cpu_operations) cuda_close();
    eg_close(on.context);
}

static void print_device(device on) {
    eg_device_info info = {.size = sizeof info};
    must(eg_get_device_info(on.context, &info));
    printf("epigrad %s on %s", eg_version(), info.name);
    if (info.threads > 0) printf(", %d thread%s", info.threads, info.threads == 1 ? "" : "s");
    putchar('\n');
}

static int check(device on, const options *o) {
    bool good = gradient_check(on, o->seed, o->experts);
    if (o->backend != EG_BACKEND_CPU) {
        const device cpu = open_device(EG_BACKEND_CPU, o->threads);
        good = compare_devices(cpu, on, o->seed, o->experts) && good;
        close_device(cpu);
    }
    if (good) return EXIT_SUCCESS;
    fprintf(stderr, EXAMPLE ": the model is wrong\n");
    return EXIT_FAILURE;
}

/* On a GPU as much as the text can teach, or more. */
static model_size size_for(eg_backend backend) {
    if (backend == EG_BACKEND_CPU)
        return (model_size){.blocks = 4, .width = 128, .heads = 4, .hidden = 352, .time = 64, .batch = 16};
    return (model_size){.blocks = 6, .width = 512, .heads = 8, .hidden = 1408, .time = 256, .batch = 32};
}

/* A model that has learnt nothing at all is a fault. */
static int verdict(double first, double test) {
    if (test < first) return EXIT_SUCCESS;
    fprintf(stderr, EXAMPLE ": the loss was %.3f at first and is %.3f now, expected less\n", first, test);
    return EXIT_FAILURE;
}

static int train_and_write(device on, const options *o) {
    model_size size = size_for(o->backend);
    text t = text_load(o->text, (size_t)size.time + 1);
    size.letters = t.letters;
    size.experts = o->experts;
    model m;
    rng random = {o->seed};
    model_open(&m, on, size);
    model_initialise(&m, &random);
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
    const device on = open_device(o.backend, o.threads);
    print_device(on);
    const int status = o.check ? check(on, &o) : train_and_write(on, &o);
    close_device(on);
    return status;
}
