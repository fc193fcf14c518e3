/* SPDX-License-Identifier: Apache-2.0 */
/* What every test file includes: cmocka, the library, and small helpers that say what went wrong. */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "epigrad/epigrad.h"
#include "short.h"

/* The value of a call that must succeed, and its message where it does not. */
#define assert_ok(call)                                                                                      \
    do {                                                                                                     \
        const eg_status status_ = (call);                                                                    \
        if (status_ != EG_OK) fail_msg("%s: %s: %s", #call, eg_status_name(status_), eg_last_error());       \
    } while (0)

#define assert_status(call, expected)                                                                        \
    do {                                                                                                     \
        const eg_status status_ = (call);                                                                    \
        if (status_ != (expected))                                                                           \
            fail_msg("%s is %s (%s); expected %s", #call, eg_status_name(status_), eg_last_error(),          \
                     eg_status_name(expected));                                                              \
    } while (0)

#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* The activations there are. */
#define COUNT_ACTIVATION(NAME, name, value, from_y, text) +1
enum { ACTIVATIONS = 0 EG_ACTIVATION_TABLE(COUNT_ACTIVATION) };

/* Opens the CPU with `threads` threads (0: all). */
static inline eg_context *open_cpu(int threads) {
    eg_context *context = NULL;
    const eg_open_info info = {.size = sizeof info, .threads = threads};
    assert_ok(eg_open(&info, &context));
    return context;
}

/* Memory, or the end of the test program. */
static inline void *need_memory(size_t bytes) {
    void *memory = malloc(bytes);
    if (memory == NULL) abort();
    return memory;
}

#endif
