/* SPDX-License-Identifier: Apache-2.0 */
/* A webgpu.h library made of the Dawn that the PyPI package wgpudawn carries (dawn.sh builds it). The package
 * is a Python extension that exports none of Dawn's functions: when it is initialised it hands a table of
 * them to cffi. Here we play Python and cffi: functions that do nothing, and one that keeps the table. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "webgpu/loader.h"

/* As the code that cffi generates lays them out. */
typedef struct global {
    const char *name;
    void *wrapper, *type;
    void *function;
} global;
typedef struct tables {
    void *types;
    const global *globals;
} tables;

static const tables *found;

void *PyInit__wgpu_dawn(void);

/* ---- What the extension calls of Python --------------------------------------------------------- */

static long none[64]; /* an object that is never looked into */
extern long _Py_NoneStruct[64] __attribute__((alias("none")));

void *PyImport_ImportModule(const char *name) { return name != NULL ? none : NULL; }
/* The second argument of the one call: { name, version, exports, tables }. */
void *PyLong_FromVoidPtr(void *raw) {
    found = ((const tables *const *)raw)[3];
    return none;
}
void *PyObject_CallMethod(void *object, const char *name, const char *format, ...) {
    return object != NULL && name != NULL && format != NULL ? none : NULL;
}
void _Py_Dealloc(void *object) { (void)object; }
#define EG_UNUSED(name)                                                                                      \
    void name(void) { abort(); }
EG_UNUSED(PyArg_UnpackTuple)
EG_UNUSED(PyErr_Occurred)
EG_UNUSED(PyEval_RestoreThread)
EG_UNUSED(PyEval_SaveThread)
EG_UNUSED(PyFloat_AsDouble)
EG_UNUSED(PyLong_FromLong)
EG_UNUSED(PyLong_FromUnsignedLong)
EG_UNUSED(PyObject_Free)
EG_UNUSED(PyObject_Malloc)

/* ---- The functions ------------------------------------------------------------------------------ */

__attribute__((constructor)) static void initialise(void) { PyInit__wgpu_dawn(); }

static void find(const char *name, void *address) {
    for (const global *g = found->globals; g->name != NULL; g++) {
        if (strcmp(g->name, name) == 0) memcpy(address, &g->function, sizeof g->function);
    }
}

/* An exported name for each that the library calls, bound when it is looked up. */
#define EG_EXPORT(result, name, parameters)                                                                  \
    typedef result(*pointer_##name) parameters;                                                              \
    __attribute__((used)) static pointer_##name resolve_##name(void) {                                       \
        pointer_##name address = NULL;                                                                       \
        find("wgpu" #name, &address);                                                                        \
        return address;                                                                                      \
    }                                                                                                        \
    result wgpu##name parameters __attribute__((ifunc("resolve_" #name)));
EG_WEBGPU_FUNCTIONS(EG_EXPORT)
EG_EXPORT(WGPUEnum, DeviceGetAdapterInfo, (WGPUDevice, WGPUAdapterInfo *))
EG_EXPORT(void, AdapterInfoFreeMembers, (WGPUAdapterInfo))
EG_EXPORT(void, DeviceDestroy, (WGPUDevice))
EG_EXPORT(void, DeviceTick, (WGPUDevice))
