/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of the Hopper kernels. TMA moves boxes of a tensor of three dimensions, (inner, outer,
 * item), which a tensor map describes. Most boxes are lines of 128 bytes, swizzled so that threads read them
 * without conflicts. */
#include "hopper.h"

#include "cluster.h"
#include "core/error.h"
#include "groups.h"
#include "partition.h"
#include "takes.h"

/* Bytes of a swizzled line; rows that a consumer's warp stores at once, and those of a product of a consumer.
 */
enum { LINE = 128, WARP_ROWS = 16, CONSUMER_ROWS = 64 };

static CUtensorMapDataType tensor_map_type(int32_t dtype) {
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

/* A tensor map of x [rows, cols] in boxes of `wide` bytes by `high`. Boxes of one line wide are swizzled,
 * wider ones are not. An absent x leaves its tensor map alone. */
static eg_status encode_boxes(const eg_cuda_device *device, const eg_cuda_kernel *row,
                              const eg_cuda_matrix *x, int64_t rows, int64_t cols, int64_t items, int wide,
                              int high, eg_cuda_tensor_map *tensor_map) {
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
        (CUtensorMap *)tensor_map, tensor_map_type(x->dtype), 3, (void *)(uintptr_t)x->data, extent, strides,
        box, dense, CU_TENSOR_MAP_INTERLEAVE_NONE,
        wide == LINE ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? EG_OK : eg_cuda_fail(device->driver, result, row->name);
}

/* In swizzled lines. */
static eg_status encode_lines(const eg_cuda_device *device, const eg_cuda_kernel *row,
                              const eg_cuda_matrix *x, int64_t rows, int64_t cols, int64_t items, int high,
                              eg_cuda_tensor_map *tensor_map) {
    return encode_boxes(device, row, x, rows, cols, items, LINE, high, tensor_map);
}

/* The tensor map through which results are stored; none where threads store all of them. */
static eg_status encode_result(const eg_cuda_device *device, const eg_cuda_kernel *row,
                               const eg_cuda_hopper *hopper, const eg_cuda_matrix *x, int high,
                               eg_cuda_tensor_map *tensor_map) {
    if (hopper->tma_cols == 0) return EG_OK;
    return encode_lines(device, row, x, hopper->gemm.rows, hopper->tma_cols, hopper->gemm.items, high,
                        tensor_map);
}

/* Where results are added to what is there, that: of f32, some kernels read it (eg_reads_f32). */
static const eg_cuda_matrix *read_by_epilogue(const eg_cuda_hopper *hopper) {
    const eg_cuda_gemm *x = &hopper->gemm;
    const bool adds = x->epilogue == EG_CUDA_STORE && x->accumulate && hopper->tma_cols > 0;
    return eg_cuda_reads_out(x) || adds ? &x->out : &x->in;
}

/* Left is K-major: a line of a k-block has terms of one row. Right may be K-major too, terms of one column.
 * Or it is N-major: a line has 16 columns of one term in f64. In f32 a line has all columns, and is not
 * swizzled, since threads read whole terms. */
static eg_status prepare_tiles(const eg_cuda_device *device, const eg_cuda_kernel *row,
                               eg_cuda_hopper *hopper) {
    const eg_cuda_gemm *x = &hopper->gemm;
    const int64_t sources = x->summed > 1 ? x->summed : x->items;
    const bool by_column = (row->takes & EG_CUDA_RIGHT_COLS) != 0;
    const int wide = by_column || row->dtype == EG_F64 ? LINE : row->tile_cols * 4;
    EG_TRY(encode_lines(device, row, &x->left, x->rows, x->depth, sources, row->tile_rows, &hopper->left));
    return encode_boxes(device, row, &x->right, x->depth, x->cols, sources, wide,
                        by_column ? row->tile_cols : row->k_block, &hopper->right);
}

/* A line of a k-block has terms of one row of left or column of right; or it has 64 of those, of one term. Of
 * an operand that tiles of a cluster share, each loads some of the lines. There is a cluster for each part of
 * the result that they cover. */
static eg_status prepare_split(const eg_cuda_device *device, const eg_cuda_kernel *row,
                               eg_cuda_hopper *hopper, int64_t *clusters) {
    const eg_cuda_gemm *x = &hopper->gemm;
    const int64_t sources = x->summed > 1 ? x->summed : x->items;
    const int rows = (row->takes & EG_CUDA_TURNED) != 0
                         ? (int)EG_TURNED_ROWS(x->rows, x->chunks, row->tile_rows)
                         : row->tile_rows;
    const int left_lines = x->left.col_stride == 1 ? rows : row->k_block,
              right_lines = x->right.col_stride == 1 ? row->k_block : row->tile_cols;
    if (eg_cuda_cluster_tiles(row) > 1)
        *clusters = x->items * eg_ceil_div(x->rows, eg_cuda_cluster_rows(row)) *
                    eg_ceil_div(x->cols, eg_cuda_cluster_cols(row));
    EG_TRY(encode_lines(device, row, &x->left, x->rows, x->depth, sources,
                        left_lines / eg_cuda_tiles_across(row), &hopper->left));
    return encode_lines(device, row, &x->right, x->depth, x->cols, sources,
                        right_lines / eg_cuda_tiles_down(row), &hopper->right);
}

/* Of what is summed over a group's rows, an item is a k-block: the rows from any row on (depth_groups.h). */
static void take_rows_as_items(eg_cuda_gemm *x) {
    x->left.item_stride = x->left.col_stride;
    x->right.item_stride = x->right.row_stride;
}

/* Of a persistent kernel. A cluster's blocks share one of the operands: each loads half of a box. */
static eg_status encode_operands(const eg_cuda_device *device, const eg_cuda_kernel *row,
                                 const eg_cuda_gemm *x, int64_t depth, int64_t cols, int64_t sources,
                                 eg_cuda_hopper *hopper) {
    const bool right_cols = x->right.col_stride != 1, shares_left = hopper->shares_left != 0;
    const int left_lines = x->left.col_stride == 1 ? row->tile_rows : row->k_block,
              right_lines = right_cols ? row->tile_cols : row->k_block;
    EG_TRY(encode_lines(device, row, &x->left, x->rows, depth, sources,
                        shares_left ? left_lines / 2 : left_lines, &hopper->left));
    return encode_lines(device, row, &x->right, depth, cols, sources,
                        shares_left ? right_lines : right_lines / 2, &hopper->right);
}

/* Rows of tiles in a band, two blocks high: of 8 L2 has the least to read. A right operand that stays in L2
 * is read there for each row of tiles: then bands are one tile high, and results are written row by row,
 * which memory takes faster. */
enum { RASTER = 8, STAYS = 16 << 20 /* bytes */ };

static void place_cluster(const eg_cuda_kernel *row, eg_cuda_hopper *hopper) {
    const eg_cuda_gemm *x = &hopper->gemm;
    const eg_cuda_cluster cluster = eg_cuda_cluster_of(row, x);
    const bool stays = x->ragged == EG_CUDA_DENSE &&
                       x->depth <= STAYS / (x->cols * (int64_t)eg_dtype_size((eg_dtype)x->right.dtype));
    hopper->shares_left = cluster.shares_left;
    hopper->raster = stays ? 1 : RASTER * EG_CUDA_CLUSTER * row->tile_rows / cluster.rows;
}

/* A cluster of two blocks makes two tiles. There are as many clusters as fit on the device. */
static int64_t blocks_of(const eg_cuda_device *device, const eg_cuda_kernel *row,
                         const eg_cuda_hopper *hopper) {
    const eg_cuda_gemm *x = &hopper->gemm;
    const eg_cuda_cluster cluster = eg_cuda_cluster_of(row, x);
    const int64_t room = device->caps.multiprocessors / EG_CUDA_CLUSTER;
    const int64_t down = x->ragged == EG_CUDA_RAGGED_ROWS ? eg_cuda_row_tiles(x->rows, x->items, cluster.rows)
                                                          : eg_ceil_div(x->rows, cluster.rows) * x->items;
    const int64_t tiles = down * eg_ceil_div(x->cols, cluster.cols);
    return EG_CUDA_CLUSTER * (tiles < room && hopper->tail.tiles == 0 ? tiles : room);
}

eg_status eg_cuda_hopper_prepare(const eg_cuda_device *device, const eg_cuda_kernel *row,
                                 eg_cuda_hopper *hopper, int64_t *blocks) {
    const eg_cuda_gemm *x = &hopper->gemm;
    *blocks = x->tiles;
    if (row->family == EG_CUDA_TMA_TILES) return prepare_tiles(device, row, hopper);
    if (row->family == EG_CUDA_TMA_SPLIT) return prepare_split(device, row, hopper, blocks);
    const bool by_group = x->ragged == EG_CUDA_RAGGED_DEPTH;
    if (by_group) take_rows_as_items(&hopper->gemm);
    const int64_t depth = by_group ? row->k_block : x->depth,
                  sources = by_group ? x->depth : (x->summed > 1 ? x->summed : x->items);
    const eg_cuda_matrix *in = read_by_epilogue(hopper);
    place_cluster(row, hopper);
    EG_TRY(encode_operands(device, row, x, depth, x->cols, sources, hopper));
    EG_TRY(encode_lines(device, row, in, x->rows, x->cols, x->items, WARP_ROWS, &hopper->in));
    EG_TRY(encode_result(device, row, hopper, &x->out, WARP_ROWS, &hopper->out));
    EG_TRY(encode_result(device, row, hopper, &x->second, WARP_ROWS, &hopper->second));
    *blocks = blocks_of(device, row, hopper);
    return EG_OK;
}

/* Of both, `up` says what one is like. */
static eg_status encode_one(const eg_cuda_device *device, const eg_cuda_kernel *row, const eg_cuda_gemm *one,
                            eg_cuda_hopper *hopper) {
    const eg_cuda_gemm *x = &hopper->gemm;
    const eg_cuda_matrix *in = read_by_epilogue(hopper);
    const int high = x->epilogue == EG_CUDA_CHAIN ? CONSUMER_ROWS : WARP_ROWS;
    place_cluster(row, hopper);
    EG_TRY(encode_operands(device, row, x, x->depth, one->cols, one->items, hopper));
    EG_TRY(encode_lines(device, row, in, x->rows, one->cols, one->items, high, &hopper->in));
    EG_TRY(encode_result(device, row, hopper, &x->out, high, &hopper->out));
    return encode_result(device, row, hopper, &x->second, high, &hopper->second);
}

eg_status eg_cuda_hopper_prepare_pair(const eg_cuda_device *device, const eg_cuda_kernel *row,
                                      eg_cuda_hopper_pair *both, int64_t *blocks) {
    EG_TRY(encode_one(device, row, &both->up.gemm, &both->gate));
    EG_TRY(encode_one(device, row, &both->up.gemm, &both->up));
    *blocks = blocks_of(device, row, &both->gate);
    return EG_OK;
}
