/* SPDX-License-Identifier: Apache-2.0 */
#include "lower_ops.h"

#include "backend.h"
#include "sizes.h"

/* ---- Views -------------------------------------------------------------------------------------- */

/* The largest power of two that divides where an operand begins, in every group. */
static int align_of(const eg_problem *p, eg_operand_id id) {
    const eg_operand *x = &p->operands[id];
    uintptr_t at = eg_begin(p, x->data, x->offset) | EG_MOST_ALIGN;
    if (p->grouped)
        at |= (uintptr_t)(eg_operand_has_rows(id) ? x->row_stride : x->batch_stride) * eg_size_of(x->dtype);
    return (int)(at & -at);
}

/* Dense rows of all ranks, while the call runs. */
static eg_view moved_view(const eg_problem *p, const eg_moved *x) {
    const int64_t cols = p->operands[x->id].cols;
    return (eg_view){.space = EG_OPERAND,
                     .id = x->to,
                     .dtype = x->dtype,
                     .rows = p->m,
                     .cols = cols,
                     .row_stride = cols,
                     .col_stride = 1,
                     .offset = x->offset,
                     .align = EG_EXCHANGED_ALIGN};
}

eg_view eg_operand_view(const eg_problem *p, eg_operand_id id) {
    const eg_operand *x = &p->operands[id];
    for (int i = 0; i < p->moves; i++) {
        if (p->moved[i].id == (int)id) return moved_view(p, &p->moved[i]);
    }
    if (x->data == NULL) return (eg_view){.space = EG_ABSENT};
    return (eg_view){.space = EG_OPERAND,
                     .id = (int)id,
                     .dtype = x->dtype,
                     .rows = x->rows,
                     .cols = x->cols,
                     .row_stride = x->row_stride,
                     .col_stride = x->col_stride,
                     .batch_stride = x->batch_stride,
                     .outer = x->outer,
                     .align = align_of(p, id)};
}

/* B, or the pack that stands for it: EG_OP_B or EG_OP_B_UP. */
eg_view eg_view_of_b(const eg_problem *p, eg_operand_id id) {
    const eg_packed *packed = id == EG_OP_B ? p->packed_b : p->packed_b_up;
    if (packed == NULL) return eg_operand_view(p, id);
    return (eg_view){.space = EG_PACKED_B,
                     .id = (int)id,
                     .dtype = p->dtype,
                     .rows = p->k,
                     .cols = p->n,
                     .batch_stride = packed->batched ? p->k * p->n : 0,
                     .align = EG_MOST_ALIGN};
}

eg_view eg_temporary_view(eg_op_list *list, const char *name, int64_t items, int64_t rows, int64_t cols) {
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

/* Strides of one that no memory could hold are never used: adding its region fails. */
eg_view eg_buffer_view(eg_op_list *list, const char *name, int64_t items, int64_t rows, int64_t cols) {
    const int index = list->buffers++;
    list->buffer[index] = (eg_buffer){.name = name, .items = items, .rows = rows, .cols = cols};
    return (eg_view){.space = EG_OPERAND,
                     .id = EG_BUFFER + index,
                     .dtype = list->compute,
                     .rows = rows,
                     .cols = cols,
                     .row_stride = cols,
                     .col_stride = 1,
                     .batch_stride = items > 1 ? (int64_t)((uint64_t)rows * (uint64_t)cols) : 0,
                     .align = EG_BUFFER_ALIGN};
}

/* ---- Operations --------------------------------------------------------------------------------- */

void eg_add_term(eg_op *op, eg_term term) { op->term[op->terms++] = term; }

void eg_add_view_term(eg_op *op, eg_term_kind kind, eg_view view) {
    if (eg_is_present(&view)) eg_add_term(op, (eg_term){.kind = kind, .view = view});
}

/* Skips an operation whose result is empty, or that would add zero to it. A product of depth 0 keeps its
 * epilogue, but reads no operand. */
void eg_add_op(eg_op_list *list, const eg_op *op) {
    if (op->items <= 0 || op->rows <= 0 || op->cols <= 0) return;
    const bool sums_nothing =
        op->kind == EG_GEMM ? op->depth == 0 || op->summed == 0 : op->kind == EG_REDUCE && op->depth == 0;
    if (sums_nothing && op->accumulate && eg_is_bare(op)) return;
    eg_op *added = &list->op[list->ops++];
    *added = *op;
    added->ragged = list->groups > 0;
    if (op->kind != EG_GEMM || !sums_nothing) return;
    added->depth = 0, added->summed = 1;
    added->left = added->right = (eg_view){.space = EG_ABSENT};
}
