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

/* Asks for what the epilogue of a tile will read and write, while the tile is still being summed. */
void eg_cpu_epilogue_prefetch(const eg_cpu_run *run, const eg_step *step, const eg_tile *tile);
void eg_cpu_epilogue(const eg_cpu_run *run, const eg_step *step, const eg_tile *tile);

/* The epilogue of a tile of grad_pre that no product ends in: act' is taken of what was saved. */
void eg_cpu_epilogue_saved(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_tile *tile);

#endif
