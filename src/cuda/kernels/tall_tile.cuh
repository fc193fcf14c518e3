/* SPDX-License-Identifier: Apache-2.0 */
/* What products of few terms and few columns have in common (tall.cuh, tall_fma.cuh): a block makes 32 rows of
 * all columns, a thread eight results of these, which it finishes in registers.
 *
 * PLACE says which: row_of(i) and col_of(i), from the tile's first on, of the pairs i = 0 to 3. */
#ifndef EG_CUDA_TALL_TILE_CUH
#define EG_CUDA_TALL_TILE_CUH

#include "../skinny.h"
#include "epilogue.cuh"
#include "order.cuh"
#include "vector_epilogue.cuh"

enum { EG_TALL_LD = EG_TALL_COLS + 8 /* of the finished tile */ };

/* A thread's results: four pairs of neighbours. */
struct eg_tall_eight {
    typedef float real;
    enum { COUNT = 8 };
};

/* Pairs, in one word where rows begin on one. */
template <class PLACE>
EG_DEVICE void eg_tall_put(const eg_cuda_matrix &x, const eg_dense_tile &tile, int cols, const PLACE &at,
                           const float (&v)[8]) {
    const int64_t begin = tile.item * x.item_stride + tile.row * x.row_stride;
    const bool words = x.row_stride % 2 == 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int there = cols - at.col_of(i);
        const int64_t index = begin + at.row_of(i) * x.row_stride + at.col_of(i);
        if (at.row_of(i) >= tile.rows || there <= 0) continue;
        if (there == 1 || !words) {
            eg_store(x, index, v[i * 2]);
            if (there > 1) eg_store(x, index + 1, v[i * 2 + 1]);
        } else if (x.dtype == EG_F32) {
            *(float2 *)((float *)x.data + index) = make_float2(v[i * 2], v[i * 2 + 1]);
        } else {
            *(uint32_t *)((uint16_t *)x.data + index) = x.dtype == EG_BF16
                                                            ? eg_round_bf16x2(v[i * 2], v[i * 2 + 1])
                                                            : eg_round_f16x2(v[i * 2], v[i * 2 + 1]);
        }
    }
}

/* v: accumulators, then what is summed over the columns. bias: of the tile's columns. */
template <class PLACE>
EG_DEVICE void eg_tall_finish(const eg_cuda_gemm &p, const eg_dense_tile &tile, const float *bias,
                              const PLACE &at, const float (&in)[8], float (&v)[8]) {
    const int cols = (int)p.cols;
    const float scale = (float)p.scale;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 two = *(const float2 *)&bias[at.col_of(i)];
        v[i * 2] = v[i * 2] * scale + two.x, v[i * 2 + 1] = v[i * 2 + 1] * scale + two.y;
    }
    if (p.second.data != 0) eg_tall_put(p.second, tile, cols, at, v);
    eg_with_terms<eg_tall_eight>(p, [&](const auto &terms) EG_INLINE { terms(v, in); });
    if (p.out.data != 0) eg_tall_put(p.out, tile, cols, at, v);
}

/* Rows outside are 0 in the sums. */
template <class PLACE>
EG_DEVICE void eg_tall_sum(const eg_cuda_gemm &p, const eg_dense_tile &tile, float *finished, const PLACE &at,
                           const float (&v)[8]) {
    __syncthreads(); /* what lay there has been read */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const bool there = at.row_of(i) < tile.rows;
        *(float2 *)&finished[at.row_of(i) * EG_TALL_LD + at.col_of(i)] =
            make_float2(there ? v[i * 2] : 0, there ? v[i * 2 + 1] : 0);
    }
    __syncthreads();
    eg_sum_columns<float, EG_TALL_ROWS, EG_TALL_COLS, EG_TALL_LD, EG_TALL_THREADS>(p, tile, finished);
}

/* The columns are those of one tile. */
EG_DEVICE eg_dense_tile eg_tall_tile(const eg_cuda_gemm &p, int64_t index) {
    eg_dense_tile at{};
    at.item = p.items == 1 ? 0 : index / p.chunks;
    at.row = (index - at.item * p.chunks) * EG_TALL_ROWS;
    at.rows = (int32_t)min(p.rows - at.row, (int64_t)EG_TALL_ROWS);
    at.depth = p.depth;
    return at;
}

/* One column a thread; 0 where there is none. */
EG_DEVICE void eg_tall_load_bias(const eg_cuda_gemm &p, const eg_dense_tile &tile, float *bias) {
    if ((int)threadIdx.x >= EG_TALL_COLS) return;
    float value = 0;
    if (p.bias.data != 0 && (int)threadIdx.x < p.cols)
        eg_load(p.bias, eg_index(p.bias, tile.item, 0, (int)threadIdx.x), value);
    bias[threadIdx.x] = value;
}

#endif
