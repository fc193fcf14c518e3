/* SPDX-License-Identifier: Apache-2.0 */
/* One micro-kernel on vector units, for the instruction set and type that the including file sets: what
 * tile_template.h asks for, and
 *
 *   EG_KC               k of a pass: blocking.kc
 *   EG_KC_SINGLE_PASS   where the whole depth is no more; EG_KC if left out
 *   EG_KC_FUSED         with fused packing; EG_KC if left out
 *   EG_KC_FEW           with fused packing and few rows; EG_KC_FUSED if left out or 0
 *   EG_NEEDS            instruction-set bits
 *   EG_PACKS_BOTH       if defined, blocks may pack both operands: packed_template.h
 *
 * The accumulators take EG_MR * EG_NV registers, a row of the right operand EG_NV, and a number of the left
 * operand one: 28 of 32 for 8x48 on AVX-512, all 16 for 4x24 on AVX2. Each k costs EG_NV loads and EG_MR
 * broadcasts for EG_MR * EG_NV multiply-adds. So the load ports keep up with both FMA units. */
#include "tile_template.h"

#ifndef EG_KC_SINGLE_PASS
#define EG_KC_SINGLE_PASS EG_KC
#endif
#ifndef EG_KC_FUSED
#define EG_KC_FUSED EG_KC
#endif
#ifndef EG_KC_FEW
#define EG_KC_FEW 0
#endif

/* ---- multiply ----------------------------------------------------------------------------------- */

#ifdef EG_USE_NEON
#include "multiply_neon.h"
#else
/* `depth` k of a tile of `mr` rows and `nv` vectors a row. mr, nv, `transposed`, `copies` and either
 * index_stride or k_stride are constants where this is inlined. */
EG_INLINE void EG_V(multiply_group)(EG_T sum[EG_MR][EG_NV], const EG_R *left, const int64_t index_stride,
                                    const int64_t k_stride, const EG_R *right, const int64_t right_k_stride,
                                    int64_t depth, const eg_prefetch_stream *next, EG_R *copy, const int mr,
                                    const int nv, const bool transposed, const bool streams,
                                    const bool copies) {
    enum { SOON = 12 }; /* k: a transposed left operand touches another distant line with each k */
    EG_PARTS(4)
    for (int64_t k = 0; k < depth; k++) {
        EG_T b[EG_NV];
        if (transposed) __builtin_prefetch(left + (k + SOON) * k_stride, 0, 3);
        if (streams) __builtin_prefetch(next->at + next->offsets[k], 0, 2);
        EG_UNROLL(8)
        for (int j = 0; j < nv; j++) b[j] = EG_V(load)(right + k * right_k_stride + j * EG_LANES);
        EG_UNROLL(8)
        for (int j = 0; copies && j < nv; j++) EG_V(store)(copy + k * EG_NR + j * EG_LANES, b[j]);
        EG_UNROLL(16)
        for (int i = 0; i < mr; i++) {
            const EG_T a = EG_V(splat)(left[i * index_stride + k * k_stride]);
            EG_UNROLL(8)
            for (int j = 0; j < nv; j++) sum[i][j] = EG_V(fma)(a, b[j], sum[i][j]);
        }
    }
}
#endif

/* Prefetches one slice. More at a time would delay the loads of the multiplication. Of rows that begin
 * between cache lines the first line has come with the micro-panel before, and the last one is asked for. */
EG_INLINE const char *EG_V(prefetch_slice)(const eg_prefetch_slice *of, const char *at) {
    enum { BYTES = EG_NV * EG_VECTOR_BYTES };
    for (int64_t rows = of->rows_a_group; rows > 0; rows--, at += of->stride) {
        EG_UNROLL(8)
        for (int64_t j = eg_prefetch_offset(BYTES); j < BYTES; j += 64) __builtin_prefetch(at + j, 0, 2);
    }
    return at;
}

/* Prefetches rows that the epilogue touches, each in as many lines as it may have vectors: a loop over the
 * actual lines would take as long as the multiplication of a small layer. */
EG_INLINE const char *EG_V(prefetch_rows)(const eg_prefetch_rows *of, const char *at, int64_t rows,
                                          const int nv) {
    const int64_t first = eg_prefetch_offset(of->bytes);
    for (; rows > 0; rows--, at += of->stride) {
        EG_UNROLL(8)
        for (int64_t j = 0; j < nv; j++)
            __builtin_prefetch(at + (j * 64 < of->bytes ? j * 64 + first : 0), 0, 2);
    }
    return at;
}

/* A sum with the epilogue of a bias, and perhaps of relu. */
EG_INLINE EG_T EG_V(finish_sum)(EG_T sum, EG_T bias, const bool relu) {
    const EG_T x = sum + bias;
    return relu ? EG_V(unless_nan)(x, EG_V(act_relu)(x), ~(EG_I){0}) : x;
}

EG_INLINE void EG_V(finish_accumulators)(EG_T sum[EG_MR][EG_NV], const EG_R *bias, const bool relu,
                                         const int mr, const int nv) {
    EG_UNROLL(8)
    for (int j = 0; j < nv; j++) {
        const EG_T b = bias != NULL ? EG_V(load)(bias + j * EG_LANES) : EG_V(splat)((EG_R)-0.0);
        EG_UNROLL(16)
        for (int i = 0; i < mr; i++) sum[i][j] = EG_V(finish_sum)(sum[i][j], b, relu);
    }
}

/* Adds the tile's initial values to the accumulators, finishes and stores them. */
EG_INLINE void EG_V(store_accumulators)(EG_T sum[EG_MR][EG_NV], const eg_micro_tile *tile, const int mr,
                                        const int nv) {
    const EG_R *initial = tile->initial;
    const int64_t stride = tile->out_stride;
    EG_R *out = tile->out;
    if (initial != NULL) {
        EG_UNROLL(16)
        for (int i = 0; i < mr; i++) {
            EG_UNROLL(8)
            for (int j = 0; j < nv; j++) sum[i][j] += EG_V(load)(initial + i * EG_NR + j * EG_LANES);
        }
    }
    if (tile->relu) {
        EG_V(finish_accumulators)(sum, tile->bias, true, mr, nv);
    } else if (tile->bias != NULL) {
        EG_V(finish_accumulators)(sum, tile->bias, false, mr, nv);
    }
#define EG_PUT(store)                                                                                        \
    EG_UNROLL(16)                                                                                            \
    for (int i = 0; i < mr; i++, out += stride) {                                                            \
        EG_UNROLL(8)                                                                                         \
        for (int j = 0; j < nv; j++) EG_V(store)(out + j * EG_LANES, sum[i][j]);                             \
    }
    if (tile->non_temporal) {
        EG_PUT(stream)
    } else {
        EG_PUT(store)
    }
#undef EG_PUT
}

/* Prefetches the left operand in place, a group of k of the next tile's rows. */
EG_INLINE const char *EG_V(prefetch_left)(const eg_prefetch_rows *of, const char *at) {
    enum { GROUP = EG_NR * sizeof(EG_R) };
    EG_UNROLL(16)
    for (int i = 0; i < EG_MR; i++) {
        EG_UNROLL(8)
        for (int j = 0; j < GROUP; j += 64) __builtin_prefetch(at + i * of->stride + j, 0, 2);
    }
    return at + GROUP;
}

/* mr, nv, `transposed`, `streams` and `copies` are constants where this is inlined. */
EG_INLINE void EG_V(multiply_nv)(const eg_micro_operand *left, const eg_micro_operand *right, int64_t depth,
                                 const eg_micro_tile *tile, const eg_prefetch_plan *plan, const int mr,
                                 const int nv, const bool transposed, const bool streams, const bool copies) {
    static const int64_t nothing[EG_NR];
    EG_T sum[EG_MR][EG_NV] = {{{0}}};
    const EG_R *a = left->at, *b = right->at;
    const char *out = plan->out.at, *in = plan->in.at;
    const char *next_right = plan->next_right.at, *next_left = plan->next_left.at;
    const char *next_rows = plan->left_rows > 0 ? plan->left.at : NULL;
    EG_R *copy = tile->copy;
    eg_prefetch_stream stream = plan->right_stream;
    if (stream.at == NULL) stream = (eg_prefetch_stream){.at = right->at, .offsets = nothing};
    int64_t rows = plan->rows;
    for (; depth > 0; depth -= EG_NR, a += left->group_stride, b += right->group_stride) {
        next_right = EG_V(prefetch_slice)(&plan->next_right, next_right);
        next_left = EG_V(prefetch_slice)(&plan->next_left, next_left);
        if (!transposed && next_rows != NULL) next_rows = EG_V(prefetch_left)(&plan->left, next_rows);
        const int64_t some = rows < plan->rows_a_group ? rows : plan->rows_a_group;
        if (out != NULL) out = EG_V(prefetch_rows)(&plan->out, out, some, nv);
        if (in != NULL) in = EG_V(prefetch_rows)(&plan->in, in, some, nv);
        rows -= some;
        const int64_t count = depth < EG_NR ? depth : EG_NR;
        if (transposed) {
            EG_V(multiply_group)
            (sum, a, 1, left->k_stride, b, right->k_stride, count, &stream, copy, mr, nv, true, streams,
             copies);
        } else {
            EG_V(multiply_group)
            (sum, a, left->index_stride, 1, b, right->k_stride, count, &stream, copy, mr, nv, false, streams,
             copies);
        }
        if (streams) stream.at += stream.a_group;
        if (copies) copy += EG_NR * EG_NR;
    }
    EG_V(store_accumulators)(sum, tile, mr, nv);
}

/* Each a function of its own, as together they would not have enough registers. */
#define EG_VARIANT(name, ...)                                                                                \
    static __attribute__((noinline)) void EG_V(name)(                                                        \
        const eg_micro_operand *left, const eg_micro_operand *right, int64_t depth,                          \
        const eg_micro_tile *tile, const eg_prefetch_plan *plan) {                                           \
        EG_V(multiply_nv)(left, right, depth, tile, plan, __VA_ARGS__);                                      \
    }
EG_VARIANT(multiply_all, EG_MR, EG_NV, false, false, false)
EG_VARIANT(multiply_turned, EG_MR, EG_NV, true, false, false)
EG_VARIANT(multiply_half, EG_MR / 2, EG_NV, false, EG_VECTOR_BYTES == 64, false)
#if EG_VECTOR_BYTES == 64
EG_VARIANT(multiply_streaming, EG_MR, EG_NV, false, true, false)
EG_VARIANT(multiply_copying, EG_MR, EG_NV, false, true, true)
#endif
#undef EG_VARIANT

/* A narrow last micro-panel takes no more vectors than it has columns for. */
static void EG_V(multiply_narrow)(const eg_micro_operand *left, const eg_micro_operand *right, int64_t depth,
                                  int64_t cols, const eg_micro_tile *tile, const eg_prefetch_plan *plan) {
#define EG_WIDTH(nv)                                                                                         \
    if (left->index_stride == 1) {                                                                           \
        EG_V(multiply_nv)(left, right, depth, tile, plan, EG_MR, nv, true, false, false);                    \
    } else {                                                                                                 \
        EG_V(multiply_nv)(left, right, depth, tile, plan, EG_MR, nv, false, false, false);                   \
    }
#if EG_NV > 3
    if (cols > 2 * EG_LANES) {
        EG_WIDTH(3)
        return;
    }
#endif
#if EG_NV > 2
    if (cols > EG_LANES) {
        EG_WIDTH(2)
        return;
    }
#endif
    (void)cols;
    EG_WIDTH(1)
#undef EG_WIDTH
}

/* The last rows take no more than half a tile where that is enough. */
static void EG_V(multiply)(const eg_micro_operand *left, const eg_micro_operand *right, int64_t depth,
                           int64_t cols, const eg_micro_tile *tile, const eg_prefetch_plan *plan) {
    if (cols <= (EG_NV - 1) * EG_LANES) {
        EG_V(multiply_narrow)(left, right, depth, cols, tile, plan);
    } else if (left->index_stride == 1) {
        EG_V(multiply_turned)(left, right, depth, tile, plan);
#if EG_VECTOR_BYTES == 64
    } else if (tile->copy != NULL) {
        EG_V(multiply_copying)(left, right, depth, tile, plan);
#endif
    } else if (tile->rows <= EG_MR / 2) {
        EG_V(multiply_half)(left, right, depth, tile, plan);
#if EG_VECTOR_BYTES == 64
    } else if (plan->right_stream.at != NULL) {
        EG_V(multiply_streaming)(left, right, depth, tile, plan);
#endif
    } else {
        EG_V(multiply_all)(left, right, depth, tile, plan);
    }
}

#ifdef EG_PACKS_BOTH
#include "packed_template.h"
#endif
#include "few_rows_template.h"
#include "outer_template.h"

/* ---- The peak ----------------------------------------------------------------------------------- */

/* As many independent multiply-adds as the tile has accumulators. */
static double EG_V(peak)(int64_t turns) {
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
    .micro = {.mr = EG_MR,
              .nr = EG_NR,
              .lanes = EG_LANES,
              .rows_at_once = EG_MR,
              .streams = EG_VECTOR_BYTES == 64,
              .depth_at_once = 1,
              .multiply = EG_V(multiply),
#ifdef EG_PACKS_BOTH
              .multiply_packed = EG_V(multiply_packed),
              .step = EG_V(step),
#endif
              .few_rows = EG_V(few_rows),
              .outer = EG_V(outer),
              .stream_row = EG_V(stream_row),
              .peak = EG_V(peak)},
    .pack =
        {
            .unscale = 1,
            .load = EG_V(load_tile),
#ifdef EG_PACKS_BOTH
            .left = EG_V(pack_left),
#endif
        },
    .blocking = {.mc = EG_REAL_BITS == 64 ? 128 : 192,
                 .nc = 240,
                 .kc = EG_KC,
                 .kc_single_pass = EG_KC_SINGLE_PASS,
                 .kc_fused = EG_KC_FUSED,
                 .kc_few = EG_KC_FEW,
                 .kc_multiple = EG_NR,
                 .fused_max_rows = 256,
                 .non_temporal_below = EG_VECTOR_BYTES == 64 ? 128 : 0,
                 .copied_below = EG_VECTOR_BYTES >= 32 ? 17 : 0},
    .epilogue = {EG_ELEMENTWISE_FUNCTIONS},
};

#undef EG_PACKS_BOTH
#undef EG_KC
#undef EG_KC_SINGLE_PASS
#undef EG_KC_FUSED
#undef EG_KC_FEW
#include "template_end.h"
