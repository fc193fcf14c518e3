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
#include "kernel_template.h"

/* For layers of 64 columns, which are no whole number of micro-panels of 48. Four rows read the micro-panel
 * twice as often as eight: that is worth it while the micro-panel stays in L1, and so for one alone. */
#define EG_KERNEL         avx512_f32_4x64
#define EG_ELEMENTWISE_OF avx512_f32_8x48
#define EG_REAL_BITS      32
#define EG_MR             4
#define EG_NV             4
#define EG_KC             384
#define EG_KC_SINGLE_PASS 576
#define EG_KC_FUSED       288
#define EG_SINGLE_PANEL   1
#include "kernel_template.h"

#define EG_KERNEL         avx512_f64_8x24
#define EG_REAL_BITS      64
#define EG_MR             8
#define EG_NV             3
#define EG_KC             384
#define EG_KC_SINGLE_PASS 576
#define EG_KC_FUSED       288
#include "kernel_template.h"
