/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor_parallel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Cases -------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) {
    x ^= x >> 33, x *= 0xff51afd7ed558ccdU, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53U;
    return x ^ x >> 33;
}

tensor_case tensor_case_of(uint64_t index, int ranks) {
    static const eg_dtype dtypes[] = {EG_F32, EG_F32, EG_F64, EG_F16, EG_BF16};
    uint64_t x = mix(index + 77);
#define PICK(count) ((int)((x = mix(x + 1)) % (uint64_t)(count)))
    tensor_case c = {.seed = index};
    c.split = PICK(2) ? EG_SPLIT_ROWS : EG_SPLIT_COLUMNS;
    c.backward = PICK(2);
    c.dtype = dtypes[PICK(5)];
    const bool wide = c.dtype == EG_F32 || c.dtype == EG_F64;
    c.gated = wide && c.split == EG_SPLIT_COLUMNS && PICK(3) == 0;
    c.each = PICK(6) == 0 ? 0 : 1 + PICK(12);
    if (PICK(4) == 0) c.each = 128 + PICK(160);
    c.whole = PICK(10) == 0 ? 0 : 1 + PICK(40);
    for (int i = 0; i < ranks; i++) c.parts[i] = PICK(6) == 0 ? 0 : 1 + PICK(24);
    c.sums = PICK(2) ? EG_DTYPE_DEFAULT : c.dtype;
    c.activation = PICK(2) ? EG_ACT_RELU : EG_ACT_NONE;
    c.source = PICK(2) || (c.split == EG_SPLIT_ROWS && c.activation != EG_ACT_NONE) ? EG_SOURCE_PRE
                                                                                    : EG_SOURCE_RECOMPUTE;
    c.order = (eg_comm_order)PICK(3);
    c.scale = wide && PICK(3) == 0 ? 0.5 : 0;
    c.turned = PICK(2), c.gaps = PICK(2), c.packed = PICK(4) == 0;
    c.gathered = c.split == EG_SPLIT_COLUMNS && PICK(2);
    c.bias = PICK(2), c.pre = PICK(2);
    c.residual = PICK(2) && (c.backward || (c.activation == EG_ACT_NONE && !c.gated));
    c.d_a = PICK(4) != 0, c.d_b = PICK(4) != 0, c.d_bias = PICK(3) != 0, c.grad_pre = PICK(3) == 0;
    c.chain = c.backward && c.d_a && c.split == EG_SPLIT_ROWS && PICK(2);
    c.sums_below = c.chain && PICK(2);
    c.into = PICK(2);
    c.into_d_a = c.backward && c.d_a && !c.chain && !c.residual && PICK(2);
    c.residual = c.residual && (!c.backward || c.d_a);
    c.threads = 1 + PICK(2);
#undef PICK
    return c;
}

/* ---- The whole layer ---------------------------------------------------------------------------- */

typedef enum what { A, B, BIAS, B_UP, BIAS_UP, RESIDUAL, GRAD, PRE, PRE_UP, BELOW, D_A, BEFORE } what;

/* -1, 0 or 1 */
static double number(const tensor_case *c, int what, int64_t row, int64_t col) {
    const uint64_t at = mix(c->seed + 1) ^ mix((uint64_t)what << 56 ^ (uint64_t)row << 20 ^ (uint64_t)col);
    return (double)(mix(at) % 3) - 1;
}

typedef struct whole {
    const tensor_case *c;
    int64_t m, k, n;
    double *pre, *pre_up, *gate, *up; /* [m, n]: pre-activations and their gradients */
} whole;

static void *need(size_t bytes) {
    void *memory = malloc(bytes + 64);
    if (memory == NULL) abort();
    return memory;
}

static double scale_of(const tensor_case *c) { return c->scale == 0 ? 1 : c->scale; }
static double act(const tensor_case *c, double x) { return c->activation == EG_ACT_RELU && x < 0 ? 0 : x; }
static double derivative(const tensor_case *c, double x) { return c->activation == EG_ACT_NONE || x > 0; }

static double product(const whole *w, int64_t i, int64_t j, what b, what bias) {
    double sum = 0;
    for (int64_t k = 0; k < w->k; k++) sum += number(w->c, A, i, k) * number(w->c, b, k, j);
    return scale_of(w->c) * sum + (w->c->bias ? number(w->c, bias, 0, j) : 0);
}

static whole whole_of(const tensor_case *c, int ranks) {
    int64_t sum = 0;
    for (int i = 0; i < ranks; i++) sum += c->parts[i];
    const bool by_rows = c->split == EG_SPLIT_ROWS;
    whole w = {.c = c, .m = c->each * ranks, .k = by_rows ? sum : c->whole, .n = by_rows ? c->whole : sum};
    const size_t bytes = (size_t)(w.m * w.n) * sizeof(double);
    w.pre = need(bytes), w.pre_up = need(bytes), w.gate = need(bytes), w.up = need(bytes);
    const bool saved = c->backward && c->source == EG_SOURCE_PRE;
    for (int64_t at = 0; at < w.m * w.n; at++) {
        const int64_t i = at / w.n, j = at % w.n;
        w.pre[at] = saved ? number(c, PRE, i, j) : product(&w, i, j, B, BIAS);
        w.pre_up[at] = !c->gated ? 1 : saved ? number(c, PRE_UP, i, j) : product(&w, i, j, B_UP, BIAS_UP);
        w.gate[at] = number(c, GRAD, i, j) * w.pre_up[at] * derivative(c, w.pre[at]);
        w.up[at] = number(c, GRAD, i, j) * act(c, w.pre[at]);
    }
    return w;
}

static void free_whole(whole *w) { free(w->pre), free(w->pre_up), free(w->gate), free(w->up); }

static double y_of(const whole *w, int64_t i, int64_t j) {
    const tensor_case *c = w->c;
    const double y = act(c, w->pre[i * w->n + j]) * w->pre_up[i * w->n + j];
    return y + (c->residual ? number(c, RESIDUAL, i, j) : 0);
}

static double d_a_of(const whole *w, int64_t i, int64_t k) {
    const tensor_case *c = w->c;
    double sum = 0;
    for (int64_t j = 0; j < w->n; j++) {
        sum += w->gate[i * w->n + j] * number(c, B, k, j);
        if (c->gated) sum += w->up[i * w->n + j] * number(c, B_UP, k, j);
    }
    sum *= scale_of(c);
    if (c->residual) sum += number(c, RESIDUAL, i, k);
    if (c->into_d_a) sum += number(c, D_A, i, k);
    return c->chain ? sum * (number(c, BELOW, i, k) > 0) : sum;
}

static double d_b_of(const whole *w, const double *gradient, int64_t k, int64_t j) {
    double sum = 0;
    for (int64_t i = 0; i < w->m; i++) sum += number(w->c, A, i, k) * gradient[i * w->n + j];
    return scale_of(w->c) * sum + (w->c->into ? number(w->c, BEFORE, k, j) : 0);
}

static double d_bias_of(const whole *w, const double *gradient, int64_t j) {
    double sum = w->c->into ? number(w->c, BEFORE, 0, j) : 0;
    for (int64_t i = 0; i < w->m; i++) sum += gradient[i * w->n + j];
    return sum;
}

static double d_bias_below_of(const whole *w, int64_t k) {
    double sum = w->c->into ? number(w->c, BEFORE, 0, k) : 0;
    for (int64_t i = 0; i < w->m; i++) sum += d_a_of(w, i, k);
    return sum;
}

/* ---- A rank's part ------------------------------------------------------------------------------ */

typedef struct matrix {
    eg_matrix x;
    int64_t row, col, rows, cols; /* of the whole one */
} matrix;

static char *at(const matrix *m, int64_t row, int64_t col) {
    const int64_t place = m->x.layout == EG_COL_MAJOR ? col * m->x.ld + row : row * m->x.ld + col;
    return (char *)m->x.data + (size_t)place * eg_dtype_size(m->x.dtype);
}

/* Of rows [row, row + rows) and columns likewise. `fill`: its numbers; -1: none yet. */
static matrix make(const tensor_case *c, int64_t row, int64_t rows, int64_t col, int64_t cols, bool turned,
                   int fill) {
    matrix m = {.row = row, .col = col, .rows = rows, .cols = cols};
    const int64_t length = turned ? rows : cols, lines = turned ? cols : rows;
    m.x = (eg_matrix){
        .ld = length + (c->gaps ? 3 : 0), .dtype = c->dtype, .layout = turned ? EG_COL_MAJOR : EG_ROW_MAJOR};
    if (m.x.ld == 0) m.x.ld = 1;
    const size_t bytes = (size_t)(m.x.ld * lines) * eg_dtype_size(c->dtype);
    m.x.data = need(bytes);
    memset(m.x.data, 0xff, bytes + 1); /* NaN */
    for (int64_t i = 0; i < rows && fill >= 0; i++) {
        for (int64_t j = 0; j < cols; j++) {
            const double value = number(c, fill, row + i, col + j);
            eg_convert(at(&m, i, j), c->dtype, &value, EG_F64, 1);
        }
    }
    return m;
}

typedef struct part {
    const whole *w;
    int64_t k0, k, n0, n;           /* of the rank */
    int64_t a0, a_rows, y0, y_rows; /* its rows of [M, K] and of [M, N] */
    matrix a, b, bias, b_up, bias_up, residual, y, pre, pre_up, gathered;
    matrix grad, below, d_a, d_b, d_bias, d_b_up, d_bias_up, grad_pre, d_bias_below;
} part;

static eg_vector vector_of(const matrix *m) { return (eg_vector){m->x.data, 0, m->x.dtype}; }

static matrix vector(const tensor_case *c, int64_t first, int64_t count, int fill) {
    tensor_case dense = *c;
    dense.gaps = false;
    return make(&dense, 0, 1, first, count, false, fill);
}

static void make_part(const tensor_case *c, const whole *w, const eg_comm *comm, part *p) {
    const bool by_rows = c->split == EG_SPLIT_ROWS;
    const int64_t mine = c->parts[comm->rank], first = c->each * comm->rank;
    int64_t before = 0;
    for (int i = 0; i < comm->rank; i++) before += c->parts[i];
    *p = (part){.w = w,
                .k0 = by_rows ? before : 0,
                .k = by_rows ? mine : w->k,
                .n0 = by_rows ? 0 : before,
                .n = by_rows ? w->n : mine,
                .a0 = by_rows ? 0 : first,
                .a_rows = by_rows ? w->m : c->each,
                .y0 = by_rows ? first : 0,
                .y_rows = by_rows ? c->each : w->m};
    const int held = c->into ? BEFORE : -1;
    tensor_case dense = *c;
    dense.gaps = false;
    p->a = make(c, p->a0, p->a_rows, p->k0, p->k, c->turned, A);
    p->gathered = make(&dense, 0, w->m, p->k0, p->k, false, c->backward ? A : -1);
    p->b = make(c, p->k0, p->k, p->n0, p->n, c->turned, B);
    p->b_up = make(c, p->k0, p->k, p->n0, p->n, c->turned, B_UP);
    p->bias = vector(c, p->n0, p->n, BIAS), p->bias_up = vector(c, p->n0, p->n, BIAS_UP);
    p->y = make(c, p->y0, p->y_rows, p->n0, p->n, false, -1);
    const int saved = c->backward ? PRE : -1, saved_up = c->backward ? PRE_UP : -1;
    p->pre = make(c, p->y0, p->y_rows, p->n0, p->n, false, saved);
    p->pre_up = make(c, p->y0, p->y_rows, p->n0, p->n, false, saved_up);
    if (c->backward) p->residual = make(c, p->a0, p->a_rows, p->k0, p->k, false, RESIDUAL);
    if (!c->backward) p->residual = make(c, p->y0, p->y_rows, p->n0, p->n, false, RESIDUAL);
    p->grad = make(c, p->y0, p->y_rows, p->n0, p->n, c->turned, GRAD);
    p->grad_pre = make(c, p->y0, p->y_rows, p->n0, p->n, false, -1);
    p->below = make(c, p->a0, p->a_rows, p->k0, p->k, false, BELOW);
    p->d_a = make(c, p->a0, p->a_rows, p->k0, p->k, false, c->into_d_a ? D_A : -1);
    p->d_b = make(c, p->k0, p->k, p->n0, p->n, c->turned, held);
    p->d_b_up = make(c, p->k0, p->k, p->n0, p->n, c->turned, held);
    p->d_bias = vector(c, p->n0, p->n, held), p->d_bias_up = vector(c, p->n0, p->n, held);
    p->d_bias_below = vector(c, p->k0, p->k, held);
}

static void free_part(part *p) {
    const matrix *const all[] = {&p->a,        &p->b,         &p->bias,     &p->b_up,        &p->bias_up,
                                 &p->residual, &p->y,         &p->pre,      &p->pre_up,      &p->gathered,
                                 &p->grad,     &p->below,     &p->d_a,      &p->d_b,         &p->d_bias,
                                 &p->d_b_up,   &p->d_bias_up, &p->grad_pre, &p->d_bias_below};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]->x.data);
}

static eg_forward_args forward_args(const tensor_case *c, const eg_comm *comm, const part *p) {
    eg_forward_args args =
        eg_forward_of(p->a.x, p->b.x, c->bias ? vector_of(&p->bias) : eg_elements(NULL), p->y.x);
    args.tensor_parallel = (eg_tensor_parallel){.comm = comm, .split = c->split, .sums = c->sums};
    if (c->gathered) args.tensor_parallel.gathered = p->gathered.x;
    if (c->residual) args.residual = p->residual.x;
    if (c->pre) args.pre = p->pre.x;
    if (!c->gated) return args;
    args.b_up = p->b_up.x;
    if (c->bias) args.bias_up = vector_of(&p->bias_up);
    if (c->pre) args.pre_up = p->pre_up.x;
    return args;
}

static eg_backward_args backward_args(const tensor_case *c, const eg_comm *comm, const part *p) {
    const bool saved = c->source == EG_SOURCE_PRE;
    eg_backward_args args =
        eg_backward_of(p->a.x, p->b.x, c->bias ? vector_of(&p->bias) : eg_elements(NULL), p->grad.x);
    args.tensor_parallel = (eg_tensor_parallel){.comm = comm, .split = c->split, .sums = c->sums};
    if (c->gathered) args.a.data = NULL, args.tensor_parallel.gathered = p->gathered.x;
    args.source = c->source;
    args.accumulate = c->into;
    if (saved) args.pre = p->pre.x;
    if (c->d_a) args.d_a = p->d_a.x;
    if (c->d_b) args.d_b = p->d_b.x;
    if (c->d_bias) args.d_bias = vector_of(&p->d_bias);
    if (c->grad_pre) args.grad_pre = p->grad_pre.x;
    if (c->residual) args.residual = p->residual.x;
    if (c->into_d_a) args.accumulate_into = EG_INTO_D_A;
    if (c->chain)
        args.chain = (eg_chain){p->below.x, EG_SOURCE_PRE, EG_ACT_RELU,
                                c->sums_below ? vector_of(&p->d_bias_below) : eg_elements(NULL)};
    if (!c->gated) return args;
    args.b_up = p->b_up.x;
    if (c->bias) args.bias_up = vector_of(&p->bias_up);
    if (saved) args.pre_up = p->pre_up.x;
    if (c->d_b) args.d_b_up = p->d_b_up.x;
    if (c->d_bias) args.d_bias_up = vector_of(&p->d_bias_up);
    return args;
}

static eg_status run(const tensor_case *c, const eg_comm *comm, const part *p) {
    const eg_layer layer = {.size = sizeof layer,
                            .m = p->w->m,
                            .k = p->k,
                            .n = p->n,
                            .dtype = c->dtype,
                            .activation = c->activation,
                            .scale = c->scale};
    eg_forward_args forward = forward_args(c, comm, p);
    eg_backward_args backward = backward_args(c, comm, p);
    eg_context *context = NULL;
    eg_packed *packed = NULL;
    const eg_open_info info = {.size = sizeof info, .threads = c->threads};
    eg_status status = eg_open(&info, &context);
    if (status == EG_OK && c->packed) status = eg_pack_b(context, &layer, &p->b.x, &packed);
    forward.packed_b = backward.packed_b = packed;
    for (int i = 0; i < 2 && status == EG_OK; i++) { /* the second time the programs are there */
        if (i > 0 && c->backward && (c->into || c->into_d_a)) break;
        status =
            c->backward ? eg_backward(context, &layer, &backward) : eg_forward(context, &layer, &forward);
    }
    eg_packed_free(context, packed);
    eg_close(context);
    return status;
}

/* ---- Comparing ---------------------------------------------------------------------------------- */

static double value_of(const part *p, const matrix *m, int64_t i, int64_t j) {
    const whole *w = p->w;
    if (m == &p->y) return y_of(w, i, j);
    if (m == &p->pre) return w->pre[i * w->n + j];
    if (m == &p->pre_up) return w->pre_up[i * w->n + j];
    if (m == &p->gathered) return number(w->c, A, i, j);
    if (m == &p->grad_pre) return w->gate[i * w->n + j];
    if (m == &p->d_a) return d_a_of(w, i, j);
    if (m == &p->d_b) return d_b_of(w, w->gate, i, j);
    if (m == &p->d_b_up) return d_b_of(w, w->up, i, j);
    if (m == &p->d_bias) return d_bias_of(w, w->gate, j);
    if (m == &p->d_bias_up) return d_bias_of(w, w->up, j);
    return d_bias_below_of(w, j);
}

static bool check(const part *p, const matrix *m, const char *name, char *text, size_t capacity) {
    for (int64_t i = 0; i < m->rows; i++) {
        for (int64_t j = 0; j < m->cols; j++) {
            const double expected = value_of(p, m, m->row + i, m->col + j);
            double got;
            eg_convert(&got, EG_F64, at(m, i, j), m->x.dtype, 1);
            if (got == expected) continue;
            snprintf(text, capacity, "%s[%lld, %lld] is %g; expected %g", name, (long long)m->row + i,
                     (long long)m->col + j, got, expected);
            return false;
        }
    }
    return true;
}

static bool check_all(const tensor_case *c, const part *p, char *text, size_t capacity) {
    const bool f = !c->backward, b = c->backward;
    const struct {
        bool made;
        const matrix *m;
        const char *name;
    } all[] = {{f, &p->y, "y"},
               {f && c->pre, &p->pre, "pre"},
               {f && c->pre && c->gated, &p->pre_up, "pre_up"},
               {f && c->gathered, &p->gathered, "gathered"},
               {b && c->grad_pre, &p->grad_pre, "grad_pre"},
               {b && c->d_a, &p->d_a, "d_a"},
               {b && c->d_b, &p->d_b, "d_b"},
               {b && c->d_b && c->gated, &p->d_b_up, "d_b_up"},
               {b && c->d_bias, &p->d_bias, "d_bias"},
               {b && c->d_bias && c->gated, &p->d_bias_up, "d_bias_up"},
               {b && c->sums_below, &p->d_bias_below, "chain.d_bias"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].made && !check(p, all[i].m, all[i].name, text, capacity)) return false;
    }
    return true;
}

bool tensor_check(const tensor_case *c, const eg_comm *comm, char *text, size_t capacity) {
    eg_comm ordered = *comm;
    part p;
    ordered.order = c->order;
    whole w = whole_of(c, comm->ranks);
    make_part(c, &w, comm, &p);
    const eg_status status = run(c, &ordered, &p);
    snprintf(text, capacity, "%s: %s", eg_status_name(status), status == EG_OK ? "" : eg_last_error());
    const bool right = status == EG_OK && check_all(c, &p, text, capacity);
    free_part(&p);
    free_whole(&w);
    return right;
}
