/* The kernels of hopper_gemm.cuh that cut their last tiles along the depth (hopper_cut.cuh). */
#include "hopper_gemm.cuh"

EG_HOPPER_CUT_KERNELS(bf16, true)
EG_HOPPER_CUT_KERNELS(f16, false)
