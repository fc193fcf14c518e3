/* SPDX-License-Identifier: Apache-2.0 */
/* From a layer's call to operations: with the files that it calls, the only place that knows what a layer is.
 */
#include "backend.h"
#include "lower_layer.h"
#include "lower_tensor.h"

/* Of the pairs that may share memory, which then begin at one place. */
static bool begins_where(const eg_problem *p, eg_operand_id input, eg_operand_id output) {
    const eg_operand *in = &p->operands[input], *out = &p->operands[output];
    if (in->data == NULL || out->data == NULL || p->addressing == EG_PRESENCE) return false;
    if (p->addressing == EG_HANDLES && in->data != out->data) return false;
    return eg_begin(p, in->data, in->offset) == eg_begin(p, out->data, out->offset);
}

/* Not a d_a that is added to: by then everything has been read that a kernel may refuse. But of a gated unit
 * the second product may read B_up after that. */
bool eg_in_place(const eg_problem *p) {
    return begins_where(p, EG_OP_GRAD, EG_OP_GRAD_PRE) || begins_where(p, EG_OP_RESIDUAL, EG_OP_Y) ||
           (p->gated && begins_where(p, EG_OP_D_A_RESIDUAL, EG_OP_D_A));
}

/* The lists are not cleared as a whole: that would take as long as the lowering. */
static void begin(const eg_problem *p, eg_op_list *list) {
    list->backward = p->backward;
    list->gated = p->gated;
    list->m = p->m, list->k = p->k, list->n = p->n, list->batch = p->batch;
    list->groups = 0;
    list->dtype = p->dtype, list->compute = p->compute, list->math = p->math;
    list->activation = p->activation, list->source = p->source;
    list->in_place = eg_in_place(p);
    list->packed_b = p->packed_b;
    list->ops = list->temporaries = list->buffers = 0;
    list->exchange = p->exchange;
    list->exchanged = p->comm != NULL ? eg_agreement_bytes(p->exchange.ranks) : 0;
    list->row_groups = 1;
    list->reads_a_by_row_group = false;
    list->packed_b_up = p->packed_b_up;
}

void eg_lower(const eg_problem *problem, eg_op_list *list) {
    eg_problem p = *problem;
    eg_fold(&p);
    if (p.grouped) p.batch = p.inner = 1;
    begin(&p, list);
    if (p.grouped) list->groups = problem->batch;
    if (eg_is_tensor_parallel(&p)) {
        eg_lower_tensor_parallel(&p, list);
    } else if (p.backward) {
        eg_lower_backward(&p, list);
    } else if (p.gated) {
        eg_lower_gated_forward(&p, list);
    } else {
        eg_lower_forward(&p, list);
    }
}

void eg_lower_pack(const eg_problem *p, bool batched, eg_op_list *list) {
    begin(p, list);
    eg_op op = {.kind = EG_COPY, .items = batched ? p->batch : 1, .rows = p->k, .cols = p->n, .summed = 1};
    op.left = eg_operand_view(p, EG_OP_B);
    op.out = (eg_view){.space = EG_PACKED_B,
                       .id = EG_OP_B,
                       .dtype = p->dtype,
                       .rows = p->k,
                       .cols = p->n,
                       .batch_stride = batched ? p->k * p->n : 0,
                       .align = EG_MOST_ALIGN};
    eg_add_op(list, &op);
}
