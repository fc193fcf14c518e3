/* The kernels of hopper_pool.cuh: what follows the first rows of grad_pre in one launch. */
#include "hopper_pool.cuh"

EG_HOPPER_POOL_KERNELS(bf16, true)
EG_HOPPER_POOL_KERNELS(f16, false)
