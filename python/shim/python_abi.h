/* SPDX-License-Identifier: Apache-2.0 */
/* The part of CPython's C interface that the shim uses, in prototypes of its own.
 *
 * Every function here is exported by CPython 3.9 and all that came after, and no macro looks into an object.
 * So one binary serves all of them, free-threaded ones too, and building it needs no Python headers. */
#ifndef EG_PYTHON_ABI_H
#define EG_PYTHON_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct _object PyObject;
typedef struct _ts PyThreadState;
typedef ssize_t Py_ssize_t;

typedef struct PyMethodDef {
    const char *name;
    void (*function)(void);
    int flags;
    const char *doc;
} PyMethodDef;
enum { METH_FASTCALL = 0x0080 };

typedef struct Py_buffer {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} Py_buffer;
enum { PyBUF_FORMAT = 0x0004, PyBUF_STRIDES = 0x0010 | 0x0008 };

extern PyObject _Py_NoneStruct;
extern PyObject *PyExc_TypeError, *PyExc_SystemError;

void Py_IncRef(PyObject *object);
void Py_DecRef(PyObject *object);

PyObject *PyCFunction_NewEx(PyMethodDef *method, PyObject *self, PyObject *module);
PyObject *PyDict_New(void);
int PyDict_SetItemString(PyObject *dict, const char *key, PyObject *value);
PyObject *PyTuple_New(Py_ssize_t size);
PyObject *PySequence_GetItem(PyObject *sequence, Py_ssize_t index);
PyObject *PyTuple_GetItem(PyObject *tuple, Py_ssize_t index);
int PyTuple_SetItem(PyObject *tuple, Py_ssize_t index, PyObject *value);
Py_ssize_t PyTuple_Size(PyObject *tuple);
PyObject *PyBool_FromLong(long value);
PyObject *PyUnicode_InternFromString(const char *text);
PyObject *PyUnicode_FromString(const char *text);
const char *PyUnicode_AsUTF8AndSize(PyObject *text, Py_ssize_t *size);
PyObject *PyLong_FromLongLong(long long value);
long long PyLong_AsLongLong(PyObject *value);
unsigned long long PyLong_AsUnsignedLongLong(PyObject *value);
PyObject *PyNumber_Index(PyObject *value);
double PyFloat_AsDouble(PyObject *value);
unsigned long long PyLong_AsUnsignedLongLongMask(PyObject *value);

PyObject *PyObject_Type(PyObject *object);
int PyObject_IsTrue(PyObject *object);
int PyObject_HasAttr(PyObject *object, PyObject *name);
PyObject *PyObject_GetAttr(PyObject *object, PyObject *name);
int PyObject_SetAttr(PyObject *object, PyObject *name, PyObject *value);
PyObject *PyObject_CallNoArgs(PyObject *callable);
PyObject *PyObject_CallFunctionObjArgs(PyObject *callable, ...);
PyObject *PyObject_CallMethodObjArgs(PyObject *object, PyObject *name, ...);
PyObject *PyObject_GetAttrString(PyObject *object, const char *name);
PyObject *PyObject_CallMethod(PyObject *object, const char *name, const char *format, ...);
PyObject *PyObject_CallFunction(PyObject *callable, const char *format, ...);
PyObject *PyObject_Call(PyObject *callable, PyObject *args, PyObject *kwargs);
PyObject *PyObject_Str(PyObject *object);
int PyObject_CheckBuffer(PyObject *object);
int PyObject_GetBuffer(PyObject *object, Py_buffer *view, int flags);
void PyBuffer_Release(Py_buffer *view);

int PyCapsule_IsValid(PyObject *capsule, const char *name);
void *PyCapsule_GetPointer(PyObject *capsule, const char *name);

PyObject *PyErr_Occurred(void);
void PyErr_Clear(void);
void PyErr_Fetch(PyObject **type, PyObject **value, PyObject **traceback);
void PyErr_SetString(PyObject *type, const char *message);
int PyErr_ExceptionMatches(PyObject *type);

PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *state);

#endif
