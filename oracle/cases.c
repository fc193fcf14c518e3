/* SPDX-License-Identifier: Apache-2.0 */
/* The table of cases. Each field of a case is dealt from its own shuffled deck, reshuffled whenever it is
 * empty: every value of every field comes up within one deck's length, in ever new company. */
#include "case.h"

#include <stdio.h>
#include <string.h>

#include "number.h"

/* ---- Decks -------------------------------------------------------------------------------------- */

/* SALT picks one of the many ways to shuffle: one in which tests/test_cases finds every value. */
enum { LARGEST_DECK = 256, SALT = 396 };

typedef enum deck {
    DECK_CALL,
    DECK_SHAPE,
    DECK_BATCH,
    DECK_WANTS,
    DECK_STYLE,
    DECK_DATA,
    DECK_PACK,
    DECK_CHAIN,
    DECK_BELOW,
    DECK_FLAGS,
    DECK_OPTIONS,
    DECK_MASKS,
    DECK_LIMIT,
    DECK_ALIGNED,
    DECK_GATE,
    DECK_GATED_CALL,
    DECK_INTO,
    DECK_SCALE,
    DECK_LEVELS,
    DECK_GROUPS,
    DECK_ROUTING,
    DECK_TILES
} deck;

/* Card `index` of the endless sequence of shuffles of 0 .. count - 1. */
static int deal(deck which, int index, int count) {
    int cards[LARGEST_DECK];
    oracle_random random = {(uint64_t)SALT << 48 | (uint64_t)which << 32 | (uint64_t)(index / count)};
    for (int i = 0; i < count; i++) {
        const int j = (int)oracle_random_below(&random, i + 1);
        cards[i] = cards[j];
        cards[j] = i;
    }
    return cards[index % count];
}

/* ---- Calls: data type x activation x (forward or source) ---------------------------------------- */

#define COUNT_ROW(NAME, name, value, from_y, text) +1
enum { ACTIVATIONS = 0 EG_ACTIVATION_TABLE(COUNT_ROW), MODES = 4, RESIDUALS = 5 };

/* The calls of one data type. A residual goes with one activation only: it has cards of its own, or it
 * would hardly be dealt. */
static int add_calls(eg_dtype dtype, check_case *calls, int count) {
    for (int i = 0; i < ACTIVATIONS * MODES; i++) {
        const eg_activation activation = (eg_activation)(i / MODES);
        const int mode = i % MODES;
        check_case c = {.dtype = dtype, .activation = activation, .backward = mode > 0};
        if (mode == 2) c.source = EG_SOURCE_PRE;
        if (mode == 3) c.source = EG_SOURCE_Y;
        if (mode < 3 || eg_activation_from_y(activation)) calls[count++] = c;
    }
    for (int i = 0; i < RESIDUALS; i++)
        calls[count++] = (check_case){.dtype = dtype, .present = CHECK_BIT(CHECK_RESIDUAL)};
    return count;
}

static int make_calls(eg_dtype compute, check_case calls[LARGEST_DECK]) {
    static const eg_dtype dtypes[] = {EG_F64, EG_F32, EG_F16, EG_BF16};
    int count = 0;
    for (int d = 0; d < 4; d++) {
        const bool widens = compute == EG_F32 && oracle_compute_dtype(dtypes[d]) == EG_F32;
        if (dtypes[d] == compute || widens) count = add_calls(dtypes[d], calls, count);
    }
    return count;
}

int check_round(eg_dtype compute) {
    check_case calls[LARGEST_DECK];
    return make_calls(compute, calls);
}

/* As many rounds as it takes for every value that tests/test_cases asks for to have come up. */
static int count_plain(eg_dtype compute) { return (compute == EG_F64 ? 7 : 5) * check_round(compute); }

/* Gated units come after them: forward, from nothing saved, from both pre; and with gradients that a chain
 * has made, which has no activation. */
enum { GATED_MODES = 3, GATED_ROUNDS = 4, MADE = 9 };

static int make_gated_calls(eg_dtype compute, check_case calls[LARGEST_DECK]) {
    static const eg_dtype dtypes[] = {EG_F64, EG_F32, EG_F16, EG_BF16};
    int count = 0;
    for (int d = 0; d < 4; d++) {
        const check_case of_type = {.dtype = dtypes[d], .gated = true};
        if (oracle_compute_dtype(dtypes[d]) != compute) continue;
        for (int i = 0; i < ACTIVATIONS * GATED_MODES + MADE; i++) {
            check_case *c = &calls[count++];
            const int mode = i % GATED_MODES;
            *c = of_type;
            c->backward = mode > 0 || i >= ACTIVATIONS * GATED_MODES;
            c->source = mode == 2 ? EG_SOURCE_PRE : EG_SOURCE_RECOMPUTE;
            if (i < ACTIVATIONS * GATED_MODES) {
                c->activation = (eg_activation)(i / GATED_MODES);
            } else {
                c->present = CHECK_BIT(CHECK_GRAD_UP);
            }
        }
    }
    return count;
}

static int count_ungrouped(eg_dtype compute) {
    check_case calls[LARGEST_DECK];
    return count_plain(compute) + GATED_ROUNDS * make_gated_calls(compute, calls);
}

/* Then grouped layers, every third of them gated. */
enum { GROUPED_ROUNDS = 2, GATED_OF_GROUPED = 3 };

static int count_untiled(eg_dtype compute) {
    return count_ungrouped(compute) + GROUPED_ROUNDS * check_round(compute);
}

/* Last come gated units of tiles: see make_tiled. */
enum { TILED_WAYS = 4, TILED = 2 * TILED_WAYS * 6 };

int check_count(eg_dtype compute) { return count_untiled(compute) + (compute == EG_F32 ? TILED : 0); }

/* ---- Shapes ------------------------------------------------------------------------------------- */

static const struct {
    int m, k, n;
} shapes[] = {
    {1, 1, 1},       {1, 7, 1},      {1, 1, 13},     {17, 1, 1},                 /* ones */
    {2, 3, 5},       {7, 11, 13},    {19, 23, 29},   {31, 37, 41}, {43, 47, 53}, /* primes */
    {61, 67, 71},    {101, 103, 97}, {127, 31, 113}, {3, 109, 7},                /* more primes */
    {3, 4, 5},       {5, 3, 4},      {4, 5, 3},      {4, 4, 4},                  /* tiles, +- 1 */
    {7, 8, 9},       {9, 7, 8},      {8, 9, 7},      {8, 8, 8},    {11, 12, 13},    {13, 11, 12},
    {12, 13, 11},    {15, 17, 16},   {16, 16, 16},   {23, 24, 25}, {25, 23, 24},    {24, 25, 23},
    {31, 32, 33},    {33, 31, 32},   {47, 48, 49},   {49, 47, 48}, {48, 49, 47},    {63, 64, 65},
    {65, 63, 64},    {64, 65, 63},   {64, 64, 64},   {96, 95, 97}, {127, 128, 129}, {129, 127, 128},
    {128, 129, 127}, {256, 33, 65},  {255, 65, 17},  {257, 9, 31},               /* tall */
    {601, 5, 9},     {1031, 3, 49},  {521, 17, 3},                               /* taller */
    {3, 7, 997},     {9, 5, 601},    {2, 65, 487},                               /* wide */
    {5, 1301, 11},   {33, 769, 25},  {2, 2053, 3},   {1, 641, 66}, {6, 602, 50}, /* long K */
    {193, 70, 97},   {70, 521, 97},  {97, 70, 521},                              /* over a cache block */
    {0, 5, 7},       {5, 0, 7},      {5, 7, 0},      {0, 0, 0},                  /* empty */
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* 8 numbers of 16 bits are 16 bytes. */
static int64_t up_to_eighths(int64_t size) { return (size + 7) / 8 * 8; }

static void deal_shape(int index, check_case *c) {
    /* The first two: sizes as well. */
    enum { ON_16_BYTES, AGAIN, RAGGED, ALIGNMENTS = 6 };
    static const int batches[] = {1, 2, 3, 1, 2, 5, 1, 2, 1, 1};
    const int shape = deal(DECK_SHAPE, index, SHAPES);
    c->m = shapes[shape].m;
    c->k = shapes[shape].k;
    c->n = shapes[shape].n;
    const int alignment = deal(DECK_ALIGNED, index, ALIGNMENTS);
    c->aligned = alignment <= RAGGED;
    if (alignment <= AGAIN)
        c->m = up_to_eighths(c->m), c->k = up_to_eighths(c->k), c->n = up_to_eighths(c->n);
    c->batch = batches[deal(DECK_BATCH, index, (int)(sizeof batches / sizeof *batches))];
    const bool large = c->m * c->k * c->n > 500000;
    if (large && c->batch > 2) c->batch = 2;
}

/* ---- Groups ------------------------------------------------------------------------------------- */

static void deal_groups(int index, check_case *c) {
    static const int groups[] = {1, 2, 3, 5, 8, 40};
    c->groups = groups[deal(DECK_GROUPS, index, (int)(sizeof groups / sizeof *groups))];
    c->routing = (check_routing)deal(DECK_ROUTING, index, CHECK_ROUTINGS);
    c->batch = 1;
    if (c->m * c->k * c->n > 500000 && c->groups > 5) c->groups = 5;
}

/* Of some numbers that are drawn, the one that comes at that place in order; so ends ascend. */
static int64_t random_end(const check_case *c, int group) {
    oracle_random random = {c->seed ^ 0x6c1e};
    int64_t at[64];
    for (int i = 0; i < c->groups; i++) {
        int place = i;
        const int64_t drawn = oracle_random_below(&random, c->m + 1);
        for (; place > 0 && at[place - 1] > drawn; place--) at[place] = at[place - 1];
        at[place] = drawn;
    }
    return at[group];
}

int64_t check_end(const check_case *c, int group) {
    const int large =
        (int)(c->seed % (uint64_t)(c->groups > 0 ? c->groups : 1)); /* the group of nearly all */
    const int64_t after = c->groups - 1 - large, most = c->m > after ? c->m - after : 0;
    if (group < 0) return 0;
    switch (c->routing) {
    case CHECK_ROUTING_EVEN:
        return c->m * (group + 1) / c->groups;
    case CHECK_ROUTING_RANDOM:
        return random_end(c, group);
    case CHECK_ROUTING_SKEWED:
        return group < large ? 0 : most + (group - large < c->m - most ? group - large : c->m - most);
    case CHECK_ROUTING_ONES:
        return group + 1 < c->m ? group + 1 : c->m;
    case CHECK_ROUTING_NONE:
    case CHECK_ROUTINGS:
        break;
    }
    return 0;
}

/* ---- Layouts ------------------------------------------------------------------------------------ */

/* A set of operands, and for the next case its complement: each operand is in and out in turn. */
static unsigned deal_mask(int index, unsigned which) {
    const uint64_t pair = (uint64_t)(index / 2);
    oracle_random random = {(uint64_t)SALT << 48 | (uint64_t)DECK_MASKS << 40 | (uint64_t)which << 32 | pair};
    const unsigned mask = (unsigned)oracle_random_bits(&random);
    return (index % 2 == 0 ? mask : ~mask) & (CHECK_BIT(CHECK_OPERANDS) - 1);
}

typedef enum style {
    STYLE_ANY,         /* every operand its own way; several cards */
    STYLE_ANY_FEW = 3, /* the same, fewer of them shared or interleaved */
    STYLE_DENSE,       /* dense and row-major, all batched */
    STYLE_SHARED_B,    /* dense, one b and d_b for the whole batch: the batch can be folded into rows */
    STYLE_PYTORCH,     /* the same with b and d_b as [N, K] */
    STYLE_PADDED,      /* the same with leading dimensions */
    STYLES
} style;

static void deal_layout(int index, check_case *c) {
    const unsigned b =
        CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_D_B) | CHECK_BIT(CHECK_B_UP) | CHECK_BIT(CHECK_D_B_UP);
    c->offset = deal_mask(index, 0);
    const style chosen = (style)deal(DECK_STYLE, index, STYLES);
    if (chosen < STYLE_DENSE) {
        c->col_major = deal_mask(index, 1);
        c->padded = deal_mask(index, 2);
        c->gapped = deal_mask(index, 3);
        c->interleaved = deal_mask(index, 4);
        c->shared = deal_mask(index, 5);
    }
    if (chosen == STYLE_ANY_FEW) {
        c->interleaved &= deal_mask(index, 6);
        c->shared &= deal_mask(index, 7);
    }
    if (chosen >= STYLE_SHARED_B) c->shared = b;
    if (chosen == STYLE_PYTORCH) c->col_major = b;
    if (chosen == STYLE_PADDED) c->padded = ~0U;
}

/* A third of the cases without groups have two levels. A pack is of one: its b lies as one level would. */
static void deal_levels(int index, check_case *c) {
    static const int levels[][2] = {{0, 0}, {2, 2}, {0, 0}, {2, 3}, {0, 0}, {0, 0}, {3, 2}, {0, 0}, {0, 0}};
    const int card = deal(DECK_LEVELS, index, (int)(sizeof levels / sizeof *levels));
    const unsigned any = c->col_major | c->padded | c->gapped | c->interleaved,
                   b = CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_B_UP);
    if (levels[card][0] == 0 || c->groups > 0) return;
    c->outer = levels[card][0];
    c->batch = c->m * c->k * c->n > 500000 ? c->outer : c->outer * levels[card][1];
    if (any == 0) return;
    c->crossed = deal_mask(index, 9) & deal_mask(index, 10);
    c->inner_shared = deal_mask(index, 11) & deal_mask(index, 12);
    c->outer_shared = deal_mask(index, 13) & deal_mask(index, 14);
    if (c->pack == CHECK_PACK_NONE) return;
    c->crossed &= ~b, c->inner_shared &= ~b, c->outer_shared &= ~b;
    c->gapped &= ~b, c->interleaved &= ~b;
}

/* ---- Operands ----------------------------------------------------------------------------------- */

static bool wants(const check_case *c, check_operand operand) {
    return (c->present & CHECK_BIT(operand)) != 0;
}

static bool wants_any(const check_case *c, unsigned set) { return (c->present & set) != 0; }

/* Each half of a gated unit needs the gate; only the gate's own gradient needs the other half. */
static unsigned needed_by_gated(const check_case *c) {
    const unsigned gate =
        CHECK_BIT(CHECK_D_A) | CHECK_BIT(CHECK_D_B) | CHECK_BIT(CHECK_D_BIAS) | CHECK_BIT(CHECK_GRAD_PRE);
    const bool made = wants(c, CHECK_GRAD_UP), recompute = c->source == EG_SOURCE_RECOMPUTE && !made;
    unsigned inputs = CHECK_BIT(CHECK_GRAD);
    if (recompute) inputs |= CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_B);
    if (recompute && wants_any(c, gate)) inputs |= CHECK_BIT(CHECK_B_UP);
    if (!recompute && !made) inputs |= CHECK_BIT(CHECK_SAVED);
    if (!recompute && !made && wants_any(c, gate)) inputs |= CHECK_BIT(CHECK_SAVED_UP);
    if (made) inputs |= CHECK_BIT(CHECK_GRAD_UP);
    if (wants(c, CHECK_D_A)) inputs |= CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_B_UP);
    if (wants(c, CHECK_D_B) || wants(c, CHECK_D_B_UP)) inputs |= CHECK_BIT(CHECK_A);
    return inputs;
}

enum { ALL_BUT_D_A = 2 * EG_INTO_CHAIN_UP_D_BIAS - 1 - EG_INTO_D_A };

bool check_adds_to(const check_case *c, check_operand output) {
    static const eg_into into[CHECK_OPERANDS] = {[CHECK_D_A] = EG_INTO_D_A,
                                                 [CHECK_D_B] = EG_INTO_D_B,
                                                 [CHECK_D_BIAS] = EG_INTO_D_BIAS,
                                                 [CHECK_D_BIAS_BELOW] = EG_INTO_CHAIN_D_BIAS,
                                                 [CHECK_D_B_UP] = EG_INTO_D_B_UP,
                                                 [CHECK_D_BIAS_UP] = EG_INTO_D_BIAS_UP,
                                                 [CHECK_D_BIAS_UP_BELOW] = EG_INTO_CHAIN_UP_D_BIAS};
    return ((c->into | (c->accumulate ? (unsigned)ALL_BUT_D_A : 0)) & (unsigned)into[output]) != 0;
}

unsigned check_needed(const check_case *c) {
    if (c->gated && c->backward) return needed_by_gated(c);
    if (c->gated) return CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_B_UP) | CHECK_BIT(CHECK_Y);
    const bool recompute = c->backward && c->source == EG_SOURCE_RECOMPUTE && c->activation != EG_ACT_NONE;
    const bool saved = c->backward && c->source != EG_SOURCE_RECOMPUTE && c->activation != EG_ACT_NONE;
    unsigned inputs = c->backward ? CHECK_BIT(CHECK_GRAD) : CHECK_BIT(CHECK_Y);
    if (!c->backward || recompute || wants(c, CHECK_D_B)) inputs |= CHECK_BIT(CHECK_A);
    if (!c->backward || recompute || wants(c, CHECK_D_A)) inputs |= CHECK_BIT(CHECK_B);
    if (saved) inputs |= CHECK_BIT(CHECK_SAVED);
    return inputs;
}

/* What a gated unit has more: gradients of its other half, at least one of them, by which it is known. */
static void deal_gated(int gate, check_case *c) {
    if ((gate & 1) != 0 || gate == 0) c->present |= CHECK_BIT(CHECK_D_B_UP);
    if ((gate & 2) != 0) c->present |= CHECK_BIT(CHECK_D_BIAS_UP);
    if ((gate & 4) != 0) c->present |= CHECK_BIT(CHECK_GRAD_PRE_UP);
    if ((gate & 8) != 0) c->present |= CHECK_BIT(CHECK_BIAS_UP);
}

/* The layer below as a gated unit. */
static void deal_gated_below(int gate, check_case *c) {
    c->present |= CHECK_BIT(CHECK_BELOW_UP) | CHECK_BIT(CHECK_D_UP_BELOW);
    if ((gate & 1) != 0) c->present |= CHECK_BIT(CHECK_Y_BELOW);
    if ((gate & 2) != 0) c->present |= CHECK_BIT(CHECK_D_BIAS_UP_BELOW);
    c->shared &= ~(CHECK_BIT(CHECK_D_UP_BELOW) | CHECK_BIT(CHECK_Y_BELOW));
}

static void deal_backward(int index, unsigned flags, check_case *c) {
    const unsigned outputs[] = {CHECK_BIT(CHECK_D_A), CHECK_BIT(CHECK_D_B), CHECK_BIT(CHECK_D_BIAS),
                                CHECK_BIT(CHECK_GRAD_PRE)};
    const int subset = deal(DECK_WANTS, index, 16);
    for (int i = 0; i < 4; i++) c->present |= (subset >> i & 1) != 0 ? outputs[i] : 0;
    const int gate = deal(DECK_GATE, index, 16);
    const unsigned up = c->gated ? ~0U : ~(CHECK_BIT(CHECK_B_UP) | CHECK_BIT(CHECK_SAVED_UP));
    const unsigned saved = CHECK_BIT(CHECK_SAVED) | CHECK_BIT(CHECK_SAVED_UP);
    const unsigned unneeded = (CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_B_UP) |
                               (c->source != EG_SOURCE_RECOMPUTE ? saved : 0)) &
                              up;
    if (c->gated) deal_gated(gate, c);
    c->present |= check_needed(c) | ((flags & 8) != 0 ? unneeded : 0);
    if (wants(c, CHECK_GRAD_PRE) && (flags & 4) != 0) {
        c->in_place = true;
        c->shared &= ~CHECK_BIT(CHECK_GRAD);
    }
    const int chain = deal(DECK_CHAIN, index, 4);
    if (!wants(c, CHECK_D_A) || chain == 0) return;
    check_case calls[LARGEST_DECK]; /* the backward calls that save something are the chains there are */
    int count = make_calls(EG_F64, calls), kept = 0;
    for (int i = 0; i < count; i++) {
        if (calls[i].backward && calls[i].source != EG_SOURCE_RECOMPUTE) calls[kept++] = calls[i];
    }
    const check_case *below = &calls[deal(DECK_BELOW, index, kept)];
    c->below_activation = below->activation;
    c->below_source = below->source;
    c->present |= CHECK_BIT(CHECK_BELOW) | (chain > 1 ? CHECK_BIT(CHECK_D_BIAS_BELOW) : 0);
    c->shared &= ~CHECK_BIT(CHECK_D_A);
    if (c->below_source == EG_SOURCE_PRE && gate < 10) deal_gated_below(gate, c);
}

static void deal_forward(unsigned flags, check_case *c) {
    c->present |= check_needed(c);
    if ((flags & 8) != 0) c->present |= CHECK_BIT(CHECK_PRE);
    if ((flags & 8) != 0 && c->gated) c->present |= CHECK_BIT(CHECK_PRE_UP);
    if ((flags & 32) != 0 && c->gated) c->present |= CHECK_BIT(CHECK_BIAS_UP);
    if (!wants(c, CHECK_RESIDUAL)) return;
    c->in_place = (flags & 48) == 48;
    if (c->in_place) c->shared &= ~CHECK_BIT(CHECK_RESIDUAL);
}

/* What is added: to some of the sums, or to d_a; or to d_a what another matrix has, maybe where it is. */
static void deal_added(int index, check_case *c) {
    enum { NOTHING, SOME_SUMS, INTO_D_A, INTO_ALL, RESIDUAL, RESIDUAL_IN_PLACE, WAYS };
    const int way = deal(DECK_INTO, index, WAYS);
    const bool chain = wants(c, CHECK_BELOW);
    if (way == SOME_SUMS) c->into = deal_mask(index, 8) & ALL_BUT_D_A;
    if (way == INTO_ALL) c->into = ALL_BUT_D_A;
    if ((way == INTO_ALL || way == INTO_D_A) && !chain) c->into |= EG_INTO_D_A;
    if (way < RESIDUAL || !wants(c, CHECK_D_A)) return;
    c->present |= CHECK_BIT(CHECK_D_A_RESIDUAL);
    c->d_a_in_place = way == RESIDUAL_IN_PLACE;
    const bool shared = (c->shared & CHECK_BIT(CHECK_D_A)) != 0;
    if (shared) c->shared |= CHECK_BIT(CHECK_D_A_RESIDUAL);
    if (!shared && c->d_a_in_place) c->shared &= ~CHECK_BIT(CHECK_D_A_RESIDUAL);
}

double check_scale(int index) {
    static const double scales[CHECK_SCALES] = {0, 0.125, -2, 1, (double)0.0883883461F, (double)-1.7F, 200};
    return scales[index];
}

/* Half of the cases have none. */
static void deal_scale(int index, check_case *c) {
    const int scale = deal(DECK_SCALE, index, 2 * CHECK_SCALES);
    const int kinds = c->data == CHECK_DATA_INTEGERS ? CHECK_EXACT_SCALES : CHECK_SCALES;
    if (scale < CHECK_SCALES) c->scale = check_scale(scale % kinds);
}

/* A gated unit of 16 bits, with results of some tiles of a matrix unit: more than one of 128 or 256 rows, of
 * which the last is not full, in whole vectors of 16 bytes. So there are cases for kernels that take two products
 * or two results at once: forward, without and with both pre; d_a, the sum of two products; and both gradients of
 * a unit below. */
static void make_tiled(int index, check_case *out) {
    enum { FORWARD, SAVING, D_A, CHAIN };
    static const int64_t sizes[][3] = {{140, 72, 136}, {300, 24, 72}, {260, 40, 200}, {520, 8, 104}};
    const int way = index / 2 % TILED_WAYS, set = deal(DECK_TILES, index, 64);
    const int64_t *const size = sizes[(index / 2 + index / 8) % 4];
    const bool backward = way >= D_A;
    check_case c = {.dtype = index % 2 == 0 ? EG_BF16 : EG_F16,
                    .activation = (eg_activation)(index * 7 / 2 % ACTIVATIONS),
                    .source = backward ? EG_SOURCE_PRE : EG_SOURCE_RECOMPUTE,
                    .m = size[0],
                    .k = size[backward ? 2 : 1],
                    .n = size[backward ? 1 : 2],
                    .batch = 1,
                    .backward = backward,
                    .gated = way != CHAIN,
                    .aligned = true,
                    .data = (check_data)(index % CHECK_DATAS),
                    .seed = (uint64_t)index + 1};
    if (way == SAVING) c.present = CHECK_BIT(CHECK_PRE) | CHECK_BIT(CHECK_PRE_UP);
    if (way == D_A) c.present = CHECK_BIT(CHECK_D_A) | CHECK_BIT(CHECK_D_B_UP);
    if (way == CHAIN) {
        c.below_activation = c.activation, c.below_source = EG_SOURCE_PRE;
        c.present = CHECK_BIT(CHECK_D_A) | CHECK_BIT(CHECK_BELOW);
        deal_gated_below(set, &c);
    }
    if ((set & 4) != 0 && !backward) c.present |= CHECK_BIT(CHECK_BIAS) | CHECK_BIT(CHECK_BIAS_UP);
    if ((set & 8) != 0) c.col_major = CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_B_UP);
    if ((set & 16) != 0) c.padded = ~0U;
    if ((set & 32) != 0) c.offset = ~0U;
    c.present |= check_needed(&c);
    *out = c;
}

void check_make(eg_dtype compute, int index, check_case *out) {
    check_case calls[LARGEST_DECK];
    if (index >= count_untiled(compute) && index < check_count(compute)) {
        make_tiled(index - count_untiled(compute), out);
        return;
    }
    const bool grouped = index >= count_ungrouped(compute) && index < check_count(compute);
    const bool gated = grouped ? index % GATED_OF_GROUPED == 0 : index >= count_plain(compute);
    const int count = gated ? make_gated_calls(compute, calls) : make_calls(compute, calls);
    *out = calls[deal(gated ? DECK_GATED_CALL : DECK_CALL, index, count)];
    const unsigned flags = (unsigned)deal(DECK_FLAGS, index, 64);
    const int options = deal(DECK_OPTIONS, index, 6);
    out->seed = (uint64_t)index + 1;
    out->data = (check_data)deal(DECK_DATA, index, CHECK_DATAS);
    out->math = (eg_math)(options / 2);
    out->nonfinite = (eg_nonfinite)(options % 2);
    deal_shape(index, out);
    if (grouped) deal_groups(index, out);
    deal_layout(index, out);
    deal_scale(index, out);
    if (grouped) out->shared &= CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_B_UP);
    out->shared &= ~(CHECK_BIT(CHECK_Y) | CHECK_BIT(CHECK_PRE) | CHECK_BIT(CHECK_GRAD_PRE) |
                     CHECK_BIT(CHECK_PRE_UP) | CHECK_BIT(CHECK_GRAD_PRE_UP));
    out->present |= (flags & 1) != 0 ? CHECK_BIT(CHECK_BIAS) : 0;
    if (out->backward) {
        deal_backward(index, flags, out);
        deal_added(index, out);
    } else {
        deal_forward(flags, out);
    }
    out->own_workspace = (flags & 2) != 0;
    const int limit = deal(DECK_LIMIT, index, 6);
    out->limit = limit < CHECK_LIMITS && !grouped ? (check_limit)limit : CHECK_LIMIT_NONE;
    if (out->limit != CHECK_LIMIT_NONE && out->m > 0) out->m += 152; /* rows for a few chunks */
    out->accumulate = out->backward && (flags & 16) != 0;
    out->wide = out->backward && (flags & 32) != 0 && (out->dtype == EG_F16 || out->dtype == EG_BF16);
    const bool b_is_read = (check_needed(out) & CHECK_BIT(CHECK_B)) != 0;
    if (b_is_read) out->pack = (check_pack)deal(DECK_PACK, index, CHECK_PACKS);
    deal_levels(index, out);
}

/* ---- Words -------------------------------------------------------------------------------------- */

typedef struct line {
    char *at;
    size_t left;
} line;

static void put(line *to, const char *text) {
    for (; *text != '\0' && to->left > 1; text++, to->left--) *to->at++ = *text;
    *to->at = '\0';
}

static const char *const operand_names[CHECK_OPERANDS] = {
    "a",      "b",         "bias",        "residual",   "grad",     "saved",          "below",
    "b_up",   "bias_up",   "grad_up",     "saved_up",   "below_up", "d_a_residual",   "y",
    "pre",    "d_a",       "d_b",         "d_bias",     "grad_pre", "d_bias_below",   "pre_up",
    "d_b_up", "d_bias_up", "grad_pre_up", "d_up_below", "y_below",  "d_bias_up_below"};

static void put_set(line *to, const char *label, unsigned set, unsigned present) {
    if ((set & present) == 0) return;
    const char *separator = " ";
    put(to, label);
    for (int i = 0; i < CHECK_OPERANDS; i++) {
        if ((set & present & CHECK_BIT(i)) == 0) continue;
        put(to, separator);
        put(to, operand_names[i]);
        separator = ",";
    }
}

void check_describe(const check_case *c, char *text, size_t capacity) {
    static const char *const sources[] = {"recompute", "pre", "y"}, *const maths[] = {"", " strict", " fast"};
    static const char *const datas[] = {"plain", "positive",  "integers", "large",
                                        "tiny",  "nonfinite", "special",  "zero"};
    static const char *const packs[] = {"", ", packed", ", packed copy", ", packed and updated"};
    static const char *const routings[CHECK_ROUTINGS] = {"even", "random", "skewed", "one-row", "empty"};
    static const char *const limits[] = {"", ", least limit", ", more limit"};
    if (capacity == 0) return;
    line to = {text, capacity};
    char head[128];
    snprintf(head, sizeof head, "%s %s %s%s%s%s %lldx%lldx%lld batch %lld",
             c->backward ? "backward" : "forward", eg_dtype_name(c->dtype), eg_activation_name(c->activation),
             c->gated ? " gated" : "", c->backward ? " " : "", c->backward ? sources[c->source] : "",
             (long long)c->m, (long long)c->k, (long long)c->n, (long long)c->batch);
    put(&to, head);
    if (c->groups > 0) {
        snprintf(head, sizeof head, " in %d %s groups", c->groups, routings[c->routing]);
        put(&to, head);
    }
    put(&to, maths[c->math]);
    put(&to, c->nonfinite == EG_NONFINITE_PROPAGATE ? " propagate" : "");
    put_set(&to, ": operands", c->present, c->present);
    put_set(&to, "; column-major", c->col_major, c->present);
    put_set(&to, "; shared", c->shared, c->present);
    put_set(&to, "; padded", c->padded, c->present);
    put_set(&to, "; gapped", c->gapped, c->present);
    put_set(&to, "; interleaved", c->interleaved, c->present);
    put_set(&to, "; offset", c->offset, c->present);
    if (c->outer > 0) {
        snprintf(head, sizeof head, "; %lld outer items", (long long)c->outer);
        put(&to, head);
        put_set(&to, "; crossed", c->crossed, c->present);
        put_set(&to, "; inner shared", c->inner_shared, c->present);
        put_set(&to, "; outer shared", c->outer_shared, c->present);
    }
    if (c->scale != 0) {
        snprintf(head, sizeof head, "; scale %.9g", c->scale);
        put(&to, head);
    }
    put(&to, c->aligned ? "; aligned" : "");
    put(&to, c->accumulate ? "; accumulate" : "; overwrite");
    if (c->into != 0) {
        snprintf(head, sizeof head, " into %u", c->into);
        put(&to, head);
    }
    put(&to, c->wide ? ", f32 gradients" : "");
    put(&to, c->in_place ? ", in place" : "");
    put(&to, c->d_a_in_place ? ", d_a in place" : "");
    put(&to, c->own_workspace ? ", own workspace" : "");
    put(&to, limits[c->limit]);
    put(&to, packs[c->pack]);
    if ((c->present & CHECK_BIT(CHECK_BELOW)) != 0) {
        put(&to, ", below ");
        put(&to, eg_activation_name(c->below_activation));
        put(&to, c->below_source == EG_SOURCE_Y ? " y" : " pre");
    }
    snprintf(head, sizeof head, "; data %s, seed %llu", datas[c->data], (unsigned long long)c->seed);
    put(&to, head);
}
