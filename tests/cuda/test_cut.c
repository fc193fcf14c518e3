/* Products whose last tiles are cut along the depth: sums of small whole numbers are exact in any order, so
 * they have the bits of a kernel that cuts nothing. A row that is asked for by name cuts wherever it can. */
#include "support.h"

enum { A, B, BIAS, GRAD, Y, GRAD_PRE, D_BIAS, D_A, D_B, OPERANDS };

typedef struct layer_case {
    int64_t m, k, n, batch;
    bool one_b; /* for all items, which then lie apart: d_b is summed over them in the kernel */
} layer_case;

/* On 132 multiprocessors (66 clusters), tiles of A·B by 256 columns, d_a and d_b: */
static const layer_case cases[] = {
    {700, 136, 264, 1, false},   /* 6, 3 and 2; a few strips of each */
    {17408, 256, 264, 1, false}, /* 136, 68 and 2 of 272 strips: after whole waves, and many helpers a tile */
    {33280, 256, 72, 1, false},  /* 130, 130: tiles for nearly all clusters, many pieces a helper */
    {300, 200, 264, 70, false},  /* 280, 140 and 140, of items of a batch */
    {300, 200, 264, 7, true},    /* d_b: 2 of 35 strips, of seven items */
    {1000, 4104, 520, 1, false}, /* 12, 68 and 51; more strips in A·B than in the others */
};

/* The row for a product, and the outputs that it makes. A row that is asked for by name is the only one for
 * all products of a call. */
typedef struct product {
    const char *kernel;
    int first, last; /* outputs */
} product;

static const product products[] = {
    {"hopper_bf16_cut_rr_128x256", Y, Y},
    {"hopper_bf16_cut_rr_128x256", GRAD_PRE, D_BIAS},
    {"hopper_bf16_cut_rc_128x256", D_A, D_A},
    {"hopper_bf16_cut_cr_128x256", D_B, D_B},
};
static const char *const uncut = "mma_bf16_128x128";

/* The shape of an operand, and its bytes from item to item: 64 more than it has, where items lie apart. */
static int64_t rows_of(const layer_case *c, int operand) {
    const int64_t rows[OPERANDS] = {c->m, c->k, 1, c->m, c->m, c->m, 1, c->m, c->k};
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
    return (size_t)(stride_of(c, operand) * (shared(c, operand) ? 1 : c->batch)) * sizeof(uint16_t);
}

/* -1, 0 and 1 in bf16; outputs are poisoned. */
static void fill(uint16_t *to, size_t count, int operand) {
    static const uint16_t numbers[] = {0xbf80, 0, 0x3f80};
    uint32_t seed = (uint32_t)operand + 1;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        to[i] = operand >= Y ? 0x7fc0 : numbers[(seed >> 16) % 3];
    }
}

static eg_matrix matrix(const layer_case *c, void *const *memory, int operand) {
    return (eg_matrix){.data = memory[operand],
                       .batch_stride = shared(c, operand) ? 0 : stride_of(c, operand)};
}

/* One product: A.B as it is or with relu', or one of the others with a grad_pre that is grad. */
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
                                 .grad = matrix(c, memory, GRAD)};
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
    if (x->first == D_A) backward.d_a = matrix(c, memory, D_A);
    if (x->first == D_B) backward.d_b = matrix(c, memory, D_B);
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
        fill(host, size / sizeof *host, i);
        assert_ok(eg_alloc(context, size, &memory[i]));
        assert_ok(eg_upload(context, memory[i], 0, host, size));
        free(host);
    }
    run(context, c, memory, x);
    unsigned char *outputs = need_memory(bytes_of(c, x->first) + bytes_of(c, x->last));
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
    unsigned char *wanted = outputs_of(c, x, uncut, &bytes), *got = outputs_of(c, x, x->kernel, &same);
    if (memcmp(got, wanted, bytes) != 0)
        fail_msg("%lld x %lld x %lld by %s", (long long)c->m, (long long)c->k, (long long)c->n, x->kernel);
    free(got);
    free(wanted);
}

static void cut_tiles_have_the_bits_of_whole_ones(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++)
        for (size_t j = 0; j < LENGTH(products); j++) check(&cases[i], &products[j]);
}

/* 77: there is no device, or none with these kernels. */
static int start(void) {
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = products[0].kernel};
    eg_context *context = NULL;
    if (eg_open(&info, &context) != EG_OK) {
        printf("%s\n", eg_last_error());
        return 77;
    }
    eg_close(context);
    return 0;
}

int main(void) {
    const int status = start();
    const struct CMUnitTest tests[] = {cmocka_unit_test(cut_tiles_have_the_bits_of_whole_ones)};
    return status != 0 ? status : cmocka_run_group_tests(tests, NULL, NULL);
}
