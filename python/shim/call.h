/* SPDX-License-Identifier: Apache-2.0 */
/* A pass of a layer, ready for the library. */
#ifndef EG_PYTHON_CALL_H
#define EG_PYTHON_CALL_H

#include <epigrad/epigrad.h>

typedef struct eg_py_call {
    eg_layer layer;
    eg_forward_args *forward; /* or */
    eg_backward_args *backward;
} eg_py_call;

/* The message of a failure, whose names are those of C. */
#define EG_PY_NAMES "%s (a is x, b is w, b_up is w_up; d_a, d_b and d_b_up are their gradients)"

static inline eg_status eg_py_ask_workspace(eg_context *context, const eg_py_call *call, size_t *bytes) {
    return call->forward != NULL ? eg_forward_workspace(context, &call->layer, call->forward, bytes)
                                 : eg_backward_workspace(context, &call->layer, call->backward, bytes);
}

static inline void eg_py_give_workspace(const eg_py_call *call, void *data, size_t bytes) {
    eg_workspace *workspace = call->forward != NULL ? &call->forward->workspace : &call->backward->workspace;
    *workspace = (eg_workspace){.data = data, .bytes = bytes};
}

static inline eg_status eg_py_perform(eg_context *context, const eg_py_call *call) {
    return call->forward != NULL ? eg_forward(context, &call->layer, call->forward)
                                 : eg_backward(context, &call->layer, call->backward);
}

#endif
