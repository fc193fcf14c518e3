/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin that holds the static library: opens a context, calls with two threads, and closes it. */
#include <stdlib.h>

#include "epigrad/epigrad.h"

EG_API int call_with_two_threads(void);

/* 0 where every call succeeded. */
int call_with_two_threads(void) {
    enum { SIZE = 256 };
    eg_context *context = NULL;
    if (eg_open(&(eg_open_info){.size = sizeof(eg_open_info), .threads = 2}, &context) != EG_OK) return 1;
    float *memory = calloc((size_t)3 * SIZE * SIZE, sizeof *memory);
    const eg_layer layer = {.size = sizeof layer, .m = SIZE, .k = SIZE, .n = SIZE, .batch = 1};
    const eg_forward_args args = {.size = sizeof args,
                                  .a.data = memory,
                                  .b.data = memory + SIZE * SIZE,
                                  .y.data = memory + 2 * SIZE * SIZE};
    const int failed = memory == NULL || eg_forward(context, &layer, &args) != EG_OK;
    eg_close(context);
    free(memory);
    return failed;
}
