/* SPDX-License-Identifier: Apache-2.0 */
#include "tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"
#include "file.h"

size_t tensor_element_bytes(eg_dtype dtype) {
    switch (dtype) {
    case EG_F64:
        return 8;
    case EG_F32:
        return 4;
    case EG_F16:
    case EG_BF16:
        return 2;
    case EG_DTYPE_DEFAULT:
        break;
    }
    return 0;
}

/* A zero anywhere makes the tensor empty, however large its other dimensions. */
bool tensor_shape_bytes(const int64_t *shape, int dims, size_t element, size_t *bytes) {
    size_t total = element;
    bool empty = false, overflow = false;
    for (int i = 0; i < dims; i++) {
        empty = empty || shape[i] == 0;
        overflow = __builtin_mul_overflow(total, shape[i], &total) || overflow;
    }
    *bytes = empty ? 0 : total;
    return empty || !overflow;
}

static int allocate_data(tensor *t) {
    if (t->bytes > SIZE_MAX - 64) return cli_out_of_memory();
    t->data = aligned_alloc(64, (t->bytes + 64) & ~(size_t)63); /* never 0 bytes, a multiple of 64 */
    return t->data != NULL ? CLI_OK : cli_out_of_memory();
}

int tensor_measure(tensor *t) {
    if (tensor_shape_bytes(t->shape, t->dims, tensor_element_bytes(t->dtype), &t->bytes)) return CLI_OK;
    char text[SHAPE_TEXT];
    return cli_fail(CLI_BAD_INPUT, "%s would have shape %s: more bytes than can be addressed", t->name,
                    tensor_shape_text(t, text));
}

int tensor_allocate(tensor *t) {
    CLI_TRY(tensor_measure(t));
    return allocate_data(t);
}

int tensor_read(tensor *t, int file, const char *path) {
    CLI_TRY(allocate_data(t));
    return file_read(file, path, t->data, t->bytes, t->offset);
}

void tensor_drop(tensor *t) {
    free(t->data);
    t->data = NULL;
}

void tensor_free(tensor *t) {
    tensor_drop(t);
    free(t->name);
    t->name = NULL;
}

const char *tensor_shape_text(const tensor *t, char text[SHAPE_TEXT]) {
    size_t used = (size_t)snprintf(text, SHAPE_TEXT, "[");
    for (int i = 0; i < t->dims && i < TENSOR_MAX_DIMS; i++) {
        used += (size_t)snprintf(text + used, SHAPE_TEXT - used, "%s%lld", i > 0 ? ", " : "",
                                 (long long)t->shape[i]);
    }
    snprintf(text + used, SHAPE_TEXT - used, "%s]", t->dims > TENSOR_MAX_DIMS ? ", ..." : "");
    return text;
}
