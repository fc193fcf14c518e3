/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of kernels for a few outer products (kernels/outer.cu), and for tall and skinny products
 * (kernels/tall.cuh, tall_fma.cuh), for the host and for the kernels. */
#ifndef EG_CUDA_SKINNY_H
#define EG_CUDA_SKINNY_H

enum { EG_OUTER_TERMS = 16 /* at most */ };

/* EG_TALL_PITCH: numbers of 16 bits of a line of left, or of right along the terms, with its gap; f32: terms.
 */
enum {
    EG_TALL_ROWS = 32,
    EG_TALL_COLS = 64,
    EG_TALL_PITCH = 128,
    EG_TALL_F32_TERMS = 64,
    EG_TALL_THREADS = 256
};

#endif
