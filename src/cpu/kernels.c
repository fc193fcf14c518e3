/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table, and which of its rows makes a call. Pure: it looks at eg_caps and the operations only. */
#include <string.h>

#include "compile.h"

const eg_cpu_kernel *eg_cpu_kernel_row(int index) {
#define EG_COUNT(kernel) +1
    enum { ROWS = 0 EG_CPU_KERNELS(EG_COUNT) };
#undef EG_COUNT
    static const eg_cpu_kernel *const rows[ROWS] = {
#define EG_ROW(kernel) &eg_cpu_##kernel,
        EG_CPU_KERNELS(EG_ROW)
#undef EG_ROW
    };
    return index >= 0 && index < ROWS ? rows[index] : NULL;
}

bool eg_cpu_may_refuse(const eg_cpu_kernel *kernel) { return kernel->pack.bf16_terms > 1; }

/* ---- Profit ------------------------------------------------------------------------------------- */

static double elements(const eg_op *op, const eg_view *view) {
    const int64_t batch = op->items > op->summed ? op->items : op->summed;
    return (double)view->rows * (double)view->cols * (double)(view->batch_stride != 0 ? batch : 1);
}

/* Of a call's first product. The others have the same multiply-adds, and share its operands. */
typedef struct product_size {
    double work;    /* multiply-adds */
    double numbers; /* of both operands and the result */
    double longest; /* sum that it, or another, makes */
} product_size;

static double most(double a, double b) { return a > b ? a : b; }

static product_size size_of(const eg_op *op) {
    const double items = (double)op->items, summed = (double)op->summed, rows = (double)op->rows,
                 cols = (double)op->cols, depth = (double)op->depth;
    const eg_view result = {.rows = op->rows, .cols = op->cols, .batch_stride = op->items > 1};
    return (product_size){.work = items * summed * rows * cols * depth,
                          .numbers =
                              elements(op, &op->left) + elements(op, &op->right) + elements(op, &result),
                          .longest = most(most(summed * depth, items * rows), cols)};
}

/* A row that the caller names is taken whatever the size. AMX has to gain by multiplying what it loses by
 * splitting numbers into bf16 terms: so each number must be reused often enough. Measured: docs/lab/cpu.md.
 */
static bool is_profitable(const eg_caps *caps, const eg_cpu_kernel *row, const product_size *x,
                          const eg_op *op) {
    if (caps->only_kernel != NULL) return true;
    if (row->choice.single_panel && (op->depth != row->micro.nr || op->cols != row->micro.nr)) return false;
    const double reuse =
        x->work < 2 * row->choice.thread_work ? row->choice.reuse_one_thread : row->choice.reuse;
    return x->work >= row->choice.min_work && x->work >= reuse * x->numbers;
}

static bool serves(const eg_cpu_kernel *row, const eg_op_list *list, const product_size *x) {
    if (row->compute != list->compute || !(row->maths & EG_CPU_MATH(list->math))) return false;
    if (row->dtype != EG_DTYPE_DEFAULT && row->dtype != list->dtype) return false;
    /* Sums of AMX tile blocks have room for so many products. */
    return !eg_cpu_is_amx(row) || x->longest <= (double)EG_AMX_MAX_DEPTH;
}

/* ---- Packs -------------------------------------------------------------------------------------- */

const eg_cpu_form *eg_cpu_form_of(const eg_packed *packed, const eg_cpu_kernel *kernel) {
    const eg_cpu_forms *pack = (const eg_cpu_forms *)packed->detail;
    for (int i = 0; i < EG_CPU_PACK_FORMS; i++) {
        if (pack->form[i].kernel == kernel) return &pack->form[i];
    }
    return NULL;
}

static bool reads_pack(const eg_op_list *list) {
    for (int i = 0; i < list->ops; i++) {
        if (list->op[i].right.space == EG_PACKED_B) return true;
    }
    return false;
}

/* A call that is given a pack takes a row that b was packed for, as each product reads it. */
static bool finds_b(const eg_cpu_kernel *row, const eg_op_list *list) {
    for (int i = 0; i < list->ops; i++) {
        const eg_view *right = &list->op[i].right;
        if (right->space != EG_PACKED_B) continue;
        const eg_cpu_form *form = eg_cpu_form_of(list->packed_b, row);
        if (form == NULL || (right->transposed ? form->transposed : form->plain).bytes == 0) return false;
    }
    return true;
}

/* ---- The choice --------------------------------------------------------------------------------- */

static bool is_named(const eg_caps *caps, const eg_cpu_kernel *row) {
    return caps->only_kernel == NULL || strcmp(caps->only_kernel, row->name) == 0;
}

/* A row that may refuse must leave the inputs for the one that comes after it. */
static bool may_be_refused(const eg_caps *caps, const eg_op_list *list) {
    const bool outside = reads_pack(list) && ((const eg_cpu_forms *)list->packed_b->detail)->outside;
    return !caps->refused && !list->in_place && !outside;
}

eg_caps eg_cpu_caps_without_amx(const eg_caps *caps) {
    eg_caps any = *caps;
    const eg_cpu_kernel *row;
    any.features &= ~(uint32_t)EG_CPU_AMX;
    for (int i = 0; (row = eg_cpu_kernel_row(i)) != NULL && any.only_kernel != NULL; i++) {
        if (eg_cpu_is_amx(row) && strcmp(row->name, any.only_kernel) == 0) any.only_kernel = NULL;
    }
    return any;
}

const eg_cpu_kernel *eg_cpu_choose(const eg_caps *caps, const eg_op_list *list) {
    const eg_op *op = eg_first_gemm(list);
    const product_size size = op != NULL ? size_of(op) : (product_size){0};
    const eg_cpu_kernel *row;
    for (int i = 0; (row = eg_cpu_kernel_row(i)) != NULL; i++) {
        if (is_named(caps, row) && (row->needs & caps->features) == row->needs && serves(row, list, &size) &&
            (op == NULL || is_profitable(caps, row, &size, op)) && finds_b(row, list))
            break;
    }
    if (row == NULL || !eg_cpu_may_refuse(row) || may_be_refused(caps, list)) return row;
    const eg_caps any = eg_cpu_caps_without_amx(caps);
    return eg_cpu_choose(&any, list);
}

int eg_cpu_index_of(const eg_cpu_kernel *kernel) {
    int index = 0;
    while (eg_cpu_kernel_row(index) != kernel) index++;
    return index;
}
