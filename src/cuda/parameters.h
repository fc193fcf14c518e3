/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels are given: a program's views with the addresses of a call. */
#ifndef EG_CUDA_PARAMETERS_H
#define EG_CUDA_PARAMETERS_H

#include "step.h"

/* Where the views of a program are. Without a call, as when it is compiled, each view's address is the power
 * of two that divides it: enough to know which are there, and what kernels can take. */
typedef struct eg_cuda_binding {
    const eg_program *program;
    const eg_call *call; /* NULL: no addresses yet */
    bool aligned;        /* without a call: every operand is taken to begin where kernels like it best */
} eg_cuda_binding;

/* Where a temporary's numbers are stored for the caller, too: it has no region then. NULL: nowhere. */
const eg_view *eg_cuda_stored_at(const eg_op_list *list, int temporary);

eg_cuda_matrix eg_cuda_matrix_of(const eg_cuda_binding *binding, const eg_view *view);

/* A product, a copy, or a map as the kernels of any strides take it. */
eg_cuda_gemm eg_cuda_gemm_of(const eg_cuda_binding *binding, int op);
/* And a part of it. */
eg_cuda_gemm eg_cuda_gemm_of_part(const eg_cuda_binding *binding, int op, eg_cuda_part part);

/* Whether a product waits in a region of its own to be finished: its result's memory would round it, or may
 * be an input's, which is not known before the call. */
bool eg_cuda_has_unfinished(const eg_op_list *list, const eg_op *op);
/* Bytes of that region for an operation, SIZE_MAX where memory could not hold them. */
size_t eg_cuda_unfinished_bytes(const eg_op_list *list, const eg_op *op);

/* In how many chunks of its depth a product with a small result can be made. */
int64_t eg_cuda_depth_chunks(const eg_cuda_gemm *x);
/* Elements from row to row of a matrix of ours. Rows begin on lines of L2 where that adds an eighth of their
 * length at most, else on vectors of 16 bytes: 128 bytes that begin within a line are in two, and L2, which
 * large products wait for then, has to give twice as much (docs/lab/cuda.md). */
int64_t eg_cuda_pitch_of(int64_t cols, eg_dtype dtype);
/* Of a product that waits, and of a padded copy, whose rows are of the operand's contiguous dimension. */
int64_t eg_cuda_unfinished_ld(int64_t cols);
void eg_cuda_padded_shape(const eg_op_list *list, int operand, int64_t *lines, int64_t *pitch,
                          int64_t *items);
/* The first product's view of an operand; NULL: no product reads it. */
const eg_view *eg_cuda_read_by_product(const eg_op_list *list, int operand);

/* Where the sums go of a step that makes its REDUCE, and whether they are added to what is there. */
void eg_cuda_take_total(const eg_cuda_binding *binding, const eg_cuda_step *detail, eg_cuda_matrix *total,
                        int32_t *adds);

eg_cuda_act_grad eg_cuda_act_grad_of(const eg_cuda_binding *binding, int op, const eg_cuda_step *detail);

eg_cuda_column_sum eg_cuda_column_sum_of(const eg_cuda_binding *binding, int op, const eg_cuda_step *detail);

/* Of the products of chunks. */
eg_cuda_column_sum eg_cuda_chunk_sum_of(const eg_cuda_binding *binding, int op);

/* The sums of portions, `cols` wide, to row `total`: `rows` is not set. */
eg_cuda_column_sum eg_cuda_portion_sum_of(uint64_t sums, int64_t cols, int64_t total, eg_dtype compute);

/* Some items and rows of either; the counts of tiles are set again for the row. */
eg_cuda_matrix eg_cuda_from(eg_cuda_matrix x, int64_t item, int64_t row);
eg_cuda_gemm eg_cuda_part_of(const eg_cuda_gemm *whole, int64_t item, int64_t items, int64_t row,
                             int64_t rows);
int64_t eg_cuda_count_tiles(const eg_cuda_kernel *row, eg_cuda_gemm *gemm);

eg_cuda_counts eg_cuda_counters_of(const eg_cuda_binding *binding);
uint64_t eg_cuda_region_of(const eg_cuda_binding *binding, int region);

#endif
