/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels whose blocks or warps share work: products whose last tiles are split along the depth, and tiles
 * that two consumers make in turn. Sums of small whole numbers are exact in any order, so they have the bits
 * of kernels that share nothing. A row that is asked for by name splits tiles wherever it can. */
#include "needs_device.h"
#include "short.h"

enum { A, B, BIAS, GRAD, PRE, Y, GRAD_PRE, D_BIAS, D_A, D_B, OPERANDS };

typedef struct layer_case {
    int64_t m, k, n, batch;
    bool one_b;           /* for all items, which then lie apart: d_b is summed over them in the kernel */
    bool accumulate, f32; /* d_b in f32 */
    bool apart;           /* rows, which begin on 16 bytes and end anywhere; batch 1 */
} layer_case;

/* On 132 multiprocessors (66 clusters), tiles of A·B by 256 columns, d_a and d_b: */
static const layer_case tail_cases[] = {
    {700, 136, 264, .batch = 1},   /* 6, 3 and 2; a few k-blocks of each */
    {17408, 256, 264, .batch = 1}, /* 136, 68 and 2 of 272 k-blocks: after whole waves, many helpers a tile */
    {33280, 256, 72, .batch = 1},  /* 130, 130: tiles for nearly all clusters, many partial tiles a helper */
    {300, 200, 264, .batch = 70},  /* 280, 140 and 140, of items of a batch */
    {300, 200, 264, 7, .one_b = true}, /* d_b: 2 of 35 k-blocks, of seven items */
    {1000, 4104, 520, .batch = 1},     /* 12, 68 and 51; more k-blocks in A·B than in the others */
    {700, 133, 259, .batch = 1, .apart = true},
    {700, 1029, 515, .batch = 1, .apart = true, .accumulate = true},
    {700, 261, 1029, .batch = 1, .apart = true, .accumulate = true, .f32 = true},
};

/* Tiles of A·B by 128 columns, which the consumers of a cluster make in turn: */
static const layer_case turn_cases[] = {
    {2312, 8, 2568, .batch = 1},   /* 210; products wait for epilogues */
    {4104, 200, 4104, .batch = 1}, /* 561; rows and columns that fill no tile */
    {300, 136, 264, .batch = 70},  /* 420, of items of a batch */
    {300, 136, 264, 70, .one_b = true},
    {520, 4104, 8456, .batch = 1}, /* 201; epilogues wait for products */
    {700, 136, 264, .batch = 1},   /* 9, each a cluster's only one */
    {4104, 197, 4104, .batch = 1, .apart = true},
    {2312, 520, 2568, .batch = 1, .accumulate = true},
    {700, 261, 1029, .batch = 1, .apart = true, .accumulate = true, .f32 = true},
    /* d_b: 357, 198 and 288, of several a block, whose results are read before they are added to. */
    {72, 2568, 2056, .batch = 1, .accumulate = true, .f32 = true},
    {200, 1029, 2770, .batch = 1, .apart = true, .accumulate = true, .f32 = true},
    {136, 1480, 1480, .batch = 2, .accumulate = true, .f32 = true},
};

/* Small tiles: parts of depths from one k-block to many, of full tiles and others, of items. */
static const layer_case few_rows_cases[] = {
    {16, 100, 264, .batch = 1},
    {7, 264, 520, .batch = 1},
    {16, 1000, 72, .batch = 1},
    {1, 8200, 1032, .batch = 1},
    {13, 520, 136, .batch = 5},
    {8, 264, 136, 3, .one_b = true},
    {9, 1029, 515, .batch = 1, .apart = true, .accumulate = true},
};
static const layer_case streamed_cases[] = {
    {7, 264, 520, .batch = 1}, {1, 8200, 1032, .batch = 1},     {8, 1000, 72, .batch = 1},
    {5, 520, 136, .batch = 5}, {8, 264, 136, 3, .one_b = true}, {3, 48, 16, .batch = 1, .apart = true},
};
static const layer_case streamed_16_cases[] = {
    {16, 1000, 72, .batch = 1},
    {13, 520, 136, .batch = 5},
    {9, 8200, 264, .batch = 1, .apart = true},
};
/* Lines that begin anywhere; short rows; few outer products. */
static const layer_case odd_cases[] = {
    {16, 1003, 71, .batch = 1}, {1, 8197, 1035, .batch = 1}, {7, 261, 519, .batch = 1},
    {13, 520, 136, .batch = 5}, {9, 131, 57, .batch = 3},    {5, 33, 1, .batch = 1},
    {2, 7, 4097, .batch = 1},
};
static const layer_case tall_cases[] = {{1000, 30, 50, .batch = 1},
                                        {33, 64, 64, .batch = 2},
                                        {7, 17, 8, .batch = 1},
                                        {129, 8, 60, .batch = 1},
                                        {100, 17, 33, .batch = 1, .apart = true}};
static const layer_case outer_cases[] = {
    {1, 300, 520, .batch = 1}, {16, 65, 129, .batch = 1},
    {5, 520, 136, .batch = 5}, {9, 261, 515, .batch = 1, .apart = true, .accumulate = true},
    {3, 1, 1000, .batch = 1},  {16, 261, 1029, .batch = 1, .apart = true, .accumulate = true, .f32 = true},
};
static const layer_case few_cols_cases[] = {
    {1000, 72, 16, .batch = 1},
    {264, 1000, 3, .batch = 1},
    {8200, 4104, 10, .batch = 1},
    {264, 520, 16, .batch = 5},
    {136, 264, 8, 3, .one_b = true},
    {1029, 515, 9, .batch = 1, .apart = true, .accumulate = true, .f32 = true},
};
static const layer_case few_tiles_cases[] = {
    {100, 72, 136, .batch = 1},
    {64, 1000, 264, .batch = 1},
    {264, 8200, 72, .batch = 1},
    {72, 264, 136, 7, .one_b = true},
    {133, 1029, 515, .batch = 1, .apart = true, .accumulate = true},
};

/* The row for a product, and the outputs that it makes. A row that is asked for by name is the only one for
 * all products of a call. */
typedef struct product {
    const char *kernel;
    int first, last;  /* outputs */
    eg_layout layout; /* of B */
} product;

static const product tail_products[] = {
    {"hopper_bf16_stream_k_nn_128x256", Y, Y, EG_ROW_MAJOR},
    {"hopper_bf16_stream_k_nn_128x256", GRAD_PRE, D_BIAS, EG_ROW_MAJOR},
    {"hopper_bf16_stream_k_nt_128x256", D_A, D_A, EG_ROW_MAJOR},
    {"hopper_bf16_stream_k_tn_128x256", D_B, D_B, EG_ROW_MAJOR},
};
static const product in_turn[] = {
    {"hopper_bf16_pingpong_nn_128x128", Y, Y, EG_ROW_MAJOR},
    {"hopper_bf16_pingpong_nn_128x128", GRAD_PRE, D_BIAS, EG_ROW_MAJOR},
    {"hopper_bf16_pingpong_nt_128x128", GRAD_PRE, D_BIAS, EG_COL_MAJOR},
    {"hopper_bf16_pingpong_nt_128x128", D_A, D_A, EG_ROW_MAJOR},
    {"hopper_bf16_pingpong_tn_128x128", D_B, D_B, EG_ROW_MAJOR},
};
static const product few_rows[] = {
    {"mma_bf16_16x64", Y, Y, EG_ROW_MAJOR},
    {"mma_bf16_16x64", GRAD_PRE, D_BIAS, EG_COL_MAJOR},
    {"mma_bf16_16x64", D_A, D_A, EG_ROW_MAJOR},
    {"mma_bf16_16x64", D_A, D_A, EG_COL_MAJOR},
};
static const product streamed[] = {
    {"few_bf16_nn_16x64", Y, Y, EG_ROW_MAJOR},
    {"few_bf16_nn_16x64", GRAD_PRE, D_BIAS, EG_ROW_MAJOR},
    {"few_bf16_nn_16x64", D_A, D_A, EG_COL_MAJOR},
    {"few_bf16_nt_8x16", D_A, D_A, EG_ROW_MAJOR},
    {"few_bf16_nt_8x16", GRAD_PRE, D_BIAS, EG_COL_MAJOR},
    {"few_bf16_nt_8x128", D_A, D_A, EG_ROW_MAJOR},
};
static const product streamed_16[] = {
    {"few_bf16_nn_16x64", Y, Y, EG_ROW_MAJOR},
    {"few_bf16_nn_16x64", D_A, D_A, EG_COL_MAJOR},
    {"few_bf16_nt_16x16", GRAD_PRE, D_BIAS, EG_COL_MAJOR},
    {"few_bf16_nt_16x16", D_A, D_A, EG_ROW_MAJOR},
    {"few_bf16_nt_16x128", GRAD_PRE, D_BIAS, EG_COL_MAJOR},
};
static const product odd_rows[] = {
    {"few_bf16_odd_nn_16x56", Y, Y, EG_ROW_MAJOR},
    {"few_bf16_odd_nn_16x56", GRAD_PRE, D_BIAS, EG_ROW_MAJOR},
    {"few_bf16_odd_nn_16x56", D_A, D_A, EG_COL_MAJOR},
    {"few_bf16_odd_nt_16x16", GRAD_PRE, D_BIAS, EG_COL_MAJOR},
    {"few_bf16_odd_nt_16x16", D_A, D_A, EG_ROW_MAJOR},
};
static const product tall[] = {
    {"tall_bf16_32x64", Y, Y, EG_ROW_MAJOR},
    {"tall_bf16_32x64", GRAD_PRE, D_BIAS, EG_COL_MAJOR},
    {"tall_bf16_32x64", D_A, D_A, EG_ROW_MAJOR},
};
static const product odd_rows_8[] = {
    {"few_bf16_odd_nn_8x112", Y, Y, EG_ROW_MAJOR},
    {"few_bf16_odd_nn_8x112", D_A, D_A, EG_COL_MAJOR},
    {"few_bf16_odd_nt_8x16", GRAD_PRE, D_BIAS, EG_COL_MAJOR},
};
static const product outer = {"outer_f32", D_B, D_B, EG_ROW_MAJOR},
                     outer_add = {"outer_add_f32", D_B, D_B, EG_ROW_MAJOR};
static const product few_cols[] = {
    {"mma_bf16_64x16", Y, Y, EG_ROW_MAJOR},
    {"mma_bf16_64x16", GRAD_PRE, D_BIAS, EG_COL_MAJOR},
    {"mma_bf16_64x16", D_B, D_B, EG_ROW_MAJOR},
};
static const product few_tiles[] = {
    {"mma_bf16_64x64", Y, Y, EG_COL_MAJOR},
    {"mma_bf16_64x64", GRAD_PRE, D_BIAS, EG_ROW_MAJOR},
    {"mma_bf16_64x64", D_A, D_A, EG_ROW_MAJOR},
    {"mma_bf16_64x64", D_B, D_B, EG_ROW_MAJOR},
};
static const char *const alone = "mma_bf16_128x128";

/* The shape of an operand, elements from row to row, and from item to item: 32 more than it has, where items
 * lie apart. Around an operand there are 32, too, which a product has to leave as they are. */
enum { AROUND = 32 };
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
static size_t element_of(const layer_case *c, int operand) {
    return operand == D_B && c->f32 ? sizeof(float) : sizeof(uint16_t);
}
static int64_t ld_of(const layer_case *c, int operand) {
    return c->apart ? (cols_of(c, operand) + 7) / 8 * 8 : cols_of(c, operand);
}
/* B has as many rows by columns as it has columns by rows, at most. */
static int64_t stride_of(const layer_case *c, int operand) {
    const int64_t rows = rows_of(c, operand), by_rows = rows * ld_of(c, operand);
    const int64_t by_columns = operand == B && c->apart ? (rows + 7) / 8 * 8 * cols_of(c, operand) : 0;
    return (by_rows > by_columns ? by_rows : by_columns) + (c->one_b ? 32 : 0);
}
static size_t bytes_of(const layer_case *c, int operand) {
    const int64_t elements = stride_of(c, operand) * (shared(c, operand) ? 1 : c->batch);
    return (size_t)(elements + 2 * AROUND) * element_of(c, operand);
}

/* -1, 0 and 1 in bf16; outputs are poisoned, where nothing is added to them. */
static void fill(const layer_case *c, uint16_t *to, size_t count, int operand) {
    static const uint16_t numbers[] = {0xbf80, 0, 0x3f80};
    const bool added_to = c->accumulate && (operand == D_B || operand == D_BIAS);
    uint32_t seed = (uint32_t)operand + 1;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        to[i] = operand >= Y && !added_to ? 0x7fc0 : numbers[(seed >> 16) % 3];
        if (added_to && element_of(c, operand) == sizeof(float) && i % 2 == 0)
            to[i] = 0; /* low half of an f32 */
    }
}

static eg_matrix matrix(const layer_case *c, void *const *memory, int operand) {
    return (eg_matrix){.data = memory[operand],
                       .offset = AROUND * element_of(c, operand),
                       .ld = ld_of(c, operand),
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
    if (x->layout == EG_COL_MAJOR) backward.b.ld = c->apart ? (c->k + 7) / 8 * 8 : c->k;
    if (x->first == Y) {
        assert_ok(eg_forward(context, &layer, &forward));
        return;
    }
    if (x->first == GRAD_PRE) {
        layer.activation = EG_ACT_RELU;
        backward.bias = (eg_vector){.data = memory[BIAS], .offset = AROUND * sizeof(uint16_t)};
        backward.grad_pre = matrix(c, memory, GRAD_PRE);
        backward.d_bias = (eg_vector){.data = memory[D_BIAS], .offset = AROUND * sizeof(uint16_t)};
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

static void split_tiles_have_the_bits_of_whole_ones(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(tail_cases); i++)
        for (size_t j = 0; j < LENGTH(tail_products); j++) check(&tail_cases[i], &tail_products[j]);
}

static void tiles_made_in_turn_have_the_bits_of_others(void **state) {
    (void)state;
    const size_t cases = short_run() ? 1 : LENGTH(turn_cases);
    for (size_t i = 0; i < cases; i++)
        for (size_t j = 0; j < LENGTH(in_turn); j++) check(&turn_cases[i], &in_turn[j]);
}

static void parts_of_a_depth_have_the_bits_of_the_whole(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(few_rows_cases); i++)
        for (size_t j = 0; j < LENGTH(few_rows); j++) check(&few_rows_cases[i], &few_rows[j]);
    for (size_t i = 0; i < LENGTH(streamed_cases); i++)
        for (size_t j = 0; j < LENGTH(streamed); j++) check(&streamed_cases[i], &streamed[j]);
    for (size_t i = 0; i < LENGTH(streamed_16_cases); i++)
        for (size_t j = 0; j < LENGTH(streamed_16); j++) check(&streamed_16_cases[i], &streamed_16[j]);
    for (size_t i = 0; i < LENGTH(odd_cases); i++)
        for (size_t j = 0; j < LENGTH(odd_rows); j++) check(&odd_cases[i], &odd_rows[j]);
    for (size_t i = 0; i < LENGTH(odd_cases); i++)
        for (size_t j = 0; j < LENGTH(odd_rows_8) && odd_cases[i].m <= 8; j++)
            check(&odd_cases[i], &odd_rows_8[j]);
    for (size_t i = 0; i < LENGTH(tall_cases); i++)
        for (size_t j = 0; j < LENGTH(tall); j++) check(&tall_cases[i], &tall[j]);
    for (size_t i = 0; i < LENGTH(outer_cases); i++) {
        check(&outer_cases[i], &outer_add);
        if (!outer_cases[i].accumulate) check(&outer_cases[i], &outer);
    }
    for (size_t i = 0; i < LENGTH(few_cols_cases); i++)
        for (size_t j = 0; j < LENGTH(few_cols); j++) check(&few_cols_cases[i], &few_cols[j]);
    for (size_t i = 0; i < LENGTH(few_tiles_cases); i++)
        for (size_t j = 0; j < LENGTH(few_tiles); j++) check(&few_tiles_cases[i], &few_tiles[j]);
}

/* ---- Sums of columns ---------------------------------------------------------------------------- */

enum { ROWS = 20, DEPTH = 16, COLS = 24, ODD_ROW = 2, ONE = 0x3f80, INFINITE = 0x7f80 };

/* Ones, but for an infinity in a row of B, of a layer whose rows fill no tile. */
static void upload_ones(eg_context *context, void *memory, bool is_b) {
    uint16_t ones[ROWS * COLS];
    for (size_t i = 0; i < LENGTH(ones); i++) ones[i] = ONE;
    if (is_b) ones[ODD_ROW * COLS + 5] = INFINITE;
    assert_ok(eg_upload(context, memory, 0, ones, sizeof ones));
}

/* The sums of columns of grad_pre = relu'(A·B), or of d_a = grad·Bᵀ for the layer below. */
static void sums_beside_an_infinity(const char *kernel, bool below, uint16_t *sums, size_t bytes) {
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_CUDA, .kernel = kernel};
    const eg_layer layer = {.size = sizeof layer,
                            .m = ROWS,
                            .k = DEPTH,
                            .n = COLS,
                            .batch = 1,
                            .dtype = EG_BF16,
                            .activation = below ? EG_ACT_NONE : EG_ACT_RELU,
                            .nonfinite = EG_NONFINITE_PROPAGATE};
    eg_context *context = NULL;
    void *memory[6];
    assert_ok(eg_open(&info, &context));
    for (size_t i = 0; i < LENGTH(memory); i++) {
        assert_ok(eg_alloc(context, ROWS * COLS * sizeof(uint16_t), &memory[i]));
        upload_ones(context, memory[i], i == 1);
    }
    eg_backward_args args = {
        .size = sizeof args, .a = {.data = memory[0]}, .b = {.data = memory[1]}, .grad = {.data = memory[2]}};
    if (below) {
        args.d_a.data = memory[3];
        args.chain = (eg_chain){.saved = {.data = memory[4]},
                                .source = EG_SOURCE_PRE,
                                .activation = EG_ACT_RELU,
                                .d_bias = {.data = memory[5]}};
    } else {
        args.grad_pre.data = memory[3];
        args.d_bias.data = memory[5];
    }
    assert_ok(eg_backward(context, &layer, &args));
    assert_ok(eg_download(context, sums, memory[5], 0, bytes));
    for (size_t i = 0; i < LENGTH(memory); i++) eg_free(context, memory[i]);
    eg_close(context);
}

/* A tile's rows that the result has not are zeros times B, and NaN where B is infinite. */
static void rows_outside_a_result_are_in_no_sum(void **state) {
    static const char *const act_grad[] = {"hopper_bf16_nn_128x128",
                                           "hopper_bf16_nn_128x256",
                                           "hopper_bf16_stream_k_nn_128x256",
                                           "hopper_bf16_pingpong_nn_128x128",
                                           "mma_bf16_128x128",
                                           "mma_bf16_64x64"},
                             *const chain[] = {"hopper_bf16_nt_128x128",
                                               "hopper_bf16_nt_128x256",
                                               "hopper_bf16_stream_k_nt_128x256",
                                               "hopper_bf16_pingpong_nt_128x128",
                                               "mma_bf16_128x128",
                                               "mma_bf16_64x64"};
    enum { TWENTY = 0x41a0, ALL = 0x43f0 /* 20 rows of 24 */ };
    uint16_t sums[COLS];
    (void)state;
    for (size_t i = 0; i < LENGTH(act_grad); i++) {
        sums_beside_an_infinity(act_grad[i], false, sums, sizeof sums);
        for (int col = 0; col < COLS; col++)
            if (sums[col] != TWENTY) fail_msg("%s: column %d is %#x", act_grad[i], col, sums[col]);
    }
    for (size_t i = 0; i < LENGTH(chain); i++) {
        sums_beside_an_infinity(chain[i], true, sums, DEPTH * sizeof *sums);
        for (int col = 0; col < DEPTH; col++)
            if (sums[col] != (col == ODD_ROW ? INFINITE : ALL))
                fail_msg("%s: column %d below is %#x", chain[i], col, sums[col]);
    }
}

int main(int argc, char **argv) {
    const int status = status_without(tail_products[0].kernel);
    const struct CMUnitTest tests[] = {cmocka_unit_test(split_tiles_have_the_bits_of_whole_ones),
                                       cmocka_unit_test(tiles_made_in_turn_have_the_bits_of_others),
                                       cmocka_unit_test(parts_of_a_depth_have_the_bits_of_the_whole),
                                       cmocka_unit_test(rows_outside_a_result_are_in_no_sum)};
    if (argc == 2) cmocka_set_test_filter(argv[1]);
    return status != 0 ? status : cmocka_run_group_tests(tests, NULL, NULL);
}
