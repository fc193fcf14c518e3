/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in host memory, as files hold them. */
#ifndef CLI_TENSORS_H
#define CLI_TENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "epigrad/epigrad.h"

enum { TENSOR_MAX_DIMS = 8 };

typedef struct tensor {
    char *name;     /* owned; NULL where the file has none */
    char type[16];  /* the element type as the file spells it, for messages */
    eg_dtype dtype; /* EG_DTYPE_DEFAULT: a type that epigrad does not compute in */
    int dims;       /* may exceed TENSOR_MAX_DIMS: `shape` then holds the first ones */
    int64_t shape[TENSOR_MAX_DIMS];
    uint64_t offset; /* of the elements, bytes from the beginning of their file */
    size_t bytes;
    void *data; /* owned, aligned to 64 bytes; NULL until it is read or allocated */
} tensor;

/* Bytes an element; 0 for EG_DTYPE_DEFAULT. Not asked of the library, which the readers do without. */
size_t tensor_element_bytes(eg_dtype dtype);

/* The bytes of `dims` dimensions of `element` bytes each; false on overflow. */
bool tensor_shape_bytes(const int64_t *shape, int dims, size_t element, size_t *bytes);

/* Sets `bytes` from shape and dtype. */
int tensor_measure(tensor *t);

/* The same, and allocates `data`. */
int tensor_allocate(tensor *t);

/* Allocates `bytes` and reads them from `file` at `offset`. */
int tensor_read(tensor *t, int file, const char *path);

/* Frees the elements, and the rest as well. */
void tensor_drop(tensor *t);
void tensor_free(tensor *t);

enum { SHAPE_TEXT = 200 };
/* Writes "[2, 3]" to `text` and returns it. */
const char *tensor_shape_text(const tensor *t, char text[SHAPE_TEXT]);

#endif
