/* SPDX-License-Identifier: Apache-2.0 */
/* Single numbers of each storage type, in the place of the vectors of vectors.cuh: rows may begin anywhere. A
 * warp reads 32 neighbours at once all the same, and what is waited for is seldom bandwidth. */
#ifndef EG_CUDA_NUMBERS_CUH
#define EG_CUDA_NUMBERS_CUH

#include "matrix.cuh"

struct bf16x1 {
    typedef float real;
    typedef uint16_t bits;
    enum { COUNT = 1, BYTES = 2 };
    static __device__ void widen(bits x, float (&v)[1]) { v[0] = eg_widen_bf16(x); }
    static __device__ bits round(const float (&v)[1]) { return eg_round_bf16(v[0]); }
};
struct f16x1 {
    typedef float real;
    typedef uint16_t bits;
    enum { COUNT = 1, BYTES = 2 };
    static __device__ void widen(bits x, float (&v)[1]) { v[0] = eg_widen_f16(x); }
    static __device__ bits round(const float (&v)[1]) { return eg_round_f16(v[0]); }
};
struct f32x1 {
    typedef float real;
    typedef float bits;
    enum { COUNT = 1, BYTES = 4 };
    static __device__ void widen(bits x, float (&v)[1]) { v[0] = x; }
    static __device__ bits round(const float (&v)[1]) { return v[0]; }
};

#endif
