/* SPDX-License-Identifier: Apache-2.0 */
#include "lower_exchange.h"

static bool is_dense(const eg_gradient *x) {
    const eg_view *view = &x->result;
    const int64_t stride = x->by_rows ? view->row_stride : view->col_stride,
                  length = x->by_rows ? view->cols : view->rows, size = view->rows * view->cols;
    return stride == length && (x->items == 1 || (view->batch_stride == size && view->outer.inner == 0));
}

bool eg_is_summed(const eg_problem *p, eg_operand_id id) {
    if (p->comm == NULL || p->exchange.parallel == EG_BY_COLUMNS) return false;
    return p->exchange.parallel == EG_DATA_PARALLEL || id == EG_OP_D_BIAS;
}

int64_t eg_exchanged_room(eg_op_list *list, eg_dtype dtype, int64_t rows, int64_t cols) {
    const int64_t size = (int64_t)eg_size_of(dtype), begin = list->exchanged;
    int64_t bytes;
    const bool too_large =
        __builtin_mul_overflow(rows, cols, &bytes) || __builtin_mul_overflow(bytes, size, &bytes) ||
        __builtin_add_overflow(bytes, EG_EXCHANGED_ALIGN - 1, &bytes) ||
        __builtin_add_overflow(begin, bytes / EG_EXCHANGED_ALIGN * EG_EXCHANGED_ALIGN, &list->exchanged);
    if (too_large) list->exchanged = INT64_MAX;
    return size > 0 ? begin / size : 0;
}

/* Of `shape`, with dense lines, in the workspace; `lines` of an item take room. */
static eg_view exchanged(eg_op_list *list, const eg_gradient *x, eg_view shape, int64_t lines) {
    const int64_t length = x->by_rows ? shape.cols : shape.rows;
    int64_t all;
    if (__builtin_mul_overflow(lines, x->items, &all)) all = INT64_MAX;
    return (eg_view){.space = EG_OPERAND,
                     .id = EG_EXCHANGED,
                     .dtype = list->exchange.sums,
                     .rows = shape.rows,
                     .cols = shape.cols,
                     .row_stride = x->by_rows ? length : 1,
                     .col_stride = x->by_rows ? 1 : length,
                     .batch_stride = x->items > 1 ? shape.rows * shape.cols : 0,
                     .offset = eg_exchanged_room(list, list->exchange.sums, all, length),
                     .align = EG_EXCHANGED_ALIGN};
}

eg_gradient eg_gradient_of(const eg_problem *p, eg_op_list *list, eg_operand_id id, int64_t rows,
                           int64_t cols) {
    const eg_exchange *by = &p->exchange;
    eg_gradient x = {
        .result = eg_operand_view(p, id), .items = 1, .by_rows = id == EG_OP_D_B && !by->d_b_by_columns};
    x.sent = x.received = x.result;
    if (!eg_is_summed(p, id) || !eg_is_present(&x.result)) return x;
    if (eg_is_batched(&x.result)) x.items = p->batch;
    const bool ready = is_dense(&x) && x.result.dtype == by->sums && !eg_adds_to(p, id);
    const int64_t lines = x.by_rows ? rows : cols, each = eg_shard_lines(by, lines),
                  mine = x.by_rows ? x.result.rows : x.result.cols;
    const eg_view whole = {.rows = rows, .cols = cols};
    x.copies = !ready || (by->sharded && mine < each);
    if (by->sharded || x.copies) x.sent = exchanged(list, &x, whole, by->sharded ? each * by->ranks : lines);
    if (!by->sharded) x.received = x.sent;
    if (by->sharded && x.copies) x.received = exchanged(list, &x, x.result, each);
    return x;
}

int eg_most_row_groups(const eg_comm_cost *cost, double bytes, int64_t rows, int64_t least_rows) {
    const double little = 0.05;
    int groups = 1;
    while (groups < EG_MAX_ROW_GROUPS && rows >= (groups + 1) * least_rows &&
           (cost->rate <= 0 || (groups + 1) * cost->latency < little * (bytes / cost->rate)))
        groups++;
    return groups;
}

/* A result of many bytes goes in groups of rows, if they can be told apart in memory, and costs are known. */
static int groups_of_sum(const eg_problem *p, const eg_gradient *x) {
    enum { LEAST_ROWS = 128 };
    const eg_comm_cost *cost = &p->exchange.begun;
    const double bytes = (double)x->sent.rows * (double)x->sent.cols * (double)eg_size_of(p->exchange.sums);
    if (!x->by_rows || x->items > 1 || p->exchange.sharded || cost->rate <= 0) return 1;
    return eg_most_row_groups(cost, bytes, x->sent.rows, LEAST_ROWS);
}

void eg_lower_sum(const eg_problem *p, eg_op_list *list, const eg_gradient *x) {
    if (!eg_is_present(&x->result) || !eg_is_summed(p, (eg_operand_id)x->result.id)) return;
    eg_add_op(list, &(eg_op){.kind = EG_COLLECTIVE,
                             .collective = p->exchange.sharded ? EG_REDUCE_SCATTER : EG_ALL_REDUCE,
                             .summing = x->result.id,
                             .groups = groups_of_sum(p, x),
                             .items = x->items,
                             .rows = x->sent.rows,
                             .cols = x->sent.cols,
                             .summed = 1,
                             .left = x->sent,
                             .out = x->received});
}

void eg_lower_finish(eg_op_list *list) {
    eg_add_op(list, &(eg_op){.kind = EG_COLLECTIVE,
                             .collective = EG_FINISH,
                             .groups = 1,
                             .items = 1,
                             .rows = 1,
                             .cols = 1,
                             .summed = 1});
}

/* Line by line. */
void eg_lower_delivery(const eg_problem *p, eg_op_list *list, const eg_gradient *x) {
    if (!x->copies) return;
    const bool turns = !x->by_rows && x->result.rows > 1;
    const eg_view from = turns ? eg_transposed(x->received) : x->received,
                  to = turns ? eg_transposed(x->result) : x->result;
    eg_add_op(list, &(eg_op){.kind = EG_COPY,
                             .items = x->items,
                             .rows = to.rows,
                             .cols = to.cols,
                             .summed = 1,
                             .left = from,
                             .out = to,
                             .accumulate = eg_adds_to(p, (eg_operand_id)x->result.id)});
}
