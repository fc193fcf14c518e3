/* SPDX-License-Identifier: Apache-2.0 */
/* Learns to read handwritten digits with epigrad, and shows how well. Start reading at network.c. */
#include "data.h"
#include "display.h"
#include "gradient_check.h"
#include "options.h"
#include "training.h"

#include "../common/curve.h"
#include "../common/must.h"

enum { TEST = 360 };
/* Of the default settings, digits shuffled. Gated units learn the training digits by heart sooner. */
static double promised_accuracy(const options *o) { return o->plan.hidden.gated ? 0.965 : 0.97; }

static eg_context *open_device(const options *o) {
    eg_open_info info = {.size = sizeof info, .backend = o->backend, .threads = o->threads};
    eg_device_info device = {.size = sizeof device};
    eg_context *context;
    must(eg_open(&info, &context));
    must(eg_get_device_info(context, &device));
    printf("epigrad %s on %s: %s", eg_version(), eg_backend_name(device.backend), device.name);
    if (device.threads) printf(", %d thread%s", device.threads, device.threads == 1 ? "" : "s");
    putchar('\n');
    return context;
}

static void show_task(const options *o, const digits *d) {
    eg_dtype dtype = o->plan.dtype;
    printf("network 64-256-128-10, %s%s, %s", o->plan.hidden.gated ? "gated by " : "",
           eg_activation_name(o->plan.hidden.activation), eg_dtype_name(dtype));
    if (eg_dtype_size(dtype) == 2) printf(" with f32 master weights and f32 gradients of the weights");
    printf("\n%d handwritten digits, %d to learn from and %d for the test\n", d->count, d->count - TEST,
           TEST);
}

/* Returns 1 if the gradients are what they should be. */
static int show_gradient_check(eg_context *context, const options *o, const digits *d, const int *order) {
    gradient_report r = gradient_check(context, o->plan.dtype, o->plan.hidden, o->plan.seed, d, order);
    int good = r.worst <= r.limit, other_good = r.other == r.dtype || r.other_worst <= r.other_limit;
    printf("gradient check: worst relative error %.1e (limit %.0e)%s\n"
           "                %d gradients in %s against finite differences\n",
           r.worst, r.limit, good ? "" : ": WRONG", r.checked, eg_dtype_name(r.dtype));
    if (r.other != r.dtype)
        printf("                worst relative error %.1e (limit %.0e)%s\n"
               "                all gradients in %s against those in %s\n",
               r.other_worst, r.other_limit, other_good ? "" : ": WRONG", eg_dtype_name(r.other),
               eg_dtype_name(r.dtype));
    return good && other_good;
}

static void show_mistakes(const digits *d, const guess *wrong, int count) {
    if (count == 0) return;
    printf("\nsome of the %d it got wrong:\n\n", count);
    draw_mistakes(d, wrong, count);
    putchar('\n');
}

/* Trains on all of `order` but its last TEST digits, which it is then tested on. Returns the accuracy. */
static double run_split(eg_context *context, const options *o, const digits *d, int *order, const char *title,
                        int pictures) {
    network net;
    int train_count = d->count - TEST;
    guess *wrong = must_alloc(TEST, sizeof *wrong);
    training_result result = train(&net, context, &o->plan, d, order, train_count, title);
    int right = evaluate(&net, d, order + train_count, TEST, wrong);
    double accuracy = (double)right / TEST, examples = (double)train_count * o->plan.epochs;
    if (pictures) draw_loss(result.loss, result.steps);
    printf("%s  test accuracy %.1f%% (%d of %d); %.0f examples per second, %.2f s\n", title, 100 * accuracy,
           right, TEST, examples / result.seconds, result.seconds);
    if (pictures) show_mistakes(d, wrong, TEST - right);
    free(result.loss);
    free(wrong);
    network_close(&net);
    return accuracy;
}

/* The accuracy on the shuffled digits, and for comparison on the file's order. */
static double run_both_splits(eg_context *context, const options *o, const digits *d, int *order) {
    puts("\nThe digits shuffled, the last 360 for the test:");
    double accuracy = run_split(context, o, d, order, "shuffled  ", 1);

    puts("The digits as in the file, where the last 360 are by other writers:");
    for (int i = 0; i < d->count; i++) order[i] = i;
    run_split(context, o, d, order, "unshuffled", 0);
    return accuracy;
}

/* Whether the promise was made for these settings: any backend, dtype and number of threads, gated or not. */
static int promised(const options *o) {
    options standard = options_default();
    return o->plan.hidden.activation == standard.plan.hidden.activation &&
           o->plan.epochs >= standard.plan.epochs && o->plan.seed == standard.plan.seed &&
           o->data == standard.data;
}

static int verdict(const options *o, int gradients_good, double accuracy) {
    if (!gradients_good) {
        fprintf(stderr, "digits: the gradient check failed\n");
        return EXIT_FAILURE;
    }
    if (promised(o) && accuracy < promised_accuracy(o)) {
        fprintf(stderr, "digits: test accuracy %.1f%%, expected at least %.1f%%\n", 100 * accuracy,
                100 * promised_accuracy(o));
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    options o = options_parse(argc, argv);
    digits d = digits_load(o.data);
    if (d.count <= TEST) {
        fprintf(stderr, "digits: %s: %d digits, expected more than %d\n", o.data, d.count, TEST);
        return EXIT_USAGE;
    }
    eg_context *context = open_device(&o);
    show_task(&o, &d);

    int *order = must_alloc((size_t)d.count, sizeof *order);
    rng random = {o.plan.seed};
    for (int i = 0; i < d.count; i++) order[i] = i;
    rng_shuffle(&random, order, d.count);
    int gradients_good = show_gradient_check(context, &o, &d, order);
    double accuracy = run_both_splits(context, &o, &d, order);

    free(order);
    digits_free(&d);
    eg_close(context);
    return verdict(&o, gradients_good, accuracy);
}
