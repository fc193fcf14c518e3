/* Whether operands share memory. */
#ifndef EG_OVERLAP_H
#define EG_OVERLAP_H

#include "problem.h"

/* True if two present operands may share an element. Exact for matrices apart in memory and for column
 * (row) windows of one buffer with a common leading dimension, such as the parts of a fused projection;
 * other interleaved layouts count as overlapping. On WebGPU `data` names a buffer, not an address: only
 * operands of the same buffer can overlap. */
bool eg_overlap(const eg_problem *problem, const eg_operand *x, const eg_operand *y);

/* Whether an operand, gaps included, has a byte of the first `bytes` of the workspace. */
bool eg_overlaps_workspace(const eg_problem *problem, const eg_operand *x, const eg_workspace *workspace,
                           size_t bytes);

#endif
