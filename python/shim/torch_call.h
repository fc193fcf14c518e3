/* SPDX-License-Identifier: Apache-2.0 */
/* A pass of a layer over torch's tensors: what the operators (torch_operators.c) and the calls past the
 * dispatcher (torch_direct.c) have in common. Nothing here needs the lock of the interpreter. */
#ifndef EG_PYTHON_TORCH_CALL_H
#define EG_PYTHON_TORCH_CALL_H

#include "call.h"
#include "layer.h"
#include "torch_abi.h"

/* The tensors of a forward call: inputs, then results. */
enum { EG_TORCH_X, EG_TORCH_W, EG_TORCH_BIAS, EG_TORCH_Y, EG_TORCH_PRE, EG_TORCH_FORWARD };
/* And of a backward call, which begin with the same three. */
enum { EG_TORCH_GRAD = 3, EG_TORCH_SAVED, EG_TORCH_D_X, EG_TORCH_D_W, EG_TORCH_D_BIAS, EG_TORCH_BACKWARD };

typedef struct eg_torch_call {
    int inputs, count;                        /* of the tensors */
    int32_t dtype, device_type, device_index; /* of x, as torch numbers them */
    eg_py_call pass;
    AtenTensorHandle tensor[EG_TORCH_BACKWARD]; /* owned; NULL: not there */
    eg_py_view view[EG_TORCH_BACKWARD];
    eg_py_operand operand[EG_TORCH_BACKWARD];
    union {
        eg_forward_args forward;
        eg_backward_args backward;
    } args;
    char message[EG_PY_MESSAGE]; /* of a failure */
} eg_torch_call;

/* The numbers of names, or -1. */
int eg_torch_activation(const char *name);
int eg_torch_math(const char *name);
int eg_torch_source(const char *name);

/* Without tensors yet: the caller fills in the inputs. From here to eg_torch_end the failures of this thread
 * go to call->message. */
void eg_torch_begin_forward(eg_torch_call *call);
void eg_torch_begin_backward(eg_torch_call *call, eg_source source);

/* Checks, makes the results and computes them. False: call->message says why. */
bool eg_torch_forward(eg_torch_call *call, int activation, int math, bool save);
bool eg_torch_backward(eg_torch_call *call, int activation, int math, const bool need[3]);

/* A result that is not computed becomes an empty tensor: those of an operator have a fixed number. */
bool eg_torch_make_rest(eg_torch_call *call);

/* Gives up all tensors that are still in the call. */
void eg_torch_end(eg_torch_call *call);

#endif
