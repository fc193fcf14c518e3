/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_operators.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "call.h"
#include "contexts.h"
#include "layer.h"
#include "torch_abi.h"

static torch_table torch;

/* ---- What is on the stack -------------------------------------------------------------------------- */

static AtenTensorHandle tensor_of(StableIValue value) { return (AtenTensorHandle)(uintptr_t)value; }

static AtenTensorHandle optional_of(StableIValue value) {
    StableIValue *inner = (StableIValue *)(uintptr_t)value;
    if (inner == NULL) return NULL;
    AtenTensorHandle tensor = tensor_of(*inner);
    torch.delete_value(inner);
    return tensor;
}

static void text_of(StableIValue value, char *text, size_t size) {
    StringHandle string = (StringHandle)(uintptr_t)value;
    const char *inside = "";
    torch.torch_string_c_str(string, &inside);
    snprintf(text, size, "%s", inside);
    torch.torch_delete_string(string);
}

static void truths_of(StableIValue value, bool *truths, size_t count) {
    StableListHandle list = (StableListHandle)(uintptr_t)value;
    for (size_t i = 0; i < count; i++) {
        StableIValue item = 0;
        truths[i] = torch.torch_list_get_item(list, i, &item) == 0 && (uint8_t)item != 0;
    }
    torch.torch_delete_list(list);
}

static int activation_of(const char *name) {
    for (int i = 0; eg_activation_name((eg_activation)i) != NULL; i++) {
        if (strcmp(eg_activation_name((eg_activation)i), name) == 0) return i;
    }
    return -1;
}

static int index_of(const char *name, const char *const *names, int count) {
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) return i;
    }
    return -1;
}

/* ---- A call of an operator ------------------------------------------------------------------------- */

enum { MOST = 8 };
typedef struct operator_call {
    int inputs, count; /* of the tensors: inputs first, then results */
    AtenTensorHandle tensor[MOST];
    eg_py_view view[MOST];
    eg_py_operand operand[MOST];
    eg_py_call pass;
    int32_t dtype, device_type, device_index; /* of x, as torch numbers them */
    int x;
    char message[EG_PY_MESSAGE];
} operator_call;

static eg_dtype dtype_of(int32_t dtype) {
    switch (dtype) {
    case TORCH_F16:
        return EG_F16;
    case TORCH_F32:
        return EG_F32;
    case TORCH_F64:
        return EG_F64;
    case TORCH_BF16:
        return EG_BF16;
    default:
        return EG_DTYPE_DEFAULT;
    }
}

static bool look_at(operator_call *call, int i) {
    eg_py_view *view = &call->view[i];
    AtenTensorHandle tensor = call->tensor[i];
    int64_t dims = 0, *sizes = NULL, *strides = NULL;
    int32_t dtype = -1, type = -1, index = 0;
    *view = (eg_py_view){.name = view->name, .present = tensor != NULL};
    if (tensor == NULL) return true;
    if (torch.aoti_torch_get_data_ptr(tensor, &view->data) != 0 ||
        torch.aoti_torch_get_dim(tensor, &dims) != 0 || torch.aoti_torch_get_sizes(tensor, &sizes) != 0 ||
        torch.aoti_torch_get_strides(tensor, &strides) != 0 ||
        torch.aoti_torch_get_dtype(tensor, &dtype) != 0 ||
        torch.aoti_torch_get_device_type(tensor, &type) != 0 ||
        torch.aoti_torch_get_device_index(tensor, &index) != 0)
        return eg_py_fail(EG_ERR_ARGUMENT, "%s has no memory that can be read", view->name);
    view->dtype = dtype_of(dtype);
    if (view->dtype == EG_DTYPE_DEFAULT)
        return eg_py_fail(
            EG_PY_TYPE_ERROR,
            "%s has elements of torch's type %d; expected float32, float64, float16 or bfloat16", view->name,
            (int)dtype);
    if (type != TORCH_CPU && type != TORCH_CUDA)
        return eg_py_fail(EG_ERR_ARGUMENT, "%s is on a device of torch's type %d; expected the CPU or CUDA",
                          view->name, (int)type);
    if (dims > EG_PY_DIMS)
        return eg_py_fail(EG_ERR_ARGUMENT, "%s has %lld dimensions; expected at most %d", view->name,
                          (long long)dims, EG_PY_DIMS);
    view->backend = type == TORCH_CPU ? EG_BACKEND_CPU : EG_BACKEND_CUDA;
    view->device = type == TORCH_CPU ? 0 : index;
    view->dims = (int)dims;
    memcpy(view->shape, sizes, (size_t)dims * sizeof *sizes);
    memcpy(view->strides, strides, (size_t)dims * sizeof *strides);
    if (i == call->x) call->dtype = dtype, call->device_type = type, call->device_index = index;
    return true;
}

static bool look_at_inputs(operator_call *call) {
    for (int i = 0; i < call->inputs; i++) {
        if (!look_at(call, i)) return false;
    }
    return true;
}

static bool make(const operator_call *call, const int64_t *sizes, const int64_t *strides, int dims,
                 int32_t dtype, AtenTensorHandle *made) {
    int64_t dense[EG_PY_DIMS], next = 1;
    for (int i = dims - 1; i >= 0; i--) {
        dense[i] = next;
        next *= sizes[i] > 1 ? sizes[i] : 1;
    }
    return torch.aoti_torch_empty_strided(dims, sizes, strides != NULL ? strides : dense, dtype,
                                          call->device_type, call->device_index, made) == 0 ||
           eg_py_fail(EG_ERR_OUT_OF_MEMORY, "torch has no memory for a result, or for the workspace");
}

static bool make_result(operator_call *call, int i, const int64_t *sizes, const int64_t *strides, int dims) {
    return make(call, sizes, strides, dims, call->dtype, &call->tensor[i]) && look_at(call, i);
}

/* A result that is not computed is an empty tensor: an operator's results have a fixed number. */
static bool make_rest(operator_call *call) {
    const int64_t none = 0;
    for (int i = call->inputs; i < call->count; i++) {
        if (call->tensor[i] == NULL && !make(call, &none, NULL, 1, call->dtype, &call->tensor[i]))
            return false;
    }
    return true;
}

/* Where strides are no layout of the library, on contiguous copies, as torch's own operators do. */
static bool copy_inputs(operator_call *call) {
    for (int i = 0; i < call->inputs; i++) {
        AtenTensorHandle copy;
        if (call->tensor[i] == NULL) continue;
        if (!make(call, call->view[i].shape, NULL, call->view[i].dims, call->dtype, &copy)) return false;
        const bool copied = torch.aoti_torch_copy_(copy, call->tensor[i], 0) == 0;
        torch.aoti_torch_delete_tensor_object(call->tensor[i]);
        call->tensor[i] = copy;
        if (!copied || !look_at(call, i)) return false;
    }
    return true;
}

static bool lay_out(operator_call *call) {
    if (eg_py_lay_out(call->operand, call->count, NULL, &call->pass.layer)) return true;
    return strstr(call->message, " has strides ") != NULL && copy_inputs(call) &&
           eg_py_lay_out(call->operand, call->count, NULL, &call->pass.layer);
}

static bool find_device(const operator_call *call, eg_py_device *device) {
    *device = (eg_py_device){.threads = eg_py_contexts_threads()};
    if (call->device_type == TORCH_CPU) return true;
    *device = (eg_py_device){.backend = EG_BACKEND_CUDA, .ordinal = call->device_index};
    return (torch.aoti_torch_get_current_cuda_stream != NULL &&
            torch.aoti_torch_get_current_cuda_stream(call->device_index, &device->stream) == 0) ||
           eg_py_fail(EG_ERR_UNAVAILABLE, "torch has no current CUDA stream");
}

static bool run(operator_call *call) {
    eg_py_device device;
    eg_context *context;
    AtenTensorHandle scratch = NULL;
    size_t bytes = 0;
    if (!find_device(call, &device)) return false;
    eg_status status = eg_py_contexts_take(&device, &context);
    if (status == EG_OK && call->device_type == TORCH_CUDA)
        status = eg_py_ask_workspace(context, &call->pass, &bytes);
    bool has_room = true;
    if (status == EG_OK && bytes > 0) {
        void *data = NULL;
        const int64_t size = (int64_t)bytes;
        has_room = make(call, &size, NULL, 1, TORCH_UINT8, &scratch);
        if (has_room) torch.aoti_torch_get_data_ptr(scratch, &data);
        eg_py_give_workspace(&call->pass, data, bytes);
    }
    if (status == EG_OK && has_room) status = eg_py_perform(context, &call->pass);
    if (status != EG_OK) eg_py_fail((int)status, EG_PY_NAMES, eg_last_error());
    if (context != NULL) eg_py_contexts_give(&device, context);
    if (scratch != NULL) torch.aoti_torch_delete_tensor_object(scratch);
    return status == EG_OK && has_room;
}

/* The results go onto the stack; or an exception of torch's is thrown through here, which holds nothing more.
 */
static void finish(operator_call *call, bool done, StableIValue *stack) {
    eg_py_divert(NULL);
    for (int i = 0; i < call->count; i++) {
        if (i >= call->inputs && done)
            stack[i - call->inputs] = (StableIValue)(uintptr_t)call->tensor[i];
        else if (call->tensor[i] != NULL)
            torch.aoti_torch_delete_tensor_object(call->tensor[i]);
    }
    if (!done) torch.aoti_torch_check(false, "epigrad", "torch_operators.c", 0, call->message);
}

static const char *const maths[] = {"default", "strict", "fast"};
static const char *const sources[] = {"recompute", "pre", "y"};

static bool take_names(operator_call *call, const char *activation, const char *math) {
    const int value = activation_of(activation), exactness = index_of(math, maths, 3);
    if (value < 0) return eg_py_fail(EG_ERR_ARGUMENT, "activation is '%s'; there is none such", activation);
    if (exactness < 0) return eg_py_fail(EG_ERR_ARGUMENT, "math is '%s'; there is none such", math);
    call->pass.layer =
        (eg_layer){.size = sizeof(eg_layer), .activation = (eg_activation)value, .math = (eg_math)exactness};
    return true;
}

static bool has_sizes(const eg_py_view *x, const eg_py_view *w) {
    return (x->dims >= 1 && w->dims >= 2) ||
           eg_py_fail(EG_ERR_ARGUMENT, "x has %d dimensions and w %d; expected (..., K) and (N, K)", x->dims,
                      w->dims);
}

/* ---- linear(Tensor x, Tensor w, Tensor? bias, str activation, bool save, str math) -> (y, pre) ------ */

static bool make_y(operator_call *call, int i, const eg_py_view *x, const eg_py_view *w) {
    int64_t sizes[EG_PY_DIMS];
    memcpy(sizes, x->shape, sizeof sizes);
    sizes[x->dims - 1] = w->shape[w->dims - 2];
    return make_result(call, i, sizes, NULL, x->dims);
}

static void linear(StableIValue *stack, uint64_t arguments, uint64_t results) {
    enum { X, W, BIAS, Y, PRE, ARRAYS };
    char activation[32], math[16];
    (void)arguments, (void)results;
    eg_forward_args a = {.size = sizeof a};
    operator_call call = {
        .inputs = Y,
        .count = ARRAYS,
        .x = X,
        .tensor = {tensor_of(stack[0]), tensor_of(stack[1]), optional_of(stack[2])},
        .view = {{.name = "x"}, {.name = "w"}, {.name = "bias"}, {.name = "y"}, {.name = "pre"}},
        .operand = {{.kind = EG_PY_X, .view = &call.view[X], .place = &a.a},
                    {.kind = EG_PY_W, .view = &call.view[W], .place = &a.b},
                    {.kind = EG_PY_BIAS, .view = &call.view[BIAS], .place = &a.bias},
                    {.kind = EG_PY_Y, .output = true, .view = &call.view[Y], .place = &a.y},
                    {.kind = EG_PY_Y, .output = true, .view = &call.view[PRE], .place = &a.pre}},
        .pass = {.forward = &a}};
    text_of(stack[3], activation, sizeof activation);
    const bool save = (uint8_t)stack[4] != 0;
    text_of(stack[5], math, sizeof math);
    eg_py_divert(call.message);
    const bool done = take_names(&call, activation, math) && look_at_inputs(&call) &&
                      has_sizes(&call.view[X], &call.view[W]) &&
                      make_y(&call, Y, &call.view[X], &call.view[W]) &&
                      (!save || make_y(&call, PRE, &call.view[X], &call.view[W])) && lay_out(&call) &&
                      run(&call) && make_rest(&call);
    finish(&call, done, stack);
}

/* ---- linear_backward(grad, x, w, bias?, saved?, activation, source, bool[3] need, math) -> d_x, d_w, d_bias
 */

/* A weight that is a transpose has a gradient that is one: gradient_of in _ops.py. */
static bool make_d_w(operator_call *call, int i, const eg_py_view *w) {
    const int k = w->dims - 1, n = k - 1;
    if (w->strides[n] != 1 || w->strides[k] == 1) return make_result(call, i, w->shape, NULL, w->dims);
    int64_t strides[EG_PY_DIMS], next = 1;
    for (int j = 0; j < w->dims; j++) {
        const int dim = j == 0 ? n : j == 1 ? k : w->dims - 1 - j;
        strides[dim] = next;
        next *= w->shape[dim] > 1 ? w->shape[dim] : 1;
    }
    return make_result(call, i, w->shape, strides, w->dims);
}

static void linear_backward(StableIValue *stack, uint64_t arguments, uint64_t results) {
    enum { X, W, BIAS, GRAD, SAVED, D_X, D_W, D_BIAS, ARRAYS };
    char activation[32], source[16], math[16];
    bool need[3];
    (void)arguments, (void)results;
    eg_backward_args a = {.size = sizeof a};
    operator_call call = {
        .inputs = D_X,
        .count = ARRAYS,
        .x = X,
        .tensor = {tensor_of(stack[1]), tensor_of(stack[2]), optional_of(stack[3]), tensor_of(stack[0]),
                   optional_of(stack[4])},
        .view = {{.name = "x"},
                 {.name = "w"},
                 {.name = "bias"},
                 {.name = "grad"},
                 {.name = "saved"},
                 {.name = "d_x"},
                 {.name = "d_w"},
                 {.name = "d_bias"}},
        .operand = {{.kind = EG_PY_X, .view = &call.view[X], .place = &a.a},
                    {.kind = EG_PY_W, .view = &call.view[W], .place = &a.b},
                    {.kind = EG_PY_BIAS, .view = &call.view[BIAS], .place = &a.bias},
                    {.kind = EG_PY_Y, .view = &call.view[GRAD], .place = &a.grad},
                    {.kind = EG_PY_Y, .view = &call.view[SAVED], .place = &a.pre},
                    {.kind = EG_PY_X, .output = true, .view = &call.view[D_X], .place = &a.d_a},
                    {.kind = EG_PY_W, .output = true, .view = &call.view[D_W], .place = &a.d_b},
                    {.kind = EG_PY_BIAS, .output = true, .view = &call.view[D_BIAS], .place = &a.d_bias}},
        .pass = {.backward = &a}};
    text_of(stack[5], activation, sizeof activation);
    text_of(stack[6], source, sizeof source);
    truths_of(stack[7], need, 3);
    text_of(stack[8], math, sizeof math);
    const int from = index_of(source, sources, 3);
    a.source = (eg_source)(from < 0 ? 0 : from);
    if (a.source == EG_SOURCE_Y) call.operand[SAVED].place = &a.y;
    eg_py_divert(call.message);
    const eg_py_view *x = &call.view[X], *w = &call.view[W];
    const bool done = take_names(&call, activation, math) && look_at_inputs(&call) && has_sizes(x, w) &&
                      (!need[0] || make_result(&call, D_X, x->shape, NULL, x->dims)) &&
                      (!need[1] || make_d_w(&call, D_W, w)) &&
                      (!need[2] || make_result(&call, D_BIAS, &w->shape[w->dims - 2], NULL, 1)) &&
                      lay_out(&call) && run(&call) && make_rest(&call);
    finish(&call, done, stack);
}

/* ---- Registering ------------------------------------------------------------------------------------ */

/* A data pointer from dlsym becomes a function pointer by its bytes: ISO C has no cast for it. */
static bool find(void *library, const char *name, void *function) {
    void *address = library != NULL ? dlsym(library, name) : NULL;
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

static bool fill(void *cpu, void *cuda) {
#define EG_TEXT(name) #name
#define EG_SYMBOL(name, ...)                                                                                 \
    if (!find(cpu, EG_TEXT(name), &torch.name)) return false;
    EG_TORCH_SYMBOLS(EG_SYMBOL)
#undef EG_SYMBOL
#undef EG_TEXT
    find(cuda, "aoti_torch_get_current_cuda_stream", &torch.aoti_torch_get_current_cuda_stream);
    return find(cpu, "torch_delete_stable_ivalue", &torch.delete_value) ||
           find(cpu, "_ZdlPv", &torch.delete_value);
}

bool eg_py_torch_register(const char *cpu_library, const char *cuda_library) {
    void *cpu = dlopen(cpu_library, RTLD_NOW | RTLD_NOLOAD),
         *cuda = dlopen(cuda_library, RTLD_NOW | RTLD_NOLOAD);
    static const char *const keys[] = {"CPU", "CUDA"};
    if (cpu == NULL || !fill(cpu, cuda)) return false;
    for (int i = 0; i < 2; i++) {
        TorchLibraryHandle library; /* stays, as what is registered does */
        if (torch.aoti_torch_library_init_impl("epigrad", keys[i], "torch_operators.c", 0, &library) != 0 ||
            torch.torch_library_impl(library, "linear", linear, TORCH_2_10) != 0 ||
            torch.torch_library_impl(library, "linear_backward", linear_backward, TORCH_2_10) != 0)
            return false;
    }
    return true;
}
