/* SPDX-License-Identifier: Apache-2.0 */
/* One operand of a call: what it has to be, whatever the others are. */
#include <stddef.h>

#include "error.h"
#include "overlap.h"
#include "validate.h"

/* ---- The operand table -------------------------------------------------------------------------- */

typedef enum eg_dim { ONE, DIM_M, DIM_K, DIM_N, DIM_GROUPS } eg_dim;

static const struct {
    const char *name;
    eg_dim rows, cols;
    bool output, wide; /* wide: may be f32 in an f16 or bf16 layer */
} table[EG_OPERANDS] = {
    [EG_OP_A] = {"a", DIM_M, DIM_K, false, false},
    [EG_OP_B] = {"b", DIM_K, DIM_N, false, false},
    [EG_OP_BIAS] = {"bias", ONE, DIM_N, false, false},
    [EG_OP_RESIDUAL] = {"residual", DIM_M, DIM_N, false, false},
    [EG_OP_GRAD] = {"grad", DIM_M, DIM_N, false, false},
    [EG_OP_SAVED] = {"pre", DIM_M, DIM_N, false, false},
    [EG_OP_BELOW] = {"chain.saved", DIM_M, DIM_K, false, false},
    [EG_OP_B_UP] = {"b_up", DIM_K, DIM_N, false, false},
    [EG_OP_BIAS_UP] = {"bias_up", ONE, DIM_N, false, false},
    [EG_OP_GRAD_UP] = {"grad_up", DIM_M, DIM_N, false, false},
    [EG_OP_SAVED_UP] = {"pre_up", DIM_M, DIM_N, false, false},
    [EG_OP_BELOW_UP] = {"chain_up.saved", DIM_M, DIM_K, false, false},
    [EG_OP_D_A_RESIDUAL] = {"residual", DIM_M, DIM_K, false, false},
    [EG_OP_OFFSETS] = {"offsets", ONE, DIM_GROUPS, false, true},
    [EG_OP_Y] = {"y", DIM_M, DIM_N, true, false},
    [EG_OP_PRE] = {"pre", DIM_M, DIM_N, true, false},
    [EG_OP_D_A] = {"d_a", DIM_M, DIM_K, true, false},
    [EG_OP_D_B] = {"d_b", DIM_K, DIM_N, true, true},
    [EG_OP_D_BIAS] = {"d_bias", ONE, DIM_N, true, true},
    [EG_OP_GRAD_PRE] = {"grad_pre", DIM_M, DIM_N, true, false},
    [EG_OP_D_BIAS_BELOW] = {"chain.d_bias", ONE, DIM_K, true, true},
    [EG_OP_PRE_UP] = {"pre_up", DIM_M, DIM_N, true, false},
    [EG_OP_D_B_UP] = {"d_b_up", DIM_K, DIM_N, true, true},
    [EG_OP_D_BIAS_UP] = {"d_bias_up", ONE, DIM_N, true, true},
    [EG_OP_GRAD_PRE_UP] = {"grad_pre_up", DIM_M, DIM_N, true, false},
    [EG_OP_D_UP_BELOW] = {"chain_up.d_up", DIM_M, DIM_K, true, false},
    [EG_OP_Y_BELOW] = {"chain_up.y", DIM_M, DIM_K, true, false},
    [EG_OP_D_BIAS_UP_BELOW] = {"chain_up.d_bias", ONE, DIM_K, true, true},
    [EG_OP_GATHERED] = {"tensor_parallel.gathered", DIM_M, DIM_K, true, false},
};

const char *eg_name_of_operand(eg_operand_id id) { return table[id].name; }

const char *eg_operand_name(const eg_problem *problem, eg_operand_id id) {
    if (id == EG_OP_SAVED && problem->source == EG_SOURCE_Y) return "y";
    if (id == EG_OP_A && problem->exchange.gathered) id = EG_OP_GATHERED;
    return table[id].name;
}

bool eg_operand_has_rows(eg_operand_id id) { return table[id].rows == DIM_M; }

static int64_t dim(const eg_problem *problem, eg_dim which) {
    switch (which) {
    case ONE:
        return 1;
    case DIM_M:
        return problem->m;
    case DIM_K:
        return problem->k;
    case DIM_N:
        return problem->n;
    case DIM_GROUPS:
        return problem->batch;
    }
    return 0;
}

/* Of the divided side of a tensor-parallel layer there are this rank's rows alone. */
static int64_t rows_of(const eg_problem *problem, eg_operand_id id) {
    const eg_exchange *by = &problem->exchange;
    const bool divided = table[id].rows == DIM_M && id != EG_OP_GATHERED &&
                         ((by->parallel == EG_BY_COLUMNS && table[id].cols == DIM_K) ||
                          (by->parallel == EG_BY_ROWS && table[id].cols == DIM_N));
    const bool whole = id == EG_OP_A && by->gathered;
    const int64_t rows = dim(problem, table[id].rows);
    return divided && !whole ? rows / by->ranks : rows;
}

/* ---- One operand -------------------------------------------------------------------------------- */

static eg_status check_dtype(const eg_problem *problem, eg_operand_id id, eg_dtype dtype) {
    const char *name = eg_operand_name(problem, id);
    if (id == EG_OP_OFFSETS) return EG_OK;
    if ((int)dtype < 0 || (int)dtype > EG_BF16) {
        return eg_fail(EG_ERR_ARGUMENT,
                       "%s.dtype is %d; expected EG_DTYPE_DEFAULT, EG_F32, EG_F64, EG_F16 or EG_BF16", name,
                       (int)dtype);
    }
    const bool wide = table[id].wide && problem->compute == EG_F32 && dtype == EG_F32;
    if (dtype == EG_DTYPE_DEFAULT || dtype == problem->dtype || wide) return EG_OK;
    const bool or_f32 = table[id].wide && problem->compute == EG_F32 && problem->dtype != EG_F32;
    return eg_fail(EG_ERR_ARGUMENT, "%s.dtype is %s; expected the layer's, %s%s", name, eg_dtype_name(dtype),
                   eg_dtype_name(problem->dtype), or_f32 ? ", or f32" : "");
}

static eg_status check_strides(const eg_problem *problem, eg_operand_id id, const eg_matrix *matrix,
                               int64_t ld, int64_t least_ld) {
    const char *name = eg_operand_name(problem, id);
    if (ld < least_ld) {
        return eg_fail(EG_ERR_ARGUMENT, "%s.ld is %lld; expected at least %lld, the number of its %s", name,
                       (long long)matrix->ld, (long long)least_ld,
                       matrix->layout == EG_ROW_MAJOR ? "columns" : "rows");
    }
    if (matrix->batch_stride < 0) {
        return eg_fail(EG_ERR_ARGUMENT, "%s.batch_stride is %lld; expected 0 or more", name,
                       (long long)matrix->batch_stride);
    }
    return EG_OK;
}

/* From one item of the operand to the next. The groups of one with rows follow each other in one matrix, and
 * vectors are dense. */
static int64_t batch_stride_of(const eg_problem *problem, eg_operand_id id, const eg_matrix *matrix) {
    if (!problem->grouped || id == EG_OP_OFFSETS) return matrix->batch_stride;
    if (eg_operand_has_rows(id)) return 0;
    return table[id].rows == ONE ? dim(problem, table[id].cols) : matrix->batch_stride;
}

/* As one level where one stride says the same. */
static eg_status take_levels(const eg_problem *problem, eg_operand_id id, const eg_matrix *matrix,
                             int64_t outer_stride, eg_operand *operand) {
    const int64_t stride = batch_stride_of(problem, id, matrix), inner = problem->inner;
    int64_t span;
    if (outer_stride < 0) {
        return eg_fail(EG_ERR_ARGUMENT, "the outer stride of %s is %lld; expected 0 or more",
                       eg_operand_name(problem, id), (long long)outer_stride);
    }
    const bool two = inner < problem->batch && inner > 1;
    operand->batch_stride = inner == 1 && problem->batch > 1 ? outer_stride : stride;
    if (two && (__builtin_mul_overflow(inner, stride, &span) || span != outer_stride))
        operand->outer = (eg_outer){inner, outer_stride};
    return EG_OK;
}

/* The end of the last element, in bytes from `data`, is at most this: more than any memory has, and little
 * enough for the sum of two. */
static const int64_t furthest = (int64_t)1 << 62;

bool eg_out_of_range(eg_addressing addressing, const void *data, size_t offset, uint64_t bytes) {
    if (offset > (uint64_t)furthest || bytes > (uint64_t)furthest - offset) return true;
    return addressing == EG_ADDRESSES && offset + bytes > UINTPTR_MAX - (uintptr_t)data;
}

static eg_status check_extent(const eg_problem *problem, eg_operand_id id, const eg_operand *operand) {
    const int64_t items = operand->outer.inner > 0 ? operand->outer.inner : problem->batch;
    int64_t last = 0, term = 0;
    bool over = __builtin_mul_overflow(operand->rows - 1, operand->row_stride, &last);
    over = over || __builtin_mul_overflow(operand->cols - 1, operand->col_stride, &term);
    over = over || __builtin_add_overflow(last, term, &last);
    over = over || __builtin_mul_overflow(items - 1, operand->batch_stride, &term);
    over = over || __builtin_add_overflow(last, term, &last);
    over = over || __builtin_mul_overflow(problem->batch / items - 1, operand->outer.stride, &term);
    over = over || __builtin_add_overflow(last, term, &last);
    over = over || __builtin_add_overflow(last, 1, &last);
    over = over || __builtin_mul_overflow(last, (int64_t)eg_size_of(operand->dtype), &last);
    over = over || eg_out_of_range(problem->addressing, operand->data, operand->offset, (uint64_t)last);
    if (!over) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT,
                   "%s is too large: %lld x %lld elements, row stride %lld, batch stride %lld, outer stride "
                   "%lld, offset %zu; expected an end that has an address, at most 2^62 bytes from its data",
                   eg_operand_name(problem, id), (long long)operand->rows, (long long)operand->cols,
                   (long long)operand->row_stride, (long long)operand->batch_stride,
                   (long long)operand->outer.stride, operand->offset);
}

static eg_status check_levels_apart(const eg_problem *problem, eg_operand_id id, const eg_operand *operand,
                                    bool may_reduce) {
    const int64_t stride = operand->batch_stride, outer = operand->outer.stride;
    if (may_reduce && (stride == 0 || outer == 0)) {
        return eg_fail(EG_ERR_ARGUMENT,
                       "%s has batch stride %lld and outer stride %lld; expected both 0, for a sum over all "
                       "items, or neither",
                       eg_operand_name(problem, id), (long long)stride, (long long)outer);
    }
    if (!eg_items_overlap(problem, operand)) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT,
                   "%s has batch stride %lld and outer stride %lld, so its %lld x %lld matrices overlap, or "
                   "may; expected them apart",
                   eg_operand_name(problem, id), (long long)stride, (long long)outer,
                   (long long)(problem->batch / problem->inner), (long long)problem->inner);
}

/* Two matrices of an output's batch must not share elements; they may interleave. */
static eg_status check_batch_apart(const eg_problem *problem, eg_operand_id id, const eg_operand *operand) {
    const bool may_reduce =
        problem->grouped ? eg_operand_has_rows(id)
                         : id == EG_OP_D_A || id == EG_OP_D_B || id == EG_OP_D_B_UP || table[id].rows == ONE;
    if (problem->batch <= 1 || (!eg_has_items(operand) && may_reduce)) return EG_OK;
    if (operand->outer.inner > 0) return check_levels_apart(problem, id, operand, may_reduce);
    const bool row_major = operand->col_stride == 1;
    const int64_t length = row_major ? operand->cols : operand->rows,
                  lines = row_major ? operand->rows : operand->cols;
    const int64_t ld = row_major ? operand->row_stride : operand->col_stride, stride = operand->batch_stride;
    const int64_t extent = (lines - 1) * ld + length;
    if (stride >= extent || !eg_items_overlap(problem, operand)) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT,
                   "%s.batch_stride is %lld, so its %lld matrices overlap; expected at least %lld, or such "
                   "as interleave",
                   eg_operand_name(problem, id), (long long)stride, (long long)problem->batch,
                   (long long)extent);
}

/* The operand is made where it stays: a copy of what has just been written is slow. */
eg_status eg_take_matrix(eg_problem *problem, eg_operand_id id, const eg_matrix *matrix,
                         int64_t outer_stride) {
    const char *name = eg_operand_name(problem, id);
    eg_operand *operand = &problem->operands[id];
    if (matrix->data == NULL) return EG_OK;
    EG_TRY(check_dtype(problem, id, matrix->dtype));
    if (matrix->layout != EG_ROW_MAJOR && matrix->layout != EG_COL_MAJOR) {
        return eg_fail(EG_ERR_ARGUMENT, "%s.layout is %d; expected EG_ROW_MAJOR or EG_COL_MAJOR", name,
                       (int)matrix->layout);
    }
    operand->data = matrix->data;
    operand->offset = matrix->offset;
    operand->dtype = matrix->dtype == EG_DTYPE_DEFAULT ? problem->dtype : matrix->dtype;
    operand->rows = rows_of(problem, id);
    operand->cols = dim(problem, table[id].cols);
    const bool row_major = matrix->layout == EG_ROW_MAJOR;
    const int64_t length = row_major ? operand->cols : operand->rows;
    const int64_t ld = matrix->ld == 0 ? length : matrix->ld;
    EG_TRY(check_strides(problem, id, matrix, ld, length));
    EG_TRY(take_levels(problem, id, matrix, outer_stride, operand));
    /* The ld of a single line addresses nothing, and may be any number. */
    const int64_t lines = row_major ? operand->rows : operand->cols, stride = lines > 1 ? ld : length;
    operand->row_stride = row_major ? stride : 1;
    operand->col_stride = row_major ? 1 : stride;
    const size_t size = eg_size_of(operand->dtype); /* a power of two */
    if ((eg_begin(problem, operand->data, operand->offset) & (size - 1)) != 0) {
        return eg_fail(EG_ERR_ARGUMENT,
                       "%s at %p + offset %zu is misaligned; expected a multiple of %zu bytes, its element",
                       name, operand->data, operand->offset, size);
    }
    if (eg_has_elements(operand)) {
        EG_TRY(check_extent(problem, id, operand));
        if (table[id].output) EG_TRY(check_batch_apart(problem, id, operand));
    }
    return EG_OK;
}

eg_status eg_take_vector(eg_problem *problem, eg_operand_id id, const eg_vector *vector) {
    const eg_matrix row = {.data = vector->data, .offset = vector->offset, .dtype = vector->dtype};
    return eg_take_matrix(problem, id, &row, 0);
}

eg_status eg_require(const eg_problem *problem, eg_operand_id id, const char *why) {
    const int64_t rows = rows_of(problem, id), cols = dim(problem, table[id].cols);
    if (eg_wants(problem, id) || rows == 0 || cols == 0) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT, "%s is absent (data is NULL); expected a %lld x %lld matrix %s",
                   eg_operand_name(problem, id), (long long)rows, (long long)cols, why);
}
