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
    [CHECK_Y] = {"y", DIM_M, DIM_N},
    [CHECK_PRE] = {"pre", DIM_M, DIM_N},
    [CHECK_D_A] = {"d_a", DIM_M, DIM_K},
    [CHECK_D_B] = {"d_b", DIM_K, DIM_N},
    [CHECK_D_BIAS] = {"d_bias", ONE, DIM_N},
    [CHECK_GRAD_PRE] = {"grad_pre", DIM_M, DIM_N},
    [CHECK_D_BIAS_BELOW] = {"chain.d_bias", ONE, DIM_K},
};

const char *operand_name(const check_case *c, check_operand which) {
    if (which == CHECK_SAVED && c->source == EG_SOURCE_Y) return "y";
    return table[which].name;
}

bool operand_is_output(check_operand which) { return which >= CHECK_Y; }

static bool is_sum(check_operand which) {
    return which == CHECK_D_B || which == CHECK_D_BIAS || which == CHECK_D_BIAS_BELOW;
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
    return which;
}

static void lay_out(const check_case *c, check_operand which, operand *x) {
    const int64_t by = c->aligned ? 8 : 3, gap = c->aligned ? 8 : 5, lead = c->aligned ? 8 : 7;
    const check_operand like = layout_of(c, which);
    x->present = in(c->present, which);
    x->vector = table[which].rows == ONE;
    x->dtype = is_sum(which) && c->wide ? EG_F32 : c->dtype;
    x->rows = dim_of(c, table[which].rows);
    x->cols = dim_of(c, table[which].cols);
    const bool shared = x->vector || in(c->shared, which);
    x->items = shared ? 1 : c->batch;
    x->layout = in(c->col_major, like) && !x->vector ? EG_COL_MAJOR : EG_ROW_MAJOR;
    const int64_t length = x->layout == EG_ROW_MAJOR ? x->cols : x->rows;
    const int64_t lines = x->layout == EG_ROW_MAJOR ? x->rows : x->cols;
    const int64_t pad = in(c->padded, like) && !x->vector ? by : 0;
    if (in(c->interleaved, like) && x->items > 1 && length > 0) {
        x->batch_stride = length + pad;
        x->ld = x->items * x->batch_stride;
    } else {
        x->ld = length + pad;
        x->batch_stride = shared ? 0 : lines * x->ld + (in(c->gapped, like) ? gap : 0);
        if (!shared && x->batch_stride == 0) x->batch_stride = 1; /* no elements; 0 would mean shared */
    }
    x->plain = !in(c->offset, like);
    x->offset = in(c->offset, like) ? (size_t)lead * eg_dtype_size(x->dtype) : 0;
    x->bytes = x->offset;
    if (operand_count(x) > 0) x->bytes = operand_at(x, operand_count(x) - 1) + eg_dtype_size(x->dtype);
}

size_t operand_at(const operand *x, int64_t index) {
    const int64_t col = index % x->cols, row = index / x->cols % x->rows, item = index / x->cols / x->rows;
    const int64_t inside = x->layout == EG_ROW_MAJOR ? row * x->ld + col : row + col * x->ld;
    return x->offset + (size_t)(item * x->batch_stride + inside) * eg_dtype_size(x->dtype);
}

static eg_dtype given_dtype(const operand *x, const check_case *c) {
    return x->plain && x->dtype == c->dtype ? EG_DTYPE_DEFAULT : x->dtype;
}

eg_matrix operand_matrix(const operand *x, const check_case *c) {
    if (!x->present) return (eg_matrix){.data = NULL};
    const bool dense = x->ld == (x->layout == EG_ROW_MAJOR ? x->cols : x->rows);
    return (eg_matrix){.data = x->place.data,
                       .offset = x->offset,
                       .ld = dense && x->plain ? 0 : x->ld,
                       .batch_stride = x->batch_stride,
                       .layout = x->layout,
                       .dtype = given_dtype(x, c)};
}

eg_vector operand_vector(const operand *x, const check_case *c) {
    if (!x->present) return (eg_vector){.data = NULL};
    return (eg_vector){.data = x->place.data, .offset = x->offset, .dtype = given_dtype(x, c)};
}

/* ---- Numbers ------------------------------------------------------------------------------------ */

/* How large the numbers of an operand are: b such that pre is a few units whatever K is. */
static double scale_of(const check_case *c, check_operand which) {
    const bool large = c->data == CHECK_DATA_LARGE, tiny = c->data == CHECK_DATA_TINY;
    switch (which) {
    case CHECK_B:
        return (large ? 10 : tiny ? 0x1p-9 : 1) * 6 / sqrt((double)(c->k > 0 ? c->k : 1));
    case CHECK_SAVED:
    case CHECK_BELOW:
        return large ? 100 : 6;
    case CHECK_A:
    case CHECK_GRAD:
        return tiny ? 0x1p-7 : 1;
    case CHECK_BIAS:
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

static double draw(const check_case *c, check_operand which, oracle_random *random) {
    const bool saved = which == CHECK_SAVED || which == CHECK_BELOW;
    double x = scale_of(c, which) * oracle_random_unit(random);
    if (c->data == CHECK_DATA_INTEGERS)
        x = (double)(saved ? oracle_random_below(random, 9) - 4 : oracle_random_below(random, 5) - 2);
    if (c->data == CHECK_DATA_POSITIVE) x = fabs(x);
    if (which == CHECK_SAVED && c->source == EG_SOURCE_Y) x = into_range(c->activation, x);
    if (which == CHECK_BELOW && c->below_source == EG_SOURCE_Y) x = into_range(c->below_activation, x);
    return x;
}

/* An input that is given though the wanted outputs do not need it. */
static bool unneeded(const check_case *c, check_operand which) {
    if (!c->backward) return false;
    const bool recompute = c->source == EG_SOURCE_RECOMPUTE && c->activation != EG_ACT_NONE;
    if (which == CHECK_A) return !recompute && !in(c->present, CHECK_D_B);
    if (which == CHECK_B) return !recompute && !in(c->present, CHECK_D_A);
    if (which == CHECK_SAVED) return c->activation == EG_ACT_NONE;
    return which == CHECK_BIAS && !recompute;
}

static void sprinkle(operand *x, oracle_random *random) {
    static const double odd[] = {NAN, INFINITY, -INFINITY};
    const int64_t count = operand_count(x);
    for (int i = 0; count > 0 && i < 3; i++) {
        x->values[oracle_random_below(random, count)] = odd[oracle_random_below(random, 3)];
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
    if (c->data == CHECK_DATA_NONFINITE && !operand_is_output(which) && every_other) sprinkle(x, &random);
}

/* Outputs start as poison, but for those that are added to. */
static void make_image(const check_case *c, check_operand which, operand *x) {
    memset(x->image, POISON, x->bytes);
    if (operand_is_output(which) && !(c->accumulate && is_sum(which))) return;
    for (int64_t i = 0; i < operand_count(x); i++) {
        oracle_put(x->image + operand_at(x, i), 0, x->dtype, x->values[i]);
    }
}

/* ---- The set ------------------------------------------------------------------------------------ */

static bool allocate(operand *x) {
    const size_t count = (size_t)operand_count(x) + 1;
    x->values = calloc(count, sizeof *x->values);
    x->expected = calloc(count, sizeof *x->expected);
    x->image = malloc(x->bytes + 1);
    x->after = malloc(x->bytes + 1);
    return x->values != NULL && x->expected != NULL && x->image != NULL && x->after != NULL;
}

bool operands_make(operands *set, const check_case *c) {
    *set = (operands){.c = c};
    for (int i = 0; i < CHECK_OPERANDS; i++) {
        operand *x = &set->of[i];
        lay_out(c, (check_operand)i, x);
        if (!x->present) continue;
        if (!allocate(x)) return false;
        fill(c, (check_operand)i, x);
        make_image(c, (check_operand)i, x);
    }
    return true;
}

void operands_free(operands *set) {
    for (int i = 0; i < CHECK_OPERANDS; i++) {
        operand *x = &set->of[i];
        free(x->values);
        free(x->expected);
        free(x->image);
        free(x->after);
    }
}
