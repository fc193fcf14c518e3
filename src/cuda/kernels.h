/* The kernel table of CUDA, and what a kernel is given. Shared by the host (C17) and the kernels (CUDA C):
 * plain structs, passed by value as the one parameter of an entry point.
 *
 * A matrix is an address and three strides, so every layout, offset, leading dimension, transposition and
 * broadcast is the same case to a kernel. A row of the table says what it can take beyond that. */
#ifndef EG_CUDA_KERNELS_H
#define EG_CUDA_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "../plan.h"

/* What a device has: bits of eg_caps.features. */
enum {
    EG_CUDA_SM80 = 1U << 0,  /* mma.sync, cp.async: compute capability 8.0 and up */
    EG_CUDA_SM90A = 1U << 1, /* wgmma, TMA with setmaxnreg: 9.0 exactly */
    EG_CUDA_LT = 1U << 2     /* libcublasLt could be loaded */
};

/* A matrix in device memory. Strides in elements. */
typedef struct eg_cuda_matrix {
    uint64_t data; /* address of element (0, 0) of item 0; 0: absent */
    int64_t row_stride, col_stride;
    int64_t item_stride; /* 0: the same matrix for every item */
    int32_t dtype;       /* eg_dtype */
    int32_t unused;
} eg_cuda_matrix;

/* A product with its epilogue (eg_epilogue):
 *
 *   acc(i, j) = sum over s < summed, t < depth of left(i, t) * right(t, j)        accumulated in f32 | f64
 *
 *   STORE     out = acc (+ out, where `accumulate`)
 *   FORWARD   p = acc + bias;  second = p (where present);  out = act(p) (+ in: the residual)
 *   ACT_GRAD  p = acc + bias;  g = in * act'(p);            out = g (where present);  sums of g
 *   CHAIN     g = acc * act'(in), in = pre or y as `source` says;  out = g;           sums of g
 *
 * `items` results; an operand's item is result number * item_stride. With `summed` > 1 there is one result
 * and left and right step their item_stride from summand to summand. depth, summed may be 0: acc is 0.
 * Sums: row (item * chunks + tile row) of `sums` has the column sums of rows [tile row * tile_rows, ...) of
 * the item, `cols` numbers of the compute type, every number written by one thread in one fixed order. */
typedef struct eg_cuda_gemm {
    eg_cuda_matrix left, right;
    eg_cuda_matrix out, second;
    eg_cuda_matrix in;   /* residual | grad | saved of the layer below */
    eg_cuda_matrix bias; /* [cols] */
    uint64_t sums;       /* 0: not wanted */
    int64_t rows, cols, depth;
    int64_t items, summed;
    int64_t chunks;          /* ceil(rows / tile_rows) */
    int64_t tiles;           /* items * chunks * ceil(cols / tile_cols) */
    int32_t epilogue;        /* eg_epilogue */
    int32_t activation;      /* eg_activation; of the layer below for CHAIN */
    int32_t source;          /* CHAIN: eg_source */
    int32_t propagate;       /* act'(NaN) = NaN, else 0 */
    int32_t accumulate;      /* STORE */
    int32_t multiprocessors; /* for persistent kernels */
} eg_cuda_gemm;

/* A CUtensorMap: 128 bytes that the driver encodes, read by the copy engine from the parameters. */
#if defined(__cplusplus)
typedef struct alignas(64) eg_cuda_map {
    uint64_t words[16];
} eg_cuda_map;
#else
typedef struct eg_cuda_map {
    _Alignas(64) uint64_t words[16];
} eg_cuda_map;
#endif

/* Numbers of 32 bits by which blocks of a launch tell each other. A call's first kernel sets them to 0. */
typedef struct eg_cuda_counts {
    uint64_t data;
    int64_t count; /* may be 0 */
} eg_cuda_counts;

/* grad_pre = grad * act'(saved), element by element, with column sums of `chunks` parts of an item's rows:
 * row (item * chunks + chunk) of `sums` has those of a part.
 *
 * The first rows may be one kernel's, and the rest another's that multiplies grad_pre (hopper_pass.cuh), and
 * counts the parts that it has begun, and those of each band of rows that it has finished. */
typedef struct eg_cuda_act_grad {
    eg_cuda_matrix grad, saved;
    eg_cuda_matrix out; /* grad_pre; absent: only the sums are wanted */
    uint64_t sums;      /* 0: not wanted */
    eg_cuda_counts counts;
    int64_t rows, cols, items;
    int64_t chunks;
    int32_t activation, source, propagate, unused;
} eg_cuda_act_grad;

enum {
    EG_CUDA_REST_CHUNK = 32,          /* rows of a chunk of the rest */
    EG_CUDA_REST_BAND = 256,          /* and of a band: those of a tile of hopper_gemm.cuh */
    EG_CUDA_REST_BYTES = 3 * 6 * 1024 /* of shared memory, for rows on their way to three warps */
};

/* The last tiles of a product, of which there are fewer than clusters of blocks to make them, cut along the
 * depth (hopper_cut.cuh). */
typedef struct eg_cuda_cut {
    uint64_t sums;   /* of the pieces: room for those of a tile for each cluster */
    uint64_t counts; /* EG_CUDA_CUT_COUNTS for each cluster, 0 when the kernel begins: the pieces there */
    int32_t tiles;   /* that are cut; 0: none */
    int32_t helpers; /* clusters that multiply what the tiles' own leave */
    int32_t kept;    /* strips of the depth of a tile that its own cluster multiplies */
    int32_t unused;
} eg_cuda_cut;

enum { EG_CUDA_CUT_COUNTS = 2 /* one for each of its blocks */ };

enum { EG_CUDA_CLUSTER = 2 /* blocks that make a tile together, in the persistent kernels */ };

/* The parameter of the Hopper kernels: which operand has a map is the kernel's to say. */
typedef struct eg_cuda_hopper {
    eg_cuda_map left, right, in, out, second;
    eg_cuda_gemm gemm;
    int64_t high; /* rows of tiles in the block that those of a wave form */
    eg_cuda_cut cut;
    eg_cuda_counts counts; /* to be set to 0 */
    eg_cuda_act_grad rest; /* the last rows of left, where they are the kernel's to make */
} eg_cuda_hopper;

/* out[j] = (accumulate ? out[j] : 0) + the sum of `rows` rows of `sums`. */
typedef struct eg_cuda_column_sum {
    uint64_t sums;
    eg_cuda_matrix out;
    int64_t rows, cols;
    int32_t accumulate, unused;
} eg_cuda_column_sum;

/* The rest of grad_pre, d_b, d_a and d_bias in one launch (hopper_pool.cuh). */
typedef struct eg_cuda_pool {
    eg_cuda_hopper d_b, d_a; /* a result each; d_a's has the rest */
    eg_cuda_column_sum sum;  /* of d_bias; no `sums`: not wanted */
    uint64_t next_tile;      /* a count, 0 when the kernel begins: of d_b's tiles, then d_a's */
    int64_t passers;         /* clusters that make grad_pre before they multiply */
} eg_cuda_pool;

enum {
    EG_CUDA_POOL_MAIL = 24, /* bytes of shared memory, after those of a product */
    EG_CUDA_POOL_STRIPS = 8 /* of the depth of a tile, at least */
};

/* The parameter of the kernels that measure the peak: a number of each thread goes to `out`. */
typedef struct eg_cuda_peak {
    uint64_t out;
    int64_t turns;
} eg_cuda_peak;

/* How a row is launched. */
typedef enum eg_cuda_family {
    EG_CUDA_LIBRARY, /* cublasLt, where it is a plain product */
    EG_CUDA_STRIDED, /* eg_cuda_gemm; a block a tile, any strides */
    EG_CUDA_TMA,     /* eg_cuda_hopper; persistent, a block a multiprocessor */
    EG_CUDA_BOXES,   /* eg_cuda_hopper with maps of left and right; a block a tile */
    EG_CUDA_POOL,    /* eg_cuda_pool: d_a, d_b and d_bias at once; persistent */
    EG_CUDA_VECTORS, /* eg_cuda_act_grad: rows of 16-byte vectors */
    EG_CUDA_SUMS     /* eg_cuda_column_sum */
} eg_cuda_family;

/* What the operands of a row must be like. */
enum {
    EG_CUDA_ALIGNED = 1U << 0,    /* left, right, in, out: one stride 1, the others and the address multiples
                                     of 16 bytes */
    EG_CUDA_ROW_STORES = 1U << 1, /* in, out, second: col_stride 1 */
    EG_CUDA_NO_SECOND = 1U << 2,  /* `second` absent */
    EG_CUDA_NO_REDUCTION = 1U << 3, /* summed is 1 */
    EG_CUDA_MATRIX_UNIT = 1U << 4,  /* sums in a matrix unit that truncates: not for EG_MATH_STRICT */
    EG_CUDA_LEFT_ROWS = 1U << 5,    /* left is row-major */
    EG_CUDA_LEFT_COLS = 1U << 6,    /* left is column-major */
    EG_CUDA_RIGHT_ROWS = 1U << 7,
    EG_CUDA_RIGHT_COLS = 1U << 8,
    EG_CUDA_SMALL = 1U << 9, /* sizes below 2^31 */
    EG_CUDA_CUT = 1U << 10,  /* the last tiles are cut along the depth (eg_cuda_cut) */
    EG_CUDA_REST = 1U << 11, /* left is grad_pre, of which the kernel makes the last rows itself */
    EG_CUDA_COPY = 1U << 12, /* depth 0, and out = in: no bias, activation or second */
    EG_CUDA_RELAY = 1U << 13 /* cols a multiple of 8; the epilogue is beside the next tile's products */
};

/* A row of the table, best first for its kind of step; the last row of a kind takes anything. */
typedef struct eg_cuda_kernel {
    const char *name; /* of the entry point, "eg_" + name in the fatbin: `git grep` finds it */
    eg_step_kind kind;
    eg_cuda_family family;
    eg_dtype compute;   /* f32 | f64 */
    eg_dtype dtype;     /* of left and right; EG_DTYPE_DEFAULT: any whose compute type is `compute` */
    uint32_t needs;     /* EG_CUDA_SM80, ... */
    uint32_t epilogues; /* GEMM: bits 1 << eg_epilogue */
    uint32_t takes;     /* EG_CUDA_ALIGNED, ... */
    int tile_rows, tile_cols, depth;
    int threads;
    int shared;   /* bytes of dynamic shared memory */
    int sum_rows; /* rows of the result that a row of `sums` covers; 0: tile_rows */
} eg_cuda_kernel;

/* Row `index`, NULL past the end. */
const eg_cuda_kernel *eg_cuda_kernel_row(int index);

#endif
