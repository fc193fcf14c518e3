/* SPDX-License-Identifier: Apache-2.0 */
/* How steps are divided: into chunks, portions, stream-K tails, and the tiles of clusters. */
#ifndef EG_CUDA_PARTITION_H
#define EG_CUDA_PARTITION_H

#include "step.h"

/* Rows of the result that a row of its column sums covers; and how many such rows there are of `rows` rows of
 * an item: those of whole tiles. */
int64_t eg_cuda_sum_rows(const eg_cuda_kernel *row);
int64_t eg_cuda_sums_of(const eg_cuda_kernel *row, int64_t rows);

/* Rows of column sums that a kernel leaves of an item of an operation: those of its chunks, or tiles. */
int64_t eg_cuda_sums_left(int multiprocessors, const eg_cuda_kernel *row, const eg_op *op);

/* Whether a temporary is one of column sums; the rows of them that the workspace has: false where memory
 * could not hold them. */
bool eg_cuda_is_sums(const eg_op_list *list, int temporary);
bool eg_cuda_rows_of_sums(const eg_op_list *list, const eg_temporary *sums, int64_t *rows);
eg_cuda_portions eg_cuda_portions_of(const eg_op_list *list, const eg_temporary *sums, int64_t items,
                                     int64_t rows, int64_t chunks, int64_t chunk_rows);
int64_t eg_cuda_launches_of(const eg_cuda_portions *portions, int64_t items, int64_t rows);

/* In how many chunks a map by rows of vectors makes its rows. */
int64_t eg_cuda_map_chunks(int multiprocessors, const eg_cuda_kernel *row, const eg_op *map);

/* Blocks of a launch, whose tiles are counted. */
int64_t eg_cuda_blocks_of(const eg_cuda_kernel *row, const eg_cuda_gemm *x);

/* How the last tiles of a product are split, where that is profitable or, with `always`, possible. `saved` is
 * what that saves, in waves of tiles. */
eg_cuda_tail eg_cuda_tail_of(int multiprocessors, const eg_cuda_kernel *row, const eg_cuda_gemm *x,
                             bool always, double *saved);
int64_t eg_cuda_tail_counters(int multiprocessors); /* of a product */
size_t eg_cuda_tail_bytes(int multiprocessors);     /* of the sums of partial tiles */

/* Of a persistent kernel: what a cluster makes at once, two tiles. They lie one below the other, or side by
 * side where that takes fewer tiles: then they share left, and else right. */
typedef struct eg_cuda_cluster {
    int rows, cols;
    bool shares_left;
} eg_cuda_cluster;
eg_cuda_cluster eg_cuda_cluster_of(const eg_cuda_kernel *row, const eg_cuda_gemm *x);

#endif
