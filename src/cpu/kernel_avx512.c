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
#include "kernel_template.h"

#define EG_KERNEL    avx512_f64_8x24
#define EG_REAL_BITS 64
#define EG_MR        8
#define EG_NV        3
#define EG_KC        384
#include "kernel_template.h"
