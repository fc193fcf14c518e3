/* SPDX-License-Identifier: Apache-2.0 */
/* Which row of the kernel table makes a call: of those that serve it, the one whose program takes less time.
 * Pure. */
#include <math.h>

#include "blocking.h"
#include "compile.h"
#include "estimate.h"
#include "core/error.h"
#include "core/compile_scratch.h"
#include "kernels.h"

/* ---- Packs -------------------------------------------------------------------------------------- */

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

/* ---- Estimates ---------------------------------------------------------------------------------- */

/* B as if the caller had it row by row: packed or not, and whatever its layout, a layer takes the same row.
 * But not of few rows: to read B is all their time. */
static void put_b_in_rows(eg_op_list *list) {
    for (int i = 0; i < list->ops; i++) {
        eg_view *x = &list->op[i].right;
        const bool is_b = x->id == EG_OP_B || x->id == EG_OP_B_UP;
        if (list->op[i].kind != EG_GEMM || !is_b || x->space == EG_TEMPORARY) continue;
        if (list->op[i].rows <= EG_CPU_FEW_ROWS) continue;
        x->space = EG_OPERAND;
        x->dtype = list->dtype;
        x->row_stride = x->transposed ? 1 : x->cols;
        x->col_stride = x->transposed ? x->rows : 1;
    }
}

/* A row's program: its estimated microseconds, and in what order it sums each product. */
typedef struct trial {
    double time;
    struct {
        eg_cpu_streams streams;
        int64_t pass; /* k of each */
    } sum[EG_MAX_OPS];
} trial;

static void try_row_in(const eg_caps *caps, const eg_cpu_kernel *row, int threads, const eg_op_list *list,
                       eg_program *program, trial *to) {
    *to = (trial){.time = HUGE_VAL};
    eg_program_begin(program);
    program->list = *list;
    put_b_in_rows(&program->list);
    if (!eg_cpu_compile_for(caps, row, threads, program)) return;
    to->time = 0;
    for (int i = 0; i < program->steps; i++) {
        const eg_step *step = &program->step[i];
        to->time += step->microseconds;
        if (step->kind != EG_GEMM || step->op == EG_NO_OP) continue;
        const eg_cpu_streams streams = (eg_cpu_streams)eg_cpu_detail(step)->streams;
        /* outer products have the order of the tile loop */
        to->sum[step->op].streams = streams == EG_CPU_STREAMS_RESULT ? EG_CPU_STREAMS_NONE : streams;
        to->sum[step->op].pass = eg_least(step->k_block, program->list.op[step->op].depth);
    }
}

/* Not inlined: every caller would have a stack frame with room for a program. */
__attribute__((noinline)) static void try_row_on_stack(const eg_caps *caps, const eg_cpu_kernel *row,
                                                       int threads, const eg_op_list *list, trial *to) {
    eg_program program;
    try_row_in(caps, row, threads, list, &program, to);
}

static void try_row(const eg_caps *caps, const eg_cpu_kernel *row, int threads, const eg_op_list *list,
                    trial *to) {
    if (caps->scratch == NULL) try_row_on_stack(caps, row, threads, list, to);
    if (caps->scratch != NULL) try_row_in(caps, row, threads, list, &caps->scratch->trial, to);
}

static bool has_same_bits(const trial *a, const trial *b, int ops) {
    for (int i = 0; i < ops; i++) {
        if (a->sum[i].streams != b->sum[i].streams || a->sum[i].pass != b->sum[i].pass) return false;
    }
    return true;
}

/* Of rows for vector units of the same instruction set the fastest, where it sums as the first one does.
 * Others would make the bits depend on what else the call computes. `without_pack` is that of a call without
 * a pack, which may lack the row that takes it: a pack has no say in whether the matrix unit makes the call.
 */
static const eg_cpu_kernel *fastest_like(const eg_caps *caps, const eg_cpu_kernel *first,
                                         const eg_op_list *list, const eg_cpu_kernel **without_pack) {
    const eg_cpu_kernel *best = first, *row;
    trial of_first, other;
    try_row(caps, first, EG_CPU_TRIAL, list, &of_first);
    double of_best = of_first.time, least = of_first.time;
    *without_pack = first;
    for (int i = eg_cpu_index_of(first) + 1; (row = eg_cpu_kernel_row(i)) != NULL; i++) {
        if (row->needs != first->needs || row->compute != first->compute || !eg_cpu_serves(caps, row, list))
            continue;
        try_row(caps, row, EG_CPU_TRIAL, list, &other);
        if (!has_same_bits(&of_first, &other, list->ops)) continue;
        if (other.time < least) *without_pack = row, least = other.time;
        if (other.time < of_best && finds_b(row, list)) best = row, of_best = other.time;
    }
    return best;
}

/* ---- The choice --------------------------------------------------------------------------------- */

/* A row that may refuse must leave the inputs for the one that comes after it. */
static bool may_be_refused(const eg_caps *caps, const eg_op_list *list) {
    return !caps->refused && !list->in_place && !reads_outside(list);
}

/* How long the matrix unit takes, as a multiple of the vector units' time. */
static double relative_time(const eg_caps *caps, const eg_cpu_kernel *matrix, const eg_cpu_kernel *vector,
                            int threads, const eg_op_list *list) {
    trial of_matrix, of_vector;
    try_row(caps, matrix, threads, list, &of_matrix);
    try_row(caps, vector, threads, list, &of_vector);
    return of_matrix.time / of_vector.time;
}

/* One row is right for one thread and for all. Numbers of three bf16 terms are half as many bytes again,
 * which threads pack for each other, and a matrix unit on every core is clocked lower: one thread may gain
 * what many lose. So both count alike. */
static bool is_matrix_unit_faster(const eg_caps *caps, const eg_cpu_kernel *matrix,
                                  const eg_cpu_kernel *vector, const eg_op_list *list) {
    const double alone = relative_time(caps, matrix, vector, EG_CPU_TRIAL, list);
    if (matrix->pack.bf16_terms < 3 || alone >= 1) return alone < 1;
    const double crowded = eg_cpu_calibration_of(caps)->crowded;
    return alone * relative_time(caps, matrix, vector, EG_CPU_TRIAL_OF_MANY, list) * crowded * crowded < 1;
}

/* The matrix unit's row and the first of the vector units': a pack has a form for each, whatever the layer's
 * M. The estimate looks at no threads of the context and no layout of b, so the bits depend on neither. */
const eg_cpu_kernel *eg_cpu_choose(const eg_caps *caps, const eg_op_list *list) {
    const eg_caps any = eg_cpu_caps_without_amx(caps);
    const eg_cpu_kernel *matrix = eg_cpu_first_row(caps, list, true),
                        *vector = eg_cpu_first_row(caps, list, false);
    if (matrix != NULL && eg_cpu_may_refuse(matrix) && !may_be_refused(caps, list)) {
        matrix = NULL;
        vector = eg_cpu_first_row(&any, list, false);
    }
    if (matrix != NULL && !finds_b(matrix, list)) matrix = NULL;
    if (vector != NULL && !finds_b(vector, list)) vector = NULL;
    if (vector == NULL) return matrix;
    const eg_cpu_kernel *without_pack;
    vector = fastest_like(caps, vector, list, &without_pack);
    if (matrix == NULL) return vector;
    return is_matrix_unit_faster(caps, matrix, without_pack, list) ? matrix : vector;
}

eg_status eg_cpu_no_kernel(const eg_caps *caps, const eg_op_list *list) {
    return eg_fail(EG_ERR_UNSUPPORTED, "kernel \"%s\" does not compute %s with this layer.math here",
                   caps->only_kernel ? caps->only_kernel : "", eg_dtype_name(list->dtype));
}

eg_status eg_cpu_compile(const eg_caps *caps, eg_program *program) {
    const eg_cpu_kernel *kernel = eg_cpu_choose(caps, &program->list);
    if (kernel == NULL) return eg_cpu_no_kernel(caps, &program->list);
    return eg_cpu_compile_for(caps, kernel, caps->threads, program) ? EG_OK : eg_too_large(&program->list);
}
