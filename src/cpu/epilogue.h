/* SPDX-License-Identifier: Apache-2.0 */
/* The epilogue: what is done to a finished tile while it is in L1. It reads from the caller's memory, and
 * writes to it and to where later products read their packed operands. */
#ifndef EG_CPU_EPILOGUE_H
#define EG_CPU_EPILOGUE_H

#include "cpu.h"

/* A tile of the matrix that an epilogue writes: rows x cols of it are real, the rest is padding. */
typedef struct eg_tile {
    int64_t item, row, col, rows, cols;
    void *values; /* rows of nr of the compute type: mr, or as many as an epilogue has */
    char *spare;  /* room for two more epilogues */
} eg_tile;

/* The epilogue of a step: all that is the same for each of its tiles. NULL: absent. */
typedef struct eg_epilogue {
    const eg_cpu_run *run;
    const eg_cpu_kernel *kernel;
    void (*elementwise)(const eg_elementwise *of);
    void (*grad_rows)(const eg_grad_rows *of, int64_t row); /* for whole AMX tile blocks, rather than that, */
    void (*act_rows)(const eg_act_rows *of, int64_t row);   /* or this; NULL: none */
    const eg_operand *x, *bias, *other, *pre, *out;  /* as in eg_elementwise: one of the next line's, or */
    eg_operand left, bias_row, term, stored, result; /* the tile itself */
    int64_t rows;                                    /* of the result */
    char *sums;                                      /* of the columns, by chunk of rows */
    char *micro_panels;                              /* the result as later products read it: */
    eg_cpu_packs blocks;                             /* one or the other */
    eg_amx_grid grid;
    int64_t width;     /* of the result, as whole tiles */
    double scale;      /* of the product; 1: none */
    int64_t ahead;     /* rows of what is read that are prefetched so much earlier; 0: none */
    bool is_grad;      /* `elementwise` is an act', which adds the column sums, too */
    bool propagate;    /* act'(NaN) = NaN */
    bool times;        /* `other` is multiplied with act(x) */
    bool plain_store;  /* the product is the result, */
    bool non_temporal; /* and is stored so that it bypasses the caches */
    bool fills_rows;   /* `out` is a buffer whose rows have room for whole micro-panels */
    bool in_blocks;    /* of a row with AMX tile blocks: some rows a step, during the next tile */
} eg_epilogue;

/* Its address as `x` stands for the tile itself. */
extern const eg_operand eg_cpu_product;

/* Whether the result goes to AMX tile blocks. */
static inline bool eg_cpu_epilogue_packs_blocks(const eg_epilogue *e) {
    return e->blocks.left != NULL || e->blocks.right != NULL;
}

void eg_cpu_prepare_epilogue(const eg_cpu_run *run, const eg_step *step, eg_epilogue *epilogue);

/* Whether what a map reads of tiles of so many columns can be prefetched on the way, `ahead`. */
bool eg_cpu_epilogue_fetches(const eg_epilogue *e, int64_t cols);

/* Whether a map does nothing but add up columns of a matrix that lies in rows. */
bool eg_cpu_epilogue_only_sums(const eg_epilogue *e);
/* Those of some rows of a chunk, of any number of columns. */
void eg_cpu_epilogue_sum(const eg_epilogue *e, const eg_tile *tile);

/* Whether a map of so many columns can go row by row, and such a map of some rows of a chunk, of any number
 * of columns from a micro-panel's first on. */
bool eg_cpu_epilogue_goes_by_rows(const eg_epilogue *e, int64_t cols);
void eg_cpu_epilogue_by_rows(const eg_epilogue *e, const eg_tile *tile);
/* The same of a product, of whose sums, with their bias, `x` has those rows in the compute type. */
bool eg_cpu_epilogue_takes_rows(const eg_epilogue *e, int64_t cols);
void eg_cpu_epilogue_of_rows(const eg_epilogue *e, const eg_tile *tile, const eg_rows *x);

/* Loads what a map reads of a tile, see eg_cpu_touch. */
void eg_cpu_epilogue_touch(const eg_epilogue *e, const eg_tile *tile);

/* Prefetches what the epilogue of a tile reads, but for `done`, which is prefetched otherwise. */
void eg_cpu_epilogue_prefetch(const eg_epilogue *epilogue, const eg_tile *tile, const eg_operand *done);

/* The operand that the epilogue of a product reads row by row, of one at most; NULL: none. */
const eg_operand *eg_cpu_epilogue_reads(const eg_epilogue *epilogue);
/* And `pre`, where it is stored through the caches row by row. */
const eg_operand *eg_cpu_epilogue_stores(const eg_epilogue *epilogue);

/* Where the tile goes in the result's micro-panels. */
char *eg_cpu_epilogue_panel(const eg_epilogue *epilogue, const eg_tile *tile);

/* The epilogue of one tile, in steps: the matrix unit may multiply the next tile between them. */
typedef struct eg_tile_epilogue eg_tile_epilogue;
struct eg_tile_epilogue {
    const eg_epilogue *of; /* NULL: none is under way */
    eg_tile tile;
    eg_elementwise elementwise; /* for steps of that kind, */
    eg_grad_rows grad_rows;     /* of this kind, */
    eg_act_rows act_rows;       /* and of this */
    eg_cpu_packs block;
    void (*take)(eg_tile_epilogue *epilogue); /* runs step number `step`, of `steps` */
    int step, steps;
    bool waits_for_scale;                                   /* the tile, before the first step */
    bool is_elementwise, is_turned;                         /* else there is nothing to do after the steps */
    _Alignas(64) char bias[EG_CPU_WIDEST * sizeof(double)]; /* where it has to be converted */
    _Alignas(64) float unwanted[EG_AMX_BLOCK];              /* column sums */
};

void eg_cpu_epilogue_begin(eg_tile_epilogue *t, const eg_epilogue *epilogue, const eg_tile *tile);
void eg_cpu_epilogue_step(void *t); /* one step, if any is left */
void eg_cpu_epilogue_finish(eg_tile_epilogue *t);

#endif
