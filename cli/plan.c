/* SPDX-License-Identifier: Apache-2.0 */
/* epigrad plan */
#include <stdio.h>
#include <stdlib.h>

#include "call.h"
#include "commands.h"
#include "failure.h"

static int print_plan(const call *c, eg_context *context, FILE *out) {
    char *text = NULL;
    CLI_TRY(call_plan(c, context, &text));
    fputs(text, out);
    free(text);
    return CLI_OK;
}

static int plan_call(const options *o, eg_context *context, bool backward, const tensor_source *source,
                     FILE *out) {
    call c;
    int code = call_load(&c, o, backward, NULL, source, false);
    if (code == CLI_OK) code = print_plan(&c, context, out);
    call_free(&c);
    return code;
}

/* Without --forward or --backward: both, where IN has the grad that a backward pass begins with. Options that
 * only a backward pass reads ask for one. */
static int plan_source(const options *o, eg_context *context, const tensor_source *source, FILE *out) {
    const bool both = !o->plan_forward && !o->plan_backward;
    bool has_grad = false;
    if (both) {
        tensor grad;
        CLI_TRY(source_load(source, cli_operand_name(OP_GRAD), false, &grad, &has_grad));
        tensor_free(&grad);
        const char *option = options_of_pass(o, COMMAND_BACKWARD);
        if (!has_grad && option != NULL)
            return cli_fail(CLI_BAD_INPUT,
                            "--%s is given, and %s has no grad; expected it for a backward pass", option,
                            o->input);
    }
    if (o->plan_forward || both) CLI_TRY(plan_call(o, context, false, source, out));
    if (o->plan_backward || (both && has_grad)) CLI_TRY(plan_call(o, context, true, source, out));
    return CLI_OK;
}

static int plan_file(const options *o, eg_context *context, FILE *out) {
    tensor_source source;
    int code = source_open(o->input, &source);
    if (code == CLI_OK) code = plan_source(o, context, &source, out);
    source_close(&source);
    return code;
}

static int plan_shape(const options *o, eg_context *context, bool backward, const shape *sizes, FILE *out) {
    call c;
    int code = call_from_shape(&c, o, backward, sizes);
    if (code == CLI_OK) code = print_plan(&c, context, out);
    call_free(&c);
    return code;
}

static int plan_shapes(const options *o, eg_context *context, FILE *out) {
    const bool both = !o->plan_forward && !o->plan_backward;
    for (int i = 0; i < o->shape_count; i++) {
        if (o->plan_forward || both) CLI_TRY(plan_shape(o, context, false, &o->shapes[i], out));
        if (o->plan_backward || both) CLI_TRY(plan_shape(o, context, true, &o->shapes[i], out));
    }
    return CLI_OK;
}

/* Nothing is printed before the last of them is known to be right. */
static int print_plans(const options *o, eg_context *context) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) return cli_out_of_memory();
    int code = o->input != NULL ? plan_file(o, context, out) : plan_shapes(o, context, out);
    const bool whole = ferror(out) == 0;
    if ((fclose(out) != 0 || !whole) && code == CLI_OK) code = cli_out_of_memory();
    if (code == CLI_OK) fwrite(text, 1, bytes, stdout);
    free(text);
    return code;
}

int command_plan(const options *o) {
    eg_context *context = NULL;
    CLI_TRY(call_open(o, &context));
    const int code = print_plans(o, context);
    eg_close(context);
    return code;
}
