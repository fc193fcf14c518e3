/* Kernels whose blocks or warps share work: products whose last tiles are cut along the depth, d_a and d_b in
 * one launch with the pass, and A·B with act' finished beside the next tile's products. Sums of small whole
 * numbers are exact in any order, so they have the bits of kernels that share nothing. A row that is asked
 * for by name cuts or pools wherever it can. */
#include "short.h"
#include "support.h"

enum { A, B, BIAS, GRAD, PRE, Y, GRAD_PRE, D_BIAS, D_A, D_B, OPERANDS };

typedef struct layer_case {
    int64_t m, k, n, batch;
    bool one_b;           /* for all items, which then lie apart: d_b is summed over them in the kernel */
    bool accumulate, f32; /* d_b in f32 */
} layer_case;

/* On 132 multiprocessors (66 clusters), tiles of A·B by 256 columns, d_a and d_b: */
static const layer_case cut_cases[] = {
    {700, 136, 264, .batch = 1},   /* 6, 3 and 2; a few strips of each */
    {17408, 256, 264, .batch = 1}, /* 136, 68 and 2 of 272 strips: after whole waves, many helpers a tile */
    {33280, 256, 72, .batch = 1},  /* 130, 130: tiles for nearly all clusters, many pieces a helper */
    {300, 200, 264, .batch = 70},  /* 280, 140 and 140, of items of a batch */
    {300, 200, 264, 7, .one_b = true}, /* d_b: 2 of 35 strips, of seven items */
    {1000, 4104, 520, .batch = 1},     /* 12, 68 and 51; more strips in A·B than in the others */
};

/* Tiles of d_b and d_a: */
static const layer_case pool_cases[] = {
    {520, 8, 520, .batch = 1},                         /* 3 and 3, as short as they may be */
    {8192, 768, 3072, .batch = 1},                     /* 36 and 96 */
    {4100, 520, 1032, .batch = 1, .accumulate = true}, /* 15 and 51; rows and columns that fill no tile */
    {600, 4104, 2056, .batch = 1, .accumulate = true}, /* 153 and 51: the passers make tiles of d_b too */
    {3000, 1032, 1544, .batch = 1, .f32 = true},       /* 35 and 60 */
    {520, 264, 16392, .batch = 1},                     /* all but one cluster pass */
};

/* Tiles of A·B, of which a cluster finishes all but the last beside its products: */
static const layer_case relay_cases[] = {
    {2312, 8, 2568, .batch = 1},   /* 110; the sums wait for who finishes */
    {4104, 200, 4104, .batch = 1}, /* 289; rows and columns that fill no tile */
    {300, 136, 264, .batch = 70},  /* 280, of items of a batch */
    {300, 136, 264, 70, .one_b = true},
    {520, 4104, 8456, .batch = 1}, /* 102; who finishes waits for the sums */
    {700, 136, 264, .batch = 1},   /* 6, each a cluster's last */
};

/* The row for a product, and the outputs that it makes. A row that is asked for by name is the only one for
 * all products of a call. */
typedef struct product {
    const char *kernel;
    int first, last;  /* outputs */
    eg_layout layout; /* of B */
} product;

static const product cut_products[] = {
    {"hopper_bf16_cut_rr_128x256", Y, Y, EG_ROW_MAJOR},
    {"hopper_bf16_cut_rr_128x256", GRAD_PRE, D_BIAS, EG_ROW_MAJOR},
    {"hopper_bf16_cut_rc_128x256", D_A, D_A, EG_ROW_MAJOR},
    {"hopper_bf16_cut_cr_128x256", D_B, D_B, EG_ROW_MAJOR},
};
static const product pools[] = {
    {"hopper_bf16_pool_c_128x256", GRAD_PRE, D_B, EG_ROW_MAJOR},
    {"hopper_bf16_pool_r_128x256", GRAD_PRE, D_B, EG_COL_MAJOR},
};
static const product relays[] = {
    {"hopper_bf16_relay_rr_128x256", GRAD_PRE, D_BIAS, EG_ROW_MAJOR},
    {"hopper_bf16_relay_rc_128x256", GRAD_PRE, D_BIAS, EG_COL_MAJOR},
};
static const char *const alone = "mma_bf16_128x128";

/* The shape of an operand, and its bytes from item to item: 64 more than it has, where items lie apart. */
static int64_t rows_of(const layer_case *c, int operand) {
    const int64_t rows[OPERANDS] = {c->m, c->k, 1, c->m, c->m, c->m, c->m, 1, c->m, c->k};
    return rows[operand];
}
static int64_t cols_of(const layer_case *c, int operand) {
    return operand == A || operand == D_A ? c->k : c->n;
}
static bool shared(const layer_case *c, int operand) {
    return operand == BIAS || operand == D_BIAS || (c->one_b && (operand == B || operand == D_B));
}
static int64_t stride_of(const layer_case *c, int operand) {
    return rows_of(c, operand) * cols_of(c, operand) + (c->one_b ? 32 : 0);
}
static size_t bytes_of(const layer_case *c, int operand) {
    const size_t each = operand == D_B && c->f32 ? sizeof(float) : sizeof(uint16_t);
    return (size_t)(stride_of(c, operand) * (shared(c, operand) ? 1 : c->batch)) * each;
}

/* -1, 0 and 1 in bf16; outputs are poisoned, where nothing is added to them. */
static void fill(const layer_case *c, uint16_t *to, size_t count, int operand) {
    static const uint16_t numbers[] = {0xbf80, 0, 0x3f80};
    const bool added_to = c->accumulate && (operand == D_B || operand == D_BIAS);
    uint32_t seed = (uint32_t)operand + 1;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        to[i] = operand >= Y && !added_to ? 0x7fc0 : numbers[(seed >> 16) % 3];
    }
}

static eg_matrix matrix(const layer_case *c, void *const *memory, int operand) {
    return (eg_matrix){.data = memory[operand],
                       .batch_stride = shared(c, operand) ? 0 : stride_of(c, operand)};
}

/* One product: A.B as it is or with relu', or one of the others with a grad_pre that is grad; or all of a
 * backward from PRE. */
static void run(eg_context *context, const layer_case *c, void *const *memory, const product *x) {
    eg_layer layer = {
        .size = sizeof layer, .m = c->m, .k = c->k, .n = c->n, .batch = c->batch, .dtype = EG_BF16};
    const eg_forward_args forward = {.size = sizeof forward,
                                     .a = matrix(c, memory, A),
                                     .b = matrix(c, memory, B),
                                     .y = matrix(c, memory, Y)};
    eg_backward_args backward = {.size = sizeof backward,
                                 .a = matrix(c, memory, A),
                                 .b = matrix(c, memory, B),
                                 .grad = matrix(c, memory, GRAD),
                                 .accumulate = c->accumulate};
    backward.b.layout = x->layout;
    if (x->first == Y) {
        assert_ok(eg_forward(context, &layer, &forward));
        return;
    }
    if (x->first == GRAD_PRE) {
        layer.activation = EG_ACT_RELU;
        backward.bias.data = memory[BIAS];
        backward.grad_pre = matrix(c, memory, GRAD_PRE);
        backward.d_bias.data = memory[D_BIAS];
    }
    if (x->last == D_B && x->first < D_B) {
        backward.source = EG_SOURCE_PRE;
        backward.pre = matrix(c, memory, PRE);
    }
    if (x->first <= D_A && x->last >= D_A) backward.d_a = matrix(c, memory, D_A);
    if (x->last == D_B) backward.d_b = matrix(c, memory, D_B);
    if (c->f32) backward.d_b.dtype = EG_F32;
    assert_ok(eg_backward(context, &layer, &backward));
}

/* The product's outputs by the row named, one after another; the memory is the caller's. */
static unsigned char *outputs_of(const layer_case *c, const product *x, const char *kernel, size_t *bytes) {
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = kernel};
    eg_context *context = NULL;
    void *memory[OPERANDS];
    assert_ok(eg_open(&info, &context));
    for (int i = 0; i < OPERANDS; i++) {
        const size_t size = bytes_of(c, i);
        uint16_t *host = need_memory(size);
        fill(c, host, size / sizeof *host, i);
        assert_ok(eg_alloc(context, size, &memory[i]));
        assert_ok(eg_upload(context, memory[i], 0, host, size));
        free(host);
    }
    run(context, c, memory, x);
    *bytes = 0;
    for (int i = x->first; i <= x->last; i++) *bytes += bytes_of(c, i);
    unsigned char *outputs = need_memory(*bytes);
    *bytes = 0;
    for (int i = x->first; i <= x->last; i++) {
        assert_ok(eg_download(context, outputs + *bytes, memory[i], 0, bytes_of(c, i)));
        *bytes += bytes_of(c, i);
    }
    for (int i = 0; i < OPERANDS; i++) eg_free(context, memory[i]);
    eg_close(context);
    return outputs;
}

static void check(const layer_case *c, const product *x) {
    size_t bytes, same;
    unsigned char *wanted = outputs_of(c, x, alone, &bytes), *got = outputs_of(c, x, x->kernel, &same);
    if (memcmp(got, wanted, bytes) != 0)
        fail_msg("%lld x %lld x %lld by %s", (long long)c->m, (long long)c->k, (long long)c->n, x->kernel);
    free(got);
    free(wanted);
}

static void cut_tiles_have_the_bits_of_whole_ones(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(cut_cases); i++)
        for (size_t j = 0; j < LENGTH(cut_products); j++) check(&cut_cases[i], &cut_products[j]);
}

static void a_pool_has_the_bits_of_a_kernel_for_each_step(void **state) {
    (void)state;
    const size_t cases = short_run() ? 1 : LENGTH(pool_cases);
    for (size_t i = 0; i < cases; i++)
        for (size_t j = 0; j < LENGTH(pools); j++) check(&pool_cases[i], &pools[j]);
}

static void a_relay_has_the_bits_of_who_finishes_alone(void **state) {
    (void)state;
    const size_t cases = short_run() ? 1 : LENGTH(relay_cases);
    for (size_t i = 0; i < cases; i++)
        for (size_t j = 0; j < LENGTH(relays); j++) check(&relay_cases[i], &relays[j]);
}

/* 77: there is no device, or none with these kernels. */
static int start(void) {
    const eg_open_info info = {
        .size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = cut_products[0].kernel};
    eg_context *context = NULL;
    if (eg_open(&info, &context) != EG_OK) {
        printf("%s\n", eg_last_error());
        return 77;
    }
    eg_close(context);
    return 0;
}

int main(int argc, char **argv) {
    const int status = start();
    const struct CMUnitTest tests[] = {cmocka_unit_test(cut_tiles_have_the_bits_of_whole_ones),
                                       cmocka_unit_test(a_pool_has_the_bits_of_a_kernel_for_each_step),
                                       cmocka_unit_test(a_relay_has_the_bits_of_who_finishes_alone)};
    if (argc == 2) cmocka_set_test_filter(argv[1]);
    return status != 0 ? status : cmocka_run_group_tests(tests, NULL, NULL);
}
