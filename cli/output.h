/* SPDX-License-Identifier: Apache-2.0 */
/* Where results go: a .safetensors file, or a folder of .npy files. It appears whole or not at all. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "tensors.h"

/* Refuses, before any work is done for it, a place that could not be written to, or where `input` (IN's path)
 * would be replaced. */
int output_check(const char *path, const char *input);

/* Writes beside `path`, then renames. An older file or folder of results there is replaced. */
int output_write(const char *path, const tensor *const *tensors, int count);

#endif
