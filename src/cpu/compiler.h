/* SPDX-License-Identifier: Apache-2.0 */
/* What compile.c and ways.c share: the state of one compilation. ways.c says how each product reads its
 * operands; compile.c turns that into regions and steps. */
#ifndef EG_CPU_COMPILER_H
#define EG_CPU_COMPILER_H

#include <string.h>

#include "estimate.h"

typedef struct eg_cpu_compiler {
    const eg_cpu_kernel *kernel;
    const eg_cpu_calibration *calibration;
    const eg_cpu_costs *costs;
    eg_program *program;
    const eg_op_list *list;
    int threads;                             /* that steps beside the products may take */
    bool is_alone;                           /* what other operations pack does not count */
    bool is_trial;                           /* of a kernel row, with b in rows whatever its layout */
    int next_region;                         /* free */
    int8_t sums[EG_MAX_TEMPORARIES];         /* regions of column sums */
    eg_cpu_layouts made[EG_MAX_TEMPORARIES]; /* of temporaries: the layouts that products read */
    eg_cpu_layouts packed[EG_NAMES];         /* and of operands */
    eg_cpu_blocks blocks[EG_MAX_OPS];
    eg_cpu_step detail[EG_MAX_OPS];
} eg_cpu_compiler;

static const eg_cpu_layouts eg_cpu_no_layouts = {EG_CPU_NOWHERE, EG_CPU_NOWHERE, EG_CPU_NOWHERE,
                                                 EG_CPU_NOWHERE};

static inline bool eg_cpu_has_layouts(const eg_cpu_layouts *x) {
    return memcmp(x, &eg_cpu_no_layouts, sizeof *x) != 0;
}

/* In place of a region, until one is added: a packed copy is wanted. */
enum { EG_CPU_WANTED = INT8_MAX };

/* Matrices of an operand that are read. */
static inline int64_t eg_cpu_items_of(const eg_op *op, const eg_view *x) {
    const int64_t batch = op->items > op->summed ? op->items : op->summed;
    return eg_is_batched(x) ? batch : 1;
}

/* The operand of an operation as its caller has it, rather than as the operation reads it. */
static inline eg_view eg_cpu_as_given(const eg_view *view) {
    return view->transposed ? eg_transposed(*view) : *view;
}

/* Of a product's result. */
static inline int64_t eg_cpu_count_blocks(const eg_op *op, const eg_cpu_blocks *blocks) {
    return op->items * eg_ceil_div(op->rows, blocks->mc) * eg_ceil_div(op->cols, blocks->nc);
}

/* How each product reads its operands, its blocks and threads, and which operands are to be packed. */
void eg_cpu_choose_ways(eg_cpu_compiler *c, int threads);

/* An operand that one product reads in place and another one packed is read packed by both. */
void eg_cpu_share_layout(eg_cpu_compiler *c, const eg_view *view, bool right, int8_t *where);

/* Whether a map goes over the operand anyway, once, and may pack it on its way. */
bool eg_cpu_is_mapped(const eg_op_list *list, int id);

/* Maps whose readers are narrow products write to buffers (dense_maps.c); false where no memory could hold
 * them. */
bool eg_cpu_make_dense(const eg_cpu_kernel *kernel, eg_program *program);

/* Steps that run block by block, from a program that has all its steps (block_fusion.c). */
void eg_cpu_fuse_blocks(eg_program *program);

/* Of two operands that may be in one memory, the input. */
int eg_cpu_memory_of(int id);

/* After block fusion, steps that need nothing of each other (forks.c). */
void eg_cpu_share_forks(eg_program *program);

/* Whether a product's result is stored so that it bypasses the caches. */
bool eg_cpu_is_non_temporal(const eg_cpu_compiler *c, const eg_op *op, int streams, int threads);

#endif
