/* SPDX-License-Identifier: Apache-2.0 */
/* Block fusion: a product, and steps after it that go over its result element by element, run block by block.
 * What one leaves for the next in the compute type is then still in L2; as whole matrices it would come from
 * memory again. The bits are those of one step after the other. Pure. */
#include "compiler.h"

/* Of the third such pair, y and residual, neither is multiplied. */
int eg_cpu_memory_of(int id) {
    return id == EG_OP_GRAD_PRE ? EG_OP_GRAD : id == EG_OP_D_A ? EG_OP_D_A_RESIDUAL : id;
}

static bool is_same(const eg_view *x, const eg_view *y) {
    if (!eg_is_present(x) || x->space != y->space) return false;
    return x->id == y->id || (x->space == EG_OPERAND && eg_cpu_memory_of(x->id) == eg_cpu_memory_of(y->id));
}

static bool writes(const eg_op *op, const eg_view *matrix) {
    const eg_term *stored = eg_term_of(op, EG_TERM_STORE);
    return is_same(&op->out, matrix) || (stored != NULL && is_same(&stored->view, matrix));
}

/* Element by element: what the operation multiplies is not among it. */
static bool reads_result_of(const eg_op *op, const eg_op *before) {
    if (op->accumulate && writes(before, &op->out)) return true;
    if (op->kind == EG_MAP && writes(before, &op->left)) return true;
    for (int i = 0; i < op->terms; i++) {
        if (op->term[i].kind != EG_TERM_STORE && writes(before, &op->term[i].view)) return true;
    }
    return false;
}

/* A product reads whole rows and columns: another block may not be at work on what it multiplies. */
static bool multiplies_result_of(const eg_op *op, const eg_op *other) {
    return op->kind == EG_GEMM && (writes(other, &op->left) || writes(other, &op->right));
}

static bool has_same_result(const eg_op *x, const eg_op *y) {
    return x->items == y->items && x->rows == y->rows && x->cols == y->cols && x->axis == y->axis;
}

static const eg_op *op_of(const eg_program *program, int step) {
    return &program->list.op[program->step[step].op];
}

static bool is_tiled_product(const eg_step *step) {
    return step->kind == EG_GEMM && step->op != EG_NO_OP && step->rows.count == 0 &&
           eg_cpu_detail(step)->streams == EG_CPU_STREAMS_NONE;
}

/* The steps have their scratch already: larger blocks of several passes may not fit, nor their packed rows.
 */
static bool fits_blocks(const eg_step *step, const eg_step *first) {
    const bool same = step->tile_rows == first->tile_rows && step->tile_cols == first->tile_cols;
    const eg_cpu_step *detail = eg_cpu_detail(step);
    const bool packs_left = detail->left == EG_CPU_FUSED || detail->packs_both || detail->copies_ends;
    return step->kind == EG_MAP || (detail->single_pass && !packs_left) || same;
}

/* Fused packing may refuse a number when a block of a later step has been added to an output. */
static bool may_refuse_late(const eg_program *program, const eg_step *step) {
    const eg_cpu_step *detail = eg_cpu_detail(step);
    return program->may_refuse && (detail->left == EG_CPU_FUSED || detail->right == EG_CPU_FUSED);
}

/* Whether a map after a step reads what the one before it made too. */
static bool is_read_with(const eg_program *program, const eg_op *before, int at) {
    for (int i = at + 1; i < program->steps && program->step[i].kind == EG_MAP; i++) {
        if (reads_result_of(op_of(program, i), before)) return true;
    }
    return false;
}

/* Whether the step at `at` may go on in the blocks of those from `first` on. */
static bool may_join(const eg_program *program, int first, int at) {
    const eg_step *step = &program->step[at];
    bool depends = step->kind == EG_MAP;
    if (step->op == EG_NO_OP || !(step->kind == EG_MAP || is_tiled_product(step))) return false;
    const eg_op *op = op_of(program, at);
    if (!has_same_result(op, op_of(program, first)) || !fits_blocks(step, &program->step[first]) ||
        may_refuse_late(program, step) || may_refuse_late(program, &program->step[first]))
        return false;
    if (eg_term_of(op, EG_TERM_COLUMN_SUMS) != NULL && program->step[first].tile_rows % EG_CPU_CHUNK != 0)
        return false;
    for (int i = first; i < at; i++) {
        const eg_op *before = op_of(program, i);
        if (multiplies_result_of(op, before) || multiplies_result_of(before, op)) return false;
        depends |= reads_result_of(op, before) || is_read_with(program, before, at);
    }
    return depends;
}

static void set_detail(eg_step *step, eg_cpu_step detail) { memcpy(step->detail, &detail, sizeof detail); }

/* What is read again at once has to be in the caches. */
static void keep_in_caches(eg_step *step) {
    eg_cpu_step detail = *eg_cpu_detail(step);
    detail.non_temporal = false;
    set_detail(step, detail);
}

static void join(const eg_step *first, eg_step *step) {
    eg_cpu_step detail = *eg_cpu_detail(step);
    detail.same_blocks = true;
    set_detail(step, detail);
    step->tile_rows = first->tile_rows, step->tile_cols = first->tile_cols;
    step->threads = first->threads;
    step->note = detail.left == EG_CPU_FUSED || detail.right == EG_CPU_FUSED
                     ? "fused packing, in the same blocks"
                     : "in the same blocks";
}

void eg_cpu_fuse_blocks(eg_program *program) {
    for (int first = 0; first < program->steps; first++) {
        int at = first + 1;
        if (!is_tiled_product(&program->step[first])) continue;
        for (; at < program->steps && at - first < EG_CPU_FUSED_STEPS && may_join(program, first, at); at++) {
            join(&program->step[first], &program->step[at]);
            for (int i = first; i < at; i++) {
                if (reads_result_of(op_of(program, at), op_of(program, i))) keep_in_caches(&program->step[i]);
            }
        }
        first = at - 1;
    }
}
