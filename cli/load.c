/* SPDX-License-Identifier: Apache-2.0 */
/* From a source of tensors, or from sizes alone, to a call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"
#include "progress.h"
#include "shapes.h"

static void begin_call(call *c, const options *o, bool backward) {
    *c = (call){.backward = backward,
                .gated = o->gated,
                .b_is_nk = o->b_is_nk,
                .mode = o->mode,
                .into = backward ? options_sums(o) : 0,
                .workspace_limit = o->workspace_limit,
                .routing = o->routing};
    c->layer = (eg_layer){
        .size = sizeof c->layer, .activation = o->activation, .nonfinite = o->nonfinite, .scale = o->scale};
}

/* ---- Which operands ----------------------------------------------------------------------------- */

static bool is_input(const call *c, const options *o, operand op) {
    switch (op) {
    case OP_A:
    case OP_B:
    case OP_BIAS:
        return true;
    case OP_RESIDUAL:
        return !c->backward;
    case OP_D_A_RESIDUAL:
        return c->backward && (o->want == 0 || (o->want & 1U << OP_D_A) != 0);
    case OP_B_UP:
    case OP_BIAS_UP:
        return c->gated;
    case OP_GRAD:
        return c->backward;
    case OP_PRE:
        return c->backward && c->mode == EG_SOURCE_PRE;
    case OP_PRE_UP:
        return c->gated && c->backward && c->mode == EG_SOURCE_PRE;
    case OP_Y:
        return c->backward && c->mode == EG_SOURCE_Y;
    default:
        return false;
    }
}

static bool is_residual(operand op) { return op == OP_RESIDUAL || op == OP_D_A_RESIDUAL; }

static bool is_optional(operand op) { return op == OP_BIAS || op == OP_BIAS_UP || is_residual(op); }

static bool is_wanted(const call *c, const options *o, operand op) {
    if (!c->backward) return op == OP_Y || (o->save_pre && (op == OP_PRE || (op == OP_PRE_UP && c->gated)));
    if (op < OP_D_A) return false;
    if (o->want != 0) return (o->want & 1U << op) != 0;
    return op == OP_D_A || op == OP_D_B || (op == OP_D_BIAS && c->present[OP_BIAS]) ||
           (op == OP_D_B_UP && c->gated) || (op == OP_D_BIAS_UP && c->present[OP_BIAS_UP]);
}

/* ---- Types -------------------------------------------------------------------------------------- */

static int convert(tensor *t, eg_dtype to) {
    if (t->dtype == to) return CLI_OK;
    tensor converted = *t;
    converted.dtype = to;
    converted.data = NULL;
    if (!tensor_shape_bytes(t->shape, t->dims, tensor_element_bytes(to), &converted.bytes))
        return cli_out_of_memory();
    if (t->data != NULL) {
        CLI_TRY(tensor_allocate(&converted));
        const eg_status status =
            eg_convert(converted.data, to, t->data, t->dtype, t->bytes / tensor_element_bytes(t->dtype));
        if (status != EG_OK) {
            free(converted.data);
            return call_status(status);
        }
        free(t->data);
    }
    *t = converted;
    return CLI_OK;
}

/* Without --dtype nothing is converted behind the user's back: the inputs must agree. */
static int take_input_dtype(call *c, const options *o, operand op) {
    tensor *t = &c->tensors[op];
    if (op == OP_A) c->layer.dtype = o->dtype != EG_DTYPE_DEFAULT ? o->dtype : t->dtype;
    if (o->dtype != EG_DTYPE_DEFAULT) return convert(t, c->layer.dtype);
    if (t->dtype == c->layer.dtype) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "%s is %s and a is %s; expected one type, or --dtype to convert to",
                    cli_operand_name(op), eg_dtype_name(t->dtype), eg_dtype_name(c->layer.dtype));
}

/* ---- From a source ------------------------------------------------------------------------------ */

static int load(operand op, const options *o, const tensor_source *source, bool with_data, bool *found,
                tensor *t) {
    char label[32];
    snprintf(label, sizeof label, "reading %s", cli_operand_name(op));
    progress_step(label);
    CLI_TRY(source_load(source, cli_operand_name(op), with_data, t, found));
    if (*found || is_optional(op)) return CLI_OK;
    const char *why = op == OP_PRE || op == OP_PRE_UP || op == OP_Y ? ", which --mode asks for"
                      : op == OP_B_UP                               ? ", which --gated asks for"
                      : op < OP_D_A                                 ? ""
                      : (o->into & 1U << op) != 0                   ? ", which --accumulate-into adds to"
                                                                    : ", which --accumulate adds to";
    return cli_fail(CLI_BAD_INPUT, "%s has no tensor %s%s", source->path, cli_operand_name(op), why);
}

static int load_inputs(call *c, const options *o, const tensor_source *source, bool with_data) {
    for (operand op = OP_A; op <= OP_Y; op++) {
        if (!is_input(c, o, op)) continue;
        CLI_TRY(load(op, o, source, with_data, &c->present[op], &c->tensors[op]));
        if (c->present[op]) CLI_TRY(take_input_dtype(c, o, op));
    }
    if (c->present[OP_D_A_RESIDUAL] && (o->into & 1U << OP_D_A) != 0)
        return cli_fail(CLI_BAD_INPUT,
                        "%s has d_a_residual, with --accumulate-into d_a; expected one of them",
                        source->path);
    return shapes_of_inputs(c);
}

/* What is accumulated into comes with a type of its own, such as f32 for a bf16 layer. */
static int load_accumulated(call *c, operand op, const options *o, const tensor_source *source,
                            bool with_data) {
    tensor t;
    bool found = false;
    CLI_TRY(load(op, o, source, with_data, &found, &t));
    int code = shapes_check_accumulated(c, op, &t);
    const eg_dtype to = o->out_dtype != EG_DTYPE_DEFAULT ? o->out_dtype : o->dtype;
    if (code == CLI_OK && to != EG_DTYPE_DEFAULT) code = convert(&t, to);
    c->tensors[op].dtype = t.dtype;
    c->tensors[op].bytes = t.bytes;
    c->tensors[op].data = t.data;
    free(t.name);
    return code;
}

static int set_output(call *c, const options *o, operand op, const tensor_source *source, bool with_data) {
    tensor *t = &c->tensors[op];
    c->present[op] = true;
    CLI_TRY(shapes_set_output(c, op));
    t->name = strdup(cli_operand_name(op));
    if (t->name == NULL) return cli_out_of_memory();
    t->dtype = c->layer.dtype;
    if (operand_is_main_gradient(op) && o->out_dtype != EG_DTYPE_DEFAULT) t->dtype = o->out_dtype;
    if ((c->into & 1U << op) != 0 && source != NULL) {
        return load_accumulated(c, op, o, source, with_data);
    }
    return tensor_measure(t);
}

/* Without --want, the gradient of a bias is made where IN has the bias. */
static int check_named_sums(const call *c, const options *o) {
    for (operand op = OP_D_A; op < OPERANDS && c->backward; op++) {
        if ((o->into & 1U << op) == 0 || c->present[op]) continue;
        return cli_fail(CLI_BAD_INPUT,
                        "--accumulate-into names %s, and IN has no bias for it; expected --want with it",
                        cli_operand_name(op));
    }
    return CLI_OK;
}

static int set_outputs(call *c, const options *o, const tensor_source *source, bool with_data) {
    for (operand op = OP_PRE; op < OPERANDS; op++) {
        if (is_wanted(c, o, op)) CLI_TRY(set_output(c, o, op, source, with_data));
    }
    return check_named_sums(c, o);
}

int call_load(call *c, const options *o, bool backward, const eg_comm *comm, const tensor_source *source,
              bool with_data) {
    begin_call(c, o, backward);
    c->processes = (eg_data_parallel){.comm = o->split_given ? NULL : comm,
                                      .reduction = o->mean ? EG_REDUCTION_MEAN : EG_REDUCTION_SUM};
    c->parts = (eg_tensor_parallel){.comm = o->split_given ? comm : NULL, .split = o->split};
    CLI_TRY(load_inputs(c, o, source, with_data));
    return set_outputs(c, o, source, with_data);
}

/* ---- From sizes --------------------------------------------------------------------------------- */

/* Every input that the call can have but a residual: that of y is only for a layer without activation. A batch
 * of two levels is like attention's sequences and heads: each item has a b, and heads lie side by side. */
int call_from_shape(call *c, const options *o, bool backward, const shape *sizes) {
    begin_call(c, o, backward);
    c->layer.m = sizes->m;
    c->layer.k = sizes->k;
    c->layer.n = sizes->n;
    c->layer.batch = o->batch;
    c->layer.outer_batch = o->outer_batch;
    c->layer.groups = o->groups;
    c->layer.dtype = o->dtype != EG_DTYPE_DEFAULT ? o->dtype : EG_F32;
    c->heads = o->outer_batch > 0;
    c->levels = c->heads ? 2 : o->batch != 1;
    for (operand op = OP_A; op <= OP_Y; op++) {
        if (!is_input(c, o, op) || is_residual(op)) continue;
        c->present[op] = true;
        tensor *t = &c->tensors[op];
        t->name = strdup(cli_operand_name(op));
        if (t->name == NULL) return cli_out_of_memory();
        t->dtype = c->layer.dtype;
        shapes_set_planned(c, op);
    }
    return set_outputs(c, o, NULL, false);
}
