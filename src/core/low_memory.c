/* SPDX-License-Identifier: Apache-2.0 */
#include "low_memory.h"

#include <string.h>

#include "cache.h"
#include "error.h"
#include "sizes.h"

static size_t most(size_t a, size_t b) { return a > b ? a : b; }

/* ---- What there is to cut ----------------------------------------------------------------------- */

static bool several(const eg_low_memory *x) { return x->rows < x->problem.m || x->items < x->problem.batch; }

/* Its result is a sum over rows. */
static bool sums_rows(const eg_op *op) { return op->kind == EG_REDUCE || op->axis == EG_AXIS_DEPTH; }

/* Each item of the batch has a result of its own; else one takes the sum over all of them. */
static bool per_item(const eg_low_memory *x, const eg_op *op) {
    return op->kind == EG_GEMM && x->problem.batch > 1 && op->summed == 1 && op->out.batch_stride != 0;
}

/* A result of 16 bits that more than one chunk adds to is kept in the compute type until it is whole. */
static bool is_kept(const eg_low_memory *x, const eg_op *op) {
    const bool added_to = per_item(x, op) ? x->rows < x->problem.m : several(x);
    return sums_rows(op) && op->out.dtype != x->whole.compute && added_to;
}

/* A right operand that every chunk reads. */
static bool reads_b(const eg_op *op) {
    return op->kind == EG_GEMM && op->axis == EG_AXIS_ROWS && op->right.space == EG_OPERAND;
}

/* ---- Lines of a result -------------------------------------------------------------------------- */

/* Its lines are what is dense: rows, or columns. */
static bool lines_are_rows(const eg_view *x) { return x->col_stride == 1; }
static int64_t lines_of(const eg_view *x) { return lines_are_rows(x) ? x->rows : x->cols; }
static int64_t length_of(const eg_view *x) { return lines_are_rows(x) ? x->cols : x->rows; }

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

/* Lines of the half in the workspace: the sums of the others fit in the result's memory. A multiple of what
 * keeps both halves of an operand aligned to 16 bytes, if it is itself. */
static int64_t kept_lines(const eg_view *result, bool aligned) {
    enum { ALIGN = 8 };
    const int64_t lines = lines_of(result), fitting = aligned ? lines / 2 : (lines - 1) / 2;
    return eg_ceil_div(lines - fitting, ALIGN) * ALIGN;
}

/* A result of 16 bits without gaps, one for the whole batch, and large enough, wherever it begins: workspaces
 * are asked for before that is known. */
static bool can_be_halved(const eg_op_list *list, const eg_op *op) {
    const eg_view *x = &op->out;
    if (op->kind != EG_GEMM || op->axis != EG_AXIS_DEPTH || op->items > 1) return false;
    if (list->compute != EG_F32 || eg_size_of(x->dtype) != 2 || length_of(x) == 0) return false;
    const bool dense = (lines_are_rows(x) ? x->row_stride : x->col_stride) == length_of(x);
    return dense && kept_lines(x, false) < lines_of(x);
}

/* The gradient that it reads; one that the caller has in 16 bits must be what the products may read. */
int eg_low_memory_may_halve(const eg_caps *caps, const eg_op_list *list) {
    for (int i = 0; i < list->ops; i++) {
        const eg_view *right = &list->op[i].right;
        if (!can_be_halved(list, &list->op[i])) continue;
        const bool rounded = right->space == EG_TEMPORARY && eg_is_present(&list->temporary[right->id].same);
        if (caps->rounds_grad_pre || !rounded) return i;
    }
    return EG_NO_OP;
}

static const eg_view *halved_result(const eg_low_memory *x) { return &x->whole.op[x->halved].out; }

static int64_t own_lines(const eg_low_memory *x) { return lines_of(halved_result(x)) - x->kept; }

/* Bytes before the first whole f32 of its memory: 0 or 2. */
static size_t unaligned(const eg_low_memory *x) {
    const eg_operand *result = &x->problem.operands[halved_result(x)->id];
    return eg_begin(&x->problem, result->data, result->offset) % sizeof(float);
}

/* ---- Views of what is kept ---------------------------------------------------------------------- */

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
                     .align = id == EG_KEPT_IN_RESULT ? (int)eg_size_of(dtype) : REGION_ALIGN};
}

/* What is summed in the workspace: of a halved result, the lines of the former half. */
static eg_view kept_part(const eg_low_memory *x, int op) {
    const eg_view out = x->whole.op[op].out;
    return op == x->halved ? some_lines(out, 0, x->kept) : out;
}

static eg_view kept_sums(const eg_low_memory *x, int op) {
    eg_view sums = dense_at(kept_part(x, op), EG_KEPT_SUM + op, x->whole.compute);
    if (per_item(x, &x->whole.op[op])) sums.batch_stride = sums.rows * sums.cols;
    return sums;
}

static eg_view own_part(const eg_low_memory *x) {
    return some_lines(*halved_result(x), x->kept, own_lines(x));
}

static eg_view own_sums(const eg_low_memory *x) {
    return dense_at(own_part(x), EG_KEPT_IN_RESULT, x->whole.compute);
}

/* Columns begin where vectors of it would. */
static int64_t gradient_ld(const eg_low_memory *x) { return eg_ceil_div(x->problem.n, 8) * 8; }

/* The gradient that both halves read: the caller's, or one that is kept for them. */
static eg_view gradient_of(const eg_low_memory *x, int64_t rows) {
    eg_view right = x->whole.op[x->halved].right;
    if (right.space == EG_TEMPORARY) right = x->whole.temporary[right.id].same;
    if (!eg_is_present(&right)) {
        right = (eg_view){.space = EG_OPERAND,
                          .id = EG_KEPT_GRADIENT,
                          .dtype = x->gradient_dtype,
                          .cols = x->problem.n,
                          .row_stride = gradient_ld(x),
                          .col_stride = 1,
                          .batch_stride = x->rows * gradient_ld(x),
                          .align = REGION_ALIGN};
    }
    right.rows = rows;
    return right;
}

/* ---- The transform ------------------------------------------------------------------------------ */

/* Which rows of which items. */
typedef struct chunk {
    int64_t item, items, row, rows;
} chunk;

static chunk chunk_at(const eg_low_memory *x, int64_t item, int64_t row) {
    return (chunk){item, eg_least(x->items, x->problem.batch - item), row,
                   eg_least(x->rows, x->problem.m - row)};
}

static int64_t fewer(int64_t count, const eg_low_memory *x, const chunk *c) {
    return count == x->problem.batch ? c->items : count;
}

static void cut_views(eg_op *op, const chunk *c) {
    if (op->axis == EG_AXIS_DEPTH) {
        if (eg_is_present(&op->left)) op->left.cols = op->right.rows = c->rows;
        return;
    }
    if (eg_is_present(&op->left)) op->left.rows = c->rows;
    if (eg_is_present(&op->out)) op->out.rows = c->rows;
    for (int i = 0; i < op->terms; i++) {
        if (op->term[i].kind != EG_TERM_BIAS) op->term[i].view.rows = c->rows;
    }
}

/* An operation with fewer rows. `adds`: to what chunks before it made. */
static void cut_op(const eg_low_memory *x, int index, const chunk *c, bool adds, eg_op *op) {
    if (op->kind == EG_REDUCE) {
        op->depth = c->rows * c->items;
    } else {
        op->items = fewer(op->items, x, c);
        if (op->kind == EG_GEMM) op->summed = fewer(op->summed, x, c);
        if (op->axis == EG_AXIS_ROWS) op->rows = c->rows;
        if (op->axis == EG_AXIS_DEPTH) op->depth = c->rows;
        cut_views(op, c);
    }
    if (!sums_rows(op)) return;
    op->accumulate = adds;
    if (x->sum[index].bytes > 0) op->out = kept_sums(x, index);
}

/* All operations but the one in halves; the one that makes the gradient stores it for that. */
static void leave_out_halved(const eg_low_memory *x, const chunk *c, eg_op_list *list) {
    const eg_view right = x->whole.op[x->halved].right, gradient = gradient_of(x, c->rows);
    for (int i = 0; i < list->ops; i++) {
        eg_op *op = &list->op[i];
        if (x->gradient.bytes == 0 || op->out.space != EG_TEMPORARY || op->out.id != right.id) continue;
        op->term[op->terms++] = (eg_term){.kind = EG_TERM_STORE, .view = gradient};
    }
    memmove(&list->op[x->halved], &list->op[x->halved + 1],
            (size_t)(list->ops - x->halved - 1) * sizeof *list->op);
    list->ops--;
}

static void read_pack(const eg_low_memory *x, const chunk *c, eg_op_list *list) {
    for (int i = 0; i < list->ops; i++) {
        eg_view *right = &list->op[i].right;
        if (!reads_b(&list->op[i])) continue;
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

/* The operations of a chunk. */
static void cut(const eg_low_memory *x, const chunk *c, bool adds, eg_op_list *list) {
    *list = x->whole;
    list->m = c->rows;
    list->batch = c->items;
    for (int i = 0; i < list->temporaries; i++) {
        eg_temporary *temporary = &list->temporary[i];
        temporary->rows = c->rows;
        temporary->items = c->items;
        if (eg_is_present(&temporary->same)) temporary->same.rows = c->rows;
    }
    for (int i = 0; i < list->ops; i++) cut_op(x, i, c, adds, &list->op[i]);
    if (x->pack.bytes > 0) read_pack(x, c, list);
    if (x->halved != EG_NO_OP) leave_out_halved(x, c, list);
}

/* A list of one operation, of the call's types. */
static eg_op_list list_of(const eg_low_memory *x, const eg_op *op) {
    return (eg_op_list){.backward = x->whole.backward,
                        .m = op->rows,
                        .n = op->cols,
                        .batch = op->items,
                        .dtype = x->whole.dtype,
                        .compute = x->whole.compute,
                        .math = x->whole.math,
                        .ops = 1,
                        .op[0] = *op};
}

/* What a chunk adds to a half of a result: rows of the left operand, or columns of the right, by the other.
 */
static eg_op_list half_of(const eg_low_memory *x, const chunk *c, bool own, bool adds) {
    const bool rows = lines_are_rows(halved_result(x));
    const int64_t first = own ? x->kept : 0, count = own ? own_lines(x) : x->kept;
    eg_op op = x->whole.op[x->halved];
    op.right = gradient_of(x, c->rows);
    cut_op(x, x->halved, c, adds, &op);
    op.out = own ? own_sums(x) : kept_sums(x, x->halved);
    if (rows) {
        op.rows = count;
        op.left = some_rows(op.left, first, count);
    } else {
        op.cols = count;
        op.right = some_cols(op.right, first, count);
    }
    eg_op_list list = list_of(x, &op);
    list.m = c->rows, list.k = op.rows, list.n = op.cols, list.batch = c->items;
    return list;
}

static eg_op_list copy_of(const eg_low_memory *x, int64_t items, eg_view from, eg_view to) {
    const eg_op op = {.kind = EG_COPY,
                      .items = items,
                      .rows = to.rows,
                      .cols = to.cols,
                      .summed = 1,
                      .left = from,
                      .out = to};
    return list_of(x, &op);
}

/* What a result holds before, to where it is added up; or the sum, rounded, to the result. */
static eg_op_list copy_sum(const eg_low_memory *x, int index, int64_t item, bool before) {
    const eg_view sums = kept_sums(x, index), out = kept_part(x, index);
    const int64_t items = per_item(x, &x->whole.op[index]) ? eg_least(x->items, x->problem.batch - item) : 1;
    return before ? copy_of(x, items, out, sums) : copy_of(x, items, sums, out);
}

/* Lines of the half in the result's memory to their sums (`before`), or back: both are in one place, so they
 * go through the workspace, in the type of the result. */
static void copy_lines(const eg_low_memory *x, int64_t first, int64_t count, bool before,
                       eg_op_list move[2]) {
    const eg_view out = some_lines(own_part(x), first, count), sums = some_lines(own_sums(x), first, count);
    const eg_view transit = dense_at(out, EG_KEPT_TRANSIT, out.dtype);
    move[0] = copy_of(x, 1, before ? out : sums, transit);
    move[1] = copy_of(x, 1, transit, before ? sums : out);
}

/* A result of some items, made 0: a product of nothing. */
static eg_op_list clear_of(const eg_low_memory *x, int index, int64_t item) {
    const chunk c = chunk_at(x, item, 0);
    eg_op op = x->whole.op[index];
    cut_op(x, index, &c, false, &op);
    op.depth = 0;
    op.left = op.right = (eg_view){.space = EG_ABSENT};
    return list_of(x, &op);
}

/* ---- The workspace ------------------------------------------------------------------------------ */

static bool add_region(eg_low_memory *x, eg_region *region, size_t bytes) {
    enum { ALIGN = 256 };
    const size_t offset = (x->workspace + ALIGN - 1) / ALIGN * ALIGN;
    *region = (eg_region){.offset = offset, .bytes = bytes};
    return !__builtin_add_overflow(offset, bytes, &x->workspace) && x->workspace <= (size_t)INT64_MAX;
}

static bool add_sum(eg_low_memory *x, int index) {
    const eg_op *op = &x->whole.op[index];
    const eg_view out = kept_part(x, index);
    size_t bytes = eg_size_of(x->whole.compute);
    if (!is_kept(x, op)) return true;
    return !__builtin_mul_overflow(bytes, out.rows, &bytes) &&
           !__builtin_mul_overflow(bytes, out.cols, &bytes) &&
           !__builtin_mul_overflow(bytes, per_item(x, op) ? x->items : 1, &bytes) &&
           add_region(x, &x->sum[index], bytes);
}

/* B of the items that begin at `item`, as eg_pack_b has it. */
static eg_problem pack_problem(const eg_low_memory *x, int64_t item) {
    eg_problem p = x->problem;
    for (int id = 0; id < EG_OPERANDS; id++) p.operands[id] = (eg_operand){0};
    eg_operand *b = &p.operands[EG_OP_B];
    *b = x->problem.operands[EG_OP_B];
    b->offset += (size_t)(item * b->batch_stride) * eg_size_of(b->dtype);
    p.backward = false;
    p.batch = eg_least(x->items, p.batch - item);
    return p;
}

static bool add_pack(const eg_caps *caps, eg_low_memory *x) {
    const eg_backend_ops *ops = eg_backend_find(caps->backend);
    bool wanted = false;
    for (int i = 0; i < x->whole.ops; i++) wanted = wanted || reads_b(&x->whole.op[i]);
    if (ops->plan_pack == NULL || !wanted) return true;
    const eg_problem b = pack_problem(x, 0);
    size_t bytes = 0;
    x->packed = (eg_packed){.layer = {.size = sizeof x->packed.layer,
                                      .m = b.m,
                                      .k = b.k,
                                      .n = b.n,
                                      .batch = b.batch,
                                      .dtype = b.dtype,
                                      .math = b.math},
                            .batched = b.batch > 1 && b.operands[EG_OP_B].batch_stride != 0};
    return ops->plan_pack(caps, &b, &x->packed, &bytes) == EG_OK && add_region(x, &x->pack, bytes);
}

/* What a list that is run in the chunk's region needs of it. */
static eg_status take_room(const eg_caps *caps, eg_program *program, size_t *room) {
    EG_TRY(eg_compile(caps, program));
    *room = most(*room, program->workspace);
    return EG_OK;
}

static eg_status take_list(const eg_caps *caps, const eg_op_list *list, size_t *room) {
    eg_program program;
    program.list = *list;
    return take_room(caps, &program, room);
}

/* Where the result begins is not known when the size of the workspace is asked for: there is room for either
 * number of kept lines. */
static eg_status take_halves(const eg_caps *caps, eg_low_memory *x, const chunk *c, size_t *room) {
    for (int i = 0; i < 4; i++) {
        x->kept = kept_lines(halved_result(x), i >= 2);
        x->half.list = half_of(x, c, i % 2 == 0, true);
        EG_TRY(take_room(caps, &x->half, room));
    }
    return EG_OK;
}

static eg_status take_chunk(const eg_caps *caps, eg_low_memory *x, int64_t item, int64_t row, size_t *room) {
    const chunk c = chunk_at(x, item, row);
    cut(x, &c, true, &x->program.list);
    EG_TRY(take_room(caps, &x->program, room));
    return x->halved != EG_NO_OP ? take_halves(caps, x, &c, room) : EG_OK;
}

/* Where the last of steps of `each` through `total` begins. */
static int64_t last_start(int64_t total, int64_t each) { return each > 0 ? (total - 1) / each * each : 0; }

static eg_status take_chunks(const eg_caps *caps, eg_low_memory *x, size_t *room) {
    EG_TRY(
        take_chunk(caps, x, last_start(x->problem.batch, x->items), last_start(x->problem.m, x->rows), room));
    return take_chunk(caps, x, 0, 0, room);
}

static eg_status take_moves(const eg_caps *caps, const eg_low_memory *x, bool before, size_t *room) {
    const int64_t last = last_start(own_lines(x), x->moved), each = eg_least(x->moved, own_lines(x));
    eg_op_list move[2];
    copy_lines(x, 0, each, before, move);
    for (int i = 0; i < 2; i++) EG_TRY(take_list(caps, &move[i], room));
    copy_lines(x, last, own_lines(x) - last, before, move);
    for (int i = 0; i < 2; i++) EG_TRY(take_list(caps, &move[i], room));
    return EG_OK;
}

/* And what is done around the chunks. */
static eg_status take_other_room(const eg_caps *caps, const eg_low_memory *x, size_t *room) {
    for (int i = 0; i < x->whole.ops; i++) {
        const eg_op *op = &x->whole.op[i];
        if (sums_rows(op) && per_item(x, op)) {
            const eg_op_list clear = clear_of(x, i, 0);
            EG_TRY(take_list(caps, &clear, room));
        }
        for (int before = op->accumulate; x->sum[i].bytes > 0 && before >= 0; before--) {
            const eg_op_list copy = copy_sum(x, i, 0, before);
            EG_TRY(take_list(caps, &copy, room));
            if (i == x->halved) EG_TRY(take_moves(caps, x, before, room));
        }
    }
    return EG_OK;
}

/* The gradient that both halves read, where nobody else has it. */
static bool size_gradient(const eg_caps *caps, eg_low_memory *x) {
    const eg_view *right = &x->whole.op[x->halved].right;
    size_t *bytes = &x->gradient.bytes;
    if (right->space != EG_TEMPORARY || eg_is_present(&x->whole.temporary[right->id].same)) return true;
    x->gradient_dtype = caps->rounds_grad_pre ? x->whole.dtype : x->whole.compute;
    return !__builtin_mul_overflow(x->items, x->rows, bytes) &&
           !__builtin_mul_overflow(*bytes, gradient_ld(x), bytes) &&
           !__builtin_mul_overflow(*bytes, eg_size_of(x->gradient_dtype), bytes) && *bytes <= SIZE_MAX / 2;
}

/* The rest of the workspace in halves. Lines that leave the result take the place of what chunks do not need
 * any more. */
static eg_status lay_out_halves(const eg_caps *caps, eg_low_memory *x) {
    const eg_view *result = halved_result(x);
    const size_t line = (size_t)length_of(result) * sizeof(uint16_t); /* on its way, in the result's type */
    size_t room = 0, other = 0;
    EG_TRY(take_chunks(caps, x, &room));
    const size_t fitting = (room + x->gradient.bytes) / line;
    x->moved = fitting == 0 ? 1 : eg_least((int64_t)fitting, own_lines(x));
    for (int aligned = 0; aligned < 2; aligned++) {
        x->kept = kept_lines(result, aligned);
        EG_TRY(take_other_room(caps, x, &other));
    }
    x->kept = kept_lines(result, unaligned(x) == 0);
    bool fits = add_region(x, &x->chunk, most(room, other)) && add_region(x, &x->gradient, x->gradient.bytes);
    const size_t end = x->workspace;
    x->workspace = x->chunk.offset + other;
    fits =
        fits && add_region(x, &x->transit, ((size_t)x->moved * line + 3) / 4 * 4); /* of words, for WebGPU */
    x->workspace = most(x->workspace, end);
    return fits ? EG_OK : eg_too_large(&x->whole);
}

/* Regions that are there whatever a chunk needs. */
static bool lay_out_sums(const eg_caps *caps, eg_low_memory *x) {
    bool fits = add_pack(caps, x);
    if (x->halved != EG_NO_OP) x->kept = kept_lines(halved_result(x), false);
    for (int i = 0; i < x->whole.ops; i++) fits = fits && add_sum(x, i);
    return fits && (x->halved == EG_NO_OP || size_gradient(caps, x));
}

eg_status eg_low_memory_lay_out(const eg_caps *caps, int64_t items, int64_t rows, eg_low_memory *x) {
    size_t room = 0;
    x->items = items;
    x->rows = rows;
    x->threads = caps->threads;
    x->pack = x->chunk = x->gradient = x->transit = (eg_region){0};
    memset(x->sum, 0, sizeof x->sum);
    x->workspace = 0;
    if (!several(x)) {
        x->program.list = x->whole;
        EG_TRY(take_room(caps, &x->program, &room));
    } else {
        if (!lay_out_sums(caps, x)) return eg_too_large(&x->whole);
        if (x->halved != EG_NO_OP) return lay_out_halves(caps, x);
        EG_TRY(take_chunks(caps, x, &room));
        EG_TRY(take_other_room(caps, x, &room));
    }
    return add_region(x, &x->chunk, room) ? EG_OK : eg_too_large(&x->whole);
}

/* ---- The run ------------------------------------------------------------------------------------ */

typedef struct runner {
    eg_context *context;
    eg_low_memory *x;
    char *workspace_data;
    size_t offset;
    eg_call call; /* of the chunk or copy at hand */
} runner;

static eg_address in_workspace(const runner *r, const eg_region *region) {
    return (eg_address){r->workspace_data, r->offset + region->offset};
}

/* The operands where a chunk has them, and what is kept over chunks. */
static void bind(runner *r, int64_t item, int64_t row) {
    const eg_low_memory *x = r->x;
    for (int id = 0; id < EG_OPERANDS; id++) {
        const eg_operand *operand = &x->problem.operands[id];
        eg_address *at = &r->call.operand[id];
        *at = (eg_address){operand->data, operand->offset};
        if (operand->data == NULL || operand->rows == 0 || operand->cols == 0) continue;
        const int64_t elements = item * operand->batch_stride +
                                 (eg_operand_has_rows((eg_operand_id)id) ? row * operand->row_stride : 0);
        at->offset += (size_t)elements * eg_size_of(operand->dtype);
    }
    for (int i = 0; i < x->whole.ops; i++) r->call.operand[EG_KEPT_SUM + i] = in_workspace(r, &x->sum[i]);
    r->call.operand[EG_KEPT_GRADIENT] = in_workspace(r, &x->gradient);
    r->call.operand[EG_KEPT_TRANSIT] = in_workspace(r, &x->transit);
    if (x->halved != EG_NO_OP) {
        const eg_operand *result = &x->problem.operands[halved_result(x)->id];
        r->call.operand[EG_KEPT_IN_RESULT] = (eg_address){result->data, result->offset + unaligned(x)};
    }
    r->call.packed_b = x->pack.bytes > 0 ? &x->packed : x->problem.packed_b;
    r->call.workspace = in_workspace(r, &x->chunk);
}

static eg_status run_list(runner *r, const eg_op_list *list) {
    return eg_cache_run_list(r->context, list, &r->call);
}

static eg_status pack(runner *r, int64_t item) {
    const eg_problem b = pack_problem(r->x, item);
    r->x->packed.context = r->context;
    r->x->packed.data = r->workspace_data + r->offset + r->x->pack.offset;
    return r->context->ops->pack(r->context, &b, &r->x->packed);
}

/* Whether later items add to something that the first one began. */
static bool carries(const eg_low_memory *x) {
    for (int i = 0; i < x->whole.ops; i++) {
        const eg_op *op = &x->whole.op[i];
        if (sums_rows(op) && !per_item(x, op)) return true;
    }
    return false;
}

/* Sums of the result's own half come from its lines one piece after the other, from the first one on; and go
 * there from the last one on: what a piece is written over has gone before. */
static eg_status move_half(runner *r, bool before) {
    const eg_low_memory *x = r->x;
    const int64_t lines = own_lines(x), pieces = eg_ceil_div(lines, x->moved);
    for (int64_t i = 0; i < pieces; i++) {
        const int64_t first = (before ? i : pieces - 1 - i) * x->moved;
        eg_op_list move[2];
        copy_lines(x, first, eg_least(x->moved, lines - first), before, move);
        EG_TRY(run_list(r, &move[0]));
        EG_TRY(run_list(r, &move[1]));
    }
    return EG_OK;
}

/* Copies the sums of each item, or those of all items, from (`before`) or to where the caller has them. */
static eg_status copy_sums(runner *r, bool of_items, int64_t item, bool before) {
    const eg_low_memory *x = r->x;
    bind(r, item, 0);
    for (int i = 0; i < x->whole.ops; i++) {
        const eg_op *op = &x->whole.op[i];
        if (x->sum[i].bytes == 0 || per_item(x, op) != of_items || (before && !op->accumulate)) continue;
        const bool halves = i == x->halved;
        const eg_op_list copy = copy_sum(x, i, item, before);
        if (halves && !before) EG_TRY(move_half(r, false)); /* the other goes where these were */
        EG_TRY(run_list(r, &copy));
        if (halves && before) EG_TRY(move_half(r, true));
    }
    return EG_OK;
}

/* Where later items add to shared sums, all operations of a chunk add: what an item begins is made 0 before.
 */
static eg_status clear_items(runner *r, int64_t item) {
    bind(r, item, 0);
    for (int i = 0; i < r->x->whole.ops; i++) {
        const eg_op *op = &r->x->whole.op[i];
        if (!sums_rows(op) || !per_item(r->x, op) || op->accumulate) continue;
        const eg_op_list clear = clear_of(r->x, i, item);
        EG_TRY(run_list(r, &clear));
    }
    return EG_OK;
}

static eg_status run_chunk(runner *r, const chunk *c, bool adds) {
    eg_op_list list;
    cut(r->x, c, adds, &list);
    if (list.ops > 0) EG_TRY(run_list(r, &list));
    for (int own = 0; own < 2 && r->x->halved != EG_NO_OP; own++) {
        list = half_of(r->x, c, own, adds);
        EG_TRY(run_list(r, &list));
    }
    return EG_OK;
}

static eg_status run_items(runner *r, int64_t item) {
    eg_low_memory *x = r->x;
    const bool accumulate = x->problem.accumulate, carried = item > 0 && carries(x);
    if (accumulate) EG_TRY(copy_sums(r, true, item, true));
    if (carried) EG_TRY(clear_items(r, item));
    if (x->pack.bytes > 0 && (item == 0 || x->problem.operands[EG_OP_B].batch_stride != 0))
        EG_TRY(pack(r, item));
    for (int64_t row = 0; row < x->problem.m; row += x->rows) {
        const chunk c = chunk_at(x, item, row);
        bind(r, item, row);
        EG_TRY(run_chunk(r, &c, accumulate || carried || row > 0));
    }
    return copy_sums(r, true, item, false);
}

static eg_status run_chunks(runner *r) {
    const eg_low_memory *x = r->x;
    if (x->problem.accumulate) EG_TRY(copy_sums(r, false, 0, true));
    for (int64_t item = 0; item < x->problem.batch; item += x->items) EG_TRY(run_items(r, item));
    return copy_sums(r, false, 0, false);
}

/* The backend sees the capabilities that the chunks were laid out with. */
eg_status eg_low_memory_run(eg_context *context, eg_low_memory *call, void *workspace, size_t offset) {
    const int threads = context->caps.threads;
    runner r = {.context = context, .x = call, .workspace_data = workspace, .offset = offset};
    context->caps.threads = call->threads;
    call->whole.in_place = eg_in_place(&call->problem);
    eg_status status = EG_OK;
    if (several(call)) {
        status = run_chunks(&r);
    } else {
        bind(&r, 0, 0);
        status = run_list(&r, &call->whole);
    }
    context->caps.threads = threads;
    return status;
}

/* ---- The text ----------------------------------------------------------------------------------- */

static void put_region(eg_text *out, const char *what, const eg_region *region) {
    if (region->bytes > 0) eg_put(out, "    %-20s %14zu bytes\n", what, region->bytes);
}

void eg_low_memory_print(const eg_low_memory *x, eg_text *out) {
    const eg_problem *p = &x->problem;
    if (several(x)) {
        const bool whole_items = x->rows == p->m;
        const double count = (double)eg_ceil_div(p->batch, x->items) * (double)eg_ceil_div(p->m, x->rows);
        eg_put(out, "chunks of %lld %s", (long long)(whole_items ? x->items : x->rows),
               whole_items ? "items" : "rows");
        if (!whole_items && x->items > 1) eg_put(out, " of %lld items", (long long)x->items);
        eg_put(out, " x %.0f  M=%lld batch=%lld  workspace %zu bytes\n", count, (long long)p->m,
               (long long)p->batch, x->workspace);
        put_region(out, "b, packed once", &x->pack);
        for (int i = 0; i < x->whole.ops; i++) {
            const char *name = eg_view_name(&x->whole, &x->whole.op[i].out);
            if (x->sum[i].bytes > 0)
                eg_put(out, "    %s in f32%*s %14zu bytes\n", name, 13 - (int)strlen(name), "",
                       x->sum[i].bytes);
        }
        if (x->halved != EG_NO_OP) {
            put_region(out, "grad_pre", &x->gradient);
            eg_put(out, "    %lld of %lld lines of %s are added up there, the others in its own memory\n",
                   (long long)x->kept, (long long)lines_of(halved_result(x)),
                   eg_view_name(&x->whole, halved_result(x)));
        }
    }
    if (x->program.list.ops > 0 || x->halved == EG_NO_OP) eg_program_print(&x->program, out);
    if (several(x) && x->halved != EG_NO_OP) eg_program_print(&x->half, out);
}
