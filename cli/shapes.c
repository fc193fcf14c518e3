/* SPDX-License-Identifier: Apache-2.0 */
#include "shapes.h"

#include <stdio.h>
#include <string.h>

#include "epigrad/comm.h"
#include "failure.h"

/* ---- What each operand is ----------------------------------------------------------------------- */

typedef enum dim { ONE, DIM_M, DIM_K, DIM_N } dim;

static const struct {
    const char *name;
    dim rows, cols;
    const char *text; /* for messages */
} TABLE[OPERANDS] = {
    [OP_A] = {"a", DIM_M, DIM_K, "[M, K]"},
    [OP_B] = {"b", DIM_K, DIM_N, "[K, N]"},
    [OP_BIAS] = {"bias", ONE, DIM_N, "[N]"},
    [OP_RESIDUAL] = {"residual", DIM_M, DIM_N, "[M, N]"},
    [OP_D_A_RESIDUAL] = {"d_a_residual", DIM_M, DIM_K, "[M, K]"},
    [OP_B_UP] = {"b_up", DIM_K, DIM_N, "[K, N]"},
    [OP_BIAS_UP] = {"bias_up", ONE, DIM_N, "[N]"},
    [OP_GRAD] = {"grad", DIM_M, DIM_N, "[M, N]"},
    [OP_PRE] = {"pre", DIM_M, DIM_N, "[M, N]"},
    [OP_PRE_UP] = {"pre_up", DIM_M, DIM_N, "[M, N]"},
    [OP_Y] = {"y", DIM_M, DIM_N, "[M, N]"},
    [OP_D_A] = {"d_a", DIM_M, DIM_K, "[M, K]"},
    [OP_D_B] = {"d_b", DIM_K, DIM_N, "[K, N]"},
    [OP_D_BIAS] = {"d_bias", ONE, DIM_N, "[N]"},
    [OP_GRAD_PRE] = {"grad_pre", DIM_M, DIM_N, "[M, N]"},
    [OP_D_B_UP] = {"d_b_up", DIM_K, DIM_N, "[K, N]"},
    [OP_D_BIAS_UP] = {"d_bias_up", ONE, DIM_N, "[N]"},
    [OP_GRAD_PRE_UP] = {"grad_pre_up", DIM_M, DIM_N, "[M, N]"},
};

const char *cli_operand_name(operand op) { return TABLE[op].name; }

static int64_t size_of(const call *c, dim which) {
    switch (which) {
    case DIM_M:
        return c->layer.m;
    case DIM_K:
        return c->layer.k;
    case DIM_N:
        return c->layer.n;
    case ONE:
        break;
    }
    return 1;
}

/* Of a layer that is divided over processes: this one has its part of the rows. */
static bool is_divided(const call *c, operand op) {
    if (c->parts.comm == NULL || TABLE[op].rows != DIM_M) return false;
    const bool of_a = TABLE[op].cols == DIM_K;
    return c->parts.split == EG_SPLIT_COLUMNS ? of_a : !of_a;
}

/* That the operand has here. */
static int64_t rows_here(const call *c, operand op) {
    const int64_t rows = size_of(c, TABLE[op].rows);
    return is_divided(c, op) ? rows / c->parts.comm->ranks : rows;
}

static bool is_vector(operand op) { return TABLE[op].rows == ONE; }

static bool is_weight(operand op) { return TABLE[op].rows == DIM_K; }

/* The input that an output is the gradient of; OPERANDS for the others. */
static operand input_of(operand op) {
    switch (op) {
    case OP_D_A:
        return OP_A;
    case OP_D_B:
        return OP_B;
    case OP_D_BIAS:
        return OP_BIAS;
    case OP_D_B_UP:
        return OP_B_UP;
    case OP_D_BIAS_UP:
        return OP_BIAS_UP;
    default:
        return OPERANDS;
    }
}

/* The last two dimensions, as the file has them. */
static int64_t rows_of(const tensor *t) { return t->dims < 2 ? 1 : t->shape[t->dims - 2]; }

static int64_t cols_of(const tensor *t) { return t->shape[t->dims - 1]; }

/* The levels of a batch are in front of them, the inner one last: as in NumPy, one that is absent is 1. */
typedef enum level { INNER, OUTER, LEVELS } level;

static int64_t items_of(const tensor *t, level which) {
    const int at = t->dims - 3 - (int)which;
    return at >= 0 ? t->shape[at] : 1;
}

static int64_t all_items(const call *c, level which) {
    return which == INNER ? c->layer.batch : c->layer.outer_batch;
}

/* One matrix for a level of many: an input is broadcast, and its gradient is a sum. */
static bool is_shared(const call *c, const tensor *t, level which) {
    return items_of(t, which) == 1 && all_items(c, which) != 1;
}

/* ---- Inputs ------------------------------------------------------------------------------------- */

static int check_dims(operand op, const tensor *t) {
    const bool good = is_vector(op) ? t->dims == 1 || t->dims == 2 : t->dims >= 2 && t->dims <= 2 + LEVELS;
    if (good) return CLI_OK;
    char text[SHAPE_TEXT];
    return cli_fail(CLI_BAD_INPUT, "%s has shape %s; expected %s dimensions", TABLE[op].name,
                    tensor_shape_text(t, text),
                    is_vector(op) ? "one (or two, [1, N])" : "two, three or four");
}

/* All rows, of those that `a` has here. */
static int take_rows(call *c) {
    const int64_t rows = rows_of(&c->tensors[OP_A]);
    c->layer.m = rows;
    if (c->parts.comm == NULL) return CLI_OK;
    const int ranks = c->parts.comm->ranks;
    if (is_divided(c, OP_A) && __builtin_mul_overflow(rows, ranks, &c->layer.m))
        return cli_fail(CLI_BAD_INPUT, "a has %lld rows, and there are %d processes: too many rows",
                        (long long)rows, ranks);
    if (c->layer.m % ranks == 0) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT,
                    "a has %lld rows with --split rows; expected a multiple of the %d processes",
                    (long long)rows, ranks);
}

/* `a` says what M and K are, and `b` what N is. */
static int take_sizes(call *c) {
    const tensor *a = &c->tensors[OP_A], *b = &c->tensors[OP_B];
    CLI_TRY(check_dims(OP_A, a));
    CLI_TRY(check_dims(OP_B, b));
    CLI_TRY(take_rows(c));
    c->layer.k = cols_of(a);
    c->layer.n = c->b_is_nk ? rows_of(b) : cols_of(b);
    if ((c->b_is_nk ? cols_of(b) : rows_of(b)) == c->layer.k) return CLI_OK;
    char a_text[SHAPE_TEXT], b_text[SHAPE_TEXT];
    return cli_fail(CLI_BAD_INPUT, "b has shape %s; expected %s with K = %lld, since a has shape %s",
                    tensor_shape_text(b, b_text), c->b_is_nk ? "[N, K]" : "[K, N] (or --layout-b nk)",
                    (long long)c->layer.k, tensor_shape_text(a, a_text));
}

/* A level of the batch is the one size other than 1 that inputs have there. */
static int take_level(call *c, level which) {
    operand from = OP_A;
    int64_t all = 1;
    for (operand op = OP_A; op <= OP_Y; op++) {
        const tensor *t = &c->tensors[op];
        if (!c->present[op] || is_vector(op)) continue;
        CLI_TRY(check_dims(op, t));
        const int64_t own = items_of(t, which);
        if (t->dims - 2 > c->levels) c->levels = t->dims - 2;
        if (own == 1 || own == all) continue;
        if (all != 1) {
            return cli_fail(CLI_BAD_INPUT, "%s has %s of %lld; expected 1 or %lld, which %s has",
                            TABLE[op].name, which == INNER ? "a batch" : "an outer batch", (long long)own,
                            (long long)all, TABLE[from].name);
        }
        all = own;
        from = op;
    }
    *(which == INNER ? &c->layer.batch : &c->layer.outer_batch) = all;
    return CLI_OK;
}

static int check_matches(const call *c, operand op, const tensor *t) {
    CLI_TRY(check_dims(op, t));
    const int64_t rows = rows_here(c, op), cols = size_of(c, TABLE[op].cols);
    const bool swap = is_weight(op) && c->b_is_nk;
    if (rows_of(t) == (swap ? cols : rows) && cols_of(t) == (swap ? rows : cols)) return CLI_OK;
    char text[SHAPE_TEXT];
    return cli_fail(CLI_BAD_INPUT,
                    "%s has shape %s; expected %s with M = %lld, K = %lld, N = %lld from a and b",
                    TABLE[op].name, tensor_shape_text(t, text), swap ? "[N, K]" : TABLE[op].text,
                    (long long)(TABLE[op].rows == DIM_M ? rows : c->layer.m), (long long)c->layer.k,
                    (long long)c->layer.n);
}

/* What is added to a d_a that is summed over a level of the batch is one for all of that level. */
static int check_residual(const call *c) {
    const tensor *a = &c->tensors[OP_A], *residual = &c->tensors[OP_D_A_RESIDUAL];
    for (level which = INNER; which < LEVELS && c->present[OP_D_A_RESIDUAL]; which++) {
        if (!is_shared(c, a, which) || is_shared(c, residual, which)) continue;
        char text[SHAPE_TEXT], expected[SHAPE_TEXT];
        return cli_fail(CLI_BAD_INPUT, "d_a_residual has shape %s; expected %s, the shape of a",
                        tensor_shape_text(residual, text), tensor_shape_text(a, expected));
    }
    return CLI_OK;
}

int shapes_of_inputs(call *c) {
    CLI_TRY(take_sizes(c));
    for (level which = INNER; which < LEVELS; which++) CLI_TRY(take_level(c, which));
    for (operand op = OP_BIAS; op <= OP_Y; op++) {
        if (c->present[op]) CLI_TRY(check_matches(c, op, &c->tensors[op]));
    }
    return check_residual(c);
}

int shapes_check_accumulated(const call *c, operand op, const tensor *found) {
    CLI_TRY(check_matches(c, op, found));
    const tensor *expected = &c->tensors[op];
    const bool same = items_of(found, INNER) == items_of(expected, INNER) &&
                      items_of(found, OUTER) == items_of(expected, OUTER);
    if (is_vector(op) || same) return CLI_OK;
    char text[SHAPE_TEXT], wanted[SHAPE_TEXT];
    return cli_fail(CLI_BAD_INPUT, "%s has shape %s; expected %s, the shape of %s", TABLE[op].name,
                    tensor_shape_text(found, text), tensor_shape_text(expected, wanted),
                    TABLE[input_of(op)].name);
}

/* ---- Outputs ------------------------------------------------------------------------------------ */

/* [rows, cols] as `op` has them, a matrix for each item of so many levels of the batch. Of a grouped layer
 * what has no rows has one a group. */
static void set_shape(const call *c, operand op, int levels, tensor *t) {
    const bool swap = is_weight(op) && c->b_is_nk;
    const int64_t rows = rows_here(c, op), cols = size_of(c, TABLE[op].cols);
    t->dims = 0;
    const bool grouped = c->layer.groups > 0 && (is_vector(op) || is_weight(op));
    if (grouped) t->shape[t->dims++] = c->layer.groups;
    for (int i = levels; i > 0 && !is_vector(op) && !grouped; i--)
        t->shape[t->dims++] = all_items(c, (level)(i - 1));
    if (!is_vector(op)) t->shape[t->dims++] = swap ? cols : rows;
    t->shape[t->dims++] = swap ? rows : cols;
}

void shapes_set_planned(call *c, operand op) {
    set_shape(c, op, is_weight(op) && !c->heads ? 0 : c->levels, &c->tensors[op]);
}

int shapes_set_output(call *c, operand op) {
    const operand like = input_of(op);
    tensor *t = &c->tensors[op];
    if (like == OPERANDS || !c->present[like]) {
        set_shape(c, op, c->levels, t);
        return CLI_OK;
    }
    const tensor *input = &c->tensors[like];
    t->dims = input->dims;
    memcpy(t->shape, input->shape, sizeof t->shape);
    const bool two = c->layer.batch > 1 && c->layer.outer_batch > 1;
    if (!two || is_vector(op) || is_shared(c, input, INNER) == is_shared(c, input, OUTER)) return CLI_OK;
    char text[SHAPE_TEXT];
    return cli_fail(CLI_BAD_INPUT,
                    "%s would be a sum over one level of a batch of %lld x %lld, since %s has shape %s; "
                    "expected both levels or none (or --want without it)",
                    TABLE[op].name, (long long)c->layer.outer_batch, (long long)c->layer.batch,
                    TABLE[like].name, tensor_shape_text(input, text));
}

/* ---- For the library ---------------------------------------------------------------------------- */

/* Elements of so many; what no integer holds is refused by the library, for its sizes. */
static int64_t times(int64_t x, int64_t y) {
    int64_t product = 0;
    return __builtin_mul_overflow(x, y, &product) ? 0 : product;
}

eg_matrix shapes_matrix(const call *c, operand op) {
    const tensor *t = &c->tensors[op];
    const bool transposed = is_weight(op) && c->b_is_nk;
    eg_matrix matrix = {.layout = transposed ? EG_COL_MAJOR : EG_ROW_MAJOR, .dtype = t->dtype};
    if (c->heads) matrix.ld = times(c->layer.batch, cols_of(t));
    if (!is_shared(c, t, INNER)) matrix.batch_stride = times(c->heads ? 1 : rows_of(t), cols_of(t));
    return matrix;
}

int64_t shapes_outer_stride(const call *c, operand op) {
    const tensor *t = &c->tensors[op];
    return is_shared(c, t, OUTER) ? 0 : times(items_of(t, INNER), times(rows_of(t), cols_of(t)));
}
