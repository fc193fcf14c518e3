/* SPDX-License-Identifier: Apache-2.0 */
/* The weights of a gated unit as two views of one buffer, one below the other or with their lines in turn:
 * what comes out has the bits that two matrices give, both gradients are written in place, and what lies
 * around them stays as it is.
 *
 *     test_gated_views [BACKEND] */
#include "open.h"
#include "support.h"

#include <math.h>

static eg_backend backend = EG_BACKEND_CPU;

enum { POISON = 0xff /* NaN in every type */, ALIGNMENT = 256 };

/* ---- Memory of the device ------------------------------------------------------------------------ */

static void *device_memory(eg_context *context, const void *from, size_t bytes) {
    void *memory;
    assert_ok(eg_alloc(context, bytes, &memory));
    assert_ok(eg_upload(context, memory, 0, from, bytes));
    return memory;
}

static unsigned char *host_memory(size_t bytes) { return memset(need_memory(bytes), POISON, bytes); }

static void fill(void *to, eg_dtype dtype, size_t count, unsigned seed) {
    float *value = need_memory(count * sizeof *value);
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        value[i] = (float)((int)(seed >> 16) % 200 - 100) / 100;
    }
    assert_ok(eg_convert(to, dtype, value, EG_F32, count));
    free(value);
}

/* Of poison that was left, or read, there would be a NaN. */
static void assert_finite(const void *from, eg_dtype dtype, size_t count) {
    float *value = need_memory(count * sizeof *value);
    assert_ok(eg_convert(value, EG_F32, from, dtype, count));
    for (size_t i = 0; i < count; i++) assert_true(isfinite(value[i]));
    free(value);
}

static void *drawn(eg_context *context, eg_dtype dtype, int64_t count, unsigned seed) {
    const size_t bytes = (size_t)count * eg_dtype_size(dtype);
    void *host = need_memory(bytes);
    fill(host, dtype, (size_t)count, seed);
    void *memory = device_memory(context, host, bytes);
    free(host);
    return memory;
}

/* ---- Two matrices in one buffer, or in two ------------------------------------------------------- */

typedef enum form { APART, STACKED, IN_TURN, FORMS } form;

/* Lines are columns of a column-major matrix, [N, K] in memory, and rows of a row-major one. There is a gap
 * after each, and a line of poison before the first and after the last. */
typedef struct pair {
    form form;
    size_t size, lines, length, pitch, bytes; /* the lines of one matrix; all but those in bytes */
    unsigned char *host[2];                   /* gate and up: images of the memory, or one of both */
    eg_matrix at[2];
} pair;

static pair make_pair(const eg_layer *layer, eg_layout layout, form form) {
    const bool columns = layout == EG_COL_MAJOR;
    const size_t size = eg_dtype_size(layer->dtype), length = (size_t)(columns ? layer->k : layer->n) * size;
    pair p = {.form = form,
              .size = size,
              .lines = (size_t)(columns ? layer->n : layer->k),
              .length = length,
              .pitch = length + 8 * size};
    p.bytes = ((form == APART ? 1 : 2) * p.lines + 2) * p.pitch;
    p.host[0] = host_memory(p.bytes);
    p.host[1] = form == APART ? host_memory(p.bytes) : p.host[0];
    for (size_t i = 0; i < 2; i++) {
        const size_t first = 1 + (form == STACKED ? i * p.lines : form == IN_TURN ? i : 0);
        p.at[i] = (eg_matrix){.offset = first * p.pitch,
                              .ld = (int64_t)((form == IN_TURN ? 2 : 1) * p.pitch / size),
                              .layout = layout};
    }
    return p;
}

static unsigned char *line_of(const pair *p, int which, size_t line) {
    return p->host[which] + p->at[which].offset + line * (size_t)p->at[which].ld * p->size;
}

static void draw_pair(pair *p, eg_dtype dtype) {
    for (int which = 0; which < 2; which++)
        for (size_t i = 0; i < p->lines; i++)
            fill(line_of(p, which, i), dtype, p->length / p->size, (unsigned)(which * 10007 + (int)i));
}

static void upload_pair(eg_context *context, pair *p) {
    for (int i = 0; i < 2; i++)
        p->at[i].data =
            i == 1 && p->form != APART ? p->at[0].data : device_memory(context, p->host[i], p->bytes);
}

static void download_pair(eg_context *context, const pair *p) {
    for (int i = 0; i < (p->form == APART ? 2 : 1); i++)
        assert_ok(eg_download(context, p->host[i], p->at[i].data, 0, p->bytes));
}

static void free_pair(eg_context *context, pair *p) {
    for (int i = 0; i < (p->form == APART ? 2 : 1); i++) eg_free(context, p->at[i].data), free(p->host[i]);
}

static void assert_same_lines(const pair *p, const pair *q, eg_dtype dtype) {
    for (int which = 0; which < 2; which++)
        for (size_t i = 0; i < p->lines; i++) {
            assert_finite(line_of(p, which, i), dtype, p->length / p->size);
            assert_memory_equal(line_of(p, which, i), line_of(q, which, i), p->length);
        }
}

static void assert_only_lines(const pair *p) {
    for (int which = 0; which < 2; which++)
        for (size_t i = 0; i < p->lines; i++) memset(line_of(p, which, i), POISON, p->length);
    for (size_t i = 0; i < p->bytes; i++)
        if (p->host[0][i] != POISON || p->host[1][i] != POISON) fail_msg("byte %zu around is written", i);
}

/* ---- A unit, forward and backward ---------------------------------------------------------------- */

typedef struct unit {
    eg_layer layer;
    void *a, *grad, *bias[2];
    void *outputs; /* all that is not of a weight's shape */
    size_t output_bytes;
    eg_matrix y, pre[2], d_a;
    eg_vector d_bias[2];
} unit;

/* The place of so many elements among the outputs. */
static size_t place(unit *u, int64_t elements) {
    const size_t at = u->output_bytes, bytes = (size_t)elements * eg_dtype_size(u->layer.dtype);
    u->output_bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

static unit make_unit(eg_context *context, eg_layer layer) {
    unit u = {.layer = layer};
    const int64_t m = layer.m, k = layer.k, n = layer.n;
    u.a = drawn(context, layer.dtype, m * k, 1), u.grad = drawn(context, layer.dtype, m * n, 2);
    u.y.offset = place(&u, m * n), u.d_a.offset = place(&u, m * k);
    for (int i = 0; i < 2; i++) {
        u.bias[i] = drawn(context, layer.dtype, n, 3 + (unsigned)i);
        u.pre[i].offset = place(&u, m * n), u.d_bias[i].offset = place(&u, n);
    }
    unsigned char *poison = host_memory(u.output_bytes);
    u.outputs = device_memory(context, poison, u.output_bytes);
    free(poison);
    u.y.data = u.d_a.data = u.outputs;
    for (int i = 0; i < 2; i++) u.pre[i].data = u.d_bias[i].data = u.outputs;
    return u;
}

static void free_unit(eg_context *context, unit *u) {
    void *const memory[] = {u->a, u->grad, u->bias[0], u->bias[1], u->outputs};
    for (size_t i = 0; i < LENGTH(memory); i++) eg_free(context, memory[i]);
}

static void run_forward(eg_context *context, const unit *u, const pair *weights) {
    eg_forward_args args =
        eg_forward_of(eg_row_major(u->a), weights->at[0], eg_elements(u->bias[0]), eg_row_major(NULL));
    args.b_up = weights->at[1], args.bias_up = eg_elements(u->bias[1]);
    args.y = u->y, args.pre = u->pre[0], args.pre_up = u->pre[1];
    assert_ok(eg_forward(context, &u->layer, &args));
}

/* Written, and then added to. */
static void run_backward(eg_context *context, const unit *u, const pair *weights, const pair *gradients,
                         eg_source source) {
    eg_backward_args args =
        eg_backward_of(eg_row_major(u->a), weights->at[0], eg_elements(u->bias[0]), eg_row_major(u->grad));
    args.b_up = weights->at[1], args.bias_up = eg_elements(u->bias[1]);
    args.source = source;
    if (source == EG_SOURCE_PRE) args.pre = u->pre[0], args.pre_up = u->pre[1];
    args.d_a = u->d_a;
    args.d_b = gradients->at[0], args.d_b_up = gradients->at[1];
    args.d_bias = u->d_bias[0], args.d_bias_up = u->d_bias[1];
    for (int i = 0; i < 2; i++) {
        args.accumulate = i;
        assert_ok(eg_backward(context, &u->layer, &args));
    }
}

typedef struct results {
    pair gradients;
    unsigned char *outputs;
    size_t output_bytes;
} results;

static results results_of(eg_context *context, eg_layer layer, eg_layout layout, eg_source source,
                          form form) {
    unit u = make_unit(context, layer);
    pair weights = make_pair(&layer, layout, form);
    results r = {make_pair(&layer, layout, form), need_memory(u.output_bytes), u.output_bytes};
    draw_pair(&weights, layer.dtype);
    upload_pair(context, &weights), upload_pair(context, &r.gradients);
    run_forward(context, &u, &weights);
    run_backward(context, &u, &weights, &r.gradients, source);
    download_pair(context, &r.gradients);
    assert_ok(eg_download(context, r.outputs, u.outputs, 0, u.output_bytes));
    assert_finite(r.outputs + u.y.offset, layer.dtype, (size_t)(layer.m * layer.n));
    assert_finite(r.outputs + u.d_a.offset, layer.dtype, (size_t)(layer.m * layer.k));
    free_pair(context, &weights);
    free_unit(context, &u);
    return r;
}

/* Views agree also where all of them are wrong. The bounds are wide, for kernels sum and round in different
 * orders; rows or columns in the wrong place are off by more. */
static void assert_near_cpu(const results *r, eg_layer layer, eg_layout layout, eg_source source) {
    eg_context *cpu = open_or_skip((eg_open_info){.threads = 2});
    results wanted = results_of(cpu, layer, layout, source, APART);
    const size_t count = wanted.output_bytes / eg_dtype_size(layer.dtype);
    float *x = need_memory(count * sizeof *x), *y = need_memory(count * sizeof *y);
    assert_ok(eg_convert(x, EG_F32, r->outputs, layer.dtype, count));
    assert_ok(eg_convert(y, EG_F32, wanted.outputs, layer.dtype, count));
    for (size_t i = 0; i < count; i++) {
        if (isnan(x[i]) && isnan(y[i])) continue; /* between outputs */
        if (!(fabsf(x[i] - y[i]) <= fabsf(y[i]) / 16 + 0.25f))
            fail_msg("%lld x %lld x %lld: number %zu of the outputs is %g, by the CPU %g", (long long)layer.m,
                     (long long)layer.k, (long long)layer.n, i, x[i], y[i]);
    }
    free(x), free(y), free(wanted.outputs);
    free_pair(cpu, &wanted.gradients);
    eg_close(cpu);
}

static void check_forms(eg_context *context, eg_layer layer, eg_layout layout, eg_source source) {
    results r[FORMS];
    for (int i = 0; i < FORMS; i++) {
        r[i] = results_of(context, layer, layout, source, (form)i);
        assert_same_lines(&r[i].gradients, &r[APART].gradients, layer.dtype);
        assert_memory_equal(r[i].outputs, r[APART].outputs, r[i].output_bytes);
    }
    if (backend != EG_BACKEND_CPU) assert_near_cpu(&r[APART], layer, layout, source);
    for (int i = 0; i < FORMS; i++) {
        assert_only_lines(&r[i].gradients);
        free_pair(context, &r[i].gradients);
        free(r[i].outputs);
    }
}

/* ---- Tests --------------------------------------------------------------------------------------- */

/* On a GPU lines begin on 16 bytes in each form: where they do not, a view may be a matter of another kernel,
 * which rounds otherwise. */
static const int64_t sizes[][3] = {{37, 24, 40}, {130, 72, 264}, {1, 64, 48}, {300, 136, 1032}, {9, 33, 17}};

static void views_have_the_bits_of_two_matrices(eg_dtype dtype) {
    eg_context *context = open_or_skip((eg_open_info){.backend = backend, .threads = 2});
    const size_t count = LENGTH(sizes) - (backend == EG_BACKEND_CPU ? 0 : 1);
    for (size_t i = 0; i < 4 * count; i++) {
        const int64_t *size = sizes[i / 4];
        eg_layer layer = eg_layer_of(size[0], size[1], size[2], EG_ACT_SILU);
        layer.dtype = dtype;
        check_forms(context, layer, i % 2 == 0 ? EG_COL_MAJOR : EG_ROW_MAJOR,
                    i / 2 % 2 == 0 ? EG_SOURCE_PRE : EG_SOURCE_RECOMPUTE);
    }
    eg_close(context);
}

static void in_f32(void **state) {
    (void)state;
    views_have_the_bits_of_two_matrices(EG_F32);
}

static void in_16_bits(void **state) {
    (void)state;
    views_have_the_bits_of_two_matrices(backend == EG_BACKEND_WEBGPU ? EG_F16 : EG_BF16); /* which it has */
}

int main(int argc, char **argv) {
    for (int i = EG_BACKEND_CPU; i <= EG_BACKEND_WEBGPU && argc > 1; i++) {
        if (strcmp(argv[1], eg_backend_name((eg_backend)i)) == 0) backend = (eg_backend)i;
    }
    eg_close(open_or_skip((eg_open_info){.backend = backend}));
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_f32), cmocka_unit_test(in_16_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
