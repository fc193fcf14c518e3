/* SPDX-License-Identifier: Apache-2.0 */
/* How long a kernel row takes for a step: what the compiler compares, and what a plan prints. A time is a sum
 * of counts, each times what one of them costs. tools/calibrate_cpu.py finds the costs, so that the choices
 * made by them in a recording are good ones. A new row needs one line of them. */
#ifndef EG_CPU_ESTIMATE_H
#define EG_CPU_ESTIMATE_H

#include "blocking.h"

/* What is counted, and costs nanoseconds. A number is an element of a matrix. */
#define EG_CPU_COST_TABLE(X)                                                                                 \
    X(STEP, step)                 /* each step of a program */                                               \
    X(BLOCK, block)               /* a cache block in each pass */                                           \
    X(TILE, tile)                 /* a tile of a micro-kernel in each pass */                                \
    X(K, k)                       /* one k of a whole tile */                                                \
    X(LEFT_NEAR, left_near)       /* the same with the left operand in place, on lines near each other, */   \
    X(LEFT_FAR, left_far)         /* and on lines in other pages, */                                         \
    X(LEFT_EVICTED, left_evicted) /* and of a transposed one, on lines of one set of L1 */                   \
    X(RIGHT_NEAR, right_near)     /* and with the right operand in place */                                  \
    X(RIGHT_FAR, right_far)                                                                                  \
    X(FEW, few)                   /* few rows: one k of nr columns, loaded, */                               \
    X(FEW_ROW, few_row)           /* multiplied for each row, */                                             \
    X(DOT, dot)                   /* or a vector of k of a column, loaded, */                                \
    X(DOT_ROW, dot_row)           /* multiplied for each row, */                                             \
    X(DOT_SUM, dot_sum)           /* and a row's lanes added in each pass; */                                \
    X(FEW_FAR, few_far)           /* and a byte of the right operand from beyond L2 */                       \
    X(FEW_TILE, few_tile)         /* and a tile's epilogue */                                                \
    X(OUTER, outer)               /* outer products: a tile */                                               \
    X(FUSE, fuse)                 /* a number of the right operand, packed by a block, */                    \
    X(FUSE_TURNED, fuse_turned)   /* and where its columns are not neighbours */                             \
    X(READ, read)                 /* a number that a packing step reads, */                                  \
    X(PACK, pack)                 /* that it writes to a layout, */                                          \
    X(PACK_TURNED, pack_turned)   /* and to a transposed one */                                              \
    X(STORE, store)               /* a number of a result, */                                                \
    X(STORE_TURNED, store_turned) /* whose columns are not neighbours, */                                    \
    X(RESULT, result)             /* that is packed, to each layout */                                       \
    X(FORWARD, forward)           /* a number through bias and activation, */                                \
    X(SECOND, second)             /* stored or read beside the result, */                                    \
    X(GRAD, grad)                 /* through a derivative at the value, */                                   \
    X(CHAIN, chain)               /* through one at a saved number */                                        \
    X(SUM, sum)                   /* added to its column's sum */                                            \
    X(MAP, map)                   /* a number of an element-wise step */                                     \
    X(REDUCE, reduce)             /* a number of the chunks' sums */                                         \
    X(STREAM, stream)             /* a byte of a non-temporal store */                                       \
    X(FAR, far)                   /* a byte that comes from beyond L2, or goes there, */                     \
    X(WRITTEN, written)           /* the same of a result, tile by tile, */                                  \
    X(SCATTERED, scattered)       /* the same of a right operand that blocks read as it is, pages apart, */  \
    X(EVICTED, evicted)           /* and more where its sets of L2 have no room for it; */                   \
    X(WIDEN, widen)               /* a number of 16 bits that vector units convert, */                       \
    X(NARROW, narrow)             /* and of a result that the tile loop converts back */                     \
    X(OUTER_STORE, outer_store)   /* outer products without an epilogue: a number of the result, */          \
    X(OUTER_FAR, outer_far)       /* and a byte of it that is stored through the caches; */                  \
    X(PACKED_K, packed_k)         /* one k of a whole tile whose block has packed both operands, */          \
    X(PACKED_LEFT, packed_left)   /* and a number of the left one that it packs; */                          \
    X(PACK_FAR, pack_far)         /* a byte from beyond L2 of a pack of B, which lies in order */

#define EG_CPU_COST(NAME, name) EG_CPU_COST_##NAME,
typedef enum eg_cpu_cost { EG_CPU_COST_TABLE(EG_CPU_COST) EG_CPU_COSTS } eg_cpu_cost;
#undef EG_CPU_COST

typedef struct eg_cpu_counts {
    double of[EG_CPU_COSTS];
} eg_cpu_counts;

/* The constants of a row on a kind of processor: nanoseconds. */
typedef struct eg_cpu_costs {
    const char *row;
    double of[EG_CPU_COSTS];
} eg_cpu_costs;

enum { EG_CPU_MOST_ROWS = 32 };

/* The ways a product may read an operand. ANY: the one that the estimate says; others where they can be. */
typedef enum eg_cpu_way {
    EG_CPU_ANY_WAY,
    EG_CPU_PACKED,
    EG_CPU_PLACED,
    EG_CPU_FUSES,
    EG_CPU_STREAMS, /* once, by the kernel for few rows or columns */
    EG_CPU_OUTER    /* both in L1: outer products */
} eg_cpu_way;

/* eg_caps.detail; NULL: that of the best known processor. */
typedef struct eg_cpu_calibration {
    const char *device; /* a part of its name */
    double l2;          /* bytes of it that a thread has */
    double fork, join;  /* microseconds of a step on several threads, and more for each of them */
    double shared;      /* nanoseconds of a byte that is written, for each other core that has read it */
    double crowded; /* times as long as estimated that three bf16 terms take where all cores are at work */
    double streams; /* bytes a thread from which on a result takes non-temporal stores by vectors of half a
                       line */
    double cached;  /* outer products of f32 below which their sum takes none */
    eg_cpu_costs costs[EG_CPU_MOST_ROWS];
    eg_cpu_way left, right; /* for recordings */
} eg_cpu_calibration;

/* The constants of a processor by its name; those of the best known one for others. */
const eg_cpu_calibration *eg_cpu_calibration_by_name(const char *device);
const eg_cpu_calibration *eg_cpu_calibration_of(const eg_caps *caps);
/* A row that the calibration lacks costs what it does on the best known processor. */
const eg_cpu_costs *eg_cpu_costs_of(const eg_cpu_calibration *calibration, const eg_cpu_kernel *row);

/* Adds what a step counts. A product finds its operands at `left` and `right`: each is a region, or a place
 * such as EG_CPU_IN_PLACE (step.h). The layouts are those that its result is packed to. */
void eg_cpu_count_gemm(const eg_cpu_calibration *calibration, const eg_cpu_kernel *row, const eg_op *op,
                       const eg_cpu_blocks *blocks, int left, int right, const eg_cpu_layouts *packs,
                       eg_cpu_counts *counts);
/* The same for a product of few rows or columns, which reads an operand once, in passes of kc. */
void eg_cpu_count_few(const eg_cpu_calibration *calibration, const eg_cpu_kernel *row, const eg_op *op,
                      eg_cpu_streams streams, const eg_cpu_blocks *blocks, const eg_cpu_layouts *packs,
                      eg_cpu_counts *counts);
/* The same for one of little depth, whose blocks lay out both operands for themselves. */
void eg_cpu_count_outer(const eg_cpu_calibration *calibration, const eg_cpu_kernel *row, const eg_op *op,
                        const eg_cpu_blocks *blocks, bool non_temporal, const eg_cpu_layouts *packs,
                        eg_cpu_counts *counts);
/* Bytes of the result, and of what else a product stores for its caller. */
double eg_cpu_bytes_stored(const eg_op *op);
/* x as its caller has it. */
void eg_cpu_count_pack(const eg_cpu_calibration *calibration, const eg_cpu_kernel *row, const eg_view *x,
                       int64_t items, const eg_cpu_layouts *packs, eg_cpu_counts *counts);
void eg_cpu_count_map(const eg_cpu_calibration *calibration, const eg_cpu_kernel *row, const eg_op *op,
                      const eg_cpu_layouts *packs, eg_cpu_counts *counts);
void eg_cpu_count_reduce(const eg_op *op, eg_cpu_counts *counts);

/* Microseconds more that it takes to pack x where so many threads read the packed copy, call after call:
 * before a core may write to a line, those that have read it give it up. */
double eg_cpu_sharing_time(const eg_cpu_calibration *calibration, const eg_cpu_kernel *row, const eg_view *x,
                           int64_t items, int64_t readers);

/* Microseconds on one thread. */
double eg_cpu_estimate(const eg_cpu_costs *costs, const eg_cpu_counts *counts);

/* ---- Threads ------------------------------------------------------------------------------------ */

/* Microseconds, on several threads, of a step of `units` equal parts that takes `alone` on one thread. */
double eg_cpu_time_on(const eg_cpu_calibration *calibration, int threads, double alone, int64_t units);

/* The number, at most `most`, on which the step takes least; 1 where none is clearly faster. */
int eg_cpu_choose_threads(const eg_cpu_calibration *calibration, int most, double alone, int64_t units);

#endif
