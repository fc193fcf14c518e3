/* The sweeps of kernel.h: the element-wise end of a tile, each vector read once, finished in registers and
 * written once. Part of tile_template.h. */

/* Where vector j of row i is. */
EG_INLINE char *EG_V(place)(const eg_rows *x, int64_t i, int64_t j) {
    const int64_t size = x->dtype == EG_F16 || x->dtype == EG_BF16 ? 2 : (int64_t)sizeof(EG_R);
    return x->at + i * x->step + j * EG_LANES * size;
}

/* Its numbers, as far as `part`; zeros of what is absent. */
EG_INLINE EG_T EG_V(take)(const eg_rows *x, int64_t i, int64_t j, EG_V(part) part) {
    if (x->at == NULL) return (EG_T){0};
    const EG_T value = EG_V(load_part)(EG_V(place)(x, i, j), x->dtype, part);
#ifdef EG_SCALED
    if (x->dtype == EG_F32) return value * EG_V(splat)(x->scale);
#endif
    return value;
}

EG_INLINE void EG_V(give)(const eg_rows *to, int64_t i, int64_t j, EG_V(part) part, EG_T value) {
    if (to->at != NULL) EG_V(store_part)(EG_V(place)(to, i, j), value, to->dtype, part);
}

/* Added to every row: no bias is -0, which leaves even a zero's sign as it is. */
EG_INLINE EG_T EG_V(bias)(const eg_sweep *s, int64_t j, EG_V(part) part) {
    return s->bias.at != NULL ? EG_V(take)(&s->bias, 0, j, part) : EG_V(splat)((EG_R)-0.0);
}

/* Column by column of vectors: what belongs to a column stays in registers. The copy cannot change under the
 * stores, for all that the compiler knows of them. */
#define EG_EACH_VECTOR(sweep)                                                                                \
    const eg_sweep s = *(sweep);                                                                             \
    for (int64_t j = 0; j * EG_LANES < s.cols; j++)                                                          \
        for (EG_V(column) c = EG_V(column_of)(&s, j); c.row < s.end; c.row++)

typedef struct EG_V(column) {
    EG_V(part) part;
    EG_T bias;
    int64_t row;
} EG_V(column);

EG_INLINE EG_V(column) EG_V(column_of)(const eg_sweep *s, int64_t j) {
    const EG_V(part) part = EG_V(part_of)(s->cols, j);
    return (EG_V(column)){part, EG_V(bias)(s, j, part), s->row};
}

/* act(NaN) is NaN; act'(NaN) is NaN or 0. The formulas clamp, which would hide a NaN: it is put back. */
#define EG_ROW(NAME, name, value, from_y, text)                                                              \
    static void EG_V(sweep_##name)(const eg_sweep *sweep) {                                                  \
        EG_EACH_VECTOR(sweep) {                                                                              \
            const EG_T x = EG_V(take)(&s.x, c.row, j, c.part) + c.bias;                                      \
            EG_V(give)(&s.pre, c.row, j, c.part, x);                                                         \
            EG_T y = EG_V(unless_nan)(x, EG_V(act_##name)(x), ~(EG_I){0});                                   \
            if (s.other.at != NULL) y += EG_V(take)(&s.other, c.row, j, c.part);                             \
            EG_V(give)(&s.out, c.row, j, c.part, y);                                                         \
        }                                                                                                    \
    }
EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW

#define EG_GRAD_SWEEP(function, derivative)                                                                  \
    static void EG_V(function)(const eg_sweep *sweep) {                                                      \
        const EG_I kept = (EG_I){0} - (EG_V(word))sweep->propagate;                                          \
        EG_EACH_VECTOR(sweep) {                                                                              \
            const EG_T x = EG_V(take)(&s.x, c.row, j, c.part) + c.bias;                                      \
            const EG_T slope = EG_V(unless_nan)(x, EG_V(derivative)(x), kept);                               \
            const EG_T grad = EG_V(take)(&s.other, c.row, j, c.part) * slope;                                \
            EG_V(store)((EG_R *)s.result + c.row * EG_NR + j * EG_LANES, grad);                              \
            EG_V(give)(&s.out, c.row, j, c.part, grad);                                                      \
        }                                                                                                    \
    }
#define EG_GRAD_Y_0(name)
#define EG_GRAD_Y_1(name) EG_GRAD_SWEEP(sweep_grad_y_##name, act_grad_y_##name)
#define EG_ROW(NAME, name, value, from_y, text)                                                              \
    EG_GRAD_SWEEP(sweep_grad_##name, act_grad_##name)                                                        \
    EG_GRAD_Y_##from_y(name)
EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW
#undef EG_EACH_VECTOR

static void EG_V(add_rows)(void *sums, const void *rows, int64_t step, int64_t count, int64_t cols) {
    EG_R *sum = sums;
    const EG_R *from = rows;
    for (int64_t j = 0; j < cols; j += EG_LANES) {
        EG_T total = EG_V(load)(sum + j);
        for (int64_t i = 0; i < count; i++) total += EG_V(load)(from + i * step + j);
        EG_V(store)(sum + j, total);
    }
}
