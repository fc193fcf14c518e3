/* The bf16 kernels of hopper_gemm.cuh. Names: layout of left, layout of right (r: row-major,
 * c: column-major), tile of a block. */
#include "hopper_gemm.cuh"

EG_HOPPER_KERNEL(hopper_bf16_rr_128x256, true, false, true, 256)
EG_HOPPER_KERNEL(hopper_bf16_rc_128x256, true, false, false, 256)
EG_HOPPER_KERNEL(hopper_bf16_cr_128x256, true, true, true, 256)
EG_HOPPER_KERNEL(hopper_bf16_rr_128x192, true, false, true, 192)
EG_HOPPER_KERNEL(hopper_bf16_rc_128x192, true, false, false, 192)
EG_HOPPER_KERNEL(hopper_bf16_cr_128x192, true, true, true, 192)
EG_HOPPER_KERNEL(hopper_bf16_rr_128x128, true, false, true, 128)
EG_HOPPER_KERNEL(hopper_bf16_rc_128x128, true, false, false, 128)
EG_HOPPER_KERNEL(hopper_bf16_cr_128x128, true, true, true, 128)
