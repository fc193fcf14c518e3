/* SPDX-License-Identifier: Apache-2.0 */
#include "describe.h"

#include <stdio.h>

#include "generate.h"

/* ---- What a case may have ----------------------------------------------------------------------- */

typedef bool question(const campaign_case *c);

#define ASK(name, answer)                                                                                    \
    static bool name(const campaign_case *c) { return answer; }

ASK(is_backward, c->call.backward)
ASK(is_f32, c->call.dtype == EG_F32)
ASK(is_f64, c->call.dtype == EG_F64)
ASK(is_f16, c->call.dtype == EG_F16)
ASK(is_bf16, c->call.dtype == EG_BF16)
ASK(is_empty, c->call.m == 0 || c->call.n == 0)
ASK(has_no_depth, c->call.k == 0)
ASK(has_a_one, c->call.m == 1 || c->call.k == 1 || c->call.n == 1)
ASK(is_large, c->call.m * c->call.k * c->call.n * c->call.batch > 1000000)
ASK(is_tall, c->call.m >= 5000)
ASK(is_tall_with_limit, is_tall(c) && c->call.limit != CHECK_LIMIT_NONE)
ASK(has_batch, c->call.batch > 1)
ASK(has_levels, c->call.outer > 0)
ASK(has_residual, campaign_has(&c->call, CHECK_RESIDUAL))
ASK(has_chain, campaign_has(&c->call, CHECK_BELOW))
ASK(is_gated, c->call.gated)
ASK(has_made_gradients, campaign_has(&c->call, CHECK_GRAD_UP))
ASK(has_gated_chain, campaign_has(&c->call, CHECK_BELOW_UP))
ASK(has_gated_tiles, is_gated(c) && c->call.aligned && c->call.groups == 0)
ASK(is_packed, c->call.pack != CHECK_PACK_NONE)
ASK(is_packed_f32, is_packed(c) && c->row == 0 && c->call.dtype == EG_F32 &&
                       c->call.math == EG_MATH_DEFAULT && c->call.m >= 64 && c->call.k >= 64 &&
                       c->call.n >= 64)
ASK(is_limited, c->call.limit != CHECK_LIMIT_NONE)
ASK(has_workspace, c->call.own_workspace)
ASK(accumulates, c->call.accumulate)
ASK(is_in_place, c->call.in_place)
ASK(adds_to_some, c->call.into != 0)
ASK(adds_to_d_a, campaign_has(&c->call, CHECK_D_A) && (c->call.into & EG_INTO_D_A) != 0)
ASK(has_scale, c->call.scale != 0)
ASK(has_groups, c->call.groups > 0)
ASK(has_d_a_residual, campaign_has(&c->call, CHECK_D_A_RESIDUAL))
ASK(has_windows, c->windows)
ASK(has_windows_by_item, c->windows && c->by_item)
ASK(has_row, c->row != 0)
ASK(has_special, c->call.data == CHECK_DATA_SPECIAL || c->call.data == CHECK_DATA_NONFINITE)
ASK(threads_differ, c->threads[0] != c->threads[1])

static bool has_wide_sums(const campaign_case *c) {
    return c->call.dtype != EG_F32 && campaign_has(&c->call, CHECK_D_B) &&
           c->places[CHECK_D_B].dtype == EG_F32;
}

static bool has_aliases(const campaign_case *c) {
    for (int i = CHECK_B; i <= CHECK_BELOW && !c->windows; i++) {
        if (campaign_has(&c->call, (check_operand)i) && c->places[i].home != (check_operand)i) return true;
    }
    return false;
}

/* A result of a batch whose rows do not end on 16 bytes, though they begin there, with room behind them: what
 * stores of whole 16 bytes would write over. */
static bool ends_within_16(const campaign_case *c, check_operand which) {
    const check_place *place = &c->places[which];
    const int64_t bytes = (int64_t)eg_dtype_size(place->dtype);
    const int64_t cols = which == CHECK_D_A ? c->call.k : c->call.n;
    return campaign_has(&c->call, which) && c->call.batch > 1 && place->layout == EG_ROW_MAJOR &&
           cols * bytes % 16 != 0 && place->ld > cols && place->ld * bytes % 16 == 0 &&
           place->offset % 16 == 0 && place->batch_stride * bytes % 16 == 0;
}

ASK(d_a_ends_within_16, ends_within_16(c, CHECK_D_A) && c->call.dtype != EG_F32 && c->call.dtype != EG_F64)
ASK(d_b_ends_within_16, ends_within_16(c, CHECK_D_B) && c->call.dtype != EG_F32 && c->call.dtype != EG_F64)
ASK(wide_d_b_ends_within_16, d_b_ends_within_16(c) && has_wide_sums(c))

static const struct {
    const char *name;
    question *ask;
} questions[] = {
    {"backward", is_backward},
    {"f32", is_f32},
    {"f64", is_f64},
    {"f16", is_f16},
    {"bf16", is_bf16},
    {"M or N is 0", is_empty},
    {"K is 0", has_no_depth},
    {"a size is 1", has_a_one},
    {"more than 10^6 products", is_large},
    {"M of 5000 and more", is_tall},
    {"likewise, with a limit", is_tall_with_limit},
    {"a batch", has_batch},
    {"of two levels", has_levels},
    {"residual", has_residual},
    {"chain", has_chain},
    {"gated", is_gated},
    {"likewise, with gradients that a chain made", has_made_gradients},
    {"gated, of tiles in whole vectors", has_gated_tiles},
    {"chain to a gated unit", has_gated_chain},
    {"packed b", is_packed},
    {"packed b, f32 from 64 cubed on, own choice", is_packed_f32},
    {"workspace_limit", is_limited},
    {"workspace of the caller's", has_workspace},
    {"accumulate", accumulates},
    {"accumulate_into", adds_to_some},
    {"likewise, d_a", adds_to_d_a},
    {"residual of d_a", has_d_a_residual},
    {"scale", has_scale},
    {"groups", has_groups},
    {"d_b in f32 of 16-bit layers", has_wide_sums},
    {"y on residual, grad_pre on grad", is_in_place},
    {"windows of one memory", has_windows},
    {"likewise, batches interleaved", has_windows_by_item},
    {"inputs over one another", has_aliases},
    {"a kernel row by name", has_row},
    {"numbers that are special", has_special},
    {"other threads in the second run", threads_differ},
    {"16-bit, batch, d_a: rows end within 16 bytes, ld has room", d_a_ends_within_16},
    {"16-bit, batch, d_b: likewise", d_b_ends_within_16},
    {"16-bit, batch, d_b in f32: likewise", wide_d_b_ends_within_16},
};
enum { QUESTIONS = sizeof questions / sizeof *questions };

/* ---- The two ways ------------------------------------------------------------------------------- */

static void describe_one(const campaign_case *c) {
    char text[2048];
    check_describe(&c->call, text, sizeof text);
    puts(text);
    campaign_describe_places(c, text, sizeof text);
    printf("%s  thread counts %d, then %d; kernel row %d\n", text, c->threads[0], c->threads[1], c->row);
}

void describe_cases(uint64_t seed, uint64_t first, uint64_t last, bool addresses) {
    uint64_t counts[QUESTIONS] = {0};
    double products = 0;
    campaign_case c;
    for (uint64_t index = first; index <= last; index++) {
        campaign_make(seed, index, addresses, &c);
        products += (double)(c.call.m * c.call.k * c.call.n * c.call.batch);
        for (int i = 0; i < QUESTIONS; i++) counts[i] += questions[i].ask(&c);
    }
    if (first == last) {
        describe_one(&c);
        return;
    }
    const double cases = (double)(last - first + 1);
    printf("%.0f cases of seed %llu, %.0f products each on average\n", cases, (unsigned long long)seed,
           products / cases);
    for (int i = 0; i < QUESTIONS; i++)
        printf("  %-60s %8.3f%%\n", questions[i].name, 100 * (double)counts[i] / cases);
}
