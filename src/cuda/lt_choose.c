/* SPDX-License-Identifier: Apache-2.0 */
/* Of the candidates of cublasLt's heuristics the first, but for what was measured: all candidates of 2327
 * products of layers drawn with two seeds, on an H200 with cublasLt 13.1, and the first eight of 3132, on an
 * H100. What half of the products alone bore out was not kept. */
#include "lt_choose.h"

#include <cublasLt.h>
#include <math.h>
#include <stddef.h>

#include "epigrad/epigrad.h"

typedef eg_cuda_lt_key lt_key;
typedef eg_cuda_lt_candidate lt_candidate;

/* Internal numbers of the library's kernels. */
enum {
    LT_OUTER = 12,      /* outer products */
    LT_VECTOR = 13,     /* a matrix times a vector */
    LT_SIMT_F32 = 20,   /* one or few blocks a multiprocessor */
    LT_SIMT_F64 = 22,   /* without the matrix unit */
    LT_SMALL = 23,      /* small tiles, of any alignment */
    LT_ODD = 24,        /* large ones, of lines that begin anywhere */
    LT_MATRIX_F64 = 35, /* by the matrix unit */
    LT_FFMA = 55,       /* f32, smaller blocks */
    LT_HOPPER = 66
};

static bool is_narrow(int32_t dtype) { return dtype == EG_F16 || dtype == EG_BF16; }

/* ---- What may be taken ---------------------------------------------------------------------------- */

bool eg_cuda_lt_is_whole(const eg_cuda_lt_key *key) {
    return is_narrow(key->result_dtype) && key->epilogue != CUBLASLT_EPILOGUE_DEFAULT;
}

bool eg_cuda_lt_is_stream(const eg_cuda_lt_key *key) {
    const int64_t most_cols = 256, least_numbers = 16 << 20;
    return is_narrow(key->dtype) && !eg_cuda_lt_is_whole(key) && key->cols <= most_cols &&
           key->cols <= key->rows && key->rows >= least_numbers / key->depth;
}

bool eg_cuda_lt_is_fast(const eg_cuda_lt_candidate *x) { return x->id == LT_HOPPER; }

/* Asked by the reduction mask for none that splits the depth, the heuristics name kernels that are up to 300
 * times as slow. Of kernels with ReLU, those for Hopper pass a NaN on. */
bool eg_cuda_lt_keeps(const eg_cuda_lt_key *key, const eg_cuda_lt_candidate *x) {
    if (!eg_cuda_lt_is_whole(key)) return true;
    if ((key->epilogue & CUBLASLT_EPILOGUE_RELU) != 0 && x->id != LT_HOPPER) return false;
    return x->splits <= 1 && x->reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

/* ---- Candidates of a kind ------------------------------------------------------------------------- */

/* What a candidate is asked to be; 0: anything. */
typedef struct lt_wanted {
    uint32_t id, tile, stages, custom;
    float least_waves, most_waves;
    bool whole; /* the depth is not split */
} lt_wanted;

static bool is_split(const lt_candidate *x) { return x->splits > 1; }

static bool is_wanted(const lt_wanted *wanted, const lt_candidate *x) {
    return (wanted->id == 0 || wanted->id == x->id) && (wanted->tile == 0 || wanted->tile == x->tile) &&
           (wanted->stages == 0 || wanted->stages == x->stages) &&
           (wanted->custom == 0 || wanted->custom == x->custom) && x->waves >= wanted->least_waves &&
           (wanted->most_waves == 0 || x->waves <= wanted->most_waves) && !(wanted->whole && is_split(x));
}

/* NULL where there is none. */
static const lt_candidate *first_of(lt_wanted wanted, int count, const lt_candidate *x) {
    for (int i = 0; i < count; i++) {
        if (is_wanted(&wanted, &x[i])) return &x[i];
    }
    return NULL;
}

/* Splits parts of few terms, or is a kernel that is up to 13 times as slow as others of any alignment. */
static bool is_bad(const lt_key *key, const lt_candidate *x) {
    static const uint32_t slow[] = {41, 42, 56};
    const uint32_t least_terms = 16;
    for (size_t i = 0; i < sizeof slow / sizeof *slow; i++) {
        if (x->id == slow[i]) return true;
    }
    return is_split(x) && (uint64_t)key->depth / least_terms < x->splits;
}

/* ---- Rules ---------------------------------------------------------------------------------------- */

static bool is_vector(const lt_key *key) { return key->rows == 1 || key->cols == 1; }

/* Sums of one term. f32 that is added to is faster by tiles. */
static const lt_candidate *outer(const lt_key *key, int count, const lt_candidate *x) {
    if (key->depth != 1 || (key->accumulate && key->dtype != EG_F64)) return NULL;
    return first_of((lt_wanted){.id = LT_OUTER, .whole = !key->accumulate}, count, x);
}

/* Where sums are short and results many, tiles do little but store. Of the kernels that do it best, the
 * first that is a candidate: the heuristics' own choice takes 11 to 19% longer than the best of f32. */
static const lt_candidate *storing(const lt_key *key, int count, const lt_candidate *x) {
    static const struct {
        int32_t dtype;
        uint8_t accumulate;
        uint32_t id, tile, stages;
    } best[] = {
        {EG_F32, 0, LT_SIMT_F32, CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_MATMUL_STAGES_8x4},
        {EG_F32, 0, LT_SIMT_F32, CUBLASLT_MATMUL_TILE_128x64, CUBLASLT_MATMUL_STAGES_8x5},
        {EG_F32, 0, LT_SIMT_F32, CUBLASLT_MATMUL_TILE_128x32, CUBLASLT_MATMUL_STAGES_8x5},
        {EG_F32, 1, LT_SIMT_F32, CUBLASLT_MATMUL_TILE_128x32, CUBLASLT_MATMUL_STAGES_8x5},
        {EG_F64, 0, LT_MATRIX_F64, CUBLASLT_MATMUL_TILE_64x64, CUBLASLT_MATMUL_STAGES_16x4},
        {EG_F64, 1, LT_SIMT_F64, CUBLASLT_MATMUL_TILE_64x32, CUBLASLT_MATMUL_STAGES_16x4},
        {EG_F64, 1, LT_MATRIX_F64, CUBLASLT_MATMUL_TILE_64x32, CUBLASLT_MATMUL_STAGES_32x3},
    };
    const int64_t most_depth = 24;
    const double fewest_results = 1 << 20;
    const float little_more = 1.2F; /* waves take as long as two */
    if (key->depth < 2 || key->depth > most_depth || is_vector(key) ||
        (double)key->rows * (double)key->cols < fewest_results)
        return NULL;
    for (size_t i = 0; i < sizeof best / sizeof *best; i++) {
        if (best[i].dtype != key->dtype || best[i].accumulate != key->accumulate) continue;
        const lt_wanted wanted = {
            .id = best[i].id, .tile = best[i].tile, .stages = best[i].stages, .whole = true};
        const lt_candidate *found = first_of(wanted, count, x);
        if (found != NULL && (found->waves <= 1 || found->waves >= little_more)) return found;
    }
    return NULL;
}

/* d_b of f64 that is stored, of more rows: tiles that are twice as large, in fewer stages, take 0.93 of the
 * time. */
static const lt_candidate *storing_f64(const lt_key *key, int count, const lt_candidate *x) {
    const int64_t least_depth = 25, most_depth = 300;
    const lt_wanted wanted = {.id = LT_MATRIX_F64,
                              .tile = CUBLASLT_MATMUL_TILE_128x64,
                              .stages = CUBLASLT_MATMUL_STAGES_16x3,
                              .whole = true};
    if (key->dtype != EG_F64 || key->accumulate || key->transposed[0] || !key->transposed[1] ||
        key->depth < least_depth || key->depth > most_depth || is_vector(key))
        return NULL;
    return first_of(wanted, count, x);
}

/* A vector kernel that leaves nine tenths of the device idle, or half of it where lines follow the result, or
 * one of long blocks where there are short ones. */
static const lt_candidate *better_vector(const lt_key *key, const lt_candidate *first, int count,
                                         const lt_candidate *x) {
    const uint32_t long_blocks = 11, short_blocks = 75, high = 100, low = 92; /* custom options */
    lt_wanted wanted = {.id = LT_VECTOR, .whole = true};
    if (first->id != LT_VECTOR) return NULL;
    if (first->waves < 0.1F) {
        wanted.least_waves = 0.2F;
    } else if (first->custom == high && !key->transposed[0] && first->waves < 0.5F) {
        wanted.custom = low;
    } else if (first->custom == long_blocks) {
        wanted.custom = short_blocks, wanted.least_waves = 2, wanted.most_waves = 16;
    } else {
        return NULL;
    }
    return first_of(wanted, count, x);
}

/* Of the matrix unit. Tiles of 128 columns hide the stores of one under the products of the next, if they do
 * not make more of the result for that, with what is outside of it; low ones are for few columns. */
static const lt_candidate *better_tile(const lt_key *key, const lt_candidate *first, int count,
                                       const lt_candidate *x) {
    static const struct {
        uint32_t tile;
        float results;
    } large[] = {{CUBLASLT_MATMUL_TILE_128x256, 128 * 256}, {CUBLASLT_MATMUL_TILE_256x128, 256 * 128},
                 {CUBLASLT_MATMUL_TILE_192x128, 192 * 128}, {CUBLASLT_MATMUL_TILE_128x192, 128 * 192},
                 {CUBLASLT_MATMUL_TILE_192x192, 192 * 192}, {CUBLASLT_MATMUL_TILE_320x128, 320 * 128},
                 {CUBLASLT_MATMUL_TILE_448x64, 448 * 64}},
      better[] = {{CUBLASLT_MATMUL_TILE_128x128, 128 * 128}, {CUBLASLT_MATMUL_TILE_128x160, 128 * 160}};
    const int64_t most_depth = 8192;
    const float most = 1.1F;
    if (first->tile == CUBLASLT_MATMUL_TILE_8x64)
        return first_of((lt_wanted){.tile = CUBLASLT_MATMUL_TILE_64x8, .whole = true}, count, x);
    if (is_split(first) || key->depth > most_depth) return NULL;
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        for (size_t j = 0; j < sizeof better / sizeof *better && first->tile == large[i].tile; j++) {
            const lt_candidate *found =
                first_of((lt_wanted){.tile = better[j].tile, .whole = true}, count, x);
            if (found == NULL) continue;
            return ceilf(found->waves) * better[j].results <= most * ceilf(first->waves) * large[i].results
                       ? found
                       : NULL;
        }
    }
    return NULL;
}

/* What memory takes longest for is read at once by tiles of 64 rows that are as wide as the result and fill
 * the device once: 7% sooner than by parts of the depth. */
static const lt_candidate *streaming(const lt_key *key, const lt_candidate *first, int count,
                                     const lt_candidate *x) {
#define WIDE(n) CUBLASLT_MATMUL_TILE_64x##n
    static const uint32_t tile[] = {
        WIDE(8),   WIDE(16),  WIDE(24),  WIDE(32),  WIDE(40),  WIDE(48),  WIDE(56),  WIDE(64),
        WIDE(72),  WIDE(80),  WIDE(88),  WIDE(96),  WIDE(104), WIDE(112), WIDE(120), WIDE(128),
        WIDE(136), WIDE(144), WIDE(152), WIDE(160), WIDE(168), WIDE(176), WIDE(184), WIDE(192),
        WIDE(200), WIDE(208), WIDE(216), WIDE(224), WIDE(232), WIDE(240), WIDE(248), WIDE(256)};
#undef WIDE
    const int tiles = sizeof tile / sizeof *tile, fits = (int)((key->cols - 1) / 8);
    if (!eg_cuda_lt_is_stream(key) || first->id != LT_HOPPER || !is_split(first)) return NULL;
    for (int i = fits; i < tiles && i < fits + 2; i++) {
        const lt_wanted wanted = {
            .id = LT_HOPPER, .tile = tile[i], .least_waves = 0.4F, .most_waves = 1, .whole = true};
        const lt_candidate *found = first_of(wanted, count, x);
        if (found != NULL) return found;
    }
    return NULL;
}

/* Split tiles of f32 that leave half of the device idle, where others fill it by less than twice the parts,
 * or by parts that are still long; and large ones that leave no room for another block on a multiprocessor.
 */
static const lt_candidate *better_split(const lt_key *key, const lt_candidate *first, int count,
                                        const lt_candidate *x) {
    const int64_t tile = 128, long_part = 512;
    lt_wanted wanted = {.id = first->id};
    if (!is_split(first) || key->rows < tile || key->cols < tile) return NULL;
    if (first->id == LT_SIMT_F32 && first->waves < 0.5F) {
        wanted.least_waves = 0.75F, wanted.most_waves = 1;
    } else if (first->id == LT_FFMA && first->tile == CUBLASLT_MATMUL_TILE_128x256) {
        wanted.tile = CUBLASLT_MATMUL_TILE_128x128;
    } else {
        return NULL;
    }
    const lt_candidate *found = first_of(wanted, count, x);
    if (found == NULL) return NULL;
    const bool is_long = key->depth / found->splits >= long_part;
    const uint32_t most = is_long ? 2 * first->splits + 1 : 2 * first->splits - 1;
    return found->splits <= most ? found : NULL;
}

/* Of f32 in columns, both operands: one large block a multiprocessor takes 6 to 20% longer than two smaller.
 */
static const lt_candidate *two_blocks(const lt_key *key, const lt_candidate *first, int count,
                                      const lt_candidate *x) {
    if (first->id != LT_SIMT_F32 || first->tile != CUBLASLT_MATMUL_TILE_256x128 || is_split(first) ||
        key->transposed[0] || key->transposed[1])
        return NULL;
    return first_of((lt_wanted){.id = LT_FFMA, .tile = CUBLASLT_MATMUL_TILE_128x128, .whole = true}, count,
                    x);
}

/* d_b of f32 that is stored, of some hundred rows: large tiles take 0.89 to 0.97 of the time of small ones;
 * where it is added to, these are the faster by as much. */
static const lt_candidate *large_blocks(const lt_key *key, const lt_candidate *first, int count,
                                        const lt_candidate *x) {
    static const uint32_t tiles[] = {CUBLASLT_MATMUL_TILE_256x128, CUBLASLT_MATMUL_TILE_128x128,
                                     CUBLASLT_MATMUL_TILE_128x64};
    const int64_t least_depth = 96;
    const float filled = 1.5F;
    const lt_candidate *found = NULL;
    if (key->dtype != EG_F32 || key->accumulate || !key->transposed[1] || key->depth < least_depth ||
        first->id != LT_FFMA || first->tile != CUBLASLT_MATMUL_TILE_64x64 || is_split(first) ||
        first->waves < filled)
        return NULL;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        const lt_candidate *other =
            first_of((lt_wanted){.id = LT_SIMT_F32, .tile = tiles[i], .whole = true}, count, x);
        if (other != NULL && (found == NULL || other < found)) found = other;
    }
    return found;
}

/* A short depth has no use for many stages. */
static const lt_candidate *fewest_stages(const lt_key *key, const lt_candidate *first, int count,
                                         const lt_candidate *x) {
    const lt_candidate *fewest = first;
    const int64_t most_depth = 256;
    if (key->depth > most_depth || first->id != LT_SMALL || is_split(first)) return first;
    for (int i = 0; i < count; i++) {
        if (x[i].id == LT_SMALL && !is_split(&x[i]) && x[i].stages < fewest->stages) fewest = &x[i];
    }
    return fewest;
}

/* Of 16 bits in lines that begin anywhere. What does not read the result has no use for small tiles that fill
 * the device, which read operands again and again; a short sum that is added to is the faster for them. Large
 * tiles of 256 rows are 5 to 10% faster than of 128, but for d_b, if there are no more rounds of them. */
static const lt_candidate *better_odd(const lt_key *key, const lt_candidate *chosen, int count,
                                      const lt_candidate *x) {
    const int64_t short_depth = 48;
    const float filled = 0.8F;
    const bool large = chosen->tile == CUBLASLT_MATMUL_TILE_128x128 && !is_split(chosen);
    const bool small = chosen->tile == CUBLASLT_MATMUL_TILE_64x64 ||
                       chosen->tile == CUBLASLT_MATMUL_TILE_32x32 ||
                       chosen->tile == CUBLASLT_MATMUL_TILE_16x16;
    lt_wanted wanted = {.id = LT_ODD};
    if (chosen->id != LT_ODD) return NULL;
    if (small && !key->accumulate && chosen->waves >= filled) {
        wanted.tile = CUBLASLT_MATMUL_TILE_128x128;
    } else if (large && key->accumulate && key->depth <= short_depth) {
        wanted.tile = CUBLASLT_MATMUL_TILE_64x64, wanted.whole = true;
    } else if (large && !key->transposed[1] && chosen->waves >= 1) {
        wanted.tile = CUBLASLT_MATMUL_TILE_256x128, wanted.whole = true;
        wanted.most_waves = ceilf(chosen->waves);
    } else {
        return NULL;
    }
    return first_of(wanted, count, x);
}

/* ---- One tile instead of another ------------------------------------------------------------------ */

enum lt_when {
    LT_ALWAYS,
    LT_ADDED,    /* to what is there */
    LT_ONE_WAVE, /* of the other tile's at most, */
    LT_MORE_WAVES,
    LT_FILLS,    /* whose last wave is the fuller one, */
    LT_FILLS_NOT /* or is not */
};

typedef struct lt_instead {
    uint32_t id, tile, custom; /* of what would be taken */
    enum lt_when when;
    lt_wanted other;
} lt_instead;

#define TILE(n) CUBLASLT_MATMUL_TILE_##n
#define WHOLE(kernel, n)                                                                                     \
    { .id = (kernel), .tile = TILE(n), .whole = true }
#define HOPPER_TILE(n, shape)                                                                                \
    { .id = LT_HOPPER, .tile = TILE(n), .custom = (shape), .whole = true }

/* Where both are candidates, and neither splits the depth, the other takes 0.90 to 0.98 of the time in the
 * mean, less in each half of the products that were measured, and is faster on seven of ten at least. */
static const lt_instead better_ones[] = {
    {LT_FFMA, TILE(64x64), 0, LT_MORE_WAVES, WHOLE(LT_SIMT_F32, 128x64)},
    {LT_FFMA, TILE(64x32), 0, LT_FILLS_NOT, WHOLE(LT_FFMA, 64x64)},
    {LT_SIMT_F32, TILE(256x128), 0, LT_ADDED, WHOLE(LT_SIMT_F32, 128x64)},
    {LT_SIMT_F32, TILE(128x32), 0, LT_ONE_WAVE, WHOLE(LT_SIMT_F32, 128x64)},
    {LT_HOPPER, TILE(96x64), 2, LT_FILLS, HOPPER_TILE(64x64, 3)},
    {LT_HOPPER, TILE(96x128), 0, LT_ALWAYS, HOPPER_TILE(192x64, 3)},
    {LT_HOPPER, TILE(128x160), 1, LT_FILLS, HOPPER_TILE(320x128, 5)},
    {LT_HOPPER, TILE(128x64), 3, LT_ALWAYS, HOPPER_TILE(96x64, 2)},
    {LT_HOPPER, TILE(128x64), 3, LT_ALWAYS, HOPPER_TILE(64x96, 3)},
    {LT_HOPPER, TILE(64x40), 3, LT_ALWAYS, HOPPER_TILE(32x64, 2)},
    {LT_HOPPER, TILE(64x40), 3, LT_ALWAYS, HOPPER_TILE(64x32, 3)},
    {LT_HOPPER, TILE(64x96), 3, LT_ALWAYS, HOPPER_TILE(64x64, 3)},
    {LT_HOPPER, TILE(64x32), 3, LT_ALWAYS, HOPPER_TILE(32x64, 0)},
    {LT_MATRIX_F64, TILE(64x128), 0, LT_MORE_WAVES, WHOLE(LT_MATRIX_F64, 128x64)},
    {LT_MATRIX_F64, TILE(128x64), 0, LT_ONE_WAVE, WHOLE(LT_MATRIX_F64, 64x64)},
};
#undef TILE
#undef WHOLE
#undef HOPPER_TILE

static float fullness(const lt_candidate *x) { return x->waves > 0 ? x->waves / ceilf(x->waves) : 1; }

static bool holds(enum lt_when when, const lt_key *key, const lt_candidate *x, const lt_candidate *other) {
    switch (when) {
    case LT_ALWAYS:
        return true;
    case LT_ADDED:
        return key->accumulate != 0;
    case LT_ONE_WAVE:
        return other->waves <= 1;
    case LT_MORE_WAVES:
        return other->waves > 1;
    case LT_FILLS:
        return fullness(other) > fullness(x);
    case LT_FILLS_NOT:
        return fullness(other) <= fullness(x);
    }
    return false;
}

static const lt_candidate *better_one(const lt_key *key, const lt_candidate *chosen, int count,
                                      const lt_candidate *x) {
    if (is_split(chosen)) return NULL;
    for (size_t i = 0; i < sizeof better_ones / sizeof *better_ones; i++) {
        const lt_instead *rule = &better_ones[i];
        if (rule->id != chosen->id || rule->tile != chosen->tile || rule->custom != chosen->custom) continue;
        const lt_candidate *other = first_of(rule->other, count, x);
        if (other != NULL && holds(rule->when, key, chosen, other)) return other;
    }
    return NULL;
}

/* By rules for a kind of product, or for what the heuristics name first. */
static const lt_candidate *by_kind(const lt_key *key, int count, const lt_candidate *x) {
    const lt_candidate *first = x, *other = outer(key, count, x);
    if (other == NULL) other = storing(key, count, x);
    if (other == NULL) other = storing_f64(key, count, x);
    if (other != NULL) return other;
    for (int i = 0; i < count; i++) {
        if (is_bad(key, &x[i])) continue;
        first = &x[i];
        break;
    }
    other = better_vector(key, first, count, x);
    if (other == NULL && is_narrow(key->dtype)) other = better_tile(key, first, count, x);
    if (other == NULL) other = streaming(key, first, count, x);
    if (other == NULL) other = better_split(key, first, count, x);
    if (other == NULL) other = two_blocks(key, first, count, x);
    if (other == NULL) other = large_blocks(key, first, count, x);
    const lt_candidate *chosen = other != NULL ? other : fewest_stages(key, first, count, x);
    other = better_odd(key, chosen, count, x);
    return other != NULL ? other : chosen;
}

int eg_cuda_lt_choose(const eg_cuda_lt_key *key, int count, const eg_cuda_lt_candidate *x) {
    const lt_candidate *chosen = by_kind(key, count, x), *other = better_one(key, chosen, count, x);
    return (int)((other != NULL ? other : chosen) - x);
}
