/* AVX-512 F, BW, DQ and VL (Skylake-SP, Zen 4 and later). */
#include <immintrin.h>

#include "half.h"
#include "kernel.h"

#define EG_VECTOR_BYTES 64
#define EG_NEEDS        EG_CPU_AVX512

#define EG_KERNEL    avx512_f32_8x48
#define EG_REAL_BITS 32
#define EG_MR        8
#define EG_NV        3
#define EG_KC        384
#define EG_WHOLE_KC  576
#define EG_ONLY_KC   288
#include "kernel_template.h"

/* 64 columns are no whole panels of 48. This tile reads its panel twice as often: that has to stay in L1. */
#define EG_KERNEL    avx512_f32_4x64
#define EG_SWEEPS_OF avx512_f32_8x48
#define EG_REAL_BITS 32
#define EG_MR        4
#define EG_NV        4
#define EG_KC        384
#define EG_WHOLE_KC  576
#define EG_ONLY_KC   288
#define EG_ONE_PANEL 1
#include "kernel_template.h"

#define EG_KERNEL    avx512_f64_8x24
#define EG_REAL_BITS 64
#define EG_MR        8
#define EG_NV        3
#define EG_KC        384
#define EG_WHOLE_KC  576
#define EG_ONLY_KC   288
#include "kernel_template.h"
