/* SPDX-License-Identifier: Apache-2.0 */
/* The kind of a kernel: kernels of one kind share the constants of their estimated times. */
#include "estimate.h"

static eg_cuda_kind by_type(const eg_cuda_kernel *row, eg_cuda_kind of_16, eg_cuda_kind of_f32,
                            eg_cuda_kind of_f64) {
    if (row->compute == EG_F64) return of_f64;
    return row->dtype == EG_F16 || row->dtype == EG_BF16 ? of_16 : of_f32;
}

static eg_cuda_kind kind_of_tma(const eg_cuda_kernel *row) {
    if (row->family == EG_CUDA_PAIR && (row->epilogues & 1U << EG_CUDA_STORE) == 0)
        return (row->epilogues & 1U << EG_CUDA_CHAIN) != 0 ? EG_CUDA_KIND_GATED_CHAIN : EG_CUDA_KIND_GATED;
    if ((row->takes & EG_CUDA_GROUPS_ALONE) != 0)
        return row->tile_cols == 256 ? EG_CUDA_KIND_GROUPED_WIDE : EG_CUDA_KIND_GROUPED;
    if ((row->takes & EG_CUDA_PINGPONG) != 0 && (row->takes & EG_CUDA_LEFT_COLS) != 0)
        return EG_CUDA_KIND_PINGPONG_D_B;
    if ((row->takes & EG_CUDA_PINGPONG) != 0)
        return row->tile_cols == 192 ? EG_CUDA_KIND_PINGPONG_192 : EG_CUDA_KIND_PINGPONG;
    if ((row->takes & EG_CUDA_STREAM_K) != 0) return EG_CUDA_KIND_STREAM_K;
    return row->tile_cols == 256 ? EG_CUDA_KIND_TMA_256 : EG_CUDA_KIND_TMA_128;
}

static eg_cuda_kind kind_of_cluster(const eg_cuda_kernel *row) {
    static const int kinds[][4] = {{64, 64, 1, 1},   {64, 128, 1, 1},  {64, 256, 1, 1},  {128, 64, 1, 1},
                                   {128, 128, 1, 1}, {128, 192, 1, 1}, {128, 256, 1, 1}, {192, 128, 1, 1},
                                   {128, 64, 1, 4},  {128, 128, 2, 2}, {128, 192, 2, 1}};
    enum { LAST = sizeof kinds / sizeof *kinds - 1 };
    int i = 0; /* other tiles, which the table has none of, would be estimated as the last ones */
    while (i < LAST && (kinds[i][0] != row->tile_rows || kinds[i][1] != row->tile_cols ||
                        kinds[i][2] != row->down || kinds[i][3] != row->across))
        i++;
    return (eg_cuda_kind)(EG_CUDA_KIND_CLUSTER_64_64 + i);
}

static eg_cuda_kind kind_of_turned(const eg_cuda_kernel *row) {
    if (row->tile_rows == 152) return EG_CUDA_KIND_TURNED_152_128;
    return row->tile_cols == 64 ? EG_CUDA_KIND_TURNED_200_64 : EG_CUDA_KIND_TURNED_200_128;
}

static eg_cuda_kind kind_of_tma_split(const eg_cuda_kernel *row) {
    if ((row->takes & EG_CUDA_FEW_ROWS) != 0) return EG_CUDA_KIND_TMA_SPLIT_16;
    if ((row->takes & EG_CUDA_TURNED) != 0) return kind_of_turned(row);
    if ((row->takes & EG_CUDA_ONE_TYPE) != 0) return kind_of_cluster(row);
    return row->tile_cols == 64 ? EG_CUDA_KIND_TMA_SPLIT_64 : EG_CUDA_KIND_TMA_SPLIT_128;
}

static eg_cuda_kind kind_of_split(const eg_cuda_kernel *row) {
    if ((row->takes & (EG_CUDA_FEW_ROWS | EG_CUDA_FEW_COLS)) != 0)
        return by_type(row, EG_CUDA_KIND_FEW_16, EG_CUDA_KIND_FEW_F32, EG_CUDA_KIND_FEW_F64);
    return by_type(row, EG_CUDA_KIND_SMALL_16, EG_CUDA_KIND_SMALL_F32, EG_CUDA_KIND_SMALL_F32);
}

static eg_cuda_kind kind_of_streamed(const eg_cuda_kernel *row) {
    if ((row->takes & EG_CUDA_ODD) != 0)
        return row->tile_rows == 8 ? EG_CUDA_KIND_ODD_8 : EG_CUDA_KIND_ODD_16;
    if (row->dtype == EG_F64)
        return row->tile_rows == 1 ? EG_CUDA_KIND_STREAMED_F64_1 : EG_CUDA_KIND_STREAMED_F64_8;
    if (row->dtype != EG_F32 && (row->takes & EG_CUDA_RIGHT_ROWS) != 0) return EG_CUDA_KIND_STREAMED_NN;
    if (row->dtype != EG_F32) return row->tile_rows == 8 ? EG_CUDA_KIND_STREAMED_8 : EG_CUDA_KIND_STREAMED_16;
    switch (row->tile_rows) {
    case 1:
        return EG_CUDA_KIND_STREAMED_F32_1;
    case 4:
        return EG_CUDA_KIND_STREAMED_F32_4;
    case 8:
        return EG_CUDA_KIND_STREAMED_F32_8;
    }
    return EG_CUDA_KIND_STREAMED_F32_16;
}

eg_cuda_kind eg_cuda_kind_of(const eg_cuda_kernel *row) {
    switch (row->family) {
    case EG_CUDA_LIBRARY:
        return by_type(row, EG_CUDA_KIND_LIBRARY_16, EG_CUDA_KIND_LIBRARY_F32, EG_CUDA_KIND_LIBRARY_F64);
    case EG_CUDA_TMA:
    case EG_CUDA_PAIR:
        return kind_of_tma(row);
    case EG_CUDA_TMA_SPLIT:
        return kind_of_tma_split(row);
    case EG_CUDA_TMA_TILES:
        return by_type(row, EG_CUDA_KIND_TMA_F32, EG_CUDA_KIND_TMA_F32, EG_CUDA_KIND_TMA_F64);
    case EG_CUDA_VECTORS:
    case EG_CUDA_GATED:
        if ((row->takes & EG_CUDA_WHOLE_SUMS) != 0)
            return (row->takes & EG_CUDA_ODD) != 0 ? EG_CUDA_KIND_WHOLE_SUMS_ODD : EG_CUDA_KIND_WHOLE_SUMS;
        if ((row->takes & EG_CUDA_ODD) != 0) return EG_CUDA_KIND_ACT_GRAD_ODD;
        return (row->takes & EG_CUDA_PRODUCTS) != 0 ? EG_CUDA_KIND_MAP_PRODUCT : EG_CUDA_KIND_MAP;
    case EG_CUDA_SUMS:
        return EG_CUDA_KIND_SUMS;
    case EG_CUDA_SPLIT:
        return kind_of_split(row);
    case EG_CUDA_STREAMED:
        return kind_of_streamed(row);
    case EG_CUDA_STRIDED:
        break;
    }
    if (row->kind == EG_COPY) return EG_CUDA_KIND_PAD;
    if ((row->takes & EG_CUDA_TALL) != 0)
        return by_type(row, EG_CUDA_KIND_TALL, EG_CUDA_KIND_TALL_F32, EG_CUDA_KIND_TALL_F32);
    if ((row->takes & EG_CUDA_SHALLOW) != 0)
        return (row->takes & EG_CUDA_NO_ADD) != 0
                   ? EG_CUDA_KIND_OUTER
                   : by_type(row, EG_CUDA_KIND_OUTER_ADD, EG_CUDA_KIND_OUTER_ADD, EG_CUDA_KIND_OUTER_ADD_F64);
    if (row->kind == EG_MAP && row->epilogues != 0)
        return (row->takes & EG_CUDA_NO_GAPS) != 0 ? EG_CUDA_KIND_MAP_Y : EG_CUDA_KIND_MAP_Y_GAPS;
    if (row->kind == EG_MAP && (row->takes & EG_CUDA_ODD) != 0) return EG_CUDA_KIND_MAP_ODD;
    if (row->kind == EG_MAP)
        return (row->takes & EG_CUDA_ROW_STORES) != 0 ? EG_CUDA_KIND_MAP_ROWS : EG_CUDA_KIND_MAP_ANY;
    if (row->dtype == EG_DTYPE_DEFAULT)
        return by_type(row, EG_CUDA_KIND_ANY_F32, EG_CUDA_KIND_ANY_F32, EG_CUDA_KIND_ANY_F64);
    return by_type(row, EG_CUDA_KIND_MMA_16, EG_CUDA_KIND_FMA_F32, EG_CUDA_KIND_MMA_F64);
}
