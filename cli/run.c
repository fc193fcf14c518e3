/* SPDX-License-Identifier: Apache-2.0 */
/* epigrad forward, epigrad backward */
#include "call.h"
#include "commands.h"
#include "failure.h"
#include "output.h"
#include "progress.h"

static int run_on(call *c, eg_context *context, const char *path) {
    progress_step("uploading");
    CLI_TRY(call_upload(c, context));
    progress_step("computing");
    CLI_TRY(call_run(c));
    CLI_TRY(call_download(c));
    progress_step("writing");
    const tensor *outputs[OPERANDS];
    const int count = call_outputs(c, outputs);
    return output_write(path, outputs, count);
}

static int load_and_run(const options *o, eg_context *context, const tensor_source *source) {
    call c;
    int code = call_load(&c, o, o->command == COMMAND_BACKWARD, source, true);
    if (code == CLI_OK) code = run_on(&c, context, o->output);
    call_free(&c);
    return code;
}

static int run_from(const options *o, const tensor_source *source) {
    eg_context *context = NULL;
    CLI_TRY(call_open(o, &context));
    const int code = load_and_run(o, context, source);
    eg_close(context);
    return code;
}

/* Four tensors to read, those that options ask for, and what run_on does. A gated unit has b_up and bias_up,
 * and two of what is saved. */
static int count_steps(const options *o) {
    const int halves = o->gated ? 2 : 1;
    return 4 + 2 * o->gated + halves * (o->mode != EG_SOURCE_RECOMPUTE) + __builtin_popcount(o->into) + 3;
}

int command_run(const options *o) {
    CLI_TRY(output_check(o->output, o->input));
    tensor_source source;
    progress_begin(o->command == COMMAND_FORWARD ? "forward" : "backward", count_steps(o));
    int code = source_open(o->input, &source);
    if (code == CLI_OK) code = run_from(o, &source);
    source_close(&source);
    progress_end();
    return code;
}
