/* SPDX-License-Identifier: Apache-2.0 */
#include "generate.h"

#include <string.h>

#define LENGTH(array)                              ((int)(sizeof(array) / sizeof *(array)))
#define COUNT_ROW(NAME, name, value, from_y, text) +1
enum { ACTIVATIONS = 0 EG_ACTIVATION_TABLE(COUNT_ROW) };

/* ---- Shapes ------------------------------------------------------------------------------------- */

/* The oracle takes about 5 ns a multiplication: most cases are small, so that there are many. */
typedef struct size_class {
    int share;        /* of 10,000 cases */
    int64_t most;     /* of a size */
    int64_t products; /* m * k * n * batch at most */
} size_class;

enum { TINY, SMALL, MIDDLE, LONG, SUMMED, TALL, TILES };
static const size_class classes[] = {
    [TINY] = {6500, 24, 4000},
    [SMALL] = {3080, 140, 60000},
    [MIDDLE] = {150, 384, 6000000},
    [LONG] = {48, 2100, 1000000},
    [SUMMED] = {100, 320, 1000000},
    [TALL] = {2, 20000, 200000000},
    [TILES] = {120, 400, 400 * 48 * 240},
};

static int64_t between(oracle_random *random, int64_t least, int64_t most) {
    return least + oracle_random_below(random, most - least + 1);
}

/* 0 seldom, 1, primes, both sides of every tile, and anything. */
static int64_t draw_size(oracle_random *random, int64_t most) {
    static const int64_t primes[] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 61, 67, 97, 127, 131, 251};
    static const int64_t tiles[] = {4, 8, 12, 14, 16, 24, 32, 48, 64, 96, 128, 192, 256};
    int64_t size = 0;
    switch (oracle_random_below(random, 16)) {
    case 0:
        return campaign_chance(random, 25) ? 0 : 1;
    case 1:
        return 1;
    case 2:
    case 3:
    case 4:
        size = primes[oracle_random_below(random, LENGTH(primes))];
        break;
    case 5:
    case 6:
    case 7:
    case 8:
    case 9:
        size = tiles[oracle_random_below(random, LENGTH(tiles))] + between(random, -1, 1);
        break;
    default:
        size = between(random, 1, most);
    }
    return size <= most ? size : between(random, 1, most);
}

static int draw_class(oracle_random *random) {
    int64_t card = oracle_random_below(random, 10000);
    for (int i = 0; i < LENGTH(classes); i++) {
        if (card < classes[i].share) return i;
        card -= classes[i].share;
    }
    return TINY;
}

/* Halves what is largest until the oracle can afford the case. */
static void shrink(oracle_random *random, int64_t products, check_case *c) {
    while (c->m * c->k * c->n * c->batch > products) {
        int64_t *largest = &c->m;
        if (c->k > *largest) largest = &c->k;
        if (c->n > *largest) largest = &c->n;
        if (c->batch > *largest) largest = &c->batch;
        *largest = *largest / 2 + oracle_random_below(random, 2);
    }
}

/* Two levels of a batch: outer items of as many inner ones. */
static void draw_levels(oracle_random *random, check_case *c) {
    c->outer = 0;
    if (c->batch == 1 || !campaign_chance(random, 35)) return;
    const int64_t outer = between(random, 2, c->batch);
    if (c->batch % outer == 0) c->outer = outer;
}

static int draw_shape(oracle_random *random, check_case *c) {
    const int chosen = draw_class(random);
    const int64_t most = classes[chosen].most;
    int64_t *const sizes[] = {&c->m, &c->k, &c->n};
    for (int i = 0; i < 3; i++) *sizes[i] = draw_size(random, most);
    c->batch = campaign_chance(random, 50) ? 1 : between(random, 2, campaign_chance(random, 90) ? 5 : 17);
    if (chosen == MIDDLE && campaign_chance(random, 65)) { /* where matrix units begin to be worth it */
        c->batch = 1;
        c->m = between(random, 64, 384);
        c->k = between(random, 64, 160);
        c->n = between(random, 64, 160);
    }
    if (chosen == LONG) { /* one size past the passes over a depth, the others small */
        for (int i = 0; i < 3; i++) *sizes[i] = draw_size(random, 40);
        *sizes[oracle_random_below(random, 3)] = between(random, 500, most);
    }
    if (chosen == SUMMED) { /* d_b is large beside the rows of a chunk */
        c->batch = campaign_chance(random, 70) ? 1 : 2;
        c->m = between(random, 100, 250);
        c->k = between(random, 200, 320);
        c->n = between(random, 8, 32);
    }
    if (chosen == TILES) { /* more than one of a matrix unit, the last one not full; vectors of 16 bytes */
        c->batch = 1;
        c->m = between(random, 130, most);
        c->k = 8 * between(random, 1, 6);
        c->n = 8 * between(random, 9, 30);
        if (campaign_chance(random, 50)) c->k = c->n, c->n = 8 * between(random, 1, 6);
    }
    if (chosen == TALL) {
        c->batch = 1;
        c->m = between(random, most / 4, most);
        c->k = between(random, 16, 100);
        c->n = between(random, 16, 100);
    }
    shrink(random, classes[chosen].products, c);
    draw_levels(random, c);
    return chosen;
}

/* ---- What is computed --------------------------------------------------------------------------- */

static eg_activation draw_activation(oracle_random *random) {
    if (campaign_chance(random, 15)) return EG_ACT_NONE;
    return (eg_activation)oracle_random_below(random, ACTIVATIONS);
}

static void draw_layer(oracle_random *random, int chosen, check_case *c) {
    static const eg_dtype dtypes[] = {EG_F32, EG_F32, EG_F32, EG_F64, EG_F16, EG_F16, EG_BF16, EG_BF16};
    static const eg_math maths[] = {EG_MATH_DEFAULT, EG_MATH_DEFAULT, EG_MATH_DEFAULT, EG_MATH_STRICT,
                                    EG_MATH_FAST};
    c->dtype = dtypes[oracle_random_below(random, LENGTH(dtypes))];
    c->activation = draw_activation(random);
    c->math = maths[oracle_random_below(random, LENGTH(maths))];
    c->nonfinite = (eg_nonfinite)oracle_random_below(random, 2);
    if (chosen == MIDDLE && campaign_chance(random, 50)) c->dtype = EG_F32, c->math = EG_MATH_DEFAULT;
    if (chosen == SUMMED && campaign_chance(random, 80))
        c->dtype = campaign_chance(random, 50) ? EG_F16 : EG_BF16;
    if (chosen == TILES && campaign_chance(random, 85))
        c->dtype = campaign_chance(random, 50) ? EG_F16 : EG_BF16;
    c->backward = campaign_chance(random, chosen == SUMMED ? 95 : 60);
    c->source = (eg_source)oracle_random_below(random, 3);
    if (c->source == EG_SOURCE_Y && !eg_activation_from_y(c->activation)) c->source = EG_SOURCE_PRE;
    if (!c->backward) c->source = EG_SOURCE_RECOMPUTE;
}

static void draw_chain(oracle_random *random, check_case *c) {
    c->below_activation = draw_activation(random);
    const bool from_y = eg_activation_from_y(c->below_activation) != 0 && campaign_chance(random, 50);
    c->below_source = from_y ? EG_SOURCE_Y : EG_SOURCE_PRE;
    c->present |= CHECK_BIT(CHECK_BELOW);
    if (campaign_chance(random, 60)) c->present |= CHECK_BIT(CHECK_D_BIAS_BELOW);
}

/* What a gated unit has more; of its gradients at least one, by which it is known. */
static void draw_gated_operands(oracle_random *random, check_case *c) {
    static const check_operand outputs[] = {CHECK_D_B_UP, CHECK_D_BIAS_UP, CHECK_GRAD_PRE_UP};
    if (campaign_chance(random, 60)) c->present |= CHECK_BIT(CHECK_BIAS_UP);
    if (!c->backward) {
        if (campaign_has(c, CHECK_PRE)) c->present |= CHECK_BIT(CHECK_PRE_UP);
        return;
    }
    c->present |= CHECK_BIT(outputs[oracle_random_below(random, LENGTH(outputs))]);
    for (int i = 0; i < LENGTH(outputs); i++) {
        if (campaign_chance(random, 40)) c->present |= CHECK_BIT(outputs[i]);
    }
    if (c->activation == EG_ACT_NONE && c->source == EG_SOURCE_RECOMPUTE && campaign_chance(random, 70))
        c->present |= CHECK_BIT(CHECK_GRAD_UP);
}

static void draw_gated_below(oracle_random *random, check_case *c) {
    c->present |= CHECK_BIT(CHECK_BELOW_UP) | CHECK_BIT(CHECK_D_UP_BELOW);
    if (campaign_chance(random, 50)) c->present |= CHECK_BIT(CHECK_Y_BELOW);
    if (campaign_chance(random, 50)) c->present |= CHECK_BIT(CHECK_D_BIAS_UP_BELOW);
}

/* Makes a gated unit of some layers, and of some below. The numbers are of a stream of their own: what else a
 * case has does not depend on them. */
static void draw_gated(oracle_random *random, int chosen, check_case *c) {
    const bool is_pre = campaign_has(c, CHECK_BELOW) && c->below_source == EG_SOURCE_PRE;
    if (is_pre && campaign_chance(random, 40)) draw_gated_below(random, c);
    c->gated = !campaign_has(c, CHECK_RESIDUAL) && campaign_chance(random, chosen == TILES ? 60 : 25);
    if (!c->gated) return;
    if (c->source == EG_SOURCE_Y) c->source = EG_SOURCE_PRE;
    draw_gated_operands(random, c);
    c->present |= check_needed(c);
    if (!c->backward || !campaign_chance(random, 20)) return;
    c->present |= CHECK_BIT(CHECK_B_UP); /* which nothing may need */
    if (c->source == EG_SOURCE_PRE) c->present |= CHECK_BIT(CHECK_SAVED) | CHECK_BIT(CHECK_SAVED_UP);
}

/* What is added, and to what: of a stream of its own, too. */
static void draw_added(oracle_random *random, check_case *c) {
    const unsigned all = 2 * EG_INTO_CHAIN_UP_D_BIAS - 1;
    if (!c->backward) return;
    if (campaign_chance(random, 40)) c->into = (unsigned)oracle_random_bits(random) & all;
    if (campaign_has(c, CHECK_BELOW)) c->into &= ~(unsigned)EG_INTO_D_A;
    if (!campaign_has(c, CHECK_D_A) || (c->into & EG_INTO_D_A) != 0 || !campaign_chance(random, 30)) return;
    c->present |= CHECK_BIT(CHECK_D_A_RESIDUAL);
    c->d_a_in_place = campaign_chance(random, 40);
}

static void draw_scale(oracle_random *random, check_case *c) {
    if (campaign_chance(random, 25)) c->scale = check_scale((int)oracle_random_below(random, CHECK_SCALES));
}

static void draw_operands(oracle_random *random, bool summed, check_case *c) {
    if (campaign_chance(random, 60)) c->present |= CHECK_BIT(CHECK_BIAS);
    if (c->backward) {
        static const check_operand outputs[] = {CHECK_D_A, CHECK_D_B, CHECK_D_BIAS, CHECK_GRAD_PRE};
        for (int i = 0; i < LENGTH(outputs); i++) {
            if (campaign_chance(random, 60)) c->present |= CHECK_BIT(outputs[i]);
        }
        if (summed) c->present |= CHECK_BIT(CHECK_D_B);
        if (campaign_has(c, CHECK_D_A) && campaign_chance(random, 40)) draw_chain(random, c);
        c->accumulate = campaign_chance(random, 45);
        c->in_place = campaign_has(c, CHECK_GRAD_PRE) && campaign_chance(random, 35);
    } else {
        if (campaign_chance(random, 35)) c->present |= CHECK_BIT(CHECK_PRE);
        if (c->activation == EG_ACT_NONE && campaign_chance(random, 60)) {
            c->present |= CHECK_BIT(CHECK_RESIDUAL);
            c->in_place = campaign_chance(random, 40);
        }
    }
    c->present |= check_needed(c);
    if (!c->backward || !campaign_chance(random, 20)) return;
    c->present |= CHECK_BIT(CHECK_A) | CHECK_BIT(CHECK_B); /* inputs that nothing needs */
    if (c->source != EG_SOURCE_RECOMPUTE) c->present |= CHECK_BIT(CHECK_SAVED);
}

/* ---- How ---------------------------------------------------------------------------------------- */

static void draw_data(oracle_random *random, check_case *c) {
    static const check_data datas[] = {CHECK_DATA_PLAIN,     CHECK_DATA_PLAIN,    CHECK_DATA_PLAIN,
                                       CHECK_DATA_PLAIN,     CHECK_DATA_POSITIVE, CHECK_DATA_INTEGERS,
                                       CHECK_DATA_INTEGERS,  CHECK_DATA_LARGE,    CHECK_DATA_TINY,
                                       CHECK_DATA_NONFINITE, CHECK_DATA_SPECIAL,  CHECK_DATA_SPECIAL};
    c->data = datas[oracle_random_below(random, LENGTH(datas))];
    if (campaign_chance(random, 2)) c->data = CHECK_DATA_ZERO;
    c->seed = oracle_random_bits(random) >> 8;
}

static void draw_pack(oracle_random *random, bool often, check_case *c) {
    static const int64_t heights[] = {1, 7, 64, 300, 5000};
    if ((check_needed(c) & CHECK_BIT(CHECK_B)) == 0 || !campaign_chance(random, often ? 60 : 35)) return;
    c->pack = (check_pack)between(random, CHECK_PACK_ALONE, CHECK_PACK_UPDATED);
    if (campaign_chance(random, 60)) c->pack_m = heights[oracle_random_below(random, LENGTH(heights))];
    if (campaign_chance(random, 30)) c->pack_m = c->m;
}

static void draw_memory(oracle_random *random, bool limited, check_case *c) {
    c->own_workspace = campaign_chance(random, 40);
    if (campaign_chance(random, 25)) c->more_workspace = (size_t)between(random, 1, 40) * 64;
    if (!campaign_chance(random, limited ? 85 : 15)) return;
    c->limit = campaign_chance(random, 50) ? CHECK_LIMIT_LEAST : CHECK_LIMIT_MORE;
    c->limit_part = (int)between(random, 1, 99);
    if (c->m > 0 && c->m < 200 && c->m * c->k * c->n * c->batch < 20000 && campaign_chance(random, 60))
        c->m += between(random, 64, 200); /* rows for a few chunks */
}

/* Makes a grouped layer of some cases. Its operands lie as sets of them say, not as the places do. */
static void draw_groups(oracle_random *random, check_case *c) {
    if (!campaign_chance(random, 12)) return;
    c->groups = (int)between(random, 1, 50);
    c->routing = (check_routing)oracle_random_below(random, CHECK_ROUTINGS);
    c->batch = 1;
    c->outer = 0;
    c->limit = CHECK_LIMIT_NONE;
    c->places = NULL;
    c->col_major = (unsigned)oracle_random_bits(random);
    c->padded = (unsigned)oracle_random_bits(random);
    c->gapped = (unsigned)oracle_random_bits(random);
    c->interleaved = (unsigned)oracle_random_bits(random);
    c->offset = (unsigned)oracle_random_bits(random);
    if (campaign_chance(random, 20)) c->shared = CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_B_UP);
    c->aligned = campaign_chance(random, 30);
    c->wide = (c->dtype == EG_F16 || c->dtype == EG_BF16) && campaign_chance(random, 50);
}

/* On 16 bytes and by rows, but for the weights: what kernels ask for that take both products of a gated unit. */
static void lay_in_vectors(oracle_random *random, check_case *c) {
    c->places = NULL;
    c->aligned = true;
    if (campaign_chance(random, 50)) c->col_major = CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_B_UP);
    if (campaign_chance(random, 50)) c->padded = (unsigned)oracle_random_bits(random);
    if (campaign_chance(random, 50)) c->offset = (unsigned)oracle_random_bits(random);
}

void campaign_make(uint64_t seed, uint64_t index, bool addresses, campaign_case *out) {
    memset(out, 0, sizeof *out);
    oracle_random random = {seed ^ (index + 1) * 0xd1342543de82ef95U};
    oracle_random_bits(&random); /* the first of neighbouring states are alike in few bits, and gone */
    check_case *c = &out->call;
    const int chosen = draw_shape(&random, c);
    draw_layer(&random, chosen, c);
    draw_operands(&random, chosen == SUMMED, c);
    oracle_random gates = {~seed ^ (index + 1) * 0x9e3779b97f4a7c15U};
    draw_gated(&gates, chosen, c);
    oracle_random added = {seed ^ ~(index + 1) * 0x9e3779b97f4a7c15U};
    draw_added(&added, c);
    draw_scale(&added, c);
    draw_data(&random, c);
    if (c->scale != 0 && c->data == CHECK_DATA_INTEGERS)
        c->scale = check_scale((int)(c->seed % CHECK_EXACT_SCALES));
    draw_pack(&random, chosen == MIDDLE, c);
    draw_memory(&random, chosen == TALL || chosen == SUMMED, c);
    c->repeated = chosen != TALL;
    out->threads[0] = (int)oracle_random_below(&random, CAMPAIGN_THREADS);
    out->threads[1] = (int)oracle_random_below(&random, CAMPAIGN_THREADS);
    out->row = campaign_chance(&random, 15) ? 1 + (int)oracle_random_below(&random, 1 << 20) : 0;
    campaign_lay_out(&random, addresses, out);
    c->places = out->places;
    oracle_random groups = {~seed ^ ~(index + 1) * 0xd1342543de82ef95U};
    if (chosen == TILES) {
        lay_in_vectors(&groups, c);
    } else {
        draw_groups(&groups, c);
    }
}
