/* SPDX-License-Identifier: Apache-2.0 */
/* What the two tile loops share: gemm.c, whose operands are packed or where their caller has them, and
 * gemm_packed.c, where each block packs both for itself. */
#ifndef EG_CPU_GEMM_H
#define EG_CPU_GEMM_H

#include "product.h"

/* A stream's lines: so many rows a group of nr k, lines of each, and bytes from one to the next. */
typedef struct eg_stream_lines {
    int64_t rows, of_row, stride;
    int64_t offsets[EG_CPU_WIDEST];
} eg_stream_lines;

/* The lines that the tiles of a pass prefetch, and for what rows of memory each field was filled in last. */
typedef struct eg_line_rows {
    int64_t rows, lines, stride;
} eg_line_rows;
typedef struct eg_packed_lines {
    eg_prefetch_step step[EG_CPU_MOST_STEPS];
    int64_t steps; /* of the pass */
    eg_line_rows right, left, out, in;
} eg_packed_lines;

typedef struct eg_gemm_block {
    int64_t item, row, col, rows, cols;
    char *tiles; /* down each micro-panel and then across; or those that take turns */
    char *spare; /* scratch for the epilogue */
    char *panel; /* the right operand's micro-panel: of fused packing, or a narrow one; or all of a pass */
    char *tail;  /* the left operand's last rows, where they are no whole tile; or the rows that are packed */
    char *last;  /* AMX: and the last k of its other rows, a tile block's row each */
    eg_side left; /* its rows, where the block packs them */
    eg_stream_lines *lines;
    eg_packed_lines *packed; /* of gemm_packed.c */
    eg_deferred_flush *deferred;
    eg_tile_epilogue *epilogue; /* of the tile before */
} eg_gemm_block;

/* Vector units: memory that is read next, as lists of rows of so many bytes. Each of some tiles prefetches a
 * part of one list. */
typedef struct eg_upcoming {
    const char *list;       /* the first row of the list at hand, */
    int64_t lists, to_next; /* of so many left, and bytes from one to the next */
    int64_t length, stride; /* of a list: rows, and bytes from one to the next; no rows: nothing */
    int64_t bytes;          /* of a row */
    const char *at;         /* the next part begins here, */
    int64_t left;           /* and the list has so many rows left */
    int64_t part, rows_a_group;
} eg_upcoming;

/* Goes on by a part. */
static inline void eg_go_on(eg_upcoming *w) {
    w->at += w->part * w->stride;
    w->left -= w->part;
    if (w->left > 0) return;
    w->lists--;
    w->at = w->list += w->to_next;
    w->left = w->length;
}

/* k in [k, k + depth) of product number `summand`. */
typedef struct eg_gemm_pass {
    int64_t summand, k, depth;
    int64_t groups; /* of nr k, at least 1 */
    bool first, last;
    eg_upcoming right; /* vector units: what is read next */
} eg_gemm_pass;

/* ---- gemm_tile.c -------------------------------------------------------------------------------- */

/* The micro-kernel stores to the caller's memory: whole vectors, with no epilogue but a bias and relu. */
bool eg_cpu_stores_tile(const eg_product *x, const eg_tile *tile);
/* Where it stores then. */
void eg_cpu_place_result(const eg_product *x, const eg_tile *tile, eg_micro_tile *sums);
/* The epilogue of a tile that has all its sums, when the last one that shares it has them too. */
void eg_cpu_finish_tile(const eg_product *x, const eg_gemm_block *b, const eg_tile *tile);
/* The rows of memory that the epilogue of a block's first tile touches. */
void eg_cpu_plan_epilogue(eg_prefetch_plan *plan, const eg_product *x, const eg_gemm_pass *pass,
                          const eg_tile *tile);

/* ---- gemm_packed.c ------------------------------------------------------------------------------ */

/* A pass of a block that packs both operands. */
void eg_cpu_run_packed_pass(const eg_product *x, eg_gemm_block *b, eg_gemm_pass *pass);

#endif
