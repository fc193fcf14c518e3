/* What is done to tiles outside the product, for the type and instruction set that the including file sets:
 * loads and stores of every storage type and layout, and the epilogues.
 *
 *   EG_KERNEL         ends the name of every function here
 *   EG_REAL_BITS      32 or 64
 *   EG_VECTOR_BYTES   16, 32 or 64
 *   EG_MR, EG_NV      rows, and vectors a row, of a tile: nr = EG_NV * lanes
 *
 * EG_TILE_FUNCTIONS are the fields of an eg_cpu_kernel that this makes. template_end.h forgets it all. */
#define EG_PASTE_(a, b) a##_##b
#define EG_PASTE(a, b)  EG_PASTE_(a, b)
#define EG_V(name)      EG_PASTE(name, EG_KERNEL)
#define EG_STRING_(x)   #x
#define EG_STRING(x)    EG_STRING_(x)

#include "vector.h"

#define EG_NR (EG_NV * EG_LANES)

/* ---- load and store ----------------------------------------------------------------------------- */

#if EG_REAL_BITS == 64
EG_INLINE void EG_V(load_row)(EG_R *to, const void *from, eg_dtype dtype, int64_t stride, int64_t count) {
    (void)dtype;
    for (int64_t j = 0; j < count; j++) to[j] = ((const double *)from)[j * stride];
}

EG_INLINE void EG_V(store_row)(void *to, const EG_R *from, eg_dtype dtype, int64_t stride, int64_t count) {
    (void)dtype;
    for (int64_t j = 0; j < count; j++) ((double *)to)[j * stride] = from[j];
}
#else
EG_INLINE void EG_V(load_row)(EG_R *to, const void *from, eg_dtype dtype, int64_t stride, int64_t count) {
    if (dtype == EG_F32) {
        for (int64_t j = 0; j < count; j++) to[j] = ((const float *)from)[j * stride];
    } else if (dtype == EG_BF16) {
        for (int64_t j = 0; j < count; j++) to[j] = eg_f32_of_bf16(((const uint16_t *)from)[j * stride]);
    } else {
        int64_t j = 0;
#ifdef __F16C__
        for (; stride == 1 && j + 8 <= count; j += 8) {
            _mm256_storeu_ps(to + j,
                             _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)from + j))));
        }
#endif
        for (; j < count; j++) to[j] = eg_f32_of_f16(((const uint16_t *)from)[j * stride]);
    }
}

EG_INLINE void EG_V(store_f16)(uint16_t *to, const EG_R *from, int64_t stride, int64_t count) {
    int64_t j = 0;
#ifdef __F16C__
    for (; stride == 1 && j + 8 <= count; j += 8) {
        _mm_storeu_si128((__m128i *)(to + j),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + j), _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (; j < count; j++) to[j * stride] = eg_f16_of_f32(from[j]);
}

EG_INLINE void EG_V(store_row)(void *to, const EG_R *from, eg_dtype dtype, int64_t stride, int64_t count) {
    if (dtype == EG_F32) {
        for (int64_t j = 0; j < count; j++) ((float *)to)[j * stride] = from[j];
    } else if (dtype == EG_BF16) {
        for (int64_t j = 0; j < count; j++) ((uint16_t *)to)[j * stride] = eg_bf16_of_f32(from[j]);
    } else {
        EG_V(store_f16)(to, from, stride, count);
    }
}
#endif

/* to[k][i] = from[i][k] for 4 x 4 numbers, in registers. */
typedef EG_R EG_V(four)
    __attribute__((vector_size(4 * EG_REAL_BITS / 8), aligned(EG_REAL_BITS / 8), may_alias));

EG_INLINE void EG_V(transpose_4x4)(EG_R *to, int64_t to_row, const EG_R *from, int64_t from_row) {
    const EG_V(four) a = *(const EG_V(four) *)from, b = *(const EG_V(four) *)(from + from_row);
    const EG_V(four) c = *(const EG_V(four) *)(from + 2 * from_row),
                     d = *(const EG_V(four) *)(from + 3 * from_row);
    const EG_V(four) ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5),
                     ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const EG_V(four) cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5),
                     cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(EG_V(four) *)to = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    *(EG_V(four) *)(to + to_row) = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    *(EG_V(four) *)(to + 2 * to_row) = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    *(EG_V(four) *)(to + 3 * to_row) = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

/* A column-major source is walked down its columns, where it is contiguous: four columns at a time, a strip
 * of rows that stays in L1, transposed on the way into the tile. */
static void EG_V(load_columns)(EG_R *tile, const char *src, eg_dtype dtype, int64_t col_stride, int64_t rows,
                               int64_t cols) {
    enum { STRIP = 256 };
    const int64_t size = (int64_t)eg_dtype_size(dtype);
    EG_R columns[4 * STRIP];
    for (int64_t row = 0; row < rows; row += STRIP) {
        const int64_t count = rows - row < STRIP ? rows - row : STRIP;
        for (int64_t col = 0; col < cols; col += 4) {
            const int64_t width = cols - col < 4 ? cols - col : 4;
            EG_R *to = tile + row * EG_NR + col;
            for (int64_t j = 0; j < width; j++) {
                EG_V(load_row)
                (columns + j * STRIP, src + (row + (col + j) * col_stride) * size, dtype, 1, count);
            }
            int64_t i = 0;
            for (; width == 4 && i + 4 <= count; i += 4)
                EG_V(transpose_4x4)(to + i * EG_NR, EG_NR, columns + i, STRIP);
            for (; i < count; i++) {
                for (int64_t j = 0; j < width; j++) to[i * EG_NR + j] = columns[j * STRIP + i];
            }
        }
    }
}

static void EG_V(load_rows)(EG_R *tile, const char *src, eg_dtype dtype, int64_t row_stride,
                            int64_t col_stride, int64_t rows, int64_t cols) {
    const int64_t row = row_stride * (int64_t)eg_dtype_size(dtype);
    for (int64_t i = 0; i < rows; i++)
        EG_V(load_row)(tile + i * EG_NR, src + i * row, dtype, col_stride, cols);
}

#if EG_VECTOR_BYTES == 64
#include "rows_avx512.h"
#else
#include "rows.h"
#endif

static void EG_V(load_tile)(void *tile, const void *src, eg_dtype dtype, int64_t row_stride,
                            int64_t col_stride, int64_t rows, int64_t cols, int64_t padded) {
    EG_R *to = tile;
    if (row_stride == 1 && col_stride != 1) {
        EG_V(load_columns)(to, src, dtype, col_stride, rows, cols);
    } else if (col_stride == 1) {
        EG_V(load_dense)(to, src, dtype, row_stride * (int64_t)eg_dtype_size(dtype), rows, cols);
    } else {
        EG_V(load_rows)(to, src, dtype, row_stride, col_stride, rows, cols);
    }
    for (int64_t i = 0; cols < EG_NR && i < rows; i++) {
        for (int64_t j = cols; j < EG_NR; j++) to[i * EG_NR + j] = 0;
    }
    for (int64_t j = rows * EG_NR; j < padded * EG_NR; j++) to[j] = 0;
}

/* A column-major destination is written down its columns, where it is contiguous. */
static void EG_V(store_columns)(const EG_R *tile, char *dst, eg_dtype dtype, int64_t col_stride, int64_t rows,
                                int64_t cols) {
    EG_R column[EG_MR > 8 ? EG_MR : 8]; /* f16 are converted by eights */
    for (int64_t j = 0; j < cols; j++) {
        for (int64_t i = 0; i < rows; i++) column[i] = tile[i * EG_NR + j];
        EG_V(store_row)(dst + j * col_stride * (int64_t)eg_dtype_size(dtype), column, dtype, 1, rows);
    }
}

static void EG_V(store_tile)(const void *tile, void *dst, eg_dtype dtype, int64_t row_stride,
                             int64_t col_stride, int64_t rows, int64_t cols) {
    const EG_R *from = tile;
    const int64_t row = row_stride * (int64_t)eg_dtype_size(dtype);
    if (row_stride == 1 && col_stride != 1) {
        EG_V(store_columns)(from, dst, dtype, col_stride, rows, cols);
        return;
    }
    if (col_stride == 1) {
        EG_V(store_dense)(from, dst, dtype, row, rows, cols);
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        EG_V(store_row)((char *)dst + i * row, from + i * EG_NR, dtype, col_stride, cols);
}

#include "sweep.h"

/* ---- The table ---------------------------------------------------------------------------------- */

#define EG_Y_0(name)                                   NULL
#define EG_Y_1(name)                                   EG_V(sweep_grad_y_##name)
#define EG_ACT_ROW(NAME, name, value, from_y, text)    [value] = EG_V(sweep_##name),
#define EG_GRAD_ROW(NAME, name, value, from_y, text)   [value] = EG_V(sweep_grad_##name),
#define EG_GRAD_Y_ROW(NAME, name, value, from_y, text) [value] = EG_Y_##from_y(name),

#define EG_TILE_FUNCTIONS                                                                                    \
    .load = EG_V(load_tile), .store = EG_V(store_tile), .add_rows = EG_V(add_rows),                          \
    .act = {EG_ACTIVATION_TABLE(EG_ACT_ROW)}, .act_grad = {EG_ACTIVATION_TABLE(EG_GRAD_ROW)},                \
    .act_grad_y = {EG_ACTIVATION_TABLE(EG_GRAD_Y_ROW)}
