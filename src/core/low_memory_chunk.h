/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of a chunk, made from those of the call: what low_memory_layout.c compiles to find their
 * room, and low_memory_run.c runs. */
#ifndef EG_LOW_MEMORY_CHUNK_H
#define EG_LOW_MEMORY_CHUNK_H

#include "low_memory.h"
#include "sizes.h"

/* Which rows of which items. */
typedef struct eg_chunk {
    int64_t item, items, row, rows;
} eg_chunk;

eg_chunk eg_chunk_at(const eg_low_memory *call, int64_t item, int64_t row);

static inline bool eg_has_chunks(const eg_low_memory *x) {
    return x->rows < x->problem.m || x->items < x->problem.batch;
}

/* Its result is a sum over rows. */
static inline bool eg_sums_rows(const eg_op *op) {
    return op->kind == EG_REDUCE || op->axis == EG_AXIS_DEPTH;
}

/* Its result has the layer's rows, and is a sum over the batch: d_a, where that is one for all items. */
static inline bool eg_sums_items(const eg_op *op) {
    return op->kind == EG_GEMM && op->axis == EG_AXIS_ROWS && op->summed > 1;
}

/* Chunks, which then have all rows of their items, add to one. */
static inline bool eg_adds_items(const eg_low_memory *x, const eg_op *op) {
    return eg_sums_items(op) && x->items < x->problem.batch;
}

/* Each item of the batch has a result of its own; else one takes the sum over all of them. */
bool eg_is_per_item(const eg_low_memory *call, const eg_op *op);

/* A right operand that every chunk reads. */
static inline bool eg_reads_b(const eg_op *op) {
    return op->kind == EG_GEMM && op->axis == EG_AXIS_ROWS && op->right.space == EG_OPERAND;
}

/* ---- A result part of whose sums are in its own memory ---------------------------------------------- */

/* Its lines are what is dense: rows, or columns. */
int64_t eg_lines_of(const eg_view *result);
int64_t eg_line_length(const eg_view *result);

static inline const eg_view *eg_split_result(const eg_low_memory *x) {
    return &x->whole.op[x->in_result].out;
}

/* Lines whose sums are in the result's memory; those of the others are in the workspace. */
static inline int64_t eg_result_lines(const eg_low_memory *x) {
    return eg_lines_of(eg_split_result(x)) - x->workspace_lines;
}

/* Bytes before the first whole f32 of the result's memory: 0 or 2. */
static inline size_t eg_unaligned(const eg_low_memory *x) {
    const eg_operand *result = &x->problem.operands[eg_split_result(x)->id];
    return eg_begin(&x->problem, result->data, result->offset) % sizeof(float);
}

/* Lines whose sums the workspace must hold. */
int64_t eg_workspace_lines(const eg_view *result);

/* ---- What is summed in the workspace ---------------------------------------------------------------- */

/* That of a result whose own memory has the rest, or the whole result. */
eg_view eg_workspace_part(const eg_low_memory *call, int op);

/* Elements from row to row of a gradient that both parts of a result read. */
int64_t eg_gradient_stride(const eg_low_memory *call);

/* ---- Operations ------------------------------------------------------------------------------------- */

/* What chunks before have begun, each of these more than the one before it: sums over them are added to. */
typedef enum eg_begun {
    EG_BEGUN_NOTHING,
    EG_BEGUN_SHARED, /* results that the batch shares */
    EG_BEGUN_ITEM,   /* and those of the chunk's own items */
    EG_BEGUN_STATES
} eg_begun;

/* Those of a chunk. */
void eg_chunk_ops(const eg_low_memory *call, const eg_chunk *chunk, eg_begun begun, eg_op_list *list);

/* What a chunk adds to the sums in the result's memory, or to those in the workspace. */
void eg_chunk_part(const eg_low_memory *call, const eg_chunk *chunk, bool in_result, eg_begun begun,
                   eg_op_list *list);

/* What a result holds before, to where it is added up; or the sum, rounded, to the result. */
void eg_copy_sums(const eg_low_memory *call, int op, int64_t item, bool before, eg_op_list *list);

/* Lines of the part in the result's memory to their sums (`before`), or back: both are in one place, so they
 * go through the workspace, in the type of the result: to there, and then from there (`onward`). */
void eg_move_lines(const eg_low_memory *call, int64_t first, int64_t count, bool before, bool onward,
                   eg_op_list *list);

/* B of the items that begin at `item`, as eg_pack_b has it. */
eg_problem eg_pack_of_items(const eg_low_memory *call, int64_t item);

#endif
