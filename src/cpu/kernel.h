/* The kernel table of the CPU: what one micro-kernel is, and what the blocking may rely on.
 *
 * Matrices are packed in one of two formats, which the row says.
 *
 * Panels, for multiply-add units: `nr` columns each, row by row and without gaps, in the compute type.
 *
 *     panel p, row r:   nr numbers   X[r][p*nr .. p*nr + nr)        columns past the last are 0
 *
 * One such copy serves both sides of a product:
 *     as the right operand   X[k][j]    a panel is the k x nr strip that the kernel streams through
 *     as the left operand    X[i][k]    mr rows of nr consecutive k, panel after panel       ("plain")
 *     as the left, transposed X[k][i]   mr columns of one panel; mr divides nr               ("transposed")
 * so A is packed once for A·B and for Aᵀ·grad_pre, grad_pre once for grad_pre·Bᵀ and Aᵀ·grad_pre, and only
 * B needs a transposed copy.
 *
 * Cells, for matrix units that multiply bf16: squares of 32 x 32, each number as the sum of `terms` bf16.
 * A matrix unit reads its operands in pairs along the summed dimension (cells.h), so every operand is
 * packed once for each product it is in. */
#ifndef EG_CPU_KERNEL_H
#define EG_CPU_KERNEL_H

#include <stdbool.h>

#include "cells.h"
#include "epigrad/epigrad.h"

/* Instruction-set bits, in eg_caps.features. */
enum { EG_CPU_AVX2 = 1U << 0, EG_CPU_AVX512 = 1U << 1, EG_CPU_NEON = 1U << 2, EG_CPU_AMX = 1U << 3 };

#define EG_COUNT_ROW(NAME, name, value, from_y, text) +1
#define EG_ACTIVATIONS                                (0 EG_ACTIVATION_TABLE(EG_COUNT_ROW))

#define EG_CPU_MATH(math) (1U << (math))
#define EG_CPU_ANY_MATH                                                                                      \
    (EG_CPU_MATH(EG_MATH_DEFAULT) | EG_CPU_MATH(EG_MATH_STRICT) | EG_CPU_MATH(EG_MATH_FAST))

/* Rows of memory, from `at` on: each `bytes` long, and the next `stride` on. NULL: none. */
typedef struct eg_asked {
    const char *at;
    int64_t stride, bytes;
} eg_asked;

/* A share of what is asked for: rows as long as a panel's, so many of them with every nr terms. */
typedef struct eg_share {
    const char *at;
    int64_t stride, slice;
} eg_share;

/* What can be done on the way. Memory that will be wanted soon is asked for in slices: what products after
 * this one read, and the rows that the tile will be stored to. And a matrix unit leaves the vector units free
 * for the end of the tile before: steps of it, as often as they are called. */
typedef struct eg_ahead {
    const char *right, *left; /* cells: of the next strips */
    size_t right_bytes, left_bytes;
    eg_share next_right, next_left; /* panels: of the next panel, and of the next pass */
    int64_t rows;                   /* of `out`, and for panels of `in`, which the tile's end reads */
    int64_t row_slice;              /* panels: with every nr terms */
    eg_asked out, in;
    int64_t b_rows; /* cells: rows of B that the next panel will be laid out from */
    eg_asked b;
    void (*meanwhile)(void *of); /* a step, */
    void *of;
    int64_t steps; /* of which so many are left */
} eg_ahead;

/* Rows whose columns are neighbours, in a tile or the caller's memory. */
typedef struct eg_rows {
    char *at;     /* NULL: absent */
    int64_t step; /* bytes from row to row */
    eg_dtype dtype;
    float scale; /* f32 from kernels for cells only: what is read is multiplied with it */
} eg_rows;

/* One pass over the rows [row, end) of a tile, which ends a product: every vector is read, finished in
 * registers and written. Whole vectors of `result` may be written, but no column past `cols` elsewhere. */
typedef struct eg_sweep {
    int64_t row, end, cols;
    eg_rows x, bias;  /* act and act' are of x + bias; x absent: of 0. A bias is one row */
    eg_rows other;    /* the number added, or multiplied */
    eg_rows pre;      /* act: x + bias goes here */
    eg_rows out;      /* and the result here */
    void *result;     /* act': and here, as a tile, */
    int64_t tile_row; /* of so many numbers a row */
    bool propagate;   /* act'(NaN) is NaN, not 0 */
} eg_sweep;

/* A whole cell's tile that becomes grad_pre, row by row: x = product + bias, then grad * act'(x). */
typedef struct eg_grad_rows {
    float *tile; /* the product, then grad_pre */
    const float *bias;
    const char *grad;  /* of the layer's type */
    int64_t grad_step; /* bytes from row to row of it */
    float *sums;       /* of the columns: the row is added */
    bool propagate;    /* act'(NaN) is NaN, not 0 */
} eg_grad_rows;

/* An operand as a product reads it, in panels or where its caller has it: distances in elements. Cells follow
 * each other and need none. */
typedef struct eg_factor {
    const void *at;
    int64_t index; /* from one row of the left operand, or column of the right one, to the next */
    int64_t term;  /* from one summed term to the next, within a group of nr */
    int64_t group; /* from nr terms to the next nr */
} eg_factor;

/* What a matrix unit still holds of the last tile: to be stored between multiplications, of the next tile, it
 * takes no time. */
typedef struct eg_held {
    char *to;    /* where the registers' sums go, a tile or `sums`; NULL: they hold none */
    float *tile; /* to which those in `sums` have to be added, */
    int64_t row; /* from this row on */
    _Alignas(64) float sums[EG_CELL * EG_CELL];
} eg_held;

/* Where a tile's sums go, and what is added to them: a tile, or NULL. */
typedef struct eg_sums {
    const void *before;
    void *to;      /* a tile too; or, but from cells, where the caller has the result */
    int64_t row;   /* numbers from row to row of it */
    bool past;     /* whole lines, to be stored past the caches */
    eg_held *held; /* cells: has the sums until the next product, or `settle`, stores them */
} eg_sums;

/* All tiles are mr x nr, row by row, in the compute type. */
typedef struct eg_cpu_kernel {
    const char *name;
    eg_dtype compute;
    eg_dtype dtype; /* of the layers it serves; EG_DTYPE_DEFAULT: all that compute in `compute` */
    unsigned maths; /* an EG_CPU_MATH for each that it may serve */
    uint32_t needs; /* instruction-set bits */
    int terms;      /* of a number in a cell; 0: its operands are panels */
    int mr, nr;     /* the tile held in registers */
    int lanes;      /* numbers of a vector */
    int streams;    /* products of fewer terms may be stored past the caches: a tile's rows are lines */
    int kc;         /* terms a pass, summed in registers before they are added to the tile; */
    int whole_kc;   /* or so many, if that is all, */
    int only_kc;    /* or so many where a block lays out B for itself; 0: no other number */
    int run;        /* passes are cut at multiples of this */
    int block_rows, block_cols; /* of the result, at most: its accumulators and left operand stay in L2 */
    int block_left; /* numbers of the left operand that may be there without accumulators, in one pass */
    int only_from,
        only_rows;      /* or so many at least, and at most, where it has all and lays out B for itself */
    double least;       /* from so many multiply-adds of a product it is the faster choice, */
    double uses;        /* if they are so many for a number that is packed, */
    double uses_alone;  /* or so many in a layer that one thread takes: what is packed stays with it */
    bool one_panel;     /* and, where this is set, if K and N are nr */
    double thread_work; /* multiply-adds worth a further thread: some 10 to 30 us */

    /* Around each block, on the thread that computes it; NULL: nothing to do. */
    void (*enter)(void);
    void (*leave)(void);
    void (*settle)(eg_held *held); /* stores what the last product left, before that tile's end reads it */

    /* sums = before + left · right over `depth` terms, for the first `cols` columns. All mr rows are read and
     * written, and of the columns whole vectors. Rows of the left operand or its terms, and columns of the
     * right one, are neighbours: 1 apart. */
    void (*multiply)(const eg_factor *left, const eg_factor *right, int64_t depth, int64_t cols,
                     const eg_sums *sums, const eg_ahead *ahead);

    /* Cells only: of rows x cols numbers, f32 or of the layer's own type, the rest 0, rows
     * [first, first + count) of the upper half and their partners 16 below, to the layouts that are wanted.
     * Transposed ones take all 16 at once. False if a number is not the sum of `terms` bf16. */
    bool (*split)(const eg_rows *from, int64_t first, int64_t count, int64_t rows, int64_t cols,
                  const eg_cells *to);
    /* Asks for the lines that those rows will be written to. */
    void (*own)(const eg_cells *to, int64_t first, int64_t count);
    float unscale; /* what a product is to be multiplied with: cells are scaled */
    /* Stores such rows of a product to memory, `step` bytes apart, as results of `dtype`. */
    void (*store_rows)(const float *sums, char *to, int64_t step, eg_dtype dtype, int64_t rows, int64_t cols,
                       bool past);

    /* Copies rows x cols elements of `dtype` to rows of nr, zero up to nr columns and `padded` rows. */
    void (*load)(void *tile, const void *src, eg_dtype dtype, int64_t row_stride, int64_t col_stride,
                 int64_t rows, int64_t cols, int64_t padded);

    /* Rounds rows x cols numbers to `dtype` and stores them. */
    void (*store)(const void *tile, void *dst, eg_dtype dtype, int64_t row_stride, int64_t col_stride,
                  int64_t rows, int64_t cols);

    /* sums[j] += every row's j-th number, from top to bottom; whole vectors. */
    void (*add_rows)(void *sums, const void *rows, int64_t step, int64_t count, int64_t cols);

    void (*act[EG_ACTIVATIONS])(const eg_sweep *sweep);        /* act(x) + other */
    void (*act_grad[EG_ACTIVATIONS])(const eg_sweep *sweep);   /* other * act'(x) */
    void (*act_grad_y[EG_ACTIVATIONS])(const eg_sweep *sweep); /* of y; NULL if act' is no function of it */

    /* Cells only: `row_step` rows, from `row` on. */
    void (*grad_rows[EG_ACTIVATIONS])(const eg_grad_rows *of, int64_t row);
    int row_step;

    double (*spin)(int64_t turns); /* multiply-adds in registers, for the peak: how many it did */
} eg_cpu_kernel;

enum { EG_CPU_WIDEST = 64 }; /* the largest nr */

/* The table, best first, `portable` last: a row's name says its instruction set, type (and how many bf16
 * products make one of its own) and tile. */
#if defined(__x86_64__)
#define EG_CPU_KERNELS(X)                                                                                    \
    X(amx_bf16x1_32x32)                                                                                      \
    X(amx_f16x4_32x32)                                                                                       \
    X(amx_f32x3_32x32)                                                                                       \
    X(amx_f32x6_32x32)                                                                                       \
    X(avx512_f32_4x64)                                                                                       \
    X(avx512_f32_8x48)                                                                                       \
    X(avx512_f64_8x24)                                                                                       \
    X(avx2_f32_4x24)                                                                                         \
    X(avx2_f64_4x12)                                                                                         \
    X(portable_f32_4x8)                                                                                      \
    X(portable_f64_4x4)
#elif defined(__aarch64__)
#define EG_CPU_KERNELS(X)                                                                                    \
    X(neon_f32_4x16)                                                                                         \
    X(neon_f64_4x8)                                                                                          \
    X(portable_f32_4x8)                                                                                      \
    X(portable_f64_4x4)
#else
#define EG_CPU_KERNELS(X)                                                                                    \
    X(portable_f32_4x8)                                                                                      \
    X(portable_f64_4x4)
#endif

#define EG_ROW(kernel) extern const eg_cpu_kernel eg_cpu_##kernel;
EG_CPU_KERNELS(EG_ROW)
#undef EG_ROW

/* Row `index` of the table, NULL past the end. */
const eg_cpu_kernel *eg_cpu_kernel_row(int index);

#endif
