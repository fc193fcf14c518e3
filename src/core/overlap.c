/* SPDX-License-Identifier: Apache-2.0 */
/* Two operands overlap where an element of one and an element of the other are less than an element apart:
 * where a sum of bounded multiples of their strides falls into an interval of a few bytes. Nearly always the
 * strides are nested (an element in a row in a matrix in a batch), and what is left of the sum is one or two
 * terms, for which there is a formula. Else the larger strides are tried out, up to a bound. */
#include "overlap.h"

#include "sizes.h"

/* ---- Sums of multiples -------------------------------------------------------------------------- */

/* stride * n for every n in [0, count]. */
typedef struct term {
    int64_t stride, count;
} term;

enum { MOST_TERMS = 8, MOST_TRIES = 20000 };

/* Whether a sum of `terms`, by ascending stride, can be in [low, high]. Validation has bounded the extent of
 * an operand by 2^62 bytes, so that no sum of two overflows. */
typedef struct sum {
    int terms;
    term term[MOST_TERMS];
    int64_t low, high;
} sum;

static void add_term(sum *s, int64_t stride, int64_t count) {
    if (stride == 0 || count <= 0) return;
    int at = s->terms++;
    for (; at > 0 && s->term[at - 1].stride > stride; at--) s->term[at] = s->term[at - 1];
    s->term[at] = (term){stride, count};
}

/* Steps no longer than the interval reach everything in between: they widen it. */
static void absorb_short_strides(sum *s) {
    int done = 0;
    while (done < s->terms && s->term[done].stride - 1 <= s->high - s->low) {
        s->low -= s->term[done].stride * s->term[done].count;
        done++;
    }
    s->terms -= done;
    for (int i = 0; i < s->terms; i++) s->term[i] = s->term[i + done];
}

/* A stride that is a multiple of the one before, which reaches as far, only makes that one longer. */
static void merge_nested_strides(sum *s) {
    int kept = 0;
    for (int i = 1; i < s->terms; i++) {
        term *inner = &s->term[kept], outer = s->term[i];
        int64_t ratio = 1;
        if (outer.stride != inner->stride) {
            ratio = outer.stride % inner->stride == 0 ? outer.stride / inner->stride : INT64_MAX;
        }
        if (ratio - 1 <= inner->count) {
            inner->count += ratio * outer.count;
        } else {
            s->term[++kept] = outer;
        }
    }
    if (s->terms > 0) s->terms = kept + 1;
}

/* The sum of (a*i + b) / m over i in [0, n), modulo 2^64, as Euclid's algorithm goes. */
static uint64_t floor_sum(uint64_t n, uint64_t m, uint64_t a, uint64_t b) {
    for (uint64_t total = 0;;) {
        const uint64_t pairs = n % 2 == 0 ? n / 2 * (n - 1) : (n - 1) / 2 * n;
        total += pairs * (a / m) + n * (b / m);
        a %= m;
        b %= m;
        const uint64_t last = a * n + b;
        if (last < m) return total;
        n = last / m;
        b = last % m;
        const uint64_t was = m;
        m = a;
        a = was;
    }
}

/* Whether a multiple of `stride` is in [low - step*i, high - step*i] for an i in [0, n). */
static bool hits_a_multiple(int64_t stride, int64_t step, int64_t n, int64_t low, int64_t high) {
    const uint64_t m = (uint64_t)stride, width = (uint64_t)(high - low), down = (uint64_t)step % m;
    const uint64_t a = down == 0 ? 0 : m - down, b = (uint64_t)high % m, count = (uint64_t)n;
    return count + floor_sum(count, m, a, b) != floor_sum(count, m, a, b + m - 1 - width);
}

static int64_t up(int64_t a, int64_t b) { return a <= 0 ? 0 : (a - 1) / b + 1; } /* a / b, if not below 0 */

static bool one_term_hits(term x, int64_t low, int64_t high) {
    return high >= 0 && up(low, x.stride) <= eg_least(high / x.stride, x.count);
}

/* First those of y that leave the first or the last of x in the interval, then all between them at once. */
static bool two_terms_hit(term x, term y, int64_t low, int64_t high) {
    const int64_t reach = x.stride * x.count;
    if (one_term_hits(y, low, high) || one_term_hits(y, low - reach, high - reach)) return true;
    const int64_t first = up(high - reach, y.stride), last = eg_least(low / y.stride, y.count);
    if (first > last) return false;
    return hits_a_multiple(x.stride, y.stride, last - first + 1, low - y.stride * first,
                           high - y.stride * first);
}

static int64_t divisor_of_all(const term *x, int terms) {
    int64_t divisor = 0;
    for (int i = 0; i < terms; i++) {
        for (int64_t b = x[i].stride; b != 0;) {
            const int64_t rest = divisor % b;
            divisor = b;
            b = rest;
        }
    }
    return divisor;
}

/* The first `terms` of them; `tries` is what is left to do. */
static bool hits(const term *x, int terms, int64_t low, int64_t high, int *tries) {
    int64_t reach = 0;
    for (int i = 0; i < terms; i++) reach += x[i].stride * x[i].count;
    if (high < 0 || low > reach || *tries <= 0) return false;
    if (low <= 0 || high >= reach) return true;
    if (terms == 1) return one_term_hits(x[0], low, high);
    --*tries;
    if (terms == 2) return two_terms_hit(x[0], x[1], low, high);
    const int64_t divisor = divisor_of_all(x, terms);
    if (high / divisor * divisor < low) return false;
    const term largest = x[terms - 1];
    const int64_t others = reach - largest.stride * largest.count;
    const int64_t last = eg_least(high / largest.stride, largest.count);
    for (int64_t n = up(low - others, largest.stride); n <= last && *tries > 0; n++) {
        if (hits(x, terms - 1, low - largest.stride * n, high - largest.stride * n, tries)) return true;
    }
    return false;
}

static eg_overlap_verdict decide(sum *s) {
    absorb_short_strides(s);
    merge_nested_strides(s);
    int tries = MOST_TRIES;
    if (hits(s->term, s->terms, s->low, s->high, &tries)) return EG_OVERLAP;
    return tries > 0 ? EG_APART : EG_MAY_OVERLAP;
}

/* ---- Operands ----------------------------------------------------------------------------------- */

typedef struct eg_span {
    uintptr_t first, end; /* bytes, [first, end) */
} eg_span;

/* Elements from the first to the last. */
static int64_t reach_of(const eg_problem *problem, const eg_operand *x) {
    return (x->rows - 1) * x->row_stride + (x->cols - 1) * x->col_stride +
           eg_item_at(x->batch_stride, x->outer, problem->batch - 1);
}

size_t eg_extent(const eg_problem *problem, const eg_operand *x) {
    return eg_has_elements(x) ? (size_t)(reach_of(problem, x) + 1) * eg_size_of(x->dtype) : 0;
}

static eg_span span_of(const eg_problem *problem, const eg_operand *x) {
    const uintptr_t first = eg_begin(problem, x->data, x->offset);
    return (eg_span){first, first + eg_extent(problem, x)};
}

static bool may_share(const eg_problem *problem, const void *data, const void *other) {
    return problem->addressing == EG_ADDRESSES || (problem->addressing == EG_HANDLES && data == other);
}

static bool meet(eg_span a, eg_span b) {
    return a.first < a.end && b.first < b.end && a.first < b.end && b.first < a.end;
}

static bool is_multiple(const eg_operand *x, uintptr_t pitch) {
    const uintptr_t size = eg_size_of(x->dtype);
    return (uintptr_t)x->batch_stride * size % pitch == 0 && (uintptr_t)x->outer.stride * size % pitch == 0;
}

/* Columns (rows) of one buffer, such as the parts of a fused projection, in the time of two divisions: both
 * are windows of lines `pitch` bytes apart, batch strides included, and these are [0, length) and
 * [shift, shift + length') modulo the pitch. */
static bool separate_windows(const eg_problem *problem, const eg_operand *x, const eg_operand *y,
                             uintptr_t distance) {
    const bool row_major = x->col_stride == 1 && x->row_stride > 1;
    if (row_major != (y->col_stride == 1 && y->row_stride > 1)) return false;
    const uintptr_t size_x = eg_size_of(x->dtype), size_y = eg_size_of(y->dtype);
    const uintptr_t pitch = (uintptr_t)(row_major ? x->row_stride : x->col_stride) * size_x;
    if (pitch == 0 || pitch != (uintptr_t)(row_major ? y->row_stride : y->col_stride) * size_y) return false;
    if (problem->batch > 1 && (!is_multiple(x, pitch) || !is_multiple(y, pitch))) return false;
    const uintptr_t length_x = (uintptr_t)(row_major ? x->cols : x->rows) * size_x;
    const uintptr_t length_y = (uintptr_t)(row_major ? y->cols : y->rows) * size_y;
    const uintptr_t shift = distance % pitch;
    return shift >= length_x && shift + length_y <= pitch;
}

/* Items of the inner level, and outer items of those. */
static int64_t inner_of(const eg_problem *problem, const eg_operand *x) {
    return x->outer.inner > 0 ? x->outer.inner : problem->batch;
}

static void add_operand(sum *s, const eg_problem *problem, const eg_operand *x) {
    const int64_t size = (int64_t)eg_size_of(x->dtype), inner = inner_of(problem, x);
    add_term(s, x->col_stride * size, x->cols - 1);
    add_term(s, x->row_stride * size, x->rows - 1);
    add_term(s, x->batch_stride * size, inner - 1);
    add_term(s, x->outer.stride * size, problem->batch / inner - 1);
}

/* With the elements of y counted from its last one down, every term of x - y is added. */
eg_overlap_verdict eg_overlap(const eg_problem *problem, const eg_operand *x, const eg_operand *y) {
    if (!may_share(problem, x->data, y->data)) return EG_APART;
    const eg_span of_x = span_of(problem, x), of_y = span_of(problem, y);
    if (!meet(of_x, of_y)) return EG_APART;
    if (of_y.first >= of_x.first ? separate_windows(problem, x, y, of_y.first - of_x.first)
                                 : separate_windows(problem, y, x, of_x.first - of_y.first)) {
        return EG_APART;
    }
    const int64_t size_x = (int64_t)eg_size_of(x->dtype), size_y = (int64_t)eg_size_of(y->dtype);
    const int64_t last_y = (int64_t)(of_y.end - of_x.first) - size_y; /* from the first of x */
    sum s = {.low = last_y - size_x + 1, .high = last_y + size_y - 1};
    add_operand(&s, problem, x);
    add_operand(&s, problem, y);
    return decide(&s);
}

/* The difference of elements of two items that are `apart` elements apart: rows and columns differ by any
 * number of them, up or down. */
static sum between_items(const eg_operand *x, int64_t apart) {
    const int64_t far = (x->rows - 1) * x->row_stride + (x->cols - 1) * x->col_stride;
    sum s = {.low = far - apart, .high = far - apart};
    add_term(&s, x->col_stride, 2 * (x->cols - 1));
    add_term(&s, x->row_stride, 2 * (x->rows - 1));
    return s;
}

/* Items n + 1 later in the same outer item: two terms are left of three, as an element is absorbed. And items
 * of an outer item n + 1 later, which inside it may be any number of items earlier or later. */
bool eg_items_overlap(const eg_problem *problem, const eg_operand *x) {
    const int64_t inner = inner_of(problem, x), outer = problem->batch / inner;
    if (!eg_has_elements(x)) return false;
    sum near = between_items(x, x->batch_stride);
    add_term(&near, x->batch_stride, inner - 2);
    if (inner > 1 && decide(&near) != EG_APART) return true;
    sum distant = between_items(x, x->outer.stride - (inner - 1) * x->batch_stride);
    add_term(&distant, x->batch_stride, 2 * (inner - 1));
    add_term(&distant, x->outer.stride, outer - 2);
    return outer > 1 && decide(&distant) != EG_APART;
}

bool eg_overlaps_workspace(const eg_problem *problem, const eg_operand *x, const eg_workspace *workspace,
                           size_t bytes) {
    const uintptr_t first = eg_begin(problem, workspace->data, workspace->offset);
    return may_share(problem, x->data, workspace->data) &&
           meet(span_of(problem, x), (eg_span){first, first + bytes});
}
