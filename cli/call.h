/* SPDX-License-Identifier: Apache-2.0 */
/* One call of the library, on tensors: from a source of tensors to a layer and its operands, and back. */
#ifndef CLI_CALL_H
#define CLI_CALL_H

#include "options.h"
#include "source.h"

typedef struct call {
    bool backward, gated;
    bool b_is_nk;
    eg_layer layer;
    eg_source mode;
    eg_data_parallel processes; /* with --mpi, and */
    eg_tensor_parallel parts;   /* with --split; the comm of the other, or of both, is NULL */
    unsigned into;              /* outputs that are added to what they hold, a bit each */
    size_t workspace_limit;
    int levels; /* of the batch, in front of the matrices that y and the like have: 0, 1 or 2 */
    bool heads; /* the items of the inner level lie side by side: [outer, rows, inner, columns] in memory */
    bool present[OPERANDS];   /* which of them the call reads or writes */
    tensor tensors[OPERANDS]; /* of those; data only on the way to the device and back */
    eg_context *context;      /* not owned; NULL until call_upload */
    void *memory[OPERANDS];   /* on its device */
    routing routing;          /* of a grouped layer */
    void *ends;               /* of its groups, on the device */
} call;

/* The inputs of the call from a source, converted to the layer's type; the outputs, with their shapes.
 * `comm`: of --mpi, or NULL. `with_data`: false to plan only. */
int call_load(call *c, const options *o, bool backward, const eg_comm *comm, const tensor_source *source,
              bool with_data);

/* The same from sizes alone, to be planned. */
int call_from_shape(call *c, const options *o, bool backward, const shape *sizes);

/* Before the context is closed. */
void call_free(call *c);

/* Makes device memory for every operand, and moves the elements of the inputs there. */
int call_upload(call *c, eg_context *context);
int call_run(call *c);
int call_download(call *c);

/* The plan of the call on a context, to be freed; nothing is read, so nothing need be uploaded. */
int call_plan(const call *c, eg_context *context, char **text);

/* The outputs; returns how many. */
int call_outputs(const call *c, const tensor *outputs[OPERANDS]);

/* eg_open with the options' backend and threads, with its failure as an exit code. */
int call_open(const options *o, eg_context **context);

/* The exit code and message of a status. */
int call_status(eg_status status);

#endif
