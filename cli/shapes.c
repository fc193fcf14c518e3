/* SPDX-License-Identifier: Apache-2.0 */
#include "shapes.h"

#include <stdio.h>
#include <string.h>

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

static int64_t batch_of(const tensor *t) { return t->dims == 3 ? t->shape[0] : 1; }

/* ---- Inputs ------------------------------------------------------------------------------------- */

static int check_dims(operand op, const tensor *t) {
    const bool good = is_vector(op) ? t->dims == 1 || t->dims == 2 : t->dims == 2 || t->dims == 3;
    if (good) return CLI_OK;
    char text[SHAPE_TEXT];
    return cli_fail(CLI_BAD_INPUT, "%s has shape %s; expected %s dimensions", TABLE[op].name,
                    tensor_shape_text(t, text), is_vector(op) ? "one (or two, [1, N])" : "two or three");
}

/* `a` says what M and K are, and `b` what N is. */
static int take_sizes(call *c) {
    const tensor *a = &c->tensors[OP_A], *b = &c->tensors[OP_B];
    CLI_TRY(check_dims(OP_A, a));
    CLI_TRY(check_dims(OP_B, b));
    c->layer.m = rows_of(a);
    c->layer.k = cols_of(a);
    c->layer.n = c->b_is_nk ? rows_of(b) : cols_of(b);
    if ((c->b_is_nk ? cols_of(b) : rows_of(b)) == c->layer.k) return CLI_OK;
    char a_text[SHAPE_TEXT], b_text[SHAPE_TEXT];
    return cli_fail(CLI_BAD_INPUT, "b has shape %s; expected %s with K = %lld, since a has shape %s",
                    tensor_shape_text(b, b_text), c->b_is_nk ? "[N, K]" : "[K, N] (or --layout-b nk)",
                    (long long)c->layer.k, tensor_shape_text(a, a_text));
}

/* The batch is the one size other than 1 that 3-D inputs have. */
static int take_batch(call *c) {
    c->layer.batch = 1;
    operand from = OP_A;
    for (operand op = OP_A; op <= OP_Y; op++) {
        const tensor *t = &c->tensors[op];
        if (!c->present[op] || is_vector(op)) continue;
        CLI_TRY(check_dims(op, t));
        c->batched = c->batched || t->dims == 3;
        if (batch_of(t) == 1 || batch_of(t) == c->layer.batch) continue;
        if (c->layer.batch != 1) {
            return cli_fail(CLI_BAD_INPUT, "%s has a batch of %lld; expected 1 or %lld, which %s has",
                            TABLE[op].name, (long long)batch_of(t), (long long)c->layer.batch,
                            TABLE[from].name);
        }
        c->layer.batch = batch_of(t);
        from = op;
    }
    return CLI_OK;
}

static int check_matches(const call *c, operand op, const tensor *t) {
    CLI_TRY(check_dims(op, t));
    const int64_t rows = size_of(c, TABLE[op].rows), cols = size_of(c, TABLE[op].cols);
    const bool swap = is_weight(op) && c->b_is_nk;
    if (rows_of(t) == (swap ? cols : rows) && cols_of(t) == (swap ? rows : cols)) return CLI_OK;
    char text[SHAPE_TEXT];
    return cli_fail(CLI_BAD_INPUT,
                    "%s has shape %s; expected %s with M = %lld, K = %lld, N = %lld from a and b",
                    TABLE[op].name, tensor_shape_text(t, text), swap ? "[N, K]" : TABLE[op].text,
                    (long long)c->layer.m, (long long)c->layer.k, (long long)c->layer.n);
}

int shapes_of_inputs(call *c) {
    CLI_TRY(take_sizes(c));
    CLI_TRY(take_batch(c));
    for (operand op = OP_BIAS; op <= OP_Y; op++) {
        if (c->present[op]) CLI_TRY(check_matches(c, op, &c->tensors[op]));
    }
    return CLI_OK;
}

int shapes_check_accumulated(const call *c, operand op, const tensor *found) {
    CLI_TRY(check_matches(c, op, found));
    const tensor *expected = &c->tensors[op];
    if (is_vector(op) || batch_of(found) == batch_of(expected)) return CLI_OK;
    char text[SHAPE_TEXT], wanted[SHAPE_TEXT];
    return cli_fail(CLI_BAD_INPUT, "%s has shape %s; expected %s, the shape of %s", TABLE[op].name,
                    tensor_shape_text(found, text), tensor_shape_text(expected, wanted),
                    TABLE[input_of(op)].name);
}

/* ---- Outputs ------------------------------------------------------------------------------------ */

/* [rows, cols] as `op` has them, a matrix for each of the batch where `batched`. Of a grouped layer what has
 * no rows has one a group. */
static void set_shape(const call *c, operand op, bool batched, tensor *t) {
    const bool swap = is_weight(op) && c->b_is_nk;
    const int64_t rows = size_of(c, TABLE[op].rows), cols = size_of(c, TABLE[op].cols);
    t->dims = 0;
    const bool grouped = c->layer.groups > 0 && (is_vector(op) || is_weight(op));
    if (grouped) t->shape[t->dims++] = c->layer.groups;
    if (batched && !is_vector(op) && !grouped) t->shape[t->dims++] = c->layer.batch;
    if (!is_vector(op)) t->shape[t->dims++] = swap ? cols : rows;
    t->shape[t->dims++] = swap ? rows : cols;
}

void shapes_set_planned(call *c, operand op) {
    set_shape(c, op, c->layer.batch != 1 && !is_weight(op), &c->tensors[op]);
}

void shapes_set_output(call *c, operand op) {
    const operand like = input_of(op);
    const bool follows = like != OPERANDS && c->present[like];
    tensor *t = &c->tensors[op];
    if (follows) {
        t->dims = c->tensors[like].dims;
        memcpy(t->shape, c->tensors[like].shape, sizeof t->shape);
    } else {
        set_shape(c, op, c->batched, t);
    }
}

/* ---- For the library ---------------------------------------------------------------------------- */

/* One matrix for a batch of many: stride 0, which broadcasts an input and sums an output. */
eg_matrix shapes_matrix(const call *c, operand op) {
    const tensor *t = &c->tensors[op];
    const bool transposed = is_weight(op) && c->b_is_nk;
    eg_matrix matrix = {.layout = transposed ? EG_COL_MAJOR : EG_ROW_MAJOR, .dtype = t->dtype};
    const bool shared = batch_of(t) == 1 && c->layer.batch != 1;
    if (!shared && __builtin_mul_overflow(rows_of(t), cols_of(t), &matrix.batch_stride))
        matrix.batch_stride = 0;
    return matrix;
}
