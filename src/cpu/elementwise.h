/* SPDX-License-Identifier: Apache-2.0 */
/* The element-wise epilogues of eg_elementwise. Part of tile_template.h.
 *
 * One goes down a column of vectors after the other, some rows at once: act' is a long chain of operations,
 * and a processor does not look far enough ahead to overlap it with the next one by itself. */
#if EG_VECTOR_BYTES > 16
#define EG_AT_ONCE 4
#else
#define EG_AT_ONCE 2
#endif

/* Some rows from `row` on of column j of vectors. */
typedef struct EG_V(group) {
    int64_t j, row;
    EG_V(part) part;
    EG_T bias;
} EG_V(group);

#define EG_EACH_ROW(u) EG_UNROLL(8) for (int u = 0; u < rows; u++)

/* Reads a group; what is absent reads as zeros. */
EG_INLINE void EG_V(take)(EG_T to[EG_AT_ONCE], const eg_rows *x, const EG_V(group) * g, const int rows) {
    if (x->at == NULL) {
        EG_EACH_ROW(u) to[u] = (EG_T){0};
        return;
    }
    const char *at = x->at + g->row * x->step;
    const int64_t step = x->step, vector = g->j * EG_LANES;
#define EG_TAKE(type)                                                                                        \
    EG_EACH_ROW(u)                                                                                           \
    to[u] = EG_V(load_part)(at + u * step + vector * (int64_t)eg_size_of(type), type, g->part)
    (void)x->dtype;
    EG_BY_TYPE(x->dtype, EG_TAKE);
#undef EG_TAKE
#ifdef EG_SCALED
    if (x->scale != 1) {
        EG_EACH_ROW(u) to[u] *= EG_V(splat)(x->scale);
    }
#endif
}

/* Writes a group, where `to` is present. */
EG_INLINE void EG_V(give)(const eg_rows *to, const EG_V(group) * g, const EG_T from[EG_AT_ONCE],
                          const int rows) {
    if (to->at == NULL) return;
    char *at = to->at + g->row * to->step;
    const int64_t step = to->step, vector = g->j * EG_LANES;
#define EG_GIVE(type)                                                                                        \
    EG_EACH_ROW(u)                                                                                           \
    EG_V(store_part)(at + u * step + vector * (int64_t)eg_size_of(type), from[u], type, g->part)
    EG_BY_TYPE(to->dtype, EG_GIVE);
#undef EG_GIVE
}

/* x + bias. An absent bias is -0: adding it changes no number, not even the sign of a zero. */
EG_INLINE void EG_V(take_biased)(EG_T to[EG_AT_ONCE], const eg_elementwise *s, const EG_V(group) * g,
                                 const int rows) {
    EG_V(take)(to, &s->x, g, rows);
    EG_EACH_ROW(u) to[u] += g->bias;
}

EG_INLINE EG_V(group) EG_V(first_group)(const eg_elementwise *s, int64_t j) {
    EG_V(group) g = {.j = j, .part = EG_V(part_of)(s->cols, j)};
    EG_T bias[EG_AT_ONCE];
    EG_V(take)(bias, &s->bias, &g, 1);
    g.bias = s->bias.at != NULL ? bias[0] : EG_V(splat)((EG_R)-0.0);
    g.row = s->row;
    return g;
}

/* Calls STEP(s, g, rows) for each group: of few rows one by one, as whole groups would compute some again. */
#define EG_EACH_GROUP(of, STEP)                                                                              \
    const eg_elementwise s = *(of); /* a copy: the compiler need not expect the stores to change it */       \
    for (int64_t j = 0; j * EG_LANES < s.cols; j++) {                                                        \
        EG_V(group) g = EG_V(first_group)(&s, j);                                                            \
        for (; s.end - g.row >= EG_AT_ONCE; g.row += EG_AT_ONCE) STEP(&s, &g, EG_AT_ONCE);                   \
        for (; g.row < s.end; g.row++) STEP(&s, &g, 1);                                                      \
    }

/* act(NaN) is NaN; act'(NaN) is NaN or 0. The formulas clamp, which would hide a NaN, so it is put back. */
EG_INLINE void EG_V(act_group)(const eg_elementwise *s, const EG_V(group) * g, EG_T (*act)(EG_T),
                               const bool is_identity, const int rows) {
    EG_T x[EG_AT_ONCE], other[EG_AT_ONCE];
    EG_V(take_biased)(x, s, g, rows);
    EG_V(give)(&s->pre, g, x, rows);
    if (!is_identity) {
        EG_EACH_ROW(u) x[u] = EG_V(unless_nan)(x[u], act(x[u]), ~(EG_I){0});
    }
    if (s->times) {
        EG_R *result = (EG_R *)s->result + g->row * s->tile_row + g->j * EG_LANES;
        EG_V(take)(other, &s->other, g, rows);
        EG_EACH_ROW(u) x[u] *= other[u];
        EG_EACH_ROW(u) EG_V(store)(result + u * s->tile_row, x[u]);
    } else if (s->other.at != NULL) {
        EG_V(take)(other, &s->other, g, rows);
        EG_EACH_ROW(u) x[u] += other[u];
    }
    EG_V(give)(&s->out, g, x, rows);
}

#ifdef EG_SCALED
#include "elementwise_lines.h"
#endif

#ifndef EG_SCALED
/* A vector of a row of the result or of `pre`, and a prefetch for what is written after it. */
EG_INLINE void EG_V(put_in_row)(char *to, EG_T x, const eg_dtype dtype, const EG_V(part) part,
                                const bool non_temporal, int64_t to_next) {
    if (non_temporal) {
        EG_V(stream)((EG_R *)(void *)to, x);
    } else {
        __builtin_prefetch(to + to_next, 1, 3);
        EG_V(store_part)(to, x, dtype, part);
    }
}

/* Rows from end to end, as memory lies. */
EG_INLINE void EG_V(act_by_rows)(const eg_elementwise *of, EG_T (*act)(EG_T), const bool is_identity,
                                 const eg_dtype dtype) {
    const eg_elementwise s = *of;
    const EG_R *bias = (const EG_R *)(const void *)s.bias.at;
    for (int64_t i = s.row; i < s.end; i++) {
        const EG_R *from = (const EG_R *)(const void *)(s.x.at + i * s.x.step);
        char *out = s.out.at + i * s.out.step, *pre = s.pre.at != NULL ? s.pre.at + i * s.pre.step : NULL;
        const char *other = s.other.at != NULL ? s.other.at + i * s.other.step : NULL;
        for (int64_t col = 0; col < s.cols; col += EG_LANES) {
            const EG_V(part) part = EG_V(part_of)(s.cols - col, 0);
            const bool streams = s.non_temporal && s.cols - col >= EG_LANES;
            const int64_t at = col * EG_V(size_of)(dtype);
            EG_T x = EG_V(load)(from + col);
            x += bias != NULL ? EG_V(load)(bias + col) : EG_V(splat)((EG_R)-0.0);
            if (pre != NULL) EG_V(put_in_row)(pre + at, x, dtype, part, streams, s.pre_to_next);
            if (!is_identity) x = EG_V(unless_nan)(x, act(x), ~(EG_I){0});
            if (other != NULL) x += EG_V(load_part)(other + at, dtype, part);
            EG_V(put_in_row)(out + at, x, dtype, part, streams, s.to_next);
        }
    }
}
#endif

EG_INLINE void EG_V(elementwise)(const eg_elementwise *of, EG_T (*act)(EG_T), const bool is_identity) {
#ifdef EG_SCALED
    if (has_whole_lines(of)) {
        act_lines(of, act, is_identity);
        return;
    }
#else
    if (of->by_rows) {
#define EG_ACT_ROWS(type) EG_V(act_by_rows)(of, act, is_identity, type)
        EG_BY_TYPE(of->out.dtype, EG_ACT_ROWS);
#undef EG_ACT_ROWS
        return;
    }
#endif
#define EG_ACT_STEP(s, g, rows) EG_V(act_group)(s, g, act, is_identity, rows)
    EG_EACH_GROUP(of, EG_ACT_STEP);
#undef EG_ACT_STEP
}

static void EG_V(add_rows)(void *sums, const void *rows, int64_t step, int64_t count, int64_t cols) {
    EG_R *sum = sums;
    const EG_R *from = rows;
    for (int64_t j = 0; j < cols; j += EG_LANES) {
        EG_T total = EG_V(load)(sum + j);
        for (int64_t i = 0; i < count; i++) total += EG_V(load)(from + i * step + j);
        EG_V(store)(sum + j, total);
    }
}

/* A vector of columns of `rows` rows, and a prefetch of those that come next. */
EG_INLINE void EG_V(sum_vector)(EG_R *sum, const char *from, const eg_dtype dtype, int64_t step,
                                const EG_V(numbers) some, const int rows) {
    EG_T total = EG_V(load)(sum);
    EG_UNROLL(8)
    for (int i = 0; i < rows; i++) {
        __builtin_prefetch(from + (i + rows) * step);
        total += EG_V(load_numbers)(from + i * step, dtype, some);
    }
    EG_V(store)(sum, total);
}

EG_INLINE void EG_V(sum_some)(EG_R *sums, const char *from, const eg_dtype dtype, int64_t step, int64_t cols,
                              const int rows) {
    const int64_t vector = EG_LANES * EG_V(size_of)(dtype);
    int64_t j = 0;
    for (; (j + 1) * EG_LANES <= cols; j++, from += vector)
        EG_V(sum_vector)(sums + j * EG_LANES, from, dtype, step, EG_V(numbers_of)(EG_LANES, 0), rows);
    if (j * EG_LANES < cols)
        EG_V(sum_vector)(sums + j * EG_LANES, from, dtype, step, EG_V(numbers_of)(cols, j), rows);
}

/* Some rows from end to end: each sum is loaded and stored once for all of them, and each row is a stream of
 * memory. */
static void EG_V(sum_rows)(void *sums, const void *rows, eg_dtype dtype, int64_t step, int64_t count,
                           int64_t cols) {
    enum { AT_ONCE = 8 };
    (void)dtype;
    const char *from = rows;
#define EG_SUM(type)                                                                                         \
    for (; count >= AT_ONCE; count -= AT_ONCE, from += AT_ONCE * step)                                       \
        EG_V(sum_some)(sums, from, type, step, cols, AT_ONCE);                                               \
    for (; count > 0; count--, from += step) EG_V(sum_some)(sums, from, type, step, cols, 1);
    EG_BY_STORAGE(dtype, EG_SUM);
#undef EG_SUM
}

/* Any operands of other * act'(x). */
EG_INLINE void EG_V(grad_group)(const eg_elementwise *s, const EG_V(group) * g, EG_T (*act_grad)(EG_T),
                                const int rows) {
    const EG_I kept = (EG_I){0} - (EG_V(word))s->propagate;
    EG_T x[EG_AT_ONCE], grad[EG_AT_ONCE];
    EG_R *result = (EG_R *)s->result + g->row * s->tile_row + g->j * EG_LANES;
    EG_V(take_biased)(x, s, g, rows);
    EG_V(take)(grad, &s->other, g, rows);
    EG_EACH_ROW(u) grad[u] *= EG_V(unless_nan)(x[u], act_grad(x[u]), kept);
    EG_EACH_ROW(u) EG_V(store)(result + u * s->tile_row, grad[u]);
    EG_V(give)(&s->out, g, grad, rows);
}

EG_INLINE void EG_V(grad_by_groups)(const eg_elementwise *of, EG_T (*act_grad)(EG_T)) {
#define EG_GRAD_STEP(s, g, rows) EG_V(grad_group)(s, g, act_grad, rows)
    EG_EACH_GROUP(of, EG_GRAD_STEP);
#undef EG_GRAD_STEP
}

EG_INLINE void EG_V(grad_of_any)(const eg_elementwise *of, EG_T (*act_grad)(EG_T), const bool has_x) {
    bool by_lines = false;
    (void)has_x;
#ifdef EG_SCALED
    by_lines = has_whole_lines(of) && of->other.at != NULL && (!has_x || of->x.at != NULL);
    if (by_lines) grad_lines(of, act_grad, has_x);
#endif
    if (!by_lines) EG_V(grad_by_groups)(of, act_grad);
    if (of->sums == NULL) return;
    const EG_R *result = (const EG_R *)of->result + of->row * of->tile_row;
    EG_V(add_rows)(of->sums, result, of->tile_row, of->end - of->row, of->cols);
}

/* A column of vectors whose operands are of one type, down all rows: there is nothing to find out within the
 * loop, and what comes `ahead` is prefetched line by line, as many at once are not fetched. */
EG_INLINE void EG_V(grad_column)(const eg_elementwise *s, EG_T (*act_grad)(EG_T), const eg_dtype dtype,
                                 const EG_V(part) part, const bool has_x, int64_t j) {
    enum { LINE = 64 };
    const int64_t at = j * EG_LANES * EG_V(size_of)(dtype), x_step = s->x.step, other_step = s->other.step;
    const EG_I kept = (EG_I){0} - (EG_V(word))s->propagate;
    const EG_T bias = EG_V(first_group)(s, j).bias;
    const char *other = s->other.at + s->row * other_step + at,
               *x = has_x ? s->x.at + s->row * x_step + at : NULL;
    const int64_t ahead = at % LINE == 0 ? s->ahead : 0;
    EG_R *result = (EG_R *)s->result + s->row * s->tile_row + j * EG_LANES;
    EG_R *sums = s->sums != NULL ? (EG_R *)s->sums + j * EG_LANES : NULL;
    EG_T total = sums != NULL ? EG_V(load)(sums) : (EG_T){0};
    for (int64_t i = s->row; i < s->end; i++) {
        EG_T grad = EG_V(load_part)(other, dtype, part), at_x = {0};
        if (ahead > 0) {
            __builtin_prefetch(other + ahead * other_step);
            if (has_x) __builtin_prefetch(x + ahead * x_step);
        }
        if (has_x) at_x = EG_V(load_part)(x, dtype, part) + bias, x += x_step;
        grad *= EG_V(unless_nan)(at_x, act_grad(at_x), kept);
        EG_V(store)(result, grad);
        total += grad;
        other += other_step, result += s->tile_row;
    }
    if (sums != NULL) EG_V(store)(sums, total);
}

EG_INLINE void EG_V(grad_of_type)(const eg_elementwise *of, EG_T (*act_grad)(EG_T), const eg_dtype dtype,
                                  const bool has_x) {
    const eg_elementwise s = *of;
    int64_t j = 0;
    for (; (j + 1) * EG_LANES <= s.cols; j++)
        EG_V(grad_column)(&s, act_grad, dtype, EG_V(part_of)(EG_LANES, 0), has_x, j);
    if (j * EG_LANES < s.cols) EG_V(grad_column)(&s, act_grad, dtype, EG_V(part_of)(s.cols, j), has_x, j);
}

#ifdef EG_SCALED
/* A line of an AMX tile block, `at` bytes into `result`: numbers of a row as bf16, from column `col` on. */
EG_INLINE void EG_V(grad_line)(const eg_elementwise *s, EG_T (*act_grad)(EG_T), const bool has_x,
                               const char *x, const char *other, int64_t col, int64_t cols, int64_t at) {
    const EG_I kept = (EG_I){0} - (EG_V(word))s->propagate;
    EG_T grad[2];
    EG_UNROLL(2)
    for (int j = 0; j < 2; j++) {
        const EG_V(part) part = EG_V(part_of)(cols - col, j);
        const int64_t bytes = part != 0 ? (col + j * EG_LANES) * (int64_t)sizeof(uint16_t) : 0;
        EG_T at_x = {0};
        if (has_x) at_x = EG_V(load_part)(x + bytes, EG_BF16, part);
        grad[j] = EG_V(load_part)(other + bytes, EG_BF16, part);
        grad[j] *= EG_V(unless_nan)(at_x, act_grad(at_x), kept);
        if (s->sums != NULL) {
            EG_R *sum = (EG_R *)s->sums + col + j * EG_LANES;
            EG_V(store)(sum, EG_V(load)(sum) + grad[j]);
        }
    }
    if (s->result != NULL)
        _mm512_store_si512((char *)s->result + at, EG_V(two_to_bf16)((__m512)grad[0], (__m512)grad[1]));
}

/* Rows of a map from end to end: memory is read in its order, at twice the rate of tile after tile. */
EG_INLINE void EG_V(grad_by_rows)(const eg_elementwise *of, EG_T (*act_grad)(EG_T), const bool has_x) {
    enum { LINE = 2 * EG_LANES };
    const eg_elementwise s = *of;
    for (int64_t i = s.row; i < s.end; i++) {
        const char *other = s.other.at + i * s.other.step, *x = has_x ? s.x.at + i * s.x.step : NULL;
        int64_t at = i * LINE * (int64_t)sizeof(uint16_t), col = 0;
        for (; col + LINE <= s.cols; col += LINE, at += s.panel)
            EG_V(grad_line)(&s, act_grad, has_x, x, other, col, col + LINE, at);
        if (col < s.cols) EG_V(grad_line)(&s, act_grad, has_x, x, other, col, s.cols, at);
    }
}
#else
/* A vector of a row from column `col` on, of which it has `some`; `at` bytes into `result`. */
EG_INLINE void EG_V(grad_vector)(const eg_elementwise *s, EG_T (*act_grad)(EG_T), const eg_dtype dtype,
                                 const EG_V(numbers) some, const bool has_x, const char *x, const char *other,
                                 int64_t col, int64_t at) {
    const EG_I kept = (EG_I){0} - (EG_V(word))s->propagate;
    const int64_t bytes = col * EG_V(size_of)(dtype);
    EG_T grad = EG_V(load_numbers)(other + bytes, dtype, some), at_x = {0};
    if (has_x) at_x = EG_V(load_numbers)(x + bytes, dtype, some);
    grad *= EG_V(unless_nan)(at_x, act_grad(at_x), kept);
    if (s->result != NULL) EG_V(store)((EG_R *)(void *)((char *)s->result + at), grad);
    if (s->sums != NULL) {
        EG_R *sum = (EG_R *)s->sums + col;
        EG_V(store)(sum, EG_V(load)(sum) + grad);
    }
}

/* Rows of a map from end to end: memory is read in its order, at twice the rate of tile after tile. Each
 * micro-panel takes its part of a row. */
EG_INLINE void EG_V(grad_by_rows)(const eg_elementwise *of, EG_T (*act_grad)(EG_T), const eg_dtype dtype,
                                  const bool has_x) {
    const eg_elementwise s = *of;
    const int64_t nr = s.tile_row, row = nr * (int64_t)sizeof(EG_R);
    const EG_V(numbers) whole = EG_V(numbers_of)(EG_LANES, 0);
    for (int64_t i = s.row; i < s.end; i++) {
        const char *other = s.other.at + i * s.other.step, *x = has_x ? s.x.at + i * s.x.step : NULL;
        int64_t panel = i * row;
        for (int64_t first = 0; first < s.cols; first += nr, panel += s.panel) {
            const int64_t end = s.cols - first < nr ? s.cols : first + nr;
            int64_t col = first, at = panel;
            for (; col + EG_LANES <= end; col += EG_LANES, at += EG_VECTOR_BYTES)
                EG_V(grad_vector)(&s, act_grad, dtype, whole, has_x, x, other, col, at);
            if (col == end) continue;
            const EG_V(numbers) some = EG_V(numbers_of)(end - col, 0);
            EG_V(grad_vector)(&s, act_grad, dtype, some, has_x, x, other, col, at);
        }
    }
}
#endif

EG_INLINE void EG_V(grad_elementwise)(const eg_elementwise *of, EG_T (*act_grad)(EG_T), const bool has_x) {
#ifdef EG_SCALED
    if (of->panel != 0) {
        EG_V(grad_by_rows)(of, act_grad, has_x);
        return;
    }
#else
    if (of->panel != 0) {
#define EG_BY_ROWS(type) EG_V(grad_by_rows)(of, act_grad, type, has_x)
        EG_BY_STORAGE(of->other.dtype, EG_BY_ROWS);
#undef EG_BY_ROWS
        return;
    }
#endif
    const eg_rows *x = &of->x, *other = &of->other;
    const bool is_alike =
        other->at != NULL && of->out.at == NULL && other->scale == 1 &&
        (has_x ? x->at != NULL && x->dtype == other->dtype && x->scale == 1 : x->at == NULL);
#define EG_GRAD_OF(type) EG_V(grad_of_type)(of, act_grad, type, has_x)
    if (is_alike) {
        EG_BY_TYPE(other->dtype, EG_GRAD_OF);
    } else {
        EG_V(grad_of_any)(of, act_grad, has_x);
    }
#undef EG_GRAD_OF
}

#define EG_GRAD_Y_0(name)
#define EG_GRAD_Y_1(name)                                                                                    \
    static void EG_V(grad_y_elementwise_##name)(const eg_elementwise *of) {                                  \
        EG_V(grad_elementwise)(of, EG_V(act_grad_y_##name), true);                                           \
    }
#define EG_ROW(NAME, name, value, from_y, text)                                                              \
    static void EG_V(elementwise_##name)(const eg_elementwise *of) {                                         \
        EG_V(elementwise)(of, EG_V(act_##name), (value) == EG_ACT_NONE);                                     \
    }                                                                                                        \
    static void EG_V(grad_elementwise_##name)(const eg_elementwise *of) {                                    \
        EG_V(grad_elementwise)(of, EG_V(act_grad_##name), (value) != EG_ACT_NONE);                           \
    }                                                                                                        \
    EG_GRAD_Y_##from_y(name)
EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW
#undef EG_GRAD_Y_0
#undef EG_GRAD_Y_1
#undef EG_EACH_GROUP
#undef EG_EACH_ROW
