/* SPDX-License-Identifier: Apache-2.0 */
/* The table of checks covers what it says: every value of every field comes up, for f32 and f64 kernels
 * alike. */
#include "check.h"
#include "support.h"

typedef struct coverage {
    int calls[5][ACTIVATIONS][4]; /* dtype, activation, forward or source */
    int wanted[16], packs[CHECK_PACKS], datas[CHECK_DATAS], maths[3], nonfinite[2], batches[8];
    int below[ACTIVATIONS][3]; /* activation and source of the layer below */
    int aligned[2], accumulate[2], wide[2], in_place[2], own_workspace[2], d_bias_below[2];
    int limits[CHECK_LIMITS], limited_sums[16], limited_d_a[2];
    int ragged[5];
    int scales[3], into[7], d_a_residual[8], limited_into[4];
    int groups[5], routings[CHECK_ROUTINGS][2]; /* groups: 1, 2, 3 to 5, 8, more than a wave has */
    int gated[5][ACTIVATIONS][3], gated_wanted[16], gated_below[4], made;
    int tiles[2][4]; /* bf16 or f16: forward, with pre, d_a of a gated unit, a chain to one */
    int empty_m, empty_k, empty_n, ones, long_k, tall, wide_n, residual, save_pre, no_bias, unneeded_given;
    unsigned col_major, row_major, shared, batched, padded, gapped, interleaved,
        offset; /* operands seen so */
} coverage;

static bool has(const check_case *c, check_operand operand) { return (c->present & CHECK_BIT(operand)) != 0; }

/* With a limit, what is summed over chunks: added to or not, by item or over the batch, beside d_bias or not,
 * rounded at the end or not. */
static void count_limited(coverage *all, const check_case *c) {
    const bool rounded = (c->dtype == EG_F16 || c->dtype == EG_BF16) && !c->wide;
    const bool shared_d_b = c->batch < 2 || (c->shared & CHECK_BIT(CHECK_D_B)) != 0;
    if (has(c, CHECK_D_A) && c->batch > 1) all->limited_d_a[(c->shared & CHECK_BIT(CHECK_D_A)) != 0]++;
    if (has(c, CHECK_D_B))
        all->limited_sums[c->accumulate + 2 * shared_d_b + 4 * has(c, CHECK_D_BIAS) + 8 * rounded]++;
}

/* Sums that are added to one by one; and a residual of d_a: in place, under a chain, summed over the batch.
 */
static void count_added(coverage *all, const check_case *c) {
    static const check_operand sums[] = {
        CHECK_D_A,    CHECK_D_B,       CHECK_D_BIAS,         CHECK_D_BIAS_BELOW,
        CHECK_D_B_UP, CHECK_D_BIAS_UP, CHECK_D_BIAS_UP_BELOW};
    for (size_t i = 0; i < LENGTH(sums); i++)
        all->into[i] += has(c, sums[i]) && !c->accumulate && check_adds_to(c, sums[i]);
    if (has(c, CHECK_D_A_RESIDUAL))
        all->d_a_residual[c->d_a_in_place + 2 * has(c, CHECK_BELOW) + 4 * c->gated]++;
    if (c->limit != CHECK_LIMIT_NONE && has(c, CHECK_D_B) && has(c, CHECK_D_BIAS))
        all->limited_into[check_adds_to(c, CHECK_D_B) + 2 * check_adds_to(c, CHECK_D_BIAS)]++;
}

static void count_backward(coverage *all, const check_case *c) {
    if (c->limit != CHECK_LIMIT_NONE) count_limited(all, c);
    all->wanted[has(c, CHECK_D_A) + 2 * has(c, CHECK_D_B) + 4 * has(c, CHECK_D_BIAS) +
                8 * has(c, CHECK_GRAD_PRE)]++;
    all->accumulate[c->accumulate]++;
    if (c->dtype == EG_F16 || c->dtype == EG_BF16) all->wide[c->wide]++;
    if (has(c, CHECK_GRAD_PRE)) all->in_place[c->in_place]++;
    if (has(c, CHECK_BELOW)) all->below[c->below_activation][c->below_source]++;
    if (has(c, CHECK_BELOW)) all->d_bias_below[has(c, CHECK_D_BIAS_BELOW)]++;
    if (c->source == EG_SOURCE_PRE && has(c, CHECK_A) && !has(c, CHECK_D_B)) all->unneeded_given++;
}

static void count_shape(coverage *all, const check_case *c) {
    all->batches[c->batch]++;
    all->empty_m += c->m == 0;
    all->empty_k += c->k == 0;
    all->empty_n += c->n == 0;
    all->ones += c->m == 1 && c->k == 1 && c->n == 1;
    all->long_k += c->k > 600;
    all->tall += c->m > 500;
    all->wide_n += c->n > 500;
}

/* Results whose rows begin on 16 bytes and end elsewhere. */
static void count_ragged(coverage *all, const check_case *c) {
    static const check_operand results[] = {CHECK_Y, CHECK_PRE, CHECK_D_A, CHECK_D_B, CHECK_GRAD_PRE};
    if (!c->aligned || c->m * c->k * c->n == 0) return;
    for (size_t i = 0; i < LENGTH(results); i++) {
        const int64_t cols = results[i] == CHECK_D_A ? c->k : c->n;
        const bool by_rows = (c->col_major & CHECK_BIT(results[i])) == 0;
        all->ragged[i] += has(c, results[i]) && by_rows && cols % 8 != 0;
    }
}

/* Gated units: the outputs of the gate beside those of the other half, with and without. */
static void count_gated(coverage *all, const check_case *c) {
    if (has(c, CHECK_BELOW_UP)) all->gated_below[has(c, CHECK_Y_BELOW) + 2 * has(c, CHECK_D_BIAS_UP_BELOW)]++;
    if (!c->gated) return;
    all->made += has(c, CHECK_GRAD_UP);
    if (!has(c, CHECK_GRAD_UP)) all->gated[c->dtype][c->activation][c->backward ? 1 + (int)c->source : 0]++;
    if (c->backward)
        all->gated_wanted[has(c, CHECK_D_A) + 2 * has(c, CHECK_D_B) + 4 * has(c, CHECK_D_B_UP) +
                          8 * has(c, CHECK_D_BIAS_UP)]++;
}

/* Results of 16 bits by rows, of whole vectors and more than one tile of 128 rows or, at times, of 256. */
static void count_tiles(coverage *all, const check_case *c) {
    const unsigned weights = CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_B_UP);
    const bool by_rows = (c->present & c->col_major & ~weights) == 0, chain = has(c, CHECK_BELOW_UP);
    const bool whole = c->aligned && c->k % 8 == 0 && c->n % 8 == 0 && c->m > 128 && c->m % 128 != 0;
    if (c->dtype < EG_F16 || !whole || !by_rows || c->batch > 1 || c->groups > 0 || c->limit != 0) return;
    int *const tiles = all->tiles[c->dtype == EG_F16];
    if (c->gated && !c->backward) tiles[has(c, CHECK_PRE)]++;
    tiles[2] += c->gated && has(c, CHECK_D_A) && c->k > 64;
    tiles[3] += chain && c->k > 64;
}

static void count_groups(coverage *all, const check_case *c) {
    const int groups = c->groups;
    if (groups == 0) return;
    all->groups[groups > 8 ? 4 : groups > 5 ? 3 : groups > 2 ? 2 : groups - 1]++;
    all->routings[c->routing][c->backward]++;
    assert_int_equal(c->batch, 1);
}

static void count_case(coverage *all, const check_case *c) {
    count_gated(all, c);
    count_tiles(all, c);
    count_groups(all, c);
    count_added(all, c);
    if (c->scale != 0) all->scales[c->gated ? 2 : c->backward]++;
    if (c->gated) return;
    all->calls[c->dtype][c->activation][c->backward ? 1 + (int)c->source : 0]++;
    all->packs[c->pack]++;
    all->datas[c->data]++;
    all->maths[c->math]++;
    all->nonfinite[c->nonfinite]++;
    all->own_workspace[c->own_workspace]++;
    all->limits[c->limit]++;
    all->residual += has(c, CHECK_RESIDUAL);
    all->save_pre += has(c, CHECK_PRE);
    all->no_bias += !has(c, CHECK_BIAS);
    all->aligned[c->aligned]++;
    count_ragged(all, c);
    count_shape(all, c);
    if (c->backward) count_backward(all, c);
}

/* Every operand, of gated units too. */
static void count_layouts(coverage *all, const check_case *c) {
    all->col_major |= c->present & c->col_major;
    all->row_major |= c->present & ~c->col_major;
    all->padded |= c->present & c->padded;
    all->offset |= c->present & c->offset;
    if (c->batch < 2) return;
    all->shared |= c->present & c->shared;
    all->batched |= c->present & ~c->shared;
    all->gapped |= c->present & c->gapped & ~c->shared;
    all->interleaved |= c->present & c->interleaved & ~c->shared;
}

static void assert_each(const int *counts, size_t count, const char *what) {
    for (size_t i = 0; i < count; i++) {
        if (counts[i] == 0) fail_msg("no case has %s %zu", what, i);
    }
}

static void assert_calls(const coverage *all, eg_dtype compute) {
    for (int d = EG_F32; d <= EG_BF16; d++) {
        const bool expected = (compute == EG_F64) == (d == EG_F64);
        for (int i = 0; i < ACTIVATIONS * 4; i++) {
            const eg_activation activation = (eg_activation)(i / 4);
            const bool exists = i % 4 < 3 || eg_activation_from_y(activation);
            if ((all->calls[d][i / 4][i % 4] > 0) != (expected && exists))
                fail_msg("%s %s, mode %d: %d cases", eg_dtype_name((eg_dtype)d),
                         eg_activation_name(activation), i % 4, all->calls[d][i / 4][i % 4]);
        }
    }
}

static void check_coverage(eg_dtype compute) {
    coverage all = {0};
    for (int i = 0; i < check_count(compute); i++) {
        check_case c;
        check_make(compute, i, &c);
        count_case(&all, &c);
    }
    assert_calls(&all, compute);
    assert_each(all.wanted, LENGTH(all.wanted), "wanted outputs");
    assert_each(all.packs, LENGTH(all.packs), "pack");
    assert_each(all.datas, LENGTH(all.datas), "data");
    assert_each(all.maths, LENGTH(all.maths), "math");
    assert_each(all.nonfinite, 2, "nonfinite");
    assert_each(all.batches + 1, 3, "batch from 1");
    assert_each(all.aligned, 2, "aligned");
    assert_each(all.ragged, LENGTH(all.ragged), "ragged result");
    assert_each(all.accumulate, 2, "accumulate");
    assert_each(all.in_place, 2, "in place");
    assert_each(all.scales, LENGTH(all.scales), "scale");
    assert_each(all.into, LENGTH(all.into), "sum that is added to");
    assert_each(all.limited_into, LENGTH(all.limited_into), "sums that are added to, with a limit");
    assert_each(all.d_a_residual, LENGTH(all.d_a_residual), "residual of d_a");
    assert_each(all.own_workspace, 2, "own workspace");
    assert_each(all.d_bias_below, 2, "chain.d_bias");
    assert_each(all.limits, CHECK_LIMITS, "limit");
    assert_each(all.limited_sums, compute == EG_F32 ? 16 : 8, "sums with a limit");
    assert_each(all.limited_d_a, 2, "d_a with a limit");
    if (compute == EG_F32) assert_each(all.wide, 2, "f32 gradients");
    for (int d = EG_F32; d <= EG_BF16; d++) {
        if ((compute == EG_F64) == (d == EG_F64)) assert_each(all.gated[d][0], ACTIVATIONS * 3, "gated unit");
    }
    assert_each(all.gated_wanted, LENGTH(all.gated_wanted), "wanted outputs of a gated unit");
    assert_each(all.gated_below, LENGTH(all.gated_below), "gated unit below");
    if (compute == EG_F32) assert_each(all.tiles[0], 2 * LENGTH(all.tiles[0]), "gated tiles");
    assert_each(all.groups, LENGTH(all.groups), "groups");
    assert_each(all.routings[0], 2 * LENGTH(all.routings), "routing");
    assert_true(all.made > 0);
    for (int a = 0; a < ACTIVATIONS; a++) {
        assert_true(all.below[a][EG_SOURCE_PRE] + all.below[a][EG_SOURCE_Y] > 0);
    }
    const int kinds[] = {all.empty_m, all.empty_k,  all.empty_n,  all.ones,    all.long_k,        all.tall,
                         all.wide_n,  all.residual, all.save_pre, all.no_bias, all.unneeded_given};
    assert_each(kinds, LENGTH(kinds), "kind");
}

/* Every operand in every layout that it may have. */
static void check_layouts(eg_dtype compute) {
    coverage all = {0};
    for (int i = 0; i < check_count(compute); i++) {
        check_case c;
        check_make(compute, i, &c);
        count_layouts(&all, &c);
    }
    const unsigned every = CHECK_BIT(CHECK_OPERANDS) - 1;
    const unsigned vectors = CHECK_BIT(CHECK_BIAS) | CHECK_BIT(CHECK_D_BIAS) | CHECK_BIT(CHECK_D_BIAS_BELOW) |
                             CHECK_BIT(CHECK_BIAS_UP) | CHECK_BIT(CHECK_D_BIAS_UP) |
                             CHECK_BIT(CHECK_D_BIAS_UP_BELOW);
    const unsigned written = CHECK_BIT(CHECK_Y) | CHECK_BIT(CHECK_PRE) | CHECK_BIT(CHECK_GRAD_PRE) |
                             CHECK_BIT(CHECK_PRE_UP) | CHECK_BIT(CHECK_GRAD_PRE_UP) |
                             CHECK_BIT(CHECK_D_UP_BELOW) | CHECK_BIT(CHECK_Y_BELOW);
    assert_int_equal(all.row_major, every);
    assert_int_equal(all.col_major | vectors, every);
    assert_int_equal(all.padded | vectors, every);
    assert_int_equal(all.offset, every);
    assert_int_equal(all.shared | vectors, every & ~written);
    assert_int_equal(all.batched | vectors, every);
    assert_int_equal(all.gapped | vectors, every);
    assert_int_equal(all.interleaved | vectors, every);
}

static void every_value_comes_up(void **state) {
    (void)state;
    check_coverage(EG_F32);
    check_coverage(EG_F64);
}

static void every_operand_takes_every_layout(void **state) {
    (void)state;
    check_layouts(EG_F32);
    check_layouts(EG_F64);
}

/* The same index is the same case, and its description says so. */
static void cases_are_reproducible(void **state) {
    (void)state;
    for (int i = 0; i < check_count(EG_F32); i++) {
        check_case c[2];
        char text[2][1024];
        for (int j = 0; j < 2; j++) {
            check_make(EG_F32, i, &c[j]);
            check_describe(&c[j], text[j], sizeof text[j]);
        }
        assert_memory_equal(&c[0], &c[1], sizeof c[0]);
        assert_string_equal(text[0], text[1]);
        assert_true(strlen(text[0]) < sizeof text[0] - 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_comes_up),
        cmocka_unit_test(every_operand_takes_every_layout),
        cmocka_unit_test(cases_are_reproducible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
