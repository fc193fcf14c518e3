/* SPDX-License-Identifier: Apache-2.0 */
#include "low_memory_chunk.h"

#include <string.h>

eg_chunk eg_chunk_at(const eg_low_memory *x, int64_t item, int64_t row) {
    const int64_t inner = x->problem.inner, left = x->items < inner ? inner - item % inner : x->problem.batch;
    return (eg_chunk){item, eg_least(x->items, left), row, eg_least(x->rows, x->problem.m - row)};
}

bool eg_is_per_item(const eg_low_memory *x, const eg_op *op) {
    return op->kind == EG_GEMM && x->problem.batch > 1 && op->summed == 1 && eg_is_batched(&op->out);
}

/* ---- Lines of a result -------------------------------------------------------------------------- */

static bool lines_are_rows(const eg_view *x) { return x->col_stride == 1; }
int64_t eg_lines_of(const eg_view *x) { return lines_are_rows(x) ? x->rows : x->cols; }
int64_t eg_line_length(const eg_view *x) { return lines_are_rows(x) ? x->cols : x->rows; }

/* The power of two that divides both where x begins and what is skipped of it. */
static eg_view some_rows(eg_view x, int64_t first, int64_t count) {
    const int64_t skipped = first * x.row_stride * (int64_t)eg_size_of(x.dtype) | x.align;
    x.offset += first * x.row_stride;
    x.rows = count;
    x.align = (int)(skipped & -skipped);
    return x;
}

static eg_view some_cols(eg_view x, int64_t first, int64_t count) {
    return eg_transposed(some_rows(eg_transposed(x), first, count));
}

static eg_view some_lines(eg_view x, int64_t first, int64_t count) {
    return lines_are_rows(&x) ? some_rows(x, first, count) : some_cols(x, first, count);
}

/* A multiple of what keeps both parts of an operand aligned to 16 bytes, if it is itself. As many as there
 * have to be where the first f32 begins after two bytes: other numbers of lines may be summed in another
 * order, and bits must not depend on an address. */
int64_t eg_workspace_lines(const eg_view *result) {
    enum { ALIGN = 8 };
    const int64_t lines = eg_lines_of(result), fitting = (lines - 1) / 2;
    return eg_ceil_div(lines - fitting, ALIGN) * ALIGN;
}

/* A result of 16 bits without gaps, one for the whole batch, and large enough. */
static bool can_hold_sums(const eg_op_list *list, const eg_op *op) {
    const eg_view *x = &op->out;
    if (op->kind != EG_GEMM || op->axis != EG_AXIS_DEPTH || op->items > 1) return false;
    if (list->compute != EG_F32 || eg_size_of(x->dtype) != 2 || eg_line_length(x) == 0) return false;
    const bool dense = (lines_are_rows(x) ? x->row_stride : x->col_stride) == eg_line_length(x);
    return dense && eg_workspace_lines(x) < eg_lines_of(x);
}

/* The gradient that it reads: one that the caller has in 16 bits must be what the products may read. */
int eg_low_memory_may_split(const eg_caps *caps, const eg_op_list *list) {
    if (list->gated) return EG_NO_OP; /* two results share what is read: neither is worth a list of its own */
    for (int i = 0; i < list->ops; i++) {
        const eg_view *right = &list->op[i].right;
        if (!can_hold_sums(list, &list->op[i])) continue;
        const bool rounded = right->space == EG_TEMPORARY && eg_is_present(&list->temporary[right->id].same);
        if (caps->rounds_grad_pre || !rounded) return i;
    }
    return EG_NO_OP;
}

/* Lowers the alignment to what still holds where a later chunk begins, `elements` further on. */
static void begin_at(eg_view *x, int64_t elements) {
    const uint64_t at = (uint64_t)elements * eg_size_of(x->dtype) | (uint64_t)x->align;
    x->align = (int)(at & -at);
}

/* A chunk of some items of the batch may begin with any of them. One that is not the whole batch is in one
 * outer item, which may begin where no other one does. Buffers have a chunk's items alone. */
static void shorten_batch(eg_view *x, int64_t items, int64_t batch) {
    const bool of_caller = x->space == EG_OPERAND && x->id < EG_OPERANDS;
    if (of_caller && items < batch) begin_at(x, x->batch_stride);
    if (items > x->outer.inner) return;
    begin_at(x, x->outer.stride);
    x->outer = (eg_outer){0, 0};
}

/* ---- Views of what outlives a chunk ------------------------------------------------------------- */

/* Of regions: workspaces begin on 64 bytes. */
enum { REGION_ALIGN = 64 };

/* The same lines elsewhere, dense and in another type. */
static eg_view dense_at(eg_view x, int id, eg_dtype dtype) {
    const bool row_major = lines_are_rows(&x);
    return (eg_view){.space = EG_OPERAND,
                     .id = id,
                     .dtype = dtype,
                     .rows = x.rows,
                     .cols = x.cols,
                     .row_stride = row_major ? x.cols : 1,
                     .col_stride = row_major ? 1 : x.rows,
                     .align = id == EG_SUMS_IN_RESULT ? (int)eg_size_of(dtype) : REGION_ALIGN};
}

eg_view eg_workspace_part(const eg_low_memory *x, int op) {
    const eg_view out = x->whole.op[op].out;
    return op == x->in_result ? some_lines(out, 0, x->workspace_lines) : out;
}

static eg_view workspace_sums(const eg_low_memory *x, int op) {
    eg_view sums = dense_at(eg_workspace_part(x, op), EG_SUMS + op, x->whole.compute);
    if (eg_is_per_item(x, &x->whole.op[op])) sums.batch_stride = sums.rows * sums.cols;
    return sums;
}

static eg_view result_part(const eg_low_memory *x) {
    return some_lines(*eg_split_result(x), x->workspace_lines, eg_result_lines(x));
}

static eg_view result_sums(const eg_low_memory *x) {
    return dense_at(result_part(x), EG_SUMS_IN_RESULT, x->whole.compute);
}

/* Columns begin where vectors of it would. */
int64_t eg_gradient_stride(const eg_low_memory *x) { return eg_ceil_div(x->problem.n, 8) * 8; }

/* The gradient that both parts read: the caller's, or one that is stored for them. */
static eg_view gradient_of(const eg_low_memory *x, int64_t rows) {
    eg_view right = x->whole.op[x->in_result].right;
    if (right.space == EG_TEMPORARY) right = x->whole.temporary[right.id].same;
    if (!eg_is_present(&right)) {
        right = (eg_view){.space = EG_OPERAND,
                          .id = EG_CHUNK_GRADIENT,
                          .dtype = x->gradient_dtype,
                          .cols = x->problem.n,
                          .row_stride = eg_gradient_stride(x),
                          .col_stride = 1,
                          .batch_stride = x->rows * eg_gradient_stride(x),
                          .align = REGION_ALIGN};
    }
    right.rows = rows;
    shorten_batch(&right, x->items, x->problem.batch);
    return right;
}

/* ---- The transform ------------------------------------------------------------------------------ */

static int64_t fewer(int64_t count, const eg_low_memory *x, const eg_chunk *c) {
    return count == x->problem.batch ? c->items : count;
}

/* A buffer of a chunk is as dense as that of the call. */
static void shorten_rows(eg_view *x, int64_t rows) {
    x->rows = rows;
    if (x->space == EG_OPERAND && x->id >= EG_BUFFER && x->batch_stride != 0)
        x->batch_stride = rows * x->row_stride;
}

static void shorten_views(eg_op *op, int64_t rows) {
    if (op->axis == EG_AXIS_DEPTH) {
        if (eg_is_present(&op->left)) op->left.cols = op->right.rows = rows;
        return;
    }
    if (eg_is_present(&op->left)) shorten_rows(&op->left, rows);
    if (eg_is_present(&op->out)) shorten_rows(&op->out, rows);
    for (int i = 0; i < op->terms; i++) {
        if (op->term[i].kind != EG_TERM_BIAS) shorten_rows(&op->term[i].view, rows);
    }
}

/* Items of a backend's pack begin where its rows may: on 16 bytes, or, for WebGPU, on any element. */
static void start_anywhere(eg_view *right) {
    enum { PACK_ALIGN = 16 };
    if (right->space == EG_PACKED_B && right->batch_stride != 0) right->align = PACK_ALIGN;
}

static void shorten_batches(eg_op *op, int64_t items, int64_t batch) {
    start_anywhere(&op->right);
    shorten_batch(&op->left, items, batch);
    shorten_batch(&op->right, items, batch);
    shorten_batch(&op->out, items, batch);
    for (int i = 0; i < op->terms; i++) shorten_batch(&op->term[i].view, items, batch);
}

/* The first chunk has added it. */
static void leave_out_residual(eg_op *op) {
    if (op->terms > 0 && op->term[op->terms - 1].kind == EG_TERM_ADD) op->terms--;
}

/* An operation with fewer rows. */
static void shorten_op(const eg_low_memory *x, int index, const eg_chunk *c, eg_begun begun, eg_op *op) {
    if (op->kind == EG_REDUCE) {
        op->depth = c->rows * c->items;
    } else {
        op->items = fewer(op->items, x, c);
        if (op->kind == EG_GEMM) op->summed = fewer(op->summed, x, c);
        if (op->axis == EG_AXIS_ROWS) op->rows = c->rows;
        if (op->axis == EG_AXIS_DEPTH) op->depth = c->rows;
        shorten_views(op, c->rows);
        shorten_batches(op, c->items, x->problem.batch);
    }
    const eg_op *whole = &x->whole.op[index];
    if (!eg_sums_rows(op) && !eg_adds_items(x, whole)) return;
    op->accumulate = op->accumulate || begun >= (eg_is_per_item(x, whole) ? EG_BEGUN_ITEM : EG_BEGUN_SHARED);
    if (eg_adds_items(x, whole) && begun >= EG_BEGUN_SHARED) leave_out_residual(op);
    if (x->sum[index].bytes > 0) op->out = workspace_sums(x, index);
}

/* All operations but the one whose parts are lists of their own; the one that makes the gradient stores it
 * for them. */
static void leave_out_parts(const eg_low_memory *x, const eg_chunk *c, eg_op_list *list) {
    const eg_view right = x->whole.op[x->in_result].right, gradient = gradient_of(x, c->rows);
    for (int i = 0; i < list->ops; i++) {
        eg_op *op = &list->op[i];
        if (x->gradient.bytes == 0 || op->out.space != EG_TEMPORARY || op->out.id != right.id) continue;
        op->term[op->terms++] = (eg_term){.kind = EG_TERM_STORE, .view = gradient};
    }
    memmove(&list->op[x->in_result], &list->op[x->in_result + 1],
            (size_t)(list->ops - x->in_result - 1) * sizeof *list->op);
    list->ops--;
}

static void read_pack(const eg_low_memory *x, const eg_chunk *c, eg_op_list *list) {
    for (int i = 0; i < list->ops; i++) {
        eg_view *right = &list->op[i].right;
        if (!eg_reads_b(&list->op[i])) continue;
        *right = (eg_view){.space = EG_PACKED_B,
                           .id = right->id,
                           .transposed = right->transposed,
                           .dtype = right->dtype,
                           .rows = right->rows,
                           .cols = right->cols,
                           .batch_stride = x->packed.batched && c->items > 1,
                           .align = EG_MOST_ALIGN};
    }
    list->packed_b = &x->packed;
}

void eg_chunk_ops(const eg_low_memory *x, const eg_chunk *c, eg_begun begun, eg_op_list *list) {
    *list = x->whole;
    list->m = c->rows;
    list->batch = c->items;
    for (int i = 0; i < list->temporaries; i++) {
        eg_temporary *temporary = &list->temporary[i];
        temporary->rows = c->rows;
        temporary->items = c->items;
        if (eg_is_present(&temporary->same)) temporary->same.rows = c->rows;
        shorten_batch(&temporary->same, c->items, x->problem.batch);
    }
    for (int i = 0; i < list->buffers; i++) {
        list->buffer[i].rows = c->rows;
        list->buffer[i].items = fewer(list->buffer[i].items, x, c);
    }
    for (int i = 0; i < list->ops; i++) shorten_op(x, i, c, begun, &list->op[i]);
    if (x->pack.bytes > 0) read_pack(x, c, list);
    if (x->in_result != EG_NO_OP) leave_out_parts(x, c, list);
}

/* ---- Lists of one operation --------------------------------------------------------------------- */

/* Written in place: a list is 22 KB, too much for copies on the stack. */
static void list_of(const eg_low_memory *x, const eg_op *op, eg_op_list *list) {
    memset(list, 0, sizeof *list);
    list->backward = x->whole.backward;
    list->m = op->rows;
    list->n = op->cols;
    list->batch = op->items;
    list->dtype = x->whole.dtype;
    list->compute = x->whole.compute;
    list->math = x->whole.math;
    list->ops = 1;
    list->op[0] = *op;
}

/* Rows of the left operand, or columns of the right, by the other. */
void eg_chunk_part(const eg_low_memory *x, const eg_chunk *c, bool in_result, eg_begun begun,
                   eg_op_list *list) {
    const int64_t first = in_result ? x->workspace_lines : 0,
                  count = in_result ? eg_result_lines(x) : x->workspace_lines;
    eg_op op = x->whole.op[x->in_result];
    op.right = gradient_of(x, c->rows);
    shorten_op(x, x->in_result, c, begun, &op);
    op.out = in_result ? result_sums(x) : workspace_sums(x, x->in_result);
    if (lines_are_rows(eg_split_result(x))) {
        op.rows = count;
        op.left = some_rows(op.left, first, count);
    } else {
        op.cols = count;
        op.right = some_cols(op.right, first, count);
    }
    list_of(x, &op, list);
    list->m = c->rows, list->k = op.rows, list->n = op.cols, list->batch = c->items;
}

static void copy_of(const eg_low_memory *x, int64_t items, const eg_view *from, const eg_view *to,
                    eg_op_list *list) {
    const eg_op op = {.kind = EG_COPY,
                      .items = items,
                      .rows = to->rows,
                      .cols = to->cols,
                      .summed = 1,
                      .left = *from,
                      .out = *to};
    list_of(x, &op, list);
}

void eg_copy_sums(const eg_low_memory *x, int op, int64_t item, bool before, eg_op_list *list) {
    const eg_view sums = workspace_sums(x, op);
    const int64_t items = eg_is_per_item(x, &x->whole.op[op]) ? eg_chunk_at(x, item, 0).items : 1;
    eg_view out = eg_workspace_part(x, op);
    shorten_batch(&out, items, x->problem.batch);
    copy_of(x, items, before ? &out : &sums, before ? &sums : &out, list);
}

void eg_move_lines(const eg_low_memory *x, int64_t first, int64_t count, bool before, bool onward,
                   eg_op_list *list) {
    const eg_view out = some_lines(result_part(x), first, count),
                  sums = some_lines(result_sums(x), first, count);
    const eg_view transit = dense_at(out, EG_TRANSIT, out.dtype);
    if (onward) copy_of(x, 1, &transit, before ? &sums : &out, list);
    if (!onward) copy_of(x, 1, before ? &out : &sums, &transit, list);
}

eg_problem eg_pack_of_items(const eg_low_memory *x, int64_t item) {
    eg_problem p = x->problem;
    for (int id = 0; id < EG_OPERANDS; id++) p.operands[id] = (eg_operand){0};
    eg_operand *b = &p.operands[EG_OP_B];
    *b = x->problem.operands[EG_OP_B];
    b->offset += (size_t)eg_item_at(b->batch_stride, b->outer, item) * eg_size_of(b->dtype);
    p.backward = false;
    p.batch = eg_chunk_at(x, item, 0).items;
    if (p.batch <= b->outer.inner) b->outer = (eg_outer){0, 0};
    if (p.batch < p.inner) p.inner = p.batch;
    return p;
}
