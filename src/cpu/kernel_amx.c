/* SPDX-License-Identifier: Apache-2.0 */
/* AMX (Sapphire Rapids and later): products of bf16 on the matrix unit, 16 x 16 x 32 an instruction. Numbers
 * of more bits are sums of bf16 terms.
 *
 *   amx_bf16x1   one term: bf16 itself
 *   amx_f16x4    two terms, all four products: f16 exactly
 *   amx_f32x3    two terms, three products: 16 bits, for EG_MATH_FAST
 *   amx_f32x6    three terms, the six products above 2^-24: as accurate as f32 multiply-adds. The other three
 *                products add nothing that an f32 sum would keep.
 *
 * A tile of 32 x 32 results takes four tile registers, and each operand two. Products that share a term
 * follow each other: so six products of three terms take 14 tile loads (8 cycles each) for 24 multiplications
 * (16 cycles each). */
#include <immintrin.h>
#include <limits.h>

#include "core/half.h"
#include "kernel.h"
#include "amx_tiles.h"

#define EG_VECTOR_BYTES 64
#define EG_KERNEL       amx
#define EG_REAL_BITS    32
#define EG_MR           32
#define EG_NV           2
#define EG_SCALED
#define EG_BF16_INSTRUCTIONS
#include "tile_template.h"
#include "amx_multiply.h"
#include "amx_split.h"
#include "amx_few_rows.h"

/* ---- By bf16 terms -------------------------------------------------------------------------------- */

#define UNSCALE(bf16_terms) ((bf16_terms) > 1 ? 0x1p-48F : 1)

/* `rows` rows of a whole tile from `row` on: x = product + bias becomes grad * act'(x). */
EG_INLINE void grad_rows(const eg_grad_rows *of, int64_t row, EG_T (*act_grad)(EG_T), const int bf16_terms,
                         const eg_dtype dtype, const int rows) {
    const EG_I kept = (EG_I){0} - (EG_V(word))of->propagate;
    const EG_T bias[2] = {EG_V(load)(of->bias), EG_V(load)(of->bias + EG_LANES)};
    EG_T sum[2] = {EG_V(load)(of->sums), EG_V(load)(of->sums + EG_LANES)};
    float *tile = of->tile + row * EG_AMX_BLOCK;
    const char *grad = of->grad + row * of->grad_step;
    for (int i = 0; i < rows; i++, tile += EG_AMX_BLOCK, grad += of->grad_step) {
        EG_UNROLL(2)
        for (int j = 0; j < 2; j++) {
            EG_T x = EG_V(load)(tile + j * EG_LANES);
            x = (bf16_terms > 1 ? x * UNSCALE(bf16_terms) : x) + bias[j];
            x = EG_V(unless_nan)(x, act_grad(x), kept);
            x *= EG_V(load_part)(grad + j * EG_LANES * (int64_t)eg_size_of(dtype), dtype, 0xffff);
            EG_V(store)(tile + j * EG_LANES, x);
            sum[j] += x;
        }
    }
    EG_V(store)(of->sums, sum[0]);
    EG_V(store)(of->sums + EG_LANES, sum[1]);
}

/* A row of a tile as numbers of `dtype`. */
EG_INLINE void store_row(char *to, const EG_T x[2], const eg_dtype dtype, bool non_temporal) {
    if (dtype == EG_F32) {
        store_line(to, (__m512i)x[0], non_temporal);
        store_line(to + 64, (__m512i)x[1], non_temporal);
    } else {
        store_line(to, two_to(x[0], x[1], dtype), non_temporal);
    }
}

/* `rows` rows of a whole tile from `row` on: act(product + bias). */
EG_INLINE void act_rows(const eg_act_rows *of, int64_t row, EG_T (*act)(EG_T), const bool is_identity,
                        const int bf16_terms, const eg_dtype dtype, const int rows) {
    const EG_T bias[2] = {EG_V(load)(of->bias), EG_V(load)(of->bias + EG_LANES)};
    const float *tile = of->tile + row * EG_AMX_BLOCK;
    char *out = of->out + row * of->out_step, *pre = of->pre;
    if (pre != NULL) pre += row * of->pre_step;
    for (int i = 0; i < rows; i++, tile += EG_AMX_BLOCK, out += of->out_step) {
        EG_T x[2];
        EG_UNROLL(2)
        for (int j = 0; j < 2; j++) {
            x[j] = EG_V(load)(tile + j * EG_LANES);
            x[j] = (bf16_terms > 1 ? x[j] * UNSCALE(bf16_terms) : x[j]) + bias[j];
        }
        if (pre != NULL) store_row(pre, x, dtype, of->non_temporal), pre += of->pre_step;
        if (!is_identity) {
            EG_UNROLL(2)
            for (int j = 0; j < 2; j++) x[j] = EG_V(unless_nan)(x[j], act(x[j]), ~(EG_I){0});
        }
        store_row(out, x, dtype, of->non_temporal);
    }
}

/* Between the few dots of a kernel of one product there is no time for many short steps. */
enum { ROWS_A_STEP_OF_BF16 = 4, ROWS_A_STEP = 1 };
#define EG_ROW(NAME, name, value, from_y, text)                                                              \
    static void grad_rows_bf16_##name(const eg_grad_rows *of, int64_t row) {                                 \
        grad_rows(of, row, EG_V(act_grad_##name), 1, EG_BF16, ROWS_A_STEP_OF_BF16);                          \
    }                                                                                                        \
    static void grad_rows_f16_##name(const eg_grad_rows *of, int64_t row) {                                  \
        grad_rows(of, row, EG_V(act_grad_##name), 2, EG_F16, ROWS_A_STEP);                                   \
    }                                                                                                        \
    static void grad_rows_f32_##name(const eg_grad_rows *of, int64_t row) {                                  \
        grad_rows(of, row, EG_V(act_grad_##name), 3, EG_F32, ROWS_A_STEP);                                   \
    }                                                                                                        \
    static void act_rows_bf16_##name(const eg_act_rows *of, int64_t row) {                                   \
        act_rows(of, row, EG_V(act_##name), (value) == EG_ACT_NONE, 1, EG_BF16, ROWS_A_STEP_OF_BF16);        \
    }                                                                                                        \
    static void act_rows_f16_##name(const eg_act_rows *of, int64_t row) {                                    \
        act_rows(of, row, EG_V(act_##name), (value) == EG_ACT_NONE, 2, EG_F16, ROWS_A_STEP);                 \
    }                                                                                                        \
    static void act_rows_f32_##name(const eg_act_rows *of, int64_t row) {                                    \
        act_rows(of, row, EG_V(act_##name), (value) == EG_ACT_NONE, 3, EG_F32, ROWS_A_STEP);                 \
    }
EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW

#define BY_TERMS(bf16_terms, TYPE)                                                                           \
    static bool split_##bf16_terms(const eg_rows *from, int64_t first, int64_t count, int64_t rows,          \
                                   int64_t cols, const eg_cpu_packs *to) {                                   \
        const block_numbers x = {from, rows, cols}, whole = {from, EG_AMX_BLOCK, EG_AMX_BLOCK};              \
        if (rows == EG_AMX_BLOCK && cols == EG_AMX_BLOCK && from->dtype == EG_F32)                           \
            return split(&whole, first, count, to, bf16_terms, EG_F32);                                      \
        if (from->dtype == (TYPE)) return split(&x, first, count, to, bf16_terms, TYPE);                     \
        return split(&x, first, count, to, bf16_terms, EG_F32);                                              \
    }                                                                                                        \
    static void prefetch_write_##bf16_terms(const eg_cpu_packs *to, int64_t first, int64_t count) {          \
        prefetch_write(to, first, count, bf16_terms);                                                        \
    }                                                                                                        \
    static void store_rows_##bf16_terms(const float *sums, char *to, int64_t step, eg_dtype dtype,           \
                                        int64_t rows, int64_t cols, bool non_temporal) {                     \
        store_sums(sums, to, step, dtype, rows, cols, non_temporal, UNSCALE(bf16_terms));                    \
    }
BY_TERMS(1, EG_BF16)
BY_TERMS(2, EG_F16)
BY_TERMS(3, EG_F32)

static void store_turned_bf16(const float *sums, char *to, int64_t step, int64_t rows, int64_t cols,
                              bool non_temporal) {
    store_turned_words(sums, to, step, rows, cols, non_temporal, UNSCALE(1), EG_BF16);
}

static void store_turned_f16(const float *sums, char *to, int64_t step, int64_t rows, int64_t cols,
                             bool non_temporal) {
    store_turned_words(sums, to, step, rows, cols, non_temporal, UNSCALE(2), EG_F16);
}

/* ---- The peak ----------------------------------------------------------------------------------- */

/* Any bf16 of either sign in [0.5, 2): multiplying zeros, the unit takes less power and is clocked a tenth
 * higher than it ever is at work. */
EG_INLINE void fill_block(char *block) {
    uint32_t random = 1;
    for (int i = 0; i < EG_AMX_TERM_BYTES; i += 2) {
        random = random * 1664525U + 1013904223U;
        const uint16_t word = (uint16_t)(0x3f00U | (random >> 24) | (random >> 8 & 0x8000U));
        memcpy(block + i, &word, sizeof word);
    }
}

/* Multiplications alone, as many independent ones as the kernels have. */
EG_INLINE double peak(int64_t turns, int products) {
    _Alignas(64) char left[EG_AMX_TERM_BYTES], right[EG_AMX_TERM_BYTES];
    fill_block(left);
    fill_block(right);
    const multiplication m = {
        .left = left, .right = right, .left_step = PAIRS_STRIDE, .left_tile = TILE_BYTES};
    eg_tiles_configure();
    EG_TILE_ZERO(0);
    EG_TILE_ZERO(1);
    EG_TILE_ZERO(2);
    EG_TILE_ZERO(3);
    load_left(&m, 0, 1);
    load_right(&m, 0, true);
    const int64_t loops = turns / 8;
    for (int64_t turn = 0; turn < loops; turn++) dot_alone(true);
    eg_tiles_release();
    return (double)loops * EG_AMX_BLOCK * EG_AMX_BLOCK * EG_AMX_BLOCK / products;
}

#include "bf16_dots.h"

static double peak_x1(int64_t turns) { return peak(turns, 1); }
static double peak_x3(int64_t turns) { return peak(turns, 3); }
static double peak_x4(int64_t turns) { return peak(turns, 4); }
static double peak_x6(int64_t turns) { return peak(turns, 6); }

/* ---- The rows ----------------------------------------------------------------------------------- */

#define BY_DEFAULT (EG_CPU_MATH(EG_MATH_DEFAULT) | EG_CPU_MATH(EG_MATH_FAST))

#define MICRO_KERNEL(products)                                                                               \
    .micro = {.mr = EG_AMX_BLOCK,                                                                            \
              .nr = EG_AMX_BLOCK,                                                                            \
              .rows_at_once = EG_AMX_BLOCK,                                                                  \
              .depth_at_once = EG_AMX_BLOCK,                                                                 \
              .multiply = multiply_x##products,                                                              \
              .enter = eg_tiles_configure,                                                                   \
              .leave = eg_tiles_release,                                                                     \
              .flush = flush,                                                                                \
              .peak = peak_x##products}
#define PACKING(terms)                                                                                       \
    .pack = {.bf16_terms = (terms),                                                                          \
             .unscale = UNSCALE(terms),                                                                      \
             .load = EG_V(load_tile),                                                                        \
             .split = split_##terms,                                                                         \
             .prefetch_write = prefetch_write_##terms}
#define GRAD_ROWS_BF16(NAME, name, value, from_y, text) [value] = grad_rows_bf16_##name,
#define ACT_ROWS_BF16(NAME, name, value, from_y, text)  [value] = act_rows_bf16_##name,
#define GRAD_ROWS_F16(NAME, name, value, from_y, text)  [value] = grad_rows_f16_##name,
#define ACT_ROWS_F16(NAME, name, value, from_y, text)   [value] = act_rows_f16_##name,
#define GRAD_ROWS_F32(NAME, name, value, from_y, text)  [value] = grad_rows_f32_##name,
#define ACT_ROWS_F32(NAME, name, value, from_y, text)   [value] = act_rows_f32_##name,

/* A micro-panel of kc k is 64 * kc bytes for each bf16 term of a number: 32 KiB of L1 for bf16 itself, and
 * half of that with fused packing. The block's accumulators and its micro-panels of the left operand share
 * L2. Measured: docs/lab/cpu.md. */
const eg_cpu_kernel eg_cpu_amx_bf16x1_32x32 = {
    .name = "amx_bf16x1_32x32",
    .compute = EG_F32,
    .dtype = EG_BF16,
    .maths = BY_DEFAULT,
    .needs = EG_CPU_AMX | EG_CPU_AVX512,
    MICRO_KERNEL(1),
    .micro.few_rows = few_rows,
    PACKING(1),
    .pack.turn_few = turn_few,
    .blocking = {.mc = 256,
                 .nc = 256,
                 .kc = 512,
                 .kc_single_pass = 512,
                 .kc_fused = 320,
                 .kc_multiple = EG_AMX_BLOCK,
                 .max_left = 1 << 18,
                 .fused_max_rows = 384,
                 .non_temporal_below = INT_MAX},
    .epilogue = {EG_ELEMENTWISE_FUNCTIONS, .store_rows = store_rows_1, .store_turned = store_turned_bf16,
                 .grad_rows = {EG_ACTIVATION_TABLE(GRAD_ROWS_BF16)},
                 .act_rows = {EG_ACTIVATION_TABLE(ACT_ROWS_BF16)}, .rows_a_step = ROWS_A_STEP_OF_BF16},
};

/* The same blocks, multiplied by vector units. A micro-panel of the right operand and the rows that it meets
 * share an L1 of 32 KiB. */
const eg_cpu_kernel eg_cpu_avx512_bf16x1_32x32 = {
    .name = "avx512_bf16x1_32x32",
    .compute = EG_F32,
    .dtype = EG_BF16,
    .maths = BY_DEFAULT,
    .needs = EG_CPU_BF16 | EG_CPU_AVX512,
    .micro = {.mr = EG_AMX_BLOCK,
              .nr = EG_AMX_BLOCK,
              .rows_at_once = DOT_LEAST_ROWS,
              .depth_at_once = 2,
              .multiply = multiply_dots,
              .few_rows = few_rows_dots,
              .outer = outer_dots,
              .rows_along_k = ROWS_ALONG_K,
              .peak = peak_dots},
    PACKING(1),
    .pack.turn_few = turn_few,
    .blocking = {.mc = 256,
                 .nc = 256,
                 .kc = 256,
                 .kc_single_pass = 384,
                 .kc_fused = 256,
                 .kc_multiple = EG_AMX_BLOCK,
                 .max_left = 1 << 18,
                 .fused_max_rows = 384,
                 .non_temporal_below = INT_MAX},
    .epilogue = {EG_ELEMENTWISE_FUNCTIONS, .store_rows = store_rows_1, .store_turned = store_turned_bf16,
                 .grad_rows = {EG_ACTIVATION_TABLE(GRAD_ROWS_BF16)},
                 .act_rows = {EG_ACTIVATION_TABLE(ACT_ROWS_BF16)}, .rows_a_step = ROWS_A_STEP_OF_BF16},
};

#define ROW_OF_TWO_TERMS(products)                                                                           \
    MICRO_KERNEL(products), PACKING(2),                                                                      \
        .blocking = {.mc = 256,                                                                              \
                     .nc = 256,                                                                              \
                     .kc = 256,                                                                              \
                     .kc_single_pass = 512,                                                                  \
                     .kc_fused = 256,                                                                        \
                     .kc_multiple = EG_AMX_BLOCK,                                                            \
                     .fused_max_rows = 384,                                                                  \
                     .non_temporal_below = INT_MAX}

const eg_cpu_kernel eg_cpu_amx_f16x4_32x32 = {
    .name = "amx_f16x4_32x32",
    .compute = EG_F32,
    .dtype = EG_F16,
    .maths = BY_DEFAULT,
    .needs = EG_CPU_AMX | EG_CPU_AVX512,
    ROW_OF_TWO_TERMS(4),
    .epilogue = {EG_ELEMENTWISE_FUNCTIONS, .store_rows = store_rows_2, .store_turned = store_turned_f16,
                 .grad_rows = {EG_ACTIVATION_TABLE(GRAD_ROWS_F16)},
                 .act_rows = {EG_ACTIVATION_TABLE(ACT_ROWS_F16)}, .rows_a_step = ROWS_A_STEP},
};

const eg_cpu_kernel eg_cpu_amx_f32x3_32x32 = {
    .name = "amx_f32x3_32x32",
    .compute = EG_F32,
    .dtype = EG_F32,
    .maths = EG_CPU_MATH(EG_MATH_FAST),
    .needs = EG_CPU_AMX | EG_CPU_AVX512,
    ROW_OF_TWO_TERMS(3),
    .epilogue = {EG_ELEMENTWISE_FUNCTIONS, .store_rows = store_rows_2,
                 .grad_rows = {EG_ACTIVATION_TABLE(GRAD_ROWS_F32)},
                 .act_rows = {EG_ACTIVATION_TABLE(ACT_ROWS_F32)}, .rows_a_step = ROWS_A_STEP},
};

const eg_cpu_kernel eg_cpu_amx_f32x6_32x32 = {
    .name = "amx_f32x6_32x32",
    .compute = EG_F32,
    .dtype = EG_F32,
    .maths = BY_DEFAULT,
    .needs = EG_CPU_AMX | EG_CPU_AVX512,
    MICRO_KERNEL(6),
    PACKING(3),
    .blocking = {.mc = 384,
                 .nc = 480,
                 .kc = 256,
                 .kc_single_pass = 512,
                 .kc_fused = 256,
                 .kc_multiple = RUN_DEPTH,
                 .fused_max_rows = 384,
                 .non_temporal_below = INT_MAX},
    .epilogue = {EG_ELEMENTWISE_FUNCTIONS, .store_rows = store_rows_3,
                 .grad_rows = {EG_ACTIVATION_TABLE(GRAD_ROWS_F32)},
                 .act_rows = {EG_ACTIVATION_TABLE(ACT_ROWS_F32)}, .rows_a_step = ROWS_A_STEP},
};
