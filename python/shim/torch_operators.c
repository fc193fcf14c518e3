/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_operators.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "torch_call.h"

/* ---- What is on the stack -------------------------------------------------------------------------- */

static AtenTensorHandle tensor_of(StableIValue value) { return (AtenTensorHandle)(uintptr_t)value; }

static AtenTensorHandle optional_of(StableIValue value) {
    StableIValue *inner = (StableIValue *)(uintptr_t)value;
    if (inner == NULL) return NULL;
    AtenTensorHandle tensor = tensor_of(*inner);
    eg_torch.delete_value(inner);
    return tensor;
}

static void text_of(StableIValue value, char *text, size_t size) {
    StringHandle string = (StringHandle)(uintptr_t)value;
    const char *inside = "";
    eg_torch.torch_string_c_str(string, &inside);
    snprintf(text, size, "%s", inside);
    eg_torch.torch_delete_string(string);
}

static void truths_of(StableIValue value, bool *truths, size_t count) {
    StableListHandle list = (StableListHandle)(uintptr_t)value;
    for (size_t i = 0; i < count; i++) {
        StableIValue item = 0;
        truths[i] = eg_torch.torch_list_get_item(list, i, &item) == 0 && (uint8_t)item != 0;
    }
    eg_torch.torch_delete_list(list);
}

/* The results go onto the stack; or an exception of torch's is thrown through here, which holds nothing more.
 */
static void finish(eg_torch_call *call, bool done, StableIValue *stack) {
    for (int i = call->inputs; i < call->count && done; i++) {
        stack[i - call->inputs] = (StableIValue)(uintptr_t)call->tensor[i];
        call->tensor[i] = NULL;
    }
    eg_torch_end(call);
    if (!done) eg_torch.aoti_torch_check(false, "epigrad", "torch_operators.c", 0, call->message);
}

static bool take_names(const char *activation, const char *math, int *activation_number, int *math_number) {
    *activation_number = eg_torch_activation(activation);
    *math_number = eg_torch_math(math);
    if (*activation_number < 0)
        return eg_py_fail(EG_ERR_ARGUMENT, "activation is '%s'; there is none such", activation);
    return *math_number >= 0 || eg_py_fail(EG_ERR_ARGUMENT, "math is '%s'; there is none such", math);
}

/* linear(Tensor x, Tensor w, Tensor? bias, str activation, bool save, str math) -> (y, pre) */
static void linear(StableIValue *stack, uint64_t arguments, uint64_t results) {
    eg_torch_call call;
    char activation[32], math[16];
    int numbers[2];
    (void)arguments, (void)results;
    eg_torch_begin_forward(&call);
    call.tensor[EG_TORCH_X] = tensor_of(stack[0]);
    call.tensor[EG_TORCH_W] = tensor_of(stack[1]);
    call.tensor[EG_TORCH_BIAS] = optional_of(stack[2]);
    text_of(stack[3], activation, sizeof activation);
    const bool save = (uint8_t)stack[4] != 0;
    text_of(stack[5], math, sizeof math);
    const bool done = take_names(activation, math, &numbers[0], &numbers[1]) &&
                      eg_torch_forward(&call, numbers[0], numbers[1], save) && eg_torch_make_rest(&call);
    finish(&call, done, stack);
}

/* linear_backward(grad, x, w, bias?, saved?, activation, source, bool[3] need, math) -> d_x, d_w, d_bias */
static void linear_backward(StableIValue *stack, uint64_t arguments, uint64_t results) {
    eg_torch_call call;
    char activation[32], source[16], math[16];
    bool need[3];
    int numbers[2];
    (void)arguments, (void)results;
    text_of(stack[6], source, sizeof source);
    const int from = eg_torch_source(source);
    eg_torch_begin_backward(&call, (eg_source)(from < 0 ? 0 : from));
    call.tensor[EG_TORCH_GRAD] = tensor_of(stack[0]);
    call.tensor[EG_TORCH_X] = tensor_of(stack[1]);
    call.tensor[EG_TORCH_W] = tensor_of(stack[2]);
    call.tensor[EG_TORCH_BIAS] = optional_of(stack[3]);
    call.tensor[EG_TORCH_SAVED] = optional_of(stack[4]);
    text_of(stack[5], activation, sizeof activation);
    truths_of(stack[7], need, 3);
    text_of(stack[8], math, sizeof math);
    const bool done = take_names(activation, math, &numbers[0], &numbers[1]) &&
                      eg_torch_backward(&call, numbers[0], numbers[1], need) && eg_torch_make_rest(&call);
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
    if (!find(cpu, EG_TEXT(name), &eg_torch.name)) return false;
    EG_TORCH_SYMBOLS(EG_SYMBOL)
#undef EG_SYMBOL
#undef EG_TEXT
    eg_torch.has_objects = find(cpu, "torch_tensor_from_pyobject", &eg_torch.torch_tensor_from_pyobject) &&
                           find(cpu, "torch_tensor_to_pyobject", &eg_torch.torch_tensor_to_pyobject);
    find(cuda, "aoti_torch_get_current_cuda_stream", &eg_torch.aoti_torch_get_current_cuda_stream);
    return find(cpu, "torch_delete_stable_ivalue", &eg_torch.delete_value) ||
           find(cpu, "_ZdlPv", &eg_torch.delete_value);
}

bool eg_py_torch_register(const char *cpu_library, const char *cuda_library) {
    void *cpu = dlopen(cpu_library, RTLD_NOW | RTLD_NOLOAD),
         *cuda = dlopen(cuda_library, RTLD_NOW | RTLD_NOLOAD);
    static const char *const keys[] = {"CPU", "CUDA"};
    if (cpu == NULL || !fill(cpu, cuda)) return false;
    for (int i = 0; i < 2; i++) {
        TorchLibraryHandle library; /* stays, as what is registered does */
        if (eg_torch.aoti_torch_library_init_impl("epigrad", keys[i], "torch_operators.c", 0, &library) !=
                0 ||
            eg_torch.torch_library_impl(library, "linear", linear, TORCH_2_10) != 0 ||
            eg_torch.torch_library_impl(library, "linear_backward", linear_backward, TORCH_2_10) != 0)
            return false;
    }
    return true;
}
