/* SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Errors ------------------------------------------------------------------------------------- */

static PyObject *errors; /* a tuple, by eg_status */

bool eg_py_set_errors(PyObject *classes) {
    if (classes == NULL) return false;
    Py_IncRef(classes);
    errors = classes;
    return true;
}

static PyObject *class_of(int status) {
    if (status == EG_PY_TYPE_ERROR) return PyExc_TypeError;
    PyObject *class = errors != NULL ? PyTuple_GetItem(errors, status) : NULL;
    return class != NULL ? class : PyExc_SystemError;
}

static _Thread_local char *diverted;

void eg_py_divert(char *message) { diverted = message; }

bool eg_py_fail(int status, const char *format, ...) {
    char text[EG_PY_MESSAGE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (diverted != NULL)
        memcpy(diverted, text, sizeof text);
    else
        PyErr_SetString(class_of(status), text);
    return false;
}

/* Text of an object for a message; "?" where there is none. */
static void put_text(PyObject *object, char *text, size_t size) {
    PyObject *string = object != NULL ? PyObject_Str(object) : NULL;
    const char *utf8 = string != NULL ? PyUnicode_AsUTF8AndSize(string, NULL) : NULL;
    snprintf(text, size, "%s", utf8 != NULL ? utf8 : "?");
    if (string != NULL) Py_DecRef(string);
    PyErr_Clear();
}

static void put_attribute(PyObject *object, const char *attribute, char *text, size_t size) {
    PyObject *value = PyObject_GetAttrString(object, attribute);
    put_text(value, text, size);
    if (value != NULL) Py_DecRef(value);
}

/* ---- Numbers ------------------------------------------------------------------------------------ */

static bool fail_type(PyObject *object, const char *name, const char *expected) {
    char type[128];
    PyErr_Clear();
    PyObject *class = PyObject_Type(object);
    put_text(class, type, sizeof type);
    if (class != NULL) Py_DecRef(class);
    return eg_py_fail(EG_PY_TYPE_ERROR, "%s is %s; expected %s", name, type, expected);
}

bool eg_py_take_whole(PyObject *object, const char *name, unsigned long long least, unsigned long long most,
                      unsigned long long *value) {
    char text[64];
    PyObject *index = PyNumber_Index(object);
    if (index == NULL) return fail_type(object, name, "a whole number");
    *value = PyLong_AsUnsignedLongLong(index);
    const bool fits = PyErr_Occurred() == NULL && *value >= least && *value <= most;
    PyErr_Clear();
    if (!fits) put_text(index, text, sizeof text);
    Py_DecRef(index);
    return fits || eg_py_fail(EG_ERR_ARGUMENT, "%s is %s; expected %llu to %llu", name, text, least, most);
}

bool eg_py_take_number(PyObject *object, const char *name, double *value) {
    *value = PyFloat_AsDouble(object);
    if (PyErr_Occurred() == NULL) return true;
    if (PyErr_ExceptionMatches(PyExc_TypeError)) return fail_type(object, name, "a number");
    char text[64];
    PyErr_Clear();
    put_text(object, text, sizeof text);
    return eg_py_fail(EG_ERR_ARGUMENT, "%s is %s; expected a number that a double can hold", name, text);
}

/* ---- DLPack ------------------------------------------------------------------------------------- */

static const char *expected_of(const eg_py_view *view) {
    return view->is_ends ? "int32" : "float32, float64, float16 or bfloat16";
}

static bool take_dtype(const DLTensor *tensor, eg_py_view *view) {
    const int code = tensor->dtype.code, bits = tensor->dtype.bits;
    view->dtype = EG_DTYPE_DEFAULT;
    if (tensor->dtype.lanes == 1 && view->is_ends) {
        if (code == kDLInt && bits == 32) view->dtype = EG_F32;
    } else if (tensor->dtype.lanes == 1) {
        if (code == kDLFloat && bits == 32) view->dtype = EG_F32;
        if (code == kDLFloat && bits == 64) view->dtype = EG_F64;
        if (code == kDLFloat && bits == 16) view->dtype = EG_F16;
        if (code == kDLBfloat && bits == 16) view->dtype = EG_BF16;
    }
    if (view->dtype != EG_DTYPE_DEFAULT) return true;
    static const char *const names[] = {"int", "uint", "float", "a handle of", "bfloat", "complex", "bool"};
    return eg_py_fail(EG_PY_TYPE_ERROR, "%s has elements of %s%d; expected %s", view->name,
                      code < 7 ? names[code] : "type ", bits, expected_of(view));
}

static bool take_tensor(const DLTensor *tensor, eg_py_view *view) {
    switch (tensor->device_type) {
    case kDLCPU:
    case kDLCUDAHost:
        view->backend = EG_BACKEND_CPU;
        view->device = 0;
        break;
    case kDLCUDA:
    case kDLCUDAManaged:
        view->backend = EG_BACKEND_CUDA;
        view->device = tensor->device_id;
        break;
    default:
        return eg_py_fail(EG_ERR_ARGUMENT,
                          "%s is on a device of DLPack's type %d; expected the CPU (1) or CUDA (2)",
                          view->name, (int)tensor->device_type);
    }
    if (tensor->ndim > EG_PY_DIMS)
        return eg_py_fail(EG_ERR_ARGUMENT, "%s has %d dimensions; expected at most %d", view->name,
                          tensor->ndim, EG_PY_DIMS);
    if (!take_dtype(tensor, view)) return false;
    view->data = tensor->data == NULL ? NULL : (char *)tensor->data + tensor->byte_offset;
    view->dims = tensor->ndim;
    int64_t dense = 1;
    for (int i = view->dims - 1; i >= 0; i--) {
        view->shape[i] = tensor->shape[i];
        view->strides[i] = tensor->strides != NULL ? tensor->strides[i] : dense;
        dense *= tensor->shape[i];
    }
    return true;
}

static bool take_capsule(eg_py_view *view) {
    if (PyCapsule_IsValid(view->capsule, "dltensor_versioned")) {
        const DLManagedTensorVersioned *managed = PyCapsule_GetPointer(view->capsule, "dltensor_versioned");
        if (managed->major != 1)
            return eg_py_fail(EG_ERR_UNSUPPORTED, "%s speaks DLPack %u; expected 1", view->name,
                              managed->major);
        view->read_only = (managed->flags & DLPACK_READ_ONLY) != 0;
        return take_tensor(&managed->tensor, view);
    }
    if (PyCapsule_IsValid(view->capsule, "dltensor")) {
        const DLManagedTensor *managed = PyCapsule_GetPointer(view->capsule, "dltensor");
        return take_tensor(&managed->tensor, view);
    }
    return eg_py_fail(EG_PY_TYPE_ERROR, "%s.__dlpack__() returned no capsule of DLPack", view->name);
}

/* producer.__dlpack__(stream=, max_version=(1, 0)); NULL with an exception. */
static PyObject *call_dlpack(PyObject *method, bool cuda, long long stream, bool versioned) {
    PyObject *none = PyTuple_New(0), *named = PyDict_New();
    PyObject *number = cuda ? PyLong_FromLongLong(stream) : NULL,
             *version = versioned ? PyTuple_New(2) : NULL;
    PyObject *capsule = NULL;
    if (version != NULL) {
        PyTuple_SetItem(version, 0, PyLong_FromLongLong(1));
        PyTuple_SetItem(version, 1, PyLong_FromLongLong(0));
        PyDict_SetItemString(named, "max_version", version);
        Py_DecRef(version);
    }
    if (number != NULL) {
        PyDict_SetItemString(named, "stream", number);
        Py_DecRef(number);
    }
    if (none != NULL && named != NULL) capsule = PyObject_Call(method, none, named);
    if (none != NULL) Py_DecRef(none);
    if (named != NULL) Py_DecRef(named);
    return capsule;
}

/* Whether the producer's memory is CUDA's: it has to know the consumer's stream then. False if it does not
 * say. */
static bool is_cuda(PyObject *object) {
    PyObject *device = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    PyObject *type = device != NULL ? PyTuple_GetItem(device, 0) : NULL;
    const long long number = type != NULL ? PyLong_AsLongLong(type) : 0;
    if (device != NULL) Py_DecRef(device);
    PyErr_Clear();
    return number == kDLCUDA || number == kDLCUDAManaged;
}

/* What the producer refused, with the argument's name. */
static bool fail_export(const eg_py_view *view) {
    PyObject *type, *value, *trace;
    char why[512];
    PyErr_Fetch(&type, &value, &trace);
    put_text(value, why, sizeof why);
    if (type != NULL) Py_DecRef(type);
    if (value != NULL) Py_DecRef(value);
    if (trace != NULL) Py_DecRef(trace);
    return eg_py_fail(EG_ERR_ARGUMENT, "%s has no memory that can be read: %s", view->name, why);
}

static bool take_dlpack(PyObject *object, long long stream, eg_py_view *view) {
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    if (method == NULL)
        return fail_type(object, view->name, "an array: an object with DLPack or the buffer protocol");
    const bool cuda = is_cuda(object);
    view->capsule = call_dlpack(method, cuda, stream, true);
    if (view->capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) { /* from before DLPack 1.0 */
        PyErr_Clear();
        view->capsule = call_dlpack(method, cuda, stream, false);
    }
    Py_DecRef(method);
    return view->capsule != NULL ? take_capsule(view) : fail_export(view);
}

/* ---- The buffer protocol ------------------------------------------------------------------------- */

static eg_dtype dtype_of_format(const char *format, const eg_py_view *view) {
    if (format == NULL) return EG_DTYPE_DEFAULT;
    if (*format == '@' || *format == '=' || *format == '<')
        format++; /* the machines here are little-endian */
    if (format[0] == '\0' || format[1] != '\0') return EG_DTYPE_DEFAULT;
    if (view->is_ends) return format[0] == 'i' ? EG_F32 : EG_DTYPE_DEFAULT;
    switch (format[0]) {
    case 'f':
        return EG_F32;
    case 'd':
        return EG_F64;
    case 'e':
        return EG_F16;
    default:
        return EG_DTYPE_DEFAULT;
    }
}

static bool take_buffer_as(PyObject *object, eg_dtype dtype, eg_py_view *view) {
    if (PyObject_GetBuffer(object, &view->buffer, PyBUF_STRIDES | PyBUF_FORMAT) != 0) return false;
    const Py_buffer *buffer = &view->buffer;
    if (buffer->ndim > EG_PY_DIMS)
        return eg_py_fail(EG_ERR_ARGUMENT, "%s has %d dimensions; expected at most %d", view->name,
                          buffer->ndim, EG_PY_DIMS);
    view->dtype = dtype != EG_DTYPE_DEFAULT ? dtype : dtype_of_format(buffer->format, view);
    if (view->dtype == EG_DTYPE_DEFAULT)
        return eg_py_fail(EG_PY_TYPE_ERROR, "%s has elements of format \"%s\"; expected %s", view->name,
                          buffer->format != NULL ? buffer->format : "B", expected_of(view));
    view->data = buffer->buf;
    view->read_only = buffer->readonly != 0;
    view->dims = buffer->ndim;
    for (int i = 0; i < buffer->ndim; i++) {
        view->shape[i] = buffer->shape[i];
        view->strides[i] = buffer->strides[i] / buffer->itemsize;
        if (buffer->strides[i] % buffer->itemsize != 0)
            return eg_py_fail(EG_ERR_ARGUMENT,
                              "%s.strides[%d] is %lld bytes; expected a multiple of its element's %lld",
                              view->name, i, (long long)buffer->strides[i], (long long)buffer->itemsize);
    }
    return true;
}

/* NumPy has no bf16 of its own, and no format for that of ml_dtypes: its bits are read as integers. */
static bool take_bfloat16(PyObject *object, eg_py_view *view, bool *is_bfloat16) {
    char name[32];
    put_attribute(object, "dtype", name, sizeof name);
    *is_bfloat16 = name[0] == 'b' && name[1] == 'f' && strcmp(name, "bfloat16") == 0;
    if (!*is_bfloat16) return false;
    PyObject *bits = PyObject_CallMethod(object, "view", "s", "uint16");
    if (bits == NULL) return false;
    const bool taken = take_buffer_as(bits, EG_BF16, view);
    Py_DecRef(bits); /* the buffer holds it */
    return taken;
}

static bool take_buffer(PyObject *object, long long stream, eg_py_view *view) {
    bool is_bfloat16 = false;
    if (take_buffer_as(object, EG_DTYPE_DEFAULT, view)) return true;
    if (view->buffer.obj != NULL) return false; /* a buffer of another kind: its message stands */
    PyErr_Clear();
    if (take_bfloat16(object, view, &is_bfloat16) || is_bfloat16) return view->dtype == EG_BF16;
    return take_dlpack(object, stream, view);
}

/* ---- Any object ----------------------------------------------------------------------------------- */

typedef struct known_type {
    PyObject *type; /* held for good */
    const DLPackExchange *exchange;
} known_type;

enum { KNOWN_TYPES = 32 };
static known_type known[KNOWN_TYPES];
static int known_count;
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

/* The table that a type has in C; NULL: none. Asked once a type. */
static const DLPackExchange *ask_exchange(PyObject *type) {
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    const DLPackExchange *exchange = NULL;
    if (capsule != NULL && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (capsule != NULL) Py_DecRef(capsule);
    PyErr_Clear();
    return exchange != NULL && exchange->major == 1 && exchange->borrow != NULL ? exchange : NULL;
}

static const DLPackExchange *find_exchange(PyObject *type) {
    const DLPackExchange *exchange = NULL;
    bool found = false;
    pthread_mutex_lock(&known_lock);
    for (int i = 0; i < known_count && !found; i++) {
        if (known[i].type != type) continue;
        exchange = known[i].exchange;
        found = true;
    }
    pthread_mutex_unlock(&known_lock);
    if (found) return exchange;
    exchange = ask_exchange(type);
    pthread_mutex_lock(&known_lock);
    if (known_count < KNOWN_TYPES) {
        Py_IncRef(type);
        known[known_count++] = (known_type){type, exchange};
    }
    pthread_mutex_unlock(&known_lock);
    return exchange;
}

/* x.imag of a conjugate in torch: its elements are to be negated, which no table says. They lie among complex
 * ones, so no stride is 1, and only such a tensor is asked. */
static bool is_negated(PyObject *object, const eg_py_view *view) {
    for (int i = 0; i < view->dims; i++) {
        if (view->strides[i] == 1) return false;
    }
    PyObject *answer = PyObject_CallMethod(object, "is_neg", NULL);
    const bool negated = answer != NULL && PyObject_IsTrue(answer) == 1;
    if (answer != NULL) Py_DecRef(answer);
    PyErr_Clear();
    return negated;
}

static bool take_exchange(const DLPackExchange *exchange, PyObject *object, eg_py_view *view) {
    DLTensor tensor = {0};
    if (exchange->borrow(object, &tensor) != 0) {
        PyErr_Clear();
        return eg_py_fail(EG_ERR_ARGUMENT,
                          "%s has no memory that can be read; expected a dense tensor on the CPU or CUDA",
                          view->name);
    }
    if (!take_tensor(&tensor, view)) return false;
    if (is_negated(object, view))
        return eg_py_fail(EG_ERR_ARGUMENT, "%s is a negated view; expected what its resolve_neg() gives",
                          view->name);
    if (view->backend == EG_BACKEND_CUDA && exchange->stream != NULL) {
        view->has_stream = exchange->stream(kDLCUDA, view->device, &view->stream) == 0;
        if (!view->has_stream) return false;
    }
    return true;
}

static bool take(PyObject *object, long long stream, eg_py_view *view) {
    if (object == &_Py_NoneStruct) return true;
    view->present = true;
    PyObject *type = PyObject_Type(object);
    const DLPackExchange *exchange = find_exchange(type);
    Py_DecRef(type);
    if (exchange != NULL) return take_exchange(exchange, object, view);
    if (PyObject_CheckBuffer(object)) return take_buffer(object, stream, view);
    return take_dlpack(object, stream, view);
}

bool eg_py_take(PyObject *object, const char *name, long long stream, eg_py_view *view) {
    *view = (eg_py_view){.name = name};
    return take(object, stream, view);
}

bool eg_py_take_ends(PyObject *object, const char *name, long long stream, eg_py_view *view) {
    *view = (eg_py_view){.name = name, .is_ends = true};
    return take(object, stream, view);
}

void eg_py_release(eg_py_view *view) {
    if (view->buffer.obj != NULL) PyBuffer_Release(&view->buffer);
    if (view->capsule != NULL)
        Py_DecRef(view->capsule); /* still named "dltensor", so it frees what it holds */
}
