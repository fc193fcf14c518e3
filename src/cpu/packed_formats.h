/* SPDX-License-Identifier: Apache-2.0 */
/* The packed formats: how operands lie in memory when a micro-kernel reads them.
 *
 * Micro-panels, for vector units: `nr` columns of a matrix X each, row by row and without gaps, in the
 * compute type. Columns beyond the last one are 0.
 *
 *     micro-panel p, row r:   nr numbers   X[r][p*nr .. p*nr + nr)
 *
 * One packed copy of X serves three products:
 *     as the right operand            X[k][j]   the micro-kernel streams a micro-panel of k x nr
 *     as the left operand             X[i][k]   mr rows of nr consecutive k, one micro-panel after the other
 *     as the left operand, transposed X[k][i]   mr columns of one micro-panel; mr divides nr
 * So A is packed once for A·B and Aᵀ·grad_pre, and grad_pre once for grad_pre·Bᵀ and Aᵀ·grad_pre. Only B
 * needs a transposed copy.
 *
 * AMX tile blocks, for the matrix unit: squares of 32 x 32 numbers, each number as the sum of one to three
 * bf16 (its bf16 terms). For each term a block has two tiles of 16 x 16 words of 32 bits (1 KiB, row by row).
 * A word is a pair of bf16 of the summed dimension: of X's row where X is the left operand, of its column
 * where it is the right one. Any pairing works if both operands use the same. Of bf16 themselves it is that
 * of neighbours, 2p with 2p + 1: a row of X is a row of a tile as it is. Of several terms it is p with p +
 * 16, because vectors of 16 lanes pair them without a shuffle. Of the same 32 x 32 numbers of X, that makes
 * four layouts:
 *
 *     left      word (i, p) of tile s is  X[16s + i][p], X[16s + i][16 + p]       left operand X
 *     right_t   the same tiles transposed                                        right operand Xᵀ
 *     right     word (p, j) of tile s is  X[p][16s + j], X[16 + p][16s + j]       right operand X
 *     left_t    the same tiles transposed                                        left operand Xᵀ
 *
 * Blocks follow each other along the summed dimension, in micro-panels. `left` and `right_t` have one for
 * every 32 rows of X, `right` and `left_t` one for every 32 columns. Beyond the edges there are zeros.
 *
 * bf16 terms: x * 2^24 = high + middle + low, each rounded to nearest. A fraction of 24 bits is three times
 * eight, so the sum is exact. The matrix unit flushes subnormal numbers to zero. The scale keeps the terms of
 * every finite x, and all products that are not subnormal themselves, out of that range. It leaves room for
 * |x| < 2^26 and for sums of 2^26 products; layers with more take another kernel. */
#ifndef EG_CPU_PACKED_FORMATS_H
#define EG_CPU_PACKED_FORMATS_H

#include <stddef.h>
#include <stdint.h>

#include "core/sizes.h"

enum { EG_AMX_BLOCK = 32, EG_AMX_TERM_BYTES = EG_AMX_BLOCK * EG_AMX_BLOCK * 2 };
enum { EG_AMX_FEW_DEPTH = 16 << 10 }; /* k of a pass of few rows, at most: 1 MiB, a part of L2 */
#define EG_AMX_MAX_DEPTH ((int64_t)1 << 26)

/* Addresses of the packed layouts of a matrix, or of one of its AMX tile blocks; NULL: not wanted. */
typedef struct eg_cpu_packs {
    char *left, *right_t, *right, *left_t;
} eg_cpu_packs;

/* Stride padding: the distance from one micro-panel (of vectors, or of AMX tile blocks) of `units` units
 * of `size` bytes to the next one, in units. It never falls when `units` grows.
 *
 * A left operand is read from a dozen micro-panels in turn. At a distance that is a multiple of 128 KiB (64
 * KiB on processors with 1 MiB of L2), the same rows of all of them map to the same few sets of L2 and evict
 * each other. So long ones are padded with units that nobody reads or writes. Measured: docs/lab/cpu.md. */
static inline int64_t eg_padded_stride(int64_t units, int64_t size) {
    enum { SAME_SETS = 32 << 10, OTHER_SETS = 8 << 10, LONG = 128 << 10 };
    const uint64_t bytes = (uint64_t)units * (uint64_t)size; /* wraps around where no program is made */
    const int64_t beyond = (int64_t)(bytes % SAME_SETS);
    if (bytes < LONG || (beyond >= OTHER_SETS && beyond <= SAME_SETS - OTHER_SETS)) return units;
    return units + eg_ceil_div((beyond < OTHER_SETS ? OTHER_SETS : SAME_SETS + OTHER_SETS) - beyond, size);
}

/* X [rows, cols] in AMX tile blocks. */
typedef struct eg_amx_grid {
    int64_t rows, cols;           /* of blocks */
    int64_t row_pitch, col_pitch; /* blocks from one micro-panel to the next: of rows, of columns */
    size_t block_bytes;
} eg_amx_grid;

static inline eg_amx_grid eg_amx_grid_of(int bf16_terms, int64_t rows, int64_t cols) {
    const int64_t bytes = bf16_terms * EG_AMX_TERM_BYTES, down = (rows + EG_AMX_BLOCK - 1) / EG_AMX_BLOCK,
                  across = (cols + EG_AMX_BLOCK - 1) / EG_AMX_BLOCK;
    return (eg_amx_grid){down, across, eg_padded_stride(across, bytes), eg_padded_stride(down, bytes),
                         (size_t)bytes};
}

/* Where block (row, col) of the batch's matrix `item` goes; `first` is where the first block goes. */
static inline eg_cpu_packs eg_amx_block_at(const eg_cpu_packs *first, const eg_amx_grid *grid, int64_t item,
                                           int64_t row, int64_t col) {
    const size_t in_rows = (size_t)((item * grid->rows + row) * grid->row_pitch + col) * grid->block_bytes;
    const size_t in_cols = (size_t)((item * grid->cols + col) * grid->col_pitch + row) * grid->block_bytes;
    return (eg_cpu_packs){.left = first->left != NULL ? first->left + in_rows : NULL,
                          .right_t = first->right_t != NULL ? first->right_t + in_rows : NULL,
                          .right = first->right != NULL ? first->right + in_cols : NULL,
                          .left_t = first->left_t != NULL ? first->left_t + in_cols : NULL};
}

#endif
