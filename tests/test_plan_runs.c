/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan prints is what runs on the CPU: each step's function is wrapped by the linker, and notes the
 * step that it is given. (On CUDA and WebGPU the same is shown by the driver and the queue.) */
#include <math.h>

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
WRAP(eg_cpu_few_rows, "gemm")
WRAP(eg_cpu_outer_product, "gemm")
WRAP(eg_cpu_map, "map")
WRAP(eg_cpu_reduce, "reduce")

/* Between a text's two programs: the second runs where the first refuses a number. */
static const char *second_program(const char *text) { return strstr(text, "\nwhere a number"); }

/* The steps from `text` to `end` (NULL: all), each with its number, kind and kernel, are the last that ran.
 */
static void check_text(const char *text, const char *end, bool is_all) {
    struct {
        char kind[16], line[256];
    } steps[MOST];
    int printed = 0;
    for (const char *at = strchr(text + 1, '\n'); at != NULL && at != end; at = strchr(at + 1, '\n')) {
        int number;
        assert_true(printed < MOST);
        if (sscanf(at + 1, "%2d  %15s", &number, steps[printed].kind) != 2 || number != printed + 1) continue;
        snprintf(steps[printed].line, sizeof steps->line, "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
        printed++;
    }
    assert_true(is_all ? printed == count : printed <= count);
    for (int i = 0; i < printed; i++) {
        assert_string_equal(ran[count - printed + i].kind, steps[i].kind);
        assert_non_null(strstr(steps[i].line, ran[count - printed + i].kernel));
    }
}

static void forward(eg_context *context, const fixture *f) {
    char text[ROOM];
    assert_ok(eg_forward_plan(context, &f->layer, &f->forward, text, sizeof text));
    count = 0;
    assert_ok(eg_forward(context, &f->layer, &f->forward));
    check_text(text, second_program(text), true);
}

static void backward(eg_context *context, const fixture *f, const eg_backward_args *args) {
    char text[ROOM];
    assert_ok(eg_backward_plan(context, &f->layer, args, text, sizeof text));
    count = 0;
    assert_ok(eg_backward(context, &f->layer, args));
    check_text(text, second_program(text), true);
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

/* An infinity has no sum of bf16 terms: a plan for the matrix unit ends with the program that runs instead.
 */
static void what_runs_instead_is_printed_too(void **state) {
    (void)state;
    eg_context *context = open_cpu(2);
    eg_layer layer = small_layer();
    layer.m = layer.k = layer.n = 150;
    fixture f;
    fixture_make(&f, layer);
    char text[ROOM];
    assert_ok(eg_forward_plan(context, &layer, &f.forward, text, sizeof text));
    const char *instead = second_program(text);
    if (strstr(text, "amx_") != NULL) assert_non_null(instead);
    ((float *)f.forward.b.data)[7] = INFINITY;
    count = 0;
    assert_ok(eg_forward(context, &layer, &f.forward));
    if (instead != NULL) {
        check_text(instead, NULL, false);
    } else {
        check_text(text, NULL, true);
    }
    fixture_free(&f);
    eg_close(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_is_what_runs),
        cmocka_unit_test(what_runs_instead_is_printed_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
