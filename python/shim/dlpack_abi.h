/* SPDX-License-Identifier: Apache-2.0 */
/* The structs of DLPack 1, as its ABI fixes them, and the table of functions that a tensor type may offer in
 * C. */
#ifndef EG_DLPACK_ABI_H
#define EG_DLPACK_ABI_H

#include <stdint.h>

typedef enum DLDeviceType { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 } DLDeviceType;

typedef enum DLDataTypeCode { kDLInt = 0, kDLFloat = 2, kDLBfloat = 4 } DLDataTypeCode;

typedef struct DLTensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: dense, row-major */
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor { /* in a capsule named "dltensor" */
    DLTensor tensor;
    void *manager;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

enum { DLPACK_READ_ONLY = 1 };

typedef struct DLManagedTensorVersioned { /* in a capsule named "dltensor_versioned" */
    uint32_t major, minor;
    void *manager;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor tensor;
} DLManagedTensorVersioned;

/* Of a type, in a capsule named "dlpack_exchange_api" at `__dlpack_c_exchange_api__`. */
typedef struct DLPackExchange {
    uint32_t major, minor;
    void *older;
    void (*allocate)(void);
    void (*from_object)(void);
    void (*to_object)(void);
    int (*borrow)(void *object, DLTensor *tensor); /* no reference is taken; may be NULL */
    int (*stream)(int32_t device_type, int32_t device, void **stream);
} DLPackExchange;

#endif
