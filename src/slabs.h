/* A call in slabs, for a workspace below a limit: its batch and its rows are walked piece by piece, and each
 * piece is an ordinary problem of the backend.
 *
 *     for each few items of the batch (all of their rows), or each item:
 *         pack B, where the backend packs                       once for the item's slabs
 *         for each slab of rows:  its y, or its d_a and grad_pre, and what it adds to d_b and d_bias
 *     round d_b and d_bias, where they are of 16 bits
 *
 * What is summed over slabs is added up in the compute type, in their order, and rounded once. A slab depends
 * on the problem, the limit and the device, but not on its number of threads: neither do the bits, then. */
#ifndef EG_SLABS_H
#define EG_SLABS_H

#include "backend.h"

/* The outputs that are summed over rows. */
enum { EG_SUM_D_B, EG_SUM_D_BIAS, EG_SUM_D_BIAS_BELOW, EG_SUMS };

typedef struct eg_slabs {
    eg_problem whole;       /* the call, its batch folded into rows where that is the same */
    int64_t items, rows;    /* of a slab: whole items, or rows of them; the last ones may have fewer */
    int threads;            /* that it may take */
    eg_plan plan;           /* of the first slab */
    eg_packed packed;       /* B, where it is packed for several slabs */
    eg_region pack;         /* regions of the workspace: the pack, */
    eg_region sum[EG_SUMS]; /* an output of 16 bits before it is rounded, */
    eg_region slab;         /* and what a slab needs for itself */
    size_t workspace;       /* bytes */
    void *data;             /* the workspace, once it is there */
    size_t offset;
} eg_slabs;

/* Pure. `limit` 0: none, and one slab. */
eg_status eg_slabs_make(const eg_caps *caps, const eg_problem *problem, size_t limit, eg_slabs *slabs);

eg_status eg_slabs_launch(eg_context *context, eg_slabs *slabs, void *workspace, size_t offset);

/* The plan of a slab, as eg_plan_print, under a few lines about all of them. */
void eg_slabs_print(const eg_slabs *slabs, char *text, size_t capacity);

#endif
