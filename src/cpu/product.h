/* SPDX-License-Identifier: Apache-2.0 */
/* A blocked product as it runs: its sizes, and where its operands lie. product.c makes it of a step, once a
 * call; gemm.c runs its blocks. */
#ifndef EG_CPU_PRODUCT_H
#define EG_CPU_PRODUCT_H

#include "blocking.h"
#include "cpu.h"
#include "epilogue.h"

/* Where an operand of a product lies. Strides are in bytes. `index` is the dimension that the result has: a
 * row of the left operand, a column of the right one. */
typedef struct eg_side {
    const char *data;
    int64_t item, k, index;
    eg_outer outer;             /* of an operand in place */
    int64_t panel, panel_width; /* from one micro-panel to the next, and indices of each */
    bool in_place;              /* where its caller has it, not packed */
    eg_micro_operand micro;     /* as the micro-kernel reads it, but for the address */
} eg_side;

typedef struct eg_product {
    const eg_cpu_run *run;
    const eg_op *op;
    const eg_cpu_kernel *kernel;
    size_t size; /* bytes of a number of the tile */
    int64_t mr, nr, mc, nc, kc;
    int64_t epilogue_rows;            /* a power of two */
    int64_t first, rows, cols, depth; /* rows from `first` on, up to `rows` */
    int64_t items, summed;            /* results, and products summed into each */
    int64_t row_blocks, col_blocks;   /* of each result */
    bool packs_left;                  /* each block packs its rows of the left operand for itself, */
    bool fused;                       /* and the right operand, */
    bool widens;                      /* or converts micro-panels of a pack, */
    bool turns_made;                  /* or what has been made as a left operand: `right` is that one, */
    bool turns_made_left;             /* or `left`, of the transpose */
    bool packs_both;                  /* vector units: or both for its tiles: gemm_packed.c */
    bool single_pass;                 /* the whole depth is summed in registers */
    bool stores_result;               /* the micro-kernel may store to the caller's memory */
    bool relu;                        /* which it does after the epilogue's bias */
    bool rounds;                      /* dots of bf16: it stores bf16, and `pre` with it */
    eg_side left, right;
    eg_operand a, b; /* in place, or with fused packing: the operand itself */
    eg_dtype b_dtype;
    eg_operand result, grad;
    const eg_operand *out; /* the result, row by row; NULL: it is packed, or column-major */
    /* What the epilogue touches and the micro-kernel prefetches. NULL: nothing, or what is packed. */
    const eg_operand *prefetch_out, *prefetch_in;
    bool turns; /* AMX tile blocks are stored as the row-major transpose of the result, which is prefetched */
    const eg_epilogue *epilogue;
} eg_product;

/* Wraps around: a stride that is never used, of one row or item, may be any number. */
static inline int64_t eg_times(int64_t stride, int64_t factor) {
    return (int64_t)((uint64_t)stride * (uint64_t)factor);
}

/* The operand's index `at` from `k` on. */
static inline const char *eg_side_at(const eg_side *s, int64_t item, int64_t at, int64_t k) {
    const int64_t panel = at < s->panel_width ? 0 : eg_div(at, s->panel_width);
    return s->data + eg_item_at(s->item, s->outer, item) + panel * s->panel +
           (at - panel * s->panel_width) * s->index + k * s->k;
}

void eg_cpu_make_product(const eg_cpu_run *run, const eg_step *step, const eg_epilogue *epilogue,
                         eg_product *x);

#endif
