/* SPDX-License-Identifier: Apache-2.0 */
/* The part of XLA's FFI, a C interface, that a handler needs. Its structs begin with their size and only
 * grow. */
#ifndef EG_XLA_ABI_H
#define EG_XLA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef struct XLA_FFI_Extension {
    size_t struct_size;
    int type;
    struct XLA_FFI_Extension *next;
} XLA_FFI_Extension;
enum { XLA_FFI_Extension_Metadata = 1 };

typedef struct XLA_FFI_Api_Version {
    size_t struct_size;
    XLA_FFI_Extension *extension_start;
    int major_version, minor_version;
} XLA_FFI_Api_Version;

typedef struct XLA_FFI_Metadata {
    size_t struct_size;
    XLA_FFI_Api_Version api_version;
    uint32_t traits;
} XLA_FFI_Metadata;

typedef struct XLA_FFI_Metadata_Extension {
    XLA_FFI_Extension base;
    XLA_FFI_Metadata *metadata;
} XLA_FFI_Metadata_Extension;

typedef enum XLA_FFI_DataType {
    XLA_FFI_DataType_S32 = 4,
    XLA_FFI_DataType_S64 = 5,
    XLA_FFI_DataType_F16 = 10,
    XLA_FFI_DataType_F32 = 11,
    XLA_FFI_DataType_F64 = 12,
    XLA_FFI_DataType_BF16 = 16
} XLA_FFI_DataType;

typedef struct XLA_FFI_Buffer {
    size_t struct_size;
    XLA_FFI_Extension *extension_start;
    int dtype;
    void *data;
    int64_t rank;
    int64_t *dims; /* dense, row-major */
} XLA_FFI_Buffer;

typedef struct XLA_FFI_Error XLA_FFI_Error;
typedef enum XLA_FFI_Error_Code {
    XLA_FFI_Error_Code_INVALID_ARGUMENT = 3,
    XLA_FFI_Error_Code_RESOURCE_EXHAUSTED = 8,
    XLA_FFI_Error_Code_UNIMPLEMENTED = 12,
    XLA_FFI_Error_Code_INTERNAL = 13
} XLA_FFI_Error_Code;

typedef struct XLA_FFI_Error_Create_Args {
    size_t struct_size;
    XLA_FFI_Extension *extension_start;
    const char *message;
    int code;
} XLA_FFI_Error_Create_Args;

/* The last field is what is asked for. */
typedef struct XLA_FFI_Stream_Get_Args {
    size_t struct_size;
    XLA_FFI_Extension *extension_start;
    void *context;
    void *stream;
} XLA_FFI_Stream_Get_Args;

typedef struct XLA_FFI_DeviceOrdinal_Get_Args {
    size_t struct_size;
    XLA_FFI_Extension *extension_start;
    void *context;
    int32_t device_ordinal;
} XLA_FFI_DeviceOrdinal_Get_Args;

typedef struct XLA_FFI_Api {
    size_t struct_size;
    XLA_FFI_Extension *extension_start;
    XLA_FFI_Api_Version api_version;
    const void *internal_api;
    XLA_FFI_Error *(*Error_Create)(XLA_FFI_Error_Create_Args *args);
    void (*between[3])(void); /* Error_GetMessage, Error_Destroy, Handler_Register */
    XLA_FFI_Error *(*Stream_Get)(XLA_FFI_Stream_Get_Args *args);
    void (*then[12])(void); /* Type_Register to RunId_Get */
    XLA_FFI_Error *(*DeviceOrdinal_Get)(XLA_FFI_DeviceOrdinal_Get_Args *args); /* since 0.2 */
} XLA_FFI_Api;

typedef struct XLA_FFI_Buffers { /* arguments, or results */
    size_t struct_size;
    XLA_FFI_Extension *extension_start;
    int64_t size;
    int *types;
    void **buffers;
} XLA_FFI_Buffers;

typedef struct XLA_FFI_Name {
    const char *text;
    size_t length;
} XLA_FFI_Name;

typedef struct XLA_FFI_Scalar {
    int dtype;
    void *value;
} XLA_FFI_Scalar;

typedef struct XLA_FFI_Attributes {
    size_t struct_size;
    XLA_FFI_Extension *extension_start;
    int64_t size;
    int *types;
    XLA_FFI_Name **names;
    void **values;
} XLA_FFI_Attributes;

typedef struct XLA_FFI_CallFrame {
    size_t struct_size;
    XLA_FFI_Extension *extension_start;
    const XLA_FFI_Api *api;
    void *context;
    int stage;
    XLA_FFI_Buffers args, rets;
    XLA_FFI_Attributes attributes;
} XLA_FFI_CallFrame;

#endif
