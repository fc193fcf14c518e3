/* SPDX-License-Identifier: Apache-2.0 */
/* What the steps of a CUDA program hold: all that a run needs besides addresses. */
#ifndef EG_CUDA_STEP_H
#define EG_CUDA_STEP_H

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
    EG_CUDA_UNFINISHED, /* a product before its epilogue, or of chunks of its depth, in the compute type */
    EG_CUDA_PADDED,     /* copies of operands, one region each */
    EG_CUDA_REGIONS = EG_CUDA_PADDED + EG_CUDA_PADS
};
_Static_assert((int)EG_CUDA_REGIONS <= (int)EG_MAX_REGIONS, "room for the regions");

/* What a step makes of an operation. */
typedef enum eg_cuda_part {
    EG_CUDA_WHOLE,   /* all of it */
    EG_CUDA_PRODUCT, /* its product alone, which a step that finishes it reads */
    EG_CUDA_FINISH,  /* the terms of its epilogue, from that product */
    EG_CUDA_PAD,     /* a copy of an operand, in rows that begin on 16 bytes */
    EG_CUDA_CHUNKS,  /* a product of each chunk of its depth, */
    EG_CUDA_ADD_UP   /* and their sum */
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
    int8_t op;          /* the operation; PAD: which copy */
    int8_t reduce; /* the REDUCE that it makes at the same time, of its only row of column sums; 0: none */
    int8_t left_reduce; /* the REDUCE of column sums of left, which it makes beside its products; 0: none */
    uint8_t part;       /* eg_cuda_part */
    uint8_t splits;     /* parts of a product's depth, each summed by a block of a cluster */
    uint8_t algorithm;  /* of the library: 0 its best by lt_choose.h, then the others that lt.c asks for */
    bool clears;        /* the kernel also sets all counters to 0 */
    bool forks;         /* the side stream may go on from here */
    bool waits;         /* of a step on the side stream: for the last step that forks */
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

/* eg_packed.detail: a copy of b in rows of 16-byte vectors. */
typedef struct eg_cuda_pack {
    int64_t ld, item_stride; /* elements */
} eg_cuda_pack;
_Static_assert(sizeof(eg_cuda_pack) <= EG_PACKED_DETAIL, "the detail of a pack");

#endif
