/* The kernel table. */
#include <stddef.h>

#include "kernels.h"

#define STORES    (1U << EG_EPILOGUE_STORE)
#define EPILOGUES (1U << EG_EPILOGUE_FORWARD | 1U << EG_EPILOGUE_ACT_GRAD | 1U << EG_EPILOGUE_CHAIN)
/* Of hopper_gemm.cuh: a ring of slots, their barriers; for each of eight warps boxes, column sums, bias. */
#define EG_HOPPER_SLOT(cols)   (128 * 64 * 2 + 64 * (cols)*2)
#define EG_HOPPER_STAGES(cols) ((cols) == 256 ? 3 : (cols) == 192 ? 4 : 5)
#define EG_HOPPER_SHARED(cols)                                                                               \
    (EG_HOPPER_STAGES(cols) * (EG_HOPPER_SLOT(cols) + 24) +                                                  \
     8 * ((cols) / 64 * (16 * 128 + 8) + 4 * (cols) + (cols)))
/* And of hopper_pass.cuh: other rings instead of sums and bias. */
#define EG_HOPPER_PASS_SHARED(cols) (EG_HOPPER_SHARED(cols) - 8 * 5 * (cols) + EG_CUDA_REST_BYTES)

/* Of hopper_relay.cuh: the ring, five places of 16 rows of sums, two barriers for each of eight warps. */
#define EG_HOPPER_RELAY_SHARED (3 * (EG_HOPPER_SLOT(256) + 24) + 5 * 16 * 256 * 4 + 8 * 2 * 8)

#define EVERYTHING (STORES | EPILOGUES)

/* Two letters: left and right are row-major (r) or column-major (c). */
#define r_LEFT  EG_CUDA_LEFT_ROWS
#define c_LEFT  EG_CUDA_LEFT_COLS
#define r_RIGHT EG_CUDA_RIGHT_ROWS
#define c_RIGHT EG_CUDA_RIGHT_COLS
#define HOPPER_ROW(label, storage, left, right, cols, bytes, what, also)                                     \
    {.name = "hopper_" label "_" #left #right "_128x" #cols,                                                 \
     .kind = EG_STEP_GEMM,                                                                                   \
     .family = EG_CUDA_TMA,                                                                                  \
     .compute = EG_F32,                                                                                      \
     .dtype = storage,                                                                                       \
     .needs = EG_CUDA_SM90A,                                                                                 \
     .epilogues = what,                                                                                      \
     .takes = EG_CUDA_ALIGNED | EG_CUDA_ROW_STORES | EG_CUDA_MATRIX_UNIT | EG_CUDA_SMALL | left##_LEFT |     \
              right##_RIGHT | (also),                                                                        \
     .tile_rows = 128,                                                                                       \
     .tile_cols = cols,                                                                                      \
     .depth = 64,                                                                                            \
     .threads = 384,                                                                                         \
     .shared = bytes,                                                                                        \
     .sum_rows = ((also)&EG_CUDA_RELAY) != 0 ? 128 : 64},
#define HOPPER(type, storage, left, right, cols, bytes, what)                                                \
    HOPPER_ROW(#type, storage, left, right, cols, bytes, what, 0)
/* A·B with act', finished beside the next tile's products. */
#define HOPPER_RELAY(type, storage, right)                                                                   \
    HOPPER_ROW(#type "_relay", storage, r, right, 256, EG_HOPPER_RELAY_SHARED, 1U << EG_EPILOGUE_ACT_GRAD,   \
               EG_CUDA_RELAY)
/* d_a with the rest of the element-wise pass. */
#define HOPPER_PASS(type, storage, right)                                                                    \
    HOPPER_ROW(#type "_pass", storage, r, right, 256, EG_HOPPER_PASS_SHARED(256), STORES,                    \
               EG_CUDA_CUT | EG_CUDA_REST)
/* And with d_b and d_bias (hopper_pool.cuh). */
#define HOPPER_POOL(type, storage, right)                                                                    \
    {.name = "hopper_" #type "_pool_" #right "_128x256",                                                     \
     .kind = EG_STEP_GEMM,                                                                                   \
     .family = EG_CUDA_POOL,                                                                                 \
     .compute = EG_F32,                                                                                      \
     .dtype = storage,                                                                                       \
     .needs = EG_CUDA_SM90A,                                                                                 \
     .epilogues = STORES,                                                                                    \
     .takes = EG_CUDA_ALIGNED | EG_CUDA_ROW_STORES | EG_CUDA_MATRIX_UNIT | EG_CUDA_SMALL |                   \
              EG_CUDA_NO_REDUCTION | r_LEFT | right##_RIGHT | EG_CUDA_REST,                                  \
     .tile_rows = 128,                                                                                       \
     .tile_cols = 256,                                                                                       \
     .depth = 64,                                                                                            \
     .threads = 384,                                                                                         \
     .shared = EG_HOPPER_PASS_SHARED(256) + EG_CUDA_POOL_MAIL},
/* Those that cut their last tiles. */
#define HOPPER_CUT(type, storage, left, right, what)                                                         \
    HOPPER_ROW(#type "_cut", storage, left, right, 256, EG_HOPPER_SHARED(256), what, EG_CUDA_CUT)
#define HOPPER_WIDTHS(type, storage, left, right, what)                                                      \
    HOPPER(type, storage, left, right, 256, EG_HOPPER_SHARED(256), what)                                     \
    HOPPER(type, storage, left, right, 192, EG_HOPPER_SHARED(192), STORES)                                   \
    HOPPER(type, storage, left, right, 128, EG_HOPPER_SHARED(128), what)

/* Of hopper_f32.cu, hopper_f64.cu: slots and their barriers. */
#define EG_F32_SHARED (3 * (2 * 128 * 32 * 4 + 16))
#define EG_F64_SHARED (4 * ((128 + 64) * 16 * 8 + 16))
#define HOPPER_TILES(type, storage, right, cols, terms, bytes)                                               \
    {.name = "hopper_" #type "_r" #right "_128x" #cols,                                                      \
     .kind = EG_STEP_GEMM,                                                                                   \
     .family = EG_CUDA_BOXES,                                                                                \
     .compute = storage,                                                                                     \
     .dtype = storage,                                                                                       \
     .needs = EG_CUDA_SM90A,                                                                                 \
     .epilogues = EVERYTHING,                                                                                \
     .takes = EG_CUDA_ALIGNED | EG_CUDA_SMALL | EG_CUDA_LEFT_ROWS | right##_RIGHT,                           \
     .tile_rows = 128,                                                                                       \
     .tile_cols = cols,                                                                                      \
     .depth = terms,                                                                                         \
     .threads = 128,                                                                                         \
     .shared = bytes},

static const eg_cuda_kernel rows[] = {
    /* Plain products by the vendor's library. */
    {.name = "cublaslt_bf16",
     .kind = EG_STEP_GEMM,
     .family = EG_CUDA_LIBRARY,
     .compute = EG_F32,
     .dtype = EG_BF16,
     .needs = EG_CUDA_LT,
     .epilogues = STORES,
     .takes = EG_CUDA_ALIGNED | EG_CUDA_NO_REDUCTION | EG_CUDA_MATRIX_UNIT},
    {.name = "cublaslt_f16",
     .kind = EG_STEP_GEMM,
     .family = EG_CUDA_LIBRARY,
     .compute = EG_F32,
     .dtype = EG_F16,
     .needs = EG_CUDA_LT,
     .epilogues = STORES,
     .takes = EG_CUDA_ALIGNED | EG_CUDA_NO_REDUCTION | EG_CUDA_MATRIX_UNIT},
    {.name = "cublaslt_f32",
     .kind = EG_STEP_GEMM,
     .family = EG_CUDA_LIBRARY,
     .compute = EG_F32,
     .dtype = EG_F32,
     .needs = EG_CUDA_LT,
     .epilogues = STORES,
     .takes = EG_CUDA_NO_REDUCTION},
    {.name = "cublaslt_f64",
     .kind = EG_STEP_GEMM,
     .family = EG_CUDA_LIBRARY,
     .compute = EG_F64,
     .dtype = EG_F64,
     .needs = EG_CUDA_LT,
     .epilogues = STORES,
     .takes = EG_CUDA_NO_REDUCTION},
    /* The fused products of 16-bit layers on Hopper. */
    HOPPER_WIDTHS(bf16, EG_BF16, r, r, EVERYTHING) HOPPER_WIDTHS(bf16, EG_BF16, r, c, EVERYTHING)
        HOPPER_WIDTHS(bf16, EG_BF16, c, r, STORES) HOPPER_WIDTHS(f16, EG_F16, r, r, EVERYTHING)
            HOPPER_WIDTHS(f16, EG_F16, r, c, EVERYTHING) HOPPER_WIDTHS(f16, EG_F16, c, r, STORES)
                HOPPER_CUT(bf16, EG_BF16, r, r, EVERYTHING) HOPPER_CUT(bf16, EG_BF16, r, c, EVERYTHING)
                    HOPPER_CUT(bf16, EG_BF16, c, r, STORES) HOPPER_CUT(f16, EG_F16, r, r, EVERYTHING)
                        HOPPER_CUT(f16, EG_F16, r, c, EVERYTHING) HOPPER_CUT(f16, EG_F16, c, r, STORES)
                            HOPPER_PASS(bf16, EG_BF16, r) HOPPER_PASS(bf16, EG_BF16, c)
                                HOPPER_PASS(f16, EG_F16, r) HOPPER_PASS(f16, EG_F16, c)
                                    HOPPER_POOL(bf16, EG_BF16, r) HOPPER_POOL(bf16, EG_BF16, c)
                                        HOPPER_POOL(f16, EG_F16, r) HOPPER_POOL(f16, EG_F16, c)
                                            HOPPER_RELAY(bf16, EG_BF16, r) HOPPER_RELAY(bf16, EG_BF16, c)
                                                HOPPER_RELAY(f16, EG_F16, r) HOPPER_RELAY(f16, EG_F16, c)
    /* Those of f32 and f64 layers there. */
    HOPPER_TILES(f32, EG_F32, r, 128, 32, EG_F32_SHARED) HOPPER_TILES(f32, EG_F32, c, 128, 32, EG_F32_SHARED)
        HOPPER_TILES(f64, EG_F64, r, 64, 16, EG_F64_SHARED)
            HOPPER_TILES(f64, EG_F64, c, 64, 16, EG_F64_SHARED)
    /* A result without a product. */
    {.name = "copy_f32",
     .kind = EG_STEP_GEMM,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F32,
     .epilogues = 1U << EG_EPILOGUE_FORWARD,
     .takes = EG_CUDA_COPY,
     .tile_rows = 128,
     .tile_cols = 128,
     .threads = 256},
    /* The fused products of 16-bit, f32 and f64 layers, of any strides. */
    {.name = "mma_bf16_128x128",
     .kind = EG_STEP_GEMM,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F32,
     .dtype = EG_BF16,
     .needs = EG_CUDA_SM80,
     .epilogues = EVERYTHING,
     .takes = EG_CUDA_MATRIX_UNIT,
     .tile_rows = 128,
     .tile_cols = 128,
     .depth = 32,
     .threads = 256,
     .shared = 4 * 2 * 128 * 40 * 2},
    {.name = "mma_f16_128x128",
     .kind = EG_STEP_GEMM,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F32,
     .dtype = EG_F16,
     .needs = EG_CUDA_SM80,
     .epilogues = EVERYTHING,
     .takes = EG_CUDA_MATRIX_UNIT,
     .tile_rows = 128,
     .tile_cols = 128,
     .depth = 32,
     .threads = 256,
     .shared = 4 * 2 * 128 * 40 * 2},
    {.name = "fma_f32_128x128",
     .kind = EG_STEP_GEMM,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F32,
     .dtype = EG_F32,
     .needs = EG_CUDA_SM80,
     .epilogues = EVERYTHING,
     .tile_rows = 128,
     .tile_cols = 128,
     .depth = 16,
     .threads = 128,
     .shared = 4 * 2 * 16 * 132 * 4},
    {.name = "mma_f64_128x128",
     .kind = EG_STEP_GEMM,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F64,
     .dtype = EG_F64,
     .needs = EG_CUDA_SM80,
     .epilogues = EVERYTHING,
     .tile_rows = 128,
     .tile_cols = 128,
     .depth = 16,
     .threads = 256,
     .shared = 128 * 132 * 8},
    /* Any product. */
    {.name = "ref_f32",
     .kind = EG_STEP_GEMM,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F32,
     .epilogues = EVERYTHING,
     .tile_rows = 64,
     .tile_cols = 64,
     .depth = 16,
     .threads = 256},
    {.name = "ref_f64",
     .kind = EG_STEP_GEMM,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F64,
     .epilogues = EVERYTHING,
     .tile_rows = 64,
     .tile_cols = 64,
     .depth = 16,
     .threads = 256},
    /* grad_pre from a saved pre or y; tile_cols is what a warp reads at once. */
    {.name = "act_grad_bf16",
     .kind = EG_STEP_ACT_GRAD,
     .family = EG_CUDA_VECTORS,
     .compute = EG_F32,
     .dtype = EG_BF16,
     .tile_rows = 32,
     .tile_cols = 256,
     .threads = 256},
    {.name = "act_grad_f16",
     .kind = EG_STEP_ACT_GRAD,
     .family = EG_CUDA_VECTORS,
     .compute = EG_F32,
     .dtype = EG_F16,
     .tile_rows = 32,
     .tile_cols = 256,
     .threads = 256},
    {.name = "act_grad_f32",
     .kind = EG_STEP_ACT_GRAD,
     .family = EG_CUDA_VECTORS,
     .compute = EG_F32,
     .dtype = EG_F32,
     .tile_rows = 32,
     .tile_cols = 128,
     .threads = 256},
    {.name = "act_grad_f64",
     .kind = EG_STEP_ACT_GRAD,
     .family = EG_CUDA_VECTORS,
     .compute = EG_F64,
     .dtype = EG_F64,
     .tile_rows = 32,
     .tile_cols = 64,
     .threads = 256},
    {.name = "ref_act_grad_f32",
     .kind = EG_STEP_ACT_GRAD,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F32,
     .tile_rows = 64,
     .tile_cols = 64,
     .threads = 256},
    {.name = "ref_act_grad_f64",
     .kind = EG_STEP_ACT_GRAD,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F64,
     .tile_rows = 64,
     .tile_cols = 64,
     .threads = 256},
    /* Column sums. */
    {.name = "column_sum_f32",
     .kind = EG_STEP_COLUMN_SUM,
     .family = EG_CUDA_SUMS,
     .compute = EG_F32,
     .tile_cols = 32,
     .threads = 1024},
    {.name = "column_sum_f64",
     .kind = EG_STEP_COLUMN_SUM,
     .family = EG_CUDA_SUMS,
     .compute = EG_F64,
     .tile_cols = 32,
     .threads = 1024},
};

const eg_cuda_kernel *eg_cuda_kernel_row(int index) {
    return index >= 0 && index < (int)(sizeof rows / sizeof *rows) ? &rows[index] : NULL;
}
