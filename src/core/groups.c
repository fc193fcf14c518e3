/* SPDX-License-Identifier: Apache-2.0 */
#include "groups.h"

#include <string.h>

#include "error.h"

/* ---- Programs ----------------------------------------------------------------------------------- */

static eg_status make_program(const eg_context *context, const eg_problem *problem, bool refused,
                              eg_program **made) {
    eg_program *program = eg_host_alloc(context, sizeof *program);
    eg_caps caps = context->caps;
    caps.refused = refused;
    *made = program;
    if (program == NULL)
        return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for a program of %zu bytes", sizeof *program);
    return eg_program_make(&caps, problem, program);
}

static eg_status make_class(const eg_context *context, const eg_problem *problem, eg_row_class *of) {
    eg_problem group = *problem;
    group.m = of->rows;
    for (int id = 0; id < EG_OPERANDS; id++) {
        if (eg_operand_has_rows((eg_operand_id)id)) group.operands[id].rows = of->rows;
    }
    EG_TRY(make_program(context, &group, false, &of->program));
    return of->program->may_refuse ? make_program(context, &group, true, &of->other) : EG_OK;
}

static eg_status make_classes(const eg_context *context, const eg_problem *problem, eg_groups *groups) {
    static const int64_t rows[EG_MOST_ROW_CLASSES] = {0,  1,   2,   4,   8,    16,   32,
                                                      64, 128, 256, 512, 1024, 4096, INT64_MAX};
    for (int i = 0; i == 0 || groups->of[i - 1].rows < problem->m; i++) {
        groups->of[groups->classes++].rows = rows[i] < problem->m ? rows[i] : problem->m;
        EG_TRY(make_class(context, problem, &groups->of[i]));
    }
    return context->ops->plan_groups(&context->caps, groups);
}

eg_status eg_groups_make(const eg_context *context, const eg_problem *problem, eg_groups **made) {
    *made = NULL;
    eg_groups *groups = eg_host_alloc(context, sizeof *groups);
    if (groups == NULL) return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for the programs of a grouped layer");
    *groups = (eg_groups){.groups = problem->batch, .m = problem->m};
    const eg_status status = make_classes(context, problem, groups);
    if (status != EG_OK) eg_groups_free(context, groups);
    if (status == EG_OK) *made = groups;
    return status;
}

void eg_groups_free(const eg_context *context, eg_groups *groups) {
    for (int i = 0; groups != NULL && i < groups->classes; i++) {
        eg_host_free(context, groups->of[i].program);
        eg_host_free(context, groups->of[i].other);
    }
    eg_host_free(context, groups);
}

void eg_groups_print(const eg_groups *groups, eg_text *out) {
    eg_put(out, "%lld groups of %lld rows in all  workspace %zu bytes\n", (long long)groups->groups,
           (long long)groups->m, groups->workspace);
    for (int i = groups->classes > 1; i < groups->classes; i++) {
        eg_put(out, "a group of up to %lld rows: ", (long long)groups->of[i].rows);
        eg_program_print(groups->of[i].program, out);
    }
}

const eg_row_class *eg_class_of_rows(const eg_groups *groups, int64_t rows) {
    const eg_row_class *of = groups->of;
    while (of->rows < rows) of++;
    return of;
}

/* A view of an operation's own rows, columns or depth. */
static void set_size(eg_view *x, int64_t rows, int64_t cols) {
    x->rows = rows;
    x->cols = cols;
}

static void set_rows(eg_op *op, int64_t rows) {
    if (op->kind == EG_REDUCE || op->axis == EG_AXIS_DEPTH) {
        op->depth = rows;
    } else if (op->axis == EG_AXIS_COLS) {
        op->cols = rows;
    } else {
        op->rows = rows;
    }
    if (op->kind == EG_REDUCE) return;
    const bool is_product = op->kind == EG_GEMM;
    set_size(&op->left, op->rows, is_product ? op->depth : op->cols);
    if (is_product) set_size(&op->right, op->depth, op->cols);
    set_size(&op->out, op->rows, op->cols);
    for (int i = 0; i < op->terms; i++) {
        if (op->term[i].kind != EG_TERM_BIAS) set_size(&op->term[i].view, op->rows, op->cols);
    }
}

/* Lists are large, and mostly empty. */
void eg_list_of_rows(const eg_op_list *list, int64_t rows, eg_op_list *out) {
    memcpy(out, list, offsetof(eg_op_list, op) + (size_t)list->ops * sizeof list->op[0]);
    memcpy(out->temporary, list->temporary, sizeof out->temporary);
    out->m = rows;
    for (int i = 0; i < out->ops; i++) set_rows(&out->op[i], rows);
    for (int i = 0; i < out->temporaries; i++) out->temporary[i].rows = rows;
}

/* ---- Calls -------------------------------------------------------------------------------------- */

static int64_t end_of(const eg_problem *problem, int64_t group) {
    const eg_operand *x = &problem->operands[EG_OP_OFFSETS];
    int32_t end;
    if (group < 0) return 0;
    memcpy(&end, (const char *)x->data + x->offset + (size_t)group * sizeof end, sizeof end);
    return end;
}

eg_row_range eg_rows_of(const eg_problem *problem, int64_t group) {
    const int64_t first = end_of(problem, group - 1);
    return (eg_row_range){first, end_of(problem, group) - first};
}

eg_status eg_groups_check(const eg_problem *problem) {
    int64_t before = 0;
    for (int64_t group = 0; group < problem->batch; group++) {
        const int64_t end = end_of(problem, group);
        if (end < before || end > problem->m)
            return eg_fail(EG_ERR_ARGUMENT,
                           "offsets[%lld] is %lld; expected the end of that group, %lld to %lld",
                           (long long)group, (long long)end, (long long)before, (long long)problem->m);
        before = end;
    }
    return EG_OK;
}

void eg_group_bind(const eg_problem *problem, int64_t group, const eg_program *program, eg_call *call) {
    const int64_t first = end_of(problem, group - 1);
    for (int id = 0; id < EG_OPERANDS; id++) {
        const eg_operand *x = &problem->operands[id];
        call->operand[id] = (eg_address){x->data, x->offset};
        if (x->data == NULL) continue;
        const bool has_rows = eg_operand_has_rows((eg_operand_id)id);
        const uint64_t elements = has_rows ? (uint64_t)first * (uint64_t)x->row_stride
                                           : (uint64_t)group * (uint64_t)x->batch_stride;
        call->operand[id].offset += (size_t)elements * eg_size_of(x->dtype);
    }
    for (int i = 0; i < program->list.buffers; i++)
        call->operand[EG_BUFFER + i] =
            (eg_address){call->workspace.data, call->workspace.offset + program->buffer[i]};
    call->packed_b = problem->packed_b;
    call->packed_b_up = problem->packed_b_up;
    call->pack_item = group;
    call->collectives = NULL;
}
