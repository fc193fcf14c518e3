/* SPDX-License-Identifier: Apache-2.0 */
/* A packed B is the same B: whatever layer it was packed for, whoever packed it, and whichever kernel a call
 * then takes. Run for every instruction set, each of which has kernels, and so layouts of B, of its own. */
#include "fixture.h"

#include "cpu/compile.h"
#include "number.h"
#include "oracle.h"

enum { SKIPPED = 77 };

typedef struct sample {
    eg_dtype dtype;
    eg_math math;
    int64_t m, k, n, batch;
    bool shared_b;
    eg_activation activation;
    int64_t packed_m; /* rows of the layer that B is packed for */
    size_t limit;     /* of the workspace; 0: none */
} sample;

static const char *text_of(const sample *s) {
    static const char *const maths[] = {"default", "strict", "fast"};
    static char text[160];
    snprintf(text, sizeof text, "%s %s %s M=%lld K=%lld N=%lld batch=%lld%s packed_m=%lld limit=%zu",
             eg_dtype_name(s->dtype), maths[s->math], eg_activation_name(s->activation), (long long)s->m,
             (long long)s->k, (long long)s->n, (long long)s->batch, s->shared_b ? " shared b" : "",
             (long long)s->packed_m, s->limit);
    return text;
}

static void make(const sample *s, fixture *f) {
    fixture_make(f, (eg_layer){.dtype = s->dtype,
                               .math = s->math,
                               .activation = s->activation,
                               .m = s->m,
                               .k = s->k,
                               .n = s->n,
                               .batch = s->batch});
    if (s->shared_b) {
        f->forward.b.batch_stride = f->backward.b.batch_stride = 0;
        f->backward.d_b.batch_stride = 0;
    }
    f->forward.residual = (eg_matrix){0};
    fixture_poison(f);
}

/* ---- A few rows against the oracle -------------------------------------------------------------- */

/* Rows of y and d_a depend on the same rows of a and grad alone: so some of them make a layer of their own.
 */
enum { ROWS = 24 };

static int64_t row_at(const sample *s, int64_t i, int64_t rows) {
    return rows > 1 ? i * (s->m - 1) / (rows - 1) : 0;
}

/* Those rows of every item, dense. */
static double *some_rows(const sample *s, const void *from, int64_t cols, int64_t rows) {
    double *to = need_memory(sizeof *to * (size_t)(s->batch * rows * cols));
    for (int64_t i = 0; i < s->batch * rows; i++) {
        const int64_t row = i / rows * s->m + row_at(s, i % rows, rows);
        for (int64_t j = 0; j < cols; j++)
            to[i * cols + j] = oracle_get(from, (size_t)(row * cols + j), s->dtype);
    }
    return to;
}

static double *all_of(const sample *s, const void *from, int64_t count) {
    double *to = need_memory(sizeof *to * (size_t)count);
    for (int64_t i = 0; i < count; i++) to[i] = oracle_get(from, (size_t)i, s->dtype);
    return to;
}

static void check_rows(const sample *s, const char *what, const oracle_result *expected, const void *got,
                       int64_t cols, int64_t rows) {
    double *numbers = some_rows(s, got, cols, rows);
    for (int64_t i = 0; i < s->batch * rows * cols; i++) {
        if (oracle_accepts(expected[i], numbers[i], s->dtype)) continue;
        fail_msg("%s: %s[%lld][%lld] of item %lld is %g; expected %g within %g", text_of(s), what,
                 (long long)row_at(s, i / cols % rows, rows), (long long)(i % cols),
                 (long long)(i / cols / rows), numbers[i], expected[i].value, expected[i].bound);
    }
    free(numbers);
}

static oracle_result *results(const sample *s, int64_t rows, int64_t cols) {
    return need_memory(sizeof(oracle_result) * (size_t)(s->batch * rows * cols));
}

static void check_against_oracle(const sample *s, const fixture *f, bool rounds) {
    const int64_t rows = s->m < ROWS ? s->m : ROWS;
    double *a = some_rows(s, f->forward.a.data, s->k, rows),
           *grad = some_rows(s, f->backward.grad.data, s->n, rows);
    double *b = all_of(s, f->forward.b.data, (s->shared_b ? 1 : s->batch) * s->k * s->n);
    double *bias = all_of(s, f->forward.bias.data, s->n);
    oracle_result *pre = results(s, rows, s->n), *y = results(s, rows, s->n);
    oracle_result *grad_pre = results(s, rows, s->n), *d_a = results(s, rows, s->k);
    const oracle_layer layer = {.m = rows,
                                .k = s->k,
                                .n = s->n,
                                .batch = s->batch,
                                .activation = s->activation,
                                .scale = 1,
                                .dtype = s->dtype,
                                .reduced_products = s->math == EG_MATH_FAST && s->dtype == EG_F32,
                                .rounds_grad_pre = rounds && eg_dtype_size(s->dtype) == 2};
    const oracle_matrix right = {b, s->shared_b};
    assert_true(oracle_forward(
        &layer, &(oracle_forward_args){.a = {a, false}, .b = right, .bias = bias, .pre = pre, .y = y}));
    assert_true(oracle_backward(&layer, &(oracle_backward_args){.a = {a, false},
                                                                .b = right,
                                                                .grad = {grad, false},
                                                                .bias = bias,
                                                                .source = EG_SOURCE_RECOMPUTE,
                                                                .d_a = d_a,
                                                                .grad_pre = grad_pre}));
    check_rows(s, "y", y, f->forward.y.data, s->n, rows);
    check_rows(s, "d_a", d_a, f->backward.d_a.data, s->k, rows);
    free(a), free(grad), free(b), free(bias), free(pre), free(y), free(grad_pre), free(d_a);
}

static bool has_matrix_unit(eg_context *context) {
    eg_device_info info = {.size = sizeof info};
    assert_ok(eg_get_device_info(context, &info));
    return strstr(info.features, "amx") != NULL;
}

/* Whether a row rounds grad_pre to the layer's type. */
static bool rounds_grad_pre(eg_context *context, eg_dtype dtype) {
    eg_device_info info = {.size = sizeof info};
    assert_ok(eg_get_device_info(context, &info));
    return has_matrix_unit(context) || (dtype == EG_BF16 && strstr(info.features, "bf16") != NULL);
}

/* ---- A pack against none ------------------------------------------------------------------------ */

/* The kernels that a plan's products take, one a line: what stands before the words about blocks. But not the
 * tile, behind the last underscore: of vector units rows of one type may take each other's place, with the
 * same bits. */
static void kernels_of(const char *plan, char *text, size_t capacity) {
    size_t used = 0;
    text[0] = '\0';
    for (const char *end = plan; (end = strstr(end, "  block ")) != NULL; end++) {
        const char *begin = end;
        while (begin > plan && begin[-1] != ' ') begin--;
        int length = (int)(end - begin);
        while (length > 0 && begin[length - 1] != '_') length--;
        used += (size_t)snprintf(text + used, capacity - used, "%.*s\n", length, begin);
        assert_true(used < capacity);
    }
    assert_true(used > 0);
}

static void check_kernels(eg_context *context, const sample *s, const fixture *plain, const fixture *packed) {
    char plan[4096], expected[512], got[512];
    assert_ok(eg_forward_plan(context, &plain->layer, &plain->forward, plan, sizeof plan));
    kernels_of(plan, expected, sizeof expected);
    assert_ok(eg_forward_plan(context, &packed->layer, &packed->forward, plan, sizeof plan));
    kernels_of(plan, got, sizeof got);
    if (strcmp(expected, got) != 0) fail_msg("%s: forward takes %s; expected %s", text_of(s), got, expected);
    assert_ok(eg_backward_plan(context, &plain->layer, &plain->backward, plan, sizeof plan));
    kernels_of(plan, expected, sizeof expected);
    assert_ok(eg_backward_plan(context, &packed->layer, &packed->backward, plan, sizeof plan));
    kernels_of(plan, got, sizeof got);
    if (strcmp(expected, got) != 0) fail_msg("%s: backward takes %s; expected %s", text_of(s), got, expected);
}

static void check_same_bits(const sample *s, const fixture *plain, const fixture *packed) {
    if (memcmp(plain->outputs, packed->outputs, plain->output_bytes) == 0) return;
    size_t at = 0;
    while (plain->outputs[at] == packed->outputs[at]) at++;
    fail_msg("%s: byte %zu of the outputs differs with a pack", text_of(s), at);
}

/* Few rows or columns are summed in the order that suits B's memory, which a pack has another of. */
static bool is_few(const sample *s) {
    enum { FEW = 16 };
    return s->m <= FEW || s->k <= FEW || s->n <= FEW;
}

/* Packed beforehand, by a call for a layer of another height. */
static void check_pack(eg_context *context, const sample *s, bool b_absent) {
    fixture plain, packed;
    make(s, &plain), make(s, &packed);
    assert_ok(eg_forward(context, &plain.layer, &plain.forward));
    assert_ok(eg_backward(context, &plain.layer, &plain.backward));
    eg_layer layer = packed.layer;
    layer.m = s->packed_m;
    eg_packed *b;
    assert_ok(eg_pack_b(context, &layer, &packed.forward.b, &b));
    packed.forward.packed_b = packed.backward.packed_b = b;
    const eg_matrix as_it_is = packed.forward.b;
    if (b_absent) packed.forward.b = packed.backward.b = (eg_matrix){0};
    if (!is_few(s)) check_kernels(context, s, &plain, &packed);
    assert_ok(eg_forward(context, &packed.layer, &packed.forward));
    assert_ok(eg_backward(context, &packed.layer, &packed.backward));
    packed.forward.b = as_it_is;
    check_against_oracle(s, &packed, rounds_grad_pre(context, s->dtype));
    if (!is_few(s)) check_same_bits(s, &plain, &packed);
    eg_packed_free(context, b);
    fixture_free(&plain), fixture_free(&packed);
}

static const struct {
    eg_dtype dtype;
    eg_math math;
} types[] = {{EG_F32, EG_MATH_DEFAULT}, {EG_BF16, EG_MATH_DEFAULT}, {EG_F16, EG_MATH_DEFAULT},
             {EG_F64, EG_MATH_DEFAULT}, {EG_F32, EG_MATH_STRICT},   {EG_F32, EG_MATH_FAST},
             {EG_BF16, EG_MATH_STRICT}, {EG_F16, EG_MATH_STRICT},   {EG_F64, EG_MATH_STRICT},
             {EG_BF16, EG_MATH_FAST},   {EG_F16, EG_MATH_FAST},     {EG_F64, EG_MATH_FAST}};

static int64_t between(oracle_random *random, int64_t least, int64_t most) {
    return least + oracle_random_below(random, most - least + 1);
}

static sample draw(oracle_random *random, int i) {
    const int64_t least = i % 2 == 0 ? 1 : 48; /* most products of the smallest sizes take one kernel */
    sample s = {.dtype = types[(size_t)i % LENGTH(types)].dtype,
                .math = types[(size_t)i % LENGTH(types)].math};
    s.m = between(random, least, 384);
    s.k = between(random, least, 192);
    s.n = between(random, least, 192);
    s.batch = i % 5 == 0 ? between(random, 2, 3) : 1;
    if (s.batch > 1) s.m = (s.m + s.batch - 1) / s.batch;
    s.shared_b = oracle_random_below(random, 2) == 0;
    s.activation = (eg_activation)oracle_random_below(random, ACTIVATIONS);
    s.packed_m = oracle_random_below(random, 2) == 0 ? s.m : between(random, 0, 1000);
    return s;
}

static void a_packed_call_is_the_call(void **state) {
    (void)state;
    oracle_random random = {17};
    eg_context *contexts[] = {open_cpu(1), open_cpu(3)};
    for (int i = 0; i < (short_run() ? 120 : 600); i++) {
        const sample s = draw(&random, i);
        check_pack(contexts[i / 2 % 2], &s, i % 3 == 0);
    }
    for (int i = 0; i < 2; i++) eg_close(contexts[i]);
}

/* Where the kernels for matrix units begin to be the faster choice for f32: sizes on both sides, of layers
 * that one thread takes and of higher ones. */
static void so_it_is_where_kernels_change(void **state) {
    (void)state;
    static const sample fixed[] = {{EG_F32, EG_MATH_DEFAULT, 256, 100, 100, 1, false, EG_ACT_GELU, 256, 0},
                                   {EG_F32, EG_MATH_DEFAULT, 1000, 100, 100, 1, false, EG_ACT_RELU, 256, 0},
                                   {EG_F32, EG_MATH_DEFAULT, 256, 300, 300, 1, false, EG_ACT_SILU, 1, 0},
                                   {EG_F32, EG_MATH_DEFAULT, 128, 100, 100, 2, true, EG_ACT_GELU, 1, 0}};
    oracle_random random = {18};
    eg_context *context = open_cpu(2);
    for (size_t i = 0; i < LENGTH(fixed); i++) check_pack(context, &fixed[i], true);
    for (int i = 0; i < (short_run() ? 60 : 240); i++) {
        sample s = {.dtype = EG_F32, .batch = i % 4 == 0 ? 2 : 1, .activation = EG_ACT_SILU};
        s.m = between(&random, 64, 384);
        s.k = between(&random, 64, 160);
        s.n = between(&random, 64, 160);
        s.packed_m = s.m;
        check_pack(context, &s, i % 2 == 0);
    }
    eg_close(context);
}

/* ---- A pack that lacks a layout ----------------------------------------------------------------- */

/* The number of its products that a plan runs by an AMX kernel. */
static int on_matrix_unit(const char *plan) {
    char kernels[512];
    int count = 0;
    kernels_of(plan, kernels, sizeof kernels);
    for (const char *at = kernels; (at = strstr(at, "amx")) != NULL; at++) count++;
    return count;
}

enum { PLAIN = 1, TRANSPOSED = 2 };

/* Calls take another kernel then, and read no bytes that were laid out for the one they would have taken. */
static void check_lack(eg_context *context, const sample *s, int number, unsigned layouts) {
    fixture f;
    char plan[4096];
    make(s, &f);
    eg_packed *b;
    assert_ok(eg_pack_b(context, &f.layer, &f.forward.b, &b));
    eg_cpu_form *form = &((eg_cpu_forms *)b->detail)->form[number];
    assert_non_null(form->kernel);
    const bool no_forward = layouts & PLAIN, no_d_a = layouts & TRANSPOSED;
    if (no_forward) memset((char *)b->data + form->plain.offset, 0xff, form->plain.bytes);
    if (no_d_a) memset((char *)b->data + form->transposed.offset, 0xff, form->transposed.bytes);
    if (no_forward) form->plain.bytes = 0;
    if (no_d_a) form->transposed.bytes = 0;
    b->holds += (uint64_t)layouts << 40; /* another pack than those seen before */
    f.forward.packed_b = f.backward.packed_b = b;
    f.backward.source = EG_SOURCE_PRE; /* which leaves d_a alone to read b */
    f.backward.pre = f.forward.pre;
    if (number == 0) { /* there is no other kernel */
        assert_status(eg_forward(context, &f.layer, &f.forward), no_forward ? EG_ERR_UNSUPPORTED : EG_OK);
        assert_status(eg_backward(context, &f.layer, &f.backward), no_d_a ? EG_ERR_UNSUPPORTED : EG_OK);
    } else {
        assert_ok(eg_forward_plan(context, &f.layer, &f.forward, plan, sizeof plan));
        assert_int_equal(on_matrix_unit(plan) == 0, no_forward);
        assert_ok(eg_backward_plan(context, &f.layer, &f.backward, plan, sizeof plan));
        assert_int_equal(on_matrix_unit(plan) == 0, no_d_a);
        assert_ok(eg_forward(context, &f.layer, &f.forward));
        assert_ok(eg_backward(context, &f.layer, &f.backward));
        check_against_oracle(s, &f, true);
    }
    eg_packed_free(context, b);
    fixture_free(&f);
}

static void what_a_pack_lacks_is_not_read(void **state) {
    (void)state;
    eg_context *context = open_cpu(2);
    const eg_dtype dtype = has_matrix_unit(context) ? EG_BF16 : EG_F32; /* which tiles and vectors multiply */
    const sample s = {dtype, EG_MATH_DEFAULT, 256, 192, 192, 1, false, EG_ACT_GELU, 256, 0};
    for (unsigned layouts = 1; layouts < 4; layouts++) {
        if (has_matrix_unit(context)) check_lack(context, &s, 1, layouts);
        if (!has_matrix_unit(context)) check_lack(context, &s, 0, layouts);
    }
    eg_close(context);
}

/* ---- Packed by a call in chunks ------------------------------------------------------------------ */

static size_t least_of(eg_status status) {
    assert_status(status, EG_ERR_ARGUMENT);
    return (size_t)strtoull(strstr(eg_last_error(), "at least ") + 9, NULL, 10);
}

/* The sample's limit, or what the smallest chunk needs. */
static void set_limits(eg_context *context, const sample *s, fixture *f) {
    size_t bytes;
    f->forward.workspace_limit = f->backward.workspace_limit = 1;
    const size_t least = least_of(eg_forward_workspace(context, &f->layer, &f->forward, &bytes));
    const size_t backward = least_of(eg_backward_workspace(context, &f->layer, &f->backward, &bytes));
    f->forward.workspace_limit = least > s->limit ? least : s->limit;
    f->backward.workspace_limit = backward > s->limit ? backward : s->limit;
}

/* By the call itself, and beforehand. */
static void check_chunks(eg_context *context, const sample *s, bool packed) {
    fixture f;
    make(s, &f);
    eg_packed *b = NULL;
    if (packed) {
        assert_ok(eg_pack_b(context, &f.layer, &f.forward.b, &b));
        f.forward.packed_b = f.backward.packed_b = b;
    }
    set_limits(context, s, &f);
    assert_ok(eg_forward(context, &f.layer, &f.forward));
    assert_ok(eg_backward(context, &f.layer, &f.backward));
    check_against_oracle(s, &f, rounds_grad_pre(context, s->dtype));
    eg_packed_free(context, b);
    fixture_free(&f);
}

static void chunks_pack_what_they_read(void **state) {
    (void)state;
    const sample fixed = {EG_F32, EG_MATH_DEFAULT, 20000, 100, 100, 1, false, EG_ACT_NONE, 0, 500000};
    oracle_random random = {19};
    eg_context *contexts[] = {open_cpu(1), open_cpu(2)};
    check_chunks(contexts[1], &fixed, false);
    for (int i = 0; i < (short_run() ? 12 : 72); i++) {
        sample s = draw(&random, i);
        s.m = between(&random, 500, 3000) / s.batch;
        if (i % 3 != 0) s.k = between(&random, 64, 160), s.n = between(&random, 64, 160);
        s.limit = (size_t)between(&random, 1, 1000) * 2000;
        check_chunks(contexts[i % 2], &s, false);
        check_chunks(contexts[i % 2], &s, true);
    }
    for (int i = 0; i < 2; i++) eg_close(contexts[i]);
}

/* A capped run means something only where the processor has the level it is capped to. */
static bool level_is_there(void) {
    const char *level = getenv("EPIGRAD_CPU_ISA");
    eg_context *context = open_cpu(1);
    eg_device_info info = {.size = sizeof info};
    assert_ok(eg_get_device_info(context, &info));
    const bool there = level == NULL || strstr(info.features, level) != NULL;
    if (!there) printf("skipped: this processor has \"%s\", not %s\n", info.features, level);
    eg_close(context);
    return there;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(so_it_is_where_kernels_change),
        cmocka_unit_test(a_packed_call_is_the_call),
        cmocka_unit_test(what_a_pack_lacks_is_not_read),
        cmocka_unit_test(chunks_pack_what_they_read),
    };
    if (!level_is_there()) return SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
