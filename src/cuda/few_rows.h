/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows, whose other operand is read once (kernels/few_rows.cuh): its shared memory, in bytes, for the
 * host and for the kernels. */
#ifndef EG_CUDA_FEW_ROWS_H
#define EG_CUDA_FEW_ROWS_H

#include "layout.h"

/* The sums of each warp that shares the depth, in padded rows; then what the blocks of a cluster send, of
 * which each finishes a share of the columns, in fours. `size`: of a sum. */
enum { EG_FEW_THREADS = 256, EG_FEW_BLOCKS = 2 /* a multiprocessor */, EG_FEW_PADDING = 4 };
#define EG_FEW_RECEIVED_AT(rows, cols, deep, size) ((deep) * (rows) * ((cols) + EG_FEW_PADDING) * (size))
#define EG_FEW_SHARED(rows, cols, deep, size)                                                                \
    (EG_FEW_RECEIVED_AT(rows, cols, deep, size) + ((cols) / 4 + EG_MOST_SPLITS) * (rows)*4 * (size))

#endif
