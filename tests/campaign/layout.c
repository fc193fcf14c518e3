/* SPDX-License-Identifier: Apache-2.0 */
/* Where the operands of a case lie. */
#include <stdio.h>

#include "generate.h"

typedef struct sizes {
    int64_t rows, cols;
} sizes;

/* What is drawn once for the whole case. */
typedef struct drawing {
    oracle_random *random;
    campaign_case *out;
    bool addresses;
    bool on_16_bytes; /* distances and offsets are multiples of that, whatever the rows are */
    unsigned placed;  /* operands that lie in a window */
} drawing;

static bool chance(const drawing *d, int percent) { return campaign_chance(d->random, percent); }

static int64_t between(const drawing *d, int64_t least, int64_t most) {
    return least + oracle_random_below(d->random, most - least + 1);
}

static bool is_vector(check_operand which) {
    return which == CHECK_BIAS || which == CHECK_D_BIAS || which == CHECK_D_BIAS_BELOW ||
           which == CHECK_BIAS_UP || which == CHECK_D_BIAS_UP || which == CHECK_D_BIAS_UP_BELOW;
}

static bool is_output(check_operand which) { return which >= CHECK_Y; }

static sizes sizes_of(const check_case *c, check_operand which) {
    switch (which) {
    case CHECK_A:
    case CHECK_BELOW:
    case CHECK_BELOW_UP:
    case CHECK_D_A_RESIDUAL:
    case CHECK_D_A:
    case CHECK_D_UP_BELOW:
    case CHECK_Y_BELOW:
        return (sizes){c->m, c->k};
    case CHECK_B:
    case CHECK_D_B:
    case CHECK_B_UP:
    case CHECK_D_B_UP:
        return (sizes){c->k, c->n};
    case CHECK_BIAS:
    case CHECK_D_BIAS:
    case CHECK_BIAS_UP:
    case CHECK_D_BIAS_UP:
        return (sizes){1, c->n};
    case CHECK_D_BIAS_BELOW:
    case CHECK_D_BIAS_UP_BELOW:
        return (sizes){1, c->k};
    default:
        return (sizes){c->m, c->n};
    }
}

/* The input that an output is written over takes part in its place. */
static bool is_written_over(const check_case *c, check_operand which) {
    if (which == CHECK_D_A_RESIDUAL) return c->d_a_in_place;
    return c->in_place && which == (c->backward ? CHECK_GRAD : CHECK_RESIDUAL);
}

static bool writes_over(const check_case *c, check_operand which) {
    if (which == CHECK_D_A) return c->d_a_in_place;
    return c->in_place && which == (c->backward ? CHECK_GRAD_PRE : CHECK_Y);
}

static int64_t up_to(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

static int64_t rounded(const drawing *d, eg_dtype dtype, int64_t elements) {
    return d->on_16_bytes ? up_to(elements, 16 / (int64_t)eg_dtype_size(dtype)) : elements;
}

/* ---- One operand -------------------------------------------------------------------------------- */

static eg_dtype draw_dtype(const drawing *d, check_operand which) {
    const check_case *c = &d->out->call;
    const bool sum = which == CHECK_D_B || which == CHECK_D_B_UP || (is_output(which) && is_vector(which));
    const bool half = c->dtype == EG_F16 || c->dtype == EG_BF16;
    return sum && half && chance(d, c->limit == CHECK_LIMIT_NONE ? 55 : 25) ? EG_F32 : c->dtype;
}

/* Whether the batch has one of it. */
static bool draw_shared(const drawing *d, check_operand which) {
    const check_case *c = &d->out->call;
    if (is_vector(which)) return true;
    if (is_written_over(c, which) && which != CHECK_D_A_RESIDUAL) return false;
    switch (which) {
    case CHECK_B:
    case CHECK_B_UP:
        return chance(d, 45);
    case CHECK_D_B:
    case CHECK_D_B_UP:
        return chance(d, 55);
    case CHECK_D_A:
    case CHECK_D_A_RESIDUAL:
        return !campaign_has(c, CHECK_BELOW) && chance(d, 20);
    case CHECK_A:
    case CHECK_RESIDUAL:
    case CHECK_GRAD:
    case CHECK_SAVED:
    case CHECK_BELOW:
    case CHECK_GRAD_UP:
    case CHECK_SAVED_UP:
    case CHECK_BELOW_UP:
        return chance(d, 15);
    default:
        return false;
    }
}

static int64_t draw_ld(const drawing *d, eg_dtype dtype, int64_t length, int64_t lines) {
    const int64_t in_16 = 16 / (int64_t)eg_dtype_size(dtype);
    if (lines <= 1 && chance(d, 30)) return length + between(d, 0, 70); /* addresses nothing */
    switch (between(d, 0, 9)) {
    case 0:
        return length + between(d, 1, 3);
    case 1:
    case 2:
        return up_to(length, in_16); /* room behind a row, up to 16 bytes */
    case 3:
        return up_to(length, in_16) + in_16 * between(d, 0, 3);
    case 4:
        return length + between(d, 1, 40);
    default:
        return rounded(d, dtype, length);
    }
}

static size_t draw_offset(const drawing *d, eg_dtype dtype) {
    const size_t element = eg_dtype_size(dtype);
    switch (between(d, 0, 9)) {
    case 0:
        return d->on_16_bytes ? 16 : element;
    case 1:
        return 16 * (size_t)between(d, 1, 16);
    case 2:
        return d->on_16_bytes ? 256 : element * (size_t)between(d, 1, 70);
    default:
        return 0;
    }
}

/* Of a batch of two levels: where the items of one level are, or others. What may be packed stays there. */
static void draw_levels(const drawing *d, check_operand which, int64_t length, int64_t lines, bool repeats,
                        check_place *place) {
    const check_case *c = &d->out->call;
    const int64_t inner = c->outer > 0 ? c->batch / c->outer : c->batch, step = place->batch_stride;
    const bool packed = c->pack != CHECK_PACK_NONE && (which == CHECK_B || which == CHECK_B_UP);
    const bool apart = lines <= 1 || step >= lines * place->ld; /* no rows of another item between */
    if (c->outer == 0) return;
    place->outer_stride = inner * step;
    if (packed) return;
    if (chance(d, 30)) { /* the outer items beside each other */
        place->outer_stride = step;
        place->batch_stride = c->outer * step;
    } else if (!apart && step >= length && place->ld >= c->batch * step &&
               chance(d, 60)) { /* rows of the inner items alone */
        place->ld = inner * step;
        place->outer_stride = lines * place->ld;
    } else if (apart && chance(d, 40)) {
        place->outer_stride += rounded(d, place->dtype, between(d, 1, 9));
    }
    if (repeats || !chance(d, 20)) return;
    *(chance(d, 50) ? &place->batch_stride : &place->outer_stride) = 0;
}

/* The distance between the matrices of a batch. */
static void draw_items(const drawing *d, check_operand which, int64_t length, int64_t lines,
                       check_place *place) {
    const check_case *c = &d->out->call;
    const int64_t whole = lines * place->ld;
    const bool repeats = is_output(which) || is_written_over(c, which);
    place->batch_stride = rounded(d, place->dtype, whole);
    if (chance(d, 20)) place->batch_stride += rounded(d, place->dtype, between(d, 1, 9));
    if (chance(d, 20) && length > 0) { /* row i of every matrix, then row i + 1 of every matrix */
        place->batch_stride = place->ld;
        place->ld = c->batch * place->batch_stride;
        if (chance(d, 30)) place->ld += rounded(d, place->dtype, between(d, 1, 9));
    } else if (!repeats && chance(d, 8)) { /* matrices that share elements, as of a sliding window */
        place->batch_stride = rounded(d, place->dtype, between(d, 1, whole + 1));
    }
    if (place->batch_stride == 0) place->batch_stride = 1; /* no elements; 0 would mean shared */
    draw_levels(d, which, length, lines, repeats, place);
}

static void draw_place(const drawing *d, check_operand which) {
    const check_case *c = &d->out->call;
    check_place *place = &d->out->places[which];
    const sizes size = sizes_of(c, which);
    *place = (check_place){.home = which, .dtype = draw_dtype(d, which), .named = chance(d, 50)};
    place->offset = draw_offset(d, place->dtype);
    if (chance(d, 40))
        place->tail = rounded(d, place->dtype, between(d, 1, 20)) * eg_dtype_size(place->dtype);
    if (chance(d, 20)) place->tail = up_to((int64_t)place->tail, 64);
    if (is_vector(which)) {
        place->ld = size.cols;
        return;
    }
    place->layout =
        chance(d, which == CHECK_B || which == CHECK_B_UP ? 45 : 30) ? EG_COL_MAJOR : EG_ROW_MAJOR;
    const bool by_rows = place->layout == EG_ROW_MAJOR;
    const int64_t length = by_rows ? size.cols : size.rows, lines = by_rows ? size.rows : size.cols;
    const bool dense = which == CHECK_D_B && c->limit != CHECK_LIMIT_NONE && chance(d, 60);
    place->ld = dense ? length : draw_ld(d, place->dtype, length, lines);
    if (c->batch == 1 ? chance(d, 50) : draw_shared(d, which)) return;
    draw_items(d, which, length, lines, place);
}

/* ---- Windows of one memory ---------------------------------------------------------------------- */

/* A window's lines and their length, of operands that have this layout. */
static int64_t lines_of(sizes size, eg_layout layout) {
    return layout == EG_ROW_MAJOR ? size.rows : size.cols;
}
static int64_t length_of(sizes size, eg_layout layout) {
    return layout == EG_ROW_MAJOR ? size.cols : size.rows;
}

static bool may_be_window(const drawing *d, check_operand which, eg_layout layout, int64_t lines) {
    const check_case *c = &d->out->call;
    if (!campaign_has(c, which) || is_vector(which) || writes_over(c, which)) return false;
    const bool is_b = which == CHECK_B || which == CHECK_B_UP;
    if (is_b && c->pack != CHECK_PACK_NONE) return false; /* it is spoilt as a whole */
    if (d->out->places[which].dtype != c->dtype) return false;
    const sizes size = sizes_of(c, which);
    return lines_of(size, layout) == lines && length_of(size, layout) > 0;
}

/* Operands of as many lines side by side, every line of one memory having a window of each: [T, windows].
 * Their batches follow one another, or the items of the inner level interleave within the line, too: [T,
 * windows, batch, length]. */
static void draw_windows(drawing *d) {
    const check_case *c = &d->out->call;
    const eg_layout layout = chance(d, 70) ? EG_ROW_MAJOR : EG_COL_MAJOR;
    const int64_t choices[] = {c->m, c->m, c->k, c->n};
    const int64_t lines = choices[between(d, 0, 3)];
    const bool by_item = c->batch > 1 && chance(d, 50);
    const int64_t inner = c->outer > 0 ? c->batch / c->outer : c->batch;
    check_operand members[CHECK_OPERANDS];
    int count = 0;
    for (int i = 0; i < CHECK_OPERANDS; i++) {
        if (may_be_window(d, (check_operand)i, layout, lines) && chance(d, 70))
            members[count++] = (check_operand)i;
    }
    if (count < 2 || lines < 2) return;
    const check_operand home = members[0];
    for (int i = count - 1; i > 0; i--) { /* in any order */
        const int64_t j = between(d, 0, i);
        const check_operand other = members[j];
        members[j] = members[i];
        members[i] = other;
    }
    int64_t ld = 0, starts[CHECK_OPERANDS];
    for (int i = 0; i < count; i++) {
        check_place *place = &d->out->places[members[i]];
        const bool shared = c->batch > 1 && place->batch_stride == 0;
        const int64_t length =
            rounded(d, c->dtype, length_of(sizes_of(c, members[i]), layout) + (chance(d, 20) ? 1 : 0));
        starts[i] = ld;
        place->batch_stride = shared ? 0 : length;
        ld += length * (by_item && !shared ? inner : 1);
        if (chance(d, 15)) ld += rounded(d, c->dtype, between(d, 1, 5));
    }
    const int64_t item = (lines + (chance(d, 20) ? between(d, 1, 3) : 0)) * ld;
    const size_t offset = d->out->places[home].offset;
    for (int i = 0; i < count; i++) {
        check_place *place = &d->out->places[members[i]];
        place->home = home;
        place->layout = layout;
        place->ld = ld;
        if (!by_item && place->batch_stride != 0) place->batch_stride = item;
        place->outer_stride = place->batch_stride == 0 || c->outer == 0 ? 0 : by_item ? item : inner * item;
        place->offset = offset + (size_t)starts[i] * eg_dtype_size(c->dtype);
        d->placed |= CHECK_BIT(members[i]);
    }
    d->out->windows = true;
    d->out->by_item = by_item;
}

/* ---- Inputs over one another -------------------------------------------------------------------- */

/* The later one's numbers stand: it is the one whose range may matter. */
static void draw_aliases(const drawing *d) {
    const check_case *c = &d->out->call;
    const unsigned needed =
        check_needed(c) | (c->present & (CHECK_BIT(CHECK_BELOW) | CHECK_BIT(CHECK_BELOW_UP) |
                                         CHECK_BIT(CHECK_RESIDUAL) | CHECK_BIT(CHECK_D_A_RESIDUAL)));
    if (c->data == CHECK_DATA_INTEGERS || !chance(d, 12)) return; /* whose sums are to stay exact */
    const check_operand over = (check_operand)between(d, CHECK_B, CHECK_D_A_RESIDUAL);
    const check_operand under = (check_operand)between(d, CHECK_A, (int64_t)over - 1);
    const unsigned both = CHECK_BIT(over) | CHECK_BIT(under);
    if ((needed & both) != both || (d->placed & both) != 0) return;
    if (is_written_over(c, over) || is_written_over(c, under)) return;
    if (c->pack != CHECK_PACK_NONE && (both & (CHECK_BIT(CHECK_B) | CHECK_BIT(CHECK_B_UP))) != 0) return;
    const sizes x = sizes_of(c, over), y = sizes_of(c, under);
    check_place *place = &d->out->places[over];
    if (x.rows == y.rows && x.cols == y.cols && !is_vector(over) && !is_vector(under) && chance(d, 60))
        *place = d->out->places[under];
    place->home = under;
}

/* ---- The case ----------------------------------------------------------------------------------- */

void campaign_lay_out(oracle_random *random, bool addresses, campaign_case *out) {
    drawing d = {.random = random, .out = out, .addresses = addresses};
    const check_case *c = &out->call;
    d.on_16_bytes = chance(&d, 50);
    for (int i = 0; i < CHECK_OPERANDS; i++) draw_place(&d, (check_operand)i);
    if (chance(&d, 25)) draw_windows(&d);
    draw_aliases(&d);
    if (c->in_place) {
        const check_operand input = c->backward ? CHECK_GRAD : CHECK_RESIDUAL;
        out->places[c->backward ? CHECK_GRAD_PRE : CHECK_Y] = out->places[input];
    }
    if (c->d_a_in_place) out->places[CHECK_D_A] = out->places[CHECK_D_A_RESIDUAL];
    if (c->batch > 1 && out->places[CHECK_D_A].batch_stride == 0)
        out->places[CHECK_D_A_RESIDUAL].batch_stride = out->places[CHECK_D_A_RESIDUAL].outer_stride =
            0; /* one for the sum over the batch */
    for (int i = 0; addresses && i < CHECK_OPERANDS; i++) {
        check_place *place = &out->places[i];
        if (chance(&d, 50)) place->in_pointer = place->offset;
    }
}

void campaign_describe_places(const campaign_case *c, char *text, size_t capacity) {
    static const char *const names[CHECK_OPERANDS] = {"a",
                                                      "b",
                                                      "bias",
                                                      "residual",
                                                      "grad",
                                                      "saved",
                                                      "chain.saved",
                                                      "b_up",
                                                      "bias_up",
                                                      "grad_up",
                                                      "saved_up",
                                                      "chain_up.saved",
                                                      "d_a residual",
                                                      "y",
                                                      "pre",
                                                      "d_a",
                                                      "d_b",
                                                      "d_bias",
                                                      "grad_pre",
                                                      "chain.d_bias",
                                                      "pre_up",
                                                      "d_b_up",
                                                      "d_bias_up",
                                                      "grad_pre_up",
                                                      "chain_up.d_up",
                                                      "chain_up.y",
                                                      "chain_up.d_bias"};
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < CHECK_OPERANDS && used < capacity; i++) {
        const check_place *place = &c->places[i];
        if (!campaign_has(&c->call, (check_operand)i)) continue;
        const int wrote = snprintf(
            text + used, capacity - used, "  %s: %s%s%s %s ld %lld batch_stride %lld outer %lld offset %zu%s",
            names[i], place->home == (check_operand)i ? "" : "in ",
            place->home == (check_operand)i ? "" : names[place->home],
            place->home == (check_operand)i ? "" : "'s memory", eg_dtype_name(place->dtype),
            (long long)place->ld, (long long)place->batch_stride, (long long)place->outer_stride,
            place->offset, place->layout == EG_COL_MAJOR ? " column-major\n" : "\n");
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}
