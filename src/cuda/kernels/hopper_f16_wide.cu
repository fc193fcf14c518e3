/* The f16 kernels of hopper_gemm.cuh with the widest tile, for large products. Names: layout of left, layout
 * of right (r: row-major, c: column-major), tile of a block. */
#include "hopper_gemm.cuh"

EG_HOPPER_KERNELS(f16, false, 256, true)
