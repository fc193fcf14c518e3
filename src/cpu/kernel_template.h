/* One micro-kernel on multiply-add units, for the instruction set and type that the including file sets:
 * what tile_template.h asks for, and
 *
 *   EG_KC             terms a pass
 *   EG_NEEDS          instruction-set bits
 *
 * The accumulators take EG_MR * EG_NV registers, the right operand's row EG_NV and the left operand's
 * number one: 28 of 32 for 8x48 on AVX-512, all 16 for 4x24 on AVX2. Each term then costs EG_NV loads and
 * EG_MR broadcasts for EG_MR * EG_NV multiply-adds: the load ports keep up with both FMA units. */
#include "tile_template.h"

/* ---- multiply ----------------------------------------------------------------------------------- */

/* `depth` terms of a tile of `nv` vectors a row. nv, and one of the left operand's distances, are constants
 * where this is inlined. */
EG_INLINE void EG_V(terms)(EG_T sum[EG_MR][EG_NV], const EG_R *left, const int64_t index, const int64_t term,
                           const EG_R *right, const int64_t right_term, int64_t depth, const int nv) {
    for (int64_t k = 0; k < depth; k++) {
        EG_T b[EG_NV];
        EG_UNROLL(8)
        for (int j = 0; j < nv; j++) b[j] = EG_V(load)(right + k * right_term + j * EG_LANES);
        EG_UNROLL(16)
        for (int i = 0; i < EG_MR; i++) {
            const EG_T a = EG_V(splat)(left[i * index + k * term]);
            EG_UNROLL(8)
            for (int j = 0; j < nv; j++) sum[i][j] = EG_V(fma)(a, b[j], sum[i][j]);
        }
    }
}

/* What comes next is asked for with every nr terms, a few lines at a time: more would stand in the way. */
EG_INLINE void EG_V(multiply_nv)(const eg_factor *left, const eg_factor *right, int64_t depth,
                                 const eg_sums *sums, const eg_ahead *ahead, const int nv) {
    EG_T sum[EG_MR][EG_NV] = {{{0}}};
    const int64_t slices = (depth + EG_NR - 1) / EG_NR;
    const size_t slice = slices > 1 ? ahead->right_bytes / (size_t)slices : ahead->right_bytes;
    const int64_t rows = slices > 1 ? (ahead->out_rows + slices - 1) / slices : ahead->out_rows;
    const EG_R *a = left->at, *b = right->at;
    const char *next = ahead->right;
    int64_t asked = 0;
    for (; depth > 0; depth -= EG_NR, a += left->group, b += right->group) {
        const int64_t count = depth < EG_NR ? depth : EG_NR;
        for (const char *end = next + slice; next < end; next += 64) __builtin_prefetch(next, 0, 2);
        for (int64_t i = 0; i < rows && asked < ahead->out_rows; i++, asked++) {
            const char *row = ahead->out + asked * ahead->out_stride;
            for (int64_t at = 0; at < ahead->out_bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
        }
        if (left->index == 1) {
            EG_V(terms)(sum, a, 1, left->term, b, right->term, count, nv);
        } else {
            EG_V(terms)(sum, a, left->index, 1, b, right->term, count, nv);
        }
    }
    EG_UNROLL(16)
    for (int i = 0; i < EG_MR; i++) {
        EG_UNROLL(8)
        for (int j = 0; j < nv; j++) {
            const int64_t at = i * EG_NR + j * EG_LANES;
            if (sums->before != NULL) sum[i][j] += EG_V(load)((const EG_R *)sums->before + at);
            EG_V(store)((EG_R *)sums->to + i * sums->row + j * EG_LANES, sum[i][j]);
        }
    }
}

/* Narrow last panels use as many vectors as they have columns for. */
static void EG_V(multiply)(const eg_factor *left, const eg_factor *right, int64_t depth, int64_t cols,
                           const eg_sums *sums, const eg_ahead *ahead) {
#define EG_WIDTH(nv) EG_V(multiply_nv)(left, right, depth, sums, ahead, nv)
    if (cols <= EG_LANES) {
        EG_WIDTH(1);
#if EG_NV > 2
    } else if (cols <= 2 * EG_LANES) {
        EG_WIDTH(2);
#endif
#if EG_NV > 3
    } else if (cols <= 3 * EG_LANES) {
        EG_WIDTH(3);
#endif
    } else {
        EG_WIDTH(EG_NV);
    }
#undef EG_WIDTH
}

/* ---- The peak ----------------------------------------------------------------------------------- */

/* As many independent multiply-adds as the tile has accumulators. */
static double EG_V(spin)(int64_t turns) {
    EG_T sum[EG_MR * EG_NV];
    EG_T a = EG_V(splat)((EG_R)0.999), b = EG_V(splat)((EG_R)0.001);
    for (int i = 0; i < EG_MR * EG_NV; i++) sum[i] = EG_V(splat)((EG_R)i);
    for (int64_t turn = 0; turn < turns; turn++) {
        EG_UNROLL(32)
        for (int i = 0; i < EG_MR * EG_NV; i++) sum[i] = EG_V(fma)(sum[i], a, b);
    }
    EG_T total = sum[0];
    for (int i = 1; i < EG_MR * EG_NV; i++) total += sum[i];
    volatile EG_R keep = total[0];
    (void)keep;
    return (double)turns * EG_MR * (double)EG_NR;
}

/* ---- The row ------------------------------------------------------------------------------------ */

const eg_cpu_kernel EG_PASTE(eg_cpu, EG_KERNEL) = {
    .name = EG_STRING(EG_KERNEL),
    .compute = EG_REAL_BITS == 64 ? EG_F64 : EG_F32,
    .maths = EG_CPU_ANY_MATH,
    .needs = EG_NEEDS,
    .mr = EG_MR,
    .nr = EG_NR,
    .lanes = EG_LANES,
    .kc = EG_KC,
    .block_rows = 192,
    .block_cols = 480,
    .thread_work = 1 << 22,
    .unscale = 1,
    .multiply = EG_V(multiply),
    .spin = EG_V(spin),
    EG_TILE_FUNCTIONS,
};

#undef EG_KC
#include "template_end.h"
