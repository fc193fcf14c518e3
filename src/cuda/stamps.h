/* SPDX-License-Identifier: Apache-2.0 */
/* Stamps of time by Hopper's persistent kernels, for a picture of one multiprocessor (bench/cuda/timeline.c):
 * what thread block 0 does, tile by tile. Kernels have them only where nvcc is given -DEG_STAMPS. */
#ifndef EG_CUDA_STAMPS_H
#define EG_CUDA_STAMPS_H

#include <stdint.h>

/* Who: a consumer, or the producer. */
enum { EG_STAMP_PRODUCER = 2, EG_STAMP_LANES, EG_STAMP_TILES = 64 };

/* Spans of a tile. The producer has loads only. A consumer that has an epilogue without products rehearses it
 * in the first tile (hopper_pingpong.cuh), and has been lent half of the accumulators of the last. */
enum { EG_STAMP_LOADS, EG_STAMP_PRODUCTS, EG_STAMP_EPILOGUE, EG_STAMP_SPANS };

/* Of the multiprocessor's clock, and of the device's timer in nanoseconds; 0: there was none. */
typedef struct eg_stamp {
    uint64_t clock, nanoseconds;
} eg_stamp;

/* The kernels' variable eg_stamps: [0] is where a span begins, [1] where it ends. */
typedef eg_stamp eg_stamps_of_block[EG_STAMP_LANES][EG_STAMP_TILES][EG_STAMP_SPANS][2];

#endif
