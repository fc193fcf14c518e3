/* SPDX-License-Identifier: Apache-2.0 */
/* The .safetensors format: 8 bytes of header length (little endian), the header, a JSON object of
 *     "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}
 * and the elements, row-major and little endian, that the offsets count from. Every byte of them belongs
 * to exactly one tensor. */
#ifndef CLI_SAFETENSORS_H
#define CLI_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "tensors.h"

typedef struct safetensors {
    tensor *tensors; /* owned; `data` is not read */
    int count;
} safetensors;

/* Reads and checks the header of `file`, which is `bytes` long. */
int safetensors_open(int file, const char *path, uint64_t bytes, safetensors *index);
void safetensors_close(safetensors *index);

/* Writes a whole file of `count` tensors. */
int safetensors_write(int file, const char *path, const tensor *const *tensors, int count);

#endif
