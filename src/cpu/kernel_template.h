/* One micro-kernel on multiply-add units, for the instruction set and type that the including file sets:
 * what tile_template.h asks for, and
 *
 *   EG_KC             terms a pass
 *   EG_WHOLE_KC       or so many, if that is all of them; it may be left out
 *   EG_ONLY_KC        or so many, where one block has all rows; it may be left out
 *   EG_NEEDS          instruction-set bits
 *   EG_ONE_PANEL      1: for layers of one panel, whose K and N are nr; else it may be left out
 *
 * The accumulators take EG_MR * EG_NV registers, the right operand's row EG_NV and the left operand's
 * number one: 28 of 32 for 8x48 on AVX-512, all 16 for 4x24 on AVX2. Each term then costs EG_NV loads and
 * EG_MR broadcasts for EG_MR * EG_NV multiply-adds: the load ports keep up with both FMA units. */
#include "tile_template.h"

#ifndef EG_WHOLE_KC
#define EG_WHOLE_KC EG_KC
#endif
#ifndef EG_ONLY_KC
#define EG_ONLY_KC EG_KC
#endif
#ifndef EG_ONE_PANEL
#define EG_ONE_PANEL 0
#endif

/* ---- multiply ----------------------------------------------------------------------------------- */

/* `depth` terms of a tile of `nv` vectors a row. nv, and one of the left operand's distances, are constants
 * where this is inlined. */
EG_INLINE void EG_V(terms)(EG_T sum[EG_MR][EG_NV], const EG_R *left, const int64_t index, const int64_t term,
                           const EG_R *right, const int64_t right_term, int64_t depth, const int nv) {
    enum { SOON = 12 }; /* terms: a transposed left operand takes a line a term, far apart */
    EG_PARTS(4)
    for (int64_t k = 0; k < depth; k++) {
        EG_T b[EG_NV];
        if (index == 1) __builtin_prefetch(left + (k + SOON) * term, 0, 3);
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

/* Memory that will be wanted, a slice of it: more at a time would stand in the way of the loads. */
EG_INLINE const char *EG_V(ask)(const eg_share *of, const char *at) {
    for (int64_t rows = of->slice; rows > 0; rows--, at += of->stride) {
        EG_UNROLL(8)
        for (int64_t j = 0; j < EG_NV * EG_VECTOR_BYTES; j += 64) __builtin_prefetch(at + j, 0, 2);
    }
    return at;
}

/* Likewise rows of it, each in as many lines as it may have vectors: a loop for them would take as long as
 * the terms of a small layer. */
EG_INLINE const char *EG_V(ask_rows)(const eg_asked *of, const char *at, int64_t rows, const int nv) {
    for (; rows > 0; rows--, at += of->stride) {
        EG_UNROLL(8)
        for (int64_t j = 0; j < nv; j++) __builtin_prefetch(at + (j * 64 < of->bytes ? j * 64 : 0), 0, 2);
    }
    return at;
}

/* The sums of this pass, and what was there before. */
EG_INLINE void EG_V(add_up)(EG_T sum[EG_MR][EG_NV], const eg_sums *sums, const int nv) {
    const EG_R *before = sums->before;
    const int64_t row = sums->row;
    EG_R *to = sums->to;
    if (before != NULL) {
        EG_UNROLL(16)
        for (int i = 0; i < EG_MR; i++) {
            EG_UNROLL(8)
            for (int j = 0; j < nv; j++) sum[i][j] += EG_V(load)(before + i * EG_NR + j * EG_LANES);
        }
    }
#define EG_PUT(store)                                                                                        \
    EG_UNROLL(16)                                                                                            \
    for (int i = 0; i < EG_MR; i++, to += row) {                                                             \
        EG_UNROLL(8)                                                                                         \
        for (int j = 0; j < nv; j++) EG_V(store)(to + j * EG_LANES, sum[i][j]);                              \
    }
    if (sums->past) {
        EG_PUT(stream)
    } else {
        EG_PUT(store)
    }
#undef EG_PUT
}

EG_INLINE void EG_V(multiply_nv)(const eg_factor *left, const eg_factor *right, int64_t depth,
                                 const eg_sums *sums, const eg_ahead *ahead, const int nv,
                                 const bool transposed) {
    EG_T sum[EG_MR][EG_NV] = {{{0}}};
    const EG_R *a = left->at, *b = right->at;
    const char *out = ahead->out.at, *in = ahead->in.at;
    const char *right_ahead = ahead->next_right.at, *left_ahead = ahead->next_left.at;
    int64_t rows = ahead->rows;
    for (; depth > 0; depth -= EG_NR, a += left->group, b += right->group) {
        right_ahead = EG_V(ask)(&ahead->next_right, right_ahead);
        left_ahead = EG_V(ask)(&ahead->next_left, left_ahead);
        const int64_t some = rows < ahead->row_slice ? rows : ahead->row_slice;
        if (out != NULL) out = EG_V(ask_rows)(&ahead->out, out, some, nv);
        if (in != NULL) in = EG_V(ask_rows)(&ahead->in, in, some, nv);
        rows -= some;
        const int64_t count = depth < EG_NR ? depth : EG_NR;
        if (transposed) {
            EG_V(terms)(sum, a, 1, left->term, b, right->term, count, nv);
        } else {
            EG_V(terms)(sum, a, left->index, 1, b, right->term, count, nv);
        }
    }
    EG_V(add_up)(sum, sums, nv);
}

/* Narrow last panels use as many vectors as they have columns for. */
static void EG_V(multiply)(const eg_factor *left, const eg_factor *right, int64_t depth, int64_t cols,
                           const eg_sums *sums, const eg_ahead *ahead) {
#define EG_WIDTH(nv)                                                                                         \
    if (left->index == 1) {                                                                                  \
        EG_V(multiply_nv)(left, right, depth, sums, ahead, nv, true);                                        \
    } else {                                                                                                 \
        EG_V(multiply_nv)(left, right, depth, sums, ahead, nv, false);                                       \
    }
    if (cols <= EG_LANES) {
        EG_WIDTH(1)
#if EG_NV > 2
    } else if (cols <= 2 * EG_LANES) {
        EG_WIDTH(2)
#endif
#if EG_NV > 3
    } else if (cols <= 3 * EG_LANES) {
        EG_WIDTH(3)
#endif
    } else {
        EG_WIDTH(EG_NV)
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
    .streams = EG_VECTOR_BYTES == 64 ? 128 : 0,
    .kc = EG_KC,
    .whole_kc = EG_WHOLE_KC,
    .only_kc = EG_ONLY_KC,
    .run = EG_NR,
    .block_rows = EG_REAL_BITS == 64 ? 128 : 192,
    .block_cols = 240,
    .only_from = 1,
    .only_rows = 256,
    .thread_work = 1 << 20,
    .one_panel = EG_ONE_PANEL,
    .unscale = 1,
    .multiply = EG_V(multiply),
    .spin = EG_V(spin),
    EG_TILE_FUNCTIONS,
};

#undef EG_KC
#undef EG_WHOLE_KC
#undef EG_ONLY_KC
#undef EG_ONE_PANEL
#include "template_end.h"
