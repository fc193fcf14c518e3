/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_call.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "contexts.h"

torch_table eg_torch;

int eg_torch_activation(const char *name) {
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

int eg_torch_math(const char *name) {
    static const char *const names[] = {"default", "strict", "fast"};
    return index_of(name, names, 3);
}

int eg_torch_source(const char *name) {
    static const char *const names[] = {"recompute", "pre", "y"};
    return index_of(name, names, 3);
}

/* ---- Tensors ----------------------------------------------------------------------------------------- */

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

static bool look_at(eg_torch_call *call, int i) {
    eg_py_view *view = &call->view[i];
    AtenTensorHandle tensor = call->tensor[i];
    int64_t dims = 0, *sizes = NULL, *strides = NULL;
    int32_t dtype = -1, type = -1, index = 0;
    *view = (eg_py_view){.name = view->name, .present = tensor != NULL};
    if (tensor == NULL) return true;
    if (eg_torch.aoti_torch_get_data_ptr(tensor, &view->data) != 0 ||
        eg_torch.aoti_torch_get_dim(tensor, &dims) != 0 ||
        eg_torch.aoti_torch_get_sizes(tensor, &sizes) != 0 ||
        eg_torch.aoti_torch_get_strides(tensor, &strides) != 0 ||
        eg_torch.aoti_torch_get_dtype(tensor, &dtype) != 0 ||
        eg_torch.aoti_torch_get_device_type(tensor, &type) != 0 ||
        eg_torch.aoti_torch_get_device_index(tensor, &index) != 0)
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
    if (i == EG_TORCH_X) call->dtype = dtype, call->device_type = type, call->device_index = index;
    return true;
}

static bool make(const eg_torch_call *call, const int64_t *sizes, const int64_t *strides, int dims,
                 int32_t dtype, AtenTensorHandle *made) {
    int64_t dense[EG_PY_DIMS], next = 1;
    for (int i = dims - 1; i >= 0; i--) {
        dense[i] = next;
        next *= sizes[i] > 1 ? sizes[i] : 1;
    }
    return eg_torch.aoti_torch_empty_strided(dims, sizes, strides != NULL ? strides : dense, dtype,
                                             call->device_type, call->device_index, made) == 0 ||
           eg_py_fail(EG_ERR_OUT_OF_MEMORY, "torch has no memory for a result, or for the workspace");
}

/* Large results in new memory cost more page faults than arithmetic. As NumPy does for its arrays, the system
 * is asked for huge pages there; where it gives none, or the pages are there already, nothing changes. */
static void ask_huge_pages(const eg_py_view *view) {
    const uintptr_t huge = (uintptr_t)2 << 20;
    size_t bytes = eg_dtype_size(view->dtype);
    if (view->backend != EG_BACKEND_CPU) return;
    for (int i = 0; i < view->dims; i++) bytes *= (size_t)view->shape[i];
    const uintptr_t begin = ((uintptr_t)view->data + huge - 1) & ~(huge - 1),
                    end = ((uintptr_t)view->data + bytes) & ~(huge - 1);
#ifdef MADV_HUGEPAGE
    if (bytes >= 2 * huge && begin < end) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
    (void)begin, (void)end;
#endif
}

static bool make_result(eg_torch_call *call, int i, const int64_t *sizes, const int64_t *strides, int dims) {
    if (!make(call, sizes, strides, dims, call->dtype, &call->tensor[i]) || !look_at(call, i)) return false;
    ask_huge_pages(&call->view[i]);
    return true;
}

/* Where strides are no layout of the library, on contiguous copies, as torch's own operators do. */
static bool copy_inputs(eg_torch_call *call) {
    for (int i = 0; i < call->inputs; i++) {
        AtenTensorHandle copy;
        if (call->tensor[i] == NULL) continue;
        if (!make(call, call->view[i].shape, NULL, call->view[i].dims, call->dtype, &copy)) return false;
        const bool copied = eg_torch.aoti_torch_copy_(copy, call->tensor[i], 0) == 0;
        eg_torch.aoti_torch_delete_tensor_object(call->tensor[i]);
        call->tensor[i] = copy;
        if (!copied || !look_at(call, i)) return false;
    }
    return true;
}

static bool lay_out(eg_torch_call *call) {
    if (eg_py_lay_out(call->operand, call->count, NULL, &call->pass.layer)) return true;
    return strstr(call->message, " has strides ") != NULL && copy_inputs(call) &&
           eg_py_lay_out(call->operand, call->count, NULL, &call->pass.layer);
}

static bool find_device(const eg_torch_call *call, eg_py_device *device) {
    *device = eg_py_contexts_cpu();
    if (call->device_type == TORCH_CPU) return true;
    *device = (eg_py_device){.backend = EG_BACKEND_CUDA, .ordinal = call->device_index};
    return (eg_torch.aoti_torch_get_current_cuda_stream != NULL &&
            eg_torch.aoti_torch_get_current_cuda_stream(call->device_index, &device->stream) == 0) ||
           eg_py_fail(EG_ERR_UNAVAILABLE, "torch has no current CUDA stream");
}

static bool run(eg_torch_call *call) {
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
        if (has_room) eg_torch.aoti_torch_get_data_ptr(scratch, &data);
        eg_py_give_workspace(&call->pass, data, bytes);
    }
    if (status == EG_OK && has_room) status = eg_py_perform(context, &call->pass);
    if (status != EG_OK) eg_py_fail((int)status, EG_PY_NAMES, eg_last_error());
    if (context != NULL) eg_py_contexts_give(&device, context);
    if (scratch != NULL) eg_torch.aoti_torch_delete_tensor_object(scratch);
    return status == EG_OK && has_room;
}

/* ---- The passes -------------------------------------------------------------------------------------- */

/* An assignment of the whole struct would also clear what is filled in later, some kilobytes a call. */
static void begin(eg_torch_call *call, const char *const *names, const eg_py_kind *kinds, int inputs,
                  int count) {
    call->inputs = inputs;
    call->count = count;
    call->message[0] = '\0';
    call->pass.forward = NULL;
    call->pass.backward = NULL;
    for (int i = 0; i < count; i++) {
        call->tensor[i] = NULL;
        call->view[i].name = names[i];
        call->view[i].present = false;
        call->operand[i] = (eg_py_operand){.kind = kinds[i], .output = i >= inputs, .view = &call->view[i]};
    }
    eg_py_divert(call->message);
}

void eg_torch_begin_forward(eg_torch_call *call) {
    static const char *const names[] = {"x", "w", "bias", "y", "pre"};
    static const eg_py_kind kinds[] = {EG_PY_X, EG_PY_W, EG_PY_BIAS, EG_PY_Y, EG_PY_Y};
    begin(call, names, kinds, EG_TORCH_Y, EG_TORCH_FORWARD);
    eg_forward_args *args = &call->args.forward;
    *args = (eg_forward_args){.size = sizeof *args};
    call->pass.forward = args;
    call->operand[EG_TORCH_X].place = &args->a;
    call->operand[EG_TORCH_W].place = &args->b;
    call->operand[EG_TORCH_BIAS].place = &args->bias;
    call->operand[EG_TORCH_Y].place = &args->y;
    call->operand[EG_TORCH_PRE].place = &args->pre;
}

void eg_torch_begin_backward(eg_torch_call *call, eg_source source) {
    static const char *const names[] = {"x", "w", "bias", "grad", "saved", "d_x", "d_w", "d_bias"};
    static const eg_py_kind kinds[] = {EG_PY_X, EG_PY_W, EG_PY_BIAS, EG_PY_Y,
                                       EG_PY_Y, EG_PY_X, EG_PY_W,    EG_PY_BIAS};
    begin(call, names, kinds, EG_TORCH_D_X, EG_TORCH_BACKWARD);
    eg_backward_args *args = &call->args.backward;
    *args = (eg_backward_args){.size = sizeof *args, .source = source};
    call->pass.backward = args;
    call->operand[EG_TORCH_X].place = &args->a;
    call->operand[EG_TORCH_W].place = &args->b;
    call->operand[EG_TORCH_BIAS].place = &args->bias;
    call->operand[EG_TORCH_GRAD].place = &args->grad;
    call->operand[EG_TORCH_SAVED].place = source == EG_SOURCE_Y ? &args->y : &args->pre;
    call->operand[EG_TORCH_D_X].place = &args->d_a;
    call->operand[EG_TORCH_D_W].place = &args->d_b;
    call->operand[EG_TORCH_D_BIAS].place = &args->d_bias;
}

static bool take_layer(eg_torch_call *call, int activation, int math) {
    call->pass.layer =
        (eg_layer){.size = sizeof(eg_layer), .activation = (eg_activation)activation, .math = (eg_math)math};
    for (int i = 0; i < call->inputs; i++) {
        if (!look_at(call, i)) return false;
    }
    const eg_py_view *x = &call->view[EG_TORCH_X], *w = &call->view[EG_TORCH_W];
    return (x->dims >= 1 && w->dims >= 2) ||
           eg_py_fail(EG_ERR_ARGUMENT, "x has %d dimensions and w %d; expected (..., K) and (N, K)", x->dims,
                      w->dims);
}

bool eg_torch_forward(eg_torch_call *call, int activation, int math, bool save) {
    const eg_py_view *x = &call->view[EG_TORCH_X], *w = &call->view[EG_TORCH_W];
    int64_t sizes[EG_PY_DIMS];
    if (!take_layer(call, activation, math)) return false;
    memcpy(sizes, x->shape, (size_t)x->dims * sizeof *sizes);
    sizes[x->dims - 1] = w->shape[w->dims - 2];
    return make_result(call, EG_TORCH_Y, sizes, NULL, x->dims) &&
           (!save || make_result(call, EG_TORCH_PRE, sizes, NULL, x->dims)) && lay_out(call) && run(call);
}

/* A weight that is a transpose has a gradient that is one: gradient_of in _ops.py. */
static bool make_d_w(eg_torch_call *call) {
    const eg_py_view *w = &call->view[EG_TORCH_W];
    const int k = w->dims - 1, n = k - 1;
    if (w->strides[n] != 1 || w->strides[k] == 1)
        return make_result(call, EG_TORCH_D_W, w->shape, NULL, w->dims);
    int64_t strides[EG_PY_DIMS], next = 1;
    for (int j = 0; j < w->dims; j++) {
        const int dim = j == 0 ? n : j == 1 ? k : w->dims - 1 - j;
        strides[dim] = next;
        next *= w->shape[dim] > 1 ? w->shape[dim] : 1;
    }
    return make_result(call, EG_TORCH_D_W, w->shape, strides, w->dims);
}

bool eg_torch_backward(eg_torch_call *call, int activation, int math, const bool need[3]) {
    const eg_py_view *x = &call->view[EG_TORCH_X], *w = &call->view[EG_TORCH_W];
    return take_layer(call, activation, math) &&
           (!need[0] || make_result(call, EG_TORCH_D_X, x->shape, NULL, x->dims)) &&
           (!need[1] || make_d_w(call)) &&
           (!need[2] || make_result(call, EG_TORCH_D_BIAS, &w->shape[w->dims - 2], NULL, 1)) &&
           lay_out(call) && run(call);
}

bool eg_torch_make_rest(eg_torch_call *call) {
    const int64_t none = 0;
    for (int i = call->inputs; i < call->count; i++) {
        if (call->tensor[i] == NULL && !make(call, &none, NULL, 1, call->dtype, &call->tensor[i]))
            return false;
    }
    return true;
}

void eg_torch_end(eg_torch_call *call) {
    eg_py_divert(NULL);
    for (int i = 0; i < call->count; i++) {
        if (call->tensor[i] != NULL) eg_torch.aoti_torch_delete_tensor_object(call->tensor[i]);
    }
}
