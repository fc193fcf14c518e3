/* SPDX-License-Identifier: Apache-2.0 */
/* epigrad forward, epigrad backward */
#include <stdlib.h>

#include "call.h"
#include "commands.h"
#include "failure.h"
#include "output.h"
#include "processes.h"
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

static int load_and_run(const options *o, const eg_comm *comm, eg_context *context,
                        const tensor_source *source) {
    call c;
    int code = call_load(&c, o, o->command == COMMAND_BACKWARD, comm, source, true);
    if (code == CLI_OK) code = run_on(&c, context, o->output);
    call_free(&c);
    return code;
}

static int run_from(const options *o, const eg_comm *comm, const tensor_source *source) {
    eg_context *context = NULL;
    CLI_TRY(call_open(o, &context));
    const int code = load_and_run(o, comm, context, source);
    eg_close(context);
    return code;
}

/* The tensors to read, those that options ask for, and what run_on does. A gated unit has b_up and bias_up,
 * and two of what is saved. */
static int count_steps(const options *o) {
    const int halves = o->gated ? 2 : 1;
    const int inputs = o->command == COMMAND_BACKWARD ? 5 : 4;
    return inputs + 2 * o->gated + halves * (o->mode != EG_SOURCE_RECOMPUTE) +
           __builtin_popcount(options_sums(o)) + 3;
}

static int run_files(const options *o, const eg_comm *comm) {
    CLI_TRY(output_check(o->output, o->input));
    tensor_source source;
    progress_begin(o->command == COMMAND_FORWARD ? "forward" : "backward", count_steps(o));
    int code = source_open(o->input, &source);
    if (code == CLI_OK) code = run_from(o, comm, &source);
    source_close(&source);
    progress_end();
    return code;
}

static int run_rank(const options *o, const processes *p) {
    options own = *o;
    char *input = NULL, *output = NULL;
    int code = processes_path(p, "IN", o->input, &input);
    if (code == CLI_OK) code = processes_path(p, "OUT", o->output, &output);
    own.input = input, own.output = output;
    if (code == CLI_OK) code = run_files(&own, &p->comm);
    free(input);
    free(output);
    return code;
}

int command_run(const options *o) {
    processes p;
    if (!o->mpi) return run_files(o, NULL);
    CLI_TRY(processes_open(&p));
    const int code = run_rank(o, &p);
    /* Others may wait for one that failed: mpirun ends them when this process ends without MPI. */
    if (code == CLI_OK) processes_close(&p);
    return code;
}
