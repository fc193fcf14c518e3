/* SPDX-License-Identifier: Apache-2.0 */
/* Of the kernels that make y of a product that waits (kernels/map_y.cu, map_y_gaps.cu): for the host too. */
#ifndef EG_CUDA_MAP_Y_H
#define EG_CUDA_MAP_Y_H

enum {
    EG_MAP_Y_THREADS = 256,
    EG_MAP_Y_F32_VECTORS = 2, /* that a thread has without gaps, of f32; of other types one */
    EG_MAP_Y_GAPS_BLOCKS = 4  /* that a multiprocessor has room for, at least */
};

#endif
