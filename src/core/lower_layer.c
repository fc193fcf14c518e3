/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a layer, as operations. */
#include "lower_layer.h"

/* ---- Products of A ------------------------------------------------------------------------------ */

/* Rows of the whole batch; more than can be counted are as good as the most that can. */
static int64_t rows_of_batch(const eg_problem *p) {
    int64_t rows;
    return __builtin_mul_overflow(p->m, p->batch, &rows) ? INT64_MAX : rows;
}

/* A result that the batch shares is one sum over it. */
static void sum_over_batch(eg_op *op, const eg_problem *p, eg_operand_id out) {
    const bool shared_result = !eg_has_items(&p->operands[out]) && p->batch > 1;
    op->items = shared_result ? 1 : p->batch;
    op->summed = shared_result ? p->batch : 1;
}

static void add_act(const eg_problem *p, eg_op *op, eg_activation activation) {
    if (activation == EG_ACT_NONE) return;
    eg_add_term(op, (eg_term){.kind = EG_TERM_ACT, .activation = activation, .propagate = p->propagate});
}

/* Of products alone, and the first of their terms. */
static void add_scale(const eg_problem *p, eg_op *op) {
    if (p->scale != 1) eg_add_term(op, (eg_term){.kind = EG_TERM_SCALE, .scale = p->scale});
}

static eg_op product_of_a(const eg_problem *p, eg_operand_id b, eg_operand_id bias) {
    eg_op op = {.kind = EG_GEMM, .items = p->batch, .rows = p->m, .cols = p->n, .depth = p->k, .summed = 1};
    op.left = eg_operand_view(p, EG_OP_A);
    op.right = eg_view_of_b(p, b);
    add_scale(p, &op);
    eg_add_view_term(&op, EG_TERM_BIAS, eg_operand_view(p, bias));
    return op;
}

/* y = act(A·B + bias) * (A·B_up + bias_up), and both pre on the way */
void eg_lower_gated_forward(const eg_problem *p, eg_op_list *list) {
    eg_op gate = product_of_a(p, EG_OP_B, EG_OP_BIAS), up = product_of_a(p, EG_OP_B_UP, EG_OP_BIAS_UP);
    gate.out = eg_buffer_view(list, "act(gate)", p->batch, p->m, p->n);
    eg_add_view_term(&gate, EG_TERM_STORE, eg_operand_view(p, EG_OP_PRE));
    add_act(p, &gate, p->activation);
    eg_add_op(list, &gate);
    eg_add_view_term(&up, EG_TERM_STORE, eg_operand_view(p, EG_OP_PRE_UP));
    eg_add_view_term(&up, EG_TERM_TIMES, gate.out);
    up.out = eg_operand_view(p, EG_OP_Y);
    eg_add_op(list, &up);
}

/* y = act(A·B + bias) + residual, and pre on the way */
void eg_lower_forward(const eg_problem *p, eg_op_list *list) {
    eg_op op = product_of_a(p, EG_OP_B, EG_OP_BIAS);
    eg_add_view_term(&op, EG_TERM_STORE, eg_operand_view(p, EG_OP_PRE));
    add_act(p, &op, p->activation);
    eg_add_view_term(&op, EG_TERM_ADD, eg_operand_view(p, EG_OP_RESIDUAL));
    op.out = eg_operand_view(p, EG_OP_Y);
    eg_add_op(list, &op);
}

/* ---- Gradients --------------------------------------------------------------------------------- */

eg_bias_gradient eg_bias_gradient_of(const eg_problem *p, eg_op_list *list, eg_operand_id out,
                                     const char *name, int64_t cols) {
    eg_bias_gradient x = {.sums = {.space = EG_ABSENT}};
    if (!eg_wants(p, out)) return x;
    x.gradient = eg_gradient_of(p, list, out, 1, cols);
    x.sums = eg_temporary_view(list, name, p->batch, p->m, cols);
    x.reduce = (eg_op){.kind = EG_REDUCE,
                       .items = 1,
                       .rows = 1,
                       .cols = cols,
                       .depth = rows_of_batch(p),
                       .left = x.sums,
                       .out = x.gradient.sent,
                       .accumulate = eg_adds_to(p, out) && !eg_is_summed(p, out)};
    return x;
}

/* grad_pre = grad * act'(pre), for its products, for the caller, or for its column sums alone. Without an
 * activation it is grad, and there may be nothing to do. Returns what the products read. */
static eg_view lower_grad_pre(const eg_problem *p, eg_op_list *list, const eg_view *sums, bool products) {
    const eg_view grad = eg_operand_view(p, EG_OP_GRAD), wanted = eg_operand_view(p, EG_OP_GRAD_PRE);
    const bool is_grad = p->activation == EG_ACT_NONE;
    const bool recompute = p->source == EG_SOURCE_RECOMPUTE && !is_grad;
    if (is_grad && !eg_is_present(&wanted) && !eg_is_present(sums)) return grad;
    eg_op op = {.kind = EG_MAP, .items = p->batch, .rows = p->m, .cols = p->n, .summed = 1};
    op.left = is_grad ? grad : eg_operand_view(p, EG_OP_SAVED);
    if (recompute) op = product_of_a(p, EG_OP_B, EG_OP_BIAS);
    if (!is_grad) {
        eg_add_term(&op, (eg_term){.kind = EG_TERM_GRAD_AT_VALUE,
                                   .view = grad,
                                   .activation = p->activation,
                                   .of_y = p->source == EG_SOURCE_Y,
                                   .propagate = p->propagate});
        if (products) op.out = eg_temporary_view(list, "grad_pre", p->batch, p->m, p->n);
        if (products) list->temporary[op.out.id].same = wanted;
    }
    eg_add_view_term(&op, EG_TERM_STORE, wanted);
    eg_add_view_term(&op, EG_TERM_COLUMN_SUMS, *sums);
    eg_add_op(list, &op);
    return is_grad ? grad : op.out;
}

/* act' of the layer below, taken from what it saved */
static eg_term below_term(const eg_problem *p) {
    return (eg_term){.kind = EG_TERM_GRAD_AT_SAVED,
                     .view = eg_operand_view(p, EG_OP_BELOW),
                     .activation = p->below_activation,
                     .of_y = p->below_source == EG_SOURCE_Y,
                     .propagate = p->propagate};
}

static eg_op product_for_d_a(const eg_problem *p, eg_view gradient, eg_operand_id b) {
    eg_op op = {.kind = EG_GEMM, .rows = p->m, .cols = p->k, .depth = p->n};
    sum_over_batch(&op, p, EG_OP_D_A);
    op.left = gradient;
    op.right = eg_transposed(eg_view_of_b(p, b));
    add_scale(p, &op);
    return op;
}

static eg_op map_of(const eg_problem *p, eg_view left, int64_t cols) {
    return (eg_op){.kind = EG_MAP, .items = p->batch, .rows = p->m, .cols = cols, .summed = 1, .left = left};
}

/* out = act(gate) * by, with its column sums: the gradient of a gated unit's other half, or its y. */
static eg_op map_of_gate(const eg_problem *p, eg_view gate, eg_activation activation, eg_view by) {
    eg_op op = map_of(p, gate, gate.cols);
    add_act(p, &op, activation);
    eg_add_view_term(&op, EG_TERM_TIMES, by);
    return op;
}

/* The gradients of a gated unit below, from that of its y in `d_y`, which is written over. Products of `d_y`
 * and pre_up wait there; the last step reads them, and may write where they are. */
static void lower_gated_chain(const eg_problem *p, eg_op_list *list, eg_view d_y, const eg_view *sums,
                              const eg_view *sums_up) {
    const eg_view gate = eg_operand_view(p, EG_OP_BELOW), up = eg_operand_view(p, EG_OP_BELOW_UP);
    eg_op y = map_of_gate(p, gate, p->below_activation, up);
    y.out = eg_operand_view(p, EG_OP_Y_BELOW);
    if (eg_is_present(&y.out)) eg_add_op(list, &y);
    eg_op d_up = map_of_gate(p, gate, p->below_activation, d_y);
    d_up.out = eg_operand_view(p, EG_OP_D_UP_BELOW);
    eg_add_view_term(&d_up, EG_TERM_COLUMN_SUMS, *sums_up);
    eg_add_op(list, &d_up);
    eg_op product = map_of_gate(p, up, EG_ACT_NONE, d_y);
    product.out = d_y;
    eg_add_op(list, &product);
    eg_op d_gate = map_of(p, d_y, p->k);
    eg_add_term(&d_gate, below_term(p));
    eg_add_view_term(&d_gate, EG_TERM_COLUMN_SUMS, *sums);
    d_gate.out = eg_operand_view(p, EG_OP_D_A);
    eg_add_op(list, &d_gate);
}

/* d_a = d_gate · Bᵀ + residual + d_up · B_upᵀ: the first product waits in the compute type, so that the sum
 * is rounded once. So does a sum that the chain has a step of its own for. */
static void lower_summed_d_a(const eg_problem *p, eg_op_list *list, const eg_gradients *x,
                             const eg_view *sums, const eg_view *sums_up) {
    const eg_view d_a = eg_operand_view(p, EG_OP_D_A);
    const bool chain = eg_wants(p, EG_OP_BELOW), in_result = d_a.dtype == list->compute;
    eg_op gate = product_for_d_a(p, x->gate, EG_OP_B);
    gate.out = in_result ? d_a : eg_buffer_view(list, "d_a sum", gate.items, p->m, p->k);
    eg_add_view_term(&gate, EG_TERM_ADD, eg_operand_view(p, EG_OP_D_A_RESIDUAL));
    eg_add_op(list, &gate);
    if (eg_is_present(&x->up)) {
        eg_op up = product_for_d_a(p, x->up, EG_OP_B_UP);
        up.accumulate = in_result || chain;
        up.out = up.accumulate ? gate.out : d_a;
        if (!up.accumulate) eg_add_view_term(&up, EG_TERM_ADD, gate.out);
        eg_add_op(list, &up);
    }
    if (eg_wants(p, EG_OP_BELOW_UP)) {
        lower_gated_chain(p, list, gate.out, sums, sums_up);
    } else if (chain) {
        eg_op below = map_of(p, gate.out, p->k);
        eg_add_term(&below, below_term(p));
        eg_add_view_term(&below, EG_TERM_COLUMN_SUMS, *sums);
        below.out = d_a;
        eg_add_op(list, &below);
    }
}

/* d_a = grad_pre · Bᵀ + residual; or, with a chain, grad_pre · Bᵀ times act' of the layer below */
static void lower_d_a(const eg_problem *p, eg_op_list *list, eg_view grad_pre, const eg_view *sums) {
    eg_op op = product_for_d_a(p, grad_pre, EG_OP_B);
    op.out = eg_operand_view(p, EG_OP_D_A);
    eg_add_view_term(&op, EG_TERM_ADD, eg_operand_view(p, EG_OP_D_A_RESIDUAL));
    if (eg_wants(p, EG_OP_BELOW)) {
        eg_add_term(&op, below_term(p));
        eg_add_view_term(&op, EG_TERM_COLUMN_SUMS, *sums);
    }
    eg_add_op(list, &op);
}

void eg_lower_any_d_a(const eg_problem *p, eg_op_list *list, const eg_gradients *x, const eg_view *sums,
                      const eg_view *sums_up) {
    const bool summed = eg_wants(p, EG_OP_BELOW) && eg_wants(p, EG_OP_D_A_RESIDUAL);
    if (!eg_wants(p, EG_OP_D_A)) return;
    if (p->gated || eg_wants(p, EG_OP_BELOW_UP) || summed) {
        lower_summed_d_a(p, list, x, sums, sums_up);
    } else {
        lower_d_a(p, list, x->gate, sums);
    }
}

/* d_b = Aᵀ · grad_pre */
void eg_lower_d_b(const eg_problem *p, eg_op_list *list, eg_view grad_pre, eg_operand_id id, eg_view out) {
    if (!eg_is_present(&out)) return;
    eg_op op = {.kind = EG_GEMM,
                .axis = EG_AXIS_DEPTH,
                .rows = p->k,
                .cols = p->n,
                .depth = p->m,
                .accumulate = eg_adds_to(p, id) && !eg_is_summed(p, id)};
    sum_over_batch(&op, p, id);
    op.left = eg_transposed(eg_operand_view(p, EG_OP_A));
    op.right = grad_pre;
    op.out = out;
    add_scale(p, &op);
    eg_add_op(list, &op);
}

/* A gradient that the caller has: it is stored and summed where that is wanted. */
static void lower_given(const eg_problem *p, eg_op_list *list, eg_operand_id given, eg_operand_id wanted,
                        const eg_view *sums) {
    eg_op op = map_of(p, eg_operand_view(p, given), p->n);
    eg_add_view_term(&op, EG_TERM_STORE, eg_operand_view(p, wanted));
    eg_add_view_term(&op, EG_TERM_COLUMN_SUMS, *sums);
    if (op.terms > 0) eg_add_op(list, &op);
}

/* What a map makes of both, for products, for the caller, or for its column sums alone. */
static eg_view add_gradient(const eg_problem *p, eg_op_list *list, eg_op *op, eg_operand_id wanted,
                            const eg_view *sums, const char *name, bool products) {
    const eg_view stored = eg_operand_view(p, wanted);
    if (products) {
        op->out = eg_temporary_view(list, name, p->batch, p->m, p->n);
        list->temporary[op->out.id].same = stored;
    }
    eg_add_view_term(op, EG_TERM_STORE, stored);
    eg_add_view_term(op, EG_TERM_COLUMN_SUMS, *sums);
    eg_add_op(list, op);
    return op->out;
}

/* d_up = grad * act(pre), d_gate = grad * pre_up * act'(pre). The products grad * pre_up are made first,
 * since grad_pre may be in the memory of grad. */
static eg_gradients lower_gated_gradients(const eg_problem *p, eg_op_list *list, const eg_view *sums,
                                          const eg_view *sums_up) {
    const eg_view grad = eg_operand_view(p, EG_OP_GRAD);
    const bool wants_gate = eg_wants_gate(p), d_a = eg_wants(p, EG_OP_D_A);
    const bool recompute = p->source == EG_SOURCE_RECOMPUTE;
    eg_view pre = eg_operand_view(p, EG_OP_SAVED);
    eg_op up = map_of(p, eg_operand_view(p, EG_OP_SAVED_UP), p->n);
    eg_gradients made = {.gate = {.space = EG_ABSENT}, .up = {.space = EG_ABSENT}};
    if (recompute) {
        eg_op gate = product_of_a(p, EG_OP_B, EG_OP_BIAS);
        pre = gate.out = eg_buffer_view(list, "pre", p->batch, p->m, p->n);
        eg_add_op(list, &gate);
        up = product_of_a(p, EG_OP_B_UP, EG_OP_BIAS_UP);
    }
    if (wants_gate) {
        eg_add_view_term(&up, EG_TERM_TIMES, grad);
        up.out = eg_buffer_view(list, "grad * pre_up", p->batch, p->m, p->n);
        eg_add_op(list, &up);
    }
    if (eg_wants_up(p)) {
        eg_op op = map_of_gate(p, pre, p->activation, grad);
        made.up = add_gradient(p, list, &op, EG_OP_GRAD_PRE_UP, sums_up, "grad_pre_up",
                               d_a || eg_wants(p, EG_OP_D_B_UP));
    }
    if (wants_gate) {
        eg_op op = map_of(p, up.out, p->n);
        eg_add_term(&op, (eg_term){.kind = EG_TERM_GRAD_AT_SAVED,
                                   .view = pre,
                                   .activation = p->activation,
                                   .propagate = p->propagate});
        made.gate =
            add_gradient(p, list, &op, EG_OP_GRAD_PRE, sums, "grad_pre", d_a || eg_wants(p, EG_OP_D_B));
    }
    return made;
}

eg_gradients eg_lower_gradients(const eg_problem *p, eg_op_list *list, const eg_view *sums,
                                const eg_view *sums_up) {
    const bool products = eg_wants(p, EG_OP_D_A) || eg_wants(p, EG_OP_D_B);
    if (!p->gated) return (eg_gradients){.gate = lower_grad_pre(p, list, sums, products)};
    if (!eg_wants(p, EG_OP_GRAD_UP)) return lower_gated_gradients(p, list, sums, sums_up);
    lower_given(p, list, EG_OP_GRAD_UP, EG_OP_GRAD_PRE_UP, sums_up);
    lower_given(p, list, EG_OP_GRAD, EG_OP_GRAD_PRE, sums);
    return (eg_gradients){eg_operand_view(p, EG_OP_GRAD), eg_operand_view(p, EG_OP_GRAD_UP)};
}

/* What is summed over processes comes first, so that the sums are under way while d_a is computed. */
static void lower_products_and_sums(const eg_problem *p, eg_op_list *list, eg_view grad_pre,
                                    const eg_bias_gradient *here, const eg_bias_gradient *below) {
    const eg_view none = {.space = EG_ABSENT};
    const eg_gradients x = {.gate = grad_pre, .up = none};
    const eg_gradient d_b = eg_gradient_of(p, list, EG_OP_D_B, p->k, p->n);
    eg_add_op(list, &here->reduce);
    eg_lower_sum(p, list, &here->gradient);
    if (eg_is_present(&d_b.result)) eg_lower_d_b(p, list, grad_pre, EG_OP_D_B, d_b.sent);
    eg_lower_sum(p, list, &d_b);
    eg_lower_any_d_a(p, list, &x, &below->sums, &none);
    eg_add_op(list, &below->reduce);
    eg_lower_sum(p, list, &below->gradient);
    eg_lower_finish(list);
    eg_lower_delivery(p, list, &here->gradient);
    eg_lower_delivery(p, list, &d_b);
    eg_lower_delivery(p, list, &below->gradient);
}

void eg_lower_backward(const eg_problem *p, eg_op_list *list) {
    const eg_bias_gradient here = eg_bias_gradient_of(p, list, EG_OP_D_BIAS, "d_bias sums", p->n),
                           up = eg_bias_gradient_of(p, list, EG_OP_D_BIAS_UP, "d_bias_up sums", p->n),
                           below =
                               eg_bias_gradient_of(p, list, EG_OP_D_BIAS_BELOW, "chain.d_bias sums", p->k),
                           below_up = eg_bias_gradient_of(p, list, EG_OP_D_BIAS_UP_BELOW,
                                                          "chain_up.d_bias sums", p->k);
    const bool needed = eg_wants_gate(p) || eg_wants_up(p);
    if (!needed && p->comm == NULL) return;
    eg_gradients x = {.gate = {.space = EG_ABSENT}, .up = {.space = EG_ABSENT}};
    if (needed) x = eg_lower_gradients(p, list, &here.sums, &up.sums);
    if (p->comm != NULL) {
        lower_products_and_sums(p, list, x.gate, &here, &below);
        return;
    }
    eg_lower_any_d_a(p, list, &x, &below.sums, &below_up.sums);
    eg_lower_d_b(p, list, x.gate, EG_OP_D_B, eg_operand_view(p, EG_OP_D_B));
    eg_lower_d_b(p, list, x.up, EG_OP_D_B_UP, eg_operand_view(p, EG_OP_D_B_UP));
    eg_add_op(list, &here.reduce);
    eg_add_op(list, &up.reduce);
    eg_add_op(list, &below.reduce);
    eg_add_op(list, &below_up.reduce);
}
