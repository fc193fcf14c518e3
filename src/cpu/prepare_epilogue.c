/* SPDX-License-Identifier: Apache-2.0 */
/* The epilogue of a step: its terms bound to the call's operands, and the functions that finish its tiles. */
#include "epilogue.h"

const eg_operand eg_cpu_product;

static void nothing_to_do(const eg_elementwise *of) { (void)of; }

/* The operand of a view, bound to `place`; NULL where there is none. */
static const eg_operand *bind(const eg_epilogue *e, const eg_view *view, eg_operand *place) {
    *place = eg_cpu_bind(e->run->call, view);
    return place->data != NULL ? place : NULL;
}

static const eg_operand *bind_term(const eg_epilogue *e, const eg_op *op, eg_term_kind kind,
                                   eg_operand *place) {
    const eg_term *term = eg_term_of(op, kind);
    return term != NULL ? bind(e, &term->view, place) : NULL;
}

/* Where the result of a map goes for the caller. */
static const eg_operand *bind_result(eg_epilogue *e, const eg_op *op) {
    const bool stored = op->kind == EG_MAP && op->out.space != EG_OPERAND;
    return stored ? bind_term(e, op, EG_TERM_STORE, &e->stored) : bind(e, &op->out, &e->result);
}

/* result = act(x + bias) + other, or times it, with x + bias of a product stored on the way */
static void prepare_act(eg_epilogue *e, const eg_op *op) {
    const eg_term *act = eg_term_of(op, EG_TERM_ACT);
    e->times = eg_term_of(op, EG_TERM_TIMES) != NULL;
    e->elementwise = e->kernel->epilogue.act[act != NULL ? act->activation : EG_ACT_NONE];
    e->propagate = act != NULL && act->propagate;
    e->other = bind_term(e, op, e->times ? EG_TERM_TIMES : EG_TERM_ADD, &e->term);
    if (op->kind == EG_GEMM || eg_is_forward_map(op)) e->pre = bind_term(e, op, EG_TERM_STORE, &e->stored);
    e->out = bind_result(e, op);
}

/* result = x, or result + x; the first only has to be stored */
static void prepare_store(eg_epilogue *e, const eg_op *op) {
    e->plain_store = !op->accumulate;
    e->elementwise =
        e->plain_store && !eg_cpu_is_amx(e->kernel) ? nothing_to_do : e->kernel->epilogue.act[EG_ACT_NONE];
    e->out = bind(e, &op->out, &e->result);
    e->other = op->accumulate ? e->out : NULL;
}

/* result = other * act'(x); without an activation act' is 1 whatever x */
static void prepare_grad(eg_epilogue *e, const eg_term *term, const eg_operand *x, const eg_operand *other) {
    e->elementwise =
        (term->of_y ? e->kernel->epilogue.act_grad_y : e->kernel->epilogue.act_grad)[term->activation];
    e->x = term->activation != EG_ACT_NONE ? x : NULL;
    e->other = other;
    e->propagate = term->propagate;
    e->is_grad = true;
    if (e->x == NULL) e->bias = NULL;
}

/* A map without a derivative: result = left, or result + left */
static void prepare_copy(eg_epilogue *e, const eg_op *op) {
    if (op->accumulate) {
        e->elementwise = e->kernel->epilogue.act[EG_ACT_NONE];
        e->out = e->other = bind(e, &op->out, &e->result);
        return;
    }
    e->elementwise = e->kernel->epilogue.act_grad[EG_ACT_NONE];
    e->is_grad = true;
    e->other = e->x;
    e->x = e->bias = NULL;
}

/* Whether the row's kernels for whole tile blocks can store there. */
static bool is_in_rows(const eg_epilogue *e, const eg_operand *x) {
    return x == NULL || (x->col_stride == 1 && x->dtype == e->kernel->dtype);
}

static void prepare_act_rows(eg_epilogue *e, const eg_op *op) {
    const eg_term *act = eg_term_of(op, EG_TERM_ACT);
    if (!e->in_blocks || e->other != NULL || e->out == NULL || !is_in_rows(e, e->out) ||
        !is_in_rows(e, e->pre))
        return;
    e->act_rows = e->kernel->epilogue.act_rows[act != NULL ? act->activation : EG_ACT_NONE];
}

/* Where the result is packed for later products. */
static void prepare_packs(eg_epilogue *e, const eg_op *op, const eg_cpu_step *detail, const eg_term *grad) {
    const eg_cpu_packs packs = eg_cpu_packs_of(e->run, &detail->packs);
    if (!eg_cpu_is_amx(e->kernel)) {
        e->micro_panels = packs.left;
        return;
    }
    e->grid = eg_amx_grid_of(e->kernel->pack.bf16_terms, op->rows, op->cols);
    e->blocks = (eg_cpu_packs){.left = packs.left, .right = packs.right};
    const bool whole_blocks = grad != NULL && e->x == &eg_cpu_product && e->out == NULL &&
                              e->other->col_stride == 1 && eg_cpu_epilogue_packs_blocks(e);
    e->grad_rows = whole_blocks ? e->kernel->epilogue.grad_rows[grad->activation] : NULL;
}

static void prepare(eg_epilogue *e, const eg_op *op, const eg_cpu_step *detail) {
    const eg_term *at_value = eg_term_of(op, EG_TERM_GRAD_AT_VALUE),
                  *at_saved = eg_term_of(op, EG_TERM_GRAD_AT_SAVED);
    e->x = op->kind == EG_GEMM ? &eg_cpu_product : bind(e, &op->left, &e->left);
    e->bias = bind_term(e, op, EG_TERM_BIAS, &e->bias_row);
    if (at_value != NULL) {
        prepare_grad(e, at_value, e->x, bind(e, &at_value->view, &e->term));
        e->out = op->out.space == EG_OPERAND ? bind(e, &op->out, &e->result)
                                             : bind_term(e, op, EG_TERM_STORE, &e->stored);
    } else if (at_saved != NULL) {
        prepare_grad(e, at_saved, bind(e, &at_saved->view, &e->term), e->x);
        e->out = bind_result(e, op);
    } else if (op->kind != EG_GEMM && eg_term_of(op, EG_TERM_TIMES) == NULL && !eg_is_forward_map(op)) {
        prepare_copy(e, op);
        if (op->accumulate) return;
        e->out =
            op->kind == EG_COPY ? bind(e, &op->out, &e->result) : bind_term(e, op, EG_TERM_STORE, &e->stored);
    } else if (eg_is_bare(op)) {
        prepare_store(e, op);
    } else {
        prepare_act(e, op);
        if (op->kind == EG_GEMM) prepare_act_rows(e, op);
    }
    prepare_packs(e, op, detail, at_value);
}

void eg_cpu_prepare_epilogue(const eg_cpu_run *run, const eg_step *step, eg_epilogue *e) {
    const eg_op *op = &run->list->op[step->op];
    const eg_cpu_step *detail = eg_cpu_detail(step);
    *e = (eg_epilogue){.run = run, .kernel = detail->kernel, .rows = op->rows};
    e->in_blocks = eg_cpu_is_amx(e->kernel);
    e->scale = eg_scale_of(op);
    e->width = eg_ceil_div(op->cols, e->kernel->micro.nr) * e->kernel->micro.nr;
    e->sums = eg_cpu_region(run, detail->sums);
    e->non_temporal = detail->non_temporal;
    e->fills_rows = op->out.space == EG_OPERAND && op->out.id >= EG_BUFFER && op->out.row_stride == e->width;
    prepare(e, op, detail);
}
