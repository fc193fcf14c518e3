/* SPDX-License-Identifier: Apache-2.0 */
/* Both gradients of a gated unit, which the lowering makes by three maps, by one kernel. Pure. */
#include "gated_maps.h"

/* out = left * by, which is read by nothing but another map. */
static bool is_product(const eg_op *op) {
    return op->kind == EG_MAP && op->terms == 1 && op->term[0].kind == EG_TERM_TIMES && !op->accumulate &&
           eg_is_present(&op->out);
}

static bool has_no_others(const eg_op *op, unsigned kinds) {
    for (int i = 0; i < op->terms; i++) {
        if ((kinds >> op->term[i].kind & 1U) == 0) return false;
    }
    return op->kind == EG_MAP && !op->accumulate;
}

/* d_up = act(gate) * d_y */
static bool is_up(const eg_op *op, const eg_view *d_y) {
    const unsigned kinds =
        1U << EG_TERM_ACT | 1U << EG_TERM_TIMES | 1U << EG_TERM_STORE | 1U << EG_TERM_COLUMN_SUMS;
    const eg_term *times = eg_term_of(op, EG_TERM_TIMES);
    return has_no_others(op, kinds) && times != NULL && eg_names_same(&times->view, d_y);
}

/* d_gate = product * act'(gate) */
static bool is_gate(const eg_op *op, const eg_op *up, const eg_view *product) {
    const unsigned kinds = 1U << EG_TERM_GRAD_AT_SAVED | 1U << EG_TERM_STORE | 1U << EG_TERM_COLUMN_SUMS;
    const eg_term *at = eg_term_of(op, EG_TERM_GRAD_AT_SAVED), *act = eg_term_of(up, EG_TERM_ACT);
    const eg_activation activation = act != NULL ? act->activation : EG_ACT_NONE;
    return has_no_others(op, kinds) && at != NULL && !at->of_y && at->activation == activation &&
           eg_names_same(&at->view, &up->left) && eg_names_same(&op->left, product);
}

/* A product over d_y has to come after d_up, which reads that. */
static bool are_gated(const eg_op_list *list, const eg_cuda_gated_ops *ops) {
    const eg_op *product = &list->op[ops->product], *up = &list->op[ops->up];
    if (!is_product(product)) return false;
    const bool over = eg_names_same(&product->out, &product->term[0].view);
    return !(over && ops->product < ops->up) && is_up(up, &product->term[0].view) &&
           is_gate(&list->op[ops->gate], up, &product->out);
}

bool eg_cuda_find_gated(const eg_op_list *list, int first, eg_cuda_gated_ops *ops) {
    if (first < 0 || first + 2 >= list->ops) return false;
    *ops = (eg_cuda_gated_ops){.product = first, .up = first + 1, .gate = first + 2};
    if (are_gated(list, ops)) return true;
    ops->product = first + 1, ops->up = first;
    return are_gated(list, ops);
}

eg_cuda_gated eg_cuda_gated_of(const eg_cuda_binding *binding, const eg_cuda_gated_ops *ops) {
    const eg_cuda_gemm product = eg_cuda_gemm_of(binding, ops->product),
                       up = eg_cuda_gemm_of(binding, ops->up), gate = eg_cuda_gemm_of(binding, ops->gate);
    const bool ragged = gate.ragged != EG_CUDA_DENSE;
    return (eg_cuda_gated){.d_y = product.in,
                           .gate = up.left,
                           .up = product.left,
                           .d_up = up.out,
                           .d_gate = gate.out,
                           .sums_up = up.sums,
                           .sums_gate = gate.sums,
                           .ends = gate.ends,
                           .rows = gate.rows,
                           .cols = gate.cols,
                           .items = ragged ? 1 : gate.items,
                           .groups = ragged ? gate.items : 0,
                           .activation = gate.activation,
                           .propagate = gate.propagate};
}

/* Rows of vectors, of the layer's type. */
static bool is_of_vectors(const eg_cuda_kernel *row, const eg_cuda_matrix *x) {
    return x->data == 0 || (x->col_stride == 1 && eg_cuda_is_aligned(x) && x->dtype == (int32_t)row->dtype);
}

bool eg_cuda_takes_gated(const eg_cuda_kernel *row, const eg_cuda_gated *x) {
    eg_cuda_matrix d_y = x->d_y;
    if (d_y.dtype == (int32_t)row->compute && eg_cuda_is_aligned(&d_y)) d_y.dtype = (int32_t)row->dtype;
    const bool sums = x->sums_up != 0 || x->sums_gate != 0;
    return is_of_vectors(row, &d_y) && is_of_vectors(row, &x->gate) && is_of_vectors(row, &x->up) &&
           is_of_vectors(row, &x->d_up) && is_of_vectors(row, &x->d_gate) &&
           x->cols % (16 / (int64_t)eg_dtype_size(row->dtype)) == 0 && (x->groups == 0 || !sums);
}

double eg_cuda_estimate_gated(const eg_cuda_machine *machine, const eg_cuda_kernel *row,
                              const eg_cuda_gated *x) {
    const eg_cuda_gemm most = {.rows = x->rows,
                               .cols = x->cols,
                               .items = x->items,
                               .summed = 1,
                               .left = x->gate,
                               .in = x->d_y,
                               .out = x->d_up,
                               .second = x->d_gate};
    const eg_cuda_gemm up = {.rows = x->rows, .cols = x->cols, .items = x->items, .summed = 1, .left = x->up};
    return eg_cuda_estimate(machine, row, &most, -1) + eg_cuda_estimate(machine, row, &up, -1) -
           machine->calibration->costs[eg_cuda_kind_of(row)].launch;
}
