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
 * The sums in f32 of half of a 16-bit result fit in the result's own memory; only the other lines are then
 * summed in the workspace. A chunk is three lists: all operations but that one, which store the gradient that
 * it reads; and the operation once for the lines of each place. At the end what is in the result's memory
 * goes through the workspace, which is free then:
 *
 *     the result's memory | sums of the lines from `workspace_lines` on                              |
 *     the workspace       | sums of the lines below `workspace_lines` | gradient, what a chunk needs |
 *
 * low_memory_fit.c searches for the chunk, low_memory_layout.c says what one needs, low_memory_chunk.c makes
 * its operations and low_memory_run.c runs them.
 */
#ifndef EG_LOW_MEMORY_H
#define EG_LOW_MEMORY_H

#include "backend.h"

typedef struct eg_low_memory {
    eg_problem problem;        /* the call, its batch folded into rows where that is the same */
    eg_op_list whole;          /* and its operations */
    int64_t items, rows;       /* of a chunk: whole items, or rows of them; the last ones may have fewer */
    bool by_outer;             /* a chunk is in one outer item */
    int threads;               /* that it may take */
    int in_result;             /* the operation part of whose sums are in its result; EG_NO_OP: none */
    int64_t workspace_lines;   /* lines of it whose sums are in the workspace, */
    int64_t moved;             /* and lines of the others that leave the result's memory at once */
    eg_program program;        /* of the first chunk */
    eg_program part;           /* and of the workspace's part of the result */
    eg_program other;          /* of the list at hand, neither of these: on the stack it would be too much */
    eg_packed packed;          /* right operands, where they are packed for several chunks */
    eg_region pack;            /* regions of the workspace: the pack, */
    eg_region sum[EG_MAX_OPS]; /* a result of 16 bits before it is rounded, by its operation, */
    eg_region chunk;           /* what a chunk needs for itself, */
    eg_region gradient;        /* the gradient that both parts of a result read, */
    eg_dtype gradient_dtype;
    eg_region transit; /* and, in place of these two, lines that leave the result's memory */
    size_t workspace;  /* bytes */
} eg_low_memory;

/* Whether a call is cut into its outer items, whatever its workspace: it has two levels of a batch, which the
 * backend has not. */
bool eg_goes_by_outer(const eg_caps *caps, const eg_problem *problem);

/* Pure: the chunks of a call. `limit` 0: none, and one chunk. */
eg_status eg_low_memory_make(const eg_caps *caps, const eg_problem *problem, size_t limit,
                             eg_low_memory *call);

/* As eg_low_memory_make, but for the search where the context's cache has the call. */
eg_status eg_low_memory_find(eg_context *context, const eg_problem *problem, size_t limit,
                             eg_low_memory *call);

/* Pure: chunks of so many items and rows, with call->in_result; their regions and program. */
eg_status eg_low_memory_lay_out(const eg_caps *caps, int64_t items, int64_t rows, eg_low_memory *call);

/* The operation whose result's memory may hold part of its sums; EG_NO_OP: none. */
int eg_low_memory_may_split(const eg_caps *caps, const eg_op_list *list);

eg_status eg_low_memory_run(eg_context *context, eg_low_memory *call, void *workspace, size_t offset);

/* The program of a chunk, under a few lines about all of them. */
void eg_low_memory_print(const eg_low_memory *call, eg_text *out);

#endif
