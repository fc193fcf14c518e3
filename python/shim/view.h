/* SPDX-License-Identifier: Apache-2.0 */
/* Python objects as strided views of memory: through DLPack's table in C, the buffer protocol or
 * `__dlpack__`. */
#ifndef EG_PYTHON_VIEW_H
#define EG_PYTHON_VIEW_H

#include <epigrad/epigrad.h>
#include <stdbool.h>

#include "dlpack_abi.h"
#include "python_abi.h"

enum { EG_PY_DIMS = 16 };

typedef struct eg_py_view {
    const char *name; /* of the argument, for messages */
    bool present, read_only;
    bool is_ends; /* of groups: elements are int32, and dtype is as large, f32 */
    void *data;
    eg_dtype dtype;
    int backend, device; /* EG_BACKEND_CPU or EG_BACKEND_CUDA, and its ordinal */
    int dims;
    int64_t shape[EG_PY_DIMS], strides[EG_PY_DIMS]; /* elements */
    bool has_stream;                                /* `stream` is what the type says is current */
    void *stream;
    Py_buffer buffer;
    PyObject *capsule; /* both are held until the view is released */
} eg_py_view;

/* The exception classes by status, and what every failure goes through: it sets an exception and returns
 * false. */
enum { EG_PY_TYPE_ERROR = -1 }; /* beside the eg_status: Python's own TypeError */
bool eg_py_set_errors(PyObject *classes);
bool eg_py_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* From here on this thread's failures are written to `message`, of EG_PY_MESSAGE bytes, and Python is left
 * alone, whose lock the thread need not have. NULL: no more. */
enum { EG_PY_MESSAGE = 1024 };
void eg_py_divert(char *message);

/* A number that the package's caller gave. One that C cannot hold is refused: cut to the bits there are, it
 * would be another number. */
bool eg_py_take_whole(PyObject *object, const char *name, unsigned long long least, unsigned long long most,
                      unsigned long long *value);
bool eg_py_take_number(PyObject *object, const char *name, double *value);

/* None: absent. `stream` is a CUDA stream for `__dlpack__`, as DLPack numbers them. A view is released
 * whether or not this succeeded. */
bool eg_py_take(PyObject *object, const char *name, long long stream, eg_py_view *view);
bool eg_py_take_ends(PyObject *object, const char *name, long long stream, eg_py_view *view);
void eg_py_release(eg_py_view *view);

#endif
