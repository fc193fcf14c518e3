/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2 with FMA and F16C (Haswell, Zen and later). */
#include <immintrin.h>

#include "core/half.h"
#include "kernel.h"

#define EG_VECTOR_BYTES 32
#define EG_NEEDS        EG_CPU_AVX2

#define EG_KERNEL    avx2_f32_4x24
#define EG_REAL_BITS 32
#define EG_MR        4
#define EG_NV        3
#define EG_KC        192
#define EG_PACKS_BOTH
#include "kernel_template.h"

#define EG_KERNEL    avx2_f64_4x12
#define EG_REAL_BITS 64
#define EG_MR        4
#define EG_NV        3
#define EG_KC        192
#define EG_PACKS_BOTH
#include "kernel_template.h"
