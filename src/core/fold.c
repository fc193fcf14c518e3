/* SPDX-License-Identifier: Apache-2.0 */
/* Folds a batch, or one of its levels, into the rows of a layer, where that is the same computation. */
#include "backend.h"

/* What is folded: all items, the outer ones of two levels, or the inner ones. */
typedef enum level { ALL, OUTER, INNER } level;

/* Elements from one item of a level to the next. */
static int64_t stride_of(const eg_problem *problem, const eg_operand *x, level which) {
    if (which != OUTER) return x->batch_stride;
    return x->outer.inner > 0 ? x->outer.stride
                              : (int64_t)((uint64_t)x->batch_stride * (uint64_t)problem->inner);
}

/* Operands that carry M rows a batch: with the batch stride of dense rows they are one tall matrix. */
static bool folds(const eg_problem *problem, const eg_operand *x, level which) {
    int64_t dense; /* an empty operand's strides may be anything */
    return x->data == NULL ||
           (x->col_stride == 1 && !__builtin_mul_overflow(problem->m, x->row_stride, &dense) &&
            stride_of(problem, x, which) == dense && (which != ALL || x->outer.inner == 0));
}

static bool shared(const eg_problem *problem, const eg_operand *x, level which) {
    if (x->data == NULL || !eg_has_items(x)) return true;
    return which != ALL && stride_of(problem, x, which) == 0;
}

static bool is_batched(const eg_packed *packed) { return packed != NULL && packed->batched; }

/* A batch that shares B (and sums d_b) is one layer of batch*M rows. */
static bool is_rows(const eg_problem *problem, level which) {
    static const eg_operand_id right[] = {EG_OP_B, EG_OP_D_B, EG_OP_B_UP, EG_OP_D_B_UP};
    if (problem->grouped || is_batched(problem->packed_b) || is_batched(problem->packed_b_up)) return false;
    for (int id = 0; id < EG_OPERANDS; id++) {
        if (eg_operand_has_rows((eg_operand_id)id) && !folds(problem, &problem->operands[id], which))
            return false;
    }
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        if (!shared(problem, &problem->operands[right[i]], which)) return false;
    }
    return true;
}

/* Items of a level become rows; the other level, if there is one, is the batch. */
static void fold_level(eg_problem *problem, level which) {
    const int64_t inner = problem->inner, outer = problem->batch / inner;
    const int64_t folded = which == ALL ? problem->batch : which == OUTER ? outer : inner;
    int64_t rows;
    if (folded <= 1 || !is_rows(problem, which) || __builtin_mul_overflow(problem->m, folded, &rows)) return;
    for (int id = 0; id < EG_OPERANDS; id++) {
        eg_operand *x = &problem->operands[id];
        if (x->data != NULL && eg_operand_has_rows((eg_operand_id)id)) x->rows = rows;
        x->batch_stride = which == ALL ? 0 : stride_of(problem, x, which == OUTER ? INNER : OUTER);
        x->outer = (eg_outer){0, 0};
    }
    problem->m = rows;
    problem->batch /= folded;
    problem->inner = problem->batch;
}

static bool has_levels(const eg_problem *problem) {
    for (int id = 0; id < EG_OPERANDS; id++) {
        if (problem->operands[id].outer.inner > 0) return true;
    }
    return false;
}

void eg_fold(eg_problem *problem) {
    if (problem->inner < problem->batch) fold_level(problem, OUTER);
    if (problem->inner < problem->batch) fold_level(problem, INNER);
    fold_level(problem, ALL); /* last: levels may cross, and folding again is to change nothing */
    if (!has_levels(problem)) problem->inner = problem->batch;
}
