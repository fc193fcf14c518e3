/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic peak: every warp multiplies and adds numbers in registers, and does nothing else. It has
 * enough independent chains to hide the latency. A kernel loops `turns` times; the host knows the operations
 * of a turn
 * (../peak.c). Numbers converge to a fixed point, so none overflows, and what is stored depends on all of
 * them. */
#include "matrix.cuh"

enum { CHAINS = 16, TILES = 4 };

template <typename T> EG_DEVICE void store(const eg_cuda_peak &p, T sum) {
    ((double *)p.out)[(int64_t)blockIdx.x * blockDim.x + threadIdx.x] = (double)sum;
}

/* Multiply-adds, CHAINS of each thread. */
extern "C" __global__ void __launch_bounds__(256) eg_peak_f32(const __grid_constant__ eg_cuda_peak p) {
    float x[CHAINS], sum = 0;
    for (int i = 0; i < CHAINS; i++) x[i] = (float)threadIdx.x + (float)i;
    for (int64_t turn = 0; turn < p.turns; turn++) {
#pragma unroll
        for (int i = 0; i < CHAINS; i++) x[i] = fmaf(x[i], 0.75F, 0.5F);
    }
    for (int i = 0; i < CHAINS; i++) sum += x[i];
    store(p, sum);
}

/* mma.sync m8n8k4 in f64, or m16n8k4: TILES independent accumulators of a warp. */
extern "C" __global__ void __launch_bounds__(256) eg_peak_f64(const __grid_constant__ eg_cuda_peak p) {
    double x[TILES][4] = {}, sum = 0;
    const double a = 0.125 + threadIdx.x * 0.0009765625, b = 0.25;
    for (int64_t turn = 0; turn < p.turns; turn++) {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#if __CUDA_ARCH__ >= 900
            asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
                         "{%0, %1, %2, %3};"
                         : "+d"(x[i][0]), "+d"(x[i][1]), "+d"(x[i][2]), "+d"(x[i][3])
                         : "d"(a), "d"(b), "d"(b));
#else
#pragma unroll
            for (int half = 0; half < 2; half++)
                asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                             : "+d"(x[i][half * 2]), "+d"(x[i][half * 2 + 1])
                             : "d"(a), "d"(b));
#endif
        }
    }
    for (int i = 0; i < TILES; i++) sum += x[i][0] + x[i][1] + x[i][2] + x[i][3];
    store(p, sum);
}

/* mma.sync m16n8k16, TILES independent accumulators of a warp. Operands are small numbers of many bits: a
 * matrix unit takes less power, and so runs faster, on zeros. */
#define EG_PEAK_16(name, type)                                                                               \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
        eg_peak_##name(const __grid_constant__ eg_cuda_peak p) {                                             \
        float x[TILES][4] = {}, sum = 0;                                                                     \
        const uint32_t a = 0x2bcd2a5bU ^ threadIdx.x << 2, b = 0x2a71ab3dU ^ threadIdx.x << 18;              \
        for (int64_t turn = 0; turn < p.turns; turn++) {                                                     \
            _Pragma("unroll") for (int i = 0; i < TILES; i++) asm volatile(                                  \
                "mma.sync.aligned.m16n8k16.row.col.f32." #type "." #type ".f32 "                             \
                "{%0, %1, %2, %3}, {%4, %5, %4, %5}, {%5, %4}, {%0, %1, %2, %3};" : "+f"(x[i][0]),           \
                "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3]) : "r"(a), "r"(b));                               \
        }                                                                                                    \
        for (int i = 0; i < TILES; i++) sum += x[i][0] + x[i][1] + x[i][2] + x[i][3];                        \
        store(p, sum);                                                                                       \
    }
EG_PEAK_16(f16, f16)
EG_PEAK_16(bf16, bf16)
