/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel of CUDA is given. Shared by the host (C17) and the kernels (CUDA C): plain structs, passed by
 * value as the one parameter of an entry point.
 *
 * A matrix is an address and three strides, so every layout, offset, leading dimension, transposition and
 * broadcast is the same case to a kernel. A row of the table (table.h) says what it can take beyond that. */
#ifndef EG_CUDA_KERNELS_H
#define EG_CUDA_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "epigrad/epigrad.h"

/* A matrix in device memory. Strides in elements. */
typedef struct eg_cuda_matrix {
    uint64_t data; /* address of element (0, 0) of item 0; 0: absent */
    int64_t row_stride, col_stride;
    int64_t item_stride; /* 0: the same matrix for every item */
    int32_t dtype;       /* eg_dtype */
    int32_t unused;
} eg_cuda_matrix;

/* What is done to a finished tile of a product: the terms of its operation, as the kernels have them. */
typedef enum eg_cuda_epilogue {
    EG_CUDA_STORE,    /* none */
    EG_CUDA_FORWARD,  /* bias, a second result before the activation, activation, residual */
    EG_CUDA_ACT_GRAD, /* bias, gradient at the value, column sums */
    EG_CUDA_CHAIN,    /* gradient at a saved matrix, column sums */
    EG_CUDA_TIMES     /* as EG_CUDA_FORWARD, but what is added there is a factor */
} eg_cuda_epilogue;

/* What the rows of groups are of an operation (groups.h). */
typedef enum eg_cuda_ragged {
    EG_CUDA_DENSE, /* there are no groups */
    EG_CUDA_RAGGED_ROWS,
    EG_CUDA_RAGGED_DEPTH /* of a product for each group */
} eg_cuda_ragged;

/* A product with its epilogue:
 *
 *   acc(i, j) = scale * sum over s < summed, t < depth of left(i, t) * right(t, j)      summed in f32 | f64
 *
 *   STORE     out = acc (+ out, where `accumulate`)
 *   FORWARD   p = acc + bias;  second = p (where present);  out = act(p) (+ in: the residual)
 *   ACT_GRAD  p = acc + bias;  g = in * act'(p);            out = g (where present);  sums of g
 *   CHAIN     g = acc * act'(in), in = pre or y as `source` says;  out = g;           sums of g
 *
 * `items` results; an operand's item is result number * item_stride. With `summed` > 1 there is one result
 * and left and right step their item_stride from summand to summand. depth, summed may be 0: acc is 0.
 * Of groups, `items` is their number; `rows` or `depth`, as `ragged` says, is that of all of them, and their
 * ends are read from device memory. A matrix with those rows has them of all groups, in their order, and
 * item_stride 0; the item of any other is its group. Rows past the last end are neither read nor written.
 * Sums: row (item * chunks + tile row) of `sums` has the column sums of rows [tile row * tile_rows, ...) of
 * the item, `cols` numbers of the compute type, every number written by one thread in one fixed order. Where
 * that is one row, it may be the result: of any type, and added to what is there. Of groups, the row is the
 * row tile's, for tiles of as many rows as it covers. */
typedef struct eg_cuda_gemm {
    eg_cuda_matrix left, right;
    eg_cuda_matrix out, second;
    eg_cuda_matrix in;   /* residual | grad | saved of the layer below | factor | what vectors are added to */
    eg_cuda_matrix bias; /* [cols] */
    eg_cuda_matrix total; /* [cols]: where the sums go that are the only row of `sums`; absent: to `sums` */
    uint64_t sums;        /* 0: not wanted */
    uint64_t ends;        /* of groups: int32 [items]; 0: there are none */
    uint64_t wrong;       /* uint32: set to 1 where an end is wrong */
    int64_t rows, cols, depth;
    int64_t items, summed;
    int64_t chunks;          /* ceil(rows / tile_rows) */
    int64_t tiles;           /* items * chunks * ceil(cols / tile_cols) */
    int32_t epilogue;        /* eg_cuda_epilogue */
    int32_t activation;      /* eg_activation; of the layer below for CHAIN */
    int32_t source;          /* CHAIN: eg_source */
    int32_t propagate;       /* act'(NaN) = NaN, else 0 */
    int32_t accumulate;      /* STORE */
    int32_t multiprocessors; /* for persistent kernels */
    int32_t splits;          /* small tiles: parts of the depth, one for each block of a cluster */
    int32_t add_to_total;
    int32_t ragged; /* eg_cuda_ragged */
    int32_t unused;
    double scale; /* of the product, once: 1 where another kernel has made it */
} eg_cuda_gemm;

/* A CUtensorMap: 128 bytes that the driver encodes. TMA reads it from the parameters of the kernel. */
#if defined(__cplusplus)
typedef struct alignas(64) eg_cuda_tensor_map {
    uint64_t words[16];
} eg_cuda_tensor_map;
#else
typedef struct eg_cuda_tensor_map {
    _Alignas(64) uint64_t words[16];
} eg_cuda_tensor_map;
#endif

/* 32-bit counters in device memory, by which the blocks of a launch wait for each other. A call's first
 * kernel sets them to 0. */
typedef struct eg_cuda_counts {
    uint64_t data;
    int64_t count; /* may be 0 */
} eg_cuda_counts;

/* grad_pre = grad * act'(saved), element by element, with the column sums of `chunks` chunks of an item's
 * rows: row (item * chunks + chunk) of `sums` has those of a chunk.
 */
typedef struct eg_cuda_act_grad {
    eg_cuda_matrix grad, saved;
    eg_cuda_matrix out;   /* grad_pre; absent: only the sums are wanted */
    eg_cuda_matrix total; /* as in eg_cuda_gemm */
    uint64_t sums;        /* 0: not wanted */
    uint64_t ends, wrong; /* as in eg_cuda_gemm: rows up to the last end */
    eg_cuda_counts counts;
    int64_t rows, cols, items;
    int64_t chunks, groups;
    int32_t activation, source, propagate, add_to_total;
} eg_cuda_act_grad;

/* A stream-K tail (hopper_stream_k.cuh): the last tiles of a product, of which there are fewer than clusters.
 * The k-blocks of each are shared between the cluster that owns the tile and some helpers. */
typedef struct eg_cuda_stream_k {
    uint64_t sums;          /* accumulators of partial tiles: room for a tile of each cluster */
    uint64_t counts;        /* EG_CUDA_STREAM_K_COUNTERS for each cluster, 0 when the kernel begins */
    int32_t tiles;          /* of the tail; 0: there is none */
    int32_t helpers;        /* clusters that multiply what the owners do not */
    int32_t owner_k_blocks; /* of a tile: its owner multiplies these, helpers the others */
    int32_t unused;
} eg_cuda_stream_k;

enum { EG_CUDA_STREAM_K_COUNTERS = 2 /* one for each of its blocks */ };

enum { EG_CUDA_CLUSTER = 2 /* blocks that make a tile together, in the persistent kernels */ };

/* The parameter of the Hopper kernels. Each says which of the tensor maps it uses. */
typedef struct eg_cuda_hopper {
    eg_cuda_tensor_map left, right, in, out, second;
    eg_cuda_gemm gemm;
    int64_t raster;      /* clusters run tiles in bands of this many rows of tiles, to share operands in L2 */
    int32_t tma_cols;    /* columns of out and second that TMA stores: threads store the others */
    int32_t shares_left; /* the blocks of a cluster lie side by side: else one below the other */
    eg_cuda_stream_k tail;
    eg_cuda_counts counts;    /* to be set to 0 */
    eg_cuda_matrix left_sums; /* [depth]: column sums of left (hopper_left_sums.cuh); absent: not wanted */
    int32_t add_to_left_sums;
    int32_t unused;
} eg_cuda_hopper;

/* out[j] = (accumulate ? out[j] : 0) + the sum of `rows` rows of `sums`; of groups, out[g, j] the sum of
 * those of its row tiles. */
typedef struct eg_cuda_column_sum {
    uint64_t sums;
    eg_cuda_matrix out;
    int64_t rows, cols;
    int32_t accumulate, unused;
    uint64_t ends;            /* of groups; 0: there are none */
    int64_t groups, all_rows; /* of the result that was summed */
    int32_t chunk_rows;       /* of it, that a row of `sums` covers */
    int32_t also_unused;
} eg_cuda_column_sum;

/* The parameter of the kernels that measure the peak: a number of each thread goes to `out`. */
typedef struct eg_cuda_peak {
    uint64_t out;
    int64_t turns;
} eg_cuda_peak;

#endif
