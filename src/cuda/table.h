/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table of CUDA: what each kernel does, and what its operands must be like. */
#ifndef EG_CUDA_TABLE_H
#define EG_CUDA_TABLE_H

#include "core/op.h"
#include "kernels.h"

/* What a device has: bits of eg_caps.features. */
enum {
    EG_CUDA_SM80 = 1U << 0,  /* mma.sync, cp.async: compute capability 8.0 and up */
    EG_CUDA_SM90A = 1U << 1, /* wgmma, TMA with setmaxnreg: 9.0 exactly */
    EG_CUDA_LT = 1U << 2     /* libcublasLt could be loaded */
};

/* How a row is launched. */
typedef enum eg_cuda_family {
    EG_CUDA_LIBRARY,   /* cublasLt, where it is a plain product */
    EG_CUDA_STRIDED,   /* eg_cuda_gemm; a block a tile, any strides */
    EG_CUDA_SPLIT,     /* eg_cuda_gemm; any strides, and a cluster of blocks may share a tile's depth */
    EG_CUDA_STREAMED,  /* eg_cuda_gemm of few rows, whose right is read once, in vectors; a cluster may share
                          the depth */
    EG_CUDA_TMA,       /* eg_cuda_hopper; persistent, a block a multiprocessor */
    EG_CUDA_PAIR,      /* eg_cuda_hopper_pair; persistent likewise */
    EG_CUDA_TMA_SPLIT, /* eg_cuda_hopper with tensor maps of left and right; a cluster may share a tile's
                          depth */
    EG_CUDA_TMA_TILES, /* eg_cuda_hopper with tensor maps of left and right; a block a tile */
    EG_CUDA_VECTORS,   /* eg_cuda_act_grad: rows of 16-byte vectors */
    EG_CUDA_GATED,     /* eg_cuda_gated: three maps, rows of 16-byte vectors */
    EG_CUDA_SUMS       /* eg_cuda_column_sum */
} eg_cuda_family;

enum { EG_CUDA_LINE = 128 /* bytes of a line of L2 */ };

/* What the operands of a row must be like. */
enum {
    EG_CUDA_ALIGNED = 1U << 0,    /* left, right, in, out: one stride 1, the others and the address multiples
                                     of 16 bytes */
    EG_CUDA_ROW_STORES = 1U << 1, /* in, out, second: col_stride 1 */
    EG_CUDA_NO_REDUCTION = 1U << 2, /* summed is 1 */
    EG_CUDA_MATRIX_UNIT = 1U << 3,  /* sums in a matrix unit that truncates: not for EG_MATH_STRICT */
    EG_CUDA_LEFT_ROWS = 1U << 4,    /* left is row-major */
    EG_CUDA_LEFT_COLS = 1U << 5,    /* left is column-major */
    EG_CUDA_RIGHT_ROWS = 1U << 6,
    EG_CUDA_RIGHT_COLS = 1U << 7,
    EG_CUDA_SMALL = 1U << 8,     /* sizes below 2^31 */
    EG_CUDA_STREAM_K = 1U << 9,  /* can have a stream-K tail: clusters share the depth of the last tiles */
    EG_CUDA_COPY = 1U << 10,     /* depth 0, and out = in: no bias, activation or second */
    EG_CUDA_PINGPONG = 1U << 11, /* a tile's epilogue runs during the products of the next */
    EG_CUDA_FEW_ROWS = 1U << 12, /* no more than a tile's: of groups, as their mean */
    EG_CUDA_FEW_COLS = 1U << 13,
    EG_CUDA_ROW_GROUPS = 1U << 14,   /* takes the rows of groups */
    EG_CUDA_DEPTH_GROUPS = 1U << 15, /* sums over the rows of each group */
    EG_CUDA_GROUPS_ALONE = 1U << 16, /* takes nothing else */
    EG_CUDA_SHARES_LEFT = 1U << 17,  /* the blocks of a cluster always lie side by side */
    EG_CUDA_RELU = 1U << 18,         /* takes no other activation, and not none */
    EG_CUDA_SHALLOW = 1U << 19,      /* sums EG_OUTER_TERMS terms at most */
    EG_CUDA_TALL = 1U << 20,         /* short rows that follow each other (skinny.h) */
    EG_CUDA_ODD = 1U << 21,          /* lines that begin anywhere, if not too far apart */
    EG_CUDA_NO_ADD = 1U << 22,       /* not where the result is added to */
    EG_CUDA_ONE_TYPE = 1U << 23,     /* the epilogue reads and writes the operands' type */
    EG_CUDA_PRODUCTS = 1U << 24,     /* of a map: finishes products that wait, and nothing else */
    EG_CUDA_TURNED = 1U << 25,       /* the unit's rows are columns of right (kernels/hopper_turned.cuh) */
    EG_CUDA_WHOLE_SUMS = 1U << 26,   /* of a map that sums columns: all rows (whole_sums.h) */
    EG_CUDA_NO_GAPS = 1U << 27       /* of a map: one item, rows that follow each other in whole vectors */
};

/* A row of the table, best first for its kind of step; the last row of a kind takes anything. */
typedef struct eg_cuda_kernel {
    const char *name; /* of the entry point, "eg_" + name in the fatbin: `git grep` finds it */
    eg_op_kind kind;  /* of operation */
    eg_cuda_family family;
    eg_dtype compute;   /* f32 | f64 */
    eg_dtype dtype;     /* of left and right; EG_DTYPE_DEFAULT: any whose compute type is `compute` */
    uint32_t needs;     /* EG_CUDA_SM80, ... */
    uint32_t epilogues; /* GEMM: bits 1 << eg_cuda_epilogue */
    uint32_t takes;     /* EG_CUDA_ALIGNED, ... */
    int tile_rows, tile_cols, k_block;
    int threads;
    int shared;   /* bytes of dynamic shared memory */
    int sum_rows; /* rows of the result that a row of `sums` covers, of a whole tile together; 0: tile_rows */
    int down, across; /* EG_CUDA_TMA_SPLIT: tiles of a cluster, which share operands; 0: one */
} eg_cuda_kernel;

static inline bool eg_cuda_is_persistent(const eg_cuda_kernel *row) {
    return row->family == EG_CUDA_TMA || row->family == EG_CUDA_PAIR;
}

/* Tiles of a cluster, whose blocks share operands; and its rows and columns. Those of a persistent kernel are
 * two, which lie as takes fewer clusters: partition.h. */
static inline int eg_cuda_tiles_down(const eg_cuda_kernel *row) { return row->down > 0 ? row->down : 1; }
static inline int eg_cuda_tiles_across(const eg_cuda_kernel *row) {
    return row->across > 0 ? row->across : 1;
}
static inline int eg_cuda_cluster_tiles(const eg_cuda_kernel *row) {
    return eg_cuda_tiles_down(row) * eg_cuda_tiles_across(row);
}
static inline int eg_cuda_cluster_rows(const eg_cuda_kernel *row) {
    return eg_cuda_tiles_down(row) * row->tile_rows;
}
static inline int eg_cuda_cluster_cols(const eg_cuda_kernel *row) {
    return eg_cuda_tiles_across(row) * row->tile_cols;
}

enum { EG_CUDA_MAX_KERNELS = 224 };

/* Row `index`, NULL past the end. There are EG_CUDA_MAX_KERNELS at most. */
const eg_cuda_kernel *eg_cuda_kernel_row(int index);

#endif
