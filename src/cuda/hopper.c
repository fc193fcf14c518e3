/* The host's side of the Hopper kernels. The copy engine moves boxes of up to three dimensions, described by
 * a map: (inner, outer, item) of a matrix, in lines of 128 bytes that it swizzles over the banks. */
#include "hopper.h"

#include "../error.h"

enum { LINE = 128, WARP_ROWS = 16 };

static CUtensorMapDataType map_type(int32_t dtype) {
    switch (dtype) {
    case EG_F16:
        return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case EG_BF16:
        return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case EG_F64:
        return CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
    default:
        return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    }
}

/* A map of x [rows, cols] in boxes of `wide` bytes by `high`: a line, which is swizzled, or several, which
 * are not. An absent x leaves its map alone. */
static eg_status make_boxes(const eg_cuda_device *device, const eg_cuda_kernel *row, const eg_cuda_matrix *x,
                            int64_t rows, int64_t cols, int64_t items, int wide, int high, eg_cuda_map *map) {
    if (x->data == 0) return EG_OK;
    const bool along_rows = x->col_stride == 1;
    const cuuint64_t element = eg_dtype_size((eg_dtype)x->dtype);
    const int64_t inner = along_rows ? cols : rows, outer = along_rows ? rows : cols;
    const int64_t pitch = along_rows ? x->row_stride : x->col_stride;
    const int64_t step = x->item_stride > 0 ? x->item_stride : pitch;
    const cuuint64_t extent[] = {(cuuint64_t)inner, (cuuint64_t)outer,
                                 x->item_stride > 0 ? (cuuint64_t)items : 1};
    const cuuint64_t strides[] = {(cuuint64_t)pitch * element, (cuuint64_t)step * element};
    const cuuint32_t box[] = {(cuuint32_t)(wide / (int)element), (cuuint32_t)high, 1}, dense[] = {1, 1, 1};
    const CUresult result = device->driver->cuTensorMapEncodeTiled(
        (CUtensorMap *)map, map_type(x->dtype), 3, (void *)(uintptr_t)x->data, extent, strides, box, dense,
        CU_TENSOR_MAP_INTERLEAVE_NONE, wide == LINE ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? EG_OK : eg_cuda_fail(device->driver, result, row->name);
}

/* In lines. */
static eg_status make_map(const eg_cuda_device *device, const eg_cuda_kernel *row, const eg_cuda_matrix *x,
                          int64_t rows, int64_t cols, int64_t items, int high, eg_cuda_map *map) {
    return make_boxes(device, row, x, rows, cols, items, LINE, high, map);
}

/* Strips of left are lines of terms. Those of right are lines of terms of each column, or terms of 16
 * columns, or in f32, whose threads read a term at once, of all. */
static eg_status prepare_tiles(const eg_cuda_device *device, const eg_cuda_kernel *row,
                               eg_cuda_hopper *hopper) {
    const eg_cuda_gemm *x = &hopper->gemm;
    const int64_t sources = x->summed > 1 ? x->summed : x->items;
    const bool by_column = (row->takes & EG_CUDA_RIGHT_COLS) != 0;
    const int wide = by_column || row->dtype == EG_F64 ? LINE : row->tile_cols * 4;
    EG_TRY(make_map(device, row, &x->left, x->rows, x->depth, sources, row->tile_rows, &hopper->left));
    return make_boxes(device, row, &x->right, x->depth, x->cols, sources, wide,
                      by_column ? row->tile_cols : row->depth, &hopper->right);
}

eg_status eg_cuda_hopper_prepare(const eg_cuda_device *device, const eg_cuda_kernel *row,
                                 eg_cuda_hopper *hopper, int64_t *blocks) {
    const eg_cuda_gemm *x = &hopper->gemm;
    *blocks = x->tiles;
    if (row->family == EG_CUDA_BOXES) return prepare_tiles(device, row, hopper);
    const int64_t sources = x->summed > 1 ? x->summed : x->items;
    const bool right_cols = x->right.col_stride != 1;
    const eg_cuda_matrix *in = &x->in;
    if (x->epilogue == EG_EPILOGUE_STORE && x->accumulate) in = &x->out;
    EG_TRY(make_map(device, row, &x->left, x->rows, x->depth, sources, x->left.col_stride == 1 ? 128 : 64,
                    &hopper->left));
    EG_TRY(make_map(device, row, &x->right, x->depth, x->cols, sources, right_cols ? row->tile_cols / 2 : 32,
                    &hopper->right));
    EG_TRY(make_map(device, row, in, x->rows, x->cols, x->items, WARP_ROWS, &hopper->in));
    EG_TRY(make_map(device, row, &x->out, x->rows, x->cols, x->items, WARP_ROWS, &hopper->out));
    EG_TRY(make_map(device, row, &x->second, x->rows, x->cols, x->items, WARP_ROWS, &hopper->second));

    /* A cluster of two blocks makes a tile of two blocks' rows; as many clusters as there is room for. */
    const int64_t rows = (int64_t)EG_CUDA_CLUSTER * row->tile_rows,
                  room = device->caps.multiprocessors / EG_CUDA_CLUSTER;
    const int64_t tiles =
        (x->rows + rows - 1) / rows * ((x->cols + row->tile_cols - 1) / row->tile_cols) * x->items;
    *blocks = EG_CUDA_CLUSTER * (tiles < room && hopper->cut.tiles == 0 ? tiles : room);
    return EG_OK;
}
