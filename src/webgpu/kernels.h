/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel rows, best first, `ref` last: a product is computed by one of them. */
#ifndef EG_WEBGPU_KERNELS_H
#define EG_WEBGPU_KERNELS_H

#include <stdint.h>

/* X(name, source, rows, cols, depth, tall, wide, invocations, memory): a workgroup's tile, a thread's own
 * tile in squares of 4x4, and what the workgroup takes of the device's limits (memory in bytes). The build
 * reads these lines too: one shader text is made of each. */
#define EG_WEBGPU_KERNELS(X)                                                                                 \
    X(shared_128x128, gemm_shared, 128, 128, 16, 2, 2, 256, 16384)                                           \
    X(shared_64x64, gemm_shared, 64, 64, 16, 2, 2, 64, 8192)                                                 \
    X(shared_32x32, gemm_shared, 32, 32, 16, 1, 1, 64, 4096)                                                 \
    X(direct_16x128, gemm_direct, 16, 128, 4, 4, 4, 8, 0)                                                    \
    X(direct_16x32, gemm_direct, 16, 32, 4, 4, 1, 8, 0)                                                      \
    X(ref, gemm_ref, 8, 8, 1, 0, 0, 64, 0)

/* EG_ROW_shared_128x128, ...: their places in the table, and how many there are. */
enum {
#define EG_ROW(name, source, rows, cols, depth, tall, wide, invocations, memory) EG_ROW_##name,
    EG_WEBGPU_KERNELS(EG_ROW)
#undef EG_ROW
        EG_WEBGPU_ROWS
};

/* The element-wise kernel's elements and the column sums' columns of a workgroup; on adapters that are
 * processors, columns of one invocation each. The build gives the shaders the same numbers. */
enum { EG_ELEMENTWISE_ROWS = 8, EG_ELEMENTWISE_COLS = 64, EG_SUM_COLS = 16, EG_ALONE_COLS = 8 };

typedef enum eg_webgpu_shape { EG_SHAPE_PRODUCT, EG_SHAPE_ELEMENTWISE, EG_SHAPE_COLUMN_SUM } eg_webgpu_shape;

typedef struct eg_webgpu_kernel {
    const char *name;
    eg_webgpu_shape shape;
    int64_t rows, cols, depth;    /* of a workgroup's tile */
    uint32_t invocations, memory; /* of a workgroup */
    const char *text;             /* WGSL for any strides */
    const char *text_vec4;        /* and for aligned operands, or NULL */
    const char *sums, *sums_vec4; /* the same, with the sums of one operand over the depth, or NULL */
} eg_webgpu_kernel;

/* Row `index` of the table, or NULL past the last. */
const eg_webgpu_kernel *eg_webgpu_kernel_row(int index);
extern const eg_webgpu_kernel eg_webgpu_elementwise, eg_webgpu_column_sum, eg_webgpu_column_alone;

#endif
