/* What is done to a finished tile while it is in L1: one sweep over it (kernel.h), from the caller's memory
 * and to it, and to where the products to come read. */
#ifndef EG_CPU_EPILOGUE_H
#define EG_CPU_EPILOGUE_H

#include "cpu.h"

/* A tile of the matrix an epilogue writes: `rows` x `cols` of it are real, the rest is padding. */
typedef struct eg_tile {
    int64_t item, row, col, rows, cols;
    void *values; /* mr x nr of the compute type */
    char *spare;  /* room for two more tiles */
} eg_tile;

/* A step's epilogue, prepared: all that is the same for each of its tiles. NULL: absent. */
typedef struct eg_ending {
    const eg_cpu_run *run;
    const eg_cpu_kernel *kernel;
    void (*sweeper)(const eg_sweep *sweep);
    void (*grad_rows)(const eg_grad_rows *of, int64_t row); /* of whole cells, in its place; NULL: none */
    const eg_operand *x, *bias, *other, *pre, *out;         /* as in eg_sweep */
    char *sums;                                             /* of the columns, by chunk of rows */
    char *panels;                                           /* grad_pre as the products to come read it: */
    eg_cells cells;                                         /* one or the other */
    eg_cell_grid grid;
    int64_t width;  /* of the result, as whole tiles */
    bool as_it_is;  /* nothing is to be done to the product, */
    bool past;      /* which is stored past the caches */
    bool leisurely; /* may be done step by step during the next tile */
} eg_ending;

eg_ending eg_cpu_ending(const eg_cpu_run *run, const eg_step *step);

/* Asks for what will be read, while the tile is still being summed; but for what has been asked for. */
void eg_cpu_ending_prefetch(const eg_ending *ending, const eg_tile *tile, const eg_operand *asked);

/* What the end of a product reads of the caller's memory, row by row: one operand at most; NULL: none. */
const eg_operand *eg_cpu_ending_reads(const eg_ending *ending);

/* Where the tile's part of grad_pre goes, of an ending that keeps panels. */
char *eg_cpu_ending_panel(const eg_ending *ending, const eg_tile *tile);

/* The end of one tile, in steps: a matrix unit may be at work on the next tile between them. */
typedef struct eg_finish eg_finish;
struct eg_finish {
    const eg_ending *ending; /* NULL: none is under way */
    eg_tile tile;
    eg_sweep sweep;         /* of steps that are sweeps */
    eg_grad_rows grad_rows; /* of those that are rows */
    eg_cells cells;
    void (*take)(eg_finish *finish); /* a step: number `step` of so many */
    int step, steps;
    bool ends_by_sweeps;                                    /* what those leave is delivered */
    _Alignas(64) char bias[EG_CPU_WIDEST * sizeof(double)]; /* where it has to be converted */
    _Alignas(64) float unwanted[EG_CELL];                   /* column sums */
};

void eg_cpu_finish_begin(eg_finish *finish, const eg_ending *ending, const eg_tile *tile);
void eg_cpu_finish_some(void *finish);
void eg_cpu_finish_rest(eg_finish *finish);

#endif
