/* SPDX-License-Identifier: Apache-2.0 */
#include "data_parallel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Numbers ------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t x) {
    x ^= x >> 33, x *= 0xff51afd7ed558ccdU, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53U;
    return x ^ x >> 33;
}

/* -1, 0 or 1; `what` is the matrix. */
static double number(const parallel_case *c, int what, int64_t item, int64_t row, int64_t col) {
    const uint64_t at = mix(c->seed + 1) ^ mix((uint64_t)what << 56 ^ (uint64_t)item << 40 ^
                                               (uint64_t)row << 20 ^ (uint64_t)col);
    return (double)(mix(at) % 3) - 1;
}

enum { A, B, BIAS, GRAD, PRE, BELOW, BEFORE_B, BEFORE_BIAS, BEFORE_BELOW };

static bool adds_to(const parallel_case *c, int before) {
    static const eg_into into[] = {
        [BEFORE_B] = EG_INTO_D_B, [BEFORE_BIAS] = EG_INTO_D_BIAS, [BEFORE_BELOW] = EG_INTO_CHAIN_D_BIAS};
    return (c->into & (uint64_t)into[before]) != 0;
}

static bool adds_to_all(const parallel_case *c) {
    return adds_to(c, BEFORE_B) && adds_to(c, BEFORE_BIAS) && adds_to(c, BEFORE_BELOW);
}

parallel_case parallel_case_of(uint64_t index, int ranks) {
    static const eg_dtype dtypes[] = {EG_F32, EG_F64, EG_F16, EG_BF16};
    uint64_t x = mix(index + 77);
#define PICK(count) ((int)((x = mix(x + 1)) % (uint64_t)(count)))
    parallel_case c = {.seed = index};
    c.k = 1 + PICK(40);
    c.n = 1 + PICK(40);
    c.batch = 1 + PICK(3) / 2;
    if (PICK(3) == 0) c.k = 128 + PICK(400);
    for (int i = 0; i < ranks; i++) c.m[i] = PICK(5) == 0 ? 0 : 1 + PICK(12);
    c.dtype = dtypes[PICK(4)];
    c.d_b_dtype = c.dtype == EG_F64 || PICK(2) ? c.dtype : EG_F32;
    c.sums = PICK(2) ? EG_DTYPE_DEFAULT : c.dtype;
    c.activation = PICK(2) ? EG_ACT_RELU : EG_ACT_NONE;
    c.source = PICK(2) ? EG_SOURCE_PRE : EG_SOURCE_RECOMPUTE;
    c.reduction = PICK(3) == 0 ? EG_REDUCTION_MEAN : EG_REDUCTION_SUM;
    c.sharding = PICK(3) == 0 ? EG_SHARDING_LINES : EG_SHARDING_NONE;
    c.order = (eg_comm_order)PICK(3);
    const unsigned into = (unsigned)PICK(3) == 0 ? 7 : (unsigned)PICK(8); /* all, or some */
    c.into = (into & 1 ? EG_INTO_D_B : 0) | (into & 2 ? EG_INTO_D_BIAS : 0) |
             (into & 4 ? EG_INTO_CHAIN_D_BIAS : 0);
    c.by_columns = PICK(2), c.gaps = PICK(2);
    c.items = c.batch > 1 && c.sharding == EG_SHARDING_NONE && PICK(2);
    c.d_a = PICK(4) != 0, c.d_b = PICK(8) != 0, c.d_bias = PICK(4) != 0;
    c.chain = c.d_a && PICK(2);
    c.threads = 1 + PICK(2);
#undef PICK
    return c;
}

/* ---- Matrices ----------------------------------------------------------------------------------- */

typedef struct matrix {
    eg_matrix x;
    int64_t rows, cols, items;
    size_t bytes;
} matrix;

static void *need(size_t bytes) {
    void *memory = malloc(bytes + 64);
    if (memory == NULL) abort();
    return memory;
}

static matrix make(int64_t items, int64_t rows, int64_t cols, eg_dtype dtype, bool by_columns, bool gaps) {
    matrix m = {.rows = rows, .cols = cols, .items = items};
    const int64_t length = by_columns ? rows : cols, lines = by_columns ? cols : rows,
                  ld = length + (gaps ? 3 : 0);
    m.x = (eg_matrix){.ld = ld > 0 ? ld : 1,
                      .batch_stride = items > 1 ? (ld > 0 ? ld : 1) * (lines > 0 ? lines : 1) : 0,
                      .layout = by_columns ? EG_COL_MAJOR : EG_ROW_MAJOR,
                      .dtype = dtype};
    m.bytes = (size_t)(items * ld * lines) * eg_dtype_size(dtype);
    m.x.data = need(m.bytes);
    memset(m.x.data, 0xff, m.bytes + 1); /* NaN */
    return m;
}

static char *at(const matrix *m, int64_t item, int64_t row, int64_t col) {
    const int64_t place =
        item * m->x.batch_stride + (m->x.layout == EG_COL_MAJOR ? col * m->x.ld + row : row * m->x.ld + col);
    return (char *)m->x.data + (size_t)place * eg_dtype_size(m->x.dtype);
}

static void put(const matrix *m, int64_t item, int64_t row, int64_t col, double value) {
    eg_convert(at(m, item, row, col), m->x.dtype, &value, EG_F64, 1);
}

static double get(const matrix *m, int64_t item, int64_t row, int64_t col) {
    double value;
    eg_convert(&value, EG_F64, at(m, item, row, col), m->x.dtype, 1);
    return value;
}

/* Row `row` of it is row `first` + `row` of all ranks'. */
static void fill(const parallel_case *c, const matrix *m, int what, int64_t first_row, int64_t first_col) {
    for (int64_t i = 0; i < m->items; i++)
        for (int64_t r = 0; r < m->rows; r++)
            for (int64_t j = 0; j < m->cols; j++)
                put(m, i, r, j, number(c, what, i, first_row + r, first_col + j));
}

/* ---- The reference ------------------------------------------------------------------------------ */

typedef struct reference {
    int64_t rows; /* of all ranks */
    double *grad_pre, *d_a;
} reference;

static double derivative(const parallel_case *c, int64_t item, int64_t row, int64_t col) {
    double pre = number(c, BIAS, 0, 0, col);
    if (c->activation == EG_ACT_NONE) return 1;
    if (c->source == EG_SOURCE_PRE) return number(c, PRE, item, row, col) > 0;
    for (int64_t k = 0; k < c->k; k++) pre += number(c, A, item, row, k) * number(c, B, 0, k, col);
    return pre > 0;
}

static reference reference_of(const parallel_case *c, int ranks) {
    reference x = {.rows = 0};
    for (int i = 0; i < ranks; i++) x.rows += c->m[i];
    x.grad_pre = need((size_t)(c->batch * x.rows * c->n) * sizeof(double));
    for (int64_t i = 0; i < c->batch * x.rows; i++)
        for (int64_t j = 0; j < c->n; j++)
            x.grad_pre[i * c->n + j] =
                number(c, GRAD, i / x.rows, i % x.rows, j) * derivative(c, i / x.rows, i % x.rows, j);
    x.d_a = need((size_t)(c->batch * x.rows * c->k) * sizeof(double));
    for (int64_t i = 0; i < c->batch * x.rows; i++) {
        for (int64_t k = 0; k < c->k; k++) {
            double sum = 0;
            for (int64_t j = 0; j < c->n; j++) sum += x.grad_pre[i * c->n + j] * number(c, B, 0, k, j);
            if (c->chain) sum *= number(c, BELOW, i / x.rows, i % x.rows, k) > 0;
            x.d_a[i * c->k + k] = sum;
        }
    }
    return x;
}

static double d_b_of(const parallel_case *c, const reference *x, int64_t item, int64_t k, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < c->batch * x->rows; i++) {
        if (!c->items || i / x->rows == item)
            sum += number(c, A, i / x->rows, i % x->rows, k) * x->grad_pre[i * c->n + n];
    }
    return sum;
}

static double column_sum(const parallel_case *c, const reference *x, const double *of, int64_t cols,
                         int64_t col) {
    double sum = 0;
    for (int64_t i = 0; i < c->batch * x->rows; i++) sum += of[i * cols + col];
    return sum;
}

/* Whole numbers are exact; a mean is rounded, perhaps several times. */
static bool is_near(const parallel_case *c, double got, double sum, double before, int ranks,
                    eg_dtype dtype) {
    const double expected = (c->reduction == EG_REDUCTION_MEAN ? sum / ranks : sum) + before;
    const bool narrow = eg_dtype_size(dtype) == 2 || eg_dtype_size(c->sums) == 2;
    const double epsilon = c->reduction == EG_REDUCTION_SUM ? 0 : narrow ? 0x1p-6 : 0x1p-20;
    return fabs(got - expected) <= epsilon * (fabs(expected) + fabs(before) + 1);
}

/* ---- The call ----------------------------------------------------------------------------------- */

typedef struct call {
    matrix a, b, bias, grad, pre, below, d_a, d_b, d_bias, d_bias_below;
    int64_t first_row;                          /* of this rank */
    int64_t line, lines;                        /* of d_b: this rank's first one, and how many it has */
    int64_t first_n, count_n, first_k, count_k; /* of the vectors */
} call;

static int64_t shard(const parallel_case *c, const eg_comm *comm, int64_t lines, int64_t *first) {
    const int64_t each = (lines + comm->ranks - 1) / comm->ranks;
    *first = 0;
    if (c->sharding == EG_SHARDING_NONE) return lines;
    *first = each * comm->rank;
    const int64_t left = lines - *first;
    return left < 0 ? 0 : left < each ? left : each;
}

static void make_call(const parallel_case *c, const eg_comm *comm, call *x) {
    const int64_t m = c->m[comm->rank];
    for (int i = 0; i < comm->rank; i++) x->first_row += c->m[i];
    x->lines = shard(c, comm, c->by_columns ? c->n : c->k, &x->line);
    x->count_n = shard(c, comm, c->n, &x->first_n);
    x->count_k = shard(c, comm, c->k, &x->first_k);
    x->a = make(c->batch, m, c->k, c->dtype, false, c->gaps);
    x->b = make(1, c->k, c->n, c->dtype, c->by_columns, c->gaps);
    x->bias = make(1, 1, c->n, c->dtype, false, false);
    x->grad = make(c->batch, m, c->n, c->dtype, false, c->gaps);
    x->pre = make(c->batch, m, c->n, c->dtype, false, false);
    x->below = make(c->batch, m, c->k, c->dtype, false, false);
    x->d_a = make(c->batch, m, c->k, c->dtype, false, c->gaps);
    x->d_b = make(c->items ? c->batch : 1, c->by_columns ? c->k : x->lines, c->by_columns ? x->lines : c->n,
                  c->d_b_dtype, c->by_columns, c->gaps);
    x->d_bias = make(1, 1, x->count_n, c->d_b_dtype, false, false);
    x->d_bias_below = make(1, 1, x->count_k, c->d_b_dtype, false, false);
    fill(c, &x->a, A, x->first_row, 0);
    fill(c, &x->b, B, 0, 0);
    fill(c, &x->bias, BIAS, 0, 0);
    fill(c, &x->grad, GRAD, x->first_row, 0);
    fill(c, &x->pre, PRE, x->first_row, 0);
    fill(c, &x->below, BELOW, x->first_row, 0);
    if (adds_to(c, BEFORE_B))
        fill(c, &x->d_b, BEFORE_B, c->by_columns ? 0 : x->line, c->by_columns ? x->line : 0);
    if (adds_to(c, BEFORE_BIAS)) fill(c, &x->d_bias, BEFORE_BIAS, 0, x->first_n);
    if (adds_to(c, BEFORE_BELOW)) fill(c, &x->d_bias_below, BEFORE_BELOW, 0, x->first_k);
}

static void free_call(call *x) {
    const matrix *const all[] = {&x->a,     &x->b,   &x->bias, &x->grad,   &x->pre,
                                 &x->below, &x->d_a, &x->d_b,  &x->d_bias, &x->d_bias_below};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]->x.data);
}

static eg_vector vector_of(const matrix *m) { return (eg_vector){m->x.data, 0, m->x.dtype}; }

static eg_status run_call(const parallel_case *c, const eg_comm *comm, const call *x) {
    const eg_layer layer = {.size = sizeof layer,
                            .m = c->m[comm->rank],
                            .k = c->k,
                            .n = c->n,
                            .batch = c->batch,
                            .dtype = c->dtype,
                            .activation = c->activation};
    eg_backward_args args = {.size = sizeof args,
                             .a = x->a.x,
                             .b = x->b.x,
                             .bias = vector_of(&x->bias),
                             .grad = x->grad.x,
                             .source = c->source,
                             .accumulate = adds_to_all(c),
                             .accumulate_into = adds_to_all(c) ? 0 : c->into,
                             .data_parallel = {comm, c->reduction, c->sharding, c->sums}};
    if (c->source == EG_SOURCE_PRE) args.pre = x->pre.x;
    if (c->d_a) args.d_a = x->d_a.x;
    if (c->d_b) args.d_b = x->d_b.x;
    if (c->d_bias) args.d_bias = vector_of(&x->d_bias);
    if (c->chain)
        args.chain = (eg_chain){x->below.x, EG_SOURCE_PRE, EG_ACT_RELU, vector_of(&x->d_bias_below)};
    eg_context *context = NULL;
    const eg_open_info info = {.size = sizeof info, .threads = c->threads};
    eg_status status = eg_open(&info, &context);
    if (status == EG_OK) status = eg_backward(context, &layer, &args);
    eg_close(context);
    return status;
}

/* One result, of `ranks`; "" where it is right. */
static bool check_gradient(const parallel_case *c, int ranks, const matrix *got, const char *name, int before,
                           int64_t first_row, int64_t first_col, const reference *ref, char *text,
                           size_t capacity) {
    for (int64_t i = 0; i < got->items; i++) {
        for (int64_t r = 0; r < got->rows; r++) {
            for (int64_t j = 0; j < got->cols; j++) {
                const int64_t row = first_row + r, col = first_col + j;
                const double held = adds_to(c, before) ? number(c, before, i, row, col) : 0;
                const double sum = before == BEFORE_B      ? d_b_of(c, ref, i, row, col)
                                   : before == BEFORE_BIAS ? column_sum(c, ref, ref->grad_pre, c->n, col)
                                                           : column_sum(c, ref, ref->d_a, c->k, col);
                const double value = get(got, i, r, j);
                if (is_near(c, value, sum, held, ranks, got->x.dtype)) continue;
                snprintf(text, capacity, "%s[%lld][%lld, %lld] is %g; expected %g of %d ranks, and %g before",
                         name, (long long)i, (long long)row, (long long)col, value, sum, ranks, held);
                return false;
            }
        }
    }
    return true;
}

static bool check_d_a(const parallel_case *c, const call *x, const reference *ref, char *text,
                      size_t capacity) {
    for (int64_t i = 0; i < c->batch * x->d_a.rows; i++) {
        for (int64_t k = 0; k < c->k; k++) {
            const int64_t item = i / x->d_a.rows, row = i % x->d_a.rows;
            const double value = get(&x->d_a, item, row, k),
                         expected = ref->d_a[(item * ref->rows + x->first_row + row) * c->k + k];
            if (value == expected) continue;
            snprintf(text, capacity, "d_a[%lld][%lld, %lld] is %g; expected %g", (long long)item,
                     (long long)row, (long long)k, value, expected);
            return false;
        }
    }
    return true;
}

bool parallel_check(const parallel_case *c, const eg_comm *comm, char *text, size_t capacity) {
    call x = {.first_row = 0};
    eg_comm ordered = *comm;
    ordered.order = c->order;
    make_call(c, comm, &x);
    const eg_status status = run_call(c, &ordered, &x);
    bool right = status == EG_OK;
    snprintf(text, capacity, "%s: %s", eg_status_name(status), right ? "" : eg_last_error());
    if (right) {
        const reference ref = reference_of(c, comm->ranks);
        const int64_t row = c->by_columns ? 0 : x.line, col = c->by_columns ? x.line : 0;
        if (c->d_b)
            right = check_gradient(c, comm->ranks, &x.d_b, "d_b", BEFORE_B, row, col, &ref, text, capacity);
        if (right && c->d_bias)
            right = check_gradient(c, comm->ranks, &x.d_bias, "d_bias", BEFORE_BIAS, 0, x.first_n, &ref, text,
                                   capacity);
        if (right && c->chain)
            right = check_gradient(c, comm->ranks, &x.d_bias_below, "chain.d_bias", BEFORE_BELOW, 0,
                                   x.first_k, &ref, text, capacity);
        if (right && c->d_a) right = check_d_a(c, &x, &ref, text, capacity);
        free(ref.grad_pre);
        free(ref.d_a);
    }
    free_call(&x);
    return right;
}
