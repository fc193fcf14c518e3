/* SPDX-License-Identifier: Apache-2.0 */
/* Packed operands of the caller: b as the right operand of its products. It is packed for the kernel that
 * takes any numbers, and once more for AMX where there is a row for it. */
#include <string.h>

#include "compile.h"
#include "core/error.h"
#include "cpu.h"
#include "estimate.h"
#include "kernels.h"

/* In eg_packed.holds: the kernel of each form, and whether b has numbers that some kernels refuse. */
#define OUTSIDE ((uint64_t)1 << 32)

/* The product of a layer on this b that is one row high. */
static void layer_of(const eg_problem *p, eg_op_list *list) {
    const int64_t items = eg_has_items(&p->operands[EG_OP_B]) ? p->batch : 1;
    memset(list, 0, sizeof *list); /* in place: it is 22 KB, too much for copies on the stack */
    list->ops = 1;
    list->dtype = p->dtype;
    list->compute = p->compute;
    list->math = p->math;
    list->op[0] = (eg_op){.kind = EG_GEMM,
                          .items = items,
                          .rows = 1,
                          .cols = p->n,
                          .depth = p->k,
                          .summed = 1,
                          .left = {.rows = 1, .cols = p->k, .batch_stride = items > 1},
                          .right = {.rows = p->k, .cols = p->n, .batch_stride = items > 1}};
}

static bool add_form(const eg_problem *p, const eg_cpu_kernel *kernel, eg_cpu_form *form, size_t *bytes) {
    const int64_t items = eg_has_items(&p->operands[EG_OP_B]) ? p->batch : 1;
    form->kernel = kernel;
    form->plain.offset = *bytes;
    if (!eg_cpu_matrix_bytes(kernel, p->dtype, items, p->k, p->n, &form->plain.bytes) ||
        __builtin_add_overflow(*bytes, (form->plain.bytes + 63) & ~(size_t)63, bytes))
        return false;
    form->transposed.offset = *bytes;
    return eg_cpu_matrix_bytes(kernel, p->dtype, items, p->n, p->k, &form->transposed.bytes) &&
           !__builtin_add_overflow(*bytes, (form->transposed.bytes + 63) & ~(size_t)63, bytes);
}

/* A pack of no layer may still be read by one without rows. */
eg_status eg_cpu_plan_pack(const eg_caps *caps, const eg_problem *problem, eg_packed *packed, size_t *bytes) {
    const eg_caps any = eg_cpu_caps_without_amx(caps);
    eg_op_list layer;
    layer_of(problem, &layer);
    eg_cpu_forms *pack = (eg_cpu_forms *)packed->detail;
    const eg_cpu_kernel *const rows[EG_CPU_PACK_FORMS] = {eg_cpu_first_row(&any, &layer, false),
                                                          eg_cpu_first_row(caps, &layer, true)};
    const bool only_amx = any.only_kernel != caps->only_kernel; /* the caller names such a row */
    if (rows[0] == NULL || (only_amx && rows[1] == NULL)) return eg_cpu_no_kernel(caps, &layer);
    *bytes = 0;
    packed->holds = 0;
    for (int i = 0; i < EG_CPU_PACK_FORMS; i++) {
        pack->form[i] = (eg_cpu_form){.kernel = NULL};
        if (rows[i] == NULL) continue;
        if (!add_form(problem, rows[i], &pack->form[i], bytes)) return eg_too_large(&layer);
        packed->holds |= (uint64_t)(eg_cpu_index_of(rows[i]) + 1) << 8 * i;
    }
    return EG_OK;
}

/* Fewer items of a batch than the pack was planned for leave gaps. */
eg_status eg_cpu_fill_pack(eg_context *context, const eg_problem *problem, eg_packed *packed) {
    eg_cpu_forms *pack = (eg_cpu_forms *)packed->detail;
    const eg_operand *b = &problem->operands[EG_OP_B];
    const int64_t items = eg_has_items(b) ? problem->batch : 1;
    const eg_cpu_calibration *calibration = eg_cpu_calibration_of(&context->caps);
    const eg_view view = {.space = EG_OPERAND,
                          .dtype = b->dtype,
                          .rows = b->rows,
                          .cols = b->cols,
                          .row_stride = b->row_stride,
                          .col_stride = b->col_stride,
                          .batch_stride = b->batch_stride,
                          .outer = b->outer};
    const eg_cpu_layouts both = {EG_CPU_NOWHERE, EG_CPU_NOWHERE, 0, 0};
    bool refused = false;
    const eg_cpu_run run = {.threads = context->device, .refused = &refused};
    for (int i = 0; i < EG_CPU_PACK_FORMS; i++) {
        const eg_cpu_form *form = &pack->form[i];
        if (form->kernel == NULL) continue;
        eg_cpu_counts counts = {{0}};
        eg_cpu_count_pack(calibration, form->kernel, &view, items, &both, &counts);
        const double alone = eg_cpu_estimate(eg_cpu_costs_of(calibration, form->kernel), &counts);
        const int threads = eg_cpu_choose_threads(calibration, context->caps.threads, alone, INT32_MAX);
        const eg_cpu_packs to = {.right = (char *)packed->data + form->plain.offset,
                                 .right_t = (char *)packed->data + form->transposed.offset};
        eg_cpu_pack_matrix(&run, form->kernel, problem->dtype, threads, *b, items, &to);
    }
    pack->outside = refused;
    packed->holds = (packed->holds & ~OUTSIDE) | (refused ? OUTSIDE : 0);
    return EG_OK;
}

/* Bytes from one matrix of a pack to the next, as products step over the items of a batch. */
static size_t item_bytes(const eg_cpu_kernel *kernel, const eg_view *view) {
    if (eg_cpu_is_amx(kernel)) {
        const eg_amx_grid grid = eg_amx_grid_of(kernel->pack.bf16_terms, view->cols, view->rows);
        return (size_t)(grid.rows * grid.row_pitch) * grid.block_bytes;
    }
    const eg_panels panels = eg_cpu_panels(kernel, view->rows, view->cols);
    return (size_t)(panels.panels * panels.stride * kernel->micro.nr) * eg_size_of(view->dtype);
}

const char *eg_cpu_packed_b(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_view *view) {
    const eg_packed *packed = eg_pack_in(run->call, view->id);
    const eg_cpu_form *form = eg_cpu_form_of(packed, kernel);
    const char *first = (const char *)packed->data;
    first += (view->transposed ? form->transposed : form->plain).offset;
    return packed->batched ? first + (size_t)run->call->pack_item * item_bytes(kernel, view) : first;
}
