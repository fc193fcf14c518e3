/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for operands that notices a touch outside of it. */
#ifndef ORACLE_MEMORY_H
#define ORACLE_MEMORY_H

#include <stdbool.h>

#include "epigrad/epigrad.h"

/* Where the bytes stand: anywhere (eg_alloc), or on the host with an inaccessible page at one end. */
typedef enum memory_place { MEMORY_DEVICE, MEMORY_GUARD_BEHIND, MEMORY_GUARD_BEFORE } memory_place;

typedef struct memory {
    void *data; /* what eg_matrix.data takes */
    size_t bytes;
    memory_place place;
    void *map; /* guarded: the whole mapping */
    size_t map_bytes;
} memory;

/* `bytes` may be 0. False if memory ran out. */
bool memory_open(memory *m, eg_context *context, memory_place place, size_t bytes);
void memory_close(memory *m, eg_context *context);
eg_status memory_write(const memory *m, eg_context *context, const void *bytes);
eg_status memory_read(const memory *m, eg_context *context, void *bytes);

#endif
