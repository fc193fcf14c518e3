/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of EG_VECTOR_BYTES bytes of f32 or f64 (EG_REAL_BITS), by the vector extensions that GCC and Clang
 * share; where an instruction set has the operation, by its intrinsic. Included once per kernel; every name
 * ends in the kernel's own, through EG_V. Compiled without floating-point contraction: a multiply-add is
 * fused exactly where EG_FMA says so. */
#if EG_REAL_BITS == 64
typedef double EG_V(real);
typedef int64_t EG_V(word);
#define EG_ROUNDER   6755399441055744.0 /* 1.5 * 2^52: adding it rounds to an integer, in the low bits */
#define EG_EXPONENT  52
#define EG_BIAS      1023
#define EG_EXP_FIELD 0x7ff0000000000000
#define EG_ABS_MASK  0x7fffffffffffffff
#else
typedef float EG_V(real);
typedef int32_t EG_V(word);
#define EG_ROUNDER   12582912.0F /* 1.5 * 2^23 */
#define EG_EXPONENT  23
#define EG_BIAS      127
#define EG_EXP_FIELD 0x7f800000
#define EG_ABS_MASK  0x7fffffff
#endif

#define EG_R EG_V(real)
#define EG_T EG_V(vector)
#define EG_I EG_V(words)

typedef EG_R EG_T __attribute__((vector_size(EG_VECTOR_BYTES)));
typedef EG_V(word) EG_I __attribute__((vector_size(EG_VECTOR_BYTES)));
typedef EG_R EG_V(unaligned)
    __attribute__((vector_size(EG_VECTOR_BYTES), aligned(EG_REAL_BITS / 8), may_alias));

#define EG_LANES ((int64_t)(EG_VECTOR_BYTES / sizeof(EG_R)))

/* EG_UNROLL: a loop of at most `times` turns is written out, or the arrays it walks stay in memory; each
 * compiler has its own name for it. EG_PARTS: any loop, `times` turns at a time, by GCC alone: Clang would
 * load for all of them first, and run out of registers.
 *
 * A sanitizer puts a branch in front of every access. Inlined into each other and written out, they make
 * loops of thousands of branches, which take a compiler minutes: there it does neither. Nor for instructions
 * in plain C, of which a vector takes hundreds. */
#define EG_PRAGMA(text) _Pragma(#text)
#if defined(EG_NO_FORCED_INLINE)
#define EG_INLINE static inline __attribute__((unused))
#define EG_UNROLL(times)
#define EG_PARTS(times)
#elif defined(__clang__)
#define EG_INLINE        static inline __attribute__((always_inline, unused))
#define EG_UNROLL(times) EG_PRAGMA(clang loop unroll(full))
#define EG_PARTS(times)  EG_PRAGMA(clang loop unroll(disable))
#else
#define EG_INLINE        static inline __attribute__((always_inline, unused))
#define EG_UNROLL(times) EG_PRAGMA(GCC unroll times)
#define EG_PARTS(times)  EG_PRAGMA(GCC unroll times)
#endif

EG_INLINE EG_T EG_V(load)(const EG_R *from) { return *(const EG_V(unaligned) *)from; }
EG_INLINE void EG_V(store)(EG_R *to, EG_T x) { *(EG_V(unaligned) *)to = x; }
/* Non-temporal: bypasses the caches, a whole line at once. */
EG_INLINE void EG_V(stream)(EG_R *to, EG_T x) {
#if defined(__AVX512F__) && EG_VECTOR_BYTES == 64
    _mm512_stream_si512((void *)to, (__m512i)x);
#elif defined(__AVX__) && EG_VECTOR_BYTES == 32
    _mm256_stream_si256((void *)to, (__m256i)x);
#else
    EG_V(store)(to, x);
#endif
}
EG_INLINE EG_T EG_V(splat)(EG_R x) { return x - (EG_T){0}; }

/* Lanes of a mask are all ones or zeros. */
EG_INLINE EG_T EG_V(select)(EG_I mask, EG_T yes, EG_T no) {
#if defined(__AVX__) && EG_VECTOR_BYTES == 32 && EG_REAL_BITS == 64
    return (EG_T)_mm256_blendv_pd((__m256d)no, (__m256d)yes, (__m256d)mask);
#elif defined(__AVX__) && EG_VECTOR_BYTES == 32
    return (EG_T)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
#else
    return (EG_T)((mask & (EG_I)yes) | (~mask & (EG_I)no));
#endif
}

EG_INLINE EG_T EG_V(fma)(EG_T a, EG_T b, EG_T c) {
#if defined(__AVX512F__) && EG_VECTOR_BYTES == 64 && EG_REAL_BITS == 64
    return (EG_T)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX512F__) && EG_VECTOR_BYTES == 64
    return (EG_T)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__) && EG_VECTOR_BYTES == 32 && EG_REAL_BITS == 64
    return (EG_T)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__FMA__) && EG_VECTOR_BYTES == 32
    return (EG_T)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(EG_USE_NEON) && EG_REAL_BITS == 64
    return (EG_T)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#elif defined(EG_USE_NEON)
    return (EG_T)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

EG_INLINE EG_T EG_V(min)(EG_T a, EG_T b) {
#if defined(__AVX512F__) && EG_VECTOR_BYTES == 64 && EG_REAL_BITS == 64
    return (EG_T)_mm512_min_pd((__m512d)a, (__m512d)b);
#elif defined(__AVX512F__) && EG_VECTOR_BYTES == 64
    return (EG_T)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__) && EG_VECTOR_BYTES == 32 && EG_REAL_BITS == 64
    return (EG_T)_mm256_min_pd((__m256d)a, (__m256d)b);
#elif defined(__AVX__) && EG_VECTOR_BYTES == 32
    return (EG_T)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return EG_V(select)((EG_I)(a < b), a, b);
#endif
}

EG_INLINE EG_T EG_V(max)(EG_T a, EG_T b) {
#if defined(__AVX512F__) && EG_VECTOR_BYTES == 64 && EG_REAL_BITS == 64
    return (EG_T)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif defined(__AVX512F__) && EG_VECTOR_BYTES == 64
    return (EG_T)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__) && EG_VECTOR_BYTES == 32 && EG_REAL_BITS == 64
    return (EG_T)_mm256_max_pd((__m256d)a, (__m256d)b);
#elif defined(__AVX__) && EG_VECTOR_BYTES == 32
    return (EG_T)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return EG_V(select)((EG_I)(a > b), a, b);
#endif
}

EG_INLINE EG_T EG_V(abs)(EG_T x) { return (EG_T)((EG_I)x & EG_ABS_MASK); }

/* To the nearest integer, for |x| below 2^(EG_EXPONENT - 2). */
EG_INLINE EG_T EG_V(round)(EG_T x) { return (x + EG_ROUNDER) - EG_ROUNDER; }

/* 2^n for an integral n: n + EG_BIAS, its exponent, stands in the low bits of n + EG_BIAS + EG_ROUNDER. */
EG_INLINE EG_T EG_V(pow2)(EG_T n) { return (EG_T)((EG_I)(n + (EG_ROUNDER + EG_BIAS)) << EG_EXPONENT); }

/* `value`; where x is NaN, those of its bits that `kept` has. By x's own bits: no compiler option can remove
 * the test. */
EG_INLINE EG_T EG_V(unless_nan)(EG_T x, EG_T value, EG_I kept) {
#if defined(__AVX512DQ__) && EG_VECTOR_BYTES == 64 && EG_REAL_BITS == 64
    const __mmask8 nan = _mm512_fpclass_pd_mask((__m512d)x, 0x81);
    return (EG_T)_mm512_mask_and_pd((__m512d)value, nan, (__m512d)x, (__m512d)kept);
#elif defined(__AVX512DQ__) && EG_VECTOR_BYTES == 64
    const __mmask16 nan = _mm512_fpclass_ps_mask((__m512)x, 0x81);
    return (EG_T)_mm512_mask_and_ps((__m512)value, nan, (__m512)x, (__m512)kept);
#else
    const EG_I nan = ((EG_I)x & EG_ABS_MASK) > EG_EXP_FIELD;
    return EG_V(select)(nan, (EG_T)((EG_I)x & kept), value);
#endif
}

/* Activation tables: a register holds one coefficient of all pieces, and VPERMPS gives each lane the one of
 * its piece. Takes half the instructions of an exponential and a division, and a third of their latency. */
#if defined(__AVX512F__) && EG_VECTOR_BYTES == 64 && EG_REAL_BITS == 32
#include "activation_tables.h"

/* The table's function of |x|. */
EG_INLINE EG_T EG_V(looked_up)(EG_T x, const eg_activation_table *table) {
    const EG_T a = EG_V(min)(EG_V(abs)(x), EG_V(splat)(table->end));
    EG_T scale = EG_V(splat)(table->scale);
    if (table->fall != 0) scale = EG_V(fma)(a, EG_V(splat)(-table->fall), scale);
    const EG_T rounded = EG_V(fma)(a, scale, EG_V(splat)(EG_ROUNDER)); /* the piece, in the low bits */
    const EG_T t = EG_V(fma)(a, scale, EG_ROUNDER - rounded);
    EG_T f = {0};
    EG_UNROLL(7)
    for (int i = table->degree; i >= 0; i--) {
        const EG_T power = (EG_T)_mm512_permutexvar_ps((__m512i)rounded, _mm512_load_ps(table->piece[i]));
        f = i == table->degree ? power : EG_V(fma)(f, t, power);
    }
    return f;
}

EG_INLINE EG_T EG_V(with_sign_of)(EG_T x, EG_T f) { return (EG_T)((EG_I)f ^ ((EG_I)x & ~EG_ABS_MASK)); }

#define EG_LOOKED_UP(x, name)  EG_V(looked_up)(x, &eg_table_##name)
#define EG_GRAD_TABLE(x, name) (EG_V(with_sign_of)(x, EG_LOOKED_UP(x, name##_grad)) + 0.5F)
#define EG_ACT_TABLE(x, name)  (EG_MAX(x, EG_C(0.0)) - EG_LOOKED_UP(x, name))
#define EG_GRAD_gelu(x)        EG_GRAD_TABLE(x, gelu)
#define EG_GRAD_gelu_erf(x)    EG_GRAD_TABLE(x, gelu_erf)
#define EG_GRAD_silu(x)        EG_GRAD_TABLE(x, silu)
#define EG_GRAD_quick_gelu(x)  EG_GRAD_TABLE(EG_C(1.702) * (x), silu)
#define EG_GRAD_tanh(x)        (1 - EG_LOOKED_UP(x, tanh_grad))
#define EG_ACT_gelu(x)         EG_ACT_TABLE(x, gelu)
#define EG_ACT_gelu_erf(x)     EG_ACT_TABLE(x, gelu_erf)
#define EG_ACT_silu(x)         EG_ACT_TABLE(x, silu)
#define EG_ACT_quick_gelu(x)                                                                                 \
    EG_V(fma)(EG_LOOKED_UP(EG_C(1.702) * (x), silu), EG_C(-1 / 1.702), EG_MAX(x, EG_C(0.0)))
/* A polynomial may round to more than 1. */
#define EG_ACT_tanh(x) EG_V(with_sign_of)(x, EG_MIN(EG_LOOKED_UP(x, tanh), EG_C(1.0)))
#endif

/* The dialect of activation.h. */
#define EG_ACTIVATION_FORMULAS
#define EG_FN(name, x)        EG_INLINE EG_T EG_V(name)(__attribute__((unused)) const EG_T x) {
#define EG_END                }
#define EG_CALL(name, x)      EG_V(name)(x)
#define EG_LET(name, value)   __attribute__((unused)) const EG_T name = value;
#define EG_RETURN(value)      return value;
#define EG_C(number)          EG_V(splat)((EG_R)(number))
#define EG_FMA(a, b, c)       EG_V(fma)(a, b, c)
#define EG_MIN(a, b)          EG_V(min)(a, b)
#define EG_MAX(a, b)          EG_V(max)(a, b)
#define EG_ABS(x)             EG_V(abs)(x)
#define EG_ROUND(x)           EG_V(round)(x)
#define EG_POW2(n)            EG_V(pow2)(n)
#define EG_SELECT(mask, a, b) EG_V(select)((EG_I)(mask), a, b)
#ifdef EG_LOOKED_UP /* the formula is compiled, under another name, and not used */
#define EG_ACT_FN(name, x) EG_FN(act_##name, x) EG_RETURN(EG_ACT_##name(x)) EG_END EG_FN(formula_of_##name, x)
#define EG_GRAD_FN(name, x)                                                                                  \
    EG_FN(act_grad_##name, x) EG_RETURN(EG_GRAD_##name(x)) EG_END EG_FN(formula_of_grad_##name, x)
#endif
#include "epigrad/activation.h"
#undef EG_ACTIVATION_FORMULAS
#undef EG_FN
#undef EG_END
#undef EG_CALL
#undef EG_LET
#undef EG_RETURN
#undef EG_C
#undef EG_FMA
#undef EG_MIN
#undef EG_MAX
#undef EG_ABS
#undef EG_ROUND
#undef EG_POW2
#undef EG_SELECT
#undef EG_ACT_FN
#undef EG_GRAD_FN
#undef EG_LOOKED_UP
#undef EG_GRAD_TABLE
#undef EG_ACT_TABLE
#undef EG_GRAD_gelu
#undef EG_GRAD_gelu_erf
#undef EG_GRAD_silu
#undef EG_GRAD_quick_gelu
#undef EG_GRAD_tanh
#undef EG_ACT_gelu
#undef EG_ACT_gelu_erf
#undef EG_ACT_silu
#undef EG_ACT_quick_gelu
#undef EG_ACT_tanh
