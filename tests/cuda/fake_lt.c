/* SPDX-License-Identifier: Apache-2.0 */
/* cublasLt that multiplies nothing: it notes the products that it is given, and refuses some (fake_driver.h).
 */
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"

#define EXPORT __attribute__((visibility("default")))

extern fake_cuda eg_fake_cuda;

typedef struct layout {
    cudaDataType type;
    uint64_t rows, cols;
} layout;

static int thing; /* handles point to it */

EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = (cublasLtHandle_t)&thing;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    (void)handle;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *multiply, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
    uint32_t *epilogue = malloc(sizeof *epilogue);
    (void)compute, (void)scale;
    *multiply = (cublasLtMatmulDesc_t)epilogue;
    if (epilogue == NULL) return CUBLAS_STATUS_ALLOC_FAILED;
    *epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t multiply) {
    free(multiply);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t multiply,
                                                     cublasLtMatmulDescAttributes_t which, const void *value,
                                                     size_t bytes) {
    if (which == CUBLASLT_MATMUL_DESC_EPILOGUE) memcpy(multiply, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType type,
                                                 uint64_t rows, uint64_t cols, int64_t ld) {
    layout *x = malloc(sizeof *x);
    (void)ld;
    *made = (cublasLtMatrixLayout_t)x;
    if (x == NULL) return CUBLAS_STATUS_ALLOC_FAILED;
    *x = (layout){type, rows, cols};
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t x) {
    free(x);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t x,
                                                       cublasLtMatrixLayoutAttribute_t which,
                                                       const void *value, size_t bytes) {
    (void)x, (void)which, (void)value, (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *wish) {
    *wish = (cublasLtMatmulPreference_t)&thing;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t wish) {
    (void)wish;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t wish,
                                                           cublasLtMatmulPreferenceAttributes_t which,
                                                           const void *value, size_t bytes) {
    (void)wish;
    if (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) memcpy(&eg_fake_cuda.library_room, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                           cublasLtMatmulAlgoConfigAttributes_t which,
                                                           void *value, size_t bytes, size_t *written) {
    const uint32_t hopper = 66, parts = (uint32_t)algorithm->data[0]; /* its kernels for 16 bits */
    (void)written;
    if (which != CUBLASLT_ALGO_CONFIG_ID && which != CUBLASLT_ALGO_CONFIG_SPLITK_NUM)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memcpy(value, which == CUBLASLT_ALGO_CONFIG_ID ? &hopper : &parts, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t multiply,
                                                     cublasLtMatrixLayout_t left,
                                                     cublasLtMatrixLayout_t right, cublasLtMatrixLayout_t in,
                                                     cublasLtMatrixLayout_t out,
                                                     cublasLtMatmulPreference_t wish, int wanted,
                                                     cublasLtMatmulHeuristicResult_t results[], int *found) {
    const layout *x = (const layout *)out;
    const bool odd = ((x->rows | x->cols) & 1) != 0;
    (void)handle, (void)multiply, (void)left, (void)right, (void)in, (void)wish;
    *found = 0;
    if (eg_fake_cuda.library_refuses == 1 || (eg_fake_cuda.library_refuses == 2 && odd))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (; *found <= eg_fake_cuda.algorithms && *found < wanted; ++*found) {
        results[*found] = (cublasLtMatmulHeuristicResult_t){.state = CUBLAS_STATUS_SUCCESS};
        results[*found].algo.data[0] = eg_fake_cuda.library_splits && eg_fake_cuda.library_room > 0 ? 2 : 1;
        results[*found].algo.data[1] = (uint64_t)*found;
        if (eg_fake_cuda.library_room <= 1 << 20 && *found > 0)
            results[*found].algo.data[1] += FAKE_LITTLE_MEMORY; /* the first is the same */
    }
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t multiply,
                                     const void *scale, const void *left, cublasLtMatrixLayout_t of_left,
                                     const void *right, cublasLtMatrixLayout_t of_right,
                                     const void *scale_of_in, const void *in, cublasLtMatrixLayout_t of_in,
                                     void *out, cublasLtMatrixLayout_t of_out,
                                     const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t bytes,
                                     cudaStream_t stream) {
    const cudaDataType type = ((const layout *)of_left)->type;
    const bool relu = (*(const uint32_t *)multiply & CUBLASLT_EPILOGUE_RELU) != 0;
    (void)handle, (void)scale, (void)left, (void)right, (void)of_right, (void)scale_of_in;
    (void)in, (void)of_in, (void)out, (void)of_out, (void)workspace, (void)bytes, (void)stream;
    eg_fake_cuda.library_parts = algorithm->data[0];
    eg_fake_cuda.library_algorithm = (int)algorithm->data[1];
    fake_launch(type == CUDA_R_16BF  ? (relu ? "cublaslt_relu_bf16" : "cublaslt_bf16")
                : type == CUDA_R_16F ? (relu ? "cublaslt_relu_f16" : "cublaslt_f16")
                : type == CUDA_R_64F ? "cublaslt_f64"
                                     : "cublaslt_f32");
    return CUBLAS_STATUS_SUCCESS;
}
