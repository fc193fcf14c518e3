/* The cell format: operands as a matrix unit for bf16 reads them.
 *
 * A cell is a square of 32 x 32 numbers of an operand X, as `terms` bf16 each; for each term it has two
 * tiles of 16 x 16 words of 32 bits (1 KiB, row by row). A word is a pair of numbers along the dimension that
 * the product sums over: along X's row where X is the left operand, down its column where it is the right
 * one. Which two are a pair is ours to choose, as long as both operands agree: p and p + 16, which vectors of
 * 16 lanes pair without a shuffle. Of the same 32 x 32 numbers of X, that makes four layouts:
 *
 *     across      word (i, p) of tile s is  X[16s + i][p], X[16s + i][16 + p]       left operand X
 *     across_t    the same tiles transposed                                        right operand Xᵀ
 *     down        word (p, j) of tile s is  X[p][16s + j], X[16 + p][16s + j]       right operand X
 *     down_t      the same tiles transposed                                        left operand Xᵀ
 *
 * Cells follow each other along the summed dimension, strip by strip: X is a row of cells for every 32
 * rows (`across`), or a column of cells for every 32 columns (`down`). Past the edges there are zeros.
 *
 * Terms. x * 2^24 = high + middle + low, each rounded to nearest; 24 bits of fraction are three times eight,
 * so the sum is exact. The scale keeps everything a matrix unit would flush to zero (it knows no subnormal
 * numbers) away from the terms of any finite x, and from the products of all but subnormal ones. It leaves
 * room for |x| < 2^26 and sums of 2^26 products; larger operands take another kernel. */
#ifndef EG_CPU_CELLS_H
#define EG_CPU_CELLS_H

#include <stddef.h>
#include <stdint.h>

#include "apart.h"

enum { EG_CELL = 32, EG_CELL_TERM_BYTES = EG_CELL * EG_CELL * 2 };
#define EG_CELL_DEEPEST ((int64_t)1 << 26)

/* Where a cell goes in each layout; NULL: not wanted. */
typedef struct eg_cells {
    char *across, *across_t, *down, *down_t;
} eg_cells;

/* X [rows, cols] in cells. */
typedef struct eg_cell_grid {
    int64_t rows, cols;   /* of cells */
    int64_t across, down; /* cells from one strip to the next, in layouts of either kind */
    size_t cell;          /* bytes */
} eg_cell_grid;

static inline eg_cell_grid eg_cell_grid_of(int terms, int64_t rows, int64_t cols) {
    const int64_t cell = terms * EG_CELL_TERM_BYTES, down = (rows + EG_CELL - 1) / EG_CELL,
                  across = (cols + EG_CELL - 1) / EG_CELL;
    return (eg_cell_grid){down, across, eg_units_apart(across, cell), eg_units_apart(down, cell),
                          (size_t)cell};
}

/* Where cell (row, col) of the batch's matrix `item` goes, `first` being where the first one goes. */
static inline eg_cells eg_cells_at(const eg_cells *first, const eg_cell_grid *grid, int64_t item, int64_t row,
                                   int64_t col) {
    const size_t across = (size_t)((item * grid->rows + row) * grid->across + col) * grid->cell;
    const size_t down = (size_t)((item * grid->cols + col) * grid->down + row) * grid->cell;
    return (eg_cells){.across = first->across != NULL ? first->across + across : NULL,
                      .across_t = first->across_t != NULL ? first->across_t + across : NULL,
                      .down = first->down != NULL ? first->down + down : NULL,
                      .down_t = first->down_t != NULL ? first->down_t + down : NULL};
}

#endif
