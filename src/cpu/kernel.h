/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table of the CPU. A row is a micro-kernel with its packing, its blocking and its epilogue. What
 * it costs is in calibration.def. The packed formats that it reads are in packed_formats.h. */
#ifndef EG_CPU_KERNEL_H
#define EG_CPU_KERNEL_H

#include <stdbool.h>

#include "epigrad/epigrad.h"
#include "packed_formats.h"

/* Instruction-set bits, in eg_caps.features. */
enum {
    EG_CPU_AVX2 = 1U << 0,
    EG_CPU_AVX512 = 1U << 1,
    EG_CPU_NEON = 1U << 2,
    EG_CPU_AMX = 1U << 3,
    EG_CPU_BF16 = 1U << 4 /* AVX-512 BF16 */
};

#define EG_COUNT_ROW(NAME, name, value, from_y, text) +1
#define EG_ACTIVATIONS                                (0 EG_ACTIVATION_TABLE(EG_COUNT_ROW))

#define EG_CPU_MATH(math) (1U << (math))
#define EG_CPU_ANY_MATH                                                                                      \
    (EG_CPU_MATH(EG_MATH_DEFAULT) | EG_CPU_MATH(EG_MATH_STRICT) | EG_CPU_MATH(EG_MATH_FAST))

/* ---- What a micro-kernel is given --------------------------------------------------------------- */

/* Rows of memory to prefetch: the first at `at`, each `bytes` long, `stride` bytes apart. NULL: none. */
typedef struct eg_prefetch_rows {
    const char *at;
    int64_t stride, bytes;
} eg_prefetch_rows;

enum { EG_CPU_LINE = 64 }; /* bytes of a cache line */

/* Where prefetches of a row begin, which are a line apart and as many as its bytes fill lines. A row that
 * straddles touches one line more: it is the first that is left out, never the last. */
static inline int64_t eg_prefetch_offset(int64_t bytes) { return (bytes - 1) & (EG_CPU_LINE - 1); }

/* Bytes to add where every line of rows is wanted: 0 where all begin at lines. */
static inline int64_t eg_straddle_bytes(const void *at, int64_t stride) {
    return (((uintptr_t)at | (uintptr_t)stride) & (EG_CPU_LINE - 1)) != 0 ? EG_CPU_LINE - 1 : 0;
}

/* Rows as long as a micro-panel's, of which `rows_a_group` are prefetched with every group of nr k. */
typedef struct eg_prefetch_slice {
    const char *at;
    int64_t stride, rows_a_group;
} eg_prefetch_slice;

/* Memory that is prefetched evenly, as many lines at once wait for each other: with each k of a group of nr a
 * line at one of nr offsets. */
typedef struct eg_prefetch_stream {
    const char *at;         /* NULL: nothing */
    const int64_t *offsets; /* bytes */
    int64_t a_group;        /* bytes from one group's lines to the next */
} eg_prefetch_stream;

/* What a micro-kernel does beside its multiply-adds. It prefetches, in slices, what the next products read
 * and what the epilogue of this tile touches. And it runs steps of the epilogue of the tile before: the
 * matrix unit leaves the vector units free for them. */
typedef struct eg_prefetch_plan {
    const char *right_blocks, *left_blocks; /* AMX: the next micro-panels */
    size_t right_bytes, left_bytes;         /* and their bytes */
    eg_prefetch_slice next_right;           /* the next micro-panel of the right operand */
    eg_prefetch_stream right_stream;        /* the same evenly, where tiles are few */
    eg_prefetch_slice next_left;            /* the left operand's micro-panel in the next pass */
    int64_t rows;                           /* of `out`, and for micro-panels of `in` too */
    int64_t rows_a_group;                   /* micro-panels: of these rows, with every nr k */
    eg_prefetch_rows out, in;               /* what the epilogue of this tile writes, and reads */
    int64_t source_rows;                    /* AMX with fused packing: rows of `source` */
    eg_prefetch_rows source;                /* B itself, from which the next micro-panel will be packed */
    int64_t left_rows;                      /* rows of `left` */
    eg_prefetch_rows left;                  /* the left operand in place, for the next tile */
    void (*epilogue_step)(void *epilogue);
    void *epilogue;
    int64_t epilogue_steps; /* that are left */
} eg_prefetch_plan;

/* The same where both operands are packed for their tiles: with every `step` k a line of what the next pass
 * packs of the right and of the left operand, and with every four k one of what the epilogue of the tile
 * touches. */
enum { EG_CPU_PART = 4, EG_CPU_PARTS = 3, EG_CPU_MOST_STEPS = 32 }; /* k; of a step; and of a pass */
typedef struct eg_prefetch_step {
    int64_t right, left, out[EG_CPU_PARTS], in[EG_CPU_PARTS]; /* bytes */
} eg_prefetch_step;

typedef struct eg_prefetch_lines {
    const eg_prefetch_step *step;        /* how far on, for each step */
    const char *right, *left, *out, *in; /* from here on; never NULL */
    bool ends;                           /* with `out` and `in` */
} eg_prefetch_lines;

/* Rows of a left operand that a block packs: strides are in elements. */
typedef struct eg_left_source {
    int64_t row_stride, k_stride; /* one of them is 1 */
    int64_t group_stride;         /* from one group of nr k to the next, where k_stride is 1 */
    int64_t rows, depth;
} eg_left_source;

/* An operand as a micro-kernel reads it, packed in micro-panels or where its caller has it. Strides are in
 * elements. AMX tile blocks follow each other and need none: 0. */
typedef struct eg_micro_operand {
    const void *at;
    int64_t index_stride; /* from one row of the left operand, or column of the right one, to the next */
    int64_t k_stride;     /* from one k to the next, within a group of nr */
    int64_t group_stride; /* from one group of nr k to the next */
    const void *last;     /* AMX tile blocks of a left operand in place: the copy of a last one that is not
                             whole */
} eg_micro_operand;

/* The deferred accumulator flush of the matrix unit: the last tile's accumulators stay in tile registers, and
 * are stored between the first multiplications of the next tile, which hides the latency of the stores. */
typedef struct eg_deferred_flush {
    char *to;    /* where the registers go: the tile, or `sums`; NULL: nothing is waiting */
    float *tile; /* the tile to which `sums` has to be added, */
    int64_t row; /* from this row on */
    _Alignas(64) float sums[EG_AMX_BLOCK * EG_AMX_BLOCK];
} eg_deferred_flush;

/* The mr x nr tile that a micro-kernel computes. */
typedef struct eg_micro_tile {
    const void *initial; /* a tile that is added to; NULL: zeros */
    void *out;           /* a tile; for vector units it may also be the result in the caller's memory */
    int64_t out_stride;  /* numbers from row to row of `out` */
    int64_t rows;        /* that there are of its mr: dots of bf16 make no others */
    bool non_temporal;   /* stores bypass the caches; whole cache lines only */
    const void *bias; /* added to every row, for whole vectors of columns: of the compute type, of dots as the
                         layer has it; NULL: none */
    bool relu;        /* and then the larger of that and 0 */
    bool rounds;      /* dots of bf16: `out` is the result in the caller's memory; bias and relu count */
    void *pre;        /* then also stored: the sums and the bias; NULL: they are not */
    int64_t pre_stride; /* numbers from row to row of `pre` */
    void *copy; /* vector units: the right operand is copied here, as a micro-panel; NULL: it is not */
    eg_deferred_flush *deferred; /* AMX: keeps the accumulators until the next product, or `flush` */
} eg_micro_tile;

/* A product of few rows, whose right operand is read once, where it is. */
typedef struct eg_few_rows {
    const void *left; /* of the compute type: k are neighbours within a group of nr; or AMX tile blocks */
    /* Elements from row to row, and from group to group; or bytes from the blocks of 32 rows to the next. */
    int64_t left_row, left_group;
    const char *right;
    eg_dtype dtype;             /* of the right operand */
    bool by_columns;            /* its k are neighbours, else its columns are */
    int64_t k_bytes, col_bytes; /* from k to k, and from column to column of it, */
    int64_t panel_bytes;        /* and from nr columns to the next, where those of a row are neighbours */
    bool padded;                /* of a pack: there are zeros up to whole micro-panels */
    int64_t rows, cols, depth;
    bool as_tiles; /* AMX: sums are those of the transpose, tile by tile, and overwrite what is there */
    void *sums;    /* else added to micro-panels of nr columns, `rows` rows each */
} eg_few_rows;

/* The sums of so many rows with a micro-panel of a pack have room in sixteen registers. */
enum { EG_CPU_PACK_ROWS = 4 };

/* A product of little depth that is stored as it is, from left to right. Both operands are in L1 as numbers
 * of the compute type: the left one as rows of nr k, or transposed as micro-panels of nr rows; the right one
 * in micro-panels. For dots of bf16 the left one is tile blocks, and the right one pairs of k without gaps:
 * of 16 columns, then of the other 16 of a micro-panel. */
typedef struct eg_little_depth {
    const void *left, *right;
    int64_t left_group;  /* elements from nr k to the next; not of dots */
    int64_t right_panel; /* elements (of dots bytes) from nr columns to the next */
    bool left_is_transposed;
    const void *bias;  /* of the compute type, for whole micro-panels: added to every row; NULL: none */
    bool relu;         /* and then the larger of that and 0 */
    bool non_temporal; /* stores bypass the caches; whole cache lines only */
    eg_dtype dtype;    /* of the result, and of `pre` */
    char *out, *pre;   /* pre: the sums and the bias, without relu; NULL: not wanted */
    int64_t out_step, pre_step; /* bytes from row to row of each */
    int64_t rows, cols, depth;
} eg_little_depth;

/* ---- What an epilogue is given ------------------------------------------------------------------ */

/* Rows whose columns are neighbours, in a tile or in the caller's memory. */
typedef struct eg_rows {
    char *at;     /* NULL: absent */
    int64_t step; /* bytes from row to row */
    eg_dtype dtype;
    float scale; /* AMX: factor of what is read */
} eg_rows;

/* The element-wise epilogue of the rows [row, end) of a tile: every vector is read once, finished in
 * registers and written once. It may write whole vectors of `result`, but no column from `cols` on elsewhere.
 */
typedef struct eg_elementwise {
    int64_t row, end, cols;
    eg_rows x, bias;  /* act and act' are of x + bias. Absent: 0. A bias is one row */
    eg_rows other;    /* what is added to act(x), or multiplied with it or with act'(x) */
    eg_rows pre;      /* act: x + bias is stored here */
    eg_rows out;      /* the result is stored here */
    void *result;     /* act', and act with `times`: and here, as a tile */
    int64_t tile_row; /* numbers from row to row of `result` */
    void *sums;       /* act': of the columns, to which the rows of `result` are added; NULL: none */
    int64_t ahead;    /* act': rows so much further down are prefetched; 0: none */
    int64_t panel;    /* act', row by row: of more columns than a tile has, bytes from one micro-panel (or AMX
                         tile block) of `result` to the next; 0: a tile */
    bool propagate;   /* act'(NaN) is NaN, not 0 */
    bool times;       /* act: `other` is multiplied with it */
    bool by_rows;     /* act of whole rows, of more columns than a tile has. `x` and `bias` are of the compute
                         type, and have room for whole vectors; the others of the type of `out` */
    bool non_temporal;            /* rows so, which are whole cache lines, bypass the caches; */
    int64_t to_next, pre_to_next; /* else what is written so many bytes further on is prefetched */
} eg_elementwise;

/* The epilogue that turns a whole AMX tile block of a product into grad_pre, row by row:
 * x = product + bias, then grad * act'(x). */
typedef struct eg_grad_rows {
    float *tile; /* the product, then grad_pre */
    const float *bias;
    const char *grad;  /* of the layer's type */
    int64_t grad_step; /* bytes from row to row of it */
    float *sums;       /* of the columns: the row is added */
    bool propagate;    /* act'(NaN) is NaN, not 0 */
} eg_grad_rows;

/* The epilogue that turns a whole AMX tile block of a product into act(product + bias), row by row. */
typedef struct eg_act_rows {
    const float *tile, *bias;
    char *pre;                  /* of the layer's type, product + bias is stored here; NULL: nowhere */
    char *out;                  /* and the result */
    int64_t pre_step, out_step; /* bytes from row to row */
    bool non_temporal;          /* rows are whole cache lines, and bypass the caches */
} eg_act_rows;

/* ---- A row of the table ------------------------------------------------------------------------- */

/* Tiles are mr x nr, row by row, in the compute type. */
typedef struct eg_micro_kernel {
    int mr, nr;
    int lanes;         /* numbers of a vector; 0: it reads AMX tile blocks */
    int rows_at_once;  /* what of mr rows is counted even where there are fewer, */
    int depth_at_once; /* and what of k */
    bool streams;      /* it takes prefetch streams, and copies the right operand */

    /* tile = initial + left · right over `depth` k, for the first `cols` columns. All mr rows are read and
     * written, or half of them where there are no more, and whole vectors of columns. Rows of the left
     * operand or its k, and columns of the right one, are neighbours. */
    void (*multiply)(const eg_micro_operand *left, const eg_micro_operand *right, int64_t depth, int64_t cols,
                     const eg_micro_tile *tile, const eg_prefetch_plan *plan);

    /* The same where a block has packed its rows of the left operand (packing.left), and the right one is a
     * micro-panel. NULL: the row has no such kernel. */
    void (*multiply_packed)(const void *left, bool by_rows, const void *right, int64_t depth, int64_t cols,
                            const eg_micro_tile *tile, const eg_prefetch_lines *lines);
    int step; /* k that are neighbours in a row packed so */

    /* sums += left · right. NULL: the row has no such kernel. */
    void (*few_rows)(const eg_few_rows *of);
    int rows_along_k; /* AMX tile blocks: so few rows lie as a left operand even for a right one in place */

    /* The whole result, without an epilogue but what is said there. NULL: the row has no such kernel. */
    void (*outer)(const eg_little_depth *of);
    /* Non-temporal stores of numbers of the compute type, from any number of a cache line on. */
    void (*stream_row)(void *row, const void *numbers, int64_t count);

    /* Around each block, on the thread that computes it; NULL: nothing to do. */
    void (*enter)(void);
    void (*leave)(void);
    /* Stores the accumulators that still wait, before the epilogue reads their tile; NULL: none ever wait. */
    void (*flush)(eg_deferred_flush *deferred);

    double (*peak)(int64_t turns); /* multiply-adds in registers alone; returns how many it did */
} eg_micro_kernel;

typedef struct eg_packing {
    int bf16_terms; /* of a number in an AMX tile block; 0: operands are micro-panels */
    float unscale;  /* factor that takes the scale of bf16 terms out of a product */

    /* Micro-panels, and tiles: copies rows x cols elements of `dtype` to rows of nr numbers, with zeros up to
     * nr columns and `padded` rows. */
    void (*load)(void *tile, const void *src, eg_dtype dtype, int64_t row_stride, int64_t col_stride,
                 int64_t rows, int64_t cols, int64_t padded);

    /* For multiply_packed: rows of the left operand, mr at a time, in the order in which a tile reads them.
     * Of rows whose k are neighbours (by_rows) each has `step` k, and the next `step` k follow all mr rows;
     * else the mr numbers of each k follow each other. Zeros up to whole tiles and steps. */
    void (*left)(void *to, const void *from, eg_dtype dtype, const eg_left_source *source);

    /* AMX tile blocks: splits rows [first, first + count) and the rows 16 below them into bf16 terms, for the
     * layouts that are wanted. The block has rows x cols numbers, f32 or of the layer's type, and zeros
     * beyond. Transposed layouts need all 16 rows in one call. False if a number is not the sum of so many
     * bf16. */
    bool (*split)(const eg_rows *from, int64_t first, int64_t count, int64_t rows, int64_t cols,
                  const eg_cpu_packs *to);
    /* A `left` block as its `right_t` block, with `wide` all 32 rows, else 16; NULL: bf16 terms are several.
     */
    void (*turn_few)(char *to, const char *from, bool wide);
    /* Prefetches for writing the lines that `split` will store those rows to. */
    void (*prefetch_write)(const eg_cpu_packs *to, int64_t first, int64_t count);
} eg_packing;

/* Sizes of blocks in numbers. MC x NC accumulators and the left operand of a block stay in L2. */
typedef struct eg_blocking {
    int mc, nc;             /* of a block, at most */
    int kc;                 /* k of a pass, which are summed in registers before they are added to the tile */
    int kc_single_pass;     /* k of a pass that is the whole depth, at most */
    int kc_fused;           /* k of a pass with fused packing; 0: as without */
    int kc_few;             /* likewise, of few rows of tiles: the micro-panel stays in L1 */
    int kc_multiple;        /* a pass ends at a multiple of this */
    int max_left;           /* MC * depth of a single pass, which needs no room for accumulators */
    int fused_max_rows;     /* fused packing: products of so many rows are one block high; 0: never fused */
    int non_temporal_below; /* products of less depth may store their result non-temporally */
    int copied_below;       /* outer products of less, even where its rows begin between cache lines */
} eg_blocking;

typedef struct eg_epilogue_kernels {
    /* Rounds rows x cols numbers of a tile to `dtype` and stores them. */
    void (*store)(const void *tile, void *dst, eg_dtype dtype, int64_t row_stride, int64_t col_stride,
                  int64_t rows, int64_t cols);

    /* The same for rows of whole cache lines, by non-temporal stores. */
    void (*stream)(const void *tile, void *dst, eg_dtype dtype, int64_t row_stride, int64_t rows,
                   int64_t cols);

    /* sums[j] += the j-th number of every row, from top to bottom; whole vectors. */
    void (*add_rows)(void *sums, const void *rows, int64_t step, int64_t count, int64_t cols);
    /* The same of rows of `dtype`, `step` bytes apart. */
    void (*sum_rows)(void *sums, const void *rows, eg_dtype dtype, int64_t step, int64_t count, int64_t cols);

    void (*act[EG_ACTIVATIONS])(const eg_elementwise *of);        /* act(x) + other, or act(x) * other */
    void (*act_grad[EG_ACTIVATIONS])(const eg_elementwise *of);   /* other * act'(x) */
    void (*act_grad_y[EG_ACTIVATIONS])(const eg_elementwise *of); /* of y; NULL: act' is no function of y */

    /* AMX: stores rows of a product, unscaled, as results of `dtype`, `step` bytes from row to row. */
    void (*store_rows)(const float *sums, char *to, int64_t step, eg_dtype dtype, int64_t rows, int64_t cols,
                       bool non_temporal);
    /* AMX: the transpose of a tile, as results of the row's 16-bit type; NULL: it has none. */
    void (*store_turned)(const float *sums, char *to, int64_t step, int64_t rows, int64_t cols,
                         bool non_temporal);
    /* AMX: `rows_a_step` rows, from `row` on. */
    void (*grad_rows[EG_ACTIVATIONS])(const eg_grad_rows *of, int64_t row);
    void (*act_rows[EG_ACTIVATIONS])(const eg_act_rows *of, int64_t row);
    int rows_a_step;
} eg_epilogue_kernels;

typedef struct eg_cpu_kernel {
    const char *name;
    eg_dtype compute;
    eg_dtype dtype; /* of the layers it serves; EG_DTYPE_DEFAULT: all that compute in `compute` */
    unsigned maths; /* an EG_CPU_MATH for each that it may serve */
    uint32_t needs; /* instruction-set bits */
    eg_micro_kernel micro;
    eg_packing pack;
    eg_blocking blocking;
    eg_epilogue_kernels epilogue;
} eg_cpu_kernel;

/* Whether it reads AMX tile blocks: the matrix unit, and vector units with dots of bf16. */
static inline bool eg_cpu_is_amx(const eg_cpu_kernel *kernel) { return kernel->pack.bf16_terms > 0; }

/* Whether the matrix unit multiplies, which leaves the vector units free for an epilogue. */
static inline bool eg_cpu_has_tiles(const eg_cpu_kernel *kernel) { return (kernel->needs & EG_CPU_AMX) != 0; }

/* Dots of bf16: vector units that read tile blocks. */
static inline bool eg_cpu_has_dots(const eg_cpu_kernel *kernel) {
    return kernel->pack.bf16_terms == 1 && !eg_cpu_has_tiles(kernel);
}

/* Kernels that split numbers into bf16 terms refuse infinities, NaN and magnitudes above 2^26. */
static inline bool eg_cpu_may_refuse(const eg_cpu_kernel *kernel) { return kernel->pack.bf16_terms > 1; }

enum { EG_CPU_WIDEST = 64 }; /* the largest nr */

/* The table, best first, `portable` last: a row's name says its instruction set, type (and how many bf16
 * products make one of its own) and tile. */
#if defined(__x86_64__) && !defined(EG_PORTABLE_KERNELS)
#define EG_CPU_KERNELS(X)                                                                                    \
    X(amx_bf16x1_32x32)                                                                                      \
    X(amx_f16x4_32x32)                                                                                       \
    X(amx_f32x3_32x32)                                                                                       \
    X(amx_f32x6_32x32)                                                                                       \
    X(avx512_bf16x1_32x32)                                                                                   \
    X(avx512_f32_8x48)                                                                                       \
    X(avx512_f32_4x64)                                                                                       \
    X(avx512_f64_8x24)                                                                                       \
    X(avx2_f32_4x24)                                                                                         \
    X(avx2_f64_4x12)                                                                                         \
    X(portable_f32_4x8)                                                                                      \
    X(portable_f64_4x4)
#elif defined(__aarch64__) && !defined(EG_PORTABLE_KERNELS)
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

#endif
