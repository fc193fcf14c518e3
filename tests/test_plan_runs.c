/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan prints is what runs on the CPU: each step's function is wrapped by the linker, and notes the
 * step that it is given. (On CUDA and WebGPU the same is shown by the driver and the queue.) */
#include "fixture.h"

#include "cpu/cpu.h"
#include "oracle.h"

enum { ROOM = 8192, MOST = 64 };

static struct {
    char kind[8];
    char kernel[32];
} ran[MOST];
static int count;

static void note(const char *kind, const eg_step *step) {
    assert_true(count < MOST);
    snprintf(ran[count].kind, sizeof ran[count].kind, "%s", kind);
    snprintf(ran[count].kernel, sizeof ran[count].kernel, "%s", step->kernel);
    count++;
}

/* The linker's names for a wrapped function and the one that it wraps. */
#define WRAP(function, kind)                                                                                 \
    void __real_##function(const eg_cpu_run *run, const eg_step *step);                                      \
    void __wrap_##function(const eg_cpu_run *run, const eg_step *step);                                      \
    void __wrap_##function(const eg_cpu_run *run, const eg_step *step) {                                     \
        note(kind, step);                                                                                    \
        __real_##function(run, step);                                                                        \
    }
WRAP(eg_cpu_pack, "copy")
WRAP(eg_cpu_gemm, "gemm")
WRAP(eg_cpu_map, "map")
WRAP(eg_cpu_reduce, "reduce")

/* Every step of the text, in its order: a number, the kind, what it does, and among the rest the kernel. */
static void check_text(const char *text) {
    int steps = 0;
    for (const char *line = strchr(text, '\n'); line != NULL; line = strchr(line + 1, '\n')) {
        int number;
        char kind[16], copy[256];
        if (sscanf(line + 1, "%2d  %15s", &number, kind) != 2 || number != steps + 1) continue;
        snprintf(copy, sizeof copy, "%.*s", (int)strcspn(line + 1, "\n"), line + 1);
        assert_true(steps < count);
        assert_string_equal(ran[steps].kind, kind);
        assert_non_null(strstr(copy, ran[steps].kernel));
        steps++;
    }
    assert_int_equal(steps, count);
}

static void forward(eg_context *context, const fixture *f) {
    char text[ROOM];
    assert_ok(eg_forward_plan(context, &f->layer, &f->forward, text, sizeof text));
    count = 0;
    assert_ok(eg_forward(context, &f->layer, &f->forward));
    check_text(text);
}

static void backward(eg_context *context, const fixture *f, const eg_backward_args *args) {
    char text[ROOM];
    assert_ok(eg_backward_plan(context, &f->layer, args, text, sizeof text));
    count = 0;
    assert_ok(eg_backward(context, &f->layer, args));
    check_text(text);
}

static int64_t size(oracle_random *random) { return 1 + oracle_random_below(random, 150); }

static void the_plan_is_what_runs(void **state) {
    (void)state;
    oracle_random random = {29};
    eg_context *context = open_cpu(2);
    for (int i = 0; i < 200; i++) {
        eg_layer layer = small_layer();
        layer.m = size(&random), layer.k = size(&random), layer.n = size(&random);
        layer.batch = 1 + oracle_random_below(&random, 2);
        layer.activation = (eg_activation)oracle_random_below(&random, 3);
        fixture f;
        fixture_make(&f, layer);
        forward(context, &f);
        eg_backward_args args = f.backward;
        if (oracle_random_below(&random, 2) == 0) args.d_a.data = NULL;
        if (oracle_random_below(&random, 2) == 0) args.d_bias.data = NULL;
        backward(context, &f, &args);
        fixture_free(&f);
    }
    eg_close(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_plan_is_what_runs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
