/* SPDX-License-Identifier: Apache-2.0 */
/* How long a kernel row takes for an operation: what the choice of rows compares, and what a plan prints. */
#ifndef EG_CUDA_ESTIMATE_H
#define EG_CUDA_ESTIMATE_H

#include "table.h"

/* What a kind of kernel costs. Microseconds, unless said; a term's cost is that of a tile. Of a kind without
 * tiles, and of terms that a kind has not, they are 0. */
typedef struct eg_cuda_costs {
    double launch;   /* until the first k-block, and after the last tile */
    double k_block;  /* of a tile, of which a multiprocessor (cluster, if persistent) makes one at a time */
    double odd;      /* of operands that are not in vectors; the library's where it has no fast kernel; a
                        map's of a million numbers that it reads one by one */
    double latency;  /* of a k-block where blocks are too few to hide it; the library's of its least tile; of
                        two rows of a thread of a map that sums columns */
    double resident; /* blocks that hide each other's latency on a multiprocessor: a number */
    double tile;     /* its prologue and the epilogue without terms; of a map of single numbers a round of
                        blocks more */
    double bias;     /* without an activation; the library's of a k-block that no other
                        is made beside, where it does not split the depth */
    double add;      /* of a result that is added to */
    double forward;  /* bias and activation */
    double second;   /* a second result; a library's: each further part of a split depth */
    double grad;     /* a gradient at the value */
    double chain;    /* a gradient at a saved matrix */
    double tail;     /* of a stream-K tail, with its counters; of two parts of a depth; of a map with
                        whole sums a round of blocks more */
    double reading, writing; /* bandwidth of memory that the kernel reaches: 1e6 bytes a microsecond; writing
                                0: as reading, where little is written */
} eg_cuda_costs;

/* Kinds of kernels with costs of their own. */
typedef enum eg_cuda_kind {
    EG_CUDA_KIND_LIBRARY_16,
    EG_CUDA_KIND_LIBRARY_F32,
    EG_CUDA_KIND_LIBRARY_F64,
    EG_CUDA_KIND_TMA_256,
    EG_CUDA_KIND_TMA_128,
    EG_CUDA_KIND_STREAM_K,
    EG_CUDA_KIND_PINGPONG,
    EG_CUDA_KIND_PINGPONG_192,
    EG_CUDA_KIND_PINGPONG_D_B, /* whose results may be added to */
    EG_CUDA_KIND_GROUPED,      /* persistent, of groups: a tile for each consumer, */
    EG_CUDA_KIND_GROUPED_WIDE,
    EG_CUDA_KIND_GATED,        /* both products of a gated unit, */
    EG_CUDA_KIND_GATED_CHAIN,  /* one, of which its gradients are made */
    EG_CUDA_KIND_TMA_SPLIT_16, /* small tiles: of few rows, */
    EG_CUDA_KIND_TMA_SPLIT_64, /* of 64 x 64, */
    EG_CUDA_KIND_TMA_SPLIT_128,
    EG_CUDA_KIND_CLUSTER_64_64, /* tiles that are finished from the accumulators */
    EG_CUDA_KIND_CLUSTER_64_128,
    EG_CUDA_KIND_CLUSTER_64_256,
    EG_CUDA_KIND_CLUSTER_128_64,
    EG_CUDA_KIND_CLUSTER_128_128,
    EG_CUDA_KIND_CLUSTER_128_192,
    EG_CUDA_KIND_CLUSTER_128_256,
    EG_CUDA_KIND_CLUSTER_192_128,
    EG_CUDA_KIND_CLUSTER_1X4_128_64, /* tiles of a cluster, and each of them */
    EG_CUDA_KIND_CLUSTER_2X2_128_128,
    EG_CUDA_KIND_CLUSTER_2X1_128_192,
    EG_CUDA_KIND_TURNED_200_64, /* the unit's rows are columns of the result */
    EG_CUDA_KIND_TURNED_200_128,
    EG_CUDA_KIND_TURNED_152_128,
    EG_CUDA_KIND_TMA_F32,
    EG_CUDA_KIND_TMA_F64,
    EG_CUDA_KIND_STREAMED_8, /* few rows, up to 8, */
    EG_CUDA_KIND_STREAMED_16,
    EG_CUDA_KIND_STREAMED_NN,    /* of row-major weights */
    EG_CUDA_KIND_STREAMED_F32_1, /* likewise on the FMA units, */
    EG_CUDA_KIND_STREAMED_F32_4,
    EG_CUDA_KIND_STREAMED_F32_8,
    EG_CUDA_KIND_STREAMED_F32_16,
    EG_CUDA_KIND_STREAMED_F64_1,
    EG_CUDA_KIND_STREAMED_F64_8,
    EG_CUDA_KIND_ODD_8, /* of 16 bits, of lines that begin anywhere */
    EG_CUDA_KIND_ODD_16,
    EG_CUDA_KIND_TALL,      /* short rows, */
    EG_CUDA_KIND_TALL_F32,  /* on the FMA units */
    EG_CUDA_KIND_OUTER,     /* few outer products, */
    EG_CUDA_KIND_OUTER_ADD, /* that are added to what is there */
    EG_CUDA_KIND_OUTER_ADD_F64,
    EG_CUDA_KIND_FEW_16, /* few rows or columns, and small tiles */
    EG_CUDA_KIND_FEW_F32,
    EG_CUDA_KIND_FEW_F64,
    EG_CUDA_KIND_SMALL_16,
    EG_CUDA_KIND_SMALL_F32,
    EG_CUDA_KIND_MMA_16,
    EG_CUDA_KIND_FMA_F32,
    EG_CUDA_KIND_MMA_F64,
    EG_CUDA_KIND_ANY_F32,
    EG_CUDA_KIND_ANY_F64,
    EG_CUDA_KIND_MAP,
    EG_CUDA_KIND_MAP_PRODUCT,    /* of a product that waits */
    EG_CUDA_KIND_WHOLE_SUMS,     /* with all of its column sums, */
    EG_CUDA_KIND_WHOLE_SUMS_ODD, /* of rows that begin anywhere */
    EG_CUDA_KIND_MAP_ROWS,
    EG_CUDA_KIND_MAP_Y,        /* y of values alone, */
    EG_CUDA_KIND_MAP_Y_GAPS,   /* in rows with gaps between them, or that are no whole vectors; */
    EG_CUDA_KIND_MAP_ODD,      /* of rows that begin anywhere: any, */
    EG_CUDA_KIND_ACT_GRAD_ODD, /* a gradient */
    EG_CUDA_KIND_PAD,
    EG_CUDA_KIND_MAP_ANY,
    EG_CUDA_KIND_SUMS,
    EG_CUDA_KINDS
} eg_cuda_kind;

/* A device's constants: measured (calibration.c), or those of a measured one. */
typedef struct eg_cuda_calibration {
    const char *device;  /* a part of its name */
    int multiprocessors; /* that it had: bandwidth is taken to grow with their number */
    double clear;        /* microseconds to clear counters where no kernel does it */
    double add_up;       /* by which a call is longer where another kernel adds up column sums of chunks */
    eg_cuda_costs costs[EG_CUDA_KINDS];
} eg_cuda_calibration;

typedef struct eg_cuda_machine {
    const eg_cuda_calibration *calibration;
    int multiprocessors;
    int most_splits; /* parts of a depth that blocks of a cluster may share; 1: none has clusters */
} eg_cuda_machine;

/* The constants of a device by its name; those of the best known one for others. */
const eg_cuda_calibration *eg_cuda_calibration_of(const char *device);

/* Whether a matrix is in rows or columns of 16-byte vectors, or absent. */
bool eg_cuda_is_aligned(const eg_cuda_matrix *x);

/* Of the kernels with costs of its kind. */
eg_cuda_kind eg_cuda_kind_of(const eg_cuda_kernel *row);

/* Microseconds of a product, copy or map. A stream-K tail saves `saved` waves of tiles; below 0: there is
 * none. Pure. */
double eg_cuda_estimate(const eg_cuda_machine *machine, const eg_cuda_kernel *row, const eg_cuda_gemm *x,
                        double saved);

/* Bytes of shared memory of a launch whose blocks sum a part of the depth each. Pure. */
int eg_cuda_shared_of(const eg_cuda_kernel *row, const eg_cuda_gemm *x, int splits);

/* In how many parts a row that can split the depth does best to sum the depth. Pure. */
int eg_cuda_splits_of(const eg_cuda_machine *machine, const eg_cuda_kernel *row, const eg_cuda_gemm *x);

/* Of column sums of a product's left beside it. */
double eg_cuda_estimate_left_sums(const eg_cuda_machine *machine, int64_t rows, int64_t cols);

/* Of the sums of `rows` rows of column sums. */
double eg_cuda_estimate_sums(const eg_cuda_machine *machine, const eg_cuda_kernel *row, int64_t rows,
                             int64_t cols);

#endif
