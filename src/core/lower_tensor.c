/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor-parallel calls: a layer's own operations, between collectives over the rows of its divided side.
 *
 * Rows of all ranks lie in the order of the ranks, `each` of a rank. They are exchanged in groups: some rows
 * of each rank's. A group is a batch with an item for each rank, so that products need to know nothing of it.
 */
#include "lower_tensor.h"

#include "lower_layer.h"

static int64_t rows_of_rank(const eg_problem *p) { return p->m / p->exchange.ranks; }

/* ---- Views -------------------------------------------------------------------------------------- */

static eg_view absent(void) { return (eg_view){.space = EG_ABSENT}; }

static bool is_dense(const eg_view *x) { return x->col_stride == 1 && x->row_stride == x->cols; }

/* Of what no memory could hold the product is never used: adding its room fails. */
static int64_t times(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

static eg_view skip_rows(eg_view x, int64_t first) {
    const int64_t elements = times(first, x.row_stride);
    const uint64_t bytes = (uint64_t)elements * eg_size_of(x.dtype) | (uint64_t)x.align;
    x.offset = (int64_t)((uint64_t)x.offset + (uint64_t)elements);
    x.align = (int)(bytes & -bytes);
    return x;
}

/* Those rows of each rank's, of a view of all ranks' rows. */
static eg_view group_of(const eg_problem *p, eg_view x, eg_row_range part) {
    x = skip_rows(x, part.first);
    x.rows = part.count;
    x.batch_stride = times(rows_of_rank(p), x.row_stride);
    return x;
}

static eg_view exchanged_rows(eg_op_list *list, int id, eg_dtype dtype, int64_t rows, int64_t cols) {
    return (eg_view){.space = EG_OPERAND,
                     .id = id,
                     .dtype = dtype,
                     .rows = rows,
                     .cols = cols,
                     .row_stride = cols,
                     .col_stride = 1,
                     .offset = eg_exchanged_room(list, dtype, rows, cols),
                     .align = EG_EXCHANGED_ALIGN};
}

/* From here on the operand is there. */
static void move(eg_problem *p, eg_operand_id id, const eg_view *to) {
    p->operands[id].cols = to->cols;
    p->moved[p->moves++] = (eg_moved){.id = id, .to = to->id, .offset = to->offset, .dtype = to->dtype};
}

static void forget(eg_problem *p, eg_operand_id id) { p->operands[id].data = NULL; }

/* ---- Groups ------------------------------------------------------------------------------------- */

/* Where costs are not known, one: by NCCL on two H100s, groups made every product that was measured slower. A
 * product of few rows is slow. */
static int groups_of_product(const eg_problem *p, int64_t cols, eg_dtype dtype) {
    enum { LEAST_ROWS = 64, LEAST_ROWS_OF_STREAM = 512 };
    const eg_exchange *by = &p->exchange;
    const bool is_known = by->begun.rate > 0;
    const double bytes = (double)p->m * (double)cols * (double)eg_size_of(dtype);
    if (by->order == EG_COMM_ORDER_PLAIN) return 1;
    if (!is_known && by->order != EG_COMM_ORDER_OVERLAPPED) return 1;
    return eg_most_row_groups(&by->begun, EG_HALF_OF_ALL_REDUCE * bytes, rows_of_rank(p),
                              is_known ? LEAST_ROWS : LEAST_ROWS_OF_STREAM);
}

static eg_row_range rows_of_group(const eg_problem *p, const eg_op_list *list, int group) {
    return eg_rows_of_group(rows_of_rank(p), list->row_groups, group);
}

/* A group of a product. What it reads has a name of its own, under which it may be packed when it is there.
 */
static eg_op product_of_group(const eg_problem *p, const eg_op_list *list, const eg_op *whole, int group) {
    const eg_row_range part = rows_of_group(p, list, group);
    eg_op op = *whole;
    if (list->row_groups == 1) return op;
    op.items = p->exchange.ranks;
    op.rows = part.count;
    if (eg_is_present(&op.left)) {
        op.left = group_of(p, op.left, part);
        op.left.id = EG_ROW_GROUP + group;
    }
    op.out = group_of(p, op.out, part);
    for (int i = 0; i < op.terms; i++) {
        eg_term *term = &op.term[i];
        if (term->kind == EG_TERM_STORE || term->kind == EG_TERM_ADD)
            term->view = group_of(p, term->view, part);
    }
    return op;
}

/* Takes back the operation that was added since there were `ops`. False: there is none, it had no result. */
static bool take_back(eg_op_list *list, int ops, eg_op *op) {
    if (list->ops == ops) return false;
    *op = list->op[--list->ops];
    return true;
}

/* ---- Collectives -------------------------------------------------------------------------------- */

static void add_collective(const eg_problem *p, eg_op_list *list, eg_collective_kind kind, eg_view left,
                           eg_view out) {
    eg_add_op(list, &(eg_op){.kind = EG_COLLECTIVE,
                             .collective = kind,
                             .groups = 1,
                             .items = p->exchange.ranks,
                             .rows = out.rows,
                             .cols = out.cols,
                             .summed = 1,
                             .left = left,
                             .out = out});
}

static void gather(const eg_problem *p, eg_op_list *list, const eg_view *local, const eg_view *whole,
                   int group) {
    const eg_row_range part = rows_of_group(p, list, group);
    add_collective(p, list, EG_ALL_GATHER, skip_rows(*local, part.first), group_of(p, *whole, part));
}

/* A group of what is sent is dense: it begins where those before it end. */
static eg_view sent_group(const eg_problem *p, const eg_op_list *list, eg_view sent, int group) {
    const eg_row_range part = rows_of_group(p, list, group);
    sent = skip_rows(sent, part.first * p->exchange.ranks);
    sent.rows = part.count;
    sent.batch_stride = times(part.count, sent.cols);
    return sent;
}

static void scatter(const eg_problem *p, eg_op_list *list, const eg_view *sent, const eg_view *received,
                    int group) {
    const eg_row_range part = rows_of_group(p, list, group);
    eg_view out = skip_rows(*received, part.first);
    out.rows = part.count;
    add_collective(p, list, EG_REDUCE_SCATTER, sent_group(p, list, *sent, group), out);
}

/* This rank's rows, dense. */
static eg_view dense_rows(eg_op_list *list, eg_view x) {
    if (!eg_is_present(&x) || is_dense(&x)) return x;
    const eg_view copy = exchanged_rows(list, EG_EXCHANGED, x.dtype, x.rows, x.cols);
    eg_add_op(list, &(eg_op){.kind = EG_COPY,
                             .items = 1,
                             .rows = x.rows,
                             .cols = x.cols,
                             .summed = 1,
                             .left = x,
                             .out = copy});
    return copy;
}

/* Where sums of this rank's rows are received: in the result itself, if it is nothing but those. */
static eg_view receiving(const eg_problem *p, eg_op_list *list, const eg_view *result, bool is_plain) {
    if (is_plain && is_dense(result) && result->dtype == p->exchange.sums) return *result;
    return exchanged_rows(list, EG_EXCHANGED, p->exchange.sums, rows_of_rank(p), result->cols);
}

/* ---- Forward ------------------------------------------------------------------------------------ */

/* A's rows are gathered under the products of those that are there. */
static void lower_columns_forward(const eg_problem *p, eg_op_list *list) {
    eg_problem q = *p;
    eg_op product;
    const eg_view local = dense_rows(list, eg_operand_view(p, EG_OP_A)),
                  kept = eg_operand_view(p, EG_OP_GATHERED);
    eg_view whole = {.space = EG_OPERAND,
                     .cols = p->k,
                     .dtype = p->dtype,
                     .rows = p->m,
                     .row_stride = p->k,
                     .col_stride = 1,
                     .align = kept.align,
                     .id = EG_GATHERED};
    if (!eg_is_present(&kept)) whole = exchanged_rows(list, EG_GATHERED, p->dtype, p->m, p->k);
    move(&q, EG_OP_A, &whole);
    list->row_groups = p->gated ? 1 : groups_of_product(p, p->k, p->dtype);
    gather(p, list, &local, &whole, 0);
    if (p->gated) {
        eg_lower_finish(list);
        eg_lower_gated_forward(&q, list);
        return;
    }
    const int ops = list->ops;
    eg_lower_forward(&q, list);
    const bool multiplies = take_back(list, ops, &product);
    for (int i = 0; i < list->row_groups; i++) {
        eg_lower_finish(list);
        if (i + 1 < list->row_groups) gather(p, list, &local, &whole, i + 1);
        if (!multiplies) continue;
        const eg_op op = product_of_group(&q, list, &product, i);
        eg_add_op(list, &op);
    }
}

/* What a layer makes of its sums, which are there. */
static void finish_forward(const eg_problem *p, eg_op_list *list, const eg_view *sums) {
    eg_problem q = *p;
    eg_op op;
    q.m = rows_of_rank(p);
    q.scale = 1; /* the products had it */
    const int ops = list->ops;
    eg_lower_forward(&q, list);
    if (!take_back(list, ops, &op)) return;
    op.kind = op.terms > 0 ? EG_MAP : EG_COPY;
    op.depth = 0;
    op.left = *sums;
    op.right = absent();
    eg_add_op(list, &op);
}

/* The products of a group are summed under those of the next. */
static void lower_rows_forward(const eg_problem *p, eg_op_list *list) {
    eg_problem q = *p;
    eg_op product;
    const eg_view y = eg_operand_view(p, EG_OP_Y);
    const bool plain = p->activation == EG_ACT_NONE && !eg_wants(p, EG_OP_BIAS) &&
                       !eg_wants(p, EG_OP_RESIDUAL) && !eg_wants(p, EG_OP_PRE);
    const eg_view sent = exchanged_rows(list, EG_EXCHANGED, p->exchange.sums, p->m, p->n),
                  received = receiving(p, list, &y, plain);
    move(&q, EG_OP_Y, &sent);
    forget(&q, EG_OP_BIAS), forget(&q, EG_OP_RESIDUAL), forget(&q, EG_OP_PRE);
    q.activation = EG_ACT_NONE;
    list->row_groups = groups_of_product(p, p->n, p->exchange.sums);
    list->reads_a_by_row_group = true;
    const int ops = list->ops;
    eg_lower_forward(&q, list);
    if (!take_back(list, ops, &product)) return;
    for (int i = 0; i < list->row_groups; i++) {
        eg_op op = product_of_group(&q, list, &product, i);
        if (list->row_groups > 1) op.out = sent_group(p, list, sent, i);
        eg_add_op(list, &op);
        scatter(p, list, &sent, &received, i);
    }
    eg_lower_finish(list);
    if (received.id != EG_OP_Y) finish_forward(p, list, &received);
}

/* ---- Backward ----------------------------------------------------------------------------------- */

static bool recomputes(const eg_problem *p) {
    if (p->source != EG_SOURCE_RECOMPUTE || eg_wants(p, EG_OP_GRAD_UP)) return false;
    return p->gated ? eg_wants_gate(p) || eg_wants_up(p) : p->activation != EG_ACT_NONE;
}

/* d_a = the sum that was received + residual */
static void finish_d_a(const eg_problem *p, eg_op_list *list, const eg_view *sums) {
    const eg_view residual = eg_operand_view(p, EG_OP_D_A_RESIDUAL);
    eg_op op = {.kind = EG_COPY,
                .items = 1,
                .rows = sums->rows,
                .cols = sums->cols,
                .summed = 1,
                .left = *sums,
                .out = eg_operand_view(p, EG_OP_D_A)};
    if (eg_is_present(&residual)) {
        op.kind = EG_MAP;
        op.term[op.terms++] = (eg_term){.kind = EG_TERM_ADD, .view = residual};
    }
    eg_add_op(list, &op);
}

/* A is gathered under the products of d_a, if nothing needs it before; d_a is summed under those of d_b. */
static void lower_columns_backward(const eg_problem *p, eg_op_list *list) {
    eg_problem q = *p;
    const bool d_a = eg_wants(p, EG_OP_D_A), early = recomputes(p);
    const bool gathers =
        !p->exchange.gathered && (early || eg_wants(p, EG_OP_D_B) || eg_wants(p, EG_OP_D_B_UP));
    const eg_view result = eg_operand_view(p, EG_OP_D_A), none = absent();
    eg_view sent = none, received = none;
    if (!eg_wants_gate(p) && !eg_wants_up(p)) return;
    const eg_bias_gradient here = eg_bias_gradient_of(p, list, EG_OP_D_BIAS, "d_bias sums", p->n),
                           up = eg_bias_gradient_of(p, list, EG_OP_D_BIAS_UP, "d_bias_up sums", p->n);
    if (gathers) {
        const eg_view local = dense_rows(list, eg_operand_view(p, EG_OP_A)),
                      whole = exchanged_rows(list, EG_GATHERED, p->dtype, p->m, p->k);
        gather(p, list, &local, &whole, 0);
        move(&q, EG_OP_A, &whole);
    }
    if (d_a) {
        sent = exchanged_rows(list, EG_EXCHANGED, p->exchange.sums, p->m, p->k);
        received = receiving(p, list, &result, !eg_wants(p, EG_OP_D_A_RESIDUAL));
        move(&q, EG_OP_D_A, &sent);
        forget(&q, EG_OP_D_A_RESIDUAL);
    }
    if (gathers && early) eg_lower_finish(list);
    const eg_gradients x = eg_lower_gradients(&q, list, &here.sums, &up.sums);
    eg_lower_any_d_a(&q, list, &x, &none, &none);
    if (gathers && !early) eg_lower_finish(list);
    if (d_a) scatter(p, list, &sent, &received, 0);
    eg_lower_d_b(&q, list, x.gate, EG_OP_D_B, eg_operand_view(p, EG_OP_D_B));
    eg_lower_d_b(&q, list, x.up, EG_OP_D_B_UP, eg_operand_view(p, EG_OP_D_B_UP));
    eg_add_op(list, &here.reduce);
    eg_add_op(list, &up.reduce);
    eg_lower_finish(list);
    if (d_a && received.id != EG_OP_D_A) finish_d_a(p, list, &received);
}

/* grad_pre of this rank's rows, dense, and its column sums. */
static eg_view lower_local_gradient(const eg_problem *p, eg_op_list *list, const eg_view *sums,
                                    bool products) {
    eg_problem q = *p;
    const eg_view none = absent();
    const bool acts = p->activation != EG_ACT_NONE;
    q.m = rows_of_rank(p);
    forget(&q, EG_OP_D_A), forget(&q, EG_OP_D_B);
    if (acts && products && !eg_wants(p, EG_OP_GRAD_PRE)) {
        const eg_view made = exchanged_rows(list, EG_EXCHANGED, p->dtype, q.m, p->n);
        move(&q, EG_OP_GRAD_PRE, &made);
    }
    eg_lower_gradients(&q, list, sums, &none);
    if (!products) return none;
    return dense_rows(list, eg_operand_view(&q, acts ? EG_OP_GRAD_PRE : EG_OP_GRAD));
}

/* d_a of a group of grad_pre is made under the gathering of the next. */
static void lower_gathered_d_a(const eg_problem *p, eg_op_list *list, const eg_view *local,
                               const eg_view *whole, const eg_view *sums_below) {
    const eg_gradients x = {.gate = *whole, .up = absent()};
    const eg_view none = absent();
    const bool groups = eg_wants(p, EG_OP_D_A) && !eg_wants(p, EG_OP_BELOW);
    eg_op product;
    list->row_groups = groups ? groups_of_product(p, p->n, p->dtype) : 1;
    gather(p, list, local, whole, 0);
    if (!groups) {
        eg_lower_finish(list);
        eg_lower_any_d_a(p, list, &x, sums_below, &none);
        return;
    }
    const int ops = list->ops;
    eg_lower_any_d_a(p, list, &x, &none, &none);
    const bool multiplies = take_back(list, ops, &product);
    for (int i = 0; i < list->row_groups; i++) {
        eg_lower_finish(list);
        if (i + 1 < list->row_groups) gather(p, list, local, whole, i + 1);
        if (!multiplies) continue;
        const eg_op op = product_of_group(p, list, &product, i);
        eg_add_op(list, &op);
    }
}

static void lower_rows_backward(const eg_problem *p, eg_op_list *list) {
    eg_problem local = *p;
    const bool products = eg_wants(p, EG_OP_D_A) || eg_wants(p, EG_OP_D_B);
    if (!eg_wants_gate(p)) return;
    local.m = rows_of_rank(p);
    const eg_bias_gradient here = eg_bias_gradient_of(&local, list, EG_OP_D_BIAS, "d_bias sums", p->n),
                           below =
                               eg_bias_gradient_of(p, list, EG_OP_D_BIAS_BELOW, "chain.d_bias sums", p->k);
    const eg_view rows = lower_local_gradient(p, list, &here.sums, products);
    eg_add_op(list, &here.reduce);
    eg_lower_sum(p, list, &here.gradient);
    if (products) {
        const eg_view whole = exchanged_rows(list, EG_GATHERED, p->dtype, p->m, p->n);
        lower_gathered_d_a(p, list, &rows, &whole, &below.sums);
        eg_lower_d_b(p, list, whole, EG_OP_D_B, eg_operand_view(p, EG_OP_D_B));
        eg_add_op(list, &below.reduce);
    }
    eg_lower_finish(list);
    eg_lower_delivery(p, list, &here.gradient);
}

void eg_lower_tensor_parallel(const eg_problem *p, eg_op_list *list) {
    const bool by_rows = p->exchange.parallel == EG_BY_ROWS;
    if (p->backward) {
        (by_rows ? lower_rows_backward : lower_columns_backward)(p, list);
    } else {
        (by_rows ? lower_rows_forward : lower_columns_forward)(p, list);
    }
}
