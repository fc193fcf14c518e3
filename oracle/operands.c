/* SPDX-License-Identifier: Apache-2.0 */
#include "operands.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What was never an element: a NaN in every data type. */
enum { POISON = 0xff };

typedef enum dim { ONE, DIM_M, DIM_K, DIM_N } dim;

static const struct {
    const char *name;
    dim rows, cols;
} table[CHECK_OPERANDS] = {
    [CHECK_A] = {"a", DIM_M, DIM_K},
    [CHECK_B] = {"b", DIM_K, DIM_N},
    [CHECK_BIAS] = {"bias", ONE, DIM_N},
    [CHECK_RESIDUAL] = {"residual", DIM_M, DIM_N},
    [CHECK_GRAD] = {"grad", DIM_M, DIM_N},
    [CHECK_SAVED] = {"pre", DIM_M, DIM_N},
    [CHECK_BELOW] = {"chain.saved", DIM_M, DIM_K},
    [CHECK_B_UP] = {"b_up", DIM_K, DIM_N},
    [CHECK_BIAS_UP] = {"bias_up", ONE, DIM_N},
    [CHECK_GRAD_UP] = {"grad_up", DIM_M, DIM_N},
    [CHECK_SAVED_UP] = {"pre_up", DIM_M, DIM_N},
    [CHECK_BELOW_UP] = {"chain_up.saved", DIM_M, DIM_K},
    [CHECK_D_A_RESIDUAL] = {"residual", DIM_M, DIM_K},
    [CHECK_Y] = {"y", DIM_M, DIM_N},
    [CHECK_PRE] = {"pre", DIM_M, DIM_N},
    [CHECK_D_A] = {"d_a", DIM_M, DIM_K},
    [CHECK_D_B] = {"d_b", DIM_K, DIM_N},
    [CHECK_D_BIAS] = {"d_bias", ONE, DIM_N},
    [CHECK_GRAD_PRE] = {"grad_pre", DIM_M, DIM_N},
    [CHECK_D_BIAS_BELOW] = {"chain.d_bias", ONE, DIM_K},
    [CHECK_PRE_UP] = {"pre_up", DIM_M, DIM_N},
    [CHECK_D_B_UP] = {"d_b_up", DIM_K, DIM_N},
    [CHECK_D_BIAS_UP] = {"d_bias_up", ONE, DIM_N},
    [CHECK_GRAD_PRE_UP] = {"grad_pre_up", DIM_M, DIM_N},
    [CHECK_D_UP_BELOW] = {"chain_up.d_up", DIM_M, DIM_K},
    [CHECK_Y_BELOW] = {"chain_up.y", DIM_M, DIM_K},
    [CHECK_D_BIAS_UP_BELOW] = {"chain_up.d_bias", ONE, DIM_K},
};

const char *operand_name(const check_case *c, check_operand which) {
    if (which == CHECK_SAVED && c->source == EG_SOURCE_Y) return "y";
    return table[which].name;
}

bool operand_is_output(check_operand which) { return which >= CHECK_Y; }

bool operand_has_rows(check_operand which) { return table[which].rows == DIM_M; }

static bool is_sum(check_operand which) {
    return which == CHECK_D_B || which == CHECK_D_B_UP ||
           (operand_is_output(which) && table[which].rows == ONE);
}

int64_t operand_count(const operand *x) { return x->items * x->rows * x->cols; }

/* ---- Layout ------------------------------------------------------------------------------------- */

static int64_t dim_of(const check_case *c, dim which) {
    switch (which) {
    case ONE:
        return 1;
    case DIM_M:
        return c->m;
    case DIM_K:
        return c->k;
    case DIM_N:
        return c->n;
    }
    return 0;
}

static bool in(unsigned set, check_operand which) { return (set & CHECK_BIT(which)) != 0; }

/* An operand that is written in place takes the layout of the output. */
static check_operand layout_of(const check_case *c, check_operand which) {
    if (c->in_place && which == CHECK_RESIDUAL) return CHECK_Y;
    if (c->in_place && which == CHECK_GRAD) return CHECK_GRAD_PRE;
    if (c->d_a_in_place && which == CHECK_D_A_RESIDUAL) return CHECK_D_A;
    return which;
}

/* What rows that begin on 16 bytes are apart. */
static int64_t up_to_16_bytes(int64_t elements, eg_dtype dtype) {
    const int64_t each = 16 / (int64_t)eg_dtype_size(dtype);
    return (elements + each - 1) / each * each;
}

/* Matrices or vectors of an operand that the batch, or the groups, do not share. */
static int64_t items_of(const check_case *c, check_operand which) {
    if (c->groups == 0) return table[which].rows == ONE ? 1 : c->batch;
    return operand_has_rows(which) ? 1 : c->groups;
}

/* As the case says in numbers. */
static void lay_out_at(const check_case *c, check_operand which, operand *x) {
    const check_place *place = &c->places[which];
    x->home = place->home;
    x->dtype = place->dtype;
    x->layout = place->layout;
    x->ld = place->ld;
    x->batch_stride = place->batch_stride;
    x->outer_stride = place->outer_stride;
    const bool shared = !x->vector && x->batch_stride == 0 && (c->outer == 0 || x->outer_stride == 0);
    x->items = shared ? 1 : items_of(c, which);
    x->plain = !place->named;
    x->offset = place->offset;
    x->in_pointer = place->in_pointer;
}

/* One level becomes two. Interleaved are rows of the inner items alone, or where the levels are crossed those
 * of all. */
static void lay_out_levels(const check_case *c, check_operand like, int64_t lines, int64_t gap, operand *x) {
    const int64_t step = x->batch_stride;
    const bool interleaved = x->ld == x->items * step && lines > 1, input = !operand_is_output(like);
    if (c->outer == 0 || x->items == 1) return;
    if (in(c->crossed, like)) {
        x->batch_stride = c->outer * step;
        x->outer_stride = step;
    } else {
        if (interleaved) x->ld = x->inner * step;
        x->outer_stride = interleaved ? lines * x->ld : x->inner * step;
        if (in(c->gapped, like)) x->outer_stride += gap;
    }
    if (input && in(c->inner_shared, like)) x->batch_stride = 0;
    if (input && !in(c->inner_shared, like) && in(c->outer_shared, like)) x->outer_stride = 0;
}

/* As the sets of the case say. */
static void lay_out_by_sets(const check_case *c, check_operand which, operand *x) {
    const int64_t by = c->aligned ? 8 : 3, gap = c->aligned ? 8 : 5, lead = c->aligned ? 8 : 7;
    const check_operand like = layout_of(c, which);
    x->home = c->in_place && which == CHECK_Y          ? CHECK_RESIDUAL
              : c->in_place && which == CHECK_GRAD_PRE ? CHECK_GRAD
              : c->d_a_in_place && which == CHECK_D_A  ? CHECK_D_A_RESIDUAL
                                                       : which;
    if (!in(c->present, x->home)) x->home = which;
    x->dtype = is_sum(which) && c->wide ? EG_F32 : c->dtype;
    const bool shared = in(c->shared, which) && !x->vector;
    x->items = shared ? 1 : items_of(c, which);
    x->layout = in(c->col_major, like) && !x->vector ? EG_COL_MAJOR : EG_ROW_MAJOR;
    const int64_t length = x->layout == EG_ROW_MAJOR ? x->cols : x->rows;
    const int64_t lines = x->layout == EG_ROW_MAJOR ? x->rows : x->cols;
    const int64_t pad = in(c->padded, like) && !x->vector ? by : 0;
    const int64_t pitch = c->aligned ? up_to_16_bytes(length + pad, x->dtype) : length + pad;
    if (in(c->interleaved, like) && x->items > 1 && length > 0) {
        x->batch_stride = pitch;
        x->ld = x->items * x->batch_stride;
    } else {
        x->ld = pitch;
        x->batch_stride = shared ? 0 : lines * x->ld + (in(c->gapped, like) ? gap : 0);
        if (!shared && x->batch_stride == 0) x->batch_stride = 1; /* no elements; 0 would mean shared */
    }
    lay_out_levels(c, like, lines, gap, x);
    if (x->vector) x->ld = x->batch_stride = x->cols; /* dense */
    x->plain = !in(c->offset, like);
    x->offset = in(c->offset, like) ? (size_t)lead * eg_dtype_size(x->dtype) : 0;
}

/* In bytes, of element `col` of a line: a row of an item. */
static size_t place_of(const operand *x, int64_t line, int64_t col) {
    const int64_t row = line % x->rows, item = line / x->rows;
    const int64_t inside = x->layout == EG_ROW_MAJOR ? row * x->ld + col : row + col * x->ld;
    const int64_t outer = item / x->inner, from = outer * x->outer_stride + item % x->inner * x->batch_stride;
    return x->offset + (size_t)(from + inside) * eg_dtype_size(x->dtype);
}

static void lay_out(const check_case *c, check_operand which, operand *x) {
    x->present = in(c->present, which);
    x->vector = table[which].rows == ONE;
    x->rows = dim_of(c, table[which].rows);
    x->cols = dim_of(c, table[which].cols);
    x->inner = c->outer > 0 ? c->batch / c->outer : c->groups > 0 ? c->groups : c->batch;
    x->written = c->groups > 0 && operand_has_rows(which) ? check_end(c, c->groups - 1) : x->rows;
    if (c->places != NULL) {
        lay_out_at(c, which, x);
    } else {
        lay_out_by_sets(c, which, x);
    }
    x->bytes = x->offset;
    if (operand_count(x) > 0)
        x->bytes = place_of(x, x->items * x->rows - 1, x->cols - 1) + eg_dtype_size(x->dtype);
}

void operand_begin_line(operand_walk *at) {
    const operand *x = at->of;
    if (at->index >= operand_count(x)) return;
    const int64_t line = at->index / x->cols;
    at->line_end = at->index + x->cols;
    at->written = line % x->rows < x->written;
    at->byte = place_of(x, line, 0);
}

operand_walk operand_first(const operand *x) {
    const int64_t step = x->layout == EG_ROW_MAJOR ? 1 : x->ld;
    operand_walk at = {.of = x, .step = (size_t)step * eg_dtype_size(x->dtype)};
    operand_begin_line(&at);
    return at;
}

static eg_dtype given_dtype(const operand *x, const check_case *c) {
    return x->plain && x->dtype == c->dtype ? EG_DTYPE_DEFAULT : x->dtype;
}

eg_matrix operand_matrix(const operand *x, const check_case *c) {
    if (!x->present) return (eg_matrix){.data = NULL};
    const bool dense = x->ld == (x->layout == EG_ROW_MAJOR ? x->cols : x->rows);
    return (eg_matrix){.data = (char *)x->place.data + x->in_pointer,
                       .offset = x->offset - x->in_pointer,
                       .ld = dense && x->plain ? 0 : x->ld,
                       .batch_stride = x->batch_stride,
                       .layout = x->layout,
                       .dtype = given_dtype(x, c)};
}

eg_vector operand_vector(const operand *x, const check_case *c) {
    if (!x->present) return (eg_vector){.data = NULL};
    return (eg_vector){.data = (char *)x->place.data + x->in_pointer,
                       .offset = x->offset - x->in_pointer,
                       .dtype = given_dtype(x, c)};
}

/* ---- Numbers ------------------------------------------------------------------------------------ */

/* How large the numbers of an operand are: b such that pre is a few units whatever K is. */
static double scale_of(const check_case *c, check_operand which) {
    const bool large = c->data == CHECK_DATA_LARGE, tiny = c->data == CHECK_DATA_TINY;
    switch (which) {
    case CHECK_B:
    case CHECK_B_UP:
        return (large ? 10 : tiny ? 0x1p-9 : 1) * 6 / sqrt((double)(c->k > 0 ? c->k : 1));
    case CHECK_SAVED:
    case CHECK_BELOW:
    case CHECK_SAVED_UP:
    case CHECK_BELOW_UP:
        return large ? 100 : 6;
    case CHECK_A:
    case CHECK_GRAD:
    case CHECK_GRAD_UP:
        return tiny ? 0x1p-7 : 1;
    case CHECK_BIAS:
    case CHECK_BIAS_UP:
    case CHECK_RESIDUAL:
        return tiny ? 0x1p-16 : 1;
    default:
        return 1;
    }
}

/* A saved y lies in the range of its activation. */
static double into_range(eg_activation activation, double x) {
    if (activation == EG_ACT_SIGMOID) return fmin(fabs(x) / 6, 1);
    if (activation == EG_ACT_TANH) return fmax(-1, fmin(x / 6, 1));
    return activation == EG_ACT_RELU ? fmax(x, 0) : x;
}

/* Of zeros and ones. A gated unit of f16 keeps products of many, which a scale must not take beyond its
 * range: an infinity there, times a zero, is no number. */
static double one_of(const check_case *c) {
    return c->gated && c->dtype == EG_F16 && fabs(c->scale) > 1 ? 0x1p-6 : 1;
}

static double draw(const check_case *c, check_operand which, oracle_random *random) {
    const bool saved =
        which == CHECK_SAVED || which == CHECK_BELOW || which == CHECK_SAVED_UP || which == CHECK_BELOW_UP;
    double x = scale_of(c, which) * oracle_random_unit(random);
    if (c->data == CHECK_DATA_INTEGERS)
        x = (double)(saved ? oracle_random_below(random, 9) - 4 : oracle_random_below(random, 5) - 2);
    if (c->data == CHECK_DATA_POSITIVE) x = fabs(x);
    if (c->data == CHECK_DATA_ZERO) x = saved || x < 0 ? 0 : one_of(c);
    if (which == CHECK_SAVED && c->source == EG_SOURCE_Y) x = into_range(c->activation, x);
    if (which == CHECK_BELOW && c->below_source == EG_SOURCE_Y) x = into_range(c->below_activation, x);
    return x;
}

/* An input that is given though the wanted outputs do not need it. */
static bool unneeded(const check_case *c, check_operand which) {
    if (!c->backward) return false;
    const check_operand of = which == CHECK_BIAS ? CHECK_B : which == CHECK_BIAS_UP ? CHECK_B_UP : which;
    if (c->gated) return of <= CHECK_SAVED_UP && of != CHECK_BELOW && !in(check_needed(c), of);
    const bool recompute = c->source == EG_SOURCE_RECOMPUTE && c->activation != EG_ACT_NONE;
    if (which == CHECK_A) return !recompute && !in(c->present, CHECK_D_B);
    if (which == CHECK_B) return !recompute && !in(c->present, CHECK_D_A);
    if (which == CHECK_SAVED) return c->activation == EG_ACT_NONE;
    return which == CHECK_BIAS && !recompute;
}

/* Whether no other operand lies in its memory, where it would have the same numbers. */
static bool lies_alone(const check_case *c, check_operand which) {
    for (int i = 0; i < CHECK_OPERANDS && c->places != NULL; i++) {
        const bool other = i != (int)which && in(c->present, (check_operand)i);
        if (other && c->places[i].home == c->places[which].home) return false;
    }
    return true;
}

/* 2 to the power that makes an operand huge. Whatever is made of them, in products of up to five and sums of
 * a few, stays finite in the type of the sums; so the oracle, which has more room, has nothing to forgive.
 * One operand of a case may go further, where no activation squares it, no scale makes it larger and no other
 * operand has its numbers. */
static double huge_of(const check_case *c, check_operand which, eg_dtype dtype) {
    const bool squares = c->activation == EG_ACT_RELU2 || c->below_activation == EG_ACT_RELU2;
    const bool grows = fabs(c->scale) > 1; /* by up to 2^8 a product, of which there are two in a row */
    const bool most = c->seed % CHECK_Y == (uint64_t)which && !squares && !grows && lies_alone(c, which);
    if (c->gated || in(c->present, CHECK_BELOW_UP)) /* products of many more */
        return dtype == EG_F64 ? 0x1p60 : dtype == EG_F16 ? 2 : 0x1p8;
    if (dtype == EG_F64) return most ? 0x1p800 : 0x1p200;
    if (dtype == EG_F16) return most && which <= CHECK_RESIDUAL ? 65504 : 8;
    if (grows) return 0x1p20;
    return most ? 0x1p100 : 0x1p23;
}

/* What numbers have at their ends: of the subnormal ones, the least, a small one and the largest. A case has
 * either them or infinities: where the one is read as 0, the product of the two is no number. */
static double odd_number(const check_case *c, check_operand which, eg_dtype dtype, oracle_random *random) {
    const double least = oracle_spacing(0, dtype), huge = huge_of(c, which, dtype);
    const double normal = least / (2 * oracle_unit_roundoff(dtype)); /* the least of these */
    const double nonfinite[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, huge, -huge};
    const double subnormal[] = {NAN, least, -3 * least, normal - least, 0.0, -0.0, huge, -huge};
    if (c->data == CHECK_DATA_NONFINITE) return nonfinite[oracle_random_below(random, 3)];
    return c->seed % 2 == 0 ? nonfinite[oracle_random_below(random, 7)]
                            : subnormal[oracle_random_below(random, 8)];
}

static void sprinkle(const check_case *c, check_operand which, operand *x, oracle_random *random) {
    const int64_t count = operand_count(x);
    for (int i = 0; count > 0 && i < 3; i++) {
        const int64_t where = oracle_random_below(random, count);
        double odd = odd_number(c, which, x->dtype, random);
        if (!isnan(odd) && which == CHECK_SAVED && c->source == EG_SOURCE_Y)
            odd = into_range(c->activation, odd);
        if (!isnan(odd) && which == CHECK_BELOW && c->below_source == EG_SOURCE_Y)
            odd = into_range(c->below_activation, odd);
        x->values[where] = odd;
    }
}

static void fill(const check_case *c, check_operand which, operand *x) {
    oracle_random random = {c->seed * CHECK_OPERANDS + (uint64_t)which};
    const int64_t count = operand_count(x);
    for (int64_t i = 0; i < count; i++) {
        const double number = unneeded(c, which) ? (double)NAN : draw(c, which, &random);
        x->values[i] = oracle_round(number, x->dtype);
    }
    const bool every_other = oracle_random_below(&random, 2) == 0;
    const bool odd = c->data == CHECK_DATA_NONFINITE || c->data == CHECK_DATA_SPECIAL;
    if (odd && !operand_is_output(which) && every_other) sprinkle(c, which, x, &random);
}

/* Outputs stay poisoned, but for those that are added to. */
static void put_image(const check_case *c, check_operand which, operand *x) {
    if (operand_is_output(which) && !check_adds_to(c, which)) return;
    const int64_t count = operand_count(x);
    for (operand_walk at = operand_first(x); at.index < count; operand_next(&at))
        oracle_put(x->image + at.byte, 0, x->dtype, x->values[at.index]);
}

/* Inputs may lie over one another: what their memory then holds is what they are. */
static void take_image(operand *x) {
    const int64_t count = operand_count(x);
    for (operand_walk at = operand_first(x); at.index < count; operand_next(&at))
        x->values[at.index] = oracle_get(x->image + at.byte, 0, x->dtype);
}

/* ---- The set ------------------------------------------------------------------------------------ */

static bool allocate(operand *x) {
    const size_t count = (size_t)operand_count(x) + 1;
    x->values = calloc(count, sizeof *x->values);
    x->expected = calloc(count, sizeof *x->expected);
    return x->values != NULL && x->expected != NULL;
}

/* The memory of a home is as long as what lies in it, whole elements of each. */
static bool allocate_home(operands *set, check_operand which) {
    operand *home = &set->of[which];
    size_t element = 1;
    home->room = 0;
    for (int i = 0; i < CHECK_OPERANDS; i++) {
        const operand *x = &set->of[i];
        if (!x->present || x->home != which) continue;
        if (x->bytes > home->room) home->room = x->bytes;
        if (eg_dtype_size(x->dtype) > element) element = eg_dtype_size(x->dtype);
    }
    if (set->c->places != NULL) home->room += set->c->places[which].tail;
    home->room = (home->room + element - 1) / element * element;
    home->image = malloc(home->room + OPERAND_SPARE);
    home->after = malloc(home->room + OPERAND_SPARE);
    home->first = set->c->repeated ? malloc(home->room + OPERAND_SPARE) : NULL;
    if (home->image == NULL || home->after == NULL || (set->c->repeated && home->first == NULL)) return false;
    memset(home->image, POISON, home->room + OPERAND_SPARE);
    return true;
}

static bool allocate_all(operands *set) {
    for (int i = 0; i < CHECK_OPERANDS; i++) {
        operand *x = &set->of[i];
        if (!x->present) continue;
        if (!allocate(x) || (x->home == (check_operand)i && !allocate_home(set, x->home))) return false;
    }
    for (int i = 0; i < CHECK_OPERANDS; i++) {
        operand *x = &set->of[i];
        if (!x->present) continue;
        x->image = set->of[x->home].image;
        x->after = set->of[x->home].after;
    }
    return true;
}

bool operands_make(operands *set, const check_case *c) {
    *set = (operands){.c = c};
    for (int i = 0; i < CHECK_OPERANDS; i++) lay_out(c, (check_operand)i, &set->of[i]);
    if (!allocate_all(set)) return false;
    for (int i = 0; i < CHECK_OPERANDS; i++) {
        if (!set->of[i].present) continue;
        fill(c, (check_operand)i, &set->of[i]);
        put_image(c, (check_operand)i, &set->of[i]);
    }
    for (int i = 0; i < CHECK_Y; i++) {
        if (set->of[i].present) take_image(&set->of[i]);
    }
    return true;
}

void operands_free(operands *set) {
    for (int i = 0; i < CHECK_OPERANDS; i++) {
        operand *x = &set->of[i];
        free(x->values);
        free(x->expected);
        if (x->home != (check_operand)i) continue;
        free(x->image);
        free(x->after);
        free(x->first);
    }
}
