/* SPDX-License-Identifier: Apache-2.0 */
/* Neighbours of a row that begins anywhere, as a vector of 8 or 16 bytes: memory is read and written in
 * vectors as they lie, and numbers are shifted into their place in registers.
 *
 *     memory    | vector 0 | vector 1 | vector 2 |
 *     row             a b c d e f g h i                begins at a
 *     lanes           0: a b c d  1: e f g h  2: i
 *
 * A lane loads both vectors that its numbers are in. It stores the one in which they begin, with the last
 * numbers of the lane before; what is left at the ends of a warp's numbers is stored one by one. */
#ifndef EG_CUDA_ODD_VECTORS_CUH
#define EG_CUDA_ODD_VECTORS_CUH

#include "matrix.cuh"

/* ---- Shifts ------------------------------------------------------------------------------------------- */

EG_DEVICE uint32_t eg_odd_word(uint32_t low, uint32_t high, int skew) {
    return __funnelshift_r(low, high, skew % 4 * 8);
}
/* The 16 bytes of two vectors from byte `skew`, which is even, on. */
EG_DEVICE uint4 eg_odd_shift(const uint4 &a, const uint4 &b, int skew) {
    const bool two = (skew & 8) != 0, one = (skew & 4) != 0;
    const uint32_t c0 = two ? a.z : a.x, c1 = two ? a.w : a.y, c2 = two ? b.x : a.z, c3 = two ? b.y : a.w,
                   c4 = two ? b.z : b.x, c5 = two ? b.w : b.y;
    const uint32_t d0 = one ? c1 : c0, d1 = one ? c2 : c1, d2 = one ? c3 : c2, d3 = one ? c4 : c3,
                   d4 = one ? c5 : c4;
    return make_uint4(eg_odd_word(d0, d1, skew), eg_odd_word(d1, d2, skew), eg_odd_word(d2, d3, skew),
                      eg_odd_word(d3, d4, skew));
}
/* Likewise of two vectors of 8 bytes. */
EG_DEVICE uint2 eg_odd_shift(const uint2 &a, const uint2 &b, int skew) {
    const bool one = (skew & 4) != 0;
    const uint32_t c0 = one ? a.y : a.x, c1 = one ? b.x : a.y, c2 = one ? b.y : b.x;
    return make_uint2(eg_odd_word(c0, c1, skew), eg_odd_word(c1, c2, skew));
}

/* ---- Numbers of a type --------------------------------------------------------------------------------- */

struct eg_odd_f32 {
    typedef uint4 vector;
    typedef uint32_t one;
    enum { COUNT = 4 };
    static __device__ vector pack(const one (&x)[4]) { return make_uint4(x[0], x[1], x[2], x[3]); }
    static __device__ void unpack(const vector &q, one (&x)[4]) {
        x[0] = q.x, x[1] = q.y, x[2] = q.z, x[3] = q.w;
    }
    static __device__ vector before(const vector &q) {
        return make_uint4(__shfl_up_sync(~0U, q.x, 1), __shfl_up_sync(~0U, q.y, 1),
                          __shfl_up_sync(~0U, q.z, 1), __shfl_up_sync(~0U, q.w, 1));
    }
    static __device__ void widen(const vector &q, float (&v)[4]) {
        v[0] = __uint_as_float(q.x), v[1] = __uint_as_float(q.y);
        v[2] = __uint_as_float(q.z), v[3] = __uint_as_float(q.w);
    }
    static __device__ vector round(const float (&v)[4]) {
        return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                          __float_as_uint(v[3]));
    }
};
struct eg_odd_16 {
    typedef uint2 vector;
    typedef uint16_t one;
    enum { COUNT = 4 };
    static __device__ vector pack(const one (&x)[4]) {
        return make_uint2(x[0] | (uint32_t)x[1] << 16, x[2] | (uint32_t)x[3] << 16);
    }
    static __device__ void unpack(const vector &q, one (&x)[4]) {
        x[0] = (one)q.x, x[1] = (one)(q.x >> 16), x[2] = (one)q.y, x[3] = (one)(q.y >> 16);
    }
    static __device__ vector before(const vector &q) {
        return make_uint2(__shfl_up_sync(~0U, q.x, 1), __shfl_up_sync(~0U, q.y, 1));
    }
};
struct eg_odd_bf16 : eg_odd_16 {
    static __device__ void widen(const vector &q, float (&v)[4]) {
        v[0] = eg_widen_bf16(q.x & 0xffffU), v[1] = __uint_as_float(q.x & 0xffff0000U);
        v[2] = eg_widen_bf16(q.y & 0xffffU), v[3] = __uint_as_float(q.y & 0xffff0000U);
    }
    static __device__ vector round(const float (&v)[4]) {
        return make_uint2(eg_round_bf16x2(v[0], v[1]), eg_round_bf16x2(v[2], v[3]));
    }
};
struct eg_odd_f16 : eg_odd_16 {
    static __device__ void widen(const vector &q, float (&v)[4]) {
        v[0] = eg_widen_f16((uint16_t)q.x), v[1] = eg_widen_f16((uint16_t)(q.x >> 16));
        v[2] = eg_widen_f16((uint16_t)q.y), v[3] = eg_widen_f16((uint16_t)(q.y >> 16));
    }
    static __device__ vector round(const float (&v)[4]) {
        return make_uint2(eg_round_f16x2(v[0], v[1]), eg_round_f16x2(v[2], v[3]));
    }
};

/* ---- Loads -------------------------------------------------------------------------------------------- */

/* Where the numbers of an item's matrix begin and end: no other is read. */
struct eg_odd_range {
    const char *first, *end;
};
EG_DEVICE eg_odd_range eg_odd_range_of(const eg_cuda_matrix &x, int64_t item, int64_t rows, int64_t cols,
                                       int size) {
    const char *const first = (const char *)x.data + item * x.item_stride * size;
    return {first, first + ((rows - 1) * x.row_stride + cols) * size};
}

/* On its way: the vector from byte `skew` of these two on. */
template <typename V> struct eg_odd_fetched {
    typename V::vector low, high;
    int skew;

    __device__ typename V::vector take() const { return eg_odd_shift(low, high, skew); }
};

/* The numbers before the end, one by one, and zeros. */
template <typename V> EG_DEVICE typename V::vector eg_odd_some(const char *at, const char *end) {
    typename V::one x[V::COUNT];
#pragma unroll
    for (int i = 0; i < V::COUNT; i++) {
        const auto *const from = (const typename V::one *)at + i;
        x[i] = (const char *)(from + 1) <= end ? *from : (typename V::one)0;
    }
    return V::pack(x);
}
/* From `at` on; past the end of a row there are numbers of the next one. */
template <typename V> EG_DEVICE eg_odd_fetched<V> eg_odd_fetch(const char *at, const eg_odd_range &range) {
    typedef typename V::vector vector;
    const int skew = (int)((uint64_t)at % sizeof(vector));
    const vector *const from = (const vector *)(at - skew);
    if ((const char *)from >= range.first && (const char *)(from + (skew > 0 ? 2 : 1)) <= range.end) {
        const vector low = from[0];
        return {low, skew > 0 ? from[1] : low, skew};
    }
    const vector some = eg_odd_some<V>(at, range.end);
    return {some, some, 0};
}

/* ---- Stores ------------------------------------------------------------------------------------------- */

/* Numbers of a row that a lane has: how many of the row there are from its first one on, 0 or less where it
 * has none; and whether the lanes before and after it have those beside them. */
struct eg_odd_lane {
    int64_t left;
    bool follows, leads;
};

/* By all lanes of a warp. */
template <typename V>
EG_DEVICE void eg_odd_store(char *to, const typename V::vector &x, const eg_odd_lane &lane) {
    typedef typename V::one one;
    constexpr int COUNT = V::COUNT;
    const int skew = (int)((uint64_t)to % sizeof x), back = skew / (int)sizeof(one),
              here = lane.left < COUNT ? (int)lane.left : COUNT;
    const typename V::vector before = V::before(x);
    const auto both = skew > 0 ? eg_odd_shift(before, x, (int)sizeof x - skew) : x;
    const int first = lane.follows ? 0 : back, end = here + back < COUNT ? here + back : COUNT;
    one *const from = (one *)(to - skew);
    one numbers[COUNT];
    if (here <= 0) return;
    if (first == 0 && end == COUNT) {
        *(typename V::vector *)from = both;
    } else {
        V::unpack(both, numbers);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (i >= first && i < end) from[i] = numbers[i];
        }
    }
    if (lane.leads || back == 0) return;
    V::unpack(x, numbers);
#pragma unroll
    for (int i = 1; i < COUNT; i++) {
        if (i >= COUNT - back && i < here) from[i + back] = numbers[i];
    }
}

#endif
