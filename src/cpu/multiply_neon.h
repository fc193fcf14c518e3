/* SPDX-License-Identifier: Apache-2.0 */
/* The inner loops of Advanced SIMD, which multiplies a vector by one number of another: numbers of the left
 * operand are loaded by vectors, not each alone. Part of kernel_template.h; the sums are those of the generic
 * loops, in the same order. */

/* One k of a tile, whose numbers of the left operand are `lane` of a[i], or where rows are neighbours, all
 * lanes of a[0] and so on. */
EG_INLINE void EG_V(multiply_k)(EG_T sum[EG_MR][EG_NV], const EG_T a[EG_MR], const int lane,
                                const bool rows_are_lanes, const EG_R *right, const int mr, const int nv) {
    EG_T b[EG_NV];
    EG_UNROLL(8)
    for (int j = 0; j < nv; j++) b[j] = EG_V(load)(right + j * EG_LANES);
    EG_UNROLL(16)
    for (int i = 0; i < mr; i++) {
        const EG_R x = rows_are_lanes ? a[i / EG_LANES][i % EG_LANES] : a[i][lane];
        EG_UNROLL(8)
        for (int j = 0; j < nv; j++) sum[i][j] = EG_V(fma)(EG_V(splat)(x), b[j], sum[i][j]);
    }
}

/* Packed rows, or the left operand in place: the k of a row are neighbours. */
EG_INLINE void EG_V(multiply_rows)(EG_T sum[EG_MR][EG_NV], const EG_R *left, int64_t index_stride,
                                   const EG_R *right, int64_t right_k_stride, int64_t depth, const int mr,
                                   const int nv) {
    EG_T a[EG_MR];
    for (; depth >= EG_LANES; depth -= EG_LANES, left += EG_LANES) {
        EG_UNROLL(16)
        for (int i = 0; i < mr; i++) a[i] = EG_V(load)(left + i * index_stride);
        EG_UNROLL(4)
        for (int k = 0; k < EG_LANES; k++, right += right_k_stride)
            EG_V(multiply_k)(sum, a, k, false, right, mr, nv);
    }
    for (; depth > 0; depth--, left++, right += right_k_stride) {
        EG_UNROLL(16)
        for (int i = 0; i < mr; i++) a[i] = EG_V(splat)(left[i * index_stride]);
        EG_V(multiply_k)(sum, a, 0, false, right, mr, nv);
    }
}

/* A transposed left operand: the rows of a k are neighbours. */
EG_INLINE void EG_V(multiply_columns)(EG_T sum[EG_MR][EG_NV], const EG_R *left, int64_t k_stride,
                                      const EG_R *right, int64_t right_k_stride, int64_t depth,
                                      const int nv) {
    enum { SOON = 12 }; /* k: each is on another distant line */
    _Static_assert(EG_MR % (EG_VECTOR_BYTES * 8 / EG_REAL_BITS) == 0, "the rows of a tile are whole vectors");
    EG_PARTS(4)
    for (int64_t k = 0; k < depth; k++, left += k_stride, right += right_k_stride) {
        EG_T a[EG_MR];
        __builtin_prefetch(left + SOON * k_stride, 0, 3);
        EG_UNROLL(16)
        for (int i = 0; i < EG_MR / EG_LANES; i++) a[i] = EG_V(load)(left + i * EG_LANES);
        EG_V(multiply_k)(sum, a, 0, true, right, EG_MR, nv);
    }
}

/* Here the right operand is neither prefetched evenly nor copied: rows of 64-byte vectors do that. */
EG_INLINE void EG_V(multiply_group)(EG_T sum[EG_MR][EG_NV], const EG_R *left, const int64_t index_stride,
                                    const int64_t k_stride, const EG_R *right, const int64_t right_k_stride,
                                    int64_t depth, const eg_prefetch_stream *next, EG_R *copy, const int mr,
                                    const int nv, const bool transposed, const bool streams,
                                    const bool copies) {
    (void)next, (void)copy, (void)streams, (void)copies;
    if (transposed) {
        EG_V(multiply_columns)(sum, left, k_stride, right, right_k_stride, depth, nv);
    } else {
        EG_V(multiply_rows)(sum, left, index_stride, right, right_k_stride, depth, mr, nv);
    }
}

/* Few rows: sum + the products of `count` k, one after the other. */
EG_INLINE EG_T EG_V(add_k)(EG_T sum, const EG_R *left, const EG_T *b, const int count) {
    if (count % EG_LANES != 0) return EG_V(fma)(EG_V(splat)(*left), *b, sum); /* one k */
    EG_UNROLL(4)
    for (int at = 0; at < count; at += EG_LANES) {
        const EG_T a = EG_V(load)(left + at);
        EG_UNROLL(4)
        for (int k = 0; k < EG_LANES; k++) sum = EG_V(fma)(EG_V(splat)(a[k]), b[at + k], sum);
    }
    return sum;
}
