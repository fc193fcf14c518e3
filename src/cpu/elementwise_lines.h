/* SPDX-License-Identifier: Apache-2.0 */
/* The element-wise epilogues of whole tile blocks, row by row. Part of kernel_amx.c.
 *
 * Two vectors of a 16-bit type are one cache line, which is stored at once. Stored one vector at a time, down a
 * column, the line would be read from memory first. Subnormal numbers stay, as a residual's have to. */

enum { LINE_VECTORS = 2, LINES_AT_ONCE = 2 };

EG_INLINE bool has_whole_lines(const eg_elementwise *s) { return s->cols == LINE_VECTORS * EG_LANES; }

EG_INLINE void take_line(EG_T to[LINE_VECTORS], const eg_rows *x, int64_t row) {
    const char *at = x->at + row * x->step;
#define EG_TAKE(type)                                                                                        \
    EG_UNROLL(2)                                                                                             \
    for (int j = 0; j < LINE_VECTORS; j++)                                                                   \
    to[j] = EG_V(load_part)(at + j * EG_LANES * (int64_t)eg_size_of(type), type, 0xffff)
    EG_BY_TYPE(x->dtype, EG_TAKE);
#undef EG_TAKE
    if (x->scale == 1) return;
    EG_UNROLL(2)
    for (int j = 0; j < LINE_VECTORS; j++) to[j] *= EG_V(splat)(x->scale);
}

EG_INLINE void give_line(const eg_rows *to, int64_t row, const EG_T x[LINE_VECTORS]) {
    char *at = to->at + row * to->step;
    if (to->dtype == EG_F32) {
        EG_V(store_part)(at, x[0], EG_F32, 0xffff);
        EG_V(store_part)(at + EG_VECTOR_BYTES, x[1], EG_F32, 0xffff);
    } else if (to->dtype == EG_BF16) {
        _mm512_storeu_si512(at, EG_V(round_two_to_bf16)((__m512)x[0], (__m512)x[1]));
    } else {
        _mm512_storeu_si512(at, EG_V(two_to_words)(x[0], x[1], EG_F16));
    }
}

EG_INLINE void take_lines(EG_T *to, const eg_rows *x, int64_t row, const int rows) {
    EG_UNROLL(2)
    for (int u = 0; u < rows; u++) take_line(to + u * LINE_VECTORS, x, row + u);
}

/* Where `to` is present. */
EG_INLINE void give_lines(const eg_rows *to, int64_t row, const EG_T *x, const int rows) {
    if (to->at == NULL) return;
    EG_UNROLL(2)
    for (int u = 0; u < rows; u++) give_line(to, row + u, x + u * LINE_VECTORS);
}

#define EG_EACH_VECTOR(v) EG_UNROLL(4) for (int v = 0; v < rows * LINE_VECTORS; v++)

EG_INLINE void store_result(const eg_elementwise *s, int64_t row, const EG_T *x, const int rows) {
    EG_R *result = (EG_R *)s->result + row * s->tile_row;
    EG_EACH_VECTOR(v)
    EG_V(store)(result + v / LINE_VECTORS * s->tile_row + v % LINE_VECTORS * EG_LANES, x[v]);
}

/* act(x + bias), with `other` added or multiplied. */
EG_INLINE void act_some_lines(const eg_elementwise *s, const EG_T bias[LINE_VECTORS], int64_t row,
                              EG_T (*act)(EG_T), const bool is_identity, const int rows) {
    EG_T x[LINES_AT_ONCE * LINE_VECTORS], other[LINES_AT_ONCE * LINE_VECTORS] = {{0}};
    take_lines(x, &s->x, row, rows);
    EG_EACH_VECTOR(v) x[v] += bias[v % LINE_VECTORS];
    give_lines(&s->pre, row, x, rows);
    if (!is_identity) {
        EG_EACH_VECTOR(v) x[v] = EG_V(unless_nan)(x[v], act(x[v]), ~(EG_I){0});
    }
    if (s->other.at != NULL) take_lines(other, &s->other, row, rows);
    if (s->times) {
        EG_EACH_VECTOR(v) x[v] *= other[v];
        store_result(s, row, x, rows);
    } else if (s->other.at != NULL) {
        EG_EACH_VECTOR(v) x[v] += other[v];
    }
    give_lines(&s->out, row, x, rows);
}

/* other * act'(x + bias). */
EG_INLINE void grad_some_lines(const eg_elementwise *s, const EG_T bias[LINE_VECTORS], int64_t row,
                               EG_T (*act_grad)(EG_T), const bool has_x, const int rows) {
    const EG_I kept = (EG_I){0} - (EG_V(word))s->propagate;
    EG_T x[LINES_AT_ONCE * LINE_VECTORS] = {{0}}, grad[LINES_AT_ONCE * LINE_VECTORS];
    take_lines(grad, &s->other, row, rows);
    if (has_x) {
        take_lines(x, &s->x, row, rows);
        EG_EACH_VECTOR(v) x[v] += bias[v % LINE_VECTORS];
    }
    EG_EACH_VECTOR(v) grad[v] *= EG_V(unless_nan)(x[v], act_grad(x[v]), kept);
    store_result(s, row, grad, rows);
    give_lines(&s->out, row, grad, rows);
}

/* Calls STEP(s, bias, row, rows) for all rows. An absent bias is -0, as in every epilogue. */
#define EG_EACH_LINE(of, STEP)                                                                               \
    const eg_elementwise s = *(of);                                                                          \
    EG_T bias[LINE_VECTORS] = {EG_V(splat)((EG_R)-0.0), EG_V(splat)((EG_R)-0.0)};                            \
    int64_t row = s.row;                                                                                     \
    if (s.bias.at != NULL) take_line(bias, &s.bias, 0);                                                      \
    for (; s.end - row >= LINES_AT_ONCE; row += LINES_AT_ONCE) STEP(&s, bias, row, LINES_AT_ONCE);           \
    for (; row < s.end; row++) STEP(&s, bias, row, 1)

EG_INLINE void act_lines(const eg_elementwise *of, EG_T (*act)(EG_T), const bool is_identity) {
#define EG_ACT_LINES(s, bias, row, rows) act_some_lines(s, bias, row, act, is_identity, rows)
    EG_EACH_LINE(of, EG_ACT_LINES);
#undef EG_ACT_LINES
}

EG_INLINE void grad_lines(const eg_elementwise *of, EG_T (*act_grad)(EG_T), const bool has_x) {
#define EG_GRAD_LINES(s, bias, row, rows) grad_some_lines(s, bias, row, act_grad, has_x, rows)
    EG_EACH_LINE(of, EG_GRAD_LINES);
#undef EG_GRAD_LINES
}

#undef EG_EACH_LINE
#undef EG_EACH_VECTOR
