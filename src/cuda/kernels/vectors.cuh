/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of 16 bytes of each storage type. */
#ifndef EG_CUDA_VECTORS_CUH
#define EG_CUDA_VECTORS_CUH

#include "matrix.cuh"

/* As the compute type. BYTES: of a number. */
struct f32x4 {
    typedef float real;
    typedef uint4 bits;
    enum { COUNT = 4, BYTES = 4 };
    static __device__ void widen(const uint4 &q, float (&v)[4]) {
        v[0] = __uint_as_float(q.x), v[1] = __uint_as_float(q.y);
        v[2] = __uint_as_float(q.z), v[3] = __uint_as_float(q.w);
    }
    static __device__ uint4 round(const float (&v)[4]) {
        return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                          __float_as_uint(v[3]));
    }
};
struct bf16x8 {
    typedef float real;
    typedef uint4 bits;
    enum { COUNT = 8, BYTES = 2 };
    static __device__ void widen(const uint4 &q, float (&v)[8]) {
        const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = eg_widen_bf16(words[i] & 0xffffU);
            v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
        }
    }
    static __device__ uint4 round(const float (&v)[8]) {
        return make_uint4(eg_round_bf16x2(v[0], v[1]), eg_round_bf16x2(v[2], v[3]),
                          eg_round_bf16x2(v[4], v[5]), eg_round_bf16x2(v[6], v[7]));
    }
};
struct f16x8 {
    typedef float real;
    typedef uint4 bits;
    enum { COUNT = 8, BYTES = 2 };
    static __device__ void widen(const uint4 &q, float (&v)[8]) {
        const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = eg_widen_f16((uint16_t)words[i]);
            v[2 * i + 1] = eg_widen_f16((uint16_t)(words[i] >> 16));
        }
    }
    static __device__ uint4 round(const float (&v)[8]) {
        return make_uint4(eg_round_f16x2(v[0], v[1]), eg_round_f16x2(v[2], v[3]), eg_round_f16x2(v[4], v[5]),
                          eg_round_f16x2(v[6], v[7]));
    }
};
struct f64x2 {
    typedef double real;
    typedef uint4 bits;
    enum { COUNT = 2, BYTES = 8 };
    static __device__ void widen(const uint4 &q, double (&v)[2]) {
        v[0] = __hiloint2double((int)q.y, (int)q.x), v[1] = __hiloint2double((int)q.w, (int)q.z);
    }
    static __device__ uint4 round(const double (&v)[2]) {
        return make_uint4((uint32_t)__double2loint(v[0]), (uint32_t)__double2hiint(v[0]),
                          (uint32_t)__double2loint(v[1]), (uint32_t)__double2hiint(v[1]));
    }
};

#endif
