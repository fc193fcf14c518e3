/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"

#include <stdlib.h>
#include <string.h>

#include "failure.h"
#include "groups.h"
#include "shapes.h"

/* ---- The context -------------------------------------------------------------------------------- */

int call_status(eg_status status) {
    switch (status) {
    case EG_OK:
        return CLI_OK;
    case EG_ERR_ARGUMENT:
        return cli_fail(CLI_BAD_INPUT, "%s", eg_last_error());
    case EG_ERR_UNAVAILABLE:
        return cli_fail(CLI_UNAVAILABLE, "%s", eg_last_error());
    default:
        return cli_fail(CLI_FAILED, "%s", eg_last_error());
    }
}

int call_open(const options *o, eg_context **context) {
    const eg_open_info info = {.size = sizeof info, .backend = o->backend, .threads = o->threads};
    return call_status(eg_open(&info, context));
}

/* ---- Operands on the device --------------------------------------------------------------------- */

static bool is_output(const call *c, operand op) {
    return op >= OP_D_A || (!c->backward && operand_may_be_result(op));
}

/* What an output holds before the call matters only to one that is added to. */
static bool is_read(const call *c, operand op) { return !is_output(c, op) || (c->into & 1U << op) != 0; }

static int upload_groups(call *c, eg_context *context) {
    const size_t bytes = (size_t)c->layer.groups * sizeof(int32_t);
    int32_t *ends = groups_ends(&c->layer, c->routing);
    if (ends == NULL) return cli_out_of_memory();
    int code = call_status(eg_alloc(context, bytes, &c->ends));
    if (code == CLI_OK) code = call_status(eg_upload(context, c->ends, 0, ends, bytes));
    free(ends);
    return code;
}

int call_upload(call *c, eg_context *context) {
    c->context = context;
    for (operand op = OP_A; op < OPERANDS; op++) {
        tensor *t = &c->tensors[op];
        if (!c->present[op]) continue;
        CLI_TRY(call_status(eg_alloc(context, t->bytes > 0 ? t->bytes : 1, &c->memory[op])));
        if (!is_read(c, op)) continue;
        if (t->bytes > 0) CLI_TRY(call_status(eg_upload(context, c->memory[op], 0, t->data, t->bytes)));
        tensor_drop(t);
    }
    return c->layer.groups > 0 ? upload_groups(c, context) : CLI_OK;
}

int call_download(call *c) {
    for (operand op = OP_A; op < OPERANDS; op++) {
        tensor *t = &c->tensors[op];
        if (!c->present[op] || !is_output(c, op)) continue;
        CLI_TRY(tensor_allocate(t));
        if (t->bytes > 0) CLI_TRY(call_status(eg_download(c->context, t->data, c->memory[op], 0, t->bytes)));
    }
    return CLI_OK;
}

void call_free(call *c) {
    for (operand op = OP_A; op < OPERANDS; op++) {
        if (c->memory[op] != NULL) eg_free(c->context, c->memory[op]);
        tensor_free(&c->tensors[op]);
    }
    if (c->ends != NULL) eg_free(c->context, c->ends);
    *c = (call){0};
}

int call_outputs(const call *c, const tensor *outputs[OPERANDS]) {
    int count = 0;
    for (operand op = OP_A; op < OPERANDS; op++) {
        if (c->present[op] && is_output(c, op)) outputs[count++] = &c->tensors[op];
    }
    return count;
}

/* ---- The arguments ------------------------------------------------------------------------------ */

/* A call that is only planned has no memory: a place that says that the operand will be there, aligned like
 * memory, since kernels are chosen by that too. */
static void *mark(operand op) {
    enum { ALIGNMENT = 256 };
    static _Alignas(ALIGNMENT) char marks[OPERANDS][ALIGNMENT];
    return marks[op];
}

static eg_matrix matrix(const call *c, operand op) {
    if (!c->present[op]) return (eg_matrix){0};
    eg_matrix m = shapes_matrix(c, op);
    m.data = c->context != NULL ? c->memory[op] : mark(op);
    return m;
}

/* Elements from an outer item to the next. */
static int64_t outer(const call *c, operand op) { return c->present[op] ? shapes_outer_stride(c, op) : 0; }

static eg_vector vector(const call *c, operand op) {
    const eg_matrix m = matrix(c, op);
    return (eg_vector){.data = m.data, .dtype = m.dtype};
}

static eg_offsets offsets(const call *c) {
    if (c->layer.groups == 0) return (eg_offsets){.data = NULL};
    return (eg_offsets){.data = c->context != NULL ? c->ends : mark(OP_A)};
}

static eg_forward_args forward_args(const call *c) {
    return (eg_forward_args){.size = sizeof(eg_forward_args),
                             .a = matrix(c, OP_A),
                             .b = matrix(c, OP_B),
                             .bias = vector(c, OP_BIAS),
                             .residual = matrix(c, OP_RESIDUAL),
                             .y = matrix(c, OP_Y),
                             .pre = matrix(c, OP_PRE),
                             .workspace_limit = c->workspace_limit,
                             .b_up = matrix(c, OP_B_UP),
                             .bias_up = vector(c, OP_BIAS_UP),
                             .pre_up = matrix(c, OP_PRE_UP),
                             .tensor_parallel = c->parts,
                             .outer = {.a = outer(c, OP_A),
                                       .b = outer(c, OP_B),
                                       .residual = outer(c, OP_RESIDUAL),
                                       .y = outer(c, OP_Y),
                                       .pre = outer(c, OP_PRE),
                                       .b_up = outer(c, OP_B_UP),
                                       .pre_up = outer(c, OP_PRE_UP)},
                             .offsets = offsets(c)};
}

static uint64_t accumulate_into(const call *c) {
    static const eg_into bits[OPERANDS] = {[OP_D_A] = EG_INTO_D_A,
                                           [OP_D_B] = EG_INTO_D_B,
                                           [OP_D_BIAS] = EG_INTO_D_BIAS,
                                           [OP_D_B_UP] = EG_INTO_D_B_UP,
                                           [OP_D_BIAS_UP] = EG_INTO_D_BIAS_UP};
    uint64_t into = 0;
    for (operand op = OP_D_A; op < OPERANDS; op++) into |= (c->into & 1U << op) != 0 ? (uint64_t)bits[op] : 0;
    return into;
}

static eg_backward_args backward_args(const call *c) {
    return (eg_backward_args){.size = sizeof(eg_backward_args),
                              .a = matrix(c, OP_A),
                              .b = matrix(c, OP_B),
                              .bias = vector(c, OP_BIAS),
                              .grad = matrix(c, OP_GRAD),
                              .source = c->mode,
                              .pre = matrix(c, OP_PRE),
                              .y = matrix(c, OP_Y),
                              .d_a = matrix(c, OP_D_A),
                              .d_b = matrix(c, OP_D_B),
                              .d_bias = vector(c, OP_D_BIAS),
                              .grad_pre = matrix(c, OP_GRAD_PRE),
                              .workspace_limit = c->workspace_limit,
                              .b_up = matrix(c, OP_B_UP),
                              .bias_up = vector(c, OP_BIAS_UP),
                              .pre_up = matrix(c, OP_PRE_UP),
                              .d_b_up = matrix(c, OP_D_B_UP),
                              .d_bias_up = vector(c, OP_D_BIAS_UP),
                              .grad_pre_up = matrix(c, OP_GRAD_PRE_UP),
                              .residual = matrix(c, OP_D_A_RESIDUAL),
                              .accumulate_into = accumulate_into(c),
                              .data_parallel = c->processes,
                              .tensor_parallel = c->parts,
                              .outer = {.a = outer(c, OP_A),
                                        .b = outer(c, OP_B),
                                        .grad = outer(c, OP_GRAD),
                                        .pre = outer(c, OP_PRE),
                                        .y = outer(c, OP_Y),
                                        .d_a = outer(c, OP_D_A),
                                        .d_b = outer(c, OP_D_B),
                                        .grad_pre = outer(c, OP_GRAD_PRE),
                                        .residual = outer(c, OP_D_A_RESIDUAL),
                                        .b_up = outer(c, OP_B_UP),
                                        .pre_up = outer(c, OP_PRE_UP),
                                        .d_b_up = outer(c, OP_D_B_UP),
                                        .grad_pre_up = outer(c, OP_GRAD_PRE_UP)},
                              .offsets = offsets(c)};
}

/* ---- Calls -------------------------------------------------------------------------------------- */

/* What a sum over an empty batch is: d_a its residual, which may be one for all of its matrices; others 0. */
static int empty_sum(const call *c, operand op, char *sum) {
    const size_t bytes = c->tensors[op].bytes, each = c->tensors[OP_D_A_RESIDUAL].bytes;
    if (op != OP_D_A || !c->present[OP_D_A_RESIDUAL]) return CLI_OK;
    for (size_t at = 0; at < bytes; at += each)
        CLI_TRY(call_status(eg_download(c->context, sum + at, c->memory[OP_D_A_RESIDUAL], 0, each)));
    return CLI_OK;
}

/* Of an empty batch, what is summed over it and not added to is written all the same. */
static int write_empty_sums(call *c) {
    for (operand op = OP_A; op < OPERANDS; op++) {
        const size_t bytes = c->tensors[op].bytes;
        if (!c->present[op] || !is_output(c, op) || is_read(c, op) || bytes == 0) continue;
        char *sum = calloc(1, bytes);
        if (sum == NULL) return cli_out_of_memory();
        int code = empty_sum(c, op, sum);
        if (code == CLI_OK) code = call_status(eg_upload(c->context, c->memory[op], 0, sum, bytes));
        free(sum);
        CLI_TRY(code);
    }
    return CLI_OK;
}

static bool is_empty(const call *c) {
    return c->layer.batch == 0 || (c->levels == 2 && c->layer.outer_batch == 0);
}

/* To the library, 0 means 1: what is wrong with a call for a batch of 1 is wrong with this one, too. */
static int check_empty(const call *c, eg_context *context) {
    call one = *c;
    one.layer.batch = one.layer.outer_batch = 1;
    one.context = NULL; /* the memory is that of an empty batch */
    char *text = NULL;
    CLI_TRY(call_plan(&one, context, &text));
    free(text);
    return CLI_OK;
}

int call_run(call *c) {
    if (is_empty(c) && (c->processes.comm != NULL || c->parts.comm != NULL))
        return cli_fail(CLI_BAD_INPUT, "the batch is 0 with --mpi; expected 1 or more (rows may be 0)");
    if (is_empty(c)) {
        CLI_TRY(check_empty(c, c->context));
        return write_empty_sums(c);
    }
    const eg_forward_args forward = forward_args(c);
    const eg_backward_args backward = backward_args(c);
    CLI_TRY(call_status(c->backward ? eg_backward(c->context, &c->layer, &backward)
                                    : eg_forward(c->context, &c->layer, &forward)));
    return call_status(eg_sync(c->context));
}

int call_plan(const call *c, eg_context *context, char **text) {
    enum { CAPACITY = 1 << 16 };
    const bool empty = is_empty(c);
    if (empty) CLI_TRY(check_empty(c, context));
    *text = empty ? strdup("an empty batch: nothing is run\n") : malloc(CAPACITY);
    if (*text == NULL) return cli_out_of_memory();
    if (empty) return CLI_OK;
    const eg_forward_args forward = forward_args(c);
    const eg_backward_args backward = backward_args(c);
    const int code =
        call_status(c->backward ? eg_backward_plan(context, &c->layer, &backward, *text, CAPACITY)
                                : eg_forward_plan(context, &c->layer, &forward, *text, CAPACITY));
    if (code == CLI_OK) return CLI_OK;
    free(*text);
    *text = NULL;
    return code;
}
