/* The kernels of hopper_gemm.cuh that make the last rows of left themselves (hopper_pass.cuh). */
#include "hopper_gemm.cuh"

EG_HOPPER_PASS_KERNELS(bf16, true)
EG_HOPPER_PASS_KERNELS(f16, false)
