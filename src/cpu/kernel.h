/* The kernel table of the CPU: what one micro-kernel is, and what the blocking may rely on.
 *
 * The panel format. Every matrix the kernels read is stored as panels of `nr` columns, each panel row by
 * row and without gaps:
 *
 *     panel p, row r:   nr numbers   X[r][p*nr .. p*nr + nr)        columns past the last are 0
 *
 * One such copy serves both sides of a product:
 *     as the right operand   X[k][j]    a panel is the k x nr strip that the kernel streams through
 *     as the left operand    X[i][k]    mr rows of nr consecutive k, panel after panel       ("plain")
 *     as the left, transposed X[k][i]   mr columns of one panel; mr divides nr               ("transposed")
 * so A is packed once for A·B and for Aᵀ·grad_pre, grad_pre once for grad_pre·Bᵀ and Aᵀ·grad_pre, and only
 * B needs a transposed copy.
 */
#ifndef EG_CPU_KERNEL_H
#define EG_CPU_KERNEL_H

#include <stdbool.h>

#include "epigrad/epigrad.h"

/* Instruction-set bits, in eg_caps.features. */
enum { EG_CPU_AVX2 = 1U << 0, EG_CPU_AVX512 = 1U << 1, EG_CPU_NEON = 1U << 2 };

#define EG_COUNT_ROW(NAME, name, value, from_y, text) +1
#define EG_ACTIVATIONS                                (0 EG_ACTIVATION_TABLE(EG_COUNT_ROW))

/* All tiles are mr x nr, row by row, in the compute type. */
typedef struct eg_cpu_kernel {
    const char *name;
    eg_dtype compute;
    uint32_t needs; /* instruction-set bits */
    int mr, nr;     /* the tile held in registers */
    int kc;         /* terms summed in registers before they are added to the tile; a multiple of nr */

    /* tile = (accumulate ? tile : 0) + left · right over `depth` terms, for the first `cols` columns (more
     * may be computed). `left` is the first row's (column's) element at the first term, `panel` the
     * distance of its panels in elements, `right` the first term's row in its panel. */
    void (*multiply)(bool transposed, const void *left, int64_t panel, const void *right, int64_t depth,
                     int64_t cols, bool accumulate, void *tile);

    /* Copies rows x cols elements of `dtype` to rows of nr, zero up to nr columns and `padded` rows. */
    void (*load)(void *tile, const void *src, eg_dtype dtype, int64_t row_stride, int64_t col_stride,
                 int64_t rows, int64_t cols, int64_t padded);

    /* Rounds rows x cols numbers to `dtype` and stores them, added to what is there if `accumulate`. */
    void (*store)(const void *tile, void *dst, eg_dtype dtype, int64_t row_stride, int64_t col_stride,
                  int64_t rows, int64_t cols, bool accumulate);

    void (*add_row)(void *tile, const void *row, int64_t rows);    /* every row += row */
    void (*add_tile)(void *tile, const void *other, int64_t rows); /* tile += other */
    void (*add_sums)(void *sums, const void *tile, int64_t rows);  /* sums[j] += every row */
    void (*act[EG_ACTIVATIONS])(void *tile, int64_t rows);         /* tile = act(tile) */
    void (*act_grad[EG_ACTIVATIONS])(void *grad, const void *pre, int64_t rows,
                                     bool propagate); /* grad *= act'(pre) */
    void (*act_grad_y[EG_ACTIVATIONS])(void *grad, const void *y, int64_t rows,
                                       bool propagate); /* NULL if not of y */

    double (*spin)(int64_t turns); /* multiply-adds in registers, for the peak: how many it did */
} eg_cpu_kernel;

/* The table, best first, `portable` last: a row's name says its instruction set, type and tile. */
#if defined(__x86_64__)
#define EG_CPU_KERNELS(X)                                                                                    \
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
