/* Vectors from and to memory where columns are neighbours, of which the last in a row may be a part: lane by
 * lane. Part of tile_template.h, for instruction sets without masks. */

typedef int64_t EG_V(part); /* lanes */

/* The columns of vector j that are below `cols`. */
EG_INLINE EG_V(part) EG_V(part_of)(int64_t cols, int64_t j) {
    const int64_t count = cols - j * EG_LANES;
    return count < EG_LANES ? count : EG_LANES;
}

EG_INLINE EG_T EG_V(load_part)(const char *from, const eg_dtype dtype, EG_V(part) part) {
    EG_R row[EG_LANES] = {0};
    if (part < EG_LANES) {
        EG_V(load_row)(row, from, dtype, 1, part);
        return EG_V(load)(row);
    }
    if (dtype == (EG_REAL_BITS == 64 ? EG_F64 : EG_F32)) return EG_V(load)((const EG_R *)(const void *)from);
    EG_V(load_row)(row, from, dtype, 1, EG_LANES);
    return EG_V(load)(row);
}

EG_INLINE void EG_V(store_part)(char *to, EG_T x, const eg_dtype dtype, EG_V(part) part) {
    EG_R row[EG_LANES];
    EG_V(store)(row, x);
    if (part < EG_LANES) {
        EG_V(store_row)(to, row, dtype, 1, part);
    } else {
        EG_V(store_row)(to, row, dtype, 1, EG_LANES);
    }
}

static void EG_V(load_dense)(EG_R *tile, const char *src, eg_dtype dtype, int64_t row_bytes, int64_t rows,
                             int64_t cols) {
    for (int64_t i = 0; i < rows; i++) EG_V(load_row)(tile + i * EG_NR, src + i * row_bytes, dtype, 1, cols);
}

static void EG_V(store_dense)(const EG_R *tile, char *dst, eg_dtype dtype, int64_t row_bytes, int64_t rows,
                              int64_t cols) {
    for (int64_t i = 0; i < rows; i++) EG_V(store_row)(dst + i * row_bytes, tile + i * EG_NR, dtype, 1, cols);
}
