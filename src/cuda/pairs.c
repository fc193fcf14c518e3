/* SPDX-License-Identifier: Apache-2.0 */
/* Two products of a gated unit by one kernel. Pure. */
#include "pairs.h"

#include "core/sizes.h"
#include "takes.h"

/* ---- Which operations ------------------------------------------------------------------------------ */

/* One product for each result, of dense matrices. */
static bool is_product(const eg_op *op, unsigned terms) {
    for (int i = 0; i < op->terms; i++) {
        if ((terms >> op->term[i].kind & 1U) == 0) return false;
    }
    return op->kind == EG_GEMM && op->depth > 0 && op->summed == 1 && !op->ragged && eg_is_present(&op->out);
}

static bool are_alike(const eg_op *a, const eg_op *b) {
    return a->items == b->items && a->rows == b->rows && a->cols == b->cols && a->depth == b->depth &&
           eg_scale_of(a) == eg_scale_of(b);
}

/* Whether operations that are not among `ops` read or write a matrix that these make for themselves. */
static bool is_used_elsewhere(const eg_op_list *list, uint32_t ops, const eg_view *view) {
    for (int i = 0; i < list->ops; i++) {
        const eg_op *op = &list->op[i];
        if ((ops >> i & 1U) != 0) continue;
        if (eg_names_same(&op->left, view) || eg_names_same(&op->right, view) ||
            eg_names_same(&op->out, view))
            return true;
        for (int j = 0; j < op->terms; j++) {
            if (eg_names_same(&op->term[j].view, view)) return true;
        }
    }
    return false;
}

/* A matrix in the workspace, where nobody else looks for it. */
static bool is_own(const eg_op_list *list, uint32_t ops, const eg_view *view) {
    return view->space == EG_OPERAND && view->id >= EG_BUFFER && !is_used_elsewhere(list, ops, view);
}

static bool is_forward(const eg_op_list *list, const eg_cuda_pair_ops *ops) {
    const unsigned before = 1U << EG_TERM_SCALE | 1U << EG_TERM_BIAS | 1U << EG_TERM_STORE;
    const eg_op *gate = &list->op[ops->gate], *up = &list->op[ops->up];
    const eg_term *times = eg_term_of(up, EG_TERM_TIMES);
    if (!is_product(gate, before | 1U << EG_TERM_ACT) || !is_product(up, before | 1U << EG_TERM_TIMES))
        return false;
    const bool saves = eg_term_of(gate, EG_TERM_STORE) != NULL;
    return times != NULL && eg_names_same(&times->view, &gate->out) && is_own(list, ops->ops, &gate->out) &&
           are_alike(gate, up) && eg_names_same(&gate->left, &up->left) && !gate->accumulate &&
           !up->accumulate && saves == (eg_term_of(up, EG_TERM_STORE) != NULL);
}

static bool is_sum(const eg_op_list *list, const eg_cuda_pair_ops *ops) {
    const unsigned scale = 1U << EG_TERM_SCALE;
    const eg_op *gate = &list->op[ops->gate], *up = &list->op[ops->up];
    const eg_term *add = eg_term_of(up, EG_TERM_ADD);
    if (!is_product(gate, scale) || !is_product(up, scale | 1U << EG_TERM_ADD)) return false;
    return add != NULL && eg_names_same(&add->view, &gate->out) && is_own(list, ops->ops, &gate->out) &&
           are_alike(gate, up) && gate->items == 1 && !gate->accumulate && !up->accumulate;
}

/* y of the unit below may come between the product and the maps: it reads what is saved. */
static bool is_chain(const eg_op_list *list, eg_cuda_pair_ops *ops) {
    const eg_op *product = &list->op[ops->gate];
    int maps = ops->gate + 1;
    if (!is_product(product, 1U << EG_TERM_SCALE) || product->accumulate) return false;
    if (maps < list->ops && list->op[maps].out.space == EG_OPERAND && list->op[maps].out.id == EG_OP_Y_BELOW)
        maps++;
    if (!eg_cuda_find_gated(list, maps, &ops->maps)) return false;
    ops->ops |= 7U << maps;
    const eg_op *up = &list->op[ops->maps.up], *gate = &list->op[ops->maps.gate];
    return eg_names_same(&list->op[ops->maps.product].term[0].view, &product->out) &&
           is_own(list, ops->ops, &product->out) && eg_is_present(&up->out) && eg_is_present(&gate->out) &&
           eg_term_of(up, EG_TERM_STORE) == NULL && eg_term_of(gate, EG_TERM_STORE) == NULL;
}

bool eg_cuda_find_pair(const eg_op_list *list, int first, eg_cuda_pair_ops *ops) {
    *ops = (eg_cuda_pair_ops){.kind = EG_CUDA_PAIR_CHAIN, .ops = 1U << first, .gate = first, .up = first};
    if (list->groups > 0) return false;
    if (is_chain(list, ops)) return true;
    if (first + 1 >= list->ops) return false;
    *ops = (eg_cuda_pair_ops){.ops = 3U << first, .gate = first, .up = first + 1};
    ops->kind = EG_CUDA_PAIR_FORWARD;
    if (is_forward(list, ops)) return true;
    ops->kind = EG_CUDA_PAIR_SUM;
    return is_sum(list, ops);
}

bool eg_cuda_makes_left_sums(const eg_op_list *list, const eg_cuda_kernel *row) {
    const eg_op *sums = &list->op[0], *product = &list->op[1];
    return product->kind == EG_GEMM && eg_names_same(&sums->left, &product->left) &&
           eg_cuda_is_persistent(row) && (row->takes & EG_CUDA_LEFT_ROWS) != 0 &&
           (row->takes & EG_CUDA_GROUPS_ALONE) == 0 && sums->items == 1 && product->items == 1 &&
           product->summed == 1 && product->depth % 8 == 0; /* rows of vectors */
}

/* ---- What the kernel is given ---------------------------------------------------------------------- */

static eg_cuda_pair forward_of(const eg_cuda_binding *binding, const eg_cuda_pair_ops *ops) {
    const eg_cuda_matrix absent = {0};
    eg_cuda_pair x = {.gate = eg_cuda_gemm_of(binding, ops->gate), .up = eg_cuda_gemm_of(binding, ops->up)};
    x.gate.epilogue = x.up.epilogue = EG_CUDA_FORWARD;
    x.gate.out = x.gate.in = x.up.in = absent;
    x.gate.cols *= 2;
    return x;
}

static eg_cuda_pair chain_of(const eg_cuda_binding *binding, const eg_cuda_pair_ops *ops) {
    const eg_cuda_gated maps = eg_cuda_gated_of(binding, &ops->maps);
    eg_cuda_gemm x = eg_cuda_gemm_of(binding, ops->gate);
    x.epilogue = EG_CUDA_CHAIN;
    x.activation = maps.activation, x.propagate = maps.propagate, x.source = EG_SOURCE_PRE;
    eg_cuda_pair pair = {.gate = x, .up = x};
    pair.gate.in = maps.gate, pair.gate.out = maps.d_gate, pair.gate.sums = maps.sums_gate;
    pair.up.in = maps.up, pair.up.out = maps.d_up, pair.up.sums = maps.sums_up;
    return pair;
}

static eg_cuda_pair sum_of(const eg_cuda_binding *binding, const eg_cuda_pair_ops *ops) {
    eg_cuda_pair x = {.gate = eg_cuda_gemm_of(binding, ops->gate), .up = eg_cuda_gemm_of(binding, ops->up)};
    x.up.epilogue = EG_CUDA_STORE;
    x.up.in = (eg_cuda_matrix){0};
    x.gate.out = x.up.out;
    x.gate.summed = 2;
    return x;
}

eg_cuda_pair eg_cuda_pair_of(const eg_cuda_binding *binding, const eg_cuda_pair_ops *ops) {
    switch (ops->kind) {
    case EG_CUDA_PAIR_FORWARD:
        return forward_of(binding, ops);
    case EG_CUDA_PAIR_CHAIN:
        return chain_of(binding, ops);
    case EG_CUDA_PAIR_SUM:
        break;
    }
    return sum_of(binding, ops);
}

/* ---- Which rows ------------------------------------------------------------------------------------ */

static bool is_of_16_bits(const eg_cuda_kernel *row, const eg_cuda_matrix *x) {
    return x->data == 0 || x->dtype == (int32_t)row->dtype;
}

/* Results of epilogues are stored by TMA alone, in whole vectors. */
bool eg_cuda_takes_pair(const eg_cuda_kernel *row, const eg_cuda_pair_ops *ops, const eg_cuda_pair *x) {
    const eg_cuda_gemm *gate = &x->gate, *up = &x->up;
    if (row->family != EG_CUDA_PAIR || !eg_cuda_takes(row, EG_CUDA_WHOLE, gate) ||
        !eg_cuda_takes(row, EG_CUDA_WHOLE, up))
        return false;
    if (gate->rows != up->rows || gate->depth != up->depth) return false;
    switch (ops->kind) {
    case EG_CUDA_PAIR_FORWARD:
        return up->cols % 8 == 0 && up->cols < (1 << 30) && is_of_16_bits(row, &gate->second) &&
               is_of_16_bits(row, &up->second) && is_of_16_bits(row, &up->out);
    case EG_CUDA_PAIR_CHAIN:
        return up->cols % 8 == 0 && is_of_16_bits(row, &gate->in) && is_of_16_bits(row, &up->in) &&
               is_of_16_bits(row, &gate->out) && is_of_16_bits(row, &up->out);
    case EG_CUDA_PAIR_SUM:
        break;
    }
    return true;
}

eg_cuda_gemm eg_cuda_like_pair(const eg_cuda_pair *x) {
    eg_cuda_gemm like = x->gate;
    if (like.summed > 1) like.left.item_stride = like.right.item_stride = 8; /* both are read */
    if (like.epilogue == EG_CUDA_CHAIN) like.second = x->up.out;
    if (like.epilogue == EG_CUDA_FORWARD && like.second.data == 0) like.out = x->up.out;
    return like;
}
