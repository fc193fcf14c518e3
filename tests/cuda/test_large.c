/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes past 2^31 elements, 65,535 tiles and 65,535 items on a device; and the bound of the workspace.
 *
 * Every input is a piece of one long sequence of numbers that repeats itself, so samples of the results can
 * be computed here, in double precision, from the same numbers. Its bytes are bf16; read as f32, a pair is
 * its upper half with some bits more. The activation is ReLU, whose act' rounds nothing: tolerances are those
 * of long sums alone. Exits with 77, "skipped", where the device has less memory. */
#include <math.h>

#include "support.h"

/* The sequence repeats after WORDS words; MARGIN: what may be read on from any of its numbers. */
enum { WORDS = (1 << 23) - 15, MARGIN = 64, SKIPPED = 77 };
static const size_t need = (size_t)26 << 30, arena_bytes = (size_t)9300 << 20;

typedef struct large {
    const char *what, *kernel;
    eg_dtype dtype;
    eg_source source;
    int64_t m, k, n, batch;
    bool own; /* grad_pre is in the workspace; else it is an output */
} large;

static const large cases[] = {
    {"saved pre", NULL, EG_BF16, EG_SOURCE_PRE, 9000001, 16, 256, 1, true},
    {"recompute", NULL, EG_BF16, EG_SOURCE_RECOMPUTE, 9000001, 16, 256, 1, false},
    {"mma.sync", "mma_bf16_128x128", EG_BF16, EG_SOURCE_RECOMPUTE, 9000001, 16, 256, 1, false},
    {"any strides", "ref_f32", EG_BF16, EG_SOURCE_PRE, 9000001, 3, 255, 1, false},
    {"f32", NULL, EG_F32, EG_SOURCE_RECOMPUTE, 9000001, 16, 256, 1, true},
    {"wide", NULL, EG_BF16, EG_SOURCE_RECOMPUTE, 700, 16, 3200000, 1, false},
    {"batch", NULL, EG_BF16, EG_SOURCE_RECOMPUTE, 128, 16, 256, 70000, false},
};

static float numbers[2][2 * WORDS + MARGIN]; /* as bf16 and as f32 */

enum { A, B, BIAS, GRAD, PRE, INPUTS };
enum { D_A, D_B, D_BIAS, GRAD_PRE, OUTPUTS };
static const int64_t starts[INPUTS] = {1 << 10, 1 << 14, 1 << 15, 1 << 17, 1 << 20}; /* in the sequence */

typedef struct test {
    const large *c;
    eg_context *context;
    void *arena, *outputs[OUTPUTS];
    size_t element;
    int64_t ld[INPUTS], item[INPUTS];
} test;

/* ---- What is expected --------------------------------------------------------------------------- */

static const float *at(const test *t, int x, int64_t item, int64_t row, int64_t col) {
    const bool wide = t->element == 4;
    const int64_t index = starts[x] + item * t->item[x] + row * t->ld[x] + col;
    return &numbers[wide][index % (wide ? WORDS : 2 * WORDS)];
}

/* `b`: its column. */
static double grad_pre_at(const test *t, int64_t item, int64_t row, int64_t col, const double *b) {
    double pre = 0;
    if (t->c->source == EG_SOURCE_PRE) {
        pre = *at(t, PRE, item, row, col);
    } else {
        const float *a = at(t, A, item, row, 0);
        pre = *at(t, BIAS, 0, 0, col);
        for (int64_t i = 0; i < t->c->k; i++) pre += a[i] * b[i];
    }
    return pre > 0 ? *at(t, GRAD, item, row, col) : 0;
}

static void column_of_b(const test *t, int64_t item, int64_t col, double *b) {
    for (int64_t i = 0; i < t->c->k; i++) b[i] = *at(t, B, item, i, col);
}

/* A sum of `terms` numbers below 1 of either sign. A matrix unit cuts its sums off, always towards 0. */
static double bound_of(const test *t, double want, double terms) {
    const double rounding = t->element == 4 ? 0x1p-24 : 0x1p-8;
    return rounding * fabs(want) + sqrt(terms) * (0x1p-21 + 0x1p-28 * terms);
}

static void check(const test *t, int output, int64_t index, double want, double terms) {
    static const char *const names[] = {"d_a", "d_b", "d_bias", "grad_pre"};
    unsigned char raw[4];
    float got;
    assert_ok(eg_download(t->context, raw, t->outputs[output], (size_t)index * t->element, t->element));
    assert_ok(eg_convert(&got, EG_F32, raw, t->c->dtype, 1));
    if (fabs((double)got - want) <= bound_of(t, want, terms)) return;
    fail_msg("%s: %s[%lld] is %.9g; expected %.9g +- %.2g", t->c->what, names[output], (long long)index,
             (double)got, want, bound_of(t, want, terms));
}

/* A row of grad_pre and of d_a. */
static void check_row(const test *t, int64_t item, int64_t row) {
    const large *c = t->c;
    double d_a[MARGIN] = {0}, b[MARGIN];
    for (int64_t col = 0; col < c->n; col++) {
        column_of_b(t, item, col, b);
        const double g = grad_pre_at(t, item, row, col, b);
        for (int64_t i = 0; i < c->k; i++) d_a[i] += g * b[i];
        if (!c->own && col % (c->n / 5) == 0) check(t, GRAD_PRE, (item * c->m + row) * c->n + col, g, 1);
    }
    for (int64_t i = 0; i < c->k; i++) check(t, D_A, (item * c->m + row) * c->k + i, d_a[i], (double)c->n);
}

/* A column of d_b of an item, and of d_bias. */
static void check_column(const test *t, int64_t wanted, int64_t col) {
    const large *c = t->c;
    double d_b[MARGIN] = {0}, d_bias = 0, b[MARGIN];
    for (int64_t item = 0; item < c->batch; item++) {
        column_of_b(t, item, col, b);
        for (int64_t row = 0; row < c->m; row++) {
            const double g = grad_pre_at(t, item, row, col, b);
            const float *a = at(t, A, item, row, 0);
            d_bias += g;
            for (int64_t i = 0; i < c->k && item == wanted; i++) d_b[i] += a[i] * g;
        }
    }
    for (int64_t i = 0; i < c->k; i++) check(t, D_B, (wanted * c->k + i) * c->n + col, d_b[i], (double)c->m);
    check(t, D_BIAS, col, d_bias, (double)c->m * (double)c->batch);
}

static void check_samples(const test *t) {
    const large *c = t->c;
    const int64_t rows = c->m * c->batch, beyond = ((int64_t)1 << 31) / c->n;
    const int64_t samples[] = {0, rows / 3, beyond - 1, beyond + 1, rows - 1};
    for (size_t i = 0; i < LENGTH(samples); i++) check_row(t, samples[i] / c->m, samples[i] % c->m);
    check_column(t, 0, 0);
    check_column(t, c->batch - 1, c->n - 1);
}

/* ---- The call ----------------------------------------------------------------------------------- */

static void *input(const test *t, int x) { return (char *)t->arena + (size_t)starts[x] * t->element; }

static eg_backward_args arguments(const test *t) {
    eg_backward_args args = {.size = sizeof args,
                             .a = {.data = input(t, A)},
                             .b = {.data = input(t, B)},
                             .bias = {.data = input(t, BIAS)},
                             .grad = {.data = input(t, GRAD)},
                             .source = t->c->source,
                             .d_a = {.data = t->outputs[D_A]},
                             .d_b = {.data = t->outputs[D_B]},
                             .d_bias = {.data = t->outputs[D_BIAS]}};
    if (t->c->source == EG_SOURCE_PRE) args.pre.data = input(t, PRE);
    if (!t->c->own) args.grad_pre.data = t->outputs[GRAD_PRE];
    const int64_t strides[] = {t->item[A], t->item[B], t->item[GRAD]};
    args.a.batch_stride = args.d_a.batch_stride = strides[0];
    args.b.batch_stride = args.d_b.batch_stride = strides[1];
    args.grad.batch_stride = args.grad_pre.batch_stride = args.pre.batch_stride = strides[2];
    return args;
}

/* At most a buffer of the size of grad_pre and 64 MiB. */
static void call(const test *t) {
    const large *c = t->c;
    const eg_layer layer = {.size = sizeof layer,
                            .m = c->m,
                            .k = c->k,
                            .n = c->n,
                            .batch = c->batch,
                            .dtype = c->dtype,
                            .activation = EG_ACT_RELU};
    eg_backward_args args = arguments(t);
    size_t bytes = 0;
    assert_ok(eg_backward_workspace(t->context, &layer, &args, &bytes));
    const size_t matrix = c->own ? (size_t)(c->m * c->n) * t->element : 0;
    assert_in_range(bytes, matrix, matrix + (64U << 20) + (c->n > 1 << 20 ? 9 * 4 * (size_t)c->n : 0));
    args.workspace.bytes = bytes;
    assert_ok(eg_alloc(t->context, bytes, &args.workspace.data));
    assert_ok(eg_backward(t->context, &layer, &args));
    assert_ok(eg_sync(t->context));
    eg_free(t->context, args.workspace.data);
}

static void run(const large *c, void *arena) {
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = c->kernel};
    test t = {.c = c, .arena = arena, .element = c->dtype == EG_F32 ? 4 : 2};
    const int64_t ld[] = {c->k, c->n, 0, c->n, c->n};
    const int64_t item[] = {c->m * c->k, c->k * c->n, 0, c->m * c->n, c->m * c->n};
    const int64_t counts[] = {item[A] * c->batch, item[B] * c->batch, c->n,
                              c->own ? 1 : item[GRAD] * c->batch};
    memcpy(t.ld, ld, sizeof ld);
    memcpy(t.item, item, sizeof item);
    assert_ok(eg_open(&info, &t.context));
    for (int i = 0; i < OUTPUTS; i++)
        assert_ok(eg_alloc(t.context, (size_t)counts[i] * t.element, &t.outputs[i]));
    call(&t);
    check_samples(&t);
    for (int i = 0; i < OUTPUTS; i++) eg_free(t.context, t.outputs[i]);
    eg_close(t.context);
}

/* ---- The device --------------------------------------------------------------------------------- */

static void large_sizes(void **state) {
    for (size_t i = 0; i < LENGTH(cases); i++) {
        printf("           %s\n", cases[i].what);
        fflush(stdout);
        run(&cases[i], *state);
    }
}

/* Numbers from -1 to 1, here and, over and over, on the device. */
static eg_status fill(eg_context *context, void *arena) {
    static unsigned char bytes[4 * (size_t)WORDS];
    uint64_t state = 1;
    for (size_t i = 0; i < 2 * (size_t)WORDS; i++) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        const float x = (float)(int)(state >> 40 & 0xffff) / 32768.0F - 1.0F;
        eg_convert(bytes + 2 * i, EG_BF16, &x, EG_F32, 1);
    }
    eg_convert(numbers[0], EG_F32, bytes, EG_BF16, 2 * (size_t)WORDS);
    memcpy(numbers[1], bytes, sizeof bytes);
    memcpy(numbers[0] + 2 * (size_t)WORDS, numbers[0], MARGIN * sizeof(float));
    memcpy(numbers[1] + WORDS, numbers[1], MARGIN * sizeof(float));
    eg_status status = EG_OK;
    for (size_t done = 0; done < arena_bytes && status == EG_OK; done += sizeof bytes) {
        const size_t rest = arena_bytes - done;
        status = eg_upload(context, arena, done, bytes, rest < sizeof bytes ? rest : sizeof bytes);
    }
    return status;
}

int main(void) {
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA};
    eg_context *context = NULL;
    void *arena = NULL;
    if (eg_open(&info, &context) != EG_OK) {
        printf("%s\n", eg_last_error());
        return SKIPPED;
    }
    if (eg_alloc(context, need, &arena) != EG_OK) {
        printf("too little memory: %s\n", eg_last_error());
        return SKIPPED;
    }
    eg_free(context, arena);
    if (eg_alloc(context, arena_bytes, &arena) != EG_OK || fill(context, arena) != EG_OK) return EXIT_FAILURE;
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(large_sizes, arena)};
    const int status = cmocka_run_group_tests(tests, NULL, NULL);
    eg_free(context, arena);
    eg_close(context);
    return status;
}
