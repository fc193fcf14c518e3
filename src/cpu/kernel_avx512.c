/* SPDX-License-Identifier: Apache-2.0 */
/* AVX-512 F, BW, DQ and VL (Skylake-SP, Zen 4 and later). */
#include <immintrin.h>

#include "core/half.h"
#include "kernel.h"

#define EG_VECTOR_BYTES 64
#define EG_NEEDS        EG_CPU_AVX512

#define EG_KERNEL         avx512_f32_8x48
#define EG_REAL_BITS      32
#define EG_MR             8
#define EG_NV             3
#define EG_KC             384
#define EG_KC_SINGLE_PASS 576
#define EG_KC_FUSED       288
#define EG_KC_FEW         96
#include "kernel_template.h"

/* Four rows read a micro-panel twice as often as eight. But 64 columns are whole cache lines of 16-bit
 * numbers too, and a power of two: results of little depth, element-wise steps and few rows take less time.
 */
#define EG_KERNEL         avx512_f32_4x64
#define EG_ELEMENTWISE_OF avx512_f32_8x48
#define EG_REAL_BITS      32
#define EG_MR             4
#define EG_NV             4
#define EG_KC             384
#define EG_KC_SINGLE_PASS 576
#define EG_KC_FUSED       288
#define EG_KC_FEW         96
#include "kernel_template.h"

#define EG_KERNEL         avx512_f64_8x24
#define EG_REAL_BITS      64
#define EG_MR             8
#define EG_NV             3
#define EG_KC             384
#define EG_KC_SINGLE_PASS 576
#define EG_KC_FUSED       288
#define EG_KC_FEW         96
#include "kernel_template.h"
