/* A call in slabs, for a workspace below a limit: its batch and its rows are walked piece by piece, and each
 * piece is an ordinary problem of the backend.
 *
 *     for each few items of the batch (all of their rows), or each item:
 *         pack B, where the backend packs                       once for the item's slabs
 *         for each slab of rows:  its y, or its d_a and grad_pre, and what it adds to d_b and d_bias
 *     round d_b and d_bias, where they are of 16 bits
 *
 * What is summed over slabs is added up in the compute type, in their order, and rounded once. A slab depends
 * on the problem, the limit and the device, but not on its number of threads: neither do the bits, then.
 *
 * The sums in f32 of half of a d_b of 16 bits fit in d_b's own memory. In halves, then, only those of the
 * other half are in the workspace, and a slab is three ordinary problems: one makes all but d_b, with its
 * grad_pre, and two more make a half of d_b each, from that and their columns of A (or their columns of it,
 * with all of A). At the end what is in d_b's memory goes through the workspace, which is free then:
 *
 *     d_b's memory    | sums of the lines from `kept` on              |
 *     the workspace   | sums of the lines below `kept` | grad_pre, and what a slab needs |
 */
#ifndef EG_SLABS_H
#define EG_SLABS_H

#include "backend.h"

/* The outputs that are summed over rows. */
enum { EG_SUM_D_B, EG_SUM_D_BIAS, EG_SUM_D_BIAS_BELOW, EG_SUMS };

typedef struct eg_slabs {
    eg_problem whole;       /* the call, its batch folded into rows where that is the same */
    int64_t items, rows;    /* of a slab: whole items, or rows of them; the last ones may have fewer */
    int threads;            /* that it may take */
    bool halves;            /* d_b is added up in two, the latter in its own memory: */
    int64_t kept;           /* lines of the former, */
    int64_t moved;          /* and lines of the latter that leave d_b's memory at once */
    eg_plan plan;           /* of the first slab, */
    eg_plan half_plan;      /* and of its former half of d_b */
    eg_packed packed;       /* B, where it is packed for several slabs */
    eg_region pack;         /* regions of the workspace: the pack, */
    eg_region sum[EG_SUMS]; /* an output of 16 bits before it is rounded, */
    eg_region slab;         /* what a slab needs for itself, */
    eg_region grad_pre;     /* in halves the grad_pre that both read, */
    eg_dtype grad_pre_dtype;
    eg_region way;    /* and, in place of these two, lines that are on their way */
    size_t workspace; /* bytes */
    void *data;       /* the workspace, once it is there */
    size_t offset;
} eg_slabs;

/* Pure. `limit` 0: none, and one slab. */
eg_status eg_slabs_make(const eg_caps *caps, const eg_problem *problem, size_t limit, eg_slabs *slabs);

/* Pure: the slabs that eg_slabs_make has chosen for such a problem. */
eg_status eg_slabs_take(const eg_caps *caps, const eg_problem *problem, size_t limit, int64_t items,
                        int64_t rows, bool halves, eg_slabs *slabs);

/* Memory for the slabs of calls to come; the context's own, so that no call allocates. NULL: there is none.
 */
eg_slabs_seen *eg_slabs_seen_make(const eg_context *context);

/* As eg_slabs_make, which the context's next calls of the kind are spared. */
eg_status eg_slabs_recall(eg_context *context, const eg_problem *problem, size_t limit, eg_slabs *slabs);

/* Pure: slabs of so many items and rows, in halves as slabs->halves says; their regions and plans. */
eg_status eg_slabs_lay_out(const eg_caps *caps, int64_t items, int64_t rows, eg_slabs *slabs);

/* Whether d_b can be added up in halves: see slabs.c. */
bool eg_slabs_may_halve(const eg_caps *caps, const eg_problem *problem);

eg_status eg_slabs_launch(eg_context *context, eg_slabs *slabs, void *workspace, size_t offset);

/* The plan of a slab, as eg_plan_print, under a few lines about all of them. */
void eg_slabs_print(const eg_slabs *slabs, char *text, size_t capacity);

#endif
