/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel row makes an operation: of those that take it, the one of the least estimated time. Pure: it
 * looks at eg_caps and the operations only. A choice may depend on the alignment of operands. */
#include <string.h>

#include "compile.h"
#include "core/error.h"

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

/* The library rounds some products of 16 bits before it adds them to what is there. */
static bool suits_library(const eg_cuda_gemm *x) {
    if (x->accumulate && eg_dtype_size((eg_dtype)x->out.dtype) == 2) return false;
    return has_lines_apart(&x->left, x->rows, x->depth) && has_lines_apart(&x->right, x->depth, x->cols);
}

static bool takes_product(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    const uint32_t takes = row->takes;
    if (row->family == EG_CUDA_LIBRARY && !suits_library(x)) return false;
    if ((row->epilogues >> x->epilogue & 1U) == 0) return false;
    if (row->family != EG_CUDA_STRIDED && x->depth == 0) return false;
    if ((takes & EG_CUDA_ALIGNED) != 0 &&
        !(eg_cuda_is_aligned(&x->left) && eg_cuda_is_aligned(&x->right) && eg_cuda_is_aligned(&x->in) &&
          eg_cuda_is_aligned(&x->out) && eg_cuda_is_aligned(&x->second)))
        return false;
    if ((takes & EG_CUDA_ROW_STORES) != 0 &&
        !(is_row_major(&x->in) && is_row_major(&x->out) && is_row_major(&x->second)))
        return false;
    if ((takes & EG_CUDA_LEFT_ROWS) != 0 && x->left.col_stride != 1) return false;
    if ((takes & EG_CUDA_LEFT_COLS) != 0 && x->left.row_stride != 1) return false;
    if ((takes & EG_CUDA_RIGHT_ROWS) != 0 && x->right.col_stride != 1) return false;
    if ((takes & EG_CUDA_RIGHT_COLS) != 0 && x->right.row_stride != 1) return false;
    if ((takes & EG_CUDA_SMALL) != 0 && !is_small(x)) return false;
    if ((takes & EG_CUDA_COPY) != 0 && !is_copy(x)) return false;
    if ((takes & EG_CUDA_STAGED) != 0 && x->cols % 8 != 0) return false;
    return (takes & EG_CUDA_NO_REDUCTION) == 0 || x->summed <= 1;
}

static bool takes_map(const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    if (row->family != EG_CUDA_VECTORS) return true;
    return x->cols % (row->tile_cols / 32) == 0 && is_row_major(&x->in) && is_row_major(&x->left) &&
           is_row_major(&x->out) && eg_cuda_is_aligned(&x->in) && eg_cuda_is_aligned(&x->left) &&
           eg_cuda_is_aligned(&x->out);
}

/* A copy is a product of nothing. */
static eg_op_kind kind_of(const eg_op *op) { return op->kind == EG_COPY ? EG_GEMM : op->kind; }

/* What a device and a layer allow, whatever the operands are like. */
static bool allows(const eg_cuda_compiler *c, const eg_cuda_kernel *row, const eg_op *op) {
    const eg_op_list *list = c->list;
    if (row->kind != kind_of(op) || row->compute != list->compute) return false;
    if (row->dtype != EG_DTYPE_DEFAULT && row->dtype != list->dtype) return false;
    if ((row->needs & c->caps->features) != row->needs) return false;
    if (row->shared > ((const eg_cuda_caps *)c->caps->detail)->shared) return false;
    if (row->family == EG_CUDA_LIBRARY && c->caps->refused) return false;
    return list->math != EG_MATH_STRICT || (row->takes & EG_CUDA_MATRIX_UNIT) == 0;
}

/* A name restricts the operations that it is a row for. Where the library refuses, its name cannot. */
static bool is_named(const eg_caps *caps, const eg_cuda_kernel *row, const eg_op *op) {
    if (caps->only_kernel == NULL || op->kind == EG_COPY || strcmp(caps->only_kernel, row->name) == 0)
        return true;
    const eg_cuda_kernel *other;
    for (int i = 0; (other = eg_cuda_kernel_row(i)) != NULL; i++) {
        if (strcmp(caps->only_kernel, other->name) == 0)
            return other->kind != row->kind || (other->family == EG_CUDA_LIBRARY && caps->refused);
    }
    return false;
}

static bool takes(const eg_cuda_compiler *c, const eg_cuda_kernel *row, int index, const eg_cuda_gemm *x) {
    switch (kind_of(&c->list->op[index])) {
    case EG_MAP:
        return takes_map(row, x);
    case EG_GEMM:
        return takes_product(row, x);
    case EG_REDUCE:
    case EG_COPY:
        break;
    }
    return true;
}

/* ---- Which is best -------------------------------------------------------------------------------- */

/* Wherever it is possible, if the row is asked for by name. Not where the workspace has no room, nor in
 * portions, which would all count in the same place: products without sums are judged as if they had some. */
eg_cuda_tail eg_cuda_choose_tail(const eg_cuda_compiler *c, const eg_cuda_kernel *row, const eg_cuda_gemm *x,
                                 double *saved) {
    const bool by_name = c->caps->only_kernel != NULL && strcmp(c->caps->only_kernel, row->name) == 0;
    const eg_temporary sums = {.items = c->list->batch, .rows = c->list->m, .cols = x->cols};
    *saved = 0;
    if ((row->takes & EG_CUDA_STREAM_K) == 0 || c->program->region[EG_CUDA_COUNTERS].bytes == 0 ||
        c->program->region[EG_CUDA_SCRATCH].bytes < eg_cuda_tail_bytes(c->multiprocessors) ||
        eg_cuda_portions_of(c->list, &sums, x->items, x->rows, eg_cuda_sum_rows(row)).total > 0)
        return (eg_cuda_tail){0};
    return eg_cuda_tail_of(c->multiprocessors, row, x, by_name, saved);
}

eg_cuda_machine eg_cuda_machine_of(const eg_cuda_compiler *c) {
    const eg_cuda_caps *caps = c->caps->detail;
    return (eg_cuda_machine){caps->calibration, caps->multiprocessors};
}

/* Counters are cleared by a map's kernel, or else before the first product. */
double eg_cuda_time_of(const eg_cuda_compiler *c, const eg_cuda_kernel *row, const eg_cuda_gemm *x,
                       int index) {
    const eg_cuda_machine machine = eg_cuda_machine_of(c);
    double saved;
    const bool has_tail = row->family == EG_CUDA_TMA && eg_cuda_choose_tail(c, row, x, &saved).tiles > 0;
    return eg_cuda_estimate(&machine, row, x, has_tail ? saved : -1) +
           (has_tail && index == 0 ? machine.calibration->clear : 0);
}

/* A row for split tails is none for a product that has no tail to split. By name any row is used. */
static bool has_use(const eg_cuda_compiler *c, const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    double saved;
    if (c->caps->only_kernel != NULL) return true;
    return (row->takes & EG_CUDA_STREAM_K) == 0 || eg_cuda_choose_tail(c, row, x, &saved).tiles > 0;
}

eg_status eg_cuda_choose(eg_cuda_compiler *c, int index) {
    const eg_op *op = &c->list->op[index];
    const eg_cuda_binding nowhere = {.program = c->program};
    const eg_cuda_kernel *row;
    eg_cuda_gemm x = {0};
    double least = 0;
    if (op->kind != EG_REDUCE) x = eg_cuda_gemm_of(&nowhere, index);
    c->row[index] = NULL;
    for (int i = 0; (row = eg_cuda_kernel_row(i)) != NULL; i++) {
        if (!allows(c, row, op) || !is_named(c->caps, row, op) || !takes(c, row, index, &x)) continue;
        if (!has_use(c, row, &x)) continue;
        const double time = op->kind == EG_REDUCE ? 0 : eg_cuda_time_of(c, row, &x, index);
        if (c->row[index] == NULL || time < least) c->row[index] = row, least = time;
    }
    if (c->row[index] != NULL) return EG_OK;
    return eg_fail(EG_ERR_UNSUPPORTED, "kernel \"%s\" cannot do a step of this call in %s",
                   c->caps->only_kernel != NULL ? c->caps->only_kernel : "any",
                   eg_dtype_name(c->list->dtype));
}
