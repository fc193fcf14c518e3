/* SPDX-License-Identifier: Apache-2.0 */
/* What is done with tiles outside of a multiplication, for the type and instruction set that the including
 * file sets: loads and stores of every storage type and layout, and the element-wise epilogues.
 *
 *   EG_KERNEL           ends the name of every function here
 *   EG_REAL_BITS        32 or 64
 *   EG_VECTOR_BYTES     16, 32 or 64
 *   EG_MR, EG_NV        rows, and vectors a row, of a tile: nr = EG_NV * lanes
 *   EG_ELEMENTWISE_OF   an earlier kernel of this file whose element-wise epilogues are taken, rather than
 *                       own ones; they do not depend on the tile
 *
 * EG_ELEMENTWISE_FUNCTIONS are the fields of eg_epilogue_kernels that this makes. template_end.h undefines
 * all of it. */
#define EG_PASTE_(a, b) a##_##b
#define EG_PASTE(a, b)  EG_PASTE_(a, b)
#define EG_V(name)      EG_PASTE(name, EG_KERNEL)
#define EG_STRING_(x)   #x
#define EG_STRING(x)    EG_STRING_(x)

#include "core/problem.h"
#include "vector.h"

#define EG_NR (EG_NV * EG_LANES)

EG_INLINE bool EG_V(is_own_type)(const eg_dtype dtype) {
    return dtype == (EG_REAL_BITS == 64 ? EG_F64 : EG_F32);
}

/* Bytes of a number: eg_dtype_size where a loop cannot have a call. */
EG_INLINE int64_t EG_V(size_of)(const eg_dtype dtype) {
    return EG_V(is_own_type)(dtype) ? (int64_t)sizeof(EG_R) : (int64_t)sizeof(uint16_t);
}

/* ---- load and store ----------------------------------------------------------------------------- */

/* Neighbours of the compute type. For a number of bytes that it does not know the compiler takes instructions
 * that are slow to begin, and a row of a tile has few. */
EG_INLINE void EG_V(copy_row)(char *to, const char *from, int64_t count) {
    int64_t bytes = count * (int64_t)sizeof(EG_R);
    for (; bytes >= EG_VECTOR_BYTES; bytes -= EG_VECTOR_BYTES, to += EG_VECTOR_BYTES, from += EG_VECTOR_BYTES)
        memcpy(to, from, EG_VECTOR_BYTES);
    EG_UNROLL(4)
    for (int64_t part = EG_VECTOR_BYTES / 2; part >= (int64_t)sizeof(EG_R); part /= 2) {
        if ((bytes & part) == 0) continue;
        memcpy(to, from, (size_t)part);
        to += part, from += part;
    }
}

#if EG_REAL_BITS == 64
EG_INLINE void EG_V(load_row)(EG_R *to, const void *from, eg_dtype dtype, int64_t stride, int64_t count) {
    (void)dtype;
    if (stride == 1) {
        EG_V(copy_row)((char *)to, from, count);
        return;
    }
    for (int64_t j = 0; j < count; j++) to[j] = ((const double *)from)[j * stride];
}

EG_INLINE void EG_V(store_row)(void *to, const EG_R *from, eg_dtype dtype, int64_t stride, int64_t count) {
    (void)dtype;
    if (stride == 1) {
        EG_V(copy_row)(to, (const char *)from, count);
        return;
    }
    for (int64_t j = 0; j < count; j++) ((double *)to)[j * stride] = from[j];
}
#else
EG_INLINE void EG_V(load_row)(EG_R *to, const void *from, eg_dtype dtype, int64_t stride, int64_t count) {
    if (dtype == EG_F32 && stride == 1) {
        EG_V(copy_row)((char *)to, from, count);
    } else if (dtype == EG_F32) {
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
        for (; stride == 1 && j + 4 <= count; j += 4) {
            __m128i four = {0};
            memcpy(&four, (const uint16_t *)from + j, 4 * sizeof(uint16_t));
            const __m256 numbers = _mm256_cvtph_ps(four);
            memcpy(to + j, &numbers, 4 * sizeof(float));
        }
#elif defined(EG_USE_NEON)
        for (; stride == 1 && j + 4 <= count; j += 4)
            vst1q_f32(to + j, vcvt_f32_f16((float16x4_t)vld1_u16((const uint16_t *)from + j)));
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
#elif defined(EG_USE_NEON)
    for (; stride == 1 && j + 4 <= count; j += 4)
        vst1_u16(to + j, (uint16x4_t)vcvt_f16_f32(vld1q_f32(from + j)));
#endif
    for (; j < count; j++) to[j * stride] = eg_f16_of_f32(from[j]);
}

EG_INLINE void EG_V(store_row)(void *to, const EG_R *from, eg_dtype dtype, int64_t stride, int64_t count) {
    if (dtype == EG_F32 && stride == 1) {
        EG_V(copy_row)(to, (const char *)from, count);
    } else if (dtype == EG_F32) {
        for (int64_t j = 0; j < count; j++) ((float *)to)[j * stride] = from[j];
    } else if (dtype == EG_BF16) {
        for (int64_t j = 0; j < count; j++) ((uint16_t *)to)[j * stride] = eg_bf16_of_f32(from[j]);
    } else {
        EG_V(store_f16)(to, from, stride, count);
    }
}
#endif

#include "transpose_pack.h"

static void EG_V(load_rows)(EG_R *tile, const char *src, eg_dtype dtype, int64_t row_stride,
                            int64_t col_stride, int64_t rows, int64_t cols) {
    const int64_t row = row_stride * EG_V(size_of)(dtype);
    for (int64_t i = 0; i < rows; i++)
        EG_V(load_row)(tile + i * EG_NR, src + i * row, dtype, col_stride, cols);
}

/* One loop for each storage type. */
#if EG_REAL_BITS == 64
#define EG_BY_STORAGE(dtype, CALL) CALL(EG_F64)
#else
#define EG_BY_STORAGE(dtype, CALL)                                                                           \
    if ((dtype) == EG_F32) {                                                                                 \
        CALL(EG_F32);                                                                                        \
    } else if ((dtype) == EG_BF16) {                                                                         \
        CALL(EG_BF16);                                                                                       \
    } else {                                                                                                 \
        CALL(EG_F16);                                                                                        \
    }
#endif

/* Without masks, element-wise epilogues read and write the compute type alone. */
#if EG_REAL_BITS == 32 && EG_VECTOR_BYTES != 64
#define EG_BY_TYPE(dtype, CALL) CALL(EG_F32)
#else
#define EG_BY_TYPE(dtype, CALL) EG_BY_STORAGE(dtype, CALL)
#endif

#if EG_VECTOR_BYTES == 64
#include "dense_rows_avx512.h"
#else
#include "dense_rows.h"
#endif

static void EG_V(load_tile)(void *tile, const void *src, eg_dtype dtype, int64_t row_stride,
                            int64_t col_stride, int64_t rows, int64_t cols, int64_t padded) {
    EG_R *to = tile;
    if (row_stride == 1 && col_stride != 1 && rows > 1) {
        EG_V(load_columns)(to, src, dtype, col_stride, rows, cols);
    } else if (col_stride == 1) {
        EG_V(load_dense)(to, src, dtype, row_stride * EG_V(size_of)(dtype), rows, cols);
    } else {
        EG_V(load_rows)(to, src, dtype, row_stride, col_stride, rows, cols);
    }
    for (int64_t i = 0; cols < EG_NR && i < rows; i++) {
        for (int64_t j = cols; j < EG_NR; j++) to[i * EG_NR + j] = 0;
    }
    for (int64_t j = rows * EG_NR; j < padded * EG_NR; j++) to[j] = 0;
}

/* A column-major destination is written down its columns, where it is contiguous. So the tile is transposed,
 * by squares of EG_BLOCK, and its columns are stored as rows. */
_Static_assert(EG_MR <= EG_NR, "a column of a tile fits into a row of it");
static void EG_V(store_columns)(const EG_R *tile, char *dst, eg_dtype dtype, int64_t col_stride, int64_t rows,
                                int64_t cols) {
    const int64_t col_bytes = col_stride * EG_V(size_of)(dtype);
    _Alignas(64) EG_R turned[EG_BLOCK * EG_NR];
    for (int64_t col = 0; col < cols; col += EG_BLOCK) {
        const int64_t count = cols - col < EG_BLOCK ? cols - col : EG_BLOCK;
        int64_t i = 0;
        for (; i + EG_BLOCK <= rows; i += EG_BLOCK)
            EG_V(transpose)(turned + i, tile + i * EG_NR + col, EG_NR);
        for (; i < rows; i++) {
            for (int64_t j = 0; j < count; j++) turned[j * EG_NR + i] = tile[i * EG_NR + col + j];
        }
        EG_V(store_dense)(turned, dst + col * col_bytes, dtype, col_bytes, count, rows);
    }
}

/* The result of a product, by non-temporal stores. */
static void EG_V(stream_tile)(const void *tile, void *dst, eg_dtype dtype, int64_t row_stride, int64_t rows,
                              int64_t cols) {
    EG_V(stream_dense)(tile, dst, dtype, row_stride * EG_V(size_of)(dtype), rows, cols);
}

static void EG_V(store_tile)(const void *tile, void *dst, eg_dtype dtype, int64_t row_stride,
                             int64_t col_stride, int64_t rows, int64_t cols) {
    const EG_R *from = tile;
    const int64_t row = row_stride * EG_V(size_of)(dtype);
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

#ifdef EG_ELEMENTWISE_OF
#define EG_S(name) EG_PASTE(name, EG_ELEMENTWISE_OF)
#else
#define EG_S(name) EG_V(name)
#include "elementwise.h"
#endif

/* ---- The table ---------------------------------------------------------------------------------- */

#define EG_Y_0(name)                                   NULL
#define EG_Y_1(name)                                   EG_S(grad_y_elementwise_##name)
#define EG_ACT_ROW(NAME, name, value, from_y, text)    [value] = EG_S(elementwise_##name),
#define EG_GRAD_ROW(NAME, name, value, from_y, text)   [value] = EG_S(grad_elementwise_##name),
#define EG_GRAD_Y_ROW(NAME, name, value, from_y, text) [value] = EG_Y_##from_y(name),

#define EG_ELEMENTWISE_FUNCTIONS                                                                             \
    .store = EG_V(store_tile), .stream = EG_V(stream_tile), .add_rows = EG_S(add_rows),                      \
    .sum_rows = EG_S(sum_rows), .act = {EG_ACTIVATION_TABLE(EG_ACT_ROW)},                                    \
    .act_grad = {EG_ACTIVATION_TABLE(EG_GRAD_ROW)}, .act_grad_y = {EG_ACTIVATION_TABLE(EG_GRAD_Y_ROW)}
