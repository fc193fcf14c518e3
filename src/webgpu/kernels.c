/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels.h"

#include <stddef.h>

/* Made by the build from kernels/: NUL-terminated WGSL. */
#define EG_ROW(name, source, rows, cols, depth, tall, wide, invocations, memory)                             \
    extern const char eg_wgsl_##name[], eg_wgsl_##name##_vec4[], eg_wgsl_##name##_sums[],                    \
        eg_wgsl_##name##_vec4_sums[];
EG_WEBGPU_KERNELS(EG_ROW)
#undef EG_ROW
extern const char eg_wgsl_elementwise[], eg_wgsl_column_sum[], eg_wgsl_column_alone[];

/* Only these have a text with sums. */
#define EG_SUMS_gemm_shared(name) eg_wgsl_##name##_sums, eg_wgsl_##name##_vec4_sums
#define EG_SUMS_gemm_direct(name) NULL, NULL
#define EG_SUMS_gemm_ref(name)    NULL, NULL

const eg_webgpu_kernel *eg_webgpu_kernel_row(int index) {
    static const eg_webgpu_kernel rows[] = {
#define EG_ROW(name, source, rows, cols, depth, tall, wide, invocations, memory)                             \
    {#name,                                                                                                  \
     EG_SHAPE_PRODUCT,                                                                                       \
     rows,                                                                                                   \
     cols,                                                                                                   \
     depth,                                                                                                  \
     invocations,                                                                                            \
     memory,                                                                                                 \
     eg_wgsl_##name,                                                                                         \
     eg_wgsl_##name##_vec4,                                                                                  \
     EG_SUMS_##source(name)},
        EG_WEBGPU_KERNELS(EG_ROW)
#undef EG_ROW
    };
    return index >= 0 && index < (int)(sizeof rows / sizeof *rows) ? &rows[index] : NULL;
}

const eg_webgpu_kernel eg_webgpu_elementwise = {
    .name = "elementwise",
    .shape = EG_SHAPE_ELEMENTWISE,
    .rows = EG_ELEMENTWISE_ROWS,
    .cols = EG_ELEMENTWISE_COLS,
    .depth = 1,
    .invocations = 64,
    .text = eg_wgsl_elementwise,
};
const eg_webgpu_kernel eg_webgpu_column_sum = {
    .name = "column_sum",
    .shape = EG_SHAPE_COLUMN_SUM,
    .rows = 1,
    .cols = EG_SUM_COLS,
    .depth = 1,
    .invocations = 256,
    .memory = 1024,
    .text = eg_wgsl_column_sum,
};
const eg_webgpu_kernel eg_webgpu_column_alone = {
    .name = "column_alone",
    .shape = EG_SHAPE_COLUMN_SUM,
    .rows = 1,
    .cols = EG_ALONE_COLS,
    .depth = 1,
    .invocations = EG_ALONE_COLS,
    .text = eg_wgsl_column_alone,
};
