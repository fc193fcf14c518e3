/* SPDX-License-Identifier: Apache-2.0 */
/* The part of torch's stable C interface (torch/csrc/stable/c/shim.h of 2.10 and newer, and the one below it)
 * that the operators use, in prototypes of its own. It is looked up when torch is loaded: nothing of torch is
 * needed to build.
 *
 * Arguments and results lie on a stack of 64-bit values. Tensors, strings and lists are handles that belong
 * to the kernel; an optional is NULL, or the address of a value. */
#ifndef EG_TORCH_ABI_H
#define EG_TORCH_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t StableIValue;
typedef struct AtenTensorOpaque *AtenTensorHandle;
typedef struct TorchLibraryOpaque *TorchLibraryHandle;
typedef struct StringOpaque *StringHandle;
typedef struct StableListOpaque *StableListHandle;
typedef int32_t AOTITorchError; /* 0: none */
typedef void (*TorchKernel)(StableIValue *stack, uint64_t arguments, uint64_t results);

enum { TORCH_CPU = 0, TORCH_CUDA = 1 };                                                 /* c10::DeviceType */
enum { TORCH_UINT8 = 0, TORCH_F16 = 5, TORCH_F32 = 6, TORCH_F64 = 7, TORCH_BF16 = 15 }; /* c10::ScalarType */
#define TORCH_2_10 (((uint64_t)2 << 56) | ((uint64_t)10 << 48))

#define EG_TORCH_SYMBOLS(X)                                                                                  \
    X(aoti_torch_library_init_impl, AOTITorchError, const char *space, const char *key, const char *file,    \
      uint32_t line, TorchLibraryHandle *library)                                                            \
    X(torch_library_impl, AOTITorchError, TorchLibraryHandle library, const char *name, TorchKernel kernel,  \
      uint64_t version)                                                                                      \
    X(aoti_torch_get_data_ptr, AOTITorchError, AtenTensorHandle tensor, void **data)                         \
    X(aoti_torch_get_dim, AOTITorchError, AtenTensorHandle tensor, int64_t *dims)                            \
    X(aoti_torch_get_sizes, AOTITorchError, AtenTensorHandle tensor, int64_t **sizes)                        \
    X(aoti_torch_get_strides, AOTITorchError, AtenTensorHandle tensor, int64_t **strides)                    \
    X(aoti_torch_get_dtype, AOTITorchError, AtenTensorHandle tensor, int32_t *dtype)                         \
    X(aoti_torch_get_device_type, AOTITorchError, AtenTensorHandle tensor, int32_t *type)                    \
    X(aoti_torch_get_device_index, AOTITorchError, AtenTensorHandle tensor, int32_t *index)                  \
    X(aoti_torch_empty_strided, AOTITorchError, int64_t dims, const int64_t *sizes, const int64_t *strides,  \
      int32_t dtype, int32_t device_type, int32_t device_index, AtenTensorHandle *made)                      \
    X(aoti_torch_copy_, AOTITorchError, AtenTensorHandle to, AtenTensorHandle from, int32_t non_blocking)    \
    X(aoti_torch_delete_tensor_object, AOTITorchError, AtenTensorHandle tensor)                              \
    X(aoti_torch_check, void, bool condition, const char *function, const char *file, uint32_t line,         \
      const char *message)                                                                                   \
    X(aoti_torch_grad_mode_is_enabled, bool, void)                                                           \
    X(torch_string_c_str, AOTITorchError, StringHandle string, const char **text)                            \
    X(torch_delete_string, AOTITorchError, StringHandle string)                                              \
    X(torch_list_get_item, AOTITorchError, StableListHandle list, size_t index, StableIValue *value)         \
    X(torch_delete_list, AOTITorchError, StableListHandle list)

typedef struct torch_table {
#define EG_SYMBOL(name, result, ...) result (*name)(__VA_ARGS__);
    EG_TORCH_SYMBOLS(EG_SYMBOL)
#undef EG_SYMBOL
    /* NULL where there is no CUDA. */
    AOTITorchError (*aoti_torch_get_current_cuda_stream)(int32_t device_index, void **stream);
    /* Of an optional's value: torch_delete_stable_ivalue, or C++'s operator delete before 2.13. */
    void (*delete_value)(void *value);
    /* From 2.14 on, where has_objects: with the interpreter's lock held. */
    bool has_objects;
    AOTITorchError (*torch_tensor_from_pyobject)(void *object, AtenTensorHandle *tensor);
    AOTITorchError (*torch_tensor_to_pyobject)(AtenTensorHandle tensor, void *type, void **object);
} torch_table;

extern torch_table eg_torch; /* torch_call.c */

#endif
