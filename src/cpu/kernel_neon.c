/* SPDX-License-Identifier: Apache-2.0 */
/* AArch64 Advanced SIMD. */
#include <arm_neon.h>

#include "core/half.h"
#include "kernel.h"

#define EG_VECTOR_BYTES 16
#define EG_NEEDS        EG_CPU_NEON
#define EG_USE_NEON

#define EG_KERNEL    neon_f32_4x16
#define EG_REAL_BITS 32
#define EG_MR        4
#define EG_NV        4
#define EG_KC        240
#include "kernel_template.h"

#define EG_KERNEL    neon_f64_4x8
#define EG_REAL_BITS 64
#define EG_MR        4
#define EG_NV        4
#define EG_KC        240
#include "kernel_template.h"
