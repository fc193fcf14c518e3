/* One micro-kernel, for the instruction set and type that the including file sets:
 *
 *   EG_KERNEL         the row's name, as in EG_CPU_KERNELS
 *   EG_REAL_BITS      32 or 64
 *   EG_VECTOR_BYTES   16, 32 or 64
 *   EG_MR, EG_NV      rows, and vectors a row, of the register tile: nr = EG_NV * lanes
 *   EG_KC             terms a pass
 *   EG_NEEDS          instruction-set bits
 *
 * The accumulators take EG_MR * EG_NV registers, the right operand's row EG_NV and the left operand's
 * number one: 28 of 32 for 8x48 on AVX-512, all 16 for 4x24 on AVX2. Each term then costs EG_NV loads and
 * EG_MR broadcasts for EG_MR * EG_NV multiply-adds: the load ports keep up with both FMA units. */
#define EG_PASTE_(a, b) a##_##b
#define EG_PASTE(a, b)  EG_PASTE_(a, b)
#define EG_V(name)      EG_PASTE(name, EG_KERNEL)
#define EG_STRING_(x)   #x
#define EG_STRING(x)    EG_STRING_(x)

#include "vector.h"

#define EG_NR (EG_NV * EG_LANES)

/* ---- multiply ----------------------------------------------------------------------------------- */

/* `depth` terms of a tile of `nv` vectors a row; the left operand's number for row i and term k is at
 * left[i * row + k * term]. nv, row and term are constants where this is inlined. */
EG_INLINE void EG_V(terms)(EG_T sum[EG_MR][EG_NV], const EG_R *left, const EG_R *right, int64_t depth,
                           const int nv, const int64_t row, const int64_t term) {
    for (int64_t k = 0; k < depth; k++) {
        EG_T b[EG_NV];
#pragma GCC unroll 8
        for (int j = 0; j < nv; j++) b[j] = EG_V(load)(right + k * EG_NR + j * EG_LANES);
#pragma GCC unroll 16
        for (int i = 0; i < EG_MR; i++) {
            const EG_T a = EG_V(splat)(left[i * row + k * term]);
#pragma GCC unroll 8
            for (int j = 0; j < nv; j++) sum[i][j] = EG_V(fma)(a, b[j], sum[i][j]);
        }
    }
}

EG_INLINE void EG_V(multiply_nv)(const bool transposed, const EG_R *left, int64_t panel, const EG_R *right,
                                 int64_t depth, bool accumulate, EG_R *tile, const int nv) {
    EG_T sum[EG_MR][EG_NV] = {{{0}}};
    if (transposed) {
        EG_V(terms)(sum, left, right, depth, nv, 1, EG_NR);
    } else {
        for (; depth > 0; depth -= EG_NR, left += panel, right += EG_NR * EG_NR) {
            EG_V(terms)(sum, left, right, depth < EG_NR ? depth : EG_NR, nv, EG_NR, 1);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < EG_MR; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < nv; j++) {
            EG_R *at = tile + i * EG_NR + j * EG_LANES;
            EG_V(store)(at, accumulate ? EG_V(load)(at) + sum[i][j] : sum[i][j]);
        }
    }
}

/* Narrow last panels use as many vectors as they have columns for. */
static void EG_V(multiply)(bool transposed, const void *left, int64_t panel, const void *right, int64_t depth,
                           int64_t cols, bool accumulate, void *tile) {
#define EG_WIDTH(nv)                                                                                         \
    if (transposed) {                                                                                        \
        EG_V(multiply_nv)(true, left, panel, right, depth, accumulate, tile, nv);                            \
    } else {                                                                                                 \
        EG_V(multiply_nv)(false, left, panel, right, depth, accumulate, tile, nv);                           \
    }
    if (EG_NV > 1 && cols <= EG_LANES) {
        EG_WIDTH(1)
    } else if (EG_NV > 2 && cols <= 2 * EG_LANES) {
        EG_WIDTH(EG_NV > 2 ? 2 : 1)
    } else {
        EG_WIDTH(EG_NV)
    }
#undef EG_WIDTH
}

/* ---- load and store ----------------------------------------------------------------------------- */

#if EG_REAL_BITS == 64
EG_INLINE void EG_V(load_row)(EG_R *to, const void *from, eg_dtype dtype, int64_t stride, int64_t count) {
    (void)dtype;
    for (int64_t j = 0; j < count; j++) to[j] = ((const double *)from)[j * stride];
}

EG_INLINE void EG_V(store_row)(void *to, const EG_R *from, eg_dtype dtype, int64_t stride, int64_t count,
                               bool accumulate) {
    (void)dtype;
    double *at = to;
    for (int64_t j = 0; j < count; j++) at[j * stride] = accumulate ? at[j * stride] + from[j] : from[j];
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

EG_INLINE void EG_V(store_row)(void *to, const EG_R *from, eg_dtype dtype, int64_t stride, int64_t count,
                               bool accumulate) {
    EG_R sum[EG_NR];
    if (accumulate) {
        EG_V(load_row)(sum, to, dtype, stride, count);
        for (int64_t j = 0; j < count; j++) sum[j] += from[j];
        from = sum;
    }
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

static void EG_V(load_tile)(void *tile, const void *src, eg_dtype dtype, int64_t row_stride,
                            int64_t col_stride, int64_t rows, int64_t cols, int64_t padded) {
    EG_R *to = tile;
    if (row_stride == 1 && col_stride != 1) {
        EG_V(load_columns)(to, src, dtype, col_stride, rows, cols);
    } else if (col_stride == 1) {
        EG_V(load_rows)(to, src, dtype, row_stride, 1, rows, cols);
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
                                int64_t cols, bool accumulate) {
    EG_R column[EG_MR];
    for (int64_t j = 0; j < cols; j++) {
        for (int64_t i = 0; i < rows; i++) column[i] = tile[i * EG_NR + j];
        EG_V(store_row)
        (dst + j * col_stride * (int64_t)eg_dtype_size(dtype), column, dtype, 1, rows, accumulate);
    }
}

static void EG_V(store_tile)(const void *tile, void *dst, eg_dtype dtype, int64_t row_stride,
                             int64_t col_stride, int64_t rows, int64_t cols, bool accumulate) {
    const EG_R *from = tile;
    const int64_t row = row_stride * (int64_t)eg_dtype_size(dtype);
    if (row_stride == 1 && col_stride != 1) {
        EG_V(store_columns)(from, dst, dtype, col_stride, rows, cols, accumulate);
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        char *to = (char *)dst + i * row;
        const EG_R *at = from + i * EG_NR;
        if (col_stride == 1) {
            EG_V(store_row)(to, at, dtype, 1, cols, accumulate);
        } else {
            EG_V(store_row)(to, at, dtype, col_stride, cols, accumulate);
        }
    }
}

/* ---- Epilogues ---------------------------------------------------------------------------------- */

static void EG_V(add_row)(void *tile, const void *row, int64_t rows) {
    EG_R *at = tile;
    for (int64_t i = 0; i < rows; i++, at += EG_NR) {
        for (int j = 0; j < EG_NR; j += (int)EG_LANES) {
            EG_V(store)(at + j, EG_V(load)(at + j) + EG_V(load)((const EG_R *)row + j));
        }
    }
}

static void EG_V(add_tile)(void *tile, const void *other, int64_t rows) {
    EG_R *at = tile;
    const EG_R *more = other;
    for (int64_t j = 0; j < rows * EG_NR; j += EG_LANES)
        EG_V(store)(at + j, EG_V(load)(at + j) + EG_V(load)(more + j));
}

static void EG_V(add_sums)(void *sums, const void *tile, int64_t rows) {
    EG_R *sum = sums;
    const EG_R *from = tile;
    for (int j = 0; j < EG_NR; j += (int)EG_LANES) {
        EG_T total = EG_V(load)(sum + j);
        for (int64_t i = 0; i < rows; i++) total += EG_V(load)(from + i * EG_NR + j);
        EG_V(store)(sum + j, total);
    }
}

/* act(NaN) is NaN; act'(NaN) is NaN or 0. The formulas clamp, which would hide a NaN: it is put back. */
#define EG_ROW(NAME, name, value, from_y, text)                                                              \
    static void EG_V(tile_##name)(void *tile, int64_t rows) {                                                \
        EG_R *at = tile;                                                                                     \
        for (int64_t j = 0; j < rows * EG_NR; j += EG_LANES) {                                               \
            const EG_T x = EG_V(load)(at + j);                                                               \
            EG_V(store)(at + j, EG_V(select)(EG_V(is_nan)(x), x, EG_V(act_##name)(x)));                      \
        }                                                                                                    \
    }
EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW

#define EG_GRAD_TILE(function, derivative)                                                                   \
    static void EG_V(function)(void *grad, const void *saved, int64_t rows, bool propagate) {                \
        EG_R *at = grad;                                                                                     \
        const EG_R *from = saved;                                                                            \
        for (int64_t j = 0; j < rows * EG_NR; j += EG_LANES) {                                               \
            const EG_T x = EG_V(load)(from + j);                                                             \
            const EG_T of_nan = propagate ? x : (EG_T){0};                                                   \
            const EG_T slope = EG_V(select)(EG_V(is_nan)(x), of_nan, EG_V(derivative)(x));                   \
            EG_V(store)(at + j, EG_V(load)(at + j) * slope);                                                 \
        }                                                                                                    \
    }
#define EG_GRAD_Y_0(name)
#define EG_GRAD_Y_1(name) EG_GRAD_TILE(tile_grad_y_##name, act_grad_y_##name)
#define EG_ROW(NAME, name, value, from_y, text)                                                              \
    EG_GRAD_TILE(tile_grad_##name, act_grad_##name)                                                          \
    EG_GRAD_Y_##from_y(name)
EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW

/* ---- The peak ----------------------------------------------------------------------------------- */

/* As many independent multiply-adds as the tile has accumulators. */
static double EG_V(spin)(int64_t turns) {
    EG_T sum[EG_MR * EG_NV];
    EG_T a = EG_V(splat)((EG_R)0.999), b = EG_V(splat)((EG_R)0.001);
    for (int i = 0; i < EG_MR * EG_NV; i++) sum[i] = EG_V(splat)((EG_R)i);
    for (int64_t turn = 0; turn < turns; turn++) {
#pragma GCC unroll 32
        for (int i = 0; i < EG_MR * EG_NV; i++) sum[i] = EG_V(fma)(sum[i], a, b);
    }
    EG_T total = sum[0];
    for (int i = 1; i < EG_MR * EG_NV; i++) total += sum[i];
    volatile EG_R keep = total[0];
    (void)keep;
    return (double)turns * EG_MR * (double)EG_NR;
}

/* ---- The row ------------------------------------------------------------------------------------ */

#define EG_Y_0(name)                                   NULL
#define EG_Y_1(name)                                   EG_V(tile_grad_y_##name)
#define EG_ACT_ROW(NAME, name, value, from_y, text)    [value] = EG_V(tile_##name),
#define EG_GRAD_ROW(NAME, name, value, from_y, text)   [value] = EG_V(tile_grad_##name),
#define EG_GRAD_Y_ROW(NAME, name, value, from_y, text) [value] = EG_Y_##from_y(name),

const eg_cpu_kernel EG_PASTE(eg_cpu, EG_KERNEL) = {
    .name = EG_STRING(EG_KERNEL),
    .compute = EG_REAL_BITS == 64 ? EG_F64 : EG_F32,
    .needs = EG_NEEDS,
    .mr = EG_MR,
    .nr = EG_NR,
    .kc = EG_KC,
    .multiply = EG_V(multiply),
    .load = EG_V(load_tile),
    .store = EG_V(store_tile),
    .add_row = EG_V(add_row),
    .add_tile = EG_V(add_tile),
    .add_sums = EG_V(add_sums),
    .act = {EG_ACTIVATION_TABLE(EG_ACT_ROW)},
    .act_grad = {EG_ACTIVATION_TABLE(EG_GRAD_ROW)},
    .act_grad_y = {EG_ACTIVATION_TABLE(EG_GRAD_Y_ROW)},
    .spin = EG_V(spin),
};

#undef EG_ACT_ROW
#undef EG_GRAD_ROW
#undef EG_GRAD_Y_ROW
#undef EG_Y_0
#undef EG_Y_1
#undef EG_GRAD_Y_0
#undef EG_GRAD_Y_1
#undef EG_GRAD_TILE
#undef EG_PASTE
#undef EG_PASTE_
#undef EG_V
#undef EG_STRING
#undef EG_STRING_
#undef EG_NR
#undef EG_R
#undef EG_T
#undef EG_I
#undef EG_LANES
#undef EG_INLINE
#undef EG_ROUNDER
#undef EG_EXPONENT
#undef EG_BIAS
#undef EG_EXP_FIELD
#undef EG_ABS_MASK
#undef EG_KERNEL
#undef EG_REAL_BITS
#undef EG_MR
#undef EG_NV
#undef EG_KC
