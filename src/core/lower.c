/* SPDX-License-Identifier: Apache-2.0 */
/* From a layer's call to operations: the only place that knows what a layer is. */
#include "op.h"

#include "backend.h"
#include "sizes.h"

/* ---- Folding the batch -------------------------------------------------------------------------- */

/* Operands that carry M rows a batch: with the batch stride of dense rows they are one tall matrix. */
static bool folds(const eg_problem *problem, const eg_operand *x) {
    int64_t dense; /* an empty operand's strides may be anything */
    return x->data == NULL ||
           (x->col_stride == 1 && !__builtin_mul_overflow(problem->m, x->row_stride, &dense) &&
            x->batch_stride == dense);
}

static bool shared(const eg_operand *x) { return x->data == NULL || x->batch_stride == 0; }

/* A batch that shares B (and sums d_b) is one layer of batch*M rows. */
static bool batch_is_rows(const eg_problem *problem) {
    if (problem->batch <= 1 || (problem->packed_b != NULL && problem->packed_b->batched)) return false;
    for (int id = 0; id < EG_OPERANDS; id++) {
        if (eg_operand_has_rows((eg_operand_id)id) && !folds(problem, &problem->operands[id])) return false;
    }
    return shared(&problem->operands[EG_OP_B]) && shared(&problem->operands[EG_OP_D_B]);
}

void eg_fold(eg_problem *problem) {
    int64_t rows;
    if (!batch_is_rows(problem) || __builtin_mul_overflow(problem->m, problem->batch, &rows)) return;
    for (int id = 0; id < EG_OPERANDS; id++) {
        eg_operand *x = &problem->operands[id];
        if (x->batch_stride != 0) x->rows = rows;
        x->batch_stride = 0;
    }
    problem->m = rows;
    problem->batch = 1;
}

/* ---- Views -------------------------------------------------------------------------------------- */

/* The largest power of two that divides where an operand begins. */
static int align_of(const eg_problem *p, const eg_operand *x) {
    const uintptr_t at = eg_begin(p, x->data, x->offset) | EG_MOST_ALIGN;
    return (int)(at & -at);
}

static eg_view operand(const eg_problem *p, eg_operand_id id) {
    const eg_operand *x = &p->operands[id];
    if (x->data == NULL) return (eg_view){.space = EG_ABSENT};
    return (eg_view){.space = EG_OPERAND,
                     .id = (int)id,
                     .dtype = x->dtype,
                     .rows = x->rows,
                     .cols = x->cols,
                     .row_stride = x->row_stride,
                     .col_stride = x->col_stride,
                     .batch_stride = x->batch_stride,
                     .align = align_of(p, x)};
}

/* B, or the pack that stands for it. */
static eg_view b_of(const eg_problem *p) {
    if (p->packed_b == NULL) return operand(p, EG_OP_B);
    return (eg_view){.space = EG_PACKED_B,
                     .id = EG_OP_B,
                     .dtype = p->dtype,
                     .rows = p->k,
                     .cols = p->n,
                     .batch_stride = p->packed_b->batched ? p->k * p->n : 0,
                     .align = EG_MOST_ALIGN};
}

static eg_view temporary(eg_op_list *list, const char *name, int64_t items, int64_t rows, int64_t cols) {
    const int id = list->temporaries++;
    list->temporary[id] = (eg_temporary){.name = name, .items = items, .rows = rows, .cols = cols};
    return (eg_view){.space = EG_TEMPORARY,
                     .id = id,
                     .dtype = list->compute,
                     .rows = rows,
                     .cols = cols,
                     .batch_stride = items > 1,
                     .align = EG_MOST_ALIGN};
}

/* ---- Operations --------------------------------------------------------------------------------- */

static void add_term(eg_op *op, eg_term term) { op->term[op->terms++] = term; }

static void add_view_term(eg_op *op, eg_term_kind kind, eg_view view) {
    if (eg_is_present(&view)) add_term(op, (eg_term){.kind = kind, .view = view});
}

/* An operation without a result element has nothing to do. One that sums nothing reads nothing. */
static void add_op(eg_op_list *list, const eg_op *op) {
    if (op->items <= 0 || op->rows <= 0 || op->cols <= 0) return;
    eg_op *added = &list->op[list->ops++];
    *added = *op;
    if (op->kind != EG_GEMM || (op->depth > 0 && op->summed > 0)) return;
    added->depth = 0, added->summed = 1;
    added->left = added->right = (eg_view){.space = EG_ABSENT};
}

/* Rows of the whole batch; more than can be counted are as good as the most that can. */
static int64_t rows_of_batch(const eg_problem *p) {
    int64_t rows;
    return __builtin_mul_overflow(p->m, p->batch, &rows) ? INT64_MAX : rows;
}

/* A result that the batch shares is one sum over it. */
static void sum_over_batch(eg_op *op, const eg_problem *p, eg_operand_id out) {
    const bool shared_result = p->operands[out].batch_stride == 0 && p->batch > 1;
    op->items = shared_result ? 1 : p->batch;
    op->summed = shared_result ? p->batch : 1;
}

static eg_op product_of_a_and_b(const eg_problem *p) {
    eg_op op = {.kind = EG_GEMM, .items = p->batch, .rows = p->m, .cols = p->n, .depth = p->k, .summed = 1};
    op.left = operand(p, EG_OP_A);
    op.right = b_of(p);
    add_view_term(&op, EG_TERM_BIAS, operand(p, EG_OP_BIAS));
    return op;
}

/* y = act(A·B + bias) + residual, and pre on the way */
static void lower_forward(const eg_problem *p, eg_op_list *list) {
    eg_op op = product_of_a_and_b(p);
    add_view_term(&op, EG_TERM_STORE, operand(p, EG_OP_PRE));
    if (p->activation != EG_ACT_NONE)
        add_term(&op, (eg_term){.kind = EG_TERM_ACT, .activation = p->activation, .propagate = p->propagate});
    add_view_term(&op, EG_TERM_ADD, operand(p, EG_OP_RESIDUAL));
    op.out = operand(p, EG_OP_Y);
    add_op(list, &op);
}

/* ---- Over processes ----------------------------------------------------------------------------- */

/* A gradient, which may be summed over processes: products then write to `sent`. That is the caller's memory
 * where it is dense and holds nothing to add to. Else it is in the workspace, as is a shard to be converted
 * or added. */
typedef struct gradient {
    eg_view result; /* the caller's; absent where it is not wanted */
    eg_view sent, received;
    int64_t items;
    bool by_rows; /* its lines are rows */
    bool copies;  /* from `received` to the result */
} gradient;

static bool is_dense(const gradient *x) {
    const eg_view *view = &x->result;
    const int64_t stride = x->by_rows ? view->row_stride : view->col_stride,
                  length = x->by_rows ? view->cols : view->rows, size = view->rows * view->cols;
    return stride == length && (x->items == 1 || view->batch_stride == size);
}

/* Of `shape`, with dense lines, in the workspace; `lines` of an item take room. */
static eg_view exchanged(eg_op_list *list, const gradient *x, eg_view shape, int64_t lines) {
    const int64_t size = (int64_t)eg_size_of(list->exchange.sums);
    const int64_t length = x->by_rows ? shape.cols : shape.rows;
    int64_t bytes = EG_EXCHANGED_ALIGN - 1, total;
    const eg_view view = {.space = EG_OPERAND,
                          .id = EG_EXCHANGED,
                          .dtype = list->exchange.sums,
                          .rows = shape.rows,
                          .cols = shape.cols,
                          .row_stride = x->by_rows ? length : 1,
                          .col_stride = x->by_rows ? 1 : length,
                          .batch_stride = x->items > 1 ? shape.rows * shape.cols : 0,
                          .offset = list->exchanged / size,
                          .align = EG_EXCHANGED_ALIGN};
    const bool too_large =
        __builtin_mul_overflow(lines, length, &total) ||
        __builtin_mul_overflow(total, x->items * size, &total) ||
        __builtin_add_overflow(bytes, total, &bytes) ||
        __builtin_add_overflow(list->exchanged, bytes / EG_EXCHANGED_ALIGN * EG_EXCHANGED_ALIGN,
                               &list->exchanged);
    if (too_large) list->exchanged = INT64_MAX;
    return view;
}

/* [rows, cols] over all ranks. */
static gradient gradient_of(const eg_problem *p, eg_op_list *list, eg_operand_id id, int64_t rows,
                            int64_t cols) {
    const eg_exchange *by = &p->exchange;
    gradient x = {.result = operand(p, id), .items = 1, .by_rows = id == EG_OP_D_B && !by->d_b_by_columns};
    x.sent = x.received = x.result;
    if (p->comm == NULL || !eg_is_present(&x.result)) return x;
    if (x.result.batch_stride != 0) x.items = p->batch;
    const bool ready = is_dense(&x) && x.result.dtype == by->sums && !p->accumulate;
    const int64_t lines = x.by_rows ? rows : cols, each = eg_shard_lines(by, lines),
                  mine = x.by_rows ? x.result.rows : x.result.cols;
    const eg_view whole = {.rows = rows, .cols = cols};
    x.copies = !ready || (by->sharded && mine < each);
    if (by->sharded || x.copies) x.sent = exchanged(list, &x, whole, by->sharded ? each * by->ranks : lines);
    if (!by->sharded) x.received = x.sent;
    if (by->sharded && x.copies) x.received = exchanged(list, &x, x.result, each);
    return x;
}

/* A result of many bytes goes in groups of rows, if they can be told apart in memory, and the latency of more
 * messages is little. Ranks have to agree on them, so this depends on nothing that is a rank's own. */
static int groups_of(const eg_problem *p, const gradient *x) {
    enum { MOST_GROUPS = 4, LEAST_ROWS = 128 };
    const double little = 0.05;
    const eg_comm_cost *cost = &p->exchange.begun;
    const double time = cost->rate > 0 ? (double)x->sent.rows * (double)x->sent.cols *
                                             (double)eg_size_of(p->exchange.sums) / cost->rate
                                       : 0;
    int groups = 1;
    if (!x->by_rows || x->items > 1 || p->exchange.sharded) return 1;
    while (groups < MOST_GROUPS && x->sent.rows >= (groups + 1) * LEAST_ROWS &&
           (groups + 1) * cost->latency < little * time)
        groups++;
    return groups;
}

static void lower_sum(const eg_problem *p, eg_op_list *list, const gradient *x) {
    if (p->comm == NULL || !eg_is_present(&x->result)) return;
    add_op(list, &(eg_op){.kind = EG_COLLECTIVE,
                          .collective = p->exchange.sharded ? EG_REDUCE_SCATTER : EG_ALL_REDUCE,
                          .summing = x->result.id,
                          .groups = groups_of(p, x),
                          .items = x->items,
                          .rows = x->sent.rows,
                          .cols = x->sent.cols,
                          .summed = 1,
                          .left = x->sent,
                          .out = x->received});
}

/* Line by line. */
static void lower_delivery(const eg_problem *p, eg_op_list *list, const gradient *x) {
    if (!x->copies) return;
    const bool turns = !x->by_rows && x->result.rows > 1;
    const eg_view from = turns ? eg_transposed(x->received) : x->received,
                  to = turns ? eg_transposed(x->result) : x->result;
    add_op(list, &(eg_op){.kind = EG_COPY,
                          .items = x->items,
                          .rows = to.rows,
                          .cols = to.cols,
                          .summed = 1,
                          .left = from,
                          .out = to,
                          .accumulate = p->accumulate});
}

/* The column sums of a gradient: on the way of the operation that makes it, then from chunk to chunk. */
typedef struct bias_gradient {
    eg_view sums; /* absent where none is wanted */
    eg_op reduce;
    gradient gradient;
} bias_gradient;

static bias_gradient bias_gradient_of(const eg_problem *p, eg_op_list *list, eg_operand_id out,
                                      const char *name, int64_t cols) {
    bias_gradient x = {.sums = {.space = EG_ABSENT}};
    if (!eg_wants(p, out)) return x;
    x.gradient = gradient_of(p, list, out, 1, cols);
    x.sums = temporary(list, name, p->batch, p->m, cols);
    x.reduce = (eg_op){.kind = EG_REDUCE,
                       .items = 1,
                       .rows = 1,
                       .cols = cols,
                       .depth = rows_of_batch(p),
                       .left = x.sums,
                       .out = x.gradient.sent,
                       .accumulate = p->accumulate && p->comm == NULL};
    return x;
}

/* grad_pre = grad * act'(pre), for its products, for the caller, or for its column sums alone. Without an
 * activation it is grad, and there may be nothing to do. Returns what the products read. */
static eg_view lower_grad_pre(const eg_problem *p, eg_op_list *list, const eg_view *sums, bool products) {
    const eg_view grad = operand(p, EG_OP_GRAD), wanted = operand(p, EG_OP_GRAD_PRE);
    const bool is_grad = p->activation == EG_ACT_NONE;
    const bool recompute = p->source == EG_SOURCE_RECOMPUTE && !is_grad;
    if (is_grad && !eg_is_present(&wanted) && !eg_is_present(sums)) return grad;
    eg_op op = {.kind = EG_MAP, .items = p->batch, .rows = p->m, .cols = p->n, .summed = 1};
    op.left = is_grad ? grad : operand(p, EG_OP_SAVED);
    if (recompute) op = product_of_a_and_b(p);
    if (!is_grad) {
        add_term(&op, (eg_term){.kind = EG_TERM_GRAD_AT_VALUE,
                                .view = grad,
                                .activation = p->activation,
                                .of_y = p->source == EG_SOURCE_Y,
                                .propagate = p->propagate});
        if (products) op.out = temporary(list, "grad_pre", p->batch, p->m, p->n);
        if (products) list->temporary[op.out.id].same = wanted;
    }
    add_view_term(&op, EG_TERM_STORE, wanted);
    add_view_term(&op, EG_TERM_COLUMN_SUMS, *sums);
    add_op(list, &op);
    return is_grad ? grad : op.out;
}

/* d_a = grad_pre · Bᵀ, and with a chain that times act' of the layer below */
static void lower_d_a(const eg_problem *p, eg_op_list *list, eg_view grad_pre, const eg_view *sums) {
    eg_op op = {.kind = EG_GEMM, .rows = p->m, .cols = p->k, .depth = p->n};
    sum_over_batch(&op, p, EG_OP_D_A);
    op.left = grad_pre;
    op.right = eg_transposed(b_of(p));
    op.out = operand(p, EG_OP_D_A);
    if (eg_wants(p, EG_OP_BELOW)) {
        add_term(&op, (eg_term){.kind = EG_TERM_GRAD_AT_SAVED,
                                .view = operand(p, EG_OP_BELOW),
                                .activation = p->below_activation,
                                .of_y = p->below_source == EG_SOURCE_Y,
                                .propagate = p->propagate});
        add_view_term(&op, EG_TERM_COLUMN_SUMS, *sums);
    }
    add_op(list, &op);
}

/* d_b = Aᵀ · grad_pre */
static void lower_d_b(const eg_problem *p, eg_op_list *list, eg_view grad_pre, eg_view out) {
    eg_op op = {.kind = EG_GEMM,
                .axis = EG_AXIS_DEPTH,
                .rows = p->k,
                .cols = p->n,
                .depth = p->m,
                .accumulate = p->accumulate && p->comm == NULL};
    sum_over_batch(&op, p, EG_OP_D_B);
    op.left = eg_transposed(operand(p, EG_OP_A));
    op.right = grad_pre;
    op.out = out;
    add_op(list, &op);
}

/* What is summed over processes comes first, so that the sums are under way while d_a is computed. */
static void lower_products_and_sums(const eg_problem *p, eg_op_list *list, eg_view grad_pre,
                                    const bias_gradient *here, const bias_gradient *below) {
    const gradient d_b = gradient_of(p, list, EG_OP_D_B, p->k, p->n);
    add_op(list, &here->reduce);
    lower_sum(p, list, &here->gradient);
    if (eg_is_present(&d_b.result)) lower_d_b(p, list, grad_pre, d_b.sent);
    lower_sum(p, list, &d_b);
    if (eg_wants(p, EG_OP_D_A)) lower_d_a(p, list, grad_pre, &below->sums);
    add_op(list, &below->reduce);
    lower_sum(p, list, &below->gradient);
    add_op(list, &(eg_op){.kind = EG_COLLECTIVE,
                          .collective = EG_FINISH,
                          .groups = 1,
                          .items = 1,
                          .rows = 1,
                          .cols = 1,
                          .summed = 1});
    lower_delivery(p, list, &here->gradient);
    lower_delivery(p, list, &d_b);
    lower_delivery(p, list, &below->gradient);
}

static void lower_backward(const eg_problem *p, eg_op_list *list) {
    const bool d_a = eg_wants(p, EG_OP_D_A), d_b = eg_wants(p, EG_OP_D_B);
    const bias_gradient here = bias_gradient_of(p, list, EG_OP_D_BIAS, "d_bias sums", p->n),
                        below = bias_gradient_of(p, list, EG_OP_D_BIAS_BELOW, "chain.d_bias sums", p->k);
    const bool needed = d_a || d_b || eg_wants(p, EG_OP_GRAD_PRE) || eg_is_present(&here.sums);
    if (!needed && p->comm == NULL) return;
    eg_view grad_pre = {.space = EG_ABSENT};
    if (needed) grad_pre = lower_grad_pre(p, list, &here.sums, d_a || d_b);
    if (p->comm != NULL) {
        lower_products_and_sums(p, list, grad_pre, &here, &below);
        return;
    }
    if (d_a) lower_d_a(p, list, grad_pre, &below.sums);
    if (d_b) lower_d_b(p, list, grad_pre, operand(p, EG_OP_D_B));
    add_op(list, &here.reduce);
    add_op(list, &below.reduce);
}

/* Of the pairs that may share memory, which then begin at one place. */
static bool begins_where(const eg_problem *p, eg_operand_id input, eg_operand_id output) {
    const eg_operand *in = &p->operands[input], *out = &p->operands[output];
    if (in->data == NULL || out->data == NULL || p->addressing == EG_PRESENCE) return false;
    if (p->addressing == EG_HANDLES && in->data != out->data) return false;
    return eg_begin(p, in->data, in->offset) == eg_begin(p, out->data, out->offset);
}

bool eg_in_place(const eg_problem *p) {
    return begins_where(p, EG_OP_GRAD, EG_OP_GRAD_PRE) || begins_where(p, EG_OP_RESIDUAL, EG_OP_Y);
}

/* The lists are not cleared as a whole: that would take as long as the lowering. */
static void begin(const eg_problem *p, eg_op_list *list) {
    list->backward = p->backward;
    list->m = p->m, list->k = p->k, list->n = p->n, list->batch = p->batch;
    list->dtype = p->dtype, list->compute = p->compute, list->math = p->math;
    list->activation = p->activation, list->source = p->source;
    list->in_place = eg_in_place(p);
    list->packed_b = p->packed_b;
    list->ops = list->temporaries = 0;
    list->exchange = p->exchange;
    list->exchanged = p->comm != NULL ? eg_agreement_bytes(p->exchange.ranks) : 0;
}

void eg_lower(const eg_problem *problem, eg_op_list *list) {
    eg_problem p = *problem;
    eg_fold(&p);
    begin(&p, list);
    if (p.backward) {
        lower_backward(&p, list);
    } else {
        lower_forward(&p, list);
    }
}

void eg_lower_pack(const eg_problem *p, bool batched, eg_op_list *list) {
    begin(p, list);
    eg_op op = {.kind = EG_COPY, .items = batched ? p->batch : 1, .rows = p->k, .cols = p->n, .summed = 1};
    op.left = operand(p, EG_OP_B);
    op.out = (eg_view){.space = EG_PACKED_B,
                       .id = EG_OP_B,
                       .dtype = p->dtype,
                       .rows = p->k,
                       .cols = p->n,
                       .batch_stride = batched ? p->k * p->n : 0,
                       .align = EG_MOST_ALIGN};
    add_op(list, &op);
}
