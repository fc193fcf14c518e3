/* SPDX-License-Identifier: Apache-2.0 */
/* Which products and maps a kernel row takes: what its rule about operands says, and what TMA, vectors and
 * the library need. Pure. */
#include "takes.h"

#include "layout.h"
#include "parameters.h"
#include "skinny.h"

/* ---- What TMA and vectors need -------------------------------------------------------------------- */

/* TMA stores whole vectors of 16 bytes. Where a row ends inside one, it would write zeros over what follows
 * the row. So TMA stores the columns before that vector, and threads store the others (eg_store_columns): all
 * of them where rows do not begin on a vector. */
int32_t eg_cuda_tma_cols(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    if (!eg_cuda_is_aligned(&x->out) || !eg_cuda_is_aligned(&x->second)) return 0;
    const eg_dtype dtype = x->out.data != 0 ? (eg_dtype)x->out.dtype : row->dtype;
    const int64_t vector = 16 / (int64_t)eg_dtype_size(dtype);
    return (int32_t)(x->cols / vector * vector);
}

bool eg_cuda_has_vectors(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    enum { ALL = 3 };
    const eg_cuda_matrix *const all[ALL] = {&x->second, &x->out, &x->in};
    const int64_t each = 16 / (int64_t)eg_dtype_size(row->dtype);
    for (int i = 0; i < ALL; i++) {
        if (all[i]->data == 0) continue;
        if (all[i]->col_stride != 1 || !eg_cuda_is_aligned(all[i])) return false;
        if (all[i]->dtype != (int32_t)row->dtype && (i == 0 || all[i]->dtype != (int32_t)row->compute))
            return false;
    }
    if (x->bias.data != 0 && (x->bias.data % 16 != 0 || x->bias.col_stride != 1)) return false;
    return x->cols % each == 0;
}

/* ---- What a row takes ----------------------------------------------------------------------------- */

static bool is_row_major(const eg_cuda_matrix *x) { return x->data == 0 || x->col_stride == 1; }

/* Coordinates of TMA are 32-bit. */
static bool is_small(const eg_cuda_gemm *x) {
    const int64_t most = 1LL << 31;
    return x->rows < most - 512 && x->cols < most - 512 && x->depth < most - 512 && x->items < most &&
           x->summed < most;
}

static bool is_copy(const eg_cuda_gemm *x) {
    return x->depth == 0 && x->bias.data == 0 && x->activation == EG_ACT_NONE && x->second.data == 0 &&
           x->out.data != 0 && x->in.data != 0;
}

/* Rows or columns that do not overlap: the library knows no others. */
static bool has_lines_apart(const eg_cuda_matrix *x, int64_t rows, int64_t cols) {
    if (x->data == 0 || rows <= 1 || cols <= 1) return true;
    return x->col_stride == 1 ? x->row_stride >= cols : x->col_stride >= rows;
}

/* Its GELU is wrong by 1e-5, and NaN at -infinity; ReLU makes 0 of a NaN, but not in the 16-bit kernels for
 * Hopper, which take whole vectors. */
static bool has_library_activation(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    const int64_t each = 8;
    if ((row->takes & EG_CUDA_RELU) == 0) return x->activation == EG_ACT_NONE;
    return x->activation == EG_ACT_RELU && x->out.dtype == (int32_t)row->dtype && x->cols % each == 0 &&
           x->depth % each == 0;
}

/* The library rounds some products of 16 bits before it adds them to what is there, and reads a bias as
 * numbers of the result's type. */
static bool suits_library(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    if (x->bias.data != 0 && x->bias.dtype != x->out.dtype) return false;
    if (x->epilogue == EG_CUDA_FORWARD &&
        (!has_library_activation(row, x) || x->second.data != 0 || x->in.data != 0 ||
         x->bias.col_stride != 1 || x->bias.data % 16 != 0 || x->out.col_stride != 1 ||
         x->out.dtype == EG_F64))
        return false;
    if (x->accumulate && eg_dtype_size((eg_dtype)x->out.dtype) == 2) return false;
    return has_lines_apart(&x->left, x->rows, x->depth) && has_lines_apart(&x->right, x->depth, x->cols);
}

static bool has_row_stores(const eg_cuda_gemm *x) {
    return is_row_major(&x->in) && is_row_major(&x->out) && is_row_major(&x->second);
}

/* Of groups, as many as they have on average. */
static int64_t rows_of_item(const eg_cuda_gemm *x) {
    return x->ragged == EG_CUDA_RAGGED_ROWS ? eg_ceil_div(x->rows, x->items) : x->rows;
}

/* Threads of the persistent kernels store what TMA cannot (eg_cuda_tma_cols). */
static bool is_aligned(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    if (!eg_cuda_is_aligned(&x->left) || !eg_cuda_is_aligned(&x->right)) return false;
    if (row->family == EG_CUDA_TMA_SPLIT) return eg_cuda_has_vectors(row, x);
    if (!eg_cuda_is_aligned(&x->in)) return false;
    if (row->family == EG_CUDA_TMA) return !eg_cuda_reads_out(x) || eg_cuda_is_aligned(&x->out);
    return eg_cuda_is_aligned(&x->out) && eg_cuda_is_aligned(&x->second);
}

/* The epilogues of the persistent kernels read and write the type of the layer; only a bare product of theirs
 * may be of another one. */
static bool is_of_one_type(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    enum { ALL = 3 };
    const eg_cuda_matrix *const all[ALL] = {&x->in, &x->out, &x->second};
    const bool may_differ = x->epilogue == EG_CUDA_STORE && (row->takes & EG_CUDA_ONE_TYPE) == 0;
    for (int i = 0; i < ALL && !may_differ; i++) {
        if (all[i]->data != 0 && all[i]->dtype != (int32_t)row->dtype) return false;
    }
    return true;
}

static bool takes_groups(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    switch ((eg_cuda_ragged)x->ragged) {
    case EG_CUDA_DENSE:
        return (row->takes & EG_CUDA_GROUPS_ALONE) == 0;
    case EG_CUDA_RAGGED_ROWS:
        return (row->takes & EG_CUDA_ROW_GROUPS) != 0;
    case EG_CUDA_RAGGED_DEPTH:
        break;
    }
    return (row->takes & EG_CUDA_DEPTH_GROUPS) != 0;
}

/* Lines of right in vectors of 16 bytes that end where it ends; or any, whose distances fit into 32 bits. A
 * single row of left has no pitch. */
static bool can_be_streamed(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    const int64_t each = 16 / (int64_t)eg_dtype_size(row->dtype), most = (1LL << 31) / EG_MOST_SPLITS;
    enum { FARTHEST = 1 << 24 };
    const int64_t line = (row->takes & EG_CUDA_RIGHT_ROWS) != 0 ? x->cols : x->depth;
    eg_cuda_matrix left = x->left;
    if (x->rows == 1) left.row_stride = 0;
    if ((row->takes & EG_CUDA_ODD) != 0)
        return x->right.row_stride <= FARTHEST && x->right.col_stride <= FARTHEST &&
               left.row_stride <= FARTHEST && x->items <= most / eg_ceil_div(x->cols, row->tile_cols);
    return line % each == 0 && eg_cuda_is_aligned(&x->right) && eg_cuda_is_aligned(&left) &&
           x->items <= most / eg_ceil_div(x->cols, row->tile_cols);
}

/* An operand whose lines are a span that begins on 16 bytes, as do those of other items. */
static bool is_span(const eg_cuda_matrix *x, int64_t items, int64_t pitch, int64_t most) {
    const int64_t each = 16 / (int64_t)eg_dtype_size((eg_dtype)x->dtype);
    return pitch <= most && x->data % 16 == 0 && (items == 1 || x->item_stride % each == 0);
}

/* Rows of results may have any gaps, but begin in pairs if the first one does. */
static bool is_of_pairs(const eg_cuda_matrix *x, int64_t items) {
    return x->data == 0 || (x->col_stride == 1 && is_span(x, items, 0, 0));
}

/* f32 is read number by number, so that lines may begin anywhere. The library makes a product that nothing is
 * applied to in less time. */
static bool is_tall_f32(const eg_cuda_gemm *x) {
    const eg_cuda_matrix *const right = &x->right, *const in = &x->in;
    const bool is_applied = x->activation != EG_ACT_NONE || in->data != 0;
    return is_applied && x->depth > 0 && x->depth <= EG_TALL_F32_TERMS && x->cols <= EG_TALL_COLS &&
           x->left.col_stride == 1 && (right->row_stride == 1 || right->col_stride == 1) &&
           (in->data == 0 || (in->dtype == EG_F32 && in->col_stride == 1)) &&
           is_of_pairs(&x->out, x->items) && is_of_pairs(&x->second, x->items);
}

static bool is_tall(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    const eg_cuda_matrix *const right = &x->right, *const in = &x->in;
    const bool by_term = right->row_stride == 1;
    if (row->dtype == EG_F32) return is_tall_f32(x);
    if (x->depth == 0 || x->depth > EG_TALL_PITCH || x->cols > EG_TALL_COLS) return false;
    if (x->left.col_stride != 1 || !is_span(&x->left, x->items, x->left.row_stride, EG_TALL_PITCH))
        return false;
    if (!by_term && right->col_stride != 1) return false;
    if (!is_span(right, x->items, by_term ? right->col_stride : right->row_stride,
                 by_term ? EG_TALL_PITCH : EG_TALL_COLS))
        return false;
    if (in->data != 0 && (in->dtype != (int32_t)row->dtype || in->col_stride != 1 ||
                          !is_span(in, x->items, in->row_stride, EG_TALL_COLS)))
        return false;
    return is_of_pairs(&x->out, x->items) && is_of_pairs(&x->second, x->items);
}

static bool takes_product(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    const uint32_t takes = row->takes;
    if (!takes_groups(row, x)) return false;
    if (row->family == EG_CUDA_LIBRARY && !suits_library(row, x)) return false;
    if ((row->epilogues >> x->epilogue & 1U) == 0) return false;
    if (row->family != EG_CUDA_STRIDED && x->depth == 0) return false;
    if ((takes & EG_CUDA_ALIGNED) != 0 && !is_aligned(row, x)) return false;
    if ((takes & EG_CUDA_ROW_STORES) != 0 && !has_row_stores(x)) return false;
    if ((takes & EG_CUDA_LEFT_ROWS) != 0 && x->left.col_stride != 1) return false;
    if ((takes & EG_CUDA_LEFT_COLS) != 0 && x->left.row_stride != 1) return false;
    if ((takes & EG_CUDA_RIGHT_ROWS) != 0 && x->right.col_stride != 1) return false;
    if ((takes & EG_CUDA_RIGHT_COLS) != 0 && x->right.row_stride != 1) return false;
    if ((takes & EG_CUDA_SMALL) != 0 && !is_small(x)) return false;
    if ((takes & EG_CUDA_COPY) != 0 && !is_copy(x)) return false;
    if ((takes & EG_CUDA_FEW_ROWS) != 0 && rows_of_item(x) > row->tile_rows) return false;
    if ((takes & EG_CUDA_FEW_COLS) != 0 && x->cols > row->tile_cols) return false;
    if ((takes & EG_CUDA_SHALLOW) != 0 && (x->depth == 0 || x->depth > EG_OUTER_TERMS)) return false;
    if ((takes & EG_CUDA_NO_ADD) != 0 && x->accumulate != 0) return false;
    if ((takes & EG_CUDA_TALL) != 0 && !is_tall(row, x)) return false;
    if (row->family == EG_CUDA_STREAMED && !can_be_streamed(row, x)) return false;
    if ((eg_cuda_is_persistent(row) || (takes & EG_CUDA_ONE_TYPE) != 0) && !is_of_one_type(row, x))
        return false;
    return (takes & EG_CUDA_NO_REDUCTION) == 0 || x->summed <= 1;
}

/* Rows of whole vectors, of the layer's type or the compute type: a product that is to be finished, a buffer.
 */
static bool is_of_vectors(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    enum { ALL = 4 };
    const eg_cuda_matrix *const all[ALL] = {&x->in, &x->out, &x->second, &x->left};
    const int64_t each = 16 / (int64_t)eg_dtype_size(row->dtype);
    for (int i = 0; i < ALL; i++) {
        const bool value = all[i] != &x->second && all[i]->dtype == (int32_t)row->compute;
        if (!is_row_major(all[i]) || !eg_cuda_is_aligned(all[i])) return false;
        if (all[i]->data != 0 && all[i]->dtype != (int32_t)row->dtype && !value) return false;
    }
    return x->cols % each == 0 && (x->bias.data == 0 || (x->bias.data % 16 == 0 && x->bias.col_stride == 1));
}

/* Rows of any pitch, which are of no group: of the row's type, but for a product that waits, or of any. One
 * that sums the columns of many rows goes through them one after the other. */
static bool is_of_rows(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    enum { ALL = 5 };
    const eg_cuda_matrix *const all[ALL] = {&x->second, &x->in, &x->out, &x->left, &x->bias};
    for (int i = 0; i < ALL; i++) {
        if (all[i]->data == 0) continue;
        if (all[i]->col_stride != 1) return false;
        const bool waits = all[i] == &x->left && (row->takes & EG_CUDA_PRODUCTS) != 0;
        if (row->dtype != EG_DTYPE_DEFAULT && all[i]->dtype != (int32_t)row->dtype && !waits) return false;
    }
    const bool sums = row->family == EG_CUDA_STRIDED && x->sums != 0 && x->rows > row->tile_rows;
    return x->ragged == EG_CUDA_DENSE && !sums;
}

/* Results that follow each other without a gap, so that they are vectors wherever rows begin: what is read of
 * the compute type or the layer's may lie in rows of any pitch. */
static bool is_one_row(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    enum { RESULTS = 2, READ = 3 };
    const eg_cuda_matrix *const results[RESULTS] = {&x->out, &x->second};
    const eg_cuda_matrix *const read[READ] = {&x->left, &x->in, &x->bias};
    const int64_t most = 1LL << 31;
    if (x->items != 1 || x->cols >= most || x->rows >= most / x->cols) return false;
    for (int i = 0; i < RESULTS; i++) {
        if (results[i]->data == 0) continue;
        if (results[i]->data % 16 != 0 || results[i]->col_stride != 1 ||
            (x->rows > 1 && results[i]->row_stride != x->cols) || results[i]->dtype != (int32_t)row->dtype)
            return false;
    }
    for (int i = 0; i < READ; i++) {
        if (read[i]->data != 0 && (read[i]->col_stride != 1 || (read[i]->dtype != (int32_t)row->dtype &&
                                                                read[i]->dtype != (int32_t)row->compute)))
            return false;
    }
    return true;
}

/* Values and results that are one long row of whole vectors each, which 32 bits can count. */
static bool has_no_gaps(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    enum { ALL = 4 };
    const eg_cuda_matrix *const all[ALL] = {&x->left, &x->in, &x->out, &x->second};
    const int64_t each = 16 / (int64_t)eg_dtype_size(row->dtype), most = 1LL << 31;
    if (x->items != 1 || x->left.data == 0 || x->cols >= most || x->rows >= most / x->cols * each)
        return false;
    for (int i = 0; i < ALL; i++) {
        if (all[i]->data == 0) continue;
        if (x->rows > 1 && all[i]->row_stride != x->cols) return false;
        if (i > 0 && all[i]->dtype != (int32_t)row->dtype) return false;
    }
    return x->cols % each == 0 && is_of_vectors(row, x);
}

/* y of values: what finishes most products. */
static bool takes_y(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    const int64_t each = 16 / (int64_t)eg_dtype_size(row->dtype);
    if (x->epilogue != EG_CUDA_FORWARD || x->out.data == 0 || x->sums != 0 || x->ragged != EG_CUDA_DENSE)
        return false;
    if ((row->takes & EG_CUDA_NO_GAPS) != 0) return has_no_gaps(row, x);
    return x->cols % each == 0 ? is_of_vectors(row, x) : is_one_row(row, x);
}

static bool takes_map(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    if (row->epilogues == 1U << EG_CUDA_FORWARD) return takes_y(row, x);
    if ((row->takes & EG_CUDA_ODD) != 0) return is_of_rows(row, x);
    return row->dtype == EG_DTYPE_DEFAULT || is_of_vectors(row, x);
}

/* The rows of a product that waits are whole vectors, and right is 0 past its columns, as TMA reads it. */
eg_cuda_gemm eg_cuda_in_vectors(const eg_cuda_kernel *row, eg_cuda_part part, const eg_cuda_gemm *x) {
    eg_cuda_gemm whole = *x;
    if (row->family == EG_CUDA_TMA_SPLIT && part == EG_CUDA_PRODUCT)
        whole.cols = eg_cuda_unfinished_ld(x->cols);
    return whole;
}

/* What act_grad.cuh makes of grad and pre, or of a product that waits and what was saved below. */
static bool takes_gradient(const eg_cuda_kernel *row, eg_cuda_part part, const eg_cuda_gemm *x) {
    if ((row->takes & EG_CUDA_WHOLE_SUMS) != 0 && (x->sums == 0 || x->items != 1)) return false;
    if ((row->takes & EG_CUDA_PRODUCTS) == 0)
        return part != EG_CUDA_FINISH && x->epilogue == EG_CUDA_ACT_GRAD &&
               (x->ragged == EG_CUDA_DENSE || x->sums == 0);
    return part == EG_CUDA_FINISH && x->epilogue == EG_CUDA_CHAIN && x->ragged == EG_CUDA_DENSE &&
           x->left.dtype == (int32_t)row->compute && x->in.dtype == (int32_t)row->dtype &&
           (x->out.data == 0 || x->out.dtype == (int32_t)row->dtype);
}

/* Of its vectors only, a map's fast rows take no term but a gradient; nor do they sum those of each group. */
bool eg_cuda_takes(const eg_cuda_kernel *row, eg_cuda_part part, const eg_cuda_gemm *x) {
    eg_cuda_gemm whole;
    switch (row->kind) {
    case EG_MAP:
        return takes_map(row, x) && (row->family == EG_CUDA_STRIDED ||
                                     (row->family == EG_CUDA_VECTORS && takes_gradient(row, part, x)));
    case EG_GEMM:
        whole = eg_cuda_in_vectors(row, part, x);
        return takes_product(row, &whole);
    case EG_REDUCE:
    case EG_COPY:
    case EG_COLLECTIVE:
        break;
    }
    return true;
}
