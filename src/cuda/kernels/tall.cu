/* SPDX-License-Identifier: Apache-2.0 */
#include "tall.cuh"
#include "tall_fma.cuh"

extern "C" __global__ void __launch_bounds__(EG_TALL_THREADS, 4)
    eg_tall_bf16_32x64(const __grid_constant__ eg_cuda_gemm p) {
    eg_tall_run<true>(p);
}
extern "C" __global__ void __launch_bounds__(EG_TALL_THREADS, 4)
    eg_tall_f16_32x64(const __grid_constant__ eg_cuda_gemm p) {
    eg_tall_run<false>(p);
}
extern "C" __global__ void __launch_bounds__(EG_TALL_THREADS, 3)
    eg_tall_f32_32x64(const __grid_constant__ eg_cuda_gemm p) {
    eg_tall_fma_run(p);
}
