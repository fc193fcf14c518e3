/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_direct.h"

#include <string.h>

#include "torch_call.h"

enum { LISTENERS = 8 };
static struct {
    PyObject *tensor, *parameter; /* the types that nobody has derived */
    PyObject *apply, *other_backward;
    PyObject *linear, *linear_backward; /* the operators */
    PyObject *forward_ad;               /* the module */
    PyObject *listeners[LISTENERS];
    int listener_count;
    /* Names of attributes. */
    PyObject *requires_grad, *is_neg, *main_grad, *to_save, *materialize_grads, *number, *saved_tensors,
        *needs_input_grad, *_current_level;
    PyObject *no;
} direct;

static PyObject *none(void) {
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
}

/* ---- A call, as one number beside its tensors --------------------------------------------------------- */

typedef struct options {
    int activation, math, source;
} options;

static long long pack(const options *options) {
    return options->activation | options->math << 8 | options->source << 12;
}

static options unpack(long long number) {
    return (options){(int)(number & 255), (int)(number >> 8 & 15), (int)(number >> 12 & 15)};
}

/* Where the derivative comes from: what _keep in _ops.py keeps. */
static eg_source source_of(int activation, bool recompute) {
    if (activation == EG_ACT_NONE) return EG_SOURCE_RECOMPUTE;
    if (eg_activation_from_y((eg_activation)activation)) return EG_SOURCE_Y;
    return recompute ? EG_SOURCE_RECOMPUTE : EG_SOURCE_PRE;
}

static const char *text_of(PyObject *object) {
    const char *text = PyUnicode_AsUTF8AndSize(object, NULL);
    if (text == NULL) PyErr_Clear();
    return text != NULL ? text : "";
}

static bool take_options(PyObject *activation, PyObject *save, PyObject *math, options *options) {
    const char *saved = text_of(save);
    const bool recompute = strcmp(saved, "recompute") == 0;
    options->activation = eg_torch_activation(text_of(activation));
    options->math = eg_torch_math(text_of(math));
    if (options->activation < 0 || options->math < 0 || !(recompute || strcmp(saved, "auto") == 0))
        return false;
    options->source = (int)source_of(options->activation, recompute);
    return true;
}

/* ---- Who would notice --------------------------------------------------------------------------------- */

static bool is_plain(PyObject *object) {
    PyObject *type = PyObject_Type(object);
    const bool plain = type == direct.tensor || type == direct.parameter;
    Py_DecRef(type);
    return plain;
}

/* Forward-mode differentiation: its level is below 0 while there is none. */
static bool has_tangents(void) {
    PyObject *level = PyObject_GetAttr(direct.forward_ad, direct._current_level);
    const bool inside = level == NULL || PyLong_AsLongLong(level) >= 0;
    if (level == NULL)
        PyErr_Clear();
    else
        Py_DecRef(level);
    return inside;
}

/* Autocast is the last of them: it concerns calls whose operands are not cast yet. */
static bool nobody_listens(int count) {
    if (has_tangents()) return false;
    for (int i = 0; i < count; i++) {
        PyObject *answer = PyObject_CallNoArgs(direct.listeners[i]);
        const int truth = answer != NULL ? PyObject_IsTrue(answer) : 1;
        if (answer == NULL)
            PyErr_Clear();
        else
            Py_DecRef(answer);
        if (truth != 0) return false;
    }
    return true;
}

/* False also where there is no such attribute. */
static bool has_truth(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    const bool truth = value != NULL && PyObject_IsTrue(value) == 1;
    if (value == NULL)
        PyErr_Clear();
    else
        Py_DecRef(value);
    return truth;
}

/* x.imag of a conjugate is a view whose elements are to be negated. Its memory is that of complex elements,
 * so no stride is 1; only such a tensor is asked. */
static bool is_negated(const eg_torch_call *call, int i, PyObject *object) {
    int64_t dims = 0, *strides = NULL;
    if (eg_torch.aoti_torch_get_dim(call->tensor[i], &dims) != 0 ||
        eg_torch.aoti_torch_get_strides(call->tensor[i], &strides) != 0)
        return true;
    for (int64_t j = 0; j < dims; j++) {
        if (strides[j] == 1) return false;
    }
    PyObject *answer = PyObject_CallMethodObjArgs(object, direct.is_neg, NULL);
    const bool negated = answer == NULL || PyObject_IsTrue(answer) != 0;
    if (answer == NULL)
        PyErr_Clear();
    else
        Py_DecRef(answer);
    return negated;
}

static bool take(eg_torch_call *call, int i, PyObject *object) {
    if (object == &_Py_NoneStruct) return true;
    return is_plain(object) && eg_torch.torch_tensor_from_pyobject(object, &call->tensor[i]) == 0 &&
           !is_negated(call, i, object);
}

/* A new reference; NULL with an exception, or without one for a tensor that is not there. */
static PyObject *object_of(eg_torch_call *call, int i) {
    void *object = NULL;
    if (call->tensor[i] == NULL) return none();
    return eg_torch.torch_tensor_to_pyobject(call->tensor[i], NULL, &object) == 0 ? object : NULL;
}

/* ---- Forward ------------------------------------------------------------------------------------------ */

/* y, and pre where it is wanted: new references. */
static bool compute(PyObject *const tensors[3], const options *options, bool keep, PyObject **y,
                    PyObject **pre) {
    eg_torch_call call;
    eg_torch_begin_forward(&call);
    bool done = true;
    for (int i = 0; i < 3 && done; i++) done = take(&call, i, tensors[i]);
    if (done) {
        PyThreadState *state = PyEval_SaveThread();
        done = eg_torch_forward(&call, options->activation, options->math, keep);
        PyEval_RestoreThread(state);
    }
    *y = done ? object_of(&call, EG_TORCH_Y) : NULL;
    *pre = *y != NULL ? object_of(&call, EG_TORCH_PRE) : NULL;
    eg_torch_end(&call);
    return *pre != NULL;
}

/* This thread's torch_forward could not take its call. */
static _Thread_local bool refused;

static PyObject *apply(PyObject *const tensors[3], const options *options) {
    PyObject *number = PyLong_FromLongLong(pack(options)), *result = NULL;
    if (number == NULL) return NULL;
    result = PyObject_CallFunctionObjArgs(direct.apply, tensors[0], tensors[1], tensors[2], number, NULL);
    Py_DecRef(number);
    return result;
}

PyObject *eg_py_torch_linear(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    options options;
    PyObject *y = NULL, *pre = NULL;
    (void)self;
    refused = false;
    if (count != 6 || !is_plain(args[0]) || !is_plain(args[1]) ||
        !take_options(args[3], args[4], args[5], &options) || !nobody_listens(direct.listener_count))
        return none();
    if (eg_torch.aoti_torch_grad_mode_is_enabled() &&
        (has_truth(args[1], direct.requires_grad) || has_truth(args[0], direct.requires_grad) ||
         (args[2] != &_Py_NoneStruct && has_truth(args[2], direct.requires_grad)))) {
        if (PyObject_HasAttr(args[1], direct.main_grad)) return none();
        y = apply(args, &options);
    } else if (compute(args, &options, false, &y, &pre)) {
        Py_DecRef(pre); /* None */
    }
    if (y != NULL) return y;
    if (PyErr_Occurred() != NULL && !refused) return NULL; /* of somebody's hook, such as checkpointing's */
    PyErr_Clear(); /* the other way says it with the arguments' names */
    return none();
}

static bool set(PyObject *ctx, PyObject *name, PyObject *value) {
    return value != NULL && PyObject_SetAttr(ctx, name, value) == 0;
}

static PyObject *tuple_of(PyObject *const *objects, int count) {
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; i < count && tuple != NULL; i++) {
        Py_IncRef(objects[i]);
        PyTuple_SetItem(tuple, i, objects[i]);
    }
    return tuple;
}

PyObject *eg_py_torch_forward(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *y = NULL, *pre = NULL;
    (void)self;
    if (count != 5) return eg_py_fail(EG_PY_TYPE_ERROR, "torch_forward takes 5 arguments"), NULL;
    const options options = unpack(PyLong_AsLongLong(args[4]));
    const eg_source source = (eg_source)options.source;
    if (!compute(args + 1, &options, source == EG_SOURCE_PRE, &y, &pre)) {
        if (y != NULL) Py_DecRef(y);
        refused = PyErr_Occurred() == NULL;
        if (refused) eg_py_fail(EG_ERR_ARGUMENT, "a call for the dispatcher"); /* torch_linear clears it */
        return NULL;
    }
    PyObject *bias = source == EG_SOURCE_RECOMPUTE && options.activation != EG_ACT_NONE ? args[3]
                                                                                        : &_Py_NoneStruct,
             *kept[4] = {args[1], args[2], bias, source == EG_SOURCE_Y ? y : pre}, *saved = tuple_of(kept, 4);
    const bool done = set(args[0], direct.to_save, saved) &&
                      set(args[0], direct.materialize_grads, direct.no) &&
                      set(args[0], direct.number, args[4]);
    if (saved != NULL) Py_DecRef(saved);
    Py_DecRef(pre);
    if (!done) Py_DecRef(y);
    return done ? y : NULL;
}

/* ---- Backward ----------------------------------------------------------------------------------------- */

static bool take_needs(PyObject *needs, bool need[3]) {
    for (int i = 0; i < 3; i++) {
        PyObject *each = PySequence_GetItem(needs, i);
        need[i] = each != NULL && PyObject_IsTrue(each) == 1;
        if (each == NULL) return false;
        Py_DecRef(each);
    }
    return true;
}

/* The gradients of x, w and bias, in a tuple of `count`; NULL with or without an exception. `saved`: x, w,
 * bias, and what the derivative is taken from. */
static PyObject *gradients(const options *options, const bool need[3], PyObject *grad,
                           PyObject *const saved[4], int count) {
    static const int places[] = {EG_TORCH_X, EG_TORCH_W, EG_TORCH_BIAS, EG_TORCH_SAVED};
    eg_torch_call call;
    PyObject *made = NULL;
    eg_torch_begin_backward(&call, (eg_source)options->source);
    bool done = take(&call, EG_TORCH_GRAD, grad);
    for (int i = 0; i < 4 && done; i++) done = take(&call, places[i], saved[i]);
    if (done) {
        PyThreadState *state = PyEval_SaveThread();
        done = eg_torch_backward(&call, options->activation, options->math, need);
        PyEval_RestoreThread(state);
        made = done ? PyTuple_New(count) : NULL;
    }
    for (int i = 0; i < count && made != NULL; i++) {
        PyObject *each = i < 3 ? object_of(&call, EG_TORCH_D_X + i) : none();
        if (each != NULL) {
            PyTuple_SetItem(made, i, each);
        } else {
            Py_DecRef(made);
            made = NULL;
        }
    }
    eg_torch_end(&call);
    return made;
}

/* By what torch_forward left in ctx. */
static PyObject *gradients_of(PyObject *ctx, PyObject *grad, PyObject *tuple) {
    bool need[3];
    PyObject *number = PyObject_GetAttr(ctx, direct.number),
             *needs = PyObject_GetAttr(ctx, direct.needs_input_grad), *saved[4], *made = NULL;
    bool taken = number != NULL && needs != NULL && take_needs(needs, need);
    for (int i = 0; i < 4 && taken; i++) {
        saved[i] = PyTuple_GetItem(tuple, i);
        taken = saved[i] != NULL;
    }
    if (taken) {
        const options options = unpack(PyLong_AsLongLong(number));
        made = gradients(&options, need, grad, saved, 4);
    }
    if (number != NULL) Py_DecRef(number);
    if (needs != NULL) Py_DecRef(needs);
    return made;
}

PyObject *eg_py_torch_backward(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *made = NULL;
    (void)self;
    if (count != 2) return eg_py_fail(EG_PY_TYPE_ERROR, "torch_backward takes 2 arguments"), NULL;
    /* With the gradient's own gradient asked for, the dispatcher would have to hear of it. */
    if (args[1] != &_Py_NoneStruct && is_plain(args[1]) && !eg_torch.aoti_torch_grad_mode_is_enabled() &&
        nobody_listens(direct.listener_count - 1)) {
        PyObject *saved = PyObject_GetAttr(args[0], direct.saved_tensors);
        if (saved == NULL) return NULL; /* such as a tensor that was written since: as torch says it */
        made = gradients_of(args[0], args[1], saved);
        Py_DecRef(saved);
        if (made != NULL || PyErr_Occurred() != NULL) return made;
    }
    return PyObject_CallFunctionObjArgs(direct.other_backward, args[0], args[1], NULL);
}

/* ---- What a compiled graph calls ---------------------------------------------------------------------- */

static PyObject *call_operator(PyObject *operator, PyObject * const * args, Py_ssize_t count) {
    PyObject *tuple = tuple_of(args, (int)count), *result = NULL;
    if (tuple != NULL) {
        result = PyObject_Call(operator, tuple, NULL);
        Py_DecRef(tuple);
    }
    return result;
}

PyObject *eg_py_torch_call_linear(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *results[2] = {NULL, NULL}, *pair = NULL;
    options options;
    (void)self;
    if (count != 6) return eg_py_fail(EG_PY_TYPE_ERROR, "torch_call_linear takes 6 arguments"), NULL;
    options.activation = eg_torch_activation(text_of(args[3]));
    options.math = eg_torch_math(text_of(args[5]));
    if (options.activation >= 0 && options.math >= 0 && nobody_listens(direct.listener_count - 1) &&
        compute(args, &options, PyObject_IsTrue(args[4]) == 1, &results[0], &results[1]))
        pair = tuple_of(results, 2);
    for (int i = 0; i < 2; i++) {
        if (results[i] != NULL) Py_DecRef(results[i]);
    }
    if (pair != NULL || PyErr_Occurred() != NULL) return pair;
    return call_operator(direct.linear, args, count);
}

PyObject *eg_py_torch_call_backward(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (count != 9) return eg_py_fail(EG_PY_TYPE_ERROR, "torch_call_backward takes 9 arguments"), NULL;
    PyObject *const saved[4] = {args[1], args[2], args[3], args[4]};
    const options options = {.activation = eg_torch_activation(text_of(args[5])),
                             .math = eg_torch_math(text_of(args[8])),
                             .source = eg_torch_source(text_of(args[6]))};
    bool need[3];
    PyObject *made = NULL;
    if (options.activation >= 0 && options.math >= 0 && options.source >= 0 && take_needs(args[7], need) &&
        nobody_listens(direct.listener_count - 1))
        made = gradients(&options, need, args[0], saved, 3);
    if (made != NULL || PyErr_Occurred() != NULL) return made;
    return call_operator(direct.linear_backward, args, count);
}

/* ---- Setting up --------------------------------------------------------------------------------------- */

static PyObject *held(PyObject *object) {
    Py_IncRef(object);
    return object;
}

PyObject *eg_py_torch_direct(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (count != 8) return eg_py_fail(EG_PY_TYPE_ERROR, "torch_direct takes 8 arguments"), NULL;
    const Py_ssize_t listeners = PyTuple_Size(args[7]);
    if (PyErr_Occurred() != NULL) return NULL;
    if (!eg_torch.has_objects || listeners < 1 || listeners > LISTENERS) return PyLong_FromLongLong(0);
    direct.tensor = held(args[0]);
    direct.parameter = held(args[1]);
    direct.apply = held(args[2]);
    direct.other_backward = held(args[3]);
    direct.linear = held(args[4]);
    direct.linear_backward = held(args[5]);
    direct.forward_ad = held(args[6]);
    direct.listener_count = (int)listeners;
    for (int i = 0; i < (int)listeners; i++) direct.listeners[i] = held(PyTuple_GetItem(args[7], i));
#define EG_NAME(name) direct.name = PyUnicode_InternFromString(#name)
    EG_NAME(requires_grad);
    EG_NAME(is_neg);
    EG_NAME(main_grad);
    EG_NAME(to_save);
    EG_NAME(materialize_grads);
    EG_NAME(number);
    EG_NAME(saved_tensors);
    EG_NAME(needs_input_grad);
    EG_NAME(_current_level);
#undef EG_NAME
    direct.no = PyBool_FromLong(0);
    return PyLong_FromLongLong(PyErr_Occurred() == NULL);
}
