/* SPDX-License-Identifier: Apache-2.0 */
/* What the steps of a CPU program are run by: the compiler fills it in, and the kernels read it. */
#ifndef EG_CPU_STEP_H
#define EG_CPU_STEP_H

#include "core/backend.h"
#include "core/sizes.h"
#include "kernel.h"

/* ---- Steps -------------------------------------------------------------------------------------- */

/* Where a product finds an operand: in the region of that index, or one of these. */
enum {
    EG_CPU_NOWHERE = -1, /* there is none */
    EG_CPU_IN_PLACE = -2,
    EG_CPU_FROM_PACK = -3, /* of the caller's */
    EG_CPU_FUSED = -4,     /* each block packs it for itself */
    EG_CPU_TO_PACK = -5    /* while compiling: in a region that is to be added */
};

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
    int8_t made_blocks;   /* GEMM, EG_CPU_FUSED from what was made as a left operand: its region */
    int8_t sums;          /* region of the column sums that the step makes or reduces */
    int8_t source;        /* packing: the operation that reads the matrix, */
    bool source_is_right; /* as its right operand */
    eg_cpu_layouts packs; /* packing, MAP and GEMM: what becomes of the matrix, or of the result */
    bool packs_both;      /* GEMM, vector units: each block packs both operands */
    bool copies_ends;     /* GEMM, AMX, left in place: each block copies what is no whole tile block */
    bool single_pass;     /* GEMM: the whole depth is summed in registers */
    bool non_temporal;    /* GEMM: stores of the result bypass the caches */
    bool same_blocks;     /* GEMM and MAP: each block follows that of the step before at once */
    bool same_fork;       /* needs nothing of the step before: one fork and join for both, */
    int fork_threads;     /* for which the first of such steps says how many threads there are */
    uint8_t streams;      /* GEMM: eg_cpu_streams */
    int32_t part;         /* outer products: columns whose right operand is in L1 at once */
} eg_cpu_step;
_Static_assert(sizeof(eg_cpu_step) <= EG_STEP_DETAIL, "the detail of a step");

/* The most steps that are run block by block: a gated layer's chain has six. */
enum { EG_CPU_FUSED_STEPS = 6 };

static inline const eg_cpu_step *eg_cpu_detail(const eg_step *step) {
    return (const eg_cpu_step *)step->detail;
}

/* eg_program.detail */
typedef struct eg_cpu_program {
    size_t scratch; /* bytes of the scratch region for each thread */
} eg_cpu_program;
_Static_assert(sizeof(eg_cpu_program) <= EG_PROGRAM_DETAIL, "the detail of a program");

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

/* Numbers of a pass's rows of the left operand, which a block of AMX tile blocks packs for itself. */
static inline int64_t eg_cpu_left_numbers(const eg_cpu_kernel *kernel, int64_t rows, int64_t depth) {
    const eg_amx_grid grid = eg_amx_grid_of(kernel->pack.bf16_terms, rows, depth);
    return grid.rows * grid.row_pitch * (int64_t)(grid.block_bytes / sizeof(float));
}

/* And what it copies of one in place: the last tile's rows, and the last k of the others. */
static inline int64_t eg_cpu_left_ends(const eg_cpu_kernel *kernel, int64_t rows, int64_t depth) {
    const int64_t block = EG_AMX_TERM_BYTES / (int64_t)sizeof(float);
    return eg_cpu_left_numbers(kernel, EG_AMX_BLOCK, depth) +
           (rows + EG_AMX_BLOCK - 1) / EG_AMX_BLOCK * block;
}

/* Column sums are kept for each chunk of so many rows, whatever the threads and blocks: their order is part
 * of the contract. A multiple of every mr. */
enum { EG_CPU_CHUNK = 64 };
static inline int64_t eg_cpu_chunks(int64_t rows) { return (rows + EG_CPU_CHUNK - 1) / EG_CPU_CHUNK; }

/* Rows of an epilogue that is run at once. On vector units those of some tiles, one below the other, as many
 * as are short in L1: an activation is a long chain of operations, which overlaps with the next one and not
 * with a multiplication. A power of two, so that chunks are whole ones. They fit into a row of a tile, as
 * transposed ones have to. */
static inline int64_t eg_cpu_epilogue_rows(const eg_cpu_kernel *kernel) {
    enum { BYTES = 6144 };
    const int64_t nr = kernel->micro.nr, bytes = nr * (int64_t)eg_size_of(kernel->compute);
    int64_t rows = kernel->micro.mr;
    while (!eg_cpu_is_amx(kernel) && 2 * rows <= nr && 2 * rows * bytes <= BYTES) rows *= 2;
    return rows;
}

/* Numbers of each thread's scratch before the tiles of a block: room for an epilogue. */
static inline int64_t eg_cpu_spare_numbers(const eg_cpu_kernel *kernel) {
    enum { SPARE_TILES = 4 };
    return SPARE_TILES * eg_cpu_epilogue_rows(kernel) * kernel->micro.nr;
}

/* After those, the block's. With several passes all tiles of the block are kept. With one, they stay in L1:
 * those of an epilogue; of the matrix unit two that take turns, as one is summed while the epilogue of the
 * other runs. */
static inline int64_t eg_cpu_block_tiles(const eg_cpu_kernel *kernel, int64_t mc, int64_t nc,
                                         bool single_pass) {
    if (single_pass) return eg_cpu_is_amx(kernel) ? 2 : eg_cpu_epilogue_rows(kernel) / kernel->micro.mr;
    return mc / kernel->micro.mr * (nc / kernel->micro.nr);
}

#endif
