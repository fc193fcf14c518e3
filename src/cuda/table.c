/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table. */
#include <stddef.h>

#include "cluster.h"
#include "few_rows.h"
#include "map_y.h"
#include "skinny.h"
#include "table.h"

#define STORES     (1U << EG_CUDA_STORE)
#define EPILOGUES  (1U << EG_CUDA_FORWARD | 1U << EG_CUDA_ACT_GRAD | 1U << EG_CUDA_CHAIN)
#define EVERYTHING (STORES | EPILOGUES | 1U << EG_CUDA_TIMES)

/* Kernels that read the ends of groups; with ALONE those that take nothing else, where a kernel that may take
 * both has no registers left. */
#define GROUPS       (EG_CUDA_ROW_GROUPS | EG_CUDA_DEPTH_GROUPS)
#define GROUPS_ALONE (GROUPS | EG_CUDA_GROUPS_ALONE)

/* How left [rows, depth] and right [depth, cols] lie in memory, as BLAS has it for row-major matrices: n, as
 * it stands (row-major); t, transposed (column-major). */
#define nn_LAYOUT (EG_CUDA_LEFT_ROWS | EG_CUDA_RIGHT_ROWS)
#define nt_LAYOUT (EG_CUDA_LEFT_ROWS | EG_CUDA_RIGHT_COLS)
#define tn_LAYOUT (EG_CUDA_LEFT_COLS | EG_CUDA_RIGHT_ROWS)

/* What the 16-bit kernels of Hopper have in common. */
#define HOPPER_ROW(label, storage, layout, cols, bytes, terms, row_family, sums, also)                       \
    {.name = "hopper_" label "_" #layout "_128x" #cols,                                                      \
     .kind = EG_GEMM,                                                                                        \
     .family = row_family,                                                                                   \
     .compute = EG_F32,                                                                                      \
     .dtype = storage,                                                                                       \
     .needs = EG_CUDA_SM90A,                                                                                 \
     .epilogues = terms,                                                                                     \
     .takes = EG_CUDA_ALIGNED | EG_CUDA_ROW_STORES | EG_CUDA_MATRIX_UNIT | EG_CUDA_SMALL | layout##_LAYOUT | \
              (also),                                                                                        \
     .tile_rows = EG_HOPPER_ROWS,                                                                            \
     .tile_cols = cols,                                                                                      \
     .k_block = EG_HOPPER_DEPTH,                                                                             \
     .threads = EG_HOPPER_THREADS,                                                                           \
     .shared = bytes,                                                                                        \
     .sum_rows = sums},

/* One tile of output after another: kernels/hopper_gemm.cuh. */
#define HOPPER(type, storage, layout, cols, terms)                                                           \
    HOPPER_ROW(#type, storage, layout, cols, EG_HOPPER_SHARED(cols), terms, EG_CUDA_TMA, 64, 0)
#define HOPPER_WIDTHS(type, storage, layout, terms)                                                          \
    HOPPER(type, storage, layout, 256, terms)                                                                \
    HOPPER(type, storage, layout, 128, terms)
/* With a stream-K tail: kernels/hopper_stream_k.cuh. */
#define HOPPER_STREAM_K(type, storage, layout, terms)                                                        \
    HOPPER_ROW(#type "_stream_k", storage, layout, 256, EG_HOPPER_SHARED(256), terms, EG_CUDA_TMA, 64,       \
               EG_CUDA_STREAM_K)
/* With a tile for each consumer, and column sums of each of its four warps: kernels/hopper_pingpong.cuh. */
#define HOPPER_PINGPONG(type, storage, layout, cols, terms)                                                  \
    HOPPER_ROW(#type "_pingpong", storage, layout, cols, EG_PINGPONG_SHARED(cols), terms, EG_CUDA_TMA, 32,   \
               EG_CUDA_PINGPONG)
#define HOPPER_16(type, storage)                                                                             \
    HOPPER_WIDTHS(type, storage, nn, STORES | EPILOGUES)                                                     \
    HOPPER_WIDTHS(type, storage, nt, STORES | EPILOGUES)                                                     \
    HOPPER_WIDTHS(type, storage, tn, STORES)
#define HOPPER_16_STREAM_K(type, storage)                                                                    \
    HOPPER_STREAM_K(type, storage, nn, STORES | EPILOGUES)                                                   \
    HOPPER_STREAM_K(type, storage, nt, STORES | EPILOGUES)                                                   \
    HOPPER_STREAM_K(type, storage, tn, STORES)

#define HOPPER_16_PINGPONG(type, storage)                                                                    \
    HOPPER_PINGPONG(type, storage, nn, 128, STORES | EPILOGUES)                                              \
    HOPPER_PINGPONG(type, storage, nn, 192, EPILOGUES)                                                       \
    HOPPER_PINGPONG(type, storage, nt, 128, STORES | EPILOGUES)                                              \
    HOPPER_PINGPONG(type, storage, nt, 192, EPILOGUES)                                                       \
    HOPPER_PINGPONG(type, storage, tn, 128, STORES)

/* f32 and f64 on Hopper: kernels/hopper_f32.cu, hopper_f64.cu. */
#define HOPPER_TILES(type, storage, layout, cols, depth, bytes)                                              \
    {.name = "hopper_" #type "_" #layout "_128x" #cols,                                                      \
     .kind = EG_GEMM,                                                                                        \
     .family = EG_CUDA_TMA_TILES,                                                                            \
     .compute = storage,                                                                                     \
     .dtype = storage,                                                                                       \
     .needs = EG_CUDA_SM90A,                                                                                 \
     .epilogues = EVERYTHING,                                                                                \
     .takes = EG_CUDA_ALIGNED | EG_CUDA_SMALL | EG_CUDA_ROW_GROUPS | layout##_LAYOUT,                        \
     .tile_rows = 128,                                                                                       \
     .tile_cols = cols,                                                                                      \
     .k_block = depth,                                                                                       \
     .threads = 128,                                                                                         \
     .shared = bytes},

/* Small tiles, whose depth a cluster may share: kernels/hopper_split.cuh. Where all warps would multiply,
 * there is one more that loads. */
#define HOPPER_SPLIT(label, storage, rows, cols, also)                                                       \
    {.name = "hopper_" label "_" #rows "x" #cols,                                                            \
     .kind = EG_GEMM,                                                                                        \
     .family = EG_CUDA_TMA_SPLIT,                                                                            \
     .compute = EG_F32,                                                                                      \
     .dtype = storage,                                                                                       \
     .needs = EG_CUDA_SM90A,                                                                                 \
     .epilogues = EVERYTHING,                                                                                \
     .takes = EG_CUDA_ALIGNED | EG_CUDA_MATRIX_UNIT | EG_CUDA_SMALL | (also),                                \
     .tile_rows = rows,                                                                                      \
     .tile_cols = cols,                                                                                      \
     .k_block = EG_HOPPER_DEPTH,                                                                             \
     .threads = EG_TMA_SPLIT_THREADS + ((rows) > 64 ? 32 : 0),                                               \
     .shared = EG_TMA_SPLIT_SHARED(rows, cols)},
#define HOPPER_16_SPLIT(type, storage)                                                                       \
    HOPPER_SPLIT(#type "_split", storage, 16, 64, EG_CUDA_FEW_ROWS | EG_CUDA_LEFT_ROWS)                      \
    HOPPER_SPLIT(#type "_split", storage, 64, 64, 0)                                                         \
    HOPPER_SPLIT(#type "_split", storage, 128, 128, 0)                                                       \
    HOPPER_SPLIT(#type "_grouped", storage, 16, 64, EG_CUDA_FEW_ROWS | EG_CUDA_LEFT_ROWS | GROUPS_ALONE)     \
    HOPPER_SPLIT(#type "_grouped", storage, 64, 64, GROUPS_ALONE)

/* Tiles that are finished from the accumulators: kernels/hopper_cluster.cuh. A cluster has `tiles_down` times
 * `tiles_across` of them. */
#define HOPPER_CLUSTER_OF(label, storage, tiles_down, tiles_across, rows, cols, count, bytes, also)          \
    {.name = "hopper_" label "_" #rows "x" #cols,                                                            \
     .kind = EG_GEMM,                                                                                        \
     .family = EG_CUDA_TMA_SPLIT,                                                                            \
     .compute = EG_F32,                                                                                      \
     .dtype = storage,                                                                                       \
     .needs = EG_CUDA_SM90A,                                                                                 \
     .epilogues = EVERYTHING,                                                                                \
     .takes = EG_CUDA_ALIGNED | EG_CUDA_MATRIX_UNIT | EG_CUDA_SMALL | EG_CUDA_LEFT_ROWS | EG_CUDA_ONE_TYPE | \
              (also),                                                                                        \
     .tile_rows = rows,                                                                                      \
     .tile_cols = cols,                                                                                      \
     .k_block = EG_HOPPER_DEPTH,                                                                             \
     .threads = count,                                                                                       \
     .shared = bytes,                                                                                        \
     .down = tiles_down,                                                                                     \
     .across = tiles_across},
#define HOPPER_CLUSTER(type, storage, rows, cols)                                                            \
    HOPPER_CLUSTER_OF(#type "_cluster", storage, 1, 1, rows, cols, EG_CLUSTER_THREADS(rows, cols),           \
                      EG_CLUSTER_SHARED(rows, cols), 0)
#define HOPPER_MULTICAST(type, storage, down, across, rows, cols)                                            \
    HOPPER_CLUSTER_OF(#type "_cluster_" #down "x" #across, storage, down, across, rows, cols,                \
                      EG_CLUSTER_THREADS(rows, cols), EG_CLUSTER_SHARED(rows, cols), 0)
#define HOPPER_16_CLUSTER(type, storage)                                                                     \
    HOPPER_CLUSTER(type, storage, 64, 64)                                                                    \
    HOPPER_CLUSTER(type, storage, 64, 128)                                                                   \
    HOPPER_CLUSTER(type, storage, 64, 256)                                                                   \
    HOPPER_CLUSTER(type, storage, 128, 64)                                                                   \
    HOPPER_CLUSTER(type, storage, 128, 128)                                                                  \
    HOPPER_CLUSTER(type, storage, 128, 192)                                                                  \
    HOPPER_CLUSTER(type, storage, 128, 256)                                                                  \
    HOPPER_CLUSTER(type, storage, 192, 128)                                                                  \
    HOPPER_MULTICAST(type, storage, 1, 4, 128, 64)                                                           \
    HOPPER_MULTICAST(type, storage, 2, 2, 128, 128)                                                          \
    HOPPER_MULTICAST(type, storage, 2, 1, 128, 192)

/* The same turned: kernels/hopper_turned.cuh. */
#define HOPPER_TURNED_OF(label, storage, across, rows, cols)                                                 \
    HOPPER_CLUSTER_OF(label, storage, 1, across, rows, cols, EG_TURNED_THREADS(cols),                        \
                      EG_TURNED_SHARED(rows, cols), EG_CUDA_TURNED)
#define HOPPER_TURNED(type, storage, across, rows, cols)                                                     \
    HOPPER_TURNED_OF(#type "_turned_1x" #across, storage, across, rows, cols)
#define HOPPER_16_TURNED(type, storage)                                                                      \
    HOPPER_TURNED_OF(#type "_turned", storage, 1, 200, 64)                                                   \
    HOPPER_TURNED(type, storage, 2, 200, 128)                                                                \
    HOPPER_TURNED(type, storage, 2, 152, 128)

/* Small tiles of any strides, whose depth a cluster may share: kernels/small_tile.cuh. */
#define SMALL(label, storage, accumulated, size, rows, cols, also)                                           \
    {.name = label "_" #rows "x" #cols,                                                                      \
     .kind = EG_GEMM,                                                                                        \
     .family = EG_CUDA_SPLIT,                                                                                \
     .compute = accumulated,                                                                                 \
     .dtype = storage,                                                                                       \
     .needs = EG_CUDA_SM80,                                                                                  \
     .epilogues = EVERYTHING,                                                                                \
     .takes = (also),                                                                                        \
     .tile_rows = rows,                                                                                      \
     .tile_cols = cols,                                                                                      \
     .k_block = EG_SMALL_K_BYTES(rows, cols) / (size),                                                       \
     .threads = EG_SMALL_THREADS,                                                                            \
     .shared = EG_SMALL_SHARED(rows, cols, size)},
#define SMALL_FEW(label, storage, accumulated, size, also)                                                   \
    SMALL(label, storage, accumulated, size, 16, 64, EG_CUDA_FEW_ROWS | (also))                              \
    SMALL(label, storage, accumulated, size, 64, 16, EG_CUDA_FEW_COLS | (also))
#define SMALL_ALL(label, storage, accumulated, size, also)                                                   \
    SMALL_FEW(label, storage, accumulated, size, also)                                                       \
    SMALL(label, storage, accumulated, size, 64, 64, also)                                                   \
    SMALL(label "_grouped", storage, accumulated, size, 16, 64, EG_CUDA_FEW_ROWS | GROUPS_ALONE | (also))    \
    SMALL(label "_grouped", storage, accumulated, size, 64, 64, GROUPS_ALONE | (also))

/* Few rows: kernels/few_rows.cuh. `deep` warps share the depth, each in steps of `step` terms. */
#define FEW_ROW(label, storage, accumulated, size, layout, rows, cols, deep, step, also)                     \
    {.name = "few_" label "_" #layout "_" #rows "x" #cols,                                                   \
     .kind = EG_GEMM,                                                                                        \
     .family = EG_CUDA_STREAMED,                                                                             \
     .compute = accumulated,                                                                                 \
     .dtype = storage,                                                                                       \
     .needs = EG_CUDA_SM80,                                                                                  \
     .epilogues = EVERYTHING,                                                                                \
     .takes = EG_CUDA_SMALL | EG_CUDA_FEW_ROWS | EG_CUDA_NO_REDUCTION | layout##_LAYOUT | (also),            \
     .tile_rows = rows,                                                                                      \
     .tile_cols = cols,                                                                                      \
     .k_block = (deep) * (step),                                                                             \
     .threads = EG_FEW_THREADS,                                                                              \
     .shared = EG_FEW_SHARED(rows, cols, deep, size)},
#define FEW(type, storage, layout, rows, cols, deep, step)                                                   \
    FEW_ROW(#type, storage, EG_F32, 4, layout, rows, cols, deep, step, EG_CUDA_MATRIX_UNIT)
/* Of lines that begin anywhere: kernels/few_rows_odd.cuh. */
#define FEW_ODD(type, storage, layout, rows, cols, deep, step)                                               \
    FEW_ROW(#type "_odd", storage, EG_F32, 4, layout, rows, cols, deep, step,                                \
            EG_CUDA_MATRIX_UNIT | EG_CUDA_ODD)
#define FEW_16_ODD(type, storage)                                                                            \
    FEW_ODD(type, storage, nn, 8, 112, 4, 16)                                                                \
    FEW_ODD(type, storage, nn, 16, 56, 8, 16)                                                                \
    FEW_ODD(type, storage, nt, 8, 16, 8, 32)                                                                 \
    FEW_ODD(type, storage, nt, 16, 16, 8, 32)
#define FEW_16(type, storage)                                                                                \
    FEW(type, storage, nn, 16, 64, 8, 16)                                                                    \
    FEW(type, storage, nt, 8, 16, 8, 64)                                                                     \
    FEW(type, storage, nt, 16, 16, 8, 64)                                                                    \
    FEW(type, storage, nt, 8, 128, 2, 32)                                                                    \
    FEW(type, storage, nt, 16, 128, 2, 32)
/* On the FMA units: kernels/few_rows_fma.cuh. */
#define FEW_F32(layout, rows, cols, deep, step)                                                              \
    FEW_ROW("f32", EG_F32, EG_F32, 4, layout, rows, cols, deep, step, 0)
#define FEW_F64(layout, rows, cols, deep, step)                                                              \
    FEW_ROW("f64", EG_F64, EG_F64, 8, layout, rows, cols, deep, step, 0)
#define FEW_FMA                                                                                              \
    FEW_F32(nn, 1, 32, 8, 16)                                                                                \
    FEW_F32(nn, 1, 128, 2, 16)                                                                               \
    FEW_F32(nn, 4, 32, 8, 16)                                                                                \
    FEW_F32(nn, 8, 32, 8, 16)                                                                                \
    FEW_F32(nn, 8, 64, 4, 16)                                                                                \
    FEW_F32(nn, 16, 32, 8, 16)                                                                               \
    FEW_F32(nt, 1, 16, 8, 32)                                                                                \
    FEW_F32(nt, 1, 64, 2, 32)                                                                                \
    FEW_F32(nt, 4, 16, 8, 32)                                                                                \
    FEW_F32(nt, 4, 64, 2, 32)                                                                                \
    FEW_F32(nt, 8, 16, 8, 32)                                                                                \
    FEW_F32(nt, 8, 64, 2, 32)                                                                                \
    FEW_F32(nt, 16, 32, 8, 16)                                                                               \
    FEW_F64(nn, 1, 16, 8, 16)                                                                                \
    FEW_F64(nn, 1, 64, 2, 16)                                                                                \
    FEW_F64(nn, 4, 16, 8, 16)                                                                                \
    FEW_F64(nn, 8, 16, 8, 16)                                                                                \
    FEW_F64(nt, 1, 16, 8, 16)                                                                                \
    FEW_F64(nt, 1, 64, 2, 16)                                                                                \
    FEW_F64(nt, 4, 16, 8, 16)                                                                                \
    FEW_F64(nt, 4, 64, 2, 16)

/* Short rows: kernels/tall.cuh, tall_fma.cuh. */
#define TALL(type, storage, also)                                                                            \
    {.name = "tall_" #type "_32x64",                                                                         \
     .kind = EG_GEMM,                                                                                        \
     .family = EG_CUDA_STRIDED,                                                                              \
     .compute = EG_F32,                                                                                      \
     .dtype = storage,                                                                                       \
     .needs = EG_CUDA_SM80,                                                                                  \
     .epilogues = EVERYTHING,                                                                                \
     .takes = EG_CUDA_NO_REDUCTION | EG_CUDA_TALL | EG_CUDA_NO_ADD | (also),                                 \
     .tile_rows = EG_TALL_ROWS,                                                                              \
     .tile_cols = EG_TALL_COLS,                                                                              \
     .k_block = 16,                                                                                          \
     .threads = EG_TALL_THREADS},

/* y of values that lie in memory: kernels/map_y.cu, map_y_gaps.cu. A thread has `each` vectors. */
#define MAP_Y_ROW(label, layer, accumulated, vector, each, also)                                             \
    {.name = label,                                                                                          \
     .kind = EG_MAP,                                                                                         \
     .family = EG_CUDA_STRIDED,                                                                              \
     .compute = accumulated,                                                                                 \
     .dtype = layer,                                                                                         \
     .epilogues = 1U << EG_CUDA_FORWARD,                                                                     \
     .takes = EG_CUDA_ROW_STORES | (also),                                                                   \
     .tile_rows = 8 * (each),                                                                                \
     .tile_cols = 32 * (vector),                                                                             \
     .threads = EG_MAP_Y_THREADS,                                                                            \
     .sum_rows = 32},
#define MAP_Y(type, layer, accumulated, vector, each)                                                        \
    MAP_Y_ROW("map_y_" #type, layer, accumulated, vector, each, EG_CUDA_NO_GAPS)                             \
    MAP_Y_ROW("map_y_gaps_" #type, layer, accumulated, vector, 1, 0)

/* A map by rows, of which a warp reads `cols` numbers at once, a vector a lane (map.cu, act_grad.cuh,
 * gated_grad.cu) or four numbers (map_odd.cu). */
#define ROWS_OF_VECTORS (EG_CUDA_ALIGNED | EG_CUDA_ROW_STORES)
#define ROWS_ANYWHERE   (EG_CUDA_ODD | EG_CUDA_ROW_STORES)
#define MAP(label, type, of, layer, accumulated, what, rows, cols, block)                                    \
    {                                                                                                        \
        .name = #label "_" #type, .kind = EG_MAP, .family = of, .compute = accumulated, .dtype = layer,      \
        .takes = what, .tile_rows = rows, .tile_cols = cols, .threads = block, .sum_rows = 32                \
    }
#define WHOLE_SUMS(label, type, layer, what, cols)                                                           \
    {                                                                                                        \
        .name = "hopper_" #label "_" #type, .kind = EG_MAP, .family = EG_CUDA_VECTORS, .compute = EG_F32,    \
        .dtype = layer, .needs = EG_CUDA_SM90A, .takes = EG_CUDA_WHOLE_SUMS | (what), .tile_rows = 32,       \
        .tile_cols = cols, .threads = 256, .sum_rows = 32                                                    \
    }

/* Few outer products of any types: kernels/outer.cu. */
#define OUTER(label, type, accumulated, rows, also)                                                          \
    {.name = label "_" #type,                                                                                \
     .kind = EG_GEMM,                                                                                        \
     .family = EG_CUDA_STRIDED,                                                                              \
     .compute = accumulated,                                                                                 \
     .epilogues = STORES,                                                                                    \
     .takes = EG_CUDA_SHALLOW | EG_CUDA_NO_REDUCTION | EG_CUDA_ROW_STORES | (also),                          \
     .tile_rows = rows,                                                                                      \
     .tile_cols = 128,                                                                                       \
     .k_block = 1,                                                                                           \
     .threads = 256},

/* And of the rows of groups. */
#define HOPPER_GROUPED(type, storage, layout, terms)                                                         \
    HOPPER_ROW(#type "_grouped", storage, layout, 128, EG_PINGPONG_SHARED(128), terms, EG_CUDA_TMA, 0,       \
               EG_CUDA_PINGPONG | EG_CUDA_ROW_GROUPS | EG_CUDA_GROUPS_ALONE | EG_CUDA_SHARES_LEFT)
/* Wide tiles of them, for products alone: kernels/hopper_grouped_wide.cu. */
#define HOPPER_GROUPED_WIDE(type, storage, layout)                                                           \
    HOPPER_ROW(#type "_grouped", storage, layout, 256, EG_HOPPER_SHARED(256), STORES, EG_CUDA_TMA, 64,       \
               EG_CUDA_ROW_GROUPS | EG_CUDA_GROUPS_ALONE)
/* Sums over the rows of each: kernels/hopper_depth_groups.cuh. */
#define HOPPER_DEPTH_GROUPS(type, storage)                                                                   \
    HOPPER_ROW(#type "_grouped", storage, tn, 128, EG_PINGPONG_SHARED(128), STORES, EG_CUDA_TMA, 0,          \
               EG_CUDA_PINGPONG | EG_CUDA_DEPTH_GROUPS | EG_CUDA_GROUPS_ALONE)                               \
    HOPPER_ROW(#type "_grouped", storage, tn, 256, EG_HOPPER_SHARED(256), STORES, EG_CUDA_TMA, 64,           \
               EG_CUDA_DEPTH_GROUPS | EG_CUDA_GROUPS_ALONE)
#define HOPPER_16_GROUPED(type, storage)                                                                     \
    HOPPER_GROUPED(type, storage, nn, STORES | EPILOGUES)                                                    \
    HOPPER_GROUPED(type, storage, nt, STORES | EPILOGUES)                                                    \
    HOPPER_GROUPED_WIDE(type, storage, nn)                                                                   \
    HOPPER_GROUPED_WIDE(type, storage, nt)                                                                   \
    HOPPER_DEPTH_GROUPS(type, storage)

/* Two products of a gated unit by one kernel (pair.h): with their epilogues, kernels/hopper_gated.cuh, and
 * their sum, kernels/hopper_pair.cuh. */
#define HOPPER_GATED(type, storage, layout)                                                                  \
    HOPPER_ROW(#type "_gated", storage, layout, 128, EG_PINGPONG_SHARED(128), 1U << EG_CUDA_FORWARD,         \
               EG_CUDA_PAIR, 0, EG_CUDA_PINGPONG)                                                            \
    HOPPER_ROW(#type "_gated_chain", storage, layout, 128, EG_PINGPONG_SHARED(128), 1U << EG_CUDA_CHAIN,     \
               EG_CUDA_PAIR, 32, EG_CUDA_PINGPONG)
#define HOPPER_PAIR(type, storage, layout)                                                                   \
    HOPPER_ROW(#type "_pair", storage, layout, 128, EG_PINGPONG_SHARED(128), STORES, EG_CUDA_PAIR, 0,        \
               EG_CUDA_PINGPONG)                                                                             \
    HOPPER_ROW(#type "_pair_stream_k", storage, layout, 256, EG_HOPPER_SHARED(256), STORES, EG_CUDA_PAIR,    \
               64, EG_CUDA_STREAM_K)
#define HOPPER_16_PAIRS(type, storage)                                                                       \
    HOPPER_GATED(type, storage, nn)                                                                          \
    HOPPER_GATED(type, storage, nt)                                                                          \
    HOPPER_PAIR(type, storage, nn)                                                                           \
    HOPPER_PAIR(type, storage, nt)

/* Products by the vendor's library, with a bias or nothing; of 16 bits on Hopper also with a ReLU. */
#define LIBRARY_ROW(label, storage, accumulated, must, terms, also)                                          \
    {.name = "cublaslt_" label,                                                                              \
     .kind = EG_GEMM,                                                                                        \
     .family = EG_CUDA_LIBRARY,                                                                              \
     .compute = accumulated,                                                                                 \
     .dtype = storage,                                                                                       \
     .needs = EG_CUDA_LT | (must),                                                                           \
     .epilogues = 1U << EG_CUDA_FORWARD | (terms),                                                           \
     .takes = EG_CUDA_NO_REDUCTION | (also)},
#define LIBRARY(type, storage, accumulated, also) LIBRARY_ROW(#type, storage, accumulated, 0, STORES, also)
#define LIBRARY_RELU(type, storage)                                                                          \
    LIBRARY_ROW("relu_" #type, storage, EG_F32, EG_CUDA_SM90A, 0,                                            \
                EG_CUDA_MATRIX_UNIT | EG_CUDA_ALIGNED | EG_CUDA_RELU)

static const eg_cuda_kernel rows[] = {
    /* clang-format off */
    LIBRARY(bf16, EG_BF16, EG_F32, EG_CUDA_MATRIX_UNIT)
    LIBRARY(f16, EG_F16, EG_F32, EG_CUDA_MATRIX_UNIT)
    LIBRARY(f32, EG_F32, EG_F32, 0)
    LIBRARY(f64, EG_F64, EG_F64, 0)
    LIBRARY_RELU(bf16, EG_BF16)
    LIBRARY_RELU(f16, EG_F16)
    /* 16-bit layers on Hopper. The order is of consequence where rows are estimated alike. */
    HOPPER_16(bf16, EG_BF16)
    HOPPER_16(f16, EG_F16)
    HOPPER_16_STREAM_K(bf16, EG_BF16)
    HOPPER_16_STREAM_K(f16, EG_F16)
    HOPPER_16_PINGPONG(bf16, EG_BF16)
    HOPPER_16_PINGPONG(f16, EG_F16)
    HOPPER_16_SPLIT(bf16, EG_BF16)
    HOPPER_16_SPLIT(f16, EG_F16)
    HOPPER_16_CLUSTER(bf16, EG_BF16)
    HOPPER_16_CLUSTER(f16, EG_F16)
    HOPPER_16_TURNED(bf16, EG_BF16)
    HOPPER_16_TURNED(f16, EG_F16)
    HOPPER_16_GROUPED(bf16, EG_BF16)
    HOPPER_16_GROUPED(f16, EG_F16)
    HOPPER_16_PAIRS(bf16, EG_BF16)
    HOPPER_16_PAIRS(f16, EG_F16)
    /* f32 and f64 layers there. */
    HOPPER_TILES(f32, EG_F32, nn, 128, EG_HOPPER_F32_DEPTH, EG_HOPPER_F32_SHARED)
    HOPPER_TILES(f32, EG_F32, nt, 128, EG_HOPPER_F32_DEPTH, EG_HOPPER_F32_SHARED)
    HOPPER_TILES(f64, EG_F64, nn, 64, EG_HOPPER_F64_DEPTH, EG_HOPPER_F64_SHARED)
    HOPPER_TILES(f64, EG_F64, nt, 64, EG_HOPPER_F64_DEPTH, EG_HOPPER_F64_SHARED)
    /* clang-format on */
    /* A result without a product. */
    {.name = "copy_f32",
     .kind = EG_GEMM,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F32,
     .epilogues = 1U << EG_CUDA_FORWARD,
     .takes = EG_CUDA_COPY,
     .tile_rows = 128,
     .tile_cols = 128,
     .threads = 256},
    /* Padded copies: of no operation, so that they are never chosen, but taken (eg_cuda_pad_row). */
    {.name = "pad_16",
     .kind = EG_COPY,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F32,
     .tile_rows = 8,
     .tile_cols = 256,
     .threads = 256},
    {.name = "pad_32",
     .kind = EG_COPY,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F32,
     .tile_rows = 8,
     .tile_cols = 256,
     .threads = 256},
    /* Few rows, few columns or few tiles. */
    FEW_16(bf16, EG_BF16) FEW_16(f16, EG_F16) FEW_16_ODD(bf16, EG_BF16) FEW_16_ODD(f16, EG_F16)
        FEW_FMA SMALL_ALL("mma_bf16", EG_BF16, EG_F32, 2, EG_CUDA_MATRIX_UNIT)
            SMALL_ALL("mma_f16", EG_F16, EG_F32, 2, EG_CUDA_MATRIX_UNIT)
                SMALL_ALL("fma_f32", EG_F32, EG_F32, 4, 0) SMALL_FEW("fma_f64", EG_F64, EG_F64, 8, 0)
                    TALL(bf16, EG_BF16, EG_CUDA_MATRIX_UNIT) TALL(f16, EG_F16, EG_CUDA_MATRIX_UNIT)
                        TALL(f32, EG_F32, 0) OUTER("outer", f32, EG_F32, 64, EG_CUDA_NO_ADD)
                            OUTER("outer_add", f32, EG_F32, 32, 0) OUTER("outer_add", f64, EG_F64, 32, 0)
                                MAP_Y(bf16, EG_BF16, EG_F32, 8, 1) MAP_Y(f16, EG_F16, EG_F32, 8, 1)
                                    MAP_Y(f32, EG_F32, EG_F32, 4, EG_MAP_Y_F32_VECTORS)
                                        MAP_Y(f64, EG_F64, EG_F64, 2, 1)
    /* 16-bit, f32 and f64 layers of any strides. */
    {.name = "mma_bf16_128x128",
     .kind = EG_GEMM,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F32,
     .dtype = EG_BF16,
     .needs = EG_CUDA_SM80,
     .epilogues = EVERYTHING,
     .takes = GROUPS | EG_CUDA_MATRIX_UNIT,
     .tile_rows = 128,
     .tile_cols = 128,
     .k_block = 32,
     .threads = 256,
     .shared = EG_MMA_16_SHARED},
    {.name = "mma_f16_128x128",
     .kind = EG_GEMM,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F32,
     .dtype = EG_F16,
     .needs = EG_CUDA_SM80,
     .epilogues = EVERYTHING,
     .takes = GROUPS | EG_CUDA_MATRIX_UNIT,
     .tile_rows = 128,
     .tile_cols = 128,
     .k_block = 32,
     .threads = 256,
     .shared = EG_MMA_16_SHARED},
    {.name = "fma_f32_128x128",
     .kind = EG_GEMM,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F32,
     .dtype = EG_F32,
     .needs = EG_CUDA_SM80,
     .epilogues = EVERYTHING,
     .takes = GROUPS,
     .tile_rows = 128,
     .tile_cols = 128,
     .k_block = 16,
     .threads = 128,
     .shared = EG_FMA_F32_SHARED},
    {.name = "mma_f64_128x128",
     .kind = EG_GEMM,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F64,
     .dtype = EG_F64,
     .needs = EG_CUDA_SM80,
     .epilogues = EVERYTHING,
     .takes = GROUPS,
     .tile_rows = 128,
     .tile_cols = 128,
     .k_block = 16,
     .threads = 256,
     .shared = EG_MMA_F64_SHARED},
    /* Any product. */
    {.name = "ref_f32",
     .kind = EG_GEMM,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F32,
     .epilogues = EVERYTHING,
     .takes = GROUPS,
     .tile_rows = 32,
     .tile_cols = 128,
     .k_block = 32,
     .threads = 256},
    {.name = "ref_f64",
     .kind = EG_GEMM,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F64,
     .epilogues = EVERYTHING,
     .takes = GROUPS,
     .tile_rows = 32,
     .tile_cols = 128,
     .k_block = 16,
     .threads = 256},
    /* grad_pre from a saved pre or y; and what a product that waits becomes in a chain. */
    MAP(act_grad, bf16, EG_CUDA_VECTORS, EG_BF16, EG_F32, 0, 32, 256, 256),
    MAP(act_grad, f16, EG_CUDA_VECTORS, EG_F16, EG_F32, 0, 32, 256, 256),
    MAP(act_grad, f32, EG_CUDA_VECTORS, EG_F32, EG_F32, 0, 32, 128, 256),
    MAP(act_grad, f64, EG_CUDA_VECTORS, EG_F64, EG_F64, 0, 32, 64, 256),
    MAP(act_grad_product, bf16, EG_CUDA_VECTORS, EG_BF16, EG_F32, EG_CUDA_PRODUCTS, 32, 256, 256),
    MAP(act_grad_product, f16, EG_CUDA_VECTORS, EG_F16, EG_F32, EG_CUDA_PRODUCTS, 32, 256, 256),
    MAP(act_grad_product, f32, EG_CUDA_VECTORS, EG_F32, EG_F32, EG_CUDA_PRODUCTS, 32, 128, 256),
    /* Likewise with all of d_bias: kernels/hopper_act_grad.cu. */
    WHOLE_SUMS(act_grad, bf16, EG_BF16, 0, 64),
    WHOLE_SUMS(act_grad, f16, EG_F16, 0, 64),
    WHOLE_SUMS(act_grad, f32, EG_F32, 0, 32),
    WHOLE_SUMS(act_grad_product, bf16, EG_BF16, EG_CUDA_PRODUCTS, 64),
    WHOLE_SUMS(act_grad_product, f16, EG_F16, EG_CUDA_PRODUCTS, 64),
    WHOLE_SUMS(act_grad_product, f32, EG_F32, EG_CUDA_PRODUCTS, 32),
    /* And of rows that begin anywhere: kernels/hopper_act_grad_odd.cu. */
    WHOLE_SUMS(act_grad_odd, bf16, EG_BF16, EG_CUDA_ODD, 32),
    WHOLE_SUMS(act_grad_odd, f16, EG_F16, EG_CUDA_ODD, 32),
    WHOLE_SUMS(act_grad_odd, f32, EG_F32, EG_CUDA_ODD, 32),
    WHOLE_SUMS(act_grad_odd_product, bf16, EG_BF16, EG_CUDA_ODD | EG_CUDA_PRODUCTS, 32),
    WHOLE_SUMS(act_grad_odd_product, f16, EG_F16, EG_CUDA_ODD | EG_CUDA_PRODUCTS, 32),
    WHOLE_SUMS(act_grad_odd_product, f32, EG_F32, EG_CUDA_ODD | EG_CUDA_PRODUCTS, 32),
    /* Likewise of rows that begin anywhere: kernels/act_grad_odd.cu. */
    MAP(act_grad_odd, bf16, EG_CUDA_VECTORS, EG_BF16, EG_F32, ROWS_ANYWHERE, 32, 32, 256),
    MAP(act_grad_odd, f16, EG_CUDA_VECTORS, EG_F16, EG_F32, ROWS_ANYWHERE, 32, 32, 256),
    MAP(act_grad_odd, f32, EG_CUDA_VECTORS, EG_F32, EG_F32, ROWS_ANYWHERE, 32, 32, 256),
    MAP(act_grad_odd_product, bf16, EG_CUDA_VECTORS, EG_BF16, EG_F32, ROWS_ANYWHERE | EG_CUDA_PRODUCTS, 32,
        32, 256),
    MAP(act_grad_odd_product, f16, EG_CUDA_VECTORS, EG_F16, EG_F32, ROWS_ANYWHERE | EG_CUDA_PRODUCTS, 32, 32,
        256),
    MAP(act_grad_odd_product, f32, EG_CUDA_VECTORS, EG_F32, EG_F32, ROWS_ANYWHERE | EG_CUDA_PRODUCTS, 32, 32,
        256),
    /* Both gradients of a gated unit, likewise: three maps. */
    MAP(gated_grad, bf16, EG_CUDA_GATED, EG_BF16, EG_F32, 0, 32, 256, 256),
    MAP(gated_grad, f16, EG_CUDA_GATED, EG_F16, EG_F32, 0, 32, 256, 256),
    MAP(gated_grad, f32, EG_CUDA_GATED, EG_F32, EG_F32, 0, 32, 128, 256),
    MAP(gated_grad, f64, EG_CUDA_GATED, EG_F64, EG_F64, 0, 32, 64, 256),
    /* Any map of rows, and what finishes a product; a warp takes 32 vectors of a row. */
    MAP(map, bf16, EG_CUDA_STRIDED, EG_BF16, EG_F32, ROWS_OF_VECTORS, 16, 256, 512),
    MAP(map, f16, EG_CUDA_STRIDED, EG_F16, EG_F32, ROWS_OF_VECTORS, 16, 256, 512),
    MAP(map, f32, EG_CUDA_STRIDED, EG_F32, EG_F32, ROWS_OF_VECTORS, 16, 128, 512),
    MAP(map, f64, EG_CUDA_STRIDED, EG_F64, EG_F64, ROWS_OF_VECTORS, 16, 64, 512),
    {.name = "map_odd_f32",
     .kind = EG_MAP,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F32,
     .takes = EG_CUDA_ODD | EG_CUDA_ROW_STORES,
     .tile_rows = 8,
     .tile_cols = 128,
     .threads = 256,
     .sum_rows = 32},
    {.name = "map_any_f32",
     .kind = EG_MAP,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F32,
     .tile_rows = 32,
     .tile_cols = 128,
     .threads = 256},
    {.name = "map_any_f64",
     .kind = EG_MAP,
     .family = EG_CUDA_STRIDED,
     .compute = EG_F64,
     .tile_rows = 32,
     .tile_cols = 128,
     .threads = 256},
    /* Column sums. */
    {.name = "column_sum_f32",
     .kind = EG_REDUCE,
     .family = EG_CUDA_SUMS,
     .compute = EG_F32,
     .tile_cols = 32,
     .threads = 1024},
    {.name = "column_sum_f64",
     .kind = EG_REDUCE,
     .family = EG_CUDA_SUMS,
     .compute = EG_F64,
     .tile_cols = 32,
     .threads = 1024},
};
_Static_assert(sizeof rows / sizeof *rows <= EG_CUDA_MAX_KERNELS, "a function for each row");

const eg_cuda_kernel *eg_cuda_kernel_row(int index) {
    return index >= 0 && index < (int)(sizeof rows / sizeof *rows) ? &rows[index] : NULL;
}
