/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers of XLA's FFI, which JAX calls from compiled programs, without Python. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "contexts.h"
#include "xla_abi.h"

#define EXPORT __attribute__((visibility("default")))

/* Arguments, then results. Those that a call has not got are empty. */
enum { X, W, BIAS, W_UP, BIAS_UP, OFFSETS, INPUTS };
enum { Y = INPUTS, PRE, PRE_UP, FORWARD_ARRAYS };
enum { GRAD = INPUTS, SAVED, SAVED_UP, D_X, D_W, D_BIAS, D_W_UP, D_BIAS_UP, ARRAYS };

/* An array of a call: of `items` matrices by vmap's leading dimensions, of which each may be 1 for all. */
typedef struct array {
    const XLA_FFI_Buffer *buffer;
    bool present;
    int64_t bytes; /* of an item */
} array;

typedef struct call {
    const XLA_FFI_CallFrame *frame;
    eg_backend backend;
    int64_t activation, math, source; /* attributes; source is -1 in the forward pass */
    int64_t gated, grouped;           /* attributes, 0 or 1 */
    int leading;                      /* dimensions that vmap has put in front */
    array arrays[ARRAYS];
    int count;
    eg_layer layer;
} call;

static XLA_FFI_Error *fail(const XLA_FFI_CallFrame *frame, eg_status status, const char *message) {
    XLA_FFI_Error_Create_Args args = {.struct_size = sizeof args, .message = message};
    args.code = status == EG_ERR_ARGUMENT        ? XLA_FFI_Error_Code_INVALID_ARGUMENT
                : status == EG_ERR_UNSUPPORTED   ? XLA_FFI_Error_Code_UNIMPLEMENTED
                : status == EG_ERR_OUT_OF_MEMORY ? XLA_FFI_Error_Code_RESOURCE_EXHAUSTED
                                                 : XLA_FFI_Error_Code_INTERNAL;
    return frame->api->Error_Create(&args);
}

static eg_dtype dtype_of(int dtype) {
    switch (dtype) {
    case XLA_FFI_DataType_F32:
        return EG_F32;
    case XLA_FFI_DataType_F64:
        return EG_F64;
    case XLA_FFI_DataType_F16:
        return EG_F16;
    case XLA_FFI_DataType_BF16:
        return EG_BF16;
    default:
        return EG_DTYPE_DEFAULT;
    }
}

static bool take_attribute(const XLA_FFI_Attributes *attributes, const char *name, int64_t *value) {
    for (int64_t i = 0; i < attributes->size; i++) {
        const XLA_FFI_Name *found = attributes->names[i];
        const XLA_FFI_Scalar *scalar = attributes->values[i];
        if (found->length != strlen(name) || memcmp(found->text, name, found->length) != 0) continue;
        if (scalar->dtype != XLA_FFI_DataType_S64) return false;
        *value = *(const int64_t *)scalar->value;
        return true;
    }
    return false;
}

static int64_t product(const int64_t *dims, int64_t first, int64_t end) {
    int64_t size = 1;
    for (int64_t i = first; i < end; i++) size *= dims[i];
    return size;
}

/* x (..., K), w (N, K), of groups (groups, N, K), behind the leading dimensions of vmap. Python has checked
 * shapes and types. */
static bool take_arrays(call *call) {
    const XLA_FFI_Buffers *sides[] = {&call->frame->args, &call->frame->rets};
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < sides[side]->size && call->count < ARRAYS; i++) {
            array *array = &call->arrays[call->count++];
            array->buffer = sides[side]->buffers[i];
        }
    }
    if (call->count != (call->source < 0 ? FORWARD_ARRAYS : ARRAYS)) return false;
    const XLA_FFI_Buffer *x = call->arrays[X].buffer, *w = call->arrays[W].buffer;
    call->leading = (int)w->rank - (call->grouped ? 3 : 2);
    if (call->leading < 0 || x->rank <= call->leading || dtype_of(x->dtype) == EG_DTYPE_DEFAULT) return false;
    call->layer = (eg_layer){.size = sizeof(eg_layer),
                             .m = product(x->dims, call->leading, x->rank - 1),
                             .k = x->dims[x->rank - 1],
                             .n = w->dims[w->rank - 2],
                             .dtype = dtype_of(x->dtype),
                             .activation = (eg_activation)call->activation,
                             .math = (eg_math)call->math,
                             .groups = call->grouped ? w->dims[call->leading] : 0};
    for (int i = 0; i < call->count; i++) {
        array *array = &call->arrays[i];
        const XLA_FFI_Buffer *buffer = array->buffer;
        const int64_t elements = product(buffer->dims, call->leading, buffer->rank);
        array->present = elements != 0;
        array->bytes =
            elements * (int64_t)(i == OFFSETS ? sizeof(int32_t) : eg_dtype_size(call->layer.dtype));
    }
    return true;
}

/* The address of an array's item; `index` counts over the leading dimensions `dims` of the results. */
static void *item_of(const call *call, const array *array, const int64_t *dims, int64_t index) {
    int64_t place = 0, step = 1;
    if (!array->present) return NULL;
    for (int i = call->leading - 1; i >= 0; i--) {
        if (array->buffer->dims[i] != 1) place += index % dims[i] * step;
        step *= array->buffer->dims[i];
        index /= dims[i];
    }
    return (char *)array->buffer->data + place * array->bytes;
}

/* A weight [N, K], or one a group. */
static eg_matrix weight(const call *call, void *data) {
    eg_matrix matrix = eg_col_major(data);
    if (call->grouped) matrix.batch_stride = call->layer.n * call->layer.k;
    return matrix;
}

/* A weight without elements is there, too: it makes a gated unit. */
static eg_matrix weight_up(const call *call, void *data) {
    static _Alignas(64) char no_element;
    return weight(call, call->gated && data == NULL ? &no_element : data);
}

static eg_status run_forward(const call *call, eg_context *context, void **item) {
    eg_forward_args args = eg_forward_of(eg_row_major(item[X]), weight(call, item[W]),
                                         eg_elements(item[BIAS]), eg_row_major(item[Y]));
    args.b_up = weight_up(call, item[W_UP]);
    args.bias_up = eg_elements(item[BIAS_UP]);
    args.offsets.data = item[OFFSETS];
    args.pre = eg_row_major(item[PRE]);
    args.pre_up = eg_row_major(item[PRE_UP]);
    return eg_forward(context, &call->layer, &args);
}

static eg_status run_backward(const call *call, eg_context *context, void **item) {
    eg_backward_args args = eg_backward_of(eg_row_major(item[X]), weight(call, item[W]),
                                           eg_elements(item[BIAS]), eg_row_major(item[GRAD]));
    args.b_up = weight_up(call, item[W_UP]);
    args.bias_up = eg_elements(item[BIAS_UP]);
    args.offsets.data = item[OFFSETS];
    args.source = (eg_source)call->source;
    *(args.source == EG_SOURCE_Y ? &args.y : &args.pre) = eg_row_major(item[SAVED]);
    args.pre_up = eg_row_major(item[SAVED_UP]);
    args.d_a = eg_row_major(item[D_X]);
    args.d_b = weight(call, item[D_W]);
    args.d_bias = eg_elements(item[D_BIAS]);
    args.d_b_up = weight(call, item[D_W_UP]);
    args.d_bias_up = eg_elements(item[D_BIAS_UP]);
    return eg_backward(context, &call->layer, &args);
}

/* Rows from the last end on are not written by the library, and XLA's memory is not cleared: a result would
 * change from run to run. On CUDA the ends are on the device, and JAX clears those rows. */
static void clear_rest(const call *call, const array *array, void **item) {
    const int32_t *ends = item[OFFSETS];
    if (ends == NULL || !array->present) return;
    const int64_t m = call->layer.m, rest = m - ends[call->layer.groups - 1];
    if (rest == 0) return;
    char *data = item[array - call->arrays];
    memset(data + array->bytes / m * (m - rest), 0, (size_t)(array->bytes / m * rest));
}

static eg_status run_item(const call *call, eg_context *context, const int64_t *dims, int64_t index) {
    void *item[ARRAYS] = {NULL};
    for (int i = 0; i < call->count; i++) item[i] = item_of(call, &call->arrays[i], dims, index);
    const bool forward = call->source < 0;
    const eg_status status = (forward ? run_forward : run_backward)(call, context, item);
    if (status == EG_OK && call->grouped && call->backend == EG_BACKEND_CPU)
        clear_rest(call, &call->arrays[forward ? Y : D_X], item);
    return status;
}

/* Whether weights and biases are one for all items, so that a forward pass over all of them is one with more
 * rows. Groups are of each item's own rows. */
static bool shares_weights(const call *call) {
    const XLA_FFI_Buffer *x = call->arrays[X].buffer, *y = call->arrays[Y].buffer;
    if (call->grouped) return call->leading == 0;
    for (int i = 0; i < call->leading; i++) {
        if (x->dims[i] != y->dims[i]) return false;
        for (int a = W; a <= BIAS_UP; a++)
            if (call->arrays[a].present && call->arrays[a].buffer->dims[i] != 1) return false;
    }
    return true;
}

static XLA_FFI_Error *run(call *call) {
    eg_py_device device = {.backend = call->backend};
    char message[1024];
    eg_context *context;
    if (call->backend == EG_BACKEND_CUDA) {
        const XLA_FFI_Api *api = call->frame->api;
        XLA_FFI_Stream_Get_Args stream = {.struct_size = sizeof stream, .context = call->frame->context};
        XLA_FFI_DeviceOrdinal_Get_Args ordinal = {.struct_size = sizeof ordinal,
                                                  .context = call->frame->context};
        XLA_FFI_Error *error = api->Stream_Get(&stream);
        if (error == NULL && api->struct_size >= sizeof *api) error = api->DeviceOrdinal_Get(&ordinal);
        if (error != NULL) return error;
        device.stream = stream.stream;
        device.ordinal = ordinal.device_ordinal;
    } else {
        device = eg_py_contexts_cpu();
    }
    eg_status status = eg_py_contexts_take(&device, &context);
    if (status != EG_OK) return fail(call->frame, status, eg_last_error());
    const XLA_FFI_Buffer *result = call->arrays[call->source < 0 ? Y : D_W].buffer;
    int64_t items = product(result->dims, 0, call->leading);
    if (call->source < 0 && shares_weights(call)) {
        call->layer.m *= items;
        items = items == 0 ? 0 : 1;
    }
    for (int64_t i = 0; i < items && status == EG_OK; i++) status = run_item(call, context, result->dims, i);
    if (status != EG_OK) snprintf(message, sizeof message, "%s", eg_last_error());
    eg_py_contexts_give(&device, context);
    return status == EG_OK ? NULL : fail(call->frame, status, message);
}

/* XLA takes handlers of its own version alone; what is used here is the same in all of them. */
static int version[2];
EXPORT void eg_xla_set_version(int major, int minor);
void eg_xla_set_version(int major, int minor) {
    version[0] = major;
    version[1] = minor;
}

static bool asks_for_metadata(const XLA_FFI_CallFrame *frame) {
    if (frame->extension_start == NULL || frame->extension_start->type != XLA_FFI_Extension_Metadata)
        return false;
    XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)frame->extension_start)->metadata;
    metadata->api_version.major_version = version[0];
    metadata->api_version.minor_version = version[1];
    return true;
}

static XLA_FFI_Error *handle(const XLA_FFI_CallFrame *frame, eg_backend backend, bool forward) {
    if (asks_for_metadata(frame)) return NULL;
    call call = {.frame = frame, .backend = backend, .source = -1};
    bool taken = take_attribute(&frame->attributes, "activation", &call.activation) &&
                 take_attribute(&frame->attributes, "math", &call.math) &&
                 take_attribute(&frame->attributes, "gated", &call.gated) &&
                 take_attribute(&frame->attributes, "grouped", &call.grouped);
    if (!forward) taken = taken && take_attribute(&frame->attributes, "source", &call.source);
    if (!taken || !take_arrays(&call))
        return fail(frame, EG_ERR_ARGUMENT, "epigrad: a call that its own Python code did not make");
    return run(&call);
}

#define HANDLER(name, backend, forward)                                                                      \
    EXPORT XLA_FFI_Error *name(const XLA_FFI_CallFrame *frame);                                              \
    XLA_FFI_Error *name(const XLA_FFI_CallFrame *frame) { return handle(frame, backend, forward); }
HANDLER(eg_xla_forward_cpu, EG_BACKEND_CPU, true)
HANDLER(eg_xla_forward_cuda, EG_BACKEND_CUDA, true)
HANDLER(eg_xla_backward_cpu, EG_BACKEND_CPU, false)
HANDLER(eg_xla_backward_cuda, EG_BACKEND_CUDA, false)
