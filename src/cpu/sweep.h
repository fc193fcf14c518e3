/* The sweeps of kernel.h: the element-wise end of a tile, each vector read once, finished in registers and
 * written once. Part of tile_template.h.
 *
 * A sweep goes down one column of vectors after the other, some rows at once: an act' is a long chain of
 * operations, and a processor does not look far enough ahead to find the next one behind it. */
#define EG_AT_ONCE 2

/* Rows [row, row + EG_AT_ONCE) of column j of vectors; or `row` alone, as often. */
typedef struct EG_V(group) {
    int64_t j, row;
    bool alone;
    EG_V(part) part;
    EG_T bias;
} EG_V(group);

#define EG_EACH_ROW(u) EG_UNROLL(8) for (int u = 0; u < EG_AT_ONCE; u++)

/* Zeros of what is absent. */
EG_INLINE void EG_V(take)(EG_T to[EG_AT_ONCE], const eg_rows *x, const EG_V(group) * g) {
    if (x->at == NULL) {
        EG_EACH_ROW(u) to[u] = (EG_T){0};
        return;
    }
    const char *at = x->at + g->row * x->step;
    const int64_t step = g->alone ? 0 : x->step, vector = g->j * EG_LANES;
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

EG_INLINE void EG_V(give)(const eg_rows *to, const EG_V(group) * g, const EG_T from[EG_AT_ONCE]) {
    if (to->at == NULL) return;
    char *at = to->at + g->row * to->step;
    const int64_t step = g->alone ? 0 : to->step, vector = g->j * EG_LANES;
#define EG_GIVE(type)                                                                                        \
    EG_EACH_ROW(u)                                                                                           \
    EG_V(store_part)(at + u * step + vector * (int64_t)eg_size_of(type), from[u], type, g->part)
    EG_BY_TYPE(to->dtype, EG_GIVE);
#undef EG_GIVE
}

/* x + bias. No bias is -0, which leaves even a zero's sign as it is. */
EG_INLINE void EG_V(take_biased)(EG_T to[EG_AT_ONCE], const eg_sweep *s, const EG_V(group) * g) {
    EG_V(take)(to, &s->x, g);
    EG_EACH_ROW(u) to[u] += g->bias;
}

EG_INLINE EG_V(group) EG_V(first_group)(const eg_sweep *s, int64_t j) {
    const EG_V(group) bias = {.j = j, .alone = true, .part = EG_V(part_of)(s->cols, j)};
    EG_V(group) g = bias;
    EG_T rows[EG_AT_ONCE];
    EG_V(take)(rows, &s->bias, &bias);
    g.bias = s->bias.at != NULL ? rows[0] : EG_V(splat)((EG_R)-0.0);
    g.row = s->row;
    g.alone = s->end - g.row < EG_AT_ONCE;
    return g;
}

EG_INLINE void EG_V(next_group)(const eg_sweep *s, EG_V(group) * g) {
    g->row += g->alone ? 1 : EG_AT_ONCE;
    g->alone = s->end - g->row < EG_AT_ONCE;
}

/* The copy cannot change under the stores, for all that the compiler knows of them. */
#define EG_EACH_GROUP(sweep, g)                                                                              \
    const eg_sweep s = *(sweep);                                                                             \
    for (int64_t j = 0; j * EG_LANES < s.cols; j++)                                                          \
        for (EG_V(group) g = EG_V(first_group)(&s, j); g.row < s.end; EG_V(next_group)(&s, &g))

/* act(NaN) is NaN; act'(NaN) is NaN or 0. The formulas clamp, which would hide a NaN: it is put back. */
#define EG_ROW(NAME, name, value, from_y, text)                                                              \
    EG_INLINE EG_T EG_V(guarded_##name)(EG_T x) {                                                            \
        if ((value) == EG_ACT_NONE) return x;                                                                \
        return EG_V(unless_nan)(x, EG_V(act_##name)(x), ~(EG_I){0});                                         \
    }                                                                                                        \
    static void EG_V(sweep_##name)(const eg_sweep *sweep) {                                                  \
        EG_EACH_GROUP(sweep, g) {                                                                            \
            EG_T x[EG_AT_ONCE], other[EG_AT_ONCE];                                                           \
            EG_V(take_biased)(x, &s, &g);                                                                    \
            EG_V(give)(&s.pre, &g, x);                                                                       \
            EG_EACH_ROW(u) x[u] = EG_V(guarded_##name)(x[u]);                                                \
            if (s.other.at != NULL) {                                                                        \
                EG_V(take)(other, &s.other, &g);                                                             \
                EG_EACH_ROW(u) x[u] += other[u];                                                             \
            }                                                                                                \
            EG_V(give)(&s.out, &g, x);                                                                       \
        }                                                                                                    \
    }
EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW

#define EG_GRAD_SWEEP(function, derivative)                                                                  \
    static void EG_V(function)(const eg_sweep *sweep) {                                                      \
        const EG_I kept = (EG_I){0} - (EG_V(word))sweep->propagate;                                          \
        EG_EACH_GROUP(sweep, g) {                                                                            \
            EG_T x[EG_AT_ONCE], grad[EG_AT_ONCE];                                                            \
            EG_R *result = (EG_R *)s.result + g.row * s.tile_row + j * EG_LANES;                             \
            EG_V(take_biased)(x, &s, &g);                                                                    \
            EG_V(take)(grad, &s.other, &g);                                                                  \
            EG_EACH_ROW(u) grad[u] *= EG_V(unless_nan)(x[u], EG_V(derivative)(x[u]), kept);                  \
            EG_EACH_ROW(u) EG_V(store)(result + (g.alone ? 0 : u * s.tile_row), grad[u]);                    \
            EG_V(give)(&s.out, &g, grad);                                                                    \
        }                                                                                                    \
    }
#define EG_GRAD_Y_0(name)
#define EG_GRAD_Y_1(name) EG_GRAD_SWEEP(sweep_grad_y_##name, act_grad_y_##name)
#define EG_ROW(NAME, name, value, from_y, text)                                                              \
    EG_GRAD_SWEEP(sweep_grad_##name, act_grad_##name)                                                        \
    EG_GRAD_Y_##from_y(name)
EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW
#undef EG_EACH_GROUP
#undef EG_EACH_ROW

static void EG_V(add_rows)(void *sums, const void *rows, int64_t step, int64_t count, int64_t cols) {
    EG_R *sum = sums;
    const EG_R *from = rows;
    for (int64_t j = 0; j < cols; j += EG_LANES) {
        EG_T total = EG_V(load)(sum + j);
        for (int64_t i = 0; i < count; i++) total += EG_V(load)(from + i * step + j);
        EG_V(store)(sum + j, total);
    }
}
