/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table, and what its rows serve. Pure: it looks at eg_caps and the operations only. */
#include <math.h>
#include <string.h>

#include "kernels.h"

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

/* ---- What a row serves -------------------------------------------------------------------------- */

static bool is_named(const eg_caps *caps, const eg_cpu_kernel *row) {
    return caps->only_kernel == NULL || strcmp(caps->only_kernel, row->name) == 0;
}

/* The longest sum of a product, or of another one on the same operands. */
static double longest_sum(const eg_op *op) {
    return eg_greatest(
        eg_greatest((double)op->summed * (double)op->depth, (double)op->items * (double)op->rows),
        (double)op->cols);
}

/* Sums of bf16 terms are 2^48 times what they stand for: a larger scale could make them infinite. */
static bool takes_scale(const eg_cpu_kernel *row, const eg_op *op) {
    const double most_scale = 256;
    return !eg_cpu_may_refuse(row) || op == NULL || fabs(eg_scale_of(op)) <= most_scale;
}

/* Sums of AMX tile blocks have room for so many products. */
bool eg_cpu_serves(const eg_caps *caps, const eg_cpu_kernel *row, const eg_op_list *list) {
    const eg_op *op = eg_first_gemm(list);
    if (!is_named(caps, row) || (row->needs & caps->features) != row->needs) return false;
    if (row->compute != list->compute || !(row->maths & EG_CPU_MATH(list->math))) return false;
    if (row->dtype != EG_DTYPE_DEFAULT && row->dtype != list->dtype) return false;
    if (!takes_scale(row, op)) return false;
    return !eg_cpu_is_amx(row) || op == NULL || longest_sum(op) <= (double)EG_AMX_MAX_DEPTH;
}

/* ---- Packs -------------------------------------------------------------------------------------- */

const eg_cpu_form *eg_cpu_form_of(const eg_packed *packed, const eg_cpu_kernel *kernel) {
    const eg_cpu_forms *pack = (const eg_cpu_forms *)packed->detail;
    for (int i = 0; i < EG_CPU_PACK_FORMS; i++) {
        if (pack->form[i].kernel == kernel) return &pack->form[i];
    }
    return NULL;
}

/* ---- Rows ------------------------------------------------------------------------------------------ */

eg_caps eg_cpu_caps_without_amx(const eg_caps *caps) {
    eg_caps any = *caps;
    const eg_cpu_kernel *row;
    any.features &= ~(uint32_t)(EG_CPU_AMX | EG_CPU_BF16);
    for (int i = 0; (row = eg_cpu_kernel_row(i)) != NULL && any.only_kernel != NULL; i++) {
        if (eg_cpu_is_amx(row) && strcmp(row->name, any.only_kernel) == 0) any.only_kernel = NULL;
    }
    return any;
}

const eg_cpu_kernel *eg_cpu_first_row(const eg_caps *caps, const eg_op_list *list, bool is_amx) {
    const eg_cpu_kernel *row;
    for (int i = 0; (row = eg_cpu_kernel_row(i)) != NULL; i++) {
        if (eg_cpu_is_amx(row) == is_amx && eg_cpu_serves(caps, row, list)) break;
    }
    return row;
}

int eg_cpu_index_of(const eg_cpu_kernel *kernel) {
    int index = 0;
    while (eg_cpu_kernel_row(index) != kernel) index++;
    return index;
}
