#include "kernels.h"

#include <stddef.h>

/* Made by the build from kernels/: NUL-terminated WGSL. */
#define EG_ROW(name, source, rows, cols, depth, tall, wide, invocations, memory)                             \
    extern const char eg_wgsl_##name[], eg_wgsl_##name##_vec4[], eg_wgsl_##name##_sums[],                    \
        eg_wgsl_##name##_vec4_sums[];
EG_WEBGPU_KERNELS(EG_ROW)
#undef EG_ROW
extern const char eg_wgsl_finish[], eg_wgsl_column_sum[], eg_wgsl_column_alone[];

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

const eg_webgpu_kernel eg_webgpu_finish = {"finish", EG_SHAPE_FINISH, EG_FINISH_ROWS, EG_FINISH_COLS, 1,   64,
                                           0,        eg_wgsl_finish,  NULL,           NULL,           NULL};
const eg_webgpu_kernel eg_webgpu_column_sum = {"column_sum", EG_SHAPE_COLUMN_SUM, 1,    EG_SUM_COLS, 1,   256,
                                               1024,         eg_wgsl_column_sum,  NULL, NULL,        NULL};
const eg_webgpu_kernel eg_webgpu_column_alone = {"column_alone",
                                                 EG_SHAPE_COLUMN_SUM,
                                                 1,
                                                 EG_ALONE_COLS,
                                                 1,
                                                 EG_ALONE_COLS,
                                                 0,
                                                 eg_wgsl_column_alone,
                                                 NULL,
                                                 NULL,
                                                 NULL};
