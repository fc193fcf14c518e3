/* Where results go: a .safetensors file, or a folder of .npy files. It appears whole or not at all. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "tensors.h"

/* Refuses a place that could not be written to, before any work is done for it. */
int output_check(const char *path);

/* Writes beside `path`, then renames. An older file or folder of results there is replaced. */
int output_write(const char *path, const tensor *const *tensors, int count);

#endif
