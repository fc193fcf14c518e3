/* SPDX-License-Identifier: Apache-2.0 */
/* f32 as sums of bf16 products (EG_MATH_DEFAULT where a matrix unit computes it) against f32 multiply-adds
 * (EG_MATH_STRICT): never less accurate, on numbers of every scale; and the same bits where numbers have no
 * such sum. On a processor without a matrix unit both are the same kernel; the build with emulated tiles is
 * where this tests something everywhere. */
#include <math.h>

#include "support.h"

enum { M = 65, N = 97, DEEPEST = 4096 };

/* ---- Numbers ------------------------------------------------------------------------------------ */

static uint64_t state;

static double uniform(void) { /* (0, 1) */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return ((double)(state >> 12) + 0.5) * 0x1p-52;
}

static double normal(void) { return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()); }
static double sign(void) { return uniform() < 0.5 ? -1 : 1; }

/* One number, `line` being its row of A or its column of B. */
static double of_normal(int line) { return (void)line, normal(); }
static double of_uniform(int line) { return (void)line, uniform() - 0.5; }
static double of_positive(int line) { return (void)line, uniform(); }
static double of_decades(int line) { return (void)line, sign() * pow(10, 12 * uniform() - 6); }
static double of_scaled_lines(int line) { return normal() * pow(10, (line * 7) % 19 - 13); }
static double of_tiny(int line) { return (void)line, normal() * 1e-18; }
static double of_subnormal(int line) { return (void)line, normal() * 1e-39; }
static double of_large(int line) { return (void)line, normal() * 1e6; }

/* A and B are drawn from different kinds where their products would leave f32. */
static const struct {
    const char *name;
    double (*a)(int line), (*b)(int line);
} kinds[] = {
    {"normal", of_normal, of_normal},
    {"uniform", of_uniform, of_uniform},
    {"positive", of_positive, of_positive},
    {"twelve decades", of_decades, of_decades},
    {"badly scaled rows and columns", of_scaled_lines, of_scaled_lines},
    {"tiny", of_tiny, of_tiny},
    {"subnormal by large", of_subnormal, of_large},
};

/* ---- The product -------------------------------------------------------------------------------- */

typedef struct product {
    float *a, *b, *y; /* [M, k], [k, N], [M, N] */
    double *exact;
    int k;
} product;

static product make_product(int k) {
    return (product){.a = need_memory(sizeof(float) * (size_t)(M * k)),
                     .b = need_memory(sizeof(float) * (size_t)(k * N)),
                     .y = need_memory(sizeof(float) * M * N),
                     .exact = need_memory(sizeof(double) * M * N),
                     .k = k};
}

static void free_product(product *p) {
    free(p->a);
    free(p->b);
    free(p->y);
    free(p->exact);
}

static void fill(product *p, double (*a)(int), double (*b)(int)) {
    for (int i = 0; i < M; i++) {
        for (int k = 0; k < p->k; k++) p->a[i * p->k + k] = (float)a(i);
    }
    for (int k = 0; k < p->k; k++) {
        for (int j = 0; j < N; j++) p->b[k * N + j] = (float)b(j);
    }
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < p->k; k++) sum += (double)p->a[i * p->k + k] * (double)p->b[k * N + j];
            p->exact[i * N + j] = sum;
        }
    }
}

static void multiply(eg_context *context, const product *p, eg_math math) {
    const eg_layer layer = {
        .size = sizeof layer, .m = M, .k = p->k, .n = N, .batch = 1, .math = math, .activation = EG_ACT_NONE};
    const eg_forward_args args = {
        .size = sizeof args, .a = {.data = p->a}, .b = {.data = p->b}, .y = {.data = p->y}};
    for (int i = 0; i < M * N; i++) p->y[i] = NAN;
    assert_ok(eg_forward(context, &layer, &args));
}

/* The matrix unit's row, where there is one: it would not be chosen for layers this small. */
static eg_context *open_split(int threads) {
    eg_context *context = open_cpu(threads);
    eg_kernel_info row = {.size = sizeof row};
    for (int i = 0; eg_get_kernel_info(context, i, &row) == EG_OK; i++) {
        if (!row.usable || strcmp(row.name, "amx_f32x6_32x32") != 0) continue;
        const eg_open_info info = {.size = sizeof info, .threads = threads, .kernel = row.name};
        eg_close(context);
        assert_ok(eg_open(&info, &context));
        break;
    }
    return context;
}

/* Each row's error by the norm of the row: a small row counts as much as a large one. */
static double error_of(const product *p) {
    double total = 0;
    for (int i = 0; i < M; i++) {
        double error = 0, norm = 0;
        for (int j = 0; j < N; j++) {
            const double exact = p->exact[i * N + j], off = (double)p->y[i * N + j] - exact;
            error += off * off;
            norm += exact * exact;
        }
        total += error / norm;
    }
    return sqrt(total / M);
}

static void never_less_accurate_than_multiply_adds(void **unused) {
    (void)unused;
    eg_context *strictly = open_cpu(1), *split = open_split(1);
    for (int k = 256; k <= (short_run() ? 1024 : DEEPEST); k *= 4) {
        product p = make_product(k);
        for (size_t kind = 0; kind < LENGTH(kinds); kind++) {
            state = 0x9e3779b97f4a7c15U + kind;
            fill(&p, kinds[kind].a, kinds[kind].b);
            multiply(strictly, &p, EG_MATH_STRICT);
            const double strict = error_of(&p);
            multiply(split, &p, EG_MATH_DEFAULT);
            const double error = error_of(&p);
            printf("    K=%-4d  %-30s  multiply-adds %.2e  default %.2e\n", k, kinds[kind].name, strict,
                   error);
            if (!(error <= strict)) {
                fail_msg("%s, K=%d: the error is %.3e; expected at most that of multiply-adds, %.3e",
                         kinds[kind].name, k, error, strict);
            }
        }
        free_product(&p);
    }
    eg_close(strictly);
    eg_close(split);
}

/* ---- Numbers without a sum ---------------------------------------------------------------------- */

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void assert_same_bits(const float *x, const float *y, int count, const char *what, double number) {
    for (int i = 0; i < count; i++) {
        if (bits_of(x[i]) != bits_of(y[i]) && !(isnan(x[i]) && isnan(y[i])))
            fail_msg("%s[%d] with a %g among the numbers is %.9g; expected %.9g", what, i, number, x[i],
                     y[i]);
    }
}

static void numbers_without_a_sum_are_multiplied_all_the_same(void **unused) {
    (void)unused;
    static const float numbers[] = {INFINITY, -INFINITY, NAN, 3.4028234e38F, -1e30F, 6.8e7F};
    eg_context *strictly = open_cpu(2), *split = open_split(2);
    product p = make_product(512);
    float *expected = need_memory(sizeof(float) * M * N);
    for (size_t i = 0; i < LENGTH(numbers); i++) {
        for (int in_b = 0; in_b < 2; in_b++) {
            fill(&p, of_normal, of_normal);
            (in_b ? p.b : p.a)[777] = numbers[i];
            multiply(strictly, &p, EG_MATH_STRICT);
            memcpy(expected, p.y, sizeof(float) * M * N);
            multiply(split, &p, EG_MATH_DEFAULT);
            assert_same_bits(p.y, expected, M * N, "y", (double)numbers[i]);
        }
    }
    free(expected);
    free_product(&p);
    eg_close(strictly);
    eg_close(split);
}

typedef struct gradients {
    float d_a[M * 128], d_b[128 * N], d_bias[N], grad_pre[M * N];
} gradients;

/* In place, accumulating, from a grad that has no sum of bf16, or whose grad_pre has none. */
typedef enum how { APART, GRAD_IN_PLACE, INTO_D_A } how;

static void backward(eg_context *context, const product *p, eg_math math, eg_activation activation, how how,
                     const float *grad, gradients *out) {
    const eg_layer layer = {
        .size = sizeof layer, .m = M, .k = 128, .n = N, .batch = 1, .math = math, .activation = activation};
    for (int i = 0; i < M * 128; i++) out->d_a[i] = 1;
    for (int i = 0; i < 128 * N; i++) out->d_b[i] = 1;
    for (int j = 0; j < N; j++) out->d_bias[j] = 1;
    memcpy(out->grad_pre, grad, sizeof out->grad_pre);
    const eg_backward_args args = {
        .size = sizeof args,
        .a = {.data = p->a},
        .b = {.data = p->b},
        .grad = {.data = how == GRAD_IN_PLACE ? (void *)out->grad_pre : (void *)(uintptr_t)grad},
        .d_a = {.data = out->d_a},
        .d_b = {.data = out->d_b},
        .d_bias = {.data = out->d_bias},
        .grad_pre = {.data = out->grad_pre},
        .accumulate = 1,
        .accumulate_into = how == INTO_D_A ? EG_INTO_D_A : 0};
    assert_ok(eg_backward(context, &layer, &args));
}

/* One call as multiply-adds make it, and as kernels that split begin it. */
typedef struct both {
    eg_context *strictly, *split;
} both;

static both open_both(void) { return (both){open_cpu(2), open_split(2)}; }

static void close_both(both b) {
    eg_close(b.strictly);
    eg_close(b.split);
}

static void check_backward(both b, const product *p, eg_activation activation, how how, const float *grad,
                           double number) {
    gradients *strict = need_memory(sizeof *strict), *found = need_memory(sizeof *found);
    backward(b.strictly, p, EG_MATH_STRICT, activation, how, grad, strict);
    backward(b.split, p, EG_MATH_DEFAULT, activation, how, grad, found);
    assert_same_bits(found->d_a, strict->d_a, M * 128, "d_a", number);
    assert_same_bits(found->d_b, strict->d_b, 128 * N, "d_b", number);
    assert_same_bits(found->d_bias, strict->d_bias, N, "d_bias", number);
    assert_same_bits(found->grad_pre, strict->grad_pre, M * N, "grad_pre", number);
    free(strict);
    free(found);
}

static void fill_layer(product *p, float *grad) {
    fill(p, of_positive, of_positive); /* where act' is not 0 */
    for (int j = 0; j < M * N; j++) grad[j] = (float)normal();
}

static void a_refused_call_leaves_nothing_behind(void **unused) {
    (void)unused;
    const both b = open_both();
    product p = make_product(128);
    float *grad = need_memory(sizeof(float) * M * N);
    for (int i = 0; i < 4; i++) {
        const bool in_place = i % 2 != 0, from_pre = i / 2 != 0;
        fill_layer(&p, grad);
        /* grad itself, or its product with relu2' = 2 pre. */
        grad[1234] = from_pre ? 5e7F : 1e20F;
        check_backward(b, &p, from_pre ? EG_ACT_RELU2 : EG_ACT_GELU, in_place ? GRAD_IN_PLACE : APART, grad,
                       (double)grad[1234]);
    }
    /* B, met first or when parts of it are in use already; for d_a alone without an activation. */
    for (int i = 0; i < 4; i++) {
        float *number = &p.b[i / 2 != 0 ? 128 * N - 1 : 0];
        fill_layer(&p, grad);
        *number = 6.8e7F;
        check_backward(b, &p, i % 2 != 0 ? EG_ACT_NONE : EG_ACT_GELU, APART, grad, (double)*number);
    }
    /* A, which d_b alone reads without an activation; B and grad: before d_a is added to. */
    for (int i = 0; i < 6; i++) {
        float *const numbers[] = {&p.a[M * 128 - 1], &p.b[128 * N - 1], &grad[M * N - 1]};
        fill_layer(&p, grad);
        *numbers[i % 3] = 6.8e7F;
        check_backward(b, &p, i / 3 != 0 ? EG_ACT_NONE : EG_ACT_GELU, INTO_D_A, grad, 6.8e7);
    }
    free(grad);
    free_product(&p);
    close_both(b);
}

/* y = A·B + y: what y takes the place of is still there when the call is made anew. */
static void add_product(eg_context *context, const product *p, eg_math math, float *y) {
    const eg_layer layer = {.size = sizeof layer, .m = M, .k = 128, .n = N, .batch = 1, .math = math};
    const eg_forward_args args = {.size = sizeof args,
                                  .a = {.data = p->a},
                                  .b = {.data = p->b},
                                  .residual = {.data = y},
                                  .y = {.data = y}};
    for (int j = 0; j < M * N; j++) y[j] = 1;
    assert_ok(eg_forward(context, &layer, &args));
}

static void a_refused_call_adds_its_residual_once(void **unused) {
    (void)unused;
    const both b = open_both();
    product p = make_product(128);
    float *strict = need_memory(sizeof(float) * M * N), *found = need_memory(sizeof(float) * M * N);
    fill(&p, of_normal, of_normal);
    p.b[128 * N - 1] = 6.8e7F;
    add_product(b.strictly, &p, EG_MATH_STRICT, strict);
    add_product(b.split, &p, EG_MATH_DEFAULT, found);
    assert_same_bits(found, strict, M * N, "y", 6.8e7);
    free(strict);
    free(found);
    free_product(&p);
    close_both(b);
}

/* A pack made for a layer of `packed_m` rows against none, in a layer of m, which may take another kernel. */
static void check_pack(eg_context *context, eg_dtype dtype, int64_t packed_m, int64_t m) {
    enum { SIDE = 256, MOST = 512 * SIDE };
    static float numbers[MOST];
    static _Alignas(64) char a[MOST * 4], b[MOST * 4], plain[MOST * 4], packed_y[MOST * 4];
    for (int i = 0; i < MOST; i++) numbers[i] = (float)normal();
    assert_ok(eg_convert(a, dtype, numbers, EG_F32, MOST));
    assert_ok(eg_convert(b, dtype, numbers, EG_F32, MOST));
    eg_layer layer = {.size = sizeof layer, .m = packed_m, .k = SIDE, .n = SIDE, .batch = 1, .dtype = dtype};
    eg_packed *packed = NULL;
    assert_ok(eg_pack_b(context, &layer, &(eg_matrix){.data = b}, &packed));
    layer.m = m;
    eg_forward_args args = {.size = sizeof args, .a = {.data = a}, .b = {.data = b}, .y = {.data = plain}};
    assert_ok(eg_forward(context, &layer, &args));
    args.b.data = NULL;
    args.packed_b = packed;
    args.y.data = packed_y;
    assert_ok(eg_forward(context, &layer, &args));
    const size_t bytes = (size_t)(m * SIDE) * eg_dtype_size(dtype);
    if (memcmp(plain, packed_y, bytes) != 0)
        fail_msg("%s: a pack of %lld rows differs in %lld", eg_dtype_name(dtype), (long long)packed_m,
                 (long long)m);
    eg_packed_free(context, packed);
}

static void a_pack_fits_layers_of_any_height(void **unused) {
    (void)unused;
    static const eg_dtype dtypes[] = {EG_F32, EG_F16, EG_BF16};
    eg_context *context = open_cpu(2);
    state = 5;
    for (size_t i = 0; i < LENGTH(dtypes); i++) {
        check_pack(context, dtypes[i], 1, 512);
        check_pack(context, dtypes[i], 512, 1);
    }
    eg_close(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(never_less_accurate_than_multiply_adds),
        cmocka_unit_test(numbers_without_a_sum_are_multiplied_all_the_same),
        cmocka_unit_test(a_refused_call_leaves_nothing_behind),
        cmocka_unit_test(a_refused_call_adds_its_residual_once),
        cmocka_unit_test(a_pack_fits_layers_of_any_height),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
