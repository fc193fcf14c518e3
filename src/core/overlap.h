/* SPDX-License-Identifier: Apache-2.0 */
/* Whether operands share memory. */
#ifndef EG_OVERLAP_H
#define EG_OVERLAP_H

#include "problem.h"

typedef enum eg_overlap_verdict {
    EG_APART,       /* no byte of an element of one is a byte of an element of the other */
    EG_OVERLAP,     /* there is such a byte */
    EG_MAY_OVERLAP, /* not decided within the bounded search: strides that are nearly alike, and in no
                       proportion to each other */
} eg_overlap_verdict;

/* Of two present operands whose extents have passed validation. Exact: the gaps between rows, columns and
 * items do not count. On WebGPU `data` names a buffer, not an address: only operands of the same buffer can
 * overlap. */
eg_overlap_verdict eg_overlap(const eg_problem *problem, const eg_operand *x, const eg_operand *y);

/* Bytes from an operand's first element to its last, gaps included. */
size_t eg_extent(const eg_problem *problem, const eg_operand *x);

/* Whether two items of the batch share an element. Always decided for one level; of two, items that may is
 * taken for items that do. */
bool eg_items_overlap(const eg_problem *problem, const eg_operand *x);

/* Whether an operand, gaps included, has a byte of the first `bytes` of the workspace. */
bool eg_overlaps_workspace(const eg_problem *problem, const eg_operand *x, const eg_workspace *workspace,
                           size_t bytes);

#endif
