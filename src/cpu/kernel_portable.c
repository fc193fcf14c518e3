/* SPDX-License-Identifier: Apache-2.0 */
/* The baseline of the machine the library is built for: SSE2 on x86-64, NEON on AArch64, plain code
 * elsewhere. */
#include "core/half.h"
#include "kernel.h"

#define EG_VECTOR_BYTES 16
#define EG_NEEDS        0

#define EG_KERNEL    portable_f32_4x8
#define EG_REAL_BITS 32
#define EG_MR        4
#define EG_NV        2
#define EG_KC        192
#include "kernel_template.h"

#define EG_KERNEL    portable_f64_4x4
#define EG_REAL_BITS 64
#define EG_MR        4
#define EG_NV        2
#define EG_KC        192
#include "kernel_template.h"
