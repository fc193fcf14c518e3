/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table, and which of its rows makes a call. Pure: it looks at eg_caps and the operations only. */
#include <math.h>
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

/* ---- What a row serves -------------------------------------------------------------------------- */

static bool is_named(const eg_caps *caps, const eg_cpu_kernel *row) {
    return caps->only_kernel == NULL || strcmp(caps->only_kernel, row->name) == 0;
}

static double most(double a, double b) { return a > b ? a : b; }

/* The longest sum of a product, or of another one on the same operands. */
static double longest_sum(const eg_op *op) {
    return most(most((double)op->summed * (double)op->depth, (double)op->items * (double)op->rows),
                (double)op->cols);
}

/* Sums of bf16 terms are 2^48 times what they stand for: a larger scale could make them infinite. */
static bool takes_scale(const eg_cpu_kernel *row, const eg_op *op) {
    const double most_scale = 256;
    return !eg_cpu_may_refuse(row) || op == NULL || fabs(eg_scale_of(op)) <= most_scale;
}

/* Sums of AMX tile blocks have room for so many products. A row that the caller names is taken for any N. */
static bool serves(const eg_caps *caps, const eg_cpu_kernel *row, const eg_op_list *list) {
    const eg_op *op = eg_first_gemm(list);
    if (!is_named(caps, row) || (row->needs & caps->features) != row->needs) return false;
    if (row->compute != list->compute || !(row->maths & EG_CPU_MATH(list->math))) return false;
    if (row->dtype != EG_DTYPE_DEFAULT && row->dtype != list->dtype) return false;
    if (row->single_panel && caps->only_kernel == NULL &&
        (op == NULL || op->depth != row->micro.nr || op->cols != row->micro.nr))
        return false;
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

/* Whether a product reads a pack that has numbers which some rows refuse. */
static bool reads_outside(const eg_op_list *list) {
    for (int i = 0; i < list->ops; i++) {
        const eg_view *right = &list->op[i].right;
        if (right->space != EG_PACKED_B) continue;
        if (((const eg_cpu_forms *)eg_pack_of(list, right)->detail)->outside) return true;
    }
    return false;
}

/* A call that is given a pack takes a row that b was packed for, as each product reads it. */
static bool finds_b(const eg_cpu_kernel *row, const eg_op_list *list) {
    for (int i = 0; i < list->ops; i++) {
        const eg_view *right = &list->op[i].right;
        if (right->space != EG_PACKED_B) continue;
        const eg_cpu_form *form = eg_cpu_form_of(eg_pack_of(list, right), row);
        if (form == NULL || (right->transposed ? form->transposed : form->plain).bytes == 0) return false;
    }
    return true;
}

/* ---- The choice --------------------------------------------------------------------------------- */

/* A row that may refuse must leave the inputs for the one that comes after it. */
static bool may_be_refused(const eg_caps *caps, const eg_op_list *list) {
    return !caps->refused && !list->in_place && !reads_outside(list);
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

/* The first that serves, of those for the matrix unit or of the others. */
static const eg_cpu_kernel *first_row(const eg_caps *caps, const eg_op_list *list, bool is_amx) {
    const eg_cpu_kernel *row;
    for (int i = 0; (row = eg_cpu_kernel_row(i)) != NULL; i++) {
        if (eg_cpu_is_amx(row) == is_amx && serves(caps, row, list)) break;
    }
    return row;
}

const eg_cpu_kernel *eg_cpu_matrix_row(const eg_caps *caps, const eg_op_list *list) {
    return first_row(caps, list, true);
}

/* The matrix unit's row and the first of the vector units': a pack has a form for each, whatever the layer's
 * M. The estimate looks at no threads and no layout of b, so the bits depend on neither. */
const eg_cpu_kernel *eg_cpu_choose(const eg_caps *caps, const eg_op_list *list) {
    const eg_caps any = eg_cpu_caps_without_amx(caps);
    const eg_cpu_kernel *matrix = first_row(caps, list, true), *vector = first_row(caps, list, false);
    if (matrix != NULL && eg_cpu_may_refuse(matrix) && !may_be_refused(caps, list)) {
        matrix = NULL;
        vector = first_row(&any, list, false);
    }
    if (matrix != NULL && !finds_b(matrix, list)) matrix = NULL;
    if (vector != NULL && !finds_b(vector, list)) vector = NULL;
    if (matrix == NULL || vector == NULL) return matrix != NULL ? matrix : vector;
    return eg_cpu_time_alone(caps, matrix, list) < eg_cpu_time_alone(caps, vector, list) ? matrix : vector;
}

int eg_cpu_index_of(const eg_cpu_kernel *kernel) {
    int index = 0;
    while (eg_cpu_kernel_row(index) != kernel) index++;
    return index;
}
