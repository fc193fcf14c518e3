/* SPDX-License-Identifier: Apache-2.0 */
/* The cache blocks of a product, and the ways in which it may read and write its matrices. */
#ifndef EG_CPU_BLOCKING_H
#define EG_CPU_BLOCKING_H

#include "step.h"

/* The cache blocks of a product (MC x NC), its passes (KC), and its threads, of `threads` at most. */
typedef struct eg_cpu_blocks {
    int64_t mc, nc, kc;
    int threads;
    bool single_pass; /* the whole depth is summed in registers */
} eg_cpu_blocks;
eg_cpu_blocks eg_cpu_blocks_of(const eg_cpu_kernel *kernel, int threads, const eg_op *op, bool fused);

/* Dots of bf16: whether d_b is made as its transpose, whether each block has to lay out the left operand of
 * such a product, and whether a block may lay out what was made as a left operand as a right one. */
bool eg_cpu_may_turn_d_b(const eg_cpu_kernel *kernel, const eg_op *op);
bool eg_cpu_must_fuse_left(const eg_cpu_kernel *kernel, const eg_op *op);
bool eg_cpu_may_turn_made(const eg_cpu_kernel *kernel, const eg_op *op, const eg_cpu_blocks *blocks);

/* The same for blocks that pack both operands for their tiles, in the same passes: those of vector units that
 * pack the left one. */
static inline bool eg_cpu_packs_both(const eg_cpu_kernel *kernel, int left) {
    return left == EG_CPU_FUSED && !eg_cpu_is_amx(kernel);
}
bool eg_cpu_may_pack_both(const eg_cpu_kernel *kernel, const eg_op *op);
eg_cpu_blocks eg_cpu_packed_blocks(const eg_cpu_kernel *kernel, int threads, const eg_op *op);
/* Rows of the left operand that such a block packs at once: 147 KB of f32 in passes of 192 k, which stay in
 * L2 beside the right operand's. */
enum { EG_CPU_PACKED_ROWS = 192 };

/* Blocks of few rows read the right operand so fast that it is prefetched line by line: those whose columns
 * have no more bytes. More rows leave no room in L2. */
enum { EG_CPU_STREAMED_BYTES = 512 };

/* Up to so many rows a product may be made by chains of multiply-adds: few_rows.c. */
enum { EG_CPU_CHAINED_ROWS = 24 };

/* Parts of a product that threads may share, at most. */
int64_t eg_cpu_units(const eg_cpu_kernel *kernel, const eg_op *op);

/* Whether a product can read its left or right operand where the caller has it, and whether its blocks can
 * pack the right one for themselves. */
bool eg_cpu_may_place_left(const eg_cpu_kernel *kernel, const eg_op *op);
bool eg_cpu_may_place_right(const eg_cpu_kernel *kernel, const eg_op *op);
bool eg_cpu_may_fuse(const eg_cpu_kernel *kernel, const eg_op *op);
/* The same of its rows of the left operand, pass by pass. */
bool eg_cpu_may_fuse_left(const eg_cpu_kernel *kernel, const eg_op *op);

/* Whether lines of a left operand, or of a right one, are near each other: see blocking.c. */
bool eg_cpu_is_near(const eg_view *x, bool right);

/* Few rows or columns: whether the row makes the product by reading an operand once, where it is; and how.
 * From so many rows on, the multiplication takes longer than the reading: docs/lab/cpu.md. */
enum { EG_CPU_FEW_ROWS = 16 };
bool eg_cpu_has_few_rows(const eg_cpu_kernel *kernel, const eg_op *op);
bool eg_cpu_has_few_columns(const eg_cpu_kernel *kernel, const eg_op *op);
/* Whether so many columns are packed before, and not by each block. */
bool eg_cpu_packs_few_columns(const eg_cpu_kernel *kernel, const eg_op *op);
bool eg_cpu_few_rows_read_in_place(const eg_cpu_kernel *kernel, const eg_view *left);
/* So many columns, up to whole micro-panels. */
static inline int64_t eg_cpu_whole_panels(const eg_cpu_kernel *kernel, int64_t cols) {
    return eg_ceil_div(cols, kernel->micro.nr) * kernel->micro.nr;
}

eg_cpu_blocks eg_cpu_few_rows_blocks(const eg_cpu_kernel *kernel, int threads, const eg_op *op);
eg_cpu_blocks eg_cpu_few_columns_blocks(const eg_cpu_kernel *kernel, int threads, const eg_op *op);
/* Numbers of a thread's scratch for such a step. */
int64_t eg_cpu_few_rows_scratch(const eg_cpu_kernel *kernel, const eg_step *step);

/* Little depth: the same for one that writes its result once, row by row. */
bool eg_cpu_has_little_depth(const eg_cpu_kernel *kernel, const eg_op *op);
eg_cpu_blocks eg_cpu_outer_blocks(const eg_cpu_kernel *kernel, int threads, const eg_op *op);
/* Columns of a block whose right operand is in L1 at once. */
int64_t eg_cpu_outer_part(const eg_cpu_kernel *kernel, const eg_op *op);
int64_t eg_cpu_outer_scratch(const eg_cpu_kernel *kernel, const eg_step *step);
/* Whether such a product stores its sums from registers: it has no epilogue but a bias and relu. */
bool eg_cpu_stores_sums(const eg_op *op);
/* The same of outer products, which may store `pre` beside it. */
bool eg_cpu_outer_stores_sums(const eg_op *op);
/* Whether its epilogue is an activation or a residual of whole rows, which it has in L1, with `pre` or not. */
bool eg_cpu_outer_acts_by_rows(const eg_cpu_kernel *kernel, const eg_op *op);
/* Whether rows of it may bypass the caches by way of L1: those that begin between cache lines; and whole
 * lines by vectors of half a line, of which two would otherwise not follow each other. */
bool eg_cpu_outer_copies(const eg_cpu_kernel *kernel, const eg_op *op);
/* Whether rows are cache lines, and whole ones but for the last. */
bool eg_cpu_is_whole_lines(const eg_view *x);

/* Micro-panels of columns whose sums are in L1 at once, where they are not stored from registers. */
enum { EG_CPU_OUTER_PANELS = 10 };

/* Dots of bf16: bytes of a micro-panel of 32 columns, whose k are pairs. */
static inline int64_t eg_cpu_outer_dots_bytes(int64_t depth) {
    return eg_ceil_div(depth, 2) * (EG_AMX_TERM_BYTES / (EG_AMX_BLOCK / 2));
}

/* Of it, those of so many rows of the left operand. */
int64_t eg_cpu_outer_left_numbers(const eg_cpu_kernel *kernel, int64_t rows, int64_t depth);

/* Numbers of the compute type in 16 KiB, which stay in L1 beside what streams through it. */
static inline int64_t eg_cpu_some_of_l1(const eg_cpu_kernel *kernel) {
    return kernel->compute == EG_F64 ? 2 << 10 : 4 << 10;
}

#endif
