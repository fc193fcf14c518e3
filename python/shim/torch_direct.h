/* SPDX-License-Identifier: Apache-2.0 */
/* epigrad.torch.linear past torch's dispatcher: Python objects in, a call of the library, Python objects out.
 * Functions for Python, of its METH_FASTCALL; each is called with the interpreter's lock. */
#ifndef EG_PYTHON_TORCH_DIRECT_H
#define EG_PYTHON_TORCH_DIRECT_H

#include "python_abi.h"

/* torch_direct(Tensor, Parameter, apply, other backward, linear, linear_backward, torch.autograd.forward_ad,
 * who might listen): keeps them; whether this version of torch has what the others need. `apply` is that of
 * an autograd.Function whose forward and backward are torch_forward and torch_backward; the other backward
 * and the two operators take what theirs cannot. Each of the last, a tuple of functions without arguments, is
 * false while nobody listens. */
PyObject *eg_py_torch_direct(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* torch_linear(x, w, bias, activation, save, math): y, with a gradient where one is asked for; or None, and
 * nothing done, where it is a call for the dispatcher or one that is wrong. */
PyObject *eg_py_torch_linear(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* torch_forward(ctx, x, w, bias, number of a call): y. */
PyObject *eg_py_torch_forward(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* torch_backward(ctx, grad): the gradients of x, w and bias, and None for the number. */
PyObject *eg_py_torch_backward(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* The operators' own arguments and results, for graphs without the dispatcher; None for what is not computed.
 */
PyObject *eg_py_torch_call_linear(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *eg_py_torch_call_backward(PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif
