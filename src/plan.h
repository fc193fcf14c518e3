/* The plan of a call: a pure function of (device capabilities, problem), a small value that says every
 * step, its kernel and its workspace before anything runs. `epigrad plan` prints it. */
#ifndef EG_PLAN_H
#define EG_PLAN_H

#include "problem.h"

/* The whole vocabulary of steps. */
typedef enum eg_step_kind {
    EG_STEP_PACK,      /* lays an operand out for the matrix kernels */
    EG_STEP_GEMM,      /* one of the products, with its epilogue */
    EG_STEP_ACT_GRAD,  /* grad_pre = grad * act'(saved), element by element, with column sums */
    EG_STEP_COLUMN_SUM /* d_bias from the column sums of row chunks, in a fixed order */
} eg_step_kind;

typedef enum eg_product {
    EG_PRODUCT_PRE, /* A·B            [M, N] */
    EG_PRODUCT_D_A, /* grad_pre·Bᵀ    [M, K] */
    EG_PRODUCT_D_B  /* Aᵀ·grad_pre    [K, N] */
} eg_product;
enum { EG_PRODUCTS = EG_PRODUCT_D_B + 1 };

#define EG_FOR(product) (1U << (product))

/* What is done to a finished tile of a product. */
typedef enum eg_epilogue {
    EG_EPILOGUE_STORE,    /* round, (accumulate,) store */
    EG_EPILOGUE_FORWARD,  /* + bias, [store pre,] act, [+ residual,] store y */
    EG_EPILOGUE_ACT_GRAD, /* + bias, grad * act'(.), column sums, keep for d_a and d_b, [store grad_pre] */
    EG_EPILOGUE_CHAIN     /* * act'(layer below), column sums, store d_a */
} eg_epilogue;

/* The regions of the workspace. */
typedef enum eg_buffer_id {
    EG_BUFFER_A,          /* A as the kernels read it for A·B */
    EG_BUFFER_AT,         /* and for Aᵀ·grad_pre, where that is another layout */
    EG_BUFFER_B,          /* B, for A·B */
    EG_BUFFER_BT,         /* Bᵀ, for grad_pre·Bᵀ */
    EG_BUFFER_GRAD_PRE,   /* grad_pre as the kernels read it for grad_pre·Bᵀ */
    EG_BUFFER_GRAD_PRE_T, /* and for Aᵀ·grad_pre, where that is another layout */
    EG_BUFFER_SUMS,       /* column sums of grad_pre by row chunk */
    EG_BUFFER_SUMS_BELOW, /* and of d_a, where chained */
    EG_BUFFER_SCRATCH,    /* the accumulators of each thread; CUDA: of cut tiles, or the library's */
    EG_BUFFER_COUNTS,     /* CUDA: what the blocks of a launch tell each other */
    EG_BUFFERS
} eg_buffer_id;

typedef struct eg_region {
    size_t offset, bytes;
} eg_region;

typedef struct eg_step {
    eg_step_kind kind;
    eg_product product;                  /* GEMM */
    eg_epilogue epilogue;                /* GEMM */
    eg_operand_id operand;               /* PACK: A or B */
    unsigned products;                   /* PACK: those it is packed for, a bit each (EG_FOR) */
    eg_buffer_id buffer;                 /* COLUMN_SUM: what is summed */
    const void *kernel;                  /* a row of the backend's kernel table */
    const char *name;                    /* its name */
    int64_t tile_rows, tile_cols, depth; /* of the cache block or thread block */
    int threads;                         /* CPU: that this step takes */
    bool packs;                          /* CPU, GEMM: each block lays out B for itself */
    bool one_pass;                       /* CPU, GEMM: a tile's terms are all summed at once */
    int cut;                             /* CUDA, GEMM: of the last tiles, cut along the depth */
} eg_step;

#define EG_MAX_STEPS 10

typedef struct eg_plan {
    int steps;
    eg_step step[EG_MAX_STEPS];
    eg_region region[EG_BUFFERS];
    size_t workspace; /* bytes */
    int threads;      /* CPU: that the context has */
    /* The batch folded into M where that is the same computation: what the backend runs. */
    eg_problem problem;
} eg_plan;

typedef struct eg_caps eg_caps;

/* Folds the problem's batch into its rows, where that is the same computation. */
void eg_plan_fold(eg_problem *problem);

eg_status eg_plan_make(const eg_caps *caps, const eg_problem *problem, eg_plan *plan);

/* Text for people, one step a line; cut to `capacity` bytes with its NUL. */
void eg_plan_print(const eg_plan *plan, char *text, size_t capacity);

/* Appends a region to the workspace, aligned to 64 bytes (256 where offsets must be bound; a power of two):
 * false on overflow. */
bool eg_plan_region(eg_plan *plan, eg_buffer_id id, int64_t count, int64_t each, size_t element,
                    size_t align);

/* Fails: what to say where the workspace overflows. */
eg_status eg_plan_too_large(const eg_problem *problem);

#endif
