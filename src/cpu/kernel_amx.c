/* AMX (Sapphire Rapids and later): products of bf16 on the tile unit, 16 x 16 x 32 an instruction, and
 * numbers of more bits as sums of bf16 terms.
 *
 *   amx_bf16x1   one term: bf16 itself
 *   amx_f16x4    two terms, all four products: f16 exactly
 *   amx_f32x3    two terms, three products: 16 bits, for EG_MATH_FAST
 *   amx_f32x6    three terms, the six products above 2^-24: as good as f32 multiply-adds. The other three add
 *                nothing that an f32 sum would keep.
 *
 * A block of 32 x 32 results takes four tile registers, each operand two. Products that share an operand
 * follow each other, smallest first: six products of three terms take 14 tile loads (8 cycles each) for
 * 24 multiplications (16 cycles each). */
#include <immintrin.h>
#include <limits.h>

#include "half.h"
#include "kernel.h"
#include "tile.h"

#define EG_VECTOR_BYTES 64
#define EG_KERNEL       amx
#define EG_REAL_BITS    32
#define EG_MR           32
#define EG_NV           2
#define EG_SCALED
#ifndef EG_EMULATE_TILES
#define EG_BF16_INSTRUCTIONS
#endif
#include "tile_template.h"

/* ---- multiply ----------------------------------------------------------------------------------- */

enum { TILE_BYTES = 1024, SUM_STRIDE = EG_CELL * sizeof(float), PAIRS_STRIDE = 64 };

/* tmm0..3: the sums, two by two; tmm4, 5: the left operand's tiles, one below the other; tmm6, 7: the
 * right operand's, side by side. The right one's strip is read again with each tile of the block: it is to
 * stay in L1, where the left one's would take its place. */
#define LEFT(term)                                                                                           \
    EG_TILE_LOAD_PASSING(4, left + (term)*EG_CELL_TERM_BYTES, PAIRS_STRIDE);                                 \
    EG_TILE_LOAD_PASSING(5, left + (term)*EG_CELL_TERM_BYTES + TILE_BYTES, PAIRS_STRIDE);
#define RIGHT(term)                                                                                          \
    EG_TILE_LOAD(6, right + (term)*EG_CELL_TERM_BYTES, PAIRS_STRIDE);                                        \
    if (wide) EG_TILE_LOAD(7, right + (term)*EG_CELL_TERM_BYTES + TILE_BYTES, PAIRS_STRIDE);
#define DOT_ALONE                                                                                            \
    EG_TILE_DOT(0, 4, 6);                                                                                    \
    EG_TILE_DOT(2, 5, 6);                                                                                    \
    if (wide) {                                                                                              \
        EG_TILE_DOT(1, 4, 7);                                                                                \
        EG_TILE_DOT(3, 5, 7);                                                                                \
    }
#define DOT                                                                                                  \
    DOT_ALONE                                                                                                \
    MEANWHILE

/* Where a result is f32 itself, every run of terms is summed from zero and its sum added to the tile, here:
 * errors grow with the square root of a run and of their number, not of the depth. The unit for tiles is on
 * its next run meanwhile. */
enum { RUN_TERMS = 128, ROWS_A_CELL = EG_CELL / (RUN_TERMS / EG_CELL) };

EG_INLINE void add_sums(eg_held *held, int64_t rows) {
    for (const int64_t end = held->row + rows; held->row < end && held->row < EG_CELL; held->row++) {
        float *to = held->tile + held->row * EG_CELL;
        const float *from = held->sums + held->row * EG_CELL;
        _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), _mm512_load_ps(from)));
        _mm512_store_ps(to + 16, _mm512_add_ps(_mm512_load_ps(to + 16), _mm512_load_ps(from + 16)));
    }
}

/* The sums in a register give way to those of the next tile or run. The unit waits for a store, unless a
 * multiplication with another register stands between it and the next. */
#define TURN(t, at)                                                                                          \
    if (held->to != NULL) EG_TILE_STORE(t, held->to + (at), SUM_STRIDE);                                     \
    if (before != NULL) {                                                                                    \
        EG_TILE_LOAD(t, before + (at), SUM_STRIDE);                                                          \
    } else {                                                                                                 \
        EG_TILE_ZERO(t);                                                                                     \
    }
#define TURN_0 TURN(0, 0)
#define TURN_1 TURN(1, 64)
#define TURN_2 TURN(2, 16 * SUM_STRIDE)
#define TURN_3 TURN(3, 16 * SUM_STRIDE + 64)
#define FIRST_DOT                                                                                            \
    TURN_0 EG_TILE_DOT(0, 4, 6);                                                                             \
    TURN_2 EG_TILE_DOT(2, 5, 6);                                                                             \
    TURN_1 if (wide) EG_TILE_DOT(1, 4, 7);                                                                   \
    TURN_3 if (wide) EG_TILE_DOT(3, 5, 7);                                                                   \
    turned(held);

EG_INLINE void turned(eg_held *held) {
    if (held->to == (char *)held->sums) held->row = 0;
    held->to = NULL;
}

/* With no multiplication to come. */
static void settle(eg_held *held) {
    const char *const before = NULL;
    TURN_0 TURN_2 TURN_1 TURN_3 turned(held);
    add_sums(held, EG_CELL);
}

/* Tile loads wake no prefetcher: what comes next is asked for into L2, a few lines at a time. */
#define ASK(at) __builtin_prefetch(at, 0, 2)

EG_INLINE const char *ask(const char *at, int64_t groups, const int lines) {
    for (; groups > 0; groups--, at += lines * 64) {
        EG_UNROLL(4)
        for (int i = 0; i < lines; i++) ASK(at + i * 64);
    }
    return at;
}

/* Rows of a tile, of two lines at most. */
EG_INLINE void ask_rows(eg_asked *asked, int64_t *left, int64_t rows) {
    for (; rows > 0 && *left > 0; rows--, --*left, asked->at += asked->stride) {
        ASK(asked->at);
        ASK(asked->at + asked->bytes - 1);
    }
}

EG_INLINE void ask_long_rows(eg_asked *asked, int64_t *left, int64_t rows) {
    for (; rows > 0 && *left > 0; rows--, --*left, asked->at += asked->stride)
        for (int64_t i = 0; i < asked->bytes; i += 64) ASK(asked->at + i);
}

EG_INLINE int64_t share(int64_t all, int64_t turns) { return turns > 0 ? (all + turns - 1) / turns : 0; }

/* Four tile multiplications take 64 cycles, in which some 60 other instructions cost nothing, if they stand
 * right behind them: of 200 behind six times as many, most are waited for. So each DOT has its share of what
 * is asked for and added up, and of the steps that end the tile before. */
#define MEANWHILE                                                                                            \
    next_right = ask(next_right, rights, LINES);                                                             \
    next_left = ask(next_left, lefts, LINES);                                                                \
    ask_rows(&ahead.out, &ahead.rows, rows);                                                                 \
    if (b_rows > 0) ask_long_rows(&ahead.b, &ahead.b_rows, b_rows);                                          \
    if (runs) add_sums(held, share(ROWS_A_CELL, DOTS));                                                      \
    for (int64_t i = 0; i < steps; i++) ahead.meanwhile(ahead.of);

#define NEXT_CELL(TERMS)                                                                                     \
    depth -= EG_CELL, left += (TERMS)*EG_CELL_TERM_BYTES, right += (TERMS)*EG_CELL_TERM_BYTES

/* A unit that never pauses is clocked lower for some milliseconds: with fewer DOTs a tile, that costs more
 * than the stores that hide. Measured: docs/cpu.md. */
enum { HELD_FROM = 12 };

/* RUN terms are summed from zero, or, without runs, all of them onto the tile. A narrow block has no columns
 * beyond 16: half of the work. The products of a cell are LOADS DOT REST. */
#define MULTIPLY(name, TERMS, RUN, DOTS_A_CELL, LOADS, REST)                                                 \
    EG_INLINE void name##_cells(const char *left, const char *right, int64_t depth, const eg_sums *sums,     \
                                eg_ahead ahead, const bool wide) {                                           \
        enum { DOTS = DOTS_A_CELL, LINES = DOTS == 1 ? 4 : 2 };                                              \
        const bool runs = (RUN) > 0;                                                                         \
        const char *const before = runs ? NULL : sums->before;                                               \
        const int64_t dots = (depth + EG_CELL - 1) / EG_CELL * DOTS;                                         \
        const int64_t rights = share((int64_t)ahead.right_bytes, dots * LINES * 64);                         \
        const int64_t lefts = share((int64_t)ahead.left_bytes, dots * LINES * 64);                           \
        const int64_t rows = ahead.out.at != NULL ? share(ahead.rows, dots) : 0;                             \
        const int64_t b_rows = share(ahead.b_rows, dots), steps = share(ahead.steps, dots);                  \
        const char *next_right = ahead.right, *next_left = ahead.left;                                       \
        eg_held *held = sums->held;                                                                          \
        bool accumulate = sums->before != NULL;                                                              \
        for (bool first = true; depth > 0; first = false, accumulate = true) {                               \
            const int64_t end = runs ? depth - (RUN) : 0;                                                    \
            LOADS FIRST_DOT if (runs && first)                                                               \
                add_sums(held, EG_CELL); /* which the steps that end that tile read */                       \
            MEANWHILE REST NEXT_CELL(TERMS);                                                                 \
            for (; depth > 0 && depth > end; NEXT_CELL(TERMS)) {                                             \
                LOADS DOT REST                                                                               \
            }                                                                                                \
            if (runs) add_sums(held, EG_CELL);                                                               \
            held->to = runs && accumulate ? (char *)held->sums : sums->to;                                   \
            held->tile = sums->to;                                                                           \
        }                                                                                                    \
        if (dots < HELD_FROM) settle(held);                                                                  \
    }                                                                                                        \
    static void name(const eg_factor *left, const eg_factor *right, int64_t depth, int64_t cols,             \
                     const eg_sums *sums, const eg_ahead *ahead) {                                           \
        if (depth == 0) {                                                                                    \
            settle(sums->held);                                                                              \
            memset(sums->to, 0, EG_CELL *SUM_STRIDE);                                                        \
        } else if (cols > EG_TILE_WORDS) {                                                                   \
            name##_cells(left->at, right->at, depth, sums, *ahead, true);                                    \
        } else {                                                                                             \
            name##_cells(left->at, right->at, depth, sums, *ahead, false);                                   \
        }                                                                                                    \
    }

MULTIPLY(multiply_x1, 1, 0, 1, LEFT(0) RIGHT(0), )
/* middle·high, high·high, high·middle */
MULTIPLY(multiply_x3, 2, 0, 3, LEFT(1) RIGHT(0), LEFT(0) DOT RIGHT(1) DOT)
/* middle·middle, middle·high, high·high, high·middle */
MULTIPLY(multiply_x4, 2, 0, 4, LEFT(1) RIGHT(1), RIGHT(0) DOT LEFT(0) DOT RIGHT(1) DOT)
/* high·low, high·middle, middle·middle, middle·high, high·high, low·high */
MULTIPLY(multiply_x6, 3, RUN_TERMS, 6, LEFT(0) RIGHT(2),
         RIGHT(1) DOT LEFT(1) DOT RIGHT(0) DOT LEFT(0) DOT LEFT(2) DOT)

/* ---- split -------------------------------------------------------------------------------------- */

static const float scale = 0x1p24F;
static const uint32_t largest = 0x4c800000; /* the bits of 2^26 */

/* To the nearest bf16, in the high half of each lane. Halves go away from zero: what is lost is in the next
 * term. */
EG_INLINE __m512i nearest(__m512i x) {
    return _mm512_and_si512(_mm512_add_epi32(x, _mm512_set1_epi32(0x8000)),
                            _mm512_set1_epi32((int)0xffff0000));
}

/* The terms of 16 numbers, each in the high half of its lane. True lanes of the result do not fit. */
EG_INLINE __mmask16 terms_of(__m512 x, __m512i *term, const int terms) {
    const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(EG_ABS_MASK));
    x = _mm512_mul_ps(x, _mm512_set1_ps(scale));
    EG_UNROLL(3)
    for (int t = 0; t < terms; t++) {
        term[t] = nearest(_mm512_castps_si512(x));
        x = _mm512_sub_ps(x, _mm512_castsi512_ps(term[t]));
    }
    return _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32((int)largest));
}

/* The pair of a lane: `first` in its low half, `second` in its high half. */
EG_INLINE __m512i pair(__m512i first, __m512i second) {
    return _mm512_or_si512(_mm512_srli_epi32(first, 16), second);
}

EG_INLINE void put(char *cell, int term, int tile, int64_t row, __m512i words) {
    _mm512_store_si512(cell + term * EG_CELL_TERM_BYTES + tile * TILE_BYTES + row * 64, words);
}

/* The numbers that are split: rows x cols of them, and zeros up to a cell. */
typedef struct source {
    const eg_rows *from;
    int64_t rows, cols;
} source;

EG_INLINE uint32_t below(int64_t count) { return count >= 32 ? ~0U : count > 0 ? (1U << count) - 1 : 0; }

/* Numbers [col, col + 16) of a row. */
EG_INLINE __m512 numbers(const source *x, int64_t row, int64_t col, const eg_dtype dtype) {
    const uint32_t wanted = row < x->rows ? below(x->cols - col) : 0;
    return (__m512)load_part_amx(x->from->at + row * x->from->step + col * (int64_t)eg_size_of(dtype), dtype,
                                 (__mmask16)wanted);
}

/* Rows p and p + 16, of which the left and the right half are a pair across, and one below the other a pair
 * down. */
EG_INLINE bool split_rows(const source *x, int64_t p, char *across, char *down, const int terms,
                          const eg_dtype dtype) {
    __m512i top_left[3], top_right[3], low_left[3], low_right[3];
    const __mmask16 unfit = terms_of(numbers(x, p, 0, dtype), top_left, terms) |
                            terms_of(numbers(x, p, 16, dtype), top_right, terms) |
                            terms_of(numbers(x, p + 16, 0, dtype), low_left, terms) |
                            terms_of(numbers(x, p + 16, 16, dtype), low_right, terms);
    EG_UNROLL(3)
    for (int t = 0; t < terms; t++) {
        if (across != NULL) {
            put(across, t, 0, p, pair(top_left[t], top_right[t]));
            put(across, t, 1, p, pair(low_left[t], low_right[t]));
        }
        if (down != NULL) {
            put(down, t, 0, p, pair(top_left[t], low_left[t]));
            put(down, t, 1, p, pair(top_right[t], low_right[t]));
        }
    }
    return unfit == 0;
}

/* A row as bf16, the pairs of its halves. */
EG_INLINE __m512i paired_halves(const source *x, int64_t row, const eg_dtype dtype) {
    const __m512i taking_turns = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                                  8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i halves =
        dtype == EG_BF16
            ? _mm512_maskz_loadu_epi16(row < x->rows ? below(x->cols) : 0, x->from->at + row * x->from->step)
            : two_to_bf16_amx(numbers(x, row, 0, dtype), numbers(x, row, 16, dtype));
    return _mm512_permutexvar_epi16(taking_turns, halves);
}

/* The same of bf16 itself: words change places, and that is all. */
EG_INLINE void split_rows_of_words(const source *x, int64_t p, char *across, char *down,
                                   const eg_dtype dtype) {
    const __mmask32 high = 0xaaaaaaaa;
    const __m512i top = paired_halves(x, p, dtype), low = paired_halves(x, p + 16, dtype);
    if (across != NULL) {
        put(across, 0, 0, p, top);
        put(across, 0, 1, p, low);
    }
    if (down != NULL) {
        put(down, 0, 0, p, _mm512_mask_blend_epi16(high, top, _mm512_slli_epi32(low, 16)));
        put(down, 0, 1, p, _mm512_mask_blend_epi16(high, _mm512_srli_epi32(top, 16), low));
    }
}

/* 4 x 4 blocks of words are transposed within each quarter of four rows, then the blocks change places. */
EG_INLINE void transpose_tile(char *to, const char *from) {
    __m512i row[16], mixed[16];
    EG_UNROLL(16)
    for (int i = 0; i < 16; i++) row[i] = _mm512_load_si512(from + i * 64);
    EG_UNROLL(4)
    for (int q = 0; q < 16; q += 4) {
        const __m512i low01 = _mm512_unpacklo_epi32(row[q], row[q + 1]),
                      high01 = _mm512_unpackhi_epi32(row[q], row[q + 1]),
                      low23 = _mm512_unpacklo_epi32(row[q + 2], row[q + 3]),
                      high23 = _mm512_unpackhi_epi32(row[q + 2], row[q + 3]);
        mixed[q] = _mm512_unpacklo_epi64(low01, low23);
        mixed[q + 1] = _mm512_unpackhi_epi64(low01, low23);
        mixed[q + 2] = _mm512_unpacklo_epi64(high01, high23);
        mixed[q + 3] = _mm512_unpackhi_epi64(high01, high23);
    }
    EG_UNROLL(4)
    for (int i = 0; i < 4; i++) { /* column 4b + i of quarter q is block b of mixed[q + i] */
        const __m512i even01 = _mm512_shuffle_i32x4(mixed[i], mixed[4 + i], 0x88),
                      odd01 = _mm512_shuffle_i32x4(mixed[i], mixed[4 + i], 0xdd),
                      even23 = _mm512_shuffle_i32x4(mixed[8 + i], mixed[12 + i], 0x88),
                      odd23 = _mm512_shuffle_i32x4(mixed[8 + i], mixed[12 + i], 0xdd);
        _mm512_store_si512(to + i * 64, _mm512_shuffle_i32x4(even01, even23, 0x88));
        _mm512_store_si512(to + (4 + i) * 64, _mm512_shuffle_i32x4(odd01, odd23, 0x88));
        _mm512_store_si512(to + (8 + i) * 64, _mm512_shuffle_i32x4(even01, even23, 0xdd));
        _mm512_store_si512(to + (12 + i) * 64, _mm512_shuffle_i32x4(odd01, odd23, 0xdd));
    }
}

EG_INLINE void transpose_cell(char *to, const char *from, const int terms) {
    for (int i = 0; i < 2 * terms; i++) transpose_tile(to + i * TILE_BYTES, from + i * TILE_BYTES);
}

EG_INLINE bool split(const source *x, int64_t first, int64_t count, const eg_cells *to, const int terms,
                     const eg_dtype dtype) {
    _Alignas(64) char across_scratch[3 * EG_CELL_TERM_BYTES], down_scratch[3 * EG_CELL_TERM_BYTES];
    char *across = to->across, *down = to->down;
    if (across == NULL && to->across_t != NULL) across = across_scratch;
    if (down == NULL && to->down_t != NULL) down = down_scratch;
    bool fits = true;
    for (int64_t p = first; p < first + count; p++) {
        if (terms == 1) split_rows_of_words(x, p, across, down, dtype);
        if (terms > 1) fits &= split_rows(x, p, across, down, terms, dtype);
    }
    if (to->across_t != NULL) transpose_cell(to->across_t, across, terms);
    if (to->down_t != NULL) transpose_cell(to->down_t, down, terms);
    return fits;
}

/* To be written: asked for to be read, a line that another core has would be sent for twice. */
EG_INLINE void own(const eg_cells *to, int64_t first, int64_t count, const int terms) {
    const char *const layouts[] = {to->across, to->across_t, to->down, to->down_t};
    for (int i = 0; i < 4; i++) {
        for (int tile = 0; layouts[i] != NULL && tile < 2 * terms; tile++) {
            const char *rows = layouts[i] + tile * TILE_BYTES + first * 64;
            for (int64_t at = 0; at < count * 64; at += 64) __asm__ volatile("prefetchw %0" ::"m"(rows[at]));
        }
    }
}

/* ---- store ---------------------------------------------------------------------------------------- */

enum { HALF_ROW = EG_CELL / 2 };

EG_INLINE __m512i two_to_f16(__m512 first, __m512 second) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(first, _MM_FROUND_TO_NEAREST_INT)),
                              _mm512_cvtps_ph(second, _MM_FROUND_TO_NEAREST_INT), 1);
}

EG_INLINE void store_line(char *to, __m512i line, bool past) {
    if (past) {
        _mm512_stream_si512((void *)to, line);
    } else {
        _mm512_storeu_si512(to, line);
    }
}

EG_INLINE void store_sum(char *to, const float *sums, int64_t cols, bool past, const float unscale,
                         const eg_dtype dtype) {
    const bool whole = cols == EG_CELL;
    const uint32_t part = below(cols);
    const __m512 left = _mm512_mul_ps(_mm512_load_ps(sums), _mm512_set1_ps(unscale)),
                 right = _mm512_mul_ps(_mm512_load_ps(sums + HALF_ROW), _mm512_set1_ps(unscale));
    const __m512i words = dtype == EG_BF16 ? two_to_bf16_amx(left, right) : two_to_f16(left, right);
    if (dtype != EG_F32 && whole) {
        store_line(to, words, past);
    } else if (dtype != EG_F32) {
        _mm512_mask_storeu_epi16(to, part, words);
    } else if (whole) {
        store_line(to, _mm512_castps_si512(left), past);
        store_line(to + 64, _mm512_castps_si512(right), past);
    } else {
        _mm512_mask_storeu_ps(to, (__mmask16)part, left);
        _mm512_mask_storeu_ps(to + 64, (__mmask16)(part >> HALF_ROW), right);
    }
}

EG_INLINE void store_sums_of(const float *sums, char *to, int64_t step, eg_dtype dtype, int64_t rows,
                             int64_t cols, bool past, const float unscale) {
#define STORE(type)                                                                                          \
    for (int64_t i = 0; i < rows; i++) store_sum(to + i * step, sums + i * EG_CELL, cols, past, unscale, type)
    EG_BY_TYPE(dtype, STORE);
#undef STORE
}

/* ---- By terms ------------------------------------------------------------------------------------- */

#define UNSCALE(TERMS) ((TERMS) > 1 ? 0x1p-48F : 1)

/* So many rows of a whole tile: x = product + bias becomes grad * act'(x). */
#define GRAD_ROWS(function, derivative, TERMS, TYPE, ROWS)                                                   \
    static void function(const eg_grad_rows *of, int64_t row) {                                              \
        const EG_I kept = (EG_I){0} - (EG_V(word))of->propagate;                                             \
        const EG_T bias[2] = {EG_V(load)(of->bias), EG_V(load)(of->bias + EG_LANES)};                        \
        EG_T sum[2] = {EG_V(load)(of->sums), EG_V(load)(of->sums + EG_LANES)};                               \
        float *tile = of->tile + row * EG_CELL;                                                              \
        const char *grad = of->grad + row * of->grad_step;                                                   \
        for (int i = 0; i < (ROWS); i++, tile += EG_CELL, grad += of->grad_step) {                           \
            EG_UNROLL(2)                                                                                     \
            for (int j = 0; j < 2; j++) {                                                                    \
                EG_T x = EG_V(load)(tile + j * EG_LANES);                                                    \
                x = ((TERMS) > 1 ? x * UNSCALE(TERMS) : x) + bias[j];                                        \
                x = EG_V(unless_nan)(x, EG_V(derivative)(x), kept);                                          \
                x *= EG_V(load_part)(grad + j * EG_LANES * (int64_t)eg_size_of(TYPE), TYPE, 0xffff);         \
                EG_V(store)(tile + j * EG_LANES, x);                                                         \
                sum[j] += x;                                                                                 \
            }                                                                                                \
        }                                                                                                    \
        EG_V(store)(of->sums, sum[0]);                                                                       \
        EG_V(store)(of->sums + EG_LANES, sum[1]);                                                            \
    }

/* A kernel of one product has too few DOTs to hide them all: there the start of a step counts. */
enum { ROWS_A_STEP_OF_BF16 = 4, ROWS_A_STEP = 1 };
#define EG_ROW(NAME, name, value, from_y, text)                                                              \
    GRAD_ROWS(grad_rows_bf16_##name, act_grad_##name, 1, EG_BF16, ROWS_A_STEP_OF_BF16)                       \
    GRAD_ROWS(grad_rows_f16_##name, act_grad_##name, 2, EG_F16, ROWS_A_STEP)                                 \
    GRAD_ROWS(grad_rows_f32_##name, act_grad_##name, 3, EG_F32, ROWS_A_STEP)
EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW

#define SPLIT(TERMS, TYPE)                                                                                   \
    static bool split_##TERMS(const eg_rows *from, int64_t first, int64_t count, int64_t rows, int64_t cols, \
                              const eg_cells *to) {                                                          \
        const source x = {from, rows, cols}, whole = {from, EG_CELL, EG_CELL};                               \
        if (rows == EG_CELL && cols == EG_CELL && from->dtype == EG_F32)                                     \
            return split(&whole, first, count, to, TERMS, EG_F32);                                           \
        if (from->dtype == (TYPE)) return split(&x, first, count, to, TERMS, TYPE);                          \
        return split(&x, first, count, to, TERMS, EG_F32);                                                   \
    }                                                                                                        \
    static void own_##TERMS(const eg_cells *to, int64_t first, int64_t count) {                              \
        own(to, first, count, TERMS);                                                                        \
    }                                                                                                        \
    static void store_rows_##TERMS(const float *sums, char *to, int64_t step, eg_dtype dtype, int64_t rows,  \
                                   int64_t cols, bool past) {                                                \
        store_sums_of(sums, to, step, dtype, rows, cols, past, UNSCALE(TERMS));                              \
    }
SPLIT(1, EG_BF16)
SPLIT(2, EG_F16)
SPLIT(3, EG_F32)

/* ---- The peak ----------------------------------------------------------------------------------- */

/* Any bf16 of either sign in [0.5, 2): a unit that multiplies zeros takes less power, and is clocked a tenth
 * higher than it will ever be at work. */
EG_INLINE void fill_cell(char *cell) {
    uint32_t random = 1;
    for (int i = 0; i < EG_CELL_TERM_BYTES; i += 2) {
        random = random * 1664525U + 1013904223U;
        const uint16_t word = (uint16_t)(0x3f00U | (random >> 24) | (random >> 8 & 0x8000U));
        memcpy(cell + i, &word, sizeof word);
    }
}

/* Multiplications alone, as many independent ones as the kernels have. */
EG_INLINE double spin(int64_t turns, int products) {
    _Alignas(64) char left[EG_CELL_TERM_BYTES], right[EG_CELL_TERM_BYTES];
    fill_cell(left);
    fill_cell(right);
    const bool wide = true;
    eg_tiles_configure();
    EG_TILE_ZERO(0);
    EG_TILE_ZERO(1);
    EG_TILE_ZERO(2);
    EG_TILE_ZERO(3);
    LEFT(0)
    RIGHT(0)
    const int64_t loops = turns / 8;
    for (int64_t turn = 0; turn < loops; turn++) {
        DOT_ALONE
    }
    eg_tiles_release();
    return (double)loops * EG_CELL * EG_CELL * EG_CELL / products;
}

/* ---- The rows ----------------------------------------------------------------------------------- */

#define GRAD_ROWS_OF_EG_BF16(NAME, name, value, from_y, text) [value] = grad_rows_bf16_##name,
#define GRAD_ROWS_OF_EG_F16(NAME, name, value, from_y, text)  [value] = grad_rows_f16_##name,
#define GRAD_ROWS_OF_EG_F32(NAME, name, value, from_y, text)  [value] = grad_rows_f32_##name,
#define ROW(kernel, TYPE, MATHS, TERMS, PRODUCTS, KC, WHOLE_KC, ONLY_KC, BLOCK_ROWS, BLOCK_COLS, BLOCK_LEFT, \
            ONLY_FROM, LEAST, USES, USES_ALONE)                                                              \
    static double spin_##kernel(int64_t turns) { return spin(turns, PRODUCTS); }                             \
    const eg_cpu_kernel eg_cpu_##kernel = {                                                                  \
        .name = #kernel,                                                                                     \
        .compute = EG_F32,                                                                                   \
        .dtype = TYPE,                                                                                       \
        .maths = MATHS,                                                                                      \
        .needs = EG_CPU_AMX | EG_CPU_AVX512,                                                                 \
        .terms = TERMS,                                                                                      \
        .mr = EG_CELL,                                                                                       \
        .nr = EG_CELL,                                                                                       \
        .streams = INT_MAX,                                                                                  \
        .kc = KC,                                                                                            \
        .whole_kc = WHOLE_KC,                                                                                \
        .run = (PRODUCTS) == 6 ? RUN_TERMS : EG_CELL,                                                        \
        .only_kc = ONLY_KC,                                                                                  \
        .block_rows = BLOCK_ROWS,                                                                            \
        .block_cols = BLOCK_COLS,                                                                            \
        .block_left = BLOCK_LEFT,                                                                            \
        .only_from = ONLY_FROM,                                                                              \
        .only_rows = 384,                                                                                    \
        .least = LEAST,                                                                                      \
        .uses = USES,                                                                                        \
        .uses_alone = USES_ALONE,                                                                            \
        .thread_work = (TERMS) == 1 ? 0x1p22 : 0x1p21,                                                       \
        .enter = eg_tiles_configure,                                                                         \
        .settle = settle,                                                                                    \
        .leave = eg_tiles_release,                                                                           \
        .multiply = multiply_x##PRODUCTS,                                                                    \
        .split = split_##TERMS,                                                                              \
        .own = own_##TERMS,                                                                                  \
        .store_rows = store_rows_##TERMS,                                                                    \
        .unscale = UNSCALE(TERMS),                                                                           \
        .grad_rows = {EG_ACTIVATION_TABLE(GRAD_ROWS_OF_##TYPE)},                                             \
        .row_step = (TYPE) == EG_BF16 ? ROWS_A_STEP_OF_BF16 : ROWS_A_STEP,                                   \
        .spin = spin_##kernel,                                                                               \
        EG_TILE_FUNCTIONS,                                                                                   \
    };

#define BY_DEFAULT (EG_CPU_MATH(EG_MATH_DEFAULT) | EG_CPU_MATH(EG_MATH_FAST))

/* A strip of kc terms is 64 * kc bytes for each bf16 of a number: 32 KiB of L1 for bf16 itself, and half of
 * that where it is laid out there. The block's sums and its strips of the left operand share L2. Measured:
 * docs/cpu.md. */
ROW(amx_bf16x1_32x32, EG_BF16, BY_DEFAULT, 1, 1, 512, 512, 320, 256, 256, 1 << 18, 192, 32 * 32 * 32, 0, 0)
ROW(amx_f16x4_32x32, EG_F16, BY_DEFAULT, 2, 4, 256, 512, 0, 256, 256, 0, INT_MAX, 64 * 64 * 64, 0, 0)
ROW(amx_f32x3_32x32, EG_F32, EG_CPU_MATH(EG_MATH_FAST), 2, 3, 256, 512, 0, 256, 256, 0, INT_MAX, 64 * 64 * 64,
    0, 0)
ROW(amx_f32x6_32x32, EG_F32, BY_DEFAULT, 3, 6, 256, 512, 256, 384, 480, 0, 1, 64 * 64 * 64, 64, 40)
