/* SPDX-License-Identifier: Apache-2.0 */
/* The chunks of a call, run one after the other; and their text. */
#include <string.h>

#include "cache.h"
#include "error.h"
#include "low_memory_chunk.h"

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

/* The operands where a chunk has them, and what outlives a chunk. */
static void bind(runner *r, int64_t item, int64_t row) {
    const eg_low_memory *x = r->x;
    for (int id = 0; id < EG_OPERANDS; id++) {
        const eg_operand *operand = &x->problem.operands[id];
        eg_address *at = &r->call.operand[id];
        *at = (eg_address){operand->data, operand->offset};
        if (operand->data == NULL || operand->rows == 0 || operand->cols == 0) continue;
        const int64_t elements = eg_item_at(operand->batch_stride, operand->outer, item) +
                                 (eg_operand_has_rows((eg_operand_id)id) ? row * operand->row_stride : 0);
        at->offset += (size_t)elements * eg_size_of(operand->dtype);
    }
    for (int i = 0; i < x->whole.ops; i++) r->call.operand[EG_SUMS + i] = in_workspace(r, &x->sum[i]);
    r->call.operand[EG_CHUNK_GRADIENT] = in_workspace(r, &x->gradient);
    r->call.operand[EG_TRANSIT] = in_workspace(r, &x->transit);
    if (x->in_result != EG_NO_OP) {
        const eg_operand *result = &x->problem.operands[eg_split_result(x)->id];
        r->call.operand[EG_SUMS_IN_RESULT] = (eg_address){result->data, result->offset + eg_unaligned(x)};
    }
    r->call.packed_b = x->pack.bytes > 0 ? &x->packed : x->problem.packed_b;
    r->call.packed_b_up = x->problem.packed_b_up;
    r->call.pack_item = x->pack.bytes > 0 ? 0 : item; /* its own pack holds the items of the chunk */
    r->call.workspace = in_workspace(r, &x->chunk);
}

static eg_status run_list(runner *r, const eg_op_list *list) {
    return eg_cache_run_list(r->context, list, &r->call);
}

/* Where each list is made that is run: a list is 22 KB, too much for the stack. */
static eg_op_list *list_at_hand(const runner *r) { return &r->x->other.list; }

static eg_status pack(runner *r, int64_t item) {
    const eg_problem b = eg_pack_of_items(r->x, item);
    r->x->packed.context = r->context;
    r->x->packed.data = r->workspace_data + r->offset + r->x->pack.offset;
    return r->context->ops->pack(r->context, &b, &r->x->packed);
}

/* The sums in the result's memory are made from its lines, some at once, from the first ones on; and become
 * lines again from the last ones on: what lines are written over has gone before. */
static eg_status move_part(runner *r, bool before) {
    const eg_low_memory *x = r->x;
    const int64_t lines = eg_result_lines(x), moves = eg_ceil_div(lines, x->moved);
    for (int64_t i = 0; i < moves; i++) {
        const int64_t first = (before ? i : moves - 1 - i) * x->moved;
        for (int onward = 0; onward < 2; onward++) {
            eg_move_lines(x, first, eg_least(x->moved, lines - first), before, onward, list_at_hand(r));
            EG_TRY(run_list(r, list_at_hand(r)));
        }
    }
    return EG_OK;
}

/* Copies the sums of each item, or those of all items, from (`before`) or to where the caller has them. */
static eg_status copy_sums(runner *r, bool of_items, int64_t item, bool before) {
    const eg_low_memory *x = r->x;
    bind(r, item, 0);
    for (int i = 0; i < x->whole.ops; i++) {
        const eg_op *op = &x->whole.op[i];
        if (x->sum[i].bytes == 0 || eg_is_per_item(x, op) != of_items || (before && !op->accumulate))
            continue;
        const bool split = i == x->in_result;
        if (split && !before) EG_TRY(move_part(r, false)); /* the others go where these were */
        eg_copy_sums(x, i, item, before, list_at_hand(r));
        EG_TRY(run_list(r, list_at_hand(r)));
        if (split && before) EG_TRY(move_part(r, true));
    }
    return EG_OK;
}

static eg_status run_chunk(runner *r, const eg_chunk *c) {
    const eg_begun begun = c->row > 0 ? EG_BEGUN_ITEM : c->item > 0 ? EG_BEGUN_SHARED : EG_BEGUN_NOTHING;
    eg_op_list *list = list_at_hand(r);
    eg_chunk_ops(r->x, c, begun, list);
    if (list->ops > 0) EG_TRY(run_list(r, list));
    for (int part = 0; part < 2 && r->x->in_result != EG_NO_OP; part++) {
        eg_chunk_part(r->x, c, part != 0, begun, list);
        EG_TRY(run_list(r, list));
    }
    return EG_OK;
}

static eg_status run_items(runner *r, int64_t item) {
    eg_low_memory *x = r->x;
    EG_TRY(copy_sums(r, true, item, true));
    if (x->pack.bytes > 0 && (item == 0 || eg_has_items(&x->problem.operands[EG_OP_B])))
        EG_TRY(pack(r, item));
    int64_t row = 0;
    do { /* without rows too: sums of none are 0 */
        const eg_chunk c = eg_chunk_at(x, item, row);
        bind(r, item, row);
        EG_TRY(run_chunk(r, &c));
        row += x->rows;
    } while (row < x->problem.m);
    return copy_sums(r, true, item, false);
}

static eg_status run_chunks(runner *r) {
    const eg_low_memory *x = r->x;
    EG_TRY(copy_sums(r, false, 0, true));
    for (int64_t item = 0; item < x->problem.batch; item += eg_chunk_at(x, item, 0).items)
        EG_TRY(run_items(r, item));
    return copy_sums(r, false, 0, false);
}

/* The backend sees the capabilities that the chunks were laid out with. */
eg_status eg_low_memory_run(eg_context *context, eg_low_memory *call, void *workspace, size_t offset) {
    const int threads = context->caps.threads;
    runner r = {.context = context, .x = call, .workspace_data = workspace, .offset = offset};
    context->caps.threads = call->threads;
    call->whole.in_place = eg_in_place(&call->problem);
    eg_status status = EG_OK;
    if (eg_has_chunks(call)) {
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
    if (eg_has_chunks(x)) {
        const bool whole_items = x->rows == p->m;
        const int64_t outer = x->items < p->inner ? p->batch / p->inner : 1; /* chunks end with each */
        const double count = (double)outer * (double)eg_ceil_div(p->batch / outer, x->items) *
                             (double)(whole_items ? 1 : eg_ceil_div(p->m, x->rows));
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
        if (x->in_result != EG_NO_OP) {
            put_region(out, "grad_pre", &x->gradient);
            eg_put(out, "    %lld of %lld lines of %s are added up there, the others in its own memory\n",
                   (long long)x->workspace_lines, (long long)eg_lines_of(eg_split_result(x)),
                   eg_view_name(&x->whole, eg_split_result(x)));
        }
    }
    if (x->program.list.ops > 0 || x->in_result == EG_NO_OP) eg_program_print(&x->program, out);
    if (eg_has_chunks(x) && x->in_result != EG_NO_OP) eg_program_print(&x->part, out);
}
