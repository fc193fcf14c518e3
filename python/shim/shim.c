/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that Python calls: arrays in, one call of the library, an exception if it fails. They are
 * loaded by ctypes, which asks for eg_py_functions, and called as built-in functions, without ctypes on their
 * way. */
#include <limits.h>
#include <stdio.h>

#include "call.h"
#include "contexts.h"
#include "epigrad/comm.h"
#include "layer.h"
#include "openmp.h"
#include "torch_direct.h"
#include "torch_operators.h"
#include "view.h"

#define EXPORT __attribute__((visibility("default")))

static PyObject *none(void) {
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
}

/* ---- The two passes -------------------------------------------------------------------------------- */

/* The options at the end of both functions' arguments. */
typedef struct call_options {
    eg_activation activation;
    eg_math math;
    eg_nonfinite nonfinite;
    double scale;
    size_t limit;
    bool has_stream;
    long long stream;  /* as DLPack numbers them: 1 is the legacy default stream, 2 that of the thread */
    PyObject *scratch; /* NULL, or what makes an array of so many elements, for the workspace of the call */
} call_options;
enum { OPTIONS = 7 };

static bool take_options(PyObject *const *args, call_options *options) {
    unsigned long long limit, stream = 1;
    options->activation = (eg_activation)PyLong_AsLongLong(args[0]);
    options->math = (eg_math)PyLong_AsLongLong(args[1]);
    options->nonfinite = (eg_nonfinite)PyLong_AsLongLong(args[2]);
    options->has_stream = args[5] != &_Py_NoneStruct;
    options->scratch = args[6] != &_Py_NoneStruct ? args[6] : NULL;
    if (PyErr_Occurred() != NULL || !eg_py_take_number(args[3], "scale", &options->scale) ||
        !eg_py_take_whole(args[4], "workspace_limit", 0, SIZE_MAX, &limit) ||
        (options->has_stream && !eg_py_take_whole(args[5], "stream", 0, LLONG_MAX, &stream)))
        return false;
    options->limit = (size_t)limit;
    options->stream = stream == 0 ? 1 : (long long)stream; /* DLPack has no 0: it could mean either default */
    return true;
}

static eg_py_device find_device(const eg_py_view *x, const call_options *options) {
    if (x->backend == EG_BACKEND_CPU) return eg_py_contexts_cpu();
    const long long number = options->stream == 1 ? 0 : options->stream;
    void *stream = x->has_stream && !options->has_stream ? x->stream : (void *)(intptr_t)number;
    return (eg_py_device){.backend = EG_BACKEND_CUDA, .ordinal = x->device, .stream = stream};
}

typedef struct call {
    eg_py_call pass;
    PyObject *scratch; /* as in call_options */
    PyObject *memory;  /* what it made */
    eg_py_view workspace;
} call;

/* The workspace is memory of the arrays' own library, whose allocator lends it to others when the call is through,
 * and keeps it for a graph that captures the call. A context's own workspace would move when it grows. */
static bool take_workspace(call *call, size_t bytes) {
    const size_t each = eg_dtype_size(call->pass.layer.dtype);
    call->memory = PyObject_CallFunction(call->scratch, "L", (long long)((bytes + each - 1) / each));
    if (call->memory == NULL || !eg_py_take(call->memory, "the workspace", 1, &call->workspace)) return false;
    eg_py_give_workspace(&call->pass, call->workspace.data, bytes);
    return true;
}

/* Runs without the lock of the interpreter. The message is copied before anyone else's call on this thread.
 */
static bool run(const eg_py_device *device, call *call) {
    char message[1024]; /* set where a call fails */
    size_t bytes = 0;
    bool has_room = true;
    eg_context *context;
    PyThreadState *state = PyEval_SaveThread();
    eg_status status = eg_py_contexts_take(device, &context);
    if (status == EG_OK && call->scratch != NULL) status = eg_py_ask_workspace(context, &call->pass, &bytes);
    if (status == EG_OK && bytes > 0) {
        PyEval_RestoreThread(state);
        has_room = take_workspace(call, bytes);
        state = PyEval_SaveThread();
    }
    if (status == EG_OK && has_room) status = eg_py_perform(context, &call->pass);
    if (status != EG_OK) snprintf(message, sizeof message, "%s", eg_last_error());
    if (context != NULL) eg_py_contexts_give(device, context);
    PyEval_RestoreThread(state);
    eg_py_release(&call->workspace);
    if (call->memory != NULL) Py_DecRef(call->memory);
    if (status == EG_OK) return has_room; /* without room there is an exception */
    return eg_py_fail((int)status, EG_PY_NAMES, message);
}

static PyObject *finish(bool done, eg_py_view *views, int count) {
    for (int i = 0; i < count; i++) eg_py_release(&views[i]);
    return done ? none() : NULL;
}

static bool take_views(PyObject *const *args, const char *const *names, int count,
                       const call_options *options, eg_py_view *views) {
    for (int i = 0; i < count; i++) {
        if (!eg_py_take(args[i], names[i], options->stream, &views[i])) return false;
    }
    return true;
}

/* The ends of groups come after the other arrays, and have another type. */
static bool take_all(PyObject *const *args, const char *const *names, int count, const call_options *options,
                     eg_py_view *views) {
    return take_views(args, names, count - 1, options, views) &&
           eg_py_take_ends(args[count - 1], names[count - 1], options->stream, &views[count - 1]);
}

static bool require(const eg_py_view *view) {
    return view->present || eg_py_fail(EG_PY_TYPE_ERROR, "%s is None; expected an array", view->name);
}

static const eg_comm *comm_at(PyObject *address) {
    return (const eg_comm *)(uintptr_t)PyLong_AsUnsignedLongLongMask(address);
}

/* Other processes are in this call, or come to it: they hear from the library that this one cannot make its
 * own. */
static void refuse_call(const eg_py_call *pass) {
    const eg_py_device device = eg_py_contexts_cpu();
    const bool parts = pass->forward != NULL ? pass->forward->tensor_parallel.comm != NULL
                                             : pass->backward->tensor_parallel.comm != NULL ||
                                                   pass->backward->data_parallel.comm != NULL;
    eg_py_call refused = *pass;
    eg_context *context;
    if (!parts) return;
    refused.layer.m = -1;
    PyThreadState *state = PyEval_SaveThread(); /* the exception stays this thread's */
    if (eg_py_contexts_take(&device, &context) == EG_OK) eg_py_perform(context, &refused);
    if (context != NULL) eg_py_contexts_give(&device, context);
    PyEval_RestoreThread(state);
}

static eg_layer layer_of(const call_options *options) {
    return (eg_layer){.size = sizeof(eg_layer),
                      .activation = options->activation,
                      .math = options->math,
                      .nonfinite = options->nonfinite,
                      .scale = options->scale};
}

/* forward(x, w, bias, w_up, bias_up, residual, y, pre, pre_up, offsets, activation, math, nonfinite, scale,
 * limit, stream, scratch [, the address of an eg_comm, eg_split]) */
static PyObject *forward(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    enum { X, W, BIAS, W_UP, BIAS_UP, RESIDUAL, Y, PRE, PRE_UP, OFFSETS, ARRAYS };
    static const char *const names[ARRAYS] = {"x",        "w",   "bias", "w_up",   "bias_up",
                                              "residual", "out", "pre",  "pre_up", "offsets"};
    enum { COMM = ARRAYS + OPTIONS, SPLIT, WITH_COMM };
    (void)self;
    if (count != COMM && count != WITH_COMM)
        return eg_py_fail(EG_PY_TYPE_ERROR, "forward takes %d arguments, or %d", COMM, WITH_COMM), NULL;
    eg_py_view views[ARRAYS] = {{0}};
    eg_forward_args a = {.size = sizeof a};
    call_options options = {0};
    if (count == WITH_COMM) {
        a.tensor_parallel.comm = comm_at(args[COMM]);
        a.tensor_parallel.split = (eg_split)PyLong_AsLongLong(args[SPLIT]);
    }
    bool done = take_options(args + ARRAYS, &options);
    const eg_py_operand operands[ARRAYS] = {
        {.kind = EG_PY_X, .view = &views[X], .place = &a.a},
        {.kind = EG_PY_W, .view = &views[W], .place = &a.b},
        {.kind = EG_PY_BIAS, .view = &views[BIAS], .place = &a.bias},
        {.kind = EG_PY_W, .view = &views[W_UP], .place = &a.b_up},
        {.kind = EG_PY_BIAS, .view = &views[BIAS_UP], .place = &a.bias_up},
        {.kind = EG_PY_Y, .view = &views[RESIDUAL], .place = &a.residual},
        {.kind = EG_PY_Y, .output = true, .view = &views[Y], .place = &a.y},
        {.kind = EG_PY_Y, .output = true, .view = &views[PRE], .place = &a.pre},
        {.kind = EG_PY_Y, .output = true, .view = &views[PRE_UP], .place = &a.pre_up},
        {.kind = EG_PY_OFFSETS, .view = &views[OFFSETS], .place = &a.offsets},
    };
    call call = {.pass = {.layer = layer_of(&options), .forward = &a}, .scratch = options.scratch};
    a.workspace_limit = options.limit;
    done = done && take_all(args, names, ARRAYS, &options, views) && require(&views[X]) &&
           require(&views[W]) && require(&views[Y]) &&
           eg_py_lay_out(operands, ARRAYS, &a.tensor_parallel, &call.pass.layer);
    if (done) {
        const eg_py_device device = find_device(&views[X], &options);
        done = run(&device, &call);
    } else {
        refuse_call(&call.pass);
    }
    return finish(done, views, ARRAYS);
}

/* backward(x, w, bias, w_up, bias_up, grad, saved, saved_up, residual, d_x, d_w, d_bias, d_w_up, d_bias_up,
 * offsets, source, eg_into bits, activation, ..., scratch [, the address of an eg_comm, eg_reduction, None or
 * eg_split]) */
static PyObject *backward(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    enum {
        X,
        W,
        BIAS,
        W_UP,
        BIAS_UP,
        GRAD,
        SAVED,
        SAVED_UP,
        RESIDUAL,
        D_X,
        D_W,
        D_BIAS,
        D_W_UP,
        D_BIAS_UP,
        OFFSETS,
        ARRAYS
    };
    enum { SOURCE = ARRAYS, INTO, FIXED, ALL = FIXED + OPTIONS, COMM = ALL, MEAN, SPLIT, WITH_COMM };
    static const char *const names[ARRAYS] = {"x",    "w",      "bias",     "w_up",      "bias_up",
                                              "grad", "saved",  "saved_up", "residual",  "d_x",
                                              "d_w",  "d_bias", "d_w_up",   "d_bias_up", "offsets"};
    (void)self;
    if (count != ALL && count != WITH_COMM)
        return eg_py_fail(EG_PY_TYPE_ERROR, "backward takes %d arguments, or %d", ALL, WITH_COMM), NULL;
    eg_py_view views[ARRAYS] = {{0}};
    eg_backward_args a = {.size = sizeof a};
    call_options options = {0};
    a.source = (eg_source)PyLong_AsLongLong(args[SOURCE]);
    a.accumulate_into = (uint64_t)PyLong_AsLongLong(args[INTO]);
    if (count == WITH_COMM && args[SPLIT] != &_Py_NoneStruct) {
        a.tensor_parallel.comm = comm_at(args[COMM]);
        a.tensor_parallel.split = (eg_split)PyLong_AsLongLong(args[SPLIT]);
    } else if (count == WITH_COMM) {
        a.data_parallel.comm = comm_at(args[COMM]);
        a.data_parallel.reduction = (eg_reduction)PyLong_AsLongLong(args[MEAN]);
    }
    bool done = take_options(args + FIXED, &options);
    const eg_py_operand operands[ARRAYS] = {
        {.kind = EG_PY_X, .view = &views[X], .place = &a.a},
        {.kind = EG_PY_W, .view = &views[W], .place = &a.b},
        {.kind = EG_PY_BIAS, .view = &views[BIAS], .place = &a.bias},
        {.kind = EG_PY_W, .view = &views[W_UP], .place = &a.b_up},
        {.kind = EG_PY_BIAS, .view = &views[BIAS_UP], .place = &a.bias_up},
        {.kind = EG_PY_Y, .view = &views[GRAD], .place = &a.grad},
        {.kind = EG_PY_Y, .view = &views[SAVED], .place = a.source == EG_SOURCE_Y ? &a.y : &a.pre},
        {.kind = EG_PY_Y, .view = &views[SAVED_UP], .place = &a.pre_up},
        {.kind = EG_PY_X, .view = &views[RESIDUAL], .place = &a.residual},
        {.kind = EG_PY_X, .output = true, .view = &views[D_X], .place = &a.d_a},
        {.kind = EG_PY_W, .output = true, .wide = true, .view = &views[D_W], .place = &a.d_b},
        {.kind = EG_PY_BIAS, .output = true, .wide = true, .view = &views[D_BIAS], .place = &a.d_bias},
        {.kind = EG_PY_W, .output = true, .wide = true, .view = &views[D_W_UP], .place = &a.d_b_up},
        {.kind = EG_PY_BIAS, .output = true, .wide = true, .view = &views[D_BIAS_UP], .place = &a.d_bias_up},
        {.kind = EG_PY_OFFSETS, .view = &views[OFFSETS], .place = &a.offsets},
    };
    call call = {.pass = {.layer = layer_of(&options), .backward = &a}, .scratch = options.scratch};
    a.workspace_limit = options.limit;
    done = done && take_all(args, names, ARRAYS, &options, views) && require(&views[X]) &&
           require(&views[W]) && require(&views[GRAD]) &&
           eg_py_lay_out(operands, ARRAYS, &a.tensor_parallel, &call.pass.layer);
    if (done) {
        const eg_py_device device = find_device(&views[X], &options);
        done = run(&device, &call);
    } else {
        refuse_call(&call.pass);
    }
    return finish(done, views, ARRAYS);
}

/* ---- The rest -------------------------------------------------------------------------------------- */

/* The table of activations, {name: (value, from_y)}. */
static PyObject *activations(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self, (void)args, (void)count;
    PyObject *table = PyDict_New();
    for (int i = 0; table != NULL && eg_activation_name((eg_activation)i) != NULL; i++) {
        PyObject *row = PyTuple_New(2);
        PyTuple_SetItem(row, 0, PyLong_FromLongLong(i));
        PyTuple_SetItem(row, 1, PyLong_FromLongLong(eg_activation_from_y((eg_activation)i)));
        PyDict_SetItemString(table, eg_activation_name((eg_activation)i), row);
        Py_DecRef(row);
    }
    return table;
}

/* comm_size(): of an eg_comm, whose memory is the caller's. */
static PyObject *comm_size(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self, (void)args, (void)count;
    return PyLong_FromLongLong((long long)sizeof(eg_comm));
}

/* comm_nccl(address of an ncclComm, address of an eg_comm), and comm_nccl_free(address of an eg_comm) */
static PyObject *comm_nccl(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (count != 2) return eg_py_fail(EG_PY_TYPE_ERROR, "comm_nccl takes 2 addresses"), NULL;
    unsigned long long nccl;
    if (!eg_py_take_whole(args[0], "comm", 1, UINTPTR_MAX, &nccl)) return NULL;
    eg_comm *comm = (eg_comm *)(uintptr_t)PyLong_AsUnsignedLongLongMask(args[1]);
    if (PyErr_Occurred() != NULL) return NULL;
    const eg_status status = eg_comm_nccl((struct ncclComm *)(uintptr_t)nccl, comm);
    if (status != EG_OK) return eg_py_fail((int)status, "%s", eg_last_error()), NULL;
    return none();
}

static PyObject *comm_nccl_free(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (count != 1) return eg_py_fail(EG_PY_TYPE_ERROR, "comm_nccl_free takes an address"), NULL;
    eg_comm_nccl_free((eg_comm *)(uintptr_t)PyLong_AsUnsignedLongLongMask(args[0]));
    return none();
}

static PyObject *version(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self, (void)args, (void)count;
    return PyUnicode_FromString(eg_version());
}

/* torch_operators(path, path): the operators of epigrad.torch, in C; whether this version of torch takes
 * them.
 */
static PyObject *torch_operators(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    const char *cpu = count == 2 ? PyUnicode_AsUTF8AndSize(args[0], NULL) : NULL;
    const char *cuda = cpu != NULL ? PyUnicode_AsUTF8AndSize(args[1], NULL) : NULL;
    if (cuda == NULL) return eg_py_fail(EG_PY_TYPE_ERROR, "torch_operators takes 2 paths"), NULL;
    return PyLong_FromLongLong(eg_py_torch_register(cpu, cuda));
}

static PyObject *set_errors(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (count != 1 || !eg_py_set_errors(args[0])) return NULL;
    return none();
}

static PyObject *set_threads(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    unsigned long long number;
    if (count != 1) return eg_py_fail(EG_PY_TYPE_ERROR, "set_threads takes a number"), NULL;
    if (!eg_py_take_whole(args[0], "threads", 0, 4096, &number)) return NULL;
    PyThreadState *state = PyEval_SaveThread();
    eg_py_contexts_set_threads((int)number);
    PyEval_RestoreThread(state);
    return none();
}

/* The addresses of GOMP_parallel, omp_get_thread_num and omp_get_max_threads. */
static PyObject *use_openmp(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    void *functions[3];
    (void)self;
    if (count != 3) return eg_py_fail(EG_PY_TYPE_ERROR, "use_openmp takes 3 arguments"), NULL;
    for (int i = 0; i < 3; i++)
        functions[i] = (void *)(uintptr_t)PyLong_AsUnsignedLongLongMask(args[i]); /* NOLINT: an address */
    if (PyErr_Occurred() != NULL) return NULL;
    eg_py_openmp_use(functions[0], functions[1], functions[2]);
    return none();
}

/* (name, features, threads) of the device of backend, ordinal. */
static PyObject *device_info(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (count != 2) return eg_py_fail(EG_PY_TYPE_ERROR, "device_info takes 2 arguments"), NULL;
    unsigned long long ordinal;
    if (!eg_py_take_whole(args[1], "device", 0, INT_MAX, &ordinal)) return NULL;
    eg_py_device device = {.backend = (eg_backend)PyLong_AsLongLong(args[0]), .ordinal = (int)ordinal};
    if (device.backend == EG_BACKEND_CPU && ordinal != 0)
        return eg_py_fail(EG_ERR_UNAVAILABLE, "device is %llu; this machine has one CPU device, 0", ordinal),
               NULL;
    if (device.backend == EG_BACKEND_CPU) device = eg_py_contexts_cpu();
    eg_device_info info = {.size = sizeof info};
    eg_context *context;
    if (PyErr_Occurred() != NULL) return NULL;
    eg_status status = eg_py_contexts_take(&device, &context);
    if (status == EG_OK) status = eg_get_device_info(context, &info);
    if (status != EG_OK) {
        eg_py_fail((int)status, "%s", eg_last_error());
        if (context != NULL) eg_py_contexts_give(&device, context);
        return NULL;
    }
    PyObject *result = PyTuple_New(3);
    PyTuple_SetItem(result, 0, PyUnicode_FromString(info.name));
    PyTuple_SetItem(result, 1, PyUnicode_FromString(info.features));
    PyTuple_SetItem(result, 2, PyLong_FromLongLong(info.threads));
    eg_py_contexts_give(&device, context);
    return result;
}

/* A new reference to {name: function}. */
EXPORT PyObject *eg_py_functions(void);
PyObject *eg_py_functions(void) {
#define FUNCTION(name)                                                                                       \
    { #name, (void (*)(void))name, METH_FASTCALL, NULL }
#define TORCH_FUNCTION(name)                                                                                 \
    { #name, (void (*)(void))eg_py_##name, METH_FASTCALL, NULL }
    static PyMethodDef methods[] = {FUNCTION(forward),
                                    FUNCTION(backward),
                                    FUNCTION(activations),
                                    FUNCTION(version),
                                    FUNCTION(set_errors),
                                    FUNCTION(set_threads),
                                    FUNCTION(use_openmp),
                                    FUNCTION(device_info),
                                    FUNCTION(torch_operators),
                                    TORCH_FUNCTION(torch_direct),
                                    TORCH_FUNCTION(torch_linear),
                                    TORCH_FUNCTION(torch_forward),
                                    TORCH_FUNCTION(torch_backward),
                                    TORCH_FUNCTION(torch_call_linear),
                                    TORCH_FUNCTION(torch_call_backward),
                                    FUNCTION(comm_size),
                                    FUNCTION(comm_nccl),
                                    FUNCTION(comm_nccl_free)};
#undef TORCH_FUNCTION
#undef FUNCTION
    PyObject *functions = PyDict_New();
    for (size_t i = 0; functions != NULL && i < sizeof methods / sizeof *methods; i++) {
        PyObject *function = PyCFunction_NewEx(&methods[i], NULL, NULL);
        if (function == NULL) return NULL;
        PyDict_SetItemString(functions, methods[i].name, function);
        Py_DecRef(function);
    }
    return functions;
}
