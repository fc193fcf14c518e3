/* SPDX-License-Identifier: Apache-2.0 */
/* What the CPU's compiler decides, and what its kernels run by. */
#ifndef EG_CPU_COMPILE_H
#define EG_CPU_COMPILE_H

#include "core/backend.h"
#include "core/sizes.h"
#include "kernel.h"

/* ---- Programs ----------------------------------------------------------------------------------- */

/* Where a product finds an operand: in the region of that index, or one of these. */
enum { EG_CPU_NOWHERE = -1, EG_CPU_IN_PLACE = -2, EG_CPU_FROM_PACK = -3, EG_CPU_FUSED = -4 };

/* Few rows, few columns or little depth: the matrix that a product reads once, where it is or from the
 * caller's pack, or writes once. */
typedef enum eg_cpu_streams {
    EG_CPU_STREAMS_NONE,
    EG_CPU_STREAMS_RIGHT, /* of few rows */
    EG_CPU_STREAMS_LEFT,  /* of few columns */
    EG_CPU_STREAMS_RESULT /* of little depth */
} eg_cpu_streams;

/* The packed layouts of one matrix that a step writes, as regions; EG_CPU_NOWHERE: not wanted. Micro-panels
 * of a matrix serve as a left operand, its transpose too, and as a right one; AMX tile blocks have a layout
 * each.
 */
typedef struct eg_cpu_layouts {
    int8_t left, left_t;   /* X, Xᵀ as a left operand */
    int8_t right, right_t; /* X, Xᵀ as a right operand */
} eg_cpu_layouts;

/* Regions of every program: each thread's scratch. */
enum { EG_CPU_SCRATCH, EG_CPU_FIRST_FREE };

/* eg_step.detail */
typedef struct eg_cpu_step {
    const eg_cpu_kernel *kernel;
    int8_t left, right;   /* GEMM: regions, or as above */
    int8_t sums;          /* region of the column sums that the step makes or reduces */
    int8_t source;        /* packing: the operation that reads the matrix, */
    bool source_is_right; /* as its right operand */
    eg_cpu_layouts packs; /* packing, MAP and GEMM: what becomes of the matrix, or of the result */
    bool single_pass;     /* GEMM: the whole depth is summed in registers */
    bool non_temporal;    /* GEMM: stores of the result bypass the caches */
    uint8_t streams;      /* GEMM: eg_cpu_streams */
} eg_cpu_step;
_Static_assert(sizeof(eg_cpu_step) <= EG_STEP_DETAIL, "the detail of a step");

static inline const eg_cpu_step *eg_cpu_detail(const eg_step *step) {
    return (const eg_cpu_step *)step->detail;
}

/* eg_program.detail */
typedef struct eg_cpu_program {
    size_t scratch; /* bytes of the scratch region for each thread */
} eg_cpu_program;
_Static_assert(sizeof(eg_cpu_program) <= EG_PROGRAM_DETAIL, "the detail of a program");

eg_status eg_cpu_compile(const eg_caps *caps, eg_program *program);

/* ---- Packed operands ---------------------------------------------------------------------------- */

/* B and its transpose as right operands. What the bytes mean only the row knows that they were laid out for:
 * calls of no other row may read them. */
typedef struct eg_cpu_form {
    const eg_cpu_kernel *kernel; /* NULL: there is no such form */
    eg_region plain, transposed; /* of packed->data */
} eg_cpu_form;

enum { EG_CPU_PACK_FORMS = 2 };

/* eg_packed.detail */
typedef struct eg_cpu_forms {
    eg_cpu_form form[EG_CPU_PACK_FORMS];
    bool outside; /* B has numbers that a row which may refuse does not take */
} eg_cpu_forms;
_Static_assert(sizeof(eg_cpu_forms) <= EG_PACKED_DETAIL, "the detail of a pack");

/* Micro-panels of a pack have the layer's own type, so that few rows read no more than they must. A block of
 * the tile loop converts a micro-panel before it multiplies with it, as with fused packing. */
static inline bool eg_cpu_widens_pack(const eg_cpu_kernel *kernel, const eg_view *view) {
    return view->space == EG_PACKED_B && !eg_cpu_is_amx(kernel) && view->dtype != kernel->compute;
}

/* The form for a row; NULL: nothing that it could read. */
const eg_cpu_form *eg_cpu_form_of(const eg_packed *packed, const eg_cpu_kernel *kernel);

eg_status eg_cpu_plan_pack(const eg_caps *caps, const eg_problem *problem, eg_packed *packed, size_t *bytes);
eg_status eg_cpu_fill_pack(eg_context *context, const eg_problem *problem, eg_packed *packed);

/* ---- Choices ------------------------------------------------------------------------------------ */

/* The row that computes these operations, and reads their packed b; NULL: none. */
const eg_cpu_kernel *eg_cpu_choose(const eg_caps *caps, const eg_op_list *list);
/* Of those for the matrix unit; NULL: none. */
const eg_cpu_kernel *eg_cpu_matrix_row(const eg_caps *caps, const eg_op_list *list);
/* Estimated microseconds of the operations by a row, on one thread; with b row by row unless rows are few. */
double eg_cpu_time_alone(const eg_caps *caps, const eg_cpu_kernel *row, const eg_op_list *list);
eg_status eg_cpu_no_kernel(const eg_caps *caps, const eg_op_list *list);

/* Kernels that split numbers into bf16 terms refuse infinities, NaN and magnitudes above 2^26. */
bool eg_cpu_may_refuse(const eg_cpu_kernel *kernel);

/* The same processor as if it had no matrix unit: its kernels take any numbers. */
eg_caps eg_cpu_caps_without_amx(const eg_caps *caps);

int eg_cpu_index_of(const eg_cpu_kernel *kernel);

/* Bytes of `items` packed matrices [rows, cols], in micro-panels of that type or in AMX tile blocks; false
 * where no memory could hold them. */
bool eg_cpu_matrix_bytes(const eg_cpu_kernel *kernel, eg_dtype dtype, int64_t items, int64_t rows,
                         int64_t cols, size_t *bytes);

/* blocking.c: the cache blocks of a product (MC x NC), its passes (KC), and its threads, of `threads` at
 * most. */
typedef struct eg_cpu_blocks {
    int64_t mc, nc, kc;
    int threads;
    bool single_pass; /* the whole depth is summed in registers */
} eg_cpu_blocks;
eg_cpu_blocks eg_cpu_blocks_of(const eg_cpu_kernel *kernel, int threads, const eg_op *op, bool fused);

/* Parts of a product that threads may share, at most. */
int64_t eg_cpu_units(const eg_cpu_kernel *kernel, const eg_op *op);

/* Whether a product can read its left or right operand where the caller has it, and whether its blocks can
 * pack the right one for themselves. */
bool eg_cpu_may_place_left(const eg_cpu_kernel *kernel, const eg_op *op);
bool eg_cpu_may_place_right(const eg_cpu_kernel *kernel, const eg_op *op);
bool eg_cpu_may_fuse(const eg_cpu_kernel *kernel, const eg_op *op);

/* Whether lines of an operand are near each other: see blocking.c. */
bool eg_cpu_is_near(const eg_view *x);

/* few_rows.c: whether the row makes the product by reading an operand once, where it is; and how. From so
 * many rows on, the multiplication takes longer than the reading: docs/lab/cpu.md. */
enum { EG_CPU_FEW_ROWS = 16 };
bool eg_cpu_has_few_rows(const eg_cpu_kernel *kernel, const eg_op *op);
bool eg_cpu_has_few_columns(const eg_cpu_kernel *kernel, const eg_op *op);
bool eg_cpu_few_rows_read_in_place(const eg_cpu_kernel *kernel, const eg_view *left);
eg_cpu_blocks eg_cpu_few_rows_blocks(const eg_cpu_kernel *kernel, int threads, const eg_op *op);
eg_cpu_blocks eg_cpu_few_columns_blocks(const eg_cpu_kernel *kernel, int threads, const eg_op *op);
/* Numbers of a thread's scratch for such a step. */
int64_t eg_cpu_few_rows_scratch(const eg_cpu_kernel *kernel, const eg_step *step);

/* outer_product.c: the same for one that writes its result once, row by row. */
bool eg_cpu_has_little_depth(const eg_cpu_kernel *kernel, const eg_op *op);
eg_cpu_blocks eg_cpu_outer_blocks(const eg_cpu_kernel *kernel, int threads, const eg_op *op);
int64_t eg_cpu_outer_scratch(const eg_cpu_kernel *kernel, const eg_step *step);

/* Numbers of the compute type in 16 KiB, which stay in L1 beside what streams through it. */
static inline int64_t eg_cpu_some_of_l1(const eg_cpu_kernel *kernel) {
    return kernel->compute == EG_F64 ? 2 << 10 : 4 << 10;
}

/* ---- Sizes -------------------------------------------------------------------------------------- */

/* X [rows, cols] in micro-panels: `rows` are padded to whole tiles of a left operand, and `stride` is the
 * number of rows from one micro-panel to the next. */
typedef struct eg_panels {
    int64_t rows, stride, panels;
} eg_panels;
static inline eg_panels eg_cpu_panels(const eg_cpu_kernel *kernel, int64_t rows, int64_t cols) {
    const int64_t mr = kernel->micro.mr, tiles = eg_ceil_div(rows, mr);
    const int64_t size = mr * kernel->micro.nr * (int64_t)eg_size_of(kernel->compute);
    return (eg_panels){tiles * mr, eg_padded_stride(tiles, size) * mr, eg_ceil_div(cols, kernel->micro.nr)};
}

/* Column sums are kept for each chunk of so many rows, whatever the threads and blocks: their order is part
 * of the contract. A multiple of every mr. */
enum { EG_CPU_CHUNK = 64 };
static inline int64_t eg_cpu_chunks(int64_t rows) { return (rows + EG_CPU_CHUNK - 1) / EG_CPU_CHUNK; }

/* Tiles of each thread's scratch before those of a block: room for an epilogue. */
enum { EG_CPU_SPARE_TILES = 4 };

/* After those, the block's. With several passes all tiles of the block are kept. With one, two tiles take
 * turns and stay in L1: one is summed while the epilogue of the other runs. */
static inline int64_t eg_cpu_block_tiles(const eg_cpu_kernel *kernel, int64_t mc, int64_t nc,
                                         bool single_pass) {
    return single_pass ? 2 : mc / kernel->micro.mr * (nc / kernel->micro.nr);
}

#endif
