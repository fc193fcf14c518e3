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

/* Memory that products after this one will read, in slices; asked for on the way. */
typedef struct eg_ahead {
    const char *right, *left;
    size_t right_bytes, left_bytes;
} eg_ahead;

/* All tiles are mr x nr, row by row, in the compute type. */
typedef struct eg_cpu_kernel {
    const char *name;
    eg_dtype compute;
    eg_dtype dtype; /* of the layers it serves; EG_DTYPE_DEFAULT: all that compute in `compute` */
    unsigned maths; /* an EG_CPU_MATH for each that it may serve */
    uint32_t needs; /* instruction-set bits */
    int terms;      /* of a number in a cell; 0: its operands are panels */
    int mr, nr;     /* the tile held in registers */
    int kc;         /* terms summed in registers before they are added to the tile; a multiple of nr */
    int block_rows, block_cols; /* of the result, at most: its accumulators and left operand stay in L2 */
    double least;               /* multiply-adds of a product from which it is the faster choice */
    double thread_work;         /* multiply-adds worth a further thread: some 40 to 80 us */

    /* Around each block, on the thread that computes it; NULL: nothing to do. */
    void (*enter)(void);
    void (*leave)(void);

    /* tile = (accumulate ? tile : 0) + left · right over `depth` terms, for the first `cols` columns (more
     * may be computed). Panels: `left` is the first row's (column's) element at the first term, `panel` the
     * distance of its panels in elements, `right` the first term's row in its panel. Cells: both are the
     * first of consecutive cells. */
    void (*multiply)(bool transposed, const void *left, int64_t panel, const void *right, int64_t depth,
                     int64_t cols, bool accumulate, void *tile, const eg_ahead *ahead);

    /* Cells only: a tile's first rows x cols numbers, the rest 0, to the layouts that are wanted. False if
     * a number is not the sum of `terms` bf16. */
    bool (*split)(const void *tile, int64_t rows, int64_t cols, const eg_cells *to);
    void (*unscale)(void *tile); /* a product of cells; NULL: needs none */

    /* Copies rows x cols elements of `dtype` to rows of nr, zero up to nr columns and `padded` rows. */
    void (*load)(void *tile, const void *src, eg_dtype dtype, int64_t row_stride, int64_t col_stride,
                 int64_t rows, int64_t cols, int64_t padded);

    /* Rounds rows x cols numbers to `dtype` and stores them, added to what is there if `accumulate`. */
    void (*store)(const void *tile, void *dst, eg_dtype dtype, int64_t row_stride, int64_t col_stride,
                  int64_t rows, int64_t cols, bool accumulate);

    /* Of a tile's first rows and columns; the rest of a vector may be changed too. */
    void (*add_row)(void *tile, const void *row, int64_t rows, int64_t cols);    /* every row += row */
    void (*add_tile)(void *tile, const void *other, int64_t rows, int64_t cols); /* tile += other */
    void (*add_sums)(void *sums, const void *tile, int64_t rows, int64_t cols);  /* sums[j] += every row */
    void (*act[EG_ACTIVATIONS])(void *tile, int64_t rows, int64_t cols);         /* tile = act(tile) */
    void (*act_grad[EG_ACTIVATIONS])(void *grad, const void *pre, int64_t rows, int64_t cols,
                                     bool propagate); /* grad *= act'(pre) */
    void (*act_grad_y[EG_ACTIVATIONS])(void *grad, const void *y, int64_t rows, int64_t cols,
                                       bool propagate); /* NULL if not of y */

    double (*spin)(int64_t turns); /* multiply-adds in registers, for the peak: how many it did */
} eg_cpu_kernel;

/* The table, best first, `portable` last: a row's name says its instruction set, type (and how many bf16
 * products make one of its own) and tile. */
#if defined(__x86_64__)
#define EG_CPU_KERNELS(X)                                                                                    \
    X(amx_bf16x1_32x32)                                                                                      \
    X(amx_f16x4_32x32)                                                                                       \
    X(amx_f32x3_32x32)                                                                                       \
    X(amx_f32x6_32x32)                                                                                       \
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
