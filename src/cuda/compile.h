/* SPDX-License-Identifier: Apache-2.0 */
/* What CUDA's compiler decides, and what a step's kernel is launched by. */
#ifndef EG_CUDA_COMPILE_H
#define EG_CUDA_COMPILE_H

#include "core/backend.h"
#include "core/sizes.h"
#include "estimate.h"
#include "table.h"

/* eg_caps.detail: what a program depends on beside the feature bits. */
typedef struct eg_cuda_caps {
    int multiprocessors;
    int shared; /* bytes of shared memory a block may have */
    const eg_cuda_calibration *calibration;
} eg_cuda_caps;

/* Operands of which a program may have a padded copy. */
enum { EG_CUDA_PADS = 4 };

/* Regions of every program: temporaries by their number, then these. */
enum {
    EG_CUDA_SCRATCH = EG_MAX_TEMPORARIES,
    EG_CUDA_COUNTERS,
    EG_CUDA_UNFINISHED, /* a product before its epilogue, in the compute type */
    EG_CUDA_PADDED,     /* copies of operands, one region each */
    EG_CUDA_REGIONS = EG_CUDA_PADDED + EG_CUDA_PADS
};
_Static_assert((int)EG_CUDA_REGIONS <= (int)EG_MAX_REGIONS, "room for the regions");

/* What a step makes of an operation. */
typedef enum eg_cuda_part {
    EG_CUDA_WHOLE,   /* all of it */
    EG_CUDA_PRODUCT, /* its product alone, which a step that finishes it reads */
    EG_CUDA_FINISH,  /* the terms of its epilogue, from that product */
    EG_CUDA_PAD      /* a copy of an operand, in rows that begin on 16 bytes */
} eg_cuda_part;

/* Items and rows that a kernel takes at once which makes column sums. Where that is not all of them, the sums
 * of a portion are added to row `total` of their region before the next portion; else `total` is 0. */
typedef struct eg_cuda_portions {
    int64_t items, rows, total;
} eg_cuda_portions;

/* A stream-K tail: the last tiles of a product, of which there are fewer than clusters of blocks. */
typedef struct eg_cuda_tail {
    int32_t tiles;          /* 0: there is no tail */
    int32_t helpers;        /* clusters that multiply what the owners do not */
    int32_t owner_k_blocks; /* k-blocks of a tile that its own cluster multiplies */
    int32_t counter;        /* the first of the product's, in their region */
} eg_cuda_tail;

/* eg_step.detail */
typedef struct eg_cuda_step {
    const eg_cuda_kernel *kernel;     /* NULL: the counters are cleared, by the driver */
    const eg_cuda_kernel *sum_kernel; /* of each portion's sums; NULL: all are made at once */
    eg_cuda_portions portions;
    eg_cuda_tail tail;
    int64_t map_chunks; /* of the rows of a MAP, whose sums are made at once */
    int64_t sum_rows;   /* REDUCE: rows of sums, from row portions.total on */
    int32_t chunk_rows; /* REDUCE of groups: rows of the result that each of them covers */
    int32_t tma_cols;   /* columns of a product's results that TMA stores: threads store the others */
    int8_t raster;      /* rows of tiles in the block that those of a wave form */
    int8_t op;          /* the operation; PAD: which copy */
    int8_t reduce;  /* the REDUCE that it makes at the same time, of its only row of column sums; 0: none */
    uint8_t part;   /* eg_cuda_part */
    uint8_t splits; /* parts of a product's depth, each summed by a block of a cluster */
    bool clears;    /* the kernel also sets all counters to 0 */
    bool waits;     /* of a step on the side stream: for all that is on the main one */
} eg_cuda_step;
_Static_assert(sizeof(eg_cuda_step) <= EG_STEP_DETAIL, "the detail of a step");

static inline const eg_cuda_step *eg_cuda_detail(const eg_step *step) {
    return (const eg_cuda_step *)step->detail;
}

/* eg_program.detail */
typedef struct eg_cuda_program {
    uint64_t names;           /* of operands that the operations read or write, a bit each */
    int8_t pads;              /* copies of operands */
    int8_t pad[EG_CUDA_PADS]; /* of which operand each is: products read the copy in its place */
} eg_cuda_program;

static inline const eg_cuda_program *eg_cuda_program_of(const eg_program *program) {
    return (const eg_cuda_program *)program->detail;
}

_Static_assert(sizeof(eg_cuda_program) <= EG_PROGRAM_DETAIL && (int)EG_NAMES <= 64,
               "the detail of a program");

eg_status eg_cuda_compile(const eg_caps *caps, eg_program *program);

/* eg_packed.detail: a copy of b in rows of 16-byte vectors. */
typedef struct eg_cuda_pack {
    int64_t ld, item_stride; /* elements */
} eg_cuda_pack;
_Static_assert(sizeof(eg_cuda_pack) <= EG_PACKED_DETAIL, "the detail of a pack");

/* Whether results are read before they are added to, by TMA. */
static inline bool eg_cuda_reads_out(const eg_cuda_gemm *x) {
    return x->epilogue == EG_CUDA_STORE && x->accumulate && x->out.dtype != EG_F32;
}

/* ---- Kernel parameters (parameters.c) ------------------------------------------------------------- */

/* Where the views of a program are. Without a call, as when it is compiled, each view's address is the power
 * of two that divides it: enough to know which are there, and what kernels can take. */
typedef struct eg_cuda_binding {
    const eg_program *program;
    const eg_call *call; /* NULL: no addresses yet */
    bool aligned;        /* without a call: every operand is taken to begin where kernels like it best */
} eg_cuda_binding;

/* Where a temporary's numbers are stored for the caller, too: it has no region then. NULL: nowhere. */
const eg_view *eg_cuda_stored_at(const eg_op_list *list, int temporary);

eg_cuda_matrix eg_cuda_matrix_of(const eg_cuda_binding *binding, const eg_view *view);

/* A product, a copy, or a map as the kernels of any strides take it. */
eg_cuda_gemm eg_cuda_gemm_of(const eg_cuda_binding *binding, int op);
/* And a part of it. */
eg_cuda_gemm eg_cuda_gemm_of_part(const eg_cuda_binding *binding, int op, eg_cuda_part part);

/* Whether a product waits in a region of its own to be finished: its result's memory would round it, or may
 * be an input's, which is not known before the call. */
bool eg_cuda_has_unfinished(const eg_op_list *list, const eg_op *op);
/* Bytes of that region for an operation, SIZE_MAX where memory could not hold them. */
size_t eg_cuda_unfinished_bytes(const eg_op_list *list, const eg_op *op);
/* Elements from row to row there, and of a padded copy: its rows of the operand's contiguous dimension. */
int64_t eg_cuda_unfinished_ld(int64_t cols);
void eg_cuda_padded_shape(const eg_op_list *list, int operand, int64_t *lines, int64_t *pitch,
                          int64_t *items);
/* The first product's view of an operand; NULL: no product reads it. */
const eg_view *eg_cuda_read_by_product(const eg_op_list *list, int operand);

/* Where the sums go of a step that makes its REDUCE, and whether they are added to what is there. */
void eg_cuda_take_total(const eg_cuda_binding *binding, const eg_cuda_step *detail, eg_cuda_matrix *total,
                        int32_t *adds);

eg_cuda_act_grad eg_cuda_act_grad_of(const eg_cuda_binding *binding, int op, const eg_cuda_step *detail);

eg_cuda_column_sum eg_cuda_column_sum_of(const eg_cuda_binding *binding, int op, const eg_cuda_step *detail);

/* The sums of portions, `cols` wide, to row `total`: `rows` is not set. */
eg_cuda_column_sum eg_cuda_portion_sum_of(uint64_t sums, int64_t cols, int64_t total, eg_dtype compute);

/* Some items and rows of either; the counts of tiles are set again for the row. */
eg_cuda_matrix eg_cuda_from(eg_cuda_matrix x, int64_t item, int64_t row);
eg_cuda_gemm eg_cuda_part_of(const eg_cuda_gemm *whole, int64_t item, int64_t items, int64_t row,
                             int64_t rows);
int64_t eg_cuda_count_tiles(const eg_cuda_kernel *row, eg_cuda_gemm *gemm);

eg_cuda_counts eg_cuda_counters_of(const eg_cuda_binding *binding);
uint64_t eg_cuda_region_of(const eg_cuda_binding *binding, int region);

/* ---- Choice of kernels (choose.c) ----------------------------------------------------------------- */

/* What has been decided of a program so far. */
typedef struct eg_cuda_compiler {
    const eg_caps *caps;
    int multiprocessors;
    eg_program *program;
    const eg_op_list *list;
    const eg_cuda_kernel *row[EG_MAX_OPS];     /* of the operation, or of what finishes it */
    const eg_cuda_kernel *product[EG_MAX_OPS]; /* of its product alone; NULL: of no part */
    bool aligned;                              /* eg_cuda_binding */
    double microseconds;                       /* of all operations that are decided */
} eg_cuda_compiler;

/* The row of an operation, or those of its parts, those before it being decided. */
eg_status eg_cuda_choose(eg_cuda_compiler *c, int op);

/* The row that makes padded copies. */
const eg_cuda_kernel *eg_cuda_pad_row(eg_dtype dtype);

/* The tail of a product that a row makes, with `saved`, in waves of tiles. */
eg_cuda_tail eg_cuda_choose_tail(const eg_cuda_compiler *c, const eg_cuda_kernel *row, const eg_cuda_gemm *x,
                                 double *saved);

/* Estimated microseconds of a row for a product, copy or map: operation `index`. */
double eg_cuda_time_of(const eg_cuda_compiler *c, const eg_cuda_kernel *row, const eg_cuda_gemm *x,
                       int index);
eg_cuda_machine eg_cuda_machine_of(const eg_cuda_compiler *c);

/* ---- Partitions (partition.c) --------------------------------------------------------------------- */

/* Rows of the result that a row of its column sums covers. */
int64_t eg_cuda_sum_rows(const eg_cuda_kernel *row);

/* Whether a temporary is one of column sums; the rows of them that the workspace has: false where memory
 * could not hold them. */
bool eg_cuda_is_sums(const eg_op_list *list, int temporary);
bool eg_cuda_rows_of_sums(const eg_op_list *list, const eg_temporary *sums, int64_t *rows);
eg_cuda_portions eg_cuda_portions_of(const eg_op_list *list, const eg_temporary *sums, int64_t items,
                                     int64_t rows, int64_t chunk_rows);
int64_t eg_cuda_launches_of(const eg_cuda_portions *portions, int64_t items, int64_t rows);

/* In how many chunks a map by rows of vectors makes its rows. */
int64_t eg_cuda_map_chunks(const eg_cuda_compiler *c, int op);

/* How the last tiles of a product are split, where that is profitable or, with `always`, possible. `saved` is
 * what that saves, in waves of tiles. */
eg_cuda_tail eg_cuda_tail_of(int multiprocessors, const eg_cuda_kernel *row, const eg_cuda_gemm *x,
                             bool always, double *saved);
int64_t eg_cuda_tail_counters(int multiprocessors); /* of a product */
size_t eg_cuda_tail_bytes(int multiprocessors);     /* of the sums of partial tiles */

#endif
