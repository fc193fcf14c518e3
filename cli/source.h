/* SPDX-License-Identifier: Apache-2.0 */
/* Where input tensors come from: a .safetensors file, or a folder of .npy files named after them. */
#ifndef CLI_SOURCE_H
#define CLI_SOURCE_H

#include "safetensors.h"

typedef struct tensor_source {
    const char *path; /* the caller's */
    int file;         /* of the .safetensors file, or of the folder */
    bool is_folder;
    safetensors index; /* not for a folder */
} tensor_source;

int source_open(const char *path, tensor_source *source);
void source_close(tensor_source *source);

/* The tensor `name`, to be given back with tensor_free: its elements as well, where `with_data`.
 * One that is not there leaves *found false, and is no failure. */
int source_load(const tensor_source *source, const char *name, bool with_data, tensor *t, bool *found);

#endif
