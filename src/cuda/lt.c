/* SPDX-License-Identifier: Apache-2.0 */
/* Plain products through cublasLt, which is loaded at run time where it can be found. The choice of its
 * heuristics is cached, so that a product seen before costs one call. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <cublasLt.h>

#include "core/error.h"
#include "device.h"
#include "lt_choose.h"

/* ---- The library ---------------------------------------------------------------------------------- */

#define LT_SYMBOLS(X)                                                                                        \
    X(cublasLtCreate)                                                                                        \
    X(cublasLtDestroy)                                                                                       \
    X(cublasLtMatmul)                                                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                        \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                                  \
    X(cublasLtMatmulDescCreate)                                                                              \
    X(cublasLtMatmulDescDestroy)                                                                             \
    X(cublasLtMatmulDescSetAttribute)                                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                            \
    X(cublasLtMatrixLayoutDestroy)                                                                           \
    X(cublasLtMatrixLayoutSetAttribute)                                                                      \
    X(cublasLtMatmulPreferenceCreate)                                                                        \
    X(cublasLtMatmulPreferenceDestroy)                                                                       \
    X(cublasLtMatmulPreferenceSetAttribute)

static struct {
#define LT_SYMBOL(name) __typeof__(&name) name;
    LT_SYMBOLS(LT_SYMBOL)
#undef LT_SYMBOL
} lt_table;
static bool lt_loaded;
static pthread_once_t lt_once = PTHREAD_ONCE_INIT;

/* EPIGRAD_CUBLASLT: the path of the library, or "off". */
static void *lt_open_library(void) {
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    const char *path = getenv("EPIGRAD_CUBLASLT");
    if (path != NULL) return strcmp(path, "off") == 0 ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library != NULL) return library;
    }
    return NULL;
}

static void lt_load(void) {
    void *library = lt_open_library();
    if (library == NULL) return;
    void *address;
#define LT_SYMBOL(name)                                                                                      \
    address = dlsym(library, #name);                                                                         \
    if (address == NULL) return;                                                                             \
    memcpy(&lt_table.name, &address, sizeof address);
    LT_SYMBOLS(LT_SYMBOL)
#undef LT_SYMBOL
    lt_loaded = true;
}

/* ---- The cache of products ------------------------------------------------------------------------- */

typedef eg_cuda_lt_key lt_key;

typedef struct lt_product {
    lt_key key;
    cublasLtMatmulDesc_t multiply;
    cublasLtMatrixLayout_t matrix[3];
    cublasLtMatmulAlgo_t algorithm;
    bool made, possible;
} lt_product;

enum { LT_PRODUCTS = 512, LT_PROBES = 8 };

struct eg_cuda_lt {
    cublasLtHandle_t handle;
    lt_product products[LT_PRODUCTS];
};

static void lt_forget(lt_product *product) {
    if (product->multiply != NULL) lt_table.cublasLtMatmulDescDestroy(product->multiply);
    for (int i = 0; i < 3; i++) {
        if (product->matrix[i] != NULL) lt_table.cublasLtMatrixLayoutDestroy(product->matrix[i]);
    }
    *product = (lt_product){.made = false};
}

eg_cuda_lt *eg_cuda_lt_open(const eg_context *context) {
    pthread_once(&lt_once, lt_load);
    if (!lt_loaded) return NULL;
    eg_cuda_lt *lt = eg_host_alloc(context, sizeof *lt);
    if (lt == NULL) return NULL;
    memset(lt, 0, sizeof *lt);
    if (lt_table.cublasLtCreate(&lt->handle) == CUBLAS_STATUS_SUCCESS) return lt;
    eg_host_free(context, lt);
    return NULL;
}

void eg_cuda_lt_close(const eg_context *context, eg_cuda_lt *lt) {
    if (lt == NULL) return;
    for (int i = 0; i < LT_PRODUCTS; i++) lt_forget(&lt->products[i]);
    lt_table.cublasLtDestroy(lt->handle);
    eg_host_free(context, lt);
}

static cudaDataType_t lt_type(int32_t dtype) {
    switch (dtype) {
    case EG_F64:
        return CUDA_R_64F;
    case EG_F16:
        return CUDA_R_16F;
    case EG_BF16:
        return CUDA_R_16BF;
    default:
        return CUDA_R_32F;
    }
}

static cublasComputeType_t lt_compute(const lt_key *key) {
    if (key->dtype == EG_F64) return CUBLAS_COMPUTE_64F;
    if (key->dtype != EG_F32) return CUBLAS_COMPUTE_32F;
    if (key->math == EG_MATH_FAST) return CUBLAS_COMPUTE_32F_FAST_TF32;
    return key->math == EG_MATH_STRICT ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
}

static bool lt_describe(lt_product *product) {
    const lt_key *key = &product->key;
    const int64_t rows[3] = {key->transposed[0] ? key->depth : key->rows,
                             key->transposed[1] ? key->cols : key->depth, key->rows};
    const int64_t cols[3] = {key->transposed[0] ? key->rows : key->depth,
                             key->transposed[1] ? key->depth : key->cols, key->cols};
    const cublasOperation_t operation[2] = {key->transposed[0] ? CUBLAS_OP_T : CUBLAS_OP_N,
                                            key->transposed[1] ? CUBLAS_OP_T : CUBLAS_OP_N};
    const int32_t items = (int32_t)key->items;
    if (lt_table.cublasLtMatmulDescCreate(&product->multiply, lt_compute(key),
                                          key->dtype == EG_F64 ? CUDA_R_64F : CUDA_R_32F) != 0)
        return false;
    bool good = lt_table.cublasLtMatmulDescSetAttribute(product->multiply, CUBLASLT_MATMUL_DESC_TRANSA,
                                                        &operation[0], sizeof operation[0]) == 0;
    good = good && lt_table.cublasLtMatmulDescSetAttribute(product->multiply, CUBLASLT_MATMUL_DESC_TRANSB,
                                                           &operation[1], sizeof operation[1]) == 0;
    if (key->epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
        const cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)key->epilogue;
        good = good && lt_table.cublasLtMatmulDescSetAttribute(
                           product->multiply, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) == 0;
    }
    for (int i = 0; i < 3 && good; i++) {
        cublasLtMatrixLayout_t *matrix = &product->matrix[i];
        good = lt_table.cublasLtMatrixLayoutCreate(matrix, lt_type(i < 2 ? key->dtype : key->result_dtype),
                                                   (uint64_t)rows[i], (uint64_t)cols[i], key->ld[i]) == 0;
        good = good && lt_table.cublasLtMatrixLayoutSetAttribute(*matrix, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                                 &items, sizeof items) == 0;
        good = good &&
               lt_table.cublasLtMatrixLayoutSetAttribute(*matrix, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                         &key->stride[i], sizeof key->stride[i]) == 0;
    }
    return good;
}

enum {
    LT_CANDIDATES = 32,
    LT_ALIGNMENT = 256,         /* of the workspace: the library refuses others */
    LT_LOST = LT_ALIGNMENT - 64 /* bytes lost at most in aligning a workspace, which lies on 64 bytes; always,
                                   so that the algorithm is the same */
};

static uint32_t lt_config(const cublasLtMatmulHeuristicResult_t *found,
                          cublasLtMatmulAlgoConfigAttributes_t name) {
    uint32_t value = 0;
    size_t bytes = 0;
    lt_table.cublasLtMatmulAlgoConfigGetAttribute(&found->algo, name, &value, sizeof value, &bytes);
    return value;
}

static eg_cuda_lt_candidate lt_candidate_of(const cublasLtMatmulHeuristicResult_t *found) {
    return (eg_cuda_lt_candidate){.id = lt_config(found, CUBLASLT_ALGO_CONFIG_ID),
                                  .tile = lt_config(found, CUBLASLT_ALGO_CONFIG_TILE_ID),
                                  .stages = lt_config(found, CUBLASLT_ALGO_CONFIG_STAGES_ID),
                                  .custom = lt_config(found, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
                                  .splits = lt_config(found, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                                  .reduction = lt_config(found, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
                                  .waves = found->wavesCount};
}

/* Those that may be taken; their number, and how many were before the first. */
static int lt_keep(const lt_key *key, int count, cublasLtMatmulHeuristicResult_t *found,
                   eg_cuda_lt_candidate *candidates, int *before) {
    int kept = 0;
    *before = count;
    for (int i = 0; i < count; i++) {
        const eg_cuda_lt_candidate candidate = lt_candidate_of(&found[i]);
        if (found[i].state != CUBLAS_STATUS_SUCCESS || !eg_cuda_lt_keeps(key, &candidate)) continue;
        if (kept == 0) *before = i;
        candidates[kept] = candidate;
        found[kept++] = found[i];
    }
    return kept;
}

/* Asks the heuristics; how many candidates may be taken. Split-K sums stay in the compute type and are added
 * in a fixed order; in place only where the result is of that type. */
static int lt_ask(eg_cuda_lt *lt, const lt_product *product, uint64_t scratch,
                  cublasLtMatmulHeuristicResult_t *found, eg_cuda_lt_candidate *candidates, int *before) {
    const lt_key *key = &product->key;
    const bool narrow = key->result_dtype == EG_F16 || key->result_dtype == EG_BF16;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
                                (narrow ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_INPLACE);
    const uint32_t alignment = 1U << key->alignment;
    cublasLtMatmulPreference_t wish = NULL;
    if (lt_table.cublasLtMatmulPreferenceCreate(&wish) != 0) return 0;
    bool good = lt_table.cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                              &scratch, sizeof scratch) == 0 &&
                lt_table.cublasLtMatmulPreferenceSetAttribute(
                    wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions) == 0;
    for (int i = 0; i < 4; i++) {
        good =
            good &&
            lt_table.cublasLtMatmulPreferenceSetAttribute(
                wish, (cublasLtMatmulPreferenceAttributes_t)(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i),
                &alignment, sizeof alignment) == 0;
    }
    int count = 0;
    good = good && lt_table.cublasLtMatmulAlgoGetHeuristic(
                       lt->handle, product->multiply, product->matrix[0], product->matrix[1],
                       product->matrix[2], product->matrix[2], wish, LT_CANDIDATES, found, &count) == 0;
    lt_table.cublasLtMatmulPreferenceDestroy(wish);
    return good ? lt_keep(key, count, found, candidates, before) : 0;
}

/* Of candidates from `count` on, those that are not among the first: their number. */
static int lt_others(int count, int more, cublasLtMatmulHeuristicResult_t *found) {
    int kept = count;
    for (int i = count; i < count + more; i++) {
        int same = 0;
        while (same < kept && memcmp(&found[same].algo, &found[i].algo, sizeof found[i].algo) != 0) same++;
        if (same == kept) found[kept++] = found[i];
    }
    return kept - count;
}

/* For trials. The heuristics name eight candidates, and others where they may use little memory: of 1,264
 * products of f32 the first of these takes less than 0.97 of the time on 7%, and longer on half. */
static int lt_ask_for_others(eg_cuda_lt *lt, const lt_product *product, int count,
                             cublasLtMatmulHeuristicResult_t *found) {
    const uint64_t little = 1 << 20;
    eg_cuda_lt_candidate candidates[LT_CANDIDATES];
    int before;
    if ((uint64_t)product->key.scratch <= little) return 0;
    return lt_others(count, lt_ask(lt, product, little, found + count, candidates, &before), found);
}

/* Without a workspace, most of the few candidates do not split the depth. They are asked for where few others
 * may be taken, and beside others where memory takes longest. */
static bool lt_choose(eg_cuda_lt *lt, lt_product *product) {
    const lt_key *key = &product->key;
    const uint64_t scratch = (uint64_t)key->scratch;
    const int most_before = 3;
    cublasLtMatmulHeuristicResult_t found[3 * LT_CANDIDATES];
    eg_cuda_lt_candidate candidates[2 * LT_CANDIDATES];
    int before = 0, count = lt_ask(lt, product, scratch, found, candidates, &before);
    if (eg_cuda_lt_is_whole(key) && (count == 0 || before > most_before)) {
        count = lt_ask(lt, product, 0, found, candidates, &before);
        if (count > 0 && !eg_cuda_lt_is_fast(&candidates[0])) count = 0;
        count += lt_ask(lt, product, scratch, found + count, candidates + count, &before);
    } else if (eg_cuda_lt_is_stream(key)) {
        count += lt_ask(lt, product, 0, found + count, candidates + count, &before);
    }
    if (count == 0) return false;
    const int best = eg_cuda_lt_choose(key, count, candidates), asked = (int)key->algorithm;
    if (asked > 0) count += lt_ask_for_others(lt, product, count, found);
    if (asked >= count) return false;
    product->algorithm = found[asked == 0 ? best : asked <= best ? asked - 1 : asked].algo;
    return true;
}

static lt_product *lt_find(eg_cuda_lt *lt, const lt_key *key) {
    uint64_t hash = 0xcbf29ce484222325U; /* FNV-1a */
    for (size_t i = 0; i < sizeof *key; i++) hash = (hash ^ ((const unsigned char *)key)[i]) * 0x100000001b3U;
    lt_product *product = NULL;
    for (uint64_t i = 0; i < LT_PROBES; i++) {
        product = &lt->products[(hash + i) % LT_PRODUCTS];
        if (!product->made) break;
        if (memcmp(&product->key, key, sizeof *key) == 0) return product;
    }
    lt_forget(product);
    product->key = *key;
    product->made = true;
    product->possible = lt_describe(product) && lt_choose(lt, product);
    return product;
}

/* ---- A product ------------------------------------------------------------------------------------- */

static eg_cuda_matrix flipped(eg_cuda_matrix x) {
    const int64_t stride = x.row_stride;
    x.row_stride = x.col_stride;
    x.col_stride = stride;
    return x;
}

static uint8_t alignment_of(const eg_cuda_matrix *x, const eg_cuda_matrix *y, const eg_cuda_matrix *z) {
    const uint64_t bits = x->data | y->data | z->data | 256;
    return (uint8_t)__builtin_ctzll(bits);
}

/* The library wants a leading dimension of at least a column, also where there is only one. */
static int64_t ld_of(const eg_cuda_matrix *x, bool row_major, int64_t rows, int64_t cols) {
    const int64_t ld = row_major ? x->row_stride : x->col_stride, least = row_major ? cols : rows;
    return ld < least ? least : ld;
}

/* Where a kernel before the product has failed, the driver says so, and the library does not. */
static eg_status lt_failed(eg_cuda_device *device, const eg_cuda_gemm *gemm, cublasStatus_t status,
                           CUstream stream) {
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    EG_TRY(eg_cuda_check(device, device->driver->cuStreamIsCapturing(stream, &capturing), "cublaslt"));
    if (capturing == CU_STREAM_CAPTURE_STATUS_NONE)
        EG_TRY(eg_cuda_check(device, device->driver->cuStreamSynchronize(stream), "cublaslt"));
    return eg_fail(EG_ERR_DEVICE, "cublaslt: status %d for a product of %lld x %lld x %lld", (int)status,
                   (long long)gemm->rows, (long long)gemm->depth, (long long)gemm->cols);
}

/* A product as the library sees it. */
typedef struct lt_view {
    lt_key key;
    eg_cuda_matrix x, y, out;
} lt_view;

static uint32_t lt_epilogue_of(const eg_cuda_gemm *gemm) {
    if (gemm->epilogue != EG_CUDA_FORWARD || gemm->activation != EG_ACT_RELU)
        return gemm->bias.data != 0 ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    return gemm->bias.data != 0 ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
}

/* The library is column-major: a row-major result is the transpose, rightᵀ · leftᵀ. */
static lt_view lt_view_of(const eg_cuda_gemm *gemm, eg_math math, int algorithm, size_t bytes) {
    lt_view view = {.x = flipped(gemm->right), .y = flipped(gemm->left), .out = flipped(gemm->out)};
    int64_t rows = gemm->cols, cols = gemm->rows;
    if (gemm->out.col_stride != 1) {
        view.x = gemm->left, view.y = gemm->right, view.out = gemm->out;
        rows = gemm->rows, cols = gemm->cols;
    }
    lt_key *key = &view.key;
    const eg_cuda_matrix *x = &view.x, *y = &view.y, *out = &view.out;
    memset(key, 0, sizeof *key);
    key->rows = rows, key->cols = cols, key->depth = gemm->depth, key->items = gemm->items;
    key->transposed[0] = x->row_stride != 1, key->transposed[1] = y->row_stride != 1;
    key->ld[0] = ld_of(x, key->transposed[0], rows, gemm->depth);
    key->ld[1] = ld_of(y, key->transposed[1], gemm->depth, cols);
    key->ld[2] = ld_of(out, false, rows, cols);
    key->stride[0] = x->item_stride, key->stride[1] = y->item_stride, key->stride[2] = out->item_stride;
    key->scratch = bytes > LT_LOST ? (int64_t)bytes - LT_LOST : 0;
    key->dtype = x->dtype, key->result_dtype = out->dtype, key->math = (int32_t)math;
    key->accumulate = gemm->accumulate != 0;
    key->epilogue = lt_epilogue_of(gemm);
    key->algorithm = (uint32_t)algorithm;
    key->alignment = alignment_of(x, y, out);
    return view;
}

bool eg_cuda_lt_takes(eg_cuda_device *device, const eg_cuda_gemm *gemm, eg_math math, int algorithm,
                      size_t bytes) {
    const lt_view view = lt_view_of(gemm, math, algorithm, bytes);
    return gemm->items <= INT32_MAX && lt_find(device->lt, &view.key)->possible;
}

eg_status eg_cuda_lt_enqueue(eg_cuda_device *device, const eg_cuda_gemm *gemm, eg_math math, int algorithm,
                             uint64_t workspace, size_t bytes, CUstream stream) {
    const lt_view view = lt_view_of(gemm, math, algorithm, bytes);
    const lt_product *product = lt_find(device->lt, &view.key);
    const uint64_t scratch = (workspace + LT_ALIGNMENT - 1) / LT_ALIGNMENT * LT_ALIGNMENT;
    const double alpha64 = gemm->scale, beta64 = gemm->accumulate ? 1 : 0;
    const float alpha32 = (float)gemm->scale, beta32 = gemm->accumulate ? 1 : 0;
    const bool wide = view.x.dtype == EG_F64;
    void *to = (void *)(uintptr_t)view.out.data;
    const void *bias = (const void *)(uintptr_t)gemm->bias.data;
    const bool bound = bias == NULL || !product->possible ||
                       lt_table.cublasLtMatmulDescSetAttribute(
                           product->multiply, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias) == 0;
    const cublasStatus_t status =
        !product->possible || !bound
            ? CUBLAS_STATUS_NOT_SUPPORTED
            : lt_table.cublasLtMatmul(device->lt->handle, product->multiply,
                                      wide ? (const void *)&alpha64 : (const void *)&alpha32,
                                      (const void *)(uintptr_t)view.x.data, product->matrix[0],
                                      (const void *)(uintptr_t)view.y.data, product->matrix[1],
                                      wide ? (const void *)&beta64 : (const void *)&beta32, to,
                                      product->matrix[2], to, product->matrix[2], &product->algorithm,
                                      (void *)(uintptr_t)scratch, (size_t)view.key.scratch, stream);
    return status == CUBLAS_STATUS_SUCCESS ? EG_OK : lt_failed(device, gemm, status, stream);
}
