/* SPDX-License-Identifier: Apache-2.0 */
/* Low memory: the operations of a call, transformed so that its workspace stays below a limit.
 *
 * The rows of the layer (M), and the items of its batch, are cut into chunks. A chunk's operations are those
 * of the call with fewer rows; what sums over rows adds to what the chunks before it have made:
 *
 *     for each few items of the batch (all of their rows), or each item:
 *         pack the right operands, where the backend packs               once for the item's chunks
 *         for each chunk of rows: the operations of the call
 *     round what was summed, where it is of 16 bits
 *
 * What is summed over chunks is added up in the compute type, in their order, and rounded once. A chunk
 * depends on the call, the limit and the device, but not on its number of threads: neither do the bits, then.
 *
 * The sums in f32 of half of a 16-bit result fit in the result's own memory. In halves, then, only those of
 * the other half are in the workspace. A chunk is three lists: all operations but that one, which keep the
 * gradient that it reads; and the operation once for the lines of each half. At the end what is in the
 * result's memory goes through the workspace, which is free then:
 *
 *     the result's memory | sums of the lines from `kept` on                              |
 *     the workspace       | sums of the lines below `kept` | gradient, what a chunk needs |
 */
#ifndef EG_LOW_MEMORY_H
#define EG_LOW_MEMORY_H

#include "backend.h"

typedef struct eg_low_memory {
    eg_problem problem;        /* the call, its batch folded into rows where that is the same */
    eg_op_list whole;          /* and its operations */
    int64_t items, rows;       /* of a chunk: whole items, or rows of them; the last ones may have fewer */
    int threads;               /* that it may take */
    int halved;                /* the operation whose result is added up in halves; EG_NO_OP: none */
    int64_t kept;              /* lines of its former half, */
    int64_t moved;             /* and lines of the latter that leave the result's memory at once */
    eg_program program;        /* of the first chunk */
    eg_program half;           /* and of the former half of its result */
    eg_packed packed;          /* right operands, where they are packed for several chunks */
    eg_region pack;            /* regions of the workspace: the pack, */
    eg_region sum[EG_MAX_OPS]; /* a result of 16 bits before it is rounded, by its operation, */
    eg_region chunk;           /* what a chunk needs for itself, */
    eg_region gradient;        /* in halves the gradient that both read, */
    eg_dtype gradient_dtype;
    eg_region transit; /* and, in place of these two, lines on their way */
    size_t workspace;  /* bytes */
} eg_low_memory;

/* Pure: the chunks of a call. `limit` 0: none, and one chunk. */
eg_status eg_low_memory_make(const eg_caps *caps, const eg_problem *problem, size_t limit,
                             eg_low_memory *call);

/* Pure: the chunks that eg_low_memory_make has chosen for such a call. */
eg_status eg_low_memory_take(const eg_caps *caps, const eg_problem *problem, size_t limit, int64_t items,
                             int64_t rows, bool halves, eg_low_memory *call);

/* As eg_low_memory_make, but for the search where the context's cache has the call. */
eg_status eg_low_memory_find(eg_context *context, const eg_problem *problem, size_t limit,
                             eg_low_memory *call);

/* Pure: chunks of so many items and rows, in halves if `halved` says so; their regions and program. */
eg_status eg_low_memory_lay_out(const eg_caps *caps, int64_t items, int64_t rows, eg_low_memory *call);

/* The operation whose result may be added up in halves; EG_NO_OP: none. */
int eg_low_memory_may_halve(const eg_caps *caps, const eg_op_list *list);

eg_status eg_low_memory_run(eg_context *context, eg_low_memory *call, void *workspace, size_t offset);

/* The program of a chunk, under a few lines about all of them. */
void eg_low_memory_print(const eg_low_memory *call, eg_text *out);

#endif
