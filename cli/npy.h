/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy format: "\x93NUMPY", a version, a header length, the header, a Python literal
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
 * and the elements. Read: f8, f4 and f2, little endian and row-major; bf16 has no type of NumPy's own and
 * is '<V2' or '|V2', as the ml_dtypes package writes it, or 'bfloat16'. */
#ifndef CLI_NPY_H
#define CLI_NPY_H

#include <stdint.h>

#include "tensors.h"

/* Reads and checks the header of `file`, which is `bytes` long. `t->name` is left alone. */
int npy_open(int file, const char *path, uint64_t bytes, tensor *t);

/* Writes a whole file. */
int npy_write(int file, const char *path, const tensor *t);

#endif
