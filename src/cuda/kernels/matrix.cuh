/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of matrices of any storage type, strides and alignment. */
#ifndef EG_CUDA_MATRIX_CUH
#define EG_CUDA_MATRIX_CUH

#include "../kernels.h"
#include "dialect.cuh"

/* ---- 16-bit numbers -------------------------------------------------------------------------------- */

EG_DEVICE float eg_widen_bf16(uint32_t bits) { return __uint_as_float(bits << 16); }
EG_DEVICE float eg_widen_f16(uint16_t bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
EG_DEVICE uint16_t eg_round_bf16(float x) {
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
EG_DEVICE uint16_t eg_round_f16(float x) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

/* Two neighbours at once, the first in the low half. */
EG_DEVICE uint32_t eg_round_bf16x2(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
EG_DEVICE uint32_t eg_round_f16x2(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

/* ---- One element ----------------------------------------------------------------------------------- */

EG_DEVICE int64_t eg_index(const eg_cuda_matrix &x, int64_t item, int64_t row, int64_t col) {
    return item * x.item_stride + row * x.row_stride + col * x.col_stride;
}

/* T is the compute type: a double matrix is read into double, all others into float. */
EG_DEVICE void eg_load(const eg_cuda_matrix &x, int64_t index, double &value) {
    value = ((const double *)x.data)[index];
}
EG_DEVICE void eg_load(const eg_cuda_matrix &x, int64_t index, float &value) {
    switch (x.dtype) {
    case EG_F32:
        value = ((const float *)x.data)[index];
        break;
    case EG_BF16:
        value = eg_widen_bf16(((const uint16_t *)x.data)[index]);
        break;
    default:
        value = eg_widen_f16(((const uint16_t *)x.data)[index]);
    }
}

EG_DEVICE void eg_store(const eg_cuda_matrix &x, int64_t index, double value) {
    ((double *)x.data)[index] = value;
}
EG_DEVICE void eg_store(const eg_cuda_matrix &x, int64_t index, float value) {
    switch (x.dtype) {
    case EG_F32:
        ((float *)x.data)[index] = value;
        break;
    case EG_BF16:
        ((uint16_t *)x.data)[index] = eg_round_bf16(value);
        break;
    default:
        ((uint16_t *)x.data)[index] = eg_round_f16(value);
    }
}

/* ---- Column sums ------------------------------------------------------------------------------------ */

/* A column's sum of one chunk of rows: to its row of the sums, or, where it is the only one, to the result.
 * P: eg_cuda_gemm or eg_cuda_act_grad. */
template <typename T, typename P>
EG_DEVICE void eg_put_column_sum(const P &p, int64_t chunk, int64_t col, T sum) {
    if (p.total.data == 0) {
        ((T *)p.sums)[chunk * p.cols + col] = sum;
        return;
    }
    const int64_t at = col * p.total.col_stride;
    T old = 0;
    if (p.add_to_total) eg_load(p.total, at, old);
    eg_store(p.total, at, old + sum);
}

/* ---- Four neighbours ------------------------------------------------------------------------------- */

/* Whether four elements along `stride` can move as one vector. It is asked once a matrix. */
EG_DEVICE bool eg_vectors(const eg_cuda_matrix &x, int64_t stride, int64_t other) {
    const int64_t each = x.dtype == EG_F64 ? 2 : 4; /* elements a vector needs to be aligned to */
    const uint64_t bytes = x.dtype == EG_F64 || x.dtype == EG_F32 ? 16 : 8;
    return stride == 1 && ((other | x.item_stride) & (each - 1)) == 0 && (x.data & (bytes - 1)) == 0;
}

EG_DEVICE void eg_load4(const eg_cuda_matrix &x, int64_t index, double (&v)[4]) {
    const double2 *from = (const double2 *)((const double *)x.data + index);
    const double2 low = from[0], high = from[1];
    v[0] = low.x, v[1] = low.y, v[2] = high.x, v[3] = high.y;
}
EG_DEVICE void eg_load4(const eg_cuda_matrix &x, int64_t index, float (&v)[4]) {
    if (x.dtype == EG_F32) {
        const float4 q = *(const float4 *)((const float *)x.data + index);
        v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
        return;
    }
    const uint2 q = *(const uint2 *)((const uint16_t *)x.data + index);
    if (x.dtype == EG_BF16) {
        v[0] = eg_widen_bf16(q.x & 0xffffU), v[1] = __uint_as_float(q.x & 0xffff0000U);
        v[2] = eg_widen_bf16(q.y & 0xffffU), v[3] = __uint_as_float(q.y & 0xffff0000U);
    } else {
        v[0] = eg_widen_f16((uint16_t)q.x), v[1] = eg_widen_f16((uint16_t)(q.x >> 16));
        v[2] = eg_widen_f16((uint16_t)q.y), v[3] = eg_widen_f16((uint16_t)(q.y >> 16));
    }
}

EG_DEVICE void eg_store4(const eg_cuda_matrix &x, int64_t index, const double (&v)[4]) {
    double2 *to = (double2 *)((double *)x.data + index);
    to[0] = make_double2(v[0], v[1]);
    to[1] = make_double2(v[2], v[3]);
}
EG_DEVICE void eg_store4(const eg_cuda_matrix &x, int64_t index, const float (&v)[4]) {
    if (x.dtype == EG_F32) {
        *(float4 *)((float *)x.data + index) = make_float4(v[0], v[1], v[2], v[3]);
        return;
    }
    const bool bf16 = x.dtype == EG_BF16;
    const uint2 q = bf16 ? make_uint2(eg_round_bf16x2(v[0], v[1]), eg_round_bf16x2(v[2], v[3]))
                         : make_uint2(eg_round_f16x2(v[0], v[1]), eg_round_f16x2(v[2], v[3]));
    *(uint2 *)((uint16_t *)x.data + index) = q;
}

/* `count` of four, `step` apart; 0 for the others. All are on their way before one is used. */
template <typename S> EG_DEVICE void eg_fetch_some(const S *from, int64_t step, int count, S (&v)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = i < count ? from[i * step] : (S)0;
}
EG_DEVICE void eg_load_some(const eg_cuda_matrix &x, int64_t index, int64_t step, int count, double (&v)[4]) {
    eg_fetch_some((const double *)x.data + index, step, count, v);
}
EG_DEVICE void eg_load_some(const eg_cuda_matrix &x, int64_t index, int64_t step, int count, float (&v)[4]) {
    if (x.dtype == EG_F32) return eg_fetch_some((const float *)x.data + index, step, count, v);
    uint16_t bits[4];
    eg_fetch_some((const uint16_t *)x.data + index, step, count, bits);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = x.dtype == EG_BF16 ? eg_widen_bf16(bits[i]) : eg_widen_f16(bits[i]);
}

template <typename T>
EG_DEVICE void eg_store_some(const eg_cuda_matrix &x, int64_t index, int64_t step, int count,
                             const T (&v)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i < count) eg_store(x, index + i * step, v[i]);
    }
}

#endif
